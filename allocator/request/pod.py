"""A Pod's whole request: its containers' devices, its CPUs, and how its devices are to be chosen."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from allocator.request.cpus import names_cpus, read_cpu_ask
from allocator.request.devices import PodReading, Stated, names_devices, read_pod
from allocator.request.selection import read_selection, selecting, with_selection
from allocator.vocabulary.asks import NO_WISHES, Wishes
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.hints import NO_HINT, Scope, TypeHint
from allocator.vocabulary.names import DEVICE_ORDER, ISOLATION_PROVIDER
from allocator.vocabulary.outcome import Problem
from allocator.vocabulary.preference import DeviceOrder
from allocator.wire.allocatehint import HINT_ANNOTATIONS, NO_HINTS, PodHints, read_hints
from allocator.wire.gang import GANG_ANNOTATIONS, GANG_LABELS, read_gang

_LABELS: Final = (*GANG_LABELS, ISOLATION_PROVIDER)
_SAYING: Final = (*HINT_ANNOTATIONS, DEVICE_ORDER, *GANG_ANNOTATIONS)  # in addition to those that `names_cpus` knows


def is_ours(pod: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> bool:
    """Return whether a Pod asks for devices or CPU orchestration, readably or not."""
    annotations = (pod.get("metadata") or {}).get("annotations")
    return names_devices(pod.get("spec") or {}, types, annotations) or names_cpus(pod)


def asks_by_metadata(pod: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> bool:
    """Return whether the request depends on labels or annotations, which may change while the Pod waits."""
    metadata = pod.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    saying = any(key in annotations for key in (*_SAYING, *types.annotations, *types.selections))
    return saying or any(key in labels for key in _LABELS) or names_cpus(pod)


def read_request(
    pod: Mapping[str, Any], stated: Mapping[str, Stated], types: DeviceTypes = BUILT_IN, *, implied: bool = True
) -> PodReading:
    """Read what a Pod asks for.

    Args:
        pod: the Pod.
        stated: container -> what its annotation states about it, if it was translated.
        types: that may be asked for.
        implied: whether CPU and memory are read of a Pod that requests devices and states nothing about CPUs: what a
            decision needs, and admission does not.
    """
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    reading = read_pod(pod.get("spec") or {}, stated, types, annotations)
    cpus = read_cpu_ask(pod, devices=implied and bool(reading.request.containers), types=types)
    problems = [*reading.problems, *cpus.problems]
    if not reading.request.containers:
        return replace(reading, cpu=cpus.ask, problems=tuple(problems)) if cpus.ask or cpus.problems else reading
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
        order = annotations.get(DEVICE_ORDER, "")
        if order not in {"", *DeviceOrder}:
            message = f"{excerpt(order)!r} is no order of devices; use {', '.join(DeviceOrder)}"
            problems.append(Problem(f"metadata.annotations[{DEVICE_ORDER}]", message))
            order = ""
        gang = read_gang(pod)
        problems.extend(gang.problems)
        isolation = str((metadata.get("labels") or {}).get(ISOLATION_PROVIDER) or "")
        if order or gang.name or isolation or reading.together or hints is not NO_HINTS:
            wishes = Wishes(
                _on_one_device(hints.hints, reading.together) if reading.together else hints.hints,
                hints.joint,
                hints.partition,
                order,
                gang.name,
                isolation=isolation,
                size=gang.size,
                together=gang.together,
            )
    else:
        problems.extend(hints)
    return replace(reading, cpu=cpus.ask, wishes=wishes, problems=tuple(problems))


def _on_one_device(hints: tuple[tuple[str, TypeHint], ...], kinds: frozenset[str]) -> tuple[tuple[str, TypeHint], ...]:
    """Keep all devices of these types on one device each, whatever the Pod's own hints say of their scope."""
    known = dict(hints)
    known.update((kind, replace(known.get(kind, NO_HINT), scope=Scope.DEVICE)) for kind in kinds)
    return tuple(sorted(known.items()))
