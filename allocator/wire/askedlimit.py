"""The annotation gpu-memory-limit.koordgate.io/CONTAINER: bytes of each card, or a percentage of its memory."""

import re
from typing import Final

from allocator.quantity import QuantityError, format_bytes, to_int
from allocator.vocabulary.askedlimit import WHOLE, AskedLimit
from allocator.vocabulary.excerpt import excerpt

LEAST: Final = 2**20  # bytes; whatever keeps limits counts MiB
_MAX: Final = 2**50  # bytes; no card has as much
_PERCENT: Final = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?%", re.ASCII)
_DIGITS: Final = 3  # behind the point of a percentage


def read_bytes(text: object) -> int:
    """Read an amount of memory.

    Raises QuantityError: it is no quantity of whole bytes, less than 1Mi, or more than any card has.
    """
    amount = to_int(text)
    if not LEAST <= amount <= _MAX:
        raise QuantityError(f"{excerpt(text)} is not from {format_bytes(LEAST)} to {format_bytes(_MAX)}; write bytes")
    return amount


def read_limit(text: object) -> AskedLimit:
    """Read the annotation.

    Raises QuantityError: it is neither such an amount nor a percentage above 0 and at most 100.
    """
    if not isinstance(text, str) or not text.endswith("%"):
        return AskedLimit(read_bytes(text))
    match = _PERCENT.fullmatch(text)
    if match is not None:
        portion = int(match[1] + (match[2] or "").ljust(_DIGITS, "0"))
        if 0 < portion <= WHOLE:
            return AskedLimit(portion=portion)
    raise QuantityError(
        f"{excerpt(text)!r} is no percentage above 0 and at most 100, with at most {_DIGITS} digits behind the point; "
        "write one, or bytes"
    )


def write_limit(limit: AskedLimit) -> str:
    """Write the annotation; `read_limit` reads it back."""
    if limit.size:
        return format_bytes(limit.size)
    whole, rest = divmod(limit.portion, WHOLE // 100)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") + "%"
