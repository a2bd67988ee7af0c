"""The labels of a Node that NVIDIA's feature discovery writes, where nobody else does (pure).

Selectors and schedulers know these labels. A label that the Node has is left alone unless it is ours alone: the
API server notes the owners of each field in `metadata.managedFields`, and forgets ours if another writer changes it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.vocabulary.models import GPU_COUNT, GPU_MEMORY_MIB, GPU_PRODUCT
from reporter.gpu.facts import GpuFacts
from reporter.gpu.inventory import label
from reporter.publish.owners import is_ours

_MIB: Final = 2**20


def discovery_labels(cards: Iterable[GpuFacts], live: Mapping[str, Any] | None) -> dict[str, str]:
    """Write the labels that say which cards the node has, as far as they are ours to write."""
    if live is None:
        return {}
    found = list(cards)
    models, sizes = {card.model for card in found}, {card.memory for card in found}
    stated = {GPU_COUNT: str(len(found)) if found else ""}
    stated[GPU_PRODUCT] = label(models.pop()) if len(models) == 1 else ""
    size = sizes.pop() if len(sizes) == 1 else None
    stated[GPU_MEMORY_MIB] = str(size // _MIB) if size is not None else ""
    return {key: value for key, value in stated.items() if value and is_ours(live, ("metadata", "labels"), key)}
