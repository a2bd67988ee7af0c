"""How the devices of one node hang together: links, and the partitions in which its maker cuts them."""

from dataclasses import dataclass
from typing import Final

from allocator.vocabulary.links import NO_LINKS, Links
from allocator.vocabulary.partition import PartitionTable


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a Device object says of all its devices.

    Attributes:
        links: how strongly any two devices are connected.
        partitions: the sets in which whole GPUs may be given; None where there is no table.
        honour_partitions: whether only these sets may be given (policy Honor), whatever the Pod asks.
    """

    links: Links = NO_LINKS
    partitions: PartitionTable | None = None
    honour_partitions: bool = False


UNWIRED: Final = Wiring()
