"""What a manifest must look like: kinds of values, names of fields, and objects within objects.

Any object may create Pods: Kubernetes' own workloads, Jobs of Volcano, Kubeflow and Ray, Rollouts, and kinds that are
still to come. All of them embed Kubernetes' Pod template, a mapping with a Pod's `spec`. It is found by that.

Offline no API server checks an object. A list in place of an object would look like a bug in koordgate, and a Pod whose
`resources` are misspelt would ask for nothing. `fields.json` follows from Kubernetes' OpenAPI (`docs/podfields.py`). Of
values only those are compared that people often get wrong and on which devices depend (docs/reference/limits.md).
"""

import copy
import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final

from allocator.quantity import QuantityError, parse
from allocator.vocabulary.names import RESOURCE_MAPS

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


_ALIKE: Final = 0.6
_OTHERS: Final = frozenset({"Device", "NodeAllocation", "NodeResourceTopology", "PodGroup"})
_OF_PODS: Final = ("cpu", "memory")  # and hugepages: what may be stated for a Pod as a whole
_VERSIONS: Final = {kind: group if group == "v1" else f"{group}/v1" for group, kind in WORKLOADS}
_RESTARTS: Final = {
    **{f"{kind}Spec": ("Always",) for group, kind in WORKLOADS if group == "apps"},
    "ReplicationControllerSpec": ("Always",),
    "JobSpec": ("OnFailure", "Never"),
}
"""Type -> what the restartPolicy of the Pods of its template may be; Always is the default."""

_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": ("spec",),
    "Container": ("name",),
    "EnvVar": ("name",),
    "PodSchedulingGate": ("name",),
    "NodeSelector": ("nodeSelectorTerms",),
    **dict.fromkeys(("NodeSelectorRequirement", "LabelSelectorRequirement"), ("key", "operator")),
    "OwnerReference": ("kind", "name"),
    "Taint": ("key", "effect"),
    "NodeCondition": ("type",),
    "LimitRangeItem": ("type",),
    "ScopedResourceSelectorRequirement": ("scopeName", "operator"),
}
"""Type -> what is read of it, and may not be left out."""

_IN_WORDS: Final = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_MAX_NAME: Final = 253
_NAMED: Final = ("ObjectMeta", "Container")
_SCALARS: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "Quantity": (str, int, float),
}


@cache
def _known() -> Mapping[str, Any]:
    """`kinds` and `types`, as `docs/podfields.py` describes them."""
    found: Mapping[str, Any] = json.loads(files("console.simulator").joinpath("fields.json").read_text())
    return found


def wrong_shape(kind: str, obj: object) -> str:
    """Why an API server would reject the kinds of values in an object, or in its metadata; "" if it would not."""
    of = kind if "metadata" in _known()["types"].get(kind, ()) else ""
    metadata = obj.get("metadata") if isinstance(obj, dict) else None
    if not isinstance(metadata, dict) or not metadata.get("name"):
        return "metadata.name is missing; add it"
    if kind == "ResourceClaim" and not str(metadata.get("resourceVersion") or 0).isdecimal():
        return "metadata.resourceVersion is no number; leave it out"
    return next(_wrong(obj, of, ()) if of else _wrong(metadata, "ObjectMeta", ("metadata",)), "")


def refused(obj: Mapping[str, Any], kind: str) -> str:
    """Why the API server would refuse what an author wrote; "" if nothing of it is found.

    What comes from a cluster was accepted there, maybe by a later version of Kubernetes; it is not looked at.
    """
    metadata = obj.get("metadata")
    if isinstance(metadata, dict) and (metadata.get("uid") or metadata.get("resourceVersion")):
        return ""
    version = obj.get("apiVersion")
    if version in _VERSIONS.values() and version != _VERSIONS.get(kind, version):
        return f"{version} has no kind {kind}; write apiVersion: {_VERSIONS[kind]}"
    if version in _VERSIONS.values() and kind not in _known()["kinds"] and kind not in _OTHERS:
        return f"{version} has no kind {kind}{_meant(kind, _known()['kinds'])}"
    if must_have_pods(obj, kind):
        return next(_wrong(obj, kind, (), strict=True), "")
    # A template that is no whole Pod may be completed by its own controller.
    whole = ((way, pod["spec"]) for way, pod in pods_in(obj, kind).items() if not wrong_shape("Pod", pod))
    return next((why for way, spec in whole for why in _wrong(spec, "PodSpec", (*way, "spec"), strict=True)), "")


def _wrong(value: object, of: str, way: Way, *, strict: bool = False) -> Iterator[str]:
    """Find what is wrong with a value of a type: the first finding is right, others may follow from it.

    Args:
        value: of a manifest.
        of: its type, as `fields.json` writes it; "" for anything.
        way: to the value.
        strict: names of fields and values are compared too.
    """
    what = {"[": list, "{": dict}.get(of[:1])
    expected = _SCALARS.get(of) or (what or dict,)
    if not of:
        return
    if not isinstance(value, expected) or (isinstance(value, bool) and of != "boolean"):
        is_one = "null" if value is None else _IN_WORDS[type(value)]
        yield f"{place_of(way)}: {is_one} where {_IN_WORDS[expected[0]]} must be"
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _wrong(inner, of[1:-1], (*way, index), strict=strict)
    elif isinstance(value, dict) and what is dict:
        for key, inner in value.items():
            yield from _wrong(inner, of[1:-1], (*way, key), strict=strict)
    elif isinstance(value, dict):
        yield from _wrong_fields(value, of, way, strict=strict)


def _wrong_fields(value: Mapping[str, Any], of: str, way: Way, *, strict: bool) -> Iterator[str]:
    fields = _known()["types"][of]
    for key, inner in value.items():
        if key in fields and inner is not None:
            yield from _wrong(inner, fields[key], (*way, key), strict=strict)
        elif key not in fields and strict:
            yield f"{place_of((*way, key))} is no field{_meant(key, fields)}"
    yield from (_wrong_values if strict else _lacking)(value, of, way)


def _lacking(value: Mapping[str, Any], of: str, way: Way) -> Iterator[str]:
    """Find what is missing, and names that are none."""
    for key in _NEEDED.get(of, ()):
        if value.get(key) is None:
            yield f"{place_of((*way, key))} is missing; add it"
    name = value.get("name")
    if of in _NAMED and name is not None and not (_NAME.fullmatch(name) and len(name) <= _MAX_NAME):
        yield f"{place_of((*way, 'name'))}: {name!r} is no name: write at most {_MAX_NAME} of a-z, 0-9, - and ."
    if of == "PodSpec" and not value.get("containers"):
        yield f"{place_of((*way, 'containers'))}: a Pod has at least one container; add it"


def _wrong_values(value: Mapping[str, Any], of: str, way: Way) -> Iterator[str]:
    """Find values that people often get wrong, as the validation of Kubernetes does (pkg/apis/*/validation)."""
    if of in _RESTARTS:
        spec = (value.get("template") or {}).get("spec") or {}
        yield from _restarts(spec, _RESTARTS[of], (*way, "template", "spec"))
    if of == "PodSpec":
        yield from _restarts(value, ("Always", "OnFailure", "Never"), way)
        for key in RESOURCE_MAPS:
            for name in (value.get("resources") or {}).get(key) or ():
                if name not in _OF_PODS and not name.startswith("hugepages-"):
                    place = f"{place_of((*way, 'resources', key))}[{name}]"
                    yield f"{place}: a Pod as a whole may state cpu, memory and hugepages; ask in a container"
        yield from _twice(value, way)
    if of == "Container":
        resources = value.get("resources") or {}
        requests, limits = (resources.get(key) or {} for key in ("requests", "limits"))
        for name in requests.keys() & limits.keys():
            with suppress(QuantityError):
                # Admission compares those of devices.
                if "/" not in name and parse(requests[name]) > parse(limits[name]):
                    place = f"{place_of((*way, 'resources', 'requests'))}[{name}]"
                    yield f"{place}: {requests[name]} is above the limit {limits[name]}; raise the limit or lower it"


def _restarts(spec: Mapping[str, Any], possible: Sequence[str], way: Way) -> Iterator[str]:
    found = spec.get("restartPolicy") or "Always"
    if found not in possible:
        yield f"{place_of((*way, 'restartPolicy'))}: {found} is not possible here; write {' or '.join(possible)}"


def _twice(spec: Mapping[str, Any], way: Way) -> Iterator[str]:
    """Find a name that two containers of a Pod have."""
    seen: set[str] = set()
    for key in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(key) or ()):
            name = container.get("name")
            if name is not None and name in seen:
                yield f"{place_of((*way, key, index, 'name'))}: {name} is the name of two containers; rename one"
            seen.add(name)


def _meant(word: str, words: Collection[str]) -> str:
    alike = difflib.get_close_matches(word, words, 1, _ALIKE)
    return f"; did you mean {alike[0]}?" if alike else ""
