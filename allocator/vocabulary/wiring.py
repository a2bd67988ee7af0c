"""How the devices of one node are connected: links, and the partitions into which the vendor divides them."""

from dataclasses import dataclass
from typing import Final

from allocator.vocabulary.links import NO_LINKS, Links
from allocator.vocabulary.partition import PartitionTable


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a Device object states about all its devices."""

    links: Links = NO_LINKS  # how strongly any two devices are connected
    # the sets in which whole devices of partitioned types may be given; None if there is no table
    partitions: PartitionTable | None = None
    # whether only these sets may be given (policy Honor), regardless of the Pod's request
    honour_partitions: bool = False
    # (type's name, table) for types whose boards have another table than `partitions`
    others: tuple[tuple[str, PartitionTable | None], ...] = ()

    def table(self, kind: str) -> PartitionTable | None:
        """The partition table of a type's devices."""
        for name, table in self.others:
            if name == kind:
                return table
        return self.partitions


UNWIRED: Final = Wiring()
