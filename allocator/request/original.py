"""A Pod's asks, translated or not: what its original-request annotation tells beside its resources."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from allocator.quantity import QuantityError, to_int
from allocator.request.devices import PodReading, Stated
from allocator.request.pod import read_request
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.names import (
    GPU_MEMORY,
    GPU_SHARED,
    ORIGINAL_REQUEST,
)

_MAPS: Final = ("requests", "limits")


def read_asks(pod: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> PodReading:
    """Read a Pod's asks, translated or not.

    Memory that our own translation stated beside a ratio is no ask, and gpu.shared that it took away is one. Whoever
    forges the annotation gains nothing: it can drop memory beside a ratio, and split what the resources say over more
    cards, as its author could have written.
    """
    stated = {name: _stated(original, types) for name, original in originals(pod).items()}
    return read_request(pod, stated, types)


def originals(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Read the original-request annotation: container -> its device resources as written; {} where it is not ours."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(ORIGINAL_REQUEST)
    if text is None:
        return {}
    try:
        told = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _stated(original: object, types: DeviceTypes) -> Stated:
    """Read what the annotation tells of a container; an amount that is none is as good as left out."""
    shared: int | None = None
    memory = False
    for tail, amount in _amounts(original, types):
        if tail == GPU_MEMORY:
            memory = True
        elif tail == GPU_SHARED and shared is None:
            with contextlib.suppress(QuantityError):
                shared = to_int(amount)
    return Stated(derived=not memory, shared=shared)


def _amounts(original: object, types: DeviceTypes) -> Iterator[tuple[str, object]]:
    """Walk through the device resources of a container, as tail and amount: requests first."""
    for key in _MAPS:
        resources = original.get(key) if isinstance(original, dict) else None
        for name, amount in resources.items() if isinstance(resources, dict) else ():
            if name in types.resources:
                yield types.resources[name].tail, amount
