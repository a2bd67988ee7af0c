"""How Pods of one request fill node after node, where nodes and cards that are alike are filled once.

Every count is of `place()`: this module only remembers what it said. There are two ways, and both lead to the same:

- Nodes that are alike (`allocator.signature`) are filled alike, on the devices at the same places.
- A Pod that asks for one device, and for nothing that depends on other devices, fits on a node as often as on each of
  its devices alone, in sum. Devices are of few states even where no two nodes are alike.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from allocator.amounts import CPU, PODS, Amounts
from allocator.budget import Budget
from allocator.place import MAX_STEPS, Placement, numa_policy, place
from allocator.signature import depends_on_names, signature_of
from allocator.vocabulary.asks import NO_WISHES, PodRequest
from allocator.vocabulary.cpunode import NumaPolicy
from allocator.vocabulary.device import UNWIRED, Device
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot, fullness

MAX_DECISIONS: Final = 100_000
"""Decisions of a whole report: some 30 seconds. Nodes and cards that are alike count once."""
MAX_COPIES: Final = 2048  # on one node: a hundred small shares on each of twenty cards
MAX_TIMES: Final = 2**31  # more Pods than a node has
_OF_NODE: Final = (CPU, "memory", PODS)


@dataclass(frozen=True, slots=True)
class SamplePod:
    """A Pod that looks for a node: its request, what it asks of the node besides, and where it may go (None: anywhere).

    `asks` counts all that it requests of a node in sum, by resource, as kube-scheduler does.
    """

    request: PodRequest
    asks: Amounts = field(default_factory=dict)
    may: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node, what it has for Pods beside its devices, and what its Pods request of that in sum.

    Amounts are thousandths of a CPU, bytes, units. Nothing new may land on a closed node.
    """

    node: NodeSnapshot
    has: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    closed: bool = False

    def free(self, name: str) -> int | None:
        """What no Pod requests of a resource; None if the node does not state it, so that there is enough of it."""
        return max(self.has[name] - self.used.get(name, 0), 0) if name in self.has else None

    def lacks(self, asks: Amounts, times: int = 1) -> str:
        """Name a resource of which too little is left for so many Pods, the first by name; "" if there is enough.

        A node that states neither CPU, memory nor Pods has enough of them, as for the preference `fragmentation`.
        """
        left = self._left(asks)
        return min((name for name, asked in asks.items() if name in left and times * asked > left[name]), default="")

    def times(self, asks: Amounts) -> int:
        """How many Pods that request so much it has enough for, its devices left out; `MAX_TIMES` if not limited."""
        counts = (left // asks[name] for name, left in self._left(asks).items())
        return min(max(min(counts, default=MAX_TIMES), 0), MAX_TIMES)

    def _left(self, asks: Amounts) -> dict[str, int]:
        """What is left of each resource that is asked for and limited."""
        unstated = () if any(name in self.has for name in _OF_NODE) else _OF_NODE
        limited = (name for name, asked in asks.items() if asked and name not in unstated)
        return {name: self.has.get(name, 0) - self.used.get(name, 0) for name in limited}

    def open_to(self, pod: SamplePod) -> bool:
        """Whether a Pod may land here at all."""
        return not self.closed and (pod.may is None or self.node.name in pod.may)


class DeviceTake(NamedTuple):
    """What one more Pod takes, in points for each model: percent of each resource, added (`allocator.fragmentation`).

    `model` is that of its first device whose model is known; "" if it is known of none.
    """

    model: str
    points: tuple[tuple[str, int], ...]


class Fill(NamedTuple):
    """What Pods take of a node, in the order in which they are placed; if the search was ended, more might fit."""

    takes: tuple[DeviceTake, ...]
    ended: bool = False


NOTHING_FITS: Final = Fill(())


class Filling:
    """How Pods of one request fill nodes; what was found of a node holds for all that are alike.

    Decisions are spent of the budget.
    """

    def __init__(self, wanted: SamplePod, decisions: Budget) -> None:
        self._wanted = wanted
        self._decisions = decisions
        self._kinds = {kind.name: kind for kind in wanted.request.types()}
        self._known: dict[Hashable, Fill] = {}
        self._by_device: dict[Hashable, Fill] = {}

    def of(self, node: NodeSnapshot) -> Fill:
        """How they fill a node, if CPU and memory of the node suffice for all of them."""
        there = self._apart(node)
        if there:
            return self._in_sum(node, there)
        if depends_on_names(self._wanted.request, node):
            return self._anew(node)
        return self._remembered(self._known, signature_of(node), node)

    def count(self, room: NodeRoom) -> int:
        """How many fit on a node, one after another; with what they request of CPU and memory."""
        if not room.open_to(self._wanted):
            return 0
        return min(len(self.of(room.node).takes), room.times(self._wanted.asks))

    def _remembered(self, known: dict[Hashable, Fill], key: Hashable, node: NodeSnapshot) -> Fill:
        found = known.get(key)
        if found is None:
            found = self._anew(node)
            if not self._decisions.short:
                known[key] = found
        return found

    def _anew(self, node: NodeSnapshot) -> Fill:
        devices, gang = {device.id: device for device in node.devices}, self._wanted.request.wishes.gang
        takes: list[DeviceTake] = []
        while len(takes) < MAX_COPIES and self._decisions.covers(1):
            outcome = place(self._wanted.request, node, None, Budget(MAX_STEPS))
            if not isinstance(outcome, Placement):
                break
            takes.append(self._take(outcome.shares, devices))
            uid = f"copy {len(takes)}"
            node = node.with_holding(Holding(uid, "", uid, 0, outcome.shares, outcome.cpus, gang))
        return Fill(tuple(takes), self._decisions.short or len(takes) >= MAX_COPIES)

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
            used = frozenset(node.used.get(device.id, {}).items())
            free = (node.is_usable(device), device.id in node.unshared)
            key = (device.model, device.vendor, capacity, used, *free)
            fill = self._by_device.get(key)
            if fill is None:
                fill = self._remembered(self._by_device, key, replace(node, devices=(device,), wiring=UNWIRED))
            takes += fill.takes
            ended = ended or fill.ended
        return Fill(takes[:MAX_COPIES], ended or len(takes) >= MAX_COPIES)


def _points(share: Share, device: Device, kind: DeviceType) -> int:
    has = ((share.amounts.get(tail, 0), device.capacity.get(tail, 0)) for tail in fullness(kind))
    return sum(FULL * taken // total for taken, total in has if total)
