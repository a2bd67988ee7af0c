"""All that a Pod asks for: its containers' devices, its CPUs, and how its devices are to be chosen."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from allocator.request.cpus import names_cpus, read_cpu_ask
from allocator.request.devices import PodReading, Stated, names_devices, read_pod
from allocator.vocabulary.asks import NO_WISHES, Wishes
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.names import DEVICE_ORDER
from allocator.vocabulary.outcome import Problem
from allocator.vocabulary.preference import DeviceOrder
from allocator.wire.allocatehint import HINT_ANNOTATIONS, NO_HINTS, PodHints, read_hints

# How a Pod says which gang it belongs to: Kubernetes' own PodGroup, scheduler-plugins', and Koordinator's.
GANG_LABELS: Final = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
GANG_ANNOTATION: Final = "gang.scheduling.koordinator.sh/name"
_SAYING: Final = (*HINT_ANNOTATIONS, DEVICE_ORDER, GANG_ANNOTATION)  # beside those that `names_cpus` knows


def is_ours(pod: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> bool:
    """Tell whether a Pod asks for anything of ours, readably or not."""
    annotations = (pod.get("metadata") or {}).get("annotations")
    return names_devices(pod.get("spec") or {}, types, annotations) or names_cpus(pod)


def asks_by_metadata(pod: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> bool:
    """Tell whether labels or annotations, which may be changed while the Pod waits, have a say in what it asks for."""
    metadata = pod.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    saying = any(key in annotations for key in (*_SAYING, *types.annotations))
    return saying or any(key in labels for key in GANG_LABELS) or names_cpus(pod)


def read_request(pod: Mapping[str, Any], stated: Mapping[str, Stated], types: DeviceTypes = BUILT_IN) -> PodReading:
    """Read what a Pod asks for.

    Args:
        pod: the Pod.
        stated: by container, what its annotation tells of those that were translated.
        types: that may be asked for.
    """
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    reading = read_pod(pod.get("spec") or {}, stated, types, annotations)
    cpus = read_cpu_ask(pod, devices=bool(reading.request.containers), types=types)
    problems = [*reading.problems, *cpus.problems]
    if not reading.request.containers:
        return replace(reading, cpu=cpus.ask, problems=tuple(problems)) if cpus.ask or cpus.problems else reading
    hints = read_hints(annotations, types.by_name) if annotations else NO_HINTS
    wishes = NO_WISHES
    if isinstance(hints, PodHints):
        order = annotations.get(DEVICE_ORDER, "")
        if order not in {"", *DeviceOrder}:
            told = f"{str(order)[:40]!r} is no order of devices; use {', '.join(DeviceOrder)}"
            problems.append(Problem(f"metadata.annotations[{DEVICE_ORDER}]", told))
            order = ""
        gang = gang_of(metadata)
        if order or gang or hints is not NO_HINTS:
            wishes = Wishes(hints.hints, hints.joint, hints.partition, order, gang)
    else:
        problems.extend(hints)
    return replace(reading, cpu=cpus.ask, wishes=wishes, problems=tuple(problems))


def gang_of(metadata: Mapping[str, Any]) -> str:
    """Name the gang that a Pod belongs to, as namespace/name; "" for none."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    name = annotations.get(GANG_ANNOTATION) or next((labels[key] for key in GANG_LABELS if labels.get(key)), "")
    if not name:
        return ""
    # Koordinator lets a gang be named with its namespace.
    return str(name) if "/" in str(name) else f"{metadata.get('namespace', '')}/{name}"
