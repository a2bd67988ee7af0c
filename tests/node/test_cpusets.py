"""The CPUs that containers really have, on a real node under the whole product: decided, enforced, followed, kept.

The expected CPUs are computed here from the annotations of Pods alone. The actual CPUs are the kernel's answer for
every process of a Pod, including its sandbox's (`Cpus_allowed_list`).
"""

import contextlib
import copy
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import binding, device_object, gpu, pods_path, uuid_of, waits
from node import images
from node.harness import Node, Reporter

import koordgate
from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.balancer import Balancer
from localplane.binaries import Binaries
from localplane.koord import NAME
from localplane.plane import ControlPlane
from localplane.replicas import Replicas, laid_over, this_koordgate
from localplane.waiting import NotInTimeError, until

ACCOUNT = "koordgate-reporter"
QOS = "koordinator.sh/qosClass"
STATUS = "scheduling.koordinator.sh/resource-status"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
ALLOCS = "node.koordinator.sh/pod-cpu-allocs"
POLICY = "kubelet.koordinator.sh/cpu-manager-policy"
HOME = Path(koordgate.__file__).resolve().parents[1]  # of the code under test
ROUNDS = "koordgate_reporter_rounds_total"
AGREEMENT = "koordgate.io/pod-agreement"
CAPABILITIES = {"DAC_READ_SEARCH": 2, "SYS_PTRACE": 19}  # Linux, include/uapi/linux/capability.h
PROC = Path("/proc")
SLEEP = "trap exit TERM; while :; do sleep 1 & wait; done"
SOON_S = 8.0  # less than a round of the reporter: only a watch can have informed it so soon
ROUND_S = 30.0  # a few rounds: the reporter finds by itself what no watch reports
_LOG = logging.getLogger(__name__)


def members(text: str) -> frozenset[int]:
    """The CPUs of a list such as 0-2,5; none for an empty one."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


ALL = members(Path("/sys/devices/system/cpu/online").read_text())
RESERVED = frozenset({0})  # on the static node
SOME: dict[str, str] = {"memory": "8Mi"}
ONE: dict[str, str] = {"cpu": "1", "memory": "16Mi"}


def pod(name: str, qos: str | None, asks: Mapping[str, str], **container: Any) -> JsonObject:
    """A Pod for koordgate's scheduler. It is Guaranteed if it requests CPUs, Burstable if it requests memory."""
    amounts = {"requests": dict(asks), **({"limits": dict(asks)} if "cpu" in asks else {})}
    main = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", SLEEP],
        "resources": amounts,
        **container,
    }
    labels = {QOS: qos} if qos else {}
    spec = {"schedulerName": NAME, "terminationGracePeriodSeconds": 1, "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def lists_of(node: Node, found: JsonObject) -> list[frozenset[int]]:
    """The CPUs of every process of a Pod; empty while its sandbox or a container has none."""
    cgroups = node.processes(found)
    if len([pids for pids in cgroups.values() if pids]) < len(found["spec"]["containers"]) + 1:
        return []
    return [cpus for pids in cgroups.values() for pid in pids if (cpus := allowed(pid)) is not None]


def allowed(pid: int) -> frozenset[int] | None:
    """The CPUs that the kernel allows a process; None if it has ended."""
    try:
        status = (PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next(members(line.split()[1]) for line in status.splitlines() if line.startswith("Cpus_allowed_list:"))


def decided(found: JsonObject) -> frozenset[int]:
    """The CPUs that a Pod's annotation names; none if it has none of its own."""
    annotations = found["metadata"].get("annotations") or {}
    return members(json.loads(annotations.get(STATUS, "{}")).get("cpuset", ""))


def expected(pods: Iterable[JsonObject]) -> dict[str, frozenset[int]]:
    """The CPUs that each Pod of a node must run on, without the kubelet's static policy.

    CPU proposal, "QoS CPU orchestration principles".
    """
    pods = list(pods)
    classes = {one["metadata"]["name"]: one["metadata"].get("labels", {}).get(QOS) for one in pods}
    own = {one["metadata"]["name"]: decided(one) for one in pods}
    shared = ALL.difference(*own.values())
    best_effort = ALL.difference(*(cpus for name, cpus in own.items() if classes[name] == "LSE"))
    return {
        name: own[name]
        or (best_effort if classes[name] == "BE" or one["status"]["qosClass"] == "BestEffort" else shared)
        for one in pods
        if (name := one["metadata"]["name"])
    }


class Bench:
    """One test's Pods on the node.

    Attributes:
        node: the node on which they run.
        namespace: their namespace.
    """

    def __init__(self, node: Node, admin: AdminClient, namespace: str) -> None:
        self.node = node
        self.namespace = namespace
        self._admin = admin
        self._made: dict[str, JsonObject] = {}

    async def start(self, *pods: JsonObject) -> list[JsonObject]:
        """Create Pods, and wait until they run."""
        for one in pods:
            await self._admin.create(pods_path(self.namespace), one)
        names = [one["metadata"]["name"] for one in pods]
        found = [await self.node.phase(self.namespace, name, "Running") for name in names]
        self._made |= dict(zip(names, found, strict=True))
        return found

    async def end(self, name: str) -> None:
        """Delete a Pod, and wait until it is gone."""
        del self._made[name]
        await self._admin.delete(pods_path(self.namespace, name))

        async def gone() -> bool:
            return await self._admin.find(pods_path(self.namespace, name)) is None

        await until(gone, f"{name} is gone")

    @property
    def lists(self) -> dict[str, list[frozenset[int]]]:
        """The CPUs of all processes of each Pod."""
        return {name: lists_of(self.node, found) for name, found in self._made.items()}

    @property
    def as_decided(self) -> dict[str, frozenset[int]]:
        """The CPUs that each Pod must have (see `expected`)."""
        return expected(self._made.values())

    def has(self, wanted: Mapping[str, frozenset[int]]) -> bool:
        """Whether every process of each Pod has the Pod's wanted CPUs."""
        lists = self.lists
        return all(lists[name] and set(lists[name]) == {cpus} for name, cpus in wanted.items())

    async def settled(self, deadline_s: float = SOON_S) -> dict[str, frozenset[int]]:
        """Wait until every process of every Pod has the decided CPUs; returns these."""
        await self.reach(wanted := self.as_decided, deadline_s)
        return wanted

    async def reach(self, wanted: Mapping[str, frozenset[int]], deadline_s: float = SOON_S) -> None:
        """Wait until every process of each Pod has the Pod's wanted CPUs."""

        async def right() -> bool:
            return self.has(wanted)

        began = time.monotonic()
        try:
            await until(right, "all Pods have their CPUs", deadline_s=deadline_s, poll_s=0.02)
        except NotInTimeError as error:
            seen = {name: list(map(sorted, lists)) for name, lists in self.lists.items()}
            due = {name: sorted(cpus) for name, cpus in wanted.items()}
            raise NotInTimeError(f"{error}: {seen}, wanted {due}") from error
        _LOG.info("CPUs are right after %.2f s", time.monotonic() - began)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def reporter(
    node: Node,
    node_plane: ControlPlane,
    node_chart: list[JsonObject],
    node_replicas: Replicas,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Reporter]:
    """The node's reporter; the objects that it wrote are deleted at the end."""
    settings = chart.find(node_chart, "ConfigMap", ACCOUNT)["data"][chart.CONFIG_KEY]
    kubeconfig = await node.service_account_kubeconfig(chart.NAMESPACE, ACCOUNT)
    running = Reporter(node, settings, kubeconfig=kubeconfig, workdir=tmp_path_factory.mktemp("reporter"))
    async with running, node_plane.admin() as admin:
        await told(admin, node, lambda _: True)
        yield running
        await running.process.stop()
        for path in (f"{TOPOLOGY}/{node.name}", f"{DEVICES}/{node.name}"):
            if await admin.find(path) is not None:
                await admin.delete(path)


@pytest_asyncio.fixture(loop_scope="session")
async def bench(reporter: Reporter, node: Node, node_admin: AdminClient, node_namespace: str) -> AsyncIterator[Bench]:
    """This test's Pods; they are deleted at the end, because there are few CPUs."""
    made = Bench(node, node_admin, node_namespace)
    yield made
    await node_admin.delete(pods_path(node_namespace))

    async def gone() -> bool:
        return not await node_admin.items(pods_path(node_namespace))

    await until(gone, "all Pods are gone")


async def told(
    admin: AdminClient, node: Node, condition: Callable[[JsonObject], object], deadline_s: float = SOON_S
) -> JsonObject:
    """Wait until the NodeResourceTopology's annotations fulfil a condition; returns them, read as JSON."""
    said: JsonObject = {}

    async def fulfilled() -> bool:
        found = await admin.find(f"{TOPOLOGY}/{node.name}")
        if found is None:
            return False
        said.update({key: json.loads(text) for key, text in found["metadata"]["annotations"].items()})
        return bool(condition(said))

    await until(fulfilled, f"it is told of {node.name}", deadline_s=deadline_s)
    return said


def pool_of(annotations: JsonObject, name: str) -> frozenset[int]:
    """A shared pool as published, all NUMA nodes together."""
    parts = annotations[f"node.koordinator.sh/{name}"]
    return frozenset().union(*(members(part.get("cpuset", "")) for part in parts))


def shared_pods() -> tuple[JsonObject, ...]:
    """Those that own no CPU, with and without a class."""
    return (pod("ls", "LS", SOME), pod("be", "BE", {}), pod("burstable", None, SOME), pod("best-effort", None, {}))


async def test_each_class_runs_on_what_was_decided_and_follows_as_others_come_and_go(
    bench: Bench, node_admin: AdminClient
) -> None:
    await bench.start(*shared_pods())
    assert set((await bench.settled()).values()) == {ALL}

    (lse,) = await bench.start(pod("lse", "LSE", ONE))
    wanted = await bench.settled()

    assert len(wanted["lse"]) == 1
    assert wanted["ls"] == wanted["be"] == wanted["burstable"] == wanted["best-effort"] == ALL - decided(lse)
    published = await told(node_admin, bench.node, lambda said: pool_of(said, "cpu-shared-pools") == wanted["ls"])
    assert pool_of(published, "be-cpu-shared-pools") == wanted["be"]

    await bench.end("lse")
    assert set((await bench.settled()).values()) == {ALL}

    (lsr,) = await bench.start(pod("lsr", "LSR", ONE))
    wanted = await bench.settled()

    assert wanted["lsr"] == decided(lsr)
    assert wanted["ls"] == wanted["burstable"] == ALL - decided(lsr)
    assert wanted["be"] == wanted["best-effort"] == ALL
    published = await told(node_admin, bench.node, lambda said: pool_of(said, "cpu-shared-pools") == wanted["ls"])
    assert pool_of(published, "be-cpu-shared-pools") == ALL


async def test_every_container_of_a_pod_has_all_its_cpus_and_so_has_one_that_starts_again(bench: Bench) -> None:
    two = pod("two", "LSR", {"cpu": str(len(ALL) - 1), "memory": "16Mi"})
    (main,) = two["spec"]["containers"]
    small = {"cpu": "0", "memory": "16Mi"}
    two["spec"]["containers"].append({**main, "name": "side", "resources": {"requests": small, "limits": small}})
    (started,) = await bench.start(two)
    await bench.settled()
    assert len(bench.node.processes(started)) == 3, "both containers' cgroups, and the sandbox's"

    os.kill(await bench.node.container_pid(bench.namespace, "two", "side"), signal.SIGKILL)

    async def again() -> bool:
        found = await bench.node.phase(bench.namespace, "two", "Running")
        (side,) = (one for one in found["status"]["containerStatuses"] if one["name"] == "side")
        return bool(side["restartCount"] == 1 and side["started"])

    await until(again, "the container runs again")
    await bench.settled()


async def test_an_injected_sidecar_runs_in_the_shared_pool_beside_a_container_on_the_pods_own_cpus(
    bench: Bench,
) -> None:
    mixed = pod("mixed", "LSR", ONE)
    (main,) = mixed["spec"]["containers"]
    asks = {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "2", "memory": "16Mi"}}
    mixed["spec"]["containers"].append({**main, "name": "istio-proxy", "resources": asks})
    (started, _) = await bench.start(mixed, pod("ls", "LS", SOME))
    own = decided(started)
    assert len(own) == 1
    due = {"main": own, "istio-proxy": ALL - own}

    async def right() -> bool:
        pids = {name: await bench.node.container_pid(bench.namespace, "mixed", name) for name in due}
        sandbox = lists_of(bench.node, started)
        return {name: allowed(pid) for name, pid in pids.items()} == due and set(sandbox) == {own, ALL - own}

    await until(right, "each container has its CPUs", deadline_s=SOON_S)
    await bench.reach({"ls": ALL - own})
    os.kill(await bench.node.container_pid(bench.namespace, "mixed", "istio-proxy"), signal.SIGKILL)

    async def again() -> bool:
        found = await bench.node.phase(bench.namespace, "mixed", "Running")
        (side,) = (one for one in found["status"]["containerStatuses"] if one["name"] == "istio-proxy")
        return bool(side["restartCount"] == 1 and side["started"]) and await right()

    await until(again, "the sidecar that started again has the CPUs of the pool", deadline_s=ROUND_S)


async def test_what_somebody_writes_into_cpusets_by_hand_is_put_back(bench: Bench, reporter: Reporter) -> None:
    lsr, be = await bench.start(pod("lsr", "LSR", ONE), pod("be", "BE", {}))
    wanted = await bench.settled()

    widened, narrowed = sorted(bench.node.processes(lsr)), sorted(bench.node.processes(be))
    reporter.process.signal(signal.SIGSTOP)  # it may be in a round, which would put the first back at once
    try:
        for folder in (widened[0].parent, *widened):  # parents first
            write(folder, ALL)
        for folder in narrowed:
            write(folder, wanted["lsr"])
        assert not bench.has(wanted)
    finally:
        reporter.process.signal(signal.SIGCONT)
    await bench.settled(ROUND_S)


def write(cgroup: Path, cpus: Iterable[int]) -> None:
    (cgroup / "cpuset.cpus").write_text(",".join(map(str, sorted(cpus))))


Restart = Callable[[Node, Reporter], contextlib.AbstractAsyncContextManager[None]]


@contextlib.asynccontextmanager
async def reporter_down(_: Node, reporter: Reporter) -> AsyncIterator[None]:
    await reporter.process.stop()
    try:
        yield
    finally:
        await reporter.start()


@contextlib.asynccontextmanager
async def reporter_killed(_: Node, reporter: Reporter) -> AsyncIterator[None]:
    reporter.process.kill()
    try:
        yield
    finally:
        await reporter.start()


RESTARTS: dict[str, Restart] = {
    "kubelet": lambda node, _: node.kubelet_down(),
    "containerd": lambda node, _: node.containerd_down(),
    "reporter": reporter_down,
    "reporter, killed": reporter_killed,
}
restarts = pytest.mark.parametrize("down", RESTARTS.values(), ids=RESTARTS)


@restarts
async def test_cpus_stay_over_a_restart_and_changes_are_followed_afterwards(
    bench: Bench, reporter: Reporter, down: Restart
) -> None:
    await bench.start(pod("ls", "LS", SOME), pod("be", "BE", {}), pod("lsr", "LSR", ONE))
    wanted = await bench.settled()

    async with down(bench.node, reporter):
        assert bench.has(wanted)
    assert bench.has(wanted)

    await bench.end("lsr")
    assert set((await bench.settled()).values()) == {ALL}
    (lse,) = await bench.start(pod("lse", "LSE", ONE))
    assert (await bench.settled())["be"] == ALL - decided(lse)


async def test_what_changed_while_the_reporter_was_away_is_made_right_at_its_start(
    bench: Bench, reporter: Reporter
) -> None:
    await bench.start(pod("ls", "LS", SOME), pod("be", "BE", {}), pod("lse", "LSE", ONE))
    before = await bench.settled()

    async with reporter_down(bench.node, reporter):
        await bench.end("lse")
        assert bench.has({name: before[name] for name in ("ls", "be")})

    assert set((await bench.settled()).values()) == {ALL}


# The chart's own Pod, run by the real kubelet


def python_folders() -> list[Path]:
    """The folders of this machine from which this Python runs, none within another."""
    every = [Path("/usr"), Path(sys.prefix), Path(sys.base_prefix), HOME, *(Path("/lib"), Path("/lib64"))]
    there = sorted({folder for folder in every if folder.is_dir()})
    return [folder for folder in there if not any(folder.is_relative_to(other) for other in there if other != folder)]


def reporter_pod(objects: list[JsonObject], state: Path) -> JsonObject:
    """The DaemonSet's Pod, unchanged except for the fields below.

    There is no image of koordgate: this machine's Python is mounted into busybox's. The API server listens on loopback
    only. The state folder is not the machine's own.
    """
    spec = copy.deepcopy(chart.find(objects, "DaemonSet", ACCOUNT)["spec"]["template"]["spec"])
    for container in (*spec["initContainers"], *spec["containers"]):
        assert (container["command"], container["args"][:2]) == (["koordgate"], ["serve", "reporter"])
        container.update(
            image=images.BUSYBOX,
            imagePullPolicy="Never",
            command=list(this_koordgate()),
            env=[*container.get("env", ()), {"name": "PYTHONPATH", "value": str(HOME)}],
        )
        for number, folder in enumerate(python_folders()):
            container["volumeMounts"].append({"name": f"python-{number}", "mountPath": str(folder), "readOnly": True})
    for number, folder in enumerate(python_folders()):
        spec["volumes"].append({"name": f"python-{number}", "hostPath": {"path": str(folder)}})
    (kept,) = (volume for volume in spec["volumes"] if volume["name"] == "state")
    kept["hostPath"]["path"] = str(state)
    spec["hostNetwork"] = True
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "reporter-by-hand"}, "spec": spec}


StartPod = Callable[..., Awaitable[JsonObject]]


@contextlib.asynccontextmanager
async def api_server_by_its_service(plane: ControlPlane) -> AsyncIterator[None]:
    """Stands in for kube-proxy, for the Service `kubernetes`."""
    address = await plane.service_address("default", "kubernetes")
    host, _, port = plane.admin_url.removeprefix("https://").rpartition(":")
    async with Balancer(*address, backends=[(host, int(port))]):
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def reporter_as_pod(
    bench: Bench,
    reporter: Reporter,
    node_plane: ControlPlane,
    node_admin: AdminClient,
    node_binaries: Binaries,
    node_values: JsonObject,
    tmp_path: Path,
) -> AsyncIterator[StartPod]:
    """Start the chart's reporter Pod on the node in place of the process; the process is started again afterwards.

    Example: `await reporter_as_pod(proof={"environment": True})` changes values of the reporter.
    """
    path = pods_path(chart.NAMESPACE)
    await reporter.process.stop()

    async def start(**values: Any) -> JsonObject:
        objects = chart.render(node_binaries, laid_over(node_values, {"reporter": values}))
        await node_admin.apply(chart.find(objects, "ConfigMap", ACCOUNT), namespace=chart.NAMESPACE, manager="helm")
        made = await node_admin.create(path, reporter_pod(objects, tmp_path / "state"))
        await bench.node.bind(made)
        return await bench.node.phase(chart.NAMESPACE, made["metadata"]["name"], "Running")

    async with api_server_by_its_service(node_plane):
        yield start
        await node_admin.delete(f"{path}/reporter-by-hand", gracePeriodSeconds="1")

        async def gone() -> bool:
            return await node_admin.find(f"{path}/reporter-by-hand") is None

        await until(gone, "the reporter's Pod is gone")
    await reporter.start()


async def test_the_charts_pod_enforces_with_the_capabilities_and_mounts_that_the_chart_gives_it(
    bench: Bench, reporter_as_pod: StartPod
) -> None:
    running = await reporter_as_pod()
    await bench.start(pod("ls", "LS", SOME), pod("be", "BE", {}), pod("lse", "LSE", ONE))

    await bench.settled()

    about = {key: value for key, _, value in (row.partition(":") for row in await in_reporter(bench.node, "status"))}
    (container,) = running["spec"]["containers"]
    assert {int(about[f"Cap{which}"], 16) for which in ("Prm", "Eff", "Bnd")} == {0}
    assert int(about["NoNewPrivs"]) == 1
    assert int(about["Seccomp"]) == 2, "a filter"
    mounted = {row.split()[4]: row.split()[5].split(",")[0] for row in await in_reporter(bench.node, "mountinfo")}
    assert mounted["/"] == "ro"
    for mount in container["volumeMounts"]:
        assert mounted[mount["mountPath"]] == ("ro" if mount.get("readOnly") else "rw")
    seen = PROC / str(await bench.node.container_pid(chart.NAMESPACE, "reporter-by-hand", "reporter")) / "root"
    kubelet = seen / str(bench.node.root).lstrip("/")
    assert (kubelet / "cpu_manager_state").is_file()
    assert any((bench.node.root / "pods").iterdir())
    for hidden in ("pods", "pki", "plugins", "plugins_registry"):
        assert not list((kubelet / hidden).iterdir()), hidden


async def in_reporter(node: Node, file: str) -> list[str]:
    pid = await node.container_pid(chart.NAMESPACE, "reporter-by-hand", "reporter")
    return (PROC / str(pid) / file).read_text().splitlines()


@pytest_asyncio.fixture(loop_scope="session")
async def card(node: Node, node_admin: AdminClient) -> AsyncIterator[str]:
    """Publish a card of the node; returns its UUID. The reporter process must be stopped."""
    await node_admin.apply(device_object(node.name, [gpu(node.name, 0)]))
    amounts = {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu-memory": "80Gi"}
    await node.set_capacity({f"kubernetes.io/{tail}": amount for tail, amount in amounts.items()})
    yield uuid_of(node.name, 0)
    await node.set_capacity({f"kubernetes.io/{tail}": None for tail in amounts})


async def test_the_charts_pod_reads_which_cards_a_process_that_is_not_root_was_given(
    bench: Bench, reporter_as_pod: StartPod, card: str, node_admin: AdminClient
) -> None:
    half = {"kubernetes.io/gpu": "50"}
    nobody = {"securityContext": {"runAsUser": 65534, "runAsGroup": 65534}}
    other = f"export NVIDIA_VISIBLE_DEVICES=another; exec sh -c '{SLEEP}'"
    honest, liar = pod("honest", None, {}, **nobody), pod("liar", None, {}, **nobody, command=["/bin/sh", "-c", other])
    for one in (honest, liar):
        one["spec"]["containers"][0]["resources"] = {"limits": half}
    ids = [found["metadata"]["uid"] for found in await bench.start(honest, liar)]

    running = await reporter_as_pod(proof={"environment": True})

    async def compared() -> list[JsonObject]:
        annotations = (await node_admin.get(f"{DEVICES}/{bench.node.name}"))["metadata"].get("annotations") or {}
        said = json.loads(annotations.get(AGREEMENT, "{}"))
        known = [said.get(uid, {}) for uid in ids]
        return known if any("mismatches" in one for one in known) else []

    first, second = await until(compared, "the Pods are compared", deadline_s=ROUND_S)
    assert first["agrees"]
    assert second["mismatches"] == [f"the environment of container main names another; {card} was allocated"]
    about = {key: value for key, _, value in (row.partition(":") for row in await in_reporter(bench.node, "status"))}
    (container,) = running["spec"]["containers"]
    granted = sum(1 << CAPABILITIES[name] for name in container["securityContext"]["capabilities"]["add"])
    assert {int(about[f"Cap{which}"], 16) for which in ("Prm", "Eff", "Bnd")} == {granted}


# The kubelet's static policy; the node keeps it to the end of this module


def given(node: Node, found: JsonObject) -> frozenset[int]:
    """The CPUs that the kubelet reports for a Pod."""
    entries = json.loads((node.root / "cpu_manager_state").read_text())["entries"]
    return frozenset().union(*map(members, entries.get(found["metadata"]["uid"], {}).values()))


async def container_pid(node: Node, found: JsonObject) -> int:
    """The first process of a Pod's container `main`. The kubelet does not pin sandboxes."""
    return await node.container_pid(found["metadata"]["namespace"], found["metadata"]["name"], "main")


async def container_has(node: Node, found: JsonObject) -> frozenset[int] | None:
    """The CPUs that this process may run on."""
    return allowed(await container_pid(node, found))


@pytest.fixture
def rest(static_node: Node) -> JsonObject:
    """A Pod that requests all CPUs that are not reserved, so that koordgate and the kubelet choose the same."""
    return pod("rest", "LSR", {"cpu": str(len(ALL - RESERVED)), "memory": "16Mi"})


async def test_what_the_static_policy_gives_is_left_alone_published_and_said(
    bench: Bench, static_node: Node, reporter: Reporter, node_admin: AdminClient
) -> None:
    whole, _, _ = await bench.start(pod("whole", None, ONE), pod("ls", "LS", SOME), pod("be", "BE", {}))
    its = given(static_node, whole)
    assert len(its - RESERVED) == 1

    await bench.reach({"ls": ALL - its, "be": ALL - its}, ROUND_S)
    assert await container_has(static_node, whole) == its

    said = await told(node_admin, static_node, lambda said: said[ALLOCS], ROUND_S)
    (alloc,) = said[ALLOCS]
    assert alloc["managedByKubelet"]
    assert (alloc["name"], alloc["uid"], members(alloc["cpuset"])) == ("whole", whole["metadata"]["uid"], its)
    assert said[POLICY] == {"policy": "static", "reservedCPUs": "0"}
    assert pool_of(said, "cpu-shared-pools") == pool_of(said, "be-cpu-shared-pools") == ALL - its
    (cpu,) = its
    note = f"{bench.namespace}/whole: the kubelet's static policy gave it {cpu}; left alone"

    async def noted() -> bool:
        return note in reporter.process.log.read_text()

    await until(noted, note)


async def test_what_somebody_writes_into_a_cpuset_of_the_kubelets_the_reporter_does_not_change(
    bench: Bench, static_node: Node, reporter: Reporter
) -> None:
    whole, _ = await bench.start(pod("whole", None, ONE), pod("be", "BE", {}))
    its = given(static_node, whole)
    await bench.reach({"be": ALL - its}, ROUND_S)
    pid = await container_pid(static_node, whole)
    (cgroup,) = (folder for folder, pids in static_node.processes(whole).items() if pid in pids)
    write(cgroup, ALL)
    rounds = await reporter.metric(ROUNDS)

    await bench.start(pod("more", "BE", {}))

    async def looked() -> bool:
        return await reporter.metric(ROUNDS) >= rounds + 2

    await until(looked, "two more rounds", deadline_s=ROUND_S)
    await bench.reach({"be": ALL - its, "more": ALL - its}, ROUND_S)
    assert await container_has(static_node, whole) == ALL


async def test_koordgate_never_gives_what_the_kubelet_gave(
    bench: Bench, static_node: Node, node_plane: ControlPlane, node_admin: AdminClient
) -> None:
    (whole,) = await bench.start(pod("whole", None, ONE))
    its = given(static_node, whole)
    await told(node_admin, static_node, lambda said: said[ALLOCS], ROUND_S)
    others = ALL - RESERVED - its
    if others:
        (lsr,) = await bench.start(pod("others", "LSR", {"cpu": str(len(others)), "memory": "16Mi"}))
        assert decided(lsr) == others
    await node_admin.create(pods_path(bench.namespace), pod("refused", "LSR", ONE))
    await waits(node_admin, bench.namespace, "refused")

    token = await node_plane.service_account_token(chart.NAMESPACE, NAME)
    async with node_plane.admin(token) as scheduler:
        with pytest.raises(ApiError, match="1 CPUs are requested, 0 are free"):
            await scheduler.create(
                pods_path(bench.namespace, "refused", "binding"), binding(bench.namespace, "refused", static_node.name)
            )

    await bench.end("whole")
    found = await bench.node.phase(bench.namespace, "refused", "Running")
    assert decided(found) == given(static_node, found) == its


@restarts
async def test_cpus_stay_over_a_restart_with_the_static_policy_as_well(
    bench: Bench, reporter: Reporter, rest: JsonObject, down: Restart, node_admin: AdminClient
) -> None:
    await told(node_admin, bench.node, lambda said: said.get(POLICY, {}).get("reservedCPUs") == "0")
    (found, _, _) = await bench.start(rest, pod("ls", "LS", SOME), pod("be", "BE", {}))
    assert given(bench.node, found) == decided(found)
    # One BE Pod has room on the CPUs that the kubelet reserves.
    every = {"rest": decided(found), "ls": RESERVED, "be": RESERVED}
    await bench.reach(every, ROUND_S)
    wanted = {name: every[name] for name in ("rest", "ls")}  # a kubelet puts BE on its own pool once, at its start

    async with down(bench.node, reporter):
        assert bench.has(wanted)
    assert bench.has(wanted)

    await bench.reach(every, ROUND_S)
    await bench.end("rest")
    await bench.reach({"ls": ALL, "be": RESERVED}, ROUND_S)
