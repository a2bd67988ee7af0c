"""A Pod's asks, translated or not: its resources, completed by its original-request annotation."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from allocator.quantity import QuantityError, to_int
from allocator.request.devices import PodReading, Stated
from allocator.request.pod import NO_SLOTS, read_request
from allocator.request.spoken import Heard, dialect_of, read_said
from allocator.vocabulary.devicetype import BUILT_IN, DeviceType, DeviceTypes
from allocator.vocabulary.names import ORIGINAL_REQUEST, RESOURCE_MAPS


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
    could have written both. Nor is what admission wrote into containers that state no amount.

    Args:
        pod: the Pod.
        types: that may be asked for.
        implied: as for `read_request`.
        slots: as for `read_request`.
    """
    known = types.known  # the dialect may have been turned off since
    stated = {name: _stated(original, known) for name, original in originals(pod).items()}
    return read_request(pod, stated, types, implied=implied, slots=slots)


def originals(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Read the original-request annotation: container -> its device resources as written; {} if it cannot be read."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(ORIGINAL_REQUEST)
    if text is None:
        return {}
    try:
        raw = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _stated(original: object, types: DeviceTypes) -> Stated:
    """Read what the annotation states about a container; an amount that cannot be read counts as left out."""
    shared: int | None = None
    memory = False
    together: dict[str, None] = {}
    vendors: dict[str, str] = {}
    for kind in types.types:
        for written in _maps(original):
            amounts = {name: text for name, text in written.items() if _is_of(name, kind, types, text)}
            dialect = dialect_of(kind, amounts, types)
            if amounts and dialect is not None and dialect.together:
                together[kind.name] = None
            if amounts and dialect is not None and dialect.vendor:
                vendors[kind.name] = dialect.vendor
            if dialect is not None and any(dialect.by_name[name].counts for name in amounts):
                continue  # whole devices: neither a part of their memory nor a split is stated
            if amounts and dialect is not None and not dialect.own:
                said = read_said("", kind, dialect, amounts, types, Heard())
                tails = said.tails if said is not None else {}
                memory = memory or bool(tails.get(kind.restated))
                if shared is None and any(dialect.by_name[name].states == kind.split for name in amounts):
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
    return Stated(not memory, shared, tuple(together), tuple(vendors.items()), _named(original, types))


def _named(original: object, types: DeviceTypes) -> tuple[str, ...]:
    """Name the types of which the annotation states amounts."""
    amounts = [(name, text) for written in _maps(original) for name, text in written.items()]
    return tuple(kind.name for kind in types.types if any(_is_of(name, kind, types, text) for name, text in amounts))


def _is_of(name: object, kind: DeviceType, types: DeviceTypes, text: object) -> bool:
    """Whether a name asks for devices of a type; 0 whole devices are none, and of no vendor."""
    if name not in types.resources:
        return False
    meaning = types.resources[str(name)]
    return meaning.type is kind and not (meaning.term.counts and text in (0, "0"))


def _maps(original: object) -> Iterator[Mapping[str, object]]:
    """The maps of a container's resources as its author wrote them, requests first."""
    for key in RESOURCE_MAPS:
        resources = original.get(key) if isinstance(original, dict) else None
        if isinstance(resources, dict):
            yield resources
