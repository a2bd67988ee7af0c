"""How the devices of one node are connected: links, and the partitions into which the vendor divides them."""

from dataclasses import dataclass
from typing import Final

from allocator.vocabulary.links import NO_LINKS, Links
from allocator.vocabulary.partition import PartitionTable


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a Device object states about all its devices.

    Attributes:
        links: how strongly any two devices are connected.
        partitions: the sets in which whole devices of partitioned types may be given; None if there is no table.
        honour_partitions: whether only these sets may be given (policy Honor), regardless of the Pod's request.
        others: (type's name, table) for types whose boards have another table than `partitions`.
    """

    links: Links = NO_LINKS
    partitions: PartitionTable | None = None
    honour_partitions: bool = False
    others: tuple[tuple[str, PartitionTable | None], ...] = ()

    def table(self, kind: str) -> PartitionTable | None:
        """The partition table of a type's devices."""
        for name, table in self.others:
            if name == kind:
                return table
        return self.partitions


UNWIRED: Final = Wiring()
