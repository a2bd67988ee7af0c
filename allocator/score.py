"""The patent's two preferences among nodes, exactly (claims 7 and 16): least mean request, least variance of requests.

A node is compared by its resource classes: its CPU, memory and ephemeral storage, and each class of its devices. The
request of a class is a share, requested / capacity, with the Pod that is to be placed. The least figure is the best.
The patent states the formulas in words and no figures of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import prod
from types import MappingProxyType
from typing import Final, NamedTuple

from allocator.vocabulary.preference import Preference

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
