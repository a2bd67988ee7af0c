"""Devices of nodes as data, whose amounts are exact (pure)."""

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.vocabulary.devicetype import DeviceTypes
from webhook.devicemap.document import STATES, VERSION, node_entry, types_entry
from webhook.view.nodereport import Availability, DeviceReport, NodeReport

Raw = dict[str, Any]


def summary(devices: Iterable[DeviceReport]) -> dict[Availability, int]:
    """Count devices by state."""
    count = dict.fromkeys(Availability, 0)
    for one in devices:
        count[one.state] += 1
    return count


def are_there(count: Mapping[Availability, int]) -> int:
    """How many of the counted devices their nodes list."""
    return sum(count.values()) - count[Availability.GONE]


def document(reports: Iterable[NodeReport], types: DeviceTypes) -> Raw:
    """Nodes as data (docs/reference/formats.md): their entries as in the device map, and counts of all devices."""
    shown = list(reports)
    count = summary(device for report in shown for device in report.devices)
    return {
        "version": VERSION,
        "summary": {"devices": are_there(count), **{STATES[state]: number for state, number in count.items()}},
        "types": types_entry(types),
        "nodes": [node_entry(report) for report in shown],
    }
