"""Whom a Pod that fits nowhere would evict: kube-scheduler's choice, with the extender's `preempt` for devices.

Nobody is evicted in a simulation. When victims end, and what then becomes of them, follows from their grace periods and
their controllers, which take time that a simulation does not have. What would be evicted is reported.

The imitated part is Kubernetes' DefaultPreemption (pkg/scheduler/framework/plugins/defaultpreemption): on each node all
Pods of lower priority are taken away, as many as possible are put back, the highest first, and nodes are compared by
the highest priority among the victims, the sum of their priorities, and their number. PodDisruptionBudgets are not
read.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from console.simulator import api
from console.simulator.scheduler import KubeScheduler, finished

Raw = dict[str, Any]
_MOST_NODES: Final = 100  # candidates that are compared, as in kube-scheduler's defaults for up to 1,000 nodes
_MOST_NAMED: Final = 4
_NEVER: Final = "Never"


class Preemption:
    """Finds whom Pods would evict, in a cluster that does not change meanwhile.

    Args:
        way: calls the webhook.
        scheduler: knows the nodes.
        pods: all Pods that are there.
    """

    def __init__(self, way: api.Api, scheduler: KubeScheduler, pods: Iterable[Raw]) -> None:
        self._api = way
        self._scheduler = scheduler
        self._there: dict[str, list[Raw]] = {}
        for pod in pods:
            node = pod["spec"].get("nodeName")
            if node and not finished(pod) and pod["metadata"].get("deletionTimestamp") is None:
                self._there.setdefault(node, []).append(pod)
        self._least = min((_priority(pod) for on in self._there.values() for pod in on), default=math.inf)

    async def told(self, pod: Raw, only: str | None) -> str:
        """Say whom a Pod would evict, and from which node; "" if that would not help it, or it evicts nobody.

        Args:
            pod: that fits nowhere.
            only: the one node that is a candidate; None for all.
        """
        spec = pod["spec"]
        if spec.get("preemptionPolicy") == _NEVER or _priority(pod) <= self._least or spec.get("schedulingGates"):
            return ""
        chosen: dict[str, list[Raw]] = {}
        for node in sorted(self._there) if only is None else [only]:
            victims = self._victims(pod, node)
            if victims is not None and self._scheduler.extends(pod):
                victims = await self._extended(pod, node, victims)
            if victims:
                chosen[node] = victims
                if len(chosen) == _MOST_NODES:
                    break
        if not chosen:
            return ""
        node = min(chosen, key=lambda name: _cost(chosen[name], name))
        names = sorted(f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in chosen[node])
        more = f" and {len(names) - _MOST_NAMED} more Pods" if len(names) > _MOST_NAMED else ""
        return f"would fit on {node} by preempting {', '.join(names[:_MOST_NAMED])}{more}; nobody is evicted here"

    def _victims(self, pod: Raw, node: str) -> list[Raw] | None:
        """Those that must go for what kube-scheduler counts itself; None if that would not suffice."""
        lower = [one for one in self._there.get(node, ()) if _priority(one) < _priority(pod)]
        if not lower or not self._scheduler.would_fit(pod, node, lower):
            return None
        gone = list(lower)
        by_uid = sorted(lower, key=lambda one: str(one["metadata"]["uid"]))
        for one in sorted(by_uid, key=_priority, reverse=True):
            rest = [other for other in gone if other is not one]
            if self._scheduler.would_fit(pod, node, rest):
                gone = rest
        return gone

    async def _extended(self, pod: Raw, node: str, victims: Sequence[Raw]) -> list[Raw]:
        """The victims that the extender chooses; none where that would not help."""
        uids = {"Pods": [{"UID": one["metadata"]["uid"]} for one in victims], "NumPDBViolations": 0}
        answer = await self._api.post(api.PREEMPT, {"Pod": pod, "NodeNameToMetaVictims": {node: uids}})
        chosen = answer["NodeNameToMetaVictims"].get(node, {"Pods": []})
        by_uid = {one["metadata"]["uid"]: one for one in self._there[node]}
        return [by_uid[one["UID"]] for one in chosen["Pods"]]


def _cost(victims: Sequence[Raw], node: str) -> tuple[int, int, int, str]:
    priorities = [_priority(one) for one in victims]
    return max(priorities), sum(priorities), len(victims), node


def _priority(pod: Mapping[str, Any]) -> int:
    priority = pod["spec"].get("priority")
    return priority if isinstance(priority, int) else 0
