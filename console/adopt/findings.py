"""Who holds what on which node, which Pods wait, and what would clash (pure, from what was read once)."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from allocator.adopted import Survey, survey
from allocator.request.original import read_asks
from allocator.request.pod import is_ours
from allocator.vocabulary.adopted import Product
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialects import PEERS, VOLCANO_MEMORY, VOLCANO_NUMBER
from allocator.vocabulary.names import DEVICE_ALLOCATED, ORIGINAL_REQUEST, RESOURCE_MAPS, Mode
from allocator.vocabulary.node import NodeSnapshot
from console.cluster import Cluster, ReadCluster, about_devices
from console.doctor.checks.delivery import card_nodes, chosen, shown
from console.doctor.findings import Level
from console.doctor.policies import PolicyFindings, cure, removed, what
from webhook.settings import SchedulerNames, WebhookSettings, tells_volcano, types_of

OURS: Final = "koordgate"
PLUGIN: Final = "device plugin"
CLAIM: Final = "ResourceClaim"
NO_WAY: Final = "none"
READY: Final = "ready"
NO_POLICIES: Final = PolicyFindings()
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_TITLES: Final = {one.name: one.title for one in PEERS}


class HeldBy(msgspec.Struct, frozen=True):
    """Who holds some of a device: a Pod or claim, the product that gave it, and where that is stated."""

    device: str
    holder: str
    uid: str
    product: str
    evidence: str


class DevicePod(msgspec.Struct, frozen=True, rename={"read": "readHere"}):
    """A Pod that asks for devices and has not finished.

    `node` is "" while it waits. `product` is whose names it asks in, or `koordgate` once it was translated. `read` says
    whether koordgate would translate it with the present settings.
    """

    namespace: str
    name: str
    uid: str
    node: str
    product: str
    read: bool
    mode: Mode

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class NodeFinding(
    msgspec.Struct, frozen=True, rename={"name": "node", "listed": "deviceObject", "sick": "outOfService"}
):
    """One node that has devices, or Pods that ask for them.

    `clashes, problems`: a sentence each; problems are what cannot be read.
    """

    name: str
    ready: bool  # whether koordgate can give its devices
    listed: bool  # whether it has a Device object; otherwise its devices are assumed
    reporter: str  # `ready`, `not ready` or `none`
    devices: int = 0
    sick: dict[str, int] = {}  # why some devices take nothing new: reason -> number
    held: tuple[HeldBy, ...] = ()  # by device and holder
    clashes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    offers: dict[str, str] = {}  # resources of other products that its Node still states
    # the way in which containers get NVIDIA's cards there, "none" without any; "" if that is not known, or it has no
    # such cards
    delivery: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFindings:
    """All that was found; sentences say what to do.

    `unshown, doubts`: where containers would get none of NVIDIA's cards, and where that is not known.
    """

    nodes: tuple[NodeFinding, ...]
    pods: tuple[DevicePod, ...]  # those that ask for devices, by namespace and name
    modes: Mapping[str, Mode]  # the mode of each namespace that has such Pods
    installed: bool | None = None  # whether koordgate's webhooks are there; None if that is not known
    notes: tuple[str, ...] = ()  # what could not be read
    assumed: bool = False  # whether the settings by which it was judged are defaults that nobody confirmed
    exempt: frozenset[str] = frozenset()  # namespaces whose label says nothing, because koordgate does nothing there
    unshown: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()  # those of the cluster's own that do not apply to Pods that are translated

    @property
    def waiting(self) -> list[DevicePod]:
        """Pods that wait for a scheduler other than koordgate's."""
        return [pod for pod in self.pods if not pod.node and pod.product != OURS]

    @property
    def clashes(self) -> list[str]:
        """What would clash on any node."""
        return [clash for node in self.nodes for clash in node.clashes]


def find(cluster: Cluster, seen: ReadCluster, policies: PolicyFindings = NO_POLICIES) -> ClusterFindings:
    """Find who holds what, and what would clash; `seen` is the cluster as a replica would see it."""
    types = types_of(seen.settings)
    pods = sorted(device_pods(cluster, seen, types), key=lambda pod: (pod.namespace, pod.name))
    on: dict[str, list[DevicePod]] = {}
    for pod in pods:
        on.setdefault(pod.node, []).append(pod)
    listed = {obj["metadata"]["name"] for obj in cluster.objects("Device")}
    unlisted = {obj["metadata"]["name"] for obj in cluster.unlisted}
    uids = ((pod["metadata"].get("uid", ""), pod["metadata"]) for pod in cluster.objects("Pod"))
    names = {uid: f"{about.get('namespace', '')}/{about['name']}" for uid, about in uids}
    carded = [node for node in card_nodes(cluster.objects("Node"), seen.view) if node.name in listed]
    ways = {name: str(found.way.delivery or NO_WAY) for name, found in chosen(carded).items()}
    nodes = []
    for obj in sorted(cluster.objects("Node"), key=lambda obj: str(obj["metadata"]["name"])):
        name = obj["metadata"]["name"]
        offers = _offers(obj, types, seen.settings)
        if name in listed or name in unlisted or offers or name in on or seen.records.record(name).holdings:
            there, way = name in listed, ways.get(name, "")
            nodes.append(_node(name, seen, cluster, on.get(name, []), offers, names, way, listed=there))
    modes = {namespace: seen.mode(namespace) for namespace in sorted({pod.namespace for pod in pods})}
    told = [one for one in shown(carded) if one.todo]
    listed_nodes = {node.name for node in nodes}
    apart = [problem for name, said in sorted(seen.problems.items()) if name not in listed_nodes for problem in said]
    gone = removed(types, seen.settings.domain)
    return ClusterFindings(
        tuple(nodes),
        tuple(pods),
        modes,
        cluster.installed,
        (*cluster.notes, *apart),
        cluster.assumed,
        seen.modes.exempt,
        tuple(f"{one.what}; {one.todo}" for one in told if one.level is Level.FAILURE),
        tuple(f"{one.what}; {one.todo}" for one in told if one.level is not Level.FAILURE),
        (
            *policies.problems,
            *(f"{what(one)}; {cure(one.names, gone)}" for one in policies.outdated),
        ),
    )


def device_pods(cluster: Cluster, seen: ReadCluster, types: DeviceTypes) -> Iterator[DevicePod]:
    """The Pods that ask for devices and have not finished."""
    ours = seen.settings.scheduler.names
    for pod in cluster.objects("Pod"):
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        if (pod.get("status") or {}).get("phase") in _FINISHED or not about_devices(pod, types):
            continue
        namespace = metadata.get("namespace", "")
        yield DevicePod(
            namespace,
            metadata["name"],
            metadata.get("uid", ""),
            spec.get("nodeName") or "",
            product_of(pod, types, ours),
            is_ours(pod, types.within(namespace)),
            seen.mode(namespace),
        )


def product_of(pod: Mapping[str, Any], types: DeviceTypes, schedulers: SchedulerNames) -> str:
    """The product that a Pod's devices come from, by what it asks in."""
    annotations: Mapping[str, Any] = pod["metadata"].get("annotations") or {}
    if ORIGINAL_REQUEST in annotations or (pod.get("spec") or {}).get("schedulerName") in schedulers:
        return OURS
    for dialect in read_asks(pod, types.known, implied=False).dialects:
        if dialect.title:
            return dialect.title
    known = types.known.resources
    if DEVICE_ALLOCATED in annotations or any(name in known and known[name].dialect.own for name in _named(pod)):
        return "Koordinator"
    return PLUGIN


def _named(pod: Mapping[str, Any]) -> Iterator[str]:
    spec = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for key in RESOURCE_MAPS:
            yield from (container.get("resources") or {}).get(key) or ()


def _offers(node: Mapping[str, Any], types: DeviceTypes, settings: WebhookSettings) -> dict[str, str]:
    """What device plugins of other products state on a Node: names that koordgate's reporter does not write."""
    stated: Mapping[str, Any] = (node.get("status") or {}).get("allocatable") or {}
    known = types.known.resources
    mirrored = (VOLCANO_MEMORY, VOLCANO_NUMBER) if tells_volcano(settings) else ()
    others = (name for name in stated if name in known and name not in mirrored)
    foreign = (name for name in others if not known[name].dialect.own or known[name].dialect.title)
    return {name: str(stated[name]) for name in sorted(foreign) if str(stated[name]) != "0"}


def _node(
    name: str,
    seen: ReadCluster,
    cluster: Cluster,
    pods: Iterable[DevicePod],
    offers: dict[str, str],
    names: Mapping[str, str],
    delivery: str,
    *,
    listed: bool,
) -> NodeFinding:
    snapshot, stated = seen.view.snapshot(name), seen.view.nodes.devices(name)
    foreign, kubelet = survey(snapshot), stated.kubelet_pods if stated is not None else {}
    if not listed:  # of devices that are assumed, only what a Pod states of one by its name is known
        foreign = Survey(tuple(one for one in foreign.held if one.doubt is None), ())
    others = list(_by_others(foreign))
    held = [*_by_ledger(snapshot, seen), *_by_kubelet(snapshot, kubelet, names, others), *others]
    held.sort(key=lambda one: (one.device, one.holder, one.product))
    sick = Counter((one.why_not or "unhealthy").partition(":")[0] for one in snapshot.devices if not one.healthy)
    clashes = (
        *_twice(name, snapshot, kubelet, names),
        *(_unknown(name, pods, held) if listed and snapshot.devices else ()),
        *_uncounted(name, foreign, seen.settings.adopt.peers),
        *(f"{name}: {one.message}" for one in foreign.conflicts),
    )
    problems = tuple(seen.problems.get(name, ()))
    reporter = {None: "none", False: "not ready", True: READY}[cluster.reporters.get(name)]
    ready = listed and reporter == READY and not problems and delivery != NO_WAY
    return NodeFinding(
        name,
        ready,
        listed,
        reporter,
        len(snapshot.devices),
        dict(sick),
        tuple(held),
        clashes,
        problems,
        offers,
        delivery,
    )


def _by_ledger(snapshot: NodeSnapshot, seen: ReadCluster) -> Iterator[HeldBy]:
    recorded = seen.records.record(snapshot.name).holdings
    for uid, holding in snapshot.holdings.items():
        product, evidence = (OURS, "ledger") if uid in recorded else ("Koordinator", DEVICE_ALLOCATED)
        yield from (HeldBy(share.id, holding.holder, uid, product, evidence) for share in holding.shares)
    for uid, claim in snapshot.claims.items():
        yield from (HeldBy(share.id, claim.holder, uid, CLAIM, "status.allocation") for share in claim.shares)


def _by_kubelet(
    snapshot: NodeSnapshot, kubelet: Mapping[str, frozenset[str]], names: Mapping[str, str], others: Iterable[HeldBy]
) -> Iterator[HeldBy]:
    """What the kubelet gave; not the replicas (HAMi: UUID-3) by which its device plugin only counts Pods."""
    listed, stating = {device.id for device in snapshot.devices}, {one.uid for one in others}
    for device in sorted(snapshot.kubelet_held):
        holders = kubelet.get(device, frozenset())
        if device not in listed and holders and holders <= stating:
            continue
        for uid in sorted(holders) or [""]:
            yield HeldBy(device, names.get(uid, f"UID {uid}" if uid else "?"), uid, PLUGIN, "kubelet's checkpoint")


def _by_others(foreign: Survey) -> Iterator[HeldBy]:
    """What other products' Pods hold by their own statements."""
    for one in foreign.held:
        yield from (HeldBy(share.id, one.holder, one.uid, _TITLES[one.peer], one.evidence) for share in one.shares)


def _uncounted(name: str, foreign: Survey, counted: Collection[Product]) -> Iterator[str]:
    """Products whose Pods hold devices that koordgate would give again, because its settings do not count them."""
    pods = Counter(one.peer for one in foreign.held if one.shares and one.peer not in counted)
    for peer, number in sorted(pods.items()):
        yield (
            f"{name}: Pods of {_TITLES[peer]} state what they hold, and koordgate does not count it ({number}): add "
            f"{peer} to adopt.peers"
        )


def _twice(
    name: str, snapshot: NodeSnapshot, kubelet: Mapping[str, frozenset[str]], names: Mapping[str, str]
) -> Iterator[str]:
    """Devices of which koordgate, Koordinator, the device plugin and DRA gave more than there is."""
    given = snapshot.held_by(snapshot.given())
    for device in snapshot.devices:
        holders = {uid: holding.holder for uid, holding in snapshot.holdings.items() if _has(holding.shares, device.id)}
        others = sorted(kubelet.get(device.id, frozenset()) - holders.keys())
        if holders and others:
            theirs = ", ".join(names.get(uid, f"UID {uid}") for uid in others)
            yield (
                f"{name}: {device.type} {device.id} is held by {', '.join(sorted(holders.values()))} through "
                f"koordgate, and by {theirs} through the device plugin: delete one of the Pods"
            )
        used = given.get(device.id, {})
        over = [tail for tail, amount in used.items() if amount > device.has_at_most(tail)]
        if over:
            claims = [one.holder for one in snapshot.claims.values() if _has(one.shares, device.id)]
            yield (
                f"{name}: more of {device.type} {device.id} is held than it has ({', '.join(sorted(over))}), by "
                f"{', '.join(sorted([*holders.values(), *claims]))}: delete one of them"
            )


def _has(shares: Iterable[Any], device: str) -> bool:
    return any(share.id == device for share in shares)


def _unknown(name: str, pods: Iterable[DevicePod], held: Iterable[HeldBy]) -> Iterator[str]:
    """Running Pods of which nothing says what they hold: their devices would be given again."""
    known = {one.uid for one in held}
    for pod in pods:
        if pod.uid not in known:
            yield (
                f"{name}: Pod {pod} ({pod.product}) runs here, and nothing states which devices it holds: koordgate "
                "could give them again. Let the reporter see it (its kubelet's checkpoint), or delete the Pod"
            )
