"""A Pod's request as a query of the index: plain hashable values, in the units of the resource classes."""

from dataclasses import dataclass, field
from typing import Final

MAX_WANTED: Final = 128  # devices of one type; no node has more
MAX_AMOUNT: Final = 2**53 - 1  # no node has more of one class; products with percentages stay in int64
FULL: Final = 100  # percent


@dataclass(frozen=True, slots=True)
class PartOf:
    """A percentage of the device's capacity in the class, rounded down.

    For bytes that follow from a stated ratio, because bytes are handed out.
    """

    percent: int


@dataclass(frozen=True, slots=True)
class RatioFrom:
    """An amount as a percentage of the device's capacity in another class, rounded down.

    For a ratio that follows from stated bytes. More than all of the other class fits no device.
    """

    tail: str
    amount: int  # asked of that class


Amount = int | PartOf | RatioFrom


class QueryError(ValueError):
    """A want is meaningless or out of bounds."""


@dataclass(frozen=True, slots=True)
class Want:
    """A number of distinct devices of one type, each with the wanted amounts free.

    Raises QueryError: a figure is out of bounds.
    """

    type: str
    count: int  # from 1 to `MAX_WANTED`
    # (resource tail, what each device must have free) pairs; at least one, each tail once
    amounts: tuple[tuple[str, Amount], ...]
    _hash: int = field(init=False, repr=False, compare=False)  # results are looked up by it many times

    def __hash__(self) -> int:
        return self._hash

    def __post_init__(self) -> None:
        if not 0 < self.count <= MAX_WANTED:
            raise QueryError(f"{self.count} devices of type {self.type}: ask from 1 to {MAX_WANTED}")
        if not self.amounts or len({tail for tail, _ in self.amounts}) != len(self.amounts):
            raise QueryError(f"devices of type {self.type}: name what is wanted of each, and each resource once")
        for tail, amount in self.amounts:
            figure, most = _bounds(amount)
            if not 0 <= figure <= most:
                raise QueryError(f"{figure} of {tail}: ask from 0 to {most}")
        object.__setattr__(self, "_hash", hash((self.type, self.count, self.amounts)))


def _bounds(amount: Amount) -> tuple[int, int]:
    if isinstance(amount, PartOf):
        return amount.percent, FULL
    return amount.amount if isinstance(amount, RatioFrom) else amount, MAX_AMOUNT


@dataclass(frozen=True, slots=True)
class Query:
    """All that is asked of a node at once.

    Each want is considered by itself. That each could be served is necessary for all of them together; for several
    wants of one type it is not sufficient.
    """

    wants: tuple[Want, ...]  # what a node must have
    # what the Pod holds at once in each step of its life; only for preferences that count what it takes
    steps: tuple[tuple[Want, ...], ...] = ()
    # (resource, amount) pairs that the Pod takes of the node itself; only for these preferences too
    requests: tuple[tuple[str, int], ...] = ()
    _hash: int = field(init=False, repr=False, compare=False)  # likewise

    def __hash__(self) -> int:
        return self._hash

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.wants, self.steps, self.requests)))
