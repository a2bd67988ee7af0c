"""How good a node is for a Pod that it can hold.

Three preferences, of which the configuration chooses one: packing (whole devices and whole nodes stay free), and the
two of seed document 2, claim 7: the least mean request, and the least variance of requests (the most balanced node).
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from allocator.cpu.node import cpu_use
from allocator.device import Device
from allocator.devicetype import FULL
from allocator.holdings import NodeSnapshot
from allocator.place import Placement
from allocator.preference import Preference

_UNBROKEN: Final = 50
_IN_USE: Final = 20
_FULLNESS: Final = 30
MAX_SCORE: Final = _UNBROKEN + _IN_USE + _FULLNESS
_WIDEST: Final = (FULL // 2) ** 2  # the greatest variance that shares from 0 to 100 % can have


class Filled(NamedTuple):
    """How much of one class of resources a node gives out, and has: percent, units, or CPUs."""

    used: int
    total: int

    @property
    def percent(self) -> int:
        """The share that is given out, rounded down, 0 to 100."""
        return min(FULL * self.used // self.total, FULL) if self.total else 0


def score(placement: Placement, node: NodeSnapshot, preference: Preference = Preference.PACKING) -> int:
    """Score a placement from 0 to 100, higher is better."""
    classes = list(_classes(placement, node))
    if preference is Preference.PACKING:
        return _packing(placement, node, classes)
    if not classes:
        return 0
    shares = [one.percent for one in classes]
    mean = sum(shares) // len(shares)
    if preference is Preference.LEAST_REQUESTED:
        return FULL - mean
    # n * sum(squares) - sum * sum is n * n times the variance, and exact.
    spread = len(shares) * sum(share * share for share in shares) - sum(shares) ** 2
    return FULL - FULL * spread // (_WIDEST * len(shares) ** 2)


def _packing(placement: Placement, node: NodeSnapshot, classes: list[Filled]) -> int:
    """Half of it says how many of the devices taken were in use already or are filled (nothing whole is broken).

    A fifth says whether the node was in use at all (an idle node stays whole), the rest how full it is afterwards, in
    the mean of what is asked.
    """
    by_id = {device.id: device for device in node.devices}
    kept = sum(share.id in node.used or _fills(share.amounts.items(), by_id[share.id]) for share in placement.shares)
    unbroken = _UNBROKEN * kept // len(placement.shares) if placement.shares else _UNBROKEN
    in_use = _IN_USE if node.holdings else 0
    used, total = sum(one.percent for one in classes), FULL * len(classes)
    return unbroken + in_use + (_FULLNESS * used // total if total else 0)


def _fills(amounts: Iterable[tuple[str, int]], device: Device) -> bool:
    return any(amount >= device.capacity.get(tail, 0) for tail, amount in amounts)


def _classes(placement: Placement, node: NodeSnapshot) -> Iterator[Filled]:
    """Each class of resources that the placement takes of, over the node's healthy devices, the placement included."""
    taken = {share.id: share.amounts for share in placement.shares}
    tails = dict.fromkeys((share.type, tail) for share in placement.shares for tail in share.amounts)
    for kind, tail in tails:
        used = total = 0
        for device in node.devices:
            if device.type == kind and device.healthy:
                total += device.capacity.get(tail, 0)
                used += node.used.get(device.id, {}).get(tail, 0) + taken.get(device.id, {}).get(tail, 0)
        yield Filled(used, total)
    if placement.cpus is not None and placement.cpus.cpus and node.cpu is not None:
        shares = [holding.cpus for holding in node.holdings.values() if holding.cpus is not None]
        given = cpu_use(node.cpu, [*shares, placement.cpus]).taken
        yield Filled(given.bit_count(), (node.cpu.topology.all & ~node.cpu.reserved).bit_count())
