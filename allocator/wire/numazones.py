"""The zones of a NodeResourceTopology object: what each NUMA node has."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from allocator.vocabulary.excerpt import excerpt
from allocator.wire.values import Problems, as_object, as_text, read_amount, write_amount

_ZONE_TYPE: Final = "Node"
_ZONE_NAME: Final = re.compile(r"node-(0|[1-9][0-9]{0,8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class NumaZone:
    """What one NUMA node has, by resource: cpu in thousandths, memory in bytes, others in their unit."""

    allocatable: Mapping[str, int]  # what Pods may have
    capacity: Mapping[str, int]
    # what no Pod holds yet, for other readers; what is not named is all available. Nobody here decides by it, so that
    # zones that differ in it alone are equal.
    available: Mapping[str, int] = field(default_factory=dict, compare=False)


def read_zones(value: object, problems: Problems) -> dict[int, NumaZone]:
    """Read the zones by NUMA node, ascending; a malformed zone is left out and named in `problems`."""
    zones: dict[int, NumaZone] = {}
    for index, entry in enumerate(problems.list("zones", value)):
        where = f"zones[{index}]"
        node = problems.read(where, _zone_node, entry, None)
        if node is None:
            continue
        if node in zones:
            problems.append(f"{where}: NUMA node {node} occurs twice; left out")
            continue
        zones[node] = _read_zone(f"{where}.resources", entry.get("resources"), problems)
    return dict(sorted(zones.items()))


def _zone_node(value: object) -> int | None:
    """The NUMA node of a zone; None for a zone that is something else."""
    entry = as_object(value)
    if entry.get("type") != _ZONE_TYPE:
        return None
    match = _ZONE_NAME.fullmatch(as_text(entry.get("name")))
    if match is None:
        raise ValueError("the name of a NUMA node is node- and its number")
    return int(match[1])


def _read_zone(where: str, value: object, problems: Problems) -> NumaZone:
    allocatable: dict[str, int] = {}
    capacity: dict[str, int] = {}
    available: dict[str, int] = {}
    for name, has, could, free in problems.each(where, _zone_resource, value):
        if name in allocatable:
            problems.append(f"{where}: {excerpt(name)!r} occurs twice; the first counts")
            continue
        allocatable[name] = has
        capacity[name] = could
        available[name] = free
    return NumaZone(allocatable, capacity, available)


def _zone_resource(value: object) -> tuple[str, int, int, int]:
    """Read a resource's name, what Pods may have of it, what there is, and what is free; the last two may be absent."""
    entry = as_object(value)
    name = as_text(entry.get("name"))
    if not name:
        raise ValueError("no name")
    has = read_amount(name, entry.get("allocatable"))
    could, free = (
        has if (one := entry.get(key)) is None else read_amount(name, one) for key in ("capacity", "available")
    )
    return name, has, could, free


def write_zones(zones: Mapping[int, NumaZone]) -> list[dict[str, Any]]:
    """Write the zones by NUMA node."""
    return [
        {"name": f"node-{node}", "type": _ZONE_TYPE, "resources": _write_zone(zone)}
        for node, zone in sorted(zones.items())
    ]


def _write_zone(zone: NumaZone) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "capacity": write_amount(name, zone.capacity[name]),
            "allocatable": write_amount(name, amount),
            "available": write_amount(name, zone.available.get(name, amount)),
        }
        for name, amount in sorted(zone.allocatable.items())
    ]
