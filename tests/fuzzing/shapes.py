"""The kinds of values in the fields of Pods, Nodes and Bindings that the API server guarantees, written down once more.

A field that is absent here may hold anything. Where an object has this shape, nothing that koordgate does with it may
raise; where it has not, no API server has sent it, and a refusal is enough.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Quantity = str | int | float
Name = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")]
Identity = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[!-~]+\Z")]
Key = Annotated[str, Meta(min_length=1, max_length=317, pattern=r"^[-A-Za-z0-9_./]+\Z")]
Value = Annotated[str, Meta(max_length=63)]


class Resources(Struct):
    requests: dict[Key, Quantity] | None = None
    limits: dict[Key, Quantity] | None = None


class FieldRef(Struct):
    fieldPath: str  # noqa: N815
    apiVersion: str = ""  # noqa: N815


class Source(Struct):
    fieldRef: FieldRef | None = None  # noqa: N815


class Variable(Struct):
    name: Annotated[str, Meta(min_length=1)]
    value: str | None = None
    valueFrom: Source | None = None  # noqa: N815


class Container(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")]
    resources: Resources | None = None
    env: list[Variable] | None = None
    restartPolicy: str | None = None  # noqa: N815


class Toleration(Struct):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class Expression(Struct):
    key: Annotated[str, Meta(min_length=1)]
    operator: str
    values: list[str] | None = None


class Term(Struct):
    matchExpressions: list[Expression] | None = None  # noqa: N815
    matchFields: list[Expression] | None = None  # noqa: N815


class Required(Struct):
    nodeSelectorTerms: list[Term] | None = None  # noqa: N815


class NodeAffinity(Struct):
    requiredDuringSchedulingIgnoredDuringExecution: Required | None = None  # noqa: N815


class Affinity(Struct):
    nodeAffinity: NodeAffinity | None = None  # noqa: N815


class Gate(Struct):
    name: Annotated[str, Meta(min_length=1)]


class PodSpec(Struct):
    containers: Annotated[list[Container], Meta(min_length=1)]
    initContainers: list[Container] | None = None  # noqa: N815
    resources: Resources | None = None
    overhead: dict[Key, Quantity] | None = None
    nodeName: str | None = None  # noqa: N815
    nodeSelector: dict[str, str] | None = None  # noqa: N815
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    schedulerName: str | None = None  # noqa: N815
    schedulingGates: list[Gate] | None = None  # noqa: N815
    priority: Int32 | None = None
    priorityClassName: str | None = None  # noqa: N815


class Metadata(Struct):
    name: Name = "generated"
    namespace: Name = "default"
    generateName: str | None = None  # noqa: N815
    uid: Identity = "none"
    labels: dict[Key, Value] | None = None
    annotations: dict[Key, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815


class PodStatus(Struct):
    phase: str | None = None


class Pod(Struct):
    metadata: Metadata
    spec: PodSpec
    status: PodStatus | None = None


class Target(Struct):
    name: str | None = None


class Binding(Struct):
    metadata: Metadata
    target: Target


class Claim(Struct):
    metadata: Metadata


class Taint(Struct):
    key: Annotated[str, Meta(min_length=1)]
    effect: Annotated[str, Meta(min_length=1)]
    value: str | None = None


class NodeSpec(Struct):
    taints: list[Taint] | None = None
    unschedulable: bool | None = None


class NodeStatus(Struct):
    allocatable: dict[Key, Quantity] | None = None
    capacity: dict[Key, Quantity] | None = None


class Node(Struct):
    metadata: Metadata
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


class Held(Struct):
    """Any other object: the API server checks its metadata alone."""

    metadata: Metadata


def is_shaped(obj: Any, kind: type[Struct]) -> bool:
    """Whether an object is one that an API server sends as this kind."""
    try:
        shaped = msgspec.convert(obj, kind)
    except (msgspec.ValidationError, RecursionError):
        return False
    if isinstance(shaped, Pod):
        listed = [*(shaped.spec.initContainers or ()), *shaped.spec.containers]
        return len({one.name for one in listed}) == len(listed)
    return True
