"""What a Pod asks for, normalised, and every way in which asking can be wrong.

A container's resources are read into one `DeviceAsk`: so many distinct devices, so much of each. Sources: seed
document 1 ("User apply device resources scenarios"), Koordinator's admission and request rules, and Kubernetes' own
rule for the phases of a Pod's life (init containers one by one, sidecars from their start on, then all the rest).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from allocator import quantity
from allocator.device import FULL
from allocator.names import (
    DEVICE_RESOURCES,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    KOORDINATOR_DOMAIN,
    NVIDIA_GPU,
    ORIGINAL_REQUEST,
    TYPE_GPU,
)
from allocator.outcome import Problem

MAX_COUNT: Final = 128  # devices; no node has more, and it bounds the work on an absurd request
_MAPS: Final = ("requests", "limits")
_PERCENT_TAILS: Final = (GPU, GPU_CORE, GPU_MEMORY_RATIO)
_STRICT_DIALECTS: Final = (NVIDIA_GPU, KOORDINATOR_DOMAIN)  # extended resources: requests must equal limits


class Phase(StrEnum):
    """When a container runs."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """So much of each of `count` distinct devices of one type.

    Attributes:
        type: device type.
        count: distinct devices, 1 or more.
        core: percent of each device's compute, 0 where none was stated.
        ratio: percent of each device's memory; None where bytes were stated.
        memory: bytes of each device's memory; None where a ratio was stated.
    """

    type: str
    count: int
    core: int
    ratio: int | None
    memory: int | None

    @property
    def whole(self) -> bool:
        """Whether it takes devices that nobody else may share."""
        return self.core == FULL and self.ratio == FULL


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """What one container asks, and when it runs."""

    name: str
    phase: Phase
    ask: DeviceAsk


@dataclass(frozen=True, slots=True)
class PodRequest:
    """The containers of a Pod that ask for devices: init containers and sidecars in their order, then apps."""

    containers: tuple[ContainerAsk, ...]

    def __bool__(self) -> bool:
        """Tell whether anything is asked."""
        return bool(self.containers)


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
        request: the normalised request; None where it asks for none.
        limit: the normalised limit; equal to the request unless Kubernetes lets them differ.
        stated: what the annotation tells of it, less what its resources say themselves.
    """

    path: str
    pointer: str
    name: str
    phase: Phase
    names: tuple[tuple[str, ...], tuple[str, ...]]
    request: DeviceAsk | None
    limit: DeviceAsk | None
    stated: Stated = Stated()


@dataclass(frozen=True, slots=True)
class PodReading:
    """A Pod's containers as read, and what is wrong with them.

    `request` may only be used where `problems` is empty.
    """

    containers: tuple[ContainerReading, ...]
    problems: tuple[Problem, ...]

    @property
    def request(self) -> PodRequest:
        """What the Pod asks for."""
        return PodRequest(tuple(ContainerAsk(c.name, c.phase, c.request) for c in self.containers if c.request))


def names_devices(spec: Mapping[str, Any]) -> bool:
    """Tell whether any container of a Pod's spec names a device resource, in any amount."""
    for _, _, container, _ in _containers(spec):
        resources = container.get("resources") or {}
        for key in _MAPS:
            for name in resources.get(key) or ():
                if name in DEVICE_RESOURCES:
                    return True
    return False


def read_pod(spec: Mapping[str, Any], stated: Mapping[str, Stated] | None = None) -> PodReading:
    """Read what a Pod's containers ask for.

    Args:
        spec: the Pod's `spec`.
        stated: by container, what the Pod's annotation tells of those that were translated.
    """
    problems: list[Problem] = []
    readings = []
    dialects: dict[str, str] = {}
    for path, pointer, container, phase in _containers(spec):
        reading = _read_container(path, pointer, container, phase, stated or {}, problems)
        readings.append(reading)
        for name, amount in _amounts(container, reading.names):
            if name != NVIDIA_GPU or amount not in (0, "0"):  # no plain device asked is no dialect spoken
                dialects.setdefault(DEVICE_RESOURCES[name][0], f"{path} asks {name}")
    if len(dialects) > 1:
        told = ", ".join(dialects.values())
        problems.insert(0, Problem("spec", f"devices are asked in {len(dialects)} dialects at once ({told}); use one"))
    pod_level = spec.get("resources") or {}
    if any(name in DEVICE_RESOURCES for key in _MAPS for name in pod_level.get(key) or ()):
        message = "devices cannot be asked for the Pod as a whole; ask them in the containers that use them"
        problems.append(Problem("spec.resources", message))
    return PodReading(tuple(readings), tuple(problems))


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any], Phase]]:
    for index, container in enumerate(spec.get("initContainers") or ()):
        phase = Phase.SIDECAR if container.get("restartPolicy") == "Always" else Phase.INIT
        yield f"spec.initContainers[{index}]", f"/spec/initContainers/{index}", container, phase
    for index, container in enumerate(spec.get("containers") or ()):
        yield f"spec.containers[{index}]", f"/spec/containers/{index}", container, Phase.APP


def _amounts(
    container: Mapping[str, Any], names: tuple[tuple[str, ...], tuple[str, ...]]
) -> Iterator[tuple[str, object]]:
    for key, found in zip(_MAPS, names, strict=True):
        for name in found:
            yield name, container["resources"][key][name]


def _read_container(
    path: str,
    pointer: str,
    container: Mapping[str, Any],
    phase: Phase,
    stated: Mapping[str, Stated],
    problems: list[Problem],
) -> ContainerReading:
    resources = container.get("resources") or {}
    requests: Mapping[str, object] = resources.get("requests") or {}
    limits: Mapping[str, object] = resources.get("limits") or {}
    name = str(container.get("name", ""))
    names = (tuple(n for n in requests if n in DEVICE_RESOURCES), tuple(n for n in limits if n in DEVICE_RESOURCES))
    if not (names[0] or names[1]):
        return ContainerReading(path, pointer, name, phase, names, None, None)
    told = _untold(stated.get(name, Stated()), (*names[0], *names[1]))
    found: list[Problem] = []
    # Kubernetes fills a missing request from the limit; a device's missing limit is its request.
    asked = {**{n: limits[n] for n in names[1]}, **{n: requests[n] for n in names[0]}}
    capped = {**{n: requests[n] for n in names[0]}, **{n: limits[n] for n in names[1]}}
    request = _read_ask(f"{path}.resources.requests" if names[0] else f"{path}.resources.limits", asked, told, found)
    limit = request
    if asked != capped and not found:
        limit = _read_ask(f"{path}.resources.limits", capped, told, found)
        if not found:
            _compare(path, [n for n in asked if asked[n] != capped[n]], request, limit, found)
    problems.extend(found)
    return ContainerReading(path, pointer, name, phase, names, request, limit, told)


def _untold(stated: Stated, names: Iterable[str]) -> Stated:
    """Leave out gpu.shared where the resources are not as a translation without it leaves them."""
    tails = {DEVICE_RESOURCES[name][1] for name in names}
    return replace(stated, shared=None) if tails & {GPU, GPU_SHARED} else stated


def _compare(
    path: str,
    differing: Sequence[str],
    request: DeviceAsk | None,
    limit: DeviceAsk | None,
    problems: list[Problem],
) -> None:
    """Find what Kubernetes would refuse in a request that differs from its limit, in these resources."""
    if request == limit:
        return
    strict = [name for name in differing if DEVICE_RESOURCES[name][0] in _STRICT_DIALECTS]
    where = f"{path}.resources"
    if strict:
        problems.append(Problem(where, f"{strict[0]}: the request must equal the limit; write the same amount in both"))
    elif (
        request is None or limit is None or (request.count, request.ratio is None) != (limit.count, limit.ratio is None)
    ):
        message = "request and limit must ask for the same number of devices in the same form; write the same in both"
        problems.append(Problem(where, message))
    elif any(low > high for low, high in zip(_figures(request), _figures(limit), strict=True)):
        problems.append(Problem(where, "a request is greater than its limit; raise the limit or lower the request"))


def _figures(ask: DeviceAsk) -> tuple[int, int, int]:
    return (ask.core, ask.ratio or 0, ask.memory or 0)


def _read_ask(where: str, resources: Mapping[str, object], stated: Stated, problems: list[Problem]) -> DeviceAsk | None:
    """Normalise the device resources of one map; None where they ask for nothing or are wrong."""
    tails: dict[str, int] = {}
    plain = 0
    for name, text in resources.items():
        dialect, tail = DEVICE_RESOURCES[name]
        try:
            amount = _read_amount(name, text)
        except quantity.QuantityError as error:
            problems.append(Problem(f"{where}[{name}]", str(error)))
            return None
        if dialect == NVIDIA_GPU:
            plain = amount
        elif tail in tails:
            problems.append(Problem(where, f"{tail} is asked in two domains at once; keep one"))
            return None
        else:
            tails[tail] = amount
    if plain and any(tails.values()):
        return None  # two dialects: the Pod's problem, told once
    if plain:
        tails = {GPU: plain * FULL}
    elif not tails:
        return None  # nvidia.com/gpu: 0 asks for none
    if stated.shared is not None:
        tails[GPU_SHARED] = stated.shared
    ask = _normalise(tails, derived=stated.derived)
    if isinstance(ask, DeviceAsk):
        return ask
    whence = "" if stated.shared is None else f" (gpu.shared {stated.shared} is from annotation {ORIGINAL_REQUEST})"
    problems.append(Problem(where, ask + whence))
    return None


def _read_amount(name: str, text: object) -> int:
    amount = quantity.to_int(text)
    if name == NVIDIA_GPU and amount > MAX_COUNT:  # in its own unit; percent are checked further down
        raise quantity.QuantityError(f"{amount} is more devices than any node has; ask {MAX_COUNT} at most")
    return amount


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
    count = _count(tails, core, ratio)
    if isinstance(count, str):
        return count
    if memory % count:
        return f"gpu-memory {memory} does not split evenly over {count} devices; ask {_nearest(memory, count)} bytes"
    return DeviceAsk(TYPE_GPU, count, core // count, ratio // count or None, memory // count or None)


def _normalise_gpu(tails: Mapping[str, int]) -> DeviceAsk | str:
    beside = sorted(tail for tail in tails if tail not in {GPU, GPU_SHARED})
    if beside:
        return (
            f"gpu already states core and memory, {' and '.join(beside)} beside it contradicts; keep gpu, or the others"
        )
    amount = tails[GPU]
    if not amount:
        return "gpu must be greater than zero: 50 is half a card, 100 one card, 200 two; or remove it"
    count = _count(tails, amount, amount)
    return count if isinstance(count, str) else DeviceAsk(TYPE_GPU, count, amount // count, amount // count, None)


def _count(tails: Mapping[str, int], core: int, ratio: int) -> int | str:
    """Find over how many devices an ask spreads, or say why its parts do not agree."""
    asked = [(tail, tails[tail]) for tail in _PERCENT_TAILS if tails.get(tail)]
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
