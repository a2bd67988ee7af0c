"""How a process is asked to end."""

import asyncio
import signal


def asked_to_end() -> asyncio.Event:
    """Make an event that SIGTERM and SIGINT set, in the running event loop."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended
