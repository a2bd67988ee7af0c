"""Resident memory of the reporter on a large node (8 GPUs, 256 CPUs, 110 Pods), after it has published everything.

The value is that of the reporter's own process (VmRSS), with everything that the sub-command imports. The NVML process
is reported beside it.
"""

import argparse
import asyncio
import importlib
import os
import sys
import tempfile
from pathlib import Path

import reporter_site as site
from fake_kube import FakeKube
from result import close

from koordgate.kube.client import KubeClient
from reporter.agent import Agent
from reporter.metrics import ReporterMetrics

GOAL_MB = 80.0
ROUNDS = 30.0
WITHIN_S = 120.0


def rounds(metrics: ReporterMetrics) -> float:
    """The number of completed rounds, from the metrics."""
    lines = metrics.exposition().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("koordgate_reporter_rounds_total "))


async def report(url: str, folder: Path, environment: dict[str, str]) -> None:
    """The work of the measured process: the sub-command's own, against this API server."""
    importlib.import_module("reporter.command")  # with everything that it imports
    nvml = site.open_nvml(folder, environment)
    async with KubeClient(url) as kube:
        metrics = ReporterMetrics()
        agent = Agent(site.settings(folder, every=0.1), site.NODE, kube, nvml, metrics)
        running = asyncio.create_task(agent.run(asyncio.Event()))
        while rounds(metrics) < ROUNDS or agent.state.cards.view.driver is None:  # noqa: ASYNC110 counters tell nobody
            await asyncio.sleep(0.1)
        print(site.resident_mb(os.getpid()), site.resident_mb(nvml.pid or os.getpid()), flush=True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await nvml.aclose()


async def measure() -> tuple[float, float]:
    """Megabytes of the reporter, and of its NVML process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        site.build_machine(folder)
        environment = site.build_nvml(folder)
        async with FakeKube() as fake:
            site.fill(fake)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                __file__,
                "--url",
                fake.url,
                "--folder",
                name,
                env=environment,
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                out, _ = await asyncio.wait_for(process.communicate(), WITHIN_S)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            if not fake.objects("/apis/scheduling.koordinator.sh/v1alpha1/devices"):
                raise SystemExit("nothing was told")
    ours, theirs = map(float, out.split())
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.url:
        asyncio.run(report(arguments.url, arguments.folder, dict(os.environ)))
        return
    ours, theirs = asyncio.run(measure())
    print(f"reporter {ours:.1f} MB, NVML process {theirs:.1f} MB", file=sys.stderr)
    close(name="reporter_memory", value=ours, unit="MB", reference=GOAL_MB, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
