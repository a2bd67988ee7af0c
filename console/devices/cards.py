"""The devices of nodes: what each is worth to a Pod that comes next, in tables and as data (pure).

Amounts are integers in their resource's unit: percent, bytes, units. What cannot be read is held, never free. People
read memory in GiB with one decimal; data states bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rich.table import Table
from rich.text import Text

from allocator.quantity import format_bytes
from allocator.vocabulary.delivery import Keeping, MemoryUse
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import GPU_MEMORY
from allocator.vocabulary.node import NodeSnapshot
from console.devices.nodestate import AnyHolding, NodeState, holder_data, told_holder
from console.terminal import printable


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


_GIB: Final = 2**30


def held_of(used: int, total: int) -> tuple[str, str]:
    """Write what is held of bytes, and the total, in GiB: the total rounded down, what is held rounded up."""
    whole = total * 10 // _GIB
    held = -(-used * 10 // _GIB)
    return _tenths(min(held, whole) if used <= total else held), _tenths(whole)


def told_bytes(amount: int) -> str:
    """Write bytes exactly where that is short, else in GiB, rounded up."""
    exact = format_bytes(amount)
    if amount < _GIB or exact.endswith(("Gi", "Ti", "Pi", "Ei")):
        return exact
    return f"{_tenths(-(-amount * 10 // _GIB))}Gi"


def _tenths(number: int) -> str:
    whole, tenth = divmod(number, 10)
    return f"{whole}.{tenth}" if tenth else str(whole)


Raw = dict[str, Any]

VERSION: Final = 1
"""Of the documents as data. Fields may be added; a change that a reader would misread makes it greater."""

_MIB: Final = 2**20
_STATES: Final = {
    Availability.FREE: "Free",
    Availability.PARTS: "InParts",
    Availability.HELD: "Held",
    Availability.OUT: "OutOfService",
    Availability.GONE: "Gone",
}
NOT_THERE: Final = "not in the Device object, nor a class of the Node"


def new_table(*headers: str) -> Table:
    """Make a plain table."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def add_row(table: Table, *cells: str | Iterable[str]) -> None:
    """Add a row; a cell is one text, or several lines. Unprintable characters are replaced."""
    texts = ([cell] if isinstance(cell, str) else list(cell) for cell in cells)
    table.add_row(*(Text("\n".join(printable(line) for line in lines) or "-") for lines in texts))


def _amount(tail: str, amount: int) -> str:
    return told_bytes(amount) if tail == GPU_MEMORY else str(amount)


def _used_of(tail: str, used: int, total: int) -> str:
    if tail == GPU_MEMORY:
        return "{} {}Gi/{}Gi".format(tail, *held_of(used, total))
    return f"{tail} {used}/{total}"


def _health(state: NodeState, device: Device) -> list[str]:
    lines = ["healthy" if device.healthy else device.why_not]
    if device.id in state.kubelet_held:
        lines.append("allocated by the kubelet's device plugin")
    return lines


def _holder(card: Card, holding: AnyHolding, share: Share) -> str:
    return "; ".join([f"{told_holder(holding)}: {told_share(share)}", *map(told_use, card.uses_of(holding))])


def told_use(use: MemoryUse) -> str:
    """Write what a container has of a card's memory, and whether it is kept to it."""
    used = "" if use.used is None else f" uses {told_bytes(-(-use.used // _MIB) * _MIB)}"
    most = "" if use.limit is None else f" of at most {told_bytes(use.limit)}"
    wanted = f", not at most {told_bytes(use.wanted or 0)}" if use.keeping is Keeping.MISSING else ""
    over = ", more than it holds" if use.exceeds else ""
    return f"{use.container}{used}{most}{wanted} ({use.keeping}{over})"


def told_share(share: Share) -> str:
    """Write the amounts of a share."""
    return ", ".join(f"{tail} {_amount(tail, amount)}" for tail, amount in share.amounts.items())


def devices_table(states: Iterable[NodeState], types: DeviceTypes) -> Table:
    """Make the table of devices, by node, type and minor."""
    table = new_table("NODE", "TYPE", "MINOR", "ID", "MODEL", "NUMA", "PCIE ROOT", "HEALTH", "USED", "PODS")
    for state in states:
        for card in cards_of(state, types):
            pods = [_holder(card, *one) for one in card.held]
            about = (state.node, card.type, str(card.minor), card.id)
            device = card.device
            if device is None:
                used = [f"{tail} {_amount(tail, amount)}" for tail, amount in card.used.items()]
                add_row(table, *about, "", "", "", NOT_THERE, used, pods)
                continue
            numa = "" if device.numa_node is None else str(device.numa_node)
            used = [_used_of(tail, card.used[tail], total) for tail, total in card.total.items()]
            add_row(table, *about, device.model, numa, device.pcie or "", _health(state, device), used, pods)
    return table


def document(listed: Iterable[tuple[NodeState, Sequence[Card]]]) -> Raw:
    """Nodes with some of their devices as data: amounts in percent, bytes and units (docs/kubectl.md)."""
    shown = list(listed)
    count = summary(card for _, cards in shown for card in cards)
    return {
        "version": VERSION,
        "summary": {
            "devices": count.devices,
            "free": count.free,
            "inParts": count.parts,
            "held": count.held,
            "outOfService": count.out,
            "gone": count.gone,
        },
        "nodes": [_node_data(state, cards) for state, cards in shown],
    }


def _node_data(state: NodeState, cards: Sequence[Card]) -> Raw:
    return {
        "node": state.node,
        "holdingsKnown": not (state.unread or state.unseen),
        "devices": [_device_data(state, card, card.device) for card in cards if card.device is not None],
        "notInDeviceObject": [
            {"type": card.type, "minor": card.minor, "id": card.id, "pods": _pods_data(card)}
            for card in cards
            if card.device is None
        ],
        "problems": list(state.problems),
    }


def _device_data(state: NodeState, card: Card, device: Device) -> Raw:
    return {
        "type": device.type,
        "minor": device.minor,
        "id": device.id,
        "model": device.model,
        "numaNode": device.numa_node,
        "pcieRoot": device.pcie,
        "pciAddress": device.bus or None,
        "state": _STATES[card.state],
        "healthy": device.healthy,
        "reason": card.why,
        "cordoned": device.id in state.cordoned,
        "heldByKubelet": device.id in state.kubelet_held,
        "resources": {tail: {"used": card.used[tail], "total": total} for tail, total in card.total.items()},
        "free": dict(card.free),
        "pods": _pods_data(card),
        "memoryUse": [_use_data(one) for one in card.uses],
    }


def _use_data(use: MemoryUse) -> Raw:
    return {
        "namespace": use.namespace,
        "pod": use.pod,
        "container": use.container,
        "state": use.keeping.value,
        "used": use.used,
        "limit": use.limit,
        "wanted": use.wanted,
        "held": use.held,
    }


def _pods_data(card: Card) -> list[Raw]:
    return [
        {
            **holder_data(holding),
            "containers": list(share.containers),
            "amounts": dict(share.amounts),
        }
        for holding, share in card.held
    ]
