"""The order of fitting nodes, computed for all nodes at once from the amounts of the request and of the nodes.

The patent's two preferences are exact (claims 7 and 16): least mean request, least variance of requests. A node is
compared by its resource classes: its CPU, memory and ephemeral storage, and each class of its devices. The request of a
class is a share, requested / capacity, with the Pod that is to be placed. The least figure is the best. The patent
states the formulas in words and no figures of its own. Figures are computed approximately, and what is then in doubt is
compared as fractions.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocator.index.table import Bools, Ints, Rows
from allocator.vocabulary.asks import Preference

NO_CLASS: Final = Fraction(2)  # more than any mean or variance: a node without a class that counts comes last


class Filled(NamedTuple):
    """One resource class of a node: what is requested of it, at most its capacity, and its capacity; in its unit."""

    used: int
    total: int


def mean(classes: Sequence[Filled]) -> Fraction:
    """The mean of the classes' shares, from 0 to 1; `NO_CLASS` without a class. Classes of capacity 0 do not count."""
    parts, common = _parts(classes)
    return Fraction(sum(parts), len(parts) * common) if parts else NO_CLASS


def variance(classes: Sequence[Filled]) -> Fraction:
    """The variance of the classes' shares about their mean, from 0 to 1/4; otherwise as `mean`.

    It is the mean of the squares less the square of the mean.
    """
    parts, common = _parts(classes)
    count = len(parts)
    squares = sum(part * part for part in parts)
    return Fraction(count * squares - sum(parts) ** 2, (count * common) ** 2) if parts else NO_CLASS


def _parts(classes: Sequence[Filled]) -> tuple[list[int], int]:
    """The shares of the classes as numerators, and their common denominator; one fraction is reduced, not each."""
    common = prod(total for _, total in classes if total)
    return [used * (common // total) for used, total in classes if total], common


FIGURES: Final[Mapping[Preference, Callable[[Sequence[Filled]], Fraction]]] = MappingProxyType(
    {Preference.LEAST_REQUESTED: mean, Preference.MOST_BALANCED: variance}
)


Floats = NDArray[np.float64]

UNBROKEN: Final = 50  # packing's greatest parts: nothing whole is broken, the node is in use, its devices are full
IN_USE: Final = 20
FULLNESS: Final = 30
_DIGITS: Final = 3  # binary digits that are kept of the size of a node


def packing(kept: Ints, wanted: int, in_use: Bools, full: Ints) -> Ints:
    """Score by how little is broken, from 0 to 100, higher is better: whole devices and whole nodes stay free.

    score = 50 * kept // wanted + (20 if the node was in use before) + full.
    `full`: the mean over types of 30 * sum(used) // sum(has), over the classes that measure how full devices are.
    """
    return UNBROKEN * kept // wanted + IN_USE * in_use + full


def coarse(amounts: Ints) -> Ints:
    """Round amounts below 2^53 down to a few binary digits, so that what hardly differs is equal."""
    bits = np.frexp(amounts.astype(np.float64))[1]
    dropped = np.maximum(bits - _DIGITS, 0)
    rounded: Ints = amounts >> dropped << dropped
    return rounded


def figures(way: Preference, used: Ints, has: Ints) -> Floats:
    """Approximate `allocator.index.preference.FIGURES` for every node, with an error below `doubt(len(has)) / 2`.

    `used`: the requested part of each resource class with the request, never more than `has`; classes x nodes. `has`:
    the capacity; those of 0 do not count.
    """
    shares = used / np.maximum(has, 1)
    count = np.add.reduce(has > 0, axis=0, dtype=np.int64)
    there = np.maximum(count, 1)
    figure: Floats = np.add.reduce(shares, axis=0) / there
    if way is Preference.MOST_BALANCED:
        figure = np.add.reduce(shares * shares, axis=0) / there - figure * figure
    figure[count == 0] = float(NO_CLASS)
    return figure


def doubt(classes: int) -> float:
    """How far two figures of so many classes must be apart for their order to be certain.

    Amounts are below 2^53, so they are exact as floats, and each operation is off by a factor of at most 1 + u, with
    u = 2^-53. With k classes, all of whose shares are at most 1, the mean is off by at most (k + 1) * u, the mean of
    the squares by (k + 3) * u, the square of the mean by (2 * k + 3) * u, and the variance by (3 * k + 7) * u, but for
    products of u with itself. Two figures may be off in opposite directions.
    """
    return 2 * (4 * classes + 16) * 2.0**-53


Figure = Callable[[Sequence[Filled]], Fraction]


def paired(used: Ints, has: Ints) -> Ints:
    """What is used of each class and its capacity, one line after the other: two lines per class x nodes."""
    return np.stack((used, has), axis=1).reshape(2 * len(used), used.shape[1])


def ranks(approximate: Floats, doubt: float, classes: Ints, figure: Figure) -> Ints:
    """Number the nodes by their exact figure, from 0 for the least; nodes whose figures are equal have one number.

    `doubt`: how far two approximate figures must be apart for their order to be certain. `classes`: what each node's
    figure is made of: two lines per class (used, capacity) x nodes.
    """
    order: Rows = np.argsort(approximate)
    sure: Bools = np.diff(approximate[order]) > doubt
    made_of = _alike(classes[:, order])
    differ: Bools = (made_of[:, 1:] != made_of[:, :-1]).any(axis=0)
    steps = sure.copy()
    for start, end in _doubtful(sure, differ):
        numbers = _numbered(made_of[:, start:end], figure)
        exact = np.argsort(numbers)
        order[start:end] = order[start:end][exact]
        steps[start : end - 1] = np.diff(numbers[exact]) > 0
    ranked = np.zeros(len(order), np.int64)
    ranked[order[1:]] = np.cumsum(steps)
    return ranked


def least(classes: Ints, figure: Figure) -> Bools:
    """Which nodes have the least exact figure; the arguments are those of `ranks`."""
    is_least: Bools = _numbered(_alike(classes), figure) == 0
    return is_least


def _alike(classes: Ints) -> Ints:
    """Write shares of nothing alike, whatever their capacity: the idle classes of most nodes then are equal."""
    alike = classes.copy()
    idle = (alike[0::2] == 0) & (alike[1::2] > 0)
    alike[1::2][idle] = 1
    return alike


def _doubtful(sure: Bools, differ: Bools) -> list[tuple[int, int]]:
    """The runs, from first to behind the last, in which no step is sure and not all nodes are made of the same."""
    doubtful = np.flatnonzero(differ & ~sure)
    if not len(doubtful):
        return []
    bounds = [0, *(np.flatnonzero(sure) + 1).tolist(), len(sure) + 1]
    runs = np.unique(np.searchsorted(bounds, doubtful, side="right") - 1).tolist()
    return [(bounds[run], bounds[run + 1]) for run in runs]


def _numbered(classes: Ints, figure: Figure) -> Ints:
    """Number nodes by their exact figure, which is computed once for all that are made of the same.

    Fractions are compared as integers. Two that differ, with denominators below 2^bits, differ by more than
    2^(-2 * bits), so they differ after multiplication by 2^(2 * bits) and rounding down.
    """
    kinds, kind_of = _kinds(classes)
    exact = [figure([Filled(*pair) for pair in kind]) for kind in kinds.T.reshape(kinds.shape[1], -1, 2).tolist()]
    bits = max(one.denominator.bit_length() for one in exact)
    scaled = [(one.numerator << 2 * bits) // one.denominator for one in exact]
    numbers = {one: number for number, one in enumerate(sorted({*scaled}))}
    return np.array([numbers[one] for one in scaled], np.int64)[kind_of]


def _kinds(columns: Ints) -> tuple[Ints, Ints]:
    """The different columns, and which of them each column is."""
    if not len(columns):
        return columns[:, :1], np.zeros(columns.shape[1], np.int64)
    order = np.lexsort(columns)
    lines = columns[:, order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (lines[:, 1:] != lines[:, :-1]).any(axis=0)
    kind_of = np.empty(len(order), np.int64)
    kind_of[order] = np.cumsum(new) - 1
    return lines[:, new], kind_of
