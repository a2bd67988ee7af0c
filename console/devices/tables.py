"""The devices of nodes and who holds them, as tables and as data."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.memoryuse import Keeping, MemoryUse
from allocator.vocabulary.names import GPU_MEMORY
from console.devices.amounts import held_of, told_bytes
from console.devices.cards import Availability, Card, cards_of, summary
from console.devices.nodestate import NodeState
from console.devices.others import AnyHolding, holder_data, told_holder
from console.terminal import printable

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
