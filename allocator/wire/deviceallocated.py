"""The device-allocated annotation in Koordinator's format (its apis/extension/device_share.go), and visible devices.

`{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"50",...},"id":"GPU-..."}]}`; resource names come out
sorted, memory in Kubernetes' binary form. It knows only the Pod as a whole; which container sees which device stands
in one annotation a container.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from allocator.device import RESOURCES_OF
from allocator.holdings import Share
from allocator.names import (
    DEVICE_ALLOCATED,
    DEVICE_RESOURCES,
    GPU_MEMORY,
    VISIBLE_DEVICES_PREFIX,
    resource_name,
    visible_devices,
)
from allocator.quantity import QuantityError, format_bytes, format_int, to_int

_LARGEST_MINOR: Final = 2**31 - 1  # an int32 in Koordinator


class AnnotationError(ValueError):
    """An allocation annotation that cannot be read; the message says why."""


def write_annotations(shares: Sequence[Share], domain: str) -> dict[str, str]:
    """Write the annotations that tell a Pod's shares: device-allocated, and one a container that sees devices."""
    by_type: dict[str, list[dict[str, Any]]] = {}
    seen: dict[str, list[str]] = {}
    for share in sorted(shares, key=lambda share: (share.type, share.minor, share.id)):
        resources = {resource_name(domain, tail): _write(tail, share.amounts[tail]) for tail in sorted(share.amounts)}
        entry: dict[str, Any] = {"minor": share.minor, "resources": resources}
        if share.id:  # Koordinator leaves an empty one out
            entry["id"] = share.id
        by_type.setdefault(share.type, []).append(entry)
        for container in share.containers:
            seen.setdefault(container, []).append(share.id)
    annotations = {DEVICE_ALLOCATED: json.dumps(by_type, separators=(",", ":"))}
    annotations.update((visible_devices(container), ",".join(ids)) for container, ids in seen.items())
    return annotations


def _write(tail: str, amount: int) -> str:
    return format_bytes(amount) if tail == GPU_MEMORY else format_int(amount)


def read_annotations(annotations: Mapping[str, str]) -> tuple[Share, ...]:
    """Read a Pod's shares from its annotations; none where it has no device-allocated.

    Raises:
        AnnotationError: the annotation is there and is not of the format.
    """
    text = annotations.get(DEVICE_ALLOCATED)
    if text is None:
        return ()
    containers = _containers_of(annotations)
    try:
        raw = json.loads(text)
        shares = [
            _read_share(kind, entry, containers)
            for kind, entries in raw.items()
            if kind in RESOURCES_OF
            for entry in _list(entries)
        ]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise AnnotationError(f"{DEVICE_ALLOCATED}: not Koordinator's format ({error})") from error
    if len({(share.type, share.id or share.minor) for share in shares}) != len(shares):
        raise AnnotationError(f"{DEVICE_ALLOCATED}: names one device twice")
    return tuple(shares)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list must be")
    return value


def _containers_of(annotations: Mapping[str, str]) -> dict[str, list[str]]:
    """Turn the visible-devices annotations round: device id -> containers, in name order."""
    found: dict[str, list[str]] = {}
    for key in sorted(annotations):
        if key.startswith(VISIBLE_DEVICES_PREFIX):
            for device in annotations[key].split(","):
                found.setdefault(device, []).append(key.removeprefix(VISIBLE_DEVICES_PREFIX))
    return found


def _read_share(kind: str, entry: Mapping[str, Any], containers: Mapping[str, Iterable[str]]) -> Share:
    minor = entry["minor"]
    if not isinstance(minor, int) or isinstance(minor, bool):
        raise TypeError(f"minor {minor!r} is no number")
    if not 0 <= minor <= _LARGEST_MINOR:
        raise ValueError("a minor is not from 0 to 2^31-1")
    identity = str(entry.get("id") or "")
    identity.encode()  # UnicodeEncodeError, a ValueError: a lone surrogate, which no object in the cluster can hold
    amounts: dict[str, int] = {}
    for name, amount in (entry.get("resources") or {}).items():
        known = DEVICE_RESOURCES.get(name)
        if known is not None and known[1] in RESOURCES_OF[kind]:
            try:
                amounts[known[1]] = to_int(amount)
            except QuantityError as error:
                raise ValueError(f"{name}: {error}") from error
    return Share(kind, identity, minor, amounts, tuple(containers.get(identity, ())))
