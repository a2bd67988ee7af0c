"""Some devices of each of many nodes, as arrays: what they have, what is free of them, and which of them a Pod takes.

The devices that a Pod takes are those that `place()` takes if connections, partitions and hints do not decide: devices
in use first, then the smallest, then those of which the least is left.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self

import numpy as np

from allocator.index.query import FULL, Want
from allocator.index.table import MAX_SLOTS, At, Bools, Ints, Make, Rows, TypeTable, needed, slots_fit
from allocator.index.typical import LARGEST_SMALL, Made, Small, TypicalOf

_SIZES: Final = 2**10  # devices are compared by size up to this
_MOST_COMPARED: Final = 6  # classes in which devices are compared, so that no order leaves int64
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
        for tail in reversed(tails[:_MOST_COMPARED]):  # memory before compute, as `place()` compares what is left
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
