"""A container's names in any dialect, read as amounts of a type's tails, for all its devices together.

`normalise` turns these into a number of devices and the amounts of each, or says what is wrong with them.
Sources: the device proposal ("User apply device resources scenarios") and Koordinator's admission and request rules.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from allocator import quantity
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.dialects import Dialect, Term
from allocator.vocabulary.names import GPU, KUBERNETES_DOMAIN, TYPE_GPU
from allocator.vocabulary.outcome import Problem, excerpt
from allocator.wire.podannotations import read_bytes

MAX_COUNT: Final = 128  # devices; no node has more, and it bounds the work for an absurd request
FEW: Final = 8
"""Devices of a usual node: who writes so few percent probably means a number of devices."""

_SMALLEST_UNIT: Final = 2**10  # bytes of memory; smaller factors are of other things
_MAX_BYTES: Final = 2**50  # of memory; no device has as much
_MIB: Final = 2**20
_PART: Final = f"{KUBERNETES_DOMAIN}/{GPU}"
_DECIMAL: Final = re.compile(r"[0-9.]{1,24}(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_WHOLE: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(slots=True)
class StatedAmounts:
    """What one container states of one type."""

    # tail -> amount in the tail's unit, for all devices together; includes the plain tail and the split
    tails: dict[str, int] = field(default_factory=dict)
    template: str = ""  # name of the template whose shares are counted; "" for none
    count: int = 0  # number of devices that each give such a share


@dataclass(slots=True)
class Findings:
    """What is reported about a Pod while it is read."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what is read otherwise than its author may think


def dialect_of(kind: DeviceType, names: Iterable[str], types: DeviceTypes) -> Dialect | None:
    """Find the type's first dialect that has all these names; None if none has."""
    names = tuple(names)
    return next((dialect for dialect in types.spoken[kind.name] if dialect.has(names)), None)


def read_amounts(
    where: str,
    kind: DeviceType,
    dialect: Dialect | None,
    amounts: Mapping[str, object],
    types: DeviceTypes,
    findings: Findings,
) -> StatedAmounts | None:
    """Read the amounts of one type in one map; None if they ask for nothing or are wrong.

    `dialect`: that the Pod uses; None if it uses several, which the caller has reported. `amounts`: name -> amount as
    written.
    """
    notes = _Notes()
    for name, text in amounts.items():
        term = _term(name, dialect, types)
        try:
            amount = _read_amount(kind, term, text, annotation=name in types.said)
            amount = _clamped(where, kind, term, amount, findings)
        except quantity.QuantityError as error:
            place = "metadata.annotations" if name in types.said else where
            findings.problems.append(Problem(f"{place}[{name}]", str(error)))
            return None
        if not (amount or dialect is None or name in dialect.by_name):
            continue  # 0 of another dialect's name asks for nothing of that dialect
        wrong = notes.take(term, amount)
        if wrong:
            findings.problems.append(Problem(where, wrong))
            return None
    if dialect is not None and not dialect.own and not notes.whole:
        wrong = _incomplete(kind, dialect, notes.said, amounts)
        if wrong:
            findings.problems.append(Problem(where, wrong))
            return None
    return _completed(kind, dialect, notes)


@dataclass(slots=True)
class _Notes:
    """What was read of a container's names so far."""

    said: StatedAmounts = field(default_factory=StatedAmounts)  # the amounts, those of `each` for each device
    whole: int = 0  # number of whole devices that are counted
    each: set[str] = field(default_factory=set)  # the tails whose amounts are for each device

    def take(self, term: Term, amount: int) -> str:
        """Note an amount; what is wrong with it beside the others, or ""."""
        said = self.said
        if term.counts:
            self.whole = amount
        elif term.template:
            if amount and said.template:
                return f"{said.template} and {term.template} are both asked for; keep one"
            if amount:
                said.template, said.count = term.template, amount
        elif term.states in said.tails:
            return f"{term.states} is asked for in two domains at once; keep one"
        elif term.states:
            said.tails[term.states] = amount
            self.each.update({term.states} if term.each else ())
        return ""


def _term(name: str, dialect: Dialect | None, types: DeviceTypes) -> Term:
    """What a name means in the dialect; if the dialect lacks it or is None, in the first dialect that has it."""
    term = dialect.by_name.get(name) if dialect is not None else None
    return term if term is not None else (types.resources.get(name) or types.said[name]).term


def _read_amount(kind: DeviceType, term: Term, text: object, *, annotation: bool) -> int:
    """Read an amount in the unit of the term's tail; a fraction is rounded up, because the amount is accounted.

    Raises QuantityError: it is no quantity, is negative, or is more than any node or device has.
    """
    if annotation:
        return read_bytes(text) if term.quantity else _read_annotation(term, text)
    try:
        amount = quantity.to_int(text)
    except quantity.QuantityError as error:
        raise quantity.QuantityError(_not_whole(kind, term, text) or str(error)) from error
    if (term.counts or term.template) and amount > MAX_COUNT:  # percentages are checked in `normalise`
        raise quantity.QuantityError(f"{amount} is more devices than any node has; ask {MAX_COUNT} at most")
    return _bounded(term, text, amount * term.factor)


def _not_whole(kind: DeviceType, term: Term, text: object) -> str:
    """Say what to write instead of a part of a unit, or of percent with their sign; "" for any other amount."""
    written = quantity.as_written(text)
    percent, sign, _ = written.partition("%")
    in_percent = _in_percent(kind, term)
    try:
        exact = quantity.parse(percent if sign else text)
    except quantity.QuantityError:
        return ""
    if exact <= 0 or (sign and not in_percent):
        return ""
    whole, noun = -(-exact.numerator // exact.denominator), kind.noun
    part = -(-exact.numerator * FULL // exact.denominator)
    if in_percent:
        least = whole if sign or exact > 1 else part
        several = f", {whole} are {whole * FULL}" if not sign and 1 < exact <= FEW and not term.each else ""
        return f"{written} is no whole number of percent; write {least} (a whole {noun} is {FULL}{several})"
    if term.counts or term.template or term.states == kind.split:
        other = f", or {_PART}: {part}" if term.counts and exact < 1 else f" ({_PART} takes percent)"
        return f"{written} is no whole number of {noun}s; write {whole}{other if kind.name == TYPE_GPU else ''}"
    if term.factor == 1 and kind.in_bytes(term.states):
        return f"{written} is no whole number of bytes; write {-(-whole // _MIB)}Mi"
    return f"{written} is no whole number of units; write {whole}"


def _in_percent(kind: DeviceType, term: Term) -> bool:
    tail = term.states
    if term.counts or term.template or term.factor != 1:
        return False
    if tail == kind.plain:
        return kind.unit is Unit.PERCENT
    return tail in kind.tails and kind.percent[kind.tails.index(tail)]


def _bounded(term: Term, text: object, amount: int) -> int:
    """Return an amount that is read of a name in units of memory, unless no device has as much.

    Raises QuantityError: none has; what is written is probably a number of bytes.
    """
    if term.factor < _SMALLEST_UNIT or amount <= _MAX_BYTES:
        return amount
    unit = quantity.format_bytes(term.factor)
    meant = -(-amount // term.factor**2)
    written = quantity.format_bytes(amount // term.factor)
    hint = f"; {written} are {meant}" if meant * term.factor <= _MAX_BYTES else ""
    raise quantity.QuantityError(
        f"{excerpt(text)} times {unit} is more memory than any device has; write a number of {unit}{hint}"
    )


def _read_annotation(term: Term, text: object) -> int:
    """Read an annotation's amount, which is above 0.

    Raises QuantityError: it is not such a number.
    """
    bounds = f"above 0 and below {term.below // term.factor}" if term.below else "above 0"
    grammar, sort = (_DECIMAL, "a decimal number") if term.decimal else (_WHOLE, "a whole number")
    exact = None
    if isinstance(text, str) and grammar.fullmatch(text) and text.strip(".eE+-"):
        exact = quantity.parse(text) * term.factor
    if exact is None or exact <= 0 or (term.below and exact >= term.below):
        raise quantity.QuantityError(f"{excerpt(text)!r} is not {sort} {bounds}; write one")
    return _bounded(term, text, -(-exact.numerator // exact.denominator))


def _clamped(where: str, kind: DeviceType, term: Term, amount: int, findings: Findings) -> int:
    """Read more percent than each device has as all of it, if the dialect does.

    Raises QuantityError: it does not.
    """
    if amount <= FULL or not term.each or term.states not in kind.tails:
        return amount
    if not kind.percent[kind.tails.index(term.states)]:
        return amount
    if not term.clamped:
        raise quantity.QuantityError(f"{amount} is more than 100 percent of each device; write {FULL} at most")
    findings.warnings.append(f"{where}[{term.name}]: {amount} is more than 100 percent and counts as {FULL}")
    return FULL


def _incomplete(kind: DeviceType, dialect: Dialect, said: StatedAmounts, amounts: Mapping[str, object]) -> str:
    """Find what another product's names leave open, by which it would give no device or a device without memory."""
    tails = said.tails
    asked = [name for name in amounts if tails.get(_states(dialect, name))]
    if tails.get(kind.split) == 0 and asked:
        count = next(name for name in amounts if _states(dialect, name) == kind.split)
        return (
            f"{count}: 0 asks for no device, but {' and '.join(asked)} beside it asks for some; write 1, or remove it"
        )
    known = [name for name in dialect.needs if name in amounts]
    if dialect.needs and asked and not any(name in asked or dialect.by_name[name].each for name in known):
        return f"{' and '.join(asked)} alone asks for no device; add {' or '.join(dialect.needs)}"
    core, memory = tails.get(kind.tails[0], 0), kind.memory or ()
    if dialect.full_core and core >= FULL:
        low = core - core % FULL
        wrong = (
            f"{asked[0]} {core} is over 100, where only multiples of 100 are whole devices; ask {low} or {low + FULL}"
        )
        return wrong if core % FULL else ""
    if dialect.memory or not core or any(tails.get(tail) for tail in (*memory, kind.plain)):
        return ""
    names = [term.name for term in dialect.terms if term.states in memory]
    return f"{' and '.join(asked)} is asked without memory; add {' or '.join(names)}"


def _states(dialect: Dialect, name: str) -> str:
    return dialect.by_name[name].states if name in dialect.by_name else ""


def _completed(kind: DeviceType, dialect: Dialect | None, notes: _Notes) -> StatedAmounts | None:
    """Complete what was read; None if it asks for nothing."""
    said = notes.said
    if dialect is not None and not dialect.own and not notes.whole:
        if not (notes.each or any(said.tails.values())):
            return None
        if dialect.full_core and kind.plain not in said.tails and said.tails.get(kind.tails[0], 0) >= FULL:
            return StatedAmounts({kind.plain: said.tails[kind.tails[0]]})
    if notes.whole or not (notes.each or (dialect and dialect.memory)):
        return _whole(kind, said, notes.whole)
    return _each(kind, dialect, said, notes.each)


def _whole(kind: DeviceType, said: StatedAmounts, whole: int) -> StatedAmounts | None:
    """Complete what is stated for all devices together; None if it asks for nothing, or in two dialects."""
    if not whole:
        return said if said.tails or said.template else None  # nvidia.com/gpu: 0 asks for none
    if any(said.tails.values()) or said.template:
        return None  # two dialects: already reported for the whole Pod
    return StatedAmounts({kind.plain: whole * FULL})


def _each(kind: DeviceType, dialect: Dialect | None, said: StatedAmounts, each: Iterable[str]) -> StatedAmounts | None:
    """Complete what is stated for each of a number of devices; None if that number is 0."""
    tails = said.tails
    count = tails.setdefault(kind.split, 1)
    if not count:
        return None
    for tail in each:
        tails[tail] *= count
    if dialect is not None and dialect.memory and kind.memory:
        _fill(kind.tails[0], kind.memory, dialect, tails, count)
    return said


def _fill(core: str, memory: tuple[str, str], dialect: Dialect, tails: dict[str, int], count: int) -> None:
    """Add the core and the memory that a container leaves to its dialect."""
    size, ratio = memory
    if dialect.whole and (tails[ratio] == FULL * count if ratio in tails else size not in tails):
        tails.setdefault(core, FULL * count)
    if dialect.core:
        tails.setdefault(core, dialect.core * count)
    if not (tails.get(size) or tails.get(ratio)):
        tails.pop(ratio, None)
        tails[size if dialect.size else ratio] = (dialect.size or dialect.memory) * count
    elif tails.get(size) and tails.get(ratio) and dialect.both:
        del tails[ratio if dialect.both == size else size]


_SHOWN: Final = 8  # templates that a message names


class _Asked(NamedTuple):
    """What is asked of each of a number of devices, and the name of the template that has just these amounts."""

    devices: int
    amounts: tuple[int | None, ...]
    template: str = ""


def normalise(kind: DeviceType, said: StatedAmounts, *, derived: bool, vendor: str = "") -> DeviceAsk | str:
    """Turn what a container states of a type into an ask, or say in one sentence what is wrong with it.

    `derived`: bytes beside a ratio follow from it and are no ask. `vendor`: whose devices are meant; "" for anybody's.
    """
    if said.template:
        asked = _of_template(kind, said)
    elif kind.simple:
        asked = _simple(kind, said.tails[kind.plain])
    elif kind.plain in said.tails:
        asked = _all_alike(kind, said.tails)
    else:
        asked = _apart(kind, said.tails, derived=derived)
    if isinstance(asked, str):
        return asked
    return DeviceAsk(kind, asked.devices, asked.amounts, template=asked.template, vendor=vendor)


def _of_template(kind: DeviceType, said: StatedAmounts) -> _Asked | str:
    beside = sorted(tail for tail, amount in said.tails.items() if amount)
    if beside:
        return (
            f"template {said.template} already states what is asked of each {kind.noun}; {' and '.join(beside)} beside "
            "it contradicts; keep one"
        )
    return _Asked(said.count, kind.template(said.template).amounts, said.template)


def _simple(kind: DeviceType, amount: int) -> _Asked | str:
    """Normalise the only resource of a type that has no others."""
    if not amount:
        return f"{kind.plain} must be greater than zero; or remove it"
    if kind.unit is Unit.UNITS:
        return _Asked(1, (amount,))
    count = _count(kind, {}, {kind.plain: amount})
    return count if isinstance(count, str) else _Asked(count, (amount // count,))


def _all_alike(kind: DeviceType, tails: Mapping[str, int]) -> _Asked | str:
    """Normalise the plain resource of a type that has others: the same percentage of everything that a device has."""
    beside = sorted([tail for tail in tails if tail not in {kind.plain, kind.split}])
    if beside:
        return (
            f"{kind.plain} already states {_all_words(kind)}, {' and '.join(beside)} beside it contradicts; keep "
            f"{kind.plain}, or the others"
        )
    amount = tails[kind.plain]
    if not amount:
        noun = kind.noun
        return (
            f"{kind.plain} must be greater than zero: 50 is half a {noun}, 100 one {noun}, 200 two; or remove it"
            if kind.unit is Unit.PERCENT
            else f"{kind.plain} must be greater than zero; or remove it"
        )
    count = _count(kind, tails, {kind.plain: amount})
    if isinstance(count, str):
        return count
    part = amount // count
    return _cut(kind, _Asked(count, tuple([part if percent else None for percent in kind.percent])))


def _all_words(kind: DeviceType) -> str:
    return " and ".join(dict.fromkeys(kind.words))


def _apart(kind: DeviceType, tails: Mapping[str, int], *, derived: bool) -> _Asked | str:
    """Normalise amounts of the single resources that a device consists of."""
    asked = {tail: tails.get(tail, 0) for tail in kind.tails}
    if kind.memory:
        wrong = _memory(kind, kind.memory, asked, derived=derived)
        if wrong:
            return wrong
    elif not any(asked.values()):
        return f"nothing above 0 is asked; ask {kind.plain}, or some of {', '.join(kind.tails)}"
    percents = {tail: asked[tail] for tail, percent in zip(kind.tails, kind.percent, strict=True) if percent}
    count = _count(kind, tails, {tail: amount for tail, amount in percents.items() if amount})
    if isinstance(count, str):
        return count
    for tail, amount in asked.items():
        if amount % count:
            unit = " bytes" if kind.in_bytes(tail) else ""
            return f"{tail} {amount} does not split evenly over {count} devices; ask {_nearest(amount, count)}{unit}"
    amounts = [asked[tail] // count or (None if tail in (kind.memory or ()) else 0) for tail in kind.tails]
    return _cut(kind, _Asked(count, tuple(amounts)))


def _memory(kind: DeviceType, pair: tuple[str, str], asked: dict[str, int], *, derived: bool) -> str:
    """Find what is wrong with memory asked in bytes, in percent, in both or not at all; "" if nothing is."""
    size, ratio = pair
    if derived and asked[ratio]:
        asked[size] = 0
    if asked[size] and asked[ratio]:
        return f"{size} and {ratio} are both asked for; keep the one you mean (bytes, or percent of a {kind.noun})"
    if asked[size] or asked[ratio] or (kind.templates and any(asked.values())):
        return ""  # the template states how much memory comes with the other amounts
    without = [f"{tail} {amount}" for tail, amount in asked.items() if amount]
    wrong = f"{' and '.join(without)} is asked without memory" if without else "nothing above 0 is asked"
    both = "both" if len(set(kind.words)) == len(pair) else "all"
    return f"{wrong}; add {ratio} (percent of a {kind.noun}) or {size} (bytes), or ask {kind.plain} alone for {both}"


def _cut(kind: DeviceType, asked: _Asked) -> _Asked | str:
    """Round a part of a device up to the smallest of the type's templates that covers what is asked."""
    if not kind.templates or asked.amounts == kind.whole:
        return asked
    for template in kind.templates:
        if template.covers(asked.amounts):
            return _Asked(asked.devices, template.amounts, template.name)
    names = ", ".join(template.name for template in kind.templates[:_SHOWN])
    return f"no template of a {kind.name} has as much as is asked of each ({names}); ask less, or whole devices"


def _count(kind: DeviceType, tails: Mapping[str, int], percents: Mapping[str, int]) -> int | str:
    """Find over how many devices an ask spreads, or say why its parts do not agree.

    `tails`: the amounts of one map, among them the split if it is stated. `percents`: the amounts that are asked in
    percent, by tail.
    """
    if kind.split in tails:
        return _count_split(kind, tails[kind.split], percents)
    for tail, amount in percents.items():
        if amount > FULL and amount % FULL:
            low = amount - amount % FULL
            return (
                f"{tail} {amount} is over 100, where only multiples of 100 are whole devices; ask {low} or {low + FULL}"
            )
        if amount > FULL * MAX_COUNT:
            return (
                f"{tail} {amount} is more than {MAX_COUNT} devices, which no node has; ask {FULL * MAX_COUNT} at most"
            )
    counts = {tail: max(amount // FULL, 1) for tail, amount in percents.items()}
    first = next(iter(counts), "")
    other = next((tail for tail in counts if counts[tail] != counts[first]), "")
    if other:
        return (
            f"{first} {percents[first]} is {counts[first]} device(s) but {other} {percents[other]} is {counts[other]}; "
            "above 100 both must be the same multiple of 100"
        )
    return counts.get(first, 1)


def _count_split(kind: DeviceType, split: int, percents: Mapping[str, int]) -> int | str:
    if split not in range(1, MAX_COUNT + 1):
        return f"{kind.split} must be from 1 to {MAX_COUNT}, the number of {kind.noun}s to split the request over"
    for tail, amount in percents.items():
        if amount % split:
            return f"{tail} {amount} does not split evenly over {kind.split} {split}; ask {_nearest(amount, split)}"
        if amount // split > FULL:
            return (
                f"{tail} {amount} over {kind.split} {split} is more than 100 of each {kind.noun}; ask {FULL * split} "
                "at most"
            )
    return split


def _nearest(amount: int, step: int) -> str:
    low = amount - amount % step
    return f"{low} or {low + step}" if low else f"{step}"
