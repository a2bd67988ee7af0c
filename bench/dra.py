"""Two givers of the same cards: 1,000 Pods, half of them with ResourceClaims that kube-scheduler's DRA allocates.

Wrong is a card of which more was held at any revision of etcd than there is, and a Pod that was never bound. The
reference is the number of Pods.
"""

import argparse
import asyncio
import dataclasses
import sys
import tempfile
from pathlib import Path

from result import close

from localplane.binaries import find_or_build
from localplane.plane import CONTROL_PLANE

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from claiming import Mix, Result, run_mix


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tell(result: Result) -> None:
    """Print what was found."""
    twice = result.audit.twice()
    for kind, number in sorted(result.bound.items()):
        say(f"  Pods bound, {kind:22}{number:>9}")
    say(f"  {'cards held by both kinds':34}{result.audit.shared:>9}")
    say(f"  {'allocations refused':34}{result.refused:>9.0f}")
    say(f"  {'Pods that were not bound':34}{len(result.unfinished):>9}")
    say(f"  {'reserved for nobody in the end':34}{len(result.left):>9}")
    say(f"  {'cards given twice':34}{len(twice):>9}")
    for one in twice[:20]:
        say(f"    {one}")
    say(f"{result.bound.total()} Pods bound in {result.seconds:.0f} s, {result.bound.total() / result.seconds:.1f}/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for each in dataclasses.fields(Mix):
        if each.name not in {"taints", "fail"}:
            parser.add_argument(f"--{each.name}", type=type(each.default), default=each.default, help="see Mix")
    parser.add_argument("--no-taints", dest="taints", action="store_false", help="do not tell DRA which cards are held")
    parser.add_argument("--ignore", dest="fail", action="store_false", help="failurePolicy Ignore, the chart's default")
    arguments = parser.parse_args()
    mix = Mix(**vars(arguments))
    with tempfile.TemporaryDirectory(prefix="koordgate-dra-") as folder:
        result = asyncio.run(run_mix(mix, find_or_build((*CONTROL_PLANE, "helm")), say, Path(folder)))
    tell(result)
    wrong = len(result.audit.twice()) + len(result.unfinished) + len(result.left)
    close(name="dra", value=mix.pods - wrong, unit="Pods right", reference=mix.pods, goal=1.0)


if __name__ == "__main__":
    main()
