"""Where each node is in the index: its row by its name, and its state.

Many nodes are alike, so what follows from their devices is computed once for each state.
"""

from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Final

import numpy as np

from allocator.index.table import Ints, Rows

BLOCK: Final = 64  # a result over all states is computed anew when these grow beyond it, so they grow by many at once


class NodeRows:
    """Rows by name.

    A node keeps its row until it is removed; the row then goes to the next node that is added. Row 0 belongs to no
    node: it means a node that is not known.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._names: list[str] = [""]
        self._given_up: list[int] = []
        self._alphabet: Rows | None = None

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
        self._alphabet = None
        return row

    def drop(self, node: str) -> int | None:
        """Forget a node; return the row that it had, None if it was not known."""
        row = self._rows.pop(node, None)
        if row is None:
            return None
        self._names[row] = ""
        self._given_up.append(row)
        self._alphabet = None
        return row

    def find(self, names: Sequence[str]) -> Rows:
        """Find the rows of nodes, 0 for one that is not known."""
        return np.fromiter(map(self._rows.get, names, repeat(0)), np.intp, len(names))

    def by_name(self) -> Rows:
        """For each row, the position of its node in the order of names."""
        if self._alphabet is None:
            order = sorted(range(len(self._names)), key=self._names.__getitem__)
            self._alphabet = np.empty(len(order), np.intp)
            self._alphabet[order] = np.arange(len(order))
        return self._alphabet


class States:
    """Numbers of states, from 1; 0 is the state of what is no node.

    A state in which no node is any more is still known: nodes often return to it when a Pod goes. Its number goes to
    another state once that needs one; the state that was left first goes first. There are thus never more numbers than
    there were nodes at once.
    """

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._states: list[Hashable] = [None]
        self._nodes: list[int] = [0]
        self._left: dict[int, None] = {}  # numbers of states in which no node is, those left first before others

    @property
    def end(self) -> int:
        """A number above all numbers; it seldom changes."""
        return -(-len(self._states) // BLOCK) * BLOCK

    def nodes(self) -> Ints:
        """How many nodes are in each state, for all numbers below `end`."""
        nodes = np.zeros(self.end, np.int64)
        nodes[: len(self._nodes)] = self._nodes
        return nodes

    def enter(self, state: Hashable) -> tuple[int, bool]:
        """Note that one more node is in a state.

        Returns the number of the state, and whether it is new.
        """
        number = self._numbers.get(state)
        new = number is None
        if number is None:
            number = self._numbers[state] = next(iter(self._left), len(self._states))
            if number == len(self._states):
                self._states.append(state)
                self._nodes.append(0)
            else:
                self._numbers.pop(self._states[number], None)
                self._states[number] = state
        self._left.pop(number, None)
        self._nodes[number] += 1
        return number, new

    def leave(self, number: int) -> None:
        """Note that one node is no longer in a state; nothing is ever in state 0."""
        if number:
            self._nodes[number] -= 1
            if not self._nodes[number]:
                self._left[number] = None

    def forget(self, number: int) -> None:
        """Leave a state that was new and cannot be."""
        self.leave(number)
        del self._numbers[self._states[number]]
        self._states[number] = None
