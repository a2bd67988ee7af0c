"""ResourceSlices (resource.k8s.io/v1): which cards a driver's devices are, by their attributes.

A device states its UUID as the driver's attribute `uuid`, a part of a card that of the card as `parentUUID`, and either
its PCI address as `resource.kubernetes.io/pciBusID` (NVIDIA's driver does; the last is a standard attribute).
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from allocator.vocabulary.claims import ListedDevice, ResourceSlice
from allocator.wire.values import UNREADABLE, as_list, as_object, as_text

_MOST_DEVICES: Final = 128  # ResourceSliceMaxDevices
_UUIDS: Final = ("parentUUID", "uuid")
_PCI: Final = "resource.kubernetes.io/pciBusID"


def read_resource_slice(obj: Mapping[str, Any], drivers: Collection[str]) -> ResourceSlice | None:
    """Read a slice; None if its driver is none of these.

    A device that cannot be read is listed without ids: it may be any card of its node.
    `drivers`: whose devices count. Raises ValueError, TypeError: it is no slice that an API server accepts.
    """
    spec = as_object(obj.get("spec"))
    driver = as_text(spec.get("driver"))
    if driver not in drivers:
        return None
    pool = as_object(spec.get("pool"))
    generation = pool.get("generation")
    listed = as_list(spec.get("devices"))
    if not isinstance(generation, int) or len(listed) > _MOST_DEVICES:
        raise ValueError(f"generation {generation!r}, {len(listed)} devices")
    node = as_text(spec.get("nodeName"))
    devices = {as_text(one.get("name")): _device(one, node, driver) for one in map(as_object, listed)}
    name = as_text(as_object(obj.get("metadata")).get("name"))
    return ResourceSlice(name, driver, as_text(pool.get("name")), generation, devices)


def _device(entry: Mapping[str, Any], node: str, driver: str) -> ListedDevice:
    try:
        node = as_text(entry.get("nodeName")) or node
        attributes = as_object(entry.get("attributes"))
        ids = [_text(attributes, key) or _text(attributes, f"{driver}/{key}") for key in _UUIDS]
        ids.append(_text(attributes, _PCI).lower())
    except UNREADABLE:
        return ListedDevice(node)
    return ListedDevice(node, tuple(filter(None, ids)))


def _text(attributes: Mapping[str, Any], key: str) -> str:
    return as_text(as_object(attributes.get(key)).get("string"))
