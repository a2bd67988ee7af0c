"""A cluster as the report sees it: its nodes with what is free beside devices, and the typical requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from allocator.adopted import doubts
from allocator.amounts import Amounts, BadQuantityError
from allocator.packing.filling import NodeRoom
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.mix import Mix
from console.cluster import Cluster, ReadCluster, Reading, checked, cluster_of, let_hold
from console.simulator.documents import InputError, stated_among
from console.simulator.scheduler import allocatable, candidate, unready, why_not
from webhook.settings import WebhookSettings, adoption_of, read_mix, types_of
from webhook.view.typical import learned

Raw = Mapping[str, Any]

_CLOSING: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/")
_CLOSING_KEYS: Final = frozenset({"ToBeDeletedByClusterAutoscaler"})
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(slots=True, repr=False)  # asyncio.run() writes out what it returns, which takes seconds of a large cluster
class PackingState:
    """A cluster: its nodes by name, and what is not known of it, a sentence each."""

    rooms: Sequence[NodeRoom]
    mix: Mix
    seen: ReadCluster
    cluster: Cluster
    notes: list[str]

    @property
    def types(self) -> DeviceTypes:
        """The device types."""
        return types_of(self.cluster.settings)

    def allowed(self, spec: Raw) -> frozenset[str]:
        """The nodes that a Pod's selection and tolerations allow."""
        nodes = [candidate(node, {}) for node in self.cluster.objects("Node")]
        return frozenset(node.name for node in nodes if why_not(spec, {}, node, {}) is None)


def read_state(read: Reading, configured: WebhookSettings | None) -> PackingState:
    """Make the state of a cluster; settings are used instead of those among its objects.

    Raises:
        InputError: an object is none that an API server would send.
    """
    listed = [checked(where, obj, kind) for where, obj, kind in read.objects]
    cluster = cluster_of(replace(read, objects=listed), configured)
    seen = None
    if read.manifests:
        seen = let_hold(cluster, counted=configured is not None or stated_among(listed) is not None)
    if seen is None:
        seen = ReadCluster(cluster, adoption_of(cluster.settings))
    mix = read_mix(cluster.settings.scheduler.mix, types_of(cluster.settings)) or learned(seen.view.pods.all())
    nodes = {node["metadata"]["name"]: node for node in cluster.objects("Node")}
    rooms = [_room(seen, node) for _, node in sorted(nodes.items())]
    notes = [*cluster.notes, *(problem for each in seen.problems.values() for problem in each)]
    notes += unready(nodes.values())
    notes += (text for room in rooms for text in doubts(room.node))
    return PackingState(rooms, mix, seen, cluster, notes)


def _room(seen: ReadCluster, node: Raw) -> NodeRoom:
    name = node["metadata"]["name"]
    snapshot = seen.view.snapshot(name)
    try:
        has: Amounts = allocatable(node, snapshot.devices)
    except BadQuantityError as error:
        raise InputError(f"{error}; correct it") from error
    return NodeRoom(snapshot, has, seen.view.requested(name, snapshot.holdings), _closed(seen, node))


def _closed(seen: ReadCluster, node: Raw) -> bool:
    """Whether nothing new may land on a node, whatever a Pod tolerates."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable") or seen.view.nodes.blocked(node["metadata"]["name"]):
        return True
    hard = (str(taint.get("key")) for taint in spec.get("taints") or () if taint.get("effect") in _HARD)
    return any(key.startswith(_CLOSING) or key in _CLOSING_KEYS for key in hard)
