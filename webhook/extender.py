"""`/scheduler/filter` and `/scheduler/prioritize`: which nodes can hold a Pod, and how good each is.

The wire is kube-scheduler's (k8s.io/kube-scheduler/extender/v1): its keys are read in any case. The verdict is that of
`place()`, which is what the bind will say.
"""

import heapq
from collections.abc import Mapping
from typing import Any, Final

from allocator.outcome import Refusal
from allocator.score import MAX_SCORE
from webhook.cluster import ClusterView
from webhook.podinfo import PodInfo, read_pod_info

MAX_EXTENDER_SCORE: Final = 10
_SCORE_STEP: Final = MAX_SCORE // MAX_EXTENDER_SCORE


class BadExtenderArgsError(ValueError):
    """A body that is not kube-scheduler's ExtenderArgs."""


class Extender:
    """Answers kube-scheduler.

    Args:
        cluster: what is known.
        most_nodes: fitting nodes that `filter` names at most, of those that are as good as the best by our score;
            None names all that fit. Few names spare kube-scheduler, which waits, its own scoring of hundreds of nodes
            and a second call here.
    """

    def __init__(self, cluster: ClusterView, most_nodes: int | None) -> None:
        self._cluster = cluster
        self._most_nodes = most_nodes

    def filter(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Tell which nodes can hold the Pod, and why the others cannot.

        Raises:
            BadExtenderArgsError: it is no ExtenderArgs.
        """
        pod, names, whole_nodes = self._read(args)
        if pod is None or not pod.asks:
            return _fitting(names, whole_nodes, {}, {})
        if problem := pod.problem or pod.annotation_problem:  # as the bind
            return _fitting([], whole_nodes, {}, dict.fromkeys(names, problem))
        request, uid, verdict = pod.request, pod.uid, self._cluster.verdict
        number = self._cluster.number(request)
        fitting: list[tuple[str, int]] = []
        failed, never = {}, {}
        for name in names:
            judged = verdict(name, request, number, uid)
            outcome = judged.outcome
            if not isinstance(outcome, Refusal):
                fitting.append((name, judged.score // _SCORE_STEP))
            elif outcome.permanent:
                never[name] = outcome.message
            else:
                failed[name] = outcome.message
        return _fitting(self._best(fitting), whole_nodes, failed, never)

    def _best(self, fitting: list[tuple[str, int]]) -> list[str]:
        """Keep the best few nodes.

        Of equals the first by name, not in kube-scheduler's rotating order: Pods that come one after another then go to
        the same nodes, which fills these, and lets the ledger write many binds at once.
        """
        if self._most_nodes is None:
            return [name for name, _ in fitting]
        best = max((score for _, score in fitting), default=0)
        return heapq.nsmallest(self._most_nodes, (name for name, score in fitting if score == best))

    def prioritize(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Score the nodes from 0 to 10.

        Raises:
            BadExtenderArgsError: it is no ExtenderArgs.
        """
        pod, names, _ = self._read(args)
        if pod is None or not pod.request:
            return [{"Host": name, "Score": 0} for name in names]
        request, uid, verdict = pod.request, pod.uid, self._cluster.verdict
        number = self._cluster.number(request)
        return [{"Host": name, "Score": verdict(name, request, number, uid).score // _SCORE_STEP} for name in names]

    def _read(self, args: Mapping[str, Any]) -> tuple[PodInfo | None, list[str], Mapping[str, Any] | None]:
        """Read the Pod, the candidates' names, and their Node list if whole Nodes were sent (not nodeCacheCapable)."""
        if not isinstance(args, dict):
            raise BadExtenderArgsError("the body is no ExtenderArgs object")
        lower = {key.lower(): value for key, value in args.items()}
        pod, names, nodes = lower.get("pod"), lower.get("nodenames"), lower.get("nodes")
        if not isinstance(pod, dict) or not isinstance(pod.get("metadata"), dict):
            raise BadExtenderArgsError("ExtenderArgs without a Pod")
        if names is None and isinstance(nodes, dict):
            names = _names(nodes)
        elif isinstance(names, list):
            nodes = None
        else:
            raise BadExtenderArgsError("ExtenderArgs without NodeNames or Nodes")
        uid = pod["metadata"].setdefault("uid", "")
        if not isinstance(uid, str) or not all(isinstance(name, str) for name in names):
            raise BadExtenderArgsError("ExtenderArgs with a uid or a node's name that is no text")
        return self._cluster.pod_by_uid(uid) or read_pod_info(pod), names, nodes


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
