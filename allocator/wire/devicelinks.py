"""How strongly the devices of one node are connected.

Two devices are joined by NVLink lanes, by a common PCIe root, by a common NUMA node, by a common socket, or by nothing
but the machine. Each pair gets one integer, and a set of devices is as good as the sum over its pairs: the set "with
the maximum data transfer speed" (device proposal, "Motivation").

Koordinator's format has no field for lanes. They come from an annotation of our own on the Device object:

    koordgate.io/device-links: {"GPU-a": {"GPU-b": 2, "GPU-c": 1}, "GPU-b": {"GPU-a": 2}}
    koordgate.io/device-links: {"GPU-a": {"NVSwitch": 12}, "GPU-b": {"NVSwitch": 12}}

The number counts NVLink lanes (`nvidia-smi topo -m` shows it as NV#). Lanes into the node's switches connect a device
to every other device with such lanes; the smaller number counts. Places come from the Device object's `topology`.
"""

import json
from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any, Final

from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.links import MAX_DEVICES, MAX_LANES, SWITCH, Lanes
from allocator.wire.values import MOST_OF_NODE, UNREADABLE, parse_json

DEVICE_LINKS: Final = "koordgate.io/device-links"
_MAX_PROBLEMS: Final = 8


class _Problems(list[str]):
    """Sentences for people, up to a bounded number."""

    def note(self, sentence: str) -> None:
        if len(self) < _MAX_PROBLEMS:
            self.append(f"annotation {DEVICE_LINKS}: {sentence}")


def read_links(text: object, ids: Collection[str]) -> tuple[dict[tuple[str, str], int], tuple[str, ...]]:
    """Read the device-links annotation.

    `ids`: the devices that the object lists; others are left out. Returns (id, id), the smaller first -> lanes, without
    pairs that have none; and one sentence for each entry that could not be read. If two devices state different numbers
    for their link, the smaller counts.
    """
    problems = _Problems()
    known = set(ids) if len(ids) <= MAX_DEVICES else set()
    stated: dict[tuple[str, str], int] = {}
    switched: dict[str, int] = {}
    for device, peers in _object(text, problems).items():
        if device not in known:
            problems.note(f"{excerpt(device)!r} is not a device of this node that can be linked; left out")
        elif not isinstance(peers, dict):
            problems.note(f"{device!r}: not an object of peers; left out")
        else:
            _read_peers(device, peers, known, stated, switched, problems)
    lanes: dict[tuple[str, str], int] = {}
    for a, b in combinations(sorted(known), 2):
        there, back = stated.get((a, b)), stated.get((b, a))
        if there is not None and back is not None and there != back:
            problems.note(f"{a!r} and {b!r} state {there} and {back} lanes; the smaller counts")
        direct = min((count for count in (there, back) if count is not None), default=0)
        total = direct + min(switched.get(a, 0), switched.get(b, 0))
        if total:
            lanes[a, b] = total
    return lanes, tuple(problems)


def _object(text: object, problems: _Problems) -> dict[str, Any]:
    try:
        raw = parse_json(text, MOST_OF_NODE)
    except UNREADABLE as error:
        problems.note(f"not JSON ({error}); no links are read")
        return {}
    if not isinstance(raw, dict):
        problems.note("not an object of devices; no links are read")
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
            problems.note(f"{device!r} to {excerpt(peer)!r}: not a number of lanes from 0 to {MAX_LANES}; left out")
        elif peer == SWITCH:
            switched[device] = count
        elif peer not in known or peer == device:
            problems.note(f"{device!r} to {excerpt(peer)!r}: no other device of this node; left out")
        else:
            stated[device, peer] = count


def write_links(lanes: Lanes, switched: Mapping[str, int] | None = None) -> str:
    """Write the annotation: lanes between two devices, stated for both, and lanes into the node's switches."""
    devices: dict[str, dict[str, int]] = {}
    for (a, b), count in lanes.items():
        devices.setdefault(a, {})[b] = count
        devices.setdefault(b, {})[a] = count
    for device, count in (switched or {}).items():
        devices.setdefault(device, {})[SWITCH] = count
    return json.dumps(devices, sort_keys=True, separators=(",", ":"))
