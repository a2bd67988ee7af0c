"""A node's report and the device types as JSON (docs/reference/formats.md): for the device map and the commands (pure).

Amounts are integers in their resource's unit: percent, bytes, units, devices.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.cpunode import QosClass
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.delivery import MemoryUse
from allocator.vocabulary.device import LANE_WEIGHT, Links
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding, Share
from allocator.wire.nodetopology import PodCpuAlloc
from webhook.view.nodereport import Availability, CpuReport, DeviceReport, Holder, NodeReport, told_tails

VERSION: Final = 1
"""Of the schema; a change that an older page would misread makes it greater."""

MAX_EXPLANATION: Final = 1024
"""Characters of an explanation."""

STATES: Final = {
    Availability.FREE: "free",
    Availability.PARTS: "inParts",
    Availability.HELD: "held",
    Availability.OUT: "outOfService",
    Availability.GONE: "gone",
}
"""What the states of devices are called there."""

_SHORT: Final = 256  # characters; names of Kubernetes have at most 253
_MAX_INTEGER: Final = 2**63 - 1  # JSON readers and orjson take no larger integer

Raw = dict[str, Any]


def cut(text: str, most: int = _SHORT) -> str:
    """Make text that any reader of JSON takes, of at most so many characters."""
    whole = text.encode("utf-8", "replace").decode()
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"


def types_entry(types: DeviceTypes) -> Raw:
    """The device types by name: what one device is called, and the resources in the order of a device's amounts."""
    return {
        kind.name: {
            "noun": kind.noun,
            "resources": [
                {"name": tail, "word": word if word != tail else kind.noun, "unit": unit.value}
                for tail, word, unit in zip(kind.tails, kind.words, kind.units, strict=True)
                if tail in told_tails(kind)
            ],
        }
        for kind in types.types
    }


def node_entry(report: NodeReport) -> Raw:
    """Make the entry of a node."""
    holders = _Holders()
    for one in report.holders:
        holders.place(one)
    devices = [_device(one, holders) for one in report.devices]
    return {
        "name": cut(report.name),
        "blocked": cut(report.blocked, MAX_EXPLANATION),
        "unseen": report.unseen,
        "undelivered": cut(report.undelivered, MAX_EXPLANATION),
        "devices": devices,
        "links": _links(report.links, report.devices),
        "cpus": _cpus(report.cpus, holders),
        "holders": holders.entries,
        "problems": [cut(problem, MAX_EXPLANATION) for problem in report.problems],
    }


class _Holders:
    """The holders of one node; others name a holder by its place in the list."""

    def __init__(self) -> None:
        self.entries: list[Raw] = []
        self._places: dict[tuple[bool, str], int] = {}

    def place(self, one: Holder) -> int:
        """The place of a holder, which is taken in."""
        key = isinstance(one, Holding) and bool(one.fence), one.uid
        place = self._places.get(key)
        return self._add(key, holder_entry(one)) if place is None else place

    def kubelet(self, alloc: PodCpuAlloc) -> int:
        """The place of a Pod that got CPUs from the kubelet's static policy, which is taken in."""
        uid = alloc.uid or f"{alloc.namespace}/{alloc.name}"
        place = self._places.get((False, uid))
        entry = _holder("kubelet", uid, alloc, "CPUs by the kubelet's static policy")
        return self._add((False, uid), entry) if place is None else place

    def _add(self, key: tuple[bool, str], entry: Raw) -> int:
        place = self._places[key] = len(self.entries)
        self.entries.append(entry)
        return place


def holder_entry(one: Holder) -> Raw:
    """Make the entry of who holds something."""
    if isinstance(one, ForeignHolding):
        note = f"by {one.peer.value}, {one.evidence}" + (f": {one.why}" if one.why else "")
        stated = {"product": one.peer.value, "evidence": cut(one.evidence), "within": cut(one.within)}
        return _holder("foreign", one.uid, one, note) | stated | {"doubt": cut(one.why, MAX_EXPLANATION)}
    if one.fence:
        return _holder("claim", one.uid, one, "ResourceClaim (DRA)")
    numa = [cell.node for cell in one.cpus.numa] if one.cpus is not None else []
    return _holder("pod", one.uid, one, _note(one)) | {"numa": numa}


def _holder(kind: str, uid: str, one: Holder | PodCpuAlloc, note: str) -> Raw:
    about = {"kind": kind, "uid": cut(uid), "namespace": cut(one.namespace), "name": cut(one.name)}
    return {**about, "note": cut(note, MAX_EXPLANATION), "numa": []}


def _note(holding: Holding) -> str:
    """What is particular about a holding, for people; "" for nothing."""
    if holding.unread:
        return f"its annotations cannot be read ({', '.join(holding.unread)}), so all that they may mean is held"
    if holding.ending:
        return "not bound in time: it is being given back"
    return f"room held for the gang {holding.gang}" if holding.until else ""


def _cpus(cpus: CpuReport | None, holders: _Holders) -> Raw | None:
    """Make the entry of a node's CPUs; None where they are not known.

    A CPU is in `own`, in `reserved` or in `shared`. `bestEffort` overlaps `own`: these Pods share their CPUs with
    best-effort ones. All sets are Linux CPU lists.
    """
    if cpus is None or cpus.topology is None or cpus.pools is None:
        return None
    every = cpus.topology.all
    own = [
        (holders.place(one), share.cpus & every, "lse" if share.qos == QosClass.LSE else "lsr")
        for one, share in cpus.held
        if share.cpus
    ]
    own += [(holders.kubelet(alloc), alloc.cpus & every, "kubelet") for alloc in cpus.kubelet]
    shared = best_effort = 0
    for pool in cpus.pools.shared:
        shared |= pool.cpus
    for pool in cpus.pools.best_effort:
        best_effort |= pool.cpus
    return {
        "zones": [
            {
                "numa": cell.node,
                "socket": cell.socket,
                "cores": [format_cpuset(core & cell.cpus) for core in cell.cores],
            }
            for cell in cpus.topology.cells
        ],
        "own": [{"holder": at, "cpus": format_cpuset(mask), "pool": pool} for at, mask, pool in own if mask],
        "reserved": format_cpuset(cpus.reserved),
        "shared": format_cpuset(shared & ~cpus.reserved),
        "bestEffort": format_cpuset(best_effort),
        "unknown": cpus.unknown,
    }


def _device(one: DeviceReport, holders: _Holders) -> Raw:
    device, tails = one.device, told_tails(one.kind)
    return {
        "type": one.kind.name,
        "minor": one.minor,
        "id": cut(one.id),
        "model": cut(device.model) if device else "",
        "numa": device.numa_node if device else None,
        "pcie": cut(device.pcie or "") if device else "",
        "bus": cut(device.bus) if device else "",
        "state": STATES[one.state],
        "health": one.health.value,
        "why": cut(one.why, MAX_EXPLANATION),
        "amounts": [[_number(of.get(tail, 0)) for of in (one.total, one.used, one.free)] for tail in tails],
        "shares": [_share(holders.place(holder), share, tails) for holder, share in one.held],
        "uses": [_use(use) for use in one.uses],
    }


def _share(holder: int, share: Share, tails: Sequence[str]) -> Raw:
    amounts = [_number(share.amounts.get(tail, 0)) for tail in tails]
    return {"holder": holder, "amounts": amounts, "containers": [cut(one) for one in share.containers]}


def _use(use: MemoryUse) -> Raw:
    return {
        "pod": cut(f"{use.namespace}/{use.pod}"),
        "container": cut(use.container),
        "state": use.keeping.value,
        "used": use.used,
        "limit": use.limit,
        "wanted": use.wanted,
        "held": use.held,
    }


def _links(links: Links, devices: Sequence[DeviceReport]) -> list[list[int]]:
    """NVLink lanes between devices: [place in the list, place, lanes] for each pair that has some."""
    return list(_pairs(links, {links.index[one.id]: at for at, one in enumerate(devices) if one.id in links.index}))


def _pairs(links: Links, places: Mapping[int, int]) -> Iterator[list[int]]:
    for row, one in sorted(places.items()):
        for column, other in sorted(places.items()):
            if row < column and links.rows and (lanes := links.rows[row][column] // LANE_WEIGHT):
                yield [one, other, lanes]


def _number(amount: int) -> int:
    return max(0, min(amount, _MAX_INTEGER))
