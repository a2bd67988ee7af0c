"""The commands, run on objects in a file."""

import argparse
import json
from pathlib import Path

import pytest
from defrag.clusters import Answer, Raw, Run

from koordgate.cli import Command


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def one(of: Command, objects: list[Raw], *words: str) -> Answer:
        file = tmp_path / "cluster.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        parser = argparse.ArgumentParser()
        of.arguments(parser)
        status = of.run(parser.parse_args([*words, "-f", str(file)]))
        told = capsys.readouterr()
        return Answer(status, told.out, told.err)

    return one
