"""Tends the gangs whose Pods ask to be bound as a whole: carries out the steps of `step.py`.

Several replicas may tend the same gang. What they write are compare-and-swap changes of the ledger, and patches of Pods
that test what they change. A plan that does not find its room any more gives back what it has held by then.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, assert_never

from allocator.gangreservation import Planned, close, give_back, hold, limit, prolong
from allocator.vocabulary.asks import MAX_MEMBERS, largest
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import GANG_GATE
from allocator.vocabulary.outcome import Refusal
from allocator.wire.nodeallocation import RecordError
from koordgate.backoff import Backoff
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Invalid, KubeError, NotFound
from koordgate.kube.resource import PODS
from webhook.gangs.room import GangRoom
from webhook.gangs.step import (
    Close,
    FindRoom,
    GangHold,
    GangMember,
    GangStep,
    GangTimes,
    GiveBack,
    Lift,
    Limit,
    OwnHold,
    Prolong,
    Rest,
    next_step,
)
from webhook.ledger.ledger import BusyError, Change, Ledger
from webhook.ledger.store import new_mark
from webhook.quotas.gate import Admit, admit_all
from webhook.upkeep.reports import EventReports
from webhook.view.cluster import ClusterView
from webhook.view.podinfo import PodInfo

_DEADLINE_S: Final = 5.0


def kube_lift(kube: KubeClient) -> Callable[[PodInfo], Awaitable[None]]:
    """Make the function that removes the gate by a patch.

    The patch tests that the Pod is the same and that its first gate is ours, which it is if no other gate is left. A
    Pod that is gone, or has no such gate any more, is left alone.
    """

    async def lift(pod: PodInfo) -> None:
        operations: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GANG_GATE},
            {"op": "remove", "path": "/spec/schedulingGates/0"},
        ]
        try:
            await kube.patch(PODS.path(pod.name, pod.namespace), operations, "json", deadline=_DEADLINE_S)
        except (Invalid, NotFound):
            return

    return lift


class VainHolds:
    """Knows which gangs hold room, and which namespaces have to wait because that was in vain.

    A hold is in vain if it ends before a Pod of the gang is bound: its time is over, or the Pods are gone. The whole
    namespace waits then, so that neither other Pods nor another gang get round the pause. What is kept is bounded by
    the gangs that hold something, and by the namespaces in which one did during the last pause.
    `longest`: seconds that a namespace waits at most.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._since: dict[str, float] = {}  # gang -> the beginning of its oldest hold
        self._until: dict[str, tuple[float, str]] = {}  # namespace -> the end of its pause, and the gang that caused it

    @property
    def holding(self) -> list[str]:
        """The gangs that held something when last seen, while none of their Pods was live."""
        return sorted(self._since)

    def saw(self, gang: str, since: float | None, now: float, *, live: bool) -> None:
        """Take in the state of a gang.

        `since`: when the oldest of its holds was seen first, in monotonic seconds; None where it has none. `now`:
        monotonic seconds. `live`: whether one of its Pods is bound and has not finished.
        """
        if live:
            self._since.pop(gang, None)
            return
        if since is not None:
            self._since[gang] = since
        elif (before := self._since.pop(gang, None)) is not None:
            self.pause(gang, now, now - before)

    def pause(self, gang: str, now: float, seconds: float) -> None:
        """Let the namespace of a gang wait for this long, if it does not wait for longer already."""
        until = now + min(seconds, self._longest)
        namespace = gang.partition("/")[0]
        if until > self._until.get(namespace, (-math.inf, ""))[0]:
            self._until[namespace] = until, gang

    def cause(self, gang: str, now: float) -> str:
        """The gang because of which the namespace of this one waits; "" where it does not wait."""
        until, cause = self._until.get(gang.partition("/")[0], (-math.inf, ""))
        return cause if now < until else ""

    def forget(self, now: float) -> None:
        """Forget the pauses that are over."""
        self._until = {namespace: of for namespace, of in self._until.items() if now < of[0]}


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


_LOG: Final = logging.getLogger(__name__)
_EVERY_S: Final = 0.5
_WRITE_S: Final = 5.0
_PLAN_S: Final = 15.0  # for all writes of a plan; far less than `seen.SETTLE_S`
_STEPS: Final = 8  # for one gang in one round; more are needed only if other replicas are at work
_MAX_PODS: Final = 4 * MAX_MEMBERS  # of a gang, finished ones too
_MAX_GANGS: Final = 100  # in one round; the others follow in the next
_FIRST_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 30.0
_PATIENCE_S: Final = 10  # before it is reported why a gang waits
_APART_S: Final = 60  # between two reports on a gang
_FAILURES: Final = (KubeError, BusyError, RecordError)


Performed = Close | GiveBack | Prolong | Limit | Lift | FindRoom
"""The steps that change something."""

_Turn = tuple[int, float, str]
"""Of a gang: the highest priority of its Pods that wait, negated; when it was first seen to wait; its name."""


@dataclass(eq=False, slots=True)
class _Memory:
    """What is remembered of a gang that waits; another replica begins without it."""

    waiting: frozenset[str]  # UIDs of the Pods that wait; where they change, the rest is forgotten
    own: set[OwnHold] = field(default_factory=set)  # what this replica holds by complete plans
    # between attempts that fail
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_RETRY_S, _MAX_RETRY_S))
    not_before: float = -math.inf  # when the next plan may be made, because there was no room
    paused: float = -math.inf  # until when nothing is tried, because a write failed
    since: float | None = None  # when it began to wait; None while it does not
    reported: tuple[str, float] = ("", -math.inf)  # the reason that was reported last, and when


class GangController:
    """Tends gangs.

    `hold_seconds`: how long room is held while no Pod of the gang is bound. `released`: called with a node where other
    Pods may fit now, or Pods that wait may be bound. `tended`: whether a Pod is koordgate's to bind; one of a namespace
    that is only observed may not be. `admit`: as of `BindingWebhooks`.
    """

    def __init__(  # noqa: PLR0913 keyword-only
        self,
        *,
        cluster: ClusterView,
        ledger: Ledger,
        new_room: Callable[[], GangRoom],
        lift: Callable[[PodInfo], Awaitable[None]],
        clocks: Clocks,
        hold_seconds: float,
        reports: EventReports,
        released: Callable[[str], None] = lambda _node: None,
        tended: Callable[[PodInfo], bool] = lambda _pod: True,
        admit: Admit = admit_all,
    ) -> None:
        self._tended = tended
        self._admit = admit
        self._cluster = cluster
        self._ledger = ledger
        self._new_room = new_room
        self.lift = lift  # may be replaced
        self._clock = clocks.wall
        self._monotonic = clocks.monotonic
        self._holds = SeenHolds(clocks.monotonic, hold_seconds)
        self._hold_seconds = hold_seconds
        self._reports = reports
        self._released = released
        self._memories: dict[str, _Memory] = {}
        self._vain = VainHolds(hold_seconds)
        self._first: dict[str, float] = {}  # gang -> when it was first seen to wait
        self._last: _Turn = (0, 0.0, "")  # of the gang that was tended last

    async def run(self, healthy: Callable[[], bool]) -> None:
        """Tend all gangs again and again until cancelled; not while the replica's view may be old."""
        while True:
            if healthy():
                await self.round()
            await asyncio.sleep(_EVERY_S)

    async def round(self) -> None:
        """Tend gangs that have Pods to be bound: by priority, then by how long they wait, then by name.

        Of more than `_MAX_GANGS`, the next round tends those that follow the last one.
        """
        known = self._cluster.pods.whole_gangs()
        whole = {gang: pods for gang in known if (pods := self._whole(gang))}
        turns = self._turns(whole)
        gangs = [gang for *_, gang in turns]
        self._memories = {gang: self._memories[gang] for gang in gangs if gang in self._memories}
        self._vain.forget(self._monotonic())
        self._holds.keep(whole.keys())
        for gang in self._vain.holding:
            self._seen(gang, self._members(whole.get(gang, {})))
        if len(turns) > _MAX_GANGS:
            turns = [turn for turn in turns if turn > self._last] + [turn for turn in turns if turn <= self._last]
        for turn in turns[:_MAX_GANGS]:
            self._last, (*_, gang) = turn, turn
            try:
                await self._tend(gang)
                continue
            except _FAILURES as error:
                _LOG.warning("a gang is left alone for a while: %s", error, extra={"gang": gang})
            except Exception:  # noqa: BLE001 what one tenant wrote must not stop the replica
                _LOG.exception("a gang cannot be tended", extra={"gang": gang})
            memory = self._memory(gang, whole.get(gang, {}))
            memory.paused = self._monotonic() + memory.backoff.failed()

    def retry(self) -> None:
        """Devices were released: all gangs that wait for room are tried in the next round, in their order."""
        for memory in self._memories.values():
            memory.not_before = -math.inf

    def _turns(self, whole: Mapping[str, Mapping[str, PodInfo]]) -> list[_Turn]:
        """The gangs that have Pods to be bound, in the order in which room is sought for them."""
        waiting = {gang: [pod for pod in pods.values() if _waits(pod)] for gang, pods in whole.items()}
        now = self._monotonic()
        self._first = {gang: self._first.get(gang, now) for gang, pods in waiting.items() if pods}
        return sorted((-max(pod.priority for pod in waiting[gang]), since, gang) for gang, since in self._first.items())

    def _whole(self, gang: str) -> Mapping[str, PodInfo]:
        """The Pods of a gang that koordgate tends, by UID."""
        pods = self._cluster.pods.whole_gangs().get(gang, {})
        return {uid: pod for uid, pod in pods.items() if self._tended(pod)}

    async def _tend(self, gang: str) -> None:
        for _ in range(_STEPS):
            pods = self._whole(gang)
            memory = self._memory(gang, pods)
            if self._monotonic() < memory.paused:
                return
            if len(pods) > _MAX_PODS:
                step: GangStep = Rest(
                    f"it has {len(pods)} Pods, and only gangs of {_MAX_PODS} are looked at; delete some"
                )
            else:
                members = self._members(pods)
                times = self._seen(gang, members)
                step = next_step(members, self._least(gang, pods), times, memory.own)
            if isinstance(step, Rest | GiveBack) and step.over:  # others may have as long what was held in vain
                self._vain.pause(gang, self._monotonic(), self._hold_seconds)
            if isinstance(step, Rest):
                self._say(memory, pods, step.why)
                return
            if not await self._perform(gang, step, memory):
                return

    async def _perform(self, gang: str, step: Performed, memory: _Memory) -> bool:
        """Carry out a step; tell whether the next one can be decided at once."""
        match step:
            case GiveBack(holds):
                await self._give_back(holds)
                return True
            case Close(holds):
                return await self._move(holds, lambda uids: close(uids, new_mark()))
            case Prolong(holds, until):
                return await self._move(holds, lambda uids: prolong(uids, until))
            case Limit(holds):
                end = int(self._clock() + self._hold_seconds)
                return await self._move(holds, lambda uids: limit(uids, end))
            case Lift(lifted):
                for pod in lifted:
                    await self.lift(pod)
                # kube-scheduler may ask a replica that has not seen the holds yet, and has to try again then.
                self._wake(self._ledger.nodes_of(lifted[0].uid))
                return False  # the watch will show it
            case FindRoom():
                return await self._plan(gang, step, memory)
            case _:
                assert_never(step)

    async def _move(self, holds: tuple[GangHold, ...], how: Callable[[list[str]], Change[bool]]) -> bool:
        """Change the ends or the marks of holds, by the change that is made of the UIDs on each node."""
        for node, uids in _by_node(holds).items():
            await self._ledger.change(node, how(list(uids)), _WRITE_S)
        return True

    def _members(self, pods: Mapping[str, PodInfo]) -> list[GangMember]:
        return [GangMember(pod, tuple(self._held(uid))) for uid, pod in sorted(pods.items())]

    def _held(self, uid: str) -> list[tuple[str, Holding]]:
        records = ((node, self._ledger.record(node).holdings.get(uid)) for node in self._ledger.nodes_of(uid))
        return [(node, holding) for node, holding in records if holding is not None]

    def _seen(self, gang: str, members: list[GangMember]) -> GangTimes:
        """Remember what a gang holds, and whether it is room that no Pod of it has taken yet."""
        times = self._holds.see(gang, members)
        self._vain.saw(gang, times.since, self._monotonic(), live=any(member.live for member in members))
        return times

    def _least(self, gang: str, pods: Mapping[str, PodInfo]) -> int:
        stated = [pod.request.wishes.size for pod in pods.values() if not pod.finished]
        return largest([self._cluster.groups.size(gang), *stated]).least

    def _memory(self, gang: str, pods: Mapping[str, PodInfo]) -> _Memory:
        waiting = frozenset(uid for uid, pod in pods.items() if _waits(pod))
        known = self._memories.get(gang)
        if known is None or known.waiting != waiting:
            own = {hold for hold in known.own if hold[1] in pods} if known else set()
            known = self._memories[gang] = _Memory(waiting, own)
        return known

    async def _give_back(self, holds: tuple[GangHold, ...]) -> None:
        for node, uids in _by_node(holds).items():
            if await self._ledger.change(node, give_back(uids), _WRITE_S):
                self._wake([node])

    async def _plan(self, gang: str, plan: FindRoom, memory: _Memory) -> bool:
        """Hold room for the Pods of a plan; tell whether that was done."""
        moment, now = self._monotonic(), self._clock()
        if moment < memory.not_before:
            return False
        cause = "" if plan.until else self._vain.cause(gang, moment)
        if cause:
            pause = f"for up to {self._hold_seconds:g} s no gang of its namespace gets any"
            why = f"room was held in vain for gang {cause}: {pause}"
            self._say(memory, {pod.uid: pod for pod in plan.pods}, why)
            return False
        room = self._new_room()
        try:
            why = await self._find(room, plan.pods)
            if why and plan.needed < len(plan.pods):
                why = await self._find(room, plan.pods[: plan.needed])
            until = plan.until or int(now + self._hold_seconds)
            # A Pod without a gate may be bound at any moment, while the rest of the plan may still fail: no bind may
            # take anything before all is held. If marks stay, a later step removes them, or gives everything back.
            mark = "" if all(pod.gated for pod in plan.pods) else new_mark()
            why = why or await self._hold(room, now, until, mark)
            if not why:
                held = [(node, one.pod.uid) for node, planned in room.found.items() for one in planned]
                memory.own.update((node, uid, now) for node, uid in held)
                if mark:
                    marked = tuple(GangHold(node, uid, until, mark) for node, uid in held)
                    await self._move(marked, lambda uids: prolong(uids, until))
                self._wake(room.found)  # some of the Pods may have no gate any more
        finally:
            room.forget()
        if why:
            memory.not_before = moment + memory.backoff.failed()
            self._say(memory, {pod.uid: pod for pod in plan.pods}, why)
        return not why

    async def _find(self, room: GangRoom, pods: Sequence[PodInfo]) -> str:
        """Find room for all of these Pods, if quotas let them hold it; returns what is missing, "" where nothing is."""
        admitted = []
        for pod in pods:
            one = await self._admit(pod, _WRITE_S)
            if isinstance(one, str):
                return f"Pod {pod.name}: {one}"
            admitted.append(one)
        return await room.find(admitted)

    async def _hold(self, room: GangRoom, now: int, until: int, mark: str) -> str:
        """Write what was found into the ledger: all of it, or nothing; returns why not, "" where it is written."""
        written: list[GangHold] = []
        refusal: Refusal | None = None
        try:
            async with asyncio.timeout(_PLAN_S):
                for node, planned in sorted(room.found.items()):
                    refusal = await self._ledger.change(node, self._holding(node, planned, now, until, mark), _WRITE_S)
                    if refusal is not None:
                        break
                    written += [GangHold(node, one.pod.uid, until, mark) for one in planned]
        except (TimeoutError, *_FAILURES) as error:
            refusal = Refusal(str(error) or "the ledger is busy")
        if refusal is not None:
            await self._give_back(tuple(written))
            return refusal.message
        return ""

    def _holding(self, node: str, planned: list[Planned], now: int, until: int, mark: str) -> Change[Refusal | None]:
        return hold(planned, lambda holdings: self._cluster.snapshot_on(node, holdings), now, until, mark)

    def _wake(self, nodes: Iterable[str]) -> None:
        """Have kube-scheduler try again the Pods that it knows."""
        for node in nodes:
            self._released(node)

    def _say(self, memory: _Memory, pods: Mapping[str, PodInfo], why: str) -> None:
        """Report why a gang waits, once it has waited for a while; another reason not before a minute has passed."""
        now = self._monotonic()
        if not why:
            memory.since = None
        elif memory.since is None:
            memory.since = now
        elif now - memory.since >= _PATIENCE_S and why != memory.reported[0] and now - memory.reported[1] >= _APART_S:
            memory.reported = why, now
            self._reports.gang_waits([pod for pod in pods.values() if _waits(pod)], why)


def _waits(pod: PodInfo) -> bool:
    return not pod.node and not pod.finished


def _by_node(holds: tuple[GangHold, ...]) -> dict[str, dict[str, tuple[int, str]]]:
    """The UIDs of holds, when they end, and their marks, by node."""
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for one in sorted(holds, key=attrgetter("node", "uid")):
        found.setdefault(one.node, {})[one.uid] = one.until, one.ending
    return found
