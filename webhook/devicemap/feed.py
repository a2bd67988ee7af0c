"""The device map as it changes: nodes in pages, then only what changed since a revision.

A revision counts the changes that this process has seen; `epoch` names the process, so that nobody compares revisions
of two. Entries are written when somebody asks, and the latest ones are remembered as bytes.
"""

import asyncio
import secrets
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import orjson

from allocator.vocabulary.devicetype import DeviceTypes
from koordgate.breaks import Breaks
from webhook.boundedcache import BoundedCache
from webhook.devicemap.document import VERSION, node_of, types_entry
from webhook.view.cluster import ClusterView

Raw = dict[str, Any]
Waiting = Callable[[], Awaitable[Raw]]

PAGE: Final = 200
"""Nodes in one answer at most."""

_REMEMBERED_BYTES: Final = 16 * 2**20  # of entries as JSON
_MOST_GONE: Final = 10_000  # names of nodes that are gone; whoever is further behind reads all again
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
        while len(self._gone) > _MOST_GONE:
            self._floor = self._gone.pop(next(iter(self._gone)))

    async def _written(self, names: list[str]) -> list[orjson.Fragment]:
        """The entries of nodes as JSON; others run in between, so that each is as it is at its own moment."""
        breaks = Breaks()
        entries = []
        for name in names:
            at = self._at.get(name, 0)
            known = self._entries.get(name)
            if known is None or known[0] != at:
                known = at, orjson.dumps(node_of(self._view, name, self._types))
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
