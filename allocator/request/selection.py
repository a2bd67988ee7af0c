"""Annotations of other products' Pods: those that choose among devices, and those that ask for devices.

A translated Pod records the dialect that it was read in (`echo`), so that later settings change nothing for it.

The rules of annotations that ask are those of KAI Scheduler (kai-scheduler/KAI-Scheduler,
pkg/common/resources/gpu_sharing_validation.go and gpu_sharing_nvfractions.go;
pkg/admission/webhook/v1alpha2/nvfractions/mutation.go), the only one so far.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, NamedTuple

from allocator.quantity import QuantityError, format_bytes, parse
from allocator.request.statedamounts import Findings
from allocator.vocabulary.asks import (
    NO_HINT,
    Operator,
    PartOfName,
    Requirement,
    Scope,
    Selector,
    TypeHint,
)
from allocator.vocabulary.delivery import WHOLE, AskedLimit
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialects import Dialect, Form, Selects, Term
from allocator.vocabulary.names import DEVICE_ID, DIALECT, MODEL
from allocator.vocabulary.outcome import Problem, excerpt
from allocator.wire.podannotations import read_bytes
from allocator.wire.strict import annotation_path


def echo(dialects: Iterable[Dialect]) -> str:
    """The annotation's text: `hami; memory unit 1Mi; default cores 30`; "" for koordgate's own names alone.

    `dialects`: that the Pod's names and selections are in, that of its names first.
    """
    used = [one for one in dialects if one.title]
    if not used:
        return ""
    first = used[0]
    told = {"memory unit": first.unit, "default memory": first.size}
    parts = [", ".join(one.name for one in used)]
    parts += [f"{what} {format_bytes(amount)}" for what, amount in told.items() if amount]
    parts += [f"default cores {first.core}"] if first.core else []
    return "; ".join(parts)


def echoed(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the dialects that a Pod's annotation states."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(DIALECT)
    named = text.partition(";")[0] if isinstance(text, str) else ""
    return tuple(filter(None, (one.strip() for one in named.split(","))))


_MAX: Final = 64  # values of one annotation
_MAX_LENGTH: Final = 2**13  # characters of one annotation
_VENDOR: Final = "NVIDIA"
_YES: Final = frozenset({"1", "t", "true"})
Hints = tuple[tuple[str, TypeHint], ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """What annotations of dialects select."""

    hints: Hints = ()  # (type's name, hint) pairs
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()  # which of them have no effect
    dialects: tuple[Dialect, ...] = ()  # that they belong to


NO_SELECTION: Final = Selection()


def selecting(pod: Mapping[str, object], types: DeviceTypes, spoken: Iterable[Dialect]) -> tuple[Dialect, ...]:
    """The dialects whose annotations select devices for a Pod: its own product's, or all that are read.

    `spoken`: the dialects that its names are in. A translated Pod states the product's, which may be off by now.
    """
    products = tuple(one for one in spoken if one.title)
    if products:
        return products
    told = echoed(pod)
    return tuple(one for one in types.known.dialects if one.name in told) or types.dialects


def read_selection(annotations: Mapping[str, object], dialects: Iterable[Dialect]) -> Selection:
    """Read what a Pod selects.

    `dialects`: whose annotations are read.
    """
    found: list[Dialect] = []
    keys: set[str] = set()
    for one in dialects:
        present = {key for key in one.selects.keys if key in annotations}
        found += [one] if present - keys else []  # a key that two products read is read once
        keys |= present
    if not found:
        return NO_SELECTION
    problems: dict[Problem, None] = {}
    warnings: dict[str, None] = {}
    hints: dict[str, TypeHint] = {}
    for dialect in found:
        selects = dialect.selects
        wanted = tuple(_requirements(annotations, selects, problems))
        known = hints.get(dialect.type, NO_HINT)
        before = known.selector.requirements if known.selector else ()
        selector = Selector(tuple(dict.fromkeys((*before, *wanted))))
        numa = str(annotations.get(selects.numa, "")).lower() in _YES
        scope = Scope.NUMA_NODE if numa else known.scope
        hints[dialect.type] = TypeHint(selector if selector.requirements else None, scope=scope)
        mode = str(annotations.get(selects.mode, ""))
        if mode and (wrong := wrong_mode(selects, selects.mode, mode)):
            problems[wrong] = None
        for key in selects.unread:
            if key in annotations:
                warnings[f"metadata.annotations[{key}]: has no effect here"] = None
    return Selection(
        tuple((kind, hint) for kind, hint in hints.items() if hint != NO_HINT),
        tuple(problems),
        tuple(warnings),
        tuple(found),
    )


def wrong_mode(selects: Selects, key: str, mode: object) -> Problem | None:
    """Find a way to share cards that is more than koordgate does; None if it is not."""
    if not selects.given or {one.strip() for one in str(mode).split(",")} & {*selects.given}:
        return None
    message = f"{excerpt(mode)}: cards are not shared in this way here; remove it, or use {selects.given[0]}"
    return Problem(f"metadata.annotations[{key}]", message)


def with_selection(hints: Hints, selection: Selection) -> Hints:
    """Add to a Pod's own hints what its other annotations select; the Pod's own scope counts."""
    known = dict(hints)
    for kind, more in selection.hints:
        hint = known.get(kind, NO_HINT)
        requirements = (
            *(hint.selector.requirements if hint.selector else ()),
            *(more.selector.requirements if more.selector else ()),
        )
        selector = Selector(requirements) if requirements else hint.selector
        known[kind] = replace(hint, selector=selector, scope=hint.scope if hint.scope is not None else more.scope)
    return tuple(sorted(known.items()))


def _requirements(
    annotations: Mapping[str, object], selects: Selects, problems: dict[Problem, None]
) -> Iterable[Requirement | PartOfName]:
    models = _values(annotations, selects.models, problems)
    if models:
        yield PartOfName(MODEL, tuple(_part(one) for one in models), wanted=True)
    others = _values(annotations, selects.not_models, problems)
    if others and not (models and selects.models_first):
        yield PartOfName(MODEL, tuple(_part(one) for one in others), wanted=False)
    for key, operator in ((selects.ids, Operator.IN), (selects.not_ids, Operator.NOT_IN)):
        ids = _values(annotations, key, problems)
        if ids:
            yield Requirement(DEVICE_ID, operator, ids)


def _values(annotations: Mapping[str, object], key: str, problems: dict[Problem, None]) -> tuple[str, ...]:
    """The values of a list with commas; empty ones mean nothing."""
    text = annotations.get(key) if key else None
    if text is None:
        return ()
    values: tuple[str, ...] = ()
    if isinstance(text, str) and len(text) <= _MAX_LENGTH:
        values = tuple(dict.fromkeys(filter(None, (one.strip() for one in text.split(",")))))
        if len(values) <= _MAX:
            return values
    message = f"must be a list of at most {_MAX} values, separated by commas"
    problems[Problem(f"metadata.annotations[{key}]", message)] = None
    return ()


def _part(written: str) -> str:
    """A part of a model's name in the spelling of the label: `NVIDIA A100` is `A100`, and `NVIDIA` is in every name."""
    part = "-".join(written.upper().split())
    while part.startswith(f"{_VENDOR}-"):
        part = part.removeprefix(f"{_VENDOR}-")
    return "" if part == _VENDOR else part


_PORTION: Final = re.compile(r"0{0,8}\.[0-9]{1,5}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9.]+(?:[eE][+-]?[0-9]+)?", re.ASCII)


class Containers(NamedTuple):
    """The containers of a Pod."""

    all: Collection[str]  # in the Pod's order
    first: str  # of those that run to the end, which is meant where no annotation names one
    translated: Collection[str]  # those that were translated; their resources state what their annotations asked


@dataclass(frozen=True, slots=True)
class Asked:
    """What annotations of one dialect say."""

    container: str  # that they are about
    amounts: Mapping[str, object]  # name of the dialect's term -> amount as written
    limit: AskedLimit | None = None  # the most memory that it may use; None if they state none above what is asked


@dataclass(slots=True)
class _Said:
    """The annotations of one dialect: exact keys with their terms, and keys that name a container."""

    terms: dict[str, Term] = field(default_factory=dict)
    forms: dict[str, tuple[Form, str]] = field(default_factory=dict)


def read_annotated(
    annotations: Mapping[str, object], dialect: Dialect, keys: Collection[str], names: Containers, findings: Findings
) -> Asked | None:
    """Read what annotations ask in a dialect.

    `keys`: the dialect's annotations that do not name their container; others of these names are not its own. Returns
    what is asked; None if nothing is, if the container was translated, or if something is wrong.
    """
    said = _Said({term.name: term for term in dialect.annotations if term.name in keys and term.name in annotations})
    for key in sorted(key for key in annotations if key.startswith(dialect.beginnings)) if dialect.forms else ():
        form = dialect.form_of(key)
        if form is not None:
            said.forms[key] = form, form.container(key) or ""
    if not said.terms and not said.forms:
        return None
    found: list[Problem] = []
    container = _container(annotations, dialect, said, names, found)
    if container in names.translated:
        return None
    amounts: dict[str, object] = {}
    limit = None
    if not found:
        found += _refused(annotations, dialect, said)
    if not found:
        reading = _Reading(annotations, dialect, said, found, findings.warnings)
        amounts = reading.amounts()
        limit = reading.limit(amounts)
    findings.problems.extend(found)
    return None if found else Asked(container, amounts, limit)


def _container(
    annotations: Mapping[str, object], dialect: Dialect, said: _Said, names: Containers, found: list[Problem]
) -> str:
    """Find which container is meant, and what is wrong with that."""
    named = annotations.get(dialect.container) if dialect.container else None
    naming = [(key, container) for key, (form, container) in said.forms.items() if not form.beside]
    key, container = naming[0] if naming else (dialect.container, names.first if named is None else str(named))
    if container not in names.all:
        found.append(Problem(annotation_path(excerpt(key)), "names no container of the Pod; write the name of one"))
        return container
    for other, (_, one) in said.forms.items():
        if one != container:
            whence = f"as {excerpt(key)} is" if naming or named is not None else "the first of the Pod"
            message = (
                f"is not about container {container}, {whence}; keep one, because {dialect.title} gives cards to one "
                "container of a Pod"
            )
            found.append(Problem(annotation_path(excerpt(other)), message))
            return container
    if named is not None and str(named) != container:
        message = f"names another container than {excerpt(key)}; write {container}, or remove it"
        found.append(Problem(annotation_path(dialect.container), message))
    return container


def _refused(annotations: Mapping[str, object], dialect: Dialect, said: _Said) -> Iterator[Problem]:
    """Find forms that are not read, or not with this value."""
    for key, (form, _) in said.forms.items():
        if form.mode and (wrong := wrong_mode(dialect.selects, excerpt(key), annotations[key])):
            yield wrong
        elif form.refusal:
            yield Problem(annotation_path(excerpt(key)), form.refusal)


@dataclass(slots=True)
class _Reading:
    """Reads the amounts of one container."""

    annotations: Mapping[str, object]
    dialect: Dialect
    said: _Said  # those of the dialect
    problems: list[Problem]
    warnings: list[str]

    def amounts(self) -> dict[str, object]:
        """What is asked, by the name of the dialect's term."""
        amounts = {key: self.annotations[key] for key, term in self.said.terms.items() if not term.limits}
        request = next((key for key, (form, _) in self.said.forms.items() if form.states), None)
        limit = self._alone()
        asking = next((form for form in self.dialect.forms if form.states), None)
        beside = [key for key in amounts if key in self.dialect.either]
        if asking is None or (request is None and limit is None):
            return amounts
        if limit is not None and beside:
            wanted = asking.key(self.said.forms[limit][1])
            also = " or ".join(term.name for term in self.dialect.annotations if term.beside == beside[0])
            self._wrong(
                limit, f"is not read beside {beside[0]}; ask by {wanted} in its place, or state the limit in {also}"
            )
            return amounts
        key = request or limit or ""
        size = self._bytes(key)
        for name in beside if size is not None else ():
            term = self.dialect.by_name[name]
            if not term.decimal and self._units(term, amounts[name]) not in {None, size}:
                self._wrong(key, f"is not what {name} states; keep one")
            elif term.decimal:
                self.warnings.append(f"{annotation_path(name)}: is not read beside {key}")
            del amounts[name]
        amounts[asking.term.name] = self.annotations[key]
        return amounts

    def limit(self, amounts: Mapping[str, object]) -> AskedLimit | None:
        """The most memory that the container may use; None if none is stated above what it asks for."""
        limits: dict[str, AskedLimit] = {}
        terms = {key: form.term for key, (form, _) in self.said.forms.items()} | self.said.terms
        for key, term in terms.items():
            if not term.limits:
                continue
            if term.beside and term.beside not in self.said.terms:
                self._wrong(key, f"can only be written beside {term.beside}; add that, or remove this")
            elif (one := self._portion(key, term) if term.decimal else self._size(key, term, amounts)) is not None:
                limits[key] = one
        (first, one), *others = limits.items() or [("", None)]
        for key, other in others:
            if other != one:
                self._wrong(key, f"is not the limit of {first}; keep one")
        return one

    def _alone(self) -> str | None:
        """The limit that is also what is asked, unless that is stated."""
        return next(
            (key for key, (form, _) in self.said.forms.items() if form.limits and not form.beside),
            None,
        )

    def _size(self, key: str, term: Term, amounts: Mapping[str, object]) -> AskedLimit | None:
        """Read a limit in bytes, which must not be below what is asked."""
        text = self.annotations[key]
        if term.beside and isinstance(text, str) and _NUMBER.fullmatch(text):
            self._wrong(key, f"{excerpt(text)} has no unit, in which {self.dialect.title} wants it; write 8Gi, say")
            return None
        size = self._bytes(key)
        if size is None:
            return None
        asked = self._asked(term, amounts)
        if asked is not None and size < asked:
            message = f"{format_bytes(size)} is less than what is asked ({format_bytes(asked)}); write at least as much"
            self._wrong(key, message)
        return AskedLimit(size) if asked is None or size > asked else None

    def _asked(self, term: Term, amounts: Mapping[str, object]) -> int | None:
        """The bytes that are asked of each card; None if they cannot be read, which is reported elsewhere."""
        if term.beside:
            return self._units(self.dialect.by_name[term.beside], self.annotations[term.beside])
        asking = next((amounts[form.term.name] for form in self.dialect.forms if form.term.name in amounts), None)
        try:
            return read_bytes(asking)
        except QuantityError:
            return None

    def _portion(self, key: str, term: Term) -> AskedLimit | None:
        """Read a limit that is a part of a card, which must be above the part that is asked."""
        text = self.annotations[key]
        asked = self._number(self.annotations[term.beside])
        if isinstance(text, str) and _PORTION.fullmatch(text):
            portion = Fraction(parse(text))
            if asked is None or asked < portion:
                return AskedLimit(portion=int(portion * WHOLE))
        bound = "0" if asked is None else f"{term.beside} ({excerpt(self.annotations[term.beside])})"
        self._wrong(
            key,
            f"{excerpt(text)!r} is not a decimal number above {bound} and below 1, with at most 5 digits behind the "
            "point; write one",
        )
        return None

    def _bytes(self, key: str) -> int | None:
        """Read an amount of memory; None if it is wrong."""
        try:
            return read_bytes(self.annotations[key])
        except QuantityError as error:
            self._wrong(key, str(error))
            return None

    def _units(self, term: Term, text: object) -> int | None:
        """Read bytes that are stated in units; None if they cannot be read, which is reported where they are asked."""
        number = self._number(text)
        return None if number is None else int(number * term.factor)

    def _number(self, text: object) -> Fraction | None:
        try:
            return parse(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else None
        except QuantityError:
            return None

    def _wrong(self, key: str, message: str) -> None:
        problem = Problem(annotation_path(excerpt(key)), message)
        if problem not in self.problems:
            self.problems.append(problem)
