"""The device map as it changes: nodes in pages, then only what changed since a revision; and the Pods that wait.

A revision counts the changes that this process has seen; `epoch` names the process, so that nobody compares revisions
of two. Entries are written when somebody asks, and the latest ones are remembered as bytes.
"""

import asyncio
import secrets
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, Final, NamedTuple

import orjson

from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.outcome import Refusal
from koordgate.breaks import Breaks
from webhook.boundedcache import BoundedCache
from webhook.devicemap.document import MAX_EXPLANATION, VERSION, cut, node_entry, types_entry
from webhook.scheduling.extender import Answer
from webhook.scheduling.fairness import Effort
from webhook.scheduling.ranking import Ranking
from webhook.settings import SchedulerNames
from webhook.view.cluster import ClusterView
from webhook.view.nodereport import report_of
from webhook.view.podinfo import PodInfo

Raw = dict[str, Any]
Waiting = Callable[[], Awaitable[Raw]]

PAGE: Final = 200
"""Nodes in one answer at most."""

_REMEMBERED_BYTES: Final = 16 * 2**20  # of entries as JSON
_MAX_GONE: Final = 10_000  # names of nodes that are gone; whoever is further behind reads all again
_WAITING_S: Final = 3.0  # for which what was said of waiting Pods is said again


class Changed(NamedTuple):
    """What changed."""

    body: bytes  # as JSON
    revision: int  # what to ask for next
    more: bool = False  # further changes are there already
    reset: bool = False  # all must be read again
    waiting: bytes = b""  # the Pods that wait, as JSON


class MapFeed:
    """The map's content.

    `clock`: seconds since the epoch.
    """

    def __init__(
        self, view: ClusterView, types: DeviceTypes, waiting: Waiting, clock: Callable[[], int], epoch: str = ""
    ) -> None:
        self.epoch = epoch or secrets.token_hex(8)
        self._view = view
        self._types = types
        self._ask_waiting = waiting
        self._clock = clock
        self._changed = view.changes.reader(sorted(view.nodes.known()))
        self._revision = 0
        self._at: dict[str, int] = {}  # node -> revision of its last change; the latest change comes last
        self._gone: dict[str, int] = {}  # likewise nodes that are gone
        self._floor = 0  # nothing is known of nodes that went at this revision or before
        self._entries: BoundedCache[str, tuple[int, bytes]] = BoundedCache(_REMEMBERED_BYTES)
        self._waiting = b"{}"
        self._waiting_until = float("-inf")
        self._counting = asyncio.Lock()

    async def page(self, after: str = "", most: int = PAGE) -> bytes:
        """The nodes whose names come after this one, as JSON; the first page also has what concerns all.

        `next` is "" on the last page. A reader takes the least `revision` of its pages to ask for changes.
        """
        self._take_in()
        names = sorted(self._at)
        start = bisect_right(names, after) if after else 0
        chosen = names[start : start + most]
        answer = self._head() | {
            "nodes": await self._written(chosen),
            "next": chosen[-1] if len(names) > start + most else "",
            "total": len(names),
        }
        if not after:
            answer |= {"types": types_entry(self._types), "waiting": orjson.Fragment(await self._waiting_now())}
        return orjson.dumps(answer)

    async def changes(self, since: int, told: bytes = b"", most: int = PAGE) -> Changed:
        """What changed after a revision: nodes as they are now, and the names of those that are gone.

        All must be read again if the revision is not one of this process, or too old.
        `since`: the revision. `told`: the Pods that wait, as the reader knows them; they are left out where they are
        the same.
        """
        self._take_in()
        if since > self._revision or since < self._floor:
            return Changed(orjson.dumps(self._head() | {"reset": True}), self._revision, reset=True)
        moved = sorted((at, name) for name, at in (*self._at.items(), *self._gone.items()) if at > since)
        now, more = moved[:most], len(moved) > most
        head = self._head()
        if more:
            head["revision"] = now[-1][0]
        there = [name for _, name in now if name in self._at]
        gone = [name for _, name in now if name not in self._at]
        body = head | {"nodes": await self._written(there), "gone": gone, "more": more}
        waiting = await self._waiting_now()
        if waiting != told:
            body["waiting"] = orjson.Fragment(waiting)
        return Changed(orjson.dumps(body), head["revision"], more, waiting=waiting)

    async def news(self) -> None:
        """Wait until something about any node changes."""
        await self._view.changes.news()

    def moved(self, since: int) -> bool:
        """Whether any node changed after a revision."""
        self._take_in()
        return self._revision != since

    def _head(self) -> Raw:
        return {"version": VERSION, "epoch": self.epoch, "revision": self._revision, "at": self._clock()}

    def _take_in(self) -> None:
        """Give each node that changed a revision of its own."""
        known = self._view.nodes.known()
        for name in self._changed.drain():
            self._revision += 1
            here, there = (self._at, self._gone) if name in known else (self._gone, self._at)
            was_there = there.pop(name, None)
            if here is self._gone and was_there is None and name not in here:
                continue  # Pods are bound to a node of which nothing is known
            here.pop(name, None)
            here[name] = self._revision
        while len(self._gone) > _MAX_GONE:
            self._floor = self._gone.pop(next(iter(self._gone)))

    async def _written(self, names: list[str]) -> list[orjson.Fragment]:
        """The entries of nodes as JSON; others run in between, so that each is as it is at its own moment."""
        breaks = Breaks()
        entries = []
        for name in names:
            at = self._at.get(name, 0)
            known = self._entries.get(name)
            if known is None or known[0] != at:
                known = at, orjson.dumps(node_entry(report_of(self._view, name, self._types)))
                self._entries.put(name, known, len(known[1]))
            entries.append(orjson.Fragment(known[1]))
            if breaks.due():
                await breaks.take()
        return entries

    async def _waiting_now(self) -> bytes:
        """The Pods that wait, as of the last seconds: however many ask, they are looked at once."""
        clock = asyncio.get_running_loop().time
        async with self._counting:
            if clock() >= self._waiting_until:
                self._waiting = orjson.dumps(await self._ask_waiting())
                self._waiting_until = clock() + _WAITING_S
        return self._waiting


_MAX_PODS: Final = 200
_MAX_NODES: Final = 16  # on which a Pod is judged
_MAX_REASONS: Final = 4
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
        self, view: ClusterView, ranking: Ranking, schedulers: SchedulerNames, said: Callable[[str], Answer | None]
    ) -> None:
        self._view = view
        self._ranking = ranking
        self._schedulers = schedulers
        self._said = said

    async def __call__(self) -> Raw:
        """The entry `waiting` of the document: the Pods that were seen first, and how many there are in sum."""
        uids = list(self._view.pods.waiting(self._schedulers))
        breaks = Breaks()
        pods = []
        for uid in uids[:_MAX_PODS]:
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
        few = len(known) <= _MAX_REASONS
        counted: Counter[str] = Counter()
        for node in islice(known, _MAX_NODES):
            verdict = self._ranking.verdict(node, pod.request, pod.uid, Effort(most_steps=_STEPS))
            if isinstance(verdict, Refusal):
                counted[verdict.message if few else verdict.short or verdict.message] += 1
        told = [why if few else f"{number} nodes: {why}" for why, number in counted.most_common(_MAX_REASONS)]
        beyond = len(known) - _MAX_NODES
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
        "reasons": [cut(reason, MAX_EXPLANATION) for reason in reasons],
        "seconds": seconds,
    }
