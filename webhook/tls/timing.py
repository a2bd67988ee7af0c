"""When certificates are renewed: by which clock, and how often it is tried.

A replica whose clock is wrong would replace what the others made, and they would replace its. Nothing is therefore made
or renewed while our clock and the API server's differ, and nothing has expired unless by both.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from koordgate.backoff import Backoff
from webhook.tls.pki import BACKDATED, CertificateError

SETTLE: Final = timedelta(seconds=30)
"""How long after its publication every API server has seen a bundle; their watches take a second at most."""

CLOCKS_APART: Final = BACKDATED / 2
"""By how much our clock and the API server's may differ while something is renewed; what is made is valid by both."""

_FIRST_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 30.0


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Timing:
    """Clock, sleep and jitter; tests bring their own."""

    # the wall clock. It is read on each poll, so that a suspended machine notices the time that passed.
    clock: Callable[[], datetime] = utc_now
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep  # waits for a number of seconds
    jitter: Callable[[], float] = random.random  # a random number in [0, 1), so that replicas do not all poll at once
    settle: timedelta = SETTLE  # time between publishing a new CA and serving a certificate signed by it
    # seconds by which the API server's clock is ahead of ours; None while that is not known
    offset: Callable[[], float | None] = lambda: None

    @property
    def apart(self) -> timedelta:
        """By how much the API server's clock is ahead of ours; 0 unless by more than `CLOCKS_APART`."""
        offset = timedelta(seconds=self.offset() or 0.0)
        return offset if abs(offset) > CLOCKS_APART else timedelta()

    @property
    def earliest(self) -> datetime:
        """Our time or the API server's, if that is well before it: nothing has expired unless by both clocks."""
        return self.clock() + min(self.apart, timedelta())

    def require_agreement(self, reason: str) -> None:
        """Let nothing be renewed by a clock that may be wrong.

        Raises CertificateError: our clock and the API server's differ by more than `CLOCKS_APART`.
        """
        if apart := self.apart:
            way = "behind" if apart > timedelta() else "ahead of"
            hours = abs(apart).total_seconds() / 3600
            raise CertificateError(
                f"{reason}; nothing is renewed here, because our clock is {hours:.1f} hours {way} the API server's: "
                "correct the clock of this node, or the API server's"
            )

    def backoff(self) -> Backoff:
        """The waits between attempts that fail."""
        return Backoff(_FIRST_BACKOFF_S, _MAX_BACKOFF_S, self.jitter)

    def about(self, seconds: float) -> float:
        """An interval, shortened by chance by up to a quarter."""
        return seconds * (0.75 + self.jitter() / 4)

    async def repeat(
        self,
        check: Callable[[], Awaitable[bool]],
        every: float,
        rest: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """Check until cancelled: at about this interval after a success, sooner after a failure.

        `every`: seconds. `rest`: waits between checks in place of `sleep`, and may wait less.
        """
        backoff = self.backoff()
        while True:
            if await check():
                backoff.reset()
                wait = self.about(every)
            else:
                wait = backoff.failed()
            await (rest or self.sleep)(wait)


REAL: Final = Timing()
