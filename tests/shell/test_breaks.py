"""Long work lets others run; short work does not wait."""

import asyncio

import pytest
from breaks import others

from allocator.budget import Steps
from koordgate.breaks import Breaks, with_breaks


class Clock:
    """A clock that only tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_break_is_due_after_two_milliseconds_of_work() -> None:
    clock = Clock()
    breaks = Breaks(clock)
    clock.now += 0.0019
    assert not breaks.due()
    clock.now += 0.0002
    assert breaks.due()
    await breaks.take()
    assert not breaks.due()
    clock.now *= 2
    assert breaks.due()


def test_a_break_is_due_at_two_milliseconds_exactly() -> None:
    clock = Clock()
    clock.now = 0.0
    breaks = Breaks(clock)
    clock.now = 0.002
    assert breaks.due()


async def test_the_time_of_others_is_not_work() -> None:
    clock = Clock()

    def pass_time() -> None:
        clock.now += 1.0

    async with others() as ran:
        ran.each = pass_time
        breaks = Breaks(clock)
        for _ in range(2):
            clock.now += 0.25
            await breaks.take()
        clock.now += 0.25
        assert breaks.worked == pytest.approx(0.75)
        clock.now += 1000.0
    assert breaks.worked == pytest.approx(1000.75)
    assert ran.breaks == 2


async def test_a_request_that_arrives_in_a_break_is_answered_in_it() -> None:
    """It is answered after three rounds of the event loop: received, read, handled."""
    answered = False

    async def request() -> None:
        nonlocal answered
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answered = True

    task = asyncio.create_task(request())
    await Breaks().take()
    assert answered
    await task


async def test_others_run_between_the_parts_of_work_and_its_result_is_returned(breaking: None) -> None:
    def work() -> Steps[str]:
        for _ in range(5):
            yield 0
        return "done"

    async with others() as ran:
        assert await with_breaks(work()) == "done"
    assert ran.breaks == 5


async def test_short_work_takes_no_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koordgate.breaks.HOLD_S", 3600.0)

    def work() -> Steps[int]:
        for _ in range(1000):
            yield 0
        return 1

    async with others() as ran:
        assert await with_breaks(work()) == 1
    assert ran.breaks == 0


async def test_what_work_raises_is_raised() -> None:
    def work() -> Steps[None]:
        yield 0
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        await with_breaks(work())
