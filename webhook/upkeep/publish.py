"""The total and free amounts of every node, published in the packed form of the patent (paragraph 114).

They are stored beside the holdings in the node's record of the ledger. Every node can have a record, also one with
only CPUs and software classes, and only koordgate writes it. (On a Device object, koordlet would remove them.)
Every write of the ledger carries them, packed from the holdings that are written. A timer has the ledger write them if
something else about the node changed.
"""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from allocator.index.packed import Packed, PackedError, write_packed
from allocator.index.rows import packed_classes
from allocator.vocabulary.cpunode import CpuNode
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.nodeallocation import RecordError
from koordgate.breaks import Breaks
from koordgate.kube.errors import Forbidden, KubeError, TooManyRequests, Unauthorized, Unreachable
from koordgate.kube.watch import Handler
from webhook.ledger.ledger import BusyError, Ledger
from webhook.view.cluster import ClusterView, SeenObjects

Raw = dict[str, Any]

CPU: Final = "cpu"  # the class of CPUs: an amount for each NUMA node, ascending
_LOG: Final = logging.getLogger(__name__)
_PAUSE_S: Final = 0.05  # after each write: 20 a second, one at a time, so that binds hardly wait for them
_DEADLINE_S: Final = 10.0
_NOTHING: Final = "{}"  # a node that has nothing needs no record
_GENERAL: Final = (Unreachable, TooManyRequests, Unauthorized, Forbidden)  # a failure of one node is a failure of all


def packed_text(node: NodeSnapshot) -> str:
    """Pack what a node has and has free, by class, as `allocator.index.packed` writes it.

    A class of devices is named by its resource's tail and lists the node's devices of the type by minor. Nothing is
    free of a device that is unhealthy, cordoned, or given away by the kubelet. Only CPUs that Pods may have exclusively
    are counted.

    Raises:
        PackedError: the node has more than the format holds.
    """
    classes: dict[str, Packed] = {}
    if node.cpu is not None:
        classes[CPU] = _cpus(node, node.cpu)
    for kind, devices in groupby(node.devices, attrgetter("type")):
        for one in packed_classes(list(devices), node):
            name = f"{kind}/{one.name}" if one.name in classes else one.name
            classes[name] = Packed(name, one.bits, one.count, one.total, one.free)
    return write_packed(classes.values())


def published(seen: SeenObjects, node: str, holdings: Mapping[str, Holding]) -> str:
    """What the ledger stores beside these holdings of a node; empty where they cannot be packed."""
    try:
        return packed_text(seen.snapshot_on(node, holdings)) if seen.nodes.knows(node) else ""
    except PackedError:
        return ""  # `Publisher` logs why


def _cpus(node: NodeSnapshot, cpu: CpuNode) -> Packed:
    by_numa = [cpus for _, cpus in sorted(cpu.topology.nodes.items())]
    own, free = node.own_cpus, node.free_cpus
    return Packed.of(
        CPU, [(cpus & own).bit_count() for cpus in by_numa], [(cpus & free).bit_count() for cpus in by_numa]
    )


class _Names:
    """A Reflector's handler that also keeps the names of the objects there are.

    Args:
        handler: the wrapped handler, which is called first.
        names: kept up to date.
    """

    def __init__(self, handler: Handler, names: set[str]) -> None:
        self._handler = handler
        self._names = names
        self._listed: set[str] = set()

    def begin_list(self) -> None:
        """A list begins."""
        self._listed.clear()
        self._handler.begin_list()

    def put(self, obj: Raw) -> None:
        """An object was listed, created or changed."""
        self._handler.put(obj)
        name = obj["metadata"]["name"]
        self._names.add(name)
        self._listed.add(name)

    def drop(self, obj: Raw) -> None:
        """An object was deleted."""
        self._handler.drop(obj)
        self._names.discard(obj["metadata"]["name"])

    def end_list(self) -> None:
        """The list is complete: what it did not name is gone."""
        self._handler.end_list()
        self._names.intersection_update(self._listed)
        self._listed.clear()


class Publisher:
    """Publishes total and free amounts of nodes if the published text differs; discards the records of gone nodes.

    A watch (`nodes`) reports which nodes exist, and the ledger what is published; a node without a change causes no
    request. Each replica visits the nodes in an order of its own, the same every time, so that replicas share the work:
    the second one at a node finds nothing to do.

    Args:
        cluster: what is known of nodes.
        ledger: writes.
        replica: this replica's name.
        sleep: waits.
    """

    def __init__(
        self,
        cluster: ClusterView,
        ledger: Ledger,
        replica: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._replica = replica
        self._sleep = sleep
        self._nodes: set[str] = set()
        self._packed: dict[str, tuple[NodeSnapshot, int | None]] = {}  # what was packed last, and the text's hash

    def nodes(self, handler: Handler) -> Handler:
        """Stand before the handler of Nodes."""
        return _Names(handler, self._nodes)

    async def run(self, every: float) -> None:
        """Publish every `every` seconds until cancelled; a failure is logged, and tried again in the next round."""
        while True:
            await self.publish()
            await self._sleep(every)

    async def publish(self) -> int:
        """Go through all nodes once; returns how many records were written or deleted.

        Others run between two nodes. A node is compared in one step as it is then, and the ledger packs it again when
        it writes. What fails about one node is logged, and the others follow; a failure of all ends the round.
        """
        done = 0
        for name in self._packed.keys() - self._nodes:
            del self._packed[name]
        breaks = Breaks()
        for name in self._in_order(self._nodes):
            if breaks.due():
                await breaks.take()
            try:
                if name not in self._nodes or not self._differs(name):
                    continue
                done += await self._ledger.publish(name, _DEADLINE_S)
            except _GENERAL as error:
                _LOG.warning("publishing what nodes have free stops until the next round: %s", error)
                return done
            except (KubeError, RecordError, BusyError, ValueError) as error:
                _LOG.warning("what is free is not published: %s", error, extra={"node": name})
            except Exception:  # noqa: BLE001 what one node is like must not hide the others
                _LOG.exception("a bug while what is free was published", extra={"node": name})
            await self._sleep(_PAUSE_S)
        return done + await self._discard()

    async def _discard(self) -> int:
        """Delete the records of nodes that are gone, where nobody holds anything on them."""
        done = 0
        left = [record.node for record in self._ledger.records() if not record.holdings]
        for name in self._in_order(set(left) - self._nodes):
            try:
                done += await self._ledger.discard(name, _DEADLINE_S)
            except KubeError as error:
                _LOG.warning("the empty record of a node that is gone stays: %s", error, extra={"node": name})
                if isinstance(error, _GENERAL):
                    break
            await self._sleep(_PAUSE_S)
        return done

    def _in_order(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: (zlib.crc32(f"{self._replica}/{name}".encode()), name))

    def _differs(self, name: str) -> bool:
        """Whether the published text is not what the node has and has free, as far as is known here."""
        if self._cluster.nodes.blocked(name):
            return False
        snapshot = self._cluster.snapshot(name)
        known = self._packed.get(name)
        if known is None or known[0] is not snapshot:
            known = self._packed[name] = (snapshot, self._pack(name, snapshot))
        return known[1] is not None and known[1] != hash(self._ledger.record(name).published or _NOTHING)

    def _pack(self, name: str, snapshot: NodeSnapshot) -> int | None:
        try:
            return hash(packed_text(snapshot))
        except PackedError as error:
            _LOG.warning("what is free cannot be published: %s", error, extra={"node": name})
            return None
