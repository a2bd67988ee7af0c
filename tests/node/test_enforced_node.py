"""koordgate as installed with its enforcer: what it decides is in force from a container's first instruction on.

Unlike in `test_nri.py`, koordgate itself binds the Pods, and the reporter itself tells the enforcer of the node. Cards
come by NVIDIA's CDI specification over a stand-in of the driver's library; HAMi-core's library is an empty file.
"""

import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import allocated, metric, pods_path
from node import images
from node.enforcers import HELD_S, SLEEP, Enforcer
from node.harness import Node, Reporter
from node.nri_peers import AnotherPlugin
from node.nvidia import Toolkit, sysfs_with_cards

from allocator.vocabulary.cputopology import format_cpuset, parse
from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.koord import NAME
from localplane.plane import ControlPlane
from localplane.replicas import Replicas, laid_over
from localplane.waiting import until
from reporter.enforcer.model import Edits

ACCOUNT = "koordgate-reporter"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
STATUS = "scheduling.koordinator.sh/resource-status"
MEMORY_LIMITS = "koordgate.io/memory-limits"
PROVIDER = "koordinator.sh/gpu-isolation-provider"
GIB = 2**30
ALL = parse(Path("/sys/devices/system/cpu/online").read_text())
TELL = (
    "echo $(grep Cpus_allowed_list /proc/self/status) cards=$(find /dev -type c -name 'nvidia[0-9]')"
    " limit=$CUDA_DEVICE_MEMORY_LIMIT_0 library=$(ls /usr/local/vgpu/libvgpu.so 2>/dev/null)"
    " visible=$NVIDIA_VISIBLE_DEVICES;"
)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("enforced")


@pytest.fixture(scope="module")
def node_chart(node_binaries: Binaries, node_values: JsonObject, node: Node, workdir: Path) -> list[JsonObject]:
    """The chart for the node, with cards and all that the enforcer does."""
    library = workdir / "libvgpu.so"
    library.touch()
    values = {
        "reporter": {"gpus": {"enabled": True}},
        "enforcement": {
            "enabled": True,
            "directory": str(node.nri_socket.parent),
            "hamiCore": {"library": str(library)},
        },
        "limits": {"provider": "HAMi-core"},
        "devices": {"closed": True},
    }
    return chart.render(node_binaries, laid_over(node_values, values))


@dataclass(frozen=True)
class Enforced:
    """The node under koordgate with its enforcer."""

    node: Node
    reporter: Reporter
    enforcer: Enforcer


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def enforced(
    node: Node,
    node_plane: ControlPlane,
    node_chart: list[JsonObject],
    node_replicas: Replicas,
    nvidia_toolkit: Toolkit,
    workdir: Path,
) -> AsyncIterator[Enforced]:
    """Reporter and enforcer, with the same settings; what the reporter wrote of the node is removed at the end."""
    folders = (nvidia_toolkit.specs, node.containerd_configuration, nvidia_toolkit.configuration)
    reporter = Reporter(
        node,
        chart.find(node_chart, "ConfigMap", ACCOUNT)["data"][chart.CONFIG_KEY],
        kubeconfig=await node.service_account_kubeconfig(chart.NAMESPACE, ACCOUNT),
        workdir=workdir,
        overrides={
            "roundSeconds": 1,
            "roots": {"sysfs": str(sysfs_with_cards(workdir / "sys"))},
            "runtime": {"directories": [str(folder) for folder in folders], "ownHandler": None},
        },
        environment=nvidia_toolkit.environment,
    )
    enforcer = Enforcer(reporter.config, workdir / "state")
    async with reporter, enforcer, node_plane.admin() as admin:

        async def known() -> bool:
            found = await admin.get(f"/api/v1/nodes/{node.name}")
            labelled = found["metadata"]["labels"].get(PROVIDER) == "HAMi-core"
            return (
                labelled and await metric(node_replicas, "koordgate_capacity", type="gpu", resource="gpu-core") >= 200
            )

        await until(known, "it is known what the enforcer brings and keeps here", deadline_s=HELD_S)
        yield Enforced(node, reporter, enforcer)
        await reporter.process.stop()
        for path in (f"{TOPOLOGIES}/{node.name}", f"{DEVICES}/{node.name}"):
            if await admin.find(path) is not None:
                await admin.delete(path)


class Bench:
    """One test's Pods."""

    def __init__(self, enforced: Enforced, admin: AdminClient, namespace: str) -> None:
        self.node = enforced.node
        self.enforced = enforced
        self.admin = admin
        self.namespace = namespace

    async def start(self, name: str, *, init: bool = False, cpus: bool = True) -> str:
        """Create a Pod with a part of a card, and with a CPU of its own if it is to have one; wait until it runs.

        Returns what each of its containers is to say in its first instruction, by what the bind decided.
        """
        asks = {"memory": "16Mi", "kubernetes.io/gpu-core": "20", "kubernetes.io/gpu-memory": "4Gi"}
        asks |= {"cpu": "1"} if cpus else {}
        main = container("main", TELL + SLEEP, asks)
        one = pod(name, "LSR" if cpus else "LS", main)
        if init:
            one["spec"]["initContainers"] = [container("init", TELL, asks)]
        one["metadata"]["annotations"] = {"koordgate.io/limits": "require"}
        await self.admin.create(pods_path(self.namespace), one)
        found = await self.node.phase(self.namespace, name, "Running")
        own = json.loads(found["metadata"]["annotations"][STATUS])["cpuset"] if cpus else format_cpuset(ALL)
        (share,) = allocated(found)
        return (
            f"Cpus_allowed_list: {own} cards=/dev/nvidia{share['minor']} limit={4 * GIB // 2**20}m"
            " library=/usr/local/vgpu/libvgpu.so visible=void\n"
        )

    async def said(self, name: str, container: str = "main", times: int = 1) -> str:
        """What a container says, once it has started so many times."""
        text: list[str] = []

        async def so() -> bool:
            text[:] = [await self.node.logs(self.namespace, name, container)]
            return text[0].count("visible=") >= times

        await until(so, f"{container} of {name} has said something", deadline_s=HELD_S)
        return text[0]

    async def cpus(self, name: str) -> int:
        """The CPUs that a container's first process may run on now."""
        pid = await self.node.container_pid(self.namespace, name, "main")
        return sum(1 << cpu for cpu in os.sched_getaffinity(pid))


def container(name: str, script: str, asks: dict[str, str]) -> JsonObject:
    return {
        "name": name,
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"requests": asks, "limits": asks},
    }


def pod(name: str, qos: str, *containers: JsonObject) -> JsonObject:
    spec = {"schedulerName": NAME, "terminationGracePeriodSeconds": 1, "containers": list(containers)}
    metadata: JsonObject = {"name": name, "labels": {"koordinator.sh/qosClass": qos}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest_asyncio.fixture(loop_scope="session")
async def bench(enforced: Enforced, node_admin: AdminClient, node_namespace: str) -> AsyncIterator[Bench]:
    """This test's Pods; they are deleted at the end."""
    yield Bench(enforced, node_admin, node_namespace)
    await node_admin.delete(pods_path(node_namespace), gracePeriodSeconds="1")

    async def gone() -> bool:
        return not await node_admin.items(pods_path(node_namespace))

    await until(gone, "all Pods are gone")


async def test_each_container_has_what_was_decided_in_its_first_instruction_and_others_have_made_room(
    bench: Bench,
) -> None:
    shared = pod("shared", "LS", container("main", TELL + SLEEP, {"memory": "16Mi"}))
    await bench.admin.create(pods_path(bench.namespace), shared)
    await bench.node.phase(bench.namespace, "shared", "Running")
    assert "cards= limit= library= visible=void" in await bench.said("shared")

    decided = await bench.start("own", init=True)

    assert await bench.said("own", "init") == decided
    assert await bench.said("own") == decided
    assert await bench.cpus("shared") == ALL & ~await bench.cpus("own")
    os.kill(await bench.node.container_pid(bench.namespace, "own", "main"), signal.SIGKILL)
    assert await bench.said("own", times=2) == 2 * decided


async def containerd(enforced: Enforced) -> None:
    await enforced.node.restart_containerd()


async def kubelet(enforced: Enforced) -> None:
    await enforced.node.restart_kubelet()


async def enforcer(enforced: Enforced) -> None:
    enforced.enforcer.process.kill()
    await enforced.enforcer.start()


async def reporter(enforced: Enforced) -> None:
    enforced.reporter.process.kill()
    await enforced.reporter.start()


Restart = Callable[[Enforced], Awaitable[None]]


async def stays(bench: Bench, restart: Restart) -> None:
    """See that a Pod keeps its CPUs over a restart, and that its container, started anew, has all that it had."""
    decided = await bench.start("own")
    cpus = await bench.cpus("own")

    await restart(bench.enforced)
    await bench.enforced.enforcer.registered()

    assert await bench.cpus("own") == cpus
    os.kill(await bench.node.container_pid(bench.namespace, "own", "main"), signal.SIGKILL)
    assert await bench.said("own", times=2) == 2 * decided


async def test_a_pod_has_what_was_decided_after_the_reporter_was_killed_as_well(bench: Bench) -> None:
    await stays(bench, reporter)


async def event(bench: Bench, reason: str, namespace: str, name: str) -> str:
    """Wait for an Event about an object; returns what it says."""
    path = f"/api/v1/namespaces/{namespace}/events"

    async def told() -> str:
        found = await bench.admin.items(path, fieldSelector=f"reason={reason},involvedObject.name={name}")
        return str(found[0]["message"]) if found else ""

    return await until(told, f"the Event {reason} about {name}", deadline_s=HELD_S)


async def test_another_plugin_that_sets_cpusets_stops_no_pod_and_an_event_of_the_node_tells_of_it(
    bench: Bench,
) -> None:
    try:
        async with AnotherPlugin(Edits(cpus=ALL)).registered(bench.node.nri_socket):
            decided = await bench.start("shared", cpus=False)
            assert await bench.said("shared") == decided
            said = await event(bench, "CpusetsByAnother", "default", bench.node.name)
            assert f"container main of {bench.namespace}/shared had CPUs" in said
    finally:
        await enforcer(bench.enforced)


async def test_a_container_that_started_while_the_enforcer_hung_has_neither_card_nor_limiter_and_that_is_told(
    bench: Bench,
) -> None:
    process = bench.enforced.enforcer.process
    process.signal(signal.SIGSTOP)
    try:
        await bench.start("hit")
        assert (await bench.said("hit")).partition(" cards=")[2] == " limit= library= visible=void\n"
    finally:
        process.signal(signal.SIGCONT)
    await bench.enforced.enforcer.registered()

    async def told() -> bool:
        found = await bench.admin.get(f"{DEVICES}/{bench.node.name}")
        uses = json.loads(found["metadata"]["annotations"].get(MEMORY_LIMITS, "{}"))
        its = [use["state"] for card in uses.values() for use in card if use["pod"] == f"{bench.namespace}/hit"]
        return its == ["missing"]

    await until(told, "the Device object tells that the limit is missing", deadline_s=HELD_S)


# The kubelet's static policy; the node keeps it to the end of this module


@pytest.mark.parametrize("restart", [containerd, kubelet, enforcer, reporter])
async def test_under_the_static_policy_a_pod_has_what_was_decided_after_a_restart_as_well(
    bench: Bench, static_node: Node, restart: Restart
) -> None:
    async def known() -> bool:
        found = await bench.admin.get(f"{TOPOLOGIES}/{static_node.name}")
        return '"static"' in found["metadata"]["annotations"].get(POLICY, "")

    await until(known, "the reporter tells of the policy", deadline_s=HELD_S)
    await stays(bench, restart)
