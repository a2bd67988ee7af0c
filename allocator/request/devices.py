"""The device requests of a Pod's containers, normalised, and every way in which they can be wrong.

A container's resources are read into one `DeviceAsk` per type: a number of distinct devices, and the amounts of each.
Dialects define what names mean. A Pod uses one dialect per type, and its amounts become asks
(`allocator.request.statedamounts`). The phases of a Pod's life follow Kubernetes' rule: init containers run one by one,
sidecars run from their start on, then all other containers run together. A Pod that requests shares of NPUs that no
declared type has is left alone as a whole.

Koordinator's own scheduler reads the sum of a Pod's GPU requests, and no container's share. Every card of the Pod gets
the same part of the sum (Koordinator, pkg/scheduler/plugins/deviceshare). A Pod whose containers ask for unequal parts
(`unequal_parts`) would be refused on every node, there or in the bind.

Amounts that nobody means are read as written, with a warning: `gpu-memory: 4096` is four thousand bytes, and `gpu: 1`
is one percent of a card.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from allocator.quantity import format_bytes, is_zero, to_int
from allocator.request.cpuamounts import ORDINARY, peak
from allocator.request.selection import Containers, read_annotated
from allocator.request.statedamounts import FEW, MAX_COUNT, Findings, dialect_of, normalise, read_amounts
from allocator.vocabulary.asks import (
    NO_WISHES,
    ContainerAsk,
    DeviceAsk,
    ExclusiveLevel,
    PodRequest,
    Strategy,
    TypeHint,
    TypeSharing,
    Wishes,
)
from allocator.vocabulary.cpunode import CpuAsk
from allocator.vocabulary.delivery import AskedLimit
from allocator.vocabulary.devicetype import BUILT_IN, FULL, DeviceType, DeviceTypes, ResourceName, Unit
from allocator.vocabulary.dialects import Dialect, Term
from allocator.vocabulary.names import (
    DEVICE_ALLOCATED,
    DEVICE_SHARING,
    NVIDIA_GPU,
    ORIGINAL_REQUEST,
    RESOURCE_MAPS,
    TYPE_GPU,
    Phase,
)
from allocator.vocabulary.outcome import Problem, excerpt

_LEAST: Final = 64 * 2**20  # bytes; a process that opens a card takes more for itself
_MAX: Final = 2**40  # bytes; no card has as much
_MIB: Final = 2**20
_LARGER: Final = (2**10, 2**20, 2**30)


def odd_amounts(where: str, ask: DeviceAsk, dialect: Dialect | None, amounts: Mapping[str, object]) -> Iterator[str]:
    """Warn of less of a device than any program can use and of more than any has, with what was probably meant.

    `amounts`: name -> amount as written.
    """
    kind = ask.type
    if dialect is None:
        return
    yield from _few_percent(where, kind, dialect, amounts)
    if not kind.memory:
        return
    size = kind.memory[0]
    each = ask.amount(size)
    if not each or _LEAST <= each < _MAX:
        return
    for name, text in amounts.items():
        term = dialect.by_name.get(name)
        if term is None or term.states != size:
            continue
        if each >= _MAX:
            yield from _other_unit(f"{where}[{name}]", f"{excerpt(text)} is {_bytes(each)}", kind, dialect, term)
            continue
        step = next(one for one in _LARGER if each * one >= _LEAST)  # of 1 byte, the last
        meant = format_bytes(each * ask.count * step) if term.factor == 1 else each * step // term.factor
        yield (
            f"{where}[{name}]: {excerpt(text)} is {_bytes(each)} of memory of each {kind.noun}, which no program can "
            f"use; did you mean {meant}?"
        )


def _other_unit(place: str, said: str, kind: DeviceType, dialect: Dialect, term: Term) -> Iterator[str]:
    """Warn of memory in GiB that an installation of the product probably counts in MiB."""
    if term.sized and term.factor > _MIB:
        yield (
            f"{place}: {said} of memory of each {kind.noun}, which none has; where {dialect.title} counts MiB, an "
            f"administrator sets dialects.{dialect.name}.memoryUnit: 1Mi"
        )


def _few_percent(where: str, kind: DeviceType, dialect: Dialect, amounts: Mapping[str, object]) -> Iterator[str]:
    """Warn of a percentage that is probably a number of devices."""
    if not dialect.own or kind.unit is not Unit.PERCENT:
        return
    for name, text in amounts.items():
        term = dialect.by_name.get(name)
        if term is None or term.states != kind.plain or term.counts or term.template:
            continue
        number = to_int(text)
        if 0 < number <= FEW:
            whole = f"a whole {kind.noun} is" if number == 1 else f"{number} whole {kind.noun}s are"
            plain = f" (or {NVIDIA_GPU}: {number})" if kind.name == TYPE_GPU else ""
            yield (f"{where}[{name}]: {number} is {number} percent of a {kind.noun}; {whole} {number * FULL}{plain}")


def _bytes(amount: int) -> str:
    text = format_bytes(amount)
    return text if not text.isdigit() else f"{text} bytes"


class UnknownName(NamedTuple):
    """A resource that a container states and no type has, other than CPU, memory and disk."""

    path: str  # of the container
    name: str
    amount: object  # as written


_NPU: Final = "huawei.com/npu-"


def foreign_npus(spec: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> str:
    """Name the first resource of an NPU that a Pod requests and no type has; "" for none.

    Koordinator's names for a share of a Huawei NPU (huawei.com/npu-core, npu-cpu, npu-dvpp) are used beside those for
    the memory of GPUs. Without a type of these names such a share could not be counted, so the whole Pod is left alone.
    """
    return foreign_npu(unknown_names(spec, types))


def foreign_npu(unknown: Iterable[UnknownName]) -> str:
    """The same of the names that no type has."""
    return next((one.name for one in unknown if one.name.startswith(_NPU) and not is_zero(one.amount)), "")


def unknown_names(spec: Mapping[str, Any], types: DeviceTypes) -> list[UnknownName]:
    """List what a Pod's containers state in names that no type has: init containers first, and requests."""
    return _StatedNames(spec, types).unknown


MAX_ASKING: Final = 64  # containers of a Pod that may ask for devices: each is named in the node's record
_NO_TYPES: Final = DeviceTypes((), ())
NO_USERS: Final[Mapping[str, Collection[str]]] = MappingProxyType({})

Names = tuple[tuple[str, ...], tuple[str, ...]]


class Stated(NamedTuple):
    """What the original-request annotation states about a container that was translated."""

    # its author stated no bytes of memory, so gpu-memory beside a ratio was added by admission and is no ask
    derived: bool = False
    # over how many cards its author split the ask, if its resources no longer contain gpu.shared
    shared: int | None = None
    one_device: tuple[str, ...] = ()  # the types of which its dialect lets all containers of the Pod share one device
    # (type's name, vendor) pairs of the types whose devices its dialect wants of one vendor
    vendors: tuple[tuple[str, str], ...] = ()
    types: tuple[str, ...] = ()  # names of the types of which its author stated an amount


_NOTHING: Final = Stated()


class ContainerReading(NamedTuple):
    """One container as read: its position in the Pod, and the contents of its two maps."""

    path: str  # as `spec.containers[0]`
    pointer: str  # as `/spec/containers/0`
    name: str
    phase: Phase
    names: Names  # the names of device resources in requests, and those in limits
    # the normalised requests, one per type that it asks for, in the order of the table of types
    requests: tuple[DeviceAsk, ...] = ()
    # the normalised limits of the same types; equal to the requests unless Kubernetes lets them differ
    limits: tuple[DeviceAsk, ...] = ()
    stated: Stated = _NOTHING  # what the annotation states about it, without what its resources state themselves


class PodReading(NamedTuple):
    """A Pod as read, and what is wrong with it.

    `request` may only be used if `problems` is empty.
    """

    containers: tuple[ContainerReading, ...]  # all of them, in the Pod's order
    problems: tuple[Problem, ...]
    cpu: CpuAsk | None = None  # the request for CPUs and NUMA nodes; None if these are left to the kubelet
    wishes: Wishes = NO_WISHES  # how the devices are to be chosen
    # names of the types of which several containers ask for a part, and must share one device
    one_device: frozenset[str] = frozenset()
    # type's name -> how the Pod's annotation says that containers share it; None without the annotation
    sharing: Mapping[str, TypeSharing] | None = None
    # the groups of containers that ask for devices of these types together, in the Pod's order
    groups: tuple[ContainerAsk, ...] = ()
    most: tuple[tuple[str, int], ...] = ()  # as `PodRequest.most`
    warnings: tuple[str, ...] = ()  # what is read otherwise than its author may think, a sentence each
    dialects: tuple[Dialect, ...] = ()  # the dialects that its names are in
    # (container, limit) pairs: the most memory that it may use of each of its GPUs, where that is more than it asks for
    limits: tuple[tuple[str, AskedLimit], ...] = ()
    # names of the containers that run in the shared pool, although the Pod has CPUs of its own
    shared: frozenset[str] = frozenset()
    unknown: tuple[UnknownName, ...] = ()  # what its containers state in names that no type has

    @property
    def asks_devices(self) -> bool:
        """Whether the Pod asks for devices."""
        asked = {ask.type.name for one in self.containers for ask in one.requests}
        return bool(self.groups) or not asked.issubset(self.sharing or ())

    @property
    def request(self) -> PodRequest:
        """What the Pod asks for. It is made anew each time."""
        return PodRequest(
            tuple(self._asks()),
            self.cpu,
            self.wishes,
            self.sharing is not None,
            self.most,
            tuple([(container, one.size) for container, one in self.limits if one.size]),
            tuple([(container, one.portion) for container, one in self.limits if one.portion]),
        )

    def _asks(self) -> Iterator[ContainerAsk]:
        """The asks of containers, and those of groups in the place of their first container."""
        hints, shared = self.wishes.hints, self.sharing or {}
        for place, one in enumerate(self.containers):
            if shared:
                yield from (group for group in self.groups if group.members[0].place == place)
            for ask in one.requests:
                if ask.type.name not in shared:
                    hinted = _hinted(ask, self.wishes.hint(ask.type.name)) if hints else ask
                    yield ContainerAsk(one.name, one.phase, hinted)


def _hinted(ask: DeviceAsk, hint: TypeHint | None) -> DeviceAsk:
    """Spread an ask over devices as its hint says (Koordinator, pkg/scheduler/plugins/deviceshare).

    ApplyForAll asks for the amount on every selected device. RequestsAsCount takes the amount as the number of devices,
    and asks for 1 of each, or for all of each if the hint makes devices exclusive. Both are for types with one amount;
    GPUs have gpu.shared instead. An ask for whole devices already states their number.
    """
    if hint is None or hint.strategy is None or len(ask.amounts) != 1:
        return ask
    if ask.type.unit is Unit.DEVICES:
        return replace(ask, count=1, every=True) if hint.strategy is Strategy.APPLY_FOR_ALL else ask
    asked, percent = (ask.amounts[0] or 0) * ask.count, ask.type.unit is Unit.PERCENT
    if hint.strategy is Strategy.APPLY_FOR_ALL:
        return replace(ask, count=1, amounts=(min(asked, FULL) if percent else asked,), every=True)
    whole = percent and hint.exclusive is ExclusiveLevel.DEVICE  # a device counted in units has any number of them
    return replace(ask, count=min(asked, MAX_COUNT), amounts=(FULL if whole else 1,))


class _Place(NamedTuple):
    """A container and its position in the Pod."""

    path: str
    pointer: str
    spec: Mapping[str, Any]
    phase: Phase
    names: Names


class _UsedNames(NamedTuple):
    """The names that a Pod uses for one type, each with its first position: those of an amount, and those of 0."""

    names: dict[str, str]
    zeros: dict[str, str]


@dataclass(slots=True)
class _PodContext:
    """What is known of the whole Pod when a container is read."""

    types: DeviceTypes  # that may be asked for
    # container -> what the original-request annotation states about it, if it was translated
    stated: Mapping[str, Stated]
    # container -> the types that it uses without an amount of its own
    users: Mapping[str, Collection[str]] = field(default_factory=dict)
    # type's name -> the dialect that the Pod uses; None if it uses several
    dialects: dict[str, Dialect | None] = field(default_factory=dict)
    # container -> what the Pod's annotations ask for it
    annotated: dict[str, dict[str, object]] = field(default_factory=dict)
    # container -> the most memory that they let it use of each card
    limits: dict[str, AskedLimit] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)  # what is wrong so far, and what its author is warned about

    def written(self, container: str) -> Collection[str]:
        """Name the types of which admission wrote a container's resources, though it states no amount."""
        stated = self.stated.get(container) if container in self.users else None
        return () if stated is None else [kind for kind in self.users[container] if kind not in stated.types]


def names_devices(
    spec: Mapping[str, Any], types: DeviceTypes = BUILT_IN, annotations: Mapping[str, object] | None = None
) -> bool:
    """Return whether a Pod names a device resource in any container, or has an annotation that asks for devices."""
    known = types.resources
    for key in RESOURCE_MAPS:
        for of in ("initContainers", "containers"):
            for container in spec.get(of) or ():
                for name in (container.get("resources") or {}).get(key) or ():
                    if name in known:
                        return not foreign_npus(spec, types)
    said = annotations and (DEVICE_SHARING in annotations or types.asks_in(annotations))
    return bool(said) and not foreign_npus(spec, types)


def read_pod(
    spec: Mapping[str, Any],
    stated: Mapping[str, Stated] | None = None,
    types: DeviceTypes = BUILT_IN,
    annotations: Mapping[str, object] | None = None,
    users: Mapping[str, Collection[str]] = NO_USERS,
) -> PodReading:
    """Read what a Pod's containers ask for.

    `stated`: container -> what the Pod's annotation states about it, if it was translated. `users`: container -> the
    types that it uses without an amount of its own; what admission wrote of these is not read.
    """
    names = _StatedNames(spec, types)
    unknown = names.unknown
    if unknown and foreign_npu(unknown):
        types = _NO_TYPES
        names = _StatedNames(spec, types)
    places, used = names.places, names.used
    context = _PodContext(types, stated or {}, users)
    if annotations and types.annotated:
        _read_annotations(annotations, places, context, used)
    wrong = [problem for kind, said in used.items() if (problem := _choose_dialect(kind, said, context))]
    readings = tuple([_read_container(place, context) for place in places])
    problems = [*reversed(wrong), *context.findings.problems]
    pod_level = spec.get("resources")
    if pod_level and any(name in types.resources for key in RESOURCE_MAPS for name in pod_level.get(key) or ()):
        message = "devices cannot be asked for the Pod as a whole; ask for them in the containers that use them"
        problems.append(Problem("spec.resources", message))
    problems.extend(too_many(readings))
    return PodReading(
        readings,
        tuple(problems),
        one_device=_on_one_device(readings, context),
        warnings=tuple(dict.fromkeys(context.findings.warnings)),
        dialects=tuple(filter(None, context.dialects.values())),
        limits=tuple(context.limits.items()),
        unknown=tuple(unknown),
    )


def too_many(readings: Sequence[ContainerReading]) -> list[Problem]:
    """Find that more containers of a Pod ask for devices than may."""
    asking = sum([any(reading.names) or bool(reading.requests) for reading in readings])
    if asking <= MAX_ASKING:
        return []
    message = f"{asking} containers ask for devices, and {MAX_ASKING} of a Pod may; ask in fewer of them"
    return [Problem("spec", message)]


def _on_one_device(readings: Sequence[ContainerReading], context: _PodContext) -> frozenset[str]:
    """Name the types of which the Pod's dialect lets all containers share one device, if several ask for a part."""
    named = {kind for kind, dialect in context.dialects.items() if dialect is not None and dialect.one_device}
    for stated in context.stated.values():
        named.update(stated.one_device)
    if not named:
        return frozenset()
    asking = Counter(ask.type.name for reading in readings for ask in reading.requests if not ask.whole)
    return frozenset(kind for kind in named if asking[kind] > 1)


class _StatedNames:
    """The containers of a Pod, init containers first, and the names that they state amounts of.

    `unknown`: what they state in names that no type has. `used`: type's name -> the names that the Pod uses for it.
    """

    __slots__ = ("_known", "places", "unknown", "used")

    def __init__(self, spec: Mapping[str, Any], types: DeviceTypes) -> None:
        self._known = types.resources
        self.places: list[_Place] = []
        self.unknown: list[UnknownName] = []
        self.used: dict[str, _UsedNames] = {}
        for of in ("initContainers", "containers"):
            for index, container in enumerate(spec.get(of) or ()):
                phase = Phase.APP
                if of == "initContainers":
                    phase = Phase.SIDECAR if container.get("restartPolicy") == "Always" else Phase.INIT
                path = f"spec.{of}[{index}]"
                resources = container.get("resources")
                names: Names = ((), ())
                if resources:
                    names = self._read(path, resources.get("requests")), self._read(path, resources.get("limits"))
                self.places.append(_Place(path, f"/spec/{of}/{index}", container, phase, names))

    def _read(self, path: str, amounts: Mapping[str, object] | None) -> tuple[str, ...]:
        """Read one map of a container; returns the names that a type has."""
        found = []
        for name, amount in amounts.items() if amounts else ():
            if name in self._known:
                found.append(name)
                self._use(path, name, amount)
            elif name not in ORDINARY:
                self.unknown.append(UnknownName(path, name, amount))
        return tuple(found)

    def _use(self, path: str, name: str, amount: object) -> None:
        kind, dialect, term = self._known[name]
        if not (term.states or term.template):
            return
        zero = not dialect.own and is_zero(amount)
        if zero and term.counts:
            return  # 0 whole devices use no dialect
        of = self.used.get(kind.name) or self.used.setdefault(kind.name, _UsedNames({}, {}))
        (of.zeros if zero else of.names).setdefault(name, path)


def _read_annotations(
    annotations: Mapping[str, object], places: Sequence[_Place], context: _PodContext, used: dict[str, _UsedNames]
) -> None:
    """Note what annotations ask, and for which container; a translated container has it in its resources already."""
    every = [str(place.spec.get("name", "")) for place in places]
    first = next((name for name, place in zip(every, places, strict=True) if place.phase is Phase.APP), None)
    if first is None or DEVICE_ALLOCATED in annotations:  # what it holds may be told to other products in their names
        return
    names = Containers(every, first, context.stated)
    for kind, dialect in context.types.annotated:
        own = [key for key, meaning in context.types.annotations.items() if meaning.dialect is dialect]
        asked = read_annotated(annotations, dialect, own, names, context.findings)
        if asked is None:
            continue
        context.annotated.setdefault(asked.container, {}).update(asked.amounts)
        for key in asked.amounts:
            used.setdefault(kind.name, _UsedNames({}, {})).names.setdefault(key, "metadata.annotations")
        if asked.limit is not None:
            context.limits[asked.container] = asked.limit


def _choose_dialect(kind: str, names: _UsedNames, context: _PodContext) -> Problem | None:
    """Find the dialect that a Pod uses for a type; a problem if it uses several, or names that exclude each other."""
    types = context.types
    named = names.names or names.zeros
    known = {first.name: first for first in [_meaning(name, types).dialect for name in named]}
    of = types.by_name[kind]
    if len(known) > 1 or names.zeros:
        dialect = dialect_of(of, (*names.names, *names.zeros), types) or dialect_of(of, named, types)
    else:
        dialect = next(iter(known.values()))
    context.dialects[kind] = dialect
    if dialect is None:
        said: dict[str, list[str]] = {}  # dialect's name -> its names in the Pod, each by its first dialect
        for name in named:
            said.setdefault(_meaning(name, types).dialect.name, []).append(name)
        apart = [n for n, own in said.items() if not any(o.has(own) for o in known.values() if o.name != n)]
        asks = ", ".join(_asks(named, said[one][0], known[one]) for one in apart)
        return Problem("spec", f"{kind} devices are asked for in {len(apart)} dialects at once ({asks}); use one")
    both = [name for name in dialect.either if name in named]
    if len(both) > 1:
        asks = ", ".join(f"{named[name]} asks for {name}" for name in both)
        return Problem(
            "spec", f"{dialect.title} reads one of {' and '.join(dialect.either)} in a Pod ({asks}); use one"
        )
    return None


def _asks(named: Mapping[str, str], name: str, dialect: Dialect) -> str:
    return f"{named[name]} asks for {name}" + (f" of {dialect.title}" if dialect.title else "")


def _read_container(place: _Place, context: _PodContext) -> ContainerReading:
    path, pointer, container, phase, names = place
    name = str(container.get("name", ""))
    annotated = context.annotated.get(name, {}) if context.annotated else {}
    types = context.types
    there = names
    if context.users and (written := context.written(name)):
        own = [tuple([one for one in of if types.resources[one].type.name not in written]) for of in names]
        names = (own[0], own[1])
    if not (names[0] or names[1] or annotated):
        return ContainerReading(path, pointer, name, phase, there)
    resources = container.get("resources") or {}
    requests: Mapping[str, object] = resources.get("requests") or {}
    limits: Mapping[str, object] = resources.get("limits") or {}
    stated = _unstated(context.stated.get(name, _NOTHING), names, types)
    requested, limited = {n: requests[n] for n in names[0]}, {n: limits[n] for n in names[1]}
    # Kubernetes fills a missing request from the limit; a device's missing limit is its request.
    asked, capped = {**annotated, **limited, **requested}, {**annotated, **requested, **limited}
    wanted, most = [], []
    first = RESOURCE_MAPS[0 if names[0] else 1]
    where = f"{path}.resources.{first}" if names[0] or names[1] else "metadata.annotations"
    kinds = _types_named(asked, types)
    for kind in kinds:
        maps = (asked, capped) if len(kinds) == 1 else (_of(kind, asked, types), _of(kind, capped, types))
        pair = _read_type((path, where), kind, maps, stated, context)
        wanted += [pair[0]] if pair[0] else []
        most += [pair[1]] if pair[1] else []
    return ContainerReading(path, pointer, name, phase, there, tuple(wanted), tuple(most), stated)


def _of(kind: DeviceType, amounts: Mapping[str, object], types: DeviceTypes) -> dict[str, object]:
    """The amounts of one type."""
    return {name: text for name, text in amounts.items() if _meaning(name, types).type is kind}


def _meaning(name: str, types: DeviceTypes) -> ResourceName:
    return types.resources.get(name) or types.said[name]


def _types_named(asked: Mapping[str, object], types: DeviceTypes) -> Sequence[DeviceType]:
    """The types that these names belong to, in the table's order."""
    named = {_meaning(name, types).type.name for name in asked}
    return [kind for kind in types.types if kind.name in named]


def _read_type(
    paths: tuple[str, str],
    kind: DeviceType,
    maps: tuple[Mapping[str, object], Mapping[str, object]],
    stated: Stated,
    context: _PodContext,
) -> tuple[DeviceAsk | None, DeviceAsk | None]:
    """Read one type's request and limit from a container's two maps.

    `paths`: of the container, and of the map that its author wrote. `maps`: the type's requests and limits, each
    completed from the other.
    """
    path, where = paths
    asked, capped = maps
    found: list[Problem] = []
    request = _read_ask(where, kind, asked, stated, context, found)
    limit = request
    if asked != capped and not found:
        limit = _read_ask(f"{path}.resources.limits", kind, capped, stated, context, found)
        if not found:
            differing = [name for name in asked if asked[name] != capped[name]]
            _compare(path, differing, request, limit, context.types, found)
    context.findings.problems.extend(found)
    return request, limit


def _unstated(stated: Stated, names: Names, types: DeviceTypes) -> Stated:
    """Leave out the split if the resources cannot be the result of a translation that removed it."""
    if stated.shared is None:
        return stated
    for name in (*names[0], *names[1]):
        kind, dialect, term = types.resources[name]
        if kind.states_memory and (term.states in {kind.plain, kind.split} or not dialect.own):
            return stated._replace(shared=None)
    return stated


def _compare(
    path: str,
    differing: Sequence[str],
    request: DeviceAsk | None,
    limit: DeviceAsk | None,
    types: DeviceTypes,
    problems: list[Problem],
) -> None:
    """Find what Kubernetes would refuse in a request that differs from its limit.

    `differing`: the resources whose request and limit differ.
    """
    if request == limit:
        return
    strict = [name for name in differing if types.resources[name].dialect.equal]
    where = f"{path}.resources"
    if strict:
        message = f"{strict[0]}: the request must equal the limit; write the same amount in both"
        problems.append(Problem(where, message))
    elif request is None or limit is None or _form(request) != _form(limit):
        message = "request and limit must ask for the same number of devices in the same form; write the same in both"
        problems.append(Problem(where, message))
    elif any((low or 0) > (high or 0) for low, high in zip(request.amounts, limit.amounts, strict=True)):
        problems.append(Problem(where, "a request is greater than its limit; raise the limit or lower the request"))


def _form(ask: DeviceAsk) -> tuple[object, ...]:
    return (ask.count, *(amount is None for amount in ask.amounts))


def _read_ask(
    where: str,
    kind: DeviceType,
    amounts: Mapping[str, object],
    stated: Stated,
    context: _PodContext,
    problems: list[Problem],
) -> DeviceAsk | None:
    """Normalise one type's amounts of one map; None if they ask for nothing or are wrong."""
    dialect = context.dialects.get(kind.name)
    told = Findings(problems, context.findings.warnings)
    said = read_amounts(where, kind, dialect, amounts, context.types, told)
    if said is None:
        return None
    shared = stated.shared if kind.states_memory else None
    if shared is not None:
        said.tails[kind.split] = shared
    vendor = dict(stated.vendors).get(kind.name, dialect.vendor if dialect is not None else "")
    ask = normalise(kind, said, derived=stated.derived and kind.states_memory, vendor=vendor)
    if isinstance(ask, DeviceAsk):
        if stated is _NOTHING:  # its author was warned when it was translated
            told.warnings.extend(odd_amounts(where, ask, dialect, amounts))
        return ask
    whence = "" if shared is None else f" ({kind.split} {shared} is from annotation {ORIGINAL_REQUEST})"
    problems.append(Problem(where, ask + whence))
    return None


_CURE: Final = "ask for the same of each card in every container, or give the containers Pods of their own"
_Ask = tuple[ContainerReading, DeviceAsk]


def unequal_parts(containers: Iterable[ContainerReading]) -> list[Problem]:
    """Find the first container whose part of a card is not what Koordinator's scheduler would give it."""
    found: list[_Ask] = [(one, ask) for one in containers for ask in one.requests if ask.type.states_memory]
    for kind in dict.fromkeys(ask.type for _, ask in found):
        asks = [(one, ask) for one, ask in found if ask.type == kind]
        problem = _two_units(kind, asks) or _too_large(kind, asks)
        if problem is not None:
            return [problem]
    return []


def _two_units(kind: DeviceType, asks: list[_Ask]) -> Problem | None:
    """Find memory that one container states in bytes and another in percent."""
    if kind.memory is None:
        return None
    size, ratio = kind.memory
    of_bytes, of_ratio = ([one for one, ask in asks if ask.amount(tail) is not None] for tail in (size, ratio))
    if not (of_bytes and of_ratio):
        return None
    return Problem(
        f"{of_bytes[0].path}.resources",
        f"{size} here and {ratio} in {of_ratio[0].path}: Koordinator's scheduler takes one of them for the whole Pod; "
        "write the same one in every container",
    )


def _too_large(kind: DeviceType, asks: list[_Ask]) -> Problem | None:
    """Find a container that asks for more of a card than an equal part of the Pod's sum."""
    cards = peak((one.phase, ask.count) for one, ask in asks)
    for at, tail in enumerate(kind.tails):
        total = peak((one.phase, (ask.amounts[at] or 0) * ask.count) for one, ask in asks)
        for one, ask in asks:
            own = ask.amounts[at] or 0
            if own * cards > total:
                return Problem(
                    f"{one.path}.resources",
                    f"{tail} {own} of a card, but Koordinator's scheduler gives each of the Pod's {cards} cards the "
                    f"same part of the Pod's {tail} {total}; {_CURE}",
                )
    return None
