"""How much the fragmentation of each node grows if a Pod comes to it, for all nodes at once (FGD).

The definition is that of `allocator.fragmentation`, and so are the figures: a property test compares them. Written by
what is of use, F_n(M) is

    W * (points left on n) - the sum over m of w_m * [m fits on n] * (points left on the devices that can serve m)

so that requests with equal amounts for each device share what they look at, and requests without devices only count in
W, the sum of the weights. No sum leaves int64: a node has at most 2^7 devices of a type, a device at most 2^4 classes
of 100 points, W is at most 2^20, and the index has far fewer than 2^15 types.

The devices that the Pod would take are those that `place()` takes if connections, partitions and hints do not decide:
devices in use first, then the smallest, then those of which the least is left. If others are chosen, the growth was an
estimate: it only orders nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from allocator.index.memo import Memo
from allocator.index.query import FULL, MAX_AMOUNT, Query, Want
from allocator.index.rows import NODE_ROW
from allocator.index.table import At, Bools, Ints, TypeTable, needed, slots_fit
from allocator.index.typical import LARGEST_SMALL, NOTHING_TYPICAL, Small, Typical, TypicalOf, typical
from allocator.vocabulary.mix import Mix

STEP: Final = 80  # points; 40 % of an idle card
_NOTHING: Final = Query(())
_PART: Final = 1024  # nodes
_SIZES: Final = 2**10  # devices are compared by size up to this
_TAKEN: Final = np.iinfo(np.int64).max  # greater than the rank of any device


class Stock:
    """The devices of one type on some nodes: what they have, and what is free of them, before or with a Pod.

    Args:
        table: of the type.
        at: which nodes.
    """

    def __init__(self, table: TypeTable, at: At) -> None:
        self._table = table
        self._at = at
        self._free: dict[str, Ints] = {}
        self.usable = table.usable(at)
        self.in_use = table.in_use(at)

    def total(self, tail: str) -> Ints:
        """What each slot has of a class, slots x nodes; 1 x nodes if all slots of each node are alike."""
        return self._table.total(tail, self._at)

    def free(self, tail: str) -> Ints:
        """What is free of each slot in a class, slots x nodes."""
        free = self._free.get(tail)
        return self._table.free(tail, self._at) if free is None else free

    def points(self, tails: Iterable[str]) -> Small:
        """What is left of each slot in points, slots x nodes; nothing of one that is not usable."""
        points = np.zeros(self.usable.shape, np.int16)
        for tail in tails:
            total, free = self.total(tail), self.free(tail)
            points += _small(free if ((total == FULL) | (total == 0)).all() else FULL * free // np.maximum(total, 1))
        return points * self.usable

    def serving(self, of: TypicalOf) -> Bools:
        """Whether each slot can serve one device of each class of typical requests, classes x slots x nodes."""
        serving = np.repeat(self.usable[None], len(of.classes), axis=0)
        for tail, least in of.least.items():
            serving &= _small(self.free(tail)) >= least
        for at, (want, made) in enumerate(of.classes):
            if not of.plain[at]:
                serving[at] = slots_fit(want, self.usable, self.total, self.free)
            if made is not None:
                serving[at] &= self._table.made(made, self._at)
        return serving

    def take(self, want: Want, size: tuple[str, int] | None, points: Sequence[str]) -> None:
        """Take what a want asks, device after device; nothing more on nodes where none is left that fits.

        Args:
            want: what is asked.
            size: the class by which devices are large, and how much of it counts as 1; None to leave sizes out.
            points: the classes by which a device is full.
        """
        fits = slots_fit(want, self.usable, self.total, self.free)
        rank = np.where(fits, self._rank(size, points), _TAKEN)
        nodes = np.arange(fits.shape[1])
        took = np.zeros(fits.shape, np.bool_)
        for _ in range(min(want.count, len(fits))):
            slot = rank.argmin(axis=0)
            took[slot, nodes] |= rank[slot, nodes] < _TAKEN
            rank[slot, nodes] = _TAKEN
        for tail, amount in want.amounts:
            self._free[tail] = self.free(tail) - took * np.minimum(needed(amount, tail, self.total), self.free(tail))
        self.in_use = self.in_use | took

    def _rank(self, size: tuple[str, int] | None, points: Sequence[str]) -> Ints:
        """The order in which devices are taken: idle ones last, small ones first, then those with the least left."""
        rank: Ints = np.where(self.in_use, 0, np.int64(_SIZES))
        if size is not None:
            rank = rank + np.minimum(self.total(size[0]) // size[1], _SIZES - 1)
        for tail in reversed(points):  # memory before compute, as `place()` compares what is left
            rank = rank * (FULL + 1) + self.points((tail,))
        return rank


def measure(mix: Typical, stocks: Mapping[str, Stock], cpu: Ints, memory: Ints) -> Ints:
    """F_n(M) of each node, multiplied by the sum of the mix's weights, in points.

    Args:
        mix: typical requests.
        stocks: the devices of the types that the mix asks for; a type that no node has may be left out.
        cpu: thousandths of a CPU that are left of each node.
        memory: bytes, likewise.
    """
    measured = np.zeros(len(cpu), np.int64)
    for kind, stock in stocks.items():
        of = mix.kinds[kind]
        points = stock.points(of.counted)
        serving = stock.serving(of)
        fits = _counted(serving)[of.whose] >= of.count
        fits &= cpu >= of.cpu
        fits &= memory >= of.memory
        weights = fits * of.weight
        common = np.empty((len(of.classes), len(cpu)), np.int32)
        for one, (start, end) in enumerate(of.runs):
            np.add.reduce(weights[start:end], axis=0, out=common[one])
        useful = np.zeros(common.shape, np.int32)
        for slot, left in enumerate(points):
            useful += left * serving[:, slot]
        measured += mix.weight * points.sum(axis=0, dtype=np.int64) - np.einsum(
            "dn,dn->n", common, useful, dtype=np.int64
        )
    return measured


def _counted(serving: Bools) -> NDArray[np.uint8]:
    """Count the slots that are set, devices x nodes; the count fits into 8 bits because of `MAX_SLOTS`."""
    counted: NDArray[np.uint8] = np.add.reduce(serving, axis=1, dtype=np.uint8)
    return counted


def _small(amounts: Ints) -> Small:
    """Amounts in little memory; all that are greater than the largest count as that."""
    return np.minimum(amounts, LARGEST_SMALL).astype(np.int16)


def _left_of_node(table: TypeTable | None, name: str, asked: int, at: At, nodes: int) -> Ints:
    """What is left on each node of its CPU or memory with a Pod; a node that does not state it has enough."""
    if table is None:
        return np.full(nodes, MAX_AMOUNT)
    has, used = table.sums(name, at)
    return np.where(has > 0, np.maximum(has - used - asked, 0), MAX_AMOUNT)


def _taken(query: Query) -> tuple[Want, ...]:
    """What a Pod takes: the step of its life with the most devices, of equal ones the last."""
    steps = query.steps or (query.wants,)
    return max(reversed(steps), key=lambda step: sum(want.count for want in step))


class Fragments:
    """The fragmentation of all nodes, and how much it grows; only what changed is computed again.

    Args:
        tables: the devices by type, as they are now.
        sizes: device type -> the class by which its devices are large, and how much of it counts as 1.
        memo: keeps results, and knows which nodes changed.
    """

    def __init__(self, tables: Mapping[str, TypeTable], sizes: Mapping[str, tuple[str, int]], memo: Memo) -> None:
        self._tables = tables
        self._sizes = sizes
        self._memo = memo
        self._typical = NOTHING_TYPICAL

    def typify(self, mix: Mix) -> None:
        """Take this mix from now on."""
        self._typical = typical(mix, self._typical.number + 1)

    @property
    def step(self) -> int:
        """The growth that makes a difference: `STEP` points in the mean over the mix."""
        return max(STEP * self._typical.weight, 1)

    def now(self, nodes: int) -> Ints:
        """The fragmentation of the first `nodes` nodes."""
        key = ("fragmentation", self._typical.number)
        return self._memo.get(key, nodes, lambda at: self._in_parts(_NOTHING, at, nodes, smallest=True))

    def growth(self, query: Query, nodes: int, *, smallest: bool) -> Ints:
        """How much the fragmentation of the first `nodes` nodes grows with a query: see `ClusterIndex.growth`."""
        before = self.now(nodes)

        def compute(at: At) -> Ints:
            return self._in_parts(query, at, nodes, smallest=smallest) - before[at]

        return self._memo.get(("growth", self._typical.number, query, smallest), nodes, compute)

    def _in_parts(self, query: Query, at: At, nodes: int, *, smallest: bool) -> Ints:
        """The fragmentation with a query, computed for so many nodes at once that all of it stays in the cache."""
        if not isinstance(at, slice):
            return self._with(query, at, len(at), smallest=smallest)
        starts = range(0, nodes, _PART)
        parts = [slice(start, min(start + _PART, nodes)) for start in starts]
        return np.concatenate([self._with(query, part, part.stop - part.start, smallest=smallest) for part in parts])

    def _with(self, query: Query, at: At, nodes: int, *, smallest: bool) -> Ints:
        kinds = self._typical.kinds
        stocks = {kind: Stock(table, at) for kind, table in self._tables.items() if kind in kinds}
        for want in _taken(query):
            if want.type in stocks:
                size = self._sizes.get(want.type) if smallest else None
                stocks[want.type].take(want, size, kinds[want.type].counted)
        asked, node = dict(query.requests), self._tables.get(NODE_ROW)
        cpu, memory = (_left_of_node(node, name, asked.get(name, 0), at, nodes) for name in ("cpu", "memory"))
        return measure(self._typical, stocks, cpu, memory)
