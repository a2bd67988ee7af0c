"""The Pods that wait, and why, for the device map: what `place()` says of them on some nodes."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from allocator.vocabulary.outcome import Refusal
from koordgate.breaks import Breaks
from webhook.devicemap.text import LONGEST, cut
from webhook.scheduling.extender import Answer
from webhook.scheduling.pace import Effort
from webhook.scheduling.ranking import Ranking
from webhook.view.cluster import ClusterView
from webhook.view.podinfo import PodInfo

Raw = dict[str, Any]

_MOST_PODS: Final = 200
_MOST_NODES: Final = 16  # on which a Pod is judged
_MOST_REASONS: Final = 4
_STEPS: Final = 200  # of each decision: a page that somebody looks at must cost the scheduler nothing

_SAID: Final = {
    Answer.FITS: "a node was named for it; it waits for its Binding",
    Answer.FULL: "fits nowhere as long as others hold what they hold",
    Answer.IMPOSSIBLE: "fits on no node, even if nobody else held anything",
    Answer.UNFINISHED: "the search ended before all nodes were judged; it goes on with the next try",
    Answer.GANG: "waits until there is room for its whole gang",
    Answer.BOUND_ELSEWHERE: "only nodes on which it already holds something are open to it",
    Answer.UNREADABLE: "what it asks for cannot be read",
}


class WaitingPods:
    """Says which Pods wait, and why.

    `said`: what kube-scheduler was answered last about a Pod, by UID.
    """

    def __init__(
        self, view: ClusterView, ranking: Ranking, scheduler: str, said: Callable[[str], Answer | None]
    ) -> None:
        self._view = view
        self._ranking = ranking
        self._scheduler = scheduler
        self._said = said

    async def __call__(self) -> Raw:
        """The entry `waiting` of the document: the Pods that were seen first, and how many there are in sum."""
        uids = list(self._view.pods.waiting(self._scheduler))
        breaks = Breaks()
        pods = []
        for uid in uids[:_MOST_PODS]:
            pod = self._view.pods.by_uid(uid)
            if pod is not None:
                pods.append(self._entry(pod))
            if breaks.due():
                await breaks.take()
        return {"pods": pods, "total": len(uids)}

    def _entry(self, pod: PodInfo) -> Raw:
        said = self._said(pod.uid)
        reasons = [_SAID[said]] if said is not None else ["kube-scheduler has not asked about it lately"]
        if pod.problem:
            reasons.append(pod.problem)
        elif said in {Answer.FULL, Answer.IMPOSSIBLE, Answer.UNFINISHED}:
            reasons += self._refusals(pod)
        waited = round(self._view.pods.waited(pod.uid))
        return waiting_entry(pod.uid, pod.namespace, pod.name, "waiting", reasons, waited)

    def _refusals(self, pod: PodInfo) -> list[str]:
        """Why some nodes refuse a Pod: the first by name, each reason once with the number of its nodes."""
        known = sorted(self._view.nodes.known())
        few = len(known) <= _MOST_REASONS
        counted: Counter[str] = Counter()
        for node in islice(known, _MOST_NODES):
            verdict = self._ranking.verdict(node, pod.request, pod.uid, Effort(most_steps=_STEPS))
            if isinstance(verdict, Refusal):
                counted[verdict.message if few else verdict.short or verdict.message] += 1
        told = [why if few else f"{number} nodes: {why}" for why, number in counted.most_common(_MOST_REASONS)]
        beyond = len(known) - _MOST_NODES
        return [*told, *([f"{beyond} further nodes were not looked at here"] if beyond > 0 else ())]


def waiting_entry(uid: str, namespace: str, name: str, state: str, reasons: Iterable[str], seconds: int = 0) -> Raw:
    """Make the entry of a Pod that waits, or was refused.

    `seconds`: for which it has waited; 0 if that is not known.
    """
    return {
        "uid": cut(uid),
        "namespace": cut(namespace),
        "name": cut(name),
        "state": cut(state),
        "reasons": [cut(reason, LONGEST) for reason in reasons],
        "seconds": seconds,
    }
