"""Hostile input at volume: reviews, extender calls, annotations, objects of the cluster, and files of the kubelet.

Each target gets its share of the inputs, in a process of its own: first the kept corpus (tests/fuzzing/corpus), then
changes of it, guided by coverage where atheris is installed. An input fails if something is raised that should not be,
if it takes more than two seconds of CPU time, or if something invalid passes. What fails is shrunk and joins the
corpus, which `make test` tries again. A process fails as a whole if its memory or its tables grow.

The reference is the number of inputs tried in the same run.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from result import close

_ROOT = Path(__file__).resolve().parents[1]
_TESTS = _ROOT / "tests"
_KEPT = _ROOT / ".cache" / "fuzz"
sys.path[:0] = [str(_TESTS), str(_ROOT)]
from fuzzing.cases import save
from fuzzing.engine import is_guided
from fuzzing.targets import SHARES, TARGETS
from fuzzing.trial import Failure, shrink

MAX_GROWTH = (
    64 * 2**20
)  # bytes, from a quarter of a target's inputs to the last; guided, the inputs that are kept count
MIB = 2**20


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fuzz(target: str, count: int, seed: int, seconds: float, *, guided: bool) -> dict[str, Any]:
    """Try inputs on one target in a process of its own; returns its report."""
    argv = [sys.executable, "-m", "fuzzing", target, f"--count={count}", f"--seed={seed}", f"--seconds={seconds}"]
    if guided:
        argv.append(f"--kept={_KEPT / target}")
    paths = [str(_TESTS), str(_ROOT), *filter(None, sys.path)]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=False
    )
    lines = done.stdout.decode().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"{target}: its process ended with {done.returncode} and without a report")
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def keep(target: str, found: dict[str, Any]) -> None:
    """Shrink an input that failed, and put it into the corpus."""
    failure = Failure(found["kind"], found["message"], found["case"], found["trace"])
    smaller = shrink(TARGETS[target], failure)
    path = save(target, f"found {smaller.kind}", smaller.case)
    say(f"{target}: {smaller.kind}: {smaller.message}\n{smaller.trace}  kept as {path.relative_to(_ROOT)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=24 * 3600, help="after which each target ends, if it is slower"
    )
    parser.add_argument("--target", choices=sorted(TARGETS), help="all inputs for this one")
    parser.add_argument("--blind", action="store_true", help="not guided by coverage, although atheris is installed")
    arguments = parser.parse_args()
    guided = is_guided() and not arguments.blind
    say("guided by coverage" if guided else "blind: install atheris to be guided by coverage")
    shares = {arguments.target: 1} if arguments.target else SHARES
    whole = sum(shares.values())
    began = time.monotonic()
    reports = []
    for target, share in shares.items():
        count = -(-arguments.count * share // whole)
        report = fuzz(target, count, arguments.seed, arguments.seconds, guided=guided)
        reports.append(report)
        for found in report["failures"]:
            keep(target, found)
    took = time.monotonic() - began
    inputs = sum(report["inputs"] for report in reports)
    failed = sum(report["failed"] for report in reports)
    grown = [report["target"] for report in reports if report["grown"] > MAX_GROWTH or report["left"]]
    say(f"{'target':14}{'inputs':>10}{'/s':>8}{'failed':>8}{'slowest':>12}{'grown':>11}  outcomes")
    for report in reports:
        rate = report["inputs"] / max(report["seconds"], 0.001)
        outcomes = sorted(report["outcomes"].items(), key=lambda one: -one[1])[:4]
        told = ", ".join(f"{word or 'nothing'} {number}" for word, number in outcomes)
        say(
            f"{report['target']:14}{report['inputs']:>10}{rate:>8.0f}{report['failed']:>8}"
            f"{report['slowest'] * 1000:>9.0f} ms{report['grown'] / MIB:>7.1f} MiB  {told}"
        )
        if report["left"]:
            say(f"  {report['target']}: left in tables that should be as before: {report['left']}")
    say(f"{inputs} inputs in {took:.0f} s, {inputs / took:.0f} per second; {failed} failed; grown: {grown or 'none'}")
    close(name="fuzz", value=inputs - failed - len(grown), unit="inputs passed", reference=inputs, goal=1.0)


if __name__ == "__main__":
    main()
