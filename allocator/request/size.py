"""How large a Pod and a Node may be to be read: whoever creates one must not keep others waiting.

Lengths alone are looked at. Each bound is several times what the largest ordinary Pods have; what remains below them is
read within some milliseconds. How long the text of a single annotation may be is said where it is parsed
(`allocator.wire.values`).
"""

from collections.abc import Mapping
from typing import Any, Final

from allocator.quantity import format_bytes
from allocator.vocabulary.names import RESOURCE_MAPS
from allocator.vocabulary.outcome import Problem
from allocator.wire.values import MOST_CONTAINERS

_MOST_AMOUNTS: Final = 4096  # requests and limits of all containers
_MOST_ENTRIES: Final = 4096  # annotations, labels or taints
_MOST_BYTES: Final = 256 * 2**10  # of annotations, as the API server allows after its webhooks; of labels too


def too_large(pod: Mapping[str, Any]) -> Problem | None:
    """Say what of a Pod is too large to be read; None if nothing is."""
    spec, metadata = pod.get("spec") or {}, pod.get("metadata") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    if len(containers) > MOST_CONTAINERS:
        return Problem("spec.containers", f"{len(containers)} containers; koordgate reads {MOST_CONTAINERS} at most")
    maps = [(one.get("resources") or {}).get(key) or () for one in (spec, *containers) for key in RESOURCE_MAPS]
    if (amounts := sum(map(len, maps))) > _MOST_AMOUNTS:
        message = f"requests and limits state {amounts} amounts; koordgate reads {_MOST_AMOUNTS} at most"
        return Problem("spec.containers", message)
    return _long_metadata(metadata)


def too_large_node(node: Mapping[str, Any]) -> Problem | None:
    """Say what of a Node is too large to be read; None if nothing is."""
    if (taints := len((node.get("spec") or {}).get("taints") or ())) > _MOST_ENTRIES:
        return Problem("spec.taints", f"{taints} entries; koordgate reads {_MOST_ENTRIES} at most")
    return _long_metadata(node["metadata"])


def _long_metadata(metadata: Mapping[str, Any]) -> Problem | None:
    for of in ("annotations", "labels"):
        stated = metadata.get(of) or {}
        if len(stated) > _MOST_ENTRIES:
            return Problem(f"metadata.{of}", f"{len(stated)} entries; koordgate reads {_MOST_ENTRIES} at most")
        length = sum(len(key) + len(str(value)) for key, value in stated.items())
        if length > _MOST_BYTES:
            return Problem(
                f"metadata.{of}", f"{length} characters; koordgate reads {format_bytes(_MOST_BYTES)} at most"
            )
    return None
