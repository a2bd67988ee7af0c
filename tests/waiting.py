"""Waiting in tests: for a condition, with a bound. No other part of the tests lets time pass."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

_EVERY_S = 0.005
_T = TypeVar("_T")


async def until(condition: Callable[[], object], *, within: float = 60.0) -> None:
    """Return once `condition` holds.

    Raises:
        TimeoutError: it did not hold within that number of seconds. Only a test that fails reaches this bound.
    """
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - files, counters and other processes announce no change
            await asyncio.sleep(_EVERY_S)


async def first(ask: Callable[[], Awaitable[_T | None]], *, unless: type[Exception], within: float = 60.0) -> _T:
    """Return the first true answer; the exception `unless` means "not yet".

    Raises:
        TimeoutError: there was none within that number of seconds. Only a test that fails reaches this bound.
    """
    async with asyncio.timeout(within):
        while True:
            try:
                if answer := await ask():
                    return answer
            except unless:
                pass
            await asyncio.sleep(_EVERY_S)


async def until_it_waits(*tasks: asyncio.Task[Any]) -> None:
    """Return when no task can proceed by itself: each has ended, or waits for something."""
    await until(lambda: all(task.done() or task._fut_waiter is not None for task in tasks))  # type: ignore[attr-defined]


class Waits:
    """Stands in for sleep: a sleeper continues when the test allows it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._sleeping: asyncio.Queue[asyncio.Event] = asyncio.Queue()
        self._asleep: asyncio.Event | None = None

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        woken = asyncio.Event()
        self._sleeping.put_nowait(woken)
        await woken.wait()

    async def pass_once(self) -> None:
        """Wait until the sleeper has woken, worked, and fallen asleep again."""
        (self._asleep or await self.fell_asleep()).set()
        self._asleep = await self.fell_asleep()

    async def fell_asleep(self) -> asyncio.Event:
        async with asyncio.timeout(10):
            return await self._sleeping.get()
