"""Keeps the ledger equal to live Pods: what ended is released at once, and a timer finds whatever was missed.

A holding is released when its Pod (by UID) is gone, finished, or bound elsewhere, or was not bound within a grace
period that is longer than any API request lasts. For what is held for a gang, that period begins when its time ends.
Unless a watch reported it, a live read confirms it first.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from allocator.bind import adopt_running, release
from allocator.vocabulary.holdings import Holding
from allocator.wire.nodeallocation import RecordError
from koordgate.kube.errors import KubeError
from webhook.ledger.ledger import BusyError, Ledger
from webhook.view.cluster import ClusterView
from webhook.view.livepods import LivePods
from webhook.view.podinfo import PodInfo

_LOG: Final = logging.getLogger(__name__)
_READ_S: Final = 30.0
# Short, since binds compete for the ledger's few concurrent writes. What fails is tried again in the next round.
_WRITE_S: Final = 5.0
_AT_ONCE: Final = 16  # concurrent changes

Kind = Literal["gone", "finished", "unbound", "moved", "adopted"]


@dataclass(frozen=True, slots=True)
class HeldTwice:
    """A device that koordgate gave to one Pod and the kubelet to others.

    Attributes:
        node: its node's name.
        type: its type.
        identity: its id.
        pods: who hold it, by namespace and name.
    """

    node: str
    type: str
    identity: str
    pods: tuple[PodInfo, ...]


class Reports(Protocol):
    """Reports what the reconciler found."""

    def mended(self, kind: Kind) -> None:
        """A difference of this kind was corrected."""

    def bound_around(self, pods: list[PodInfo]) -> None:
        """These Pods ask for devices and were bound without an allocation."""

    def unreadable(self, pods: list[PodInfo]) -> None:
        """What these Pods hold cannot be read: their nodes' devices or CPUs are closed."""

    def held_twice(self, devices: list[HeldTwice]) -> None:
        """These devices were given to Pods by koordgate and by the kubelet."""


class Reconciler:
    """Keeps the ledger equal to live Pods.

    Args:
        scheduler_name: `spec.schedulerName` of the Pods that only koord-scheduler may bind.
        grace: seconds after which a holding of a Pod that is not bound is released.
        cluster: what is known of the cluster.
        ledger: is corrected.
        live: reads Pods from the API server itself.
        clock: seconds since the epoch.
        reports: of differences.
        released: called with each node on which a holding was released.
    """

    def __init__(
        self,
        *,
        scheduler_name: str,
        grace: float,
        cluster: ClusterView,
        ledger: Ledger,
        live: LivePods,
        clock: Callable[[], int],
        reports: Reports,
        released: Callable[[str], None] = lambda _node: None,
    ) -> None:
        self._scheduler_name = scheduler_name
        self._grace = grace
        self._cluster = cluster
        self._ledger = ledger
        self._live = live
        self._clock = clock
        self._reports = reports
        self._released = released
        self._ended: asyncio.Queue[str] = asyncio.Queue()

    def ended(self, pod: PodInfo) -> None:
        """A Pod finished or is gone; `run_releases` will release what it held."""
        if self._ledger.nodes_of(pod.uid):
            self._ended.put_nowait(pod.uid)

    def bound(self, pod: PodInfo) -> None:
        """A Pod is bound; `run_releases` will release what it held on other nodes.

        Nothing may be released before: a bind that seemed to fail may still succeed until another one has.
        """
        if any(node != pod.node for node in self._ledger.nodes_of(pod.uid)):
            self._ended.put_nowait(pod.uid)

    async def run_releases(self) -> None:
        """Release what ended Pods held, and what bound Pods held on other nodes, as this happens, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._release_ended())

    async def _release_ended(self) -> None:
        while True:
            uid = await self._ended.get()
            pod = self._cluster.pods.by_uid(uid)
            for node in self._ledger.nodes_of(uid):
                if pod is None or pod.finished:
                    await self._release(uid, node, "gone")
                elif pod.node not in {"", node}:
                    await self._release(uid, node, "moved")

    async def run_timer(self, every: float) -> None:
        """Reconcile at this interval, in seconds, until cancelled. A failure is logged; the next round tries again."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.reconcile()
            except KubeError as error:
                _LOG.warning("reconciliation failed, trying again in %.0f s: %s", every, error)

    async def reconcile(self) -> None:
        """Compare the whole ledger with live Pods once, and correct it.

        Raises:
            KubeError: the API server refused, or cannot be reached; corrections made by then remain.
        """
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(mending: Coroutine[None, None, None]) -> None:
            async with gate:
                await mending

        mendings = [self._check(node, holding) for node, holding in self._suspects()]
        mendings += [self._adopt(pod) for pod in self._missing()]
        results = await asyncio.gather(*(one(mending) for mending in mendings), return_exceptions=True)
        self._reports.bound_around(self._bound_around())
        self._reports.unreadable(self._unreadable())
        self._reports.held_twice(self._held_twice())
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _held_twice(self) -> list[HeldTwice]:
        """Compare the ledger with what the kubelet allocated, as the Device objects state it."""
        found: dict[tuple[str, str], set[str]] = {}
        kinds: dict[tuple[str, str], str] = {}
        for record in self._ledger.records():
            listed = self._cluster.nodes.devices(record.node)
            for holding in record.holdings.values() if listed is not None and listed.kubelet_pods else ():
                for share in holding.shares:
                    theirs = listed.kubelet_pods.get(share.id, frozenset()) if listed is not None else frozenset()
                    if theirs - {holding.uid}:
                        at = (record.node, share.id)
                        found.setdefault(at, set()).update((holding.uid, *theirs))
                        kinds[at] = share.type
        twice = []
        for at, uids in sorted(found.items()):
            known = [pod for pod in map(self._cluster.pods.by_uid, uids) if pod is not None and not pod.finished]
            if len(known) > 1:  # else the one or the other has ended meanwhile
                pods = tuple(sorted(known, key=lambda pod: (pod.namespace, pod.name)))
                twice.append(HeldTwice(at[0], kinds[at], at[1], pods))
        return twice

    def _suspects(self) -> list[tuple[str, Holding]]:
        """Holdings, each with its node, whose Pod is not known to be bound to that node and alive."""
        suspects = []
        for record in self._ledger.records():
            for holding in record.holdings.values():
                pod = self._cluster.pods.by_uid(holding.uid)
                if pod is None or pod.node != record.node or pod.finished:
                    suspects.append((record.node, holding))
        return suspects

    def _missing(self) -> list[PodInfo]:
        return [
            pod
            for pod in self._cluster.pods.all()
            if pod.node
            and pod.holds
            and not pod.finished
            and pod.uid not in self._ledger.record(pod.node).holdings
            and not self._cluster.compared(pod).annotation_problem  # opens again once it can be read
        ]

    def _unreadable(self) -> list[PodInfo]:
        unrecorded = [
            self._cluster.compared(pod)
            for pod in self._cluster.pods.all()
            if pod.node
            and (pod.holds or pod.annotation_problem)
            and not pod.finished
            and pod.uid not in self._ledger.record(pod.node).holdings
        ]
        return sorted((pod for pod in unrecorded if pod.annotation_problem), key=lambda pod: (pod.namespace, pod.name))

    def _bound_around(self) -> list[PodInfo]:
        found = [
            pod
            for pod in self._cluster.pods.all()
            if pod.node and pod.lacks and not pod.finished and pod.in_scope(self._scheduler_name)
        ]
        return sorted(found, key=lambda pod: (pod.namespace, pod.name))

    async def _check(self, node: str, holding: Holding) -> None:
        pod = self._cluster.pods.by_uid(holding.uid)
        if pod is not None and pod.finished:
            await self._release(holding.uid, node, "finished")
            return
        old = self._clock() - max(holding.since, holding.until) > self._grace
        if pod is not None and not pod.node and not old:
            return
        live = await self._live.read(holding.namespace, holding.name, _READ_S)
        kind = _why_ended(holding, node, live, old=old)
        if kind == "unbound":
            await self._release(holding.uid, node, kind, older_than=self._clock() - self._grace)
        elif kind is not None:
            await self._release(holding.uid, node, kind)

    async def _release(self, uid: str, node: str, kind: Kind, *, older_than: float | None = None) -> None:
        try:
            change = release(uid, held_since_before=older_than)
            if await self._ledger.change(node, change, _WRITE_S):
                self._reports.mended(kind)
                self._released(node)
        except (KubeError, BusyError, RecordError) as error:
            _LOG.warning(
                "a holding could not be released; the next reconciliation tries again: %s",
                error,
                extra={"node": node, "uid": uid},
            )

    async def _adopt(self, pod: PodInfo) -> None:
        change = adopt_running(pod.uid, lambda holdings: self._cluster.snapshot_on(pod.node, holdings))
        try:
            if await self._ledger.change(pod.node, change, _WRITE_S):
                self._reports.mended("adopted")
        except (BusyError, RecordError) as error:
            _LOG.warning(
                "a Pod could not be adopted; the next reconciliation tries again: %s", error, extra={"pod": str(pod)}
            )


def _why_ended(holding: Holding, node: str, live: tuple[str, PodInfo | None] | None, *, old: bool) -> Kind | None:
    """Why a holding must be released, judged by a live read of its Pod; None where it must stay."""
    pod = live[1] if live else None
    if live is None or live[0] != holding.uid or pod is None:
        return "gone"
    if pod.finished:
        return "finished"
    if not pod.node:
        return "unbound" if old else None
    return None if pod.node == node else "moved"
