"""The command, run on objects in a file."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from explain.scenes import Answer, Raw

from webhook.explain.command import COMMAND


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    def run(*objects: Raw, words: tuple[str, ...] = ("mine", "-n", "team")) -> Answer:
        file = tmp_path / "cluster.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        parser = argparse.ArgumentParser()
        COMMAND.arguments(parser)
        status = COMMAND.run(parser.parse_args([*words, "-f", str(file)]))
        told = capsys.readouterr()
        return Answer(status, told.out, told.err)

    return run
