"""The dashboard on real data: a real Prometheus watches a cluster under load, and each panel's query is drawn.

A real control plane, two replicas, koord-scheduler, the keeper of the health lease, and reporters of three nodes with
eight cards, whose NVML is a stand-in. Pods of the openb trace come and end; a card falls off the bus, and a replica
crashes and returns. `--plot FILE` draws the dashboard as SVG. What is counted is the panels that show something.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from aiohttp import ClientSession
from result import close

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from prometheus_server import prometheus
from watching.boards import Board, boards, firing
from watching.cluster import SCRAPE_S, troubles, watched_cluster
from watching.load import PodLoad
from watching.picture import picture

from localplane.binaries import find_or_build
from localplane.plane import CONTROL_PLANE

POINTS = 150  # of a line


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def watch(seconds: float, rate: float, folder: Path) -> tuple[list[Board], float, float]:
    """Run the cluster for this long; returns the panels, and the beginning and end of the time that they show."""
    binaries = find_or_build((*CONTROL_PLANE, "helm"))
    async with watched_cluster(binaries, folder) as watched, ClientSession() as session:
        load = PodLoad(watched.admin, watched.nodes, rate, lasts=100 / rate)
        await load.fill(40)
        async with prometheus(folder, watched.config) as api:
            say(f"it runs; Prometheus is at {api}")
            begin = time.time() + 2 * SCRAPE_S  # a rate needs two readings
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(troubles(watched, seconds))
                await load.run(seconds)
            say(f"{load.created} Pods, {load.refused} were refused")
            end = time.time() - SCRAPE_S
            found = await boards(session, api, begin, end, max(SCRAPE_S, (end - begin) / POINTS))
            for name, lasted in sorted((await firing(session, api, begin, end)).items()):
                say(f"alert {name}: {lasted:.0f} s")
    return found, begin, end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0, help="how long the cluster runs (default: 900)")
    parser.add_argument("--rate", type=float, default=1.0, help="Pods in a second at the busiest time (default: 1)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the dashboard here, as SVG")
    parser.add_argument("--folder", type=Path, help="keep data and logs here, an empty folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="koordgate-watched-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found, begin, end = asyncio.run(watch(arguments.seconds, arguments.rate, folder.resolve()))
    panels = [board for board in found if board.kind != "row"]
    for board in panels:
        say(f"{board.title}: {len(board.series)} series" + "" if board.series else f"{board.title}: NOTHING")
    if arguments.plot:
        arguments.plot.write_text(picture(found, begin, end))
    filled = sum(bool(board.series) for board in panels)
    close(name="watched panels", value=filled, unit="panels with data", reference=len(panels), goal=1.0)


if __name__ == "__main__":
    main()
