"""The labels of a Node that NVIDIA's feature discovery writes, where nobody else does (pure).

Selectors and schedulers know these labels. A label that the Node has is left alone unless it is ours alone: the
API server notes the owners of each field in `metadata.managedFields`, and forgets ours if another writer changes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from allocator.vocabulary.models import GPU_COUNT, GPU_MEMORY_MIB, GPU_PRODUCT
from reporter.gpu.facts import GpuFacts
from reporter.gpu.inventory import label
from reporter.publish.identity import MANAGER

_MIB: Final = 2**20
_MOST_ENTRIES: Final = 256  # of managedFields; with more, every label counts as somebody else's


def discovery_labels(cards: Iterable[GpuFacts], live: Mapping[str, Any] | None) -> dict[str, str]:
    """Write the labels that say which cards the node has, as far as they are ours to write.

    Args:
        cards: the node's cards that are present.
        live: the Node in the cluster; None if it is not known.
    """
    if live is None:
        return {}
    found = list(cards)
    models, sizes = {card.model for card in found}, {card.memory for card in found}
    stated = {GPU_COUNT: str(len(found)) if found else ""}
    stated[GPU_PRODUCT] = label(models.pop()) if len(models) == 1 else ""
    size = sizes.pop() if len(sizes) == 1 else None
    stated[GPU_MEMORY_MIB] = str(size // _MIB) if size is not None else ""
    return {key: value for key, value in stated.items() if value and _is_ours(key, live["metadata"])}


def _is_ours(key: str, metadata: Mapping[str, Any]) -> bool:
    if key not in (metadata.get("labels") or {}):
        return True
    entries = metadata.get("managedFields") or []
    return len(entries) <= _MOST_ENTRIES and set(_owners(key, entries)) == {MANAGER}


def _owners(key: str, entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The field managers that own a label."""
    for entry in entries:
        fields = (entry.get("fieldsV1") or {}).get("f:metadata") or {}
        if f"f:{key}" in (fields.get("f:labels") or {}):
            yield str(entry.get("manager"))
