"""Devices of nodes in tables and as data (pure).

People read memory in GiB with one decimal; data states bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from allocator.quantity import format_bytes
from allocator.vocabulary.delivery import Keeping, MemoryUse
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import GPU_MEMORY
from console.devices.nodes import told_holder
from console.terminal import printable
from webhook.devicemap.document import STATES, VERSION, node_entry, types_entry
from webhook.view.nodereport import Availability, DeviceReport, Holder, NodeReport

Raw = dict[str, Any]

_MIB: Final = 2**20


def summary(devices: Iterable[DeviceReport]) -> dict[Availability, int]:
    """Count devices by state."""
    count = dict.fromkeys(Availability, 0)
    for one in devices:
        count[one.state] += 1
    return count


def are_there(count: Mapping[Availability, int]) -> int:
    """How many of the counted devices their nodes list."""
    return sum(count.values()) - count[Availability.GONE]


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


def _holder(device: DeviceReport, holder: Holder, share: Share) -> str:
    return "; ".join([f"{told_holder(holder)}: {told_share(share)}", *map(told_use, device.uses_of(holder))])


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


def devices_table(reports: Iterable[NodeReport]) -> Table:
    """Make the table of devices, by node, type and minor."""
    table = new_table("NODE", "TYPE", "MINOR", "ID", "MODEL", "NUMA", "PCIE ROOT", "HEALTH", "USED", "PODS")
    for one in (device for report in reports for device in report.devices):
        pods = [_holder(one, *held) for held in one.held]
        about = (one.node, one.kind.name, str(one.minor), one.id)
        device = one.device
        if device is None:
            used = [f"{tail} {_amount(tail, amount)}" for tail, amount in one.used.items()]
            add_row(table, *about, "", "", "", one.why, used, pods)
            continue
        numa = "" if device.numa_node is None else str(device.numa_node)
        used = [_used_of(tail, one.used[tail], total) for tail, total in one.total.items()]
        add_row(table, *about, device.model, numa, device.pcie or "", one.why or "healthy", used, pods)
    return table


def document(reports: Iterable[NodeReport], types: DeviceTypes) -> Raw:
    """Nodes as data (docs/kubectl.md): their entries as in the device map, and counts of all devices."""
    shown = list(reports)
    count = summary(device for report in shown for device in report.devices)
    return {
        "version": VERSION,
        "summary": {"devices": are_there(count), **{STATES[state]: number for state, number in count.items()}},
        "types": types_entry(types),
        "nodes": [node_entry(report) for report in shown],
    }
