"""What every node has and has free, published as the patent packs it (paragraph 114), and kept up by a timer.

It stands in an annotation of the node's NodeAllocation, made where there is none: the one object that every node can
have, with devices or with CPUs and software classes alone, and that nobody writes but us. (koordlet puts a Device
object's annotations back to its own.) A write is a compare-and-swap as the ledger's are, so that neither undoes the
other's; and what is written was packed after reading the record that it stands in.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from allocator.index.packed import Packed, PackedError, write_packed
from allocator.index.rows import packed_classes
from allocator.vocabulary.cpunode import CpuNode, cpu_use
from allocator.vocabulary.holdings import Holding, NodeSnapshot
from allocator.vocabulary.names import PACKED
from allocator.wire.nodeallocation import API_VERSION, KIND, RecordError, write_spec
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from koordgate.kube.resource import NODE_ALLOCATIONS
from koordgate.kube.watch import Handler
from webhook.ledger.ledger import Ledger
from webhook.ledger.store import read_record
from webhook.view.cluster import ClusterView, SeenObjects

Raw = dict[str, Any]
T = TypeVar("T")

CPU: Final = "cpu"  # the class of CPUs: an amount for each NUMA node, ascending
_LOG: Final = logging.getLogger(__name__)
_PAUSE_S: Final = 0.05  # after each write: 20 a second, one at a time, so that binds hardly wait for them
_NOTHING: Final = "{}"
_GENERAL: Final = (Unreachable, TooManyRequests, Unauthorized, Forbidden)  # what befalls one node befalls all


def packed_text(node: NodeSnapshot) -> str:
    """Pack what a node has and has free, by class, as `allocator.index.packed` writes it.

    A class of devices is named by its resource's tail and lists the node's devices of the type by minor; what nobody
    may be given (of a device that is unhealthy, cordoned, or given away by the kubelet) is not free. Of CPUs those
    count that Pods may have as their own.

    Raises:
        PackedError: the node has more than the format holds.
    """
    classes: dict[str, Packed] = {}
    if node.cpu is not None:
        classes[CPU] = _cpus(node, node.cpu)
    closed = {
        device.id: device.capacity for device in node.devices if not device.healthy or device.id in node.kubelet_held
    }
    used: Mapping[str, Mapping[str, int]] = {**node.used, **closed}
    for kind, devices in groupby(node.devices, attrgetter("type")):
        for one in packed_classes(list(devices), used):
            name = f"{kind}/{one.name}" if one.name in classes else one.name
            classes[name] = Packed(name, one.bits, one.count, one.total, one.free)
    return write_packed(classes.values())


def packed_annotations(seen: SeenObjects, node: str, holdings: Mapping[str, Holding]) -> dict[str, str]:
    """What the ledger writes into a node's record beside these holdings; nothing where they cannot be packed."""
    try:
        return {PACKED: packed_text(seen.snapshot_on(node, holdings))} if seen.nodes.knows(node) else {}
    except PackedError:
        return {}  # `Publisher` tells of it


def _cpus(node: NodeSnapshot, cpu: CpuNode) -> Packed:
    held = cpu_use(cpu, (holding.cpus for holding in node.holdings.values() if holding.cpus is not None)).taken
    given = [cpus & ~cpu.reserved for _, cpus in sorted(cpu.topology.nodes.items())]
    return Packed.of(CPU, [cpus.bit_count() for cpus in given], [(cpus & ~held).bit_count() for cpus in given])


class _Kept(Generic[T]):
    """A Reflector's handler that also keeps, by name, something of each object that there is.

    Args:
        handler: the one that it stands before; it is told first.
        of: what is kept of an object.
        into: where it is kept.
    """

    def __init__(self, handler: Handler, of: Callable[[Raw], T], into: dict[str, T]) -> None:
        self._handler = handler
        self._of = of
        self._into = into
        self._listed: set[str] = set()

    def begin_list(self) -> None:
        """A list begins."""
        self._listed.clear()
        self._handler.begin_list()

    def put(self, obj: Raw) -> None:
        """An object is there."""
        self._handler.put(obj)
        name = obj["metadata"]["name"]
        self._into[name] = self._of(obj)
        self._listed.add(name)

    def drop(self, obj: Raw) -> None:
        """An object is gone."""
        self._handler.drop(obj)
        self._into.pop(obj["metadata"]["name"], None)

    def end_list(self) -> None:
        """The list is complete: what it did not name is gone."""
        self._handler.end_list()
        for name in self._into.keys() - self._listed:
            del self._into[name]
        self._listed.clear()


class Publisher:
    """Publishes what nodes have and have free, where that is not what stands there.

    Which nodes there are, and what stands there, is learnt from the watches (`nodes`, `allocations`); of a node about
    which nothing changes nothing is read or written. Replicas go through the nodes in orders of their own, each the
    same every time, so that they share the work; who comes second finds that there is nothing to do.

    Args:
        kube: the open client.
        cluster: what is known.
        ledger: told of the records that are read and written, so that the next bind loses no race to us.
        replica: this replica's name.
        sleep: waits.
    """

    def __init__(
        self,
        kube: KubeClient,
        cluster: ClusterView,
        ledger: Ledger,
        replica: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._ledger = ledger
        self._replica = replica
        self._sleep = sleep
        self._nodes: dict[str, str] = {}  # name -> UID
        self._standing: dict[str, int] = {}  # a hash of each text that stands published
        self._packed: dict[str, tuple[NodeSnapshot, int | None]] = {}  # what was packed last, and the text's hash

    def nodes(self, handler: Handler) -> Handler:
        """Stand before the handler of Nodes."""
        return _Kept(handler, lambda obj: str(obj["metadata"]["uid"]), self._nodes)

    def allocations(self, handler: Handler) -> Handler:
        """Stand before the handler of NodeAllocations."""
        return _Kept(handler, lambda obj: hash(_standing(obj)), self._standing)

    async def run(self, every: float) -> None:
        """Publish every so many seconds until cancelled; what fails is logged and waits for the next time."""
        while True:
            await self.publish()
            await self._sleep(every)

    async def publish(self) -> int:
        """Go through all nodes once; returns how many were written."""
        written = 0
        for name in self._packed.keys() - self._nodes.keys():
            del self._packed[name]
        for name in sorted(self._nodes, key=lambda name: (zlib.crc32(f"{self._replica}/{name}".encode()), name)):
            before = self._packed.get(name)
            differs = self._differs(name)
            if self._packed.get(name) is not before:
                await asyncio.sleep(0)  # packing thousands of nodes must not hold up binds
            uid = self._nodes.get(name)
            if not differs or uid is None:
                continue
            try:
                written += await self._write(name, uid)
            except _GENERAL as error:
                _LOG.warning("what nodes have free is published no further, until the next time: %s", error)
                break
            except (KubeError, RecordError, ValueError) as error:
                _LOG.warning("what is free is not published: %s", error, extra={"node": name})
            await self._sleep(_PAUSE_S)
        return written

    def _differs(self, name: str) -> bool:
        """Whether what stands published is not what the node has, as far as is known here."""
        if self._cluster.nodes.blocked(name):
            return False
        snapshot = self._cluster.snapshot(name)
        known = self._packed.get(name)
        if known is None or known[0] is not snapshot:
            text = self._pack(name, snapshot)
            known = self._packed[name] = (snapshot, None if text is None else hash(text))
        return known[1] is not None and known[1] != self._standing.get(name, hash(_NOTHING))

    def _pack(self, name: str, snapshot: NodeSnapshot) -> str | None:
        try:
            return packed_text(snapshot)
        except PackedError as error:
            _LOG.warning("what is free cannot be published: %s", error, extra={"node": name})
            return None

    async def _write(self, name: str, uid: str) -> bool:
        """Read a node's record, and publish in it what the node has then; whether there was anything to write."""
        path = NODE_ALLOCATIONS.path(name)
        body = _empty(name, uid)
        try:
            body = await self._kube.get(path)
        except NotFound:
            pass  # nobody ever held anything there
        else:
            self._ledger.observe(read_record(body))
        text = self._pack(name, self._cluster.snapshot(name))
        if text is None or text == _standing(body):
            return False
        metadata = body["metadata"]
        metadata["annotations"] = {**(metadata.get("annotations") or {}), PACKED: text}
        try:
            if "resourceVersion" in metadata:
                metadata["managedFields"] = [{}]  # as the ledger does: nobody needs to know which field is whose
                done = await self._kube.replace(path, body)
            else:
                done = await self._kube.create(NODE_ALLOCATIONS.path(), body)
        except (Conflict, AlreadyExists):
            return False  # a bind or another replica came first: what is to be done now is found out the next time
        self._ledger.observe(read_record(done))
        return True


def _empty(name: str, uid: str) -> Raw:
    """A record of a node on which nobody holds anything; it is deleted with its Node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    metadata = {"name": name, "ownerReferences": [owner]}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": write_spec(())}


def _standing(obj: Mapping[str, Any]) -> str:
    """The text that stands published in a NodeAllocation."""
    return str((obj["metadata"].get("annotations") or {}).get(PACKED, _NOTHING))
