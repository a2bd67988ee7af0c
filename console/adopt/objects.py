"""A cluster that was read once, from the API server or from files: its objects, and how a replica would see them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from allocator.request.devices import names_devices
from allocator.request.unread import NOTHING, find_unread
from allocator.vocabulary.adopted import Product
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import RESOURCE_STATUS, Mode, is_allocation_annotation
from allocator.wire import gang, nodeallocation, nodetopology
from allocator.wire.foreignpods import Adoption, read_foreign_pod
from console.doctor.policies import PolicyFindings, outdated, search_policies
from console.reading import RELEASE, are_webhooks_installed, listed, settings_if_known
from console.simulator.documents import InputError, settings_of
from console.simulator.manifests import wrong_shape
from console.simulator.objects import read_all
from console.simulator.running import PodReader
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import (
    DEVICES,
    NAMESPACES,
    NODE_ALLOCATIONS,
    NODES,
    PLUGIN_POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    TOPOLOGIES,
)
from webhook import settings
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
RUNTIME_CLASS: Final = "RuntimeClass"
_HINT: Final = (
    "; the defaults are assumed: give them with --config, or name the installation's namespace with --installed-in"
)
_REPORTERS: Final = (("app.kubernetes.io/name", "koordgate-reporter"), ("koord-app", "koordlet"))
_KINDS: Final = {
    NODES: "Node",
    DEVICES: "Device",
    TOPOLOGIES: nodetopology.KIND,
    NODE_ALLOCATIONS: nodeallocation.KIND,
    NAMESPACES: "Namespace",
    PODS: "Pod",
    RESOURCE_SLICES: "ResourceSlice",
    RESOURCE_CLAIMS: "ResourceClaim",
    PLUGIN_POD_GROUPS: gang.KIND,
    RUNTIME_CLASSES: RUNTIME_CLASS,
}
_OF_ALL: Final = Adoption(peers=frozenset(Product))
_NEEDED: Final = (NODES, DEVICES, NODE_ALLOCATIONS, NAMESPACES, PODS)


@dataclass(slots=True)
class Cluster:
    """The objects of a cluster."""

    # kind -> objects. Of Pods that have nothing to do with devices only what they request is kept.
    of: dict[str, list[Raw]] = field(default_factory=dict)
    reporters: dict[str, bool] = field(default_factory=dict)  # node -> whether a reporter's Pod there is ready
    settings: WebhookSettings = field(default_factory=WebhookSettings)
    installed: bool | None = None  # whether the webhook's configuration is there; None if that is not known
    notes: list[str] = field(default_factory=list)  # what could not be read, a sentence each
    assumed: bool = False  # whether the settings are the defaults because those of the installation could not be read
    classes: bool = False  # whether it is known which RuntimeClasses there are
    unlisted: list[Raw] = field(default_factory=list)  # device objects that are assumed for Nodes without one
    # the cluster's own that do not apply to Pods that are translated
    policies: PolicyFindings = field(default_factory=PolicyFindings)

    def objects(self, kind: str) -> list[Raw]:
        """The objects of a kind."""
        return self.of.get(kind, [])

    def take(self, kind: str, obj: Raw, types: DeviceTypes) -> None:
        """Take in an object of a kind."""
        if kind == "Pod":
            self._note_reporter(obj)
            told = (
                about_devices(obj, types) or _has_cpus(obj) or read_foreign_pod(obj, _OF_ALL) is not None
            )  # as by KAI's labels
            obj = obj if told else _lean(obj)
        self.of.setdefault(kind, []).append({**obj, "kind": kind})

    def _note_reporter(self, pod: Mapping[str, Any]) -> None:
        labels = pod["metadata"].get("labels") or {}
        node = (pod.get("spec") or {}).get("nodeName")
        if not node or not any(labels.get(key) == value for key, value in _REPORTERS):
            return
        conditions = (pod.get("status") or {}).get("conditions") or ()
        ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
        self.reporters[node] = self.reporters.get(node, False) or ready


def about_devices(pod: Mapping[str, Any], types: DeviceTypes) -> bool:
    """Whether a Pod asks for devices in any known name, or states that it holds some; CPUs of its own are none."""
    annotations = pod["metadata"].get("annotations") or {}
    if names_devices(pod.get("spec") or {}, types.known, annotations) or find_unread(pod, types) != NOTHING:
        return True
    return any(is_allocation_annotation(key) and key != RESOURCE_STATUS for key in annotations)


def _has_cpus(pod: Mapping[str, Any]) -> bool:
    return RESOURCE_STATUS in (pod["metadata"].get("annotations") or {})


def _lean(pod: Mapping[str, Any]) -> Raw:
    """A Pod of others: its name, its node and what it requests there."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    keys = ("name", "namespace", "uid", "creationTimestamp")
    containers = {
        of: [{"name": one["name"], "resources": one.get("resources") or {}} for one in spec[of]]
        for of in ("containers", "initContainers")
        if spec.get(of)
    }
    kept = {key: spec[key] for key in ("nodeName", "schedulerName", "overhead") if key in spec}
    phase = (pod.get("status") or {}).get("phase")
    return {
        "apiVersion": "v1",
        "metadata": {key: metadata[key] for key in keys if key in metadata},
        "spec": {**containers, **kept},
        "status": {"phase": phase},
    }


async def from_cluster(kube: KubeClient, configured: WebhookSettings | None, namespace: str) -> Cluster:
    """Read a cluster; `configured` settings replace those of the installation in this namespace.

    Raises KubeError: the API server refuses what is needed, or cannot be reached.
    """
    cluster = Cluster()
    notes = cluster.notes
    known = configured or await settings_if_known(kube, namespace, notes, _HINT)
    cluster.settings, cluster.assumed = known or WebhookSettings(), known is None
    types = settings.types_of(cluster.settings)
    cluster.installed = await are_webhooks_installed(kube, notes)
    for resource, kind in _KINDS.items():
        read = await listed(kube, resource, partial(cluster.take, kind, types=types))
        read.noted(notes, needed=resource in _NEEDED)
        if read.absent and resource in {DEVICES, NODE_ALLOCATIONS}:
            notes.append(f"the cluster has no {resource.plural}.{resource.group}: install koordgate's chart")
        cluster.classes = cluster.classes or (kind == RUNTIME_CLASS and not (read.absent or read.error))
    cluster.policies = await search_policies(kube, types, cluster.settings.domain)
    return cluster


def from_files(paths: Iterable[str], configured: WebhookSettings | None) -> Cluster:
    """Read a cluster from files, as `kubectl get -o json` writes them.

    Raises InputError: something cannot be read, or is no object that an API server would send.
    """
    return from_objects(read_all(paths), configured)


def from_objects(objects: Iterable[tuple[str, Raw, str]], configured: WebhookSettings | None) -> Cluster:
    """Make a cluster of objects, each with where it is and its kind; `configured` settings replace those among them.

    Raises InputError: one is no object that an API server would send.
    """
    found: list[tuple[str, str, Raw]] = []
    for where, obj, kind in objects:
        wrong = wrong_shape(kind, obj)
        if wrong and (kind in _KINDS.values() or kind == "ConfigMap"):
            raise InputError(f"{where}: {kind}: {wrong}; the API server would refuse it; correct it")
        found.append((where, kind, obj))
    cluster = Cluster()
    maps = (obj for _, kind, obj in found if kind == "ConfigMap" and obj["metadata"]["name"] == RELEASE)
    stated = next(maps, None)
    if configured is None and stated is None:
        cluster.notes.append(
            f"there is no ConfigMap {RELEASE}, so the default settings are assumed, including mode: enforce, with "
            "every dialect on: give the ConfigMap of the installation too, or settings with --config"
        )
    cluster.settings = configured or settings_of(stated)
    types = settings.types_of(cluster.settings)
    known = set(_KINDS.values())
    for _, kind, obj in found:
        if kind in known:
            _complete(kind, obj["metadata"])
            cluster.take(kind, obj, types)
        elif kind == "MutatingWebhookConfiguration" and (obj.get("metadata") or {}).get("name") == RELEASE:
            cluster.installed = True
    cluster.policies = outdated((obj for _, _, obj in found), types, cluster.settings.domain)
    cluster.classes = RUNTIME_CLASS in cluster.of  # a file without any has left them out
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


class Records:
    """The ledger's records, to be read only (a `webhook.view.cluster.Held`)."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records

    def record(self, node: str) -> Record:
        """A node's record; one without holdings where there is none."""
        return self._records.get(node, Record(node))

    def nodes_of(self, uid: str) -> Sequence[str]:
        """The nodes on which a Pod holds something."""
        return [node for node, record in self._records.items() if uid in record.holdings]


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
            for obj in cluster.objects(kind):
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
