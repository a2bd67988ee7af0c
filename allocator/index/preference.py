"""The order of fitting nodes, computed for all nodes at once from the amounts of the request and of the nodes."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from allocator.index.table import Bools, Ints
from allocator.score import NO_CLASS
from allocator.vocabulary.preference import Preference

Floats = NDArray[np.float64]

UNBROKEN: Final = 50  # packing's greatest parts: nothing whole is broken, the node is in use, its devices are full
IN_USE: Final = 20
FULLNESS: Final = 30
_DIGITS: Final = 3  # binary digits that are kept of the size of a node


@dataclass(frozen=True, slots=True)
class ClassUse:
    """One resource class on every node if the request is placed there."""

    has: Ints  # the capacity, for devices the sum over the usable ones
    used: Ints  # the requested part of it with the request, never more than `has`


def packing(kept: Ints, wanted: int, in_use: Bools, uses: list[list[ClassUse]]) -> Ints:
    """Score by how little is broken, from 0 to 100, higher is better: whole devices and whole nodes stay free.

    score = 50 * kept // wanted + (20 if the node is in use) + the mean over types of 30 * sum(used) // sum(has).
    `in_use`: whether anything of the node was in use before. `uses`: for each type that is asked for, the classes that
    measure how full its devices are.
    """
    full = np.zeros_like(kept)
    for classes in uses:
        has = sum((use.has for use in classes), np.zeros_like(kept))
        used = sum((use.used for use in classes), np.zeros_like(kept))
        full += FULLNESS * used // np.maximum(has, 1)
    return UNBROKEN * kept // wanted + IN_USE * in_use + full // len(uses)


def coarse(amounts: Ints) -> Ints:
    """Round amounts below 2^53 down to a few binary digits, so that what hardly differs is equal."""
    bits = np.frexp(amounts.astype(np.float64))[1]
    dropped = np.maximum(bits - _DIGITS, 0)
    rounded: Ints = amounts >> dropped << dropped
    return rounded


def figures(way: Preference, used: Ints, has: Ints) -> Floats:
    """Approximate `allocator.score.FIGURES` for every node, with an error below `doubt(len(has)) / 2`.

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
