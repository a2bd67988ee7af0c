"""Milliseconds from the deletion of a Pod to the bind of the Pod that waited for its GPU, with a real kube-scheduler.

One node has one GPU, which is always held. In each round its holder is deleted and the next Pod takes its place.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from result import close

from localplane import chart
from localplane.admin import AdminClient
from localplane.binaries import find_or_build
from localplane.koord import start_koord_scheduler
from localplane.plane import CONTROL_PLANE, ControlPlane
from localplane.replicas import Replicas, Routing
from localplane.waiting import until

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from controlplane.gpu_cluster import add_gpu_node, pod, pods_path

LIMIT_MS = 500.0
WHOLE = {"kubernetes.io/gpu": "100"}


async def bound_at(admin: AdminClient, name: str) -> float:
    """When the Pod was seen bound."""

    async def is_bound() -> float:
        found = await admin.get(pods_path("default", name))
        return time.perf_counter() if found["spec"].get("nodeName") else 0.0

    return await until(is_bound, f"Pod {name} is bound", poll_s=0.005)


async def refused(admin: AdminClient, name: str) -> None:
    """Wait until kube-scheduler has tried to place a Pod without success."""

    async def is_refused() -> bool:
        found = await admin.get(pods_path("default", name))
        conditions = (found.get("status") or {}).get("conditions") or []
        return any(one["type"] == "PodScheduled" and one["status"] == "False" for one in conditions)

    await until(is_refused, f"Pod {name} waits", poll_s=0.01)


async def measure(rounds: int) -> list[float]:
    """Milliseconds from each deletion to the next bind."""
    binaries = find_or_build((*CONTROL_PLANE, "helm"))
    objects = chart.render(binaries)
    async with ControlPlane(binaries) as plane, plane.admin() as admin:
        await chart.install(plane, objects)
        running = await Replicas.installed(
            plane, objects, Path(tempfile.mkdtemp(dir=plane.workdir)), count=1, routing=Routing.DIRECT
        )
        async with running:
            await add_gpu_node(plane, admin, "n0", 1)
            await start_koord_scheduler(plane, objects, running.extender)
            await admin.create(pods_path("default"), pod("p0", "default", WHOLE))
            await bound_at(admin, "p0")
            taken = []
            for number in range(rounds):
                await admin.create(pods_path("default"), pod(f"p{number + 1}", "default", WHOLE))
                await refused(admin, f"p{number + 1}")
                began = time.perf_counter()
                await admin.delete(pods_path("default", f"p{number}"))
                taken.append((await bound_at(admin, f"p{number + 1}") - began) * 1000)
            return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    taken = asyncio.run(measure(arguments.rounds))
    print(f"least {min(taken):.0f} ms, most {max(taken):.0f} ms", file=sys.stderr)
    close(
        name="wake",
        value=statistics.median(taken),
        unit="ms",
        reference=LIMIT_MS,
        goal=1.0,
        higher_is_better=False,
    )


if __name__ == "__main__":
    main()
