"""A cluster that was read once, from the API server, a snapshot or manifests: its objects, and a replica's view.

Whatever asks about a whole cluster reads it here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from allocator.request.devices import names_devices
from allocator.request.unread import NOTHING, find_unread
from allocator.vocabulary.adopted import Product
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import RESOURCE_STATUS, Mode, is_allocation_annotation
from allocator.wire import gang, nodeallocation, nodetopology
from allocator.wire.foreignpods import Adoption
from console.reading import RELEASE, Records
from console.simulator import apiserver
from console.simulator.apiserver import Priorities, with_defaults
from console.simulator.assumed import assume_devices
from console.simulator.documents import InputError, settings_of, stated_among
from console.simulator.manifests import refused, wrong_shape
from console.simulator.objects import read_all
from console.simulator.running import PodReader, assume, counting_all
from console.snapshot.read import ABOUT, SnapshotWanted, take
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import NODES, PODS, Resource
from webhook.ledger.kube import record_or_error
from webhook.ledger.store import Record, UnreadableError
from webhook.settings import WebhookSettings, adoption_of, cpu_defaults, delivery_rules, types_of
from webhook.view.claimfeed import ClaimFeed, SliceFeed
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import Complain, DeviceFeed, Listing, NodeFeed, PodFeed, RuntimeClassFeed, TopologyFeed
from webhook.view.namespaces import NamespaceFeed, NamespaceModes
from webhook.view.podinfo import PodInfo
from webhook.view.snapshots import Defaults, pools_of

Raw = dict[str, Any]
Found = tuple[str, Raw, str]
"""Where an object is, the object, and its kind."""

RUNTIME_CLASS: Final = "RuntimeClass"
_REPORTERS: Final = (("app.kubernetes.io/name", "koordgate-reporter"), ("koord-app", "koordlet"))
_KINDS: Final = frozenset(
    {
        *("Node", "Device", "Namespace", "Pod", "ResourceSlice", "ResourceClaim", RUNTIME_CLASS),
        *(nodetopology.KIND, nodeallocation.KIND, gang.KIND),
    }
)
# The kinds that only commands read; the others are checked where they are taken.
_CHECKED: Final = ("Pod", "ConfigMap", "ResourceQuota", "Event", "PodDisruptionBudget", apiserver.PRIORITY_CLASS)
_MAX_AGAIN: Final = 3  # objects that are given more than once and are named


@dataclass(frozen=True, slots=True)
class Reading:
    """The objects that were read."""

    objects: Sequence[Found]
    notes: Sequence[str] = ()  # what could not be read, or was assumed, a sentence each
    manifests: bool = False  # whether they are written by hand or by kubectl: what running Pods hold is then assumed
    live: bool = False  # whether they come from the API server
    installed: bool | None = None  # whether koordgate's webhooks are there; None if that is not known
    listed: frozenset[str] = frozenset()  # kinds of which all objects are there, even if there are none


async def read_live(
    kube: KubeClient,
    installed_in: str,
    configured: WebhookSettings | None,
    needed: Collection[Resource] = (NODES, PODS),
    *,
    beside: bool = True,
) -> Reading:
    """Read a cluster as `koordgate snapshot` does.

    `configured`: settings to be used instead of those of the installation. `beside`: whether to read the kinds too of
    which decisions know nothing. Raises KubeError: the API server refuses what is needed, or cannot be reached.
    """
    wanted = SnapshotWanted(installed_in, configured=configured, needed=needed, only=None if beside else _KINDS)
    taken = await take(kube, wanted, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    objects = [("the cluster", obj, obj["kind"]) for obj in taken.items]
    return Reading(objects, taken.notes, live=True, installed=taken.installed, listed=frozenset(taken.listed))


def read_files(paths: Iterable[str], configured: WebhookSettings | None, *, assumed: bool = True) -> Reading:
    """Read a snapshot, or manifests, as `kubectl get -o json` writes them.

    `configured`: settings to be used instead of those of an installation that is among the objects. `assumed`: whether
    idle devices are assumed for the Nodes of manifests without a Device object. Raises InputError: something cannot be
    read.
    """
    listed, notes = _latest(read_all(paths))
    if not assumed:
        return Reading(listed, notes)
    notes += _prioritize(listed)
    if any(map(_is_about, listed)):
        return Reading(listed, notes)
    objects, told = with_assumed(listed, configured)
    return Reading(objects, [*notes, *told], manifests=True)


def together(live: Reading, files: Reading) -> Reading:
    """A cluster that was read, with objects of files in place of its own."""
    objects, _ = _latest([*live.objects, *files.objects])
    return replace(live, objects=objects, notes=[*live.notes, *files.notes])


def _latest(listed: Iterable[Found]) -> tuple[list[Found], list[str]]:
    """Of objects that are given more than once, such as a Pod before and after its bind, keep the last and note it."""
    found: dict[tuple[object, ...], Found] = {}
    again: dict[tuple[object, ...], str] = {}
    for where, obj, kind in listed:
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(name, str):
            found[where,] = (where, obj, kind)  # what is wrong with it is reported where it is checked
            continue
        namespace, group = metadata.get("namespace") or "default", str(obj.get("apiVersion")).rpartition("/")[0]
        key = (kind, group, str(namespace), name)
        if key in found:
            again[key] = f"{kind} {name} is given more than once: that of {where} counts"
        found[key] = (where, obj, kind)
    told = list(again.values())
    notes = told[:_MAX_AGAIN]
    if len(told) > len(notes):
        notes.append(f"other objects that are given more than once: {len(told) - len(notes)}; the last of each counts")
    return list(found.values()), notes


def priorities_of(listed: Iterable[Found], note: Callable[[str], object]) -> Priorities:
    """Collect the PriorityClasses among objects; what an API server would not send is reported elsewhere."""
    known = Priorities(note)
    for _, obj, kind in listed:
        if kind == apiserver.PRIORITY_CLASS and not wrong_shape(kind, obj):
            known.put(obj)
    return known


def _prioritize(listed: Sequence[Found]) -> list[str]:
    """Write the priorities of their classes into Pods that state none; returns what was assumed."""
    notes: list[str] = []
    known = priorities_of(listed, notes.append)
    for _, obj, kind in listed:
        if kind == "Pod" and not wrong_shape(kind, obj):
            known.complete(obj)
    return notes


def mapping(value: object) -> Mapping[str, Any]:
    """A part of an object that nobody has checked; one without fields where it is something else."""
    return value if isinstance(value, Mapping) else {}


def is_ready(obj: Mapping[str, Any]) -> bool:
    """Whether a Node or Pod is ready, as its conditions say."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _is_about(found: Found) -> bool:
    """Whether an object says that the others are a snapshot, which has all Device objects that the cluster has."""
    _, obj, kind = found
    return kind == "ConfigMap" and mapping(obj.get("metadata")).get("name") == ABOUT


def with_assumed(listed: list[Found], configured: WebhookSettings | None) -> tuple[list[Found], list[str]]:
    """Add devices for the Nodes of manifests that have no Device object, as simulate does; returns what was assumed.

    `configured`: settings to be used instead of those of an installation that is among the objects. Raises InputError:
    the settings are wrong.
    """
    nodes, devices, pods = ([obj for _, obj, kind in listed if kind == of] for of in ("Node", "Device", "Pod"))
    stated = stated_among(listed)
    maps = () if stated is None else (stated,)
    wrong = [one for one in (*nodes, *devices, *pods, *maps) if wrong_shape(str(one.get("kind")), one)]
    if wrong:
        return listed, []  # what is wrong with them is reported when they are read
    assumed = assume_devices(nodes, devices, pods, types=types_of(configured or settings_of(stated)))
    return [*listed, *(("assumed", one, "Device") for one in assumed.devices)], list(assumed.notes)


def checked(where: str, obj: Raw, kind: str) -> Found:
    """An object with the defaults of an API server.

    Raises InputError: an API server would not send it.
    """
    wrong = (wrong_shape(kind, obj) if kind in _CHECKED else "") or refused(obj, kind)
    if wrong:
        raise InputError(f"{where}: {kind}: {wrong}; the API server would refuse it; correct it")
    return where, with_defaults(obj) if kind == "Pod" else obj, kind


@dataclass(slots=True)
class Cluster:
    """The objects of a cluster."""

    of: dict[str, list[Raw]] = field(default_factory=dict)  # kind -> objects
    reporters: dict[str, bool] = field(default_factory=dict)  # node -> whether a reporter's Pod there is ready
    settings: WebhookSettings = field(default_factory=WebhookSettings)
    installed: bool | None = None  # whether the webhook's configuration is there; None if that is not known
    notes: list[str] = field(default_factory=list)  # what could not be read, a sentence each
    assumed: bool = False  # whether the settings are the defaults because those of the installation could not be read
    classes: bool = False  # whether it is known which RuntimeClasses there are
    unlisted: list[Raw] = field(default_factory=list)  # device objects that are assumed for Nodes without one

    def objects(self, kind: str) -> list[Raw]:
        """The objects of a kind."""
        return self.of.get(kind, [])

    def take(self, kind: str, obj: Raw) -> None:
        """Take in an object of a kind."""
        if kind == "Pod":
            self._note_reporter(obj)
        self.of.setdefault(kind, []).append({**obj, "kind": kind})

    def _note_reporter(self, pod: Mapping[str, Any]) -> None:
        labels = pod["metadata"].get("labels") or {}
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or not any(labels.get(key) == value for key, value in _REPORTERS):
            return
        self.reporters[node] = self.reporters.get(node, False) or is_ready(pod)


def about_devices(pod: Mapping[str, Any], types: DeviceTypes) -> bool:
    """Whether a Pod asks for devices in any known name, or states that it holds some; CPUs of its own are none."""
    annotations = pod["metadata"].get("annotations") or {}
    if names_devices(pod.get("spec") or {}, types.known, annotations) or find_unread(pod, types) != NOTHING:
        return True
    return any(is_allocation_annotation(key) and key != RESOURCE_STATUS for key in annotations)


def cluster_of(read: Reading, configured: WebhookSettings | None) -> Cluster:
    """Make a cluster of objects; `configured` settings replace those among them.

    Raises InputError: an object is none that an API server would send.
    """
    for where, obj, kind in read.objects:
        wrong = wrong_shape(kind, obj)
        if wrong and (kind in _KINDS or kind == "ConfigMap"):
            raise InputError(f"{where}: {kind}: {wrong}; the API server would refuse it; correct it")
    stated = stated_among(read.objects)
    cluster = Cluster(notes=list(read.notes), installed=read.installed, assumed=configured is None and stated is None)
    if cluster.assumed:
        assumed = "the default settings are assumed, including mode: enforce, with every dialect on"
        more = "give the ConfigMap of the installation too, or settings with --config"
        cluster.notes.append(assumed if read.live else f"there is no ConfigMap {RELEASE}, so {assumed}: {more}")
    cluster.settings = configured or settings_of(stated)
    for _, obj, kind in read.objects:
        if kind in _KINDS:
            _complete(kind, obj["metadata"])
            cluster.take(kind, obj)
        elif kind == "MutatingWebhookConfiguration" and (obj.get("metadata") or {}).get("name") == RELEASE:
            cluster.installed = True
    cluster.classes = RUNTIME_CLASS in cluster.of or RUNTIME_CLASS in read.listed  # most files leave them out
    return cluster


def _complete(kind: str, metadata: Raw) -> None:
    """Write what an API server would have written, where a file lacks it."""
    if kind == "Pod":
        metadata.setdefault("namespace", "default")
        metadata.setdefault("uid", f"{metadata['namespace']}/{metadata['name']}")
    elif kind == nodeallocation.KIND:
        metadata["resourceVersion"] = "1"  # nothing is compared with it here
    elif kind == "ResourceClaim":
        metadata["namespace"] = metadata.get("namespace") or "default"
        metadata["uid"] = metadata.get("uid") or f"{metadata['namespace']}/{metadata['name']}"
        metadata["resourceVersion"] = metadata.get("resourceVersion") or "1"


class ReadCluster:
    """A cluster that was read once, as a replica would see it.

    `adoption` says which Pods of other products count; by default those of all that are known. `problems` has for each
    node what could not be read of its objects.
    """

    def __init__(self, cluster: Cluster, adoption: Adoption | None = None) -> None:
        self.settings: WebhookSettings = cluster.settings
        self.problems: dict[str, list[str]] = {}
        found = [record_or_error(obj) for obj in cluster.objects("NodeAllocation")]
        self.records = Records({one.node: one for one in found if isinstance(one, Record)})
        exempt = (*self.settings.quota.exempt_namespaces, self.settings.identity.namespace)
        self.modes = NamespaceModes(self.settings.mode, exempt)
        types = types_of(self.settings)
        defaults = Defaults(self.settings.devices.order, cpu_defaults(self.settings), delivery_rules(self.settings))
        if adoption is None:  # what other products state is asked for, whichever of them the settings count
            adoption = replace(adoption_of(self.settings), peers=frozenset(Product))
        seen = SeenObjects(lambda: 0, defaults, drivers=self.settings.claimed, adoption=adoption)
        self.view = ClusterView(seen, self.records)
        pools = pools_of(self.settings)
        feeds: dict[str, Listing] = {
            "Namespace": NamespaceFeed(self.modes),
            RUNTIME_CLASS: RuntimeClassFeed(self.view),
            "Node": NodeFeed(self.view, types, pools, self._complain("Node")),
            "Device": DeviceFeed(self.view, types, self._complain("Device")),
            "NodeResourceTopology": TopologyFeed(self.view, self._complain("NodeResourceTopology")),
            "ResourceSlice": SliceFeed(self.view, self._complain("ResourceSlice")),
            "ResourceClaim": ClaimFeed(self.view),
            "Pod": PodFeed(self.view, _nothing, _nothing, types, PodReader()),
        }
        if not cluster.classes:  # it is not known which there are; the one that is configured is assumed
            assumed = self.settings.devices.runtime_class_name
            self.view.runtime_classes.put(assumed, assumed)
        for kind, feed in feeds.items():
            for obj in (*cluster.objects(kind), *(cluster.unlisted if kind == "Device" else ())):
                feed.put(obj)
        for one in found:
            if isinstance(one, UnreadableError):
                self.view.nodes.block(one.node, str(one))
                self._complain("NodeAllocation")(one.node, (str(one),))

    def mode(self, namespace: str) -> Mode:
        """The mode of a namespace."""
        return self.modes.of(namespace)

    def _complain(self, kind: str) -> Complain:
        def complain(name: str, problems: tuple[str, ...]) -> None:
            if problems:
                self.problems.setdefault(name, []).extend(f"{kind} {name}: {problem}" for problem in problems)

        return complain


def _nothing(_pod: PodInfo) -> None:
    """Nothing follows from the end or the bind of a Pod here."""


def let_hold(cluster: Cluster, *, counted: bool) -> ReadCluster | None:
    """Let running Pods hold what `simulate` lets them hold.

    `counted`: whether settings say which products count; otherwise all do that can be read. Returns the cluster as a
    replica would see it, if that did not change; None if a Pod holds something now.
    """
    if not counted:
        cluster.settings = counting_all(cluster.settings)
    seen = ReadCluster(cluster, adoption_of(cluster.settings))
    pods = cluster.objects("Pod")
    assumed = {pod["metadata"]["uid"]: pod for pod in assume(pods, seen.view.snapshot, types_of(cluster.settings))}
    if not assumed:
        return seen
    cluster.of["Pod"] = [assumed.get(pod["metadata"]["uid"], pod) for pod in pods]
    return None
