"""Runs one target on many inputs: those of the corpus first, then changed ones, guided by coverage if that can be had.

Guided, libFuzzer keeps each input that reaches code which none before has reached, and changes it further (atheris, for
Linux on x86-64 and the Python versions that it supports). Blind, an input is kept if its outcome is new.
"""

import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from fuzzing.mutate import Pool, mutate
from fuzzing.trial import Case, Failure, Tally, Target, count

_TOLD_EVERY_S: Final = 10.0
_LARGEST: Final = 256 * 1024  # bytes of one input
_PACKAGES: Final = ["allocator", "koordgate", "reporter", "webhook"]


def is_guided() -> bool:
    """Whether coverage can guide: atheris is installed."""
    return importlib.util.find_spec("atheris") is not None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        name: of the target.
        count: inputs to try.
        seed: of the changes.
        seconds: after which it ends although fewer were tried.
    """

    name: str
    count: int
    seed: int
    seconds: float


@dataclass(slots=True)
class Growth:
    """Resident memory of this process, in bytes: after a quarter of the inputs, and now."""

    early: int = 0
    late: int = 0

    @property
    def grown(self) -> int:
        return max(self.late - self.early, 0) if self.early else 0


class Run:
    """One target's run.

    Args:
        plan: what to run.
        target: by name in the plan.
        cases: of the corpus, by name.
    """

    def __init__(self, plan: Plan, target: Target, cases: Mapping[str, Case]) -> None:
        self.tally = Tally()
        self.growth = Growth()
        self._plan = plan
        self._target = target
        self._cases = list(cases.values())
        self._pool = Pool.of(self._cases)
        self._began = self._told = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        return self.tally.inputs >= self._plan.count or self.seconds > self._plan.seconds

    def take(self, case: Case) -> Failure | None:
        """Try an input; returns how it failed if none has failed so before."""
        found = count(self.tally, self._target, case)
        if self.tally.inputs == self._plan.count // 4:
            self.growth.early = resident()
        if found is not None:
            print(f"  {self._plan.name}: {found.kind}: {found.message}", file=sys.stderr, flush=True)
        if time.monotonic() - self._told > _TOLD_EVERY_S:
            self._told = time.monotonic()
            self._tell()
        return found

    def _tell(self) -> None:
        tally = self.tally
        rate = tally.inputs / max(self.seconds, 0.001)
        text = f"{tally.inputs} of {self._plan.count} inputs, {rate:.0f}/s, {tally.failed} failed"
        print(f"  {self._plan.name}: {text}", file=sys.stderr, flush=True)

    def changed(self, case: Case, random: Random) -> Case:
        """A changed input."""
        return mutate(case, self._pool, random)

    def blind(self) -> None:
        """Try the corpus, then changed inputs, until the plan is done."""
        random = Random(self._plan.seed)
        kept = list(self._cases)
        for case in kept:
            self.take(case)
        while not self.is_over:
            case = self.changed(random.choice(kept), random)
            known = len(self.tally.outcomes)
            self.take(case)
            if len(self.tally.outcomes) > known:
                kept.append(case)
        self.growth.late = resident()

    def guided(self, seeds: Path, kept: Path, done: Callable[[], None]) -> None:
        """Try inputs that libFuzzer chooses, until the plan is done; the process then ends.

        Args:
            seeds: the folder of the target's corpus.
            kept: a folder for inputs that reach new code; a later run begins with them.
            done: called at the end.
        """
        import atheris  # type: ignore[import-untyped] # noqa: PLC0415 only where it is installed

        kept.mkdir(parents=True, exist_ok=True)

        def one(data: bytes) -> None:
            try:
                case = json.loads(data)
            except (ValueError, RecursionError):
                return
            self.take(case)
            if self.is_over:
                self.growth.late = resident()
                done()
                os._exit(0)  # libFuzzer's own end waits for its number of runs

        def change(data: bytes, largest: int, seed: int) -> bytes:
            try:
                case = json.loads(data)
            except (ValueError, RecursionError):
                case = self._cases[seed % len(self._cases)]
            try:
                made = json.dumps(self.changed(case, Random(seed))).encode()
            except (ValueError, RecursionError):
                return data
            return made if len(made) <= largest else data

        argv = [f"-seed={self._plan.seed}", f"-max_len={_LARGEST}", "-verbosity=0", "-rss_limit_mb=0", "-timeout=600"]
        atheris.Setup([sys.argv[0], *argv, str(kept), str(seeds)], one, custom_mutator=change)
        atheris.Fuzz()


def resident() -> int:
    """Bytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def report(run: Run, plan: Plan, left: Mapping[str, int]) -> dict[str, Any]:
    """What a run has found, and what it has left in tables, as JSON."""
    tally = run.tally
    return {
        "target": plan.name,
        "inputs": tally.inputs,
        "seconds": run.seconds,
        "failed": tally.failed,
        "slowest": tally.slowest,
        "grown": run.growth.grown,
        "left": dict(left),
        "outcomes": tally.outcomes,
        "failures": [
            {"kind": one.kind, "message": one.message, "case": one.case, "trace": one.trace}
            for one in tally.failures.values()
        ],
    }


def instrumented(load: Callable[[], Mapping[str, Target]]) -> Mapping[str, Target]:
    """Import the targets so that each branch of our packages is seen."""
    import atheris  # noqa: PLC0415 as above

    with atheris.instrument_imports(include=_PACKAGES, enable_loader_override=False):
        return load()
