"""Devices as they change: watches keep the nodes' objects, and a terminal is drawn anew once a second at most."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from rich.console import Group
from rich.live import Live
from rich.text import Text

from console import terminal
from console.devices.claimreading import claim_table, claims_not_read
from console.devices.nodestate import Beside, Known, NodeState, read_cluster, read_listed
from console.devices.others import BOUND, FollowedOthers, Others, not_read
from console.devices.topview import Look, ShownNode, last_line, lines, look
from console.terminal import printable
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden
from koordgate.kube.resource import DEVICES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from koordgate.kube.watch import Handler, Happening, Reflector, WatchPace
from webhook.ledger.store import Record, Store, UnreadableError, Watch
from webhook.view.changes import Changes
from webhook.view.claims import ClaimTable

Raw = dict[str, Any]
Choose = Callable[[NodeState], ShownNode | None]

_EACH_S: Final = 1.0  # between two drawings
_MOST_PROBLEMS: Final = 3  # lines about what cannot be read


class _Kept:
    """A Reflector's handler that keeps objects, and notes whose changed."""

    def __init__(self, changed: Callable[[str], object], keep: Callable[[Raw], Raw] = lambda obj: obj) -> None:
        self.objects: dict[str, Raw] = {}
        self._changed = changed
        self._keep = keep
        self._listed: set[str] = set()

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = set()

    def put(self, obj: Raw) -> None:
        """An object is there."""
        key = _key(obj)
        self._listed.add(key)
        kept = self._keep(obj)
        if self.objects.get(key) != kept:
            self.objects[key] = kept
            self._changed(key)

    def drop(self, obj: Raw) -> None:
        """An object is gone."""
        if self.objects.pop(_key(obj), None) is not None:
            self._changed(_key(obj))

    def end_list(self) -> None:
        """What the list did not name is gone."""
        for key in self.objects.keys() - self._listed:
            del self.objects[key]
            self._changed(key)


def _key(obj: Raw) -> str:
    metadata = obj["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def _about(obj: Raw) -> Raw:
    """What of a Node says something about its devices: its status changes every few seconds."""
    metadata = obj["metadata"]
    return {"metadata": {key: metadata[key] for key in ("name", "labels", "annotations") if key in metadata}}


class _Records:
    """A listener of the ledger's store that keeps records."""

    def __init__(self, changed: Callable[[str], object]) -> None:
        self.records: dict[str, Record | UnreadableError] = {}
        self._changed = changed
        self._listed: set[str] = set()

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = set()

    def put(self, node: str, revision: int, read: Callable[[], Record]) -> None:  # noqa: ARG002 watches are in order
        """A record is there."""
        self._listed.add(node)
        try:
            self.records[node] = read()
        except UnreadableError as error:
            self.records[node] = error
        self._changed(node)

    def drop(self, node: str, revision: int) -> None:  # noqa: ARG002
        """A record is gone."""
        self.records.pop(node, None)
        self._changed(node)

    def end_list(self) -> None:
        """What the list did not name is gone."""
        for node in self.records.keys() - self._listed:
            del self.records[node]
            self._changed(node)


class LiveNodes:
    """The nodes of a cluster, as their objects change.

    `nodes`: names of those that are wanted; empty for all.
    """

    def __init__(
        self, kube: KubeClient, store: Store, nodes: Iterable[str], known: Known, pace: WatchPace | None = None
    ) -> None:
        self._wanted = frozenset(nodes)
        self._known = known
        self._changed: set[str] = set()
        self._news = asyncio.Event()
        self._states: dict[str, NodeState] = {}
        self._claims: tuple[ClaimTable, str] = ClaimTable(Changes(), known.drivers), ""
        self._claims_changed = False
        self._devices = _Kept(self._touch)
        self._nodes = _Kept(self._touch, _about)
        self._records = _Records(self._touch)
        self._of_claims = {resource: _Kept(self._touch_claims) for resource in (RESOURCE_CLAIMS, RESOURCE_SLICES)}

        def watched(resource: Resource, kept: Handler, selectors: Mapping[str, str] | None = None) -> Reflector:
            pacing, error, count = pace or WatchPace(), self._on_error, self._on_happening
            return Reflector(kube, resource, kept, selectors=selectors, pace=pacing, on_error=error, count=count)

        self._followed = FollowedOthers(known.adoption, self._touch)
        self._others_unread = ""

        self._needed: list[Watch] = [watched(DEVICES, self._devices), watched(NODES, self._nodes)]
        self._needed.append(store.watch(self._records, on_error=self._on_error, count=self._on_happening))
        self._others = [watched(*one) for one in self._of_claims.items()] if known.drivers else []
        self._pods = watched(PODS, self._followed, BOUND) if known.adoption.peers else None

    async def run(self) -> None:
        """Watch until cancelled."""
        pods = [self._pods] if self._pods is not None else []
        async with asyncio.TaskGroup() as tasks:
            for one in (*self._needed, *self._others, *pods):
                tasks.create_task(one.run())

    async def synced(self) -> None:
        """Wait until the objects of all nodes have been listed, and Pods where they count, unless the user may not.

        Raises KubeError: the API server refuses, or cannot be reached.
        """
        while not all(one.synced.is_set() for one in self._waited()):
            failed = next((one.last_error for one in self._waited() if one.last_error is not None), None)
            if failed is not None:
                raise failed
            with suppress(TimeoutError):
                async with asyncio.timeout(_EACH_S):
                    await self.news()

    def _waited(self) -> list[Watch]:
        """The watches without which nothing is shown, or what is shown is outdated."""
        pods = self._pods
        if pods is None or (isinstance(pods.last_error, Forbidden) and not pods.synced.is_set()):
            return self._needed
        return [*self._needed, pods]

    async def news(self) -> None:
        """Wait until anything changes, or a watch fails."""
        await self._news.wait()
        self._news.clear()

    @property
    def trouble(self) -> str:
        """Why what is shown may be outdated; "" if it is not."""
        failing = next((one for one in self._waited() if one.last_error is not None), None)
        return "" if failing is None else str(failing.last_error)

    def states(self) -> list[NodeState]:
        """The nodes as they are now, by name; only those that changed are read again."""
        if self._claims_changed:
            self._claims_changed = False
            claims, slices = (self._of_claims[one].objects.values() for one in (RESOURCE_CLAIMS, RESOURCE_SLICES))
            self._claims = claim_table(claims, slices, self._known.drivers)
            self._changed |= self._states.keys()
        unread = self._why_unread()
        if unread != self._others_unread:
            self._others_unread = unread
            self._changed |= self._states.keys()
        held = Beside(self._claims[0], Others(self._followed.table, unread))
        devices, records, about = self._devices.objects, self._records.records, self._nodes.objects
        for name in self._changed:
            state = read_listed(name, devices, records, about, self._known, held)
            if state is None or (self._wanted and name not in self._wanted):
                self._states.pop(name, None)
            else:
                self._states[name] = state
        self._changed.clear()
        return [self._states[name] for name in sorted(self._states)]

    def _why_unread(self) -> str:
        """Why Pods of other products are not known; "" if they are, or none count."""
        if self._pods is None or self._pods.synced.is_set():
            return ""
        return not_read(self._pods.last_error or "Pods are being listed")

    def problems(self) -> list[str]:
        """What cannot be read, a sentence each."""
        refused = [one.last_error for one in self._others if isinstance(one.last_error, Forbidden)]
        claims = [claims_not_read(refused[0])] if refused else [self._claims[1]] if self._claims[1] else []
        others = [self._others_unread] if self._others_unread else []
        notes = [*self._known.notes, *claims, *others]
        return notes + [problem for name in sorted(self._states) for problem in self._states[name].problems]

    def _touch(self, node: str) -> None:
        self._changed.add(node)
        self._news.set()

    def _touch_claims(self, _name: str) -> None:
        self._claims_changed = True
        self._news.set()

    def _on_error(self, _about: str, _error: Exception) -> None:
        self._news.set()

    def _on_happening(self, _what: Happening) -> None:
        self._news.set()


async def watch(
    kube: KubeClient, store: Store, nodes: Sequence[str], known: Known, choose: Choose, namespace: str
) -> None:
    """Draw devices on the terminal as they change, until cancelled.

    `nodes`: names of those that are shown; empty for all. `choose`: says what of a node is shown; None for nothing.
    `namespace`: whose Pods' devices are shown; "" for all. Raises CommandError: a named node has nothing to show, or a
    CRD is missing; KubeError: at the start, the API server refuses or cannot be reached.
    """
    await read_cluster(kube, store, nodes, known)  # an error at the start ends the command
    live = LiveNodes(kube, store, nodes, known)
    watching = asyncio.create_task(live.run())
    try:
        await live.synced()
        console = terminal.screen()
        encoding = sys.stdout.encoding  # rich puts another stream in its place while it draws
        since = ""
        chosen: dict[str, tuple[NodeState, ShownNode | None]] = {}
        with Live(console=console, auto_refresh=False, screen=True) as drawn:
            while True:
                before = chosen
                chosen = {
                    state.node: seen
                    if (seen := before.get(state.node)) and seen[0] is state
                    else (state, choose(state))
                    for state in live.states()
                }
                shown = [one for _, one in chosen.values() if one is not None]
                trouble = live.trouble
                since = (since or time.strftime("%H:%M:%S")) if trouble else ""
                head = f"not up to date since {since}: {trouble}" if trouble else ""
                rows = page(shown, live.problems(), head, namespace, look(console.width, encoding), console.height)
                drawn.update(Group(*rows), refresh=True)
                await asyncio.sleep(_EACH_S)
                await live.news()
    finally:
        watching.cancel()


def page(
    shown: Sequence[ShownNode], problems: Sequence[str], trouble: str, namespace: str, drawn: Look, height: int
) -> list[Text]:
    """What fits the terminal: as many nodes and devices as have room, what cannot be read, and the summary."""

    def cut(text: str, style: str = "") -> Text:
        told = Text(printable(text), style=style, no_wrap=True)
        told.truncate(drawn.width, overflow="ellipsis")
        return told

    notes = [cut(trouble, "red")] if trouble else []
    notes += [cut(problem, "yellow") for problem in problems[:_MOST_PROBLEMS]]
    room = max(1, height - len(notes) - 2)
    total = sum(1 + len(one.cards) for one in shown)
    rows = list(islice(lines(shown, drawn), room))
    if total > room:
        rows[-1] = cut(f"... {total - room + 1} more lines: name nodes, or make the terminal larger", "dim")
    return [*rows, Text(), *notes, cut(last_line(shown, namespace))]
