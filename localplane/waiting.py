"""Polling, in one place: wait until a condition holds, or name the one that did not."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class NotInTimeError(TimeoutError):
    """A condition did not hold before its deadline."""


async def until(
    condition: Callable[[], Awaitable[T | None]],
    what: str,
    *,
    deadline_s: float = 180.0,
    poll_s: float = 0.05,
) -> T:
    """Poll a condition until it returns something true.

    Args:
        condition: Awaited repeatedly. Its exceptions are not caught: the condition itself decides which failures mean
            "not yet".
        what: The condition in words, for the error.
        deadline_s: How long it may take, in seconds.
        poll_s: Pause between two attempts, in seconds.

    Returns:
        The first true value of the condition.

    Raises:
        NotInTimeError: The deadline passed; the message quotes the last value.
    """
    end = time.monotonic() + deadline_s
    while True:
        answer = await condition()
        if answer:
            return answer
        if time.monotonic() >= end:
            raise NotInTimeError(f"not within {deadline_s:g} s: {what}; last seen: {answer!r}")
        await asyncio.sleep(poll_s)
