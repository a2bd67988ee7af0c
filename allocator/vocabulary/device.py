"""A device of a node, and how the devices of a node are connected: links, and the partitions of a switched fabric."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

from allocator.vocabulary.names import GPU_MEMORY, NVIDIA

RATIO: Final = "-ratio"  # added to the name of an amount of bytes: the same amount in percent of a device

_PCI_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """A virtual function of a device (SR-IOV)."""

    minor: int | None  # its number; None if the node does not report one
    bus_id: str  # its PCI address, which identifies it on the node
    # of its group on the Device object, for selectors
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its node's Device object describes it."""

    type: str  # "gpu",
    id: str  # its permanent identity: for a GPU, its UUID. Minors can change, ids do not.
    minor: int  # its current number on the node
    healthy: bool  # whether anything new may land on it
    capacity: Mapping[str, int]  # resource tail -> amount, in the resource's unit (percent, bytes, units)
    numa_node: int | None = None  # its NUMA node; None if the node does not report it
    pcie: str | None = None  # name of its PCIe root; None if the node does not report it
    model: str = ""  # the product's name; "" if unknown
    labels: Mapping[str, str] = field(default_factory=dict)  # of the device, for selectors
    why_not: str = ""  # why nothing new may land on it, for people; "" if anything may, or if no reason is given
    functions: tuple[VirtualFunction, ...] = ()  # its virtual functions, in the order of their bus ids
    vendor: str = ""  # who made it, in small letters; "" if unknown
    cordoned: bool = False  # an administrator has taken it out of service; it then counts as unhealthy
    bus: str = ""  # its PCI address, in small letters; "" if the node does not report it
    reserved: int = 0  # bytes of its memory, beside the capacity, that its driver keeps
    # the tails of its capacity that state its memory, in bytes and in percent; None for none. Derived.
    memory: tuple[str, str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pairs = ((tail, tail + RATIO) for tail in self.capacity if tail + RATIO in self.capacity)
        object.__setattr__(self, "memory", next(pairs, None))

    def is_of(self, vendor: str) -> bool:
        """Whether a vendor made it; a device of an unknown vendor counts as NVIDIA's, as all did before."""
        return (self.vendor or NVIDIA) == vendor

    def has_at_most(self, tail: str) -> int:
        """How much of a resource can be held without that it was given twice.

        More than the capacity: others, and koordgate before it knew of the reserved memory, give all of a card's.
        """
        return self.capacity.get(tail, 0) + (self.reserved if tail == GPU_MEMORY else 0)

    @property
    def order(self) -> tuple[int, str]:
        """The stable order of a node's devices: minor, then id."""
        return (self.minor, self.id)


def pci_address(text: str) -> str | None:
    """Spell a PCI address as sysfs does: `00000000:3B:00.0` becomes `0000:3b:00.0`; None if it is not one."""
    match = _PCI_ADDRESS.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


SWITCH: Final = "NVSwitch"


MAX_DEVICES: Final = 64  # no connections are kept for a node with more; today's largest nodes have 16


MAX_LANES: Final = 64  # per pair; an H100 has 18


# A level outweighs all pairs of a node (2016 of 64 devices) at all levels below it: the sum of a set compares as the
# tuple (lanes, pairs on one PCIe root, pairs on one NUMA node, pairs on one socket) would. A pair on one PCIe root
# counts on its NUMA node and its socket as well.
SOCKET_WEIGHT: Final = 1


NUMA_WEIGHT: Final = 2**11


PCIE_WEIGHT: Final = 2**22


LANE_WEIGHT: Final = 2**33


Lanes = Mapping[tuple[str, str], int]


class Place(NamedTuple):
    """Where a device is; None if the node does not report it."""

    id: str
    numa: int | None = None
    pcie: str | None = None  # name of its PCIe root, unique on the node
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """The connections of one node's devices: a symmetric matrix."""

    ids: tuple[str, ...]  # of the devices; row and column i of the matrix is `ids[i]`
    rows: tuple[tuple[int, ...], ...]  # weights, 0 on the diagonal
    index: Mapping[str, int] = field(init=False, repr=False, compare=False)  # device id -> row; derived
    # all pairs have the same weight, so that all sets of one size are equally well connected; derived
    flat: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {device: row for row, device in enumerate(self.ids)})
        weights = {self.rows[a][b] for a, b in combinations(range(len(self.ids)), 2)}
        object.__setattr__(self, "flat", len(weights) <= 1)

    def weight(self, one: str, other: str) -> int:
        """How strongly two devices are connected; 0 if one is unknown, and for a device with itself."""
        a, b = self.index.get(one), self.index.get(other)
        return self.rows[a][b] if a is not None and b is not None else 0

    def measure(self, ids: Iterable[str]) -> int:
        """How well a set is connected: the sum of the weights of its pairs."""
        return sum(self.weight(a, b) for a, b in combinations(ids, 2))


NO_LINKS: Final = Links((), ())


def link(places: Sequence[Place], lanes: Lanes | None = None) -> Links:
    """Weigh each pair of a node's devices.

    `lanes`: (id, id), the smaller first -> NVLink lanes, as `read_links` gives them. Returns the matrix; an empty one
    for more than `MAX_DEVICES` devices.
    """
    if len(places) > MAX_DEVICES:
        return NO_LINKS
    known = lanes or {}
    rows = tuple(tuple(0 if a.id == b.id else _weigh(a, b, known) for b in places) for a in places)
    return Links(tuple(place.id for place in places), _shared(rows))


@lru_cache(maxsize=256)
def _shared(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return the same object for equal matrices: thousands of nodes are of a few models."""
    return rows


def _weigh(a: Place, b: Place, lanes: Lanes) -> int:
    weight = LANE_WEIGHT * lanes.get((min(a.id, b.id), max(a.id, b.id)), 0)
    if a.pcie is not None and a.pcie == b.pcie:
        weight += PCIE_WEIGHT
    if a.numa is not None and a.numa == b.numa:
        weight += NUMA_WEIGHT
    if a.socket is not None and a.socket == b.socket:
        weight += SOCKET_WEIGHT
    return weight


class PartitionPolicy(StrEnum):
    """Whether whole GPUs of a node may be given in sets that are not a partition."""

    HONOR = "Honor"
    PREFER = "Prefer"


class Partition(NamedTuple):
    """One set of GPUs."""

    minors: tuple[int, ...]  # its GPUs, ascending
    score: int = 0  # koordinator's allocationScore; higher is preferred
    bandwidth: int | None = None  # of the ring through its GPUs, in bytes; None if the table does not state it
    link: str = ""  # what connects them, such as "NVLink"; "" if the table does not state it


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """All partitions of a node."""

    partitions: tuple[Partition, ...] = ()  # each set of minors once; of equally good ones, the earlier is preferred
    # number of GPUs -> partitions of that size; derived
    sizes: Mapping[int, tuple[Partition, ...]] = field(init=False, repr=False, compare=False)
    # number of GPUs -> partitions of that size with the highest score; derived
    best: Mapping[int, tuple[Partition, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes: dict[int, list[Partition]] = {}
        for partition in self.partitions:
            sizes.setdefault(len(partition.minors), []).append(partition)
        object.__setattr__(self, "sizes", {size: tuple(sizes[size]) for size in sorted(sizes)})
        best = {size: max(partition.score for partition in listed) for size, listed in sizes.items()}
        object.__setattr__(
            self, "best", {size: tuple(p for p in self.sizes[size] if p.score == best[size]) for size in self.sizes}
        )


@dataclass(frozen=True, slots=True)
class Board:
    """The partition table of nodes with boards of certain models, unless the node states one."""

    models: tuple[str, ...]  # as labels spell them, or their first words: "H100" also matches "H100-80GB-HBM3"
    table: PartitionTable  # of such a node
    vendors: tuple[str, ...] = ()  # as labels spell them; a node that states no vendor matches too. Empty: any.
    unlike: frozenset[str] = frozenset()  # words in a model's name that exclude it: the same chips on separate cards

    def fits(self, vendor: str, model: str) -> bool:
        """Return whether a node's labels name such a board."""
        if vendor and self.vendors and vendor not in self.vendors:
            return False
        named = any(model == one or model.startswith(f"{one}-") for one in self.models)
        return named and self.unlike.isdisjoint(model.split("-"))


_HALVES: Final = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 1, 2, 3), (4, 5, 6, 7)), (tuple(range(8)),)
HOPPER: Final = Board(
    ("H100", "H800", "H20"),
    PartitionTable(
        tuple(
            Partition(minors, 1, None, "NVLink")
            for sets in (tuple((minor,) for minor in range(8)), *_HALVES)
            for minors in sets
        )
    ),
    vendors=("nvidia",),
    unlike=frozenset({"PCIe", "NVL"}),
)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a Device object states about all its devices."""

    links: Links = NO_LINKS  # how strongly any two devices are connected
    # the sets in which whole devices of partitioned types may be given; None if there is no table
    partitions: PartitionTable | None = None
    # whether only these sets may be given (policy Honor), regardless of the Pod's request
    honour_partitions: bool = False
    # (type's name, table) for types whose boards have another table than `partitions`
    others: tuple[tuple[str, PartitionTable | None], ...] = ()

    def table(self, kind: str) -> PartitionTable | None:
        """The partition table of a type's devices."""
        for name, table in self.others:
            if name == kind:
                return table
        return self.partitions


UNWIRED: Final = Wiring()
