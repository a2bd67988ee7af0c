"""ResourceClaims and ResourceSlices (resource.k8s.io/v1): what an allocation holds of a driver's devices.

The API server validates claims. What it would not accept is not taken apart: such an allocation counts as unreadable.

A ResourceSlice says which cards a driver's devices are. A device states its UUID as the driver's attribute `uuid`, a
part of a card that of the card as `parentUUID`, and either its PCI address as `resource.kubernetes.io/pciBusID`
(NVIDIA's driver does; the last is a standard attribute).
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from allocator.quantity import to_int
from allocator.vocabulary.holdings import ClaimedDevice, DeviceName, ListedDevice, ResourceClaim, ResourceSlice
from allocator.wire.values import UNREADABLE, as_list, as_object, as_text

_MAX_RESULTS: Final = 32  # AllocationResultsMaxSize
_MEMORY: Final = "memory"


class ClaimError(ValueError):
    """A ResourceClaim without the metadata that every stored object has."""


def read_resource_claim(obj: Mapping[str, Any], drivers: Collection[str]) -> ResourceClaim:
    """Read a claim.

    `drivers`: whose devices count; those of others are left out. Raises ClaimError: its UID or its revision is missing.
    """
    try:
        metadata = as_object(obj.get("metadata"))
        uid, revision = as_text(metadata.get("uid")), int(as_text(metadata.get("resourceVersion")))
        namespace, name = as_text(metadata.get("namespace")), as_text(metadata.get("name"))
    except UNREADABLE as error:
        raise ClaimError(f"metadata: {error}") from error
    if not uid or revision <= 0:
        raise ClaimError("metadata: no uid, or no resourceVersion")
    node = ""
    try:
        allocation = as_object(as_object(obj.get("status")).get("allocation"))
        node = _node(allocation)
        devices = _devices(allocation, drivers)
    except UNREADABLE:
        return ResourceClaim(uid, namespace, name, revision, node, unread=True)
    return ResourceClaim(uid, namespace, name, revision, node, devices)


def _devices(allocation: Mapping[str, Any], drivers: Collection[str]) -> tuple[ClaimedDevice, ...]:
    results = as_list(as_object(allocation.get("devices")).get("results"))
    if len(results) > _MAX_RESULTS:
        raise ValueError(f"{len(results)} results")
    found = []
    for result in map(as_object, results):
        name = DeviceName(*(as_text(result.get(key)) for key in ("driver", "pool", "device")))
        if name.driver in drivers and result.get("adminAccess") is not True:
            found.append(ClaimedDevice(name, _memory(result.get("consumedCapacity"), name.driver)))
    return tuple(found)


def _memory(consumed: object, driver: str) -> int | None:
    """The bytes that a share consumes; None where something else is stated, or nothing."""
    stated = as_object(consumed)
    if not stated.keys() & {_MEMORY, f"{driver}/{_MEMORY}"} or len(stated) > 1:
        return None
    (quantity,) = stated.values()
    try:
        return to_int(quantity)
    except UNREADABLE:
        return None


def _node(allocation: Mapping[str, Any]) -> str:
    """The one node by whose name kube-scheduler limits the allocation of a node's devices; "" for none."""
    terms = as_list(as_object(allocation.get("nodeSelector")).get("nodeSelectorTerms"))
    for field in as_list(as_object(terms[0]).get("matchFields")) if len(terms) == 1 else ():
        requirement = as_object(field)
        values = as_list(requirement.get("values"))
        if (requirement.get("key"), requirement.get("operator")) == ("metadata.name", "In") and len(values) == 1:
            return as_text(values[0])
    return ""


_MAX_DEVICES: Final = 128  # ResourceSliceMaxDevices
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
    if not isinstance(generation, int) or len(listed) > _MAX_DEVICES:
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
