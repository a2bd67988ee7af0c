"""The device-allocated annotation in Koordinator's format (its apis/extension/device_share.go), and visible devices.

`{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"50",...},"id":"GPU-..."}]}`; resource names come out
sorted, memory in Kubernetes' binary form. It describes the Pod as a whole. One annotation per container and type says
which devices the container sees. The device proposal's own spellings are read as well: `resouurces`, `gpu-mem`,
`gpu-mem-ratio`, `uuid`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from allocator.quantity import QuantityError, format_bytes, format_int, to_int
from allocator.vocabulary.delivery import ASSUMED, Delivery, Way, nri_annotation, unqualified
from allocator.vocabulary.devicetype import BUILT_IN, DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Function, Share
from allocator.vocabulary.names import (
    DEVICE_ALLOCATED,
    DOMAINS,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    TYPE_GPU,
    shown_by,
    visible_devices,
)
from allocator.wire.values import UNREADABLE, parse_json

LARGEST_MINOR: Final = 2**31 - 1  # an int32 in Koordinator
_DRAFT_NAMES: Final = {  # the device proposal's spelling -> today's
    f"{domain}/{draft}": f"{domain}/{tail}"
    for domain in DOMAINS
    for draft, tail in (("gpu-mem", GPU_MEMORY), ("gpu-mem-ratio", GPU_MEMORY_RATIO))
}


def write_annotations(
    shares: Sequence[Share], domain: str, types: DeviceTypes = BUILT_IN, way: Way = ASSUMED
) -> dict[str, str]:
    """Write a Pod's shares: device-allocated, and the visible devices of each container and type.

    `way`: how its containers get their GPUs, and in which form these are named. NVIDIA's NRI plugin has an annotation
    of its own beside the one that the variable reads.
    """
    if not shares:
        return {}
    by_nri = way.delivery is Delivery.NVIDIA_NRI
    by_type: dict[str, list[dict[str, Any]]] = {}
    seen: dict[str, list[str]] = {}
    for share in sorted(shares, key=lambda share: (share.type, share.minor, share.id)):
        by_type.setdefault(share.type, []).append(_write_share(share, types.by_name.get(share.type), domain))
        for container in share.containers:
            gpu = share.type == TYPE_GPU
            name = way.named(share.id) if gpu and not by_nri else share.id
            seen.setdefault(visible_devices(container, share.type), []).append(name)
            if gpu and by_nri:
                seen.setdefault(nri_annotation(container), []).append(way.named(share.id))
    annotations = {DEVICE_ALLOCATED: json.dumps(by_type, separators=(",", ":"))}
    annotations.update((key, ",".join(ids)) for key, ids in seen.items())
    return annotations


def _write_share(share: Share, kind: DeviceType | None, domain: str) -> dict[str, Any]:
    """Write a share. The tails of a type that has left the settings are written as they are, without a domain."""
    named = sorted((kind.resource_name(domain, tail) if kind else tail, tail) for tail in share.amounts)
    amounts = {
        name: format_bytes(share.amounts[tail]) if kind and kind.in_bytes(tail) else format_int(share.amounts[tail])
        for name, tail in named
    }
    entry: dict[str, Any] = {"minor": share.minor, "resources": amounts}
    if share.id:  # Koordinator leaves an empty one out
        entry["id"] = share.id
    extension: dict[str, Any] = {}
    if share.functions:
        extension["vfs"] = [_write_function(function) for function in share.functions]
    template = kind.template_of(share.amounts) if kind else ""
    if template:
        extension["gpuSharedResourceTemplate"] = template  # Koordinator's key, for every type
    return {**entry, "extension": extension} if extension else entry


def _write_function(function: Function) -> dict[str, Any]:
    return {**({"minor": function.minor} if function.minor else {}), "busID": function.bus_id}


def in_any_form(annotations: Mapping[str, str]) -> dict[str, str]:
    """A Pod's annotations with its GPUs by their bare UUIDs, and without what says the same to NVIDIA's NRI plugin.

    Two replicas may have heard differently of a node's runtime. What they wrote for the same holding is then equal.
    """
    found = dict(annotations)
    for key in annotations:
        kind, container = shown_by(key) or ("", "")
        if kind == TYPE_GPU:
            found[key] = _bare(found[key])
            again = nri_annotation(container)
            if again in found and _bare(found[again]) == found[key]:
                del found[again]
    return found


def _bare(names: str) -> str:
    return ",".join(map(unqualified, names.split(",")))


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """A device-allocated annotation as read."""

    shares: tuple[Share, ...] = ()  # what could be read. A share without amounts is one whose entry states none.
    # the device types whose entries cannot be read; all types if the text as a whole cannot
    unread: tuple[str, ...] = ()
    problem: str = ""  # what cannot be read; "" if everything can


def read_allocation(annotations: Mapping[str, str], types: DeviceTypes = BUILT_IN) -> DeviceAllocation:
    """Read a Pod's shares from its annotations, each device type by itself; nothing if it has no device-allocated."""
    text = annotations.get(DEVICE_ALLOCATED)
    if text is None:
        return DeviceAllocation()
    try:
        entries = [(kind, listed) for kind, listed in parse_json(text).items() if kind in types.by_name]
    except (*UNREADABLE, AttributeError) as error:
        return DeviceAllocation(unread=tuple(types.by_name), problem=_unlike(error))
    containers = _containers_of(annotations)
    shares: list[Share] = []
    problems: dict[str, str] = {}
    for kind, listed in entries:
        try:
            found = [_read_share(types.by_name[kind], entry, containers, types) for entry in _list(listed)]
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            problems[kind] = _unlike(error)
            continue
        if len({share.id or share.minor for share in found}) != len(found):
            problems[kind] = f"{DEVICE_ALLOCATED}: names one device twice"
            continue
        shares += found
    return DeviceAllocation(tuple(shares), tuple(problems), "; ".join(problems.values()))


def _unlike(error: Exception) -> str:
    return f"{DEVICE_ALLOCATED}: not Koordinator's format ({error})"


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list is required")
    return value


def _containers_of(annotations: Mapping[str, str]) -> dict[tuple[str, str], list[str]]:
    """Map type and device id to the containers that see the device, in the order of their names."""
    found: dict[tuple[str, str], list[str]] = {}
    for key in sorted(annotations):
        shown = shown_by(key)
        if shown is not None:
            kind, container = shown
            for device in annotations[key].split(","):
                identity = unqualified(device) if kind == TYPE_GPU else device
                found.setdefault((kind, identity), []).append(container)
    return found


def _read_share(
    kind: DeviceType, entry: Mapping[str, Any], containers: Mapping[tuple[str, str], list[str]], types: DeviceTypes
) -> Share:
    minor = _minor(entry["minor"])
    if not 0 <= minor <= LARGEST_MINOR:
        raise ValueError("a minor is not from 0 to 2^31-1")
    identity = _text(entry.get("id") or entry.get("uuid"))
    amounts: dict[str, int] = {}
    for name, amount in (entry.get("resources") or entry.get("resouurces") or {}).items():
        known = types.resources.get(_DRAFT_NAMES.get(name, name))
        if known is not None and known.type == kind and known.dialect.own and known.tail in kind.tails:
            try:
                amounts[known.tail] = to_int(amount)
            except QuantityError as error:
                raise ValueError(f"{name}: {error}") from error
    functions = tuple(map(_read_function, _list((entry.get("extension") or {}).get("vfs") or [])))
    return Share(kind.name, identity, minor, amounts, tuple(containers.get((kind.name, identity), ())), functions)


def _read_function(entry: Mapping[str, Any]) -> Function:
    return Function(_minor(entry.get("minor", 0)), _text(entry.get("busID")))


def _minor(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"minor {value!r} is no number")
    return value


def _text(value: object) -> str:
    text = str(value or "")
    text.encode()  # UnicodeEncodeError, a ValueError: a lone surrogate, which no object in the cluster can hold
    return text
