"""CPU time of one full round of the reporter on a large node that does not change: 8 GPUs, 256 CPUs, 110 Pods.

A full round reads NVML (in its own process, which counts), sysfs, procfs and the kubelet's files, decides, reads all
cpusets, proves what containers have (otherwise done once a minute), and compares the wanted objects with those in the
cluster. Most of its time it waits for NVML. Such a round writes nothing; if it does, the benchmark fails.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import reporter_site as site
from fake_kube import FakeKube
from result import close

from koordgate.kube.client import KubeClient
from reporter.agent import Agent
from reporter.metrics import ReporterMetrics
from reporter.round.messages import Due, Lane

GOAL_MS = 50.0
READS = ("get", "list", "watch")
SETTLE_S = 60.0
SHARED_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # cgroups and sysfs are in memory too


async def settle(agent: Agent, fake: FakeKube) -> None:
    """Wait until everything is published and a round writes nothing."""
    end = time.monotonic() + SETTLE_S
    quiet = 0
    while not agent.port:  # noqa: ASYNC110 a port tells nobody
        await asyncio.sleep(0.01)
    while quiet < 5:
        before = writes(fake)
        await full_round(agent)
        await asyncio.sleep(0.05)
        told = bool(fake.objects("/apis/scheduling.koordinator.sh/v1alpha1/devices"))
        quiet = quiet + 1 if told and writes(fake) == before else 0
        if time.monotonic() > end:
            raise SystemExit("the reporter does not come to rest")


async def full_round(agent: Agent) -> None:
    """Do the work of all the agent's lanes once, side by side."""
    for lane in (Lane.CARDS, Lane.ROUND, Lane.PROOF, Lane.PUBLISH):
        agent.handle(Due(lane))
        while (working := agent.working.get(lane)) is not None:
            await working


def writes(fake: FakeKube) -> int:
    return sum(request.verb not in READS for request in fake.requests)


async def measure(rounds: int) -> tuple[float, float]:
    """CPU milliseconds per round: of the reporter, and of the NVML process."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as name:
        folder = Path(name)
        site.build_machine(folder)
        nvml = site.open_nvml(folder, site.build_nvml(folder))
        async with FakeKube() as fake, KubeClient(fake.url) as kube:
            site.fill(fake)
            agent = Agent(site.settings(folder, every=3600), site.NODE, kube, nvml, ReporterMetrics())
            ended = asyncio.Event()
            running = asyncio.create_task(agent.run(ended))
            try:
                await settle(agent, fake)
                before = writes(fake)
                child = nvml.pid
                if child is None:
                    raise SystemExit("there is no NVML process")
                ours, theirs = time.process_time(), site.cpu_seconds(child)
                for _ in range(rounds):
                    await full_round(agent)
                ours, theirs = time.process_time() - ours, site.cpu_seconds(child) - theirs
                if writes(fake) != before:
                    told = [f"{one.verb} {one.resource}" for one in fake.requests if one.verb not in READS][before:]
                    raise SystemExit(f"rounds in which nothing changed wrote: {', '.join(told)}")
            finally:
                ended.set()
                await running
                await nvml.aclose()
    return ours * 1000 / rounds, theirs * 1000 / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    ours, theirs = asyncio.run(measure(arguments.rounds))
    print(f"reporter {ours:.1f} ms, NVML process {theirs:.1f} ms of CPU per round", file=sys.stderr)
    close(
        name="reporter_round", value=ours + theirs, unit="ms CPU", reference=GOAL_MS, goal=1.0, higher_is_better=False
    )


if __name__ == "__main__":
    main()
