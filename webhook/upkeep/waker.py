"""Has kube-scheduler retry waiting Pods when something is released.

kube-scheduler retries a Pod that our extender refused when another Pod is deleted. But it may do so before our watch
has seen the deletion; the Pod is refused once more, and nothing wakes it for minutes. So each release is followed by a
change of an annotation of a Node, on which kube-scheduler retries all Pods that an extender refused. Any Node will do:
where a write fails, because the Node is gone or the API server is busy, another is tried until one succeeds.
"""

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from allocator.vocabulary.names import RELEASED
from koordgate.backoff import Backoff
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import NODES

_LOG: Final = logging.getLogger(__name__)
_SOON_S: Final = 0.1  # by then other replicas, which may be asked instead of this one, have seen the release as well
_APART_S: Final = 0.3  # between two writes; after each, kube-scheduler retries all waiting Pods
_LATE_S: Final = 1.0  # for one more write, in case a replica was late
_AGAIN_S: Final = 0.2  # after a write that failed
_MAX_S: Final = 10.0  # after many of them
_MAX_NODES: Final = 8  # on which something was released, and that are tried in turn


class Waker:
    """Wakes waiting Pods after releases.

    `anybody_waits`: whether a Pod that asks for devices is not bound. `soon`: seconds from a release to the write.
    `apart`: the fewest seconds between two writes; no release waits for longer than this or `soon`. `late`: seconds
    from the last write to one more, if nothing is released meanwhile. `again`: seconds from a write that failed to the
    next one; they double with each failure in a row.
    """

    def __init__(
        self,
        kube: KubeClient,
        anybody_waits: Callable[[], bool],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        soon: float = _SOON_S,
        apart: float = _APART_S,
        late: float = _LATE_S,
        again: float = _AGAIN_S,
    ) -> None:
        self._kube = kube
        self._anybody_waits = anybody_waits
        self._now = now
        self._soon = soon
        self._apart = apart
        self._late = late
        self._again = again
        self._nodes: deque[str] = deque(maxlen=_MAX_NODES)  # the one to be written next is the last
        self._released = asyncio.Event()

    def released(self, node: str) -> None:
        """Something was released on a node, or the node changed: waiting Pods may fit there now."""
        if node in self._nodes:
            self._nodes.remove(node)
        self._nodes.append(node)
        self._released.set()

    async def run(self) -> None:
        """Wake waiting Pods after each release, until cancelled."""
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
        """Write into one Node, unless nobody waits."""
        backoff = Backoff(self._again, _MAX_S)
        while self._anybody_waits():
            node = self._nodes[-1]
            try:
                await self._touch(node)
            except (KubeError, ValueError) as error:
                _LOG.warning("waiting Pods were not woken, another Node is tried: %s", error, extra={"node": node})
                self._nodes.rotate(1)
                await asyncio.sleep(backoff.failed())
            else:
                return

    async def _touch(self, node: str) -> None:
        """Write the time into the Node's annotation, through its status: this needs no right to its spec."""
        released = self._now().isoformat(timespec="microseconds")
        path = NODES.path(node, subresource="status")
        await self._kube.patch(path, {"metadata": {"annotations": {RELEASED: released}}}, "merge")
