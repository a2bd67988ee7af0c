"""Logs: one JSON object per line, whatever is logged."""

import logging
import subprocess
import sys
from typing import Any

import orjson
import pytest

from koordgate import log
from koordgate.log import JsonFormatter, TextFormatter


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
    said = {}
    try:
        int("no number")
    except ValueError:
        said = line("failed", error=True)
    assert "ValueError: invalid literal" in said["trace"]


@pytest.mark.parametrize("value", [object(), ValueError("x"), {1, 2}, b"bytes", ("a", 1), None, 2**40, 1.5])
def test_any_value_can_be_logged(value: object) -> None:
    assert "it" in line("x", extra={"it": value})


def test_a_file_name_that_is_not_utf_8_and_a_huge_integer_lose_no_line() -> None:
    said = line("%s", "cgroup/\udcff", extra={"path": "a\ud800b", "amount": 10**30})
    assert (said["message"], said["path"]) == ("cgroup/\\udcff", "a\\ud800b")
    assert said["amount"] == pytest.approx(1e30)


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


@pytest.mark.parametrize(("style", "first"), [("json", "{"), ("text", "2")])
def test_a_process_names_itself_in_each_line_of_either_style(style: str, first: str) -> None:
    code = (
        f"import logging; from koordgate import log; log.start('info', 'webhook', {style!r})\n"
        "logging.getLogger('x').info('yes')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (only,) = ran.stderr.splitlines()
    assert only.startswith(first)
    assert ('"component":"webhook"' if style == "json" else "component=webhook") in only


def test_what_libraries_tell_of_each_request_is_not_logged_and_what_is_grave_is() -> None:
    code = (
        "import logging; from koordgate import log; log.start('debug')\n"
        "for name in ('aiohttp.access', 'opentelemetry.sdk', 'urllib3.pool', 'koordgate.x'):\n"
        "    for level in (logging.INFO, logging.WARNING, logging.ERROR): logging.getLogger(name).log(level, level)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = [orjson.loads(each) for each in ran.stderr.splitlines()]
    assert [(each["logger"], each["message"]) for each in told] == [
        ("aiohttp.access", "30"),
        ("aiohttp.access", "40"),
        ("opentelemetry.sdk", "40"),
        ("urllib3.pool", "40"),
        ("koordgate.x", "20"),
        ("koordgate.x", "30"),
        ("koordgate.x", "40"),
    ]


# --- what a call is about


def test_lines_inside_of_a_call_name_it_and_those_after_it_do_not() -> None:
    with log.about(review="r", pod="default/p", node=""):
        inside = line("x")
    assert (inside["review"], inside["pod"]) == ("r", "default/p")
    assert "node" not in inside
    assert "review" not in line("x")


def test_an_inner_call_adds_to_the_outer_one_and_a_line_says_it_best() -> None:
    with log.about(review="r", node="n1"):
        with log.about(trace_id="t"):
            inner = line("x", extra={"node": "n2"})
        outer = line("x")
    assert (inner["review"], inner["trace_id"], inner["node"]) == ("r", "t", "n2")
    assert (outer["review"], outer["node"]) == ("r", "n1")
    assert "trace_id" not in outer


def test_no_member_of_a_call_replaces_when_how_grave_and_who() -> None:
    with log.about(time="then", level="none", logger="nobody", message="nothing"):
        said = line("x")
    assert (said["level"], said["logger"], said["message"]) == ("warning", "a.b", "x")
    assert said["time"] != "then"


# --- bounds: nobody fills a log with names


@pytest.mark.parametrize(("length", "most"), [(999, 999), (1_000, 1_000), (1_001, 1_000), (1_000_000, 1_000)])
def test_a_member_has_a_thousand_characters_at_most(length: int, most: int) -> None:
    assert len(line("x", extra={"pod": "p" * length})["pod"]) == most
    assert line("x", extra={"pod": "p" * length})["pod"].endswith(" ...") == (length > most)


def test_a_message_has_four_thousand_characters_and_a_trace_sixteen_thousand_at_most() -> None:
    said = {}
    try:
        dict[str, int]()["v" * 50_000]
    except KeyError:
        said = line("m" * 50_000, error=True)
    assert (len(said["message"]), len(said["trace"])) == (4_000, 16_000)


def test_a_line_has_two_dozen_members_of_a_call_at_most() -> None:
    assert len(line("x", extra={f"m{number}": number for number in range(100)})) == 4 + 24


def test_what_is_no_text_is_cut_as_a_text_and_numbers_stay_numbers() -> None:
    said = line("x", extra={"all": ["p" * 5_000], "ms": 1.5, "dry_run": True, "pods": 3})
    assert len(said["all"]) == 1_000
    assert (said["ms"], said["dry_run"], said["pods"]) == (1.5, True, 3)


# --- text, for people


def text(message: object, *arguments: object, extra: dict[str, Any] | None = None, error: bool = False) -> str:
    made = logging.getLogger("a.b").makeRecord(
        "a.b", logging.WARNING, "file.py", 1, message, arguments, sys.exc_info() if error else None, extra=extra
    )
    return TextFormatter("webhook").format(made)


def test_text_is_time_level_logger_message_and_members() -> None:
    said = text("%s waits", "it", extra={"pod": "default/p", "ms": 2, "why": "no room"})
    when, rest = said.split(" ", 1)
    assert when.endswith("+00:00")
    assert rest == 'WARNING a.b it waits component=webhook pod=default/p ms=2 why="no room"'


@pytest.mark.parametrize(
    "evil",
    [
        pytest.param("x\n2026-01-01T00:00:00 ERROR forged", id="a line break"),
        pytest.param("x\r\x1b[2J", id="a terminal's control"),
        pytest.param("x\u2028y", id="a line separator"),
        pytest.param('x" level=error "', id="quotes"),
    ],
)
def test_nobody_forges_a_line_of_text(evil: str) -> None:
    said = text(evil, extra={"pod": evil, f"key{evil}": "v"})
    assert said.isprintable()
    assert len(said.splitlines()) == 1


def test_an_empty_value_is_shown_as_such() -> None:
    assert text("x", extra={"pod": ""}).endswith('pod=""')


def test_an_error_carries_its_trace_in_one_line_of_text() -> None:
    said = ""
    try:
        int("no number")
    except ValueError:
        said = text("failed", error=True)
    assert "ValueError: invalid literal" in said
    assert len(said.splitlines()) == 1
