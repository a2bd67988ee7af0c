"""A least-recently-used cache, bounded by the weight of its entries rather than by their number.

Keys often come from users' text (affinities, requests), so a bound on their number alone does not bound memory.
"""

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from cachetools import LRUCache

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Entry(NamedTuple, Generic[V]):
    value: V
    weight: int


class BoundedCache(Generic[K, V]):
    """Values by key: the most recently used ones, up to a total weight of `most`.

    `most`: the bound, in the unit of the weights: bytes, or entries if each weighs 1.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: LRUCache[K, _Entry[V]] = LRUCache(most, getsizeof=lambda entry: entry.weight)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def weight(self) -> int:
        """The sum of the weights of all entries."""
        return int(self._entries.currsize)

    def get(self, key: K) -> V | None:
        """The value of a key, which counts as used now; None if there is none."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def put(self, key: K, value: V, weight: int = 1) -> V:
        """Keep a value, and return it; one heavier than the whole bound is returned but not kept.

        `value`: anything but None. `weight`: not negative; of key and value together.
        """
        self._entries.pop(key, None)
        if weight <= self._most:
            self._entries[key] = _Entry(value, weight)
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
