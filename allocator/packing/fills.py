"""How Pods of one request fill node after node, where nodes and cards that are alike are filled once.

Every count is of `place()`: this module only remembers what it said. There are two ways, and both lead to the same:

- Nodes that are alike (`allocator.alike`) are filled alike, on the devices at the same places.
- A Pod that asks for one device, and for nothing that depends on other devices, fits on a node as often as on each of
  its devices alone, in sum. Devices are of few states even where no two nodes are alike.
"""

from collections.abc import Hashable
from dataclasses import replace
from typing import Final, NamedTuple

from allocator.alike import depends_on_names, likeness
from allocator.budget import Budget
from allocator.packing.copies import MOST_COPIES, FilledNode, copies, filled
from allocator.packing.fleet import Guest, NodeRoom
from allocator.place import numa_policy
from allocator.vocabulary.asks import NO_WISHES
from allocator.vocabulary.cpupolicy import NumaPolicy
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.node import NodeSnapshot, fullness
from allocator.vocabulary.wiring import UNWIRED

MOST_DECISIONS: Final = 100_000
"""Decisions of a whole report or plan: some 30 seconds. Nodes and cards that are alike count once."""


class DeviceTake(NamedTuple):
    """What one more Pod takes.

    Attributes:
        model: of its first device whose model is known; "" if it is known of none.
        points: model -> percent of each resource of its devices of this model, added, as in `allocator.fragmentation`.
    """

    model: str
    points: tuple[tuple[str, int], ...]


class Fill(NamedTuple):
    """How Pods fill the devices and CPUs of a node.

    Attributes:
        takes: what each takes, in the order in which they are placed.
        ended: whether more might fit: the search was ended.
    """

    takes: tuple[DeviceTake, ...]
    ended: bool = False


NOTHING_FITS: Final = Fill(())


class Fills:
    """How Pods of one request fill nodes; what was found of a node holds for all that are alike.

    Args:
        wanted: a Pod of the request.
        decisions: how many may be made; they are spent.
    """

    def __init__(self, wanted: Guest, decisions: Budget) -> None:
        self._wanted = wanted
        self._decisions = decisions
        self._kinds = {kind.name: kind for kind in wanted.request.types()}
        self._by_node: dict[Hashable, Fill] = {}
        self._by_device: dict[Hashable, Fill] = {}

    def of(self, node: NodeSnapshot) -> Fill:
        """How they fill a node, if CPU and memory of the node suffice for all of them."""
        there = self._apart(node)
        if there:
            return self._in_sum(node, there)
        if depends_on_names(self._wanted.request, node):
            return self._anew(node)
        return self._remembered(self._by_node, likeness(node), node)

    def count(self, room: NodeRoom) -> int:
        """How many fit on a node, one after another; with what they request of CPU and memory."""
        if not self._open(room):
            return 0
        return min(len(self.of(room.node).takes), room.times(self._wanted.asks))

    def full(self, room: NodeRoom) -> FilledNode:
        """The node with as many of them on it as fit."""
        return filled(room, self._wanted, self._decisions) if self.count(room) else FilledNode(0, room)

    def _open(self, room: NodeRoom) -> bool:
        may = self._wanted.may
        return not room.closed and (may is None or room.node.name in may)

    def _remembered(self, known: dict[Hashable, Fill], key: Hashable, node: NodeSnapshot) -> Fill:
        found = known.get(key)
        if found is None:
            found = self._anew(node)
            if not self._decisions.short:
                known[key] = found
        return found

    def _anew(self, node: NodeSnapshot) -> Fill:
        devices = {device.id: device for device in node.devices}
        takes = [self._take(one.shares, devices) for one in copies(NodeRoom(node), self._wanted, self._decisions)]
        return Fill(tuple(takes), self._decisions.short or len(takes) >= MOST_COPIES)

    def _take(self, shares: tuple[Share, ...], devices: dict[str, Device]) -> DeviceTake:
        points: dict[str, int] = {}
        for share in shares:
            device = devices[share.id]
            points[device.model] = points.get(device.model, 0) + _points(share, device, self._kinds[share.type])
        return DeviceTake(next(filter(None, points), ""), tuple(points.items()))

    def _apart(self, node: NodeSnapshot) -> list[Device]:
        """The devices for which each Pod asks one at a time, whatever of the others is free; [] if it does not."""
        request = self._wanted.request
        if len(request.containers) != 1 or request.cpu is not None or request.wishes != NO_WISHES:
            return []
        ask = request.containers[0].ask
        if ask.count != 1 or ask.every or node.alone or node.wiring.honour_partitions:
            return []
        if numa_policy(request, node.cpu) is not NumaPolicy.NONE:
            return []
        there = [device for device in node.devices if device.type == ask.type.name]
        # One after another, Pods take devices in an order that is not known here. It must not matter which comes first.
        same = all(one.model == there[0].model and one.capacity == there[0].capacity for one in there)
        return there if same else []

    def _in_sum(self, node: NodeSnapshot, there: list[Device]) -> Fill:
        takes: tuple[DeviceTake, ...] = ()
        ended = False
        capacity = frozenset(there[0].capacity.items())
        for device in there:
            used = node.used.get(device.id)
            key = (
                device.model,
                device.vendor,
                capacity,
                None if used is None else frozenset(used.items()),
                node.is_usable(device),
                device.id in node.unshared,
            )
            fill = self._by_device.get(key)
            if fill is None:
                fill = self._remembered(self._by_device, key, replace(node, devices=(device,), wiring=UNWIRED))
            takes += fill.takes
            ended = ended or fill.ended
        return Fill(takes[:MOST_COPIES], ended or len(takes) >= MOST_COPIES)


def _points(share: Share, device: Device, kind: DeviceType) -> int:
    has = ((share.amounts.get(tail, 0), device.capacity.get(tail, 0)) for tail in fullness(kind))
    return sum(FULL * taken // total for taken, total in has if total)
