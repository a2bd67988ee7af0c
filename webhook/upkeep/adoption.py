"""Tells, at an interval, how many Pods of other products hold something, and where that is not certain."""

import asyncio
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import Protocol

from allocator.adopted import conflicts
from allocator.vocabulary.adopted import AdoptionConflict, Product
from koordgate.breaks import with_breaks
from webhook.view.cluster import ClusterView


class ConflictReports(Protocol):
    """ConflictReports what was found."""

    def adopted(self, pods: Mapping[Product, int], found: Sequence[AdoptionConflict]) -> None:
        """So many Pods of each product count, and these conflicts exist."""


class AdoptionWatch:
    """Looks for conflicts between other products' Pods, koordgate's, and the devices of their nodes."""

    def __init__(self, cluster: ClusterView, reports: ConflictReports) -> None:
        self._cluster = cluster
        self._reports = reports

    async def run_timer(self, every: float) -> None:
        """Look at this interval, in seconds, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(every)

    async def look(self) -> None:
        """Look at each node with such Pods once; others run between two nodes."""
        self._reports.adopted(*await with_breaks(self._find()))

    def _find(self) -> Generator[None, None, tuple[dict[Product, int], list[AdoptionConflict]]]:
        pods: Counter[Product] = Counter()
        found: list[AdoptionConflict] = []
        for node in self._cluster.foreign.nodes():
            snapshot = self._cluster.snapshot(node)
            pods.update(one.peer for one in snapshot.foreign.values() if one.shares)
            found += conflicts(snapshot)
            yield
        return dict(pods), found
