"""Nodes for display: their devices, and who holds them by the ledger, by ResourceClaims and by other products."""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.delivery import MemoryUse
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Holding, Share, of_claims
from allocator.vocabulary.names import TYPE_GPU
from allocator.wire.deviceobject import NodeDevices, read_cordons, read_device_object
from allocator.wire.foreignpods import NO_ADOPTION, Adoption
from allocator.wire.noderuntime import read_uses
from allocator.wire.resourceclaim import ClaimError, read_resource_claim, read_resource_slice
from allocator.wire.values import UNREADABLE
from console.reading import listed
from console.terminal import some
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, NotFound
from koordgate.kube.resource import DEVICES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from webhook.ledger.store import ABSENT, Record, Store, UnreadableError
from webhook.view.changes import Changes
from webhook.view.claims import ClaimTable
from webhook.view.feed import Listing
from webhook.view.foreign import ForeignTable, held_by_kubelet
from webhook.view.snapshots import Pools, beside, node_classes

Raw = dict[str, Any]


async def read_claims(kube: KubeClient, drivers: Mapping[str, DeviceType]) -> tuple[ClaimTable, str]:
    """Read what ResourceClaims hold; with why they could not be read, if the user may not.

    Raises KubeError: the API server refuses for another reason, or cannot be reached.
    """
    table, objects = ClaimTable(Changes(), drivers), []
    notes: list[str] = []
    for resource in (RESOURCE_SLICES, RESOURCE_CLAIMS) if drivers else ():
        read = await listed(kube, resource)
        if read.absent:
            return table, ""  # the cluster has no DRA
        if isinstance(read.failure, Forbidden):
            return table, claims_not_read(read.failure)
        objects.append(read.noted(notes))
    if not objects:
        return table, ""
    slices, claims = objects
    table, problem = claim_table(claims, slices, drivers)
    return table, problem or "".join(f"what ResourceClaims hold is not shown completely: {note}" for note in notes[:1])


def claims_not_read(error: Exception) -> str:
    """Say that the user may not read what ResourceClaims hold."""
    return f"what ResourceClaims hold is not shown, except for what koordgate reserved: {error}"


def claim_table(
    claims: Iterable[Raw], slices: Iterable[Raw], drivers: Mapping[str, DeviceType]
) -> tuple[ClaimTable, str]:
    """What ResourceClaims hold; with why some of it is not known, "" if all is."""
    table = ClaimTable(Changes(), drivers)
    try:
        for obj in slices:
            if (listed := read_resource_slice(obj, drivers)) is not None:
                table.put_slice(listed)
        for obj in claims:
            table.put(read_resource_claim(obj, drivers))
    except (ClaimError, *UNREADABLE) as error:
        return table, f"what ResourceClaims hold is not shown completely: {error}"
    return table, ""


AnyHolding = Holding | ForeignHolding

BOUND: Final = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
"""Selects the Pods that may hold something."""

_NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)  # other names would change a selector
_MAX_APART: Final = 8  # nodes whose Pods are listed node by node, rather than all Pods


class Others(NamedTuple):
    """What Pods of other products hold."""

    table: ForeignTable  # these Pods by node
    unread: str = ""  # why they are not known, a sentence; "" if they are. Any GPU may then be held by one.

    def on(self, listed: NodeDevices, devices: Sequence[Device]) -> tuple[ForeignHolding, ...]:
        """What they hold of a node's devices, by namespace, name and UID."""
        found = self.table.on(listed.node, devices, listed.numberings).values()
        return tuple(sorted(found, key=lambda one: (one.namespace, one.name, one.uid)))


def nobody() -> Others:
    """No Pod of another product counts."""
    return Others(ForeignTable(Changes(), NO_ADOPTION))


def not_read(why: object) -> str:
    """Say that Pods of other products are not known."""
    return f"what Pods of other products hold is not known, so every GPU counts as held: {why}"


async def read_others(kube: KubeClient, adoption: Adoption, nodes: Iterable[str] = ()) -> Others:
    """Read the Pods of other products that count; says why they could not be read, if the user may not list Pods.

    `adoption`: which Pods count. Where none do, none are listed. `nodes`: those that are asked about; empty for all.
    Raises KubeError: the API server refuses for another reason, or cannot be reached.
    """
    table = ForeignTable(Changes(), adoption)
    if not adoption.peers:
        return Others(table)
    wanted = sorted(set(nodes))
    asked: list[Mapping[str, str]] = [BOUND]
    if wanted and len(wanted) <= _MAX_APART and all(map(_NODE_NAME.fullmatch, wanted)):
        asked = [{"fieldSelector": f"spec.nodeName={node}"} for node in wanted]
    for params in asked:
        read = await listed(kube, PODS, table.read, params=params)
        if isinstance(read.failure, Forbidden) or read.cut:
            return Others(table, not_read(read.failure or read.notes[0]))
        read.noted([])
    return Others(table)


class FollowedOthers(Listing):
    """Follows the Pods of other products.

    `changed`: called with each node on which one came, changed or went.
    """

    def __init__(self, adoption: Adoption, changed: Callable[[str], object]) -> None:
        super().__init__()
        changes = Changes()
        self._reader = changes.reader()
        self._changed = changed
        self.table = ForeignTable(changes, adoption)

    def there(self, obj: Raw) -> None:
        """Take in a Pod."""
        self.table.read(obj)
        self._tell()

    def gone(self, namespace: str, name: str) -> None:
        """Forget a Pod."""
        self.table.drop(namespace, name)
        self._tell()

    def _tell(self) -> None:
        for node in self._reader.drain():
            self._changed(node)


def told_holder(one: AnyHolding) -> str:
    """Name who holds something; a Pod of another product with that product."""
    return f"{one.holder} ({told_product(one)})" if isinstance(one, ForeignHolding) else one.holder


def told_product(one: ForeignHolding) -> str:
    """Name the product that placed a Pod, and say so if what the Pod holds is not certain."""
    return f"{one.peer.value}, in doubt" if one.doubt is not None else one.peer.value


def is_claim(one: AnyHolding) -> bool:
    """Whether a ResourceClaim holds it."""
    return isinstance(one, Holding) and bool(one.fence)


def holder_data(one: AnyHolding) -> Raw:
    """Who holds something, as data (docs/kubectl.md)."""
    about: Raw = {"kind": "ResourceClaim"} if is_claim(one) else {}
    about |= {"namespace": one.namespace, "name": one.name, "uid": one.uid}
    if isinstance(one, ForeignHolding):
        about |= {"product": one.peer.value, "evidence": one.evidence, "doubt": one.why, "within": one.within}
    return about


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


class Beside(NamedTuple):
    """Who holds devices besides the Pods of the ledger."""

    claims: ClaimTable
    others: Others  # what Pods of other products hold


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node."""

    listed: NodeDevices  # its Device object; without devices if there is none
    classes: tuple[Device, ...] = ()  # its devices of software classes
    cordoned_classes: frozenset[str] = frozenset()  # ids of those that an administrator has cordoned
    holdings: tuple[Holding, ...] = ()  # who holds what, in the order of namespace, name and UID
    problems: tuple[str, ...] = ()  # what could not be read, a sentence each
    unread: bool = False  # whether its record cannot be read, so that nobody knows who holds what
    foreign: tuple[ForeignHolding, ...] = ()  # what Pods of other products hold, in the same order
    unseen: bool = False  # whether these Pods are not known, so that any GPU may be held by one
    uses: tuple[MemoryUse, ...] = ()  # what containers have of the memory of its cards

    @property
    def node(self) -> str:
        """Its name."""
        return self.listed.node

    @property
    def devices(self) -> tuple[Device, ...]:
        """All its devices."""
        return beside(self.listed.devices, self.classes)

    @property
    def cordoned(self) -> frozenset[str]:
        """Ids of the devices that an administrator has cordoned."""
        return self.listed.cordoned | self.cordoned_classes

    @property
    def kubelet_held(self) -> frozenset[str]:
        """Ids of the devices that the kubelet's device plugin gave away, but to Pods that state what they hold."""
        return held_by_kubelet(self.listed, self.listed.kubelet_held, {one.uid: one for one in self.foreign})

    @property
    def holders(self) -> tuple[AnyHolding, ...]:
        """Who holds something, Pods of other products last."""
        return (*self.holdings, *self.foreign)

    def is_unknown(self, kind: str) -> bool:
        """Whether it is not known who holds the devices of a type."""
        return self.unread or (self.unseen and kind == TYPE_GPU)

    def held(self, identity: str) -> list[tuple[AnyHolding, Share]]:
        """Who holds some of a device, by namespace and name, Pods of other products last."""
        return [(one, share) for one in self.holders for share in one.shares if share.id == identity]

    def strays(self) -> list[Share]:
        """One share of each device that is held although the node does not have it, by type and minor."""
        there = {device.id for device in self.devices}
        found = {share.id: share for one in self.holdings for share in one.shares if share.id not in there}
        return sorted(found.values(), key=lambda share: (share.type, share.minor, share.id))


def read_node(
    name: str,
    device: Raw | None,
    record: Record | UnreadableError | None,
    obj: Raw | None,
    known: Known,
    claims: ClaimTable | None = None,
    others: Others | None = None,
) -> NodeState:
    """Read a node's objects. What is missing is left out; what cannot be read is reported in `problems`.

    `claims`: what ResourceClaims hold; by default only what the ledger has for them. `others`: what Pods of other
    products hold; by default nothing.
    """
    devices = NodeDevices(name, ()) if device is None else read_device_object(device, known.types)
    problems = [f"Device {name}: {problem}" for problem in devices.problems]
    uses, unclear = read_uses(devices.memory_uses)
    problems += [f"Device {name}: {unclear}"] if unclear else []
    metadata: Mapping[str, Any] = obj["metadata"] if obj is not None else {}
    classes, wrong = ((), ()) if obj is None else node_classes(metadata, known.types, known.pools)
    problems += [f"Node {name}: {problem}" for problem in wrong]
    every = beside(devices.devices, classes)
    recorded: Mapping[str, Holding] = {}
    if isinstance(record, UnreadableError):
        problems.append(f"Node {name}: its holdings are unknown: {record}")
    elif record is not None:
        recorded = record.holdings
    holdings: Iterable[Holding] = recorded.values()
    if claims is not None:
        pods = (one for one in recorded.values() if not one.fence)
        holdings = [*pods, *claims.on(name, every, of_claims(recorded)).values()]
    return NodeState(
        devices,
        classes,
        read_cordons(metadata.get("annotations") or {}),
        tuple(sorted(holdings, key=lambda one: (one.namespace, one.name, one.uid))),
        tuple(problems),
        isinstance(record, UnreadableError),
        others.on(devices, every) if others is not None else (),
        others is not None and bool(others.unread),
        uses,
    )


async def _listed(kube: KubeClient, resource: Resource, keep: Callable[[Raw], Raw] = lambda obj: obj) -> dict[str, Raw]:
    """All objects of a resource by name.

    Raises CommandError: the cluster has no such resource, or more than can be read; KubeError: the API server refuses,
    or cannot be reached.
    """
    read = await listed(kube, resource, keep)
    if read.absent:
        raise _missing(f"{resource.plural}.{resource.group}")
    items = read.noted([], needed=True)
    if read.cut:
        raise CommandError(f"{read.notes[0]}; name the nodes to be read")
    return {one["metadata"]["name"]: one for one in items}


def _missing(what: str) -> CommandError:
    return CommandError(f"the cluster has no {what}: install koordgate's chart, which brings that CRD")


async def find_record(store: Store, node: str) -> Record | UnreadableError | None:
    """A node's record of the ledger; None if it has none.

    Raises KubeError: the store refuses, or cannot be reached.
    """
    try:
        record = await store.read(node, _READ_S)
    except UnreadableError as error:
        return error
    return None if record.revision == ABSENT else record


async def require_ledger(store: Store) -> None:
    """Make sure that a node without holdings has none because nobody holds its devices, not for lack of a ledger.

    Raises CommandError: the cluster has no ledger; KubeError: the store refuses, or cannot be reached.
    """
    try:
        await anext(store.records(), None)
    except NotFound as error:
        raise _missing(store.kind) from error


async def _all_records(store: Store) -> dict[str, Record | UnreadableError]:
    try:
        return {record.node: record async for record in store.records()}
    except NotFound as error:
        raise _missing(store.kind) from error


async def find(kube: KubeClient, resource: Resource, node: str) -> Raw | None:
    """Get a node's object of a resource; None if it has none.

    Raises CommandError: no node can have that name; KubeError: the API server refuses, or cannot be reached.
    """
    try:
        path = resource.path(node)
    except ValueError as error:
        raise CommandError(f"no node can have that name: {error}") from error
    try:
        return await kube.get(path)
    except NotFound:
        return None


async def read_cluster(kube: KubeClient, store: Store, nodes: Sequence[str], known: Known) -> list[NodeState]:
    """Read these nodes, or all that have devices if none is named, in the order of their names.

    Raises CommandError: a named node has nothing to show, or a CRD is missing; KubeError: the API server refuses, or
    cannot be reached.
    """
    claims, unread = await read_claims(kube, known.drivers)
    others = await read_others(kube, known.adoption, nodes)
    states = await _read_nodes(kube, store, nodes, known, Beside(claims, others))
    problems = tuple(filter(None, (unread, others.unread)))
    if states and problems:
        states[0] = replace(states[0], problems=(*states[0].problems, *problems))
    return states


def read_listed(
    name: str,
    devices: Mapping[str, Raw],
    records: Mapping[str, Record | UnreadableError],
    nodes: Mapping[str, Raw],
    known: Known,
    beside_ledger: Beside,
) -> NodeState | None:
    """Read one of many nodes by name from their Device objects, records and Nodes; None if it has nothing to show."""
    state = read_node(name, devices.get(name), records.get(name), nodes.get(name), known, *beside_ledger)
    return state if name in devices or name in records or state.classes or state.problems else None


async def _read_nodes(
    kube: KubeClient, store: Store, nodes: Sequence[str], known: Known, beside_ledger: Beside
) -> list[NodeState]:
    if not nodes:
        devices = await _listed(kube, DEVICES)
        records = await _all_records(store)
        about = await _listed(kube, NODES, lambda obj: {"metadata": obj["metadata"]})
        names = sorted({*devices, *records, *about})
        read = (read_listed(name, devices, records, about, known, beside_ledger) for name in names)
        return [state for state in read if state is not None]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> NodeState:
        async with gate:
            device = await find(kube, DEVICES, name)
            record = await find_record(store, name)
            obj = await find(kube, NODES, name)
        state = read_node(name, device, record, obj, known, *beside_ledger)
        if device is None and record is None and not (state.classes or state.problems):
            raise await unknown_node(kube, name)
        return state

    return await asyncio.gather(*(one(name) for name in sorted(set(nodes))))


async def unknown_node(kube: KubeClient, node: str) -> CommandError:
    """Make the error that a node has no devices; it names the nodes that have some."""
    known = await _listed(kube, DEVICES)
    return CommandError(f"node {node} has no Device object; {there_are(known)}")


def there_are(names: Iterable[str]) -> str:
    """List names, as many as fit one line."""
    known = sorted(names)
    return f"there are: {some(known, _MAX_NAMED)}" if known else "there are none at all"
