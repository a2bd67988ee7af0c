"""Looks for room for the Pods of a gang: as the filter would, one after another, each with the others' taken."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import orjson

from allocator.budget import Steps
from allocator.gangreservation import Planned
from koordgate.breaks import Breaks, with_breaks
from webhook.scheduling.bindings import claim_of
from webhook.scheduling.fairness import SearchTime
from webhook.scheduling.ranking import Ranked, Ranking
from webhook.view.cluster import ClusterView
from webhook.view.loads import Requests
from webhook.view.podinfo import PodInfo

_RENEW: Final = 64  # Pods
_REASONS: Final = 3  # nodes whose reasons are repeated


@dataclass(eq=False, slots=True)
class _Open:
    """The nodes that Pods may go to which select alike and request alike."""

    nodes: dict[str, None]  # by name
    short: Counter[str] = field(default_factory=Counter)  # of the others, how many have too little of a resource left


class GangRoom:
    """Room for Pods that must all be placed. What is found counts as taken until `forget`.

    `ignored`: resources that kube-scheduler does not look for on a node that does not state them.
    """

    def __init__(
        self, cluster: ClusterView, ranking: Ranking, ignored: AbstractSet[str], search_time: SearchTime
    ) -> None:
        self._search_time = search_time
        self._cluster = cluster
        self._ranking = ranking
        self._ignored = ignored
        self.found: dict[str, list[Planned]] = {}  # by node
        self._promised: dict[str, Counter[str]] = {}  # requests of Pods that will come, in sum, by node

    async def find(self, pods: Sequence[PodInfo]) -> str:
        """Find room for all of these Pods, or for none; returns what is missing, "" where nothing is.

        Others run meanwhile, so that what was found may be gone when all is found. The ledger decides once more.
        """
        breaks = Breaks()
        open_to: dict[tuple[bytes, Requests], _Open] = {}  # Pods of a gang are mostly alike
        for done, pod in enumerate(pods):
            selection, like = orjson.loads(pod.selection), (pod.selection, pod.requests)
            if like not in open_to:
                open_to[like] = await with_breaks(self._open_to(pod, self._cluster.nodes.open_to(selection)))
            shunned = self._cluster.nodes.shunned(selection.get("tolerations"))
            names = list(open_to[like].nodes)
            ranked = await self._search_time.within(
                pod.namespace, partial(self._ranking.search, pod, names, 1, shunned)
            )
            node = ranked.named[0] if ranked.named else ""
            holding = self._ranking.send(pod, node) if node else None
            if holding is None:
                self.forget()
                why = _why(ranked, open_to[like].short)
                some = f"there is room for {done} of {len(pods)} Pods, and once they are placed none for {pod.name}"
                return f"{some}; nothing is held for them: {why}"
            self.found.setdefault(node, []).append(Planned(claim_of(pod, all_or_nothing=False), holding))
            self._promised[node].update(dict(pod.requests))
            for (_, requests), known in open_to.items():
                self._judge(node, requests, known)
            if done % _RENEW == _RENEW - 1:
                self._renew()
            if breaks.due():
                await breaks.take()
        return ""

    def _open_to(self, pod: PodInfo, names: Iterable[str]) -> Steps[_Open]:
        """The nodes among these that have all that a Pod requests; yields after each."""
        found = _Open(dict.fromkeys(names))
        for name in list(found.nodes):
            if name not in self._promised:
                self._promised[name] = self._held(name)
            self._judge(name, pod.requests, found)
            yield 0
        return found

    def _judge(self, node: str, requests: Requests, among: _Open) -> None:
        """Leave out a node that has too little left."""
        if node in among.nodes:
            lacking = self._cluster.loads.lacks(node, (*self._promised[node].items(), *requests), self._ignored)
            if lacking:
                del among.nodes[node]
                among.short[lacking] += 1

    def _held(self, node: str) -> Counter[str]:
        """What the Pods request for which room is held on a node: kube-scheduler will count them there."""
        held = self._cluster.held.record(node).holdings
        return self._cluster.to_come(uid for uid, holding in held.items() if holding.until)

    def _renew(self) -> None:
        """Let what was found count as taken for longer: the search may take more time than a bind."""
        for node, planned in self.found.items():
            for one in planned:
                self._ranking.assumed.drop(one.pod.uid, node)
                self._ranking.assumed.put(node, one.holding)

    def forget(self) -> None:
        """Let what was found be free again, unless the ledger holds it."""
        for node, planned in self.found.items():
            for one in planned:
                self._ranking.assumed.drop(one.pod.uid, node)
        self.found, self._promised = {}, {}


def _why(ranked: Ranked, short: Mapping[str, int]) -> str:
    reasons = [reason for _, _, reason in ranked.reasons()][:_REASONS]
    reasons += [f"too little {name} is left on {count} of the nodes" for name, count in sorted(short.items())]
    return "; ".join(reasons) or "it selects no node that has devices"
