"""The priorities of Pods of a file, as the API server's plugin Priority writes them.

The source of the rules is Kubernetes, plugin/pkg/admission/priority.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

Raw = dict[str, Any]

KIND: Final = "PriorityClass"
_SYSTEM: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class Priorities:
    """The PriorityClasses of a cluster.

    Args:
        note: notes what is assumed, a sentence each.
    """

    def __init__(self, note: Callable[[str], object]) -> None:
        self._note = note
        self._classes: dict[str, Mapping[str, Any]] = {}
        self._unknown: set[str] = set()

    def put(self, obj: Mapping[str, Any]) -> None:
        """A PriorityClass is there."""
        self._classes[obj["metadata"]["name"]] = obj

    def write(self, pod: Raw) -> str:
        """Write the priority of its class, or of the default class, into a new Pod.

        Returns:
            Why the API server would refuse it; "" if it would not.
        """
        spec = pod["spec"]
        name = spec.get("priorityClassName")
        if not name:
            default = [one for one in self._classes.values() if one.get("globalDefault")]
            if not default or spec.get("priority") is not None:
                return ""
            name = spec["priorityClassName"] = min(default, key=_by_value)["metadata"]["name"]
        known = self._classes.get(name)
        if known is not None:
            spec["priority"] = known.get("value", 0)
            spec["preemptionPolicy"] = known.get("preemptionPolicy") or "PreemptLowerPriority"
        elif name in _SYSTEM:
            spec["priority"] = _SYSTEM[name]
        elif spec.get("priority") is None:
            return self._without(name, pod)
        return ""

    def complete(self, pod: Raw) -> None:
        """Write the priority into a Pod of a file that states none; the API server always does, in Pods that exist."""
        if pod["spec"].get("priority") is None:
            self.write(pod)

    def _without(self, name: str, pod: Mapping[str, Any]) -> str:
        """What becomes of a Pod whose class is not known: it is refused, unless the input has no classes at all."""
        if self._classes:
            about = f"{pod['metadata'].get('namespace') or 'default'}/{pod['metadata']['name']}"
            return f"Pod {about} is forbidden: no PriorityClass with name {name} was found"
        if name not in self._unknown:
            self._unknown.add(name)
            self._note(f"PriorityClass {name} is not in the input: its Pods are given priority 0")
        return ""


def _by_value(one: Mapping[str, Any]) -> tuple[int, str]:
    """Of several global defaults the API server takes the one of the lowest value."""
    return one.get("value", 0), one["metadata"]["name"]
