"""The software classes of a node, from its Node's annotation and from the pools of the settings (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import CLASSES
from allocator.wire.classes import class_devices, distinct, named_types, read_classes
from allocator.wire.deviceobject import read_cordons, without_cordoned
from koordgate.settings import DevicePool
from webhook.settings import WebhookSettings

Pools = Sequence[tuple[str, DevicePool]]
"""Devices that nodes have by configuration, each pool with the name of its type."""


def pools_of(settings: WebhookSettings) -> tuple[tuple[str, DevicePool], ...]:
    """The pools of the settings."""
    return tuple((own.name, pool) for own in settings.devices.types for pool in own.pools)


def node_classes(
    metadata: Mapping[str, Any], types: DeviceTypes, pools: Pools
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Read a node's devices of software classes; for a type that its annotation names, the pools do not count.

    Returns the devices, and what could not be read, a sentence each.
    """
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if not pools and CLASSES not in annotations:
        return (), ()
    text = annotations.get(CLASSES, "{}")
    stated, problems = read_classes(text, types)
    wrong = list(problems)
    named = named_types(text)
    by_type: dict[str, dict[str, int]] = {}
    for kind, pool in pools:
        if kind not in named and pool.node_selector.items() <= labels.items():
            by_type.setdefault(kind, {}).update(pool.devices)
    made = [device for kind, of in by_type.items() for device in class_devices(types.by_name[kind], of, wrong)]
    cordoned = read_cordons(annotations)
    devices = tuple(without_cordoned(device, cordoned) for device in distinct((*stated, *made), wrong))
    return devices, tuple(wrong)


def beside(devices: Sequence[Device], classes: Iterable[Device]) -> tuple[Device, ...]:
    """All devices of a node, by type and order; of two with the same id, the one of its Device object."""
    known = {device.id for device in devices}
    more = (device for device in classes if device.id not in known)
    return tuple(sorted((*devices, *more), key=lambda device: (device.type, device.order)))
