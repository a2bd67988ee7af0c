"""Events and warnings: what replicas tell of Pods, binds, and other products' Pods."""

import asyncio
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from allocator.adopted import conflicts
from allocator.budget import Steps
from allocator.claimed import ClaimedToo, Freed
from allocator.reasons import given
from allocator.vocabulary.adopted import NODE, AdoptionConflict, ConflictKind, Product, deleting
from allocator.vocabulary.asks import Preference
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from koordgate.breaks import with_breaks
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import (
    ALL_POD_GROUPS,
    DEVICES,
    EVENTS,
    LIMIT_RANGES,
    NODE_ALLOCATIONS,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    TOLD_AGAIN_S,
    TOPOLOGIES,
)
from webhook.metrics import WebhookMetrics
from webhook.upkeep.reconcile import HeldTwice, Kind
from webhook.upkeep.troubles import Trouble, Wrong
from webhook.view.cluster import ClusterView
from webhook.view.podinfo import PodInfo

_LOG: Final = logging.getLogger(__name__)
_TOLD_AT_ONCE: Final = 100  # most Events of one round, and most being written; the metric counts all
_MAX_OF_GANG: Final = 16  # most Pods of a gang that get an Event at once
_MAX_LENGTH: Final = 1024  # characters of an Event's message, the limit of Kubernetes
_KINDS: Final = {
    resource.plural: {"apiVersion": f"{resource.group}/{resource.version}".lstrip("/"), "kind": kind}
    for resource, kind in (
        (NODES, "Node"),
        (DEVICES, "Device"),
        (TOPOLOGIES, "NodeResourceTopology"),
        (NODE_ALLOCATIONS, "NodeAllocation"),
        (RESOURCE_QUOTAS, "ResourceQuota"),
        (LIMIT_RANGES, "LimitRange"),
        (RESOURCE_CLAIMS, "ResourceClaim"),
        (RESOURCE_SLICES, "ResourceSlice"),
    )
} | {
    f"{resource.plural}.{resource.group}": {"apiVersion": resource.api_version, "kind": "PodGroup"}
    for resource, *_ in ALL_POD_GROUPS
}


class EventReports:
    """Reports differences between ledger and cluster, and objects that cannot be read.

    `kube`: where Events are written; None offline. `clock`: seconds since the epoch.
    """

    def __init__(self, metrics: WebhookMetrics, kube: KubeClient | None, clock: Callable[[], int]) -> None:
        self._metrics = metrics
        self._kube = kube
        self._clock = clock
        self._reported: dict[str, dict[str, float]] = {}  # reason -> UIDs, or names of Nodes, and when
        self._claimed_too: set[tuple[str, tuple[str, ...]]] = set()  # devices and claims that were reported
        self._unmatched: set[str] = set()  # claims that were reported
        self._conflicts: set[tuple[str, str, tuple[str, ...]]] = set()  # kind, node and Pods that were reported
        self._bad: dict[str, dict[str, tuple[str, ...]]] = {}  # resource -> name of an object -> what is wrong with it
        self._tasks: set[asyncio.Task[None]] = set()

    def mended(self, kind: Kind | Freed) -> None:
        """A difference between ledger and live Pods or ResourceClaims was corrected."""
        self._metrics.reconciled.labels(kind).inc()

    def bound_around(self, pods: list[PodInfo]) -> None:
        """These Pods ask for devices and were bound without an allocation: count all, and report each once."""
        self._metrics.unmanaged.set(len(pods))
        for pod in self._new("BoundWithoutDevices", pods):
            message = (
                f"bound to {pod.node} without koordgate, so it holds none of the devices or CPUs that it asks for; "
                f"{_anew(pod)}"
            )
            _LOG.warning("a Pod was bound without koordgate", extra={"pod": str(pod), "node": pod.node})
            self._event(_about(pod), "BoundWithoutDevices", message)

    def unreadable(self, pods: list[PodInfo]) -> None:
        """What these Pods hold cannot be read: count all, and report each once."""
        self._metrics.unreadable.set(len(pods))
        for pod in self._new("AllocationUnreadable", pods):
            closed = " or ".join(
                filter(None, (", ".join(f"{kind} device" for kind in pod.unread), "CPU" if pod.any_cpus else ""))
            )
            message = (
                f"what it holds cannot be read: {pod.annotation_problem}. Nothing new lands on any {closed} of "
                f"node {pod.node} until the annotation is corrected, or {_ended(pod)}"
            )
            _LOG.warning("what a Pod holds cannot be read", extra={"pod": str(pod), "node": pod.node})
            self._event(_about(pod), "AllocationUnreadable", message)

    def held_twice(self, devices: list[HeldTwice]) -> None:
        """These devices were given to Pods by koordgate and by the kubelet: count all, and report each Pod once."""
        self._metrics.held_twice.set(len(devices))
        of = {pod.uid: device for device in devices for pod in device.pods}
        pods = {pod.uid: pod for device in devices for pod in device.pods}
        for pod in self._new("DeviceHeldTwice", list(pods.values())):
            device = of[pod.uid]
            names = ", ".join(str(other) for other in device.pods if other.uid != pod.uid)
            message = (
                f"{device.type} {device.identity} of node {device.node} is held by {names} as well: koordgate and the "
                "kubelet's device plugin gave it away independently; delete one of the Pods, and create those that ask "
                "for the plugin's resource again, so that koordgate translates them"
                f"{deleting((str(one), one.maker) for one in device.pods)}"
            )
            _LOG.warning("a device is held twice", extra={"pod": str(pod), "node": device.node})
            self._event(_about(pod), "DeviceHeldTwice", message)

    def troubles(self, found: list[Trouble]) -> None:
        """This is wrong with devices that Pods hold: count all, and report each."""
        for reason in Wrong:
            of = {(one.node, str(one.pod or "")): one for one in found if one.reason == reason}
            self._metrics.troubles.labels(reason).set(len(of))
            subjects = {one.pod.uid if one.pod is not None else one.node: one for one in of.values()}
            for subject in self._untold(reason, list(subjects)):
                one = subjects[subject]
                _LOG.warning("%s: %s", reason, one.message, extra={"node": one.node, "pod": str(one.pod or "")})
                about = {**_KINDS[NODES.plural], "name": one.node} if one.pod is None else _about(one.pod)
                self._event(about, reason, one.message)
        bad = {f"{resource} {name}": (resource, name) for resource, names in self._bad.items() for name in names}
        for subject in self._untold("CannotBeRead", list(bad)):
            self._cannot_be_read(*bad[subject])

    def claimed_too(self, devices: list[ClaimedToo]) -> None:
        """These devices were given to Pods by koordgate, and to claims by DRA: count all, and report each once."""
        self._metrics.claimed_too.set(len(devices))
        reported, self._claimed_too = self._claimed_too, {(one.identity, one.claims) for one in devices}
        for device in [one for one in devices if (one.identity, one.claims) not in reported][:_TOLD_AT_ONCE]:
            message = (
                f"{device.type} {device.identity} of node {device.node} is held by Pods that koordgate bound as well: "
                "the allocation was written while no webhook of koordgate answered, or before it looked at claims; "
                "delete the Pods of the claim, or those with the UIDs "
            ) + ", ".join(device.pods)
            _LOG.warning("a device is held twice: %s", message, extra={"node": device.node})
            for name in device.claims:
                self._event({**_KINDS[RESOURCE_CLAIMS.plural], **_place(name)}, "DeviceHeldTwice", message)

    def unmatched(self, claims: dict[str, list[str]]) -> None:
        """Of these claims it is not known which devices they hold on these nodes: count all, and report each once."""
        self._metrics.claims_unmatched.set(len(claims))
        reported, self._unmatched = self._unmatched, set(claims)
        for name in sorted(claims.keys() - reported)[:_TOLD_AT_ONCE]:
            message = (
                f"which devices it holds on {', '.join(claims[name])} is unknown, so nothing new lands on any of "
                "the type there: no ResourceSlice of the driver lists them with a UUID or PCI address of the node's "
                "Device object; let the driver publish its slices, or delete the claim's Pods"
            )
            _LOG.warning("what a claim holds is unknown: %s", message, extra={"claim": name})
            self._event({**_KINDS[RESOURCE_CLAIMS.plural], **_place(name)}, "AllocationUnreadable", message)

    def observed(self, pod: PodInfo, reason: str, message: str) -> None:
        """Report what would have become of a Pod in a namespace that is only observed."""
        self._event(_about(pod), reason, message, normal=True)

    async def allocated(self, pod: PodInfo, message: str) -> None:
        """Report what a Pod was given when it was bound; returns when the Event is written, or cannot be."""
        reason = "DevicesAllocated"
        if self._kube is not None:
            await self._write_event(self._kube, _about(pod), "Normal", reason, message)

    def bug_in_events(self) -> None:
        """Writing such an Event failed unexpectedly: called within the handling of the exception."""
        self._metrics.bugs.labels("bind events").inc()
        _LOG.exception("a bug while an Event about a bind was written")

    def adopted(self, pods: Mapping[Product, int], found: Sequence[AdoptionConflict]) -> None:
        """Pods of other products hold devices, and these conflicts exist: count all, and report each once."""
        for peer in Product:
            self._metrics.adopted.labels(peer).set(pods.get(peer, 0))
        kinds = Counter(one.kind for one in found)
        for kind in ConflictKind:
            self._metrics.adoption_conflicts.labels(kind).set(kinds[kind])
        known, reported = self._conflicts, {(one.kind, one.node, one.uids) for one in found}
        new = [one for one in found if (one.kind, one.node, one.uids) not in known][:_TOLD_AT_ONCE]
        self._conflicts = (known & reported) | {(one.kind, one.node, one.uids) for one in new}
        for one in new:
            _LOG.warning("adoption: %s", one.message, extra={"node": one.node, "kind": one.kind})
            for pod, uid in zip(one.pods, one.uids, strict=True):
                about = {"apiVersion": "v1", "kind": "Pod", **_place(pod), "uid": uid}
                self._event(about, "AdoptionConflict", one.message)

    def gang_waits(self, pods: list[PodInfo], why: str) -> None:
        """These Pods of a gang that is bound as a whole wait, for this reason."""
        _LOG.info("a gang waits: %s", why, extra={"pod": str(pods[0]), "pods": len(pods)})
        for pod in sorted(pods, key=lambda pod: pod.name)[:_MAX_OF_GANG]:
            self._event(_about(pod), "GangWaits", why)

    def _new(self, reason: str, pods: list[PodInfo]) -> list[PodInfo]:
        """The Pods that are to be reported for this reason now."""
        new = set(self._untold(reason, [pod.uid for pod in pods]))
        return [pod for pod in pods if pod.uid in new]

    def _untold(self, reason: str, subjects: list[str]) -> list[str]:
        """Those that are to be reported for this reason now: new ones, and after a time again.

        At most as many as Events can be begun; a later round reports the others. Kubernetes keeps Events for an hour,
        and `koordgate doctor` reads what is wrong from them.
        """
        now, told = self._clock(), self._reported.get(reason, {})
        room = _TOLD_AT_ONCE - len(self._tasks)
        new = [one for one in subjects if now - told.get(one, -math.inf) >= TOLD_AGAIN_S][:room]
        self._reported[reason] = {one: told[one] for one in subjects if one in told} | dict.fromkeys(new, now)
        return new

    def bad_object(self, resource: str) -> Callable[[str, tuple[str, ...]], None]:
        """Make the function that reports what could not be read of one resource's objects.

        Returns a function of an object's name (or namespace/name) and of its problems, none where it can be read; it
        logs, counts, and writes an Event on the object.
        """

        def complain(name: str, problems: tuple[str, ...]) -> None:
            bad = self._bad.setdefault(resource, {})
            if problems == bad.get(name, ()):
                return
            if problems:
                bad[name] = problems
                _LOG.warning("%s %s: %s", resource, name, "; ".join(problems))
                if self._cannot_be_read(resource, name):  # else a later round tells it
                    self._reported.setdefault("CannotBeRead", {})[f"{resource} {name}"] = self._clock()
            else:
                bad.pop(name, None)
            self._metrics.bad_objects.labels(resource).set(len(bad))

        return complain

    def _cannot_be_read(self, resource: str, name: str) -> bool:
        about = _KINDS.get(resource, _KINDS[NODES.plural])  # what is no object is reported on its Node
        return self._event({**about, **_place(name)}, "CannotBeRead", "; ".join(self._bad[resource][name]))

    def _event(self, about: dict[str, str], reason: str, message: str, *, normal: bool = False) -> bool:
        """Begin to write an Event; False if too many are being written."""
        if self._kube is None or len(self._tasks) >= _TOLD_AT_ONCE:
            return False
        kind = "Normal" if normal else "Warning"
        task = asyncio.get_running_loop().create_task(self._write_event(self._kube, about, kind, reason, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _write_event(self, kube: KubeClient, about: dict[str, str], kind: str, reason: str, message: str) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        namespace = about.get("namespace", "default")  # where Kubernetes keeps Events about cluster-scoped objects
        event: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about['name'][:200]}.", "namespace": namespace},
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message[:_MAX_LENGTH],
            "source": {"component": "koordgate"},
            "reportingComponent": "koordgate",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await kube.create(EVENTS.path(namespace=namespace), event)
        except KubeError as error:
            _LOG.warning("an Event about %s %s could not be written: %s", about["kind"], about["name"], error)

    async def idle(self) -> None:
        """Wait until all Events are written."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def _place(name: str) -> dict[str, str]:
    """Where an object is, which is named as `name` or `namespace/name`."""
    namespace, _, own = name.rpartition("/")
    return {"name": own, "namespace": namespace} if namespace else {"name": own}


def _about(pod: PodInfo) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


def _anew(pod: PodInfo) -> str:
    """How a Pod that was bound without koordgate is replaced by one that is bound by it."""
    match pod.maker:
        case "Node":
            return (
                f"it is a static Pod, which koordgate never binds: remove its manifest from node {pod.node}, and let a "
                "DaemonSet create it, say"
            )
        case "":
            return "delete it and create it again; koord-scheduler then binds it"
        case kind:
            return f"delete it, and let its {kind} create another one, which koord-scheduler binds"


def _ended(pod: PodInfo) -> str:
    return "the static Pod's manifest is removed from the node" if pod.maker == NODE else "the Pod is deleted"


# Events; more are dropped, and counted. Of a burst of thousands nobody reads each, which costs as much as a bind.
MAX_WAITING: Final = 32
_BUSY_S: Final = 1.0  # after a bind, for which others are likely to follow
_BUSY_PAUSE_S: Final = 0.2  # between two Events then: a burst of binds needs the API server for itself
_PAUSE_S: Final = 0.02  # between two at other times
_LAST_S: Final = 5.0  # for what is still to be written when the process ends


class _Bound(NamedTuple):
    """A Pod that was bound, what it holds, and its node."""

    pod: PodInfo
    holding: Holding
    node: str


class BindEvents:
    """Writes the Events.

    `write`: writes one Event about a Pod, with this message. `bug`: called within the handling of an unexpected
    exception, to log its traceback and to count it. `clock`: monotonic seconds. `pause`: waits for some seconds.
    """

    def __init__(
        self,
        write: Callable[[PodInfo, str], Awaitable[None]],
        snapshot: Callable[[str], NodeSnapshot],
        types: DeviceTypes,
        preference: Preference,
        dropped: Callable[[], object],
        bug: Callable[[], object],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._bound_at = -math.inf
        self._write = write
        self._snapshot = snapshot
        self._types = types
        self._preference = preference
        self._dropped = dropped
        self._bug = bug
        self._waiting: deque[_Bound] = deque()
        self._task: asyncio.Task[None] | None = None

    def bound(self, pod: PodInfo, holding: Holding, node: str) -> None:
        """A Pod was given this on a node. Nothing is waited for; with too many of them the Event is dropped."""
        self._bound_at = self._clock()
        if len(self._waiting) >= MAX_WAITING:
            self._dropped()
            return
        self._waiting.append(_Bound(pod, holding, node))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        while self._waiting:
            one = self._waiting.popleft()
            try:
                await self._write(one.pod, self._message(one))
            except Exception:  # noqa: BLE001 what one Pod is like must not keep the others from being told
                self._bug()
            busy = self._clock() - self._bound_at < _BUSY_S
            await self._pause(_BUSY_PAUSE_S if busy else _PAUSE_S)

    def _message(self, one: _Bound) -> str:
        what = given(one.holding, self._snapshot(one.node), self._types)
        return f"on {one.node}: {what}. Nodes are compared by {self._preference}; koordgate explain compares them"

    async def idle(self) -> None:
        """Wait until all Events are written."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Write what waits, for a few seconds; the rest is dropped."""
        if self._task is None:
            return
        await asyncio.wait([self._task], timeout=_LAST_S)
        self._task.cancel()
        for _ in range(len(self._waiting)):
            self._dropped()
        self._waiting.clear()


class AdoptionWatch:
    """Looks for conflicts between other products' Pods, koordgate's, and the devices of their nodes."""

    def __init__(self, cluster: ClusterView, reports: EventReports) -> None:
        self._cluster = cluster
        self._reports = reports

    async def run_timer(self, every: float) -> None:
        """Look at this interval, in seconds, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(every)

    async def look(self) -> None:
        """Look at each node with such Pods once; others run between two nodes."""
        self._reports.adopted(*await with_breaks(self._find()))

    def _find(self) -> Steps[tuple[dict[Product, int], list[AdoptionConflict]]]:
        pods: Counter[Product] = Counter()
        found: list[AdoptionConflict] = []
        for node in self._cluster.foreign.nodes():
            snapshot = self._cluster.snapshot(node)
            pods.update(one.peer for one in snapshot.foreign.values() if one.shares)
            found += conflicts(snapshot)
            yield 0
        return dict(pods), found
