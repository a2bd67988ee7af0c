"""What the API server refuses in objects that state Pods: names of kinds and fields, and what contradicts itself.

Offline no API server is asked. A field that it does not know would otherwise be passed over: a Pod whose `resources`
are misspelt asks for nothing. `fields.json` follows from Kubernetes' OpenAPI (`docs/podfields.py`). Values are compared
as pkg/apis/core/validation, apps/validation and batch/validation of Kubernetes do, where people often get them wrong.
"""

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any, Final

from allocator.quantity import QuantityError, parse
from allocator.vocabulary.names import RESOURCE_MAPS
from console.simulator.manifests import WORKLOADS, Way, must_have_pods, place_of, pods_in

Raw = Mapping[str, Any]

_ALIKE: Final = 0.6
_GROUPS: Final = frozenset({"v1", "apps/v1", "batch/v1"})
_OTHERS: Final = frozenset({"Device", "NodeAllocation", "NodeResourceTopology", "PodGroup"})
_OF_PODS: Final = ("cpu", "memory")  # and hugepages: what may be stated for a Pod as a whole
_POD: Final = "Pod"
_VERSIONS: Final = {kind: group if group == "v1" else f"{group}/v1" for group, kind in WORKLOADS}
_REMOVED: Final = frozenset({"extensions/v1beta1", "apps/v1beta1", "apps/v1beta2", "batch/v1beta1", "batch/v2alpha1"})
"""What Kubernetes served of these kinds before 1.16, CronJobs before 1.25."""

_RESTARTS: Final = {
    **{f"{kind}Spec": ("Always",) for group, kind in WORKLOADS if group == "apps"},
    "ReplicationControllerSpec": ("Always",),
    "JobSpec": ("OnFailure", "Never"),
    _POD: ("Always", "OnFailure", "Never"),
}
"""Type -> what the restartPolicy of its Pods may be; Always is the default."""


@cache
def _known() -> Mapping[str, Any]:
    """`kinds`, and `types`: type -> field -> type of the field's value or elements, "" for one without fields."""
    found: Mapping[str, Any] = json.loads(files("console.simulator").joinpath("fields.json").read_text())
    return found


def refused(obj: Raw, kind: str) -> str:
    """Why the API server would refuse an object; "" if nothing of it is found.

    What comes from a cluster was accepted there, maybe by a later version of Kubernetes; it is not looked at.
    """
    metadata = obj.get("metadata")
    if isinstance(metadata, dict) and (metadata.get("uid") or metadata.get("resourceVersion")):
        return ""
    version = obj.get("apiVersion")
    if version in _GROUPS | _REMOVED and version != _VERSIONS.get(kind, version):
        return f"{version} has no kind {kind}; write apiVersion: {_VERSIONS[kind]}"
    if version in _GROUPS and kind not in _known()["kinds"] and kind not in _OTHERS:
        return f"{version} has no kind {kind}{_meant(kind, _known()['kinds'])}"
    if kind == "Pod" or must_have_pods(obj, kind):
        return next(_wrong(obj, kind, ()), "")
    return next(
        (why for way, pod in pods_in(obj, kind).items() for why in _wrong({"spec": pod["spec"]}, _POD, way)), ""
    )


def _wrong(part: object, of: str, way: Way) -> Iterator[str]:
    """Find what is wrong in a part of an object, given its type."""
    if isinstance(part, list):
        for index, inner in enumerate(part):
            yield from _wrong(inner, of, (*way, index))
    if not isinstance(part, dict):
        return
    fields = _known()["types"].get(of, {})
    for key, inner in part.items() if fields else ():
        if key not in fields:
            yield f"{place_of((*way, str(key)))} is no field{_meant(str(key), fields)}"
        elif fields[key]:
            yield from _wrong(inner, fields[key], (*way, key))
    if of in _RESTARTS:
        yield from _restarts(part if of == _POD else part.get("template"), of, way)
    if of == "PodSpec":
        yield from _of_whole(part.get("resources"), way)
        yield from _twice(part, way)
    if of == "Container":
        yield from _above_limit(part.get("resources"), way)


def _restarts(pod: object, of: str, way: Way) -> Iterator[str]:
    """Find a restartPolicy that Pods of this type may not have."""
    spec = pod.get("spec") if isinstance(pod, dict) else None
    found = spec.get("restartPolicy") or "Always" if isinstance(spec, dict) else ""
    if found and found not in _RESTARTS[of]:
        place = place_of((*way, "spec", "restartPolicy") if of == _POD else (*way, "template", "spec", "restartPolicy"))
        yield f"{place}: {found} is not possible here; write {' or '.join(_RESTARTS[of])}"


def _twice(spec: Raw, way: Way) -> Iterator[str]:
    """Find a name that two containers of a Pod have."""
    seen: set[object] = set()
    for key in ("initContainers", "containers"):
        containers = spec.get(key)
        for index, container in enumerate(containers if isinstance(containers, list) else ()):
            name = container.get("name") if isinstance(container, dict) else None
            if isinstance(name, str) and name in seen:
                yield f"{place_of((*way, key, index, 'name'))}: {name} is the name of two containers; rename one"
            seen.add(name)


def _above_limit(resources: object, way: Way) -> Iterator[str]:
    """Find a request above its limit. Admission compares those of devices."""
    maps = [resources.get(key) if isinstance(resources, dict) else None for key in RESOURCE_MAPS]
    requests, limits = (one if isinstance(one, dict) else {} for one in maps)
    for name in requests.keys() & limits.keys():
        with suppress(QuantityError):
            if "/" not in str(name) and parse(requests[name]) > parse(limits[name]):
                place = f"{place_of((*way, 'resources', 'requests'))}[{name}]"
                yield f"{place}: {requests[name]} is above the limit {limits[name]}; raise the limit or lower it"


def _of_whole(resources: object, way: Way) -> Iterator[str]:
    """Find what a Pod states as a whole and only its containers may."""
    for key in RESOURCE_MAPS if isinstance(resources, dict) else ():
        for name in resources.get(key) or () if isinstance(resources, dict) else ():
            if name not in _OF_PODS and not str(name).startswith("hugepages-"):
                place = place_of((*way, "resources", key))
                yield f"{place}[{name}]: a Pod as a whole may state cpu, memory and hugepages; ask in a container"


def _meant(word: str, words: Collection[str]) -> str:
    alike = difflib.get_close_matches(word, words, 1, _ALIKE)
    return f"; did you mean {alike[0]}?" if alike else ""
