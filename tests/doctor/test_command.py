"""The forms in which `koordgate doctor` writes what it finds."""

import asyncio
import json
from collections.abc import Callable

import pytest
import yaml
from doctor.test_probe import BY_CLASS

from console.doctor import command
from console.doctor.command import Looked
from console.doctor.findings import Finding, Level
from console.doctor.probe import Outcome, ProbePlan, Verdict
from koordgate.cli import main

LONG = "a value that is longer than a terminal is wide, " * 4
FOUND = [Finding("versions", Level.OK, "all is right"), Finding("clocks", Level.FAILURE, LONG, "set the clock")]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    async def found(*_of: object) -> Looked:
        return Looked(FOUND)

    monkeypatch.setattr(command, "find", found)

    def one(*words: str) -> tuple[int, str]:
        return main(["doctor", *words]), capsys.readouterr().out

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
    listed = [
        Finding("versions", Level.OK, "all is right"),
        Finding("clocks", Level.UNKNOWN, "no time", "ask"),
        Finding("nodes", Level.FAILURE, "x" * 90, "do\nit"),
    ]

    async def found(*_of: object) -> Looked:
        return Looked(listed)

    monkeypatch.setattr(command, "find", found)
    assert main(["doctor"]) == 2
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


Asked = list[ProbePlan | None]


def probing(monkeypatch: pytest.MonkeyPatch, answer: Looked | BaseException) -> Asked:
    """Let the command find this, and note which probes it was asked for."""
    asked: Asked = []

    async def found(_opened: object, _installed: str, _tried: str, plan: ProbePlan | None, _say: object) -> Looked:
        asked.append(plan)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(command, "find", found)
    return asked


def status(*words: str) -> int:
    return main(["doctor", *words])


def test_probes_are_run_on_demand_and_shown_in_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Looked([Finding("probe", Level.OK, "all is right")], [Outcome("n1", BY_CLASS, Verdict.RIGHT)])
    asked = probing(monkeypatch, shown)
    assert status("--probe", "registry.example.com:5000/a/busybox@sha256:0a", "--try-in", "team-a") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[3].split() == ["NODE", "WAY", "GIVEN", "SEEN", "VERDICT"]
    assert out[4].split() == ["n1", "runtimeClass", "-", "-", "right"]
    assert status("--probe", "busybox", "--probe-timeout", "5", "-o", "json") == 0
    assert [one["node"] for one in json.loads(capsys.readouterr().out)["probe"]] == ["n1"]
    assert status() == 0
    first, second = ("registry.example.com:5000/a/busybox@sha256:0a", "team-a", 120.0), ("busybox", "default", 5.0)
    assert asked == [ProbePlan(*first), ProbePlan(*second), None]


@pytest.mark.parametrize("image", ["", "a b", "-busybox", "a;b", "x" * 513])
def test_what_is_no_image_is_refused(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        status(f"--probe={image}")
    assert "is no image, such as" in capsys.readouterr().err


@pytest.mark.parametrize(("ended", "code"), [(KeyboardInterrupt(), 130), (asyncio.CancelledError(), 143)])
def test_an_interrupted_command_says_that_no_pod_is_left(
    ended: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probing(monkeypatch, ended)
    assert status("--probe", "busybox") == code
    assert capsys.readouterr().err == "koordgate doctor: interrupted; the Pods of the probe are deleted\n"
    assert status() == code
    assert capsys.readouterr().err == "koordgate doctor: interrupted\n"
