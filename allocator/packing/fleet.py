"""All nodes of a cluster as one value that can be tried out: where a Pod would go, and what is left after that.

A Pod goes where a replica would send it: the index orders the nodes by the cluster's preference, and `place()` decides.
The sums of CPU, memory and other resources count as kube-scheduler counts them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from allocator.amounts import CPU, PODS, Amounts
from allocator.budget import Budget
from allocator.index.cluster import ClusterIndex
from allocator.index.packed import PackedError
from allocator.index.rows import load_row, query_of, query_with_load, type_rows
from allocator.index.search import NodeSearch
from allocator.index.table import RowError
from allocator.place import MOST_STEPS, Placement, place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.mix import NO_MIX, Mix
from allocator.vocabulary.node import NodeSnapshot, fullness, size_class
from allocator.vocabulary.preference import DeviceOrder, Preference

MOST_JUDGED: Final = 256  # nodes that `place()` judges for one Pod; the index lets few through that it refuses
MOST_TIMES: Final = 2**31  # more Pods than a node has
_OF_NODE: Final = (CPU, "memory", PODS)


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node, and what it has for Pods beside its devices.

    Attributes:
        node: its devices, and who holds them.
        has: what it has for all Pods, by resource: thousandths of a CPU, bytes, units.
        used: what its Pods request in sum, likewise.
        closed: why nothing new may land on it, in a few words; "" if it may.
    """

    node: NodeSnapshot
    has: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    closed: str = ""

    def free(self, name: str) -> int | None:
        """What no Pod requests of a resource; None if the node does not state it, so that there is enough of it."""
        return max(self.has[name] - self.used.get(name, 0), 0) if name in self.has else None

    def lacks(self, asks: Amounts) -> str:
        """Name a resource of which too little is left for a Pod, the first by name; "" if there is enough.

        A node that states neither CPU, memory nor Pods has enough of them, as for the preference `fragmentation`.
        """
        unstated, has, used = self._unstated(), self.has, self.used
        short = (
            name
            for name, asked in asks.items()
            if asked and asked > has.get(name, 0) - used.get(name, 0) and name not in unstated
        )
        return min(short, default="")

    def _unstated(self) -> tuple[str, ...]:
        return () if any(name in self.has for name in _OF_NODE) else _OF_NODE

    def holding(self, holding: Holding, asks: Amounts) -> "NodeRoom":
        """The node with one more Pod on it."""
        return replace(self, node=self.node.with_holding(holding), used=_sum(self.used, asks, 1))

    def times(self, asks: Amounts) -> int:
        """How many Pods that request so much it has enough for, its devices left out; `MOST_TIMES` if not limited."""
        unstated, has, used = self._unstated(), self.has, self.used
        counts = (
            (has.get(name, 0) - used.get(name, 0)) // asked
            for name, asked in asks.items()
            if asked and name not in unstated
        )
        return min(max(min(counts, default=MOST_TIMES), 0), MOST_TIMES)

    def requesting(self, asks: Amounts, times: int = 1) -> "NodeRoom":
        """The node on which so many Pods request so much more each."""
        return replace(self, used=_sum(self.used, asks, times))

    def without(self, uid: str, asks: Amounts) -> "NodeRoom":
        """The node without one of its Pods."""
        return replace(self, node=self.node.without([uid]), used=_sum(self.used, asks, -1))


def _sum(used: Amounts, asks: Amounts, times: int) -> Amounts:
    return {**used, **{name: used.get(name, 0) + times * amount for name, amount in asks.items()}}


@dataclass(frozen=True, slots=True)
class Guest:
    """A Pod that looks for a node.

    Attributes:
        uid: its identity.
        namespace: where it lives.
        name: its name there.
        request: for devices and CPUs.
        asks: all that it requests of a node in sum, by resource, as kube-scheduler counts it.
        may: names of the nodes that its selection and the nodes' taints and cordons allow; None for all.
        shuns: names of the nodes that come after all others for it, because of soft taints.
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    asks: Amounts = field(default_factory=dict)
    may: frozenset[str] | None = None
    shuns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a cluster orders nodes: its settings.

    Attributes:
        types: the device types.
        preference: how nodes are compared.
        order: of devices, for Pods that name none.
        counted: the classes that count in the patent's preferences; empty for all.
        mix: the typical requests.
    """

    types: DeviceTypes
    preference: Preference = Preference.FRAGMENTATION
    order: str = DeviceOrder.SMALLEST
    counted: Sequence[str] = ()
    mix: Mix = NO_MIX


class Fleet:
    """All nodes. They are changed one at a time; a change is undone by putting back what was there.

    Args:
        rooms: the nodes.
        compared: how they are ordered.
    """

    def __init__(self, rooms: Iterable[NodeRoom], compared: Comparison) -> None:
        kinds = compared.types.types
        self.compared = compared
        self._rooms: dict[str, NodeRoom] = {}
        self._unindexed: set[str] = set()
        self._partitioned = frozenset(kind.name for kind in kinds if kind.partitioned)
        self._index = ClusterIndex(
            {kind.name: fullness(kind) for kind in kinds},
            {kind.name: size_class(kind) for kind in kinds},
            compared.counted,
        )
        for room in rooms:
            self.put(room)
        if compared.preference is Preference.FRAGMENTATION:
            self._index.typify(compared.mix)

    @property
    def rooms(self) -> Mapping[str, NodeRoom]:
        """The nodes as they are now."""
        return self._rooms

    def put(self, room: NodeRoom) -> None:
        """Take in a node as it is now."""
        name, way = room.node.name, self.compared.preference
        self._rooms[name] = room
        load = [] if way is Preference.PACKING else [load_row(room.has, room.used)]
        self._unindexed.discard(name)
        try:
            told = way is Preference.FRAGMENTATION
            self._index.put(name, [*type_rows(room.node, told=told, partitioned=self._partitioned), *load])
        except (RowError, PackedError):  # `place()` alone decides about it
            self._index.put(name, load)
            self._unindexed.add(name)

    def goes_to(self, guest: Guest) -> Placement | None:
        """Where a Pod would be sent now, and what it would get there; None if no node is found.

        It counts as a Pod without a gang that prefers no node.
        """
        way, request = self.compared.preference, guest.request
        names = [
            name
            for name, room in self._rooms.items()
            if not room.closed and (guest.may is None or name in guest.may) and not room.lacks(guest.asks)
        ]
        query = query_of(request) if way is Preference.PACKING else query_with_load(request, guest.asks.items())
        search = NodeSearch(self._index, query, names, self._unindexed)
        smallest = (request.wishes.order or self.compared.order) == DeviceOrder.SMALLEST
        order: Iterable[str] = search.best_first(way, {}, smallest=smallest)
        if guest.shuns:
            order = sorted(order, key=guest.shuns.__contains__)  # stable
        for judged, name in enumerate(order):
            outcome = place(request, self._rooms[name].node, None, Budget(MOST_STEPS))
            if isinstance(outcome, Placement):
                return outcome
            if judged >= MOST_JUDGED:
                break
        return None


def held_by(guest: Guest, placed: Placement) -> Holding:
    """What a Pod holds where it was placed."""
    gang = guest.request.wishes.gang
    return Holding(guest.uid, guest.namespace, guest.name, 0, placed.shares, placed.cpus, gang)
