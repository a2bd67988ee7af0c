"""What the API server says, fed into the cluster view and the ledger: one handler a resource."""

from collections.abc import Callable, Mapping
from typing import Any

from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodeallocation import RecordError
from koordgate.ledger.ledger import Ledger
from koordgate.ledger.store import read_record, revision_of
from webhook.cluster import ClusterView, NodeFacts
from webhook.podinfo import PodInfo, read_pod_info

Raw = dict[str, Any]


class _Listing:
    """Finds what vanished while nobody watched: keys that a complete list did not name."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self._listed: set[tuple[str, str]] | None = None

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = set()

    def end_list(self) -> None:
        """The list is complete."""
        for namespace, name in self._known - (self._listed or set()):
            self.gone(namespace, name)
        self._known, self._listed = self._listed or set(), None

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
    return metadata.get("namespace", ""), metadata["name"]


class NodeFeed(_Listing):
    """Nodes: UID and labels."""

    def __init__(self, cluster: ClusterView) -> None:
        super().__init__()
        self._cluster = cluster

    def there(self, obj: Raw) -> None:
        """Take in a Node."""
        metadata = obj["metadata"]
        self._cluster.put_node(metadata["name"], NodeFacts(metadata["uid"], metadata.get("labels") or {}))

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a Node."""
        self._cluster.drop_node(name)


class DeviceFeed(_Listing):
    """Device objects.

    Args:
        cluster: told of them.
        complain: called with a node's name and what could not be read of its Device object; nothing when all could.
    """

    def __init__(self, cluster: ClusterView, complain: Callable[[str, tuple[str, ...]], None]) -> None:
        super().__init__()
        self._cluster = cluster
        self._complain = complain

    def there(self, obj: Raw) -> None:
        """Take in a Device object."""
        devices = read_device_object(obj)
        self._cluster.put_devices(devices)
        self._complain(devices.node, devices.problems)

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a Device object."""
        self._cluster.drop_devices(name)
        self._complain(name, ())


class PodFeed(_Listing):
    """Pods.

    Args:
        cluster: told of them.
        ended: called with one of our Pods that finished or is gone: what it held can go.
        bound: called with one of our Pods that is bound: what it held elsewhere, from a bind that failed, can go.
    """

    def __init__(
        self, cluster: ClusterView, ended: Callable[[PodInfo], None], bound: Callable[[PodInfo], None]
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._ended = ended
        self._bound = bound

    def there(self, obj: Raw) -> None:
        """Take in a Pod."""
        namespace, name = _key(obj)
        known = self._cluster.pod(namespace, name)
        pod = read_pod_info(obj, known)
        if known is not None and known.uid != obj["metadata"]["uid"]:
            self._ended(known)  # deleted and made again while nobody watched
        if pod is None:
            self._cluster.put_stranger(namespace, name, obj["metadata"]["uid"])
            return
        self._cluster.put_pod(pod)
        if pod.finished and not (known is not None and known.finished):
            self._ended(pod)
        elif pod.node and not (known is not None and known.uid == pod.uid and known.node):
            self._bound(pod)

    def gone(self, namespace: str, name: str) -> None:
        """Forget a Pod."""
        known = self._cluster.drop_pod(namespace, name)
        if known is not None:
            self._ended(known)


class AllocationFeed(_Listing):
    """NodeAllocations.

    Args:
        ledger: told of them.
        complain: called with a node's name and why its record cannot be read; nothing when it can.
    """

    def __init__(self, ledger: Ledger, complain: Callable[[str, tuple[str, ...]], None]) -> None:
        super().__init__()
        self._ledger = ledger
        self._complain = complain

    def there(self, obj: Raw) -> None:
        """Take in a NodeAllocation."""
        name = obj["metadata"]["name"]
        if self._ledger.knows(name, revision_of(obj)):
            self._complain(name, ())
            return  # our own write, or read, come back
        try:
            self._ledger.observe(read_record(obj))
        except RecordError as error:
            self._ledger.forget(name)  # a bind there reads it live, and fails with this error until it is mended
            self._complain(name, (str(error),))
        else:
            self._complain(name, ())

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a NodeAllocation."""
        self._ledger.forget(name)
        self._complain(name, ())
