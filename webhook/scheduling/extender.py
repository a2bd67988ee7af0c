"""`/scheduler/filter`, `prioritize` and `preempt`: which nodes can hold a Pod, how good each is, and who must go.

The wire is kube-scheduler's (k8s.io/kube-scheduler/extender/v1): its keys are read in any case. The verdict is that of
`place()`, which is what the bind will say.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from allocator.preempt import PodStanding, choose_victims
from allocator.score import MAX_SCORE
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.outcome import Refusal
from webhook.scheduling.ranking import MOST_TOLD, Ranking
from webhook.view.cluster import ClusterView
from webhook.view.podinfo import PodInfo, read_pod_info

P = TypeVar("P")

MAX_EXTENDER_SCORE: Final = 10
_SCORE_STEP: Final = MAX_SCORE // MAX_EXTENDER_SCORE
_PATIENCE_S: Final = 0.04  # kube-scheduler waits meanwhile
_NEXT_WAIT_S: Final = 0.4
_MOST_REFUSED: Final = 65_536
_LONGEST: Final = 200  # characters of why a Pod can land nowhere
_KINDS: Final[Mapping[type, str]] = {dict: "object", list: "list", str: "text", int: "number"}
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


class BadExtenderArgsError(ValueError):
    """A body that is not kube-scheduler's ExtenderArgs."""


class Extender:
    """Answers kube-scheduler.

    Args:
        cluster: what is known.
        ranking: of the nodes.
        types: of devices.
        most_nodes: fitting nodes that `filter` names at most for a Pod that prefers some nodes to others; None names
            all that fit. A Pod that has no preference is sent to the best node: kube-scheduler, which waits, is spared
            its own scoring of hundreds, and Pods that follow see where it is going.
    """

    def __init__(self, cluster: ClusterView, ranking: Ranking, types: DeviceTypes, most_nodes: int | None) -> None:
        self._cluster = cluster
        self._types = types
        self._ranking = ranking
        self._most_nodes = most_nodes
        self._refused: set[str] = set()  # UIDs of Pods that fitted nowhere
        self._waited = -math.inf  # when we last waited for news

    def filter(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Tell which nodes can hold the Pod, and why the others cannot.

        Raises:
            BadExtenderArgsError: it is no ExtenderArgs.
        """
        pod, names, whole_nodes, spec = self._read(args)
        if pod is None or not pod.asks:
            return _fitting(names, whole_nodes, {}, {})
        if problem := pod.problem or pod.annotation_problem:  # as the bind
            return _fitting([], whole_nodes, {}, _told_of_few(names, problem))
        most = self._most_nodes if self._most_nodes is None or _prefers(spec) else 1
        # kube-scheduler's own scoring, which has nothing to choose from then, would avoid what is tainted so.
        shunned = self._cluster.nodes.shunned(spec.get("tolerations"))
        ranked = self._ranking.rank(pod, names, most, shunned)
        if most == 1 and ranked.named:
            self._assume(pod, ranked.named[0])
        failed: dict[str, str] = {}
        never: dict[str, str] = {}
        for name, permanent, reason in ranked.reasons():
            (never if permanent else failed)[name] = unformatted(reason)
        return _fitting(list(ranked.named), whole_nodes, failed, never)

    def _assume(self, pod: PodInfo, node: str) -> None:
        outcome = self._ranking.verdict(node, self._ranking.wanted(pod), pod.uid).outcome
        if not isinstance(outcome, Refusal) and pod.uid:
            gang = pod.request.wishes.gang
            holding = Holding(pod.uid, pod.namespace, pod.name, 0, outcome.shares, outcome.cpus, gang)
            self._ranking.assumed.put(node, holding)

    async def filter_patiently(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """As `filter`; a Pod that is tried again and fits nowhere is looked at once more when there is news.

        kube-scheduler tries it because it saw a Pod end, or a Node change, and may have seen it some milliseconds
        before us; refused, it would sleep for a second and more.

        Raises:
            BadExtenderArgsError: it is no ExtenderArgs.
        """
        answer = self.filter(args)
        uid = _lower(args)["pod"]["metadata"].get("uid", "")
        if answer.get("NodeNames") or (answer.get("Nodes") or {}).get("items"):
            self._refused.discard(uid)
            return answer
        again = uid in self._refused
        if len(self._refused) >= _MOST_REFUSED:
            self._refused.clear()
        self._refused.add(uid)
        return self.filter(args) if again and await self._news() else answer

    async def _news(self) -> bool:
        """Wait a little until something changes; not for each of many Pods that are tried one after another."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if began - self._waited < _NEXT_WAIT_S:
            return False
        self._waited = began
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._cluster.changes.news()
        except TimeoutError:
            return False
        return True

    def prioritize(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Score the nodes from 0 to 10.

        Raises:
            BadExtenderArgsError: it is no ExtenderArgs.
        """
        pod, names, _, _ = self._read(args)
        if pod is None or not pod.request:
            return [{"Host": name, "Score": 0} for name in names]
        request, uid, verdict = self._ranking.wanted(pod), pod.uid, self._ranking.verdict
        return [{"Host": name, "Score": verdict(name, request, uid).score // _SCORE_STEP} for name in names]

    def preempt(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Choose, on each node that kube-scheduler proposes, the Pods that must go; leave out where that cannot help.

        Raises:
            BadExtenderArgsError: it is no ExtenderPreemptionArgs.
        """
        lower = _lower(args)
        spec_pod = lower.get("pod")
        proposed = _proposed(lower)
        if not isinstance(spec_pod, dict) or not isinstance(spec_pod.get("metadata"), dict):
            raise BadExtenderArgsError("ExtenderPreemptionArgs without a Pod")
        pod = self._known(spec_pod)
        if pod is None or not pod.asks:
            return _victims(proposed)
        if pod.problem or pod.annotation_problem:
            return _victims({})
        chosen: dict[str, tuple[list[str], int]] = {}
        for node, (uids, violations) in proposed.items():
            snapshot = self._ranking.snapshot(node).without([pod.uid])
            # kube-scheduler knows of no Pods on the node but those bound there, and refuses another as a victim.
            there = (self._cluster.pods.by_uid(uid) for uid in snapshot.holdings)
            standing = {
                known.uid: PodStanding(known.priority, dict(known.requests))
                for known in there
                if known is not None and known.node == node
            }
            victims = choose_victims(pod.request, snapshot, standing, pod.priority, uids)
            if victims is not None:
                chosen[node] = (list(victims), violations)
        return _victims(chosen)

    def _known(self, pod: dict[str, Any]) -> PodInfo | None:
        uid = pod["metadata"].setdefault("uid", "")
        if not isinstance(uid, str):
            raise BadExtenderArgsError("a Pod with a uid that is no text")
        known = self._cluster.pods.by_uid(uid)
        if known is not None:
            return known
        _check_pod(pod)
        return read_pod_info(pod, types=self._types)

    def _read(
        self, args: Mapping[str, Any]
    ) -> tuple[PodInfo | None, list[str], Mapping[str, Any] | None, Mapping[str, Any]]:
        """Read the Pod, the candidates' names, their Node list if whole Nodes were sent, and the Pod's spec."""
        lower = _lower(args)
        pod, names, nodes = lower.get("pod"), lower.get("nodenames"), lower.get("nodes")
        if not isinstance(pod, dict) or not isinstance(pod.get("metadata"), dict):
            raise BadExtenderArgsError("ExtenderArgs without a Pod")
        if names is None and isinstance(nodes, dict):
            names = _names(nodes)
        elif isinstance(names, list):
            nodes = None
        else:
            raise BadExtenderArgsError("ExtenderArgs without NodeNames or Nodes")
        if not {str}.issuperset(map(type, names)):
            raise BadExtenderArgsError("ExtenderArgs with a node's name that is no text")
        spec = pod.get("spec")
        return self._known(pod), names, nodes, spec if isinstance(spec, dict) else {}


def unformatted(text: str) -> str:
    """Write out per cent signs: kube-scheduler takes what refuses a Pod for the format of its Event."""
    return text.replace(" %", " percent").replace("%", " percent")


def _told_of_few(names: Sequence[str], problem: str) -> dict[str, str]:
    """Say of some nodes why the Pod can land on none; of the others, which may be thousands, that it is the same."""
    why = unformatted(problem if len(problem) <= _LONGEST else f"{problem[:_LONGEST]} ...")
    told = dict.fromkeys(names, "the Pod cannot be read, as is told of other nodes")
    return told | dict.fromkeys(names[:MOST_TOLD], why)


def _lower(args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with their keys in lower case."""
    if not isinstance(args, dict):
        raise BadExtenderArgsError("the body is no object of arguments")
    return {key.lower(): value for key, value in args.items()}


def _check_pod(pod: Mapping[str, Any]) -> None:
    """Refuse what the API server would not have stored: what reads Pods counts on that."""
    metadata, spec = _part(pod, "metadata", dict), _part(pod, "spec", dict)
    _part(pod, "status", dict)
    if not _part(metadata, "name", str):
        raise BadExtenderArgsError("a Pod without a name")
    _part(metadata, "namespace", str)
    for key in ("labels", "annotations"):
        if not {str}.issuperset(map(type, _part(metadata, key, dict).values())):
            raise BadExtenderArgsError(f"a Pod with {key} that are no texts")
    for key, kind in (("nodeName", str), ("schedulerName", str), ("priority", int)):
        _part(spec, key, kind)
    of = [container for key in ("initContainers", "containers") for container in _part(spec, key, list)]
    for container in (spec, *of):
        if not isinstance(container, dict):
            raise BadExtenderArgsError("a Pod with a container that is no object")
        _part(container, "name", str)
        resources = _part(container, "resources", dict)
        for key in ("requests", "limits"):
            _part(resources, key, dict)


def _part(of: Mapping[str, Any], key: str, kind: type[P]) -> P:
    """A member of an object; an empty one where it is left out."""
    found = of.get(key)
    if found is None:
        return kind()
    if not isinstance(found, kind):
        raise BadExtenderArgsError(f"a Pod with {key} that is no {_KINDS[kind]}")
    return found


def _proposed(lower: Mapping[str, Any]) -> dict[str, tuple[list[str], int]]:
    """Read kube-scheduler's victims: node -> UIDs, and how many disruption budgets are broken."""
    nodes = lower.get("nodenametometavictims") or lower.get("nodenametovictims") or {}
    found: dict[str, tuple[list[str], int]] = {}
    try:
        for node, victims in nodes.items():
            told = _lower(victims)
            pods = told.get("pods") or []
            uids = [_lower(pod).get("uid") or pod["metadata"]["uid"] for pod in pods]
            if not {str}.issuperset(map(type, uids)):
                raise BadExtenderArgsError("ExtenderPreemptionArgs with a victim's uid that is no text")
            violations = told.get("numpdbviolations") or 0
            if type(violations) is not int:
                raise BadExtenderArgsError("ExtenderPreemptionArgs with a NumPDBViolations that is no number")
            found[node] = (uids, violations)
    except (AttributeError, KeyError, TypeError) as error:
        raise BadExtenderArgsError("ExtenderPreemptionArgs with victims that cannot be read") from error
    return found


def _victims(chosen: Mapping[str, tuple[list[str], int]]) -> dict[str, Any]:
    told = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
        for node, (uids, violations) in chosen.items()
    }
    return {"NodeNameToMetaVictims": told}


def _prefers(spec: Mapping[str, Any]) -> bool:
    """Tell whether a Pod prefers some of the nodes that it may land on, which kube-scheduler's scoring alone serves."""
    affinity = spec.get("affinity")
    parts = affinity.values() if isinstance(affinity, dict) else ()
    preferred = any(isinstance(part, dict) and part.get(_PREFERRED) for part in parts)
    return preferred or bool(spec.get("topologySpreadConstraints"))


def _names(nodes: Mapping[str, Any]) -> list[Any]:
    try:
        return [item["metadata"]["name"] for item in nodes.get("items") or ()]
    except (KeyError, TypeError) as error:
        raise BadExtenderArgsError("ExtenderArgs with Nodes that have no name") from error


def _fitting(
    names: list[str], whole_nodes: Mapping[str, Any] | None, failed: Mapping[str, str], never: Mapping[str, str]
) -> dict[str, Any]:
    result: dict[str, Any] = {"FailedNodes": failed, "FailedAndUnresolvableNodes": never, "Error": ""}
    if whole_nodes is None:
        result["NodeNames"] = names
    else:
        wanted = set(names)
        items = [item for item in whole_nodes.get("items") or () if item["metadata"]["name"] in wanted]
        result["Nodes"] = {**whole_nodes, "items": items}
    return result
