"""The CPU state of a real kubelet, taken over and restored: after its restart the kubelet keeps our CPUs by itself.

The reporter writes no cpuset here: the kubelet alone decides where a process runs.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from node import images
from node.harness import Node, Reporter

from allocator.vocabulary.cputopology import format_cpuset, parse
from allocator.vocabulary.names import OWN_CPUS
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.waiting import until
from reporter.kubelet import cpustate
from reporter.takeover import backup_of

SLEEP = "trap exit TERM; while :; do sleep 1 & wait; done"
STATUS = "scheduling.koordinator.sh/resource-status"
ROUNDS = 6  # rounds without a change that count as an end
DEADLINE_S = 30.0
TOLD = (
    "/apis/scheduling.koordinator.sh/v1alpha1/devices",
    "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies",
)

Report = Callable[[str], contextlib.AbstractAsyncContextManager[Reporter]]


ALL = parse(Path("/sys/devices/system/cpu/online").read_text())
OURS = 1 << ALL.bit_length() - 1  # not CPU 0, which the kubelet reserves
# A tenth of a CPU is reserved, which reserves CPU 0. With two CPUs, a container fits beside one that owns a CPU.
STATIC = {"cpuManagerPolicy": "static", "systemReserved": {"cpu": "100m"}, "cpuManagerReconcilePeriod": "1s"}


def container(name: str, asks: dict[str, str], limits: dict[str, str]) -> JsonObject:
    return {
        "name": name,
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", SLEEP],
        "resources": {"requests": asks, "limits": limits},
    }


WHOLE, PART = {"cpu": "1", "memory": "16Mi"}, {"cpu": "50m", "memory": "16Mi"}
KINDS = {
    "the kubelet gave it nothing": [container("main", PART, {}), container("side", {}, {})],
    "the kubelet gave one container a CPU": [container("main", WHOLE, WHOLE), container("side", PART, PART)],
}


class Bench:
    """One test's Pods on the node with the static policy."""

    def __init__(self, node: Node, admin: AdminClient, namespace: str) -> None:
        self.node = node
        self._admin = admin
        self._namespace = namespace

    async def start(self, name: str, containers: list[JsonObject], cpus: int = 0) -> str:
        """Run a Pod, with decided CPUs if any, for all its containers; returns its UID."""
        spec = {"terminationGracePeriodSeconds": 1, "schedulerName": "nobody", "containers": containers}
        labels = {"koordinator.sh/qosClass": "LSR"} if cpus else {}
        annotations = {OWN_CPUS: ",".join(one["name"] for one in containers)} if cpus else {}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        made = await self._admin.create(f"/api/v1/namespaces/{self._namespace}/pods", made)
        await self.node.bind(made, {STATUS: json.dumps({"cpuset": format_cpuset(cpus)})} if cpus else None)
        found = await self.node.phase(self._namespace, name, "Running")
        uid: str = found["metadata"]["uid"]
        return uid

    async def delete(self, name: str) -> None:
        await self._admin.delete(f"/api/v1/namespaces/{self._namespace}/pods/{name}")

    async def runs_on(self, pod: str, name: str) -> int:
        """The CPUs that the kernel allows a container's first process."""
        return allowed(await self.node.container_pid(self._namespace, pod, name))

    async def both_on(self, pod: str, cpus: int) -> None:
        """Wait until both containers of a Pod run on some CPUs."""

        async def there() -> bool:
            return {await self.runs_on(pod, name) for name in ("main", "side")} == {cpus}

        await until(there, f"{pod} runs on CPUs {format_cpuset(cpus)}", deadline_s=DEADLINE_S)

    def in_file(self, uid: str) -> dict[str, int]:
        """A Pod's entries in the kubelet's state file."""
        return dict(cpustate.parse((self.node.root / cpustate.FILE).read_bytes()).entries.get(uid, {}))

    async def told(self, uid: str, said: dict[str, int]) -> None:
        """Wait until the file has these entries of a Pod."""

        async def there() -> bool:
            return self.in_file(uid) == said

        await until(there, f"{uid} has {said} in the file", deadline_s=DEADLINE_S)

    async def event(self, reason: str) -> None:
        """Wait for an Event about the Node."""

        async def there() -> bool:
            found = await self._admin.items("/api/v1/namespaces/default/events")
            return any(one["reason"] == reason and one["involvedObject"]["name"] == self.node.name for one in found)

        await until(there, f"an Event {reason}", deadline_s=DEADLINE_S)


def allowed(pid: int) -> int:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(parse(row.split()[1]) for row in rows if row.startswith("Cpus_allowed_list"))


async def rounds(reporter: Reporter) -> None:
    target = await reporter.metric("koordgate_reporter_rounds_total") + ROUNDS

    async def done() -> bool:
        return await reporter.metric("koordgate_reporter_rounds_total") >= target

    await until(done, "more rounds", deadline_s=DEADLINE_S)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def giving_node(node: Node) -> AsyncIterator[Node]:
    """The node with a kubelet that allocates CPUs by itself."""
    async with node.configured(STATIC):
        yield node


@pytest_asyncio.fixture(loop_scope="session")
async def bench(giving_node: Node, node_admin: AdminClient, node_namespace: str) -> AsyncIterator[Bench]:
    """This test's Pods; they are deleted at the end, because there are few CPUs."""
    yield Bench(giving_node, node_admin, node_namespace)
    path = f"/api/v1/namespaces/{node_namespace}/pods"
    await node_admin.delete(path)

    async def gone() -> bool:
        return not await node_admin.items(path)

    await until(gone, "all Pods are gone")
    for collection in TOLD:
        with contextlib.suppress(ApiError):  # where the chart was never installed there is nothing to write to
            await node_admin.delete(f"{collection}/{giving_node.name}")


@pytest.fixture
def report(giving_node: Node, node_plane: ControlPlane, tmp_path: Path) -> Report:
    """Run the node's reporter in this take-over mode; it writes no cpuset."""

    def run(mode: str) -> Reporter:
        folder = tmp_path / mode
        folder.mkdir()
        overrides = {
            "roundSeconds": 0.3,
            "gpus": {"enabled": False},
            "cpus": {"enforce": False, "takeOver": mode},
            "proof": {"enabled": False},
        }
        return Reporter(giving_node, "{}", kubeconfig=node_plane.admin_kubeconfig, workdir=folder, overrides=overrides)

    return run


@pytest.mark.parametrize("containers", KINDS.values(), ids=KINDS)
async def test_after_its_restart_the_kubelet_keeps_our_cpus_until_the_pod_goes_and_gives_them_to_nobody(
    bench: Bench, report: Report, containers: list[JsonObject]
) -> None:
    uid = await bench.start("ours", containers, OURS)
    before = {name: await bench.runs_on("ours", name) for name in ("main", "side")}
    assert set(before.values()) != {OURS}
    both = {"main": OURS, "side": OURS}

    async with report("write") as reporter:
        await bench.told(uid, both)
        await bench.event("CpuStateTakenOver")
        await rounds(reporter)
        assert {name: await bench.runs_on("ours", name) for name in ("main", "side")} == before

        await bench.node.restart_kubelet()

        await bench.both_on("ours", OURS)
        await bench.start("other", [container("main", {}, {}), container("side", {}, {})])
        await bench.both_on("other", ALL & ~OURS)
        await rounds(reporter)
        assert bench.in_file(uid) == both
        assert await reporter.metric("koordgate_reporter_take_overs_total") == 1
        await bench.node.restart_kubelet()
        await bench.both_on("ours", OURS)

        await bench.delete("ours")
        await bench.told(uid, {})
        await rounds(reporter)
        assert bench.in_file(uid) == {}
        await bench.both_on("other", ALL)


@pytest.mark.parametrize("containers", KINDS.values(), ids=KINDS)
async def test_undone_the_kubelet_starts_and_has_what_it_had_before(
    bench: Bench, report: Report, containers: list[JsonObject]
) -> None:
    uid = await bench.start("ours", containers, OURS)
    before = bench.in_file(uid), await bench.runs_on("ours", "main"), await bench.runs_on("ours", "side")
    both = {"main": OURS, "side": OURS}
    state = bench.node.root / cpustate.FILE
    async with report("write"):
        await bench.told(uid, both)
    await bench.node.restart_kubelet()
    await bench.both_on("ours", OURS)

    async with report("undo") as reporter:
        await bench.told(uid, before[0])
        await rounds(reporter)
        assert backup_of(state).exists(), "the kubelet has ours in memory, and may write them again"
        await bench.node.restart_kubelet()

        async def back() -> bool:
            has = bench.in_file(uid), await bench.runs_on("ours", "main"), await bench.runs_on("ours", "side")
            return has == before and not backup_of(state).exists()

        await until(back, f"the Pod has {before}, and the backup is gone", deadline_s=DEADLINE_S)
        before_more = state.read_bytes()
        await rounds(reporter)
        assert state.read_bytes() == before_more
