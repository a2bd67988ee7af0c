"""What a Pod's annotations ask for one of its containers, in a dialect of another product that asks by annotations.

The rules are those of KAI Scheduler (kai-scheduler/KAI-Scheduler, pkg/common/resources/gpu_sharing_validation.go and
gpu_sharing_nvfractions.go; pkg/admission/webhook/v1alpha2/nvfractions/mutation.go), the only one so far.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, NamedTuple

from allocator.quantity import QuantityError, format_bytes, parse
from allocator.request.selection import wrong_mode
from allocator.request.spoken import Heard
from allocator.vocabulary.askedlimit import WHOLE, AskedLimit
from allocator.vocabulary.dialect import Dialect, Form, Term
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.outcome import Problem
from allocator.wire.askedlimit import read_bytes
from allocator.wire.strict import annotation_path

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
    annotations: Mapping[str, object], dialect: Dialect, keys: Collection[str], names: Containers, heard: Heard
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
        reading = _Reading(annotations, dialect, said, found, heard.warnings)
        amounts = reading.amounts()
        limit = reading.limit(amounts)
    heard.problems.extend(found)
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
