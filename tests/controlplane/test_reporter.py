"""The node reporter on a real API server, with the rights that the chart gives it and no others."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import cpu_states
import nvml_standin
import pytest
import pytest_asyncio
from controlplane.gpu_cluster import HOME, at_home, bound, create, pod, pods_path, remove, scheduling
from nvml_standin import Played
from sysfs_tree import Machine

from allocator.vocabulary.cputopology import parse as parse_cpuset
from allocator.vocabulary.names import CORDONED
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodetopology import read_node_topology
from koordgate.kube.client import KubeClient
from localplane import chart
from localplane.admin import APPLY_PATCH, AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.waiting import until
from reporter.agent import Agent
from reporter.gpu.guarded import GuardedNvml
from reporter.kubelet import checkpoint as checkpoints
from reporter.kubelet import cpustate, devicecheckpoint
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.metrics import ReporterMetrics
from reporter.pods import MANAGER
from reporter.settings import parse

DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
ACCOUNT = "koordgate-reporter"
NIC = "0000:3b:00.0"
ROUNDS = 30
HOUR = 360  # rounds
READINGS = 12  # in an hour, that must show
GONE_S = 120.0
A100 = "GPU-a1000000-0000-4000-8000-00000000000{}"
GPU_CORE = "kubernetes.io/gpu-core"
OUTAGES = "koordgate.io/device-outages"


@dataclass(frozen=True)
class Running:
    """A reporter that runs."""

    agent: Agent
    metrics: ReporterMetrics

    @property
    def rounds(self) -> int:
        return int(self.metrics.rounds._value.get())

    @property
    def writes(self) -> int:
        (family,) = self.metrics.writes.collect()
        return int(sum(sample.value for sample in family.samples if sample.name.endswith("_total")))


Start = Callable[..., Awaitable[Running]]


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

        async def begin(
            plane: ControlPlane, node: str, nvml: GuardedNvml | None = None, *, every: float = 0.05
        ) -> Running:
            folder = machine.folder
            text = f"""
node: {node}
roundSeconds: {every}
roots: {{sysfs: {machine.sysfs}, proc: {machine.proc}, cgroup: {folder}, kubelet: {folder}, state: {folder}/state}}
serve: {{port: 0}}
kubelet: {{deviceCheckpoint: {folder}/kubelet_internal_checkpoint}}
gpus: {{outageSeconds: 0.001}}
"""
            config = await plane.service_account_kubeconfig(chart.NAMESPACE, ACCOUNT, node=node)
            kube = await stack.enter_async_context(KubeClient.from_kubeconfig(config))
            metrics = ReporterMetrics()
            ended = asyncio.Event()
            agent = Agent(parse(text), node, kube, nvml, metrics)
            running = asyncio.create_task(agent.run(ended))

            async def end() -> None:
                ended.set()
                await running

            stack.push_async_callback(end)
            return Running(agent, metrics)

        yield begin


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in for NVIDIA's library."""
    return nvml_standin.build(tmp_path_factory.mktemp("standin"))


@pytest_asyncio.fixture(loop_scope="session")
async def played(library: Path, machine: Machine) -> AsyncIterator[Played]:
    """Eight A100 in the machine."""
    async with contextlib.AsyncExitStack() as stack:
        played = Played(library, machine.folder, stack)
        played.play("a100x8")
        for number, bus in enumerate(("07", "0f", "47", "4e", "87", "90", "b7", "bd")):
            root = f"pci0000:{number // 2:02x}"
            machine.pci(f"0000:{bus}:00.0", 0x10DE, 0x20B0, 0x030200, root=root, numa=number // 4)
        played.change({f"gpu.{number}.memory_affinity": str(1 + number // 4) for number in range(8)})
        yield played


@pytest_asyncio.fixture(loop_scope="session")
async def node(
    plane: ControlPlane, installed: list[JsonObject], admin: AdminClient, namespace: str
) -> AsyncIterator[str]:
    name = f"{namespace}-reported"
    await plane.add_node(name, {"cpu": "8", "memory": "8Gi", "pods": "110"}, labels={HOME: namespace})
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
    """Wait until the node is reported; returns the Device, the NodeResourceTopology and the Node."""

    async def all_there() -> tuple[JsonObject, JsonObject, JsonObject] | None:
        device, topology = await found(admin, f"{DEVICES}/{node}"), await found(admin, f"{TOPOLOGIES}/{node}")
        about = await admin.get(f"/api/v1/nodes/{node}")
        amount = about["status"]["allocatable"].get("kubernetes.io/rdma")
        return (device, topology, about) if device and topology and amount is not None else None

    return await until(all_there, f"{node} is told of")


async def rounds(running: Running, count: int) -> None:
    target = running.rounds + count

    async def done() -> bool:
        return running.rounds >= target

    await until(done, f"{count} more rounds", poll_s=0.02)


def revision(obj: JsonObject) -> str:
    return str(obj["metadata"]["resourceVersion"])


async def test_a_node_is_reported_with_the_charts_rights_and_steady_rounds_write_nothing(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str
) -> None:
    running = await start(plane, node)
    await told(admin, node)
    await settled(running)
    before = await told(admin, node)
    await rounds(running, ROUNDS)
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


async def test_the_api_server_goes_and_comes_back_and_everything_is_reported_again(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str, machine: Machine
) -> None:
    running = await start(plane, node)
    await told(admin, node)
    for number in (1, 2):
        plane.kill_apiserver()
        machine.rdma(f"mlx5_{number}", f"0000:4{number}:00.0")
        await rounds(running, 5)
        await plane.start_apiserver()

        async def listed(count: int = number + 1) -> bool:
            return len((await admin.get(f"{DEVICES}/{node}"))["spec"]["devices"]) == count

        await until(listed, f"{number + 1} NICs are reported")


# With cards and Pods


async def in_service(admin: AdminClient, node: str, cards: int) -> JsonObject:
    """Wait until the Device object and the Node state this number of cards in service; returns the Device object."""

    async def so_many() -> JsonObject | None:
        device, about = await found(admin, f"{DEVICES}/{node}"), await admin.get(f"/api/v1/nodes/{node}")
        if device is None:
            return None
        healthy = sum(one["health"] for one in device["spec"]["devices"] if one["type"] == "gpu")
        told = about["status"]["allocatable"].get(GPU_CORE)
        return device if (healthy, told) == (cards, str(100 * cards)) else None

    return await until(so_many, f"{cards} cards of {node} are in service", poll_s=0.02)


async def events(admin: AdminClient, node: str) -> dict[str, JsonObject]:
    """The Events about a Node, by reason and message."""
    path, field = "/api/v1/namespaces/default/events", f"involvedObject.name={node}"
    return {f"{one['reason']}: {one['message']}": one for one in await admin.items(path, fieldSelector=field)}


async def settled(running: Running) -> None:
    """Wait until a few rounds have written nothing."""

    async def quiet() -> bool:
        before = running.writes
        await rounds(running, 5)
        return running.writes == before

    await until(quiet, "nothing is left to write", poll_s=0)


def cgroups(machine: Machine, uids: Iterable[str]) -> None:
    """Make the cgroups of Pods, in version 1."""
    for path in ("", "kubepods", "kubepods/burstable", "kubepods/besteffort", *(f"kubepods/pod{uid}" for uid in uids)):
        for name, content in (("cpuset.cpus", "0-7"), ("cpuset.mems", "0-1"), ("cgroup.procs", "")):
            machine.file(f"cpuset/{path}/{name}", content, machine.folder)


@pytest_asyncio.fixture(loop_scope="session")
async def bind(
    plane: ControlPlane, installed: list[JsonObject], admin: AdminClient, namespace: str, tmp_path: Path
) -> AsyncIterator[Callable[[], Awaitable[dict[str, JsonObject]]]]:
    """Bind Pods by the chart's scheduler and webhooks: with two cards, with half a card, with CPUs of its own."""
    asks = {"cpu": "2", "memory": "1Gi"}
    wanted = {
        "whole": at_home("whole", namespace, {**asks, "nvidia.com/gpu": "2"}),
        "half": at_home("half", namespace, {**asks, "koordinator.sh/gpu": "50"}),
        "pinned": at_home("pinned", namespace, asks, labels={"koordinator.sh/qosClass": "LSR"}),
    }

    async def bind_all() -> dict[str, JsonObject]:
        async with scheduling(plane, installed, tmp_path, 1):
            await create(admin, wanted.values())
            return {name: await bound(admin, namespace, name) for name in wanted}

    yield bind_all
    await remove(admin, namespace, ())


async def test_a_steady_hour_with_eight_cards_and_pods_that_have_some_writes_nothing(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str, machine: Machine, played: Played, bind
) -> None:
    running = await start(plane, node, played.nvml(), every=0.01)
    await in_service(admin, node, 8)
    pods = await bind()
    cgroups(machine, [one["metadata"]["uid"] for one in pods.values()])
    pinned = pods["pinned"]["metadata"]
    given = json.loads(pinned["annotations"]["scheduling.koordinator.sh/resource-status"])["cpuset"]
    file = machine.folder / "cpuset" / "kubepods" / f"pod{pinned['uid']}" / "cpuset.cpus"

    async def enforced() -> bool:
        return parse_cpuset(file.read_text().strip()) == parse_cpuset(given)

    await until(enforced, "the Pod has the CPUs that were decided")
    await settled(running)
    before, events_before = await told(admin, node), await events(admin, node)
    writes = running.writes
    for hour_part in range(1, READINGS + 1):
        played.change({"gpu.*.corrected": str(hour_part)})  # harmless, and it shows that the cards are read

        async def were_read(count: int = hour_part) -> bool:
            return {card.facts.wear.corrected for card in running.agent.state.cards.view.node.cards.values()} == {count}

        await until(were_read, "the cards are read", poll_s=0.005)
        await rounds(running, HOUR // READINGS)

    assert running.writes == writes
    after = await told(admin, node)
    assert [*map(revision, after)] == [*map(revision, before)]
    assert await events(admin, node) == events_before == {}
    # No container of theirs runs here, and nothing is said of what was not compared.
    assert "koordgate.io/pod-agreement" not in after[0]["metadata"]["annotations"]


def timeless(device: JsonObject) -> JsonObject:
    """What is reported about devices, without the times of conditions."""
    told = json.loads(json.dumps({"spec": device["spec"], "annotations": device["metadata"]["annotations"]}))
    for one in told["spec"]["devices"]:
        for condition in one["conditions"]:
            del condition["lastTransitionTime"]
    return dict(told)


async def test_nvml_that_goes_twice_is_reported_and_all_is_as_before_when_it_is_back(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str, played: Played
) -> None:
    faults: dict[str, dict[str, str | None]] = {
        "NvmlCrashed": {"crash": "nvmlDeviceGetCount_v2"},
        "DriverNotLoaded": {"error.nvmlInitWithFlags": "9", "error.nvmlDeviceGetCount_v2": "9"},
    }
    await start(plane, node, played.nvml())
    before = timeless(await in_service(admin, node, 8))

    for reason, fault in [*faults.items()] * 2:
        played.change(fault)
        device = await in_service(admin, node, 0)
        assert {one["conditions"][0]["reason"] for one in device["spec"]["devices"] if one["type"] == "gpu"} == {reason}
        assert json.loads(device["metadata"]["annotations"][OUTAGES])["gpu"]["reason"] == reason
        played.change(dict.fromkeys(fault))
        assert timeless(await in_service(admin, node, 8)) == before

    async def counted() -> bool:
        """Events are written after the objects."""
        counts = {key.partition(":")[0]: one["count"] for key, one in (await events(admin, node)).items()}
        return counts == {"NvmlCrashed": 2, "DriverNotLoaded": 2}

    await until(counted, "each outage is told once")


async def test_a_card_that_falls_is_reported_with_its_reason_and_its_amounts_go_but_for_the_capacity(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str, played: Played
) -> None:
    await start(plane, node, played.nvml())
    await in_service(admin, node, 8)

    played.happen(5, 79)

    device = await in_service(admin, node, 7)
    (sick,) = [one for one in device["spec"]["devices"] if one["type"] == "gpu" and not one["health"]]
    assert (sick["id"], sick["conditions"][0]["reason"]) == (A100.format(5), "Xid79")
    about = await admin.get(f"/api/v1/nodes/{node}")
    assert about["status"]["capacity"][GPU_CORE] == "700"
    ((said, event),) = (await until(lambda: events(admin, node), "the fall is told")).items()
    assert said.startswith(f"Xid79: card {A100.format(5)} is unhealthy: Xid 79: GPU has fallen off the bus")
    assert (event["type"], event["involvedObject"]["uid"]) == ("Warning", about["metadata"]["uid"])


async def test_what_another_writer_takes_is_taken_back_each_time(
    start: Start, plane: ControlPlane, admin: AdminClient, node: str, played: Played
) -> None:
    running = await start(plane, node, played.nvml())
    await in_service(admin, node, 8)
    await settled(running)
    device, topology, about = before = await told(admin, node)
    kinds = [{"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": {"name": node}} for one in before]
    amounts = {GPU_CORE: "0"}
    theirs = {
        f"{DEVICES}/{node}": {**kinds[0], "spec": {"devices": []}},
        f"{TOPOLOGIES}/{node}": {**kinds[1], "zones": [], "topologyPolicies": ["None"]},
        f"/api/v1/nodes/{node}/status": {**kinds[2], "status": {"capacity": amounts, "allocatable": amounts}},
    }

    async def stands() -> bool:
        now = await told(admin, node)
        as_it_was = (timeless(device)["spec"], topology["zones"], about["status"]["capacity"])
        return (timeless(now[0])["spec"], now[1]["zones"], now[2]["status"]["capacity"]) == as_it_was

    for path, body in theirs.items():
        with pytest.raises(ApiError, match=MANAGER) as refused:
            await admin.patch(path, body, APPLY_PATCH, fieldManager="rival")
        assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    for times in (1, 2):
        for path, body in theirs.items():
            await admin.patch(path, body, APPLY_PATCH, fieldManager="rival", force="true")
        await until(stands, "all is as it was")

        async def counted(least: int = times) -> bool:
            """A write is counted when its answer has come."""
            targets = ("noderesourcetopologies", "nodes/status")
            return all(running.metrics.writes.labels(one, "true")._value.get() >= least for one in targets)

        await until(counted, "the writes are counted")

    async def write(number: int) -> None:
        annotations = {"annotations": {f"rival/{number}": "x"}}
        await admin.patch(f"{DEVICES}/{node}", {"metadata": annotations, "spec": {"devices": []}})

    await asyncio.gather(*map(write, range(40)))
    await until(stands, "all is as it was")
    annotations = (await admin.get(f"{DEVICES}/{node}"))["metadata"]["annotations"]
    assert {f"rival/{number}" for number in range(40)} < annotations.keys()


def checkpoint(uid: str, card: str) -> str:
    """The device manager's file: the card that a Pod was given."""
    entry = devicecheckpoint._Entry(uid, "main", "nvidia.com/gpu", {-1: [card]}, b"")
    row = {"PodUID": uid, "ContainerName": "main", "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"-1": [card]}}
    total = checkpoints.checksum(devicecheckpoint._show([entry], {}))
    data = {"PodDeviceEntries": [{**row, "AllocResp": ""}], "RegisteredDevices": {}}
    return json.dumps({"Data": data, "Checksum": total})


def manager_state(uid: str, cpus: int) -> str:
    """The CPU manager's file: the CPUs that a Pod was given."""
    state = CpuState(StateLayout.V2, cpustate.STATIC_POLICY, 0xFF & ~cpus, {uid: {"main": cpus}})
    return cpu_states.render(state).decode()


async def test_files_of_the_kubelet_that_are_corrupt_twice_are_reported_and_what_was_good_is_kept(
    start: Start,
    plane: ControlPlane,
    admin: AdminClient,
    node: str,
    namespace: str,
    machine: Machine,
    played: Played,
) -> None:
    made = await admin.create(pods_path(namespace), pod("native", namespace, {"cpu": "2"}, nodeName=node))
    uid = str(made["metadata"]["uid"])
    files = {name: machine.folder / name for name in ("cpu_manager_state", "kubelet_internal_checkpoint")}
    running = await start(plane, node, played.nvml())

    async def told_of(card: int, cpus: int) -> bool:
        device, topology = await found(admin, f"{DEVICES}/{node}"), await found(admin, f"{TOPOLOGIES}/{node}")
        if device is None or topology is None:
            return False
        allocs = read_node_topology(topology).pod_cpu_allocs
        held = read_device_object(device).kubelet_held
        return (held, [(one.uid, one.cpus) for one in allocs]) == ({A100.format(card)}, [(uid, cpus)])  # type: ignore[comparison-overlap]

    for times, (card, cpus, spoilt) in enumerate(((3, 0b0110, "truncated"), (5, 0b1100, "changed")), 1):
        good = (manager_state(uid, cpus), checkpoint(uid, A100.format(card)))
        for file, text in zip(files.values(), good, strict=True):
            file.write_text(text)
        await until(lambda card=card, cpus=cpus: told_of(card, cpus), "the kubelet's files are reported")  # type: ignore[misc]
        await settled(running)
        before = [*map(revision, await told(admin, node))]

        for file, text in zip(files.values(), good, strict=True):
            file.write_text(text[:-9] if spoilt == "truncated" else text.replace(uid, uid[::-1]))

        async def complained(count: int = 2 * times) -> bool:
            return len(await events(admin, node)) == count

        await until(complained, "an Event about each file")
        await rounds(running, 5)
        assert [*map(revision, await told(admin, node))] == before

    said = await events(admin, node)
    assert {key.partition(":")[0] for key in said} == {"KubeletFileUnusable"}
    assert [sum(name in key for key in said) for name in files] == [2, 2]
    await remove(admin, namespace, ())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def managed(binaries: Binaries) -> AsyncIterator[ControlPlane]:
    """A control plane whose controllers delete objects without owners; with the chart's objects."""
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
