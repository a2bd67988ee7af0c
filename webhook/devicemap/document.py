"""What the device map says of one node, and of the device types (pure). docs/map.md has the schema.

Amounts are integers in their resource's unit: percent, bytes, units, devices. What cannot be read is held, never free.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from allocator.vocabulary.adopted import ForeignHolding, counted
from allocator.vocabulary.cpunode import QosClass
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.delivery import MemoryUse, NodeDelivery
from allocator.vocabulary.device import LANE_WEIGHT, Device, Links
from allocator.vocabulary.devicetype import DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.nodetopology import NodeTopology, PodCpuAlloc
from webhook.view.cluster import ClusterView
from webhook.view.snapshots import pools_on

_SHORT: Final = 256  # characters; names of Kubernetes have at most 253
MAX_EXPLANATION: Final = 1024
"""Characters of an explanation."""


def cut(text: str, most: int = _SHORT) -> str:
    """Make text that any reader of JSON takes, of at most so many characters."""
    whole = text.encode("utf-8", "replace").decode()
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"


Raw = dict[str, Any]


class Holders:
    """The holders of one node."""

    def __init__(self) -> None:
        self.entries: list[Raw] = []  # for the document; others name a holder by its place in this list
        self._places: dict[tuple[str, str], int] = {}

    def pod(self, holding: Holding) -> int:
        """Take in a Pod that koordgate gave something to; returns its place."""
        numa = [one.node for one in holding.cpus.numa] if holding.cpus is not None else []
        return self._add("pod", holding.uid, holding.namespace, holding.name, _note(holding), numa)

    def claim(self, claim: Holding) -> int:
        """Take in a ResourceClaim; returns its place."""
        return self._add("claim", claim.uid, claim.namespace, claim.name, "ResourceClaim (DRA)")

    def foreign(self, holding: ForeignHolding) -> int:
        """Take in a Pod of another product; returns its place."""
        note = f"by {holding.peer.value}, {holding.evidence}" + (f": {holding.why}" if holding.why else "")
        return self._add("foreign", holding.uid, holding.namespace, holding.name, note)

    def kubelet(self, alloc: PodCpuAlloc) -> int:
        """Take in a Pod that got CPUs from the kubelet's static policy; returns its place."""
        uid = alloc.uid or f"{alloc.namespace}/{alloc.name}"
        return self._add("kubelet", uid, alloc.namespace, alloc.name, "CPUs by the kubelet's static policy")

    def _add(self, kind: str, uid: str, namespace: str, name: str, note: str, numa: list[int] | None = None) -> int:
        key = ("claim" if kind == "claim" else "pod", uid)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.entries)
            about = {"kind": kind, "uid": cut(uid), "namespace": cut(namespace), "name": cut(name)}
            self.entries.append({**about, "note": cut(note, MAX_EXPLANATION), "numa": numa or []})
        return place


def _note(holding: Holding) -> str:
    """What is particular about a holding, for people; "" for nothing."""
    if holding.unread:
        return f"its annotations cannot be read ({', '.join(holding.unread)}), so all that they may mean is held"
    if holding.ending:
        return "not bound in time: it is being given back"
    return f"room held for the gang {holding.gang}" if holding.until else ""


def cpus_entry(node: NodeSnapshot, reported: NodeTopology | None, holders: Holders) -> Raw | None:
    """Make the entry of a node's CPUs; None where they are not known.

    A CPU is in `own`, in `reserved` or in `shared`. `bestEffort` overlaps `own`: these Pods share their CPUs with
    best-effort ones. All sets are Linux CPU lists.
    """
    known = node.cpu
    if known is None or reported is None:
        return None
    own: list[Raw] = []
    for holding in sorted(node.holdings.values(), key=lambda one: (one.namespace, one.name, one.uid)):
        if holding.cpus is not None and holding.cpus.cpus:
            pool = "lse" if holding.cpus.qos == QosClass.LSE else "lsr"
            own.append(_own(holders.pod(holding), holding.cpus.cpus & known.topology.all, pool))
    by_kubelet = 0
    for alloc in reported.by_kubelet:
        by_kubelet |= alloc.cpus
        own.append(_own(holders.kubelet(alloc), alloc.cpus & known.topology.all, "kubelet"))
    pools = pools_on(known.topology, [one.cpus for one in node.holdings.values()], reported)
    shared = best_effort = 0
    for one in pools.shared:
        shared |= one.cpus
    for one in pools.best_effort:
        best_effort |= one.cpus
    return {
        "zones": [
            {
                "numa": cell.node,
                "socket": cell.socket,
                "cores": [format_cpuset(core & cell.cpus) for core in cell.cores],
            }
            for cell in known.topology.cells
        ],
        "own": [one for one in own if one["cpus"]],
        "reserved": format_cpuset(known.reserved & ~by_kubelet),
        "shared": format_cpuset(shared & ~known.reserved),
        "bestEffort": format_cpuset(best_effort),
        "unknown": known.holders_unknown,
    }


def _own(holder: int, cpus: int, pool: str) -> Raw:
    return {"holder": holder, "cpus": format_cpuset(cpus), "pool": pool}


VERSION: Final = 1
"""Of the schema; a change that an older page would misread makes it greater."""

_MAX_INTEGER: Final = 2**63 - 1  # JSON readers and orjson take no larger integer


def types_entry(types: DeviceTypes) -> Raw:
    """The device types by name: what one device is called, and the resources in the order of a device's amounts."""
    return {
        kind.name: {
            "noun": kind.noun,
            "resources": [
                {"name": tail, "word": word if word != tail else kind.noun, "unit": unit.value}
                for tail, word, unit in zip(kind.tails, kind.words, kind.units, strict=True)
                if tail in _tails(kind)
            ],
        }
        for kind in types.types
    }


def _tails(kind: DeviceType) -> tuple[str, ...]:
    """The resources that are shown: of memory that is stated in two units, the bytes."""
    return tuple(tail for tail in kind.tails if kind.memory is None or tail != kind.memory[1])


def node_of(view: ClusterView, name: str, types: DeviceTypes) -> Raw:
    """The entry of a node as a replica knows it now."""
    blocked = view.nodes.blocked(name)
    return node_entry(
        view.snapshot(name),
        types,
        topology=view.nodes.topology(name),
        blocked=blocked,
        listed=view.devices(name) if blocked else (),
        uses=view.nodes.uses(name),
    )


def node_entry(
    node: NodeSnapshot,
    types: DeviceTypes,
    *,
    topology: NodeTopology | None = None,
    blocked: str = "",
    listed: Sequence[Device] = (),
    uses: Iterable[MemoryUse] = (),
) -> Raw:
    """Make the entry of a node.

    `types`: the device types; devices of other types are left out. `blocked`: why its holdings are unknown; its devices
    then count as held.
    """
    holders = Holders()
    shares = _shares(node, holders)
    devices = [
        _device(node, kind, device, shares.pop((device.type, device.id), ()), blocked)
        for kind in types.types
        for device in (listed if blocked else node.devices)
        if device.type == kind.name
    ]
    by_card: dict[str, list[Raw]] = {}
    for use in uses:
        by_card.setdefault(use.card, []).append(_use(use))
    for device in devices:
        device["uses"] = by_card.get(device["id"], [])
    devices += [
        _gone(types.by_name[kind], identity, found)
        for (kind, identity), found in sorted(shares.items())
        if kind in types.by_name
    ]
    return {
        "name": cut(node.name),
        "blocked": cut(blocked, MAX_EXPLANATION),
        "undelivered": cut(_undelivered(node.delivery) if devices else "", MAX_EXPLANATION),
        "devices": devices,
        "links": _links(node.wiring.links, devices),
        "cpus": cpus_entry(node, topology, holders),
        "holders": holders.entries,
    }


def _undelivered(delivery: NodeDelivery) -> str:
    """Why no Pod gets cards on a node, as the bind would say; "" if some do."""
    if any(way.delivery is not None for way in (delivery.plain, delivery.classed)):
        return ""
    return f"Pods get no cards here: the node {delivery.plain.why_not}"


_Found = Sequence[tuple[int, Share]]


def _shares(node: NodeSnapshot, holders: Holders) -> dict[tuple[str, str], list[tuple[int, Share]]]:
    """By type and id of a device: who holds what of it, as the holder's place in the list and the share."""
    found: dict[tuple[str, str], list[tuple[int, Share]]] = {}

    def add(at: int, shares: Iterable[Share]) -> None:
        for share in shares:
            found.setdefault((share.type, share.id), []).append((at, share))

    for holding in sorted(node.holdings.values(), key=lambda one: (one.namespace, one.name, one.uid)):
        add(holders.pod(holding), holding.shares)
    for claim in sorted(node.claims.values(), key=lambda one: (one.namespace, one.name, one.uid)):
        add(holders.claim(claim), claim.shares)
    for foreign in sorted(counted(node.foreign), key=lambda one: (one.namespace, one.name, one.uid)):
        add(holders.foreign(foreign), foreign.shares)
    return found


def _device(node: NodeSnapshot, kind: DeviceType, device: Device, found: _Found, blocked: str) -> Raw:
    tails = _tails(kind)
    has = [device.capacity.get(tail, 0) for tail in tails]
    if blocked:
        amounts = [[_number(total), _number(total), 0] for total in has]
    else:
        used = node.used.get(device.id, {})
        there = tuple(tail for tail in tails if tail in device.capacity)
        free = dict(zip(there, node.free(device, there), strict=True))
        amounts = [
            [_number(total), _number(used.get(tail, 0)), _number(free.get(tail, 0))]
            for tail, total in zip(tails, has, strict=True)
        ]
    health, why = _health(node, device, blocked)
    return {
        "type": kind.name,
        "minor": device.minor,
        "id": cut(device.id),
        "model": cut(device.model),
        "numa": device.numa_node,
        "pcie": cut(device.pcie or ""),
        "bus": cut(device.bus),
        "health": health,
        "why": cut(why, MAX_EXPLANATION),
        "amounts": amounts,
        "shares": _shares_entry(found, tails),
    }


def _gone(kind: DeviceType, identity: str, found: _Found) -> Raw:
    """A device that is held, and that the node does not report."""
    tails = _tails(kind)
    return {
        "type": kind.name,
        "minor": found[0][1].minor,
        "id": cut(identity),
        "model": "",
        "numa": None,
        "pcie": "",
        "bus": "",
        "health": "gone",
        "why": "the node has no such device",
        "uses": [],
        "amounts": [[0, _number(sum(share.amounts.get(tail, 0) for _, share in found)), 0] for tail in tails],
        "shares": _shares_entry(found, tails),
    }


def _health(node: NodeSnapshot, device: Device, blocked: str) -> tuple[str, str]:
    """The state of a device in one word, and why nothing new may land on it."""
    if blocked:
        return "unread", blocked
    if device.cordoned:
        return "cordoned", device.why_not or "cordoned by an administrator"
    if not device.healthy:
        return "unhealthy", device.why_not or "unhealthy"
    if device.id in node.disputed:
        return "unread", "the ledger and a Pod's annotation state different: see the Event AllocationDisputed"
    if not node.is_usable(device):
        return "kubelet", "allocated by the kubelet's device plugin"
    return "healthy", ""


def _shares_entry(found: _Found, tails: Sequence[str]) -> list[Raw]:
    return [
        {
            "holder": at,
            "amounts": [_number(share.amounts.get(tail, 0)) for tail in tails],
            "containers": [cut(one) for one in share.containers],
        }
        for at, share in found
    ]


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


def _links(links: Links, devices: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """NVLink lanes between devices: [place in the list, place, lanes] for each pair that has some."""
    return list(
        _pairs(links, {links.index[one["id"]]: at for at, one in enumerate(devices) if one["id"] in links.index})
    )


def _pairs(links: Links, places: Mapping[int, int]) -> Iterator[list[int]]:
    for row, one in sorted(places.items()):
        for column, other in sorted(places.items()):
            if row < column and links.rows and (lanes := links.rows[row][column] // LANE_WEIGHT):
                yield [one, other, lanes]


def _number(amount: int) -> int:
    return max(0, min(amount, _MAX_INTEGER))
