"""How long to wait before the next attempt: the one rule for everything that is retried.

Retry libraries (tenacity, stamina) wrap a call and decide whether to repeat it. The callers here are loops that react
to more than an exception (a watch that ended too soon, a server's Retry-After, a deadline). They need only the next
wait, with a source of chance that tests replace.
"""

import random
from collections.abc import Callable
from typing import Final

_MAX_DOUBLINGS: Final = 32  # keeps the power small; every bound is reached long before


def doubled(first: float, longest: float, failures: int) -> float:
    """The wait after a number of failures in a row, one or more, without randomness (pure).

    `first`: the wait after one failure, in seconds.
    """
    return min(longest, first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))


class Backoff:
    """Waits that double with each failure in a row, up to a bound. Half of each is random, so that clients spread out.

    `first`: the wait after the first failure, in seconds, before chance is applied. `chance`: a number in [0, 1), new
    with each call.
    """

    def __init__(self, first: float, longest: float, chance: Callable[[], float] = random.random) -> None:
        self.failures = 0  # how many in a row
        self._first = first
        self._longest = longest
        self._chance = chance

    def failed(self) -> float:
        """Count one more failure; returns the seconds to wait before the next attempt."""
        self.failures += 1
        return doubled(self._first, self._longest, self.failures) * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        """Forget the failures: an attempt succeeded."""
        self.failures = 0
