"""What each container of a Pod may use of its devices, as annotations that only the bind writes.

koordgate.io/device-quotas is JSON: container -> device type -> one entry per device, in the order of minors. For the
downward API there is one more annotation per container and resource, which lists the same amounts as plain numbers.
A container of a group has its fractions of the group's holding beside its amounts (FLIP-53, step 3): `3/4`.

A limiter may take 0, or an empty text, for "no limit". An amount of nothing is therefore written as `none`, and what is
not limited as `unlimited`.
"""

import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from allocator.quantity import format_bytes, format_int, to_int
from allocator.vocabulary.devicetype import DeviceType, DeviceTypes
from allocator.vocabulary.names import DEVICE_QUOTAS, device_quota
from allocator.vocabulary.sharing import DeviceQuota, Quotas
from allocator.wire.values import UNREADABLE, parse_json

NONE: Final = "none"
UNLIMITED: Final = "unlimited"


def write_quotas(quotas: Quotas, domain: str) -> dict[str, str]:
    """Write the annotations, resource names in this domain; {} for a Pod without devices."""
    if not quotas:
        return {}
    listed: dict[str, dict[str, list[dict[str, Any]]]] = {}
    variables: dict[str, list[str]] = {}
    for container in sorted(quotas):
        for one in quotas[container]:
            entry: dict[str, Any] = {"id": one.id, "resources": _resources(one, domain)}
            if one.fractions:
                entry["fractions"] = {
                    _name(one, tail, domain): str(part) for tail, part in sorted(one.fractions.items())
                }
            listed.setdefault(container, {}).setdefault(one.type.name, []).append(entry)
            for tail in one.type.limits:
                variables.setdefault(device_quota(container, tail), []).append(_plain(one.amounts[tail]))
    text = json.dumps(listed, separators=(",", ":"))
    return {DEVICE_QUOTAS: text, **{key: ",".join(values) for key, values in variables.items()}}


def _resources(quota: DeviceQuota, domain: str) -> dict[str, str]:
    named = {_name(quota, tail, domain): _written(quota.type, tail, quota.amounts[tail]) for tail in quota.type.tails}
    return dict(sorted(named.items()))


def _name(quota: DeviceQuota, tail: str, domain: str) -> str:
    return quota.type.resource_name(domain, tail)


def _written(kind: DeviceType, tail: str, amount: int | None) -> str:
    return (format_bytes if kind.in_bytes(tail) else format_int)(amount) if amount else _plain(amount)


def _plain(amount: int | None) -> str:
    if amount is None:
        return UNLIMITED
    return str(amount) if amount else NONE


def read_quotas(annotations: Mapping[str, str], types: DeviceTypes) -> Quotas:
    """Read the annotation, for people; {} if there is none, or one that cannot be read."""
    try:
        raw = parse_json(annotations.get(DEVICE_QUOTAS, "{}"))
        return {
            container: [_read(kind, entry, types) for kind, entries in by_type.items() for entry in entries]
            for container, by_type in raw.items()
        }
    except (*UNREADABLE, KeyError, AttributeError):
        return {}


def _read(kind: str, entry: Mapping[str, Any], types: DeviceTypes) -> DeviceQuota:
    amounts = {types.resources[name].tail: _amount(text) for name, text in entry["resources"].items()}
    fractions = {types.resources[name].tail: Fraction(text) for name, text in entry.get("fractions", {}).items()}
    return DeviceQuota(types.by_name[kind], str(entry["id"]), amounts, fractions)


def _amount(text: object) -> int | None:
    return None if text == UNLIMITED else 0 if text == NONE else to_int(text)
