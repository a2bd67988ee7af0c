"""Names in a Pod that nobody reads: of resources, annotations and labels that look like koordgate's (pure).

The API server stores them without a word, and the Pod waits for ever, or gets less than its author thinks.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

from allocator.quantity import is_zero
from allocator.request.cpus import PRIORITY_CLASS_LABEL, QOS_LABEL
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.foreign import asked_names, foreign_of
from allocator.vocabulary.meant import meant
from allocator.vocabulary.names import (
    ASKED_LIMIT_PREFIX,
    DEVICE_ALLOCATED,
    DEVICE_ORDER,
    DEVICE_QUOTAS,
    DEVICE_SHARING,
    DIALECT,
    DOMAINS,
    ISOLATION_PROVIDER,
    KUBERNETES_DOMAIN,
    LIMITS,
    MODE_LABEL,
    NUMA_SCOPE,
    ORIGINAL_REQUEST,
    OWN_CPUS,
    RESOURCE_STATUS,
    SELF_TEST,
    is_allocation_annotation,
    is_quota_resource,
)
from allocator.wire.allocatehint import HINT_ANNOTATIONS
from allocator.wire.gang import GANG_ANNOTATIONS, GANG_LABELS
from allocator.wire.resourcespec import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC

OWN_DOMAIN: Final = "koordgate.io"
KEY_DOMAINS: Final = (OWN_DOMAIN, "koordinator.sh")
"""The domains of keys that are looked at, with those below them. Koordinator has keys that koordgate does not read."""

ANNOTATIONS: Final = (
    *(RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC, *HINT_ANNOTATIONS, *GANG_ANNOTATIONS),
    *(DEVICE_SHARING, DEVICE_ORDER, LIMITS, NUMA_SCOPE, OWN_CPUS),
    *(ORIGINAL_REQUEST, DIALECT, SELF_TEST, DEVICE_ALLOCATED, RESOURCE_STATUS, DEVICE_QUOTAS),
    "koordgate.io/assumed",  # of simulate
)
"""Annotations of a Pod that koordgate reads or writes, but for those with a container's name."""

LABELS: Final = (QOS_LABEL, PRIORITY_CLASS_LABEL, ISOLATION_PROVIDER, *GANG_LABELS, "koordgate.io/probe")
"""Labels of a Pod."""

OTHERS: Final = frozenset(
    {"koordinator.sh/priority", "quota.scheduling.koordinator.sh/name", "scheduling.koordinator.sh/eviction-cost"}
)
"""Annotations and labels of others, which are like ones that koordgate reads, or which it reads as they do."""

_ENDS: Final = tuple(f".{one}" for one in KEY_DOMAINS)
_NODES: Final = "node.koordinator.sh"
_SHORT: Final = 8  # letters: so short a key means something else in each domain, as "name" and "mode"
_MOST: Final = 8  # names of one Pod that are told
MOST_READ: Final = 16  # resources, annotations and labels of one Pod, each, that are compared


def find_misspelt(pod: Mapping[str, Any], types: DeviceTypes, *, ours: bool = False) -> list[str]:
    """Find names that nobody reads, with the name that was meant; at most eight.

    `types`: the table for its namespace; names of dialects that are off are known too. `ours`: whether koordgate gives
    devices to the Pod: unknown names of other products are then told too.
    """
    told = chain(_resources(pod.get("spec") or {}, types, ours=ours), _keys(pod.get("metadata") or {}))
    return list(islice(told, _MOST))


def find_misspelt_keys(metadata: Mapping[str, Any], known: Mapping[str, Iterable[str]]) -> list[str]:
    """Find annotations and labels of an object that is no Pod, which are near to one that is read; at most eight.

    `known`: "annotations" and "labels" -> the keys that somebody reads or writes there.
    """
    told = (
        f"metadata.{of}[{excerpt(key)}]: nobody reads it; did you mean {name}?"
        for of, keys in known.items()
        for key in sorted(key for key in metadata.get(of) or () if is_ours(key) and key not in keys)[:MOST_READ]
        if (name := _meant_key(key, keys))
    )
    return list(islice(told, _MOST))


def _resources(spec: Mapping[str, Any], types: DeviceTypes, *, ours: bool) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for path, name, amount in asked_names(spec):
        if name in types.known.resources or ("/" not in name and not any(kind.name in name for kind in types.types)):
            continue  # as cpu, memory
        if is_quota_resource(name) or (path, name) in seen or is_zero(amount):
            continue
        seen.add((path, name))
        if len(seen) > MOST_READ:
            return
        said = meant_resource(name, types.known)
        domain = name.partition("/")[0]
        if said:
            yield f"{path}.resources: {excerpt(name)} is no resource that koordgate reads{said}"
        elif ours and domain in types.known.domains and foreign_of(name) is None:
            read = ", ".join(sorted(one for one in types.resources if one.startswith(f"{domain}/"))) or "none here"
            yield (
                f"{path}: {excerpt(name)} is not read: koordgate gives nothing for it; the Pod waits for a Node that "
                f"reports it. Of {domain} koordgate reads {read}; for a part of a card, write kubernetes.io/gpu-memory "
                "(bytes) and gpu-core (percent) in place of all names of that domain"
            )


def meant_resource(name: str, types: DeviceTypes) -> str:
    """What is said of an unknown resource, as the end of a sentence; "" if it is nothing like a known one."""
    foreign = foreign_of(name)
    if foreign is not None and not foreign.begins:
        return ""
    domain, slash, tail = name.partition("/")
    if not slash:
        domain, tail = KUBERNETES_DOMAIN, name
    by_domain: dict[str, list[str]] = {}
    for known in types.resources:
        of, _, own = known.partition("/")
        by_domain.setdefault(of, []).append(own)
    near = domain if domain in by_domain else meant(domain, by_domain)
    if _within(domain, OWN_DOMAIN):
        near = KUBERNETES_DOMAIN
    tails = by_domain.get(near, [])
    own = tail if tail in tails else meant(tail, tails)
    if own:
        return f"; did you mean {near}/{own}?"
    if near in DOMAINS and any(kind.name in tail.casefold() for kind in types.types):
        return f"; those of {near} are {', '.join(sorted(tails))}"
    return ""


def _keys(metadata: Mapping[str, Any]) -> Iterator[str]:
    pairs = (("annotations", "labels", ANNOTATIONS, LABELS), ("labels", "annotations", LABELS, ANNOTATIONS))
    for of, other, known, others in pairs:
        stated: Iterable[str] = metadata.get(of) or ()
        strange = [key for key in stated if is_ours(key) and key not in known and key not in OTHERS]
        for key in sorted(strange)[:MOST_READ]:
            if of == "annotations" and (is_allocation_annotation(key) or key.startswith(ASKED_LIMIT_PREFIX)):
                continue
            said = _said_of_key(key, of, other, known, others)
            if said:
                yield f"metadata.{of}[{excerpt(key)}]: nobody reads it{said}"


def is_ours(key: str) -> bool:
    """Whether a key is of one of the domains that are looked at."""
    return f".{key.partition('/')[0]}".endswith(_ENDS)


def _within(domain: str, upper: str) -> bool:
    return domain == upper or domain.endswith(f".{upper}")


def _said_of_key(key: str, of: str, other: str, known: Iterable[str], others: Iterable[str]) -> str:
    """What is said of a key that is not read there; "" if it may be another product's."""
    if key in others:
        return f": it is one of a Pod's {other}; write it under metadata.{other}"
    if key == MODE_LABEL:
        return " of a Pod: it is a label of Namespaces"
    if name := _meant_key(key, known):
        return f"; did you mean {name}?"
    if name := _meant_key(key, others):
        return f"; did you mean {name}, one of a Pod's {other}?"
    domain = key.partition("/")[0]
    if domain == _NODES:
        return ": keys of this domain are read on Nodes"
    own = _within(domain, OWN_DOMAIN)
    return f": koordgate has no {of.removesuffix('s')} of this name for Pods; correct or remove it" if own else ""


def _meant_key(key: str, known: Iterable[str]) -> str:
    """The known key with a tail that is near, those of the same domain first."""
    domain, _, tail = key.partition("/")
    by_tail: dict[str, list[str]] = {}
    for one in known:
        if is_ours(one):
            by_tail.setdefault(one.partition("/")[2], []).append(one)
    near = by_tail.get(tail) or by_tail.get(meant(tail, by_tail), [])
    own = next((one for one in near if one.startswith(f"{domain}/")), "")
    return own or (near[0] if near and (len(tail) >= _SHORT or _within(domain, OWN_DOMAIN)) else "")
