"""Figures over all nodes that are kept, and of which only those of changed nodes are computed again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from allocator.index.table import At

_MOST_CHANGES: Final = 4096  # remembered one by one; beyond, everything is computed again
_WORTHWHILE: Final = 16  # one node by itself costs about as much as this many beside each other


class Memo:
    """Figures by key, the last axis of each being the nodes.

    Args:
        most: keys that are kept; the one not asked for longest goes first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, tuple[NDArray[Any], int]] = OrderedDict()
        self._changes: list[int] = []
        self._before = 0  # changes that are not in the list any more

    def changed(self, node: int) -> None:
        """One node's figures hold no longer."""
        if len(self._changes) >= _MOST_CHANGES:
            self._before += len(self._changes)
            self._changes.clear()
        self._changes.append(node)

    def clear(self) -> None:
        """No figure holds any longer."""
        self._kept.clear()

    def get(self, key: Hashable, nodes: int, compute: Callable[[At], NDArray[Any]]) -> NDArray[Any]:
        """Return the figures of the first so many nodes; the array is the memo's own and must not be changed."""
        now = self._before + len(self._changes)
        values, seen = self._kept.get(key, (None, 0))
        late = now - seen
        if values is None or values.shape[-1] != nodes or seen < self._before or late * _WORTHWHILE > nodes:
            values = compute(slice(nodes))
        elif late:
            rows = np.unique(self._changes[seen - self._before :])
            values[..., rows] = compute(rows)
        self._kept[key] = values, now
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return values
