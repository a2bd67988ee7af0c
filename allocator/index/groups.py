"""Groups of a node's idle devices that are worth more together than apart.

Where the node has a partition table, a group is a partition that is wholly idle: the largest that hold a device, each
device in one. Otherwise a group is what fast links connect, directly or through other idle devices. Devices in use and
devices on which nothing may land connect nothing.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from allocator.vocabulary.device import Device
from allocator.vocabulary.links import LANE_WEIGHT, NO_LINKS
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.partition import PartitionTable

_MOST: Final = 8192  # groupings that are remembered; nodes of one make share them


def groups_of(devices: Sequence[Device], node: NodeSnapshot, *, partitioned: bool) -> tuple[int, ...]:
    """Number the groups of a node's devices of one type.

    `partitioned`: whether the node's partition table is about devices of the type. Returns for each device the place of
    the first device of its group; its own place where it is not idle.
    """
    used, unusable = node.used, node.unusable
    idle = sum([1 << at for at, one in enumerate(devices) if one.id not in used and one.id not in unusable])
    table = node.wiring.table(devices[0].type) if partitioned else None
    if table is not None:
        return _partitions(table, tuple([one.minor for one in devices]), idle)
    links = node.wiring.links
    if links.rows == NO_LINKS.rows:
        return tuple(range(len(devices)))
    return _linked(_peers(links.rows, tuple([links.index.get(one.id, -1) for one in devices])), idle)


@lru_cache(maxsize=_MOST)
def _peers(rows: tuple[tuple[int, ...], ...], places: tuple[int, ...]) -> tuple[int, ...]:
    """The devices to which each device has a fast link, as a bit mask."""
    known = [(at, place) for at, place in enumerate(places) if place >= 0]
    return tuple(
        sum(1 << to for to, peer in known if rows[place][peer] >= LANE_WEIGHT) if place >= 0 else 0 for place in places
    )


@lru_cache(maxsize=_MOST)
def _linked(peers: tuple[int, ...], idle: int) -> tuple[int, ...]:
    groups, left = list(range(len(peers))), idle
    while left:
        first = due = left & -left
        while due:
            one = due & -due
            left &= ~one
            groups[one.bit_length() - 1] = first.bit_length() - 1
            due = (due | peers[one.bit_length() - 1]) & left
    return tuple(groups)


@lru_cache(maxsize=_MOST)
def _partitions(table: PartitionTable, minors: tuple[int, ...], idle: int) -> tuple[int, ...]:
    groups = list(range(len(minors)))
    places = {minor: at for at, minor in enumerate(minors)}
    left = {at for at in groups if idle >> at & 1}
    for size in sorted(table.best, reverse=True):
        for partition in table.best[size]:
            inside = {places.get(minor, -1) for minor in partition.minors}
            if inside <= left:
                left -= inside
                for at in inside:
                    groups[at] = min(inside)
    return tuple(groups)
