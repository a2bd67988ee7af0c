"""NVML hangs, crashes or is missing: the calling process survives, reports why, and continues as soon as it can."""

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reporter.gpu import worker
from reporter.gpu.facts import XidEvent
from reporter.gpu.guarded import NvmlUnavailableError, Patience, _Child, _EndedError
from reporter.gpu.nvml import CardError
from reporter.gpu.protocol import ANSWERS, Xid, encode

A100 = "GPU-a1000000-0000-4000-8000-00000000000{}"
IMPATIENT = Patience(answer=0.05, first_answer=30.0, first_pause=0.001, longest_pause=0.01, end=30.0)


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped by its new parent or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def fail(nvml) -> NvmlUnavailableError:
    with pytest.raises(NvmlUnavailableError) as failed:
        await nvml.read()
    return failed.value


async def test_a_call_that_hangs_is_given_up_and_its_process_killed(played, until) -> None:
    played.play("a100x8")
    nvml = played.nvml(IMPATIENT)
    await nvml.read()
    pid = nvml.pid
    played.change({"hang": "nvmlDeviceGetMemoryInfo"})

    failed = await fail(nvml)

    assert failed.outage.reason == "NvmlHangs"
    assert failed.outage.message.startswith("NVML did not answer for 0.05 s")
    assert nvml.outage == failed.outage
    assert gone(pid)

    played.change({"hang": None})
    reading = await until(nvml.read)

    assert len(reading.gpus) == 8
    assert nvml.pid != pid
    assert nvml.outage is None


async def test_a_crash_of_the_library_ends_its_process_only(played, until) -> None:
    played.play("a100x8")
    nvml = played.nvml()
    await nvml.read()
    played.change({"crash": "nvmlDeviceGetPciInfo_v3"})

    failed = await fail(nvml)

    assert failed.outage.reason == "NvmlCrashed"
    assert "SIGSEGV" in failed.outage.message

    played.change({"crash": None})
    assert len((await until(nvml.read)).gpus) == 8


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM], ids=str)
async def test_a_process_that_is_killed_is_started_again(played, until, ended_by) -> None:
    played.play("h200")
    nvml = played.nvml()
    await nvml.read()
    os.kill(nvml.pid, ended_by)

    failed = await fail(nvml)

    assert failed.outage.reason == "NvmlCrashed"
    assert ended_by.name in failed.outage.message
    assert len((await until(nvml.read)).gpus) == 1


async def test_a_node_without_the_library_is_reported_in_a_persons_words(bare) -> None:
    failed = await fail(bare.nvml())

    assert failed.outage.reason == "NvmlNotFound"
    assert failed.outage.message.startswith("libnvidia-ml.so.1 not found: is the NVIDIA driver installed on this node")


REFUSING = {
    "the driver is not loaded": ("error.nvmlInitWithFlags", "9", "DriverNotLoaded", "kernel driver is not loaded"),
    "library and driver differ": ("error.nvmlInitWithFlags", "18", "DriverMismatch", "of different versions"),
    "no permission": ("error.nvmlInitWithFlags", "4", "NvmlNotPermitted", "give this Pod the node's NVIDIA devices"),
    "an error of a library to come": ("error.nvmlInitWithFlags", "77", "NvmlFailed", "code 77"),
    "the driver went away later": ("error.nvmlDeviceGetCount_v2", "9", "DriverNotLoaded", "not loaded"),
    "one card's answer shows it": ("gpu.0.error.nvmlDeviceGetName", "1", "NvmlFailed", "lost its connection"),
    "the list of cards fails": ("error.nvmlDeviceGetCount_v2", "999", "NvmlFailed", "Unknown Error"),
}


@pytest.mark.parametrize(("key", "code", "reason", "words"), REFUSING.values(), ids=REFUSING)
async def test_what_nvml_refuses_is_said_and_it_is_tried_again(played, until, key, code, reason, words) -> None:
    played.play("h200")
    played.change({key: code})
    nvml = played.nvml()

    failed = await fail(nvml)

    assert failed.outage.reason == reason
    assert words in failed.outage.message

    played.change({key: None})
    assert len((await until(nvml.read)).gpus) == 1


async def test_the_pause_doubles_with_each_failure_up_to_the_longest(bare) -> None:
    nvml = bare.nvml(Patience(first_pause=0.001, longest_pause=0.006, end=30.0))
    pauses: list[Any] = []
    while len(pauses) < 5:
        failed = await fail(nvml)
        if not pauses or failed.retry_seconds in {0.001, 0.002, 0.004, 0.006}:  # other values are the rest of a pause
            pauses.append(failed.retry_seconds)

    assert pauses == [0.001, 0.002, 0.004, 0.006, 0.006]


async def test_a_process_that_cannot_be_killed_is_not_joined_by_another(played, until) -> None:
    played.play("h200")
    spared: list[Any] = []

    def spare_the_first(process) -> None:
        if spared:
            process.kill()
        else:
            spared.append(process)

    nvml = played.nvml(Patience(answer=0.05, first_answer=30.0, first_pause=0.0, end=0.01), kill=spare_the_first)
    await nvml.read()
    played.change({"hang": "nvmlDeviceGetName"})
    hung = await fail(nvml)

    stuck = await fail(nvml)

    assert (hung.outage.reason, stuck.outage.reason) == ("NvmlHangs", "NvmlStuck")
    assert f"process {spared[0].get_pid()} hangs in the NVIDIA driver and cannot be killed" in stuck.outage.message
    assert nvml.pid is None

    played.change({"hang": None})
    spared[0].kill()
    assert len((await until(nvml.read)).gpus) == 1


async def test_xid_errors_come_by_themselves_and_alike_ones_are_one_event(played, until) -> None:
    played.play("a100x8")
    nvml = played.nvml()
    await nvml.read()
    played.happen(3, 31, times=5)
    played.happen(6, 79)
    played.happen(-1, 62)
    seen: dict[tuple[str | None, int], int] = {}

    async def all_heard() -> bool:
        for event in await nvml.xids():
            seen[event.uuid, event.xid] = seen.get((event.uuid, event.xid), 0) + event.count
        return sum(seen.values()) >= 7

    await until(all_heard)

    assert seen == {(A100.format(3), 31): 5, (A100.format(6), 79): 1, (None, 62): 1}
    assert nvml.take_xids() == ()


async def test_xid_errors_that_cannot_be_waited_for_do_not_stop_readings(played) -> None:
    played.play("a100x8")
    nvml = played.nvml()
    await nvml.read()
    played.change({"error.nvmlEventSetWait_v2": "15"})

    assert [len((await nvml.read()).gpus) for _ in range(2)] == [8, 8]


async def test_a_lost_card_that_is_back_is_found_by_a_new_process(played) -> None:
    played.play("a100x8")
    nvml = played.nvml()
    await nvml.read()
    pid = nvml.pid
    played.change({"gpu.7.lost": "1"})

    assert len((await nvml.read()).lost) == 1
    assert nvml.pid is None  # NVML lists cards only as it starts

    played.change({"gpu.7.lost": None})
    assert len((await nvml.read()).gpus) == 8
    assert gone(pid)


async def test_a_card_that_is_not_listed_any_more_is_found_when_it_is_listed_again(played) -> None:
    played.play("a100x8")
    nvml = played.nvml()
    known = frozenset(gpu.uuid for gpu in (await nvml.read()).gpus)
    played.change({"count": "7"})
    assert len((await nvml.read(known)).gpus) == 8  # NVML counts cards only as it starts
    played.change({"gpu.7.lost": "1"})
    await nvml.read(known)  # lost: the next process sees one fewer

    away = await nvml.read(known)
    assert (len(away.gpus), away.lost) == (7, ())
    assert nvml.pid is None

    played.change({"count": "8", "gpu.7.lost": None})
    assert len((await nvml.read(known)).gpus) == 8
    pid = nvml.pid
    await nvml.read(known)
    assert nvml.pid == pid is not None  # no card is missing any more


async def test_a_question_that_is_called_off_leaves_the_next_one_its_own_answer(played) -> None:
    played.play("a100x8")
    played.change({"gpu.1.processes": "11:1"})
    nvml = played.nvml()
    await nvml.read()
    called_off = asyncio.create_task(nvml.read())
    await asyncio.sleep(0)
    called_off.cancel()

    assert [process.pid for process in await nvml.processes(A100.format(1))] == [11]
    assert called_off.cancelled()


async def test_closing_ends_the_process(played) -> None:
    played.play("h200")
    nvml = played.nvml()
    await nvml.read()
    pid = nvml.pid

    await nvml.aclose()

    assert gone(pid)


async def test_closing_ends_a_process_that_hangs(played, until) -> None:
    played.play("h200")
    nvml = played.nvml(Patience(answer=30.0, first_answer=30.0, end=0.05))
    await nvml.read()
    pid = nvml.pid
    played.change({"hang": "nvmlEventSetWait_v2"})

    await nvml.aclose()

    assert nvml.pid is None

    async def ended() -> bool:
        return gone(pid)

    await until(ended)


PARENT = """
import asyncio
from pathlib import Path
from reporter.gpu.guarded import GuardedNvml

async def main():
    nvml = GuardedNvml()
    await nvml.read()
    Path({hang!r}).replace({node!r})  # from now on each wait for an Xid error hangs
    print(nvml.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def start_reporter(played) -> tuple[subprocess.Popen[str], int]:
    """Start a process that reads NVML and then stays; find its NVML process."""
    node = Path(played.env["NVML_STANDIN_NODE"])
    hang = node.with_name("hang.nvml")
    hang.write_text(node.read_text() + "hang = nvmlEventSetWait_v2\n")
    program = PARENT.format(hang=str(hang), node=str(node))
    parent = subprocess.Popen([sys.executable, "-c", program], env=played.env, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    return parent, int(parent.stdout.readline())


async def test_a_hung_process_does_not_outlive_a_killed_reporter(played, until) -> None:
    played.play("h200")
    parent, pid = start_reporter(played)

    async def hung() -> bool:
        return bool(played.hung.exists())

    await until(hung)
    with parent:
        parent.kill()

    async def ended() -> bool:
        return gone(pid)

    await until(ended)


class Stormy:
    """An NVML whose cards report Xid errors without end, or a certain number of them."""

    def __init__(self, left: int | None = None) -> None:
        self.left = left

    def next_xid(self, milliseconds: int) -> XidEvent | None:
        assert milliseconds == 0, "a question waits"
        if self.left == 0:
            return None
        if self.left is not None:
            self.left -= 1
        return XidEvent("GPU-a", 13, 0.0)


@pytest.mark.parametrize(("left", "told"), [(None, 256), (256, 256), (3, 3), (0, 0)])
def test_xid_errors_without_end_keep_no_question_waiting(left, told) -> None:
    said = io.BytesIO()

    worker._report_all(Stormy(left), said)  # type: ignore[arg-type]

    assert said.getvalue().splitlines() == [encode(Xid(XidEvent("GPU-a", 13, 0.0))).rstrip()] * told


class Mute:
    """An NVML of which one card reports Xid errors, until none can be waited for any more."""

    def __init__(self) -> None:
        self.left = [XidEvent("GPU-a", 13, 0.0), None]

    def next_xid(self, milliseconds: int) -> XidEvent | None:
        assert milliseconds == 250
        if not self.left:
            raise CardError("Xid errors cannot be waited for")
        return self.left.pop(0)


def test_xid_errors_that_cannot_be_waited_for_are_waited_for_again_two_seconds_later() -> None:
    said, mute = io.BytesIO(), Mute()

    assert [worker._report(mute, said) for _ in range(3)] == [0.0, 0.0, 2.0]  # type: ignore[arg-type]
    assert said.getvalue() == encode(Xid(XidEvent("GPU-a", 13, 0.0)))


async def test_the_process_ends_with_its_input_and_with_1_where_nvml_fails(played, bare) -> None:
    played.play("h200")
    run: Any = partial(
        subprocess.run, [sys.executable, "-P", "-m", "reporter.gpu.worker"], input=b"", capture_output=True
    )

    ended = [await asyncio.to_thread(run, env=one.env) for one in (played, bare)]

    assert [one.returncode for one in ended] == [0, 1]
    assert ended[0].stdout == b""
    assert getattr(ANSWERS.decode(ended[1].stdout.rstrip()), "reason", "") == "NvmlNotFound"


def child(code: int = 0) -> _Child:
    """A process that has ended with this code, as far as its transport knows."""
    made = _Child(lambda _event: None)
    made.transport = SimpleNamespace(get_returncode=lambda: code, close=lambda: None)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "the NVML process ended with code 0; its last words are in the log"),
        (1, "the NVML process ended with code 1; its last words are in the log"),
        (-9, "the NVML library crashed (SIGKILL); if that goes on, restart the node or change the driver"),
        (-40, "the NVML library crashed (signal 40); if that goes on, restart the node or change the driver"),
    ],
)
async def test_how_the_process_ended_is_said(code, said) -> None:
    ended = child(code)

    ended.connection_lost(None)

    with pytest.raises(_EndedError, match=re.escape(said)) as failed:
        await ended.ask(None)
    assert failed.value.reason == "NvmlCrashed"
    assert ended.gone.is_set()


async def test_a_line_may_have_four_mebibytes_and_of_several_faults_the_first_is_named() -> None:
    strange = child()
    strange.pipe_data_received(1, b"x" * 2**22)
    assert strange._end is None

    strange.pipe_data_received(1, b"x")
    strange.pipe_data_received(1, b"\n{}\n")
    strange.connection_lost(None)

    with pytest.raises(_EndedError, match="the NVML process wrote a line that is too long") as failed:
        await strange.ask(None)
    assert failed.value.reason == "NvmlFailed"


async def test_a_line_that_is_no_message_is_a_fault() -> None:
    strange = child()
    strange.pipe_data_received(1, b"{}\n")

    with pytest.raises(_EndedError, match="wrote a line that cannot be read") as failed:
        await strange.ask(None)
    assert failed.value.reason == "NvmlFailed"
