"""What each device of a node is worth to a Pod that comes next: free, in parts, held or out of service (pure).

Amounts are integers in their resource's unit: percent, bytes, units. What cannot be read is held, never free.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.memoryuse import MemoryUse
from allocator.vocabulary.node import NodeSnapshot
from console.devices.nodestate import NodeState
from console.devices.others import AnyHolding


class Availability(StrEnum):
    """The state of a device."""

    FREE = "free"  # nobody holds anything of it
    PARTS = "in parts"  # some of it is held, and some of each of its resources is free
    HELD = "held"  # nothing more can be given of it
    OUT = "out of service"  # it takes nothing new, whoever holds some of it
    GONE = "gone"  # Pods hold some of it, and its node does not list it


@dataclass(frozen=True, slots=True)
class Card:
    """A device of a node."""

    node: str  # name of its node
    type: str
    minor: int  # its number on the node
    id: str
    device: Device | None  # as the node lists it; None if the node does not
    state: Availability  # whether it takes more
    why: str  # why it takes nothing, where that follows from no Pod; "" otherwise
    total: Mapping[str, int]  # resource tail -> what it has; empty if the node does not list it
    used: Mapping[str, int]  # resource tail -> what is held of it
    free: Mapping[str, int]  # resource tail -> what can still be given
    # who holds some of it, by namespace and name, Pods of other products last
    held: tuple[tuple[AnyHolding, Share], ...]
    bars: tuple[str, ...]  # the resources that are drawn, the most important first
    uses: tuple[MemoryUse, ...] = ()  # what containers have of its memory, as the reporter last told

    @property
    def name(self) -> str:
        """How people name it on its node: `gpu/3`."""
        return f"{self.type}/{self.minor}"

    def uses_of(self, holding: AnyHolding) -> list[MemoryUse]:
        """What the containers of one of its holders have of its memory."""
        return [one for one in self.uses if (one.namespace, one.pod) == (holding.namespace, holding.name)]

    def is_of(self, namespace: str) -> bool:
        """Whether a Pod of a namespace holds some of it; of any if it is ""."""
        return not namespace or any(one.namespace == namespace for one, _ in self.held)


class Summary(NamedTuple):
    """How many devices there are of each state."""

    devices: int
    free: int
    parts: int
    held: int
    out: int
    gone: int


def summary(cards: Iterable[Card]) -> Summary:
    """Count devices by state; one that its node does not list is not among `devices`."""
    count = dict.fromkeys(Availability, 0)
    for card in cards:
        count[card.state] += 1
    listed = sum(count.values()) - count[Availability.GONE]
    return Summary(
        listed,
        count[Availability.FREE],
        count[Availability.PARTS],
        count[Availability.HELD],
        count[Availability.OUT],
        count[Availability.GONE],
    )


def cards_of(state: NodeState, types: DeviceTypes) -> list[Card]:
    """The devices of a node, in its order, then those that Pods hold and the node does not list."""
    node = snapshot_of(state)
    closed = _closed(node)
    holders: dict[str, list[tuple[AnyHolding, Share]]] = {}
    for holding in state.holders:
        for share in holding.shares:
            holders.setdefault(share.id, []).append((holding, share))
    uses: dict[str, list[MemoryUse]] = {}
    for use in state.uses:
        uses.setdefault(use.card, []).append(use)
    cards = []
    for device in state.devices:
        held = tuple(holders.get(device.id, ()))
        total = dict(device.capacity)
        if state.is_unknown(device.type):
            used, free = total, dict.fromkeys(total, 0)
        else:
            known = node.used.get(device.id, {})
            used = {tail: known.get(tail, 0) for tail in total}
            left = node.free(device, tuple(total)) if device.id not in closed else (0,) * len(total)
            free = dict(zip(total, left, strict=True))
        status, why = _state(state, node, device, free, closed=device.id in closed)
        bars = tuple(tail for tail in _bars(types.by_name[device.type]) if tail in total)
        about = (state.node, device.type, device.minor, device.id, device)
        of_memory = tuple(uses.get(device.id, ()))
        cards.append(Card(*about, status, why, total, used, free, held, bars, of_memory))
    for share in state.strays():
        held = tuple(holders[share.id])
        used = dict(node.used.get(share.id, {}))
        why = "the node does not list it"
        gone = Availability.GONE
        cards.append(Card(state.node, share.type, share.minor, share.id, None, gone, why, {}, used, {}, held, ()))
    return cards


def _bars(kind: DeviceType) -> tuple[str, ...]:
    """The resources that are drawn: of memory that is stated in two units, the bytes."""
    return tuple(tail for tail in kind.tails if kind.memory is None or tail != kind.memory[1])


def snapshot_of(state: NodeState) -> NodeSnapshot:
    """The node as a decision sees its devices."""
    return NodeSnapshot(
        state.node,
        state.devices,
        {one.uid: one for one in state.holdings if not one.fence},
        state.kubelet_held,
        claims={one.uid: one for one in state.holdings if one.fence},
        foreign={one.uid: one for one in state.foreign},
    )


def _closed(node: NodeSnapshot) -> set[str]:
    """Ids of the devices of which no other Pod may hold a part, because of the policy of one that does."""
    roots = {device.pcie for device in node.devices if device.id in node.alone and device.pcie}
    return {device.id for device in node.devices if device.pcie in roots} | node.alone | node.unshared


def _state(
    state: NodeState, node: NodeSnapshot, device: Device, free: Mapping[str, int], *, closed: bool
) -> tuple[Availability, str]:
    if not device.healthy:
        return Availability.OUT, device.why_not or "unhealthy"
    if state.is_unknown(device.type):
        return Availability.HELD, "who holds it is unknown" if state.unread else "Pods of other products may hold it"
    if not node.is_usable(device):
        return Availability.HELD, "allocated by the kubelet's device plugin"
    if closed:
        alone = device.id in node.used
        return Availability.HELD, "" if alone else "a Pod has its PCIe root to itself"
    if not any(node.used.get(device.id, {}).values()):
        return Availability.FREE, ""
    more = all(free[tail] for tail, amount in device.capacity.items() if amount)
    return (Availability.PARTS if more else Availability.HELD), ""
