"""Logs: one JSON object per line, whatever is logged."""

import logging
import subprocess
import sys
from typing import Any

import orjson
import pytest

from koordgate.log import JsonFormatter


def line(
    message: object, *arguments: object, extra: dict[str, Any] | None = None, error: bool = False
) -> dict[str, Any]:
    made = logging.getLogger("a.b").makeRecord(
        "a.b", logging.WARNING, "file.py", 1, message, arguments, sys.exc_info() if error else None, extra=extra
    )
    text = JsonFormatter().format(made)
    assert "\n" not in text
    parsed: dict[str, Any] = orjson.loads(text)
    return parsed


def test_a_line_says_when_how_grave_who_and_what() -> None:
    said = line("%s is %d", "n1", 5)
    assert {key: said[key] for key in ("level", "logger", "message")} == {
        "level": "warning",
        "logger": "a.b",
        "message": "n1 is 5",
    }
    assert said["time"].endswith("+00:00")
    assert set(said) == {"time", "level", "logger", "message"}


def test_what_other_handlers_left_on_a_record_is_not_told() -> None:
    made = logging.makeLogRecord({"msg": "x", "node": "n1"})
    logging.Formatter("%(asctime)s %(message)s").format(made)
    assert set(orjson.loads(JsonFormatter().format(made))) == {"time", "level", "logger", "message", "node"}


def test_what_it_is_about_are_members_of_their_own() -> None:
    said = line("x", extra={"pod": "default/p", "node": "n1", "review": "u"})
    assert (said["pod"], said["node"], said["review"]) == ("default/p", "n1", "u")


def test_an_error_carries_its_trace_in_one_line() -> None:
    try:
        int("no number")
    except ValueError:
        said = line("failed", error=True)
    assert "ValueError: invalid literal" in said["trace"]


@pytest.mark.parametrize("value", [object(), ValueError("x"), {1, 2}, b"bytes", ("a", 1), None, 2**40, 1.5])
def test_any_value_can_be_logged(value: object) -> None:
    assert "it" in line("x", extra={"it": value})


def test_a_message_of_several_lines_is_one_line() -> None:
    assert line("a\nb\u2028c\x00")["message"] == "a\nb\u2028c\x00"


def test_a_process_logs_to_standard_error_from_its_level_on() -> None:
    code = (
        "import logging; from koordgate import log; logging.basicConfig(); log.start('warning')\n"
        "logging.getLogger('x').info('no'); logging.getLogger('x').warning('yes', extra={'pod': 'p'})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == ""
    (only,) = ran.stderr.splitlines()
    assert orjson.loads(only)["pod"] == "p"
