"""A cluster as the report and the plan see it: its nodes with what is free, and the Pods that may be moved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from allocator.adopted import doubts, in_doubt
from allocator.amounts import Amounts, BadQuantityError
from allocator.packing.defrag import Tenant
from allocator.packing.fleet import Comparison, Guest, NodeRoom
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.mix import Mix
from allocator.vocabulary.mode import Mode
from console.adopt.objects import Cluster, from_objects
from console.adopt.view import AdoptView
from console.explain.reading import Reading, checked, let_hold
from console.packing.movable import MoveRules, Owner, budgets_by_namespace, owner_of, why_stays
from console.simulator.configured import stated_among
from console.simulator.documents import InputError
from console.simulator.predicates import NodeCandidate, candidate, unready, why_not
from console.simulator.resources import allocatable, managed
from webhook.settings import WebhookSettings, adoption_of, types_of
from webhook.statedmix import read_mix
from webhook.view.nodeselection import selection_of
from webhook.view.podinfo import PodInfo
from webhook.view.typical import learned

Raw = Mapping[str, Any]
T = TypeVar("T")

_NOTHING: Final[Raw] = {}
_BUDGET: Final = "PodDisruptionBudget"
_CLOSING: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/")
_CLOSING_KEYS: Final = frozenset({"ToBeDeletedByClusterAutoscaler"})
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class Stay:
    """A Pod that holds devices and is not moved.

    Attributes:
        pod: namespace/name, or who else holds them.
        node: where it is.
        why: why it stays.
    """

    pod: str
    node: str
    why: str


@dataclass(slots=True, repr=False)  # asyncio.run() writes out what it returns, which takes seconds of a large cluster
class PackingState:
    """A cluster.

    Attributes:
        rooms: its nodes, by name.
        tenants: the Pods that may be moved.
        stays: those that hold something and may not be moved.
        owners: UID of a Pod that may be moved -> its controller.
        compared: how nodes are ordered; the mix of typical requests is in it.
        cluster: the objects.
        notes: what is not known, a sentence each.
    """

    rooms: Sequence[NodeRoom]
    tenants: Sequence[Tenant]
    stays: Sequence[Stay]
    owners: Mapping[str, Owner]
    compared: Comparison
    cluster: Cluster
    notes: list[str] = field(default_factory=list)

    @property
    def settings(self) -> WebhookSettings:
        """Of the webhook."""
        return self.cluster.settings

    @property
    def types(self) -> DeviceTypes:
        """The device types."""
        return self.compared.types

    @property
    def mix(self) -> Mix:
        """The typical requests."""
        return self.compared.mix

    def allowed(self, spec: Raw) -> frozenset[str]:
        """The nodes that a Pod's selection and tolerations allow."""
        return _allowed(spec, _candidates(self.cluster.objects("Node")))


def read_state(read: Reading, configured: WebhookSettings | None, *, jobs: bool = False) -> PackingState:
    """Make the state of a cluster.

    Args:
        read: its objects.
        configured: settings to be used instead of those among the objects.
        jobs: whether Pods of Jobs may be moved.

    Raises:
        InputError: an object is none that an API server would send.
    """
    listed = [checked(where, obj, kind) for where, obj, kind in read.objects]
    cluster = from_objects(listed, configured)
    seen = None
    if read.manifests:
        seen = let_hold(cluster, counted=configured is not None or stated_among(listed) is not None)
    if seen is None:
        seen = AdoptView(cluster, adoption_of(cluster.settings))
    types = types_of(cluster.settings)
    mix = read_mix(cluster.settings.scheduler.mix, types) or learned(seen.view.pods.all())
    scheduler = cluster.settings.scheduler
    compared = Comparison(
        types, scheduler.preference, cluster.settings.devices.order, scheduler.preference_classes, mix
    )
    unread = any(note.startswith("poddisruptionbudgets") for note in read.notes)
    budgets = None if unread else budgets_by_namespace([obj for _, obj, kind in listed if kind == _BUDGET])
    found = _Pods(cluster, seen, MoveRules(scheduler.name, jobs, budgets))
    nodes = {node["metadata"]["name"]: node for node in cluster.objects("Node")}
    rooms = [_room(seen, node) for _, node in sorted(nodes.items())]
    for room in rooms:
        found.take(room)
    notes = [*read.notes, *cluster.notes, *(problem for each in seen.problems.values() for problem in each)]
    notes += unready(nodes.values())
    notes += (text for room in rooms for text in doubts(room.node))
    return PackingState(rooms, found.tenants, found.stays, found.owners, compared, cluster, notes)


def _room(seen: AdoptView, node: Raw) -> NodeRoom:
    name = node["metadata"]["name"]
    snapshot = seen.view.snapshot(name)
    try:
        has: Amounts = allocatable(node, snapshot.devices)
    except BadQuantityError as error:
        raise InputError(f"{error}; correct it") from error
    return NodeRoom(snapshot, has, seen.view.requested(name, snapshot.holdings), _closed(seen, node))


def _closed(seen: AdoptView, node: Raw) -> str:
    """Why nothing new may land on a node, whatever a Pod tolerates; "" if it may."""
    blocked = seen.view.nodes.blocked(node["metadata"]["name"])
    spec = node.get("spec") or {}
    if blocked or spec.get("unschedulable"):
        return blocked or "cordoned"
    for taint in spec.get("taints") or ():
        key = str(taint.get("key"))
        if taint.get("effect") in _HARD and (key.startswith(_CLOSING) or key in _CLOSING_KEYS):
            return f"taint {key}"
    return ""


def _candidates(nodes: Sequence[Raw]) -> list[NodeCandidate]:
    return [candidate(node, {}) for node in nodes]


def _allowed(spec: Raw, nodes: Sequence[NodeCandidate]) -> frozenset[str]:
    return frozenset(node.name for node in nodes if why_not(spec, {}, node, {}) is None)


class _Pods:
    """Sorts the Pods that hold devices."""

    def __init__(self, cluster: Cluster, seen: AdoptView, rules: MoveRules) -> None:
        self.tenants: list[Tenant] = []
        self.stays: list[Stay] = []
        self.owners: dict[str, Owner] = {}
        self._seen = seen
        self._rules = rules
        self._raw = {pod["metadata"]["uid"]: pod for pod in cluster.objects("Pod")}
        self._left = managed(types_of(cluster.settings))
        self._nodes = _candidates(cluster.objects("Node"))
        self._may: dict[bytes, frozenset[str]] = {}

    def take(self, room: NodeRoom) -> None:
        """Sort the Pods of a node."""
        node = room.node
        for claim in node.claims.values():
            self.stays.append(Stay(claim.holder, node.name, "a ResourceClaim holds it"))
        for foreign in node.foreign.values():
            uncertain = "; what it holds is in doubt" if in_doubt(foreign) else ""
            self.stays.append(Stay(foreign.holder, node.name, f"another product placed it{uncertain}"))
        for uid, holding in sorted(node.holdings.items()):
            info, raw = self._seen.view.pods.by_uid(uid), self._raw.get(uid)
            if info is None or raw is None or holding.fence:
                self.stays.append(Stay(holding.holder, node.name, "its Pod was not read"))
                continue
            mode = self._seen.mode(info.namespace)
            why = self._why(raw, info, room, mode)
            owner = owner_of(raw)
            if why or owner is None:
                self.stays.append(Stay(str(info), node.name, why))
                continue
            self.owners[uid] = owner
            self.tenants.append(Tenant(self._guest(raw, info), node.name, info.priority, owner.late))

    def _why(self, raw: Raw, info: PodInfo, room: NodeRoom, mode: Mode) -> str:
        if info.node and info.node != room.node.name:
            return f"it is bound to {info.node}"
        return why_stays(raw, info, room.node.holdings[info.uid], mode, self._rules)

    def _guest(self, raw: Raw, info: PodInfo) -> Guest:
        spec = raw["spec"]
        key = selection_of(spec)
        if key not in self._may:
            self._may[key] = _allowed(spec, self._nodes)
        asks = {name: amount for name, amount in info.requests if name not in self._left}
        shuns = frozenset(self._seen.view.nodes.shunned(spec.get("tolerations")))
        return Guest(info.uid, info.namespace, info.name, info.request, asks, self._may[key], shuns)
