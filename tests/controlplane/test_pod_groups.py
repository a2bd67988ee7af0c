"""Kubernetes' own gangs (GenericWorkload): kube-scheduler decides on a PodGroup as a whole, and asks for each Pod."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    add_node,
    at_home,
    audit_devices,
    bound,
    create,
    gpu,
    pods_path,
    remove,
    scheduling,
)

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.waiting import until

pytestmark = pytest.mark.kubernetes(since="1.37", feature="PodGroups of scheduling.k8s.io/v1beta1")
VERSION = "scheduling.k8s.io/v1beta1"
WHOLE = {"koordgate.io/gang-all-or-nothing": "true"}
TEAM = "groups"


@dataclass(frozen=True)
class Groups:
    """A control plane that serves PodGroups, with the webhook and the chart's scheduler; Pods are of one namespace."""

    plane: ControlPlane
    admin: AdminClient

    def _path(self, name: str = "") -> str:
        return f"/apis/{VERSION}/namespaces/{TEAM}/podgroups/{name}".rstrip("/")

    async def add_cards(self, node: str, count: int) -> None:
        await add_node(self.plane, self.admin, node, TEAM, [gpu(node, minor) for minor in range(count)])

    async def add(self, name: str, count: int, asks: dict[str, str], priority: str = "", **over: Any) -> None:
        """A PodGroup that needs all of its Pods, and these."""
        spec: JsonObject = {"schedulingPolicy": {"gang": {"minCount": count}}}
        of_group = {"priorityClassName": priority} if priority else {}
        head = {"apiVersion": VERSION, "kind": "PodGroup", "metadata": {"name": name}}
        await self.admin.create(self._path(), {**head, "spec": {**spec, **of_group}})
        group: JsonObject = {"schedulingGroup": {"podGroupName": name}, **of_group}
        await create(self.admin, [at_home(f"{name}-{number}", TEAM, asks, **group, **over) for number in range(count)])

    async def condition(self, name: str) -> JsonObject:
        status = (await self.admin.get(self._path(name))).get("status") or {}
        found = {one["type"]: one for one in status.get("conditions") or ()}
        return found.get("PodGroupInitiallyScheduled") or {}

    async def refused(self, name: str, says: str) -> None:
        """Wait until kube-scheduler says why the group has no room."""

        async def said() -> bool:
            found = await self.condition(name)
            return found.get("status") == "False" and says in found["message"]

        await until(said, f"kube-scheduler refuses {name}: {says}")

    async def pods(self) -> list[JsonObject]:
        return await self.admin.items(pods_path(TEAM))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Groups]:
    served = f"--runtime-config={VERSION}=true"
    async with (
        ControlPlane(binaries, feature_gates={"GenericWorkload": True}, apiserver_args=[served]) as plane,
        plane.admin() as admin,
    ):
        objects = chart.render(binaries, {"gangs": {"allOrNothing": True}})
        await chart.install(plane, objects)
        await plane.ensure_namespace(TEAM)
        async with scheduling(plane, objects, tmp_path_factory.mktemp("groups")):
            yield Groups(plane, admin)


@pytest_asyncio.fixture(loop_scope="session")
async def groups(cluster: Groups) -> AsyncIterator[Groups]:
    """The cluster with a node of four cards."""
    await cluster.add_cards("four", 4)
    yield cluster
    await remove(cluster.admin, TEAM, ["four", "one"])


async def test_a_gang_of_kubernetes_is_bound_as_a_whole_or_not_at_all(groups: Groups) -> None:
    """The sums of 60 percent each fit: the extender alone knows that five cards are needed."""
    name = "parts"
    await groups.add(name, 5, {"kubernetes.io/gpu": "60"})
    await groups.refused(name, "minCount (5) cannot be satisfied: 4 scheduled")
    assert [one["spec"].get("nodeName") for one in await groups.pods()] == [None] * 5
    assert (await audit_devices(groups.admin, TEAM)).used == {}

    await groups.add_cards("one", 1)
    found = [await bound(groups.admin, TEAM, f"{name}-{number}") for number in range(5)]
    assert sorted(one["spec"]["nodeName"] for one in found) == ["four"] * 4 + ["one"]
    assert (await groups.condition(name))["status"] == "True"
    await audit_devices(groups.admin, TEAM)


async def test_koordgate_holds_room_for_a_gang_of_kubernetes_that_asks_for_it(groups: Groups) -> None:
    await groups.add("held", 4, {"kubernetes.io/gpu": "60"}, annotations=WHOLE)
    for number in range(4):
        await bound(groups.admin, TEAM, f"held-{number}")

    async def scheduled() -> bool:
        return (await groups.condition("held")).get("status") == "True"

    await until(scheduled, "kube-scheduler knows the group as scheduled")
    await audit_devices(groups.admin, TEAM)


async def test_nobody_is_evicted_for_a_gang_of_kubernetes_that_lacks_cards(groups: Groups) -> None:
    """kube-scheduler does not ask extenders for victims of a PodGroup: it finds that none would help."""
    important = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "important"}}
    await groups.admin.apply({**important, "value": 1000})
    await create(groups.admin, [at_home(f"low-{number}", TEAM, {"nvidia.com/gpu": "1"}) for number in range(4)])
    for number in range(4):
        await bound(groups.admin, TEAM, f"low-{number}")
    await groups.add("high", 2, {"nvidia.com/gpu": "1"}, priority="important")
    await groups.refused("high", "pod group preemption")
    left = {one["metadata"]["name"]: one for one in await groups.pods()}
    assert [left[f"low-{number}"]["metadata"].get("deletionTimestamp") for number in range(4)] == [None] * 4
