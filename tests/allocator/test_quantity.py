"""Kubernetes quantities against exact integers."""

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import INT64, SUFFIXES, json_values, quantity_texts
from trials import examples

from allocator.quantity import (
    QuantityError,
    as_written,
    format_bytes,
    format_int,
    in_gib,
    parse,
    to_int,
    to_milli,
    whole_mebibytes,
)

READS: dict[str, tuple[Any, Fraction]] = {
    "plain": ("1", Fraction(1)),
    "an integer of JSON": (16, Fraction(16)),
    "a float of JSON": (0.5, Fraction(1, 2)),
    "a float is read as it is written, not as it is stored": (0.1, Fraction(1, 10)),
    "a float with an exponent": (1e18, Fraction(10**18)),
    "signed": ("+5", Fraction(5)),
    "negative": ("-5", Fraction(-5)),
    "minus zero": ("-0", Fraction(0)),
    "leading zeros": ("007", Fraction(7)),
    "a point at the end": ("5.", Fraction(5)),
    "a point at the start": (".5", Fraction(1, 2)),
    "milli": ("500m", Fraction(1, 2)),
    "micro": ("1u", Fraction(1, 10**6)),
    "nano": ("1n", Fraction(1, 10**9)),
    "kilo is a small k": ("2k", Fraction(2000)),
    "kibi is a large K": ("2Ki", Fraction(2048)),
    "mega": ("1M", Fraction(10**6)),
    "the device proposal's card": ("15472384Ki", Fraction(15472384 * 1024)),
    "gibi": ("16Gi", Fraction(16 * 2**30)),
    "fraction of a gibi": ("1.5Gi", Fraction(3 * 2**29)),
    "tebi": ("1Ti", Fraction(2**40)),
    "pebi": ("1Pi", Fraction(2**50)),
    "exa": ("1E", Fraction(10**18)),
    "exbi": ("1Ei", Fraction(2**60)),
    "exponent": ("1e3", Fraction(1000)),
    "large exponent letter": ("1E3", Fraction(1000)),
    "exponent with sign": ("1e+3", Fraction(1000)),
    "negative exponent": ("25e-1", Fraction(5, 2)),
    "sixty-four characters": ("0" * 63 + "1", Fraction(1)),
    "the largest": (str(INT64), Fraction(INT64)),
    "the smallest": (f"-{INT64}", Fraction(-INT64)),
}

REFUSED: dict[str, Any] = {
    "empty": "",
    "a space": " ",
    "spaces around": " 1 ",
    "a new line after": "1\n",
    "a sign alone": "-",
    "a point alone": ".",
    "a suffix alone": "Gi",
    "a word": "lots",
    "GB is no suffix": "32GB",
    "a small ki": "1ki",
    "a large K alone": "1K",
    "mi": "1mi",
    "an exponent and a suffix": "1e3Ki",
    "an exponent without digits": "1e",
    "an exponent of three digits": "1e100",
    "two points": "1.2.3",
    "a comma": "1,5",
    "an underscore": "1_000",
    "hexadecimal": "0x10",
    "two signs": "--1",
    "arabic digits": "\u0661\u0662",
    "fullwidth digits": "\uff11",
    "superscript digits": "\u00b2",
    "a zero byte": "1\x00",
    "half a surrogate pair": "\ud800",
    "NaN": "NaN",
    "infinity": "Infinity",
    "a float that is not a number": math.nan,
    "an infinite float": math.inf,
    "a float beyond every exponent": 1e300,
    "too long": "1" * 65,
    "too long, though it is 1": "0" * 64 + "1",
    "very long": "9" * 1_000_000,
    "very long after the point": "0." + "1" * 1_000_000,
    "above 2^63-1": str(2**63),
    "below -(2^63-1)": f"-{2**63}",
    "above by its suffix": "8Ei",
    "above by its exponent": "1e19",
    "far above by its exponent": "1e99",
    "an integer above": 2**63,
    "an integer that Python would not print": 10**5000,
    "true": True,
    "null": None,
    "a list": [1],
    "an object": {"value": 1},
    "bytes": b"1",
    "a long list": ["1"] * 100_000,
}


@pytest.mark.parametrize(("quantity", "value"), READS.values(), ids=READS)
def test_a_quantity_is_read_exactly(quantity: Any, value: Fraction) -> None:
    assert parse(quantity) == value


@pytest.mark.parametrize("quantity", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("reader", [parse, to_int, to_milli], ids=lambda reader: reader.__name__)
def test_what_is_no_quantity_is_refused_in_a_short_message(reader: Any, quantity: Any) -> None:
    with pytest.raises(QuantityError) as refusal:
        reader(quantity)
    assert 0 < len(str(refusal.value)) < 400
    assert "\n" not in str(refusal.value)


MESSAGES: dict[str, tuple[Any, str]] = {
    "a word": ("lots", "'lots' is not a Kubernetes quantity such as 1, 500m or 16Gi"),
    "sixty-five characters": ("1" * 65, f"'{'1' * 64}' is not a Kubernetes quantity such as 1, 500m or 16Gi"),
    "a list": (["1"], "a list is not a Kubernetes quantity such as 1, 500m or 16Gi"),
    "an integer above": (2**63, "an integer of 64 bits is larger than any quantity can be (2^63-1)"),
    "a long float": (math.inf, "'inf' is not a Kubernetes quantity such as 1, 500m or 16Gi"),
    "sixty-four digits": ("9" * 64, f"'{'9' * 63} is larger than any quantity can be (2^63-1)"),
    "too large": ("8Ei", "'8Ei' is larger than any quantity can be (2^63-1)"),
    "negative": ("-1", "'-1' is negative; ask 0 or more"),
    "a fraction": ("500m", "'500m' is not a whole number; fractions of a unit cannot be given"),
    "a fraction as a float": (0.5, "0.5 is not a whole number; fractions of a unit cannot be given"),
    "null": (None, "None is not a Kubernetes quantity such as 1, 500m or 16Gi"),
    "true": (True, "True is not a Kubernetes quantity such as 1, 500m or 16Gi"),
}


@pytest.mark.parametrize(("quantity", "message"), MESSAGES.values(), ids=MESSAGES)
def test_a_refusal_names_the_text_and_what_would_be_right(quantity: Any, message: str) -> None:
    with pytest.raises(QuantityError) as refusal:
        to_int(quantity)
    assert str(refusal.value) == message


WHOLE: dict[str, tuple[Any, int]] = {
    "zero": ("0", 0),
    "minus zero": ("-0", 0),
    "an integer": (50, 50),
    "a float that is whole": (50.0, 50),
    "text": ("50", 50),
    "leading zeros": ("0050", 50),
    "thousandths that make a whole": ("50000m", 50),
    "an exponent": ("5e1", 50),
    "half a gibi is whole": ("0.5Gi", 2**29),
    "eighteen digits": ("9" * 18, 10**18 - 1),
    "nineteen digits": (str(INT64), INT64),
}


@pytest.mark.parametrize(("quantity", "value"), WHOLE.values(), ids=WHOLE)
def test_a_whole_quantity_becomes_an_integer(quantity: Any, value: int) -> None:
    assert to_int(quantity) == value


MILLI: dict[str, tuple[Any, int]] = {
    "one": ("1", 1000),
    "half": ("500m", 500),
    "a decimal": ("1.25", 1250),
    "up, never down": ("1.0001", 1001),
    "the least": ("1n", 1),
    "none": ("0", 0),
}


@pytest.mark.parametrize(("quantity", "value"), MILLI.values(), ids=MILLI)
def test_cpu_is_counted_in_thousandths_rounded_up(quantity: Any, value: int) -> None:
    assert to_milli(quantity) == value


WRITTEN: dict[str, tuple[int, str]] = {
    "none": (0, "0"),
    "one": (1, "1"),
    "not quite a kibi": (1023, "1023"),
    "one more than a kibi": (1025, "1025"),
    "a kibi": (1024, "1Ki"),
    "the device proposal's card": (15472384 * 1024, "15472384Ki"),
    "sixteen gibi": (16 * 2**30, "16Gi"),
    "one and a half": (3 * 2**29, "1536Mi"),
    "an exbi": (2**60, "1Ei"),
    "the largest": (INT64, str(INT64)),
}


@pytest.mark.parametrize(("value", "text"), WRITTEN.values(), ids=WRITTEN)
def test_bytes_are_written_with_the_largest_exact_suffix(value: int, text: str) -> None:
    assert format_bytes(value) == text


@given(st.integers(0, INT64) | st.builds(lambda n, shift: n << shift, st.integers(0, 1023), st.integers(0, 53)))
def test_written_bytes_read_back_the_same(value: int) -> None:
    assert parse(format_bytes(value)) == value
    assert to_int(format_bytes(value)) == value
    assert to_int(format_int(value)) == value


@given(quantity_texts())
def test_text_of_the_grammar_is_read_as_its_value_or_refused_as_too_large(text: str) -> None:
    suffix = next(s for s in sorted(SUFFIXES, key=len, reverse=True) if text.endswith(s))
    powers = {s: Fraction(10) ** (3 * n) for n, s in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)}
    powers |= {s: Fraction(1024) ** n for n, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
    value = Fraction(text.removesuffix(suffix)) * powers[suffix]
    try:
        assert parse(text) == value
    except QuantityError:
        assert abs(value) > INT64


def read(reader: Any, anything: Any) -> Fraction | str:
    try:
        return Fraction(reader(anything))
    except QuantityError as refusal:
        return str(refusal)


@settings(max_examples=200)
@given(st.text(max_size=200) | json_values())
def test_anything_at_all_is_a_number_or_refused(anything: Any) -> None:
    for reader in (parse, to_int, to_milli):
        told = read(reader, anything)
        assert len(told) < 500 if isinstance(told, str) else abs(told) <= INT64 * 1000


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0, 0),
        (1, 1),
        (2**20 - 1, 2**20 - 1),
        (2**20, 2**20),
        (3 * 2**20 - 1, 2 * 2**20),
        (31_181_462_568, 29_736 * 2**20),
    ],
)
def test_bytes_are_rounded_down_to_whole_mebibytes_and_never_to_nothing(value: int, rounded: int) -> None:
    assert whole_mebibytes(value) == rounded


@pytest.mark.parametrize(
    ("stored", "written"),
    [
        ("500m", "0.5"),
        ("1181116006400m", "1.1Gi"),
        ("1500m", "1.5"),
        ("2500u", "2500u"),
        ("0.5", "0.5"),
        ("1e-1", "0.1"),
        (0.25, "0.25"),
        ("1", "1"),
        ("3k", "3k"),
        (7, "7"),
        ("50%", "50%"),
        ("many", "many"),
        (None, "None"),
    ],
)
def test_a_part_of_a_unit_is_told_as_its_author_wrote_it(stored: object, written: str) -> None:
    assert as_written(stored) == written


@settings(max_examples=examples(200))
@given(quantity_texts() | st.integers(1, 10**12).map("{}n".format) | st.integers(1, 10**6).map("{}m".format))
def test_what_is_told_is_the_same_amount(stored: str) -> None:
    try:
        exact = parse(stored)
    except QuantityError:
        return
    assert parse(as_written(stored)) == exact


@pytest.mark.parametrize(
    ("amount", "rounded", "stated"),
    [
        (0, "0 GiB", "0 GiB"),
        (1, "1 byte", "1 byte"),
        (2**20, "1 MiB", "1 MiB"),
        (2**20 + 1, "1 MiB", f"{2**20 + 1} bytes"),
        (102 * 2**20, "102 MiB", "102 MiB"),
        (103 * 2**20, "0.1 GiB", "103 MiB"),
        (2**30, "1 GiB", "1 GiB"),
        (3 * 2**29, "1.5 GiB", "1.5 GiB"),
        (2**31 - 1, "1.9 GiB", f"{2**31 - 1} bytes"),
        (81559 * 2**20, "79.6 GiB", "81559 MiB"),
    ],
)
def test_people_read_gib_to_the_tenth_rounded_down_and_what_they_wrote_exactly(
    amount: int, rounded: str, stated: str
) -> None:
    assert (in_gib(amount), in_gib(amount, stated=True)) == (rounded, stated)


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_part_is_never_shown_as_more_than_the_whole(one: int, other: int) -> None:
    units = {"byte": 1, "bytes": 1, "MiB": 2**20, "GiB": 2**30}
    part, whole = (
        Fraction(number) * units[unit] for number, unit in (in_gib(value).split() for value in sorted((one, other)))
    )
    assert part <= whole <= max(one, other)
