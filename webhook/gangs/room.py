"""Looks for room for the Pods of a gang: as the filter would, one after another, each with the others' taken."""

import asyncio
from collections.abc import Sequence

import orjson

from allocator.hold import Planned
from webhook.scheduling.bindings import claim_of
from webhook.scheduling.ranking import Ranked, Ranking
from webhook.view.cluster import ClusterView
from webhook.view.podinfo import PodInfo

_REASONS = 3  # nodes whose reasons are repeated


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

    async def find(self, pods: Sequence[PodInfo]) -> str:
        """Find room for all of these Pods, or for none; returns what is missing, "" where nothing is."""
        open_to: dict[bytes, list[str]] = {}
        for done, pod in enumerate(pods):
            selection = orjson.loads(pod.selection)
            if pod.selection not in open_to:
                open_to[pod.selection] = self._cluster.nodes.open_to(selection)
            names = open_to[pod.selection]
            shunned = self._cluster.nodes.shunned(selection.get("tolerations"))
            ranked = self._ranking.rank(pod, names, 1, shunned)
            holding = self._ranking.send(pod, ranked.named[0]) if ranked.named else None
            if holding is None:
                self.forget()
                return f"there is room for {done} of {len(pods)} Pods, and none for {pod.name}: {_why(ranked)}"
            claim = claim_of(pod, together=False)
            self.found.setdefault(ranked.named[0], []).append(Planned(claim, holding))
            await asyncio.sleep(0)  # looking for many must not hold up requests
        return ""

    def forget(self) -> None:
        """Let what was found be free again, unless the ledger holds it."""
        for node, planned in self.found.items():
            for one in planned:
                self._ranking.assumed.drop(one.pod.uid, node)
        self.found = {}


def _why(ranked: Ranked) -> str:
    reasons = [reason for _, _, reason in ranked.reasons()]
    if not reasons:
        return "it selects no node that has devices"
    more = f" (and {len(reasons) - _REASONS} more nodes)" if len(reasons) > _REASONS else ""
    return "; ".join(reasons[:_REASONS]) + more
