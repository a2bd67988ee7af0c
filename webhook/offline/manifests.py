"""The Pods that workloads create, and workloads with other Pods (pure)."""

import copy
from collections.abc import Mapping
from typing import Any, Final

Raw = dict[str, Any]

_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "PodTemplate": ("template",),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
KINDS: Final = ("Pod", *_TEMPLATES)
_CHANGED: Final = ("labels", "annotations")


def pod_of(obj: Mapping[str, Any], kind: str) -> Raw | None:
    """Make the Pod that an object is, or creates, in the object's namespace and with its name; None if it has none."""
    metadata = obj.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    found: Any = obj
    for key in _TEMPLATES.get(kind, ()):
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("spec"), dict):
        return None
    inner = found.get("metadata")
    inner = inner if isinstance(inner, dict) else {}
    name = str(metadata.get("name") or f"{metadata.get('generateName') or kind.lower()}x".replace("-x", "-0"))
    made = {**inner, "name": name, "namespace": metadata.get("namespace") or "default"}
    return copy.deepcopy({"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": found["spec"]})


def with_pod(obj: Mapping[str, Any], kind: str, pod: Mapping[str, Any]) -> Raw:
    """Copy an object, with a Pod of other labels, annotations and spec."""
    made: Raw = copy.deepcopy(dict(obj))
    found = made
    for key in _TEMPLATES.get(kind, ()):
        found = found[key]
    found["spec"] = pod["spec"]
    inner = found["metadata"] if isinstance(found.get("metadata"), dict) else {}
    for key in _CHANGED:
        if pod["metadata"].get(key):
            inner[key] = pod["metadata"][key]
        else:
            inner.pop(key, None)
    if inner:
        found["metadata"] = inner
    return made
