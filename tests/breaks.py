"""Observes breaks: how often work lets others run."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

ROUNDS = 3  # of the event loop in one break


@dataclass
class Others:
    """A task that is always ready to run.

    Attributes:
        ran: how often it ran.
        each: what it does each time.
    """

    ran: int = 0
    each: Callable[[], object] = lambda: None

    @property
    def breaks(self) -> int:
        """How many breaks there were."""
        assert self.ran % ROUNDS == 0, f"others ran {self.ran} times"
        return self.ran // ROUNDS


@asynccontextmanager
async def others() -> AsyncIterator[Others]:
    """Let another task run whenever somebody takes a break."""
    made = Others()

    async def run() -> None:
        while True:
            await asyncio.sleep(0)
            made.ran += 1
            made.each()

    task = asyncio.create_task(run())
    await asyncio.sleep(0)  # it stands before its first turn
    try:
        yield made
    finally:
        task.cancel()
