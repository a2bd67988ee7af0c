"""A Pod's whole request: its containers' devices, its CPUs, and how its devices are to be chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from allocator.request.askedlimits import states_limits, with_limits
from allocator.request.cpus import names_cpus, read_cpu_ask
from allocator.request.devices import NO_USERS, PodReading, Stated, names_devices, read_pod, too_many
from allocator.request.npus import foreign_npus
from allocator.request.quotaamounts import counted_of
from allocator.request.selection import read_selection, selecting, with_selection
from allocator.request.sharing import share, unstated_users
from allocator.vocabulary.asks import NO_WISHES, Wishes
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.hints import NO_HINT, Scope, TypeHint
from allocator.vocabulary.limits import REQUIRED
from allocator.vocabulary.names import DEVICE_ORDER, DEVICE_SHARING, ISOLATION_PROVIDER, LIMITS
from allocator.vocabulary.outcome import Problem
from allocator.vocabulary.preference import DeviceOrder
from allocator.vocabulary.sharing import TypeSharing
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT, HINT_ANNOTATIONS, NO_HINTS, PodHints, read_hints
from allocator.wire.devicesharing import read_sharing
from allocator.wire.gang import GANG_ANNOTATIONS, GANG_LABELS, read_gang
from allocator.wire.strict import annotation_path

_LABELS: Final = (*GANG_LABELS, ISOLATION_PROVIDER)
_SAYING: Final = (
    *HINT_ANNOTATIONS,
    DEVICE_ORDER,
    DEVICE_SHARING,
    LIMITS,
    *GANG_ANNOTATIONS,
)  # in addition to those that `names_cpus` knows

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
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    reading = with_limits(_read_devices(pod.get("spec") or {}, annotations, stated, types, slots), annotations)
    cpus = read_cpu_ask(pod, devices=implied and bool(reading.request.containers), types=types)
    problems = [*reading.problems, *cpus.problems]
    if not reading.request.containers:
        found = cpus.ask or cpus.problems
        return replace(reading, cpu=cpus.ask, shared=cpus.shared, problems=tuple(problems)) if found else reading
    hints = read_hints(annotations, types.by_name) if annotations else NO_HINTS
    wishes = NO_WISHES
    if not types.selections.isdisjoint(annotations):
        selection = read_selection(annotations, selecting(pod, types, reading.dialects))
        problems.extend(selection.problems)
        if selection.dialects:
            reading = replace(
                reading,
                warnings=(*reading.warnings, *selection.warnings),
                dialects=tuple(dict.fromkeys((*reading.dialects, *selection.dialects))),
            )
        if selection.hints and isinstance(hints, PodHints):
            hints = replace(hints, hints=with_selection(hints.hints, selection))
    if isinstance(hints, PodHints):
        problems.extend(_spread(reading.sharing, hints.hints))
        order = annotations.get(DEVICE_ORDER, "")
        if order not in {"", *DeviceOrder}:
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
        if said or reading.together or hints is not NO_HINTS:
            wishes = Wishes(
                _on_one_device(hints.hints, reading.together) if reading.together else hints.hints,
                hints.joint,
                hints.partition,
                order,
                gang.name,
                isolation=isolation,
                size=gang.size,
                together=gang.together,
                runtime_class=runtime_class,
                limits=limits == REQUIRED,
            )
    else:
        problems.extend(hints)
    reading = replace(reading, cpu=cpus.ask, shared=cpus.shared, wishes=wishes, problems=tuple(problems))
    if not implied or problems:
        return reading
    return replace(reading, most=counted_of(reading, reading.request, pod.get("spec") or {}))


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
        return replace(reading, problems=(*reading.problems, *sharing))
    filled = {
        kind: one._replace(slot=slots[kind]) if one.users and not one.slot and kind in slots else one
        for kind, one in sharing.items()
    }
    reading = read_pod(spec, stated, types, annotations, unstated_users(filled) or NO_USERS)
    if reading.problems:
        return replace(reading, sharing=filled)
    shared = share(reading.containers, filled, types)
    problems = shared.problems or too_many(shared.containers)
    return replace(
        reading,
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
