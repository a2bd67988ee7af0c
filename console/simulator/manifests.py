"""The Pods that manifests state, wherever in an object they are, and objects with other Pods (pure).

Any object may create Pods: Kubernetes' own workloads, Jobs of Volcano, Kubeflow and Ray, Rollouts, and kinds that are
still to come. All of them embed Kubernetes' Pod template, a mapping with a Pod's `spec`. It is found by that.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

Raw = dict[str, Any]
Way = tuple[str | int, ...]  # the keys and indexes from an object to a part of it

# These have a template, whatever else is wrong with them.
WORKLOADS: Final = frozenset(
    {
        ("v1", "Pod"),
        ("v1", "PodTemplate"),
        ("v1", "ReplicationController"),
        ("apps", "Deployment"),
        ("apps", "StatefulSet"),
        ("apps", "DaemonSet"),
        ("apps", "ReplicaSet"),
        ("batch", "Job"),
        ("batch", "CronJob"),
    }
)
_CHANGED: Final = ("labels", "annotations")


def must_have_pods(obj: Mapping[str, Any], kind: str) -> bool:
    """Whether an object is of a kind of Kubernetes' own that always states a Pod."""
    return (str(obj.get("apiVersion")).partition("/")[0], kind) in WORKLOADS


def pods_in(obj: Mapping[str, Any], kind: str) -> dict[Way, Raw]:
    """Make the Pod that an object is, or each Pod that it creates, in the object's namespace and with its name.

    Returns:
        By the way to the Pod's template; `()` is the object itself.
    """
    metadata = _mapping(obj.get("metadata"))
    name = str(metadata.get("name") or f"{metadata.get('generateName') or kind.lower()}x".replace("-x", "-0"))
    named = {"name": name, "namespace": metadata.get("namespace") or "default"}
    return {
        way: copy.deepcopy(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**_mapping(found.get("metadata")), **named},
                "spec": found["spec"],
            }
        )
        for way, found in _templates(obj)
    }


def _templates(obj: Mapping[str, Any]) -> Iterator[tuple[Way, Mapping[str, Any]]]:
    waiting: list[tuple[Way, Any]] = [((), obj)]
    while waiting:
        way, part = waiting.pop()
        if isinstance(part, dict):
            if "containers" in _mapping(part.get("spec")):
                yield way, part
            else:
                waiting += [((*way, key), inner) for key, inner in reversed(part.items())]
        elif isinstance(part, list):
            waiting += [((*way, index), inner) for index, inner in reversed(list(enumerate(part)))]


def with_pods(obj: Mapping[str, Any], pods: Mapping[Way, Mapping[str, Any]]) -> Raw:
    """Copy an object, with Pods of other labels, annotations and spec at the ways that `pods_in` gave."""
    made: Raw = copy.deepcopy(dict(obj))
    for way, pod in pods.items():
        found: Any = made
        for key in way:
            found = found[key]
        found["spec"] = pod["spec"]
        inner = _mapping(found.get("metadata"))
        for key in _CHANGED:
            if pod["metadata"].get(key):
                inner[key] = pod["metadata"][key]
            else:
                inner.pop(key, None)
        if inner:
            found["metadata"] = inner
    return made


def place_of(way: Way) -> str:
    """Write a way as the API server names a field: `spec.tasks[0].template`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in way).lstrip(".")


def _mapping(value: Any) -> Any:
    return value if isinstance(value, dict) else {}
