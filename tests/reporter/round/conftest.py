"""A whole node: a machine of files with cgroups and a kubelet's folder, an API server in process, and the reporter."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import nvml_standin
import pytest
from fake_kube import FakeKube
from nvml_standin import Played
from round_driver import check_invariants
from sysfs_tree import Machine
from waiting import until

from koordgate.kube.client import KubeClient
from reporter.agent import Agent
from reporter.gpu.guarded import DriverRoots, GuardedNvml, Patience
from reporter.metrics import ReporterMetrics
from reporter.round.state import RoundPace
from reporter.settings import ReporterSettings, parse

Raw = dict[str, Any]
DEVICE = "/apis/scheduling.koordinator.sh/v1alpha1/devices/n1"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/n1"
NODE = "/api/v1/nodes/n1"


class Site:
    """The node, its files and the cluster that it is in."""

    def __init__(self, folder: Path, fake: FakeKube) -> None:
        self.machine = Machine(folder)
        self.folder = folder
        self.fake = fake
        self.metrics = ReporterMetrics()
        self.agent: Agent | None = None
        self.end: Callable[[], Awaitable[None]] | None = None  # of the agent
        self.machine.cpus(sockets=1, nodes=2, cores=4, threads=2)
        for node in (0, 1):
            self.machine.memory(node, kib=2**20)
        self.machine.rdma("mlx5_0", "0000:3b:00.0", numa=0)
        (folder / "kubelet" / "device-plugins").mkdir(parents=True)
        self.cgroup("")
        self.cgroup("kubepods")
        self.cgroup("kubepods/burstable")
        self.cgroup("kubepods/besteffort")

    def settings(self, **over: Any) -> ReporterSettings:
        kubelet = self.folder / "kubelet"
        return parse(
            f"""
node: n1
roundSeconds: {over.get("every", 0.02)}
roots:
  sysfs: {self.machine.sysfs}
  proc: {self.machine.proc}
  cgroup: {self.folder}/cgroup
  kubelet: {kubelet}
  state: {self.folder}/state
  dev: {self.folder}/dev
serve: {{port: 0}}
kubelet:
  configuration: {kubelet}/config.yaml
  deviceCheckpoint: {self.checkpoint}
  podResources: {self.pod_resources}
  configz: {str(over.get("configz", False)).lower()}
runtime:
  directories: [{self.folder}/cdi, {self.folder}/containerd]
  runtimeClassName: nvidia
  handler: nvidia
  ownHandler: {over.get("own_handler", "null")}
  policies: {str(over.get("policies", False)).lower()}
proof: {{environment: {str(over.get("environment", False)).lower()}}}
gpus:
  enabled: {str(over.get("gpus", False)).lower()}
  quietSeconds: {over.get("quiet", 300)}
  provingSeconds: {over.get("proving", 600)}
  outageSeconds: {over.get("outage", 0.001)}
"""
        )

    @property
    def checkpoint(self) -> Path:
        return self.folder / "kubelet" / "device-plugins" / "kubelet_internal_checkpoint"

    @property
    def pod_resources(self) -> Path:
        return self.folder / "kubelet" / "kubelet.sock"

    def cgroup(self, path: str, cpus: str = "0-7") -> Path:
        """A cgroup of v1's cpuset hierarchy."""
        folder = self.folder / "cgroup" / "cpuset" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpuset.cpus").write_text(f"{cpus}\n")
        (folder / "cpuset.mems").write_text("0-1\n")
        (folder / "cgroup.procs").write_text("")
        return folder

    def add_node(self, uid: str = "node-uid") -> None:
        self.fake.put("/api/v1/nodes", {"metadata": {"name": "n1", "uid": uid}, "status": {"capacity": {"cpu": "8"}}})

    def add_pod(self, name: str, uid: str, *, container: str = "", qos: str = "LS", **decided: str) -> Raw:
        """A running Pod; its allocation by the annotation's name: `resource_status`, `device_allocated`."""
        status: Raw = {"qosClass": "Burstable", "phase": "Running"}
        if container:
            status["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{container}"}]
        about = {
            "name": name,
            "namespace": "ns",
            "uid": uid,
            "labels": {"koordinator.sh/qosClass": qos},
            "annotations": {
                f"scheduling.koordinator.sh/{key.replace('_', '-')}": text for key, text in decided.items()
            },
        }
        return self.fake.put(
            "/api/v1/namespaces/ns/pods", {"metadata": about, "spec": {"nodeName": "n1"}, "status": status}
        )

    def find(self, path: str) -> Raw | None:
        collection, _, name = path.rpartition("/")
        return next((obj for obj in self.fake.objects(collection) if obj["metadata"]["name"] == name), None)

    def writes(self) -> int:
        return sum(request.verb in {"create", "update", "patch", "delete"} for request in self.fake.requests)

    def rounds(self) -> float:
        return float(self.metrics.rounds._value.get())

    async def more_rounds(self, count: int) -> None:
        target = self.rounds() + count
        await until(lambda: self.rounds() >= target)

    async def settled(self) -> None:
        """Wait until all three objects are published and a few rounds have written nothing more."""
        await until(lambda: self.find(DEVICE) and self.find(TOPOLOGY) and self.amount())
        while True:
            before = self.writes()
            await self.more_rounds(3)
            if self.writes() == before:
                return

    def amount(self) -> str | None:
        node = self.find(NODE) or {}
        found: str | None = (node.get("status", {}).get("allocatable") or {}).get("kubernetes.io/rdma")
        return found


Start = Callable[..., Awaitable[Agent]]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in for NVIDIA's library."""
    return nvml_standin.build(tmp_path_factory.mktemp("standin"))


@pytest.fixture
async def played(library: Path, tmp_path: Path) -> AsyncIterator[Played]:
    """The cards of the same machine."""
    async with contextlib.AsyncExitStack() as stack:
        yield Played(library, tmp_path, stack)


@pytest.fixture
def site(tmp_path: Path, fake: FakeKube) -> Site:
    return Site(tmp_path, fake)


@pytest.fixture
async def start(site: Site, kube: KubeClient) -> AsyncIterator[Start]:
    """Run the reporter until the test's end."""
    async with contextlib.AsyncExitStack() as stack:

        async def begin(**over: Any) -> Agent:
            configured = site.settings(**over)
            nvml = over.get("nvml")
            if configured.gpus.enabled and nvml is None:
                empty = {**os.environ, "LD_LIBRARY_PATH": str(site.folder)}
                patience = Patience(first_pause=0.01, longest_pause=0.05)
                nvml = GuardedNvml(patience, DriverRoots(site.machine.sysfs, site.machine.proc), env=empty)
            if nvml is not None:
                stack.push_async_callback(nvml.aclose)
            pace = RoundPace(every=configured.round_seconds, **over.get("pace", {}))
            agent = Agent(configured, "n1", kube, nvml, site.metrics, pace=pace, checked=check_invariants)
            ended = asyncio.Event()
            task = asyncio.create_task(agent.run(ended))

            async def end() -> None:
                ended.set()
                await task

            stack.push_async_callback(end)
            site.agent, site.end = agent, end
            return agent

        yield begin
