"""Watches' events into the tables of Nodes, Devices, topologies, Pods and groups."""

import contextlib
import ctypes
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from allocator.request.original import too_large_node
from allocator.vocabulary.asks import UNSTATED
from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import HEADROOM
from allocator.wire.deviceobject import NodeDevices, read_device_object
from allocator.wire.gang import PodGroupError, read_pod_group
from allocator.wire.nodetopology import NodeTopology, read_node_topology
from webhook.boundedcache import BoundedCache
from webhook.ledger.ledger import Ledger
from webhook.ledger.store import ABSENT, Record, UnreadableError
from webhook.view.cluster import ClusterView
from webhook.view.loads import Requests, read_allocatable
from webhook.view.nodes import NodeFacts
from webhook.view.nodeselection import PREFER_NO_SCHEDULE, UNSCHEDULABLE
from webhook.view.podinfo import OtherPod, PodInfo, read_other_pod, read_pod_info
from webhook.view.snapshots import Pools, node_classes

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")

_MAX_BYTES: Final = 16 * 2**20  # of values beside texts, about as long as they are when written out
_COPIES: Final[BoundedCache[Hashable, Any]] = BoundedCache(_MAX_BYTES)


def same_text(text: str) -> str:
    """The first copy of a text; it is forgotten with its last user."""
    return sys.intern(text) if type(text) is str else text


def same(value: T) -> T:
    """The first copy of a value."""
    return _first((type(value), value), value)


def same_mapping(value: Mapping[str, V]) -> Mapping[str, V]:
    """The first copy of a mapping."""
    return _first((dict, *value.items()), value)


def _first(key: Hashable, value: V) -> V:
    found: V | None = _COPIES.get(key)
    return _COPIES.put(key, value, len(repr(value))) if found is None else found


def lean_devices(devices: NodeDevices) -> NodeDevices:
    """A Device object that shares what others say alike."""
    lean = tuple(
        replace(
            device,
            type=same_text(device.type),
            capacity=same_mapping(device.capacity),
            pcie=None if device.pcie is None else same_text(device.pcie),
            model=same_text(device.model),
            vendor=same_text(device.vendor),
            labels=same_mapping(device.labels),
        )
        for device in devices.devices
    )
    return replace(devices, devices=lean)


def lean_topology(topology: NodeTopology) -> NodeTopology:
    """A topology that shares its CPUs: machines of one make are alike, and what is derived from their CPUs is large."""
    return topology if topology.cpu is None else replace(topology, cpu=same(topology.cpu))


def lean_record(record: Record) -> Record:
    """A record that shares what others say alike."""
    return replace(record, holdings={uid: _lean_holding(holding) for uid, holding in record.holdings.items()})


def _lean_holding(holding: Holding) -> Holding:
    shares = tuple(
        share._replace(
            type=same_text(share.type),
            amounts=same_mapping(share.amounts),
            containers=same(share.containers),
        )
        for share in holding.shares
    )
    return replace(holding, namespace=same_text(holding.namespace), shares=shares)


def lean_pod(pod: PodInfo, held: Holding | None) -> PodInfo:
    """A Pod that shares what others say alike, and with the ledger what both say of its devices and CPUs."""
    if held is not None and held.shares == pod.shares and _cpus(held.cpus) == _cpus(pod.cpus):
        pod = replace(pod, shares=held.shares, cpus=held.cpus)
    return replace(
        pod,
        namespace=same_text(pod.namespace),
        node=same_text(pod.node),
        scheduler_name=same_text(pod.scheduler_name),
        request=same(pod.request),
        requests=same(pod.requests),
        models=same(pod.models),
        selection=same(pod.selection),
        states=same(pod.states),
    )


def lean_other(pod: OtherPod) -> OtherPod:
    """A Pod of others that shares what others say alike."""
    return pod._replace(node=same_text(pod.node), resources=same(pod.resources), takes=same(pod.takes))


def lean_amounts(amounts: Requests) -> Mapping[str, int]:
    """Amounts by resource, shared between nodes that have the same."""
    return same_mapping({same_text(name): amount for name, amount in amounts})


def _cpus(share: CpuShare | None) -> int | None:
    """Which CPUs a share has: all that an annotation says of it as well."""
    return None if share is None else share.cpus


Raw = dict[str, Any]


def _release_memory() -> None:
    """Return the memory of a list's pages to the system, which glibc does only on request."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Listing:
    """Takes in the objects of one resource, and finds those that vanished between two lists."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._listed: set[tuple[str, str]] | None = None

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = set()

    def end_list(self) -> None:
        """The list is complete: objects that it did not name are gone."""
        vanished = self._known - (self._listed or set())
        self._known, self._listed = self._listed or set(), None
        bugs: list[Exception] = []
        for namespace, name in vanished:
            try:
                self.gone(namespace, name)
            except Exception as error:  # noqa: BLE001 the others are gone all the same
                bugs.append(error)
        _release_memory()
        if bugs:
            raise ExceptionGroup("objects that are gone are not forgotten", bugs)

    def put(self, obj: Raw) -> None:
        """An object is there."""
        key = _key(obj)
        self._known.add(key)
        if self._listed is not None:
            self._listed.add(key)
        self.there(obj)

    def drop(self, obj: Raw) -> None:
        """An object is gone."""
        key = _key(obj)
        self._known.discard(key)
        self.gone(*key)

    def there(self, obj: Raw) -> None:
        """Take in an object."""
        raise NotImplementedError

    def gone(self, namespace: str, name: str) -> None:
        """Forget an object."""
        raise NotImplementedError


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    metadata = obj["metadata"]
    return same_text(metadata.get("namespace", "")), metadata["name"]


Complain = Callable[[str, tuple[str, ...]], None]


class RuntimeClassFeed(Listing):
    """Takes in RuntimeClasses."""

    def __init__(self, cluster: ClusterView) -> None:
        super().__init__()
        self._classes = cluster.runtime_classes

    def there(self, obj: Raw) -> None:
        """Take in a RuntimeClass."""
        self._classes.put(obj["metadata"]["name"], str(obj.get("handler") or ""))

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a RuntimeClass."""
        self._classes.drop(name)


class NodeFeed(Listing):
    """Takes in Nodes: labels, software classes, taints, and what they have for Pods.

    `complain`: called with a node's name and what could not be read of its classes; nothing when all could.
    """

    def __init__(
        self,
        cluster: ClusterView,
        types: DeviceTypes,
        pools: Pools = (),
        complain: Complain = lambda _node, _problems: None,
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._types = types
        self._pools = pools
        self._complain = complain

    def there(self, obj: Raw) -> None:
        """Take in a Node."""
        metadata = obj["metadata"]
        if (large := too_large_node(obj)) is not None:
            why = f"the Node cannot be read, so nothing is placed there: {large}; remove what is not needed"
            self._complain(metadata["name"], (why,))
            self._cluster.nodes.put(metadata["name"], NodeFacts({}, unread=why))
            return
        labels = {same_text(key): same_text(value) for key, value in (metadata.get("labels") or {}).items()}
        classes, problems = node_classes(metadata, self._types, self._pools)
        self._complain(metadata["name"], problems)
        spec = obj.get("spec") or {}
        taints = spec.get("taints") or ()
        # koordgate's own taint is not for Pods that ask for devices.
        preferred = [one for one in taints if one["effect"] == PREFER_NO_SCHEDULE]
        shunning = [(one["key"], one.get("value") or "") for one in preferred if one["key"] != HEADROOM]
        closing = [*taints, UNSCHEDULABLE] if spec.get("unschedulable") else taints
        closed = {(one["key"], one.get("value") or "", one["effect"]) for one in closing}
        closed = {taint for taint in closed if taint[2] != PREFER_NO_SCHEDULE}
        short = len(shunning) < len(preferred)
        facts = NodeFacts(labels, classes, same(tuple(shunning)), same(tuple(sorted(closed))))
        self._cluster.nodes.put(metadata["name"], facts, short=short)
        self._cluster.loads.put_node(metadata["name"], lean_amounts(read_allocatable(obj)))

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a Node."""
        self._cluster.nodes.drop(name)
        self._cluster.loads.put_node(name, {})
        self._complain(name, ())


class DeviceFeed(Listing):
    """Takes in Device objects.

    `complain`: called with a node's name and what could not be read of its Device object; nothing when all could.
    """

    def __init__(self, cluster: ClusterView, types: DeviceTypes, complain: Complain) -> None:
        super().__init__()
        self._cluster = cluster
        self._types = types
        self._complain = complain

    def there(self, obj: Raw) -> None:
        """Take in a Device object."""
        devices = lean_devices(read_device_object(obj, self._types))
        self._cluster.nodes.put_devices(devices)
        self._complain(devices.node, devices.problems)

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a Device object."""
        self._cluster.nodes.drop_devices(name)
        self._complain(name, ())


class TopologyFeed(Listing):
    """Takes in NodeResourceTopologies.

    `complain`: called with a node's name and what could not be read of its object; nothing when all could.
    """

    def __init__(self, cluster: ClusterView, complain: Complain) -> None:
        super().__init__()
        self._cluster = cluster
        self._complain = complain

    def there(self, obj: Raw) -> None:
        """Take in a NodeResourceTopology."""
        topology = lean_topology(read_node_topology(obj))
        self._cluster.nodes.put_topology(topology)
        self._complain(topology.node, topology.problems)

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a NodeResourceTopology."""
        self._cluster.nodes.drop_topology(name)
        self._complain(name, ())


class PodFeed(Listing):
    """Takes in Pods.

    `ended`: called with each of our Pods that is over or gone: what it held can be released. `bound`: called with each
    of our Pods that is bound: what it holds on other nodes, from binds that failed, can be released. `read`: reads a
    Pod, given what was known of it. `listed`: called after each list: of Pods that came and went before it, nothing
    else was seen.
    """

    def __init__(
        self,
        cluster: ClusterView,
        ended: Callable[[PodInfo], None],
        bound: Callable[[PodInfo], None],
        types: DeviceTypes,
        read: Callable[[Raw, PodInfo | None, DeviceTypes], PodInfo | None] = read_pod_info,
        listed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._listed_all = listed
        self._types = types
        self._read = read
        self._cluster = cluster
        self._ended = ended
        self._bound = bound

    def there(self, obj: Raw) -> None:
        """Take in a Pod."""
        namespace, name = _key(obj)
        known = self._cluster.pods.get(namespace, name)
        self._cluster.foreign.read(obj)
        pod = self._read(obj, known, self._types)
        if known is not None and known.uid != obj["metadata"]["uid"]:
            self._ended(known)  # deleted and created again between two events
        if pod is None:
            self._cluster.pods.put_other(namespace, name, lean_other(read_other_pod(obj, self._types)))
            return
        held = self._cluster.held.record(pod.node).holdings.get(pod.uid) if pod.holds else None
        self._cluster.pods.put(lean_pod(pod, held))
        if pod.over and not (known is not None and known.uid == pod.uid and known.over):
            self._ended(pod)
        elif pod.node and not (known is not None and known.uid == pod.uid and known.node):
            self._bound(pod)

    def gone(self, namespace: str, name: str) -> None:
        """Forget a Pod."""
        self._cluster.foreign.drop(namespace, name)
        known = self._cluster.pods.drop(namespace, name)
        if known is not None:
            self._ended(known)

    def end_list(self) -> None:
        """The list is complete."""
        super().end_list()
        self._listed_all()


class GroupFeed(Listing):
    """Takes in PodGroups of one API group.

    `complain`: called with a PodGroup's namespace/name and what could not be read of it; nothing when all could.
    """

    def __init__(self, cluster: ClusterView, group: str, complain: Complain) -> None:
        super().__init__()
        self._cluster = cluster
        self._group = group
        self._complain = complain

    def there(self, obj: Raw) -> None:
        """Take in a PodGroup; one that states a wrong size counts as one that states none."""
        gang = "/".join(_key(obj))
        size, problems = UNSTATED, tuple[str, ...]()
        try:
            size = read_pod_group(obj)
        except PodGroupError as error:
            problems = (str(error),)
        self._cluster.groups.put(self._group, gang, size)
        self._complain(gang, problems)

    def gone(self, namespace: str, name: str) -> None:
        """Forget a PodGroup."""
        gang = f"{namespace}/{name}"
        self._cluster.groups.drop(self._group, gang)
        self._complain(gang, ())


class RecordFeed:
    """The ledger's records, as its store's watch reports them (a `webhook.ledger.store.Listener`).

    `cluster`: blocks the nodes whose record cannot be read. `complain`: called with a node's name and why its record
    cannot be read; with nothing once it can.
    """

    def __init__(self, cluster: ClusterView, ledger: Ledger, complain: Complain) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._complain = complain
        self._unreadable: set[str] = set()
        self._unlisted: dict[str, int] = {}  # during a list: records known when it began and not listed yet

    def begin_list(self) -> None:
        """A list begins."""
        self._unlisted = dict.fromkeys(self._unreadable, ABSENT)
        self._unlisted.update((record.node, record.revision) for record in self._ledger.records())

    def put(self, node: str, revision: int, read: Callable[[], Record]) -> None:
        """A record was listed, created or changed."""
        self._unlisted.pop(node, None)
        if self._ledger.knows(node, revision):
            self._readable(node)
            return  # a write or a read of our own comes back
        try:
            record = read()
        except UnreadableError as error:
            self._unreadable.add(node)
            self._ledger.forget(node)  # a bind there reads it live, and fails with this error until it is corrected
            self._cluster.nodes.block(node, str(error))
            self._complain(node, (str(error),))
        else:
            self._ledger.observe(lean_record(record))
            self._readable(node)

    def drop(self, node: str, revision: int) -> None:
        """A node's record was deleted."""
        self._ledger.forget(node, revision)
        self._readable(node)

    def end_list(self) -> None:
        """The list is complete: what it did not name is gone, unless it was written since the list began."""
        for node, revision in self._unlisted.items():
            self.drop(node, revision)
        self._unlisted = {}
        _release_memory()

    def _readable(self, node: str) -> None:
        self._unreadable.discard(node)
        self._cluster.nodes.unblock(node)
        self._complain(node, ())
