"""Partition tables: the sets of GPUs into which a node's switched fabric can be partitioned.

A table comes from the Device object's annotation (Koordinator, apis/extension, gpu-partitions), or is built in for the
HGX boards of the Hopper family (Koordinator, pkg/scheduler/plugins/deviceshare). A set outside the table may work
only slowly, or not at all; the node's policy, Honor or Prefer, says whether that matters.

Of the partitions that fit, those of the highest allocationScore come first. Koordinator documents the score so but
tries the lowest first; its documents are followed here.
"""

from collections.abc import Collection
from typing import NamedTuple

from allocator.quantity import format_bytes
from allocator.vocabulary.partition import Partition, PartitionTable
from allocator.wire.partitions import GPU_PARTITIONS


class PartitionFit(NamedTuple):
    """A partition that can be given, and its place among the others, smaller better."""

    standing: tuple[int, ...]
    partition: Partition


def fits(
    table: PartitionTable,
    count: int,
    free: Collection[int],
    ring_bandwidth: int | None = None,
    *,
    restricted: bool = False,
) -> list[PartitionFit]:
    """List the partitions of `count` GPUs that can be given, best first.

    Order: the higher score; then what leaves the most whole: the larger partitions of their size's best score that
    stay wholly free, largest size first, by the sum of their scores; then the table's order.
    `free`: minors of GPUs that are healthy and wholly free. `ring_bandwidth`: bytes that a partition must state at
    least. `restricted`: only partitions of the highest score that the table has for this count.
    """
    unbroken = set(free)
    listed = table.best if restricted else table.sizes
    found = [
        partition
        for partition in listed.get(count, ())
        if unbroken.issuperset(partition.minors)
        and (ring_bandwidth is None or (partition.bandwidth is not None and partition.bandwidth >= ring_bandwidth))
    ]
    whole = [
        [other for other in table.best[size] if unbroken.issuperset(other.minors)]
        for size in sorted(table.best, reverse=True)
        if size >= count
    ]
    ranked = [
        PartitionFit((-partition.score, *(-_kept(partition, others) for others in whole)), partition)
        for partition in found
    ]
    ranked.sort(key=lambda fit: fit.standing)
    return ranked


def broken(table: PartitionTable, minor: int, free: frozenset[int]) -> tuple[int, ...]:
    """Count the partitions that a share of this GPU would break: those of each size's best score that are wholly free.

    `free`: minors of GPUs that are healthy and wholly free. Returns one figure for each size, the largest size first.
    """
    return tuple(
        sum(minor in one.minors and free.issuperset(one.minors) for one in table.best[size])
        for size in sorted(table.best, reverse=True)
    )


def _kept(partition: Partition, others: list[Partition]) -> int:
    return sum(other.score for other in others if set(partition.minors).isdisjoint(other.minors))


def why_none(
    table: PartitionTable | None,
    count: int,
    free: Collection[int],
    ring_bandwidth: int | None = None,
    *,
    restricted: bool = False,
) -> str:
    """Say in a user's words why `fits` finds nothing."""
    if table is None:
        return (
            f"GPUs must come as a partition here, and the node has no partition table "
            f"(annotation {GPU_PARTITIONS} of its Device object)"
        )
    listed = (table.best if restricted else table.sizes).get(count)
    if listed is None:
        counts = ", ".join(map(str, table.sizes)) or "none"
        return f"{count} GPUs are not a partition here; ask for a number that the table has: {counts}"
    which = "best-scored partitions" if restricted else "partitions"
    if ring_bandwidth is not None:
        quick = [p for p in listed if p.bandwidth is not None and p.bandwidth >= ring_bandwidth]
        if not quick:
            most = max((p.bandwidth for p in listed if p.bandwidth is not None), default=None)
            have = "state none" if most is None else f"have at most {format_bytes(most)}"
            return f"ringBusBandwidth {format_bytes(ring_bandwidth)} asked; {which} of {count} GPUs {have}"
        listed = tuple(quick)
    return (
        f"{len(listed)} {which} of {count} GPUs are suitable, but in each a GPU is in use or unhealthy "
        f"({len(set(free))} GPUs wholly free)"
    )
