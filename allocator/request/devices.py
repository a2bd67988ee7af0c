"""What a Pod asks for, normalised, and every way in which asking can be wrong.

A container's resources are read into one `DeviceAsk`: so many distinct devices, so much of each. Sources: seed
document 1 ("User apply device resources scenarios"), Koordinator's admission and request rules, and Kubernetes' own
rule for the phases of a Pod's life (init containers one by one, sidecars from their start on, then all the rest).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from allocator import quantity
from allocator.vocabulary.asks import NO_WISHES, ContainerAsk, DeviceAsk, PodRequest, Wishes, gpu_ask
from allocator.vocabulary.cpuask import CpuAsk
from allocator.vocabulary.devicetype import BUILT_IN, FULL, GPU_TYPE, DeviceType, DeviceTypes, ResourceName, Unit
from allocator.vocabulary.hints import ExclusiveLevel, Strategy, TypeHint
from allocator.vocabulary.names import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    KUBERNETES_DOMAIN,
    ORIGINAL_REQUEST,
)
from allocator.vocabulary.outcome import Problem
from allocator.vocabulary.phase import Phase

MAX_COUNT: Final = 128  # devices; no node has more, and it bounds the work on an absurd request
_MAPS: Final = ("requests", "limits")
_PERCENT_TAILS: Final = (GPU, GPU_CORE, GPU_MEMORY_RATIO)

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
    stated: Stated = Stated()


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


def names_devices(spec: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> bool:
    """Tell whether any container of a Pod's spec names a device resource, in any amount."""
    known = types.resources
    for _, _, container, _ in _containers(spec):
        resources = container.get("resources") or {}
        for key in _MAPS:
            for name in resources.get(key) or ():
                if name in known:
                    return True
    return False


def read_pod(
    spec: Mapping[str, Any], stated: Mapping[str, Stated] | None = None, types: DeviceTypes = BUILT_IN
) -> PodReading:
    """Read what a Pod's containers ask for.

    Args:
        spec: the Pod's `spec`.
        stated: by container, what the Pod's annotation tells of those that were translated.
        types: that may be asked for.
    """
    problems: list[Problem] = []
    readings = []
    dialects: dict[str, dict[str, str]] = {}
    for path, pointer, container, phase in _containers(spec):
        reading = _read_container(path, pointer, container, phase, stated or {}, types, problems)
        readings.append(reading)
        for name, amount in _amounts(container, reading.names):
            meaning = types.resources[name]
            if not meaning.counts_devices or amount not in (0, "0"):  # no plain device asked is no dialect spoken
                spoken = dialects.setdefault(meaning.type.name, {})
                spoken.setdefault(meaning.dialect, f"{path} asks {name}")
    for kind, spoken in dialects.items():
        if len(spoken) > 1:
            message = (
                f"{kind} devices are asked in {len(spoken)} dialects at once ({', '.join(spoken.values())}); use one"
            )
            problems.insert(0, Problem("spec", message))
    pod_level = spec.get("resources") or {}
    if any(name in types.resources for key in _MAPS for name in pod_level.get(key) or ()):
        message = "devices cannot be asked for the Pod as a whole; ask them in the containers that use them"
        problems.append(Problem("spec.resources", message))
    return PodReading(tuple(readings), tuple(problems))


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any], Phase]]:
    for index, container in enumerate(spec.get("initContainers") or ()):
        phase = Phase.SIDECAR if container.get("restartPolicy") == "Always" else Phase.INIT
        yield f"spec.initContainers[{index}]", f"/spec/initContainers/{index}", container, phase
    for index, container in enumerate(spec.get("containers") or ()):
        yield f"spec.containers[{index}]", f"/spec/containers/{index}", container, Phase.APP


def _amounts(container: Mapping[str, Any], names: Names) -> Iterator[tuple[str, object]]:
    for key, found in zip(_MAPS, names, strict=True):
        for name in found:
            yield name, container["resources"][key][name]


def _read_container(
    path: str,
    pointer: str,
    container: Mapping[str, Any],
    phase: Phase,
    stated: Mapping[str, Stated],
    types: DeviceTypes,
    problems: list[Problem],
) -> ContainerReading:
    resources = container.get("resources") or {}
    requests: Mapping[str, object] = resources.get("requests") or {}
    limits: Mapping[str, object] = resources.get("limits") or {}
    known = types.resources
    name = str(container.get("name", ""))
    names = (tuple(n for n in requests if n in known), tuple(n for n in limits if n in known))
    if not (names[0] or names[1]):
        return ContainerReading(path, pointer, name, phase, names)
    told = _untold(stated.get(name, Stated()), (known[n].tail for n in (*names[0], *names[1])))
    # Kubernetes fills a missing request from the limit; a device's missing limit is its request.
    asked = {**{n: limits[n] for n in names[1]}, **{n: requests[n] for n in names[0]}}
    capped = {**{n: requests[n] for n in names[0]}, **{n: limits[n] for n in names[1]}}
    wanted, most = [], []
    where = f"{path}.resources.{_MAPS[0 if names[0] else 1]}"
    for kind in _types_named(asked, types):
        pair = _read_type((path, where), kind, (asked, capped), told, types, problems)
        wanted += [pair[0]] if pair[0] else []
        most += [pair[1]] if pair[1] else []
    return ContainerReading(path, pointer, name, phase, names, tuple(wanted), tuple(most), told)


def _types_named(asked: Mapping[str, object], types: DeviceTypes) -> Sequence[DeviceType]:
    """The types that these resources are of, in the table's order."""
    named = {types.resources[name].type.name for name in asked}
    return [kind for kind in types.types if kind.name in named]


def _read_type(
    paths: tuple[str, str],
    kind: DeviceType,
    maps: tuple[Mapping[str, object], Mapping[str, object]],
    told: Stated,
    types: DeviceTypes,
    problems: list[Problem],
) -> tuple[DeviceAsk | None, DeviceAsk | None]:
    """Read one type's request and limit from a container's two maps.

    Args:
        paths: of the container, and of the map that its author wrote.
        kind: the type.
        maps: what is asked and what it is limited to, each completed from the other.
        told: by the annotation.
        types: all types.
        problems: added to.
    """
    path, where = paths
    asked, capped = ({name: each[name] for name in each if types.resources[name].type == kind} for each in maps)
    found: list[Problem] = []
    request = _read_ask(where, kind, asked, told, types, found)
    limit = request
    if asked != capped and not found:
        limit = _read_ask(f"{path}.resources.limits", kind, capped, told, types, found)
        if not found:
            _compare(path, [types.resources[n] for n in asked if asked[n] != capped[n]], request, limit, found)
    problems.extend(found)
    return request, limit


def _untold(stated: Stated, tails: Iterable[str]) -> Stated:
    """Leave out gpu.shared where the resources are not as a translation without it leaves them."""
    return replace(stated, shared=None) if {GPU, GPU_SHARED}.intersection(tails) else stated


def _compare(
    path: str,
    differing: Sequence[ResourceName],
    request: DeviceAsk | None,
    limit: DeviceAsk | None,
    problems: list[Problem],
) -> None:
    """Find what Kubernetes would refuse in a request that differs from its limit, in these resources."""
    if request == limit:
        return
    # Extended resources, which are all but those of Kubernetes' own domain, must be asked as they are limited.
    strict = [name for name in differing if name.dialect != KUBERNETES_DOMAIN]
    where = f"{path}.resources"
    if strict:
        name = strict[0].dialect if "/" in strict[0].dialect else f"{strict[0].dialect}/{strict[0].tail}"
        problems.append(Problem(where, f"{name}: the request must equal the limit; write the same amount in both"))
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
    resources: Mapping[str, object],
    stated: Stated,
    types: DeviceTypes,
    problems: list[Problem],
) -> DeviceAsk | None:
    """Normalise one type's resources of one map; None where they ask for nothing or are wrong."""
    tails = _read_tails(where, kind, resources, types, problems)
    if not tails:
        return None
    if kind != GPU_TYPE:
        ask = _normalise_plain(kind, tails[kind.plain])
    else:
        if stated.shared is not None:
            tails[GPU_SHARED] = stated.shared
        ask = _normalise(tails, derived=stated.derived)
    if isinstance(ask, DeviceAsk):
        return ask
    whence = "" if stated.shared is None else f" (gpu.shared {stated.shared} is from annotation {ORIGINAL_REQUEST})"
    problems.append(Problem(where, ask + whence))
    return None


def _read_tails(
    where: str, kind: DeviceType, resources: Mapping[str, object], types: DeviceTypes, problems: list[Problem]
) -> dict[str, int]:
    """Read the amounts of one map by tail; {} where they ask for nothing or are wrong."""
    tails: dict[str, int] = {}
    plain = 0
    for name, text in resources.items():
        meaning = types.resources[name]
        try:
            amount = _read_amount(meaning, text)
        except quantity.QuantityError as error:
            problems.append(Problem(f"{where}[{name}]", str(error)))
            return {}
        if meaning.counts_devices:
            plain = amount
        elif meaning.tail in tails:
            problems.append(Problem(where, f"{meaning.tail} is asked in two domains at once; keep one"))
            return {}
        else:
            tails[meaning.tail] = amount
    if plain and any(tails.values()):
        return {}  # two dialects: the Pod's problem, told once
    return {kind.plain: plain * FULL} if plain else tails  # nvidia.com/gpu: 0 asks for none


def _read_amount(meaning: ResourceName, text: object) -> int:
    amount = quantity.to_int(text)
    if meaning.counts_devices and amount > MAX_COUNT:  # in its own unit; percent are checked further down
        raise quantity.QuantityError(f"{amount} is more devices than any node has; ask {MAX_COUNT} at most")
    return amount


def _normalise_plain(kind: DeviceType, amount: int) -> DeviceAsk | str:
    """Turn the one resource of a type that has no others into an ask, or say what is wrong with it."""
    if not amount:
        return f"{kind.plain} must be greater than zero; or remove it"
    if kind.unit is Unit.UNITS:
        return DeviceAsk(kind, 1, (amount,))
    count = _count({}, [(kind.plain, amount)], amount, 0)
    return count if isinstance(count, str) else DeviceAsk(kind, count, (amount // count,))


def _normalise(tails: Mapping[str, int], *, derived: bool) -> DeviceAsk | str:
    """Turn the tails of one map into an ask, or say in one sentence what is wrong with them."""
    if GPU in tails:
        return _normalise_gpu(tails)
    core, ratio, memory = (tails.get(tail, 0) for tail in (GPU_CORE, GPU_MEMORY_RATIO, GPU_MEMORY))
    if derived and ratio:
        memory = 0
    if ratio and memory:
        return "gpu-memory and gpu-memory-ratio are both asked; keep the one you mean (bytes, or percent of a card)"
    if not (ratio or memory):
        asked = f"gpu-core {core} is asked without memory" if core else "nothing above 0 is asked"
        return f"{asked}; add gpu-memory-ratio (percent of a card) or gpu-memory (bytes), or ask gpu alone for both"
    count = _count(tails, _percents(tails), core, ratio)
    if isinstance(count, str):
        return count
    if memory % count:
        return f"gpu-memory {memory} does not split evenly over {count} devices; ask {_nearest(memory, count)} bytes"
    return gpu_ask(count, core // count, ratio=ratio // count or None, memory=memory // count or None)


def _normalise_gpu(tails: Mapping[str, int]) -> DeviceAsk | str:
    beside = sorted(tail for tail in tails if tail not in {GPU, GPU_SHARED})
    if beside:
        return (
            f"gpu already states core and memory, {' and '.join(beside)} beside it contradicts; keep gpu, or the others"
        )
    amount = tails[GPU]
    if not amount:
        return "gpu must be greater than zero: 50 is half a card, 100 one card, 200 two; or remove it"
    count = _count(tails, _percents(tails), amount, amount)
    return count if isinstance(count, str) else gpu_ask(count, amount // count, ratio=amount // count, memory=None)


def _percents(tails: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(tail, tails[tail]) for tail in _PERCENT_TAILS if tails.get(tail)]


def _count(tails: Mapping[str, int], asked: list[tuple[str, int]], core: int, ratio: int) -> int | str:
    """Find over how many devices an ask spreads, or say why its parts do not agree.

    Args:
        tails: of one map; whether gpu.shared is among them.
        asked: those in percent, with their amounts.
        core: percent of compute asked, 0 for none.
        ratio: percent of memory asked, 0 for none.
    """
    if GPU_SHARED in tails:
        return _count_shared(tails[GPU_SHARED], asked)
    for tail, amount in asked:
        if amount > FULL and amount % FULL:
            low = amount - amount % FULL
            return (
                f"{tail} {amount} is over 100, where only multiples of 100 are whole devices; ask {low} or {low + FULL}"
            )
        if amount > FULL * MAX_COUNT:
            return (
                f"{tail} {amount} is more than {MAX_COUNT} devices, which no node has; ask {FULL * MAX_COUNT} at most"
            )
    counts = [max(amount // FULL, 1) for amount in (core, ratio) if amount]
    if len(set(counts)) > 1:
        return (
            f"gpu-core {core} is {counts[0]} device(s) but gpu-memory-ratio {ratio} is {counts[1]}; "
            "above 100 both must be the same multiple of 100"
        )
    return counts[0] if counts else 1


def _count_shared(shared: int, asked: list[tuple[str, int]]) -> int | str:
    if not 0 < shared <= MAX_COUNT:
        return f"gpu.shared must be from 1 to {MAX_COUNT}, the number of cards to split the request over"
    for tail, amount in asked:
        if amount % shared:
            return f"{tail} {amount} does not split evenly over gpu.shared {shared}; ask {_nearest(amount, shared)}"
        if amount // shared > FULL:
            return (
                f"{tail} {amount} over gpu.shared {shared} is more than 100 of each card; ask {FULL * shared} at most"
            )
    return shared


def _nearest(amount: int, step: int) -> str:
    low = amount - amount % step
    return f"{low} or {low + step}" if low else f"{step}"
