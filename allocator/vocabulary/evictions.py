"""Annotations by which the author of a Pod says that nobody is to evict it: koordgate's own, and common ones."""

from collections.abc import Callable, Mapping
from typing import Final

from allocator.vocabulary.names import MOVABLE

_MOST_COST: Final = str(2**31 - 1)

_STAYS: Final[Mapping[str, Callable[[str], bool]]] = {
    MOVABLE: lambda value: value == "false",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": lambda value: value == "false",
    "karpenter.sh/do-not-disrupt": lambda value: value != "false",  # newer versions also take a time
    "karpenter.sh/do-not-evict": lambda value: value != "false",
    "descheduler.alpha.kubernetes.io/prefer-no-eviction": lambda _value: True,
    "scheduling.koordinator.sh/eviction-cost": lambda value: value == _MOST_COST,
}
"""Key -> whether a value keeps the Pod where it is."""

STAY_ANNOTATIONS: Final = frozenset(_STAYS)


def stays(annotations: Mapping[str, str]) -> str:
    """The annotation that keeps a Pod where it is, as `key: value`; "" if none does."""
    found = (key for key, keeps in _STAYS.items() if key in annotations and keeps(annotations[key]))
    key = next(found, "")
    return f"{key}: {annotations[key]}" if key else ""
