"""The event loop's clock, where a test is about a time limit: it stands still, so that none passes by itself."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def standing(at: float | None = None) -> Iterator[None]:
    """Let the running event loop's clock stand still at so many seconds, or where it is."""
    loop = asyncio.get_running_loop()
    now = loop.time() if at is None else at
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", lambda: now)
        yield
