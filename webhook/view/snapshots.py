"""Snapshots of nodes: made of what was seen, remade when it changes.

What a node is follows from its objects and is remembered until these change; its holdings are given by the caller.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allocator.cpu.pools import CpuHolder, CpuPools, pools
from allocator.cpu.resolve import CpuDefaults, resolve
from allocator.devices.delivery import DeliveryRules, delivery_of
from allocator.disputed import AGREED, Dispute, disputed_cpus, disputed_devices, meant
from allocator.vocabulary.adopted import ForeignHolding, Numberings
from allocator.vocabulary.asks import DeviceOrder
from allocator.vocabulary.cpunode import CpuShare, QosClass
from allocator.vocabulary.cputopology import CpuTopology
from allocator.vocabulary.delivery import DELIVERY_LABEL, NodeDelivery
from allocator.vocabulary.device import UNWIRED, Device
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding, InvariantError, of_claims
from allocator.vocabulary.names import CLASSES, DEVICE_ORDER, ISOLATION_PROVIDER
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.classes import class_devices, distinct, named_types, read_classes
from allocator.wire.deviceobject import read_cordons, without_cordoned
from allocator.wire.nodetopology import NodeTopology
from koordgate.settings import DevicePool
from webhook.settings import WebhookSettings
from webhook.view.claims import ClaimTable
from webhook.view.foreign import ForeignTable, held_by_kubelet
from webhook.view.nodes import NodeTable
from webhook.view.podinfo import PodInfo, annotated_holding, on_node
from webhook.view.pods import PodTable


def pools_on(topology: CpuTopology, held: Iterable[CpuShare | None], reported: NodeTopology) -> CpuPools:
    """Derive both pools of a node.

    `reported`: the Pods that got CPUs from the kubelet, and what is kept from all Pods.
    """
    holders = [CpuHolder(share.cpus, share.qos) for share in held if share is not None]
    holders += [CpuHolder(alloc.cpus, "", managed_by_kubelet=True) for alloc in reported.by_kubelet]
    return pools(
        topology,
        holders,
        node_reserved=reported.reservation.cpus,
        system_exclusive=reported.system.cpus if reported.system.exclusive else 0,
    )


Pools = Sequence[tuple[str, DevicePool]]
"""Devices that nodes have by configuration, each pool with the name of its type."""


def pools_of(settings: WebhookSettings) -> tuple[tuple[str, DevicePool], ...]:
    """The pools of the settings."""
    return tuple((own.name, pool) for own in settings.devices.types for pool in own.pools)


def node_classes(
    metadata: Mapping[str, Any], types: DeviceTypes, pools: Pools
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Read a node's devices of software classes; for a type that its annotation names, the pools do not count.

    Returns the devices, and what could not be read, a sentence each.
    """
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if not pools and CLASSES not in annotations:
        return (), ()
    text = annotations.get(CLASSES, "{}")
    stated, problems = read_classes(text, types)
    wrong = list(problems)
    named = named_types(text)
    by_type: dict[str, dict[str, int]] = {}
    for kind, pool in pools:
        if kind not in named and pool.node_selector.items() <= labels.items():
            by_type.setdefault(kind, {}).update(pool.devices)
    made = [device for kind, of in by_type.items() for device in class_devices(types.by_name[kind], of, wrong)]
    cordoned = read_cordons(annotations)
    devices = tuple(without_cordoned(device, cordoned) for device in distinct((*stated, *made), wrong))
    return devices, tuple(wrong)


def beside(devices: Sequence[Device], classes: Iterable[Device]) -> tuple[Device, ...]:
    """All devices of a node, by type and order; of two with the same id, the one of its Device object."""
    known = {device.id for device in devices}
    more = (device for device in classes if device.id not in known)
    return tuple(sorted((*devices, *more), key=lambda device: (device.type, device.order)))


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds on nodes that say nothing themselves."""

    order: DeviceOrder = DeviceOrder.SMALLEST  # which of the devices that fit comes first
    cpu: CpuDefaults = field(default_factory=CpuDefaults)  # CPU orchestration
    delivery: DeliveryRules = field(default_factory=DeliveryRules)  # how containers get their cards


class Snapshots:
    """Makes snapshots.

    `pods`: whose annotations say what they hold. `clock`: seconds since the epoch. `rules`: what holds now about how
    containers get their cards.
    """

    def __init__(
        self,
        nodes: NodeTable,
        pods: PodTable,
        claims: ClaimTable,
        foreign: ForeignTable,
        clock: Callable[[], int],
        defaults: Defaults,
        rules: Callable[[], DeliveryRules],
    ) -> None:
        self._nodes = nodes
        self._pods = pods
        self._claims = claims
        self._foreign = foreign
        self._clock = clock
        self._defaults = defaults
        self._rules = rules
        self._remade = nodes.remade.reader()
        self._empty: dict[str, NodeSnapshot] = {}  # of known nodes: all but the holdings

    def on(self, node: str, holdings: Mapping[str, Holding]) -> NodeSnapshot:
        """A node with these holdings of the ledger, and with those that only annotations of its live Pods name.

        The second part matters where a ledger was lost, or where Koordinator bound before us: what the annotations of a
        running Pod name is never given again, whatever the ledger says. An annotation that cannot be read withholds
        what it may name. Where the ledger and an annotation differ, both are held (`allocator.disputed`). Where the
        annotation became unreadable later, or was removed, what the ledger holds is disputed.

        What ResourceClaims hold stands apart, in the snapshot's `claims`: as seen, and as the ledger has it for those
        whose allocation may not have been seen yet. So does what Pods of other products hold, in `foreign`. Where the
        kubelet has given a card to such Pods alone, and each of them states what it holds of it, that counts.
        """
        empty = self._without_holdings(node)
        reserved = of_claims(holdings)
        held = {uid: one for uid, one in holdings.items() if not one.fence} if reserved else dict(holdings)
        for uid, pod in self._pods.on(node).items():
            if uid not in held and pod.holds and not pod.finished:
                seen = self._beside(pod, empty)
                adopted = annotated_holding(seen, empty.devices, self._clock(), empty.own_cpus)
                if adopted is not None:
                    held[uid] = adopted
        disputes = self.disputes(node, holdings)
        if disputes:
            empty = replace(empty, disputed=frozenset().union(*(one.devices for one in disputes.values())))
            held.update((uid, _with_cpus(held[uid], one.cpus)) for uid, one in disputes.items() if one.cpus)
        claims = self._claims.on(node, empty.devices, reserved)
        foreign = self._adopted(node, empty)
        if not (claims or foreign):
            return empty.holding_all(held)
        kubelet_held = self._kubelet_held(node, empty, foreign)
        return replace(empty, holdings=held, claims=claims, foreign=foreign, kubelet_held=kubelet_held)

    def disputes(self, node: str, holdings: Mapping[str, Holding]) -> dict[str, Dispute]:
        """What the ledger and the annotations of a node's live Pods state differently, by the Pods' UIDs."""
        found = {}
        for uid, pod in self._pods.on(node).items():
            held = holdings.get(uid)
            if held is None or held.fence or pod.finished:
                continue
            if pod.annotation_problem or (held.shares and not pod.holds):
                found[uid] = Dispute(frozenset(share.id for share in held.shares))
            elif held.shares != pod.shares or disputed_cpus(held.cpus, pod.cpus):
                said = meant(pod.shares, pod.starts, self._numberings(node), self.devices(node))
                pairs = {kind.name: kind.memory for kind in pod.kinds if kind.memory}
                one = Dispute(disputed_devices(held.shares, said, pairs), disputed_cpus(held.cpus, pod.cpus))
                if one != AGREED:
                    found[uid] = one
        return found

    def _adopted(self, node: str, empty: NodeSnapshot) -> Mapping[str, ForeignHolding]:
        """What Pods of other products hold, beside what annotations and the ledger say of the same Pods."""
        return self._foreign.on(node, empty.devices, self._numberings(node))

    def _kubelet_held(self, node: str, empty: NodeSnapshot, foreign: Mapping[str, ForeignHolding]) -> frozenset[str]:
        """The devices that the kubelet gave to Pods of which it is not known exactly what they hold of them."""
        listed = self._nodes.devices(node)
        return empty.kubelet_held if listed is None else held_by_kubelet(listed, empty.kubelet_held, foreign)

    def devices(self, node: str) -> tuple[Device, ...]:
        """The devices of a node."""
        return self._without_holdings(node).devices

    def delivery(self, node: str) -> NodeDelivery:
        """How a node gives Pods their cards."""
        return self._without_holdings(node).delivery

    def compared(self, pod: PodInfo) -> PodInfo:
        """A bound Pod beside its node: what it names by numbers is found there; see `on_node`."""
        return self._beside(pod, self._without_holdings(pod.node))

    def _beside(self, pod: PodInfo, node: NodeSnapshot) -> PodInfo:
        return on_node(
            pod, node.devices, node.cpu.topology.all if node.cpu is not None else 0, self._numberings(node.name)
        )

    def _numberings(self, node: str) -> Numberings:
        listed = self._nodes.devices(node)
        return listed.numberings if listed is not None else ()

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
        order, isolation = labels.get(DEVICE_ORDER, ""), labels.get(ISOLATION_PROVIDER, "")
        told = listed.runtime if listed else None
        return NodeSnapshot(
            node,
            devices,
            kubelet_held=listed.kubelet_held if listed else frozenset(),
            wiring=listed.wiring(labels) if listed else UNWIRED,
            cpu=None if topology is None else resolve(topology, labels, self._defaults.cpu),
            isolation=isolation,
            delivery=delivery_of(told, labels.get(DELIVERY_LABEL, ""), self._rules(), isolation),
            order=order if order in list(DeviceOrder) else self._defaults.order,
        )

    def check_invariants(self) -> None:
        """Compare what is remembered with what the objects say now.

        Raises InvariantError: they disagree.
        """
        for node in tuple(self._empty):
            if self._without_holdings(node) != self._make(node):
                raise InvariantError(f"{node}: what is remembered of the node is not what its objects say")
        if lost := self._empty.keys() - self._nodes.known():
            raise InvariantError(f"nodes that are remembered and not known: {sorted(lost)}")


def _with_cpus(held: Holding, more: int) -> Holding:
    """A holding that has these CPUs too."""
    cpus = held.cpus or CpuShare(QosClass.LSE, 0)
    return replace(held, cpus=replace(cpus, cpus=cpus.cpus | more))
