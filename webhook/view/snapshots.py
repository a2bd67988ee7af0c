"""Snapshots of nodes: what each is and has, and who holds what there, as one frozen value.

What a node is follows from its objects and is remembered until these change; its holdings are given by the caller.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from allocator.cpu.resolve import CpuDefaults, resolve
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, InvariantError, of_claims
from allocator.vocabulary.names import DEVICE_ORDER, ISOLATION_PROVIDER
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.preference import DeviceOrder
from allocator.vocabulary.wiring import UNWIRED
from webhook.view.claims import ClaimTable
from webhook.view.classes import beside
from webhook.view.nodes import NodeTable
from webhook.view.podinfo import PodInfo, annotated_holding, on_node
from webhook.view.pods import PodTable


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds on nodes that say nothing themselves.

    Attributes:
        order: which of the devices that fit comes first.
        cpu: CPU orchestration.
    """

    order: DeviceOrder = DeviceOrder.SMALLEST
    cpu: CpuDefaults = field(default_factory=CpuDefaults)


class Snapshots:
    """Makes snapshots.

    Args:
        nodes: what nodes are and have.
        pods: whose annotations say what they hold.
        claims: what ResourceClaims hold.
        clock: seconds since the epoch.
        defaults: for nodes that say nothing themselves.
    """

    def __init__(
        self, nodes: NodeTable, pods: PodTable, claims: ClaimTable, clock: Callable[[], int], defaults: Defaults
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._claims = claims
        self._clock = clock
        self._defaults = defaults
        self._remade = nodes.remade.reader()
        self._empty: dict[str, NodeSnapshot] = {}  # of known nodes: all but the holdings

    def on(self, node: str, holdings: Mapping[str, Holding]) -> NodeSnapshot:
        """A node with these holdings of the ledger, and with those that only annotations of its live Pods name.

        The second part matters where a ledger was lost, or where Koordinator bound before us: what the annotations of
        a running Pod name is never given again, whatever the ledger says. An annotation that cannot be read closes what
        it may name. The ledger's holding takes precedence over an annotation that became unreadable later.

        What ResourceClaims hold stands apart, in the snapshot's `claims`: as seen, and as the ledger has it for those
        whose allocation may not have been seen yet.
        """
        empty = self._without_holdings(node)
        reserved = of_claims(holdings)
        held = {uid: one for uid, one in holdings.items() if not one.fence} if reserved else dict(holdings)
        for uid, pod in self._pods.on(node).items():
            if uid not in held and pod.holds and not pod.finished:
                seen = _beside(pod, empty)
                adopted = annotated_holding(seen, empty.devices, self._clock(), empty.own_cpus)
                if adopted is not None:
                    held[uid] = adopted
        claims = self._claims.on(node, empty.devices, reserved)
        return replace(empty, holdings=held, claims=claims) if claims else empty.holding_all(held)

    def devices(self, node: str) -> tuple[Device, ...]:
        """The devices of a node."""
        return self._without_holdings(node).devices

    def compared(self, pod: PodInfo) -> PodInfo:
        """A bound Pod, with what its annotations name and its node lacks as unreadable; see `on_node`."""
        return _beside(pod, self._without_holdings(pod.node))

    def _without_holdings(self, node: str) -> NodeSnapshot:
        for changed in self._remade.drain():
            self._empty.pop(changed, None)
        empty = self._empty.get(node)
        if empty is None:
            empty = self._make(node)
            if self._nodes.knows(node):  # else no change would be published that makes it stale
                self._empty[node] = empty
        return empty

    def _make(self, node: str) -> NodeSnapshot:
        listed, topology, facts = self._nodes.devices(node), self._nodes.topology(node), self._nodes.facts(node)
        labels: Mapping[str, str] = facts.labels if facts else {}
        devices = listed.named(labels) if listed else ()
        if facts is not None and facts.classes:
            devices = beside(devices, facts.classes)
        order = labels.get(DEVICE_ORDER, "")
        return NodeSnapshot(
            node,
            devices,
            kubelet_held=listed.kubelet_held if listed else frozenset(),
            wiring=listed.wiring(labels) if listed else UNWIRED,
            cpu=None if topology is None else resolve(topology, labels, self._defaults.cpu),
            isolation=labels.get(ISOLATION_PROVIDER, ""),
            order=order if order in list(DeviceOrder) else self._defaults.order,
        )

    def check_invariants(self) -> None:
        """Compare what is remembered with what the objects say now.

        Raises:
            InvariantError: they disagree.
        """
        for node in tuple(self._empty):
            if self._without_holdings(node) != self._make(node):
                raise InvariantError(f"{node}: what is remembered of the node is not what its objects say")
        if lost := self._empty.keys() - self._nodes.known():
            raise InvariantError(f"nodes that are remembered and not known: {sorted(lost)}")


def _beside(pod: PodInfo, node: NodeSnapshot) -> PodInfo:
    return on_node(pod, node.devices, node.cpu.topology.all if node.cpu is not None else 0)
