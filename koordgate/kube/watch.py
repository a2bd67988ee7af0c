"""Reflector: keeps a handler up to date with one resource by a list and watches, in spite of failures."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from koordgate.backoff import Backoff
from koordgate.breaks import Breaks
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Gone, KubeError, NotFound, TooManyRequests, from_status
from koordgate.kube.resource import Resource

Raw = dict[str, Any]
"""An object, as JSON."""

Happening = Literal["list", "watch", "relist", "error"]
"""What a Reflector counts: lists begun, watches opened, lists repeated because a revision was too old, failures."""


class Handler(Protocol):
    """Receives objects. Its methods are called one after another, never at the same time, and do not wait.

    Between `begin_list` and `end_list` comes a `put` for each object that exists. An object that was not put by then is
    gone: its DELETED event was missed. A list that fails is followed by another `begin_list`, without `end_list`.
    """

    def begin_list(self) -> None:
        """A list begins."""

    def put(self, obj: Raw) -> None:
        """An object was listed, added or changed."""

    def drop(self, obj: Raw) -> None:
        """An object was deleted, or no longer matches the selectors."""

    def end_list(self) -> None:
        """The list is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPace:
    """Durations in seconds; tests replace the last three."""

    first: float = 0.5  # the first wait after a failure; it doubles with each further one
    longest: float = 30.0
    absent: float = 30.0  # the wait if the resource does not exist (its CRD is not installed)
    watch: float = 240.0  # the shortest life of a watch; the longest is twice that, so that not all end at once
    # a watch without an event or a bookmark for this long is opened again. API servers send bookmarks about each
    # minute, the first one after up to two.
    silent: float = 75.0
    settled: float = 5.0  # a watch that lived this long was not a failure, whatever ended it
    jitter: Callable[[], float] = random.random  # a random number in [0, 1)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep  # waits
    clock: Callable[[], float] = time.monotonic  # monotonic


_DEFAULT_PACE: Final = WatchPace()


class Reflector:
    """Keeps a handler up to date with one resource.

    Memory stays bounded: each page of a list is handed over object by object, and dropped. Others run between two
    objects of a page. They see some objects as they are in this list, and others as they were before it, which is what
    the pages of a list show as well.
    `heard_at`: likewise, when the API server last said something: a list, an open watch, an event or a bookmark.
    `stirred_at`: likewise, when the Reflector last did something, even if it failed. `namespace`: only this one; None
    for all. `page`: objects in a page of a list. A page is decoded in one piece: a hundred Pods may take some 10 ms.
    `on_error`: called with the object (as `pods default/web`) on which the handler failed, or the resource (as `pods`)
    that could not be listed or watched, and the error.
    """

    def __init__(  # noqa: PLR0913 collaborators, keyword-only, most with a default
        self,
        kube: KubeClient,
        resource: Resource,
        handler: Handler,
        *,
        namespace: str | None = None,
        selectors: Mapping[str, str] | None = None,
        page: int = 100,
        pace: WatchPace = _DEFAULT_PACE,
        count: Callable[[Happening], None] = lambda _: None,
        on_error: Callable[[str, Exception], None] = lambda _ref, _error: None,
    ) -> None:
        # set once the handler has had a first complete list (an absent resource counts as empty)
        self.synced = asyncio.Event()
        # on `WatchPace.clock`, since when lists and watches succeed; None while they fail
        self.healthy_since: float | None = None
        # likewise, since when they fail; None while they succeed. A broken watch is ordinary: readiness should tolerate
        # some time of it.
        self.failing_since: float | None = None
        self.last_error: KubeError | None = None  # the last failure; None after a success
        self.heard_at = self.stirred_at = pace.clock()
        self.seen = 0  # the revision up to which the handler was told every change; 0 before the first list
        self._kube = kube
        self._resource = resource
        self._path = resource.path(namespace=namespace)
        self._handler = handler
        self._selectors = dict(selectors or {})
        self._page = page
        self._pace = pace
        self._count = count
        self._on_error = on_error
        self._revision: str | None = None  # None: list first
        self._backoff = Backoff(pace.first, pace.longest, pace.jitter)
        self._opened_at: float | None = None

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if self._revision is None:
                    await self._list()
                wait = await self._watch()
            except NotFound:
                wait = self._absent()
            except Gone:
                wait = self._too_old()
            except KubeError as error:
                wait = self._failed(error)
            except Exception as error:  # noqa: BLE001 nothing that a stranger stored may end the watch
                self._revision = None
                wait = self._failed(KubeError(f"a bug in koordgate: {error!r}"), error)
            self.stirred_at = self._pace.clock()
            if wait:
                await self._pace.sleep(wait)

    async def _list(self) -> None:
        self._count("list")
        self.stirred_at = self._pace.clock()
        self._handler.begin_list()
        revision = None
        async with aclosing(self._kube.list_pages(self._path, limit=self._page, params=self._selectors)) as pages:
            async for items, at in pages:
                items.reverse()
                self._heard()
                breaks = Breaks()
                while items:
                    self._tell(self._handler.put, items.pop())
                    if breaks.due():
                        await breaks.take()
                revision = at
        self._handler.end_list()
        self._saw(revision)
        self._went_well()
        self.synced.set()

    async def _watch(self) -> float:
        """Watch until the server ends it; returns the seconds to wait before the next watch."""
        params = {**self._selectors, "resourceVersion": self._revision or ""}
        lifetime = int(self._pace.watch * (1 + self._pace.jitter()))
        async with aclosing(
            self._kube.watch_lines(
                self._path, params, timeout_s=lifetime, silent_s=self._pace.silent, on_open=self._opened
            )
        ) as events:
            breaks = Breaks()
            async for event in events:
                self._heard()
                self._take(event)
                self._backoff.reset()
                if breaks.due():  # events that have arrived together come without a wait between them
                    await breaks.take()
        if self._settled():
            return 0.0
        return self._next_wait()  # a server or proxy that ends watches at once must not be asked in a tight loop

    def _opened(self) -> None:
        self._count("watch")
        self._opened_at = self._pace.clock()
        self._went_well()

    def _take(self, event: Raw) -> None:
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            raise from_status(obj)
        if kind == "DELETED":
            self._tell(self._handler.drop, obj)
        elif kind in {"ADDED", "MODIFIED"}:
            self._tell(self._handler.put, obj)
        self._saw(obj["metadata"]["resourceVersion"])  # a BOOKMARK carries nothing else

    def _saw(self, revision: str | None) -> None:
        """Take in a revision; those of one resource are numbers that grow (Kubernetes, KEP-5504)."""
        self._revision = revision
        if revision is not None and revision.isdecimal():
            self.seen = int(revision)

    def _tell(self, method: Callable[[Raw], None], obj: Raw) -> None:
        try:
            method(obj)
        except Exception as error:  # noqa: BLE001 one object on which the handler fails must not hide the others
            self._count("error")
            about = obj.get("metadata") or {}
            name = "/".join(filter(None, (about.get("namespace"), about.get("name"))))
            self._on_error(f"{self._resource.plural} {name}", error)

    def _heard(self) -> None:
        self.heard_at = self.stirred_at = self._pace.clock()

    def _went_well(self) -> None:
        self._heard()
        self.last_error = self.failing_since = None
        if self.healthy_since is None:
            self.healthy_since = self._pace.clock()

    def _absent(self) -> float:
        """Take in that the resource does not exist: it has no objects, which is no failure."""
        self._handler.begin_list()
        self._handler.end_list()
        self._revision = None
        self._backoff.reset()
        self._went_well()
        self.synced.set()
        return self._pace.absent * (1 + self._pace.jitter() / 10)

    def _too_old(self) -> float:
        """Take in that our revision is compacted: list again, the first time at once."""
        self._revision = None
        self._count("relist")
        wait, first = self._next_wait(), self._backoff.failures == 1
        return 0.0 if first else wait

    def _failed(self, error: KubeError, bug: Exception | None = None) -> float:
        self.last_error = error
        self.healthy_since = None
        if self.failing_since is None:
            self.failing_since = self._pace.clock()
        self._count("error")
        self._on_error(self._resource.plural, bug or error)
        wait = self._next_wait()
        return max(wait, error.retry_after or 0) if isinstance(error, TooManyRequests) else wait

    def _settled(self) -> bool:
        """Whether the last watch lived long enough to count as a success."""
        return self._opened_at is not None and self._pace.clock() - self._opened_at >= self._pace.settled

    def _next_wait(self) -> float:
        if self._settled():
            self._backoff.reset()
        self._opened_at = None
        return self._backoff.failed()
