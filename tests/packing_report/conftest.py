"""The command, run on objects in a file."""

from pathlib import Path

import pytest
from commands import Answer, Raw, answer
from packing_report.clusters import Run


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def one(objects: list[Raw], *words: str) -> Answer:
        return answer("packing", objects, words, tmp_path, capsys)

    return one
