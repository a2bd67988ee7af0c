"""The devices of nodes, who holds them and what is published, as tables and as data."""

from collections.abc import Iterable
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from allocator.quantity import format_bytes
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_MEMORY
from webhook.devices.nodestate import NodeState
from webhook.terminal import printable

Raw = dict[str, Any]

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
    return format_bytes(amount) if tail.rpartition("/")[2] == GPU_MEMORY else str(amount)


def _health(state: NodeState, device: Device) -> list[str]:
    lines = ["healthy" if device.healthy else device.why_not]
    if device.id in state.listed.kubelet_held:
        lines.append("allocated by the kubelet's device plugin")
    return lines


def _used(held: Iterable[tuple[Holding, Share]], tail: str) -> int:
    return sum(share.amounts.get(tail, 0) for _, share in held)


def _holder(holding: Holding, share: Share) -> str:
    return f"{holding.holder}: {told_share(share)}"


def told_share(share: Share) -> str:
    """Write the amounts of a share."""
    return ", ".join(f"{tail} {_amount(tail, amount)}" for tail, amount in share.amounts.items())


def devices_table(states: Iterable[NodeState]) -> Table:
    """Make the table of devices, by node, type and minor."""
    table = new_table("NODE", "TYPE", "MINOR", "ID", "MODEL", "NUMA", "PCIE ROOT", "HEALTH", "USED", "PODS")
    for state in states:
        for device in state.devices:
            held = state.held(device.id)
            used = [
                f"{tail} {_amount(tail, _used(held, tail))}/{_amount(tail, total)}"
                for tail, total in device.capacity.items()
            ]
            numa = "" if device.numa_node is None else str(device.numa_node)
            about = (state.node, device.type, str(device.minor), device.id, device.model, numa, device.pcie or "")
            add_row(table, *about, _health(state, device), used, [_holder(*one) for one in held])
        for share in state.strays():
            held = state.held(share.id)
            used = [f"{tail} {_amount(tail, _used(held, tail))}" for tail in share.amounts]
            about = (state.node, share.type, str(share.minor), share.id, "", "", "")
            add_row(table, *about, NOT_THERE, used, [_holder(*one) for one in held])
    return table


def packed_table(states: Iterable[NodeState]) -> Table:
    """Make the table of published amounts, a row for each class."""
    table = new_table("NODE", "CLASS", "B", "N", "TOTAL", "FREE", "TOTAL OF EACH", "FREE OF EACH")
    for state in states:
        if state.packed is None:
            add_row(table, state.node, "not published", *[""] * 6)
        for one in state.packed or ():
            totals, frees = (
                " ".join(_amount(one.name, amount) for amount in amounts) for amounts in (one.totals(), one.frees())
            )
            row = (str(one.bits), str(one.count), hex(one.total), hex(one.free), totals, frees)
            add_row(table, state.node, one.name, *row)
    return table


def devices_list(states: Iterable[NodeState]) -> list[Raw]:
    """The contents of `devices_table` as data, for each node: amounts in percent, bytes and units."""
    return [
        {
            "node": state.node,
            "devices": [_device_data(state, device) for device in state.devices],
            "notInDeviceObject": [
                {"type": share.type, "minor": share.minor, "id": share.id, "pods": _pods_data(state, share.id)}
                for share in state.strays()
            ],
            "problems": list(state.problems),
        }
        for state in states
    ]


def _device_data(state: NodeState, device: Device) -> Raw:
    held = state.held(device.id)
    return {
        "type": device.type,
        "minor": device.minor,
        "id": device.id,
        "model": device.model,
        "numaNode": device.numa_node,
        "pcieRoot": device.pcie,
        "healthy": device.healthy,
        "reason": device.why_not,
        "cordoned": device.id in state.cordoned,
        "heldByKubelet": device.id in state.listed.kubelet_held,
        "resources": {tail: {"used": _used(held, tail), "total": total} for tail, total in device.capacity.items()},
        "pods": _pods_data(state, device.id),
    }


def _pods_data(state: NodeState, identity: str) -> list[Raw]:
    return [
        {
            **({"kind": "ResourceClaim"} if holding.fence else {}),
            "namespace": holding.namespace,
            "name": holding.name,
            "uid": holding.uid,
            "containers": list(share.containers),
            "amounts": dict(share.amounts),
        }
        for holding, share in state.held(identity)
    ]


def packed_list(states: Iterable[NodeState]) -> list[Raw]:
    """The contents of `packed_table` as data, for each node."""
    return [
        {
            "node": state.node,
            "published": state.packed is not None,
            "classes": [
                {
                    "class": one.name,
                    "b": one.bits,
                    "n": one.count,
                    "total": hex(one.total),
                    "free": hex(one.free),
                    "totals": one.totals(),
                    "frees": one.frees(),
                }
                for one in state.packed or ()
            ],
            "problems": list(state.problems),
        }
        for state in states
    ]
