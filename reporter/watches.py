"""What the watches report, as events of the round: three objects known by name, and the node's Pods."""

from collections.abc import Callable, Iterable
from typing import Any

from allocator.vocabulary.devicetype import DeviceTypes
from reporter.pods import NodePod, read_pod
from reporter.round.events import ObjectGone, ObjectStands, PodsChanged, RoundEvent, WatchedKind

Raw = dict[str, Any]


class ObjectWatch:
    """One object, watched by name: a Reflector's handler."""

    def __init__(self, what: WatchedKind, name: str, report: Callable[[RoundEvent], None]) -> None:
        self._what = what
        self._name = name
        self._report = report
        self._listed = False

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = False

    def put(self, obj: Raw) -> None:
        """An object was listed, added or changed."""
        if obj["metadata"]["name"] == self._name:
            self._listed = True
            self._report(ObjectStands(self._what, obj))

    def drop(self, obj: Raw) -> None:
        """An object was deleted."""
        if obj["metadata"]["name"] == self._name:
            self._report(ObjectGone(self._what))

    def end_list(self) -> None:
        """The list is complete: an object that it does not name is gone."""
        if not self._listed:
            self._report(ObjectGone(self._what))


class PodWatch:
    """The node's Pods: a Reflector's handler that keeps of each Pod only what the reporter needs.

    During a list nothing is reported: half a list would show Pods as gone.
    `report`: called with an event whenever a Pod comes, goes, or changes in a part that is kept.
    """

    def __init__(self, types: DeviceTypes, report: Callable[[RoundEvent], None]) -> None:
        self._types = types
        self._report = report
        self._pods: dict[str, NodePod] = {}
        self._listed: dict[str, NodePod] | None = None

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = {}

    def put(self, obj: Raw) -> None:
        """A Pod was listed, added or changed."""
        pod = read_pod(obj, self._types)
        if self._listed is not None:
            self._listed[pod.uid] = pod
        elif self._pods.get(pod.uid) != pod:
            self._become({**self._pods, pod.uid: pod})

    def drop(self, obj: Raw) -> None:
        """A Pod was deleted, or is no longer on this node."""
        uid = obj["metadata"]["uid"]
        if uid in self._pods:
            self._become({known: pod for known, pod in self._pods.items() if known != uid})

    def end_list(self) -> None:
        """The list is complete: a Pod that it does not name is gone."""
        listed, self._listed = self._listed, None
        if listed is not None and listed != self._pods:
            self._become(listed)

    def _become(self, pods: dict[str, NodePod]) -> None:
        self._pods = pods
        self._report(PodsChanged(in_order(pods.values())))


def in_order(pods: Iterable[NodePod]) -> tuple[NodePod, ...]:
    """Sort Pods by namespace, name and UID."""
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)))
