"""A Pod's asks, translated or not: its resources, completed by its original-request annotation.

What is too large is not read: whoever creates a Pod or a Node must not keep others waiting. Lengths alone are looked
at. Each bound is several times what the largest ordinary Pods have; what remains below them is
read within some milliseconds. How long the text of a single annotation may be is said where it is parsed
(`allocator.wire.values`).
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from allocator.quantity import QuantityError, format_bytes, is_zero, to_int
from allocator.request.devices import PodReading, Stated, unknown_names
from allocator.request.pod import NO_SLOTS, read_request
from allocator.request.statedamounts import Findings, dialect_of, read_amounts
from allocator.vocabulary.devicetype import BUILT_IN, DeviceType, DeviceTypes
from allocator.vocabulary.dialects import Dialect
from allocator.vocabulary.names import ORIGINAL_REQUEST, RESOURCE_MAPS
from allocator.vocabulary.outcome import Problem, excerpt
from allocator.wire.strict import annotation_path
from allocator.wire.values import MAX_CONTAINERS, MAX_TEXT, UNREADABLE, as_json, as_object

_MAX_AMOUNTS: Final = 4096  # requests and limits of all containers
_MAX_ENTRIES: Final = 4096  # annotations, labels or taints
_MAX_BYTES: Final = 256 * 2**10  # of annotations, as the API server allows after its webhooks; of labels too


def too_large(pod: Mapping[str, Any]) -> Problem | None:
    """Say what of a Pod is too large to be read; None if nothing is."""
    spec, metadata = pod.get("spec") or {}, pod.get("metadata") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    if len(containers) > MAX_CONTAINERS:
        return Problem("spec.containers", f"{len(containers)} containers; koordgate reads {MAX_CONTAINERS} at most")
    maps = [of.get(key) for one in (spec, *containers) if (of := one.get("resources")) for key in RESOURCE_MAPS]
    if (amounts := sum(map(len, filter(None, maps)))) > _MAX_AMOUNTS:
        message = f"requests and limits state {amounts} amounts; koordgate reads {_MAX_AMOUNTS} at most"
        return Problem("spec.containers", message)
    return _long_metadata(metadata)


def too_large_node(node: Mapping[str, Any]) -> Problem | None:
    """Say what of a Node is too large to be read; None if nothing is."""
    if (taints := len((node.get("spec") or {}).get("taints") or ())) > _MAX_ENTRIES:
        return Problem("spec.taints", f"{taints} entries; koordgate reads {_MAX_ENTRIES} at most")
    return _long_metadata(node["metadata"])


def _long_metadata(metadata: Mapping[str, Any]) -> Problem | None:
    for of in ("annotations", "labels"):
        stated = metadata.get(of) or {}
        if len(stated) > _MAX_ENTRIES:
            return Problem(f"metadata.{of}", f"{len(stated)} entries; koordgate reads {_MAX_ENTRIES} at most")
        length = sum(map(len, stated)) + sum(map(len, map(str, stated.values())))
        if length > _MAX_BYTES:
            return Problem(f"metadata.{of}", f"{length} characters; koordgate reads {format_bytes(_MAX_BYTES)} at most")
    return None


def read_asks(
    pod: Mapping[str, Any],
    types: DeviceTypes = BUILT_IN,
    *,
    implied: bool = True,
    slots: Mapping[str, int] = NO_SLOTS,
) -> PodReading:
    """Read a Pod's asks, translated or not.

    Memory that admission added beside a ratio is not part of the ask; gpu.shared that admission removed is. A forged
    annotation gains nothing: it can drop memory beside a ratio, or split the resources over more cards, and the author
    could have written both. One that names several dialects of a type is refused, as a Pod is that does: admission
    wrote none, and whose devices are meant would be lost. Nor is what admission wrote into containers that state no
    amount.
    """
    large = too_large(pod)
    return read_measured(pod, types, implied=implied, slots=slots) if large is None else PodReading((), (large,))


def read_measured(
    pod: Mapping[str, Any],
    types: DeviceTypes = BUILT_IN,
    *,
    implied: bool = True,
    slots: Mapping[str, int] = NO_SLOTS,
) -> PodReading:
    """Read as `read_asks` does a Pod that is not `too_large`."""
    if large := _too_long(pod):
        return PodReading((), (large,), unknown=tuple(unknown_names(pod.get("spec") or {}, types)))
    known = types.known  # the dialect may have been turned off since
    written = originals(pod)
    stated = {name: _stated(original, known) for name, original in written.items()}
    reading = read_request(pod, stated, types, implied=implied, slots=slots)
    mixed = _mixed(written, known) if written else None
    return reading if mixed is None else reading._replace(problems=(*reading.problems, mixed))


def originals(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Read the original-request annotation: container -> its device resources as written; {} if it cannot be read.

    What it states of containers that the Pod does not have is left out.
    """
    text = _text(pod)
    if text is None:
        return {}
    try:
        raw = as_object(as_json(text))
    except UNREADABLE:
        return {}
    spec = pod.get("spec") or {}
    names = [one.get("name") for key in ("initContainers", "containers") for one in spec.get(key) or ()]
    return {name: raw[name] for name in names if name in raw}


def _text(pod: Mapping[str, Any]) -> object:
    return ((pod.get("metadata") or {}).get("annotations") or {}).get(ORIGINAL_REQUEST)


def _too_long(pod: Mapping[str, Any]) -> Problem | None:
    """Find an annotation that was not written by koordgate, and would take long to read."""
    if len(str(_text(pod))) <= MAX_TEXT:
        return None
    most = format_bytes(MAX_TEXT)
    return Problem(annotation_path(ORIGINAL_REQUEST), f"has more than {most}; remove it, koordgate writes less")


def _mixed(written: Mapping[str, object], types: DeviceTypes) -> Problem | None:
    """Find a type of which the annotation states amounts in names that no one dialect has.

    A container has one dialect, and all containers have the same other product's. One that was added to a translated
    Pod may ask in koordgate's own names.
    """
    said: dict[tuple[str, str], set[str]] = {}  # type, and container or "" for the products' names of all
    for container, original in written.items():
        for amounts in _maps(original):
            for name in (name for name, text in amounts.items() if _is_said(name, text, types)):
                meaning = types.resources[name]
                kind = meaning.type.name
                said.setdefault((kind, container), set()).add(name)
                said.setdefault((kind, ""), set()).update(() if meaning.dialect.own else (name,))
    for (kind, _), names in said.items():
        if dialect_of(types.by_name[kind], names, types) is None:
            named = excerpt(", ".join(sorted(names)))
            message = f"states {kind} devices in several dialects at once ({named}), as koordgate never does; remove it"
            return Problem(annotation_path(ORIGINAL_REQUEST), message)
    return None


def _stated(original: object, types: DeviceTypes) -> Stated:
    """Read what the annotation states about a container; an amount that cannot be read counts as left out."""
    shared: int | None = None
    memory = False
    one_device: dict[str, None] = {}
    vendors: dict[str, str] = {}
    for kind in types.types:
        for amounts, dialect in _heard(original, kind, types):
            if amounts and dialect is not None and dialect.one_device:
                one_device[kind.name] = None
            if amounts and dialect is not None and dialect.vendor:
                vendors[kind.name] = dialect.vendor
            if dialect is not None and any(dialect.by_name[name].counts for name in amounts):
                continue  # whole devices: neither a part of their memory nor a split is stated
            if amounts and dialect is not None and not dialect.own:
                bare = replace(dialect, size=0)  # what an installation adds is in the resources, not in the annotation
                said = read_amounts("", kind, bare, amounts, types, Findings())
                tails = said.tails if said is not None else {}
                memory = memory or bool(tails.get(kind.restated))
                if shared is None and kind.split in {dialect.by_name[name].states for name in amounts}:
                    shared = tails.get(kind.split)
                continue
            for name, text in sorted(amounts.items()) if kind.states_memory else ():
                term = dialect.by_name[name] if dialect is not None else types.resources[name].term
                amount = None
                with contextlib.suppress(QuantityError):
                    amount = to_int(text)
                memory = memory or (term.states == kind.restated and amount != 0)  # 0 bytes ask for none
                if term.states == kind.split and shared is None:
                    shared = amount
    return Stated(not memory, shared, tuple(one_device), tuple(vendors.items()), _named(original, types))


def _heard(
    original: object, kind: DeviceType, types: DeviceTypes
) -> Iterator[tuple[Mapping[str, object], Dialect | None]]:
    """The amounts of a type in each map, and their dialect, without zeros beside amounts of another dialect."""
    _, spoken = _spoken({name: text for written in _maps(original) for name, text in written.items()}, kind, types)
    for written in _maps(original):
        amounts, dialect = _spoken(written, kind, types)
        if dialect is None or spoken is None or dialect is spoken:
            yield amounts, dialect


def _spoken(
    written: Mapping[str, object], kind: DeviceType, types: DeviceTypes
) -> tuple[Mapping[str, object], Dialect | None]:
    """The amounts of a type in one map, and their dialect; None if no one dialect has them."""
    amounts = {name: text for name, text in written.items() if _is_of(name, kind, types, text)}
    dialect = dialect_of(kind, amounts, types)
    if dialect is None:  # beside a dialect, another's zeros and names that state nothing count for nothing
        amounts = {name: text for name, text in amounts.items() if _is_said(name, text, types)}
        dialect = dialect_of(kind, amounts, types)
    return amounts, dialect


def _named(original: object, types: DeviceTypes) -> tuple[str, ...]:
    """Name the types of which the annotation states amounts."""
    amounts = [(name, text) for written in _maps(original) for name, text in written.items()]
    return tuple(kind.name for kind in types.types if any(_is_of(name, kind, types, text) for name, text in amounts))


def _is_of(name: object, kind: DeviceType, types: DeviceTypes, text: object) -> bool:
    """Whether a name asks for devices of a type; 0 whole devices are none, and of no vendor."""
    if name not in types.resources:
        return False
    meaning = types.resources[str(name)]
    return meaning.type is kind and not (meaning.term.counts and is_zero(text))


def _is_said(name: str, text: object, types: DeviceTypes) -> bool:
    """Whether a name says which dialect is used: it states something, and is no product's name of which 0 is stated."""
    meaning = types.resources.get(name)
    if meaning is None or not (meaning.term.states or meaning.term.template):
        return False
    return meaning.dialect.own or not is_zero(text)


def _maps(original: object) -> Iterator[Mapping[str, object]]:
    """The maps of a container's resources as its author wrote them, requests first."""
    for key in RESOURCE_MAPS:
        resources = original.get(key) if isinstance(original, dict) else None
        if isinstance(resources, dict):
            yield resources
