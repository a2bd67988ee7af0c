"""Follows the Pods of namespaces that are only observed, on a view of their own.

Every replica sees all Pods by its watch, and so makes the same placements; only the replica that was asked about a Pod
counts and tells them. Nothing is written but Events.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import orjson

from allocator.budget import Steps
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import MIRROR_POD, Mode
from allocator.vocabulary.node import NodeSnapshot
from koordgate.breaks import with_breaks
from koordgate.kube.errors import KubeError
from webhook.admission.pods import PodWebhooks
from webhook.metrics import WebhookMetrics
from webhook.scheduling.assumed import Assumed
from webhook.scheduling.fairness import SearchTime
from webhook.scheduling.ranking import Ranked, Ranking
from webhook.settings import SchedulerNames
from webhook.shadow.followed import Followed, FollowedPods
from webhook.shadow.judge import created, judge
from webhook.upkeep.reports import EventReports
from webhook.view.cluster import ClusterView, Held, SeenObjects
from webhook.view.feed import PodFeed
from webhook.view.loads import read_requests
from webhook.view.namespaces import NamespaceModes
from webhook.view.nodeselection import selection_of
from webhook.view.podinfo import PodInfo, read_pod_info


class ShadowView(ClusterView):
    """The true view, without what the observed Pods hold in truth. Where they would be is the ranking's to add.

    `observed_on`: the UIDs of the observed Pods that are bound to a node in truth.
    """

    def __init__(self, seen: SeenObjects, held: Held, observed_on: Callable[[str], AbstractSet[str]]) -> None:
        super().__init__(seen, held)
        self._observed_on = observed_on

    def snapshot(self, node: str) -> NodeSnapshot:
        """A node as it would be without the observed Pods.

        A device that the kubelet allocated is free only if it is stated that observed Pods alone have it.
        """
        snapshot = super().snapshot(node)
        observed = self._observed_on(node)
        if not observed:
            return snapshot
        listed = self.nodes.devices(node)
        pods_of = listed.kubelet_pods if listed is not None else {}
        others = frozenset(one for one in snapshot.kubelet_held if not (pods := pods_of.get(one)) or pods - observed)
        return replace(snapshot.without(observed), kubelet_held=others)


Raw = dict[str, Any]
_LOG: Final = logging.getLogger(__name__)
_MAX: Final = 20_000  # Pods that are followed
_EVERY_S: Final = 0.5  # between two rounds
_A_ROUND: Final = 64  # Pods that are tried in one round
_REASONS: Final = 3  # nodes whose reasons are reported
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowParts:
    """What a controller uses."""

    seen: SeenObjects  # what the API server's objects say
    held: Held  # the ledger, to be read only
    make_ranking: Callable[[ShadowView, Assumed], Ranking]  # makes a ranking on a view, and on what is assumed there
    pods: PodWebhooks  # judges Pods where koordgate enforces
    types: DeviceTypes
    schedulers: SchedulerNames  # of the Pods that koordgate places in truth, which are not observed
    ignored: AbstractSet[str]  # resources that kube-scheduler does not look for on a node that does not state them
    modes: NamespaceModes
    metrics: WebhookMetrics  # counts what would be done
    reports: EventReports  # where it is reported
    asked: Callable[[str], bool]  # returns whether this replica was asked about the Pod with a UID
    list_pods: Callable[[str], AsyncIterator[Raw]]  # lists the Pods of a namespace


class ShadowController:
    """Follows observed Pods."""

    def __init__(self, parts: ShadowParts, followed: FollowedPods) -> None:
        self._parts = parts
        self.followed = followed
        self._assumed = Assumed(lambda: 0.0, math.inf)  # a placement ends with its Pod, not with time
        self._ranking: Ranking | None = None  # a second index of all nodes: made when the first Pod is observed
        self._changed = parts.seen.changes.reader()
        self._search_time = SearchTime()  # its own, so that observing takes no time from enforcing
        self._queue: deque[str] = deque()  # UIDs of those to be tried
        self._again = False  # something was released that those that wait may use
        self._switched: dict[str, None] = {}  # namespaces whose mode changed
        self._full = False
        for state, is_in in _STATES.items():
            parts.metrics.shadow_followed.labels(state).set_function(partial(self._count, is_in))
        parts.modes.listen(lambda namespace: self._switched.__setitem__(namespace, None))

    def _count(self, is_in: Callable[[Followed], bool]) -> int:
        return sum(map(is_in, self.followed))

    # Pods, as the watch reports them

    def there(self, obj: Raw) -> None:
        """A Pod is there, or changed."""
        metadata = obj["metadata"]
        namespace, uid = metadata.get("namespace", ""), metadata["uid"]
        spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
        known = self.followed.named(namespace, metadata["name"])
        if known is not None and known.pod.uid != uid:  # deleted and created again between two events
            self._forget(known)
            known = None
        placed_by_us = spec.get("schedulerName") in self._parts.schedulers
        if self._parts.modes.of(namespace) is not Mode.SHADOW or phase in _FINISHED or placed_by_us:
            if known is not None:
                self._forget(known)
            return
        if known is None:
            known = self._begin(obj)
        node = spec.get("nodeName") or ""
        if known is not None and node != known.bound:
            for touched in filter(None, (known.bound, node)):
                self._assumed.changes.touch(touched)
            self.followed.bind(known, node)
            self._compare(known)

    def gone(self, namespace: str, name: str) -> None:
        """A Pod is gone."""
        known = self.followed.named(namespace, name)
        if known is not None:
            self._forget(known)

    def _begin(self, obj: Raw) -> Followed | None:
        """Begin to follow a Pod, if it asks for devices or CPUs."""
        uid, parts = obj["metadata"]["uid"], self._parts
        if MIRROR_POD in (obj["metadata"].get("annotations") or {}):
            return None
        if len(self.followed) >= _MAX:
            if not self._full:
                self._full = True
                _LOG.warning("more than %d Pods are observed; no more are followed until some end", _MAX)
            return None
        judged = judge(parts.pods, created(obj), self.followed.over_quota)
        pod = read_pod_info(judged.pod, types=parts.types)
        if pod is None:
            return None
        pod = replace(pod, node="", finished=False)
        spec = obj.get("spec") or {}
        one = Followed(
            pod,
            selection_of(spec),
            obj["metadata"].get("creationTimestamp") or "",
            read_requests(spec),
            judged.charged or {},
            judged.refused,
            parts.asked(uid),
        )
        self.followed.put(one)
        if one.refused is None:
            self._queue.append(uid)
        elif one.told:
            parts.reports.observed(pod, "WouldBeRefused", f"koordgate would refuse this Pod: {judged.message}")
        return one

    def _forget(self, one: Followed) -> None:
        if one.bound:
            self._assumed.changes.touch(one.bound)
        self._again |= bool(one.node)
        self._assumed.drop(one.pod.uid)
        self.followed.drop(one)
        self._full = False

    # Placements

    async def run(self) -> None:
        """Place those that would wait, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.round()

    async def round(self) -> None:
        """Take in switched namespaces, and try some of those that would wait."""
        for namespace in list(self._switched):
            del self._switched[namespace]
            await self._switch(namespace)
        if not self.followed:
            for _ in self._changed.drain():
                pass
            return
        changed = any(list(self._changed.drain())) or self._again
        if changed and not self._queue:
            self._again = False
            self._queue.extend(one.pod.uid for one in sorted(filter(_waits, self.followed), key=_turn))
        for _ in range(min(len(self._queue), _A_ROUND)):
            one = self.followed.get(self._queue.popleft())
            if one is not None and one.waits:
                await self._try(one)

    async def _switch(self, namespace: str) -> None:
        """Take in the Pods of a namespace whose mode changed."""
        if self._parts.modes.of(namespace) is not Mode.SHADOW:
            for one in self.followed.within(namespace):
                self._forget(one)
            return
        try:
            async for obj in self._parts.list_pods(namespace):
                self.there(obj)
        except KubeError as error:
            _LOG.warning("Pods of namespace %s are not observed yet: %s", namespace, error)
            self._switched[namespace] = None

    async def _try(self, one: Followed) -> None:
        """Look for a node as kube-scheduler and the extender would."""
        seen, ranking = self._parts.seen, self._ranked()
        selection = orjson.loads(one.selection)
        names = await with_breaks(self._open(one, seen.nodes.open_to(selection)))
        shunned = seen.nodes.shunned(selection.get("tolerations"))
        ranked = await self._search_time.within(one.pod.namespace, partial(ranking.search, one.pod, names, 1, shunned))
        if self.followed.get(one.pod.uid) is not one:
            return  # it ended meanwhile
        node = ranked.named[0] if ranked.named else ""
        holding = ranking.send(one.pod, node) if node else None
        first, one.tried = not one.tried, True
        if holding is None:
            if first:
                self._tell(one, "waits", "WouldWait", f"koordgate would not place this Pod now: {_why(ranked)}")
        else:
            self.followed.place(one, node)
            self._tell(one, "fits", "WouldBePlaced", f"koordgate would place this Pod on {node}{_holds(holding)}")
        self._compare(one)

    def _open(self, one: Followed, names: list[str]) -> Steps[list[str]]:
        """The nodes among these that have all that a Pod requests; yields after each."""
        found = []
        for name in names:
            if not self._parts.seen.loads.lacks(name, self.followed.needed(one, name), self._parts.ignored):
                found.append(name)
            yield 0
        return found

    def _ranked(self) -> Ranking:
        if self._ranking is None:
            view = ShadowView(self._parts.seen, self._parts.held, self.followed.on)
            self._ranking = self._parts.make_ranking(view, self._assumed)
        return self._ranking

    def _tell(self, one: Followed, outcome: str, reason: str, message: str) -> None:
        if one.told:
            self._parts.metrics.shadow_placements.labels(outcome).inc()
            self._parts.reports.observed(one.pod, reason, message)

    def _compare(self, one: Followed) -> None:
        """Compare, once, where a Pod is with where it would be."""
        if one.compared or not one.bound or not one.tried:
            return
        one.compared = True
        if one.told:
            found = "same_node" if one.node == one.bound else "other_node" if one.node else "would_wait"
            self._parts.metrics.shadow_compared.labels(found).inc()


class ObservedPodFeed(PodFeed):
    """Takes in Pods as `PodFeed` does, and shows them to the controller of observed ones."""

    def __init__(
        self,
        cluster: ClusterView,
        ended: Callable[[PodInfo], None],
        bound: Callable[[PodInfo], None],
        types: DeviceTypes,
        controller: ShadowController,
        listed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(cluster, ended, bound, types, listed=listed)
        self._keeper = controller

    def there(self, obj: Raw) -> None:
        """Take in a Pod."""
        super().there(obj)
        self._keeper.there(obj)

    def gone(self, namespace: str, name: str) -> None:
        """Forget a Pod."""
        super().gone(namespace, name)
        self._keeper.gone(namespace, name)


def _waits(one: Followed) -> bool:
    return one.waits


def _turn(one: Followed) -> tuple[int, str, str]:
    return one.turn


def _holds(holding: Holding) -> str:
    held = " ".join(f"{share.type}:{share.minor}:{share.id}" for share in holding.shares)
    return f": {held}" if held else ""


def _why(ranked: Ranked) -> str:
    reasons = [reason for _, _, reason in ranked.reasons()][:_REASONS]
    return "; ".join(reasons) or "no node that it selects, and that tolerates it, has what it requests"


_STATES: Final[dict[str, Callable[[Followed], bool]]] = {
    "placed": lambda one: bool(one.node),
    "waiting": _waits,
    "refused": lambda one: one.refused is not None,
}
