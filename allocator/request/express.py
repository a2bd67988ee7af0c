"""A request for GPUs written in a dialect, or what of it the dialect cannot say.

What is written is read back, and is given only if it asks for the same. Vendors are not compared: koordgate's own names
want cards of anybody, and most products know NVIDIA's alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from allocator.quantity import format_bytes, format_int
from allocator.request.devices import read_pod
from allocator.vocabulary.asks import (
    NO_HINT,
    ContainerAsk,
    DeviceAsk,
    Operator,
    PartOfName,
    PodRequest,
    Requirement,
    Scope,
    Selector,
)
from allocator.vocabulary.delivery import AskedLimit
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes
from allocator.vocabulary.dialects import Dialect, Selects, Term
from allocator.vocabulary.names import DEVICE_ID, asked_limit
from allocator.wire.podannotations import write_limit

Amounts = dict[str, str]
_MIB: Final = 2**20


@dataclass(slots=True)
class Expressed:
    """A request in a dialect."""

    resources: dict[str, Amounts] = field(default_factory=dict)  # container -> resources, as limits
    annotations: dict[str, str] = field(default_factory=dict)
    # what the dialect cannot say, a sentence each; the rest is then of no use
    missing: list[str] = field(default_factory=list)


def express(
    request: PodRequest, dialect: Dialect, kind: DeviceType, first: str, *, one_device: bool = False
) -> Expressed:
    """Write what a Pod asks of one type in a dialect.

    `dialect`: to write it in; with the unit of the installation. `first`: name of the Pod's first app container, which
    annotations mean by default. `together`: whether all containers must share one device.
    """
    made = Expressed()
    asks = [one for one in request.containers if one.ask.type == kind]
    types = DeviceTypes((kind,), (dialect,))
    if dialect.annotations and len(asks) > 1:
        made.missing.append(f"{dialect} asks for one container of a Pod, and {len(asks)} ask here")
        return made
    strange = sorted({one.ask.vendor for one in asks} - {"", dialect.vendor}) if dialect.vendor else []
    made.missing.extend(f"{dialect} wants {kind.plural} of {dialect.vendor}, not of {vendor}" for vendor in strange)
    for one in asks:
        limit = _limit(request, one.name) if dialect.title else None
        tried = _with_limit(one, limit, dialect)
        found = next((amounts for amounts in tried if _is_same(one, limit, amounts, types)), None)
        if found is None:
            unsaid = list(_unsaid(one.ask, limit, dialect)) or [f"{dialect} has no names for this combination"]
            made.missing.extend(f"container {one.name}: {why}" for why in unsaid)
        elif dialect.annotations:
            made.annotations.update(found)
            named = any((form := dialect.form_of(key)) is not None and not form.beside for key in found)
            made.annotations.update({dialect.container: one.name} if one.name != first and not named else {})
        else:
            made.resources[one.name] = found
    if not dialect.title:
        limits = {name: _limit(request, name) for one in asks for name in one.names}
        made.annotations.update({asked_limit(name): write_limit(limit) for name, limit in limits.items() if limit})
    if sum(not one.ask.whole for one in asks) > 1 and one_device is not dialect.one_device:
        made.missing.append(
            f"the containers need not share one card, and {dialect} puts all containers of a Pod on one card"
            if dialect.one_device
            else f"the containers must share one card, and {dialect} cannot say that"
        )
    both = [name for name in dialect.either if any(name in amounts for amounts in made.resources.values())]
    if len(both) > 1:
        made.missing.append(f"{dialect} reads one of {' and '.join(both)} in a Pod")
    _select(request, dialect, kind, made)
    return made


def _limit(request: PodRequest, container: str) -> AskedLimit | None:
    """The most memory that a container may use of each card; None if that is what it asks for."""
    size, portion = dict(request.memory_limits).get(container, 0), dict(request.memory_portions).get(container, 0)
    return AskedLimit(size, portion) if size or portion else None


def _with_limit(one: ContainerAsk, limit: AskedLimit | None, dialect: Dialect) -> Iterator[Amounts]:
    """List ways to write what a container asks and its limit."""
    asking = next((form for form in dialect.forms if form.states), None)
    tried = [*_candidates(one.ask, dialect)]
    if asking is not None and (size := one.ask.amount(asking.states)):
        split = next((term for term in dialect.annotations if term.states == one.ask.type.split), None)
        tried += _with_count({asking.key(one.name): format_bytes(size)}, split, one.ask.count, always=False)
    if limit is None:
        yield from tried
        return
    for form in dialect.forms:
        text = format_bytes(limit.size) if limit.size else f"0.{limit.portion:05d}".rstrip("0")
        if form.limits and bool(form.beside) is not bool(limit.size):
            yield from ({**amounts, form.key(one.name): text} for amounts in tried)


def _candidates(ask: DeviceAsk, dialect: Dialect) -> Iterator[Amounts]:
    """List ways to write an ask, the plainest first; not all of them ask for the same."""
    kind, count = ask.type, ask.count
    core, ratio = kind.tails[0], kind.memory[1] if kind.memory else ""
    terms = {term.states: term for term in reversed((*dialect.terms, *dialect.annotations)) if not term.template}
    counting = next((term for term in dialect.terms if term.counts), None)
    stated = dict(zip(kind.tails, ask.amounts, strict=True))
    alike = stated[core] if stated[core] == stated.get(ratio) else None
    split = terms.get(kind.split)
    if ask.whole:
        if counting is not None:
            yield {counting.name: format_int(count)}
        if split is not None:
            yield {split.name: format_int(count)}
        if core in terms:
            yield {terms[core].name: format_int(FULL * count)}
    plain = terms.get(kind.plain)
    if plain is not None and alike:
        yield from _with_count(_amount(plain, alike, count), split, count, always=False)
    parts: list[Amounts] = []
    for tail, amount in stated.items():
        term = terms.get(tail)
        if amount:
            if term is None:
                return
            parts.append(_amount(term, amount, count))
    written = {name: text for part in parts for name, text in part.items()}
    always = not (dialect.own or dialect.annotations)
    yield from _with_count(written, split, count, always=always)
    if core in terms and not stated[core]:
        yield from _with_count({**written, terms[core].name: "0"}, split, count, always=always)


def _with_count(written: Amounts, split: Term | None, count: int, *, always: bool) -> Iterator[Amounts]:
    if split is None or (count == 1 and not always):
        yield written
    if split is not None:
        yield {split.name: format_int(count), **written}


def _amount(term: Term, amount: int, count: int) -> Amounts:
    """One amount in the term's unit, rounded down; nothing if the unit is not known."""
    if term.decimal:
        return {term.name: f"{amount // FULL}.{amount % FULL:02d}".rstrip("0")}
    if not term.factor:
        return {}
    units = (amount if term.each else amount * count) // term.factor
    return {term.name: format_bytes(units) if term.factor == 1 and units >= _MIB else format_int(units)}


def _is_same(one: ContainerAsk, limit: AskedLimit | None, amounts: Amounts, types: DeviceTypes) -> bool:
    """Whether amounts ask for what a container asks for, with its limit."""
    container: dict[str, Any] = {"name": one.name}
    annotations: Mapping[str, object] = amounts if types.annotations else {}
    if not types.annotations:
        container["resources"] = {"limits": amounts}
    reading = read_pod({"containers": [container]}, types=types, annotations=annotations)
    if reading.problems or dict(reading.limits).get(one.name) != limit:
        return False
    read = [replace(found.ask, vendor="") for found in reading.request.containers]
    return read == [replace(one.ask, vendor="", every=False)]


def _unsaid(ask: DeviceAsk, limit: AskedLimit | None, dialect: Dialect) -> Iterator[str]:
    """Say what of an ask a dialect has no words for."""
    kind, known = ask.type, {term.states: term for term in (*dialect.terms, *dialect.annotations)}
    core = ask.amounts[0]
    size, ratio = kind.memory or ("", "")
    alike = kind.plain in known and not known[kind.plain].counts and core == ask.amount(ratio)
    if ask.amount(ratio) and ratio not in known and not ask.whole and not alike:
        yield f"{dialect} states no memory in percent of a {kind.noun} ({ask.amount(ratio)} % here)"
    memory = ask.amount(size)
    if memory:
        term = known.get(size)
        if term is None:
            yield f"{dialect} states no memory in bytes ({format_bytes(memory)} here)"
        elif term.factor and memory * (1 if term.each else ask.count) % term.factor:
            unit = format_bytes(term.factor)
            yield f"{dialect} states memory in units of {unit}, of which {format_bytes(memory)} is no multiple"
    if core and not ask.whole and kind.tails[0] not in known and not alike:
        yield f"{dialect} states no compute ({core} % here)"
    if not core and dialect.needs and all(known_states(dialect, name) == kind.tails[0] for name in dialect.needs):
        yield f"{dialect} cannot leave compute unlimited"
    if limit is not None:
        beside = " beside this request" if dialect.forms else ""
        yield f"{dialect} cannot state a limit of memory above the request{beside} ({write_limit(limit)} here)"
    if ask.count > 1 and not ask.whole and kind.split not in known:
        yield f"{dialect} states no shares of several {kind.noun}s ({ask.count} here)"


def known_states(dialect: Dialect, name: str) -> str:
    """What a name of a dialect states."""
    return dialect.by_name[name].states


def _select(request: PodRequest, dialect: Dialect, kind: DeviceType, made: Expressed) -> None:
    """Write by which annotations of the dialect devices are selected."""
    hint = request.wishes.hint(kind.name) or NO_HINT
    for requirement in (hint.selector or Selector()).requirements:
        key, values = _selecting(requirement, dialect.selects)
        if key and key not in made.annotations:
            made.annotations[key] = ",".join(values)
        else:
            made.missing.append(f"{dialect} cannot select devices by {requirement.key} as this Pod does")
    if hint.scope is Scope.NUMA_NODE and dialect.selects.numa:
        made.annotations[dialect.selects.numa] = "true"


def _selecting(requirement: Requirement | PartOfName, selects: Selects) -> tuple[str, Sequence[str]]:
    if isinstance(requirement, PartOfName):
        return selects.models if requirement.wanted else selects.not_models, [
            one or "NVIDIA" for one in requirement.parts
        ]
    if requirement.key == DEVICE_ID and requirement.operator is Operator.IN:
        return selects.ids, requirement.values
    if requirement.key == DEVICE_ID and requirement.operator is Operator.NOT_IN:
        return selects.not_ids, requirement.values
    return "", ()
