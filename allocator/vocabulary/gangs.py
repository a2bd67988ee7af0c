"""How many Pods a gang has."""

from collections.abc import Iterable
from typing import Final, NamedTuple

MAX_MEMBERS: Final = 1000  # a larger size counts as this


class GangSize(NamedTuple):
    """A gang's size, in Pods; 0 where nobody states it."""

    least: int = 0  # Pods that are needed for any to be of use
    total: int = 0  # Pods that will come; never fewer than `least`


UNSTATED: Final = GangSize()


def largest(sizes: Iterable[GangSize]) -> GangSize:
    """Combine several statements about one gang: the largest number counts."""
    least = total = 0
    for size in sizes:
        least, total = max(least, size.least), max(total, size.total)
    return GangSize(least, total)
