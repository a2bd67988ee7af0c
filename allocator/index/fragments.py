"""How much the fragmentation of each node grows if a Pod comes to it, for all nodes at once (FGD).

The definition is that of `allocator.fragmentation`, and so are the figures: a property test compares them. Written by
what is of use, F_n(M) is

    W * (points left on n) - the sum over m of w_m * [m fits on n] * (points left on the devices that can serve m)

so that requests with equal amounts for each device share what they look at. Each type of devices is measured by itself,
by the requests for it; W is the sum of their weights and of those without devices, which count nowhere else. What the
different devices of typical requests find on a node is kept; a Pod changes it by the few devices that it takes.

No sum leaves int64: a node has at most 2^7 devices of a type, a device at most 2^4 classes of 100 points, W is at most
2^20, and the index has far fewer than 2^15 types.

If `place()` chooses other devices than `Stock.order` says, the growth was an estimate: it only orders nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from allocator.index.memo import Memo
from allocator.index.query import MAX_AMOUNT, Query, Want
from allocator.index.rows import NODE_ROW
from allocator.index.stock import Size, Stock, first, marked
from allocator.index.table import At, Bools, Ints, TypeTable, count_slots, slots_fit
from allocator.index.typical import FEW, NOTHING_TYPICAL, Small, TypicalOf, typical
from allocator.vocabulary.mix import Mix

STEP: Final = 80  # points; 40 % of an idle card
KEPT_IDLE: Final = 8  # one of so many nodes at least is kept for Pods that take a whole node
_NOTHING: Final = Query(())
_PART: Final = 2**19  # figures that are looked at in one go, so that all of them stay in the cache
_FEWEST: Final = 256  # nodes
_COUNTS: Final = 2**8  # more than the devices of a type that a node has, or that a request asks for
_T = TypeVar("_T", bound=np.generic)


class Taking(NamedTuple):
    """Devices of one type that a Pod takes."""

    wants: Sequence[Want]  # what it takes, one after another
    size: Size | None  # by which class devices are large, as in `Stock.order`


def found(of: TypicalOf, stock: Stock) -> Small:
    """What the classes of typical requests find on devices.

    Returns (2 x classes + 1) x nodes: how many devices can serve each class; the points that are left on these; then
    the points that are left on all devices.
    """
    points, serving = stock.points(of.counted, of.points), stock.serving(of)
    classes, _, nodes = serving.shape
    there = np.empty((2 * classes + 1, nodes), points.dtype)
    there[:classes] = np.add.reduce(serving, axis=1, dtype=np.uint8)  # at most `MAX_SLOTS`
    np.add.reduce(serving * points, axis=1, out=there[classes:-1])
    np.add.reduce(points, axis=0, out=there[-1])
    return there


def found_after(
    there: Small, of: TypicalOf, table: TypeTable, at: At, taking: Taking, fits: Bools, order: Ints
) -> Small:
    """What the classes of typical requests find after a Pod took devices, as `found` returns it.

    Where a Pod takes few of many devices, only these are looked at: what is found is less by what they were of use, and
    more by what they are of use then.
    `fits`: which can serve the first want, lines x nodes.
    """
    want, *others = taking.wants
    lines, taken = first(order, fits, want.count)
    count, nodes = fits.shape
    if not others and 2 * len(lines) < count and nodes > FEW:
        return there + gained(of, Stock.picked(table, at, lines, of.pair), want, taken)
    stock = Stock.of(table, at, of.pair).less(want, marked(lines, taken, count))
    for other in others:
        fits = slots_fit(other, stock.usable, stock.total, stock.free)
        lines, taken = first(stock.order(taking.size, of.counted), fits, other.count)
        stock = stock.less(other, marked(lines, taken, count))
    return found(of, stock)


def gained(of: TypicalOf, stock: Stock, want: Want, taken: Bools) -> Small:
    """What the classes of typical requests find more on devices, or less, once a want took what it asks of each.

    The arguments are those of `found` and of `Stock.less`; what is returned has the form of what `found` returns.
    """
    lines = len(taken)
    both = stock.beside(stock.less(want, taken))
    points, serving = both.points(of.counted, of.points), both.serving(of)
    points[:lines] *= -1
    classes, _, nodes = serving.shape
    more = np.empty((2 * classes + 1, nodes), points.dtype)
    counts = serving.view(np.int8)
    np.add.reduce(counts[:, lines:] - counts[:, :lines], axis=1, out=more[:classes])
    np.add.reduce(serving * points, axis=1, out=more[classes:-1])
    np.add.reduce(points, axis=0, out=more[-1])
    return more


def measure(of: TypicalOf, found: Small, cpu: Ints, memory: Ints) -> Ints:
    """F_n(M) of each node for the devices of one type, multiplied by the sum of the weights, in points.

    `cpu`: thousandths of a CPU that are left of each node. `memory`: bytes, likewise.
    """
    classes = len(of.classes)
    fits = of.enough(found[:classes].astype(np.uint8))
    fits &= of.cpu.suffices(cpu)
    fits &= of.memory.suffices(memory)
    common = of.by_class(fits)
    useful = np.einsum("dn,dn->n", common, found[classes:-1], dtype=of.measured, casting="same_kind")
    measured: Ints = of.total * found[-1].astype(np.int64) - useful
    return measured


def left_of_node(table: TypeTable | None, name: str, asked: int, at: At, nodes: int) -> Ints:
    """What is left on each node of its CPU or memory with a Pod; a node that does not state it has enough."""
    if table is None:
        return np.full(nodes, MAX_AMOUNT)
    has, used = table.sums(name, at)
    return np.where(has > 0, np.maximum(has - used - asked, 0), MAX_AMOUNT)


def _in_parts(compute: Callable[[At], NDArray[_T]], at: At, each: int) -> NDArray[_T]:
    """Compute for so many nodes at once that all of it stays in the cache.

    `compute`: returns an array of which the last axis is these nodes.
    """
    if not isinstance(at, slice):
        return compute(at)
    step = max(_PART // max(each, 1), _FEWEST)
    parts = [compute(slice(start, min(start + step, at.stop))) for start in range(0, at.stop, step)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


def _taken(query: Query) -> tuple[Want, ...]:
    """What a Pod takes: the step of its life with the most devices, of equal ones the last."""
    steps = query.steps or (query.wants,)
    return max(reversed(steps), key=lambda step: sum(want.count for want in step))


class Fragments:
    """The fragmentation of all nodes, and how much it grows; only what changed is computed again.

    `sizes`: device type -> the class by which its devices are large, and how much of it counts as 1. `fits`: returns
    whether each slot of a table can serve one device of a want, slots x nodes.
    """

    def __init__(
        self,
        tables: Mapping[str, TypeTable],
        sizes: Mapping[str, tuple[str, int]],
        memo: Memo,
        fits: Callable[[TypeTable, Want, At], Bools],
    ) -> None:
        self._tables = tables
        self._sizes = sizes
        self._memo = memo
        self._fits = fits
        self._typical = NOTHING_TYPICAL

    def typify(self, mix: Mix) -> None:
        """Take this mix from now on."""
        self._typical = typical(mix, self._typical.number + 1)

    @property
    def steps(self) -> Ints:
        """The growth that makes a difference, types x 1: `STEP` points in the mean over the requests for each type."""
        return np.array([[STEP * of.total] for of in self._typical.kinds.values()], np.int64).reshape(-1, 1)

    @property
    def kinds(self) -> Mapping[str, TypicalOf]:
        """The typical requests by device type; what is stated by type has this order."""
        return self._typical.kinds

    def now(self, nodes: int) -> Ints:
        """The fragmentation of the first `nodes` nodes, types x nodes."""
        key = ("fragmentation", self._typical.number)
        return self._memo.get(key, nodes, lambda at: self._with(_NOTHING, at, nodes, smallest=True))

    def growth(self, query: Query, nodes: int, *, smallest: bool) -> Ints:
        """How much the fragmentation of the first `nodes` nodes grows with a query, types x nodes.

        `ClusterIndex.growth` says what the arguments are.
        """
        before = self.now(nodes)

        def compute(at: At) -> Ints:
            return self._with(query, at, nodes, smallest=smallest) - before[:, at]

        return self._memo.get(("growth", self._typical.number, query, smallest), nodes, compute)

    def spare(self, kind: str, usable: Ints, in_use: Bools, nodes: Ints) -> Bools:
        """In which states nodes may be begun although they are idle: more are than the Pods need that take a whole one.

        That is so where a typical request asks for all usable devices of a node, and of the nodes with as many usable
        devices more than an eighth are idle, and more than the part that such requests have in all devices that typical
        requests ask for. A share counts as a device there. CPU and memory do not count.
        `usable`: how many devices of the type a node in each state has on which something may land.
        """
        table, of = self._tables.get(kind), self._typical.kinds.get(kind)
        if table is None or of is None:
            return np.zeros(len(usable), np.bool_)
        whole = self._asked_whole(kind, table, of, len(usable))
        counts = of.count[:, 0].astype(np.int64)
        asked = np.zeros(_COUNTS, np.int64)
        np.add.at(asked, counts, counts * of.weight[:, 0])
        there, idle = np.zeros(_COUNTS, np.int64), np.zeros(_COUNTS, np.int64)
        np.add.at(there, usable, nodes)
        np.add.at(idle, usable, nodes * (whole & ~in_use))
        enough = (idle * KEPT_IDLE > there) & (idle * asked.sum() > there * asked)
        spare: Bools = whole & enough[usable]
        return spare

    def _asked_whole(self, kind: str, table: TypeTable, of: TypicalOf, nodes: int) -> Bools:
        """Whether a typical request asks for all usable devices of each node, and these can serve it."""
        there = self._found(kind, table, of, nodes)
        asked = sorted({*zip(of.whose.tolist(), of.count[:, 0].tolist(), strict=True)})

        def compute(at: At) -> Bools:
            usable = count_slots(table.usable(at))
            whole = np.zeros(len(usable), np.bool_)
            for of_class, count in asked:
                whole |= (usable == count) & (there[of_class, at] == count)
            return whole

        return self._memo.get(("asked whole", self._typical.number, kind), nodes, compute)

    def _with(self, query: Query, at: At, nodes: int, *, smallest: bool) -> Ints:
        """The fragmentation with a query, types x nodes."""
        asked, node, wants = dict(query.requests), self._tables.get(NODE_ROW), _taken(query)
        sizes = self._sizes if smallest else {}

        def compute(part: At) -> Ints:
            count = part.stop - part.start if isinstance(part, slice) else len(part)
            cpu, memory = (left_of_node(node, name, asked.get(name, 0), part, count) for name in ("cpu", "memory"))
            measured = np.zeros((len(self._typical.kinds), count), np.int64)
            for line, (kind, of) in enumerate(self._typical.kinds.items()):
                table = self._tables.get(kind)
                if table is not None:
                    there = self._found(kind, table, of, nodes)[:, part]
                    taking = Taking([want for want in wants if want.type == kind], sizes.get(kind))
                    if taking.wants:
                        order = self._order(kind, table, of, taking.size, nodes)[:, part]
                        fits = self._fits(table, taking.wants[0], part)
                        there = found_after(there, of, table, part, taking, fits, order)
                    measured[line] = measure(of, there, cpu, memory)
            return measured

        lines = max((want.count for want in wants), default=1)
        return _in_parts(compute, at, lines * max((len(of.classes) for of in self._typical.kinds.values()), default=1))

    def _found(self, kind: str, table: TypeTable, of: TypicalOf, nodes: int) -> Small:
        """What typical requests find now on the devices of a type."""

        def compute(at: At) -> Small:
            lines = len(table.usable(slice(0)))
            return _in_parts(lambda part: found(of, Stock.of(table, part, of.pair)), at, lines * len(of.classes))

        return self._memo.get(("found", self._typical.number, kind), nodes, compute)

    def _order(self, kind: str, table: TypeTable, of: TypicalOf, size: Size | None, nodes: int) -> Ints:
        """The order in which the devices of a type are taken now."""
        key = ("order", kind, size, of.counted)
        return self._memo.get(key, nodes, lambda at: Stock.of(table, at, of.pair).order(size, of.counted))
