"""How far a simulation has come, off a terminal."""

import pytest

from webhook.offline.progress import progress


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
        begin(9_999)
        tell(9_999)
    assert capsys.readouterr().err == ""
