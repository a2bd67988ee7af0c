"""How large a Pod may be to be read: whoever creates one must not keep others waiting.

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
_MOST_ANNOTATIONS: Final = 4096
_MOST_ANNOTATION_BYTES: Final = 256 * 2**10  # which the API server allows, and checks only after its webhooks


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
    annotations = metadata.get("annotations") or {}
    if len(annotations) > _MOST_ANNOTATIONS:
        return Problem(
            "metadata.annotations", f"{len(annotations)} annotations; koordgate reads {_MOST_ANNOTATIONS} at most"
        )
    length = sum(len(key) + len(str(value)) for key, value in annotations.items())
    if length > _MOST_ANNOTATION_BYTES:
        most = format_bytes(_MOST_ANNOTATION_BYTES)
        return Problem("metadata.annotations", f"{length} characters; Kubernetes stores {most} at most")
    return None
