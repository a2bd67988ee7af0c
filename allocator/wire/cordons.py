"""Devices that an administrator has cordoned: an annotation with their ids, separated by commas.

The annotation is on the Device object for the devices listed there, and on the Node for its software classes.
"""

from collections.abc import Mapping
from dataclasses import replace

from allocator.vocabulary.device import Device
from allocator.vocabulary.names import CORDONED


def read_cordons(annotations: Mapping[str, object]) -> frozenset[str]:
    """The ids in the annotation; none if it is absent or no text."""
    text = annotations.get(CORDONED)
    return frozenset(filter(None, map(str.strip, text.split(",")))) if isinstance(text, str) else frozenset()


def without_cordoned(device: Device, cordoned: frozenset[str]) -> Device:
    """The device unchanged or, if it is cordoned, as one on which nothing new may land."""
    if device.id not in cordoned:
        return device
    return replace(device, healthy=False, cordoned=True, why_not="cordoned by an administrator")
