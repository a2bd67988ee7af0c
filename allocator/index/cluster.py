"""The index: every device of every node, filtered and scored for one Pod at once.

Filter (patent, paragraphs 85 and 106): a node may serve a request if its free amounts suffice in every resource class.
Packed classes are unpacked, and enough single devices must suffice. Preference (claims 7 and 8): the node with the
least mean request over its classes, or with the least variance of these requests. A third preference packs most
tightly, because whole devices are what runs out. The administrator chooses the preference.

The index is a fast check before `place()`: it excludes no node that `place()` would accept.
Each node has a row (`NodeRows`) and a state (`States`). Many nodes are alike, so what follows from their devices is
computed once for each state.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Final

import numpy as np

from allocator.index import preference
from allocator.index.fragments import Fragments
from allocator.index.memo import Memo
from allocator.index.preference import FIGURES
from allocator.index.query import MAX_AMOUNT, Query, Want
from allocator.index.rows import CPU_ROW, NODE_ROW, NUMA_ROW
from allocator.index.table import At, Bools, Ints, RowError, Rows, TypeRow, TypeTable, count_slots, unpack
from allocator.vocabulary.asks import Preference
from allocator.vocabulary.mix import Mix

LARGEST: Final = 2**10 - 1  # of `ClusterIndex.opened`; larger devices are compared no further
Classes = tuple[tuple[str, str], ...]  # types and tails
MAX_KEPT: Final = 64  # results over all nodes that are kept for the next Pod with the same request


class ClusterIndex:
    """What the devices of all nodes have, and what is free of them.

    Each node has a row, found by `NodeRows`; nothing fits on row 0. Nodes that are alike are in one state (`States`).
    Tables and results are over states.
    `fullness`: device type -> the classes that measure how full a device is. For GPUs these are compute and the ratio
    of memory, not its bytes, which state the same again. All classes count for a type that is not named. `sizes`:
    device type -> the class that states how large a device is, and how much of it counts as 1. Devices of a type that
    is not named are of one size. `counted`: which classes count in the patent's preferences: device types, and
    `NODE_CLASSES`; empty for all.
    """

    def __init__(
        self,
        fullness: Mapping[str, Sequence[str]],
        sizes: Mapping[str, tuple[str, int]] = MappingProxyType({}),
        counted: Iterable[str] = (),
    ) -> None:
        self._counted = frozenset(counted)
        self._sizes = dict(sizes)
        self._fullness = {kind: tuple(tails) for kind, tails in fullness.items()}
        self._nodes = NodeRows()
        self._state: Rows = np.zeros(BLOCK, np.intp)  # of the node in each row
        self._states = States()
        self._types: list[tuple[str, ...]] = [()] * BLOCK  # of each state's devices, and what a state left behind
        self._in_use: Bools = np.zeros(BLOCK, np.bool_)  # whether a Pod holds anything in each state
        self._tables: dict[str, TypeTable] = {}
        self._memo = Memo(MAX_KEPT)
        self._fragments = Fragments(self._tables, self._sizes, self._memo, self._fits)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def names(self) -> tuple[str, ...]:
        """Nodes by row, "" for a row without a node."""
        return self._nodes.names

    def by_name(self) -> Rows:
        """For each row, the position of its node in the order of names."""
        return self._nodes.by_name()

    # Nodes come, change and go

    def put(self, node: str, types: Sequence[TypeRow]) -> None:
        """Add or replace a node that has these devices and no others.

        Types and classes come from the table of device types: once seen, they keep their space.
        Raises RowError: the node has no name or has a type twice, or `unpack` refused a type. The index is unchanged.
        """
        if not node:
            raise RowError("a node must have a name")
        row = self._nodes.get(node)
        state = self._enter(tuple(types))
        if row is None:
            row = self._nodes.add(node)
            if row >= len(self._state):
                self._state = np.append(self._state, np.zeros_like(self._state))
        self._states.leave(int(self._state[row]))
        self._state[row] = state

    def drop(self, node: str) -> None:
        """Remove a node, if it is known."""
        row = self._nodes.drop(node)
        if row is not None:
            self._states.leave(int(self._state[row]))
            self._state[row] = 0

    def _enter(self, types: tuple[TypeRow, ...]) -> int:
        """The state of one more node that has these devices; written to the tables unless another node is in it."""
        state, new = self._states.enter(types)
        if new:
            try:
                self._write(state, types)
            except RowError:
                self._states.forget(state)
                raise
        return state

    def _write(self, state: int, types: tuple[TypeRow, ...]) -> None:
        unpacked = [unpack(row) for row in types]
        kinds = tuple([row.type for row in types])
        if len(set(kinds)) != len(kinds):
            raise RowError(f"a node must have each device type once; has {', '.join(kinds)}")
        if state >= len(self._types):
            self._grow(2 * len(self._types))
        for kind in self._types[state]:
            if kind not in kinds:
                self._tables[kind].clear(state)
        for slots in unpacked:
            table = self._tables.get(slots.row.type)
            if table is None:
                table = self._tables[slots.row.type] = TypeTable(len(self._types))
            if table.write(state, slots):
                self._memo.clear()
        self._types[state] = kinds
        self._in_use[state] = any(one.in_use for one in types)
        self._memo.changed(state)

    def _grow(self, capacity: int) -> None:
        more = capacity - len(self._types)
        self._types += [()] * more
        self._in_use = np.append(self._in_use, np.zeros(more, np.bool_))
        for table in self._tables.values():
            table.grow(capacity)

    # Which nodes

    def positions(self, names: Sequence[str]) -> Rows:
        """Find the rows of nodes, 0 for one that is not known.

        They are valid until a node is added or removed.
        """
        return self._nodes.find(names)

    def states(self, rows: Rows) -> Rows:
        """The states of the nodes of these rows: all figures of nodes in one state are equal.

        They are valid until a node is added, removed or changed.
        """
        states: Rows = self._state[rows]
        return states

    def fitting(self, query: Query) -> Bools:
        """Return for each row whether its node can serve every want, each considered by itself."""
        return self.serving(query)[self._state[: self._nodes.end]]

    def serving(self, query: Query) -> Bools:
        """Return for each state whether nodes in it can serve every want, each considered by itself."""
        serving = np.ones(self._states.end, np.bool_)
        serving[0] = False
        for want in query.wants:
            serving &= self._count(want) >= want.count
        return serving

    def counts(self, query: Query) -> Ints:
        """Count the devices that could serve each want, wants x rows."""
        counts = np.zeros((len(query.wants), self._nodes.end), np.int64)
        for line, want in enumerate(query.wants):
            counts[line] = self._count(want)[self._state[: self._nodes.end]]
        return counts

    def rooms(self, query: Query, rows: Rows, most: int) -> Ints:
        """Count for these rows how often their nodes could serve the query, at most `most` times.

        Each want is considered by itself. Each time takes `count` distinct devices, so a device serves at most once
        each time.
        """
        at, rooms = self._state[rows], np.full(len(rows), most, np.int64)
        for want in query.wants:
            table = self._tables.get(want.type)
            if table is None:
                return np.zeros(len(rows), np.int64)
            rooms = _rooms(table.often(want, self._fits(table, want, at), at), want.count, rooms)
        return rooms

    def _count(self, want: Want) -> Ints:
        table = self._tables.get(want.type)
        if table is None:
            return np.zeros(self._states.end, np.int64)
        return self._memo.get(("count", want), self._states.end, lambda at: count_slots(self._fits(table, want, at)))

    def _fits(self, table: TypeTable, want: Want, at: At) -> Bools:
        return self._memo.get(want, self._states.end, lambda states: table.fits(want, states))[:, at]

    # Which node first

    def opened(self, query: Query, rows: Rows) -> Ints:
        """How large the largest device is that a query opens on the nodes of these rows, at most `LARGEST`.

        Devices in use are taken before idle ones, and the smallest idle device that fits is opened; 0 where devices in
        use suffice. Each want is looked at by itself.
        """
        largest = np.zeros(len(rows), np.int64)
        for want in query.wants:
            table, size = self._tables.get(want.type), self._sizes.get(want.type)
            if table is not None and size is not None:
                largest = np.maximum(largest, self._opened(table, want, size)[self._state[rows]])
        return largest

    def _opened(self, table: TypeTable, want: Want, size: tuple[str, int]) -> Ints:
        def compute(at: At) -> Ints:
            return np.minimum(table.opened(want, self._fits(table, want, at), *size, at), LARGEST)

        return self._memo.get(("opened", want), self._states.end, compute)

    def growth_steps(self, rows: Rows, query: Query, *, smallest: bool = True) -> Ints:
        """The growth in steps of a part of a device, rounded down: nodes on one step are about equally good.

        The steps of several types are added: requests for one type make no difference for another smaller. The
        arguments are those of `growth`.
        """
        grown = self._fragments.growth(query, self._states.end, smallest=smallest)[:, self._state[rows]]
        steps: Ints = (grown // self._fragments.steps).sum(axis=0)
        return steps

    def broken(self, query: Query, rows: Rows, times: int = 1) -> Ints:
        """How large the group of idle devices is that a query breaks on the nodes of these rows (`groups.groups_of`).

        Devices in use are taken before idle ones; 0 where they suffice. Of the groups that hold all idle devices which
        the query opens, the smallest is broken; `table.NO_GROUP` where none does. Nodes whose rows state no groups have
        0. Each want is looked at by itself, and the largest group counts.

        If whole devices are asked for several times, as a gang does, the smallest group that holds all of them counts;
        where none does, the one that holds those of a single time, and then `table.NO_GROUP` more.
        """
        largest = np.zeros(len(rows), np.int64)
        for want in query.wants:
            table = self._tables.get(want.type)
            if table is not None and table.has_groups:
                largest = np.maximum(largest, self._broken(table, want, times)[self._state[rows]])
        return largest

    def _broken(self, table: TypeTable, want: Want, times: int) -> Ints:
        def compute(at: At) -> Ints:
            fits = self._fits(table, want, at)
            if times <= 1:
                return table.broken(want, fits, None, at)
            parts = fits & ~table.fills(want, self._fullness.get(want.type) or table.tails(), at)
            return table.broken(want, fits, np.where(parts.any(axis=0), 0, want.count * (times - 1)), at)

        return self._memo.get(("broken", want, times), self._states.end, compute)

    def opens(self, query: Query, rows: Rows) -> Bools:
        """Whether a query opens an idle device on the nodes of these rows: those in use do not suffice for a want."""
        states, opens = self._state[rows], np.zeros(len(rows), np.bool_)
        for want in query.wants:
            table = self._tables.get(want.type)
            if table is not None and want.type not in {CPU_ROW, NUMA_ROW}:
                opens |= self._opens(table, want)[states]
        return opens

    def begun(self, query: Query, rows: Rows) -> Ints:
        """How large the nodes of these rows are on which a query opens an idle device, in thousandths of a CPU.

        That is what the node has, rounded down to three binary digits, so that nodes which hardly differ are of one
        size; `MAX_AMOUNT` where it does not state its CPUs. 0 where devices in use suffice. Each want is looked at by
        itself.
        """
        opens, table = self.opens(query, rows), self._tables.get(NODE_ROW)
        if table is None:
            return opens * MAX_AMOUNT
        has = table.sums("cpu", self._state[rows])[0]
        return np.where(opens, np.where(has > 0, preference.coarse(has), MAX_AMOUNT), 0)

    def idle(self, query: Query, rows: Rows) -> Ints:
        """How many devices an idle node has that is worth keeping so, for each of these rows; 0 for the others.

        Nothing of an idle node is in use. Its usable devices of the types that are asked for count; 1 if none is asked
        for. A node that can be spared (`Fragments.spare`) has 0.
        """
        states = self._state[rows]
        idle = ~self._in_use[states]
        kinds = {want.type for want in query.wants} - {CPU_ROW, NUMA_ROW}
        if not kinds or not idle.any():
            return idle.astype(np.int64)
        usable = [self._usable(kind) for kind in kinds]
        in_use, nodes = self._in_use[: self._states.end], self._states.nodes()
        spare = [
            self._fragments.spare(kind, of_kind, in_use, nodes)[states]
            for kind, of_kind in zip(kinds, usable, strict=True)
        ]
        devices = sum(of_kind[states] for of_kind in usable)
        return np.where(idle & ~np.logical_and.reduce(spare), devices, 0)

    def _usable(self, kind: str) -> Ints:
        table, states = self._tables.get(kind), self._states.end
        if table is None:
            return np.zeros(states, np.int64)
        return self._memo.get(("usable", kind), states, lambda at: count_slots(table.usable(at)))

    def _opens(self, table: TypeTable, want: Want) -> Bools:
        def compute(at: At) -> Bools:
            return count_slots(self._fits(table, want, at) & table.in_use(at)) < want.count

        return self._memo.get(("opens", want), self._states.end, compute)

    def packing(self, rows: Rows, query: Query) -> Ints:
        """Score the nodes of these rows from 0 to 100 by `preference.packing`, higher is better.

        A node that does not fit has 0. Fitting devices in use are taken first, then those that the want fills, as
        `place()` does if devices are alike. Each want is considered by itself. Amounts that follow from a device's
        capacity are computed for the node's smallest fitting device. If devices differ, another may be chosen: the
        score only orders nodes.
        """
        if not query.wants or any(want.type not in self._tables for want in query.wants):
            return np.zeros(len(rows), np.int64)

        def compute(at: At) -> Ints:
            return np.where(self._served(query.wants, at), self._packing(query, self._asked(query.wants, at), at), 0)

        return self._memo.get((Preference.PACKING, query), self._states.end, compute)[self._state[rows]]

    def typify(self, mix: Mix) -> None:
        """Compare nodes by this mix from now on."""
        self._fragments.typify(mix)

    def fragmentation(self, rows: Rows) -> Ints:
        """The fragmentation of the nodes of these rows: `allocator.fragmentation` states what it is."""
        measured: Ints = self._fragments.now(self._states.end)[:, self._state[rows]].sum(axis=0)
        return measured

    def growth(self, rows: Rows, query: Query, *, smallest: bool = True) -> Ints:
        """How much the fragmentation of the nodes of these rows grows if the query is served there.

        It means nothing for a node that cannot serve the query.
        `query`: what is asked; what the Pod takes is stated by its steps and requests.
        """
        grown: Ints = self._fragments.growth(query, self._states.end, smallest=smallest)[:, self._state[rows]].sum(
            axis=0
        )
        return grown

    def ranks(self, way: Preference, rows: Rows, query: Query) -> Ints:
        """Number the nodes of these rows by one of the patent's preferences, from 0 for the best, equal ones alike.

        The order is that of `FIGURES`, over all classes of the node that count. What the Pod takes is stated by the
        query's steps and requests. Where that depends on the devices that are chosen, it is estimated as in `packing`.
        A node that cannot serve a step counts as if that took nothing.
        """
        classes, states = self._counted_classes(), self._state[rows]
        filled = preference.paired(*self._filled(classes, query, states))
        return preference.ranks(
            self._figures(way, classes, query)[states], preference.doubt(len(classes)), filled, FIGURES[way]
        )

    def best(self, way: Preference, rows: Rows, query: Query) -> Bools:
        """Return for each of these rows, of which there is one at least, whether it has the least of `ranks`.

        Only those whose figures a float cannot tell from the least are compared exactly.
        """
        classes, states = self._counted_classes(), self._state[rows]
        figures = self._figures(way, classes, query)[states]
        best: Bools = figures <= figures.min() + preference.doubt(len(classes))
        may_be = np.flatnonzero(best)
        if len(may_be) > 1:
            filled = preference.paired(*self._filled(classes, query, states[may_be]))
            best[may_be] = preference.least(filled, FIGURES[way])
        return best

    def _figures(self, way: Preference, classes: Classes, query: Query) -> preference.Floats:
        def compute(at: At) -> preference.Floats:
            return preference.figures(way, *self._filled(classes, query, at))

        return self._memo.get((way, query), self._states.end, compute)

    def _filled(self, classes: Classes, query: Query, at: At) -> tuple[Ints, Ints]:
        """What is used of these classes with what the Pod takes, and what there is: both classes x states."""
        both = self._memo.get(("filled", classes), self._states.end, lambda at: self._sums(classes, at))[:, at]
        has, used = both[: len(classes)], both[len(classes) :].copy()
        for key, amount in self._taken(query, at).items():
            if key in classes:
                line = classes.index(key)
                np.minimum(used[line] + amount, has[line], out=used[line])
        return used, has

    def _sums(self, classes: Classes, at: At) -> Ints:
        """What nodes have of these classes, then what is used of it."""
        sums = [self._tables[kind].sums(tail, at) for kind, tail in classes]
        return np.array([[has for has, _ in sums], [used for _, used in sums]], np.int64).reshape(
            2 * len(classes), len(self._in_use[at])
        )

    def _taken(self, query: Query, at: At) -> dict[tuple[str, str], Ints | int]:
        """What the Pod takes of each class at most."""
        taken: dict[tuple[str, str], Ints | int] = {(NODE_ROW, name): amount for name, amount in query.requests}
        for step in query.steps:
            served = self._served(step, at)
            for key, amount in self._asked(step, at).items():
                of_step = amount * served
                taken[key] = np.maximum(taken[key], of_step) if key in taken else of_step
        return taken

    def _served(self, wants: Iterable[Want], at: At) -> Bools:
        """Whether each node can serve each of these wants, considered by itself."""
        served = np.ones(len(self._in_use[at]), np.bool_)
        for want in wants:
            served &= self._count(want)[at] >= want.count
        return served

    def _counted_classes(self) -> Classes:
        """Type and tail of every class that counts; the CPUs of a node count by what is requested of the node."""
        return tuple(
            [
                (kind, tail)
                for kind, table in self._tables.items()
                if kind not in {CPU_ROW, NUMA_ROW}
                for tail in self._fullness.get(kind) or table.tails()
                if not self._counted or (tail if kind == NODE_ROW else kind) in self._counted
            ]
        )

    def _asked(self, wants: Iterable[Want], at: At) -> dict[tuple[str, str], Ints]:
        """What these wants take of each node, by type and counted tail; bounded so that sums stay in int64."""
        asked: dict[tuple[str, str], Ints] = {}
        for want in wants:
            table = self._tables.get(want.type)
            if table is None:
                continue
            counted = self._fullness.get(want.type) or table.tails()
            for tail, amount in table.asked(want, self._fits(table, want, at), at, counted).items():
                before = asked.get((want.type, tail), np.int64(0))
                asked[want.type, tail] = np.minimum(before + amount, MAX_AMOUNT)
        return asked

    def _packing(self, query: Query, asked: Mapping[tuple[str, str], Ints], at: At) -> Ints:
        kept = np.zeros(len(self._in_use[at]), np.int64)
        fullness: dict[str, tuple[str, ...]] = {}
        for want in query.wants:
            table = self._tables[want.type]
            tails = fullness[want.type] = self._fullness.get(want.type) or table.tails()
            fits, in_use = self._fits(table, want, at), table.in_use(at)
            shared = np.minimum(count_slots(fits & in_use), want.count)
            filled = count_slots(fits & ~in_use & table.fills(want, tails, at))
            kept += shared + np.minimum(filled, want.count - shared)
        full = np.zeros_like(kept)
        for kind, tails in fullness.items():
            sums = [(self._tables[kind].sums(tail, at), asked.get((kind, tail), 0)) for tail in tails]
            has = sum((has for (has, _), _ in sums), np.zeros_like(kept))
            used = sum((np.minimum(used + more, has) for (has, used), more in sums), np.zeros_like(kept))
            full += preference.FULLNESS * used // np.maximum(has, 1)
        return preference.packing(
            kept, sum(want.count for want in query.wants), self._in_use[at], full // len(fullness)
        )


def _rooms(often: Ints, count: int, most: Ints) -> Ints:
    """How many times `count` distinct devices can be taken on each node, by bisection.

    `often`: how many times each slot could serve one device, slots x nodes.
    """
    low, high = np.zeros_like(most), most
    while (low < high).any():
        times = (low + high + 1) // 2
        enough = np.minimum(often, times).sum(axis=0) >= times * count
        low, high = np.where(enough, times, low), np.where(enough, high, times - 1)
    return low


BLOCK: Final = 64  # a result over all states is computed anew when these grow beyond it, so they grow by many at once


class NodeRows:
    """Rows by name.

    A node keeps its row until it is removed; the row then goes to the next node that is added. Row 0 belongs to no
    node: it means a node that is not known.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._names: list[str] = [""]
        self._given_up: list[int] = []
        self._alphabet: Rows | None = None
        # the rows of the tuple of names that was looked up last: nominations look up one again and again
        self._found: tuple[Sequence[str], Rows] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Nodes by row, "" for a row without a node."""
        return tuple(self._names)

    @property
    def end(self) -> int:
        """The number after the last row."""
        return len(self._names)

    def get(self, node: str) -> int | None:
        """A node's row; None if it is not known."""
        return self._rows.get(node)

    def add(self, node: str) -> int:
        """Give a row to a node that is not yet known, and return it."""
        if self._given_up:
            row = self._given_up.pop()
            self._names[row] = node
        else:
            row = len(self._names)
            self._names.append(node)
        self._rows[node] = row
        self._alphabet = self._found = None
        return row

    def drop(self, node: str) -> int | None:
        """Forget a node; return the row that it had, None if it was not known."""
        row = self._rows.pop(node, None)
        if row is None:
            return None
        self._names[row] = ""
        self._given_up.append(row)
        self._alphabet = self._found = None
        return row

    def find(self, names: Sequence[str]) -> Rows:
        """Find the rows of nodes, 0 for one that is not known."""
        if self._found is not None and names is self._found[0]:
            return self._found[1]
        rows = np.fromiter(map(self._rows.get, names, repeat(0)), np.intp, len(names))
        if isinstance(names, tuple):
            self._found = names, rows
        return rows

    def by_name(self) -> Rows:
        """For each row, the position of its node in the order of names."""
        if self._alphabet is None:
            order = sorted(range(len(self._names)), key=self._names.__getitem__)
            self._alphabet = np.empty(len(order), np.intp)
            self._alphabet[order] = np.arange(len(order))
        return self._alphabet


class States:
    """Numbers of states, from 1; 0 is the state of what is no node.

    A state in which no node is any more is still known: nodes often return to it when a Pod goes. Its number goes to
    another state once that needs one; the state that was left first goes first. There are thus never more numbers than
    there were nodes at once.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._states: list[Hashable] = [None]
        self._nodes: list[int] = [0]
        self._left: dict[int, None] = {}  # numbers of states in which no node is, those left first before others

    @property
    def end(self) -> int:
        """A number above all numbers; it seldom changes."""
        return -(-len(self._states) // BLOCK) * BLOCK

    def nodes(self) -> Ints:
        """How many nodes are in each state, for all numbers below `end`."""
        nodes = np.zeros(self.end, np.int64)
        nodes[: len(self._nodes)] = self._nodes
        return nodes

    def enter(self, state: Hashable) -> tuple[int, bool]:
        """Note that one more node is in a state.

        Returns the number of the state, and whether it is new.
        """
        number = self._numbers.get(state)
        new = number is None
        if number is None:
            number = self._numbers[state] = next(iter(self._left), len(self._states))
            if number == len(self._states):
                self._states.append(state)
                self._nodes.append(0)
            else:
                self._numbers.pop(self._states[number], None)
                self._states[number] = state
        self._left.pop(number, None)
        self._nodes[number] += 1
        return number, new

    def leave(self, number: int) -> None:
        """Note that one node is no longer in a state; nothing is ever in state 0."""
        if number:
            self._nodes[number] -= 1
            if not self._nodes[number]:
                self._left[number] = None

    def forget(self, number: int) -> None:
        """Leave a state that was new and cannot be."""
        self.leave(number)
        del self._numbers[self._states[number]]
        self._states[number] = None
