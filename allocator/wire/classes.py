"""Software classes of a node: queues, IP pools and the like, counted like devices (patent, paragraph 67).

A Node's annotation `koordgate.io/classes` lists them. `{"queue":{"fast":10,"slow":40}}` declares, for the configured
type `queue`, a device `fast` with 10 units and a device `slow` with 40 units.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.names import CLASSES
from allocator.vocabulary.outcome import excerpt
from allocator.wire.values import MAX_OF_NODE, UNREADABLE, parse_json

_MAX: Final = 128  # types, and devices of one type, on one node


def read_classes(text: object, types: DeviceTypes) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Read the annotation.

    Returns the devices, by type and id, and one sentence for each entry that could not be read; the others count.
    """
    problems: list[str] = []
    raw = _load(text)
    if isinstance(raw, str):
        return (), (raw,)
    devices: list[Device] = []
    for name in sorted(raw):
        kind = types.by_name.get(name)
        if kind is None or len(kind.tails) != 1:
            problems.append(f"annotation {CLASSES}: {excerpt(name)!r} is no configured type with one amount; left out")
        elif not isinstance(raw[name], dict) or len(raw[name]) > _MAX:
            problems.append(f"annotation {CLASSES}: {name} is no object of at most {_MAX} ids; left out")
        else:
            devices += class_devices(kind, raw[name], problems)
    return tuple(devices), tuple(problems)


def named_types(text: object) -> frozenset[str]:
    """Names of the types that the annotation mentions, readably or not: it replaces the settings for them."""
    raw = _load(text)
    return frozenset() if isinstance(raw, str) else frozenset(raw)


def _load(text: object) -> dict[str, Any] | str:
    """Read the annotation's JSON object, or say why it cannot be read."""
    try:
        raw = parse_json(text, MAX_OF_NODE) if isinstance(text, str) else text
    except UNREADABLE as error:
        return f"annotation {CLASSES}: not JSON ({error}); no class is read"
    if isinstance(raw, dict) and len(raw) <= _MAX:
        return raw
    return f"annotation {CLASSES}: not an object of at most {_MAX} types; no class is read"


def class_devices(kind: DeviceType, amounts: Mapping[str, object], problems: list[str]) -> list[Device]:
    """Make devices from ids and amounts; a wrong entry is left out and noted as a problem.

    `amounts`: id -> units or percent of the device; for a type that is counted in whole devices, any number but 0.
    """
    devices = []
    for minor, identity in enumerate(sorted(amounts)):
        try:
            amount = _amount(kind, identity, amounts[identity])
        except (QuantityError, ValueError) as error:
            problems.append(f"annotation {CLASSES}: {kind.name} {excerpt(identity)!r}: {error}; left out")
            continue
        devices.append(Device(kind.name, identity, minor, healthy=True, capacity={kind.tails[0]: amount}))
    return devices


def _amount(kind: DeviceType, identity: str, stated: object) -> int:
    amount = to_int(stated)
    if not identity or "," in identity:
        raise ValueError("an id must not be empty or contain a comma, which separates ids in annotations")
    identity.encode()  # UnicodeEncodeError, a ValueError: a lone surrogate, which no object in the cluster can hold
    if not amount:
        raise ValueError("holds nothing")
    if kind.unit is Unit.DEVICES:
        return FULL
    if kind.unit is Unit.PERCENT and amount > FULL:
        raise ValueError(f"{amount} percent are more than a whole device")
    return amount


def distinct(devices: Iterable[Device], problems: list[str]) -> tuple[Device, ...]:
    """Leave out devices whose id an earlier one has, and note them as problems: ids are unique on a node."""
    by_id: dict[str, Device] = {}
    for device in devices:
        first = by_id.setdefault(device.id, device)
        if first is not device:
            where = f"annotation {CLASSES}: {device.type} {excerpt(device.id)!r}"
            problems.append(f"{where} is left out, because a {first.type} has this id; give it another")
    return tuple(by_id.values())
