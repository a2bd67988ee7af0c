"""Holdings whose Pods are gone: what is to become of each (pure), and its release.

A holding is released when its Pod (by UID) is gone, finished, or bound elsewhere. That of a Pod that is not bound is
marked first, and released after a grace that is longer than any API request lives. Unless a watch reported
it, a live read confirms it first.

The same is asked of both events, of a Pod's end and of a holding that is seen for the first time: whichever comes
second finds the other. Where a Pod is not known here, or where nothing is seen of its bind, the API server is asked.

A bind that was answered may still be performed: what it was answered with is marked first, and released a grace later.
docs/develop/architecture.md argues both steps. What a Pod of a gang that is bound as a whole was given is held for it
again then: the others may be bound already, and the gang would be half without this room.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal, Protocol

from allocator.bind import adopt_running, end, keep, release
from allocator.budget import Steps
from allocator.gangreservation import hold_again
from allocator.vocabulary.holdings import WITHOUT_LIMIT, Holding
from allocator.wire.nodeallocation import RecordError
from koordgate.breaks import Breaks, with_breaks
from koordgate.kube.errors import KubeError
from webhook.ledger.ledger import BusyError, Change, Ledger
from webhook.ledger.store import new_mark
from webhook.settings import SchedulerNames
from webhook.upkeep.troubles import Trouble, troubles
from webhook.view.cluster import ClusterView
from webhook.view.livepods import LivePods
from webhook.view.podinfo import PodInfo

Ended = Literal["gone", "finished", "unbound", "moved"]
"""Why a holding is released."""

Sweep = Ended | Literal["end", "keep", "hold again"]
"""What is done: release the holding for this reason, mark it, remove the mark, or make it a hold of its gang again."""

Look = Literal["now", "later"]
"""When a Pod is looked for: at once, or if nothing was seen of its bind in the time that a bind takes."""

_MAX_HOLD_S: Final = 24 * 3600  # of a gang, as the settings allow


class BoundTo(Protocol):
    """What is asked of a Pod."""

    @property
    def node(self) -> str:
        """The node that it is bound to; "" for none."""

    @property
    def over(self) -> bool:
        """Whether it holds nothing and will never be bound."""

    @property
    def all_or_nothing(self) -> bool:
        """Whether it asks that its gang is bound as a whole."""


def is_suspect(holding: Holding, node: str, pod: BoundTo | None) -> bool:
    """Whether something may have to be done about a holding.

    `pod`: as last seen; None where it was not.
    """
    return pod is None or pod.node != node or pod.over or bool(holding.ending)


def look(holding: Holding, node: str, pod: BoundTo | None) -> Look | None:
    """Decide when a holding that is seen for the first time is looked at; None: nothing is to be found out.

    A Pod that waits is looked at later as well: the watch that tells its end may be late.
    `pod`: as last seen; None where it was not, or is gone.
    """
    if not is_suspect(holding, node, pod):
        return None
    if pod is None or pod.over or pod.node:
        return "now"
    return None if holding.until else "later"


def patience(holding: Holding, grace: float) -> float:
    """Seconds for which a holding must have been seen as it is before its Pod's not being bound has consequences.

    `holding`: of a Pod that is not bound. `grace`: seconds that are longer than any API request lives.
    """
    if holding.ending:
        return grace
    if holding.until == WITHOUT_LIMIT:
        return math.inf
    if holding.until:  # the gang's controller gives it back; this is for one that nobody tends
        return grace + min(max(holding.until - holding.since, 0), _MAX_HOLD_S)
    return grace / 2


def judge(
    holding: Holding, node: str, live: tuple[str, BoundTo | None] | None, seen_s: float, grace: float
) -> Sweep | None:
    """Decide what is done about a holding; None: nothing yet.

    `live`: the UID and the state of the Pod of that name, as read from the API server after the holding was seen; None
    where there is none, and None for the state of a Pod that is not ours: nothing of it shows its bind. `seen_s`:
    seconds for which the holding has been seen as it is.
    """
    if live is None or live[0] != holding.uid:
        return "gone"
    pod = live[1]
    if pod is not None and pod.over:
        return "finished"
    if pod is not None and pod.node:
        right: Sweep | None = "keep" if holding.ending else None
        return right if pod.node == node else "moved"
    if seen_s <= patience(holding, grace):
        return None
    if not holding.ending:
        return "end"
    return "hold again" if pod is not None and pod.all_or_nothing and not holding.until else "unbound"


_LOG: Final = logging.getLogger(__name__)
_READ_S: Final = 30.0
# Short, since binds compete for the ledger's few concurrent writes. What fails is tried again in the next round.
_WRITE_S: Final = 5.0
_AT_ONCE: Final = 16  # concurrent changes
_SOONEST_S: Final = 1.0  # between two looks at holdings that are due
_BIND_S: Final = 0.5  # in which a bind is performed and seen, if all is well
_RARER: Final = 4  # times as long before the next look at what is still not seen to be bound

Kind = Ended | Literal["adopted"]


@dataclass(frozen=True, slots=True)
class HeldTwice:
    """A device that koordgate gave to one Pod and the kubelet to others."""

    node: str
    type: str
    identity: str
    pods: tuple[PodInfo, ...]  # who hold it, by namespace and name


class Reports(Protocol):
    """Reports what the reconciler found."""

    def mended(self, kind: Kind) -> None:
        """A difference of this kind was corrected."""

    def bound_around(self, pods: list[PodInfo]) -> None:
        """These Pods ask for devices and were bound without an allocation."""

    def unreadable(self, pods: list[PodInfo]) -> None:
        """What these Pods hold cannot be read: their nodes' devices or CPUs are withheld."""

    def held_twice(self, devices: list[HeldTwice]) -> None:
        """These devices were given to Pods by koordgate and by the kubelet."""

    def troubles(self, found: list[Trouble]) -> None:
        """This is wrong with devices that Pods hold."""


class Reconciler:
    """Keeps the ledger equal to live Pods.

    `schedulers`: `spec.schedulerName` of the Pods that only koord-scheduler may bind. `grace`: seconds from the
    mark on a holding of a Pod that is not bound to its release. `clock`: monotonic seconds. `released`: called with
    each node on which a holding was released. `enforced`: whether only koord-scheduler may bind Pods of a namespace.
    `hold_until`: when what is held for a gang from now on ends, in seconds since the epoch; None where gangs are not
    bound as a whole.
    """

    def __init__(  # noqa: PLR0913 keyword-only
        self,
        *,
        schedulers: SchedulerNames,
        grace: float,
        cluster: ClusterView,
        ledger: Ledger,
        live: LivePods,
        clock: Callable[[], float],
        reports: Reports,
        released: Callable[[str], None] = lambda _node: None,
        hold_until: Callable[[], int] | None = None,
        enforced: Callable[[str], bool] = lambda _namespace: True,
    ) -> None:
        self._enforced = enforced
        self._hold_until = hold_until
        self._schedulers = schedulers
        self._grace = grace
        self._cluster = cluster
        self._ledger = ledger
        self._live = live
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[Holding, float]] = {}  # suspects by node and UID, and since when
        self._reports = reports
        self._released = released
        self._looks: asyncio.Queue[tuple[str, str, float]] = asyncio.Queue()  # node, UID, when to look again
        self._listed = asyncio.Event()
        self._pods_known = False
        ledger.recorded.append(self._begun)

    def ended(self, pod: PodInfo) -> None:
        """A Pod is over or gone; `run_releases` will release what it held."""
        for node in self._ledger.nodes_of(pod.uid):
            self._look(node, pod.uid)

    def bound(self, pod: PodInfo) -> None:
        """A Pod is bound; `run_releases` will release what it held on other nodes.

        Nothing may be released before: a bind that seemed to fail may still succeed until another one has.
        """
        for node in self._ledger.nodes_of(pod.uid):
            if node != pod.node:
                self._look(node, pod.uid)

    def _begun(self, node: str, holding: Holding) -> None:
        """A holding is seen for the first time; `run_releases` will release it if its Pod has ended.

        Before the first list of Pods, the first reconciliation does that.
        """
        if holding.fence or not self._pods_known:
            return
        when = look(holding, node, self._cluster.pods.by_uid(holding.uid))
        if when == "now":
            self._look(node, holding.uid)
        elif when == "later":
            self._look_later(node, holding.uid, _BIND_S)

    def listed(self) -> None:
        """All Pods were listed: `run_timer` compares the ledger with them now, unless this is the first time."""
        if self._pods_known:
            self._listed.set()
        self._pods_known = True

    def _look(self, node: str, uid: str, again_s: float = _BIND_S) -> None:
        self._looks.put_nowait((node, uid, again_s))

    def _look_later(self, node: str, uid: str, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._look, node, uid, wait_s * _RARER)

    async def run_releases(self) -> None:
        """Release what ended Pods held, and what bound Pods held on other nodes, as this happens, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._release_ended())

    async def _release_ended(self) -> None:
        while True:
            node, uid, again_s = await self._looks.get()
            holding = self._held(node, uid)
            if holding is None or not is_suspect(holding, node, self._cluster.pods.by_uid(uid)):
                continue
            if await self._settled(node, holding):
                continue
            if self._held(node, uid) is not None and again_s < patience(holding, self._grace):
                self._look_later(node, uid, again_s)  # later than that, the timer looks

    async def _settled(self, node: str, holding: Holding) -> bool:
        """Look at what a Pod holds on a node, and release it if it may be; False if this may have to be tried again."""
        try:
            live = await self._told(holding)
        except KubeError as error:
            _LOG.warning("a Pod could not be read; it is tried again: %s", error, extra={"uid": holding.uid})
            return False
        match judge(holding, node, live, 0.0, self._grace):
            case "gone" | "finished" | "moved" as ended:
                return await self._release(holding.uid, node, ended)
            case None:  # a watch will tell the end of a Pod that is bound, and its gang's controller gives back a hold
                return bool(holding.until) or bool(live and live[1] and live[1].node)
            case _:
                return True  # the timer does that

    async def _told(self, holding: Holding) -> tuple[str, PodInfo | None] | None:
        """What is certain of the Pod of that name, as `judge` takes it: what a watch showed, or the API server says."""
        pod = self._cluster.pods.by_uid(holding.uid)
        if pod is not None and (pod.over or pod.node):
            return pod.uid, pod
        if self._cluster.pods.is_gone(holding.uid):
            return None
        return await self._live.read(holding.namespace, holding.name, _READ_S)

    def _held(self, node: str, uid: str) -> Holding | None:
        return self._ledger.record(node).holdings.get(uid)

    async def run_timer(self, every: float) -> None:
        """Reconcile at this interval, in seconds, until cancelled. A failure is logged; the next round tries again.

        What becomes due before the next round is looked at when it does. After a list of all Pods, a round begins.
        """
        left = every
        while True:
            wait = min(left, max(self._due_in(), _SOONEST_S))
            try:
                await asyncio.wait_for(self._listed.wait(), wait)
            except TimeoutError:
                left -= wait
            else:
                self._listed.clear()
                left = 0
            try:
                if left > 0:
                    await self._all(self._check(node, holding) for node, holding in self._due())
                    continue
                left = every
                await self.reconcile()
            except KubeError as error:
                _LOG.warning("reconciliation failed, trying again in %.0f s: %s", every, error)

    async def reconcile(self) -> None:
        """Compare the whole ledger with live Pods once, and correct it.

        Others run between two nodes and between two Pods, so that each is compared as it is when its turn comes. It may
        change before it is corrected, as always: a holding is released for what a live read says then, a marked one
        only if it still bears this mark, and a Pod is adopted as the view knows it then.
        Raises KubeError: the API server refused, or cannot be reached; corrections made by then remain.
        """
        suspects = await with_breaks(self._suspects())
        self._see(suspects)
        missing = await with_breaks(self._missing())
        checks = (self._check(node, holding) for node, holding in suspects)
        try:
            await self._all(chain(checks, map(self._adopt, missing)))
        finally:
            self._reports.bound_around(await with_breaks(self._bound_around()))
            self._reports.unreadable(await with_breaks(self._unreadable()))
            self._reports.held_twice(await with_breaks(self._held_twice()))
            self._reports.troubles(await with_breaks(troubles(self._cluster, self._ledger)))

    async def _all(self, mendings: Iterator[Coroutine[None, None, None]]) -> None:
        """Perform all of these, a few at once; the first failure is raised when all are over."""
        failures: list[Exception] = []

        async def perform() -> None:
            breaks = Breaks()
            for mending in mendings:
                try:
                    await mending
                except Exception as error:  # noqa: BLE001 the others are performed all the same
                    failures.append(error)
                if breaks.due():
                    await breaks.take()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(perform())
        if failures:
            raise failures[0]

    def _held_twice(self) -> Steps[list[HeldTwice]]:
        """Compare the ledger with what the kubelet allocated, as the Device objects state it."""
        found: dict[tuple[str, str], set[str]] = {}
        kinds: dict[tuple[str, str], str] = {}
        for record in self._ledger.records():
            listed = self._cluster.nodes.devices(record.node)
            ours = (one for one in record.holdings.values() if not one.fence)
            for holding in ours if listed is not None and listed.kubelet_pods else ():
                for share in holding.shares:
                    theirs = listed.kubelet_pods.get(share.id, frozenset()) if listed is not None else frozenset()
                    if theirs - {holding.uid, ""}:
                        at = (record.node, share.id)
                        found.setdefault(at, set()).update((holding.uid, *theirs))
                        kinds[at] = share.type
            yield 0
        twice = []
        for at, uids in sorted(found.items()):
            known = [pod for pod in map(self._cluster.pods.by_uid, uids) if pod is not None and not pod.finished]
            if len(known) > 1:  # else the one or the other has ended meanwhile
                twice.append(HeldTwice(at[0], kinds[at], at[1], tuple(sorted(known, key=_by_name))))
            yield 0
        return twice

    def _suspects(self) -> Steps[list[tuple[str, Holding]]]:
        """Holdings, each with its node, whose Pod is not known to be bound to that node and alive."""
        suspects: list[tuple[str, Holding]] = []
        for record in self._ledger.records():
            suspects += [
                (record.node, holding)
                for holding in record.holdings.values()
                if not holding.fence and is_suspect(holding, record.node, self._cluster.pods.by_uid(holding.uid))
            ]
            yield 0
        return suspects

    def _see(self, suspects: list[tuple[str, Holding]]) -> None:
        """Remember since when each suspect has been seen as it is; the others are forgotten."""
        now = self._clock()
        before = self._seen
        self._seen = {}
        for node, holding in suspects:
            at = (node, holding.uid)
            known = before.get(at)
            self._seen[at] = known if known is not None and known[0] == holding else (holding, now)

    def _seen_s(self, node: str, holding: Holding) -> float:
        """Seconds for which a holding has been seen as it is."""
        known, since = self._seen.get((node, holding.uid), (None, 0.0))
        return self._clock() - since if known == holding else 0.0

    def _due_in(self) -> float:
        """Seconds until something is to be done about a holding that has been seen."""
        ends = (since + patience(holding, self._grace) for holding, since in self._seen.values())
        return min(ends, default=math.inf) - self._clock()

    def _due(self) -> list[tuple[str, Holding]]:
        now = self._clock()
        return [
            (node, holding)
            for (node, _), (holding, since) in self._seen.items()
            if now - since > patience(holding, self._grace)
        ]

    def _missing(self) -> Steps[list[PodInfo]]:
        """Bound Pods that hold something of which the ledger does not know, and whose annotations can be read."""

        def missing(pod: PodInfo) -> PodInfo | None:
            if not pod.holds or self._recorded(pod) or self._cluster.compared(pod).annotation_problem:
                return None
            return pod

        return (yield from self._bound(missing))

    def _unreadable(self) -> Steps[list[PodInfo]]:
        """Bound Pods whose annotations cannot be read, where the ledger does not know what they hold; by name."""

        def unreadable(pod: PodInfo) -> PodInfo | None:
            if not (pod.holds or pod.annotation_problem) or self._recorded(pod):
                return None
            compared = self._cluster.compared(pod)
            return compared if compared.annotation_problem else None

        return sorted((yield from self._bound(unreadable)), key=_by_name)

    def _bound_around(self) -> Steps[list[PodInfo]]:
        """Bound Pods that lack what they ask for, and of which the ledger does not know; by name."""

        def lacking(pod: PodInfo) -> PodInfo | None:
            if self._recorded(pod):
                return None
            expected = pod.scheduler_name in self._schedulers or self._enforced(pod.namespace)
            return pod if expected and pod.lacks and pod.in_scope(self._schedulers) else None

        return sorted((yield from self._bound(lacking)), key=_by_name)

    def _bound(self, pick: Callable[[PodInfo], PodInfo | None]) -> Steps[list[PodInfo]]:
        """What is picked of each bound Pod that has not finished, as it is when its turn comes."""
        picked = []
        for uid in [pod.uid for pod in self._cluster.pods.all()]:
            pod = self._cluster.pods.by_uid(uid)
            if pod is not None and pod.node and not pod.finished and (one := pick(pod)) is not None:
                picked.append(one)
            yield 0
        return picked

    def _recorded(self, pod: PodInfo) -> bool:
        """Whether the ledger knows what a bound Pod holds."""
        return pod.uid in self._ledger.record(pod.node).holdings

    async def _check(self, node: str, holding: Holding) -> None:
        pod = self._cluster.pods.by_uid(holding.uid)
        if pod is not None and pod.over:
            await self._release(holding.uid, node, "finished")
            return
        seen_s = self._seen_s(node, holding)
        if pod is not None and not pod.node and seen_s <= patience(holding, self._grace):
            return
        live = await self._live.read(holding.namespace, holding.name, _READ_S)
        match judge(holding, node, live, seen_s, self._grace):
            case None:
                pass
            case "end":
                await self._change(holding.uid, node, end(holding, new_mark()))
                marked = self._held(node, holding.uid)
                if marked is not None and marked.ending:
                    self._seen[node, holding.uid] = marked, self._clock()
            case "keep":
                await self._change(holding.uid, node, keep(holding.uid))
            case "hold again" if self._hold_until is not None:
                await self._change(holding.uid, node, hold_again(holding.uid, holding.ending, self._hold_until()))
            case "unbound" | "hold again":
                await self._release(holding.uid, node, "unbound", ending=holding.ending)
            case kind:
                await self._release(holding.uid, node, kind)

    async def _release(self, uid: str, node: str, kind: Ended, *, ending: str | None = None) -> bool:
        """Release a holding; tell whether that was done here."""
        done = await self._change(uid, node, release(uid, ending=ending))
        if done:
            self._reports.mended(kind)
            self._released(node)
        return done

    async def _change(self, uid: str, node: str, change: Change[bool]) -> bool:
        """Correct the ledger; tell whether it was changed."""
        try:
            return await self._ledger.change(node, change, _WRITE_S, at_once=True)
        except (KubeError, BusyError, RecordError) as error:
            _LOG.warning(
                "a holding could not be corrected; the next reconciliation tries again: %s",
                error,
                extra={"node": node, "uid": uid},
            )
            return False

    async def _adopt(self, pod: PodInfo) -> None:
        change = adopt_running(pod.uid, lambda holdings: self._cluster.snapshot_on(pod.node, holdings))
        try:
            if await self._ledger.change(pod.node, change, _WRITE_S):
                self._reports.mended("adopted")
        except (BusyError, RecordError) as error:
            _LOG.warning(
                "a Pod could not be adopted; the next reconciliation tries again: %s", error, extra={"pod": str(pod)}
            )


def _by_name(pod: PodInfo) -> tuple[str, str]:
    return pod.namespace, pod.name
