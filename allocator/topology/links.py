"""How strongly the devices of one node are connected.

Two devices are joined by NVLink lanes, by a common PCIe root, by a common NUMA node, by a common socket, or by nothing
but the machine. Each pair gets one integer, and a set of devices is as good as the sum over its pairs: the set "with
the maximum data transfer speed" (seed document 1, "Motivation").

Lanes come from an annotation of ours on the Device object, which Koordinator's format has no field for:

    koordgate.io/device-links: {"GPU-a": {"GPU-b": 2, "GPU-c": 1}, "GPU-b": {"GPU-a": 2}}
    koordgate.io/device-links: {"GPU-a": {"NVSwitch": 12}, "GPU-b": {"NVSwitch": 12}}

The number is one of NVLink lanes (`nvidia-smi topo -m` shows it as NV#). Lanes into the node's switches reach every
device that has some too, with the smaller number of both. Places come from the Device object's `topology`.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any, Final, NamedTuple

DEVICE_LINKS: Final = "koordgate.io/device-links"
SWITCH: Final = "NVSwitch"
MAX_DEVICES: Final = 64  # of a node whose connections are kept; of more, none are: 16 is the most that one has today
MAX_LANES: Final = 64  # of one pair; an H100 has 18
_MAX_TEXT: Final = 2**18  # bytes: what Kubernetes allows an object's annotations in all
_MAX_PROBLEMS: Final = 8

# A level outweighs all pairs of a node (2016 of 64 devices) at all levels below it: the sum of a set compares as the
# tuple (lanes, pairs on one PCIe root, pairs on one NUMA node, pairs on one socket) would. A pair on one PCIe root
# counts on its NUMA node and its socket as well.
SOCKET_WEIGHT: Final = 1
NUMA_WEIGHT: Final = 2**11
PCIE_WEIGHT: Final = 2**22
LANE_WEIGHT: Final = 2**33

Lanes = Mapping[tuple[str, str], int]


class Place(NamedTuple):
    """Where a device sits; None where the node does not say.

    Attributes:
        id: of the device.
        numa: its NUMA node.
        pcie: name of its PCIe root, unique on the node.
        socket: its processor socket.
    """

    id: str
    numa: int | None = None
    pcie: str | None = None
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class Links:
    """The connections of one node's devices: a symmetric matrix.

    Attributes:
        ids: of the devices; row and column i of the matrix is `ids[i]`.
        rows: weights, 0 on the diagonal.
        index: device id -> row; derived.
        flat: all pairs weigh the same, so that the matrix tells no set from another of its size; derived.
    """

    ids: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    index: Mapping[str, int] = field(init=False, repr=False, compare=False)
    flat: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {device: row for row, device in enumerate(self.ids)})
        weights = {self.rows[a][b] for a, b in combinations(range(len(self.ids)), 2)} if self.rows else set()
        object.__setattr__(self, "flat", len(weights) <= 1)

    def weight(self, one: str, other: str) -> int:
        """How strongly two devices are connected; 0 for a device that is not known, and for a device with itself."""
        a, b = self.index.get(one), self.index.get(other)
        return self.rows[a][b] if a is not None and b is not None and self.rows else 0

    def measure(self, ids: Iterable[str]) -> int:
        """How well a set is connected: the sum over its pairs."""
        return sum(self.weight(a, b) for a, b in combinations(ids, 2))


NO_LINKS: Final = Links((), ())


def link(places: Sequence[Place], lanes: Lanes | None = None) -> Links:
    """Weigh each pair of a node's devices.

    Args:
        places: one a device, in the node's order.
        lanes: (id, id), the smaller first -> NVLink lanes, as `read_links` gives them.

    Returns:
        The matrix; an empty one for more than `MAX_DEVICES` devices.
    """
    if len(places) > MAX_DEVICES:
        return NO_LINKS
    known = lanes or {}
    rows = tuple(tuple(0 if a.id == b.id else _weigh(a, b, known) for b in places) for a in places)
    return Links(tuple(place.id for place in places), _shared(rows))


@lru_cache(maxsize=256)
def _shared(rows: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Return one object for equal matrices: thousands of nodes are of a few makes."""
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


class _Problems(list[str]):
    """Sentences for people, a bounded number of them."""

    def tell(self, sentence: str) -> None:
        if len(self) < _MAX_PROBLEMS:
            self.append(f"annotation {DEVICE_LINKS}: {sentence}")


def read_links(text: object, ids: Collection[str]) -> tuple[dict[tuple[str, str], int], tuple[str, ...]]:
    """Read the device-links annotation.

    Args:
        text: the annotation's value.
        ids: the devices that the object lists; others are left out.

    Returns:
        (id, id), the smaller first -> lanes, none for pairs without; and what could not be read, a sentence each.
        Where two devices tell different numbers of one link, the smaller counts.
    """
    problems = _Problems()
    known = set(ids) if len(ids) <= MAX_DEVICES else set()
    stated: dict[tuple[str, str], int] = {}
    switched: dict[str, int] = {}
    for device, peers in _object(text, problems).items():
        if device not in known:
            problems.tell(f"{device[:MAX_LANES]!r} is no device of this node that can be linked; left out")
        elif not isinstance(peers, dict):
            problems.tell(f"{device!r}: not an object of peers; left out")
        else:
            _read_peers(device, peers, known, stated, switched, problems)
    lanes: dict[tuple[str, str], int] = {}
    for a, b in combinations(sorted(known), 2):
        there, back = stated.get((a, b)), stated.get((b, a))
        if there is not None and back is not None and there != back:
            problems.tell(f"{a!r} and {b!r} tell {there} and {back} lanes; the smaller counts")
        direct = min((count for count in (there, back) if count is not None), default=0)
        total = direct + min(switched.get(a, 0), switched.get(b, 0))
        if total:
            lanes[a, b] = total
    return lanes, tuple(problems)


def _object(text: object, problems: _Problems) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        problems.tell("not a text of at most 256 KiB; no links are read")
        return {}
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.tell(f"not JSON ({error}); no links are read")
        return {}
    if not isinstance(raw, dict):
        problems.tell("not an object of devices; no links are read")
        return {}
    return raw


def _read_peers(
    device: str,
    peers: Mapping[str, object],
    known: Collection[str],
    stated: dict[tuple[str, str], int],
    switched: dict[str, int],
    problems: _Problems,
) -> None:
    """Read one device's lanes, into `stated` (device, peer) and `switched`."""
    for peer, count in peers.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_LANES:
            problems.tell(f"{device!r} to {peer[:MAX_LANES]!r}: not a number of lanes from 0 to {MAX_LANES}; left out")
        elif peer == SWITCH:
            switched[device] = count
        elif peer not in known or peer == device:
            problems.tell(f"{device!r} to {peer[:MAX_LANES]!r}: no other device of this node; left out")
        else:
            stated[device, peer] = count


def write_links(lanes: Lanes, switched: Mapping[str, int] | None = None) -> str:
    """Write the annotation: lanes between two devices, told by both, and lanes of a device into the node's switches."""
    devices: dict[str, dict[str, int]] = {}
    for (a, b), count in lanes.items():
        devices.setdefault(a, {})[b] = count
        devices.setdefault(b, {})[a] = count
    for device, count in (switched or {}).items():
        devices.setdefault(device, {})[SWITCH] = count
    return json.dumps(devices, sort_keys=True, separators=(",", ":"))
