"""Work that goes on after a bug."""

import asyncio
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordgate.backoff import Backoff
from koordgate.steady import steadily


class Work:
    """Fails as often as it is told, after so many seconds each time; then it ends. Its clock has whole seconds."""

    def __init__(self, failures: int, seconds: float = 0.0) -> None:
        self.now = 0.0
        self.begun = 0
        self.bugs = 0
        self.waits: list[float] = []
        self._failures = failures
        self._seconds = seconds

    async def run(self) -> None:
        self.begun += 1
        self.now += self._seconds
        if self.begun <= self._failures:
            raise LookupError(self.begun)

    def bug(self) -> None:
        self.bugs += 1

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += math.ceil(seconds)

    async def steadily(self) -> None:
        await steadily(self.run, self.bug, sleep=self.sleep, clock=lambda: self.now)


async def test_what_fails_begins_again_after_each_bug_and_later_each_time_up_to_a_minute() -> None:
    work = Work(failures=12)
    await work.steadily()
    assert (work.begun, work.bugs) == (13, 12)
    assert 0.5 <= work.waits[0] <= 1
    assert 30 <= work.waits[-1] <= 60
    assert max(work.waits) <= 60


@pytest.mark.parametrize(("seconds", "soon"), [(299, False), (300, True), (301, True), (3600, True)])
async def test_what_ran_for_five_minutes_begins_again_as_soon_as_after_a_first_bug(
    seconds: float,
    soon: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    work = Work(failures=8, seconds=seconds)
    await work.steadily()
    assert len(work.waits) == 8
    assert (max(work.waits) <= 1) is soon


async def test_what_ends_by_itself_does_not_begin_again() -> None:
    work = Work(failures=0)
    await work.steadily()
    assert (work.begun, work.bugs, work.waits) == (1, 0, [])


async def test_it_can_be_cancelled() -> None:
    work = Work(failures=0)
    task = asyncio.create_task(steadily(asyncio.Event().wait, work.bug))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.bugs == 0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_process_that_is_asked_to_end_does_so_by_itself(name: str) -> None:
    code = f"""
import asyncio, os, signal
from koordgate.steady import asked_to_end

async def run():
    ended = asked_to_end()
    assert not ended.is_set()
    os.kill(os.getpid(), signal.{name})
    await ended.wait()

asyncio.run(run())
print("ended")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ended\n", "")


def test_waits_double_up_to_the_bound() -> None:
    backoff = Backoff(0.5, 3.0, chance=lambda: 1.0)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failures == 5


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 1.0), (0.5, 1.5), (1.0, 2.0)])
def test_half_of_a_wait_is_chance(chance: float, wait: float) -> None:
    assert Backoff(2.0, 60.0, chance=lambda: chance).failed() == wait


def test_chance_is_asked_for_each_wait() -> None:
    chances = iter([0.0, 1.0])
    backoff = Backoff(1.0, 1.0, chance=lambda: next(chances))
    assert [backoff.failed(), backoff.failed()] == [0.5, 1.0]


def test_after_a_success_waits_begin_again() -> None:
    backoff = Backoff(1.0, 60.0, chance=lambda: 1.0)
    backoff.failed()
    backoff.failed()
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.failed() == 1.0


@given(st.floats(0.001, 10), st.floats(0.001, 1000), st.integers(1, 5000))
def test_however_often_it_fails_a_wait_is_between_half_the_first_and_the_longest(
    first: float, longest: float, failures: int
) -> None:
    backoff = Backoff(first, longest)
    backoff.failures = failures
    assert min(first, longest) / 2 <= backoff.failed() <= longest
