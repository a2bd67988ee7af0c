"""Many amounts in one number, exactly as in the patent, and the text in which a node publishes them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.index.packed import (
    MAX_BITS,
    MAX_COUNT,
    Packed,
    PackedError,
    bits_for,
    decode,
    encode,
)

GIB = 2**30
AMOUNTS = st.integers(0, 2**MAX_BITS - 1) | st.sampled_from([0, 1, 50, 100, 80 * GIB, 2**MAX_BITS - 1])

# The rule

# (amounts, bits, the number as in the patent, claim 3)

SPELLED: dict[str, tuple[list[int], int, int]] = {
    "no device": ([], 7, 0),
    "one device": ([100], 7, 100 << (0 * 7)),
    "percent of three cards": ([100, 0, 50], 7, 100 << (0 * 7) | 0 << (1 * 7) | 50 << (2 * 7)),
    "20 GiB on each of four cards": (
        [20, 20, 20, 20],
        5,
        20 << (0 * 5) | 20 << (1 * 5) | 20 << (2 * 5) | 20 << (3 * 5),
    ),
    "single bits": ([1, 0, 1, 1], 1, 0b1101),
    "all bits": ([2**MAX_BITS - 1, 1], MAX_BITS, (2**63 - 1) << (0 * 63) | 1 << (1 * 63)),
}


@pytest.mark.parametrize(("amounts", "bits", "packed"), SPELLED.values(), ids=SPELLED)
def test_amounts_are_packed_as_the_rule_spells_it(amounts: list[int], bits: int, packed: int) -> None:
    assert encode(amounts, bits) == packed
    assert decode(packed, bits, len(amounts)) == amounts


@given(st.lists(AMOUNTS, max_size=70))
def test_any_amounts_come_back_and_each_alone_by_the_rule(amounts: list[int]) -> None:
    b = bits_for(max(amounts, default=0))
    number = encode(amounts, b)
    assert number == sum(amount * 2 ** (b * place) for place, amount in enumerate(amounts))
    assert [(number >> ((i - 1) * b)) & (2**b - 1) for i in range(1, len(amounts) + 1)] == amounts
    assert decode(number, b, len(amounts)) == amounts


@given(AMOUNTS)
def test_as_few_bits_are_chosen_as_hold_the_greatest_amount(largest: int) -> None:
    b = bits_for(largest)
    assert largest < 2**b
    assert b == 1 or largest >= 2 ** (b - 1)


CORE = Packed.of("gpu-core", [100, 100], [50, 100])

# (the call, a part of the error's message)

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "a negative amount": (lambda: encode([1, -1], 7), "amount 2 of 2 is -1"),
    "an amount of too many bits": (lambda: encode([127, 128], 7), "amount 2 of 2 is 128"),
    "no bits": (lambda: encode([0], 0), "0 bits"),
    "too many bits": (lambda: encode([0], MAX_BITS + 1), "64 bits"),
    "too many devices": (lambda: encode([0] * (MAX_COUNT + 1), 1), "1025 devices"),
    "a negative number": (lambda: decode(-1, 7, 1), "negative"),
    "a number with more than was said": (lambda: decode(1 << 14, 7, 2), "longer than 2 amounts"),
    "fewer than no devices": (lambda: decode(0, 7, -1), "-1 devices"),
    "too many devices to unpack": (lambda: decode(0, 7, MAX_COUNT + 1), "1025 devices"),
    "bits for a negative amount": (lambda: bits_for(-1), "negative"),
    "bits for too large an amount": (lambda: bits_for(2**MAX_BITS), "needs 64 bits"),
    "more free than there is": (lambda: Packed.of("gpu-core", [100, 50], [100, 51]), "device 2 of 2 has 50"),
    "not as many free as there are": (lambda: Packed.of("gpu-core", [100], []), "totals of 1 devices"),
    "a negative total": (lambda: Packed.of("gpu-core", [-1], [-1]), "negative"),
    "a class without a name": (lambda: Packed.of("", [1], [1]), "no name"),
    "a name with a blank": (lambda: Packed.of("gpu core", [1], [1]), "no name"),
    "a name with a line's end": (lambda: Packed.of("gpu-core\n", [1], [1]), "no name"),
}


@pytest.mark.parametrize(("does", "told"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_packed_is_refused(does: Callable[[], object], told: str) -> None:
    with pytest.raises(PackedError, match=told):
        does()


def test_of_a_long_name_80_characters_are_told() -> None:
    with pytest.raises(PackedError, match=f"'{'g' * 80}' is no name of a resource class"):
        Packed.of("g" * 1000, [1], [1])


def test_what_was_packed_is_unpacked_as_it_was() -> None:
    assert (CORE.bits, CORE.total, CORE.free) == (7, 0x3264, 0x3232)
    assert (CORE.totals(), CORE.frees()) == ([100, 100], [50, 100])
