"""One round's decisions (pure): from what was read to what is told, enforced and complained of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from allocator.vocabulary.devicetype import DeviceTypes
from allocator.wire.deviceobject import device_of
from allocator.wire.numazones import NumaZone
from reporter.cgroup import plan
from reporter.gpu import inventory
from reporter.gpu.facts import DriverFacts, LostCard, Outage
from reporter.gpu.faults import STANDING
from reporter.gpu.health import NOTHING_KNOWN, CardState, HealthPolicy, NodeRecord
from reporter.inventory.cpus import CpuInventory
from reporter.inventory.pci import PciDevice
from reporter.kubelet import allocations
from reporter.kubelet.allocations import Allocations
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.kubelet.cpustate import CpuState
from reporter.kubelet.devicecheckpoint import DeviceCheckpoint, PodDevices
from reporter.kubelet.watched import FileReading
from reporter.pods import NodePod
from reporter.proof import agree
from reporter.proof.agree import Agreement, Evidence
from reporter.publish import device, nodestatus, nodetopology
from reporter.publish.events import Occurrence, about_node, about_pod
from reporter.publish.identity import NodeIdentity


def _unread() -> FileReading[Any]:
    return FileReading(None, None)


@dataclass(frozen=True, slots=True)
class HostReading:
    """One look at the node's files.

    Attributes:
        cpus: of the machine.
        zones: what its NUMA nodes have.
        devices: RDMA NICs, FPGAs and configured types.
        nvidia: whether there is a card of NVIDIA's, whatever NVML says.
        configuration: the kubelet's.
        cpu_state: its CPU manager's.
        checkpoint: its device manager's.
        told: what it tells itself, over its PodResources socket.
    """

    cpus: CpuInventory
    zones: Mapping[int, NumaZone] = field(default_factory=dict)
    devices: tuple[PciDevice, ...] = ()
    nvidia: bool = False
    configuration: FileReading[KubeletConfiguration] = field(default_factory=_unread)
    cpu_state: FileReading[CpuState] = field(default_factory=_unread)
    checkpoint: FileReading[DeviceCheckpoint] = field(default_factory=_unread)
    told: FileReading[Allocations] = field(default_factory=_unread)

    @property
    def problems(self) -> tuple[str, ...]:
        """What of the kubelet's files, and of what it tells itself, cannot be used."""
        readings = (self.configuration.problem, self.cpu_state.problem, self.checkpoint.problem, self.told.problem)
        return tuple(problem for problem in readings if problem)


@dataclass(frozen=True, slots=True)
class GpuView:
    """What is known of the cards.

    Attributes:
        node: their record.
        driver: as last read; None where it never was.
        outage: why NVML cannot be read; None where it can.
        unnamed: cards that do not answer and never did, so that nobody knows which they are.
    """

    node: NodeRecord = NOTHING_KNOWN
    driver: DriverFacts | None = None
    outage: Outage | None = None
    unnamed: tuple[LostCard, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """What is to be said of the cards that have no name."""
        return tuple(
            f"the card at place {card.index} of NVML's list has not answered since the driver was loaded "
            f"({card.message}): {STANDING['GpuNeedsReset' if card.reset else 'GpuLost'].message}"
            for card in self.unnamed
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the settings decides.

    Attributes:
        types: of devices.
        policy: how long cards prove themselves.
        outage_seconds: how long NVML may be out of reach before its cards take nothing new.
        mems: whether cpuset.mems follows.
    """

    types: DeviceTypes
    policy: HealthPolicy = field(default_factory=HealthPolicy)
    outage_seconds: float = 60.0
    mems: bool = False


@dataclass(frozen=True, slots=True)
class StandingObjects:
    """Objects as they stand in the cluster; None where they do not exist."""

    device: Mapping[str, Any] | None = None
    topology: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """What a round comes to.

    Attributes:
        device: the Device object.
        topology: the NodeResourceTopology, and what enforcement is told.
        status: what is applied to the Node's status.
        pods: for the plan of cpusets.
        cgroup_root: of the kubelet.
        agreements: how Pods compare.
        problems: what could not be read or told, a sentence each.
    """

    device: device.DeviceObject
    topology: nodetopology.TopologyObject
    status: dict[str, Any]
    pods: tuple[plan.Pod, ...]
    cgroup_root: str
    agreements: tuple[Agreement, ...]
    problems: tuple[str, ...]


def decide(
    node: NodeIdentity,
    host: HostReading,
    gpus: GpuView,
    pods: Iterable[NodePod],
    evidence: Evidence,
    rules: Rules,
    standing: StandingObjects,
    now: float,
) -> Decided:
    """Decide.

    Args:
        node: the Node.
        host: its files.
        gpus: its cards.
        pods: bound to it, all.
        evidence: what containers and cards were seen to have.
        rules: of the settings.
        standing: objects as they are.
        now: seconds since 1970.
    """
    host = preferring_told(host)
    every = tuple(pods)
    live = tuple(pod for pod in every if not pod.finished)
    kubelet = nodetopology.KubeletState(host.configuration.value, host.cpu_state.value)
    topology = nodetopology.build(node, host.cpus, host.zones, kubelet, live, standing.topology)
    planned = tuple(pod.planned(mems=rules.mems) for pod in live)
    wants = plan.wants(planned, topology.pools, topology.kubelet)
    left_alone = frozenset(want.pod.uid for want in wants if want.pod.cpus and want.cpus != want.pod.cpus)
    agreements = tuple(agree.agreements(live, evidence, left_alone))
    told = device.Told(
        held=(*held(host, every, gpus.node), *strangers(host, live, evidence)),
        agreement=agree.annotation(agreements),
    )
    report = _cards(gpus, host, rules, standing, now)
    devices = device.build(node, report, host.devices, rules.types, told=told, live=standing.device, now=now)
    configuration = host.configuration.value or KubeletConfiguration()
    unread = [f"Pod {pod}: {problem}" for pod in live for problem in pod.problems]
    return Decided(
        device=devices,
        topology=topology,
        status=nodestatus.build(node, devices.devices, report.labels, rules.types),
        pods=planned,
        cgroup_root=configuration.cgroup_root,
        agreements=agreements,
        problems=(*host.problems, *gpus.problems, *devices.problems, *topology.problems, *unread),
    )


def _cards(
    gpus: GpuView, host: HostReading, rules: Rules, standing: StandingObjects, now: float
) -> inventory.DeviceReport:
    """Tell of the cards; an outage counts where there is a card, and once it has lasted."""
    outage = gpus.outage
    matters = outage is not None and (gpus.node.cards or host.nvidia) and now - outage.since >= rules.outage_seconds
    around = inventory.Circumstances(device.cordoned(standing.device), outage if matters else None)
    return inventory.build(gpus.node, gpus.driver, rules.policy, around)


def preferring_told(host: HostReading) -> HostReading:
    """Put what the kubelet itself tells that it gave away in the place of what its files say of the same."""
    return replace(
        host,
        cpu_state=allocations.cpus(host.cpu_state, host.told),
        checkpoint=allocations.devices(host.checkpoint, host.told),
    )


def held(host: HostReading, pods: Iterable[NodePod], cards: NodeRecord) -> tuple[PodDevices, ...]:
    """Say what the kubelet's device manager gave to Pods that we did not allocate (device proposal, "Compatible").

    Its file keeps entries of Pods that have ended until something new is asked of it: they hold nothing.
    """
    by_kubelet = {pod.cgroup: pod for pod in pods}
    minors = {str(minor): uuid for minor, uuid in by_minor(cards).items()}
    found = []
    for entry in host.checkpoint.value.entries if host.checkpoint.value is not None else ():
        pod = by_kubelet.get(entry.pod_uid)
        if pod is not None and not pod.finished and not pod.has_gpu:
            plain = dict.fromkeys(map(device_of, entry.device_ids))
            ids = tuple(minors.get(identity, identity) for identity in plain)
            found.append(replace(entry, device_ids=ids))
    return tuple(found)


def by_minor(cards: NodeRecord) -> dict[int, str]:
    """Tell which card has which minor, of those that are there: that of a card that is gone the driver gives again."""
    return {card.facts.minor: uuid for uuid, card in cards.cards.items() if card.health.present}


def by_index(cards: NodeRecord) -> dict[int, str]:
    """Tell which card has which place in NVML's list, in the order of PCI addresses; empty where one tells none."""
    there = [card.facts for card in cards.cards.values() if card.health.present]
    buses = {facts.bus: facts.uuid for facts in there if facts.bus is not None}
    return dict(enumerate(uuid for _, uuid in sorted(buses.items()))) if len(buses) == len(there) else {}


def strangers(host: HostReading, pods: Iterable[NodePod], evidence: Evidence) -> tuple[PodDevices, ...]:
    """Find Pods that have cards, of which neither we nor the kubelet's checkpoint know."""
    checkpoint = host.checkpoint.value
    known = agree.card_holders(checkpoint.entries, evidence) if checkpoint is not None else frozenset()
    return agree.strangers(pods, evidence, known)


def health_events(
    node: NodeIdentity,
    before: NodeRecord,
    after: NodeRecord,
    told: Mapping[str, Any] | None = None,
    now: Mapping[str, Any] | None = None,
) -> list[Occurrence]:
    """Tell of cards whose state changed, or that had further errors; and of other devices whose health changed.

    Args:
        node: whose.
        before: the cards as last told.
        after: the cards.
        told: the Device object as last told: at the start, the one that stands in the cluster; {} where there is none.
            None where that is not known yet: then nothing is told of other devices, so that a restart repeats nothing.
        now: the Device object as decided.
    """
    found = [] if told is None or now is None else _device_events(node, told, now)
    for uuid, card in sorted(after.cards.items()):
        health = card.health
        known = before.cards.get(uuid)
        was = known.health if known is not None else None
        if was is None and health.state is CardState.HEALTHY:
            continue
        further = health.count - (was.count if was is not None else 0)
        if was is not None and was.state is health.state and further <= 0:
            continue
        cause = health.cause
        if health.state in {CardState.HEALTHY, CardState.RECOVERING} or cause is None:
            message = f"card {uuid} is {health.state.value}"
            found.append(Occurrence(about_node(node), f"Gpu{health.state.value.capitalize()}", message, "Normal"))
        else:
            message = f"card {uuid} is {health.state.value}: {cause.message}"
            found.append(Occurrence(about_node(node), cause.reason, message, count=max(further, 1)))
    return found


def _device_events(node: NodeIdentity, was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Occurrence]:
    """Tell of devices that are no cards: unusable now or for another reason, usable again, or gone.

    That an administrator set one aside is no Event, as with cards; it may have gone wrong or well meanwhile, so how it
    comes back is told.
    """
    found = []
    before, after = device.others(was), device.others(now)
    for identity, one in sorted(after.items()):
        known = before.get(identity)
        about = f"device {identity} ({one.type}) is"
        if one.healthy:
            if was and (known is None or not known.healthy):  # one that was not there may have been gone
                found.append(Occurrence(about_node(node), "DeviceHealthy", f"{about} healthy", "Normal"))
        elif one.reason != device.SET_ASIDE and (known is None or known.healthy or known.reason != one.reason):
            found.append(Occurrence(about_node(node), one.reason, f"{about} unusable: {one.message}"))
    for identity, one in sorted(before.items()):
        if identity not in after:
            message = f"device {identity} ({one.type}) is gone"
            found.append(Occurrence(about_node(node), "DeviceGone", message))
    return found


def outage_event(node: NodeIdentity, view: GpuView, host: HostReading) -> Occurrence | None:
    """Tell that NVML is out of reach, where there is a card of which it should tell, or that a card is."""
    if view.outage is None:
        return Occurrence(about_node(node), "GpuLost", "; ".join(view.problems)) if view.unnamed else None
    if not (view.node.cards or host.nvidia):
        return None
    return Occurrence(about_node(node), view.outage.reason, view.outage.message)


def mismatch_events(agreements: Iterable[Agreement]) -> list[Occurrence]:
    """Tell each Pod that does not have what was decided."""
    return [
        Occurrence(about_pod(one.pod), "AllocationMismatch", mismatch.message)
        for one in agreements
        for mismatch in one.mismatches
    ]
