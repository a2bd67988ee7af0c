"""The structure that an API server requires of objects, for the fields that are read here.

Offline no API server checks it; a list in place of an object would otherwise look like a bug in koordgate.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

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
