"""Breaks in long work: the event loop answers others while it goes on.

Whatever holds the event loop keeps all callers waiting. Work that grows with the cluster, or with what a stranger
sends, is therefore done in parts, and others run between two parts once some time has passed. Whatever was read before
a break may be outdated after it.
"""

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Final, TypeVar

from allocator.budget import Steps

T = TypeVar("T")

HOLD_S: Final = 0.002
"""Seconds of work after which a break is due. The part that is under way then is finished first."""

_ROUNDS: Final = 3  # of the event loop in a break: a request needs some from its arrival to its answer


class Breaks:
    """The breaks of one piece of work."""

    __slots__ = ("_began", "_clock", "_resumed", "_worked")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._worked = 0.0  # before the last break, in seconds
        self._began = self._resumed = clock()

    @property
    def age(self) -> float:
        """Seconds since it began, others included."""
        return self._clock() - self._began

    @property
    def worked(self) -> float:
        """Seconds of work so far, without what others did in the breaks."""
        return self._worked + self._clock() - self._resumed

    def due(self) -> bool:
        """Whether the work has held the event loop for long enough."""
        return self._clock() - self._resumed >= HOLD_S

    async def take(self) -> None:
        """Let everybody run who is ready to, or is about to be."""
        self._worked = self.worked
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        self._resumed = self._clock()


async def with_breaks(work: Steps[T], breaks: Breaks | None = None, seconds: float = inf) -> T:
    """Do work that yields wherever others may run, and return what it returns.

    It is sent whether so many seconds are over since `breaks` began, so that it may end.
    """
    breaks = breaks or Breaks()
    try:
        next(work)
        while True:
            over = breaks.age >= seconds
            if breaks.due():
                await breaks.take()
            work.send(over)
    except StopIteration as done:
        found: T = done.value
        return found


def at_once(work: Steps[T]) -> T:
    """Do such work without a break."""
    try:
        while True:
            next(work)
    except StopIteration as done:
        found: T = done.value
        return found
