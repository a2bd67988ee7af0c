"""A `koordgate` command in the process of the test, so that it runs beside a server of the test."""

import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from koordgate.cli import main

Raw = dict[str, Any]


class Said(NamedTuple):
    """The exit status, and what was written to standard output and standard error."""

    status: int
    out: str
    err: str


Koordgate = Callable[..., Coroutine[Any, Any, Said]]


class Answer(NamedTuple):
    """The same of a command that was run on objects in a file."""

    status: int
    out: str
    err: str

    @property
    def first(self) -> str:
        return self.out.splitlines()[0]

    @property
    def data(self) -> Raw:
        found: Raw = json.loads(self.out)
        return found


def answer(
    command: str, objects: Sequence[Raw], words: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> Answer:
    """Run a command with `-f` and a file of these objects."""
    file = folder / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    status = main([command, *words, "-f", str(file)])
    said = capsys.readouterr()
    return Answer(status, said.out, said.err)
