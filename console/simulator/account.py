"""Who holds what (pure), counted only from the cluster's objects: devices, CPUs, and the annotations of Pods.

No ledger is read, so that the output shows what the objects state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from allocator.adopted import conflicts
from allocator.vocabulary.adopted import ConflictKind, ForeignHolding
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding, InvariantError
from allocator.wire.foreignpods import NO_ADOPTION, Adoption
from console.simulator.assumed import ASSUMED
from console.simulator.running import PodReader
from koordgate.settings import DevicePool
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import DeviceFeed, NodeFeed, PodFeed, TopologyFeed
from webhook.view.nodereport import CpuReport, NodeReport, cpu_report, report_of
from webhook.view.podinfo import PodInfo, annotated_holding, read_pod_info

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
        nodes: the names of all nodes that have anything, or that Pods are bound to.
    """

    def __init__(
        self,
        standing: ClusterObjects,
        types: DeviceTypes,
        given: Sequence[tuple[str, DevicePool]] = (),
        adoption: Adoption = NO_ADOPTION,
    ) -> None:
        self.types = types
        self.view = _view(standing, types, given, adoption)
        names = {obj["metadata"]["name"] for obj in (*standing.nodes, *standing.devices, *standing.topologies)}
        names |= {pod["spec"]["nodeName"] for pod in standing.pods if pod["spec"].get("nodeName")}
        self._assumed = {
            obj["metadata"]["name"]: str((obj["metadata"].get("annotations") or {}).get(ASSUMED, ""))
            for obj in standing.devices
        }
        self.nodes = sorted(names)

    def assumed(self, node: str) -> str:
        """What a node's devices are assumed from; "" where its Device object lists them, and for other nodes."""
        return self._assumed.get(node, "")

    def holding(self, pod: Raw) -> Holding | None:
        """A Pod's holding by its annotations; None if they state none."""
        info = read_pod_info(pod, types=self.types)
        if info is None or not info.node or info.finished:
            return None
        return annotated_holding(self.view.compared(info), self.view.devices(info.node), 0)

    def adopted(self, pod: Mapping[str, Any]) -> ForeignHolding | None:
        """What a Pod of another product holds by that product's statement; None if it is none that counts."""
        node = pod["spec"].get("nodeName")
        return self.view.snapshot(node).foreign.get(pod["metadata"].get("uid", "")) if node else None

    def report(self, node: str) -> NodeReport:
        """A node, what is held of it and by whom."""
        return report_of(self.view, node, self.types)

    def reports(self) -> list[NodeReport]:
        """All nodes, by name."""
        return [self.report(node) for node in self.nodes]

    def overgiven(self) -> list[str]:
        """Recount every device and CPU; returns a sentence for each node on which more is held than exists.

        Pods of other products of which nothing is counted, because another scheduler bound them, are reported too.
        """
        found = []
        for node in self.nodes:
            snapshot = self.view.snapshot(node)
            try:
                snapshot.check_invariants()
            except InvariantError as error:
                found.append(str(error))
            found.extend(_strange_cpus(node, cpu_report(snapshot, self.view.nodes.topology(node))))
            found.extend(one.message for one in conflicts(snapshot) if one.kind in _OF_THE_NODE)
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


def _strange_cpus(node: str, cpus: CpuReport | None) -> Iterator[str]:
    """Find CPUs that a Pod holds although the node lacks them, or although the kubelet gave them to another Pod."""
    if cpus is None or cpus.topology is None:
        return
    for pod, share in cpus.held:
        if beyond := share.cpus & ~cpus.topology.all:
            yield f"{node}: Pod {pod.holder} holds CPUs {format_cpuset(beyond)}, which the node does not have"
        for alloc in cpus.kubelet:
            if pod.holder != f"{alloc.namespace}/{alloc.name}" and (twice := share.cpus & alloc.cpus):
                yield (
                    f"{node}: CPUs {format_cpuset(twice)} are held by Pod {pod.holder}, and the kubelet gave them to "
                    f"{alloc.namespace}/{alloc.name}"
                )
