"""The kinds of values in the Pods and Bindings that an API server sends, as far as koordgate reads them.

The functions that read these objects rely on the API server's own validation. A caller that is no API server can send
anything: an answer to it that fails is its own fault, and no bug. Nothing is checked before that, since a check takes
time and could only refuse what koordgate can read.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

_Quantities = dict[str, str | int | float]
_Texts = dict[str, str]


class _Shape(Struct, rename="camel"):
    """An object; fields that are not listed may hold anything, and each that is listed may be left out or null."""


Shape = type[_Shape]


class _Resources(_Shape):
    requests: _Quantities | None = None
    limits: _Quantities | None = None


class _FieldRef(_Shape):
    api_version: str | None = None
    field_path: str | None = None


class _Source(_Shape):
    field_ref: _FieldRef | None = None


class _Variable(_Shape):
    name: str
    value_from: _Source | None = None


class _Container(_Shape):
    name: str
    resources: _Resources | None = None
    env: list[_Variable] | None = None
    restart_policy: str | None = None


class _Expression(_Shape):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(_Shape):
    match_expressions: list[_Expression] | None = None
    match_fields: list[_Expression] | None = None


class _Terms(_Shape):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(_Shape):
    required_during_scheduling_ignored_during_execution: _Terms | None = None


class _Affinity(_Shape):
    node_affinity: _NodeAffinity | None = None


class _Gate(_Shape):
    name: str


class _Toleration(_Shape):
    key: str | None = None
    operator: str | None = None
    effect: str | None = None


class _Metadata(_Shape):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: _Texts | None = None
    annotations: _Texts | None = None


class _PodSpec(_Shape):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    resources: _Resources | None = None
    overhead: _Quantities | None = None
    node_name: str | None = None
    node_selector: _Texts | None = None
    affinity: _Affinity | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[_Gate] | None = None
    tolerations: list[_Toleration] | None = None
    priority_class_name: str | None = None


class _PodStatus(_Shape):
    phase: str | None = None


class PodShape(_Shape):
    """A Pod of a review."""

    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus | None = None


class _Target(_Shape):
    name: str | None = None


class BindingShape(_Shape):
    """A Binding of a review."""

    metadata: _Metadata
    target: _Target


class ClaimShape(_Shape):
    """A ResourceClaim of a review."""

    metadata: _Metadata


def misshapen(obj: Mapping[str, Any], shape: Shape) -> str:
    """Say what in an object is of a kind that no API server sends, and where; "" if nothing is."""
    try:
        msgspec.convert(obj, shape)
    except msgspec.ValidationError as error:
        return str(error)
    return ""
