"""Pods per second with a real kube-scheduler: alone, and with koordgate, on the same nodes and the same Pods.

Each runs on a control plane of its own on this machine. All Pods exist before the scheduler starts. The measured time
is from the first bind until all Pods are bound and the scheduler's Events about them are written. The reference
schedules the Pods as koordgate translates them (core, ratio and memory against Node capacity), without a webhook and
an extender, and packs nodes as koordgate does.

The first Pods ask for half a GPU each. With --mix, Pods of all kinds follow (whole, several, fractions, joint with RDMA
NICs and virtual functions), and only these are measured. The share of refused binds is reported too.
"""

import argparse
import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import aiohttp
import yaml
from loads import FUNCTIONS, Kind, halves, mix
from result import close

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries, find_or_build
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import CONTROL_PLANE, ControlPlane
from localplane.replicas import Replicas, Routing
from localplane.waiting import until

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from controlplane.gpu_cluster import add_node, at_home, audit_devices, machine, pods_path, refused_binds

NAMESPACE = "default"
PATIENCE_S = 300.0
QUIET_S = 1.0  # without a new Event for this long, the scheduler has written all its Events
AT_ONCE = 50
UNTHROTTLED = {"qps": 5000, "burst": 10000}  # for both: the benchmark compares work, not client-side limits
VALUES = {"scheduler": {"clientQPS": UNTHROTTLED["qps"], "clientBurst": UNTHROTTLED["burst"]}}
# Both pack, as clusters of GPUs do: halves spread over all nodes would leave no whole node for a Pod of eight GPUs.
PACKING = {"type": "MostAllocated", "resources": [{"name": "kubernetes.io/gpu-core", "weight": 1}]}
SCHEDULER = "system:kube-scheduler"  # with the rights that it has in every cluster


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def add_nodes(plane: ControlPlane, admin: AdminClient, count: int) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with gate:
            await add_node(plane, admin, name, NAMESPACE, machine(name, FUNCTIONS))

    await asyncio.gather(*(one(f"n{number}") for number in range(count)))
    say(f"  {count} nodes")


async def create(admin: AdminClient, pods: list[tuple[str, Kind]], *, translated: bool) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(name: str, kind: Kind) -> None:
        asks = kind.translated if translated else dict(kind.asks)
        async with gate:
            made = at_home(name, NAMESPACE, asks, annotations=kind.annotations, nodeSelector={})
            await admin.create(pods_path(NAMESPACE), made)

    began = time.perf_counter()
    await asyncio.gather(*(one(name, kind) for name, kind in pods))
    say(f"  {len(pods)} Pods created ({len(pods) / (time.perf_counter() - began):.0f}/s)")


async def all_done(admin: AdminClient, pods: int) -> float:
    """Wait until all Pods are bound and the Events about it are written; returns when that was.

    Alone, kube-scheduler binds 2,000 Pods in a second or two and writes the Events later. Without the Events, a burst
    would look faster than the rate it can sustain. Events that its full queue drops are not waited for.
    """
    bound = Counted()
    events = Counted()
    watches = (
        asyncio.create_task(bound.watch(admin, pods_path("default"), "spec.nodeName!=")),
        asyncio.create_task(events.watch(admin, "/api/v1/namespaces/default/events", "reason=Scheduled")),
    )

    async def done() -> bool:
        for watch in watches:
            if watch.done():
                watch.result()
        return bound.number >= pods and time.time() - max(events.last, bound.last) > QUIET_S

    await until(done, "all Pods are bound and reported", deadline_s=PATIENCE_S)
    for watch in watches:
        watch.cancel()
    say(f"  {bound.number} bound in the end, {events.number} Events")
    return max(bound.last, events.last)


class Counted:
    """Counts the new objects of a collection, by a watch that decodes nothing and therefore costs little."""

    def __init__(self) -> None:
        self.number = 0
        self.last = 0.0

    async def watch(self, admin: AdminClient, path: str, selector: str) -> None:
        """Watch until cancelled; if the API server ends the watch as too slow, it begins again with all objects."""
        while True:
            number = 0
            async for line in admin.watch_lines(path, fieldSelector=selector):
                number += line.startswith(b'{"type":"ADDED"')
                if number > self.number:
                    self.number, self.last = number, time.time()


async def first_bound(admin: AdminClient, pods: list[tuple[str, Kind]]) -> float:
    """When the first of these Pods was bound, by kube-scheduler's own Events (in microseconds).

    A watch would not serve: on such a busy machine it delivers the first bind late.
    """
    names = {name for name, _ in pods}
    events = await admin.items("/api/v1/namespaces/default/events", fieldSelector="reason=Scheduled")
    of_these = (event for event in events if event["involvedObject"]["name"] in names)
    return min(datetime.fromisoformat(event["eventTime"]).timestamp() for event in of_these)


class Cpu:
    """CPU seconds of processes between two moments."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._before = {name: cpu_seconds(pid) for name, pid in pids.items()}

    def tell(self) -> None:
        """Print the CPU seconds of each process since the start."""
        used = {name: cpu_seconds(pid) - self._before[name] for name, pid in self._pids.items()}
        say("  CPU: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in used.items()))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def tell_times(url: str) -> None:
    """Print the mean time of each kind of request, from the webhook's own metrics."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics", ssl=False) as answer:
        text = await answer.text()
    found = dict(re.findall(r'^koordgate_request_seconds_((?:sum|count)\{path="[^"]+"\}) (\S+)$', text, re.MULTILINE))
    for key, count in found.items():
        if key.startswith("count") and float(count):
            mean = float(found[key.replace("count", "sum", 1)]) / float(count) * 1000
            say(f"  {key[len('count') :]}: {float(count):.0f} requests, {mean:.2f} ms each")
    for key, count in re.findall(r"^koordgate_ledger_(\w+_total) (\S+)$", text, re.MULTILINE):
        say(f"  ledger {key}: {float(count):.0f}")


Phases = list[list[tuple[str, Kind]]]


async def alone(binaries: Binaries, nodes: int, phases: Phases) -> float:
    say("kube-scheduler alone:")
    objects = [o for o in chart.render(binaries) if o["kind"] == "CustomResourceDefinition"]
    async with ControlPlane(binaries, users={SCHEDULER: ()}) as plane, plane.admin() as admin:
        await chart.install(plane, objects)
        await add_nodes(plane, admin, nodes)
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": UNTHROTTLED,
            "profiles": [{"pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": PACKING}}]}],
        }
        kubeconfig = plane.kubeconfig(plane.tokens[SCHEDULER], plane.workdir / "scheduler.kubeconfig")
        rate, there = 0.0, 0
        for pods in phases:
            await create(admin, pods, translated=True)
            there += len(pods)
            waiting = asyncio.create_task(all_done(admin, there))
            cpu = Cpu({name: plane.process(name).pid for name in ("etcd", "kube-apiserver")})
            await plane.start_scheduler("alone", yaml.safe_dump(config), kubeconfig)
            last = await waiting
            cpu.tell()
            say(f"  CPU: kube-scheduler {cpu_seconds(plane.process('alone').pid):.1f} s")
            await plane.stop_scheduler("alone")
            rate = len(pods) / (last - await first_bound(admin, pods))
            say(f"  {rate:.0f} Pods/s")
        return rate


async def with_koordgate(binaries: Binaries, nodes: int, phases: Phases, replicas: int) -> float:
    say(f"kube-scheduler with koordgate ({replicas} replica(s)):")
    objects: list[JsonObject] = chart.render(binaries, VALUES)
    async with ControlPlane(binaries) as plane, plane.admin() as admin:
        await chart.install(plane, objects)
        running = Replicas(
            chart.settings_text(objects),
            kubeconfig=await plane.service_account_kubeconfig(chart.NAMESPACE, chart.RELEASE),
            workdir=Path(tempfile.mkdtemp(dir=plane.workdir)),
            listen=await plane.service_address(chart.NAMESPACE, chart.RELEASE),
            count=replicas,
            routing=Routing.DIRECT if replicas == 1 else Routing.STICKY,
        )
        async with running:
            await add_nodes(plane, admin, nodes)
            rate, there = 0.0, 0
            for pods in phases:
                await create(admin, pods, translated=False)
                there += len(pods)
                waiting = asyncio.create_task(all_done(admin, there))
                pids = {name: plane.process(name).pid for name in ("etcd", "kube-apiserver")}
                cpu = Cpu({**pids, "webhook": running.process(0).pid})
                before = await refused_binds(running)
                await start_koord_scheduler(plane, objects, running.extender)
                last = await waiting
                await tell_times(running.urls[0])
                cpu.tell()
                say(f"  CPU: {NAME} {cpu_seconds(plane.process(NAME).pid):.1f} s")
                await plane.stop_scheduler(NAME)
                rate = len(pods) / (last - await first_bound(admin, pods))
                refused = await refused_binds(running) - before
                say(f"  {rate:.0f} Pods/s, {refused:.0f} binds refused ({100 * refused / (len(pods) + refused):.1f} %)")
            given = await audit_devices(admin, NAMESPACE)
            say(f"  audit: {len(given.used)} devices in use, none allocated twice")
            return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=2000, help="Pods that ask for half a GPU, and as many of the mix")
    parser.add_argument("--mix", action="store_true", help="then a mix of all kinds of Pods; only the mix is measured")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both, alternating; medians are compared")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--goal", type=float, default=0.6)
    arguments = parser.parse_args()
    binaries = find_or_build((*CONTROL_PLANE, "helm"))
    phases = [halves(arguments.pods), *([mix(arguments.pods)] if arguments.mix else [])]
    references, values = [], []
    for number in range(arguments.rounds):
        say(f"round {number + 1} of {arguments.rounds}")
        references.append(asyncio.run(alone(binaries, arguments.nodes, phases)))
        values.append(asyncio.run(with_koordgate(binaries, arguments.nodes, phases, arguments.replicas)))
    close(
        name=f"end_to_end {arguments.nodes} nodes {arguments.pods} pods{' mix' if arguments.mix else ''}",
        value=statistics.median(values),
        unit="Pods/s",
        reference=statistics.median(references),
        goal=arguments.goal,
    )


if __name__ == "__main__":
    main()
