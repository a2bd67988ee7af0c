"""Devices that an administrator has taken out: an annotation with their ids, parted by commas.

It stands on the Device object for what is listed there, and on the Node for its software classes.
"""

from collections.abc import Mapping
from dataclasses import replace

from allocator.vocabulary.device import Device
from allocator.vocabulary.names import CORDONED


def read_cordons(annotations: Mapping[str, object]) -> frozenset[str]:
    """The ids in the annotation; none in what is no text."""
    text = annotations.get(CORDONED)
    return frozenset(filter(None, map(str.strip, text.split(",")))) if isinstance(text, str) else frozenset()


def without_cordoned(device: Device, cordoned: frozenset[str]) -> Device:
    """The device as it is, or if it is one of these, as one that nothing new may land on."""
    if device.id not in cordoned:
        return device
    return replace(device, healthy=False, why_not="cordoned by an administrator")
