"""How far a simulation has come, off a terminal."""

import sys

import pytest

from console.simulator.simulate import progress


def test_a_line_is_written_for_each_ten_thousand(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Pods") as (begin, tell):
        begin(25_000)
        for over in range(1, 25_001):
            tell(over)
    assert capsys.readouterr().err.splitlines() == ["Pods: 10,000 of 25,000", "Pods: 20,000 of 25,000"]


def test_steps_over_a_bound_are_told_once_and_short_work_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Pods") as (begin, tell):
        begin(30_000)
        for over in (9_999, 10_003, 19_999, 20_003):
            tell(over)
    assert capsys.readouterr().err.splitlines() == ["Pods: 10,003 of 30,000", "Pods: 20,003 of 30,000"]
    with progress("Pods") as (begin, tell):
        begin(40_000)
        for over in (10_020, 20_000, 20_001, 29_999, 30_000):
            tell(over)
    assert capsys.readouterr().err.splitlines() == [
        f"Pods: {over} of 40,000" for over in ("10,020", "20,000", "30,000")
    ]
    with progress("Pods") as (begin, tell):
        begin(9_999)
        tell(9_999)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"COLUMNS": "80", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(key, value)
    for key in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("Pods") as (begin, tell):
        begin(20_000)
        tell(10_000)
    told = capsys.readouterr().err
    assert "10000/20000" in told
    assert told.endswith("\x1b[2K"), "the line of the bar is erased"
