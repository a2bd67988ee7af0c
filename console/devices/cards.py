"""Devices of nodes in a table and as data (pure): people read memory in GiB with one decimal, data states bytes."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.table import Table

from allocator.vocabulary.devicetype import DeviceTypes
from console.devicewords import share_of, told_holder, told_use, used_of
from console.plaintable import add_row, plain_table
from webhook.devicemap.document import STATES, VERSION, node_entry, types_entry
from webhook.view.nodereport import Availability, DeviceReport, NodeReport

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


def _tenths(number: int) -> str:
    whole, tenth = divmod(number, 10)
    return f"{whole}.{tenth}" if tenth else str(whole)


def devices_table(reports: Iterable[NodeReport]) -> Table:
    """Make the table of devices, by node, type and minor."""
    table = plain_table("NODE", "TYPE", "MINOR", "ID", "MODEL", "NUMA", "PCIE ROOT", "HEALTH", "USED", "PODS")
    for one in (device for report in reports for device in report.devices):
        device = one.device
        numa = "" if device is None or device.numa_node is None else str(device.numa_node)
        about = (device.model, numa, device.pcie or "") if device is not None else ("", "", "")
        pods = [
            "; ".join([f"{told_holder(holder)}: {share_of(share, one.kind)}", *map(told_use, one.uses_of(holder))])
            for holder, share in one.held
        ]
        named = (one.node, one.kind.name, str(one.minor), one.id)
        add_row(table, *named, *about, one.why or "healthy", used_of(one), pods)
    return table


def document(reports: Iterable[NodeReport], types: DeviceTypes) -> Raw:
    """Nodes as data (docs/operate/kubectl.md): their entries as in the device map, and counts of all devices."""
    shown = list(reports)
    count = summary(device for report in shown for device in report.devices)
    return {
        "version": VERSION,
        "summary": {"devices": are_there(count), **{STATES[state]: number for state, number in count.items()}},
        "types": types_entry(types),
        "nodes": [node_entry(report) for report in shown],
    }
