"""What is free in the cluster by what it is worth to the typical requests, for people who watch it.

It says how much of what is free nobody could use now, and why: whether Pods would need more CPU and memory on the
nodes (docs/packing.md, `headroom`), or whether too little is left of the devices. Nothing decides by it, so it is
computed when somebody asks, from an index of its own: no search waits for it, and assumed placements do not count.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from allocator.fragmentation import Worth
from allocator.index.cluster import ClusterIndex
from allocator.index.packed import PackedError
from allocator.index.rows import load_row, type_rows
from allocator.index.table import RowError
from allocator.vocabulary.devicetype import FULL, DeviceTypes
from allocator.vocabulary.mix import NO_MIX, Mix
from allocator.vocabulary.node import fullness
from koordgate.breaks import with_breaks
from webhook.view.cluster import ClusterView
from webhook.view.typical import seen_in

_PART: Final = 256  # nodes that are summed in one go
_MIX_S: Final = 300.0  # between two counts of all Pods, where nobody else follows the mix


class WorthSum(NamedTuple):
    """What is free of the devices of one type and model, by what it is worth.

    Attributes:
        type: of the devices.
        model: of the devices.
        worth: a field of `allocator.fragmentation.Worth`.
    """

    type: str
    model: str
    worth: str


class FreeWorth:
    """The sums. They are those of the last `refresh`; nodes that did not change are not read again.

    Args:
        cluster: what is known of the cluster.
        types: the device types.
        mix: returns which requests are typical now; None where nobody follows that: the Pods are counted at times.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cluster: ClusterView,
        types: DeviceTypes,
        mix: Callable[[], Mix] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._types = types
        self._now_typical = mix
        self._clock = clock
        self._counted = float("-inf")
        self._mix = NO_MIX
        self._index = ClusterIndex({kind.name: fullness(kind) for kind in types.types})
        self._changed = cluster.changes.reader(cluster.nodes.known())
        self._reloaded = cluster.loads.changes.reader()
        self._sums: dict[WorthSum, float] = {}
        self._refreshing = asyncio.Lock()

    @property
    def mix(self) -> Mix:
        """The typical requests that the sums are about."""
        return self._mix

    def sums(self) -> dict[WorthSum, float]:
        """All sums, in whole devices: in the mean over the typical requests for the type, by their weights."""
        return self._sums

    async def refresh(self) -> None:
        """Take in what changed, and sum; others run in between."""
        async with self._refreshing:  # a sum is over one mix
            await with_breaks(self._take_in())
            mix = await self._typical()
            if mix is not self._mix:
                self._mix = mix
                self._index.typify(mix)
            self._sums = await with_breaks(self._summed())

    async def _typical(self) -> Mix:
        if self._now_typical is not None:
            return self._now_typical()
        now = self._clock()
        if now - self._counted < _MIX_S:
            return self._mix
        self._counted = now
        return await with_breaks(seen_in(list(self._cluster.pods.all())))

    def _take_in(self) -> Generator[None, None, None]:
        for node in self._reloaded.drain():
            self._changed.note(node)
        while node := self._changed.take():
            if self._cluster.nodes.knows(node) and not self._cluster.nodes.blocked(node):
                self._put(node)
            else:
                self._index.drop(node)
            yield

    def _put(self, node: str) -> None:
        snapshot = self._cluster.snapshot(node)
        load = load_row(self._cluster.loads.allocatable(node), self._cluster.requested(node, snapshot.holdings))
        try:
            self._index.put(node, [*type_rows(snapshot, told=True), load])
        except (RowError, PackedError):
            self._index.drop(node)  # what the index cannot hold is left out

    def _summed(self) -> Generator[None, None, dict[WorthSum, float]]:
        sums: Counter[WorthSum] = Counter()
        for first in range(0, len(self._index.names), _PART):
            for kind, (_, model), worth in self._index.worth(first, _PART):
                for part, points in zip(Worth._fields, worth, strict=True):
                    sums[WorthSum(kind, model, part)] += points
            yield
        asked: Counter[str] = Counter()
        for one in self._mix.requests:
            if one.ask is not None:
                asked[one.ask.type.name] += one.weight
        return {key: points / self._points(key.type, asked[key.type]) for key, points in sums.items()}

    def _points(self, kind: str, weight: int) -> int:
        """The points of one whole device, times the weights of the requests for its type."""
        return FULL * len(fullness(self._types.by_name[kind])) * weight
