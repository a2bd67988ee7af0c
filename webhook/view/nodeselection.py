"""Whether a Pod's nodeSelector and required node affinity allow a node, and whether it tolerates a node's taints.

Pure; as kube-scheduler's NodeAffinity, TaintToleration and NodeUnschedulable.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import orjson

UNSCHEDULABLE: Final[Mapping[str, str]] = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"  # the effect of a taint that keeps Pods off where others will do
_STEERING: Final = ("topologySpreadConstraints", "resourceClaims")
_MAX_LOOKS: Final = 20_000  # at the terms of one selection: some 20 ms
_MAX_LABELS: Final = 100_000  # of nodes that are compared first: some 10 ms
_VALUES_A_LOOK: Final = 16
_MAX_INT: Final = 20  # an int64 in decimal; Python refuses to read very long ones


def may_land(spec: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Whether a Pod's own selection allows a node, without regard to taints and resources."""
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return False
    terms = _required(spec)
    return terms is None or any(_term(term, name, labels) for term in terms)


def selected(spec: Mapping[str, Any], nodes: Mapping[str, Mapping[str, str]]) -> list[str] | None:
    """The nodes that a Pod's own selection allows, as `may_land` says.

    Nodes that are alike in the labels that the Pod names are looked at once.
    Returns their names, in the order given; None if there is too much to look at, because authors write selections of
    any length.
    """
    terms = _required(spec)
    each = list(_expressions(terms))
    keys = sorted({str(one.get("key")) for one in each} | (spec.get("nodeSelector") or {}).keys())
    looks = len(spec.get("nodeSelector") or ()) + len(terms or ())
    looks += sum(1 + len(one.get("values") or ()) // _VALUES_A_LOOK for one in each)
    if len(keys) * len(nodes) > _MAX_LABELS:
        return None
    named = any(term.get("matchFields") for term in terms or ())
    alike: dict[object, list[str]] = {}
    for name, labels in nodes.items():
        alike.setdefault((name if named else "", *map(labels.get, keys)), []).append(name)
    if looks * len(alike) > _MAX_LOOKS:
        return None
    allowed = {name for names in alike.values() if may_land(spec, names[0], nodes[names[0]]) for name in names}
    return [name for name in nodes if name in allowed]


def _required(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """The terms of a Pod's required node affinity; None if it has none."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def _expressions(terms: Sequence[Mapping[str, Any]] | None) -> Iterator[Mapping[str, Any]]:
    """The expressions of all terms."""
    parts = ("matchExpressions", "matchFields")
    return chain.from_iterable(term.get(part) or () for term in terms or () for part in parts)


def selects(spec: Mapping[str, Any]) -> bool:
    """Whether a Pod selects nodes at all."""
    return bool(spec.get("nodeSelector") or (spec.get("affinity") or {}).get("nodeAffinity"))


def selection_of(spec: Mapping[str, Any]) -> bytes:
    """Write the parts of a Pod's spec that choose among nodes, as JSON; equal parts give equal text.

    `may_land` and `tolerated` read the first three of them.
    """
    parts = {key: spec[key] for key in ("nodeSelector", "affinity", "tolerations", *_STEERING) if spec.get(key)}
    if _has_claims(spec):
        parts["volumes"] = True
    return orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)


def simple(selection: Mapping[str, Any]) -> bool:
    """Whether a Pod's selectors and tolerations say all nodes that it may go to, and it prefers none of them.

    `selection`: as `selection_of` writes it. Other Pods, volumes or claims may have a say too.
    """
    affinity = selection.get("affinity") or {}
    steered = {*selection, *affinity} - {"nodeSelector", "tolerations", "affinity", "nodeAffinity"}
    return not steered and not (affinity.get("nodeAffinity") or {}).get(PREFERRED)


def _has_claims(spec: Mapping[str, Any]) -> bool:
    """Whether a Pod has volumes that may be of some nodes only."""
    return any("persistentVolumeClaim" in one or "ephemeral" in one for one in spec.get("volumes") or ())


def tolerated(taint: Mapping[str, Any], tolerations: object) -> bool:
    """Whether a Pod's tolerations cover a taint; tolerations that are not a list of objects count as none."""
    listed = tolerations if isinstance(tolerations, list | tuple) else ()
    return any(isinstance(toleration, dict) and _tolerates(toleration, taint) for toleration in listed)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """As k8s.io/api/core/v1 Toleration.ToleratesTaint."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Exists":
        return True
    return (
        operator == "Equal"
        and bool(toleration.get("key"))
        and (toleration.get("value") or "") == (taint.get("value") or "")
    )


def _term(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False  # an empty term selects nothing
    return all(_expression(e, labels) for e in expressions) and all(
        _expression(f, {"metadata.name": name}) for f in fields
    )


def _expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    operator = _OPERATORS.get(str(expression.get("operator")))
    return operator is not None and operator(labels.get(expression.get("key", "")), expression.get("values") or ())


def _greater(value: str | None, values: Sequence[str]) -> bool:
    return _is_int(value) and len(values) == 1 and _is_int(values[0]) and int(value or 0) > int(values[0])


def _less(value: str | None, values: Sequence[str]) -> bool:
    return _is_int(value) and len(values) == 1 and _is_int(values[0]) and int(value or 0) < int(values[0])


def _is_int(text: str | None) -> bool:
    return text is not None and len(text) <= _MAX_INT and text.removeprefix("-").isdecimal() and text.isascii()


_OPERATORS: Final[Mapping[str, Callable[[str | None, Sequence[str]], bool]]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _greater,
    "Lt": _less,
}
