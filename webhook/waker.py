"""Pods that wait are tried again when something is given back.

kube-scheduler tries a Pod again that our extender refused when another Pod is deleted, but it may be quicker than our
watch, be refused once more, and then nothing would wake it for minutes. So whoever gives something back tells it: a
change of any Node's annotations wakes all Pods that an extender refused.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from allocator.names import RELEASED
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import NODES

_LOG: Final = logging.getLogger(__name__)
# Soon, but when other replicas, which may be asked, have seen the release too; and once more should one have been late.
_PAUSES_S: Final = (0.1, 1.0)


class Waker:
    """Tells kube-scheduler that something was given back.

    Args:
        kube: the open client.
        anybody_waits: whether a Pod that asks for devices is not bound.
        now: the time.
        pauses: seconds after a release, each of the last, at which to wake.
    """

    def __init__(
        self,
        kube: KubeClient,
        anybody_waits: Callable[[], bool],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        pauses: Sequence[float] = _PAUSES_S,
    ) -> None:
        self._kube = kube
        self._anybody_waits = anybody_waits
        self._now = now
        self._pauses = pauses
        self._node = ""
        self._released = asyncio.Event()

    def released(self, node: str) -> None:
        """Take in that something was given back on a node."""
        self._node = node
        self._released.set()

    async def run(self) -> None:
        """Wake those who wait, after each release, until cancelled."""
        while True:
            await self._released.wait()
            self._released.clear()
            for pause in self._pauses:
                await asyncio.sleep(pause)  # what is given back meanwhile is told of together
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
