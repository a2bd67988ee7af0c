"""What a command that takes longer says of what it does: on a terminal, and elsewhere."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_kube import FakeKube, hold
from kubeconfigs import write_kubeconfig
from terminals import on_terminal

from console import terminal
from console.terminal import doing, working


def told(capsys: pytest.CaptureFixture[str], total: int, *done: int) -> list[str]:
    with working():
        for number in done:
            doing("Pods", number, total)
    return capsys.readouterr().err.splitlines()


def test_off_a_terminal_a_line_is_written_for_each_ten_thousand(capsys: pytest.CaptureFixture[str]) -> None:
    every = told(capsys, 25_000, *range(1, 25_001))
    assert every == ["Pods: 10,000 of 25,000", "Pods: 20,000 of 25,000"]


def test_steps_over_a_bound_are_told_once_and_short_work_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, 30_000, 9_999, 10_003, 19_999, 20_003)
    assert found == ["Pods: 10,003 of 30,000", "Pods: 20,003 of 30,000"]
    found = told(capsys, 40_000, 10_020, 20_000, 20_001, 29_999, 30_000)
    assert found == [f"Pods: {over} of 40,000" for over in ("10,020", "20,000", "30,000")]
    assert told(capsys, 9_999, 9_999) == []


def test_what_has_no_number_is_not_told_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with working():
        doing("reading nodes")
        terminal.show("a line")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("a line\n", "")


def test_without_a_command_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    doing("Pods", 10_000, 20_000)
    assert capsys.readouterr().err == ""


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    async with FakeKube() as server:
        server.discovery["/version"] = {"gitVersion": "v1.36.3"}
        yield server


WAITING = {
    "top": ("nodes", b"reading nodes"),
    "pod -A": ("nodes", b"reading nodes"),
    "explain p": ("nodes", b"reading nodes"),
    "packing": ("nodes", b"reading nodes"),
    "snapshot": ("nodes", b"reading nodes"),
    "adopt check": ("nodes", b"reading nodes"),
    "cordon GPU-1234": ("nodes", b"reading nodes"),
    "doctor": ("nodes", b"reading "),  # it reads several kinds at once
    "cleanup": ("daemonsets", b"looking at daemonsets"),
}


@pytest.mark.parametrize("words", WAITING)
async def test_on_a_terminal_a_command_that_waits_says_for_what_and_leaves_no_trace(
    words: str, fake: FakeKube, tmp_path: Path
) -> None:
    held, (resource, says) = hold(), WAITING[words]
    assert held.gate is not None
    fake.faults.always("list", resource, held)
    async with on_terminal(write_kubeconfig(tmp_path, fake.url), *words.split(), columns=80) as screen:
        await screen.reads(says)
        shown = screen.seen
        held.gate.set()
        await screen.ends()
    assert b"\x1b[2K" in screen.seen[len(shown) :]


async def test_control_c_ends_a_command_that_waits_in_a_line(fake: FakeKube, tmp_path: Path) -> None:
    held = hold()
    fake.faults.always("list", "nodes", held)
    async with on_terminal(write_kubeconfig(tmp_path, fake.url), "explain", "p", columns=80) as screen:
        await screen.reads(b"reading nodes")
        screen.process.send_signal(signal.SIGINT)
        assert await screen.ends() == 130
    assert b"koordgate explain: interrupted" in screen.seen
    assert b"Traceback" not in screen.seen
