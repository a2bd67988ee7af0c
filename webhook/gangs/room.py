"""Looks for room for the Pods of a gang: as the filter would, one after another, each with the others' taken."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from allocator.hold import Planned
from webhook.scheduling.bindings import claim_of
from webhook.scheduling.ranking import Ranked, Ranking
from webhook.view.cluster import ClusterView
from webhook.view.podinfo import PodInfo

_REASONS: Final = 3  # nodes whose reasons are repeated


class GangRoom:
    """Room for Pods that must all be placed. What is found counts as taken until `forget`.

    Args:
        cluster: what is known of the cluster.
        ranking: orders nodes, and remembers where Pods were sent.
    """

    def __init__(self, cluster: ClusterView, ranking: Ranking) -> None:
        self._cluster = cluster
        self._ranking = ranking
        self.found: dict[str, list[Planned]] = {}  # by node
        self._promised: dict[str, list[tuple[str, int]]] = {}  # requests of Pods that will come, by node

    async def find(self, pods: Sequence[PodInfo]) -> str:
        """Find room for all of these Pods, or for none; returns what is missing, "" where nothing is."""
        open_to: dict[bytes, list[str]] = {}
        for done, pod in enumerate(pods):
            selection = orjson.loads(pod.selection)
            if pod.selection not in open_to:
                open_to[pod.selection] = self._cluster.nodes.open_to(selection)
            names, short = self._with_amounts(pod, open_to[pod.selection])
            shunned = self._cluster.nodes.shunned(selection.get("tolerations"))
            ranked = self._ranking.rank(pod, names, 1, shunned)
            holding = self._ranking.send(pod, ranked.named[0]) if ranked.named else None
            if holding is None:
                self.forget()
                why = _why(ranked, short)
                return f"there is room for {done} of {len(pods)} Pods, and none for {pod.name}: {why}"
            node = ranked.named[0]
            self.found.setdefault(node, []).append(Planned(claim_of(pod, together=False), holding))
            self._promised.setdefault(node, []).extend(pod.requests)
            await asyncio.sleep(0)  # looking for many must not hold up requests
        return ""

    def _with_amounts(self, pod: PodInfo, names: Sequence[str]) -> tuple[list[str], Counter[str]]:
        """The nodes that have CPU and memory for a Pod; and how many others lack what."""
        found: list[str] = []
        short: Counter[str] = Counter()
        for name in names:
            promised = self._promised.get(name)
            if promised is None:
                promised = self._promised[name] = self._held(name)
            lacking = self._cluster.amounts.lacks(name, (*promised, *pod.requests))
            if lacking:
                short[lacking] += 1
            else:
                found.append(name)
        return found, short

    def _held(self, node: str) -> list[tuple[str, int]]:
        """What the Pods request for which room is held on a node: kube-scheduler will count them there."""
        held = (uid for uid, holding in self._cluster.held.record(node).holdings.items() if holding.until)
        pods = (self._cluster.pods.by_uid(uid) for uid in held)
        return [request for pod in pods if pod is not None and not pod.node for request in pod.requests]

    def forget(self) -> None:
        """Let what was found be free again, unless the ledger holds it."""
        for node, planned in self.found.items():
            for one in planned:
                self._ranking.assumed.drop(one.pod.uid, node)
        self.found, self._promised = {}, {}


def _why(ranked: Ranked, short: Mapping[str, int]) -> str:
    reasons = [reason for _, _, reason in ranked.reasons()][:_REASONS]
    reasons += [f"{count} nodes have too little {name} left" for name, count in sorted(short.items())]
    return "; ".join(reasons) or "it selects no node that has devices"
