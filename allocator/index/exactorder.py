"""The exact order of nodes by a figure that is known approximately: what is in doubt is compared as fractions."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from allocator.index.preference import Floats
from allocator.index.table import Bools, Ints, Rows
from allocator.score import Filled

Figure = Callable[[Sequence[Filled]], Fraction]


def ranks(approximate: Floats, doubt: float, classes: Ints, figure: Figure) -> Ints:
    """Number the nodes by their exact figure, from 0 for the least; nodes whose figures are equal have one number.

    Args:
        approximate: about the figure of each node.
        doubt: how far two approximate figures must be apart for their order to be certain.
        classes: what each node's figure is made of: two lines per class (used, capacity) x nodes.
        figure: makes the exact figure.
    """
    order: Rows = np.argsort(approximate, kind="stable")
    sure: Bools = np.diff(approximate[order]) > doubt
    sorted_classes = _alike(classes[:, order])
    differ: Bools = (sorted_classes[:, 1:] != sorted_classes[:, :-1]).any(axis=0)
    steps = sure.copy()
    for start, end in _doubtful(sure, differ):
        exact = _exact(sorted_classes[:, start:end], figure)
        by_figure = sorted(range(end - start), key=exact.__getitem__)
        order[start:end] = order[start:end][by_figure]
        ascending = [exact[at] for at in by_figure]
        steps[start : end - 1] = [one != other for one, other in pairwise(ascending)]
    numbers = np.zeros(len(order), np.int64)
    numbers[order[1:]] = np.cumsum(steps)
    return numbers


def _alike(classes: Ints) -> Ints:
    """Write shares of nothing alike, whatever their capacity: the idle classes of most nodes then are equal."""
    alike = classes.copy()
    idle = (alike[0::2] == 0) & (alike[1::2] > 0)
    alike[1::2][idle] = 1
    return alike


def _doubtful(sure: Bools, differ: Bools) -> list[tuple[int, int]]:
    """The runs, from first to behind the last, in which no step is sure and not all nodes are made of the same."""
    bounds = [0, *(np.flatnonzero(sure) + 1).tolist(), len(sure) + 1]
    doubtful = np.flatnonzero(differ & ~sure)
    if not len(doubtful):
        return []
    runs = np.unique(np.searchsorted(bounds, doubtful, side="right") - 1).tolist()
    return [(bounds[run], bounds[run + 1]) for run in runs]


def _exact(classes: Ints, figure: Figure) -> list[Fraction]:
    """The exact figure of each node, computed once for nodes that are made of the same."""
    known: dict[tuple[int, ...], Fraction] = {}
    found = []
    for amounts in map(tuple, classes.T.tolist()):
        if amounts not in known:
            known[amounts] = figure([Filled(*pair) for pair in zip(amounts[0::2], amounts[1::2], strict=True)])
        found.append(known[amounts])
    return found
