"""Branch and bound: the set of a given size with the greatest sum over its pairs and its single devices."""

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple

EXACT_UP_TO: Final = 16  # devices; among more, the best that a bounded search finds
_MAX_STEPS: Final = 512  # of one search among more than EXACT_UP_TO devices

Places = tuple[int, ...]


class BestPlaces(NamedTuple):
    """The best set, and how many devices the search considered adding to a set."""

    places: Places
    considered: int


@lru_cache(maxsize=512)  # nodes of one model repeat the same requests
def best_places(
    rows: tuple[tuple[int, ...], ...], gains: tuple[int, ...], losses: tuple[int, ...], count: int
) -> BestPlaces:
    """Find the best set of places: the greatest sum of weights and gains; then the least losses; then the first.

    `rows`: weights of pairs, 0 or more: a symmetric matrix, 0 on its diagonal. `gains`: of each place, 0 or more.
    `losses`: of each place, 0 or more. Returns the set, ascending. "First" is the order of such tuples.
    """
    scale = sum(losses) + 1
    scaled = [[scale * weight for weight in row] for row in rows]
    values = [scale * gain - loss for gain, loss in zip(gains, losses, strict=True)]
    search = _Search(scaled, values, count)
    return BestPlaces(search.found, search.considered)


class _Search:
    """Branch and bound for the set of the greatest sum of pairs and of single values.

    Devices are visited in the caller's order, taking before leaving: among equally good sets the one found first is the
    first in that order. Among devices with the same connections (twins) a later one is never taken if an earlier one
    was left, so that a switched node of any size takes a few steps.
    """

    def __init__(self, rows: Sequence[Sequence[int]], values: Sequence[int], count: int) -> None:
        self.rows = rows
        self.count = count
        size = len(rows)
        self.twins = [_later_twins(rows, values, at) for at in range(size)]
        # reach[i][k]: twice the most that i can add to a set by k partners, and half of it counted for i.
        self.reach = [
            _sums(sorted((w for at, w in enumerate(row) if at != i), reverse=True)) for i, row in enumerate(rows)
        ]
        self.steps = _MAX_STEPS if size > EXACT_UP_TO else -1
        self.considered = 0
        self.best, self.found = self._greedy(values)
        self.certain = False  # whether `found` is the first of its value, not only one of them
        self._extend((), 0, list(values), 0, 0)

    def _greedy(self, values: Sequence[int]) -> tuple[int, Places]:
        """A good set, for a start: the best of those grown from each device."""
        return max((self._grown(seed, values) for seed in range(len(values))), key=itemgetter(0))

    def _grown(self, seed: int, values: Sequence[int]) -> tuple[int, Places]:
        """A set and its sum: the device that adds most is taken next, from one device on."""
        total, chosen, gains = 0, [seed], list(values)
        while True:
            at = chosen[-1]
            total += gains[at]
            if len(chosen) == self.count:
                return total, tuple(sorted(chosen))
            gains = [gain + weight for gain, weight in zip(gains, self.rows[at], strict=True)]
            rest = (other for other in range(len(values)) if other not in chosen)
            chosen.append(max(rest, key=gains.__getitem__))

    def _extend(self, chosen: Places, start: int, gains: list[int], value: int, left: int) -> None:
        """Go through the sets that begin with `chosen` and go on from `start`, without those in the mask `left`."""
        missing = self.count - len(chosen)
        if not missing:
            if value > self.best or (value == self.best and not self.certain):
                self.best, self.found, self.certain = value, chosen, True
            return
        for at in range(start, len(gains) - missing + 1):
            if left >> at & 1:
                continue
            if not self.steps or not self._promising(at, gains, value, left, missing):
                return
            self.steps -= 1
            self.considered += 1
            row = self.rows[at]
            onward = [gain + weight for gain, weight in zip(gains, row, strict=True)]
            self._extend((*chosen, at), at + 1, onward, value + gains[at], left)
            left |= self.twins[at]

    def _promising(self, start: int, gains: list[int], value: int, left: int, missing: int) -> bool:
        """Say whether a set that goes on from `start` can beat the best, or be as good and the first such."""
        reach = self.reach
        most = [2 * gains[at] + reach[at][missing - 1] for at in range(start, len(gains)) if not left >> at & 1]
        if len(most) < missing:
            return False
        most.sort(reverse=True)
        bound = value + sum(most[:missing]) // 2
        return bound > self.best or (bound == self.best and not self.certain)


def _sums(weights: Sequence[int]) -> list[int]:
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    return sums


def _later_twins(rows: Sequence[Sequence[int]], values: Sequence[int], at: int) -> int:
    """The later devices that are interchangeable with this one, as a mask."""
    twins = 0
    for other in range(at + 1, len(rows)):
        swapped = list(rows[other])
        swapped[at], swapped[other] = swapped[other], swapped[at]
        if values[at] == values[other] and swapped == list(rows[at]):
            twins |= 1 << other
    return twins
