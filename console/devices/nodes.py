"""The nodes of a cluster as its ledger, ResourceClaims and other products' Pods have them: read once, or followed."""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, DeviceType, DeviceTypes
from allocator.wire.deviceobject import read_cordons
from allocator.wire.foreignpods import NO_ADOPTION, Adoption
from allocator.wire.resourceclaim import ClaimError
from allocator.wire.values import UNREADABLE
from console.reading import ReadList, Records, listed
from console.terminal import some
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, NotFound
from koordgate.kube.resource import DEVICES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from webhook.ledger.store import ABSENT, Record, Store, UnreadableError
from webhook.view.claimfeed import ClaimFeed, SliceFeed
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import DeviceFeed, Listing, NodeFeed
from webhook.view.nodereport import NodeReport, report_of
from webhook.view.snapshots import Pools

Raw = dict[str, Any]

BOUND: Final = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
"""Selects the Pods that may hold something."""

_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)  # other names would change a selector
_MAX_APART: Final = 8  # nodes whose Pods are listed node by node, rather than all Pods
_AT_ONCE: Final = 8  # nodes that are read at the same time
_MAX_NAMED: Final = 16  # nodes or devices that an error names
_READ_S: Final = 10.0


class CommandError(Exception):
    """The command cannot be carried out as given; the message says what would work."""


class Known(NamedTuple):
    """What the settings define."""

    types: DeviceTypes = BUILT_IN  # device types
    pools: Pools = ()  # devices of software classes
    drivers: Mapping[str, DeviceType] = {}  # the DRA drivers whose devices ResourceClaims hold, and the type of these
    adoption: Adoption = NO_ADOPTION  # which Pods of other products count
    notes: tuple[str, ...] = ()  # what of the settings is not known, a sentence each


class Followed(Records):
    """The ledger's records, as lists and its store's watch report them (also a `Listener`)."""

    def __init__(self, seen: SeenObjects) -> None:
        super().__init__({})
        self._seen = seen
        self._listed: set[str] = set()
        self._unread: set[str] = set()

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = set()

    def put(self, node: str, revision: int, read: Callable[[], Record]) -> None:  # noqa: ARG002 watches are in order
        """A record is there."""
        self._listed.add(node)
        try:
            self.take(read())
        except UnreadableError as error:
            self.take(error)

    def take(self, record: Record | UnreadableError) -> None:
        """Take in a record, or that it cannot be read: then nobody knows who holds what of its node."""
        if isinstance(record, UnreadableError):
            self._unread.add(record.node)
            self._seen.nodes.block(record.node, str(record))
        elif self.found.get(record.node) != record:
            self.drop(record.node, record.revision)
            self.found[record.node] = record

    def drop(self, node: str, revision: int) -> None:  # noqa: ARG002
        """A record is gone."""
        self.found.pop(node, None)
        self._unread.discard(node)
        self._seen.nodes.unblock(node)
        self._seen.changes.touch(node)

    def end_list(self) -> None:
        """What the list did not name is gone."""
        for node in (self.found.keys() | self._unread) - self._listed:
            self.drop(node, ABSENT)


class _Nodes(NodeFeed):
    """Nodes, and the devices of software classes that an administrator has cordoned there."""

    def __init__(self, view: ClusterView, known: Known, complain: Callable[[str, tuple[str, ...]], None]) -> None:
        super().__init__(view, known.types, known.pools, complain)
        self.cordoned: dict[str, frozenset[str]] = {}

    def there(self, obj: Raw) -> None:
        """Take in a Node."""
        self.cordoned[obj["metadata"]["name"]] = read_cordons(obj["metadata"].get("annotations") or {})
        super().there(obj)

    def gone(self, namespace: str, name: str) -> None:
        """Forget a Node."""
        self.cordoned.pop(name, None)
        super().gone(namespace, name)


class _Claims(ClaimFeed):
    """ResourceClaims. One that cannot be read is noted."""

    def __init__(self, view: ClusterView, unread: dict[str, str]) -> None:
        super().__init__(view)
        self._unread = unread

    def there(self, obj: Raw) -> None:
        """Take in a claim."""
        key = "{namespace}/{name}".format_map(obj["metadata"])
        try:
            super().there(obj)
            self._unread.pop(key, None)
        except (ClaimError, *UNREADABLE) as error:
            self._unread[key] = str(error)

    def gone(self, namespace: str, name: str) -> None:
        """Forget a claim."""
        self._unread.pop(f"{namespace}/{name}", None)
        super().gone(namespace, name)


class _OthersPods(Listing):
    """Pods of other products that count."""

    def __init__(self, view: ClusterView) -> None:
        super().__init__()
        self._foreign = view.foreign

    def there(self, obj: Raw) -> None:
        """Take in a Pod."""
        self._foreign.read(obj)

    def gone(self, namespace: str, name: str) -> None:
        """Forget a Pod."""
        self._foreign.drop(namespace, name)


class SeenNodes:
    """The nodes, as the objects say that were put into its feeds."""

    def __init__(self, known: Known) -> None:
        seen = SeenObjects(lambda: 0, drivers=known.drivers, adoption=known.adoption)
        self.known = known
        self.records = Followed(seen)
        self.view = ClusterView(seen, self.records)
        self._wrong: dict[str, tuple[str, ...]] = {}  # node -> what of its software classes cannot be read
        self._unread_claims: dict[str, str] = {}
        self.devices = DeviceFeed(self.view, known.types, lambda _node, _problems: None)  # the report has them
        self.nodes = _Nodes(self.view, known, self._complain)
        self.claims = _Claims(self.view, self._unread_claims)
        self.slices = SliceFeed(self.view, self._note_slice)
        self.pods = _OthersPods(self.view)
        self.no_claims = ""  # why nothing is known of ResourceClaims, a sentence
        self.no_pods = ""  # why Pods of other products are not known, a sentence: any GPU may then be held by one
        self._unseen = False
        self._changed = seen.changes.reader()
        self._reports: dict[str, NodeReport] = {}

    def reports(self) -> list[NodeReport]:
        """The nodes that have something to show, by name; only those that changed are made again."""
        changed = list(self._changed.drain())
        if self._unseen is not bool(self.no_pods):
            self._unseen = bool(self.no_pods)
            changed = [*self._reports, *changed]
        for name in changed:
            report = self.report(name)
            if self.view.nodes.knows(name) or name in self.records.found or report.problems:
                self._reports[name] = report
            else:
                self._reports.pop(name, None)
        return [self._reports[name] for name in sorted(self._reports)]

    def report(self, name: str) -> NodeReport:
        """A node, even if nothing is known of it."""
        report = report_of(self.view, name, self.known.types, unseen=bool(self.no_pods))
        problems = (*report.problems, *(f"Node {name}: {problem}" for problem in self._wrong.get(name, ())))
        cordoned = report.cordoned | self.nodes.cordoned.get(name, frozenset())
        return replace(report, problems=problems, cordoned=cordoned)

    def classes(self, node: str) -> Sequence[Device]:
        """A node's devices of software classes."""
        facts = self.view.nodes.facts(node)
        return facts.classes if facts is not None else ()

    def problems(self) -> list[str]:
        """What is not known of all nodes, a sentence each."""
        claims = self.no_claims
        if not claims and self._unread_claims:
            claims = f"what ResourceClaims hold is not shown completely: {next(iter(self._unread_claims.values()))}"
        return [one for one in (claims, self.no_pods) if one]

    def _complain(self, node: str, problems: tuple[str, ...]) -> None:
        if problems != self._wrong.get(node, ()):
            self._wrong[node] = problems
            self.view.changes.touch(node)

    def _note_slice(self, name: str, problems: tuple[str, ...]) -> None:
        if problems:
            self._unread_claims[name] = problems[0]
        else:
            self._unread_claims.pop(name, None)

    async def list_claims(self, kube: KubeClient) -> None:
        """Read what ResourceClaims hold, unless the cluster has none or the user may not.

        Raises KubeError: the API server refuses for another reason, or cannot be reached.
        """
        for resource, feed in ((RESOURCE_SLICES, self.slices), (RESOURCE_CLAIMS, self.claims)):
            if not self.known.drivers:
                return
            read = await _fill(kube, resource, feed)
            if read.absent:
                return
            if isinstance(read.failure, Forbidden):
                self.no_claims = claims_not_read(read.failure)
                return
            notes: list[str] = []
            read.noted(notes)
            if notes:
                self.no_claims = f"what ResourceClaims hold is not shown completely: {notes[0]}"

    async def list_pods(self, kube: KubeClient, nodes: Iterable[str] = ()) -> None:
        """Read the Pods of other products that count, unless none do or the user may not.

        `nodes`: those that are asked about; empty for all. Raises KubeError: the API server refuses for another reason,
        or cannot be reached.
        """
        if not self.known.adoption.peers:
            return
        wanted = sorted(set(nodes))
        asked: list[Mapping[str, str]] = [BOUND]
        if wanted and len(wanted) <= _MAX_APART and all(map(_NODE_NAME.fullmatch, wanted)):
            asked = [{"fieldSelector": f"spec.nodeName={node}"} for node in wanted]
        for params in asked:
            read = await _fill(kube, PODS, self.pods, params)
            if isinstance(read.failure, Forbidden) or read.cut:
                self.no_pods = pods_not_read(read.failure or read.notes[0])
                return
            read.noted([])

    async def list_all(self, kube: KubeClient, store: Store) -> None:
        """Read all nodes.

        Raises CommandError: the cluster has no such resource, or more than can be read; KubeError: the API server
        refuses, or cannot be reached.
        """
        for resource, feed in ((DEVICES, self.devices), (NODES, self.nodes)):
            _require(await _fill(kube, resource, feed), resource)
        try:
            async for record in store.records():
                self.records.take(record)
        except NotFound as error:
            raise _missing(store.kind) from error

    async def get(self, kube: KubeClient, store: Store, node: str) -> dict[Resource, Raw | None]:
        """Read one node; returns its objects, None for each that it lacks.

        Raises CommandError: no node can have that name; KubeError: the API server refuses, or cannot be reached.
        """
        found = {DEVICES: await _find(kube, DEVICES, node)}
        await self.get_record(store, node)
        found[NODES] = await _find(kube, NODES, node)
        for resource, obj in found.items():
            if obj is not None:
                self.put(resource, obj)
        return found

    async def get_record(self, store: Store, node: str) -> None:
        """Read a node's record.

        Raises KubeError: the store refuses, or cannot be reached.
        """
        try:
            record = await store.read(node, _READ_S)
            if record.revision == ABSENT:
                self.records.drop(node, ABSENT)
            else:
                self.records.take(record)
        except UnreadableError as error:
            self.records.take(error)

    def put(self, resource: Resource, obj: Raw) -> None:
        """Take in a Device object or a Node."""
        (self.devices if resource is DEVICES else self.nodes).put(obj)


def claims_not_read(error: Exception) -> str:
    """Say that the user may not read what ResourceClaims hold."""
    return f"what ResourceClaims hold is not shown, except for what koordgate reserved: {error}"


def pods_not_read(why: object) -> str:
    """Say that Pods of other products are not known."""
    return f"what Pods of other products hold is not known, so every GPU counts as held: {why}"


async def _fill(
    kube: KubeClient, resource: Resource, feed: Listing, params: Mapping[str, str] | None = None
) -> ReadList:
    """List a resource into a feed; nothing else is kept of its objects."""

    def take(obj: Raw) -> None:
        feed.put(obj)

    return await listed(kube, resource, take, params=params)


def _require(read: ReadList, resource: Resource) -> None:
    if read.absent:
        raise _missing(f"{resource.plural}.{resource.group}")
    read.noted([], needed=True)
    if read.cut:
        raise CommandError(f"{read.notes[0]}; name the nodes to be read")


def _missing(what: str) -> CommandError:
    return CommandError(f"the cluster has no {what}: install koordgate's chart, which brings that CRD")


async def require_ledger(store: Store) -> None:
    """Make sure that a node without holdings has none because nobody holds its devices, not for lack of a ledger.

    Raises CommandError: the cluster has no ledger; KubeError: the store refuses, or cannot be reached.
    """
    try:
        await anext(store.records(), None)
    except NotFound as error:
        raise _missing(store.kind) from error


async def _find(kube: KubeClient, resource: Resource, node: str) -> Raw | None:
    try:
        path = resource.path(node)
    except ValueError as error:
        raise CommandError(f"no node can have that name: {error}") from error
    try:
        return await kube.get(path)
    except NotFound:
        return None


async def read_nodes(kube: KubeClient, store: Store, nodes: Sequence[str], known: Known) -> list[NodeReport]:
    """Read these nodes, or all that have something to show if none is named, in the order of their names.

    The first one bears what is not known of all. Raises CommandError: a named node has nothing to show, or a CRD is
    missing; KubeError: the API server refuses, or cannot be reached.
    """
    seen = SeenNodes(known)
    await seen.list_claims(kube)
    await seen.list_pods(kube, nodes)
    if nodes:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> None:
            async with gate:
                await seen.get(kube, store, name)

        wanted = sorted(set(nodes))
        await asyncio.gather(*map(one, wanted))
        reports = [report for report in seen.reports() if report.name in wanted]
        if lacking := [name for name in wanted if name not in {report.name for report in reports}]:
            raise await unknown_node(kube, lacking[0])
    else:
        await seen.list_all(kube, store)
        reports = seen.reports()
    if reports:
        reports[0] = replace(reports[0], problems=(*reports[0].problems, *seen.problems()))
    return reports


async def unknown_node(kube: KubeClient, node: str) -> CommandError:
    """Make the error that a node has no devices; it names the nodes that have some."""
    read = await listed(kube, DEVICES, lambda obj: {"metadata": obj["metadata"]})
    _require(read, DEVICES)
    return CommandError(f"node {node} has no Device object; {there_are(read.names)}")


def there_are(names: Iterable[str]) -> str:
    """List names, as many as fit one line."""
    known = sorted(names)
    return f"there are: {some(known, _MAX_NAMED)}" if known else "there are none at all"
