"""What a Pod asks, as the index is asked it: plain values, hashable, in the units of the resource classes."""

from dataclasses import dataclass
from typing import Final

MAX_WANTED: Final = 128  # devices of one type; no node has more
MAX_AMOUNT: Final = 2**53 - 1  # no node has so much of one class; products with percents stay in int64
FULL: Final = 100  # percent


@dataclass(frozen=True, slots=True)
class PartOf:
    """So many percent of what the device has in all of the class, rounded down.

    Bytes that follow from a stated ratio: what is handed out.
    """

    percent: int


@dataclass(frozen=True, slots=True)
class RatioFrom:
    """The percent that an amount is of what the device has in all of another class, rounded up.

    A ratio that follows from stated bytes: what is accounted. More than 100 fits no device.

    Attributes:
        tail: the other class.
        amount: asked of it.
    """

    tail: str
    amount: int


Amount = int | PartOf | RatioFrom


class QueryError(ValueError):
    """A want that means nothing or lies out of bounds."""


@dataclass(frozen=True, slots=True)
class Want:
    """So many distinct devices of one type, each with so much free of every class.

    Attributes:
        type: of the devices.
        count: from 1 to `MAX_WANTED`.
        amounts: resource tail -> what each of the devices must have free; one tail at least, each once.

    Raises:
        QueryError: a figure is out of bounds.
    """

    type: str
    count: int
    amounts: tuple[tuple[str, Amount], ...]

    def __post_init__(self) -> None:
        if not 0 < self.count <= MAX_WANTED:
            raise QueryError(f"{self.count} devices of type {self.type}: ask from 1 to {MAX_WANTED}")
        if not self.amounts or len({tail for tail, _ in self.amounts}) != len(self.amounts):
            raise QueryError(f"devices of type {self.type}: name what is wanted of each, and each resource once")
        for tail, amount in self.amounts:
            figure, most = _bounds(amount)
            if not 0 <= figure <= most:
                raise QueryError(f"{figure} of {tail}: ask from 0 to {most}")


def _bounds(amount: Amount) -> tuple[int, int]:
    if isinstance(amount, PartOf):
        return amount.percent, FULL
    return amount.amount if isinstance(amount, RatioFrom) else amount, MAX_AMOUNT


@dataclass(frozen=True, slots=True)
class Query:
    """All that is asked of a node at once.

    Wants of different types are asked together. Wants of one type are looked at one by one: that each could be served
    is necessary for them all, and not enough.
    """

    wants: tuple[Want, ...]
