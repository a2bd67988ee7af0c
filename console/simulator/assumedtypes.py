"""Devices of the administrator's own types that are assumed for Nodes without a Device object (pure).

A vendor's device plugin states how many there are: `huawei.com/Ascend910: 8`. A device has 100 percent of everything
that its type counts in percent. What it counts in bytes or units must be in the Node's capacity too, in sum.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes, Unit

Raw = dict[str, Any]
_MOST: Final = 64  # devices of one type on one node


def assumed_entries(node: Mapping[str, Any], types: DeviceTypes, notes: list[str]) -> tuple[list[Raw], list[str]]:
    """Assume the devices of configured types that a Node states.

    Args:
        node: without a Device object.
        types: of which those that settings define are looked for.
        notes: collects what is left out, a sentence each.

    Returns:
        Entries of a Device object, and the resources that they follow from.
    """
    status = node.get("status") or {}
    capacity = status.get("capacity") or status.get("allocatable") or {}
    allocatable = status.get("allocatable") or capacity
    entries: list[Raw] = []
    sources: list[str] = []
    for kind in types.types:
        resource = kind.names.get(kind.plain, "")
        if not resource or resource not in capacity:
            continue
        where = f"Node {node['metadata']['name']}: {resource}"
        try:
            count, usable = (_count(kind, of.get(resource, 0)) for of in (capacity, allocatable))
            amounts = _amounts(kind, capacity, count) if count else {}
        except (QuantityError, ValueError) as error:
            notes.append(f"{where}: {error}; no {kind.plural} are assumed, give the Node's Device object")
            continue
        entries += _entries(kind, node["metadata"]["name"], count, usable, amounts)
        sources += [resource] if count else []
    return entries, sources


def _count(kind: DeviceType, quantity: object) -> int:
    """The number of devices that an amount of the type's plain resource is."""
    amount = to_int(quantity)
    if kind.unit is Unit.UNITS:
        raise ValueError(f"how many devices {amount} units are is unknown")
    count, rest = (amount, 0) if kind.unit is Unit.DEVICES else divmod(amount, FULL)
    if rest:
        raise ValueError(f"{amount} percent are no whole devices")
    if count > _MOST:
        raise ValueError(f"{count} devices are more than {_MOST}")
    return count


def _amounts(kind: DeviceType, capacity: Mapping[str, Any], count: int) -> dict[str, str]:
    """What each device has of what is not counted in percent, by the resource that states it."""
    found = {}
    for tail, percent in zip(kind.tails, kind.percent, strict=True):
        if percent:  # as the plain resource is, which states whole devices
            continue
        resource = kind.names[tail]
        if resource not in capacity:
            raise ValueError(f"how much {tail} each has is unknown, because the Node states no {resource}")
        found[resource] = str(to_int(capacity[resource]) // count)
    return found


def _entries(kind: DeviceType, node: str, count: int, usable: int, amounts: Mapping[str, str]) -> Iterable[Raw]:
    for minor in range(count):
        identity = f"assumed-{kind.name}-{minor}-{node}"
        healthy = minor < usable
        yield {"type": kind.name, "id": identity, "minor": minor, "health": healthy, "resources": dict(amounts)}
