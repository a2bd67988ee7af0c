"""The most memory that a container may use of each of its GPUs, where that is more than it asks for."""

from typing import Final, NamedTuple

WHOLE: Final = 100_000  # parts of a card's memory


class AskedLimit(NamedTuple):
    """A limit of memory, in one of two ways."""

    size: int = 0  # bytes of each card; 0 if it is a part of the card
    portion: int = 0  # of each card's memory, in 100000ths; 0 if it is in bytes
