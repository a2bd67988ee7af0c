"""What a check finds: how grave it is, what it is, and what to do about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from console.terminal import counted, some

_NAMED: Final = 5  # names that one line lists


class Level(StrEnum):
    """How grave a finding is."""

    OK = "ok"  # it was looked at, and is right
    UNKNOWN = "unknown"  # it could not be looked at; nothing is claimed
    WARNING = "warning"  # it works, but not as well or as safely as it should
    FAILURE = "failure"  # Pods are not served, or not as they should be


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    area: str  # what was looked at, one word or two; "" until the check's own is written there
    level: Level  # how grave it is
    what: str  # what was found, a sentence without a full stop
    todo: str = ""  # what to do, likewise; "" for what is right


def ok(what: str) -> Finding:
    """Something is right."""
    return Finding("", Level.OK, what)


def unknown(what: str, todo: str) -> Finding:
    """Something could not be looked at."""
    return Finding("", Level.UNKNOWN, what, todo)


def warning(what: str, todo: str) -> Finding:
    """Something should be better."""
    return Finding("", Level.WARNING, what, todo)


def failure(what: str, todo: str) -> Finding:
    """Something is broken."""
    return Finding("", Level.FAILURE, what, todo)


def exit_status(findings: Iterable[Finding], *, strict: bool) -> int:
    """0 if all is right, 2 for a failure; 1 for less than that if `strict`, otherwise 0."""
    levels = {one.level for one in findings}
    if Level.FAILURE in levels:
        return 2
    return 1 if strict and levels - {Level.OK} else 0


def listed(names: Sequence[str]) -> str:
    """List names, the first ones in the order of the alphabet, and how many more there are."""
    return some(sorted(names), _NAMED)


def named_nodes(names: Sequence[str]) -> str:
    """Nodes in a sentence: "2 nodes (a, b)"."""
    return f"{counted(len(names), 'node')} ({listed(names)})"
