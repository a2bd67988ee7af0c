"""The stand-in for kube-scheduler with its books: what each node has, what its Pods ask; it calls the extender."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from allocator.amounts import pod_amounts
from allocator.vocabulary.device import Device
from webhook.offline import api
from webhook.offline.resources import allocatable
from webhook.offline.scheduler import NodeCandidate, best, candidate, grouped, why_not

_FINISHED: Final = ("Succeeded", "Failed")


def finished(pod: Mapping[str, Any]) -> bool:
    """Tell whether a Pod has ended, so that it holds nothing any more."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


class KubeScheduler:
    """Finds nodes for Pods.

    Args:
        way: to the webhook, which is the extender.
        scheduler_name: of the Pods about which the extender is asked.
        among: chooses among nodes of equal score.
        managed: resources of which the extender alone knows, where a Node does not state them.
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
        """A Node is there.

        Raises:
            BadQuantityError: an amount of it is no quantity.
        """
        self._candidates[node["metadata"]["name"]] = candidate(node, allocatable(node, devices))

    def count(self, pod: Mapping[str, Any]) -> None:
        """Count what a Pod asks of its node, if it is bound and not finished.

        Raises:
            BadQuantityError: a request is no quantity.
        """
        self._add(pod, 1)

    def forget(self, pod: Mapping[str, Any]) -> None:
        """Count a Pod no more."""
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
            pod: as admitted.
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
        """Ask the extender as kube-scheduler does: which of these nodes, and how good each is."""
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
