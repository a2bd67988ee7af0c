"""What a round decides (pure): the objects, the cpusets and the problems, from everything that was read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import KUBERNETES_DOMAIN
from allocator.wire.deviceobject import device_of
from allocator.wire.memoryuse import MEMORY_LIMITS, read_uses, write_uses
from reporter.cgroup import plan
from reporter.gpu import inventory
from reporter.gpu.health import HealthPolicy, NodeRecord
from reporter.kubelet import allocations
from reporter.kubelet.devicecheckpoint import PodDevices
from reporter.pods import NodePod
from reporter.proof import agree, memory
from reporter.proof.agree import Agreement, CardClaim, Evidence, Strangers
from reporter.proof.memory import Judged
from reporter.publish import device, discovery, nodestatus, nodetopology
from reporter.publish.events import Occurrence, about_node, about_pod
from reporter.publish.identity import NodeIdentity
from reporter.publish.numbers import numberings
from reporter.reading import GpuView, HostReading


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide.

    Attributes:
        types: the device types.
        policy: how long cards must prove themselves.
        outage_seconds: how long NVML may be out of reach before its cards take no new Pods.
        mems: whether cpuset.mems follows the NUMA nodes that were allocated.
        domain: the domain of the Device object's resource names.
        discovery: whether the Node gets the labels of NVIDIA's feature discovery where nobody else writes them.
    """

    types: DeviceTypes
    policy: HealthPolicy = field(default_factory=HealthPolicy)
    outage_seconds: float = 60.0
    mems: bool = False
    domain: str = KUBERNETES_DOMAIN
    discovery: bool = True


@dataclass(frozen=True, slots=True)
class StandingObjects:
    """The Node and our objects as they stand in the cluster; None where they do not exist."""

    node: Mapping[str, Any] | None = None
    device: Mapping[str, Any] | None = None
    topology: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """What a round decided.

    Attributes:
        device: the Device object.
        topology: the NodeResourceTopology, and the CPU pools that enforcement uses.
        status: what is applied to the Node's status.
        pods: the Pods as the cpuset plan takes them.
        cgroup_root: the kubelet's `cgroupRoot`.
        agreements: how each Pod compares with what was allocated to it.
        problems: what could not be read or reported, a sentence each.
        unread: an Event for each annotation that cannot be read or followed.
        claims: cards that containers name and that stay in service all the same.
        holders: the Pods that have not finished, with what was allocated to them.
        elsewhere: ids of the devices that Pods have without an allocation of ours.
        memory: what each running container has of the memory of its cards.
    """

    device: device.DeviceObject
    topology: nodetopology.TopologyObject
    status: dict[str, Any]
    pods: tuple[plan.Pod, ...]
    cgroup_root: str
    agreements: tuple[Agreement, ...]
    problems: tuple[str, ...]
    unread: tuple[Occurrence, ...] = ()
    claims: tuple[CardClaim, ...] = ()
    holders: tuple[NodePod, ...] = ()
    elsewhere: frozenset[str] = frozenset()
    memory: tuple[Judged, ...] = ()


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
    """Decide what is reported and enforced.

    Args:
        node: the Node.
        host: its files.
        gpus: its cards.
        pods: all Pods bound to it.
        evidence: what containers and cards were seen to have.
        rules: the settings that decide.
        standing: our objects as they are in the cluster.
        now: seconds since 1970.
    """
    host = with_answers(host)
    every = tuple(pods)
    live = tuple(pod for pod in every if not pod.finished)
    kubelet = nodetopology.KubeletState(host.configuration.value, host.cpu_state.value)
    topology = nodetopology.build(node, host.cpus, host.zones, kubelet, live, standing.topology, host.cpusets)
    planned = tuple(pod.planned(mems=rules.mems) for pod in live)
    wants = plan.wants(planned, topology.pools, topology.kubelet)
    left_alone = frozenset(want.pod.uid for want in wants if want.pod.cpus and want.cpus != want.pod.cpus)
    agreements = tuple(agree.agreements(live, evidence, left_alone))
    unaccounted = strangers(host, live, evidence)
    judged = memory.judged(live, evidence, keeps=gpus.keeps_limits)
    before, _ = read_uses(device.annotations(standing.device).get(MEMORY_LIMITS))
    facts = device.DeviceFacts(
        held=(*held(host, every, gpus.node), *unaccounted.holding),
        agreement=agree.annotation(agreements),
        numberings=numberings(standing.device, gpus, now),
        memory=write_uses(memory.steadied(before, (one.use for one in judged))),
    )
    report = _cards(gpus, host, rules, standing, now)
    devices = device.build(
        node, report, host.devices, rules.types, domain=rules.domain, facts=facts, live=standing.device, now=now
    )
    unread = [f"Pod {pod}: {problem}" for pod in live for problem in pod.problems]
    return Decided(
        device=devices,
        topology=topology,
        status=nodestatus.build(
            node,
            devices.devices,
            report.labels,
            rules.types,
            [share for pod in live for share in pod.shares],
            _discovered(gpus, standing) if rules.discovery else {},
        ),
        pods=planned,
        cgroup_root=host.cgroup_root,
        agreements=agreements,
        problems=(
            *host.problems,
            *gpus.problems,
            *devices.problems,
            *topology.problems,
            *unread,
            *memory.problems(evidence),
        ),
        unread=_unread(node, topology, live),
        claims=unaccounted.claims,
        holders=live,
        elsewhere=frozenset(identity for one in facts.held for identity in one.device_ids),
        memory=judged,
    )


def _unread(
    node: NodeIdentity, topology: nodetopology.TopologyObject, pods: Iterable[NodePod]
) -> tuple[Occurrence, ...]:
    """An Event for each annotation of a Pod that cannot be read, and for a reservation that the machine cannot meet."""
    of_pods = [Occurrence(about_pod(pod), "AnnotationUnreadable", problem) for pod in pods for problem in pod.problems]
    of_node = [Occurrence(about_node(node), "ReservationTooLarge", topology.too_large)] if topology.too_large else []
    return (*of_node, *of_pods)


def _cards(
    gpus: GpuView, host: HostReading, rules: Rules, standing: StandingObjects, now: float
) -> inventory.DeviceReport:
    """Report the cards; an outage of NVML counts only if the node has a card and the outage has lasted."""
    outage = gpus.outage
    matters = outage is not None and (gpus.node.cards or host.nvidia) and now - outage.since >= rules.outage_seconds
    around = inventory.Circumstances(device.cordoned(standing.device), outage if matters else None)
    return inventory.build(gpus.node, gpus.driver, rules.policy, around, rules.domain)


def _discovered(gpus: GpuView, standing: StandingObjects) -> dict[str, str]:
    present = (card.facts for card in gpus.node.cards.values() if card.health.present)
    return discovery.discovery_labels(present, standing.node)


def with_answers(host: HostReading) -> HostReading:
    """Replace what the kubelet's files state by what the kubelet answered on its PodResources socket."""
    return replace(
        host,
        cpu_state=allocations.cpus(host.cpu_state, host.pod_resources),
        checkpoint=allocations.devices(host.checkpoint, host.pod_resources),
    )


def held(host: HostReading, pods: Iterable[NodePod], cards: NodeRecord) -> tuple[PodDevices, ...]:
    """Find the devices that the kubelet's device manager allocated to Pods without an allocation of ours.

    Device proposal, "Compatible". The kubelet's checkpoint keeps the entries of finished Pods until a new Pod asks for
    a device. Finished Pods hold nothing.
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
    """Map minor to UUID, for present cards only: the driver reuses the minor of a card that is gone."""
    return {card.facts.minor: uuid for uuid, card in cards.cards.items() if card.health.present}


def by_index(cards: NodeRecord) -> dict[int, str]:
    """Map index in NVML's list to UUID: NVML lists by PCI address. Empty if the address of a card is unknown."""
    there = [card.facts for card in cards.cards.values() if card.health.present]
    buses = {facts.bus: facts.uuid for facts in there if facts.bus is not None}
    return dict(enumerate(uuid for _, uuid in sorted(buses.items()))) if len(buses) == len(there) else {}


def strangers(host: HostReading, pods: Iterable[NodePod], evidence: Evidence) -> Strangers:
    """Find Pods with cards that neither we nor the kubelet's checkpoint account for."""
    checkpoint = host.checkpoint.value
    known = agree.card_holders(checkpoint.entries, evidence) if checkpoint is not None else frozenset()
    return agree.strangers(pods, evidence, known)
