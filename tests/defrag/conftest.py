"""The commands, run on objects in a file."""

from pathlib import Path

import pytest
from commands import Answer, Raw, answer
from defrag.clusters import Run

from koordgate.cli import Command


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def one(of: Command, objects: list[Raw], *words: str) -> Answer:
        return answer(of, objects, words, tmp_path, capsys)

    return one
