"""Pods per second with a real kube-scheduler: alone, and with koordgate, on the same nodes and the same Pods.

Both run on a control plane of their own on this machine. All Pods are there before the scheduler starts; counted is
the time between the first and the last that is bound, seen by a watch. The reference schedules the Pods as koordgate
translates them (core, ratio and memory against Node capacity), with no webhook and no extender.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import yaml
from result import close

from koordgate.localplane import chart
from koordgate.localplane.admin import AdminClient, JsonObject
from koordgate.localplane.binaries import Binaries, find_or_build
from koordgate.localplane.koord import NAME, start_koord_scheduler
from koordgate.localplane.plane import CONTROL_PLANE, ControlPlane
from koordgate.localplane.replicas import Replicas

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from controlplane.gpu_cluster import add_gpu_node, audit, pod, pods_path

GPUS = 8
AT_ONCE = 50
TRANSLATED = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50", "kubernetes.io/gpu-memory": "40Gi"}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def fill(plane: ControlPlane, admin: AdminClient, nodes: int, pods: int, asks: dict[str, str], scheduler: str) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one_node(number: int) -> None:
        async with gate:
            await add_gpu_node(plane, admin, f"n{number}", GPUS)

    async def one_pod(number: int) -> None:
        async with gate:
            await admin.create(pods_path("default"), pod(f"p{number}", "default", asks, schedulerName=scheduler))

    await asyncio.gather(*(one_node(number) for number in range(nodes)))
    began = time.perf_counter()
    await asyncio.gather(*(one_pod(number) for number in range(pods)))
    say(f"  {nodes} nodes, {pods} Pods created ({pods / (time.perf_counter() - began):.0f}/s)")


async def bound_per_second(admin: AdminClient, pods: int) -> float:
    """Watch until all Pods are bound."""
    times: dict[str, float] = {}
    async for event in admin.watch(pods_path("default"), resourceVersion="0"):
        about = event["object"]
        if about["spec"].get("nodeName"):
            times.setdefault(about["metadata"]["name"], time.perf_counter())
            if len(times) % 500 == 0:
                say(f"  {len(times)} bound")
            if len(times) == pods:
                break
    return (pods - 1) / (max(times.values()) - min(times.values()))


async def alone(binaries: Binaries, nodes: int, pods: int, qps: dict[str, float]) -> float:
    say("kube-scheduler alone:")
    objects = [o for o in chart.render(binaries) if o["kind"] == "CustomResourceDefinition"]
    async with ControlPlane(binaries) as plane, plane.admin() as admin:
        await chart.install(plane, objects)
        await fill(plane, admin, nodes, pods, TRANSLATED, "default-scheduler")
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": qps,
        }
        counting = asyncio.create_task(bound_per_second(admin, pods))
        await plane.start_scheduler("alone", yaml.safe_dump(config))
        return await counting


async def with_koordgate(binaries: Binaries, nodes: int, pods: int, replicas: int) -> float:
    say(f"kube-scheduler with koordgate ({replicas} replica(s)):")
    objects: list[JsonObject] = chart.render(binaries)
    async with ControlPlane(binaries) as plane, plane.admin() as admin:
        await chart.install(plane, objects)
        running = Replicas(
            chart.settings_text(objects),
            kubeconfig=await plane.service_account_kubeconfig(chart.NAMESPACE, chart.RELEASE),
            workdir=Path(tempfile.mkdtemp(dir=plane.workdir)),
            listen=await plane.service_address(chart.NAMESPACE, chart.RELEASE),
            count=replicas,
        )
        async with running:
            await fill(plane, admin, nodes, pods, {"kubernetes.io/gpu": "50"}, "default-scheduler")
            counting = asyncio.create_task(bound_per_second(admin, pods))
            await start_koord_scheduler(plane, objects, running.address)
            rate = await counting
            given = await audit(admin)
            say(f"  audit: {len(given)} GPUs in use, none over 100 %")
            await plane.stop_scheduler(NAME)
            return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--goal", type=float, default=0.5)
    arguments = parser.parse_args()
    binaries = find_or_build((*CONTROL_PLANE, "helm"))
    scheduler = yaml.safe_load(chart.find(chart.render(binaries), "ConfigMap", NAME)["data"][chart.CONFIG_KEY])
    qps = scheduler["clientConnection"]
    reference = asyncio.run(alone(binaries, arguments.nodes, arguments.pods, qps))
    say(f"  {reference:.0f} Pods/s")
    value = asyncio.run(with_koordgate(binaries, arguments.nodes, arguments.pods, arguments.replicas))
    say(f"  {value:.0f} Pods/s")
    name = f"end_to_end {arguments.nodes} nodes {arguments.pods} pods"
    close(name=name, value=value, unit="Pods/s", reference=reference, goal=arguments.goal)


if __name__ == "__main__":
    main()
