"""Partition tables: the sets of GPUs that a node's switched fabric can cut itself into."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class PartitionPolicy(StrEnum):
    """Whether whole GPUs of a node may be given out in sets that are no partition."""

    HONOR = "Honor"
    PREFER = "Prefer"


class Partition(NamedTuple):
    """One set of GPUs.

    Attributes:
        minors: its GPUs, ascending.
        score: Koordinator's allocationScore, higher preferred.
        bandwidth: of the ring through its GPUs, in bytes; None where the table does not state it.
        link: what joins them, as "NVLink"; "" where the table does not state it.
    """

    minors: tuple[int, ...]
    score: int = 0
    bandwidth: int | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """All partitions of a node.

    Attributes:
        partitions: each set of minors once; of equals, an earlier one is preferred.
        sizes: number of GPUs -> its partitions; derived.
        best: number of GPUs -> those of the highest score; derived.
    """

    partitions: tuple[Partition, ...] = ()
    sizes: Mapping[int, tuple[Partition, ...]] = field(init=False, repr=False, compare=False)
    best: Mapping[int, tuple[Partition, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes: dict[int, list[Partition]] = {}
        for partition in self.partitions:
            sizes.setdefault(len(partition.minors), []).append(partition)
        object.__setattr__(self, "sizes", {size: tuple(sizes[size]) for size in sorted(sizes)})
        best = {size: max(partition.score for partition in listed) for size, listed in sizes.items()}
        object.__setattr__(
            self, "best", {size: tuple(p for p in self.sizes[size] if p.score == best[size]) for size in self.sizes}
        )
