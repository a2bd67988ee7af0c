"""The forms in which `koordgate doctor` writes what it finds."""

import argparse
import json
from collections.abc import Callable

import pytest
import yaml

from webhook.doctor import command
from webhook.doctor.command import COMMAND
from webhook.doctor.findings import Finding, failure, ok, unknown

LONG = "a value that is longer than a terminal is wide, " * 4
FOUND = [ok("versions", "all is right"), failure("clocks", LONG, "set the clock")]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    async def found(*_of: object) -> list[Finding]:
        return FOUND

    monkeypatch.setattr(command, "find", found)

    def one(*words: str) -> tuple[int, str]:
        parser = argparse.ArgumentParser()
        COMMAND.arguments(parser)
        return COMMAND.run(parser.parse_args(words)), capsys.readouterr().out

    return one


def test_findings_are_the_same_in_both_forms_of_data(run: Callable[..., tuple[int, str]]) -> None:
    (status, text), (_, written) = run("-o", "json"), run("-o", "yaml")
    assert status == 2
    assert yaml.safe_load(written) == json.loads(text)
    assert [one["todo"] for one in json.loads(text)["findings"]] == ["", "set the clock"]


def test_a_table_is_wrapped_and_a_wide_one_is_not(run: Callable[..., tuple[int, str]]) -> None:
    (_, narrow), (_, wide) = run(), run("-o", "wide")
    assert max(map(len, narrow.splitlines())) <= 100
    assert LONG.strip() in wide
    assert LONG.strip() not in narrow


def test_what_is_right_is_left_out_on_demand(run: Callable[..., tuple[int, str]]) -> None:
    assert "all is right" in run()[1]
    assert "all is right" not in run("--quiet")[1]


def test_it_is_written_line_by_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    listed = [ok("versions", "all is right"), unknown("clocks", "no time", "ask"), failure("nodes", "x" * 90, "do\nit")]

    async def found(*_of: object) -> list[Finding]:
        return listed

    monkeypatch.setattr(command, "find", found)
    parser = argparse.ArgumentParser()
    COMMAND.arguments(parser)
    assert COMMAND.run(parser.parse_args([])) == 2
    assert capsys.readouterr().out.splitlines() == [
        "         AREA      FOUND, AND WHAT TO DO",
        "ok       versions  all is right",
        "unknown  clocks    no time",
        "                   -> ask",
        f"failure  nodes     {'x' * 81}",
        f"                   {'x' * 9}",
        "                   -> do",
        "                   it",
        "",
        "1 failure, 0 warnings, 1 not known, 1 ok",
    ]
