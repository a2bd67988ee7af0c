"""How good a node is for a Pod that it can hold: pack, so that whole cards and whole nodes stay free."""

from typing import Final

from allocator.device import FULL
from allocator.holdings import NodeSnapshot
from allocator.names import GPU_CORE, GPU_MEMORY_RATIO, TYPE_GPU
from allocator.place import Placement

_UNBROKEN: Final = 50
_IN_USE: Final = 20
_FULLNESS: Final = 30
MAX_SCORE: Final = _UNBROKEN + _IN_USE + _FULLNESS


def score(placement: Placement, node: NodeSnapshot) -> int:
    """Score a placement from 0 to 100, higher is better.

    Half of it says how many of the placement's cards were in use already or are filled (nothing whole is broken), a
    fifth whether the node was in use at all (an idle node stays whole), the rest how full the node's healthy cards are
    afterwards (the mean of compute and memory, percent).
    """
    taken = {share.id: share.amounts for share in placement.shares}
    cards = full = kept = 0
    for device in node.devices:
        if device.type != TYPE_GPU or not device.healthy:
            continue
        cards += 1
        used = node.used.get(device.id, {})
        more = taken.get(device.id, {})
        core = used.get(GPU_CORE, 0) + more.get(GPU_CORE, 0)
        ratio = used.get(GPU_MEMORY_RATIO, 0) + more.get(GPU_MEMORY_RATIO, 0)
        full += core + ratio
        kept += bool(more) and (bool(used) or max(core, ratio) >= FULL)
    if not cards or not taken:
        return 0
    in_use = _IN_USE if node.used else 0
    return _UNBROKEN * kept // len(taken) + in_use + _FULLNESS * min(full, 2 * FULL * cards) // (2 * FULL * cards)
