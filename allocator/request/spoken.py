"""A container's names in any dialect, read as amounts of a type's tails, for all its devices together."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from allocator import quantity
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes
from allocator.vocabulary.dialect import Dialect, Term
from allocator.vocabulary.outcome import Problem

MAX_COUNT: Final = 128  # devices; no node has more, and it bounds the work for an absurd request


@dataclass(slots=True)
class Said:
    """What one container states of one type.

    Attributes:
        tails: tail -> amount in the tail's unit, for all devices together; includes the plain tail and the split.
        template: name of the template whose shares are counted; "" for none.
        count: number of devices that each give such a share.
    """

    tails: dict[str, int] = field(default_factory=dict)
    template: str = ""
    count: int = 0


def dialect_of(kind: DeviceType, names: Iterable[str], types: DeviceTypes) -> Dialect | None:
    """Find the type's first dialect that has all these names; None if none has."""
    names = tuple(names)
    return next((dialect for dialect in types.spoken[kind.name] if dialect.has(names)), None)


def read_said(
    where: str,
    kind: DeviceType,
    dialect: Dialect | None,
    amounts: Mapping[str, object],
    types: DeviceTypes,
    problems: list[Problem],
) -> Said | None:
    """Read the amounts of one type in one map; None if they ask for nothing or are wrong.

    Args:
        where: the map, for messages.
        kind: the type.
        dialect: that the Pod uses; None if it uses several, which the caller has reported.
        amounts: name -> amount as written.
        types: all types.
        problems: added to.
    """
    said = Said()
    whole = 0
    each: set[str] = set()
    for name, text in amounts.items():
        term = _term(name, dialect, types)
        try:
            amount = _read_amount(term, text, decimal=name in types.annotations)
        except quantity.QuantityError as error:
            problems.append(Problem(f"{where}[{name}]", str(error)))
            return None
        if term.counts:
            whole = amount
        elif term.template:
            if amount and said.template:
                problems.append(Problem(where, f"{said.template} and {term.template} are both asked for; keep one"))
                return None
            if amount:
                said.template, said.count = term.template, amount
        elif term.states in said.tails:
            problems.append(Problem(where, f"{term.states} is asked for in two domains at once; keep one"))
            return None
        else:
            said.tails[term.states] = amount
            if term.each:
                each.add(term.states)
    return (
        _whole(kind, said, whole)
        if whole or not (each or (dialect and dialect.whole))
        else _each(kind, dialect, said, each)
    )


def _term(name: str, dialect: Dialect | None, types: DeviceTypes) -> Term:
    """What a name means in the dialect; if the dialect lacks it or is None, in the first dialect that has it."""
    term = dialect.by_name.get(name) if dialect is not None else None
    return term if term is not None else (types.resources.get(name) or types.annotations[name]).term


def _read_amount(term: Term, text: object, *, decimal: bool) -> int:
    """Read an amount in the unit of the term's tail; a fraction is rounded up, because the amount is accounted.

    Raises:
        QuantityError: it is no quantity, is negative, or counts more devices than any node has.
    """
    if decimal:
        exact = quantity.parse(text) * term.factor
        if exact < 0:
            raise quantity.QuantityError(f"{text} is negative; ask 0 or more")
        return -(-exact.numerator // exact.denominator)
    amount = quantity.to_int(text)
    if (term.counts or term.template) and amount > MAX_COUNT:  # percentages are checked in `normalise`
        raise quantity.QuantityError(f"{amount} is more devices than any node has; ask {MAX_COUNT} at most")
    return amount * term.factor


def _whole(kind: DeviceType, said: Said, whole: int) -> Said | None:
    """Complete what is stated for all devices together; None if it asks for nothing, or in two dialects."""
    if not whole:
        return said if said.tails or said.template else None  # nvidia.com/gpu: 0 asks for none
    if any(said.tails.values()) or said.template:
        return None  # two dialects: already reported for the whole Pod
    return Said({kind.plain: whole * FULL})


def _each(kind: DeviceType, dialect: Dialect | None, said: Said, each: Iterable[str]) -> Said | None:
    """Complete what is stated for each of a number of devices."""
    tails = said.tails
    if not any(tails.values()):
        return None
    count = tails.setdefault(kind.split, 1)
    if all(not amount for tail, amount in tails.items() if tail != kind.split):
        return Said({kind.plain: count * FULL})
    for tail in each:
        tails[tail] *= count
    if dialect is not None and dialect.memory and kind.memory and not any(map(tails.get, kind.memory)):
        tails[kind.memory[1]] = dialect.memory * count
    return said
