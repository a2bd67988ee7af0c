"""A Pod's whole request: its containers' devices, its CPUs, and how its devices are to be chosen.

A limit of memory that its author states for a container is above what the container asks for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from allocator.quantity import QuantityError, format_bytes
from allocator.request.cpus import NO_CPU_ASK, names_cpus, read_cpu_ask
from allocator.request.devices import NO_USERS, PodReading, Stated, foreign_npus, names_devices, read_pod, too_many
from allocator.request.quotaamounts import counted_of
from allocator.request.selection import read_selection, selecting, with_selection
from allocator.request.sharing import share, unstated_users
from allocator.vocabulary.asks import NO_HINT, NO_WISHES, DeviceAsk, DeviceOrder, Scope, TypeHint, TypeSharing, Wishes
from allocator.vocabulary.delivery import REQUIRED, WHOLE, AskedLimit
from allocator.vocabulary.devicetype import BUILT_IN, FULL, DeviceTypes
from allocator.vocabulary.names import (
    ASKED_LIMIT_PREFIX,
    DEVICE_ORDER,
    DEVICE_SHARING,
    ISOLATION_PROVIDER,
    LIMITS,
    TYPE_GPU,
    asked_limit,
)
from allocator.vocabulary.outcome import Problem, excerpt
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT, HINT_ANNOTATIONS, NO_HINTS, PodHints, read_hints
from allocator.wire.gang import GANG_ANNOTATIONS, GANG_LABELS, read_gang
from allocator.wire.podannotations import read_limit, read_sharing, write_limit
from allocator.wire.strict import annotation_path

_MAX_PROBLEMS = 16


def states_limits(annotations: Mapping[str, object]) -> bool:
    """Whether a Pod's annotations state a limit of memory for a container."""
    return any(key.startswith(ASKED_LIMIT_PREFIX) for key in annotations)


def with_limits(reading: PodReading, annotations: Mapping[str, object]) -> PodReading:
    """Add the limits that a Pod's annotations state to those of its dialect, and what is wrong with them.

    A limit that equals what the container asks for changes nothing, and is left out.
    """
    if not (reading.limits or states_limits(annotations)) or not reading.asks_devices:
        return reading
    stated, problems = _stated(reading, annotations)
    asks = {one.name: ask for one in reading.containers for ask in one.requests if ask.type.name == TYPE_GPU}
    others, limits = dict(reading.limits), {}
    for container, one in {**others, **stated}.items():
        told = others.get(container)
        ask = asks.get(container)
        if told is not None and told != one:
            problems.append(_problem(container, f"the Pod's other annotations state {write_limit(told)}; keep one"))
        elif ask is None and container in stated:
            problems.append(_problem(container, "asks for no GPU, so that it has no memory to limit; remove this"))
        elif ask is not None and (least := _least(ask, one)) is not None and container in stated:
            message = (
                f"{excerpt(annotations[asked_limit(container)])} is less than the container asks for of each card; "
                f"write {least} at least, or ask for less"
            )
            problems.append(_problem(container, message))
        elif ask is not None and _least(ask, one) is None and not _is_asked(ask, one):
            limits[container] = one
    problems += _unlike(reading, {**others, **stated})
    return reading._replace(limits=tuple(limits.items()), problems=(*reading.problems, *problems[:_MAX_PROBLEMS]))


def _stated(reading: PodReading, annotations: Mapping[str, object]) -> tuple[dict[str, AskedLimit], list[Problem]]:
    """The limits of the Pod's own annotations, by container."""
    known = {one.name for one in reading.containers}
    stated: dict[str, AskedLimit] = {}
    problems: list[Problem] = []
    for key in sorted(key for key in annotations if key.startswith(ASKED_LIMIT_PREFIX)):
        container = key.removeprefix(ASKED_LIMIT_PREFIX)
        if container not in known:
            problems.append(_problem(container, "names no container of the Pod; write the name of one"))
            continue
        try:
            stated[container] = read_limit(annotations[key])
        except QuantityError as error:
            problems.append(_problem(container, str(error)))
    return stated, problems


def _problem(container: str, message: str) -> Problem:
    return Problem(annotation_path(asked_limit(excerpt(container))), message)


def _least(ask: DeviceAsk, limit: AskedLimit) -> str | None:
    """What a container asks for, if that is more than its limit in the same unit; None if it is not, or not known."""
    size, ratio = _memory(ask)
    if limit.size and size and limit.size < size:
        return format_bytes(size)
    if limit.portion and ratio and limit.portion * FULL < ratio * WHOLE:
        return f"{ratio}%"
    return None


def _is_asked(ask: DeviceAsk, limit: AskedLimit) -> bool:
    """Whether a limit is just what is asked."""
    size, ratio = _memory(ask)
    if limit.size:
        return limit.size == size
    return ratio is not None and limit.portion * FULL == ratio * WHOLE


def _memory(ask: DeviceAsk) -> Sequence[int | None]:
    """The memory that is asked of each card, in bytes and in percent."""
    return [ask.amount(tail) for tail in ask.type.memory or ()] or (None, None)


def _unlike(reading: PodReading, limits: Mapping[str, AskedLimit]) -> Iterator[Problem]:
    """Find containers that share one holding and have different limits."""
    for group in reading.groups:
        names = [member.name for member in group.members]
        limited = next((name for name in names if name in limits), None)
        if group.ask.type.name != TYPE_GPU or limited is None:
            continue
        other = next((name for name in names if limits.get(name) != limits[limited]), None)
        if other is not None:
            yield _problem(
                limited,
                f"container {excerpt(other)} shares what the container holds ({DEVICE_SHARING}), and has another limit "
                "or none; write the same for both",
            )


_LABELS: Final = (*GANG_LABELS, ISOLATION_PROVIDER)
_SAYING: Final = (
    *HINT_ANNOTATIONS,
    DEVICE_ORDER,
    DEVICE_SHARING,
    LIMITS,
    *GANG_ANNOTATIONS,
)  # in addition to those that `names_cpus` knows

_ORDERS: Final = frozenset({"", *DeviceOrder})
NO_SLOTS: Final[Mapping[str, int]] = MappingProxyType({})


def is_ours(pod: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> bool:
    """Return whether a Pod asks for devices or CPU orchestration, readably or not."""
    annotations = (pod.get("metadata") or {}).get("annotations")
    return names_devices(pod.get("spec") or {}, types, annotations) or names_cpus(pod)


def asks_by_metadata(pod: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> bool:
    """Return whether the request depends on labels or annotations, which may change while the Pod waits."""
    metadata = pod.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    saying = any(key in annotations for key in (*_SAYING, *types.selections)) or types.asks_in(annotations)
    return saying or states_limits(annotations) or any(key in labels for key in _LABELS) or names_cpus(pod)


def read_request(
    pod: Mapping[str, Any],
    stated: Mapping[str, Stated],
    types: DeviceTypes = BUILT_IN,
    *,
    implied: bool = True,
    slots: Mapping[str, int] = NO_SLOTS,
) -> PodReading:
    """Read what a Pod asks for.

    `stated`: container -> what its annotation states about it, if it was translated. `implied`: whether what quotas
    count is read, and CPU and memory of a Pod that requests devices and states nothing about CPUs: what a decision
    needs, and admission does not. `slots`: type's name -> percent of one device that users of the type get together if
    the Pod does not state it. Admission writes it into the Pod, so that nobody else needs it.
    """
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    reading = with_limits(_read_devices(pod.get("spec") or {}, annotations, stated, types, slots), annotations)
    asks = reading.asks_devices
    cpus = read_cpu_ask(pod, devices=implied and asks, types=types)
    problems = [*reading.problems, *cpus.problems]
    if not asks:
        found = cpus.ask or cpus.problems
        return reading._replace(cpu=cpus.ask, shared=cpus.shared, problems=tuple(problems)) if found else reading
    hints = read_hints(annotations, types.by_name) if annotations else NO_HINTS
    wishes = NO_WISHES
    if annotations and not types.selections.isdisjoint(annotations):
        selection = read_selection(annotations, selecting(pod, types, reading.dialects))
        problems.extend(selection.problems)
        if selection.dialects:
            reading = reading._replace(
                warnings=(*reading.warnings, *selection.warnings),
                dialects=tuple(dict.fromkeys((*reading.dialects, *selection.dialects))),
            )
        if selection.hints and isinstance(hints, PodHints):
            hints = replace(hints, hints=with_selection(hints.hints, selection))
    if isinstance(hints, PodHints):
        wishes = _read_wishes(pod, reading, hints, problems)
    else:
        problems.extend(hints)
    if cpus is not NO_CPU_ASK or problems or wishes is not NO_WISHES:
        reading = reading._replace(cpu=cpus.ask, shared=cpus.shared, wishes=wishes, problems=tuple(problems))
    if not implied or problems:
        return reading
    return reading._replace(most=counted_of(reading, reading.request, pod.get("spec") or {}))


def _read_wishes(pod: Mapping[str, Any], reading: PodReading, hints: PodHints, problems: list[Problem]) -> Wishes:
    """Read how devices are to be chosen; what is wrong is appended to `problems`."""
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    problems.extend(_spread(reading.sharing, hints.hints))
    order = annotations.get(DEVICE_ORDER, "")
    if order not in _ORDERS:
        message = f"{excerpt(order)!r} is no order of devices; use {', '.join(DeviceOrder)}"
        problems.append(Problem(f"metadata.annotations[{DEVICE_ORDER}]", message))
        order = ""
    limits = annotations.get(LIMITS, "")
    if limits not in {"", REQUIRED}:
        message = f"{excerpt(limits)!r} is not known; write {REQUIRED}, or remove it"
        problems.append(Problem(f"metadata.annotations[{LIMITS}]", message))
    gang = read_gang(pod)
    problems.extend(gang.problems)
    isolation = str((metadata.get("labels") or {}).get(ISOLATION_PROVIDER) or "")
    runtime_class = str((pod.get("spec") or {}).get("runtimeClassName") or "")
    said = order or gang.name or isolation or runtime_class or limits
    if not (said or reading.one_device or hints is not NO_HINTS):
        return NO_WISHES
    return Wishes(
        _on_one_device(hints.hints, reading.one_device) if reading.one_device else hints.hints,
        hints.joint,
        hints.partition,
        order,
        gang.name,
        isolation=isolation,
        size=gang.size,
        all_or_nothing=gang.all_or_nothing,
        runtime_class=runtime_class,
        limits=limits == REQUIRED,
    )


def _read_devices(
    spec: Mapping[str, Any],
    annotations: Mapping[str, object],
    stated: Mapping[str, Stated],
    types: DeviceTypes,
    slots: Mapping[str, int],
) -> PodReading:
    """Read what the containers ask for, alone or in groups."""
    sharing = read_sharing(annotations, types.by_name) if annotations else None
    if sharing is None or foreign_npus(spec, types):
        return read_pod(spec, stated, types, annotations)
    if isinstance(sharing, tuple):
        reading = read_pod(spec, stated, types, annotations)
        return reading._replace(problems=(*reading.problems, *sharing))
    filled = {
        kind: one._replace(slot=slots[kind]) if one.users and not one.slot and kind in slots else one
        for kind, one in sharing.items()
    }
    reading = read_pod(spec, stated, types, annotations, unstated_users(filled) or NO_USERS)
    if reading.problems:
        return reading._replace(sharing=filled)
    shared = share(reading.containers, filled, types)
    problems = shared.problems or too_many(shared.containers)
    return reading._replace(
        containers=tuple(shared.containers),
        problems=tuple(problems),
        sharing=filled,
        groups=tuple(shared.groups),
    )


def _spread(sharing: Mapping[str, TypeSharing] | None, hints: Sequence[tuple[str, TypeHint]]) -> list[Problem]:
    """Find hints that spread a container's amount over devices of a type that containers share."""
    return [
        Problem(
            f"{annotation_path(DEVICE_ALLOCATE_HINT)}.{kind}.allocateStrategy",
            f"spreads a container's amount over devices, and {DEVICE_SHARING} has containers share them; keep one",
        )
        for kind, hint in hints
        if hint.strategy is not None and kind in (sharing or {})
    ]


def _on_one_device(hints: tuple[tuple[str, TypeHint], ...], kinds: frozenset[str]) -> tuple[tuple[str, TypeHint], ...]:
    """Keep all devices of these types on one device each, whatever the Pod's own hints say of their scope."""
    known = dict(hints)
    known.update((kind, replace(known.get(kind, NO_HINT), scope=Scope.DEVICE)) for kind in kinds)
    return tuple(sorted(known.items()))
