"""How long one call of kube-scheduler may search, and what each namespace may use for long searches and binds.

A search is written as a generator that yields where it can be interrupted, so that the same search runs at once
(offline) or paced (in a replica). kube-scheduler decides for one Pod at a time: while it waits for an answer, all other
Pods wait too.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final, TypeVar

from allocator.budget import Steps
from allocator.place import MAX_STEPS
from koordgate.breaks import Breaks, with_breaks

T = TypeVar("T")

MAX_S: Final = 0.1
"""The longest one call searches; the rest is searched when the Pod is tried again."""
SHARE: Final = 0.05
"""Seconds of long searches that each namespace gets in a second."""
SHARE_OF_ALL: Final = 0.15
"""Seconds of long searches that all namespaces together get in a second."""
BURST_S: Final = 0.5
"""Seconds that a namespace can save up; all together can save up twice as many."""
FREE_STEPS: Final = 1000
"""Steps of one call that are free. Ordinary Pods take fewer than a hundred."""
CHEAP_STEPS: Final = 200
"""Steps of a decision for a namespace whose time is used up."""
MAX_ENDED: Final = 1
"""Nodes on which such a decision may end without an answer before the call ends."""
_CHEAP_S: Final = 0.02  # the longest call then
_TURN_STEPS: Final = 400  # of decisions between two points where a search can be interrupted: about a millisecond
_MAX_NAMESPACES: Final = 1024


@dataclass(slots=True)
class Effort:
    """What one search may use, and what it has used."""

    seconds: float = inf  # how long it may take
    most_steps: int = MAX_STEPS  # of each decision of `place()`
    why: str = ""  # why it may use so little, for the Pod's author; "" where its namespace has time
    steps: int = 0  # that its decisions have taken so far


class Checkpoints:
    """The points where a search can be interrupted: after each so many steps of its decisions."""

    __slots__ = ("_at", "_effort")

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._at = effort.steps + _TURN_STEPS

    def due(self) -> bool:
        """Whether the search should let itself be interrupted now; the next point is then as far away again."""
        if self._effort.steps < self._at:
            return False
        self._at = self._effort.steps + _TURN_STEPS
        return True


class _Bucket:
    """Seconds that refill with time."""

    __slots__ = ("at", "left", "most", "rate")

    def __init__(self, rate: float, most: float, now: float) -> None:
        self.rate, self.most, self.left, self.at = rate, most, most, now

    def refill(self, now: float) -> float:
        self.left = min(self.left + (now - self.at) * self.rate, self.most)
        self.at = now
        return self.left


class SearchTime:
    """The account of the time that each namespace has used for long searches.

    A search is long if it takes more than a number of steps, which ordinary Pods never do, however slow the machine is.
    Once the time is used up, Pods are still judged as far as that is cheap, which is enough for ordinary ones.
    `clock`: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = _Bucket(SHARE_OF_ALL, 2 * BURST_S, clock())
        self._used: OrderedDict[str, _Bucket] = OrderedDict()  # namespaces that have used any, the last one last

    def __len__(self) -> int:
        return len(self._used)

    def effort(self, namespace: str) -> Effort:
        """What a search for a Pod of this namespace may use now."""
        now = self._clock()
        every, bucket = self._all.refill(now), self._used.get(namespace)
        own = BURST_S if bucket is None else bucket.refill(now)
        if own > 0 and every > 0:
            return Effort(MAX_S)
        if own <= 0:
            whose, wait = f"Pods of namespace {namespace}", -own / SHARE
        else:
            whose, wait = "Pods that are hard to place", -every / SHARE_OF_ALL
        why = f"the time for long searches for {whose} is used up; there is more in {wait + 1:.0f} s"
        return Effort(_CHEAP_S, CHEAP_STEPS, why)

    async def within(self, namespace: str, search: Callable[[Effort], Steps[T]]) -> T:
        """Search for a Pod of this namespace, paced, with what it may use now, and note what that was."""
        effort = self.effort(namespace)
        breaks = Breaks()
        found = await with_breaks(search(effort), breaks, effort.seconds)
        self.charge(namespace, effort, breaks.worked)
        return found

    def charging(self, namespace: str, decisions: Steps[T]) -> Steps[T]:
        """Make decisions that must be made whatever the namespace has used, and note what they took.

        `decisions`: yields after each decision the steps that it took. Yields after each decision: others may run then,
        which is not counted.
        """
        effort, seconds, resumed = Effort(), 0.0, self._clock()
        try:
            while True:
                effort.steps += next(decisions)
                seconds += self._clock() - resumed
                yield 0
                resumed = self._clock()
        except StopIteration as done:
            decided: T = done.value
            return decided
        finally:
            self.charge(namespace, effort, seconds)

    def charge(self, namespace: str, effort: Effort, seconds: float) -> None:
        """Note a search."""
        if effort.steps <= FREE_STEPS:
            return
        now = self._clock()
        bucket = self._used.setdefault(namespace, _Bucket(SHARE, BURST_S, now))
        self._used.move_to_end(namespace)
        for one in (bucket, self._all):
            one.left = max(one.refill(now) - seconds, -one.most)
        while len(self._used) > _MAX_NAMESPACES:
            self._used.popitem(last=False)
