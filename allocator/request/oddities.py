"""Amounts that are read as written, and that nobody means.

`gpu-memory: 4096` is four thousand bytes, and `gpu: 1` is one percent of a card.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from allocator.quantity import format_bytes, to_int
from allocator.request.spoken import FEW
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import FULL, DeviceType, Unit
from allocator.vocabulary.dialect import Dialect, Term
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.names import NVIDIA_GPU, TYPE_GPU

_LEAST: Final = 64 * 2**20  # bytes; a process that opens a card takes more for itself
_MOST: Final = 2**40  # bytes; no card has as much
_MIB: Final = 2**20
_LARGER: Final = (2**10, 2**20, 2**30)


def odd_amounts(where: str, ask: DeviceAsk, dialect: Dialect | None, amounts: Mapping[str, object]) -> Iterator[str]:
    """Warn of less of a device than any program can use and of more than any has, with what was probably meant.

    `amounts`: name -> amount as written.
    """
    kind = ask.type
    if dialect is None:
        return
    yield from _few_percent(where, kind, dialect, amounts)
    if not kind.memory:
        return
    size = kind.memory[0]
    each = ask.amount(size)
    if not each or _LEAST <= each < _MOST:
        return
    for name, text in amounts.items():
        term = dialect.by_name.get(name)
        if term is None or term.states != size:
            continue
        if each >= _MOST:
            yield from _other_unit(f"{where}[{name}]", f"{excerpt(text)} is {_bytes(each)}", kind, dialect, term)
            continue
        step = next(one for one in _LARGER if each * one >= _LEAST)  # of 1 byte, the last
        meant = format_bytes(each * ask.count * step) if term.factor == 1 else each * step // term.factor
        yield (
            f"{where}[{name}]: {excerpt(text)} is {_bytes(each)} of memory of each {kind.noun}, which no program can "
            f"use; did you mean {meant}?"
        )


def _other_unit(place: str, said: str, kind: DeviceType, dialect: Dialect, term: Term) -> Iterator[str]:
    """Warn of memory in GiB that an installation of the product probably counts in MiB."""
    if term.sized and term.factor > _MIB:
        yield (
            f"{place}: {said} of memory of each {kind.noun}, which none has; where {dialect.title} counts MiB, an "
            f"administrator sets dialects.{dialect.name}.memoryUnit: 1Mi"
        )


def _few_percent(where: str, kind: DeviceType, dialect: Dialect, amounts: Mapping[str, object]) -> Iterator[str]:
    """Warn of a percentage that is probably a number of devices."""
    if not dialect.own or kind.unit is not Unit.PERCENT:
        return
    for name, text in amounts.items():
        term = dialect.by_name.get(name)
        if term is None or term.states != kind.plain or term.counts or term.template:
            continue
        number = to_int(text)
        if 0 < number <= FEW:
            whole = f"a whole {kind.noun} is" if number == 1 else f"{number} whole {kind.noun}s are"
            plain = f" (or {NVIDIA_GPU}: {number})" if kind.name == TYPE_GPU else ""
            yield (f"{where}[{name}]: {number} is {number} percent of a {kind.noun}; {whole} {number * FULL}{plain}")


def _bytes(amount: int) -> str:
    text = format_bytes(amount)
    return text if not text.isdigit() else f"{text} bytes"
