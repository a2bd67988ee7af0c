"""Software classes of a node: queues, IP pools and the like, counted as devices are (seed document 2, paragraph 67).

A Node's annotation `koordgate.io/classes` tells them: `{"queue":{"fast":10,"slow":40}}` has, of the configured type
`queue`, a device `fast` that holds 10 units and a device `slow` that holds 40.
"""

import json
from collections.abc import Mapping
from typing import Final

from allocator.device import Device
from allocator.devicetype import DeviceType, DeviceTypes
from allocator.names import CLASSES
from allocator.quantity import QuantityError, to_int

_MOST: Final = 128  # devices of one type on one node


def read_classes(text: object, types: DeviceTypes) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Read the annotation.

    Returns:
        The devices, by type and id, and what could not be read, a sentence each; the rest counts.
    """
    problems: list[str] = []
    try:
        raw = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        return (), (f"annotation {CLASSES}: not JSON ({error}); no class is read",)
    if not isinstance(raw, dict):
        return (), (f"annotation {CLASSES}: not an object of types; no class is read",)
    devices: list[Device] = []
    for name in sorted(raw):
        kind = types.by_name.get(name)
        if kind is None or len(kind.tails) != 1:
            problems.append(f"annotation {CLASSES}: {name[:80]!r} is no configured type with one amount; left out")
        elif not isinstance(raw[name], dict) or len(raw[name]) > _MOST:
            problems.append(f"annotation {CLASSES}: {name} is no object of at most {_MOST} ids; left out")
        else:
            devices += class_devices(kind, raw[name], problems)
    return tuple(devices), tuple(problems)


def class_devices(kind: DeviceType, amounts: Mapping[str, object], problems: list[str]) -> list[Device]:
    """Make devices of ids and amounts; what makes no sense is left out and told."""
    devices = []
    for minor, identity in enumerate(sorted(amounts)):
        try:
            identity.encode()
            amount = to_int(amounts[identity])
        except (
            QuantityError,
            UnicodeEncodeError,
        ) as error:  # a lone surrogate, which no object in the cluster can hold
            problems.append(f"annotation {CLASSES}: {kind.name} {identity[:80]!r}: {error}; left out")
            continue
        if not amount or not identity or "," in identity:
            problems.append(
                f"annotation {CLASSES}: {kind.name} {identity[:80]!r} holds nothing, or has a comma; left out"
            )
            continue
        devices.append(Device(kind.name, identity, minor, healthy=True, capacity={kind.tails[0]: amount}))
    return devices
