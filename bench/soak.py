"""Binds at volume on a real control plane that is never left alone, and an auditor that reads only Pods.

Three replicas whose clocks differ. One is killed (SIGKILL) every two seconds and one is paused for longer than the
ledger's grace; the API server is killed every minute; all connections of the replicas to it are cut; etcd stands still
for moments. Pods are bound by koord-scheduler's user to nodes at random, each request that is not answered is sent
again, and Pods are deleted again, so that the cards are handed out thousands of times. One Pod in ten is deleted while
its bind is under way, and every ten seconds somebody edits a record: it states another card for a running Pod.

Several runs add up: with `--tally FILE` each run appends a line with its seed, binds, events and faults, and the sum of
all lines is printed. A run that is interrupted (SIGINT, SIGTERM) ends as if it had bound enough.

Wrong is a device that was given twice at any moment, a Pod that was bound without its devices, and a device that at the
end nobody can get although no Pod has it. The reference is the number of Pods that were bound in the same run.
"""

import argparse
import asyncio
import dataclasses
import signal
import sys
from pathlib import Path

import uvloop
from result import close

from localplane.binaries import find_or_build
from localplane.plane import CONTROL_PLANE

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from soaking.cluster import soak_cluster
from soaking.plan import Findings, Soak
from soaking.tally import add_up


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tell(found: Findings) -> None:
    """Print what was done and what was found."""
    for title, counted in (("done to the cluster", found.done), ("requests", found.tries)):
        say(f"{title}:")
        for what, number in sorted(counted.items()):
            say(f"  {what:34}{number:>9}")
    say("found:")
    lists = {"devices given twice": found.twice, "Pods without their devices": found.bare}
    lists["devices that nobody can get"] = found.unreachable
    for what, wrong in lists.items():
        say(f"  {what:34}{len(wrong):>9}")
        for one in wrong[:20]:
            say(f"    {one}")


async def soaked(soak: Soak, workdir: Path | None) -> Findings:
    """Soak, until it is over or interrupted."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    return await soak_cluster(soak, find_or_build((*CONTROL_PLANE, "helm")), say, workdir, ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    helps = {"binds": "Pods to bind", "seconds": "after which no more Pods are created", "nodes": "of 8 GPUs each"}
    for each in dataclasses.fields(Soak):
        if each.name != "shifts":
            kind = type(each.default)
            flag = f"--{each.name.replace('_', '-')}"
            parser.add_argument(flag, type=kind, default=each.default, help=helps.get(each.name, "see Soak"))
    parser.add_argument("--shifts", type=float, nargs="+", default=Soak.shifts, help="of each replica's clock, seconds")
    parser.add_argument("--tally", type=Path, help="a file to which the summary is appended, to add up several runs")
    parser.add_argument("--workdir", type=Path, help="for data and logs, which are kept; by default a temporary folder")
    arguments = vars(parser.parse_args())
    workdir, tally = arguments.pop("workdir"), arguments.pop("tally")
    soak = Soak(**arguments)
    found = uvloop.run(soaked(soak, workdir))
    tell(found)
    say(f"{found.bound} Pods bound in {found.seconds:.0f} s, {found.bound / found.seconds:.0f}/s")
    say(add_up(found.summary(soak.seed), tally))
    close(name="soak", value=found.bound - found.wrong, unit="Pods right", reference=max(found.bound, 1), goal=1.0)


if __name__ == "__main__":
    main()
