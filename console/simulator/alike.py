"""What is found out once for all Pods of one template: what admission makes of them, and what they ask for.

Admission and the reading of a Pod depend on all of it except its name and identity. Pods that differ in nothing else
are therefore admitted and read alike. A cluster of a hundred thousand Pods has some thousand templates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import orjson

from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import is_allocation_annotation
from console.simulator.limitranges import AddedDefault
from webhook.view.podinfo import PodInfo, read_pod_info

Raw = dict[str, Any]
T = TypeVar("T")

OWN: Final = ("name", "uid", "generateName", "resourceVersion", "creationTimestamp", "managedFields")
"""What of a Pod's metadata is its own, and no part of a template."""

_MOST: Final = 4096  # templates that are remembered of each kind
_SOME_NODE: Final = "-"


@dataclass(frozen=True, slots=True)
class Admitted:
    """What admission made of a Pod.

    Attributes:
        pod: as it is created.
        warnings: for its author.
        added: devices that LimitRanges added before.
    """

    pod: Raw
    warnings: tuple[str, ...]
    added: tuple[AddedDefault, ...] = ()

    def for_another(self, pod: Mapping[str, Any], uid: str) -> Raw:
        """What it makes of another Pod of the same template; both share all that is no Pod's own.

        Args:
            pod: the other one, as its author wrote it.
            uid: its identity.
        """
        metadata = {key: value for key, value in self.pod["metadata"].items() if key not in OWN}
        own = {key: pod["metadata"][key] for key in OWN if key in pod["metadata"]}
        made = {**self.pod, "metadata": {**metadata, **own, "uid": uid}}
        made.pop("status", None)
        return {**made, "status": pod["status"]} if "status" in pod else made


class Admissions:
    """Remembers what admission made of Pods, until what it depends on changes."""

    def __init__(self) -> None:
        self._known: dict[bytes, Admitted] = {}

    def get(self, key: bytes) -> Admitted | None:
        """What it made of a Pod of this template; None if that is not known."""
        return self._known.get(key)

    def put(self, key: bytes, made: Admitted) -> None:
        """Remember what it made of a Pod."""
        _bounded(self._known)[key] = made

    def clear(self) -> None:
        """Forget everything, because Nodes or namespaces changed."""
        self._known.clear()


class PodReader:
    """Reads Pods as `read_pod_info` does; what those of one template ask for is read once."""

    def __init__(self) -> None:
        self._known: dict[bytes, PodInfo] = {}

    def __call__(self, obj: Mapping[str, Any], known: PodInfo | None, types: DeviceTypes) -> PodInfo | None:
        """Read a Pod; `known` is what was known of it."""
        if known is not None:
            return read_pod_info(obj, known, types)
        key = _asked_by(obj)
        alike = self._known.get(key)
        if alike is not None:
            return read_pod_info(obj, replace(alike, uid=obj["metadata"]["uid"]), types)
        read = read_pod_info(obj, None, types)
        if read is not None and read.asks:
            # What a bound Pod asks for is not read again, whatever its annotations have come to say.
            _bounded(self._known)[key] = replace(read, node=read.node or _SOME_NODE)
        return read


def template_of(pod: Mapping[str, Any]) -> bytes:
    """What a Pod has in common with all Pods of its template, as one value."""
    metadata = {key: value for key, value in pod["metadata"].items() if key not in OWN}
    return orjson.dumps([metadata, pod["spec"]], option=orjson.OPT_NON_STR_KEYS)


def _asked_by(pod: Mapping[str, Any]) -> bytes:
    """What a Pod's request follows from, as one value: not from what a bind adds."""
    metadata, spec = pod["metadata"], pod["spec"]
    written = metadata.get("annotations") or {}
    annotations = {key: value for key, value in written.items() if not is_allocation_annotation(key)}
    about = [metadata.get("namespace"), metadata.get("labels"), annotations]
    return orjson.dumps([*about, {key: value for key, value in spec.items() if key != "nodeName"}])


def _bounded(known: dict[bytes, T]) -> dict[bytes, T]:
    if len(known) >= _MOST:
        known.clear()
    return known
