"""One request among candidates that somebody names: which may serve it, in what order, and what the others lack."""

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
    """A look at the index; it holds until a node comes, goes or changes.

    Args:
        index: of the cluster.
        query: what is asked.
        names: of the candidates.
        open_to: candidates that are to be tried whatever the index knows of them.
    """

    def __init__(self, index: ClusterIndex, query: Query, names: list[str], open_to: Collection[str] = ()) -> None:
        self._index = index
        self._query = query
        self._names = names
        self._rows = index.positions(names)
        may = index.fitting(query)[self._rows]
        if not query.wants:
            may[:] = True  # nothing that the index could know stands against it, not even of a node unknown to it
        if open_to:
            for at, name in enumerate(names):
                if name in open_to:
                    may[at] = True
        self._fitting: Rows = np.flatnonzero(may)
        self._away: Rows = np.flatnonzero(~may)

    def best_first(
        self, way: Preference, lifts: Mapping[str, int], room_for: int = 1, *, smallest: bool = False
    ) -> Iterator[str]:
        """Go through the candidates that may serve: by lift, then by score, then by name.

        With `smallest` the size of the devices that would be opened counts too: before the score in packing, which
        keeps what is large whole, and between equal scores in other ways.

        Args:
            way: of scoring.
            lifts: node -> how many of the Pod's company are there; those with more come first.
            room_for: of equally many, those come first that could serve the request so many times over.
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
        yield names[fitting[best]]  # mostly nobody asks for more
        for at in np.lexsort((order, -levels)).tolist():
            if at != best:
                yield names[fitting[at]]

    def _levels(self, way: Preference, lifts: Mapping[str, int], room_for: int, *, smallest: bool) -> Ints:
        """Figures by which the candidates that may serve are compared, the greatest first."""
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
        room = self._index.serve(self._query, rows, room_for)
        return levels + (2 * company + room) * levels_each

    @property
    def away(self) -> Sequence[str]:
        """The candidates that cannot serve."""
        return [self._names[at] for at in self._away.tolist()]

    def shortfalls(self) -> Iterator[tuple[str, int, int]]:
        """For each candidate that cannot serve the first want that it falls short of, and how many devices would do."""
        counts = self._index.counts(self._query)[:, self._rows[self._away]]
        short = counts < np.array([want.count for want in self._query.wants])[:, None]
        first = short.argmax(axis=0)
        found = counts[first, np.arange(len(self._away))]
        return zip(self.away, first.tolist(), found.tolist(), strict=True)
