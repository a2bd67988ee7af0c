"""What is to be done next for a gang that is bound as a whole or not at all (pure).

The state is in the ledger and in the Pods alone, so that any replica can go on where another one stopped. Each step may
be repeated, and each is right whichever of the steps before were completed.

A Pod is bound only to what is held for it. As long as no Pod of the gang is bound, all holds end together: each is
marked, after which no bind can take it, and they are released once all of them bear the mark. While one Pod is bound
and has not finished, the others are held without limit, so that the gang does not stay half because of us.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from allocator.vocabulary.asks import MAX_MEMBERS
from allocator.vocabulary.holdings import WITHOUT_LIMIT, Holding
from webhook.view.podinfo import PodInfo

OwnHold = tuple[str, str, int]
"""Node, Pod's UID and beginning of a hold."""


@dataclass(frozen=True, slots=True)
class GangMember:
    """A Pod of a gang."""

    pod: PodInfo  # as last seen
    held: tuple[tuple[str, Holding], ...] = ()  # the nodes on which it holds something, and what, by node

    @property
    def there(self) -> bool:
        """Whether it is bound and has not failed; a Pod that has succeeded has done its part."""
        return bool(self.pod.node) and (self.pod.succeeded or not self.pod.finished)

    @property
    def live(self) -> bool:
        """Whether it is bound, or its bind has been decided, and it has not finished."""
        return not self.pod.finished and (bool(self.pod.node) or any(not holding.until for _, holding in self.held))

    @property
    def waits(self) -> bool:
        """Whether it is to be bound."""
        return not (self.pod.node or self.pod.finished or self.pod.terminating)

    @property
    def ready(self) -> bool:
        """Whether room can be looked for: nothing is held for it, and nothing else keeps it from being scheduled."""
        free = self.waits and not self.held
        return free and self.pod.canonical and not (self.pod.gates or self.pod.problem or self.pod.annotation_problem)


@dataclass(frozen=True, slots=True)
class GangTimes:
    """For how long a replica has seen the holds of a gang."""

    fresh: AbstractSet[OwnHold] = frozenset()  # those that may belong to a plan that another replica is still writing
    # when the oldest of them was seen first, in monotonic seconds; None where there are none
    since: float | None = None
    over: bool = False  # the time for which room is held has passed since the latest of them was given its end
    # all of them have been marked for so long that any bind that took one before would have been seen
    closed: bool = False


@dataclass(frozen=True, slots=True)
class GangHold:
    """What is held for a Pod on a node until a moment, and the mark on it."""

    node: str
    uid: str
    until: int
    ending: str = ""


@dataclass(frozen=True, slots=True)
class Close:
    """Mark these holds, so that no bind takes them any more: their time is over."""

    holds: tuple[GangHold, ...]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Release these holds, because their time is over or the Pod has another one."""

    holds: tuple[GangHold, ...]
    over: bool


@dataclass(frozen=True, slots=True)
class Prolong:
    """Let these holds end later, at this moment, and take their marks away."""

    holds: tuple[GangHold, ...]
    until: int


@dataclass(frozen=True, slots=True)
class Limit:
    """Let these holds, which have no end, end after a time from now: no Pod of the gang is live any more."""

    holds: tuple[GangHold, ...]


@dataclass(frozen=True, slots=True)
class Lift:
    """Remove the scheduling gates of these Pods."""

    pods: tuple[PodInfo, ...]


@dataclass(frozen=True, slots=True)
class FindRoom:
    """Look for room for all of these Pods, or for the first `needed` of them, and hold it."""

    pods: tuple[PodInfo, ...]  # in a fixed order, the largest requests first
    needed: int  # how many of them make the gang whole
    until: int  # when the holds end; 0 for a time from now


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done."""

    why: str = ""  # the gang waits; "" where it does not
    over: bool = False  # the time of its holds is over


GangStep = Close | GiveBack | Prolong | Limit | Lift | FindRoom | Rest


def next_step(members: Sequence[GangMember], least: int, times: GangTimes, own: AbstractSet[OwnHold]) -> GangStep:
    """Decide what to do next.

    `least`: how many Pods the gang needs; 0 where nobody states it. `own`: the holds that this replica has written as
    part of a plan that it completed.
    """
    return _about_holds(members, times, own) or _about_pods(members, least)


def _about_holds(members: Sequence[GangMember], times: GangTimes, own: AbstractSet[OwnHold]) -> GangStep | None:
    """What is to be done so that the holds are in order: they end together, and each Pod has one.

    A bind may take a hold until it is marked. The gang has then begun, and the marks are removed again.
    """
    holds = list(_holds(members))
    if not holds:
        return None
    if times.fresh - own:
        return Rest()
    live = any(member.live for member in members)
    if not live and (endless := tuple(hold for hold in holds if hold.until == WITHOUT_LIMIT)):
        return Limit(endless)
    latest = WITHOUT_LIMIT if live else max(hold.until for hold in holds)
    if not live and (times.over or any(hold.ending for hold in holds)):
        return _end(holds, times)
    if short := tuple(hold for hold in holds if hold.until < latest or hold.ending):
        return Prolong(short, latest)
    surplus = tuple(hold for member in members for hold in _surplus(member))
    return GiveBack(surplus, over=False) if surplus else None


def _end(holds: Sequence[GangHold], times: GangTimes) -> Close | GiveBack | Rest:
    """End all holds of a gang of which no Pod is live: no bind may take one of them once another one is released."""
    if unmarked := tuple(hold for hold in holds if not hold.ending):
        return Close(unmarked)
    expired = "the time for which room was held is over, and none of its Pods was bound"
    return GiveBack(tuple(holds), over=True) if times.closed else Rest(expired, over=True)


def _holds(members: Iterable[GangMember]) -> Iterator[GangHold]:
    for member in members:
        for node, holding in member.held:
            if holding.until:
                yield GangHold(node, member.pod.uid, holding.until, holding.ending)


def _surplus(member: GangMember) -> Iterator[GangHold]:
    """The holds of a Pod besides its first one: two replicas have made a plan at the same time."""
    if any(not holding.until for _, holding in member.held):
        return  # a bind has taken one; the others are released when the Pod is bound
    for node, holding in member.held[1:]:
        yield GangHold(node, member.pod.uid, holding.until, holding.ending)


def _about_pods(members: Sequence[GangMember], least: int) -> GangStep:
    standing = sum(member.there or (member.waits and bool(member.held)) for member in members)
    gated = [member for member in members if member.waits and member.held and member.pod.gated]
    if lifted := [m.pod for m in gated if standing >= least > 0 or _for_good(m)]:
        return Lift(tuple(sorted(lifted, key=_order)))
    ready = sorted((member.pod for member in members if member.ready), key=_order)
    if not ready:
        return Rest()
    if not least:
        return Rest("nobody states how many Pods the gang needs: create its PodGroup, or annotate its Pods")
    if standing + len(ready) < least:
        exist = f"{standing + len(ready)} of them exist and can be scheduled"
        return Rest(f"the gang needs {least} Pods, and {exist}; only Pods with devices and the annotation count")
    until = max((hold.until for hold in _holds(members)), default=0)
    if not until and any(member.live for member in members):
        until = WITHOUT_LIMIT
    return FindRoom(tuple(ready[:MAX_MEMBERS]), max(1, least - standing), until)


def _for_good(member: GangMember) -> bool:
    return any(holding.until == WITHOUT_LIMIT for _, holding in member.held)


def _order(pod: PodInfo) -> tuple[int, str, str]:
    return -sum(container.ask.count for container in pod.request.containers), pod.name, pod.uid
