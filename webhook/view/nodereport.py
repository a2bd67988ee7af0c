"""One node for people: its devices, what is held of each and by whom, and its CPUs (pure).

The device map, `devices`, `top`, `pod`, `simulate` and `explain` show this. It is made of the snapshot that decisions
read. Amounts are integers in their resource's unit: percent, bytes or units. What cannot be read is held, never free.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from allocator.cpu.pools import CpuPools
from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.cputopology import CpuTopology
from allocator.vocabulary.delivery import MemoryUse
from allocator.vocabulary.device import UNWIRED, Device, Links
from allocator.vocabulary.devicetype import DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.noderuntime import read_uses
from allocator.wire.nodetopology import NodeTopology, PodCpuAlloc
from webhook.view.cluster import ClusterView
from webhook.view.snapshots import pools_on

Holder = Holding | ForeignHolding

GONE: Final = "the node has no such device"


class Health(StrEnum):
    """Whether anything new may land on a device, and if not, why."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    CORDONED = "cordoned"
    KUBELET = "kubelet"  # the kubelet's device plugin gave it away
    UNREAD = "unread"  # it is not known who holds it
    GONE = "gone"  # it is held, and its node does not list it


class Availability(StrEnum):
    """How much of a device can still be given."""

    FREE = "free"  # nobody holds anything of it
    PARTS = "in parts"  # some of it is held, and some of each of its resources is free
    HELD = "held"  # nothing more can be given of it
    OUT = "out of service"  # it takes nothing new, whoever holds some of it
    GONE = "gone"  # it is held, and its node does not list it


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """A device of a node."""

    node: str
    kind: DeviceType
    minor: int  # its number on the node
    id: str
    device: Device | None  # as the node lists it; None if the node does not
    health: Health
    why: str  # why nothing new may land on it, where that follows from no holder of it; "" otherwise
    by_kubelet: bool  # whether the kubelet's device plugin gave it away
    closed: bool  # whether its holder shares it with nobody
    total: Mapping[str, int]  # resource tail -> what it has; empty if the node does not list it
    used: Mapping[str, int]  # resource tail -> what is held of it
    free: Mapping[str, int]  # resource tail -> what can still be given
    held: tuple[tuple[Holder, Share], ...]  # by namespace, name and UID; Pods of other products last
    uses: tuple[MemoryUse, ...] = ()  # what containers have of its memory, as the reporter last told

    @property
    def name(self) -> str:
        """How people name it on its node: `gpu/3`."""
        return f"{self.kind.name}/{self.minor}"

    @property
    def state(self) -> Availability:
        """How much of it can still be given."""
        if self.device is None:
            return Availability.GONE
        if not self.device.healthy:
            return Availability.OUT
        if self.health is not Health.HEALTHY or self.closed:
            return Availability.HELD
        if not any(self.used.values()):
            return Availability.FREE
        more = all(self.free[tail] for tail, amount in self.total.items() if amount)
        return Availability.PARTS if more else Availability.HELD

    @property
    def counted(self) -> list[tuple[Holder, Share]]:
        """Those that hold some of it, without those whose part a reservation Pod's includes."""
        return [(one, share) for one, share in self.held if isinstance(one, Holding) or not one.within]

    @property
    def in_use(self) -> bool:
        """Whether anybody holds some of it."""
        return bool(self.held) or self.by_kubelet

    def uses_of(self, holder: Holder) -> list[MemoryUse]:
        """What the containers of one of its holders have of its memory."""
        return [one for one in self.uses if (one.namespace, one.pod) == (holder.namespace, holder.name)]

    def is_of(self, namespace: str) -> bool:
        """Whether a Pod of a namespace holds some of it; of any if it is ""."""
        return not namespace or any(one.namespace == namespace for one, _ in self.held)


@dataclass(frozen=True, slots=True)
class CpuReport:
    """The CPUs of a node. Sets of CPUs are integers: bit i is CPU i."""

    topology: CpuTopology | None  # None if the node reports no usable one
    reserved: int  # those that no Pod may get, without those in `kubelet`
    held: tuple[tuple[Holding, CpuShare], ...]  # Pods with what they hold, by name
    kubelet: tuple[PodCpuAlloc, ...] = ()  # Pods that got CPUs from the kubelet's static policy
    pools: CpuPools | None = None  # those left for Pods without CPUs of their own; None if the topology is not known
    unknown: bool = False  # whether it is not known who holds them

    @property
    def given(self) -> int:
        """Those that belong to one Pod alone."""
        given = 0
        for cpus in (*(share.cpus for _, share in self.held), *(alloc.cpus for alloc in self.kubelet)):
            given |= cpus
        return given


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node."""

    name: str
    devices: tuple[DeviceReport, ...]  # by type, in the types' order; those that are gone last
    holders: tuple[Holder, ...] = ()  # by namespace, name and UID; Pods of other products last
    cpus: CpuReport | None = None  # None if nothing is known of them
    links: Links = UNWIRED.links  # NVLink between its devices
    blocked: str = ""  # why it is not known who holds what there; "" if it is
    unseen: bool = False  # whether Pods of other products are not known, so that any GPU may be held by one
    undelivered: str = ""  # why no Pod gets cards there; "" if some do
    cordoned: frozenset[str] = frozenset()  # ids of devices that an administrator has cordoned, gone ones too
    problems: tuple[str, ...] = ()  # what could not be read, a sentence each

    def held(self, identity: str) -> list[tuple[Holder, Share]]:
        """Who holds some of a device."""
        return [(one, share) for one in self.holders for share in one.shares if share.id == identity]


def report_of(view: ClusterView, name: str, types: DeviceTypes, *, unseen: bool = False) -> NodeReport:
    """A node as it is known now; `unseen`: Pods of other products are not known."""
    node, blocked, listed = view.snapshot(name), view.nodes.blocked(name), view.nodes.devices(name)
    if blocked:
        node = replace(node, devices=tuple(view.devices(name)))
    uses, unclear = read_uses(listed.memory_uses) if listed is not None else ((), "")
    topology = view.nodes.topology(name)
    report = node_report(node, types, topology=topology, uses=uses, blocked=blocked, unseen=unseen)
    problems = [f"Device {name}: {one}" for one in (*(listed.problems if listed is not None else ()), unclear) if one]
    problems += [f"Node {name}: its holdings are unknown: {blocked}"] if blocked else []
    return replace(report, cordoned=listed.cordoned if listed else frozenset(), problems=tuple(problems))


def node_report(
    node: NodeSnapshot,
    types: DeviceTypes,
    *,
    topology: NodeTopology | None = None,
    uses: Iterable[MemoryUse] = (),
    blocked: str = "",
    unseen: bool = False,
) -> NodeReport:
    """Report on a node; devices of types that are not known are left out.

    `blocked`: why it is not known who holds what; all is held then. `unseen`: Pods of other products are not known.
    """
    holders: tuple[Holder, ...] = tuple(sorted(node.given(), key=_by_name))
    holders += tuple(sorted(node.foreign.values(), key=_by_name))
    reader = _DeviceReader(node, holders, uses, blocked=bool(blocked), unseen=unseen)
    devices = tuple(reader.devices(types))
    delivered = any(way.delivery is not None for way in (node.delivery.plain, node.delivery.classed))
    return NodeReport(
        node.name,
        devices,
        holders,
        cpu_report(node, topology),
        node.wiring.links,
        blocked,
        unseen,
        "" if delivered or not devices else f"Pods get no cards here: the node {node.delivery.plain.why_not}",
    )


def _by_name(one: Holder) -> tuple[str, str, str]:
    return one.namespace, one.name, one.uid


class _DeviceReader:
    """Reports on the devices of one node."""

    def __init__(
        self, node: NodeSnapshot, holders: Sequence[Holder], uses: Iterable[MemoryUse], *, blocked: bool, unseen: bool
    ) -> None:
        self._node = node
        self._blocked = blocked
        self._unseen = unseen
        self._roots = {device.pcie for device in node.devices if device.id in node.alone and device.pcie}
        self._held: dict[str, list[tuple[Holder, Share]]] = {}
        for one in holders:
            for share in one.shares:
                self._held.setdefault(share.id, []).append((one, share))
        self._uses: dict[str, list[MemoryUse]] = {}
        for use in uses:
            self._uses.setdefault(use.card, []).append(use)

    def devices(self, types: DeviceTypes) -> Iterator[DeviceReport]:
        """The devices of the node, then those that are held and gone."""
        for kind in types.types:
            yield from (self._listed(kind, device) for device in self._node.devices if device.type == kind.name)
        there = {device.id for device in self._node.devices}
        gone = [found[0][1] for identity, found in self._held.items() if identity not in there]
        for kind in types.types:
            lost = [share for share in gone if share.type == kind.name]
            yield from (self._gone(kind, share) for share in sorted(lost, key=lambda share: (share.minor, share.id)))

    def _listed(self, kind: DeviceType, device: Device) -> DeviceReport:
        node, identity = self._node, device.id
        total = device.capacity
        health, why = self._health(device)
        closed = identity in node.alone or identity in node.unshared or device.pcie in self._roots
        if not why and closed and identity not in node.used:
            why = "a Pod has its PCIe root to itself"
        if self._unknown(device):
            used, free = total, dict.fromkeys(total, 0)
        else:
            known = node.used.get(identity, {})
            used = {tail: known.get(tail, 0) for tail in total}
            left = (0,) * len(total) if closed else node.free(device, tuple(total))
            free = dict(zip(total, left, strict=True))
        return DeviceReport(
            node.name,
            kind,
            device.minor,
            identity,
            device,
            health,
            why,
            identity in node.kubelet_held,
            closed,
            total,
            used,
            free,
            tuple(self._held.get(identity, ())),
            tuple(self._uses.get(identity, ())),
        )

    def _unknown(self, device: Device) -> bool:
        return self._blocked or (self._unseen and device.type == TYPE_GPU)

    def _health(self, device: Device) -> tuple[Health, str]:
        if device.cordoned:
            return Health.CORDONED, device.why_not or "cordoned by an administrator"
        if not device.healthy:
            return Health.UNHEALTHY, device.why_not or "unhealthy"
        if self._unknown(device):
            return Health.UNREAD, "who holds it is unknown" if self._blocked else "Pods of other products may hold it"
        if device.id in self._node.disputed:
            why = "the ledger and a Pod's annotation state different: see the Event AllocationDisputed"
            return Health.UNREAD, why
        if not self._node.is_usable(device):
            return Health.KUBELET, "allocated by the kubelet's device plugin"
        return Health.HEALTHY, ""

    def _gone(self, kind: DeviceType, named: Share) -> DeviceReport:
        used = self._node.used.get(named.id, {})
        held = tuple(self._held[named.id])
        about = (self._node.name, kind, named.minor, named.id, None, Health.GONE, GONE)
        return DeviceReport(*about, by_kubelet=False, closed=False, total={}, used=used, free={}, held=held)


def cpu_report(node: NodeSnapshot, reported: NodeTopology | None) -> CpuReport | None:
    """Report on the CPUs of a node; None if neither they nor a holder of some are known."""
    known = node.cpu
    held = tuple(
        (one, one.cpus)
        for one in sorted(node.holdings.values(), key=_by_name)
        if one.cpus is not None and (one.cpus.cpus or one.cpus.numa)
    )
    if known is None or reported is None:
        return CpuReport(None, 0, held) if held else None
    by_kubelet = 0
    for alloc in reported.by_kubelet:
        by_kubelet |= alloc.cpus
    left = pools_on(known.topology, [share for _, share in held], reported)
    reserved = known.reserved & ~by_kubelet
    return CpuReport(known.topology, reserved, held, reported.by_kubelet, left, known.holders_unknown)


def told_tails(kind: DeviceType) -> tuple[str, ...]:
    """The resources of a type that people are shown: of memory that is stated in two units, the bytes."""
    return tuple(tail for tail in kind.tails if kind.memory is None or tail != kind.memory[1])
