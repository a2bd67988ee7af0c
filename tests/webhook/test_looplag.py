"""The lag of the event loop: what is measured, and for how long it is remembered."""

import asyncio
from collections.abc import Sequence

import pytest

from webhook.upkeep.looplag import LoopLag


class Sleeper:
    """A clock that sleeps move on, each by what was asked for and the next of these lags; then the loop ends."""

    def __init__(self, lags: Sequence[float]) -> None:
        self.now = 1000.0
        self._lags = list(lags)

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if not self._lags:
            raise asyncio.CancelledError
        self.now += seconds + self._lags.pop(0)


async def measured(lags: Sequence[float]) -> tuple[LoopLag, list[float]]:
    seen: list[float] = []
    sleeper = Sleeper(lags)
    lag = LoopLag(seen.append, sleeper.clock, sleeper.sleep)
    with pytest.raises(asyncio.CancelledError):
        await lag.run()
    return lag, seen


async def test_what_a_sleep_lasts_too_long_is_the_lag() -> None:
    lag, seen = await measured([0.0, 0.2, 0.05])
    assert seen == pytest.approx([0.0, 0.2, 0.05])
    assert lag.worst_recent_s == pytest.approx(0.2)


async def test_before_the_first_look_there_is_no_lag() -> None:
    assert LoopLag().worst_recent_s == 0.0


async def test_a_lag_is_remembered_for_ten_seconds_at_least() -> None:
    lag, _ = await measured([0.0] * 180 + [0.3] + [0.0] * 196)
    assert lag.worst_recent_s == pytest.approx(0.3)


async def test_a_lag_is_forgotten_after_twenty_seconds() -> None:
    lag, _ = await measured([0.3, *[0.0] * 402])
    assert lag.worst_recent_s == pytest.approx(0.0)


async def test_a_clock_that_does_not_move_on_is_no_lag() -> None:
    lag, seen = await measured([-0.01])
    assert seen == [0.0]
    assert lag.worst_recent_s == 0.0
