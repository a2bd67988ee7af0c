"""Which row of the index is which node's, found for thousands of names at once."""

from typing import Final

import numpy as np

from allocator.index.table import Ints, Rows

_SPARSE: Final = 8  # slots a row: so few names fall on one that is taken
_FEWEST: Final = 1024  # slots


class NodeRows:
    """Rows by name.

    A node keeps its row while it is there; a row that was given up goes to the next node that comes. Row 0 is no
    node's: it stands for nodes that are not known.

    Thousands of names, in an order that was never there before, miss the processor's caches in a dict, one after
    another. So their hashes are looked up all at once in an array of slots; what is not found there, as two names fell
    on one slot, is looked up in the dict. Names are taken for equal where their hashes are: Python's, of 64 bits and
    keyed by chance. What is found is only looked at more closely.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._names: list[str] = [""]
        self._given_up: list[int] = []
        self._hashes: Ints = np.zeros(1, np.int64)  # by row
        self._slots: Rows = np.zeros(_FEWEST, np.intp)  # rows, by the last bits of the hash; 0 for none
        self._alphabet: Rows | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Nodes by row, "" where there is none."""
        return tuple(self._names)

    @property
    def end(self) -> int:
        """The row after the last."""
        return len(self._names)

    def get(self, node: str) -> int | None:
        """A node's row; None for one that is not known."""
        return self._rows.get(node)

    def add(self, node: str) -> int:
        """Find a row for a node that was not known."""
        if self._given_up:
            row = self._given_up.pop()
            self._names[row] = node
        else:
            row = len(self._names)
            self._names.append(node)
            if row >= len(self._hashes):
                self._hashes = np.append(self._hashes, np.zeros_like(self._hashes))
        self._rows[node] = row
        self._hashes[row] = hash(node)
        if len(self._rows) * _SPARSE > len(self._slots):
            self._slots = np.zeros(2 * len(self._slots), np.intp)
            for known in self._rows.values():
                self._settle(known)
        else:
            self._settle(row)
        self._alphabet = None
        return row

    def drop(self, node: str) -> int | None:
        """Forget a node; returns the row that it had, None if it was not known."""
        row = self._rows.pop(node, None)
        if row is None:
            return None
        slot = self._slot(row)
        if self._slots[slot] == row:
            self._slots[slot] = 0
        self._names[row] = ""
        self._hashes[row] = 0
        self._given_up.append(row)
        self._alphabet = None
        return row

    def _slot(self, row: int) -> int:
        return int(self._hashes[row]) & len(self._slots) - 1

    def _settle(self, row: int) -> None:
        slot = self._slot(row)
        if not self._slots[slot]:
            self._slots[slot] = row

    def find(self, names: list[str]) -> Rows:
        """Find the rows of nodes, 0 for one that is not known."""
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        rows: Rows = self._slots[hashes & len(self._slots) - 1]
        for at in np.flatnonzero(self._hashes[rows] != hashes).tolist():
            rows[at] = self._rows.get(names[at], 0)
        return rows

    def by_name(self) -> Rows:
        """By row: its node's place in the order of names."""
        if self._alphabet is None:
            order = sorted(range(len(self._names)), key=self._names.__getitem__)
            self._alphabet = np.empty(len(order), np.intp)
            self._alphabet[order] = np.arange(len(order))
        return self._alphabet
