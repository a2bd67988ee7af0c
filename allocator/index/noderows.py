"""The row of each node in the index, found for thousands of names at once."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from allocator.index.namehash import name_hashes
from allocator.index.table import Ints, Rows

_SPARSE: Final = 8  # slots per row, so that few names collide
_FEWEST: Final = 1024  # slots
_SECOND: Final = 32  # bits of a hash that do not matter for the second slot
_MOST_TUPLES: Final = 16  # whose rows are remembered


class NodeRows:
    """Rows by name.

    A node keeps its row until it is removed; the row then goes to the next node that is added. Row 0 belongs to no
    node: it means a node that is not known.

    Looking up thousands of names one by one in a dict, in a new order each time, misses the processor's caches for
    each. Their hashes are therefore computed and looked up all at once in an array of slots, which is made anew once
    nodes have come or gone. A name whose slot is taken by another has a second one; if that is taken too, or if a name
    has no hash, it is looked up in the dict. Names count as equal if their hashes are equal: these have 64 bits and a
    random key. `place()` examines every node that is found.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._names: list[str] = [""]
        self._given_up: list[int] = []
        self._hashes: Ints = np.zeros(1, np.int64)  # by row
        self._slots: Rows | None = None  # rows, by the last bits of the hash; 0 for none
        self._alphabet: Rows | None = None
        self._found: dict[int, tuple[tuple[str, ...], Rows]] = {}  # by identity: tuples and the rows of their nodes

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Nodes by row, "" for a row without a node."""
        return tuple(self._names)

    @property
    def end(self) -> int:
        """The number after the last row."""
        return len(self._names)

    def get(self, node: str) -> int | None:
        """A node's row; None if it is not known."""
        return self._rows.get(node)

    def add(self, node: str) -> int:
        """Give a row to a node that is not yet known, and return it."""
        if self._given_up:
            row = self._given_up.pop()
            self._names[row] = node
        else:
            row = len(self._names)
            self._names.append(node)
        self._rows[node] = row
        self._slots = None
        self._alphabet = None
        self._found.clear()
        return row

    def drop(self, node: str) -> int | None:
        """Forget a node; return the row that it had, None if it was not known."""
        row = self._rows.pop(node, None)
        if row is None:
            return None
        self._names[row] = ""
        self._slots = None
        self._given_up.append(row)
        self._alphabet = None
        self._found.clear()
        return row

    def _settled(self) -> Rows:
        """The slots with all nodes in them that have a hash."""
        self._hashes = np.zeros(len(self._names), np.int64)
        slots: Rows = np.zeros(max(1 << (_SPARSE * len(self._names)).bit_length(), _FEWEST), np.intp)
        hashes = name_hashes(list(self._rows))
        if hashes is not None:
            rows, bits = np.fromiter(self._rows.values(), np.intp, len(self._rows)), len(slots) - 1
            self._hashes[rows] = hashes
            slots[hashes & bits] = rows
            others = slots[hashes & bits] != rows
            second = hashes[others] >> _SECOND & bits
            slots[second] = np.where(slots[second] == 0, rows[others], slots[second])
        return slots

    def find(self, names: Sequence[str]) -> Rows:
        """Find the rows of nodes, 0 for one that is not known.

        Nobody can change a tuple: whoever asks about the same one again is given the same rows.
        """
        if not isinstance(names, tuple):
            return self._find(names)
        known = self._found.get(id(names))
        if known is None:
            if len(self._found) >= _MOST_TUPLES:
                self._found.clear()
            rows = self._find(names)
            rows.flags.writeable = False
            known = self._found[id(names)] = names, rows  # as long as it is here, no other object has its identity
        return known[1]

    def _find(self, names: Sequence[str]) -> Rows:
        hashes = name_hashes(names)
        if hashes is None:
            return np.fromiter((self._rows.get(name, 0) for name in names), np.intp, len(names))
        if self._slots is None:
            self._slots = self._settled()
        bits = len(self._slots) - 1
        rows: Rows = self._slots[hashes & bits]
        others = np.flatnonzero(self._hashes[rows] != hashes)
        if len(others):
            rows[others] = self._slots[hashes[others] >> _SECOND & bits]
            for at in others[self._hashes[rows[others]] != hashes[others]].tolist():
                rows[at] = self._rows.get(names[at], 0)
        return rows

    def by_name(self) -> Rows:
        """For each row, the position of its node in the order of names."""
        if self._alphabet is None:
            order = sorted(range(len(self._names)), key=self._names.__getitem__)
            self._alphabet = np.empty(len(order), np.intp)
            self._alphabet[order] = np.arange(len(order))
        return self._alphabet
