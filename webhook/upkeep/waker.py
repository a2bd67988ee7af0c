"""Pods that wait are tried again when something is given back.

kube-scheduler tries a Pod again that our extender refused when another Pod is deleted, but it may be quicker than our
watch, be refused once more, and then nothing would wake it for minutes. So whoever gives something back tells it: a
change of any Node's annotations wakes all Pods that an extender refused.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from allocator.vocabulary.names import RELEASED
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import NODES

_LOG: Final = logging.getLogger(__name__)
_SOON_S: Final = 0.1  # when other replicas, which may be asked, have seen the release too
_APART_S: Final = 0.3  # between two writes, each of which has kube-scheduler look at all Pods that wait
_LATE_S: Final = 1.0  # once more, should a replica have been late


class Waker:
    """Tells kube-scheduler that something was given back.

    Args:
        kube: the open client.
        anybody_waits: whether a Pod that asks for devices is not bound.
        now: the time.
        soon: seconds after a release at which to wake.
        apart: seconds between two wakes, at least; so no release is told of later than this or `soon`.
        late: seconds after the last wake at which to wake once more, if nothing is released until then.
    """

    def __init__(
        self,
        kube: KubeClient,
        anybody_waits: Callable[[], bool],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        soon: float = _SOON_S,
        apart: float = _APART_S,
        late: float = _LATE_S,
    ) -> None:
        self._kube = kube
        self._anybody_waits = anybody_waits
        self._now = now
        self._soon = soon
        self._apart = apart
        self._late = late
        self._node = ""
        self._released = asyncio.Event()

    def released(self, node: str) -> None:
        """Take in that something was given back on a node."""
        self._node = node
        self._released.set()

    async def run(self) -> None:
        """Wake those who wait, after each release, until cancelled."""
        clock = asyncio.get_running_loop().time
        woken = -math.inf
        while True:
            await self._released.wait()
            while self._released.is_set():
                self._released.clear()
                await asyncio.sleep(max(self._soon, woken + self._apart - clock()))
                woken = clock()
                await self._wake()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._late):
                        await self._released.wait()
            woken = clock()
            await self._wake()

    async def _wake(self) -> None:
        if self._anybody_waits():
            await self._touch(self._node)

    async def _touch(self, node: str) -> None:
        """Write the time on the Node, through its status: that needs no right to its spec."""
        released = self._now().isoformat(timespec="microseconds")
        try:
            path = NODES.path(node, subresource="status")
            await self._kube.patch(path, {"metadata": {"annotations": {RELEASED: released}}}, "merge")
        except (KubeError, ValueError) as error:
            _LOG.warning("Pods that wait for devices were not woken: %s", error, extra={"node": node})
