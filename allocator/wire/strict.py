"""Annotations that a Pod's author writes as JSON, read strictly: every mistake is named, with the allowed values.

As in Go, null and "" mean that a field is left out.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.vocabulary.outcome import Problem, excerpt
from allocator.wire.values import UNREADABLE, parse_json

MAX_TERMS: Final = 64  # entries of a list
_MAX_PROBLEMS: Final = 16


def annotation_path(annotation: str) -> str:
    """The path of a Pod's annotation, as problems name it."""
    return f"metadata.annotations[{annotation}]"


class StrictReader:
    """Reads fields one by one and collects what is wrong; a wrong field counts as left out."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def note(self, path: str, message: str) -> None:
        """Note a mistake, up to a bounded number."""
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(Problem(path, message))

    def load(self, annotation: str, text: object) -> dict[str, Any]:
        """Read an annotation's JSON object."""
        path = annotation_path(annotation)
        try:
            raw = parse_json(text, once=True)
        except UNREADABLE as error:
            self.note(path, f"must be a JSON object ({excerpt(error)})")
            return {}
        return self.mapping(path, raw)

    def mapping(self, path: str, value: object) -> dict[str, Any]:
        """Return an optional object."""
        if isinstance(value, dict):
            return value
        if value is not None:
            self.note(path, "must be a JSON object")
        return {}

    def known(self, path: str, value: Mapping[str, object], keys: Iterable[str]) -> list[str]:
        """List the allowed keys that an object has; other keys are mistakes."""
        allowed = list(keys)
        for key in value:
            if key not in allowed:
                self.note(path, f"unknown key {excerpt(key)!r}; use {either(allowed)}")
        return [key for key in allowed if value.get(key) is not None]

    def word(self, path: str, value: object, words: Iterable[str]) -> str | None:
        """Return a field's value, which must be one of these words; None if it is left out."""
        if value is None or value == "":
            return None
        allowed = list(words)
        if isinstance(value, str) and value in allowed:
            return value
        self.note(path, f"{show(value)} is not allowed; use {either(allowed)}")
        return None

    def items(self, path: str, value: object) -> list[Any]:
        """Return an optional list of bounded length."""
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > MAX_TERMS:
            self.note(path, f"must be a list of at most {MAX_TERMS}")
            return []
        return value


def either(words: Iterable[str]) -> str:
    """List what is allowed."""
    return " or ".join(words) or "none"


def show(value: object) -> str:
    """Quote any value that a user wrote, in bounded length and time."""
    if isinstance(value, str):
        return repr(excerpt(value))
    return "what is written here" if value is not None else "nothing"
