"""An Event on each Pod that was bound: what it was given, where, and why. Written after the bind, one at a time."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from allocator.reasons import given
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.preference import Preference
from webhook.view.podinfo import PodInfo

MOST_WAITING: Final = 1024  # Events; more are dropped, and counted
_BUSY_S: Final = 1.0  # after a bind, for which others are likely to follow
_BUSY_PAUSE_S: Final = 0.2  # between two Events then: a burst of binds needs the API server for itself
_PAUSE_S: Final = 0.02  # between two at other times
_LAST_S: Final = 5.0  # for what is still to be written when the process ends


class _Bound(NamedTuple):
    """A Pod that was bound, what it holds, and its node."""

    pod: PodInfo
    holding: Holding
    node: str


class BindEvents:
    """Writes the Events.

    `write`: writes one Event about a Pod, with this message. `bug`: called within the handling of an unexpected
    exception, to log its traceback and to count it. `clock`: monotonic seconds. `pause`: waits for some seconds.
    """

    def __init__(
        self,
        write: Callable[[PodInfo, str], Awaitable[None]],
        snapshot: Callable[[str], NodeSnapshot],
        types: DeviceTypes,
        preference: Preference,
        dropped: Callable[[], object],
        bug: Callable[[], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._bound_at = -math.inf
        self._write = write
        self._snapshot = snapshot
        self._types = types
        self._preference = preference
        self._dropped = dropped
        self._bug = bug
        self._waiting: deque[_Bound] = deque()
        self._task: asyncio.Task[None] | None = None

    def bound(self, pod: PodInfo, holding: Holding, node: str) -> None:
        """A Pod was given this on a node. Nothing is waited for; with too many of them the Event is dropped."""
        self._bound_at = self._clock()
        if len(self._waiting) >= MOST_WAITING:
            self._dropped()
            return
        self._waiting.append(_Bound(pod, holding, node))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        while self._waiting:
            one = self._waiting.popleft()
            try:
                await self._write(one.pod, self._message(one))
            except Exception:  # noqa: BLE001 what one Pod is like must not keep the others from being told
                self._bug()
            busy = self._clock() - self._bound_at < _BUSY_S
            await self._pause(_BUSY_PAUSE_S if busy else _PAUSE_S)

    def _message(self, one: _Bound) -> str:
        what = given(one.holding, self._snapshot(one.node), self._types)
        return f"on {one.node}: {what}. Nodes are compared by {self._preference}; koordgate explain compares them"

    async def idle(self) -> None:
        """Wait until all Events are written."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Write what waits, for a few seconds; the rest is dropped."""
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=_LAST_S)
        self._task.cancel()
        for _ in range(len(self._waiting)):
            self._dropped()
        self._waiting.clear()
