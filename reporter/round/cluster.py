"""The cluster as known (pure): the Node, our two objects, and the node's Pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reporter.pods import NodePod
from reporter.publish.identity import NodeIdentity, read_node
from reporter.round.events import WatchedKind

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster as far as the reporter watches it."""

    # the existing objects; one that is missing does not exist, or is not known yet
    objects: Mapping[WatchedKind, Raw] = field(default_factory=dict)
    pods: tuple[NodePod, ...] = ()  # the node's Pods, by namespace, name and UID
    containers: frozenset[str] = frozenset()  # ids of the containers of Pods that have not finished
    listed: frozenset[WatchedKind] = frozenset()  # the kinds that were listed completely at least once

    @property
    def complete(self) -> bool:
        """Whether everything was listed: only then does a missing object not exist."""
        return self.listed == frozenset(WatchedKind)

    @property
    def pods_known(self) -> bool:
        """Whether the Pods were listed."""
        return WatchedKind.PODS in self.listed

    @property
    def node(self) -> NodeIdentity | None:
        """The Node; None while it does not exist or is unknown."""
        obj = self.objects.get(WatchedKind.NODE)
        return read_node(obj) if obj is not None else None

    def with_object(self, what: WatchedKind, obj: Raw) -> "ClusterState":
        """A copy with an object; unchanged if this version of it, or a newer one, is known from our own write."""
        known = self.objects.get(what)
        if known is not None and (obj == known or _older(obj, known)):
            return self
        return replace(self, objects={**self.objects, what: obj})

    def without(self, what: WatchedKind) -> "ClusterState":
        """A copy without an object; unchanged if none was known."""
        if what not in self.objects:
            return self
        return replace(self, objects={key: obj for key, obj in self.objects.items() if key is not what})

    def with_pods(self, pods: tuple[NodePod, ...]) -> "ClusterState":
        """A copy with other Pods."""
        containers = (identity for pod in pods if not pod.finished for identity in pod.containers)
        return replace(self, pods=pods, containers=frozenset(containers))

    def with_list(self, what: WatchedKind) -> "ClusterState":
        """A copy with one more kind listed."""
        return replace(self, listed=self.listed | {what})


def _older(one: Raw, other: Raw) -> bool:
    """Compare resource versions, which the API server counts up; an object with another UID is never older."""
    if one["metadata"].get("uid") != other["metadata"].get("uid"):
        return False
    versions = [str(obj["metadata"].get("resourceVersion")) for obj in (one, other)]
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])
