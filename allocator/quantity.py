"""Kubernetes quantities as exact integers, and back (k8s.io/apimachinery resource.Quantity's grammar)."""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

_SUFFIXES: Final[dict[str, Fraction]] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?(?P<suffix>[KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]{1,2})",
    re.ASCII,
)
_MAX_LENGTH: Final = 64  # no sane quantity is longer; bounds the work on untrusted text
LARGEST: Final = 2**63 - 1  # a Quantity's int64, and the largest integer in an object of the API
_MIB: Final = 2**20
_GIB: Final = 2**30
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class QuantityError(ValueError):
    """A text is not a quantity, or not of the required kind; the message names a correct one."""


def parse(quantity: object) -> Fraction:
    """Read a quantity as JSON holds it (text or integer) as an exact number.

    Raises QuantityError: it is not a Kubernetes quantity, or its magnitude is above 2^63-1.
    """
    if isinstance(quantity, int) and not isinstance(quantity, bool):
        value = Fraction(quantity)
    elif isinstance(quantity, float):
        value = _parse_text(repr(quantity), quantity)
    elif isinstance(quantity, str):
        value = _parse_text(quantity, quantity)
    else:
        raise QuantityError(f"{_show(quantity)} is not a Kubernetes quantity such as 1, 500m or 16Gi")
    if abs(value.numerator) > LARGEST * value.denominator:
        raise QuantityError(f"{_show(quantity)} is larger than any quantity can be (2^63-1)")
    return value


def _show(quantity: object) -> str:
    """Quote any value that a user wrote, in bounded length and time."""
    if isinstance(quantity, int) and abs(quantity) > LARGEST:
        return f"an integer of {quantity.bit_length()} bits"  # Python refuses to print very long ones
    if quantity is None or isinstance(quantity, (bool, int, float, str)):
        return repr(quantity)[:_MAX_LENGTH]
    return f"a {type(quantity).__name__}"


def _parse_text(text: str, shown: object) -> Fraction:
    value = _value_of(text) if len(text) <= _MAX_LENGTH else None
    if value is None:
        raise QuantityError(f"{str(shown)[:_MAX_LENGTH]!r} is not a Kubernetes quantity such as 1, 500m or 16Gi")
    return value


@lru_cache(maxsize=1024)  # the Pods of one template state the same few amounts
def _value_of(text: str) -> Fraction | None:
    """The number that a text of bounded length states; None if it is no quantity."""
    match = _GRAMMAR.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        return None
    part = match["part"] or ""
    value = Fraction(int(match["whole"] + part or "0"), 10 ** len(part))
    suffix = match["suffix"]
    scale = _SUFFIXES.get(suffix)
    if scale is None:
        exponent = int(suffix[1:])
        scale = Fraction(10) ** exponent
    return -value * scale if match["sign"] == "-" else value * scale


def to_int(quantity: object) -> int:
    """Read a quantity that must be a whole number of its unit, 0 or more (devices, percent, bytes).

    Raises QuantityError: it is not a quantity, is negative, or is not whole.
    """
    if isinstance(quantity, str) and quantity.isascii() and quantity.isdigit() and len(quantity) < 19:  # noqa: PLR2004 - int64
        return int(quantity)
    value = parse(quantity)
    if value < 0:
        raise QuantityError(f"{quantity!r} is negative; ask 0 or more")
    if value.denominator != 1:
        raise QuantityError(f"{quantity!r} is not a whole number; fractions of a unit cannot be given")
    return value.numerator


def as_written(quantity: object) -> str:
    """A quantity as its author probably wrote it: the API server stores 0.5 as 500m, and 1.1Gi as 1181116006400m."""
    text = _show(quantity) if not isinstance(quantity, str) else quantity[:_MAX_LENGTH]
    value = _value_of(text)
    if value is None or value.denominator == 1:
        return text
    for suffix in (*reversed(_BINARY), ""):
        amount = value / _SUFFIXES[suffix]
        if amount >= 1 or not suffix:
            told = f"{float(amount):.3f}".rstrip("0")
            if Fraction(told) == amount:
                return f"{told}{suffix}"
    return text


def is_zero(quantity: object) -> bool:
    """Whether an amount asks for nothing, in any spelling; what cannot be read asks for something."""
    try:
        return to_int(quantity) == 0
    except QuantityError:
        return False


def to_milli(quantity: object) -> int:
    """Read a CPU quantity as thousandths, rounded up as Kubernetes does.

    Raises QuantityError: it is not a quantity, or is negative.
    """
    value = parse(quantity) * 1000
    if value < 0:
        raise QuantityError(f"{quantity!r} is negative; ask 0 or more")
    return -(-value.numerator // value.denominator)


def format_int(value: int) -> str:
    """Write a count or percentage."""
    return str(value)


def format_bytes(value: int) -> str:
    """Write bytes in Kubernetes' canonical binary form: the largest suffix that keeps the value exact."""
    suffix = ""
    for larger in _BINARY:
        if not value or value % 1024:
            break
        value //= 1024
        suffix = larger
    return f"{value}{suffix}"


def whole_mebibytes(value: int) -> int:
    """Round bytes down to whole MiB, so that they are short to write; less than one stays as it is."""
    return value // _MIB * _MIB or value


def in_gib(value: int, *, stated: bool = False) -> str:
    """Write bytes for people: GiB with one decimal, rounded down; less than a tenth in MiB, rounded down.

    Rounded down, a part is never more than its card, nor the parts more than their sum.
    `stated`: somebody wrote this amount. It is then not rounded: what is no whole tenth is in MiB, or in bytes.
    """
    tenths, rest = divmod(value * 10, _GIB)
    if value < _MIB or (stated and rest and value % _MIB):
        return f"{value} byte{'s' * (value > 1)}" if value else "0 GiB"
    if not tenths or (stated and rest):
        return f"{value // _MIB} MiB"
    whole, tenth = divmod(tenths, 10)
    return f"{whole}.{tenth} GiB" if tenth else f"{whole} GiB"
