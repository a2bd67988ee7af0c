"""What is free in the cluster by what it is worth to the typical requests, for people who watch it.

It says how much of what is free nobody could use now, and why: whether Pods would need more CPU and memory on the
nodes (docs/operate/packing.md, `headroom`), or whether too little is left of the devices. Nothing decides by it, so it
is computed when somebody asks, and assumed placements do not count.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from allocator.budget import Steps
from allocator.fragmentation import worth
from allocator.vocabulary.devicetype import FULL, DeviceTypes
from allocator.vocabulary.mix import NO_MIX, Mix
from allocator.vocabulary.node import fullness
from koordgate.breaks import with_breaks
from webhook.view.cluster import ClusterView
from webhook.view.typical import seen_in

_MIX_S: Final = 300.0  # between two counts of all Pods, where nobody else follows the mix


class WorthSum(NamedTuple):
    """What is free of the devices of one type and model, by what it is worth."""

    type: str
    model: str
    worth: str  # a field of `allocator.fragmentation.Worth`


class FreeWorth:
    """The sums of the last `refresh`. Nodes that did not change are not read again, unless the mix changed.

    `mix`: returns which requests are typical now; None where nobody follows that: the Pods are counted at times.
    `clock`: monotonic seconds.
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
        self._changed = cluster.changes.reader(cluster.nodes.known())
        self._reloaded = cluster.loads.changes.reader()
        self._by_node: dict[str, dict[WorthSum, int]] = {}  # in points, times the weights
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
            mix = await self._typical()
            if mix is not self._mix:
                self._mix = mix
                self._by_node.clear()
                for node in self._cluster.nodes.known():
                    self._changed.note(node)
            await with_breaks(self._take_in())
            self._sums = self._summed()

    def _summed(self) -> dict[WorthSum, float]:
        sums, weights = Counter[WorthSum](), Counter[str]()
        for of_node in self._by_node.values():
            sums.update(of_node)
        for one in self._mix.requests:
            if one.ask is not None:
                weights[one.ask.type.name] += one.weight
        device = {kind: FULL * len(fullness(self._types.by_name[kind])) * weight for kind, weight in weights.items()}
        return {key: points / device[key.type] for key, points in sums.items()}

    async def _typical(self) -> Mix:
        if self._now_typical is not None:
            return self._now_typical()
        now = self._clock()
        if now - self._counted < _MIX_S:
            return self._mix
        self._counted = now
        return await with_breaks(seen_in(list(self._cluster.pods.all())))

    def _take_in(self) -> Steps[None]:
        for node in self._reloaded.drain():
            self._changed.note(node)
        while node := self._changed.take():
            self._by_node.pop(node, None)
            if self._cluster.nodes.knows(node) and not self._cluster.nodes.blocked(node):
                self._by_node[node] = self._worth(node)
            yield 0

    def _worth(self, node: str) -> dict[WorthSum, int]:
        snapshot = self._cluster.snapshot(node)
        has, used = self._cluster.loads.allocatable(node), self._cluster.requested(node, snapshot.holdings)
        cpu, memory = (max(has[name] - used.get(name, 0), 0) if has.get(name) else None for name in ("cpu", "memory"))
        return {
            WorthSum(kind, model, part): points
            for (kind, model), of in worth(snapshot, cpu, memory, self._mix).items()
            for part, points in of._asdict().items()
        }
