"""The annotations by which other products' Pods choose among devices, read as hints."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from allocator.request.echo import echoed
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialect import Dialect, Selects
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.hints import (
    NO_HINT,
    Operator,
    PartOfName,
    Requirement,
    Scope,
    Selector,
    TypeHint,
)
from allocator.vocabulary.models import MODEL
from allocator.vocabulary.names import DEVICE_ID
from allocator.vocabulary.outcome import Problem

_MOST: Final = 64  # values of one annotation
_LONGEST: Final = 2**13  # characters of one annotation
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
    if isinstance(text, str) and len(text) <= _LONGEST:
        values = tuple(dict.fromkeys(filter(None, (one.strip() for one in text.split(",")))))
        if len(values) <= _MOST:
            return values
    message = f"must be a list of at most {_MOST} values, separated by commas"
    problems[Problem(f"metadata.annotations[{key}]", message)] = None
    return ()


def _part(written: str) -> str:
    """A part of a model's name in the spelling of the label: `NVIDIA A100` is `A100`, and `NVIDIA` is in every name."""
    part = "-".join(written.upper().split())
    while part.startswith(f"{_VENDOR}-"):
        part = part.removeprefix(f"{_VENDOR}-")
    return "" if part == _VENDOR else part
