"""All devices of one type in the cluster, as arrays: one column per node, one line per slot.

A slot is one device of its node, the same in every class. With slots as lines, a question about all devices is a few
operations on long runs of memory, and a sum over a node's devices is a sum of lines.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from allocator.index.packed import Packed, decode
from allocator.index.query import FULL, MAX_AMOUNT, MAX_WANTED, Amount, PartOf, RatioFrom, Want

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Rows = NDArray[np.intp]
At = slice | Rows  # which nodes: a number of them from the first on, or these

MAX_SLOTS: Final = MAX_WANTED
NO_GROUP: Final = MAX_SLOTS + 1  # more devices than any group has
MAX_TAILS: Final = 16  # classes per type and node
UNLIKE: Final = -1
MAX_MAKES: Final = 4096  # of one type that are distinguished; further ones count as unknown
Make = tuple[str, str]  # vendor and model
_MAX_ALLOWED: Final = 256  # sets of makes that are remembered
_MAX_UNPACKED: Final = 1024  # rows that are remembered: many nodes are alike
_T = TypeVar("_T", bound=np.generic)


class RowError(ValueError):
    """The index cannot hold a node's devices; it is unchanged."""


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One node's devices of one type."""

    type: str
    # total and free amounts by resource class; named by tail, all with the same number of devices
    classes: tuple[Packed, ...]
    # bit i is set if something new may land on device i: it is healthy, and the kubelet did not allocate it
    usable: int
    in_use: int  # bit i is set if a Pod holds any part of device i
    makes: tuple[Make, ...] = ()  # (vendor, model) of each device; empty where no order of nodes needs it
    # a number for each device, equal for those of one group (`groups.groups_of`); empty likewise
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Slots:
    """A `TypeRow` unpacked and checked."""

    row: TypeRow  # as it was given
    count: int
    amounts: list[list[int]]  # two lists per class: what the devices have, and what is free
    sums: list[int]  # two sums per class over usable devices: what they have, and what is used
    each: list[int]  # per class, what every usable device has; `UNLIKE` if they differ
    flags: list[list[int]]  # usable and in use, 0 or 1 for each device


@lru_cache(_MAX_UNPACKED)
def unpack(row: TypeRow) -> Slots:
    """Unpack and check one node's devices of one type; the answer must not be changed.

    Raises RowError: classes differ in the number of devices, a class occurs twice, or a figure is out of bounds.
    """
    classes, usable = row.classes, row.usable
    count = classes[0].count if classes else 0
    everyone = (1 << count) - 1
    _check_shape(row, count)
    flags = [decode(mask, 1, count) for mask in (usable, row.in_use)] if count else [[], []]
    amounts: list[list[int]] = []
    sums: list[int] = []
    each: list[int] = []
    for one in classes:
        total, free = one.totals(), one.frees()
        if sum(total) >= MAX_AMOUNT:
            raise RowError(f"type {row.type}: the sum of {one.name} is {sum(total)}; it must be less than {MAX_AMOUNT}")
        amounts += (total, free)
        if usable != everyone:
            total, free = list(compress(total, flags[0])), list(compress(free, flags[0]))
        there = sum(total)
        sums += (there, there - sum(free))
        first = total[0] if total else 0
        each.append(first if total.count(first) == len(total) else UNLIKE)
    return Slots(row, count, amounts, sums, each, flags)


def _check_shape(row: TypeRow, count: int) -> None:
    names = [one.name for one in row.classes]
    if len(names) > MAX_TAILS or len(set(names)) != len(names):
        raise RowError(f"type {row.type}: {len(names)} classes; each must occur once, at most {MAX_TAILS} in all")
    if count > MAX_SLOTS or any(one.count != count for one in row.classes):
        raise RowError(f"type {row.type}: all classes must have the same number of devices, at most {MAX_SLOTS}")
    if not (0 <= row.usable < 1 << count and 0 <= row.in_use < 1 << count):
        raise RowError(f"type {row.type}: usable or in use names a device beyond the existing {count}")
    if any(stated and len(stated) != count for stated in (row.makes, row.groups)):
        raise RowError(f"type {row.type}: {len(row.makes)} makes and {len(row.groups)} groups of {count} devices")
    if any(not 0 <= group < MAX_SLOTS for group in row.groups):
        raise RowError(f"type {row.type}: groups of devices are numbered from 0 to {MAX_SLOTS - 1}")


class Some(NamedTuple):
    """Some slots of a table, picked x nodes."""

    usable: Bools  # whether something new may land on each
    in_use: Bools  # whether a Pod holds any part of each
    classes: Mapping[str, int]  # the number of each class
    amounts: Ints  # two per class (has, free) x picked x nodes
    makes: Callable[[], Ints]  # the number of each one's make

    def total(self, tail: str) -> Ints:
        """What each has of a class."""
        line = self.classes.get(tail)
        return np.zeros(self.usable.shape, np.int64) if line is None else self.amounts[2 * line]

    def free(self, tail: str) -> Ints:
        """What is free of it."""
        line = self.classes.get(tail)
        return np.zeros(self.usable.shape, np.int64) if line is None else self.amounts[2 * line + 1]


class TypeTable:
    """The devices of one type on every node."""

    def __init__(self, capacity: int) -> None:
        self._classes: dict[str, int] = {}
        self._order: tuple[str, ...] = ()  # the classes of the last node, which mostly are those of the next
        self._lines: list[int] = []  # their lines
        self._where: list[int] = []  # their lines in arrays with two lines per class
        self._amounts: Ints = np.zeros((0, 0, capacity), np.int64)  # two per class (has, free) x slots x nodes
        self._sums: Ints = np.zeros((0, capacity), np.int64)  # two per class (has, used), over usable slots
        self._each: Ints = np.zeros((0, capacity), np.int64)  # per class, what every usable slot has, or `UNLIKE`
        self._flags: Bools = np.zeros((2, 0, capacity), np.bool_)
        self._makes: dict[Make, int] = {}  # numbered from 1
        self._allowed: dict[Callable[[Make], bool], Bools] = {}
        self._grouping: Ints = np.zeros((2, 0, capacity), np.int64)  # make and group of each slot; nothing until stated

    def write(self, node: int, slots: Slots) -> bool:
        """Replace one node's devices.

        Returns whether the table now has more classes or slots than before.
        """
        classes, (_, had, capacity) = len(self._classes), self._flags.shape
        names = tuple([one.name for one in slots.row.classes])
        if names != self._order:
            self._learn(names)
        more = len(self._classes) > classes or slots.count > had
        if more:
            self.grow(capacity, slots.count)
        self.clear(node)
        if slots.count:
            where = self._where
            self._amounts[where, : slots.count, node] = slots.amounts
            self._sums[where, node] = slots.sums
            self._each[self._lines, node] = slots.each
            self._flags[:, : slots.count, node] = slots.flags
            if slots.row.makes:
                self._group(node, slots.row)
        return more

    def _group(self, node: int, row: TypeRow) -> None:
        _, slots, capacity = self._flags.shape
        if self._grouping.shape[1:] != (slots, capacity):
            self._grouping = _grown(self._grouping, (2, slots, capacity))
        known, count = self._makes, len(row.makes)
        for make in row.makes:
            if make not in known and len(known) < MAX_MAKES:
                known[make] = len(known) + 1
        self._grouping[0, :count, node] = [known.get(make, 0) for make in row.makes]
        self._grouping[1, :count, node] = row.groups

    def clear(self, node: int) -> None:
        """Remove one node's devices."""
        self._amounts[:, :, node] = 0
        self._sums[:, node] = 0
        self._each[:, node] = 0
        self._flags[:, :, node] = False
        self._grouping[:, :, node] = 0

    def _learn(self, names: Sequence[str]) -> None:
        for name in names:
            self._classes.setdefault(name, len(self._classes))
        self._order = tuple(names)
        self._lines = [self._classes[name] for name in names]
        self._where = [half for line in self._lines for half in (2 * line, 2 * line + 1)]

    def grow(self, capacity: int, slots: int = 0) -> None:
        """Make room for `capacity` nodes, at least `slots` slots, and every known class."""
        _, had, _ = self._flags.shape
        slots = max(slots, had)
        lines = 2 * len(self._classes)
        self._amounts = _grown(self._amounts, (lines, slots, capacity))
        self._sums = _grown(self._sums, (lines, capacity))
        self._each = _grown(self._each, (len(self._classes), capacity))
        self._flags = _grown(self._flags, (2, slots, capacity))
        self._grouping = _grown(self._grouping, (2, self._grouping.shape[1] and slots, capacity))

    # What is asked of the devices

    def total(self, tail: str, at: At) -> Ints:
        """The total of each usable slot in a class, slots x nodes; 1 x nodes if all slots of each node are alike."""
        line = self._classes.get(tail)
        if line is None:
            return self._zeros(at)[:1]
        each: Ints = self._each[line][at]
        return self._amounts[2 * line][:, at] if (each == UNLIKE).any() else each[None]

    def free(self, tail: str, at: At) -> Ints:
        """The free amount of each slot in a class, slots x nodes."""
        line = self._classes.get(tail)
        return self._zeros(at) if line is None else self._amounts[2 * line + 1][:, at]

    def usable(self, at: At) -> Bools:
        """Whether something new may land on each slot, slots x nodes."""
        usable: Bools = self._flags[0][:, at]
        return usable

    def in_use(self, at: At) -> Bools:
        """Whether a Pod holds any part of each slot, slots x nodes."""
        in_use: Bools = self._flags[1][:, at]
        return in_use

    def sums(self, tail: str, at: At) -> tuple[Ints, Ints]:
        """What each node's usable devices have of a class, and what of it is used, one figure per node each."""
        line = self._classes.get(tail)
        if line is None:
            return self._zeros(at).sum(axis=0), self._zeros(at).sum(axis=0)
        return self._sums[2 * line][at], self._sums[2 * line + 1][at]

    def some(self, at: At, lines: Rows) -> "Some":
        """Some of the slots of each node: those in these lines, picked x nodes."""
        capacity = self._flags.shape[2]
        places = lines * capacity + np.arange(capacity)[at]  # in arrays of one line: they are picked in one go

        def pick(array: NDArray[_T]) -> NDArray[_T]:
            picked: NDArray[_T] = array.reshape(len(array), -1).take(places, axis=1)
            return picked

        usable, in_use = pick(self._flags)
        return Some(
            usable,
            in_use,
            self._classes,
            pick(self._amounts),
            lambda: pick(self._grouping)[0] if self.has_groups else np.zeros(lines.shape, np.int64),
        )

    def tails(self) -> tuple[str, ...]:
        """The known classes, in the order in which they were first seen."""
        return tuple(self._classes)

    def _zeros(self, at: At) -> Ints:
        return np.zeros(self.usable(at).shape, np.int64)

    def makes(self, at: At) -> Ints:
        """The number of each slot's make, slots x nodes; 0 where it is not stated."""
        return self._grouping[0][:, at] if self.has_groups else self._zeros(at)

    def allowed(self, allowed: Callable[[Make], bool]) -> Bools:
        """Whether each make is allowed, by its number; one that is not stated is not."""
        known = self._allowed.get(allowed)
        if known is None or len(known) <= len(self._makes):  # makes came since
            if len(self._allowed) >= _MAX_ALLOWED:
                self._allowed.clear()
            known = self._allowed[allowed] = np.array([False, *map(allowed, self._makes)])
        return known

    @property
    def has_groups(self) -> bool:
        """Whether a node's makes and groups were stated."""
        return bool(self._grouping.shape[1])

    def broken(self, want: Want, fits: Bools, others: Ints | None, at: At) -> Ints:
        """How large the group of idle devices is that a want breaks: see `ClusterIndex.broken`.

        `others`: how many devices of each node others take that belong with it; None if nobody does.
        """
        in_use = self.in_use(at)
        opens = want.count - np.minimum(count_slots(fits & in_use), want.count)
        idle, groups = fits & ~in_use, self._grouping[1][:, at]
        smallest = _smallest(idle, groups, opens)
        if others is not None:
            together = _smallest(idle, groups, opens + others)
            smallest = np.where(together < NO_GROUP, together, smallest + NO_GROUP)
        return np.where(opens > 0, smallest, 0)

    def fits(self, want: Want, at: At) -> Bools:
        """Whether each slot can serve one device of a want, slots x nodes."""
        return slots_fit(want, self.usable(at), lambda tail: self.total(tail, at), lambda tail: self.free(tail, at))

    def opened(self, want: Want, fits: Bools, tail: str, unit: int, at: At) -> Ints:
        """How large the smallest idle device is that a want opens, a figure a node; 0 where devices in use suffice.

        `unit`: how much of it counts as 1.
        """
        in_use = self.in_use(at)
        idle = fits & ~in_use
        # Adding what no device has is quicker than choosing by a mask.
        size = (self.total(tail, at) // unit + ~idle * np.int64(MAX_AMOUNT)).min(axis=0, initial=2 * MAX_AMOUNT)
        return np.where(count_slots(fits & in_use) >= want.count, 0, size)

    def often(self, want: Want, fits: Bools, at: At) -> Ints:
        """How many times each slot could serve one device of a want, slots x nodes."""
        often = np.where(fits, np.int64(MAX_AMOUNT), 0)
        for tail, amount in want.amounts:
            each = needed(amount, tail, lambda tail: self.total(tail, at))
            # An amount of 0 does not limit the number.
            often = np.where(np.equal(each, 0), often, np.minimum(often, self.free(tail, at) // np.maximum(each, 1)))
        return often

    def fills(self, want: Want, tails: Sequence[str], at: At) -> Bools:
        """Whether a want fills each slot if that is idle, slots x nodes: it asks for all of one of these classes."""
        fills = np.zeros(self.usable(at).shape, np.bool_)
        for tail, amount in want.amounts:
            if tail not in tails:
                continue
            if isinstance(amount, PartOf):
                fills |= amount.percent == FULL
            elif isinstance(amount, RatioFrom) and amount.amount:
                fills |= self.total(amount.tail, at) <= amount.amount
            elif isinstance(amount, int) and amount:
                fills |= self.total(tail, at) <= amount
        return fills

    def asked(self, want: Want, fits: Bools, at: At, tails: Container[str]) -> dict[str, Ints]:
        """The sum that a want takes of each node, by class.

        Figures that depend on a device's capacity are computed for the node's smallest fitting device. They mean
        nothing for a node on which no device fits.
        """
        least: dict[str, Ints] = {}

        def smallest(tail: str) -> Ints:
            if tail not in least:
                total = self.total(tail, at)
                if len(total) > 1:
                    # Adding more than any device has is faster than choosing by a mask.
                    total = total + ~fits * np.int64(MAX_AMOUNT)
                least[tail] = total.min(axis=0, initial=2 * MAX_AMOUNT)
            return least[tail]

        nodes = fits.shape[1]
        return {
            tail: want.count * _each(amount, tail, smallest, nodes) for tail, amount in want.amounts if tail in tails
        }


def slots_fit(want: Want, usable: Bools, total: Callable[[str], Ints], free: Callable[[str], Ints]) -> Bools:
    """Whether each slot can serve one device of a want, slots x nodes, by what it has and what is free, by tail."""
    fits = np.array(usable)
    for tail, amount in want.amounts:
        if isinstance(amount, PartOf):
            fits &= total(tail) * amount.percent // FULL <= free(tail)
        elif isinstance(amount, RatioFrom):
            of = total(amount.tail)
            fits &= (_ratio(amount, of) <= free(tail)) & (of >= amount.amount)
        elif amount:
            fits &= free(tail) >= amount
    return fits


def needed(amount: Amount, tail: str, total: Callable[[str], Ints]) -> Ints | int:
    """What an amount takes of each slot, by what slots have."""
    if isinstance(amount, PartOf):
        return total(tail) * amount.percent // FULL
    return _ratio(amount, total(amount.tail)) if isinstance(amount, RatioFrom) else amount


def _smallest(idle: Bools, groups: Ints, least: Ints) -> Ints:
    """The size of the smallest group that has at least so many idle devices, a figure a node; `NO_GROUP` if none."""
    smallest = np.full(len(least), NO_GROUP)
    for group in range(int(groups.max(initial=0)) + 1):
        size = count_slots(idle & (groups == group))
        smallest = np.where((size >= least) & (size > 0), np.minimum(smallest, size), smallest)
    return smallest


def _each(amount: Amount, tail: str, smallest: Callable[[str], Ints], nodes: int) -> Ints:
    if isinstance(amount, PartOf):
        return smallest(tail) * amount.percent // FULL
    if isinstance(amount, RatioFrom):
        return np.minimum(_ratio(amount, smallest(amount.tail)), FULL)
    return np.full(nodes, amount, np.int64)


def _ratio(amount: RatioFrom, total: Ints) -> Ints:
    """An amount as a percentage of these totals, rounded down; a total of 0 counts as 1."""
    ratio: Ints = amount.amount * FULL // np.maximum(total, 1)
    return ratio


def count_slots(slots: Bools) -> Ints:
    """Count the slots that are set on each node; the count fits into 8 bits because of `MAX_SLOTS`."""
    counted: NDArray[np.uint8] = np.add.reduce(slots, axis=0, dtype=np.uint8)
    return counted.astype(np.int64)


def _grown(array: NDArray[_T], shape: tuple[int, ...]) -> NDArray[_T]:
    grown = np.zeros(shape, array.dtype)
    grown[tuple(slice(length) for length in array.shape)] = array
    return grown
