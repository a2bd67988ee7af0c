"""The stand-in for kube-scheduler: keeps what each node has and what its Pods request, and calls the extender."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from allocator.amounts import pod_amounts
from allocator.vocabulary.device import Device
from webhook.offline import api
from webhook.offline.predicates import NodeCandidate, best, candidate, grouped, why_not
from webhook.offline.resources import allocatable

_FINISHED: Final = ("Succeeded", "Failed")


def finished(pod: Mapping[str, Any]) -> bool:
    """Whether a Pod has ended and therefore holds nothing."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


class KubeScheduler:
    """Finds nodes for Pods.

    Args:
        way: calls the webhook, which is the extender.
        scheduler_name: `spec.schedulerName` of the Pods for which the extender is called.
        among: chooses among the sorted names of nodes with equal scores.
        managed: resources that only the extender accounts for if a Node does not state them.
    """

    def __init__(
        self,
        way: api.Api,
        scheduler_name: str,
        among: Callable[[Sequence[str]], str],
        managed: frozenset[str] = frozenset(),
    ) -> None:
        self._api = way
        self._scheduler_name = scheduler_name
        self._among = among
        self._managed = managed
        self._candidates: dict[str, NodeCandidate] = {}
        self._used: dict[str, Counter[str]] = {}

    def put_node(self, node: Mapping[str, Any], devices: Iterable[Device]) -> None:
        """Add a Node.

        Raises:
            BadQuantityError: one of its amounts is not a quantity.
        """
        self._candidates[node["metadata"]["name"]] = candidate(node, allocatable(node, devices))

    def count(self, pod: Mapping[str, Any]) -> None:
        """Count a Pod's requests on its node, if it is bound and not finished.

        Raises:
            BadQuantityError: a request is not a quantity.
        """
        self._add(pod, 1)

    def forget(self, pod: Mapping[str, Any]) -> None:
        """Stop counting a Pod's requests."""
        self._add(pod, -1)

    def _add(self, pod: Mapping[str, Any], times: int) -> None:
        node = pod["spec"].get("nodeName")
        if not node or finished(pod):
            return
        used = self._used.setdefault(node, Counter())
        for name, amount in pod_amounts(pod["spec"]).items():
            used[name] += amount * times

    async def find(self, pod: Mapping[str, Any], only: str | None = None) -> str | tuple[str, ...]:
        """Find a node for a Pod.

        Args:
            pod: the Pod as admitted.
            only: the one node that is a candidate; None for all.

        Returns:
            The node's name, or why there is none, a line each.
        """
        spec = pod["spec"]
        if spec.get("schedulingGates"):
            gates = ", ".join(str(gate.get("name")) for gate in spec["schedulingGates"])
            return (f"the Pod waits for its schedulingGates: {gates}",)
        asked = pod_amounts(spec)
        left = self._managed if spec["schedulerName"] == self._scheduler_name else frozenset()
        reasons: dict[str, str] = {}
        fitting = []
        for name in sorted(self._candidates) if only is None else [only]:
            node = self._candidates[name]
            counted = {what: much for what, much in asked.items() if what in node.allocatable or what not in left}
            why = why_not(spec, counted, node, self._used.get(name, {}))
            if why is None:
                fitting.append(name)
            else:
                reasons[name] = why
        scores = dict.fromkeys(fitting, 0)
        if fitting and spec["schedulerName"] == self._scheduler_name:
            scores = await self._extend(pod, fitting, reasons)
        if scores:
            return best(scores, self._among)
        return grouped(reasons) or ("there is no Node",)

    async def _extend(self, pod: Mapping[str, Any], names: list[str], reasons: dict[str, str]) -> dict[str, int]:
        """Call the extender as kube-scheduler does: filter these nodes, and score the rest."""
        answer = await self._api.post(api.FILTER, {"Pod": pod, "Nodes": None, "NodeNames": names})
        if answer.get("Error"):
            reasons.update(dict.fromkeys(names, f"the extender failed: {answer['Error']}"))
            return {}
        reasons.update(answer["FailedNodes"])
        reasons.update(answer["FailedAndUnresolvableNodes"])
        left = answer["NodeNames"]
        if not left:
            return {}
        scored = await self._api.post(api.PRIORITIZE, {"Pod": pod, "Nodes": None, "NodeNames": left})
        return {entry["Host"]: entry["Score"] for entry in scored}
