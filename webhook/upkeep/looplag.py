"""How late the event loop is: whatever holds it keeps all requests of the replica waiting."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

EVERY_S: Final = 0.05  # between two looks: each costs some 0.1 ms of CPU, day and night
_PERIOD_S: Final = 10.0


class LoopLag:
    """Measures by how much a short sleep lasts too long.

    A look is due every 50 ms. What holds the loop for longer is seen, less that at most. What holds it for less is seen
    if it does so often.
    `observe`: called with each measured lag, in seconds. `clock`: monotonic seconds. `sleep`: waits for seconds.
    """

    def __init__(
        self,
        observe: Callable[[float], object] = lambda _seconds: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._observe = observe
        self._clock = clock
        self._sleep = sleep
        self._worst = [0.0, 0.0]  # of the last whole period, and of this one
        self._began = clock()

    @property
    def worst_recent_s(self) -> float:
        """The greatest lag of the last 10 to 20 seconds, in seconds."""
        return max(self._worst)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due = self._clock() + EVERY_S
            await self._sleep(EVERY_S)
            self._note(max(self._clock() - due, 0.0))

    def _note(self, lag: float) -> None:
        now = self._clock()
        if now - self._began >= _PERIOD_S:
            self._worst = [self._worst[1], 0.0]
            self._began = now
        self._worst[1] = max(self._worst[1], lag)
        self._observe(lag)
