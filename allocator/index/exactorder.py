"""The exact order of nodes by a figure that is known approximately: what is in doubt is compared as fractions."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from allocator.index.preference import Floats
from allocator.index.table import Bools, Ints, Rows
from allocator.score import Filled

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
