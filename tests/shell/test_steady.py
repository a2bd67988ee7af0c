"""Work that goes on after a bug."""

import asyncio
import math

import pytest

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
