"""How much one decision may look at.

Steps are counted, never time, so that the same question has the same answer on every machine. A step is about as much
work as looking at one device for one container.
"""

from collections.abc import Generator
from math import inf, isinf
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[int, bool, T]
"""Long work in parts: between two of them others may run.

It yields the steps of the part's decision where whoever runs it counts them, otherwise 0. It is sent whether it must
end now; what cannot be ended goes on.
"""


class BudgetSpentError(Exception):
    """A decision has looked at as much as it may."""


class Budget:
    """The steps that are left to a decision.

    `left`: number of steps; `math.inf` for any number.
    """

    __slots__ = ("left", "short")

    def __init__(self, left: float) -> None:
        self.left = left  # as given, less what was spent
        # whether it did not suffice for something, so that a larger one could lead to another answer
        self.short = False

    def spend(self, steps: int) -> None:
        """Take a number of steps, 0 or more.

        Raises BudgetSpentError: fewer are left; then none is left.
        """
        self.left -= steps
        if self.left < 0:
            self.left = 0
            self.short = True
            raise BudgetSpentError

    def covers(self, steps: int) -> bool:
        """Whether a number of steps is left, for something that can be left out; they are spent if so."""
        if steps > self.left:
            self.short = True
            return False
        self.left -= steps
        return True

    def set_aside(self, share: int) -> "Budget":
        """Move one part in `share` of what is left, rounded down, into a budget of its own."""
        if isinf(self.left):
            return Budget(inf)
        aside = Budget(self.left // share)
        self.left -= aside.left
        return aside


UNLIMITED: Final = Budget(inf)
"""For callers whose question is known to be small."""
