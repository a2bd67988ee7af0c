"""Nominates nodes for Pods that wait for kube-scheduler, which then tries each on its node alone, and not on all.

kube-scheduler looks at every node for every Pod: where there are thousands, that costs more than all else. A Pod with
`status.nominatedNodeName` it tries on that node first (KEP-5278), and on all nodes only if it does not fit there.

Pods are nominated in the order in which they came, by the search that answers kube-scheduler, among the nodes that it
asked about last for a Pod that selects and requests the same. A nomination is worth its write only for a Pod that waits
behind others. Only the replica that kube-scheduler asks nominates, and only a few Pods ahead: what was found counts as
taken, as for every Pod that was sent to a node.

kube-scheduler itself forgets a nomination when it has tried the Pod. One that it does not come to is taken back.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Invalid, KubeError, NotFound
from koordgate.kube.resource import PODS
from webhook.scheduling.fairness import SearchTime
from webhook.scheduling.ranking import Ranking
from webhook.settings import SchedulerNames
from webhook.view.cluster import ClusterView
from webhook.view.nodeselection import simple
from webhook.view.podinfo import PodInfo

_LOG: Final = logging.getLogger(__name__)
_AHEAD: Final = 64  # most Pods that are nominated and not tried yet: kube-scheduler tries them within a second or so
_BATCH: Final = 16  # Pods that are nominated at once
_KINDS: Final = 8  # of Pods, for which the nodes that were asked about are kept
_KEPT_S: Final = 10.0  # for how long: nodes that came later are found then
_TICK_S: Final = 1.0  # how often nominations are looked at that nobody came to
_DEADLINE_S: Final = 5.0
_LOOKED_AT: Final = 256  # Pods that wait, of which the next ones are taken

Write = Callable[[PodInfo, str, str], Awaitable[bool]]
"""Changes what is nominated for a Pod, from one node to another, "" for none; returns whether that was written."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What kube-scheduler asked about for a Pod."""

    names: Sequence[str]  # the nodes, which are all that such a Pod may go to
    shunned: AbstractSet[str]  # those with a taint that it is better kept off by
    until: float  # seconds of the event loop's clock


class Nominator:
    """Nominates nodes.

    `schedulers`: names of the schedulers whose Pods are nominated. `least`: the fewest nodes from which a nomination is
    worth a write. `tried`: whether kube-scheduler has asked about a Pod, by its UID. `nominated`: called with
    "written", "late" or "withdrawn" for each nomination.
    """

    def __init__(
        self,
        cluster: ClusterView,
        ranking: Ranking,
        search_time: SearchTime,
        schedulers: SchedulerNames,
        least: int,
        write: Write,
        tried: Callable[[str], bool],
        nominated: Callable[[str], object] = lambda _how: None,
    ) -> None:
        self._cluster = cluster
        self._ranking = ranking
        self._search_time = search_time
        self._schedulers = schedulers
        self._least = least
        self._write = write
        self._tried = tried
        self._nominated = nominated
        self._kinds: OrderedDict[tuple[bytes, object], _Kind] = OrderedDict()  # by selection and requests
        self._asking = ""  # UID of the Pod that is asked about now, or was last
        self._ahead: dict[str, str] = {}  # UIDs of Pods that are nominated and not tried yet, and their nodes
        self._woken = asyncio.Event()

    def asked(self, pod: PodInfo, names: Sequence[str]) -> None:
        """kube-scheduler asks about a Pod and these nodes."""
        self._asking = pod.uid
        self._ahead.pop(pod.uid, None)
        if len(names) >= self._least and simple(selection := orjson.loads(pod.selection or b"{}")):
            key = pod.selection, pod.requests
            shunned = self._cluster.nodes.shunned(selection.get("tolerations"))
            self._kinds[key] = _Kind(tuple(names), shunned, asyncio.get_running_loop().time() + _KEPT_S)
            self._kinds.move_to_end(key)
            while len(self._kinds) > _KINDS:
                self._kinds.popitem(last=False)

    def answered(self) -> None:
        """That Pod is decided, so those that wait behind it may take what it left."""
        if self._kinds and len(self._ahead) <= _AHEAD - _BATCH and self._cluster.pods.newcomers:
            self._woken.set()

    def gives_way(self, priority: int) -> bool:
        """Let go of the places of nominated Pods with less priority than this; returns whether there were any.

        A Pod that is asked about now would otherwise find them taken, and evict others.
        """
        less = [uid for uid in self._ahead if (pod := self._cluster.pods.by_uid(uid)) and pod.priority < priority]
        for uid in less:
            self._ranking.assumed.drop(uid)
        if less:
            self._woken.set()  # to take these nominations back
        return bool(less)

    async def run(self) -> None:
        """Nominate until cancelled."""
        while True:
            self._woken.clear()
            await self._withdraw()
            while pods := self._next():
                async with asyncio.TaskGroup() as writes:
                    for pod, kind in pods:  # one after another, as otherwise the last may take the place of the first
                        if node := await self._send(pod, kind):
                            writes.create_task(self._nominate(pod, node))
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S if self._ahead else None):
                    await self._woken.wait()

    def _next(self) -> list[tuple[PodInfo, _Kind]]:
        """The Pods to nominate next: as kube-scheduler takes them, by priority, then in the order in which they came.

        A Pod of a kind that was not asked about lately waits until it was.
        """
        newcomers, now = self._cluster.pods.newcomers, asyncio.get_running_loop().time()
        looked_at = [newcomers.popleft() for _ in range(min(_LOOKED_AT, len(newcomers)))]
        pods = [pod for pod in map(self._cluster.pods.by_uid, looked_at) if pod is not None and self._waits(pod)]
        known = [(pod, kind) for pod in pods if (kind := self._kinds.get((pod.selection, pod.requests)))]
        fresh = sorted((one for one in known if now < one[1].until), key=lambda one: -one[0].priority)
        chosen = fresh[: min(_BATCH, _AHEAD - len(self._ahead))]
        taken = {pod.uid for pod, _ in chosen}
        rest = [pod.uid for pod in pods if pod.uid not in taken]
        hide_others = newcomers and not known  # Pods of kinds that nobody asks about: the first of them are forgotten
        newcomers.extendleft(reversed(rest[_BATCH:] if hide_others else rest))
        return chosen

    def _waits(self, pod: PodInfo) -> bool:
        """Whether a Pod is still to be tried, and may be sent to the best node."""
        if pod.node or pod.over or pod.gated or pod.gates or pod.all_or_nothing or pod.problem or not pod.request:
            return False
        return pod.scheduler_name in self._schedulers and pod.uid != self._asking and not self._tried(pod.uid)

    async def _send(self, pod: PodInfo, kind: _Kind) -> str:
        """Send a Pod to the best node, and return that; "" where there is none."""
        if not self._waits(pod):  # any more: a search would give its place away
            return ""
        search = partial(self._ranking.search, pod, kind.names, 1, kind.shunned)
        found = await self._search_time.within(pod.namespace, search)
        if not found.named or not self._waits(pod) or self._ranking.send(pod, found.named[0]) is None:
            return ""
        self._ahead[pod.uid] = found.named[0]
        return found.named[0]

    async def _nominate(self, pod: PodInfo, node: str) -> None:
        if await self._write(pod, "", node):
            self._nominated("written" if pod.uid in self._ahead else "late")
        elif self._ahead.pop(pod.uid, "") and self._ranking.assumed.node_of(pod.uid) == node:
            self._ranking.assumed.drop(pod.uid)

    async def _withdraw(self) -> None:
        """Take back nominations of Pods that kube-scheduler did not come to: their places are not kept any longer."""
        lost = [(uid, node) for uid, node in self._ahead.items() if self._ranking.assumed.node_of(uid) != node]
        for uid, node in lost:
            if not self._ahead.pop(uid, ""):  # kube-scheduler has asked about it meanwhile
                continue
            pod = self._cluster.pods.by_uid(uid)
            if pod is not None and self._waits(pod) and await self._write(pod, node, ""):
                self._nominated("withdrawn")


def kube_nominate(kube: KubeClient) -> Write:
    """Make the function that writes nominations, by a patch.

    The patch tests that the Pod is the same, and that nobody else has changed what is nominated for it.
    """
    field = "/status/nominatedNodeName"

    async def write(pod: PodInfo, before: str, node: str) -> bool:
        operations: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            {"op": "test", "path": field, "value": before or None},
            {"op": "add", "path": field, "value": node} if node else {"op": "remove", "path": field},
        ]
        try:
            await kube.patch(PODS.path(pod.name, pod.namespace) + "/status", operations, "json", deadline=_DEADLINE_S)
        except (Invalid, NotFound):
            return False
        except KubeError as error:
            _LOG.info("no node is nominated for Pod %s: %s", pod, error)
            return False
        return True

    return write
