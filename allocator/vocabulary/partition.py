"""Partition tables: the sets of GPUs into which a node's switched fabric can be divided."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


class PartitionPolicy(StrEnum):
    """Whether whole GPUs of a node may be given in sets that are not a partition."""

    HONOR = "Honor"
    PREFER = "Prefer"


class Partition(NamedTuple):
    """One set of GPUs."""

    minors: tuple[int, ...]  # its GPUs, ascending
    score: int = 0  # koordinator's allocationScore; higher is preferred
    bandwidth: int | None = None  # of the ring through its GPUs, in bytes; None if the table does not state it
    link: str = ""  # what connects them, such as "NVLink"; "" if the table does not state it


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """All partitions of a node."""

    partitions: tuple[Partition, ...] = ()  # each set of minors once; of equally good ones, the earlier is preferred
    # number of GPUs -> partitions of that size; derived
    sizes: Mapping[int, tuple[Partition, ...]] = field(init=False, repr=False, compare=False)
    # number of GPUs -> partitions of that size with the highest score; derived
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


@dataclass(frozen=True, slots=True)
class Board:
    """The partition table of nodes with boards of certain models, unless the node states one."""

    models: tuple[str, ...]  # as labels spell them, or their first words: "H100" also matches "H100-80GB-HBM3"
    table: PartitionTable  # of such a node
    vendors: tuple[str, ...] = ()  # as labels spell them; a node that states no vendor matches too. Empty: any.
    unlike: frozenset[str] = frozenset()  # words in a model's name that exclude it: the same chips on separate cards

    def fits(self, vendor: str, model: str) -> bool:
        """Return whether a node's labels name such a board."""
        if vendor and self.vendors and vendor not in self.vendors:
            return False
        named = any(model == one or model.startswith(f"{one}-") for one in self.models)
        return named and self.unlike.isdisjoint(model.split("-"))


_HALVES: Final = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 1, 2, 3), (4, 5, 6, 7)), (tuple(range(8)),)
HOPPER: Final = Board(
    ("H100", "H800", "H20"),
    PartitionTable(
        tuple(
            Partition(minors, 1, None, "NVLink")
            for sets in (tuple((minor,) for minor in range(8)), *_HALVES)
            for minors in sets
        )
    ),
    vendors=("nvidia",),
    unlike=frozenset({"PCIe", "NVL"}),
)
