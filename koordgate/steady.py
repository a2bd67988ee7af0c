"""Work that goes on until the process is asked to end: after a bug it begins again, later with each failure."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Final

from koordgate.backoff import Backoff


def asked_to_end() -> asyncio.Event:
    """Make an event that SIGTERM and SIGINT set, in the running event loop."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


_FIRST_S: Final = 1.0
_MAX_S: Final = 60.0
_SETTLED_S: Final = 300.0  # what ran for this long begins again as soon as after a first failure


async def steadily(
    work: Callable[[], Awaitable[object]],
    bug: Callable[[], object],
    *,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Do some work that does not end by itself, until cancelled; return if it ends without an exception.

    `bug`: called within the handling of each exception, to log its traceback and to count it.
    """
    backoff = Backoff(_FIRST_S, _MAX_S)
    while True:
        began = clock()
        try:
            await work()
        except Exception:  # noqa: BLE001 whatever it is, the process is needed
            bug()
        else:
            return
        if clock() - began >= _SETTLED_S:
            backoff.reset()
        await sleep(backoff.failed())
