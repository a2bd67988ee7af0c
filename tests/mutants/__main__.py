"""How many random mutants of the code the tests kill: `make mutants AREA=allocator SEED=1 COUNT=30`."""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from mutants.coverage_map import CoverageMap, Kept, gather, parts, read, together, without_files_of, write
from mutants.equivalent import is_known, known
from mutants.outdated import is_test
from mutants.sites import AREAS, Mutant, files, goal, sample
from mutants.trial import Copy, Outcome, copied, digests

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass
class Tally:
    """The results for the mutants of one area."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    survivors: list[tuple[Mutant, int]] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """Killed mutants of 100, without the equivalent ones; None before the first."""
        killed = self.outcomes[Outcome.KILLED] + self.outcomes[Outcome.TIMEOUT]
        judged = killed + self.outcomes[Outcome.SURVIVED]
        return 100 * killed / judged if judged else None


def main() -> int:
    """0 if every area reaches its goal, 1 if one does not, 130 if the run was interrupted."""
    arguments = _arguments()
    os.nice(5)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, as its tests would
    tallies = {area: Tally() for area in arguments.area or AREAS}
    interrupted = False
    with copied(CHECKOUT) as copy:
        try:
            lines = _map(copy, arguments.tests, arguments.workers)
            for area, tally in tallies.items():
                _try_area(copy, lines, area, tally, arguments)
        except KeyboardInterrupt:
            interrupted = True
    _print(tallies, arguments.seed, interrupted=interrupted)
    if interrupted:
        return 130
    return int(any(tally.share is not None and tally.share < goal(area) for area, tally in tallies.items()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--area", choices=AREAS, action="append", help="may be repeated; all of them without it")
    parser.add_argument("--file", action="append", help="as webhook/patch.py; may be repeated; all of them without it")
    parser.add_argument("--seed", type=int, default=1, help="the same seed draws the same mutants of the same tree")
    parser.add_argument("--count", type=int, default=30, help="mutants an area")
    parser.add_argument("--seconds", type=float, default=120, help="of tests a mutant at most, the quickest first")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="folders of tests that judge; all without it")
    parser.add_argument("--workers", type=int, default=2, help="for the one run that finds which test runs which line")
    arguments = parser.parse_args()
    known = {str(path.relative_to(CHECKOUT)) for area in arguments.area or AREAS for path in files(CHECKOUT, area)}
    if wrong := [file for file in arguments.file or () if file not in known]:
        parser.error(f"--file: {', '.join(wrong)}: name a Python file of an area, from the root of the checkout")
    return arguments


def _map(copy: Copy, tests: list[str], workers: int) -> CoverageMap:
    """Which test runs which line; only tests that a change since the last run concerns are run again.

    The answer is kept after each folder of tests, so that a run that is interrupted goes on where it was.
    """
    kept = CHECKOUT / ".cache" / "mutants" / f"{hashlib.sha256(' '.join(sorted(tests)).encode()).hexdigest()[:16]}.json"
    files = digests(CHECKOUT)
    before = read(kept) if kept.exists() else Kept(CoverageMap({}, {}), {})
    again = before.outdated(CHECKOUT, files)
    if again is None:
        again, before = {name for name in files if is_test(name)}, Kept(CoverageMap({}, {}), {})
    again = {each for each in again if any(each.startswith(folder) for folder in tests)}
    lines = before.without(again, files)
    todo = parts(again)
    for number, part in enumerate(todo, 1):
        _progress(f"which test runs which line: {number} of {len(todo)} folders: {Path(part[0]).parent}")
        gathered, failed = gather(copy.root, part, copy.environment, workers)
        lines = together(lines, gathered)
        write(kept, lines, without_files_of((test for later in todo[number:] for test in later), files))
        for each in failed:
            _progress(f"judges nothing, as it fails on the tree as it is: {each}")
    write(kept, lines, files)
    return lines


def _try_area(copy: Copy, lines: CoverageMap, area: str, tally: Tally, arguments: argparse.Namespace) -> None:
    equivalents = known()
    for mutant in sample(copy.root, area, arguments.seed, arguments.file):
        if tally.outcomes.total() == arguments.count:
            return
        began = time.monotonic()
        tests = _within(lines, lines.tests(copy.root, mutant.path, mutant.line), arguments.seconds)
        if is_known(mutant, equivalents):
            outcome = Outcome.EQUIVALENT
        elif not tests:
            outcome = Outcome.SURVIVED
        else:
            judged = copy.trial(mutant, tests, sum(lines.seconds[test] for test in tests))
            if judged is None:
                continue
            outcome = judged
        tally.outcomes[outcome] += 1
        if outcome is Outcome.SURVIVED:
            tally.survivors.append((mutant, len(tests)))
            _progress(f"- {mutant.was}\n+ {mutant.becomes}")
        done = f"{area} {tally.outcomes.total()}/{arguments.count}"
        took = f"{time.monotonic() - began:.0f} s, {len(tests)} tests"
        _progress(f"{done}  {outcome:<10} {mutant.path}:{mutant.line}  {mutant.operator}  ({took})")


def _within(lines: CoverageMap, tests: list[str], seconds: float) -> list[str]:
    """As many of the quickest tests as fit in `seconds`, at least one."""
    taken: list[str] = []
    for test in tests:
        seconds -= lines.seconds[test]
        if seconds < 0 and taken:
            break
        taken.append(test)
    return taken


def _print(tallies: dict[str, Tally], seed: int, *, interrupted: bool) -> None:
    print(f"{'area':<12}{'killed':>8}{'survived':>10}{'equivalent':>12}{'of 100':>8}{'goal':>6}")
    for area, tally in tallies.items():
        killed = tally.outcomes[Outcome.KILLED] + tally.outcomes[Outcome.TIMEOUT]
        share = "-" if tally.share is None else f"{tally.share:.0f}"
        survived, equivalent = tally.outcomes[Outcome.SURVIVED], tally.outcomes[Outcome.EQUIVALENT]
        print(f"{area:<12}{killed:>8}{survived:>10}{equivalent:>12}{share:>8}{goal(area):>6}")
    for tally in tallies.values():
        for mutant, tests in tally.survivors:
            print(f"\n{mutant.path}:{mutant.line}  {mutant.operator}  survived {tests or 'no'} tests")
            print(f"- {mutant.was}\n+ {mutant.becomes}")
    areas = {
        area: {
            "killed": tally.outcomes[Outcome.KILLED],
            "timeout": tally.outcomes[Outcome.TIMEOUT],
            "survived": [f"{mutant.path}:{mutant.line}" for mutant, _ in tally.survivors],
            "equivalent": tally.outcomes[Outcome.EQUIVALENT],
            "of_100": None if tally.share is None else round(tally.share, 1),
            "goal": goal(area),
        }
        for area, tally in tallies.items()
    }
    print(json.dumps({"name": "mutants", "seed": seed, "interrupted": interrupted, "areas": areas}), flush=True)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
