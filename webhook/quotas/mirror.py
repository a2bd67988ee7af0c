"""The quota that goes on limiting devices beside one that an administrator wrote (pure).

A quota on `requests.nvidia.com/gpu` counts no translated Pod: none requests that name any more. Its mirror is a
ResourceQuota beside it, in the resources that quotas count (`allocator.request.quotaamounts`), with the same scopes.
The API server enforces it as any other. What the original still counts, of Pods from before, is taken off the mirror's
limit.

So is what Pods hold that do not state the resource: they were created before the quota limited it. While there are
such Pods, a quota on a resource that quotas count has a mirror too, of which this is taken off. The mirror lists those
of them that are not bound yet, in the order in which they may be bound (`webhook.quotas.gate`). A list only grows at
its end, and a Pod leaves it once it was seen to be bound or gone. Who writes or reads a mirror must therefore have seen
all Pods as they were when it was written: `seen` is the revision.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from allocator.quantity import QuantityError, parse
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import QUOTA_DOMAIN, is_quota_resource
from allocator.wire.values import MAX_OF_NODE, UNREADABLE, parse_json
from webhook.quotas.limits import device_limits, in_units

MIRROR_LABEL: Final = "quota.koordgate.io/mirror"
UNSTATED: Final = f"{QUOTA_DOMAIN}/unstated"  # on a mirror: the Pods that do not state what it limits, and wait
_SUFFIX: Final = ".koordgate"
_MAX_LENGTH: Final = 253  # characters of a name
_DIGEST: Final = 8
_REQUESTS: Final = "requests."
_NOTHING: Final[Mapping[str, int]] = {}
Raw = dict[str, Any]


class Listed(NamedTuple):
    """The Pods that do not state what a mirror limits, and are not bound yet."""

    # UID -> resource that quotas count -> the most that the Pod may hold of it; in the order of their turns
    pods: Mapping[str, Mapping[str, int]]
    seen: int = 0  # the revision of the API server up to which whoever wrote it had seen all Pods


NOBODY: Final = Listed({})


class Term(NamedTuple):
    """One limit of a quota, in a resource that quotas count."""

    key: str  # of `spec.hard`
    name: str  # the resource that it names
    resource: str  # that quotas count
    most: int  # the limit in its unit
    before: int  # what the quota counts by the name of Pods from before the installation

    @property
    def own(self) -> bool:
        """Whether the quota itself names what quotas count."""
        return self.name == self.resource


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
    enforced: Mapping[str, str] = field(default_factory=dict)  # what the API server enforces of `hard`
    listed: "Listed" = field(default_factory=lambda: NOBODY)  # of a mirror


def mirror_name(name: str) -> str:
    """Name the mirror of a quota."""
    if len(name) + len(_SUFFIX) <= _MAX_LENGTH:
        return name + _SUFFIX
    digest = sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{name[: _MAX_LENGTH - len(_SUFFIX) - _DIGEST - 1].rstrip('.-')}-{digest}{_SUFFIX}"


def read_quota(obj: Mapping[str, Any], types: DeviceTypes) -> Quota | None:
    """Read a ResourceQuota; None if it concerns no devices and is no mirror."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    stated: Mapping[str, Any] = spec.get("hard") or {}
    names = device_limits(stated, types).keys() | {key for key in stated if _counts(key)}
    mirror = (metadata.get("labels") or {}).get(MIRROR_LABEL) == "true"
    if not (names or mirror):
        return None
    status: Mapping[str, Any] = obj.get("status") or {}
    used: Mapping[str, Any] = status.get("used") or {}
    enforced: Mapping[str, Any] = status.get("hard") or {}
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
        enforced={key: str(enforced[key]) for key in sorted(names & enforced.keys())},
        listed=_read_listed((metadata.get("annotations") or {}).get(UNSTATED)) if mirror else NOBODY,
    )


def _read_listed(text: str | None) -> Listed:
    """Read who waits; nobody if it cannot be read: the mirror is then written anew."""
    try:
        raw = parse_json(text, MAX_OF_NODE)
        pods = {str(uid): {str(name): int(one) for name, one in of.items()} for uid, of in raw["pods"].items()}
        return Listed(pods, int(raw["seen"]))
    except (KeyError, AttributeError, *UNREADABLE):
        return NOBODY


def _counts(key: str) -> bool:
    return key.startswith(_REQUESTS) and is_quota_resource(key.removeprefix(_REQUESTS))


def counted_name(key: str) -> str:
    """Return the resource that translated Pods state for quotas, without its domain; "" if a limit is on another."""
    return key.removeprefix(_REQUESTS).partition("/")[2] if _counts(key) else ""


def limited(quota: Quota, types: DeviceTypes) -> frozenset[str]:
    """The resources that quotas count and that a quota limits, by itself or by its mirror."""
    own = {key.removeprefix(_REQUESTS) for key in quota.hard if _counts(key)}
    return frozenset(own | {one.resource for one in device_limits(quota.hard, types).values()})


def terms(quota: Quota, types: DeviceTypes, written: frozenset[str]) -> Iterator[Term]:
    """The limits of a quota, in the order of keys.

    `written`: device resources that translated Pods still state. The quota counts them there, so that its `used` is no
    sign of Pods from before. Raises QuantityError: the API server has stored an amount that is none.
    """
    named = device_limits(quota.hard, types)
    for key, quantity in quota.hard.items():
        name = key.removeprefix(_REQUESTS)
        if key in named:
            resource, factor = named[key]
            before = 0 if name in written else in_units(quota.used.get(key, "0"), factor)
            yield Term(key, name, resource, in_units(quantity, factor), before)
        elif _counts(key):
            yield Term(key, name, name, in_units(quantity, 1), 0)


def mirrored(
    quota: Quota, types: DeviceTypes, written: frozenset[str], unstated: Mapping[str, int] = _NOTHING
) -> dict[str, int]:
    """What the mirror of a quota limits: resource that quotas count -> amount; empty if it needs none.

    `written`: as for `terms`. `unstated`: key of the quota -> what Pods hold of it, or will, without stating it. Raises
    QuantityError: the API server has stored an amount that is none.
    """
    limits: dict[str, int] = {}
    for term in terms(quota, types, written):
        held = unstated.get(term.key, 0)
        if held or not term.own:
            most = max(term.most - term.before - held, 0)
            limits[term.resource] = min(most, limits.get(term.resource, most))
    return limits


def written_names(types: DeviceTypes, domain: str) -> frozenset[str]:
    """The device resources that translated Pods state, which quotas on them go on counting."""
    built_in = (kind.resource_name(domain, tail) for kind in types.types if kind.domains for tail in kind.tails)
    own = (name for name, meaning in types.resources.items() if not meaning.type.domains)
    return frozenset({*built_in, *own})


def mirror_body(quota: Quota, limits: Mapping[str, int], known: Quota | None, listed: Listed = NOBODY) -> Raw:
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
    if listed.seen:
        metadata["annotations"] = {UNSTATED: json.dumps(listed._asdict(), separators=(",", ":"))}
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


def enforced(known: Quota, limits: Mapping[str, int]) -> bool:
    """Return whether the API server enforces these limits by a mirror, or tighter ones."""
    try:
        return all(parse(known.enforced[_REQUESTS + name]) <= most for name, most in limits.items())
    except (KeyError, QuantityError):
        return False


def is_enforced(known: Quota) -> bool:
    """Return whether the API server enforces all that a mirror limits, or less than that."""
    try:
        return all(parse(known.enforced[key]) <= parse(amount) for key, amount in known.hard.items())
    except (KeyError, QuantityError):
        return False


def used(known: Quota, resource: str) -> int:
    """What the API server counts for a mirror."""
    return in_units(known.used.get(_REQUESTS + resource, "0"), 1)


def may_replace(known: Quota) -> bool:
    """Return whether an object of the mirror's name is one of ours: nobody else's quota is overwritten."""
    return known.mirror or (bool(known.owner) and not known.others and all(_counts(key) for key in known.hard))
