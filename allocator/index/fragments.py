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

The devices that a Pod takes (`Stock`) are those that `place()` takes if connections, partitions and hints do not
decide: devices in use first, then the smallest, then those of which the least is left.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from allocator.index.memo import Memo
from allocator.index.query import FULL, MAX_AMOUNT, PartOf, Query, Want
from allocator.index.rows import NODE_ROW, want_of
from allocator.index.table import MAX_SLOTS, At, Bools, Ints, Make, Rows, TypeTable, count_slots, needed, slots_fit
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.mix import Mix, TypicalRequest
from allocator.vocabulary.names import NVIDIA, model_name
from allocator.vocabulary.node import fullness

Small = NDArray[np.signedinteger[Any]]

LARGEST_SMALL: Final = np.iinfo(np.int16).max
_MAX_POINTS: Final = MAX_SLOTS * FULL  # that one class of a node's devices has


def narrowest(most: int) -> type[np.signedinteger[Any]]:
    """The narrowest type of integers that holds a figure: the narrower, the more are computed at once."""
    if most <= LARGEST_SMALL:
        return np.int16
    return np.int32 if most <= np.iinfo(np.int32).max else np.int64


@dataclass(frozen=True, slots=True)
class Made:
    """The makes of which a device must be."""

    vendor: str  # of the device; "" for any
    among: frozenset[frozenset[str]]  # sets of models; it is in all of them

    def __call__(self, make: Make) -> bool:
        """Whether a make is one of these."""
        vendor, model = make
        if self.vendor and (vendor or NVIDIA) != self.vendor:
            return False
        return all(model_name(model) in named for named in self.among)


class Class(NamedTuple):
    """Devices that some typical requests ask for."""

    want: Want  # one of them
    made: Made | None  # which makes serve; None for all


@dataclass(frozen=True, slots=True)
class TypicalOf:
    """The typical requests for devices of one type, those with equal devices together."""

    counted: tuple[str, ...]  # the classes of a device whose percent count as points
    pair: tuple[str, str] | None  # the classes that state a device's memory in bytes and in percent; None for none
    points: type[np.signedinteger[Any]]  # the type of numbers that holds the points of a node
    total: int  # the sum of the weights of these requests and of those without devices
    measured: type[np.signedinteger[Any]]  # the type of numbers that holds the points of a node times this sum
    classes: tuple[Class, ...]  # the different devices that are asked for; D of them
    plain: tuple[bool, ...]  # which of these state nothing but amounts that fit into `Small`
    # tail -> the amounts of the plain ones, D x 1 x 1; 0 where it is not asked, and for those not plain
    least: Mapping[str, NDArray[np.int16]]
    starts: tuple[int, ...]  # of the requests of each class, the first
    whose: Ints  # the class of each request
    count: NDArray[np.uint8]  # devices that each request asks for, requests x 1
    cpu: Ints  # thousandths of a CPU, of all requests
    memory: Ints  # bytes, not those of devices, of all requests
    weight: Small  # how common each request is, requests x 1; the array's type holds the sum

    def enough(self, counts: NDArray[np.uint8]) -> Bools:
        """Whether each request finds enough devices, requests x nodes, by how many each class finds."""
        return counts[self.whose] >= self.count

    def by_class(self, fits: Bools) -> Small:
        """The weights of the requests of each class that fit, classes x nodes."""
        weights = fits * self.weight
        many = np.empty((len(self.starts), weights.shape[1]), weights.dtype)
        for at, (start, end) in enumerate(pairwise((*self.starts, len(weights)))):
            np.add.reduce(weights[start:end], axis=0, out=many[at])  # quicker than `reduceat`
        return many


def typical(mix: Mix) -> dict[str, TypicalOf]:
    """Turn a mix into the form that the index takes, by device type."""
    kinds: dict[str, dict[tuple[object, ...], list[tuple[TypicalRequest, DeviceAsk]]]] = {}
    for one in mix.requests:
        if one.ask is not None:
            each = replace(one.ask, count=1)
            kinds.setdefault(each.type.name, {}).setdefault((each, one.models), []).append((one, one.ask))
    bare = sum(one.weight for one in mix.requests if one.ask is None)
    return {kind: _typical_of(list(groups.values()), bare) for kind, groups in kinds.items()}


def _typical_of(groups: Sequence[Sequence[tuple[TypicalRequest, DeviceAsk]]], bare: int) -> TypicalOf:
    kind = groups[0][0][1].type
    counted = fullness(kind)
    points = _MAX_POINTS * len(counted)
    classes = tuple(Class(_want(replace(ask, count=1)), _made(ask, one.models)) for (one, ask), *_ in groups)
    figures = [_figures(one.want) for one in classes]
    least = {
        tail: np.array([[[of.get(tail, 0)]] if of is not None else [[0]] for of in figures], np.int16)
        for tail in kind.tails
    }
    requests = [one for group in groups for one, _ in group]
    sizes = [len(group) for group in groups]
    weight = sum(one.weight for one in requests)
    return TypicalOf(
        counted=counted,
        pair=kind.memory,
        points=narrowest(points),
        total=weight + bare,
        measured=narrowest(points * (weight + bare)),
        classes=classes,
        plain=tuple(of is not None for of in figures),
        least={tail: amounts for tail, amounts in least.items() if amounts.any()},
        starts=tuple(accumulate(sizes[:-1], initial=0)),
        whose=np.repeat(np.arange(len(sizes)), sizes),
        count=np.array([[ask.count] for group in groups for _, ask in group], np.uint8),
        cpu=_column(one.cpu for one in requests),
        memory=_column(one.memory for one in requests),
        weight=np.array([[one.weight] for one in requests], narrowest(weight)),
    )


def _column(asked: Iterable[int]) -> Ints:
    """Amounts, requests x 1. The most stands for what no node could state: only a node that states nothing has it."""
    return np.array([[min(amount, MAX_AMOUNT)] for amount in asked], np.int64)


def _want(ask: DeviceAsk) -> Want:
    """The want of one device. Bytes that follow from a stated ratio are left out: where it suffices, they do."""
    want = want_of(ask)
    if ask.type.memory is None or not ask.amount(ask.type.memory[1]):
        return want
    size = ask.type.memory[0]
    kept = tuple((tail, one) for tail, one in want.amounts if tail != size or not isinstance(one, PartOf))
    return replace(want, amounts=kept)


def _figures(want: Want) -> dict[str, int] | None:
    """What is asked by tail, if nothing but amounts are stated, and these fit into `Small`; None otherwise."""
    figures = {tail: amount for tail, amount in want.amounts if isinstance(amount, int) and amount <= LARGEST_SMALL}
    return figures if len(figures) == len(want.amounts) else None


def _made(ask: DeviceAsk, models: Sequence[str]) -> Made | None:
    """Which makes are of the ask's vendor, and among all named models where any are named; None: all are."""
    among = frozenset(frozenset(map(model_name, named)) for named in (models, ask.models) if named)
    return Made(ask.vendor, among) if ask.vendor or among else None


_SIZES: Final = 2**10  # devices are compared by size up to this
_MAX_COMPARED: Final = 6  # classes in which devices are compared, so that no order leaves int64
Size = tuple[str, int]
_NONE: Final = np.iinfo(np.int64).max  # after the order of any device


class Stock(NamedTuple):
    """Devices of one type, the same number of lines for each node. All arrays are lines x nodes."""

    usable: Bools  # whether something new may land on each
    in_use: Bools  # whether a Pod holds any part of each
    total: Callable[[str], Ints]  # by tail, what each has; 1 x nodes if all of a node are alike
    free: Callable[[str], Ints]  # by tail, what is free of each
    makes: Callable[[], Ints]  # the number of each one's make
    allowed: Callable[[Callable[[Make], bool]], Bools]  # whether each make is allowed, by its number
    memory: tuple[str, str] | None = None  # the tails that state memory in bytes and in percent; None for none

    @classmethod
    def of(cls, table: TypeTable, at: At, memory: tuple[str, str] | None) -> Self:
        """All devices of a table, as they are now."""
        total, free, makes = partial(table.total, at=at), partial(table.free, at=at), partial(table.makes, at)
        return cls(table.usable(at), table.in_use(at), total, free, makes, table.allowed, memory)

    @classmethod
    def picked(cls, table: TypeTable, at: At, lines: Rows, memory: tuple[str, str] | None) -> Self:
        """Some of the devices of each node: those in these lines of a table, picked x nodes."""
        some = table.some(at, lines)
        return cls(some.usable, some.in_use, some.total, some.free, some.makes, table.allowed, memory)

    def beside(self, other: Self) -> Self:
        """The devices of both, those of the other one in the lines behind."""
        return self._replace(
            usable=np.concatenate((self.usable, other.usable)),
            in_use=np.concatenate((self.in_use, other.in_use)),
            total=_kept(lambda tail: np.concatenate((self.total(tail), other.total(tail)))),
            free=_kept(lambda tail: np.concatenate((self.free(tail), other.free(tail)))),
            makes=lambda: np.concatenate((self.makes(), other.makes())),
        )

    def askable(self, tail: str) -> Ints:
        """What is free of each as it can be asked for (`allocator.vocabulary.cardmemory.askable`)."""
        free = self.free(tail)
        if self.memory is None or tail != self.memory[1]:
            return free
        size = self.memory[0]
        most = (FULL * (self.free(size) + 1) - 1) // np.maximum(self.total(size), 1)
        return np.minimum(free, most)

    def points(self, tails: Sequence[str], kind: type[np.signedinteger[Any]] = np.int16) -> Small:
        """What is left of each in points, as numbers of a type that holds them; nothing of one that is not usable."""
        points = np.zeros(self.usable.shape, kind)
        for tail in tails:
            total, free = self.total(tail), self.askable(tail)
            points += free if ((total == FULL) | (total == 0)).all() else FULL * free // np.maximum(total, 1)
        return points * self.usable

    def serving(self, of: TypicalOf) -> Bools:
        """Whether each can serve one device of each class of typical requests, classes x lines x nodes."""
        serving = np.repeat(self.usable[None], len(of.classes), axis=0)
        allowed: dict[Made, Bools] = {}
        makes = self.makes() if any(one.made is not None for one in of.classes) else None
        for tail, least in of.least.items():
            serving &= np.minimum(self.askable(tail), LARGEST_SMALL).astype(np.int16) >= least
        for at, (want, made) in enumerate(of.classes):
            if not of.plain[at]:
                serving[at] = slots_fit(want, self.usable, self.total, self.askable)
            if made is not None and makes is not None:
                if made not in allowed:
                    allowed[made] = self.allowed(made)[makes]
                serving[at] &= allowed[made]
        return serving

    def order(self, size: Size | None, tails: Sequence[str]) -> Ints:
        """Numbers by which devices are taken, the least first; the last binary digits are the line.

        `size`: the class by which devices are large, and how much of it counts as 1; None to leave sizes out.
        """
        order: Ints = np.where(self.in_use, 0, np.int64(_SIZES))
        if size is not None:
            order = order + np.minimum(self.total(size[0]) // size[1], _SIZES - 1)
        for tail in reversed(tails[:_MAX_COMPARED]):  # memory before compute, as `place()` compares what is left
            order = order * (FULL + 1) + self.points((tail,))
        return order * MAX_SLOTS + np.arange(len(order))[:, None]

    def less(self, want: Want, taken: Bools) -> Self:
        """The same lines after a want took what it asks of each that is marked as taken."""
        amounts = dict(want.amounts)

        def free(tail: str) -> Ints:
            before, amount = self.free(tail), amounts.get(tail)
            if amount is None:
                return before
            after: Ints = before - taken * np.minimum(needed(amount, tail, self.total), before)
            return after

        return self._replace(in_use=self.in_use | taken, free=_kept(free))


def first(order: Ints, fits: Bools, count: int) -> tuple[Rows, Bools]:
    """Pick the first devices of each node that fit, picked x nodes.

    `fits`: which may be picked. Returns their lines, and whether there was one that fits; the line means nothing where
    there was none.
    """
    left = np.where(fits, order, _NONE)
    found = np.empty((min(count, len(fits)), fits.shape[1]), np.int64)
    for at in range(len(found)):
        if at:
            left = np.where(left == found[at - 1], _NONE, left)
        left.min(axis=0, out=found[at])
    there = found < _NONE
    return np.where(there, found % MAX_SLOTS, 0), there


def marked(lines: Rows, taken: Bools, count: int) -> Bools:
    """Mark those of `count` lines of each node that were picked and taken, lines x nodes."""
    every = np.arange(count)[:, None]
    marks: Bools = np.logical_or.reduce([(every == line) & mark for line, mark in zip(lines, taken, strict=True)])
    return marks


def _kept(amounts: Callable[[str], Ints]) -> Callable[[str], Ints]:
    """The same, each computed once."""
    known: dict[str, Ints] = {}

    def get(tail: str) -> Ints:
        if tail not in known:
            known[tail] = amounts(tail)
        return known[tail]

    return get


STEP: Final = 80  # points; 40 % of an idle card
KEPT_IDLE: Final = 8  # one of so many nodes at least is kept for Pods that take a whole node
_NOTHING: Final = Query(())
_PART: Final = 2**19  # figures that are looked at in one go, so that all of them stay in the cache
_FEWEST: Final = 256  # nodes
_FEW: Final = 64  # nodes for which the number of operations counts more than their length
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
    if not others and 2 * len(lines) < count and nodes > _FEW:
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
    fits &= cpu >= of.cpu
    fits &= memory >= of.memory
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
    """Compute for so many nodes at once that all of it stays in the cache, and the memory is bounded.

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
        self._kinds: Mapping[str, TypicalOf] = {}  # what is stated by type has this order
        self._number = 0  # distinguishes this mix from those that were given before

    def typify(self, mix: Mix) -> None:
        """Take this mix from now on."""
        self._kinds = typical(mix)
        self._number += 1

    @property
    def steps(self) -> Ints:
        """The growth that makes a difference, types x 1: `STEP` points in the mean over the requests for each type."""
        return np.array([[STEP * of.total] for of in self._kinds.values()], np.int64).reshape(-1, 1)

    def now(self, nodes: int) -> Ints:
        """The fragmentation of the first `nodes` nodes, types x nodes."""
        key = ("fragmentation", self._number)
        return self._memo.get(key, nodes, lambda at: self._with(_NOTHING, at, nodes, smallest=True))

    def growth(self, query: Query, nodes: int, *, smallest: bool) -> Ints:
        """How much the fragmentation of the first `nodes` nodes grows with a query, types x nodes.

        `ClusterIndex.growth` says what the arguments are.
        """
        before = self.now(nodes)

        def compute(at: At) -> Ints:
            return self._with(query, at, nodes, smallest=smallest) - before[:, at]

        return self._memo.get(("growth", self._number, query, smallest), nodes, compute)

    def spare(self, kind: str, usable: Ints, in_use: Bools, nodes: Ints) -> Bools:
        """In which states nodes may be begun although they are idle: more are than the Pods need that take a whole one.

        That is so where a typical request asks for all usable devices of a node, and of the nodes with as many usable
        devices more than an eighth are idle, and more than the part that such requests have in all devices that typical
        requests ask for. A share counts as a device there. CPU and memory do not count.
        `usable`: how many devices of the type a node in each state has on which something may land.
        """
        table, of = self._tables.get(kind), self._kinds.get(kind)
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

        return self._memo.get(("asked whole", self._number, kind), nodes, compute)

    def _with(self, query: Query, at: At, nodes: int, *, smallest: bool) -> Ints:
        """The fragmentation with a query, types x nodes."""
        asked, node, wants = dict(query.requests), self._tables.get(NODE_ROW), _taken(query)
        sizes = self._sizes if smallest else {}

        def compute(part: At) -> Ints:
            count = part.stop - part.start if isinstance(part, slice) else len(part)
            cpu, memory = (left_of_node(node, name, asked.get(name, 0), part, count) for name in ("cpu", "memory"))
            measured = np.zeros((len(self._kinds), count), np.int64)
            for line, (kind, of) in enumerate(self._kinds.items()):
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
        return _in_parts(compute, at, lines * max((len(of.classes) for of in self._kinds.values()), default=1))

    def _found(self, kind: str, table: TypeTable, of: TypicalOf, nodes: int) -> Small:
        """What typical requests find now on the devices of a type."""

        def compute(at: At) -> Small:
            lines = len(table.usable(slice(0)))
            return _in_parts(lambda part: found(of, Stock.of(table, part, of.pair)), at, lines * len(of.classes))

        return self._memo.get(("found", self._number, kind), nodes, compute)

    def _order(self, kind: str, table: TypeTable, of: TypicalOf, size: Size | None, nodes: int) -> Ints:
        """The order in which the devices of a type are taken now."""
        key = ("order", kind, size, of.counted)
        return self._memo.get(key, nodes, lambda at: Stock.of(table, at, of.pair).order(size, of.counted))
