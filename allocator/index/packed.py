"""Packed amounts: the amounts of all devices of a node in one resource class, as one number.

The rule is that of the patent (claims 3 and 5). For the amounts Ns1 .. NsNf of Nf devices, and b bits that hold the
greatest of them, the number is K = Ns1<<(0*b) | Ns2<<(1*b) | .. | NsNf<<((Nf-1)*b). The amount of device i, counted
from 1, is (K>>((i-1)*b)) & (2^b-1). b is chosen for each class of each node, from the greatest total.

A node's totals and free amounts (paragraph 114) are packed where they are compared: in a replica, from what the
reporter and the ledger state of the node.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MAX_BITS: Final = 63  # an amount is a non-negative int64
MAX_COUNT: Final = 1024  # devices of a node

_NAME: Final = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}(/[A-Za-z0-9][-A-Za-z0-9_.]{0,62})?")
_MAX_REMEMBERED: Final = 4096  # classes of nodes that are remembered: many nodes are alike


class PackedError(ValueError):
    """Amounts cannot be packed."""


def bits_for(largest: int) -> int:
    """Find how many bits hold every amount up to the largest; at least 1.

    Raises PackedError: it is negative, or needs more than `MAX_BITS`.
    """
    if largest < 0:
        raise PackedError(f"{largest} is negative; amounts are counted from 0")
    bits = max(largest.bit_length(), 1)
    if bits > MAX_BITS:
        raise PackedError(f"{largest} needs {bits} bits; {MAX_BITS} is the most that an amount may have")
    return bits


def encode(values: Sequence[int], bits: int) -> int:
    """Pack amounts, the first in the lowest bits (patent, claim 3).

    Raises PackedError: an amount is negative or needs more bits, or bits or the number of amounts is out of bounds.
    """
    _check_shape(bits, len(values))
    packed = shift = 0
    for value in values:
        if value < 0 or value >> bits:
            raise PackedError(f"amount {shift // bits + 1} of {len(values)} is {value}: not from 0 to 2^{bits} - 1")
        packed |= value << shift
        shift += bits
    return packed


def decode(packed: int, bits: int, count: int) -> list[int]:
    """Unpack amounts (patent, claim 5).

    Raises PackedError: the number is negative or holds more than `count` amounts, or bits or count is out of bounds.
    """
    _check_shape(bits, count)
    end = bits * count
    if packed < 0 or packed >> end:
        raise PackedError(f"the packed number is negative or longer than {count} amounts of {bits} bits")
    mask = (1 << bits) - 1
    return [(packed >> shift) & mask for shift in range(0, end, bits)]


def _check_shape(bits: int, count: int) -> None:
    if not 0 < bits <= MAX_BITS:
        raise PackedError(f"{bits} bits an amount: must be from 1 to {MAX_BITS}")
    if not 0 <= count <= MAX_COUNT:
        raise PackedError(f"{count} devices: must be from 0 to {MAX_COUNT}")


@dataclass(frozen=True, slots=True)
class Packed:
    """One resource class of one node.

    Raises PackedError: a value is out of its bounds.
    """

    name: str  # of the class: a resource's tail, or type/tail
    bits: int  # of each amount (b), from 1 to `MAX_BITS`
    count: int  # of devices (Nf), to `MAX_COUNT`
    total: int  # the amount that each device has, packed
    free: int  # the free part of that amount, packed; never more than the device has

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise PackedError(f"{self.name[:80]!r} is no name of a resource class")
        for number, (total, free) in enumerate(zip(self.totals(), self.frees(), strict=True), 1):
            if free > total:
                raise PackedError(f"{self.name}: device {number} of {self.count} has {total}, so {free} cannot be free")

    @classmethod
    def of(cls, name: str, totals: Sequence[int], frees: Sequence[int]) -> "Packed":
        """Pack one class in as few bits as hold its greatest total.

        Raises PackedError: an amount is negative or too large, more is free than there is, or the lengths differ.
        """
        return _packed(name, tuple(totals), tuple(frees))

    def totals(self) -> list[int]:
        """The amount that each device has, unpacked."""
        return decode(self.total, self.bits, self.count)

    def frees(self) -> list[int]:
        """The free amount of each device, unpacked."""
        return decode(self.free, self.bits, self.count)


@lru_cache(_MAX_REMEMBERED)
def _packed(name: str, totals: tuple[int, ...], frees: tuple[int, ...]) -> Packed:
    if len(totals) != len(frees):
        raise PackedError(f"{name}: totals of {len(totals)} devices, but free amounts of {len(frees)}")
    bits = bits_for(max(totals, default=0))
    return Packed(name, bits, len(totals), encode(totals, bits), encode(frees, bits))
