"""Amounts of memory as people read them: in GiB with one decimal. Data states them in bytes, exactly (pure)."""

from typing import Final

from allocator.quantity import format_bytes

_GIB: Final = 2**30


def held_of(used: int, total: int) -> tuple[str, str]:
    """Write what is held of bytes, and the total, in GiB: the total rounded down, what is held rounded up."""
    whole = total * 10 // _GIB
    held = -(-used * 10 // _GIB)
    return _tenths(min(held, whole) if used <= total else held), _tenths(whole)


def told_bytes(amount: int) -> str:
    """Write bytes exactly where that is short, else in GiB, rounded up."""
    exact = format_bytes(amount)
    if amount < _GIB or exact.endswith(("Gi", "Ti", "Pi", "Ei")):
        return exact
    return f"{_tenths(-(-amount * 10 // _GIB))}Gi"


def _tenths(number: int) -> str:
    whole, tenth = divmod(number, 10)
    return f"{whole}.{tenth}" if tenth else str(whole)
