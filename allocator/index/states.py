"""What nodes are made of, numbered: many nodes are alike, and what follows from their devices is computed once."""

from collections.abc import Hashable
from typing import Final

import numpy as np

from allocator.index.table import Ints

BLOCK: Final = 64  # a result over all states is computed anew when these grow beyond it, so they grow by many at once


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
