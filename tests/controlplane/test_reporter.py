"""The node reporter on a real API server, with the rights that the chart gives it and no others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from sysfs_tree import Machine

from allocator.names import CORDONED
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodetopology import read_node_topology
from koordgate.kube.client import KubeClient
from koordgate.localplane import chart
from koordgate.localplane.admin import AdminClient, ApiError, JsonObject
from koordgate.localplane.binaries import Binaries
from koordgate.localplane.plane import ControlPlane
from koordgate.localplane.waiting import until
from reporter.agent import Agent
from reporter.metrics import Metrics
from reporter.publish.identity import MANAGER
from reporter.settings import parse

DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
ACCOUNT = "koordgate-reporter"
NIC = "0000:3b:00.0"
ROUNDS = 30
GONE_S = 120.0

Start = Callable[[ControlPlane, str], Awaitable[Metrics]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.cpus(sockets=1, nodes=2, cores=4, threads=2)
    made.memory(0, kib=2**20)
    made.memory(1, kib=2**20)
    made.virtual(made.rdma("mlx5_0", NIC), 0, "0000:3b:00.2")
    return made


@pytest_asyncio.fixture(loop_scope="session")
async def start(machine: Machine) -> AsyncIterator[Start]:
    """Run the reporter of a node with the ServiceAccount's token; it ends with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def begin(plane: ControlPlane, node: str) -> Metrics:
            text = f"""
node: {node}
roundSeconds: 0.05
roots: {{sysfs: {machine.sysfs}, proc: {machine.proc}, cgroup: {machine.folder}, kubelet: {machine.folder}}}
serve: {{port: 0}}
gpus: {{enabled: false}}
"""
            config = await plane.service_account_kubeconfig(chart.NAMESPACE, ACCOUNT)
            kube = await stack.enter_async_context(KubeClient.from_kubeconfig(config))
            metrics = Metrics()
            ended = asyncio.Event()
            running = asyncio.create_task(Agent(parse(text), node, kube, None, metrics).run(ended))

            async def end() -> None:
                ended.set()
                await running

            stack.push_async_callback(end)
            return metrics

        yield begin


@pytest_asyncio.fixture(loop_scope="session")
async def node(
    plane: ControlPlane, installed: list[JsonObject], admin: AdminClient, namespace: str
) -> AsyncIterator[str]:
    name = f"{namespace}-reported"
    await plane.add_node(name, {"cpu": "8", "memory": "8Gi", "pods": "110"})
    yield name
    for path in (f"/api/v1/nodes/{name}", f"{DEVICES}/{name}", f"{TOPOLOGIES}/{name}"):
        with contextlib.suppress(ApiError):
            await admin.delete(path)


async def found(admin: AdminClient, path: str) -> JsonObject | None:
    try:
        return await admin.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def told(admin: AdminClient, node: str) -> tuple[JsonObject, JsonObject, JsonObject]:
    """Wait until the node is told of; the Device, the NodeResourceTopology and the Node."""

    async def all_there() -> tuple[JsonObject, JsonObject, JsonObject] | None:
        device, topology = await found(admin, f"{DEVICES}/{node}"), await found(admin, f"{TOPOLOGIES}/{node}")
        about = await admin.get(f"/api/v1/nodes/{node}")
        amount = about["status"]["allocatable"].get("kubernetes.io/rdma")
        return (device, topology, about) if device and topology and amount is not None else None

    return await until(all_there, f"{node} is told of")


async def rounds(metrics: Metrics, count: int) -> None:
    target = metrics.rounds._value.get() + count

    async def done() -> bool:
        return bool(metrics.rounds._value.get() >= target)

    await until(done, f"{count} more rounds", deadline_s=60)


def revision(obj: JsonObject) -> str:
    return str(obj["metadata"]["resourceVersion"])


async def test_a_node_is_told_of_with_the_charts_rights_and_steady_rounds_write_nothing(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str
) -> None:
    metrics = await start(plane, node)
    before = await told(admin, node)
    await rounds(metrics, ROUNDS)
    after = await told(admin, node)

    assert list(map(revision, before)) == list(map(revision, after))
    device, topology, about = after
    (nic,) = read_device_object(device).devices
    assert (nic.id, nic.healthy, [one.bus_id for one in nic.functions]) == (NIC, True, ["0000:3b:00.2"])
    read = read_node_topology(topology)
    assert not read.problems
    assert read.cpu is not None
    assert len(read.cpu.cpus) == 8
    assert about["status"]["capacity"]["koordinator.sh/rdma"] == "100"
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": about["metadata"]["uid"]}
    assert device["metadata"]["ownerReferences"] == topology["metadata"]["ownerReferences"] == [owner]
    managers = {entry["manager"]: entry["operation"] for entry in device["metadata"]["managedFields"]}
    assert managers == {MANAGER: "Apply"}


async def test_what_others_own_stays_and_what_a_kubelet_zeroes_comes_back(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str
) -> None:
    await start(plane, node)
    await told(admin, node)
    await admin.patch(f"{DEVICES}/{node}", {"metadata": {"annotations": {CORDONED: NIC}, "labels": {"team": "a"}}})

    async def set_aside() -> JsonObject | None:
        about = await admin.get(f"/api/v1/nodes/{node}")
        return about if about["status"]["allocatable"]["kubernetes.io/rdma"] == "0" else None

    await until(set_aside, "the cordoned NIC is not allocatable")
    metadata = (await admin.get(f"{DEVICES}/{node}"))["metadata"]
    assert (metadata["annotations"][CORDONED], metadata["labels"]["team"]) == (NIC, "a")
    await admin.patch(f"{DEVICES}/{node}", {"metadata": {"annotations": {CORDONED: None}}})

    async def back() -> bool:
        about = await admin.get(f"/api/v1/nodes/{node}")
        status = about["status"]
        return bool(status["allocatable"]["kubernetes.io/rdma"] == status["capacity"]["kubernetes.io/rdma"] == "100")

    await until(back, "the NIC is allocatable again")
    zeroed = {"capacity": {"kubernetes.io/rdma": "0"}, "allocatable": {"kubernetes.io/rdma": "0"}}
    await admin.patch(f"/api/v1/nodes/{node}/status", {"status": zeroed})

    await until(back, "what was zeroed is put back")
    assert (await admin.get(f"/api/v1/nodes/{node}"))["status"]["capacity"]["cpu"] == "8"


async def test_a_device_that_goes_is_told_and_its_amounts_go_with_it(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str, machine: Machine
) -> None:
    await start(plane, node)
    await told(admin, node)

    (machine.sysfs / "class" / "infiniband" / "mlx5_0").unlink()

    async def gone() -> bool:
        about = await admin.get(f"/api/v1/nodes/{node}")
        device = await admin.get(f"{DEVICES}/{node}")
        return not device["spec"]["devices"] and "kubernetes.io/rdma" not in about["status"]["capacity"]

    await until(gone, "the NIC and its amounts are gone")


async def test_the_api_server_goes_and_comes_back_and_everything_is_told_again(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str, machine: Machine
) -> None:
    metrics = await start(plane, node)
    await told(admin, node)
    for number in (1, 2):
        plane.kill_apiserver()
        machine.rdma(f"mlx5_{number}", f"0000:4{number}:00.0")
        await rounds(metrics, 5)
        await plane.start_apiserver()

        async def listed(count: int = number + 1) -> bool:
            return len((await admin.get(f"{DEVICES}/{node}"))["spec"]["devices"]) == count

        await until(listed, f"{number + 1} NICs are told of", deadline_s=60)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def managed(binaries: Binaries) -> AsyncIterator[ControlPlane]:
    """A control plane whose controllers collect what has lost its owner; with the chart's objects."""
    async with ControlPlane(binaries, controller_manager=True) as started:
        await chart.install(started, chart.render(binaries))
        yield started


async def test_the_objects_go_with_their_node(start: Start, managed: ControlPlane) -> None:
    await managed.add_node("leaving", {"cpu": "8", "pods": "110"})
    async with managed.admin() as admin:
        await start(managed, "leaving")
        await told(admin, "leaving")

        await admin.delete("/api/v1/nodes/leaving")

        async def gone() -> bool:
            paths = (f"{DEVICES}/leaving", f"{TOPOLOGIES}/leaving")
            return not any([await found(admin, path) for path in paths])

        await until(gone, "the objects went with the Node", deadline_s=GONE_S)
