"""What a Pod's containers ask for, normalised, and every way in which asking can be wrong.

A container's resources are read into one `DeviceAsk` a type: so many distinct devices, so much of each. What names
mean is said by dialects; a Pod speaks one dialect of each type (`allocator.request.spoken`), and its amounts become
asks in `allocator.request.normalise`. Of the phases of a Pod's life Kubernetes' own rule holds: init containers one by
one, sidecars from their start on, then all the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from allocator.request.normalise import normalise
from allocator.request.spoken import MAX_COUNT, dialect_of, read_said
from allocator.vocabulary.asks import NO_WISHES, ContainerAsk, DeviceAsk, PodRequest, Wishes
from allocator.vocabulary.cpuask import CpuAsk
from allocator.vocabulary.devicetype import BUILT_IN, FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.dialect import Dialect
from allocator.vocabulary.hints import ExclusiveLevel, Strategy, TypeHint
from allocator.vocabulary.names import ORIGINAL_REQUEST
from allocator.vocabulary.outcome import Problem
from allocator.vocabulary.phase import Phase

_MAPS: Final = ("requests", "limits")
_NPU: Final = "huawei.com/npu-"
_NO_TYPES: Final = DeviceTypes((), ())

Names = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Stated:
    """What the original-request annotation tells of a container that was translated.

    Attributes:
        derived: its author stated no bytes of memory: gpu-memory beside a ratio was stated by us and is no ask.
        shared: over how many cards its author split the ask, where gpu.shared is in none of its resources any more.
    """

    derived: bool = False
    shared: int | None = None


_NOTHING: Final = Stated()


@dataclass(frozen=True, slots=True)
class ContainerReading:
    """One container as read: where it stands and what its two maps say.

    Attributes:
        path: as `spec.containers[0]`.
        pointer: as `/spec/containers/0`.
        name: of the container.
        phase: when it runs.
        names: device resource names found in requests, and in limits.
        requests: the normalised requests, one a type that it asks for, in the order of the table of types.
        limits: the normalised limits of the same types; equal to the requests unless Kubernetes lets them differ.
        stated: what the annotation tells of it, less what its resources say themselves.
    """

    path: str
    pointer: str
    name: str
    phase: Phase
    names: Names
    requests: tuple[DeviceAsk, ...] = ()
    limits: tuple[DeviceAsk, ...] = ()
    stated: Stated = _NOTHING


@dataclass(frozen=True, slots=True)
class PodReading:
    """A Pod as read, and what is wrong with it.

    `request` may only be used where `problems` is empty.

    Attributes:
        containers: all of them, in the Pod's order.
        problems: what is wrong.
        cpu: what is asked of CPUs and NUMA nodes; None where that is left to the kubelet.
        wishes: how the devices are to be chosen.
    """

    containers: tuple[ContainerReading, ...]
    problems: tuple[Problem, ...]
    cpu: CpuAsk | None = None
    wishes: Wishes = NO_WISHES

    @property
    def request(self) -> PodRequest:
        """What the Pod asks for."""
        hints = self.wishes.hints
        asks = (
            ContainerAsk(c.name, c.phase, _hinted(ask, self.wishes.hint(ask.type.name)) if hints else ask)
            for c in self.containers
            for ask in c.requests
        )
        return PodRequest(tuple(asks), self.cpu, self.wishes)


def _hinted(ask: DeviceAsk, hint: TypeHint | None) -> DeviceAsk:
    """Spread an ask over devices as its hint says (Koordinator, pkg/scheduler/plugins/deviceshare).

    ApplyForAll: so much on every device that is selected; RequestsAsCount: on so many devices, 1 of each, or all of
    each where nobody else may use it. Both are for types with one amount; GPUs have gpu.shared for that. Whole devices
    are as many as are asked anyway.
    """
    if hint is None or hint.strategy is None or len(ask.amounts) != 1:
        return ask
    if ask.type.unit is Unit.DEVICES:
        return replace(ask, count=1, every=True) if hint.strategy is Strategy.APPLY_FOR_ALL else ask
    asked, percent = (ask.amounts[0] or 0) * ask.count, ask.type.unit is Unit.PERCENT
    if hint.strategy is Strategy.APPLY_FOR_ALL:
        return replace(ask, count=1, amounts=(min(asked, FULL) if percent else asked,), every=True)
    whole = percent and hint.exclusive is ExclusiveLevel.DEVICE  # of units a device has as many as it tells
    return replace(ask, count=min(asked, MAX_COUNT), amounts=(FULL if whole else 1,))


class _Place(NamedTuple):
    """A container and where it stands."""

    path: str
    pointer: str
    spec: Mapping[str, Any]
    phase: Phase
    names: Names


@dataclass(slots=True)
class _Speech:
    """What the whole Pod says, by which each container is read.

    Attributes:
        types: that may be asked for.
        stated: by container, what the Pod's annotation tells of those that were translated.
        dialects: type's name -> the dialect that the Pod speaks; None where it speaks several.
        told: name of a container -> what the Pod's annotations ask for it.
        problems: what is wrong so far.
    """

    types: DeviceTypes
    stated: Mapping[str, Stated]
    dialects: dict[str, Dialect | None] = field(default_factory=dict)
    told: dict[str, dict[str, object]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def names_devices(
    spec: Mapping[str, Any], types: DeviceTypes = BUILT_IN, annotations: Mapping[str, object] | None = None
) -> bool:
    """Tell whether a Pod names a device resource in any container, or an annotation that asks for devices."""
    known = types.resources
    for key in _MAPS:
        for of in ("initContainers", "containers"):
            for container in spec.get(of) or ():
                for name in (container.get("resources") or {}).get(key) or ():
                    if name in known:
                        return not foreign_npus(spec, types)
    if not annotations or types.annotations.keys().isdisjoint(annotations):
        return False
    return not foreign_npus(spec, types)


def foreign_npus(spec: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> str:
    """Name the first resource of an NPU that a Pod requests and no type has; "" for none.

    Koordinator's names for a share of a Huawei NPU (huawei.com/npu-core, npu-cpu, npu-dvpp) stand beside those for the
    memory of GPUs. Without a type of these names nobody here could count such a share, so the whole Pod is left alone.
    """
    for of in ("initContainers", "containers"):
        for container in spec.get(of) or ():
            for amounts in map((container.get("resources") or {}).get, _MAPS):
                for name, amount in (amounts or {}).items():
                    if name.startswith(_NPU) and name not in types.resources and amount not in (0, "0"):
                        return str(name)
    return ""


def read_pod(
    spec: Mapping[str, Any],
    stated: Mapping[str, Stated] | None = None,
    types: DeviceTypes = BUILT_IN,
    annotations: Mapping[str, object] | None = None,
) -> PodReading:
    """Read what a Pod's containers ask for.

    Args:
        spec: the Pod's `spec`.
        stated: by container, what the Pod's annotation tells of those that were translated.
        types: that may be asked for.
        annotations: of the Pod.
    """
    if foreign_npus(spec, types):
        types = _NO_TYPES
    places = list(_places(spec, types))
    speech = _Speech(types, stated or {})
    voices = _voices(places, types)
    if annotations and types.annotations:
        _hear(annotations, places, speech, voices)
    wrong = [problem for kind, named in voices.items() if (problem := _choose_dialect(kind, named, speech))]
    readings = tuple(_read_container(place, speech) for place in places)
    problems = [*reversed(wrong), *speech.problems]
    pod_level = spec.get("resources") or {}
    if any(name in types.resources for key in _MAPS for name in pod_level.get(key) or ()):
        message = "devices cannot be asked for the Pod as a whole; ask them in the containers that use them"
        problems.append(Problem("spec.resources", message))
    return PodReading(readings, tuple(problems))


def _places(spec: Mapping[str, Any], types: DeviceTypes) -> Iterator[_Place]:
    """List the containers, init containers first."""
    known = types.resources
    for of in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(of) or ()):
            phase = Phase.APP
            if of == "initContainers":
                phase = Phase.SIDECAR if container.get("restartPolicy") == "Always" else Phase.INIT
            resources = container.get("resources") or {}
            requests, limits = (tuple([n for n in resources.get(key) or () if n in known]) for key in _MAPS)
            yield _Place(f"spec.{of}[{index}]", f"/spec/{of}/{index}", container, phase, (requests, limits))


def _voices(places: Sequence[_Place], types: DeviceTypes) -> dict[str, dict[str, str]]:
    """List the names that a Pod writes by type, each with where it stands first."""
    voices: dict[str, dict[str, str]] = {}
    for place in places:
        for key, names in zip(_MAPS, place.names, strict=True):
            for name in names:
                meaning = types.resources[name]
                if meaning.term.counts and place.spec["resources"][key][name] in (0, "0"):
                    continue  # no whole device asked is no dialect spoken
                voices.setdefault(meaning.type.name, {}).setdefault(name, place.path)
    return voices


def _hear(
    annotations: Mapping[str, object], places: Sequence[_Place], speech: _Speech, voices: dict[str, dict[str, str]]
) -> None:
    """Note what annotations ask, and for which container; one that was translated has it in its resources."""
    for key, meaning in speech.types.annotations.items():
        apps = [place for place in places if place.phase is Phase.APP]
        if key not in annotations or not apps:
            continue
        wanted = annotations.get(meaning.dialect.container) if meaning.dialect.container else None
        name = str(apps[0].spec.get("name", "")) if wanted is None else str(wanted)
        if name in speech.stated:
            continue
        if all(place.spec.get("name") != name for place in places):
            path = f"metadata.annotations[{meaning.dialect.container}]"
            speech.problems.append(Problem(path, "names no container of the Pod; write the name of one"))
            continue
        speech.told.setdefault(name, {})[key] = annotations[key]
        voices.setdefault(meaning.type.name, {}).setdefault(key, "metadata.annotations")


def _choose_dialect(kind: str, named: Mapping[str, str], speech: _Speech) -> Problem | None:
    """Find the dialect that a Pod speaks of a type; a problem where it speaks several."""
    types = speech.types
    firsts: dict[str, str] = {}  # dialect's name -> its first name in the Pod
    dialect: Dialect | None = None
    for name in named:
        meaning = types.resources.get(name) or types.annotations[name]
        firsts.setdefault(meaning.dialect.name, name)
        dialect = meaning.dialect
    if len(firsts) > 1:
        dialect = dialect_of(types.by_name[kind], named, types)
    speech.dialects[kind] = dialect
    if dialect is not None:
        return None
    asks = ", ".join(f"{named[name]} asks {name}" for name in firsts.values())
    return Problem("spec", f"{kind} devices are asked in {len(firsts)} dialects at once ({asks}); use one")


def _read_container(place: _Place, speech: _Speech) -> ContainerReading:
    path, pointer, container, phase, names = place
    name = str(container.get("name", ""))
    told = speech.told.get(name, {}) if speech.told else {}
    if not (names[0] or names[1] or told):
        return ContainerReading(path, pointer, name, phase, names)
    types = speech.types
    resources = container.get("resources") or {}
    requests: Mapping[str, object] = resources.get("requests") or {}
    limits: Mapping[str, object] = resources.get("limits") or {}
    stated = _unstated(speech.stated.get(name, _NOTHING), names, types)
    # Kubernetes fills a missing request from the limit; a device's missing limit is its request.
    asked = {**told, **{n: limits[n] for n in names[1]}, **{n: requests[n] for n in names[0]}}
    capped = {**told, **{n: requests[n] for n in names[0]}, **{n: limits[n] for n in names[1]}}
    wanted, most = [], []
    where = f"{path}.resources.{_MAPS[0 if names[0] else 1]}" if names[0] or names[1] else "metadata.annotations"
    kinds = _types_named(asked, types)
    for kind in kinds:
        maps = (asked, capped) if len(kinds) == 1 else (_of(kind, asked, types), _of(kind, capped, types))
        pair = _read_type((path, where), kind, maps, stated, speech)
        wanted += [pair[0]] if pair[0] else []
        most += [pair[1]] if pair[1] else []
    return ContainerReading(path, pointer, name, phase, names, tuple(wanted), tuple(most), stated)


def _of(kind: DeviceType, amounts: Mapping[str, object], types: DeviceTypes) -> dict[str, object]:
    """The amounts of one type."""
    return {name: text for name, text in amounts.items() if _type_of(name, types) is kind}


def _type_of(name: str, types: DeviceTypes) -> DeviceType:
    return (types.resources.get(name) or types.annotations[name]).type


def _types_named(asked: Mapping[str, object], types: DeviceTypes) -> Sequence[DeviceType]:
    """The types that these names are of, in the table's order."""
    named = dict.fromkeys([_type_of(name, types) for name in asked])
    return list(named) if len(named) == 1 else [kind for kind in types.types if kind in named]


def _read_type(
    paths: tuple[str, str],
    kind: DeviceType,
    maps: tuple[Mapping[str, object], Mapping[str, object]],
    stated: Stated,
    speech: _Speech,
) -> tuple[DeviceAsk | None, DeviceAsk | None]:
    """Read one type's request and limit from a container's two maps.

    Args:
        paths: of the container, and of the map that its author wrote.
        kind: the type.
        maps: what is asked of the type and what that is limited to, each completed from the other.
        stated: by the Pod's annotation.
        speech: of the Pod.
    """
    path, where = paths
    asked, capped = maps
    found: list[Problem] = []
    request = _read_ask(where, kind, asked, stated, speech, found)
    limit = request
    if asked != capped and not found:
        limit = _read_ask(f"{path}.resources.limits", kind, capped, stated, speech, found)
        if not found:
            differing = [name for name in asked if asked[name] != capped[name]]
            _compare(path, differing, request, limit, speech.types, found)
    speech.problems.extend(found)
    return request, limit


def _unstated(stated: Stated, names: Names, types: DeviceTypes) -> Stated:
    """Leave out the split where the resources are not as a translation without it leaves them."""
    if stated.shared is None:
        return stated
    for name in (*names[0], *names[1]):
        kind, _, term = types.resources[name]
        if kind.states_memory and term.states in {kind.plain, kind.split}:
            return replace(stated, shared=None)
    return stated


def _compare(
    path: str,
    differing: Sequence[str],
    request: DeviceAsk | None,
    limit: DeviceAsk | None,
    types: DeviceTypes,
    problems: list[Problem],
) -> None:
    """Find what Kubernetes would refuse in a request that differs from its limit, in these resources."""
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
    speech: _Speech,
    problems: list[Problem],
) -> DeviceAsk | None:
    """Normalise one type's amounts of one map; None where they ask for nothing or are wrong."""
    said = read_said(where, kind, speech.dialects.get(kind.name), amounts, speech.types, problems)
    if said is None:
        return None
    shared = stated.shared if kind.states_memory else None
    if shared is not None:
        said.tails[kind.split] = shared
    ask = normalise(kind, said, derived=stated.derived and kind.states_memory)
    if isinstance(ask, DeviceAsk):
        return ask
    whence = "" if shared is None else f" ({kind.split} {shared} is from annotation {ORIGINAL_REQUEST})"
    problems.append(Problem(where, ask + whence))
    return None
