"""Who holds what (pure), counted only from the cluster's objects: devices, CPUs, and the annotations of Pods.

No ledger is read, so that the output shows what the objects state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from allocator.adopted import conflicts, in_doubt
from allocator.cpu.pools import CpuPools
from allocator.vocabulary.adopted import ConflictKind, ForeignHolding, counted
from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.cputopology import CpuTopology, format_cpuset
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Holding, InvariantError, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.foreignpods import NO_ADOPTION, Adoption
from allocator.wire.nodetopology import NodeTopology, PodCpuAlloc, read_node_topology
from console.simulator.assumed import ASSUMED
from console.simulator.running import PodReader
from koordgate.settings import DevicePool
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import DeviceFeed, NodeFeed, PodFeed, TopologyFeed
from webhook.view.podinfo import PodInfo, annotated_holding, read_pod_info
from webhook.view.snapshots import pools_on

Raw = dict[str, Any]

_OF_THE_NODE: Final = (ConflictKind.OVERFULL, ConflictKind.BESIDE_OURS, ConflictKind.UNCOUNTED)
"""Conflicts that belong to the row of no single Pod."""


@dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The Kubernetes objects of a cluster."""

    nodes: Sequence[Raw] = ()
    devices: Sequence[Raw] = ()
    topologies: Sequence[Raw] = ()
    pods: Sequence[Raw] = ()


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device, and who holds how much of it.

    Attributes:
        node: its node.
        type: its type.
        minor: its number on the node.
        id: its identity.
        device: as the node reports it; None if only a Pod's annotation names it.
        by_kubelet: whether the kubelet's device plugin allocated it.
        held: Pods (namespace/name) with their shares, by name.
        doubtful: those of them, of other products, of which it is not certain that they hold it.
    """

    node: str
    type: DeviceType
    minor: int
    id: str
    device: Device | None
    by_kubelet: bool
    held: tuple[tuple[str, Share], ...]
    doubtful: frozenset[str] = frozenset()

    def used(self, tail: str) -> int:
        """The held amount of a resource, summed over Pods."""
        return sum(share.amounts.get(tail, 0) for _, share in self.held)

    @property
    def in_use(self) -> bool:
        """Whether any Pod holds part of it."""
        return bool(self.held) or self.by_kubelet

    @property
    def why_not(self) -> str:
        """Why no further Pod can get any of it, for people; "" if one can."""
        if self.device is None:
            return "the node has no such device"
        if not self.device.healthy:
            return self.device.why_not or "unhealthy"
        return "allocated by the kubelet's device plugin" if self.by_kubelet else ""


@dataclass(frozen=True, slots=True)
class NodeCpus:
    """The CPUs of a node, and who has them.

    Attributes:
        node: its name.
        topology: the core, NUMA node and socket of each CPU; None if the node reports no usable topology.
        reserved: CPUs that no Pod may get, without those in `kubelet`.
        held: Pods (namespace/name) with what they hold, by name.
        kubelet: Pods that got CPUs from the kubelet's static policy.
        pools: the CPUs left for Pods without CPUs of their own; None if the topology is not known.
    """

    node: str
    topology: CpuTopology | None
    reserved: int
    held: tuple[tuple[str, CpuShare], ...]
    kubelet: tuple[PodCpuAlloc, ...] = ()
    pools: CpuPools | None = None

    @property
    def given(self) -> int:
        """The CPUs that belong to one Pod alone."""
        given = 0
        for _, share in self.held:
            given |= share.cpus
        for alloc in self.kubelet:
            given |= alloc.cpus
        return given


@dataclass(slots=True)
class _Counted:
    """A node as counted."""

    snapshot: NodeSnapshot
    topology: NodeTopology | None
    holders: list[Holding] = field(init=False)  # in the order of names

    def __post_init__(self) -> None:
        holdings = self.snapshot.holdings.values()
        self.holders = sorted(holdings, key=_by_name)


def _by_name(holding: Holding | ForeignHolding) -> tuple[str, str, str]:
    return holding.namespace, holding.name, holding.uid


class Account:
    """What all nodes have, and what Pods hold of it.

    Args:
        standing: the cluster's objects. Pods that are bound and not finished hold what their annotations state.
        types: the device types.
        given: devices that nodes have by configuration, each pool with the name of its type.
        adoption: which Pods of other products hold what these wrote on them.

    Attributes:
        types: as given.
        view: the same as a replica of the webhook knows it.
    """

    def __init__(
        self,
        standing: ClusterObjects,
        types: DeviceTypes,
        given: Sequence[tuple[str, DevicePool]] = (),
        adoption: Adoption = NO_ADOPTION,
    ) -> None:
        self.types = types
        self.view = view = _view(standing, types, given, adoption)
        topologies = {read.node: read for read in map(read_node_topology, standing.topologies)}
        names = {obj["metadata"]["name"] for obj in (*standing.nodes, *standing.devices, *standing.topologies)}
        names |= {pod["spec"]["nodeName"] for pod in standing.pods if pod["spec"].get("nodeName")}
        self._assumed = {
            obj["metadata"]["name"]: str((obj["metadata"].get("annotations") or {}).get(ASSUMED, ""))
            for obj in standing.devices
        }
        self._nodes = {name: _Counted(view.snapshot(name), topologies.get(name)) for name in sorted(names)}

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes that have anything, or that Pods are bound to."""
        return list(self._nodes)

    def assumed(self, node: str) -> str:
        """What a node's devices are assumed from; "" where its Device object lists them, and for other nodes."""
        return self._assumed.get(node, "")

    def holding(self, pod: Raw) -> Holding | None:
        """A Pod's holding by its annotations; None if they state none."""
        info = read_pod_info(pod, types=self.types)
        if info is None or not info.node or info.finished:
            return None
        node = self._nodes.get(info.node)
        return annotated_holding(self.view.compared(info), node.snapshot.devices if node else (), 0)

    def adopted(self, pod: Mapping[str, Any]) -> ForeignHolding | None:
        """What a Pod of another product holds by that product's statement; None if it is none that counts."""
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        return node.snapshot.foreign.get(pod["metadata"].get("uid", "")) if node else None

    def devices(self, node: str | None = None) -> list[DeviceUse]:
        """The devices of a node, or of all nodes, by type and minor; devices that only annotations name come last."""
        return [use for name in ([node] if node is not None else self._nodes) for use in self._uses(self._nodes[name])]

    def _uses(self, node: _Counted) -> Iterator[DeviceUse]:
        snapshot = node.snapshot
        held: dict[tuple[str, str], list[tuple[str, Share]]] = {}
        holders: list[Holding | ForeignHolding] = [*node.holders, *counted(snapshot.foreign)]
        for holding in sorted(holders, key=_by_name):
            for share in holding.shares:
                held.setdefault((share.type, share.id), []).append((f"{holding.namespace}/{holding.name}", share))
        doubtful = frozenset(one.holder for one in counted(snapshot.foreign) if in_doubt(one))
        for kind in self.types.types:
            for one in snapshot.devices:
                if one.type == kind.name:
                    by_kubelet = one.id in snapshot.kubelet_held
                    found = held.pop((one.type, one.id), [])
                    yield DeviceUse(snapshot.name, kind, one.minor, one.id, one, by_kubelet, tuple(found), doubtful)
            strays = [(found[0][1].minor, of, found) for (name, of), found in held.items() if name == kind.name]
            for minor, identity, found in sorted(strays):  # no two have the same minor and id
                yield DeviceUse(snapshot.name, kind, minor, identity, None, by_kubelet=False, held=tuple(found))

    def cpus(self) -> list[NodeCpus]:
        """The CPUs of each node that reports them or on which a Pod holds some."""
        found = (_cpus_of(node) for node in self._nodes.values())
        return [one for one in found if one is not None]

    def overgiven(self) -> list[str]:
        """Recount every device and CPU; returns a sentence for each node on which more is held than exists.

        Pods of other products of which nothing is counted, because another scheduler bound them, are reported too.
        """
        found = []
        for node in self._nodes.values():
            try:
                node.snapshot.check_invariants()
            except InvariantError as error:
                found.append(str(error))
            found.extend(_strange_cpus(node))
            found.extend(one.message for one in conflicts(node.snapshot) if one.kind in _OF_THE_NODE)
        return found


def _view(
    standing: ClusterObjects, types: DeviceTypes, given: Sequence[tuple[str, DevicePool]], adoption: Adoption
) -> ClusterView:
    """The webhook's cluster view, without a ledger."""
    view = ClusterView(SeenObjects(lambda: 0, adoption=adoption))
    nodes, devices = NodeFeed(view, types, given), DeviceFeed(view, types, _unheard)
    topologies, pods = TopologyFeed(view, _unheard), PodFeed(view, _ignored, _ignored, types, PodReader())
    for feed, objects in (
        (nodes, standing.nodes),
        (devices, standing.devices),
        (topologies, standing.topologies),
        (pods, standing.pods),
    ):
        for obj in objects:
            feed.put(obj)
    return view


def _ignored(_pod: PodInfo) -> None:
    """Release nothing: there is no ledger."""


def _unheard(_node: str, _problems: Iterable[str]) -> None:
    """Ignore problems: they were reported when the objects were loaded."""


def _cpus_of(node: _Counted) -> NodeCpus | None:
    known, snapshot, reported = node.snapshot.cpu, node.snapshot, node.topology
    held = tuple(
        (f"{one.namespace}/{one.name}", one.cpus)
        for one in node.holders
        if one.cpus is not None and (one.cpus.cpus or one.cpus.numa)
    )
    if known is None or reported is None:
        return NodeCpus(snapshot.name, None, 0, held) if held else None
    by_kubelet = 0
    for alloc in reported.by_kubelet:
        by_kubelet |= alloc.cpus
    left = pools_on(known.topology, [share for _, share in held], reported)
    return NodeCpus(snapshot.name, known.topology, known.reserved & ~by_kubelet, held, reported.by_kubelet, left)


def _strange_cpus(node: _Counted) -> Iterator[str]:
    """Find CPUs that a Pod holds although the node lacks them, or although the kubelet gave them to another Pod."""
    cpus = _cpus_of(node)
    if cpus is None or cpus.topology is None:
        return
    for pod, share in cpus.held:
        if beyond := share.cpus & ~cpus.topology.all:
            yield f"{cpus.node}: Pod {pod} holds CPUs {format_cpuset(beyond)}, which the node does not have"
        for alloc in cpus.kubelet:
            if pod != f"{alloc.namespace}/{alloc.name}" and (twice := share.cpus & alloc.cpus):
                yield (
                    f"{cpus.node}: CPUs {format_cpuset(twice)} are held by Pod {pod}, and the kubelet gave them to "
                    f"{alloc.namespace}/{alloc.name}"
                )
