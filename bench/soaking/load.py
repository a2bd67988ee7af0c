"""Pods that come and go: created, bound as koord-scheduler's user, and deleted, so that the cluster is almost full."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from random import Random
from typing import Final

from controlplane.gpu_cluster import binding, pod, pods_path

from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.waiting import until
from soaking.auditor import Auditor
from soaking.plan import ASKS, AWAY_S, CARDS, EDITED, LOST, NAMESPACE, RACED, Findings, Soak

_KINDS: Final = ((50, 60), (25, 20), (100, 15), (200, 5))  # percent of a card, and how many of a hundred Pods ask that
_NODES_TRIED: Final = 6  # of a Pod, before it is given up as one for which there is no room
_BLIND: Final = 0.1  # the share of Pods that are sent to any node, whatever room it seems to have
_RACE_S: Final = 0.12  # in which a Pod is deleted that is being bound
_MAX_S: Final = 2.0  # between tries of a request that was not answered
_PATIENCE_S: Final = 240.0


class Load:
    """Binds Pods and deletes others, so that nine tenths of the cards are held.

    Args:
        soak: how much.
        admin: creates and deletes.
        binder: binds.
        auditor: sees the Pods. While it does not, none is deleted: it shall miss nothing.
        findings: where the outcomes are counted.
        ended: once it is set, no more Pods are created.

    Attributes:
        bound: how many Pods were bound.
        over: set once no more Pods are created.
    """

    def __init__(
        self,
        soak: Soak,
        admin: AdminClient,
        binder: AdminClient,
        auditor: Auditor,
        findings: Findings,
        ended: asyncio.Event,
    ) -> None:
        self._soak = soak
        self._admin = admin
        self._binder = binder
        self._auditor = auditor
        self._findings = findings
        self._random = Random(soak.seed)
        self._living: dict[str, tuple[str, str, int]] = {}  # name -> UID, node and percent
        self._used: Counter[str] = Counter()  # percent that Pods on their way and living ones ask for, by node
        self._number = 0
        self._ends = time.monotonic() + soak.seconds
        self._ended = ended
        self.bound = 0
        self.over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether no more Pods are created."""
        enough = self.bound >= self._soak.binds and self._soak.events <= self._findings.done.keys()
        return enough or self._ended.is_set() or time.monotonic() > self._ends

    async def run(self) -> None:
        """Bind until there are enough."""
        await asyncio.gather(*(self._work() for _ in range(self._soak.workers)))

    async def _work(self) -> None:
        full = 90 * CARDS * self._soak.nodes
        while not self.is_over:
            if self.bound >= self._soak.binds and self._soak.events - self._findings.done.keys() == {EDITED}:
                # Only the record of a Pod that has run for a while is edited: none ends meanwhile.
                await asyncio.sleep(AWAY_S)
                continue
            self._number += 1
            percent = self._random.choices([kind for kind, _ in _KINDS], [share for _, share in _KINDS])[0]
            name = f"p{self._number}"
            nodes = self._candidates()
            self._used[nodes[0]] += percent
            uid = await self.create(name, percent)
            ending = asyncio.create_task(self._delete_soon(name)) if self._races() else None
            node = await self.bind(name, uid, nodes)
            if ending is not None:
                await ending
                node = ""
            self._used[nodes[0]] -= percent
            if node:
                self.bound += 1
                self._living[name] = uid, node, percent
                self._used[node] += percent
            else:
                await self.delete(name)
            while self._used.total() > full and self._living:
                name = self._random.choice(list(self._living))
                uid, node, percent = self._living.pop(name)
                self._used[node] -= percent
                await self.delete(name, uid)
        self.over.set()

    def _races(self) -> bool:
        return self._random.randrange(100) < self._soak.raced

    async def _delete_soon(self, name: str) -> None:
        """Delete a Pod while it is bound; whether that comes first or last is left to chance."""
        await asyncio.sleep(self._random.random() * _RACE_S)
        await self.delete(name)
        self._findings.done[RACED] += 1

    def _candidates(self) -> list[str]:
        """Nodes; mostly those first that seem to have most room, as kube-scheduler would choose."""
        nodes = self._random.sample(self._soak.names, self._soak.nodes)
        if self._random.random() >= _BLIND:
            nodes.sort(key=self._used.__getitem__)
        return nodes[:_NODES_TRIED]

    async def create(self, name: str, percent: int) -> str:
        """Create a Pod, until there is one; returns its UID."""
        made = pod(name, NAMESPACE, {"kubernetes.io/gpu": str(percent)})
        made["metadata"]["labels"] = {ASKS: str(percent)}
        for tried in itertools.count():
            uid = await self._answered("create", self._created(made), tried)
            if uid:
                return uid
        raise AssertionError("it is tried without end")

    async def bind(self, name: str, uid: str, nodes: Sequence[str]) -> str:
        """Bind a Pod to the first of these nodes that has room; returns it, "" where none has.

        What is not answered is tried again, half the time on another node, as kube-scheduler may do.
        """
        left, tried = list(nodes), 0
        while left:
            body = binding(NAMESPACE, name, left[0], uid)
            said = await self._answered("bind", self._bound(name, body), tried)
            tried = 0 if said else tried + 1
            if said == "bound":
                return left[0]  # or another one, by an earlier try whose answer was lost
            if said == "gone":
                return ""
            if said == "refused" or self._random.random() < 0.5:
                left.append(left.pop(0))
            if said == "refused":
                left.pop()
        return ""

    async def _created(self, made: JsonObject) -> str:
        name = made["metadata"]["name"]
        try:
            return str((await self._admin.create(pods_path(NAMESPACE), made))["metadata"]["uid"])
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return str((await self._admin.get(pods_path(NAMESPACE, name)))["metadata"]["uid"])

    async def _bound(self, name: str, body: JsonObject) -> str:
        try:
            await self._binder.create(pods_path(NAMESPACE, name, "binding"), body)
        except ApiError as error:
            if "already assigned" in error.message or "is bound to" in error.message:
                return "bound"  # by an earlier try whose answer was lost
            if "is not bound:" in error.message:
                return "refused"
            if error.reason == "NotFound" or "does not exist any more" in error.message:
                return "gone"
            raise
        return "bound"

    async def delete(self, name: str, uid: str = "") -> None:
        """Delete a Pod, until it is gone."""
        for tried in itertools.count():
            await self._auditor.watching.wait()
            seen = not uid or self._auditor.has_seen(uid)
            if seen and await self._answered("delete", self._deleted(name), tried) == "gone":
                return
            if not seen:
                await asyncio.sleep(AWAY_S)

    async def _deleted(self, name: str) -> str:
        try:
            await self._admin.delete(pods_path(NAMESPACE, name), {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.reason != "NotFound":
                raise
        return "gone"

    async def _answered(self, what: str, request: Awaitable[str], tried: int) -> str | None:
        """An answer; None where there is none, or an error that asks to try again: the wait grows with the tries."""
        try:
            answer = await request
        except ApiError as error:
            self._findings.tries[f"{what} {error.status}"] += 1
        except LOST:
            self._findings.tries[f"{what} unanswered"] += 1
        else:
            told = {"bound": "bound", "refused": "refused", "gone": "gone"}.get(answer, "done")
            self._findings.tries[f"{what} {told}"] += 1
            return answer
        await asyncio.sleep(min(AWAY_S * 2 ** min(tried, 9), _MAX_S))
        return None

    async def clear(self) -> None:
        """Delete all Pods."""

        async def cleared() -> bool:
            try:
                await self._admin.delete(pods_path(NAMESPACE), {"gracePeriodSeconds": 0})
                return not await self._admin.items(pods_path(NAMESPACE))
            except (ApiError, *LOST):
                return False

        await self._auditor.watching.wait()
        await until(cleared, "all Pods are deleted", deadline_s=_PATIENCE_S, poll_s=0.5)
        self._living.clear()
        self._used.clear()
