"""Many amounts in one number, exactly as in the patent, and the text in which a node publishes them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.index.packed import (
    MAX_BITS,
    MAX_CLASSES,
    MAX_COUNT,
    MAX_TEXT,
    Packed,
    PackedError,
    bits_for,
    decode,
    encode,
    read_packed,
    write_packed,
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
    "two classes of one name": (lambda: write_packed([CORE, CORE]), "one name"),
    "too many classes": (
        lambda: write_packed(Packed.of(f"c{number}", [1], [1]) for number in range(MAX_CLASSES + 1)),
        "65 classes",
    ),
    "too long a text": (
        lambda: write_packed(
            Packed.of(f"c{number}", [2**63 - 1] * MAX_COUNT, [2**63 - 1] * MAX_COUNT) for number in range(9)
        ),
        f"{MAX_TEXT} are the most",
    ),
}


@pytest.mark.parametrize(("does", "told"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_packed_is_refused(does: Callable[[], object], told: str) -> None:
    with pytest.raises(PackedError, match=told):
        does()


# The text


def test_the_text_can_be_read_by_a_person_and_is_always_the_same() -> None:
    memory = Packed.of("gpu-memory", [80 * GIB, 80 * GIB], [40 * GIB, 0])
    text = (
        '{"gpu-core":{"b":7,"n":2,"total":"0x3264","free":"0x3232"},'
        '"gpu-memory":{"b":37,"n":2,"total":"0x2800000001400000000","free":"0xa00000000"}}'
    )
    assert write_packed([memory, CORE]) == text
    assert write_packed([CORE, memory]) == text
    assert read_packed(text) == (CORE, memory)
    assert (CORE.totals(), CORE.frees()) == ([100, 100], [50, 100])


@st.composite
def classes(draw: st.DrawFn) -> list[Packed]:
    names = draw(
        st.lists(st.from_regex(r"[a-z][-a-z0-9.]{0,9}(/[a-z]{1,5})?", fullmatch=True), unique=True, max_size=4)
    )
    made = []
    for name in names:
        pairs = draw(st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=12))
        made.append(Packed.of(name, [max(pair) for pair in pairs], [min(pair) for pair in pairs]))
    return made


@given(classes())
def test_any_classes_are_read_as_they_were_written(made: list[Packed]) -> None:
    assert list(read_packed(write_packed(made))) == sorted(made, key=lambda one: one.name)


def test_the_most_that_a_node_may_report_is_read() -> None:
    most = Packed.of("gpu-memory", [2**63 - 1] * MAX_COUNT, [2**63 - 1] * MAX_COUNT)
    assert read_packed(write_packed([most])) == (most,)


def test_64_classes_of_a_node_are_written_and_read() -> None:
    made = tuple(Packed.of(f"c{number:02d}", [number], [0]) for number in range(64))
    assert read_packed(write_packed(made)) == made


def test_a_text_of_as_many_characters_as_an_annotation_may_have_is_read() -> None:
    longest = entry().ljust(262_144)
    assert read_packed(longest) == (CORE,)
    with pytest.raises(PackedError, match="at most 262144 characters"):
        read_packed(longest + " ")


def entry(**fields: Any) -> str:
    return json.dumps({"gpu-core": {"b": 7, "n": 2, "total": "0x3264", "free": "0x3232", **fields}})


HOSTILE: dict[str, object] = {
    "nothing": "",
    "no text": None,
    "bytes": b"{}",
    "half a text": entry()[:-2],
    "a list": "[]",
    "a number of endless digits": "1" * 10_000,
    "nested without end": "[" * 200_000,
    "longer than an annotation may be": entry() + " " * MAX_TEXT,
    "too many classes": json.dumps(
        {f"c{number}": json.loads(entry())["gpu-core"] for number in range(MAX_CLASSES + 1)}
    ),
    "a class twice": '{"a":{"b":1,"n":0,"total":"0x0","free":"0x0"},"a":{"b":1,"n":0,"total":"0x0","free":"0x0"}}',
    "a key twice": '{"a":{"b":1,"b":1,"n":0,"total":"0x0","free":"0x0"}}',
    "a class that is a text": '{"gpu-core":"0x3264"}',
    "a key too few": '{"gpu-core":{"b":7,"n":2,"total":"0x3264"}}',
    "a key too many": entry(used="0x0"),
    "no bits": entry(b=0),
    "more bits than an amount has": entry(b=MAX_BITS + 1),
    "bits without end": entry(b=10**30),
    "bits that are a fraction": entry(b=7.0),
    "bits that are a truth": entry(b=True),
    "bits that are no number": '{"gpu-core":{"b":NaN,"n":2,"total":"0x0","free":"0x0"}}',
    "fewer than no devices": entry(n=-1),
    "more devices than a node has": entry(n=MAX_COUNT + 1),
    "devices as text": entry(n="2"),
    "a number for a text": entry(total=12900),
    "no 0x": entry(total="3264"),
    "a sign": entry(total="-0x3264"),
    "an underscore": entry(total="0x32_64"),
    "digits of another script": entry(total="0x\u0663"),
    "a line's end": entry(free="0x3232\n"),
    "a number longer than all devices": entry(total="0x" + "f" * 20_000),
    "more than two devices": entry(total="0xf3264"),
    "more free than there is": entry(free="0x3264", total="0x3232"),
    "a name that is no name": json.dumps({"gpu core": json.loads(entry())["gpu-core"]}),
    "a name without end": json.dumps({"g" * 1000: json.loads(entry())["gpu-core"]}),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_text_that_is_not_of_the_format_is_refused_whole(text: object) -> None:
    with pytest.raises(PackedError):
        read_packed(text)


@pytest.mark.parametrize(("digits", "told"), [(16_128, "longer than 2 amounts of 7 bits"), (16_129, "63 x 1024 bits")])
def test_a_number_may_have_the_digits_of_all_amounts_that_a_node_may_have(digits: int, told: str) -> None:
    with pytest.raises(PackedError, match=told):
        read_packed(entry(total="0x" + "f" * digits))


def test_of_a_long_name_80_characters_are_told() -> None:
    for does, told in (
        (lambda: read_packed(json.dumps({"g" * 1000: 7})), f"resource class '{'g' * 80}' must be an object"),
        (lambda: Packed.of("g" * 1000, [1], [1]), f"'{'g' * 80}' is no name of a resource class"),
    ):
        with pytest.raises(PackedError, match=told):
            does()


_LEAVES = st.sampled_from([0, 1, 7, 63, 64, -1, True, None, 1.5, "0x0", "0x3264", "0xff", "7", ""])


@given(
    st.recursive(
        _LEAVES,
        lambda inner: (
            st.dictionaries(st.sampled_from(["b", "n", "total", "free", "gpu-core", ""]), inner, max_size=5)
            | st.lists(inner, max_size=2)
        ),
        max_leaves=12,
    ).map(json.dumps)
    | st.text(max_size=40)
)
def test_any_text_is_read_whole_or_refused(text: str) -> None:
    try:
        read = read_packed(text)
    except PackedError:
        return
    assert json.loads(write_packed(read)) == {
        name: {**told, "total": hex(int(told["total"], 16)), "free": hex(int(told["free"], 16))}
        for name, told in json.loads(text).items()
    }
