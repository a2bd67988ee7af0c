"""The score of a node for a Pod that it can hold.

The settings choose one of three preferences: packing (whole devices and whole nodes stay free), and the two of the
patent, claim 7: the least mean request, and the least variance of requests (the most balanced node).

The formulas are those of `allocator.index.preference`, which estimates for all nodes at once what is computed here for
one placement. Both agree for a Pod with one container and one type on a node whose devices are alike.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from allocator.place import Placement
from allocator.vocabulary.devicetype import BUILT_IN, FULL
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.preference import Preference

UNBROKEN: Final = 50  # packing's greatest parts: nothing whole is broken, the node is in use, its devices are full
IN_USE: Final = 20
FULLNESS: Final = 30
MAX_SCORE: Final = UNBROKEN + IN_USE + FULLNESS
_WHOLE: Final = 1000  # shares are counted in thousandths
_CPU: Final = "cpu"  # all CPUs of a node that Pods may have as their own, as one device


class Filled(NamedTuple):
    """How much of one resource class of a node is used, and how much there is: percent, bytes, units, or CPUs.

    Attributes:
        type: of the devices; "cpu" for CPUs.
        tail: of the resource.
        used: with the placement; never more than `total`.
        total: over the devices on which something may land.
    """

    type: str
    tail: str
    used: int
    total: int

    @property
    def share(self) -> int:
        """The used part in thousandths, rounded down; 1000 if there is nothing to use."""
        return _WHOLE * self.used // self.total if self.total else _WHOLE


def score(
    placement: Placement,
    node: NodeSnapshot,
    preference: Preference = Preference.PACKING,
    restated: AbstractSet[tuple[str, str]] = BUILT_IN.restated,
) -> int:
    """Score a placement from 0 to 100, higher is better; 0 if it takes nothing that can be compared.

    Args:
        placement: what would be given.
        node: without the placement.
        preference: how nodes are compared.
        restated: (type, tail) of bytes that a ratio states as well.
    """
    classes = list(_classes(placement, node))
    if not classes:
        return 0
    if preference is Preference.PACKING:
        return _packing(placement, node, classes, restated)
    shares = [one.share for one in classes]
    if preference is Preference.LEAST_REQUESTED:
        return (_WHOLE - sum(shares) // len(shares)) // (_WHOLE // FULL)
    # n * sum(squares) - sum * sum is exactly n * n times the variance, whose greatest value is 500 * 500.
    spread = len(shares) * sum(share * share for share in shares) - sum(shares) ** 2
    return FULL - FULL * spread // (len(shares) ** 2 * (_WHOLE // 2) ** 2)


def _packing(
    placement: Placement, node: NodeSnapshot, classes: Iterable[Filled], restated: AbstractSet[tuple[str, str]]
) -> int:
    """Score by packing.

    Half of the score is for devices that were in use already or are filled, so that no whole device is broken. A fifth
    is for a node that was in use already, so that idle nodes stay whole. The rest is for how full its devices of the
    requested types are afterwards, without bytes that a ratio states as well.
    """
    capacity = {device.id: device.capacity for device in node.devices}
    kept = sum(
        share.id in capacity and (share.id in node.used or _fills(share, capacity[share.id], restated))
        for share in placement.shares
    )
    wanted = len(placement.shares)
    taken = node.cpu_use.taken > 0
    full: dict[str, list[Filled]] = {}
    for one in classes:
        if one.type == _CPU:
            kept += taken or one.used == one.total
            wanted += 1
        if (one.type, one.tail) not in restated:
            full.setdefault(one.type, []).append(one)
    in_use = taken or any(device.id in node.used for device in node.devices)
    fullness = [FULLNESS * sum(one.used for one in of) // max(sum(one.total for one in of), 1) for of in full.values()]
    return UNBROKEN * kept // wanted + IN_USE * in_use + sum(fullness) // len(fullness)


def _fills(share: Share, capacity: Mapping[str, int], restated: AbstractSet[tuple[str, str]]) -> bool:
    """Whether a share takes all of at least one resource of its device."""
    return any(
        amount >= capacity.get(tail, 0)
        for tail, amount in share.amounts.items()
        if amount and (share.type, tail) not in restated
    )


def _classes(placement: Placement, node: NodeSnapshot) -> Iterator[Filled]:
    """Each resource class that the placement uses, over the node's usable devices, with the placement included."""
    taken: dict[tuple[str, str], int] = {}
    for share in placement.shares:
        for tail, amount in share.amounts.items():
            taken[share.type, tail] = taken.get((share.type, tail), 0) + amount
    for (kind, tail), amount in taken.items():
        used = total = 0
        for device in node.devices:
            if device.type == kind and node.is_usable(device):
                has = device.capacity[tail]
                total += has
                used += has - node.free(device, (tail,))[0]
        yield Filled(kind, tail, min(used + amount, total), total)
    cpus = placement.cpus
    if cpus is not None and cpus.cpus and node.cpu is not None:
        every = node.own_cpus
        used = every & (node.cpu_use.taken | cpus.cpus)
        yield Filled(_CPU, _CPU, used.bit_count(), every.bit_count())
