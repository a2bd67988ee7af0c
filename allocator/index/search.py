"""One request among given candidates: which may serve it, in what order, and what the others lack."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from allocator.index.cluster import LARGEST, ClusterIndex
from allocator.index.query import Query
from allocator.index.table import Ints, Rows
from allocator.vocabulary.asks import Preference

STEP: Final = 10  # of packing: nodes whose scores differ by less are equally good
_LEVELS: Final = 100 // STEP + 1


class NodeFigures(NamedTuple):
    """The figures by which one candidate is compared, in the order in which they count for it."""

    mates: int  # Pods of the same gang that are there; more is better
    room: int  # how many Pods of the gang that wait could go there; more is better
    # steps by which fragmentation would grow; less is better. None if the preference does not ask for it.
    growth: int | None
    broken: int | None  # the size of the group of linked idle devices that is broken; less is better. None as above.
    # the CPUs, in thousandths and rounded down, of the node on which an idle device is opened; 0 if devices in use
    # suffice. Less is better. None as above.
    begun: int | None
    # how large the largest device is that is opened, in the unit of its size; 0 if devices in use suffice. Less is
    # better. None if it does not count.
    opened: int | None
    # how many devices of the types that are asked for the node has, if nothing of it is in use and it cannot be spared
    # (`Fragments.spare`); 0 otherwise. Less is better. None as above.
    idle: int | None
    score: int  # of packing, from 0 to 100, more is better; of another preference the place in its order, from 0 on


class NodeSearch:
    """A search of the index; valid until a node is added, removed or changed."""

    def __init__(self, index: ClusterIndex, query: Query, names: Sequence[str], open_to: Collection[str] = ()) -> None:
        self._index = index
        self._query = query
        self._names = names
        self._rows = index.positions(names)
        self._states = index.states(self._rows)
        may = index.serving(query)[self._states]
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
        """Iterate over the candidates that may serve: by lift, then by room, then by preference, then by name.

        With `smallest` the size of the devices that would be opened counts too: before the score in packing, which
        keeps what is large whole, and between equally good nodes in other ways.

        Nodes on which fragmentation grows about equally are compared by the group of idle devices that is broken: the
        smallest that holds all devices which the Pod opens comes first, or all of the gang's. Then the node with the
        fewest CPUs is begun, then a node in use comes before an idle one, and that before a larger one. Then balance
        counts.
        `lifts`: node -> number of Pods of the same gang there; nodes with more come first. `room_for`: how many times
        the request comes. Among nodes with equally many, those that could serve it most often come first, so that the
        gang is spread over few nodes. `smallest`: whether nodes come first that open the smallest device.
        """
        fitting, names = self._fitting, self._names
        if not len(fitting):
            return
        order = self._index.by_name()
        top = self._first(way, lifts, room_for, smallest=smallest)
        best = top[order[self._rows[top]].argmin()]
        yield names[best]  # most callers take only the first
        levels = self._levels(fitting, way, lifts, room_for, smallest=smallest)
        for at in fitting[np.lexsort((order[self._rows[fitting]], -levels))].tolist():
            if at != best:
                yield names[at]

    def standing(
        self, way: Preference, lifts: Mapping[str, int], room_for: int = 1, *, smallest: bool = False
    ) -> dict[str, int]:
        """How many levels of candidates are better than each that may serve; equally good ones have the same number.

        The arguments are those of `best_first`, and so is the order, but for names.
        """
        fitting = self._fitting
        levels = self._levels(fitting, way, lifts, room_for, smallest=smallest)
        _, numbers = np.unique(-levels, return_inverse=True)
        return {self._names[at]: number for at, number in zip(fitting.tolist(), numbers.tolist(), strict=True)}

    def parts(
        self, way: Preference, lifts: Mapping[str, int], room_for: int = 1, *, smallest: bool = False
    ) -> dict[str, NodeFigures]:
        """The figures from which `standing` follows, of each candidate that may serve; the arguments are the same."""
        fitting = self._fitting
        rows, query, index = self._rows[fitting], self._query, self._index
        names = [self._names[at] for at in fitting.tolist()]
        unasked: list[None] = [None] * len(names)
        fragments: list[list[int] | list[None]] = [unasked, unasked, unasked]
        if way is Preference.FRAGMENTATION:
            fragments = [
                index.growth_steps(rows, query, smallest=smallest).tolist(),
                index.broken(query, rows, room_for).tolist(),
                index.begun(query, rows).tolist(),
            ]
            scores = index.ranks(Preference.MOST_BALANCED, rows, query)
        else:
            scores = index.packing(rows, query) if way is Preference.PACKING else index.ranks(way, rows, query)
        columns = (
            [lifts.get(name, 0) for name in names],
            index.rooms(query, rows, room_for).tolist(),
            *fragments,
            index.opened(query, rows).tolist() if smallest else unasked,
            index.idle(query, rows).tolist() if way is Preference.FRAGMENTATION else unasked,
            scores.tolist(),
        )
        return {name: NodeFigures(*each) for name, each in zip(names, zip(*columns, strict=True), strict=True)}

    def _first(self, way: Preference, lifts: Mapping[str, int], room_for: int, *, smallest: bool) -> Rows:
        """The candidates that come first, but for names: those of the greatest level, found without all others'."""
        some = self._fitting
        if lifts or room_for > 1:
            company = self._company(some, lifts, room_for)
            some = some[company == company.max()]
        each = self._states[some]
        of_state = np.full(int(each.max()) + 1, -1)  # one candidate in each state; the others are equally good
        of_state[each] = some
        first = np.zeros(len(of_state), np.bool_)
        first[self._states[self._preferred(of_state[of_state >= 0], way, room_for, smallest=smallest)]] = True
        return some[first[each]]

    def _preferred(self, some: Rows, way: Preference, room_for: int, *, smallest: bool) -> Rows:
        """Those of some candidates that the preference puts first."""
        if way is Preference.PACKING:
            levels = self._levels(some, way, {}, 1, smallest=smallest)
            first: Rows = some[levels == levels.max()]
            return first
        if way is Preference.FRAGMENTATION:
            growth, *beginning, idle = self._fragmenting(room_for, smallest=smallest)
            some = self._least(some, growth)
            opens = self._index.opens(self._query, self._rows[some])
            if not opens.all():  # all of `beginning` are 0 where devices in use suffice, and only there
                some, beginning = some[~opens], []
            for figure in (*beginning, idle):
                some = self._least(some, figure)
                if len(some) == 1:  # mostly the state of the node that the Pods before this one began
                    return some
            return some[self._index.best(Preference.MOST_BALANCED, self._rows[some], self._query)]
        some = some[self._index.best(way, self._rows[some], self._query)]
        return self._least(some, self._opened) if smallest else some

    def _least(self, some: Rows, figure: Callable[[Rows], Ints]) -> Rows:
        figures = figure(self._rows[some])
        least: Rows = some[figures == figures.min()]
        return least

    def _opened(self, rows: Rows) -> Ints:
        return self._index.opened(self._query, rows)

    def _company(self, some: Rows, lifts: Mapping[str, int], room_for: int) -> Ints:
        """What precedes the preference: lifts, then room; the greatest first."""
        if not lifts and room_for <= 1:
            return np.zeros(len(some), np.int64)
        names = self._names
        company = np.fromiter((lifts.get(names[at], 0) for at in some.tolist()), np.int64, len(some))
        room = self._index.rooms(self._query, self._rows[some], room_for)
        return (room_for + 1) * company + room

    def _levels(self, some: Rows, way: Preference, lifts: Mapping[str, int], room_for: int, *, smallest: bool) -> Ints:
        """The figures by which some of the candidates that may serve are compared, the greatest first."""
        rows = self._rows[some]
        if way is Preference.FRAGMENTATION:
            balance = self._index.ranks(Preference.MOST_BALANCED, rows, self._query)
            ranks = _dense([*(figure(rows) for figure in self._fragmenting(room_for, smallest=smallest)), balance])
            levels, levels_each = len(ranks) - 1 - ranks, len(ranks)
        elif way is Preference.PACKING:
            levels, levels_each = self._index.packing(rows, self._query) // STEP, _LEVELS
        else:
            ranks = self._index.ranks(way, rows, self._query)
            levels, levels_each = len(ranks) - 1 - ranks, len(ranks)
        if smallest and way is not Preference.FRAGMENTATION:
            spared = LARGEST - self._opened(rows)
            packing = way is Preference.PACKING
            levels = spared * levels_each + levels if packing else levels * (LARGEST + 1) + spared
            levels_each *= LARGEST + 1
        return levels + self._company(some, lifts, room_for) * levels_each

    def _fragmenting(self, room_for: int, *, smallest: bool) -> Sequence[Callable[[Rows], Ints]]:
        """What the preference `fragmentation` compares rows of the index by, before balance; the least first."""
        index, query = self._index, self._query
        opened = [self._opened] if smallest else []
        return [
            lambda rows: index.growth_steps(rows, query, smallest=smallest),
            lambda rows: index.broken(query, rows, room_for),
            lambda rows: index.begun(query, rows),
            *opened,
            lambda rows: index.idle(query, rows),
        ]

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


def _dense(keys: Sequence[Ints]) -> Ints:
    """Number candidates by these figures, the first of which counts most, from 0 for the least; equal ones alike."""
    order = np.lexsort(keys[::-1])
    differ = np.zeros(len(order), np.bool_)
    for key in keys:
        differ[1:] |= np.diff(key[order]) != 0
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(differ)
    return ranks
