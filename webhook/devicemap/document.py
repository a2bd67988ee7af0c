"""What the device map says of one node, and of the device types (pure). docs/map.md has the schema.

Amounts are integers in their resource's unit: percent, bytes, units, devices. What cannot be read is held, never free.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from allocator.vocabulary.adopted import counted
from allocator.vocabulary.delivery import NodeDelivery
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.links import LANE_WEIGHT, Links
from allocator.vocabulary.memoryuse import MemoryUse
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.nodetopology import NodeTopology
from webhook.devicemap.cpus import cpus_entry
from webhook.devicemap.holders import Holders
from webhook.devicemap.text import LONGEST, cut
from webhook.view.cluster import ClusterView

Raw = dict[str, Any]

VERSION: Final = 1
"""Of the schema; a change that an older page would misread makes it greater."""

_MOST: Final = 2**63 - 1  # JSON readers and orjson take no larger integer


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
        "blocked": cut(blocked, LONGEST),
        "undelivered": cut(_undelivered(node.delivery) if devices else "", LONGEST),
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
        "why": cut(why, LONGEST),
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
    return max(0, min(amount, _MOST))
