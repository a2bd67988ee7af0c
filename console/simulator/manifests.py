"""What a manifest must look like: kinds of values, names of fields, and objects within objects.

Any object may create Pods: Kubernetes' own workloads, Jobs of Volcano, Kubeflow and Ray, Rollouts, and kinds that are
still to come. All of them embed Kubernetes' Pod template, a mapping with a Pod's `spec`. It is found by that.

Offline no API server checks it; a list in place of an object would otherwise look like a bug in koordgate.

Offline no API server is asked. A field that it does not know would otherwise be passed over: a Pod whose `resources`
are misspelt asks for nothing. `fields.json` follows from Kubernetes' OpenAPI (`docs/podfields.py`). Values are compared
as pkg/apis/core/validation, apps/validation and batch/validation of Kubernetes do, where people often get them wrong.
"""

import copy
import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

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


_Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
_Quantity = str | int | float
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Texts = dict[str, str] | None
_Quantities = dict[str, _Quantity] | None


class _Owner(Struct):
    kind: str
    name: str
    uid: str | None = None
    controller: bool | None = None


class _Metadata(Struct, rename="camel"):
    name: _Name
    namespace: _Name | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: _Texts = None
    annotations: _Texts = None
    owner_references: list[_Owner] | None = None


class _Resources(Struct):
    requests: _Quantities = None
    limits: _Quantities = None


class _Env(Struct):
    name: str
    value: str | None = None
    valueFrom: dict[str, Any] | None = None  # noqa: N815 as Kubernetes spells it


class _Container(Struct, rename="camel"):
    name: _Name
    resources: _Resources | None = None
    env: list[_Env] | None = None
    restart_policy: str | None = None


class _Toleration(Struct):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class _Expression(Struct):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(Struct, rename="camel"):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _Terms(Struct, rename="camel"):
    node_selector_terms: list[_Term]


class _NodeAffinity(Struct, rename="camel"):
    required: _Terms | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _Gate(Struct):
    name: str


class _PodSpec(Struct, rename="camel"):
    containers: Annotated[list[_Container], Meta(min_length=1)]
    init_containers: list[_Container] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    node_selector: _Texts = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None
    overhead: _Quantities = None
    resources: _Resources | None = None
    scheduling_gates: list[_Gate] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    active_deadline_seconds: int | None = None


class _PodStatus(Struct):
    phase: str | None = None


class _Pod(Struct):
    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus | None = None


class _Taint(Struct):
    key: str
    effect: str
    value: str | None = None


class _NodeSpec(Struct):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _Condition(Struct):
    type: str
    status: str | None = None


class _NodeStatus(Struct):
    allocatable: _Quantities = None
    capacity: _Quantities = None
    conditions: list[_Condition] | None = None


class _Node(Struct):
    metadata: _Metadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _Any(Struct):
    metadata: _Metadata


class _ConfigMap(Struct):
    metadata: _Metadata
    data: _Texts = None


class _ClaimMetadata(_Metadata, rename="camel"):
    resource_version: Annotated[str, Meta(pattern=r"^([1-9][0-9]*)?$")] | None = None  # it is compared as a number


class _Claim(Struct):
    metadata: _ClaimMetadata


class _Limit(Struct, rename="camel"):
    type: str
    max: _Quantities = None
    min: _Quantities = None
    default: _Quantities = None
    default_request: _Quantities = None
    max_limit_request_ratio: _Quantities = None


class _LimitRangeSpec(Struct):
    limits: list[_Limit] | None = None


class _LimitRange(Struct):
    metadata: _Metadata
    spec: _LimitRangeSpec | None = None


class _Selection(Struct, rename="camel"):
    scope_name: str
    operator: str
    values: list[str] | None = None


class _Selections(Struct, rename="camel"):
    match_expressions: list[_Selection] | None = None


class _QuotaSpec(Struct, rename="camel"):
    hard: _Quantities = None
    scopes: list[str] | None = None
    scope_selector: _Selections | None = None


class _Quota(Struct):
    metadata: _Metadata
    spec: _QuotaSpec | None = None


class _PriorityClass(Struct, rename="camel"):
    metadata: _Metadata
    value: int = 0
    global_default: bool | None = None
    preemption_policy: str | None = None


class _Overhead(Struct, rename="camel"):
    pod_fixed: _Quantities = None


class _RuntimeScheduling(Struct, rename="camel"):
    node_selector: _Texts = None
    tolerations: list[_Toleration] | None = None


class _RuntimeClass(Struct, rename="camel"):
    metadata: _Metadata
    handler: str
    overhead: _Overhead | None = None
    scheduling: _RuntimeScheduling | None = None


class _LabelSelector(Struct, rename="camel"):
    match_labels: _Texts = None
    match_expressions: list[_Expression] | None = None


class _BudgetSpec(Struct):
    selector: _LabelSelector | None = None


class _BudgetStatus(Struct, rename="camel"):
    disruptions_allowed: int | None = None


class _Budget(Struct):
    metadata: _Metadata
    spec: _BudgetSpec | None = None
    status: _BudgetStatus | None = None


class _Ordinals(Struct):
    start: _Count = 0


class _ReplicasSpec(Struct, rename="camel"):
    template: dict[str, Any]
    replicas: _Count | None = None
    selector: _LabelSelector | None = None
    ordinals: _Ordinals | None = None
    pod_management_policy: str | None = None


class _Replicas(Struct):
    metadata: _Metadata
    spec: _ReplicasSpec


class _ControllerSpec(Struct):
    template: dict[str, Any]
    replicas: _Count | None = None
    selector: _Texts = None


class _Controller(Struct):
    metadata: _Metadata
    spec: _ControllerSpec


class _JobSpec(Struct, rename="camel"):
    template: dict[str, Any]
    selector: _LabelSelector | None = None
    manual_selector: bool | None = None
    parallelism: _Count | None = None
    completions: _Count | None = None
    completion_mode: str | None = None
    suspend: bool | None = None


class _JobStatus(Struct):
    succeeded: _Count | None = None


class _Job(Struct):
    metadata: _Metadata
    spec: _JobSpec
    status: _JobStatus | None = None


class _JobTemplate(Struct):
    spec: _JobSpec
    metadata: dict[str, Any] | None = None


class _CronJobSpec(Struct, rename="camel"):
    job_template: _JobTemplate
    suspend: bool | None = None


class _CronJob(Struct):
    metadata: _Metadata
    spec: _CronJobSpec


class _PodTemplate(Struct):
    metadata: _Metadata
    template: dict[str, Any]


_SHAPES: Final[dict[str, type[Struct]]] = {
    "Pod": _Pod,
    "Node": _Node,
    "LimitRange": _LimitRange,
    "ResourceQuota": _Quota,
    "PriorityClass": _PriorityClass,
    "RuntimeClass": _RuntimeClass,
    "PodDisruptionBudget": _Budget,
    "ConfigMap": _ConfigMap,
    "ResourceClaim": _Claim,
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"), _Replicas),
    "ReplicationController": _Controller,
    "Job": _Job,
    "CronJob": _CronJob,
    "PodTemplate": _PodTemplate,
}


def wrong_shape(kind: str, obj: object) -> str:
    """Why an API server would reject the structure of an object; "" if it would not."""
    try:
        msgspec.convert(obj, _SHAPES.get(kind, _Any))
    except msgspec.ValidationError as error:
        return str(error).replace("$.", "").replace("`", "")
    return ""


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


def refused(obj: Mapping[str, Any], kind: str) -> str:
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


def _twice(spec: Mapping[str, Any], way: Way) -> Iterator[str]:
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
