"""The quota that goes on limiting devices beside one that an administrator wrote (pure).

A quota on `requests.nvidia.com/gpu` counts no translated Pod: none requests that name any more. Its mirror is a
ResourceQuota beside it, in the resources that quotas count (`allocator.request.quotaamounts`), with the same scopes.
The API server enforces it as any other. What the original still counts, of Pods from before, is taken off the mirror's
limit.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.quantity import QuantityError, parse
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import is_quota_resource
from webhook.quotas.limits import device_limits, in_units

MIRROR_LABEL: Final = "quota.koordgate.io/mirror"
_SUFFIX: Final = ".koordgate"
_MAX_LENGTH: Final = 253  # characters of a name
_DIGEST: Final = 8
_REQUESTS: Final = "requests."
Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota as far as it concerns devices."""

    namespace: str
    name: str
    uid: str
    revision: str
    hard: Mapping[str, str]  # its limits on device resources, and on those that quotas count
    used: Mapping[str, str]  # what it counts of them
    scopes: Mapping[str, Any]  # `spec.scopes` and `spec.scopeSelector`
    mirror: bool  # whether it is labelled as a mirror
    owner: str  # UID of the ResourceQuota that owns it; "" for none
    others: bool  # whether it limits anything else


def mirror_name(name: str) -> str:
    """Name the mirror of a quota."""
    if len(name) + len(_SUFFIX) <= _MAX_LENGTH:
        return name + _SUFFIX
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _MAX_LENGTH - len(_SUFFIX) - _DIGEST - 1].rstrip('.-')}-{digest}{_SUFFIX}"


def read_quota(obj: Mapping[str, Any], types: DeviceTypes) -> Quota | None:
    """Read a ResourceQuota; None if it concerns no devices and is no mirror."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    stated: Mapping[str, Any] = spec.get("hard") or {}
    names = device_limits(stated, types).keys() | {key for key in stated if _counts(key)}
    mirror = (metadata.get("labels") or {}).get(MIRROR_LABEL) == "true"
    if not (names or mirror):
        return None
    used: Mapping[str, Any] = (obj.get("status") or {}).get("used") or {}
    owners = (one["uid"] for one in metadata.get("ownerReferences") or () if one.get("kind") == "ResourceQuota")
    return Quota(
        metadata["namespace"],
        metadata["name"],
        metadata["uid"],
        metadata["resourceVersion"],
        {key: str(stated[key]) for key in sorted(names)},
        {key: str(used[key]) for key in sorted(names & used.keys())},
        {key: spec[key] for key in ("scopes", "scopeSelector") if spec.get(key)},
        mirror,
        next(owners, ""),
        others=len(names) < len(stated),
    )


def _counts(key: str) -> bool:
    return key.startswith(_REQUESTS) and is_quota_resource(key.removeprefix(_REQUESTS))


def counted_name(key: str) -> str:
    """Return the resource that translated Pods state for quotas, without its domain; "" if a limit is on another."""
    return key.removeprefix(_REQUESTS).partition("/")[2] if _counts(key) else ""


def limited(quota: Quota, types: DeviceTypes) -> frozenset[str]:
    """The resources that quotas count and that a quota limits, by itself or by its mirror."""
    own = {key.removeprefix(_REQUESTS) for key in quota.hard if _counts(key)}
    return frozenset(own | {one.resource for one in device_limits(quota.hard, types).values()})


def mirrored(quota: Quota, types: DeviceTypes, written: frozenset[str]) -> dict[str, int]:
    """What the mirror of a quota limits: resource that quotas count -> amount; empty if it needs none.

    `written`: device resources that translated Pods still state. The quota counts them there, so that its `used` is no
    sign of Pods from before. Raises QuantityError: the API server has stored an amount that is none.
    """
    limits: dict[str, int] = {}
    for key, (resource, factor) in device_limits(quota.hard, types).items():
        most = in_units(quota.hard[key], factor)
        if key.removeprefix(_REQUESTS) not in written:
            most = max(most - in_units(quota.used.get(key, "0"), factor), 0)
        limits[resource] = min(most, limits.get(resource, most))
    return limits


def written_names(types: DeviceTypes, domain: str) -> frozenset[str]:
    """The device resources that translated Pods state, which quotas on them go on counting."""
    built_in = (kind.resource_name(domain, tail) for kind in types.types if kind.domains for tail in kind.tails)
    own = (name for name, meaning in types.resources.items() if not meaning.type.domains)
    return frozenset({*built_in, *own})


def mirror_body(quota: Quota, limits: Mapping[str, int], known: Quota | None) -> Raw:
    """Write the mirror of a quota, in place of the known one if there is one."""
    owner = {"apiVersion": "v1", "kind": "ResourceQuota", "name": quota.name, "uid": quota.uid}
    metadata: Raw = {
        "name": mirror_name(quota.name),
        "namespace": quota.namespace,
        "labels": {MIRROR_LABEL: "true"},
        "ownerReferences": [owner],
    }
    if known is not None:
        metadata["resourceVersion"] = known.revision
    hard = {f"{_REQUESTS}{resource}": str(amount) for resource, amount in sorted(limits.items())}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata,
        "spec": {"hard": hard, **quota.scopes},
    }


def is_right(known: Quota, quota: Quota, limits: Mapping[str, int]) -> bool:
    """Return whether the known mirror of a quota limits what it should, and nothing else."""
    try:
        hard = {key.removeprefix(_REQUESTS): parse(amount) for key, amount in known.hard.items()}
    except QuantityError:
        return False
    same = hard == dict(limits) and not known.others
    return same and known.mirror and known.owner == quota.uid and known.scopes == quota.scopes


def may_replace(known: Quota) -> bool:
    """Return whether an object of the mirror's name is one of ours: nobody else's quota is overwritten."""
    return known.mirror or (not known.others and all(_counts(key) for key in known.hard))
