"""Since when a replica has seen the holds of gangs as they are, by its own monotonic clock: no clocks are compared."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from webhook.gangs.step import GangMember, GangTimes, OwnHold

MARGIN_S: Final = 30  # from the mark on all holds of a gang to their release: watches may be late
SETTLE_S: Final = 60  # after which a hold belongs to no plan that another replica is still writing, and may give back


@dataclass(frozen=True, slots=True)
class Clocks:
    """The time."""

    wall: Callable[[], int]  # seconds since the epoch, for what is written
    monotonic: Callable[[], float]  # seconds since any moment, for every decision


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen of a gang's holds."""

    first: dict[OwnHold, float] = field(default_factory=dict)  # when each was seen first
    latest: tuple[int, float] = (0, 0.0)  # when the last of them is meant to end, and since when that has been so
    closed: float | None = None  # since when all of them have been marked; None where not all are


class SeenHolds:
    """Remembers the holds of gangs.

    `clock`: monotonic seconds. `hold_seconds`: how long room is held while no Pod of the gang is bound.
    """

    def __init__(self, clock: Callable[[], float], hold_seconds: float) -> None:
        self._clock = clock
        self._hold_seconds = hold_seconds
        self._gangs: dict[str, _Seen] = {}

    def see(self, gang: str, members: Sequence[GangMember]) -> GangTimes:
        """Take in a gang's holds, and tell for how long they have been as they are."""
        now = self._clock()
        holds = {
            (node, member.pod.uid, held.since): held for member in members for node, held in member.held if held.until
        }
        if not holds:
            self._gangs.pop(gang, None)
            return GangTimes()
        before = self._gangs.get(gang, _Seen())
        first = {hold: before.first.get(hold, now) for hold in holds}
        until = max(held.until for held in holds.values())
        latest = before.latest if until == before.latest[0] else (until, now)
        closed = None
        if all(held.ending for held in holds.values()):
            closed = now if before.closed is None else before.closed
        self._gangs[gang] = _Seen(first, latest, closed)
        return GangTimes(
            frozenset(hold for hold, since in first.items() if now - since <= SETTLE_S),
            min(first.values()),
            over=now - latest[1] >= self._hold_seconds,
            closed=closed is not None and now - closed > MARGIN_S,
        )

    def keep(self, gangs: Collection[str]) -> None:
        """Forget all gangs but these."""
        self._gangs = {gang: seen for gang, seen in self._gangs.items() if gang in gangs}
