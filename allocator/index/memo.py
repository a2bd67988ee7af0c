"""Results over all nodes that are kept; only those of changed nodes are computed again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from allocator.index.table import At

_MAX_CHANGES: Final = 4096  # remembered one by one; after more changes, everything is computed again
_WORTHWHILE: Final = 16  # computing one node alone costs about as much as computing this many in one array


class Memo:
    """Results by key; the last axis of each is the nodes.

    `most`: number of keys that are kept; the least recently used is dropped first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[NDArray[Any], int]] = OrderedDict()
        self._changes: list[int] = []
        self._before = 0  # number of changes that are no longer in the list
        self._late: dict[tuple[int, int], NDArray[np.intp]] = {}  # rows that changed from when to when, the last asked

    def changed(self, node: int) -> None:
        """Note that one node's results are outdated."""
        if len(self._changes) >= _MAX_CHANGES:
            self._before += len(self._changes)
            self._changes.clear()
        self._changes.append(node)

    def clear(self) -> None:
        """Drop all results."""
        self._kept.clear()

    def get(self, key: Hashable, nodes: int, compute: Callable[[At], NDArray[Any]]) -> NDArray[Any]:
        """Return the results for the first `nodes` nodes; the array belongs to the memo and must not be changed."""
        now = self._before + len(self._changes)
        values, seen = self._kept.get(key, (None, self._before))
        late = now - seen
        if values is None or values.shape[-1] != nodes or seen < self._before or late * _WORTHWHILE > nodes:
            values = compute(slice(nodes))
        elif late:
            rows = self._changed_since(seen, now)
            values[..., rows] = compute(rows)
        self._kept[key] = values, now
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return values

    def _changed_since(self, seen: int, now: int) -> NDArray[np.intp]:
        """The rows of the changes from one number of changes to another; most results were last seen together."""
        if (seen, now) not in self._late:
            self._late = {(seen, now): np.unique(self._changes[seen - self._before :])}
        return self._late[seen, now]
