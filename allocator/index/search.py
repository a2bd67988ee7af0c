"""One request among given candidates: which may serve it, in what order, and what the others lack."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from allocator.index.cluster import LARGEST, ClusterIndex
from allocator.index.query import Query
from allocator.index.table import Ints, Rows
from allocator.vocabulary.preference import Preference

STEP: Final = 10  # nodes whose scores differ by less are equally good
_LEVELS: Final = 100 // STEP + 1


class NodeSearch:
    """A search of the index; valid until a node is added, removed or changed.

    Args:
        index: of the cluster.
        query: what is asked.
        names: of the candidates.
        open_to: candidates that may serve whatever the index says.
    """

    def __init__(self, index: ClusterIndex, query: Query, names: list[str], open_to: Collection[str] = ()) -> None:
        self._index = index
        self._query = query
        self._names = names
        self._rows = index.positions(names)
        may = index.fitting(query)[self._rows]
        if not query.wants:
            may[:] = True  # the index cannot exclude anything then, not even a node that it does not know
        if open_to:
            for at, name in enumerate(names):
                if name in open_to:
                    may[at] = True
        self._fitting: Rows = np.flatnonzero(may)
        self._away: Rows = np.flatnonzero(~may)

    def best_first(
        self, way: Preference, lifts: Mapping[str, int], room_for: int = 1, *, smallest: bool = False
    ) -> Iterator[str]:
        """Iterate over the candidates that may serve: by lift, then by room, then by score, then by name.

        With `smallest` the size of the devices that would be opened counts too: before the score in packing, which
        keeps what is large whole, and between equal scores in other ways.

        Args:
            way: of scoring.
            lifts: node -> number of Pods of the same gang there; nodes with more come first.
            room_for: how many times the request comes. Among nodes with equally many, those that could serve it most
                often come first, so that the gang is spread over few nodes.
            smallest: whether nodes come first that open the smallest device.
        """
        fitting = self._fitting
        if not len(fitting):
            return
        rows, names = self._rows[fitting], self._names
        levels = self._levels(way, lifts, room_for, smallest=smallest)
        order = self._index.by_name()[rows]
        top = np.flatnonzero(levels == levels.max())
        best = top[order[top].argmin()]
        yield names[fitting[best]]  # most callers take only the first
        for at in np.lexsort((order, -levels)).tolist():
            if at != best:
                yield names[fitting[at]]

    def _levels(self, way: Preference, lifts: Mapping[str, int], room_for: int, *, smallest: bool) -> Ints:
        """The figures by which the candidates that may serve are compared, the greatest first."""
        fitting, names = self._fitting, self._names
        rows = self._rows[fitting]
        levels: Ints = self._index.scores(way, rows, self._query) // STEP
        levels_each = _LEVELS
        if smallest:
            spared = LARGEST - self._index.opened(self._query, rows)
            packing = way is Preference.PACKING
            levels = spared * _LEVELS + levels if packing else levels * (LARGEST + 1) + spared
            levels_each *= LARGEST + 1
        if not lifts and room_for <= 1:
            return levels
        company = np.fromiter((lifts.get(names[at], 0) for at in fitting), np.int64, len(fitting))
        room = self._index.rooms(self._query, rows, room_for)
        return levels + ((room_for + 1) * company + room) * levels_each

    @property
    def away(self) -> Sequence[str]:
        """The candidates that cannot serve."""
        return [self._names[at] for at in self._away.tolist()]

    def shortfalls(self) -> Iterator[tuple[str, int, int]]:
        """For each candidate that cannot serve: (name, index of the first want not met, number of devices that fit)."""
        counts = self._index.counts(self._query)[:, self._rows[self._away]]
        short = counts < np.array([want.count for want in self._query.wants])[:, None]
        first = short.argmax(axis=0)
        found = counts[first, np.arange(len(self._away))]
        return zip(self.away, first.tolist(), found.tolist(), strict=True)
