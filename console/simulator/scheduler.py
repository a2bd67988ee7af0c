"""The stand-in for kube-scheduler: keeps what each node has and what its Pods request, and calls the extender."""

import hashlib
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import orjson

from allocator.amounts import pod_amounts
from allocator.vocabulary.device import Device
from console.simulator import api
from console.simulator.daemons import only_node
from console.simulator.predicates import NodeCandidate, best, candidate, closed_to_some, grouped, why_not
from console.simulator.resources import allocatable
from webhook.view.nodeselection import selects

Plain = Callable[[Mapping[str, Any], Mapping[str, int], Sequence[NodeCandidate], Mapping[str, Mapping[str, int]]], str]
"""Of a Pod's spec, the sum of its requests, the nodes on which it fits, and what is requested on nodes: a name."""

_MOST_ASKED: Final = 64  # amounts of one resource for which the nodes are remembered
_FINISHED: Final = ("Succeeded", "Failed")


def finished(pod: Mapping[str, Any]) -> bool:
    """Whether a Pod has ended and therefore holds nothing."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


def _told_apart(pod: Mapping[str, Any], only: str | None) -> bytes:
    """What distinguishes a Pod from another one in the search for a node; Pods of one template are alike."""
    metadata = pod["metadata"]
    about = {key: metadata.get(key) for key in ("namespace", "labels", "annotations")}
    return hashlib.sha256(orjson.dumps([only, about, pod["spec"]], option=orjson.OPT_SORT_KEYS)).digest()


class KubeScheduler:
    """Finds nodes for Pods.

    Args:
        way: calls the webhook, which is the extender.
        scheduler_name: `spec.schedulerName` of the Pods for which the extender is called.
        among: chooses among the sorted names of nodes with equal scores.
        managed: resources that only the extender accounts for if a Node does not state them.
        plain: chooses a node for a Pod of another scheduler among those on which it fits; None for the first by name.
    """

    def __init__(
        self,
        way: api.Api,
        scheduler_name: str,
        among: Callable[[Sequence[str]], str],
        managed: frozenset[str] = frozenset(),
        plain: Plain | None = None,
    ) -> None:
        self._api = way
        self._scheduler_name = scheduler_name
        self._among = among
        self._managed = managed
        self._plain = plain
        self._candidates: dict[str, NodeCandidate] = {}
        self._names: list[str] = []
        self._used: dict[str, Counter[str]] = {}
        self._free: dict[str, dict[str, int]] = {}  # resource -> node that states it -> what no Pod requests
        # Resource -> an amount, and whether a node that states none has enough -> the nodes that have too little.
        self._lacking: dict[str, dict[tuple[int, bool], set[str]]] = {}
        # What a Pod asks for -> the names of the nodes that have enough for it, in order; forgotten when one gets more.
        self._enough: dict[frozenset[tuple[str, int, bool]], tuple[str, ...]] = {}
        self._fussy: set[str] = set()  # nodes that may refuse a Pod for which they have enough
        # A Pod -> why it fits nowhere; forgotten when a Node or what is requested there changes.
        self._refused: dict[bytes, tuple[str, ...]] = {}

    def put_node(self, node: Mapping[str, Any], devices: Iterable[Device]) -> None:
        """Add a Node.

        Raises:
            BadQuantityError: one of its amounts is not a quantity.
        """
        name = node["metadata"]["name"]
        if name not in self._candidates:
            insort(self._names, name)
        self._enough.clear()
        self._candidates[name] = new = candidate(node, allocatable(node, devices))
        used: Mapping[str, int] = self._used.get(name, {})
        for free in self._free.values():
            free.pop(name, None)
        for what, total in new.allocatable.items():
            self._free.setdefault(what, {})[name] = total - used.get(what, 0)
        for what in self._lacking:
            self._note_left(what, name)
        if closed_to_some(new):
            self._fussy.add(name)
        else:
            self._fussy.discard(name)
        self._refused.clear()

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
        self._refused.clear()
        used = self._used.setdefault(node, Counter())
        for name, amount in pod_amounts(pod["spec"]).items():
            used[name] += amount * times
            free = self._free.get(name, {})
            if node in free:
                free[node] -= amount * times
                self._note_left(name, node)

    def extends(self, pod: Mapping[str, Any]) -> bool:
        """Whether the extender is called for a Pod."""
        return bool(pod["spec"]["schedulerName"] == self._scheduler_name)

    def would_fit(self, pod: Mapping[str, Any], node: str, without: Iterable[Mapping[str, Any]]) -> bool:
        """Whether a Pod would fit on a node if some of its Pods left, by all that kube-scheduler judges itself."""
        known = self._candidates.get(node)
        if known is None:
            return False
        used = Counter(self._used.get(node, {}))
        for one in without:
            used.subtract(pod_amounts(one["spec"]))
        left = self._managed if self.extends(pod) else frozenset()
        asked = pod_amounts(pod["spec"])
        counted = {what: much for what, much in asked.items() if what in known.allocatable or what not in left}
        return why_not(pod["spec"], counted, known, used) is None

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
        alike = _told_apart(pod, only)
        known = self._refused.get(alike)
        if known is not None:
            return known
        found = await self._find(pod, only)
        if isinstance(found, tuple):
            self._refused[alike] = found
        return found

    async def _find(self, pod: Mapping[str, Any], only: str | None) -> str | tuple[str, ...]:
        spec = pod["spec"]
        asked = pod_amounts(spec)
        left = self._managed if self.extends(pod) else frozenset()
        names = self._candidates_of(spec, only)
        fitting = self._fitting(spec, asked, left, names)
        reasons: dict[str, str] = {}
        if fitting and self.extends(pod):
            scores = await self._extend(pod, fitting, reasons)
            if scores:
                return best(scores, self._among)
        elif fitting and self._plain is not None:
            return self._plain(spec, asked, [self._candidates[name] for name in fitting], self._used)
        elif fitting:
            return self._among(fitting)
        for name in set(names).difference(fitting):
            node = self._candidates[name]
            counted = {what: much for what, much in asked.items() if what in node.allocatable or what not in left}
            why = why_not(spec, counted, node, self._used.get(name, {}))
            if why is not None:
                reasons[name] = why
        return grouped(reasons) or ("there is no Node",)

    def _candidates_of(self, spec: Mapping[str, Any], only: str | None) -> Sequence[str]:
        """The nodes that are looked at: of a DaemonSet's Pod its own alone."""
        wanted = only_node(spec)
        if wanted in self._candidates and only in {None, wanted}:
            return [wanted]
        return self._names if only is None else [only]

    def _fitting(
        self, spec: Mapping[str, Any], asked: Mapping[str, int], left: AbstractSet[str], names: Iterable[str]
    ) -> Sequence[str]:
        """The nodes on which a Pod fits, by name; `why_not` has the reason for each of the others.

        Args:
            spec: of the Pod.
            asked: the sum of its requests.
            left: resources that do not count on a node that does not state them.
            names: of the nodes that are looked at.
        """
        asks = frozenset((what, much, what in left) for what, much in asked.items() if much)
        fitting: Sequence[str]
        if names is self._names:
            fitting = self._with_enough(asks)
        else:
            fitting = [name for name in names if not any(name in self._lack(*ask) for ask in asks)]
        asked_of = set(fitting) if selects(spec) else self._fussy
        if not asked_of:
            return fitting
        return [
            name for name in fitting if name not in asked_of or why_not(spec, {}, self._candidates[name], {}) is None
        ]

    def _with_enough(self, asks: frozenset[tuple[str, int, bool]]) -> tuple[str, ...]:
        """The nodes that have enough for these asks, by name; remembered, and shortened as nodes fill up."""
        known = self._enough.get(asks)
        if known is None:
            if len(self._enough) >= _MOST_ASKED:
                self._enough.clear()
            lacking = set().union(*(self._lack(*ask) for ask in asks))
            known = self._enough[asks] = tuple(name for name in self._names if name not in lacking)
        return known

    def _lack(self, what: str, much: int, unstated: bool) -> set[str]:  # noqa: FBT001 it is a part of what is asked
        """The nodes that have less than this left of a resource; remembered, because many Pods ask for the same."""
        asked = self._lacking.setdefault(what, {})
        known = asked.get((much, unstated))
        if known is None:
            if len(asked) >= _MOST_ASKED:
                asked.clear()
                self._enough.clear()  # it is kept right by what is forgotten here
            free, instead = self._free.get(what, {}), much if unstated else 0
            known = asked[much, unstated] = {name for name in self._names if free.get(name, instead) < much}
        return known

    def _note_left(self, what: str, node: str) -> None:
        """What is left of a resource on a node has changed."""
        left = self._free.get(what, {}).get(node)
        for (much, unstated), lacking in self._lacking.get(what, {}).items():
            if unstated if left is None else left >= much:
                if node in lacking:
                    lacking.discard(node)
                    self._enough.clear()
            elif node not in lacking:
                lacking.add(node)
                self._leave_out(node, (what, much, unstated))

    def _leave_out(self, node: str, ask: tuple[str, int, bool]) -> None:
        """A node has too little for an ask from now on."""
        for asks, names in self._enough.items():
            at = bisect_left(names, node) if ask in asks else len(names)
            if at < len(names) and names[at] == node:
                self._enough[asks] = (*names[:at], *names[at + 1 :])

    async def _extend(self, pod: Mapping[str, Any], names: Sequence[str], reasons: dict[str, str]) -> dict[str, int]:
        """Call the extender as kube-scheduler does: filter these nodes, and score the rest."""
        answer = await self._api.post(api.FILTER, {"Pod": pod, "Nodes": None, "NodeNames": names})
        if answer.get("Error"):
            reasons.update(dict.fromkeys(names, f"the extender failed: {answer['Error']}"))
            return {}
        reasons.update(answer["FailedNodes"])
        reasons.update(answer["FailedAndUnresolvableNodes"])
        left = answer["NodeNames"]
        if len(left) <= 1:  # which kube-scheduler does not have scored
            return dict.fromkeys(left, 0)
        scored = await self._api.post(api.PRIORITIZE, {"Pod": pod, "Nodes": None, "NodeNames": left})
        return {entry["Host"]: entry["Score"] for entry in scored}
