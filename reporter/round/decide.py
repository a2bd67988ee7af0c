"""What a round decides (pure): the objects, the cpusets and the problems, from everything that was read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allocator.devices.delivery import DeliveryRules, delivery_of
from allocator.disputed import meant
from allocator.vocabulary.adopted import Numberings
from allocator.vocabulary.delivery import DELIVERY_LABEL, EnforcerTold, LimitProvider, NodeRuntime
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import KUBERNETES_DOMAIN
from allocator.wire.deviceobject import device_of
from allocator.wire.noderuntime import MEMORY_LIMITS, read_uses, write_uses
from reporter import enforcement
from reporter.cgroup import plan
from reporter.delivery import CardsThere, node_runtime, shown_nothing, takes_mounts
from reporter.enforcement import provider_of
from reporter.exchange import Facts
from reporter.gpu import entries
from reporter.gpu.health import HealthPolicy, NodeRecord
from reporter.kubelet import podresources
from reporter.kubelet.devicecheckpoint import PodDevices
from reporter.pods import NodeIdentity, NodePod
from reporter.proof import agree, memory
from reporter.proof.agree import Agreement, CardClaim, Evidence, UnaccountedCards
from reporter.proof.memory import Judged
from reporter.publish import device, nodestatus, nodetopology
from reporter.publish.device import numberings
from reporter.publish.events import Occurrence, about_node, about_pod
from reporter.reading import EnforcerReading, GpuView, HostReading
from reporter.runtimefiles import UNTOLD, OperatorPolicy
from reporter.settings import Enforcement


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide."""

    types: DeviceTypes
    policy: HealthPolicy = field(default_factory=HealthPolicy)  # how long cards must prove themselves
    outage_seconds: float = 60.0  # how long NVML may be out of reach before its cards take no new Pods
    mems: bool = False  # whether cpuset.mems follows the NUMA nodes that were allocated
    domain: str = KUBERNETES_DOMAIN  # the domain of the Device object's resource names
    # whether the Node gets the labels of NVIDIA's feature discovery where nobody else writes them
    discovery: bool = True
    delivery: DeliveryRules = field(default_factory=DeliveryRules)  # how containers are to get their cards
    own_handler: str = ""  # the runtime handler of the reporter's own container; "" for the default one
    enforcement: Enforcement = field(default_factory=Enforcement)  # the enforcer, and what limiters there are
    volcano_unit: int = 0  # bytes in one volcano.sh/gpu-memory, if the Node is to state such amounts; otherwise 0


@dataclass(frozen=True, slots=True)
class StandingObjects:
    """The Node and our objects as they stand in the cluster, None where there are none; the GPU Operator's policy."""

    node: Mapping[str, Any] | None = None
    device: Mapping[str, Any] | None = None
    topology: Mapping[str, Any] | None = None
    policy: OperatorPolicy = UNTOLD


@dataclass(frozen=True, slots=True)
class Decided:
    """What a round decided."""

    device: device.DeviceObject
    topology: nodetopology.TopologyObject  # the NodeResourceTopology, and the CPU pools that enforcement uses
    status: dict[str, Any]  # what is applied to the Node's status
    pods: tuple[plan.Pod, ...]  # the Pods as the cpuset plan takes them
    cgroup_root: str  # the kubelet's `cgroupRoot`
    agreements: tuple[Agreement, ...]  # how each Pod compares with what was allocated to it
    problems: tuple[str, ...]  # what could not be read or reported, a sentence each
    unread: tuple[Occurrence, ...] = ()  # an Event for each annotation that cannot be read or followed
    claims: tuple[CardClaim, ...] = ()  # cards that containers name and that stay in service all the same
    holders: tuple[NodePod, ...] = ()  # the Pods that have not finished, with what was allocated to them
    elsewhere: frozenset[str] = frozenset()  # ids of the devices that Pods have without an allocation of ours
    memory: tuple[Judged, ...] = ()  # what each running container has of the memory of its cards
    facts: Facts | None = None  # what the enforcer is told; None if there is none
    enforcer: EnforcerReading | None = None  # how it shows itself, likewise
    unshown: tuple[Occurrence, ...] = ()  # an Event if the node has cards and no way to show them to containers


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
    """Decide what is reported and enforced."""
    unread = host.checkpoint.value is None
    host = with_answers(host)
    every = tuple(pods)
    live = tuple(pod for pod in every if not pod.finished)
    kubelet = nodetopology.KubeletState(host.configuration.value, host.cpu_state.value, host.in_force)
    topology = nodetopology.build(node, host.cpus, host.zones, kubelet, live, standing.topology, host.cpusets)
    seen = host.enforcer
    if seen is not None:
        overruled = seen.registered and seen.state.cpus
        topology = replace(topology, kubelet=replace(topology.kubelet, overruled=overruled))
    planned = tuple(pod.planned(mems=rules.mems) for pod in live)
    wants = plan.wants(planned, topology.pools, topology.kubelet)
    left_alone = frozenset(want.pod.uid for want in wants if want.pod.cpus and want.cpus != want.pod.cpus)
    agreements = tuple(agree.agreements(live, evidence, left_alone))
    unaccounted = unaccounted_cards(host, live, evidence)
    judged = memory.judged(
        live,
        evidence,
        keeps=gpus.keeps_limits,
        provider=provider_of(standing.node, rules.enforcement) if seen is not None else LimitProvider.NONE,
        injected=seen.state.containers if seen is not None else {},
    )
    known = numberings(standing.device, gpus, now, host.devices)
    before, _ = read_uses(device.annotations(standing.device).get(MEMORY_LIMITS))
    runtime, of_runtime = _runtime(host, gpus, rules, standing)
    to_tell, enforcer = _enforcement(host, gpus, live, topology, rules, standing, runtime)
    if runtime is not None:
        runtime = replace(runtime, enforcer=enforcer)
    unshown = _unshown(node, runtime, rules, standing) if gpus.node.cards else ()
    facts = device.DeviceFacts(
        held=_all_held(
            (*held(host, every, gpus.node), *unaccounted.holding),
            device.held_before(standing.device) if unread else (),
            every,
        ),
        agreement=agree.annotation(agreements),
        numberings=known,
        memory=write_uses(memory.steadied(before, (one.use for one in judged))),
        runtime=runtime,
    )
    report = _cards(gpus, host, rules, standing, now)
    devices = device.build(
        node, report, host.devices, rules.types, domain=rules.domain, facts=facts, live=standing.device, now=now
    )
    of_pods = [f"Pod {pod}: {problem}" for pod in live for problem in pod.problems]
    return Decided(
        device=devices,
        topology=topology,
        status=nodestatus.build(
            node,
            devices.devices,
            report.labels,
            rules.types,
            [share._replace(id=identity) for share, identity in _meant(live, known, devices.devices)],
            {**(_discovered(gpus, standing) if rules.discovery else {}), **enforcement.label(enforcer, standing.node)},
            nodestatus.volcano_amounts(devices.devices, rules.volcano_unit, standing.node),
        ),
        pods=planned,
        cgroup_root=host.cgroup_root,
        agreements=agreements,
        problems=(
            *host.problems,
            *gpus.problems,
            *devices.problems,
            *topology.problems,
            *of_pods,
            *memory.problems(evidence),
            *of_runtime,
            *enforcement.problems(host.enforcer),
        ),
        unread=(*_unread(node, topology, live), *enforcement.events(node, host.enforcer, live)),
        claims=unaccounted.claims,
        holders=live,
        elsewhere=frozenset(identity for one in facts.held or () for identity in one.device_ids),
        memory=judged,
        unshown=unshown,
        facts=to_tell,
        enforcer=host.enforcer,
    )


def _meant(pods: Iterable[NodePod], known: Numberings, devices: Sequence[Device]) -> Iterator[tuple[Share, str]]:
    """Each share with the id of its device; of several that it may be of the first, because it counts once."""
    for pod in pods:
        for share, ids in meant(pod.shares, pod.starts, known, devices):
            yield share, (*ids, "")[0]


def _runtime(
    host: HostReading, gpus: GpuView, rules: Rules, standing: StandingObjects
) -> tuple[NodeRuntime | None, tuple[str, ...]]:
    """What is told of the container runtime, None without NVIDIA's cards; and what is wrong there, a sentence each."""
    reading = host.runtime
    if reading is None:
        return None, ()
    told = node_runtime(reading, standing.node or {}, standing.policy, cards_there(gpus), rules.own_handler)
    return told, (*reading.problems, *filter(None, (shown_nothing(reading, rules.own_handler),)))


def _enforcement(
    host: HostReading,
    gpus: GpuView,
    pods: Iterable[NodePod],
    topology: nodetopology.TopologyObject,
    rules: Rules,
    standing: StandingObjects,
    runtime: NodeRuntime | None,
) -> tuple[Facts | None, EnforcerTold | None]:
    """What the enforcer is told, and what is told of it; None without one."""
    seen, reading, settings = host.enforcer, host.runtime, rules.enforcement
    if seen is None:
        return None, None
    provider = provider_of(standing.node, settings)
    cgroup2 = reading is None or reading.cgroup2
    why_not = enforcement.no_limits(provider, runtime, cards_there(gpus), seen, cgroup2=cgroup2)
    known = enforcement.facts(
        enforcement.cpu_facts(pods, topology.pools, topology.kubelet, mems=rules.mems),
        enforcement.cards(gpus.node),
        runtime,
        settings,
        mounts=reading is not None and takes_mounts(reading, standing.node or {}, standing.policy),
        provider=provider,
        why_not=why_not,
    )
    return known, enforcement.told(known, seen, provider, why_not)


def cards_there(gpus: GpuView) -> CardsThere:
    """What delivery must know of the cards that are present."""
    there = [card.facts for card in gpus.node.cards.values() if card.health.present]
    whole = (facts.uuid for facts in there if not facts.mig)
    within = (mig.uuid for facts in there for mig in facts.mig_devices)
    return CardsThere(frozenset((*whole, *within)), any(facts.mig for facts in there), gpus.keeps_limits)


def _unshown(
    node: NodeIdentity, runtime: NodeRuntime | None, rules: Rules, standing: StandingObjects
) -> tuple[Occurrence, ...]:
    """An Event if Pods can get no card on this node, neither with the installation's RuntimeClass nor without one."""
    if runtime is None:
        return ()
    label = ((standing.node or {}).get("metadata") or {}).get("labels") or {}
    found = delivery_of(runtime, label.get(DELIVERY_LABEL, ""), rules.delivery)
    name = rules.delivery.runtime_class
    if found.plain.delivery is not None or (name and found.classed.delivery is not None):
        return ()
    message = f"no Pod gets a card of this node: it {found.plain.why_not}"
    if name and found.classed.why_not != found.plain.why_not:
        message += f". With RuntimeClass {name} none does either: the node {found.classed.why_not}"
    return (Occurrence(about_node(node), "CardsCannotBeShown", message),)


def _unread(
    node: NodeIdentity, topology: nodetopology.TopologyObject, pods: Iterable[NodePod]
) -> tuple[Occurrence, ...]:
    """An Event for each annotation of a Pod that cannot be read, and for a reservation that the machine cannot meet."""
    of_pods = [Occurrence(about_pod(pod), "AnnotationUnreadable", problem) for pod in pods for problem in pod.problems]
    of_node = [Occurrence(about_node(node), "ReservationTooLarge", topology.too_large)] if topology.too_large else []
    return (*of_node, *of_pods)


def _cards(
    gpus: GpuView, host: HostReading, rules: Rules, standing: StandingObjects, now: float
) -> entries.DeviceReport:
    """Report the cards; an outage of NVML counts only if the node has a card and the outage has lasted."""
    outage = gpus.outage
    matters = outage is not None and (gpus.node.cards or host.nvidia) and now - outage.since >= rules.outage_seconds
    around = entries.Circumstances(device.cordoned(standing.device), outage if matters else None)
    return entries.build(gpus.node, gpus.driver, rules.policy, around, rules.domain)


def _discovered(gpus: GpuView, standing: StandingObjects) -> dict[str, str]:
    present = (card.facts for card in gpus.node.cards.values() if card.health.present)
    return nodestatus.discovery_labels(present, standing.node)


def with_answers(host: HostReading) -> HostReading:
    """Replace what the kubelet's files state by what the kubelet answered on its PodResources socket."""
    return replace(
        host,
        cpu_state=podresources.cpus(host.cpu_state, host.pod_resources),
        checkpoint=podresources.devices(host.checkpoint, host.pod_resources),
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


def _all_held(
    found: Iterable[PodDevices], before: Iterable[PodDevices] | None, pods: Iterable[NodePod]
) -> tuple[PodDevices, ...] | None:
    """Add what the object in the cluster says to what was found; None if nobody can tell what is held.

    `found`: what the kubelet's files and its answer say, and what containers and cards show. `before`: what the object
    says where the kubelet's checkpoint was never readable, None if nobody can tell. A Pod that has finished, has gone
    or has an allocation of ours holds nothing of it.
    """
    if before is None:
        return None
    found = tuple(found)
    told = {(entry.pod_uid, entry.container, entry.resource) for entry in found}
    holding = {"", *(uid for pod in pods if not (pod.finished or pod.has_gpu) for uid in (pod.uid, pod.cgroup))}
    kept = (entry for entry in before if (entry.pod_uid, entry.container, entry.resource) not in told)
    return (*found, *(entry for entry in kept if entry.pod_uid in holding))


def by_minor(cards: NodeRecord) -> dict[int, str]:
    """Map minor to UUID, for present cards only: the driver reuses the minor of a card that is gone."""
    return {card.facts.minor: uuid for uuid, card in cards.cards.items() if card.health.present}


def slices(cards: NodeRecord) -> dict[str, int]:
    """Map the UUID of each MIG device to the minor of its card, for present cards only."""
    there = (card.facts for card in cards.cards.values() if card.health.present)
    return {mig.uuid: facts.minor for facts in there for mig in facts.mig_devices}


def by_index(cards: NodeRecord) -> dict[int, str]:
    """Map index in NVML's list to UUID: NVML lists by PCI address. Empty if the address of a card is unknown."""
    there = [card.facts for card in cards.cards.values() if card.health.present]
    buses = {facts.bus: facts.uuid for facts in there if facts.bus is not None}
    return dict(enumerate(uuid for _, uuid in sorted(buses.items()))) if len(buses) == len(there) else {}


def unaccounted_cards(host: HostReading, pods: Iterable[NodePod], evidence: Evidence) -> UnaccountedCards:
    """Find Pods with cards that neither we nor the kubelet's checkpoint account for."""
    checkpoint = host.checkpoint.value
    known = agree.card_holders(checkpoint.entries, evidence) if checkpoint is not None else frozenset()
    return agree.unaccounted_cards(pods, evidence, known)
