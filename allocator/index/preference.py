"""The order of fitting nodes: scores from 0 to 100, higher is better, in whole numbers.

Each score is computed from the request's amounts and the nodes' amounts alone.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from allocator.index.query import FULL
from allocator.index.table import Bools, Ints
from allocator.score import FULLNESS, IN_USE, UNBROKEN

WHOLE: Final = 1000  # shares are counted in thousandths


@dataclass(frozen=True, slots=True)
class ClassUse:
    """One resource class on every node, over its usable devices, if the request is placed there.

    Attributes:
        has: the sum over the devices.
        used: the used part of it with the request, never more than `has`.
    """

    has: Ints
    used: Ints

    def share(self) -> Ints:
        """The used part in thousandths, rounded down; 1000 if the devices have nothing."""
        return np.where(self.has > 0, self.used * WHOLE // np.maximum(self.has, 1), WHOLE)


def least_requested(uses: list[ClassUse]) -> Ints:
    """Score by the least mean request (patent, claim 7, first way).

    share = used * 1000 // has for each class; score = (1000 - sum(shares) // classes) // 10.
    """
    shares = np.stack([use.share() for use in uses])
    mean: Ints = shares.sum(axis=0) // len(uses)
    return (WHOLE - mean) // (WHOLE // FULL)


def most_balanced(uses: list[ClassUse]) -> Ints:
    """Score by the least variance of the classes' requests about their mean (patent, claim 7, second way).

    With shares as in `least_requested` and k classes the variance is (k * sum(share^2) - sum(share)^2) / k^2. The
    greatest possible variance (half of the classes idle, half full: 500^2) scores 0:
    score = 100 - 100 * variance // 500^2.
    """
    shares = np.stack([use.share() for use in uses])
    count = len(uses)
    spread: Ints = count * (shares * shares).sum(axis=0) - shares.sum(axis=0) ** 2
    return FULL - FULL * spread // (count * count * (WHOLE // 2) ** 2)


def packing(kept: Ints, wanted: int, in_use: Bools, uses: list[list[ClassUse]]) -> Ints:
    """Score by how little is broken: whole devices and whole nodes stay free.

    score = 50 * kept // wanted + (20 if the node is in use) + the mean over types of 30 * sum(used) // sum(has).

    Args:
        kept: how many of the wanted devices were in use already or are filled.
        wanted: devices that are asked for.
        in_use: whether anything of the node was in use before.
        uses: for each type that is asked for, the classes that measure how full its devices are.
    """
    full = np.zeros_like(kept)
    for classes in uses:
        has = sum((use.has for use in classes), np.zeros_like(kept))
        used = sum((use.used for use in classes), np.zeros_like(kept))
        full += FULLNESS * used // np.maximum(has, 1)
    return UNBROKEN * kept // wanted + IN_USE * in_use + full // len(uses)
