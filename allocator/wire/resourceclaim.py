"""ResourceClaims (resource.k8s.io/v1): what of a driver's devices an allocation holds.

The API server validates claims. What it would not accept is not taken apart: such an allocation counts as unreadable.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from allocator.quantity import to_int
from allocator.vocabulary.claims import ClaimedDevice, DeviceName, ResourceClaim
from allocator.wire.values import UNREADABLE, as_list, as_object, as_text

_MOST_RESULTS: Final = 32  # AllocationResultsMaxSize
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
    if len(results) > _MOST_RESULTS:
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
