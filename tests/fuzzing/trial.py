"""One trial of one input: what counts as a failure, and the bound of its time."""

import json
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

Case = Any
Target = Callable[[Case], str]
"""Tries an input; returns what happened in a word, and raises what must never happen."""

BOUND_S: Final = 2.0  # CPU time of one input
_ROOT: Final = Path(__file__).resolve().parents[2]
_OURS: Final = tuple(f"{_ROOT / part}/" for part in ("allocator", "koordgate", "reporter", "webhook"))


class WrongError(AssertionError):
    """Something invalid has passed."""


class HangError(Exception):
    """An input took more CPU time than its bound."""


def demand(holds: object, what: str) -> None:
    """Fail unless something holds."""
    if not holds:
        raise WrongError(what)


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise a HangError after this much CPU time."""

    def over(_signal: int, _frame: object) -> None:
        raise HangError(f"more than {seconds:.0f} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that failed.

    Attributes:
        kind: of the exception and the line of ours that raised it; the same for inputs that fail alike.
        message: of the exception.
        case: the input.
        trace: the traceback.
    """

    kind: str
    message: str
    case: Case
    trace: str


@dataclass(slots=True)
class Tally:
    """The trials of one target.

    Attributes:
        inputs: tried.
        outcomes: what happened -> how often.
        failures: the first of each kind.
        failed: how many failed.
        slowest: CPU seconds of the slowest input.
        slowest_case: that input.
    """

    inputs: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    failed: int = 0
    slowest: float = 0.0
    slowest_case: Case = None


def attempt(target: Target, case: Case, seconds: float = BOUND_S) -> str | Failure:
    """Try an input: what happened, or how it failed."""
    try:
        with bounded(seconds):
            return target(case)
    except Exception as error:  # noqa: BLE001 whatever it is, it is what is sought
        return Failure(_kind(error), str(error)[:400], case, traceback.format_exc(limit=-12))


def count(tally: Tally, target: Target, case: Case, seconds: float = BOUND_S) -> Failure | None:
    """Try an input and count it."""
    began = time.thread_time()
    outcome = attempt(target, case, seconds)
    took = time.thread_time() - began
    tally.inputs += 1
    if took > tally.slowest:
        tally.slowest, tally.slowest_case = took, case
    word = outcome if isinstance(outcome, str) else "FAILED"
    tally.outcomes[word] = tally.outcomes.get(word, 0) + 1
    if isinstance(outcome, str):
        return None
    tally.failed += 1
    if outcome.kind in tally.failures:
        return None
    tally.failures[outcome.kind] = outcome
    return outcome


def _kind(error: Exception) -> str:
    """Name a failure by its exception and the last line of ours in the traceback, or by what was wrong."""
    if isinstance(error, WrongError):
        return "wrong " + re.sub(r"[^a-z]+", " ", str(error).partition(":")[0].lower())[:60]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_OURS)]
    where = f"{Path(frames[-1].filename).stem} {frames[-1].name}" if frames else "outside"
    return f"{type(error).__name__} in {where}"


def shrink(target: Target, failure: Failure, tries: int = 2000) -> Failure:
    """A smaller input that fails alike: parts are left out or emptied for as long as it still does.

    Args:
        target: that it fails.
        failure: what was found.
        tries: the most inputs to try.
    """
    best = failure
    again = True
    while again and tries > 0:
        again = False
        for case in _smaller(best.case):
            tries -= 1
            if tries <= 0:
                break
            outcome = attempt(target, case)
            if isinstance(outcome, Failure) and outcome.kind == best.kind:
                best, again = outcome, True
                break
    return best


def _smaller(case: Case) -> Iterator[Case]:
    """Copies of an input with one part less, the largest parts first."""
    if isinstance(case, str):
        yield from _shorter(case)
    elif isinstance(case, dict):
        for key in case:
            yield {other: value for other, value in case.items() if other != key}
        for key, value in case.items():
            yield from ({**case, key: one} for one in _smaller(value))
    elif isinstance(case, list):
        for at in range(len(case)):
            yield [*case[:at], *case[at + 1 :]]
        for at, value in enumerate(case):
            yield from ([*case[:at], one, *case[at + 1 :]] for one in _smaller(value))


def _shorter(text: str) -> Iterator[str]:
    """A text that holds JSON with less in it, and halves of any text."""
    inner: Case = None
    if text[:1] in {"{", "["}:
        with suppress(ValueError, RecursionError):
            inner = json.loads(text)
    for one in _smaller(inner):
        yield json.dumps(one, separators=(",", ":"))
    if len(text) > 1:
        yield text[: len(text) // 2]
        yield text[len(text) // 2 :]
