"""How strongly the devices of one node are connected."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Final, NamedTuple

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
