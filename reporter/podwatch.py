"""The Pods of this node as a watch says."""

from collections.abc import Callable, Iterable
from typing import Any

from allocator.vocabulary.devicetype import DeviceTypes
from reporter.pods import NodePod, read_pod

Raw = dict[str, Any]


class NodePods:
    """Pods by UID; a Reflector's handler, which keeps no more of them than the reporter needs.

    Args:
        types: of devices.
        changed: called when a Pod came, went, or changed in what matters here.
    """

    def __init__(self, types: DeviceTypes, changed: Callable[[], None] = lambda: None) -> None:
        self._types = types
        self._changed = changed
        self._pods: dict[str, NodePod] = {}
        self._listed: set[str] | None = None

    @property
    def pods(self) -> tuple[NodePod, ...]:
        """All of them, by namespace, name and UID."""
        return tuple(sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name, pod.uid)))

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = set()

    def put(self, obj: Raw) -> None:
        """A Pod is there."""
        pod = read_pod(obj, self._types)
        if self._listed is not None:
            self._listed.add(pod.uid)
        if self._pods.get(pod.uid) != pod:
            self._pods[pod.uid] = pod
            self._changed()

    def drop(self, obj: Raw) -> None:
        """A Pod is gone."""
        self._remove([obj["metadata"]["uid"]])

    def end_list(self) -> None:
        """The list is complete."""
        if self._listed is not None:
            self._remove(self._pods.keys() - self._listed)
        self._listed = None

    def _remove(self, uids: Iterable[str]) -> None:
        for uid in list(uids):
            if self._pods.pop(uid, None) is not None:
                self._changed()
