"""Names in a Pod that koordgate does not read: of dialects that are off, of device plugins, and misspelt ones.

A device that only a vendor's device plugin and the kubelet can give cannot be in a Pod beside devices of ours:
koordgate decides what its containers see. A misspelt resource, annotation or label is stored by the API server without
a word, and the Pod waits for ever, or gets less than its author thinks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from allocator.quantity import is_zero
from allocator.request.cpus import PRIORITY_CLASS_LABEL, QOS_LABEL
from allocator.request.devices import UnknownName, unknown_names
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialects import Dialect
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
    TYPE_GPU,
    is_allocation_annotation,
    is_quota_resource,
)
from allocator.vocabulary.outcome import Problem, excerpt, meant
from allocator.wire.allocatehint import HINT_ANNOTATIONS
from allocator.wire.gang import GANG_ANNOTATIONS, GANG_LABELS
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC


class Foreign(NamedTuple):
    """Names of a device plugin."""

    name: str  # of a resource, or how names begin
    begins: bool  # whether other names begin with it
    what: str
    cure: str = ""  # what makes koordgate allocate such devices; "" for nothing
    # the type of the devices of koordgate's that the plugin would give to whoever asks for these; "" for none
    of: str = ""

    def has(self, name: str) -> bool:
        """Return whether a resource is one of these."""
        return name.startswith(self.name) if self.begins else name == self.name


# NVIDIA/k8s-device-plugin: MIG strategies and renamed replicas; nebuly-ai/nos: slices of a card by MPS.
FOREIGN: Final = (
    Foreign("nvidia.com/mig-", True, "MIG devices"),
    Foreign("nvidia.com/gpu.shared", False, "replicas of a card, whose size only the node knows", of=TYPE_GPU),
    Foreign("nvidia.com/gpu-", True, "slices of a card", of=TYPE_GPU),
    Foreign("huawei.com/Ascend", True, "NPUs", "declare a type with these names in devices.types"),
    Foreign("huawei.com/npu", True, "NPUs", "declare a type with these names in devices.types"),
)
_BEGINNINGS: Final = tuple(one.name for one in FOREIGN)


def foreign_of(name: str) -> Foreign | None:
    """What a name counts that only a device plugin gives; None for any other name."""
    if not name.startswith(_BEGINNINGS):  # a Pod may state thousands of names
        return None
    return next((one for one in FOREIGN if one.has(name)), None)


OWN_DOMAIN: Final = "koordgate.io"
KEY_DOMAINS: Final = (OWN_DOMAIN, "koordinator.sh")
"""The domains of keys that are looked at, with those below them. Koordinator has keys that koordgate does not read."""

ANNOTATIONS: Final = (
    *(RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC, *HINT_ANNOTATIONS, *GANG_ANNOTATIONS),
    *(DEVICE_SHARING, DEVICE_ORDER, LIMITS, NUMA_SCOPE, OWN_CPUS),
    *(ORIGINAL_REQUEST, DIALECT, DEVICE_ALLOCATED, RESOURCE_STATUS, DEVICE_QUOTAS),
    "koordgate.io/assumed",  # of simulate
)
"""Annotations of a Pod that koordgate reads or writes, but for those with a container's name."""

LABELS: Final = (QOS_LABEL, PRIORITY_CLASS_LABEL, ISOLATION_PROVIDER, *GANG_LABELS, "koordgate.io/probe")
"""Labels of a Pod."""

_PAIRS: Final = (("annotations", "labels", ANNOTATIONS, LABELS), ("labels", "annotations", LABELS, ANNOTATIONS))

OTHERS: Final = frozenset(
    {"koordinator.sh/priority", "quota.scheduling.koordinator.sh/name", "scheduling.koordinator.sh/eviction-cost"}
)
"""Annotations and labels of others, which are like ones that koordgate reads, or which it reads as they do."""

_ENDS: Final = tuple(f".{one}" for one in KEY_DOMAINS)
_PART: Final = "koord"  # of each of them; most keys lack it
_NODES: Final = "node.koordinator.sh"
_SHORT: Final = 8  # letters: so short a key means something else in each domain, as "name" and "mode"
_MAX: Final = 8  # names of one Pod that are told
MAX_READ: Final = 16  # resources, annotations and labels of one Pod, each, that are compared


def find_misspelt(
    pod: Mapping[str, Any], types: DeviceTypes, unknown: Iterable[UnknownName] | None = None, *, ours: bool = False
) -> list[str]:
    """Find names that nobody reads, with the name that was meant; at most eight.

    `types`: the table for its namespace; names of dialects that are off are known too. `unknown`: its `unknown_names`,
    if they are known already. `ours`: whether koordgate gives devices to the Pod: unknown names of other products are
    then told too.
    """
    stated = unknown_names(pod.get("spec") or {}, types) if unknown is None else unknown
    told = chain(_resources(stated, types, ours=ours), _keys(pod.get("metadata") or {}))
    return list(islice(told, _MAX))


def find_misspelt_resources(unknown: Iterable[UnknownName], types: DeviceTypes) -> list[str]:
    """Find those of a Pod's unknown names that are near to one that is read; at most eight. `types`: as above."""
    return list(islice(_resources(unknown, types, ours=False), _MAX))


def find_misspelt_keys(metadata: Mapping[str, Any], known: Mapping[str, Iterable[str]]) -> list[str]:
    """Find annotations and labels of an object that is no Pod, which are near to one that is read; at most eight.

    `known`: "annotations" and "labels" -> the keys that somebody reads or writes there.
    """
    told = (
        f"metadata.{of}[{excerpt(key)}]: nobody reads it; did you mean {name}?"
        for of, keys in known.items()
        for key in sorted(key for key in metadata.get(of) or () if is_ours(key) and key not in keys)[:MAX_READ]
        if (name := _meant_key(key, keys))
    )
    return list(islice(told, _MAX))


def _resources(unknown: Iterable[UnknownName], types: DeviceTypes, *, ours: bool) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for path, name, amount in unknown:
        if name in types.known.resources or ("/" not in name and not any(kind.name in name for kind in types.types)):
            continue  # as hugepages-2Mi
        if is_quota_resource(name) or (path, name) in seen or is_zero(amount):
            continue
        seen.add((path, name))
        if len(seen) > MAX_READ:
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
    for of, other, known, others in _PAIRS:
        stated: Iterable[str] = metadata.get(of) or ()
        strange = [key for key in stated if _PART in key and is_ours(key) and key not in known and key not in OTHERS]
        for key in sorted(strange)[:MAX_READ]:
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


class Off(NamedTuple):
    """A dialect that is off, and where a Pod first uses it."""

    dialect: Dialect  # as the table has it
    path: str  # of the container, or of the Pod's annotations
    name: str  # the resource or annotation


@dataclass(frozen=True, slots=True)
class Unread:
    """What is not read of a Pod."""

    dialects: tuple[Off, ...] = ()  # those that are off
    resources: bool = False  # whether a container uses one of them; otherwise only annotations do
    selections: tuple[tuple[Dialect, str], ...] = ()  # annotations that choose among devices, of dialects that are off
    foreign: tuple[tuple[str, str, Foreign], ...] = ()  # names that no dialect has: place, name, and what it is
    unknown: tuple[UnknownName, ...] = field(default=(), compare=False)  # all that containers state in unread names


NOTHING: Final = Unread()


def find_unread(pod: Mapping[str, Any], types: DeviceTypes, unknown: Sequence[UnknownName] | None = None) -> Unread:
    """Find what a Pod states in names that are not read.

    `unknown`: its `unknown_names`, if they are known already.
    """
    annotations: Mapping[str, object] = (pod.get("metadata") or {}).get("annotations") or {}
    stated = unknown_names(pod.get("spec") or {}, types) if unknown is None else unknown
    known = types.known.resources
    dialects: dict[str, Off] = {}
    foreign: dict[tuple[str, str, Foreign], None] = {}
    for path, name, amount in stated:
        if name in known:
            if not is_zero(amount):
                dialects.setdefault(known[name].dialect.name, Off(known[name].dialect, path, name))
        elif (found := foreign_of(name)) is not None:
            foreign.update({} if is_zero(amount) else {(path, name, found): None})
    resources = bool(dialects)
    for off in _annotated(annotations, types) if annotations else ():
        dialects.setdefault(off.dialect.name, off)
    chooses = annotations and not types.selections.isdisjoint(annotations)
    if not (stated or dialects or chooses):
        return NOTHING
    selections = tuple(_selections(annotations, types)) if chooses else ()
    return Unread(tuple(dialects.values()), resources, selections, tuple(foreign), tuple(stated))


class Taken(NamedTuple):
    """A resource by which another product would give a Pod devices of koordgate's."""

    name: str
    dialect: str  # that has it, which is off; "" for none
    type: str  # of the devices, by name
    vendor: str  # whose devices are meant; "": anybody's


def taken_by_others(spec: Mapping[str, Any], types: DeviceTypes) -> tuple[Taken, ...]:
    """Find by which resources other products would give a Pod devices of koordgate's, the first of each dialect."""
    found: dict[tuple[str, str], Taken] = {}
    for _, name, amount in unknown_names(spec, types):
        meaning = types.known.resources.get(name)
        if meaning is not None and (meaning.term.states or meaning.term.template):
            taken = Taken(name, meaning.dialect.name, meaning.type.name, meaning.dialect.vendor)
        elif meaning is None and (foreign := foreign_of(name)) is not None and foreign.of:
            taken = Taken(name, "", foreign.of, "")
        else:
            continue
        if not is_zero(amount):
            found.setdefault((taken.dialect, taken.type), taken)
    return tuple(found.values())


def _annotated(annotations: Mapping[str, object], types: DeviceTypes) -> Iterator[Off]:
    """List the annotations that would ask for devices if a dialect were on."""
    for key in types.known.annotations.keys() & annotations.keys():
        if key not in types.annotations:
            yield Off(types.known.annotations[key].dialect, "metadata.annotations", key)
    for key in annotations if types.known.beginnings != types.beginnings else ():
        form = types.known.form_of(key)
        if form is not None and types.form_of(key) is None:
            yield Off(form[0], "metadata.annotations", key)


def _selections(annotations: Mapping[str, object], types: DeviceTypes) -> Iterator[tuple[Dialect, str]]:
    """List the annotations that would choose among devices if a dialect were on."""
    read = {key for one in types.dialects for key in one.selects.keys}
    for dialect in types.off:
        for key in dialect.selects.keys:
            if key in annotations and key not in read:
                read.add(key)
                yield dialect, key


def beside_ours(unread: Unread, types: DeviceTypes) -> Iterator[Problem]:
    """Find what cannot be in a Pod to which koordgate gives devices."""
    for at, (path, name, what) in enumerate(unread.foreign):
        meant = meant_resource(name, types.known) if at < MAX_READ else ""
        yield Problem(
            path,
            f"{name} counts {what.what}, which the vendor's device plugin gives, and koordgate decides what every "
            f"container of this Pod sees; ask for them in a Pod of their own{meant}",
        )
    for off in unread.dialects:
        if unread.resources:
            yield Problem(
                off.path,
                f"{off.name} is of the dialect {off.dialect}, which is off here, and the Pod also asks in another; "
                "use one",
            )
