"""What one Pod costs with a real kube-scheduler, alone and with koordgate: what the end-to-end benchmarks share.

Each side has a control plane of its own on this machine, the same nodes and the same Pods. Alone, kube-scheduler
schedules the Pods as koordgate translates them (core, ratio and memory against Node capacity), without a webhook and an
extender, and packs nodes as koordgate does.

The cost is the CPU time of every process of a side from the first of these Pods until all are bound, and nobody has
written an Event for a second. This process is not counted: it creates the Pods, and is the Service in front of several
replicas.
"""

import argparse
import asyncio
import base64
import contextlib
import os
import re
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import yaml
from loads import FUNCTIONS, Kind

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas, Routing
from localplane.waiting import until

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from controlplane.gpu_cluster import DEVICES, at_home, audit_devices, capacity_of, device_object, machine, pods_path

PATIENCE_S: Final = 600.0
QUIET_S: Final = 1.0
AT_ONCE: Final = 50
NAMESPACES: Final = 8  # in which the Pods are, if all namespaces have quotas
RARE: Final = 0.02  # what happens less often than so many times a Pod is not printed
UNTHROTTLED: Final = {"qps": 5000, "burst": 10000}  # for both: work is compared, not client-side limits
VALUES: Final = {"scheduler": {"clientQPS": UNTHROTTLED["qps"], "clientBurst": UNTHROTTLED["burst"]}}
# Both pack, as clusters of GPUs do: halves spread over all nodes would leave no whole node for a Pod of eight GPUs.
PACKING: Final = {"type": "MostAllocated", "resources": [{"name": "kubernetes.io/gpu-core", "weight": 1}]}
SCHEDULER: Final = "system:kube-scheduler"  # with the rights that it has in every cluster
PLENTY: Final = "999999"
MANAGER: Final = "kube-controller-manager"  # its controller of quotas fills their status, without which none counts
FIRST: Final = "n00000"
# A Node is ready from the start; no controller of nodes runs that would remove this plugin's taint.
UNTAINTED: Final = ("--disable-admission-plugins=TaintNodesByCondition",)
# The parts of the API server's and the replicas' metrics that are printed.
COUNTERS: Final = re.compile(
    r"^(apiserver_request_total|apiserver_watch_events_total|etcd_requests_total|koordgate_requests_total"
    r"|koordgate_ledger_writes_total)(?:\{(.*)\})? (\S+)$",
    re.MULTILINE,
)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


Pods = list[tuple[str, Kind]]


@dataclass(frozen=True)
class Load:
    """What is run.

    Attributes:
        nodes: The number of nodes, each of eight GPUs.
        phases: Pods, which are created and bound one list after another; the last list is measured.
        live: Whether the Pods are created while the scheduler runs. Their creation is then measured too.
        rate: Pods created each second if `live`; 0 means as fast as the API server takes them.
        quotas: Where a ResourceQuota counts the Pods' GPUs: `none`; `one`, the namespace of all Pods; `all`, the eight
            namespaces that they are spread over. Alone, a quota counts Pods instead.
        replicas: The number of replicas of the webhook.
    """

    nodes: int
    phases: list[Pods]
    live: bool
    rate: float
    quotas: str
    replicas: int

    @property
    def namespaces(self) -> list[str]:
        """The Pods' namespaces."""
        return [f"team-{number}" for number in range(NAMESPACES)] if self.quotas == "all" else ["default"]


def add_options(parser: argparse.ArgumentParser, *, arrivals: str) -> None:
    """The options that the benchmarks have in common; `arrivals` is a default."""
    parser.add_argument("--quotas", choices=("none", "one", "all"), default="none", help="namespaces with a quota")
    parser.add_argument("--arrivals", choices=("burst", "live"), default=arrivals)
    parser.add_argument("--rate", type=float, default=0.0, help="Pods created each second, with live arrivals")
    parser.add_argument("--replicas", type=int, default=1)


@dataclass(frozen=True)
class Cost:
    """What one of the measured Pods cost.

    Attributes:
        cpu: Milliseconds of CPU time, by process.
        counts: How often what was counted happened, by name.
        stored: The mean size of a bound Pod in etcd, in bytes.
        rate: Pods bound per second, from the first creation (live) or the scheduler's start (burst) to the last bind.
    """

    cpu: dict[str, float]
    counts: dict[str, float]
    stored: float
    rate: float

    @property
    def total(self) -> float:
        """Milliseconds of CPU time of all processes."""
        return sum(self.cpu.values())


def tell(alone: Cost, ours: Cost) -> None:
    """Print both side by side."""
    say(f"\n  {'':44}{'alone':>10}{'koordgate':>12}")
    rows = {
        "ms of CPU a Pod": [(name, alone.cpu, ours.cpu) for name in ours.cpu],
        "times a Pod": [(name, alone.counts, ours.counts) for name in sorted({**alone.counts, **ours.counts})],
    }
    for title, lines in rows.items():
        say(f"  {title}")
        for name, left, right in lines:
            say(f"    {name:42}{left.get(name, 0):10.2f}{right.get(name, 0):12.2f}")
        if title.startswith("ms"):
            say(f"    {'all':42}{alone.total:10.2f}{ours.total:12.2f}")
    say(f"  {'bytes of a bound Pod in etcd':44}{alone.stored:10.0f}{ours.stored:12.0f}")
    say(f"  {'Pods/s':44}{alone.rate:10.0f}{ours.rate:12.0f}\n")


async def alone(binaries: Binaries, load: Load) -> Cost:
    """Measure kube-scheduler alone."""
    say("kube-scheduler alone:")
    async with _plane(binaries, load) as plane, plane.admin() as admin:
        await _add_nodes(plane, admin, load.nodes, devices=False)
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": UNTHROTTLED,
            "profiles": [{"pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": PACKING}}]}],
        }
        kubeconfig = plane.kubeconfig(plane.tokens[SCHEDULER], plane.workdir / "scheduler.kubeconfig")
        side = _Side(
            plane,
            admin,
            "kube-scheduler",
            lambda: plane.start_scheduler("kube-scheduler", yaml.safe_dump(config), kubeconfig),
            asks=lambda kind: kind.translated,
            counted="pods",
        )
        return await side.run(load)


async def with_koordgate(binaries: Binaries, load: Load) -> Cost:
    """Measure kube-scheduler with koordgate; in the end, fail if a device was given twice."""
    say(f"kube-scheduler with koordgate ({load.replicas} replica(s)):")
    objects = chart.render(binaries, VALUES)
    async with _plane(binaries, load) as plane, plane.admin() as admin:
        await chart.install(plane, (one for one in objects if one["kind"] == "CustomResourceDefinition"))
        await _add_nodes(plane, admin, load.nodes, devices=True)
        await chart.install(plane, objects)
        running = await Replicas.installed(
            plane,
            objects,
            Path(tempfile.mkdtemp(dir=plane.workdir)),
            count=load.replicas,
            routing=Routing.DIRECT if load.replicas == 1 else Routing.STICKY,
        )
        async with running:
            side = _Side(
                plane,
                admin,
                NAME,
                lambda: start_koord_scheduler(plane, objects, running.extender),
                asks=lambda kind: dict(kind.asks),
                counted="requests.quota.koordgate.io/gpu",
                replicas=running,
            )
            cost = await side.run(load)
            given = await audit_devices(admin, *load.namespaces)
            say(f"  audit: {len(given.used)} devices in use, none allocated twice")
            return cost


def _plane(binaries: Binaries, load: Load) -> ControlPlane:
    return ControlPlane(
        binaries,
        users={SCHEDULER: ()},
        controller_manager=load.quotas != "none",
        controllers="resourcequota-controller",
        apiserver_args=UNTAINTED,
    )


async def _add_nodes(plane: ControlPlane, admin: AdminClient, count: int, *, devices: bool) -> None:
    """Create one Node, and its Device object, and write copies to etcd as they are stored: requests take minutes."""
    began, name = time.perf_counter(), FIRST
    entries = machine(name, FUNCTIONS)
    ready = {"type": "Ready", "status": "True", "reason": "Declared", "message": "a Node of the benchmark"}
    amounts = capacity_of(entries)
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }
    if devices:
        made = await admin.create(DEVICES, device_object(name, entries))
        await _copy(plane, "/registry/scheduling.koordinator.sh/devices/", made["metadata"]["uid"], count)
    made = await admin.create("/api/v1/nodes", node)
    await _copy(plane, "/registry/minions/", made["metadata"]["uid"], count)
    say(f"  {count} nodes ({time.perf_counter() - began:.0f} s)")


async def _copy(plane: ControlPlane, folder: str, uid: str, count: int) -> None:
    """Store the object of a folder under further names, of the same length as its own, since formats state lengths."""
    (stored,) = await _stored(plane, folder)

    def put(number: int) -> JsonObject:
        name, other = f"n{number:05}", f"{number:08x}{uid[8:]}"
        value = stored.replace(FIRST.encode(), name.encode()).replace(uid.encode(), other.encode())
        return {"requestPut": {"key": _base64(f"{folder}{name}".encode()), "value": _base64(value)}}

    for start in range(1, count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, count))
        await _etcd(plane, "txn", {"success": [put(number) for number in numbers]})


async def _stored(plane: ControlPlane, folder: str) -> list[bytes]:
    """The objects of a folder of etcd, as they are stored."""
    ends = {"key": _base64(folder.encode()), "range_end": _base64(f"{folder[:-1]}0".encode())}  # "0" follows "/"
    return [base64.b64decode(one["value"]) for one in (await _etcd(plane, "range", ends))["kvs"]]


async def _etcd(plane: ControlPlane, method: str, body: JsonObject) -> JsonObject:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{plane.etcd_url}/v3/kv/{method}", json=body) as answer,
    ):
        answer.raise_for_status()
        found: JsonObject = await answer.json(content_type=None)
        return found


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


@dataclass(frozen=True)
class _Side:
    """One control plane with its scheduler.

    Attributes:
        scheduler: The name of the scheduler's process, which `start` starts.
        asks: What a container of a Pod asks for.
        counted: What a quota limits.
        replicas: The webhook's, if there is one.
    """

    plane: ControlPlane
    admin: AdminClient
    scheduler: str
    start: Callable[[], Awaitable[object]]
    asks: Callable[[Kind], dict[str, str]]
    counted: str
    replicas: Replicas | None = None

    async def run(self, load: Load) -> Cost:
        """Create and schedule the Pods; returns what those of the last phase cost."""
        for namespace in load.namespaces:
            await self.plane.ensure_namespace(namespace)
            if load.quotas != "none":
                await self._limit(namespace)
        return [await self._phase(pods, load) for pods in load.phases][-1]

    async def _phase(self, pods: Pods, load: Load) -> Cost:
        await (self.start() if load.live else self._create(pods, load))
        before, used = await self._counts(), self._cpu()
        began = time.perf_counter()
        await (self._create(pods, load) if load.live else self.start())
        await until(self._all_bound, "all Pods are bound", deadline_s=PATIENCE_S, poll_s=0.5)
        rate = len(pods) / (time.perf_counter() - began)
        await self._quiet()
        cpu, after = self._cpu(), await self._counts()
        await self.plane.stop_scheduler(self.scheduler)
        times = {title: (count - before.get(title, 0)) / len(pods) for title, count in after.items()}
        return Cost(
            {name: 1000 * (seconds - used.get(name, 0)) / len(pods) for name, seconds in cpu.items()},
            {title: many for title, many in times.items() if many >= RARE},
            statistics.fmean(map(len, await _stored(self.plane, "/registry/pods/"))),
            rate,
        )

    async def _limit(self, namespace: str) -> None:
        """Give a namespace a quota that it never reaches, and wait until it counts."""
        hard = {self.counted: PLENTY}
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cards"}, "spec": {"hard": hard}}
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        await self.admin.create(path, quota)

        trial = at_home("trial", namespace, {"kubernetes.io/gpu": "50"}, nodeSelector={})

        async def counts() -> bool:
            """Whether the API server enforces it, and koordgate has new Pods state what it limits."""
            found = await self.admin.get(f"{path}/cards")
            if found["status"].get("hard") != hard:
                return False
            made = await self.admin.create(f"/api/v1/namespaces/{namespace}/pods", trial, dryRun="All")
            return self.replicas is None or self.counted.removeprefix("requests.") in str(made["spec"])

        await until(counts, f"the quota of {namespace} counts")

    async def _create(self, pods: Pods, load: Load) -> None:
        began = time.perf_counter()
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, name: str, kind: Kind) -> None:
            namespace = load.namespaces[number % len(load.namespaces)]
            made = at_home(name, namespace, self.asks(kind), annotations=kind.annotations, nodeSelector={})
            if load.rate:
                await asyncio.sleep(began + number / load.rate - time.perf_counter())
            async with gate:
                await self.admin.create(pods_path(namespace), made)

        await asyncio.gather(*(one(number, name, kind) for number, (name, kind) in enumerate(pods)))
        say(f"  {len(pods)} Pods created ({len(pods) / (time.perf_counter() - began):.0f}/s)")

    async def _all_bound(self) -> bool:
        """Whether no Pod waits; costs the API server little, unlike a watch of all Pods."""
        return not await self.admin.items("/api/v1/pods", fieldSelector="spec.nodeName=", limit="1")

    async def _quiet(self) -> None:
        """Wait until the Events about the binds are written, which the schedulers and the webhook do later."""
        last, since = -1, 0.0

        async def quiet() -> bool:
            nonlocal last, since
            found = await self.admin.get("/api/v1/events", limit="1")
            number = len(found["items"]) + found["metadata"].get("remainingItemCount", 0)
            if number != last:
                last, since = number, time.perf_counter()
            return time.perf_counter() - since > QUIET_S

        await until(quiet, "nobody writes Events", deadline_s=PATIENCE_S, poll_s=0.2)

    def _cpu(self) -> dict[str, float]:
        """CPU seconds so far, by process."""
        used = {}
        for name in ("etcd", "kube-apiserver", MANAGER, self.scheduler):
            with contextlib.suppress(KeyError):  # it does not run, or not yet
                used["scheduler" if name == self.scheduler else name] = _cpu_seconds(self.plane.process(name).pid)
        if self.replicas:
            numbers = range(len(self.replicas.urls))
            used["webhook"] = sum(_cpu_seconds(self.replicas.process(number).pid) for number in numbers)
        return used

    async def _counts(self) -> dict[str, float]:
        """How often what is printed has happened so far, by the metrics of the API server and of the replicas."""
        texts = [(await self.admin.get("/metrics"))["text"]]
        async with aiohttp.ClientSession() as session:
            for url in self.replicas.urls if self.replicas else ():
                async with session.get(f"{url}/metrics", ssl=False) as answer:
                    texts.append(await answer.text())
        counts: dict[str, float] = defaultdict(float)
        for name, labels, value in COUNTERS.findall("\n".join(texts)):
            counts[_title(name, dict(re.findall(r'(\w+)="([^"]*)"', labels)))] += float(value)
        return counts


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _title(metric: str, labels: dict[str, str]) -> str:
    """What one line of the metrics counts; lines with the same title are added up."""
    resource = "/".join(filter(None, (labels.get("resource"), labels.get("subresource"))))
    match metric:
        case "apiserver_request_total":
            failed = labels["code"] if int(labels["code"]) >= 400 else ""
            return " ".join(filter(None, ("request:", labels["verb"], resource, failed)))
        case "apiserver_watch_events_total":
            return f"watch event: {resource or labels['kind']}"
        case "etcd_requests_total":
            return f"etcd: {labels['operation']} {resource or labels['type']}"
        case "koordgate_requests_total":
            return f"webhook: {labels['path']} {labels['outcome']}"
        case _:
            return "ledger: writes"
