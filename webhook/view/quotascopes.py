"""The scopes of a ResourceQuota, and the Pods that are in them (pure)."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

_LEAST: Final = frozenset({"cpu", "memory"})


class PodScope(NamedTuple):
    """What of a Pod decides whether it is in the scopes of a quota."""

    ends: bool = False  # it has a deadline (spec.activeDeadlineSeconds)
    best_effort: bool = False  # no container requests or limits CPU or memory
    priority_class: str = ""


ANYTHING: Final = PodScope()
_one = lru_cache(1024)(PodScope)  # Pods are mostly alike


def read_scope(spec: Mapping[str, Any]) -> PodScope:
    """Read what of a Pod decides it."""
    ends = spec.get("activeDeadlineSeconds") is not None
    return _one(ends, _best_effort(spec), spec.get("priorityClassName") or "")


def _best_effort(spec: Mapping[str, Any]) -> bool:
    for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()), spec):
        resources = one.get("resources") or {}
        if any(name in _LEAST for key in ("requests", "limits") for name in resources.get(key) or {}):
            return False
    return True


def scopes_of(quota: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The scopes of a quota's spec: name, operator and values."""
    for scope in quota.get("scopes") or ():
        yield str(scope), "Exists", ()
    for one in (quota.get("scopeSelector") or {}).get("matchExpressions") or ():
        yield str(one["scopeName"]), str(one["operator"]), tuple(one.get("values") or ())


def in_scopes(pod: PodScope, quota: Mapping[str, Any], *, unread: bool = False) -> bool:
    """Whether a Pod is in all scopes of a quota's spec.

    `unread`: whether it counts as one that is in a scope which is not read here (CrossNamespacePodAffinity).
    """
    name = pod.priority_class
    for scope, operator, values in scopes_of(quota):
        of_class = {"In": name in values, "NotIn": name not in values, "Exists": bool(name), "DoesNotExist": not name}
        within = {
            "Terminating": pod.ends,
            "NotTerminating": not pod.ends,
            "BestEffort": pod.best_effort,
            "NotBestEffort": not pod.best_effort,
            "PriorityClass": of_class.get(operator, False),
        }
        if not within.get(scope, unread):
            return False
    return True
