"""Gangs on a real API server and kube-scheduler: steered by a PodGroup's size, and bound as a whole or not at all."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    DEVICES,
    add_node,
    at_home,
    audit_devices,
    bound,
    create,
    device_object,
    gpu,
    pods_path,
    remove,
    scheduling,
    waits,
)

from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces"
LABEL = "scheduling.x-k8s.io/pod-group"
WHOLE = {"koordgate.io/gang-all-or-nothing": "true"}
GATE = [{"name": "koordgate.io/gang"}]
HOLD_S = 10
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins"},
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"minMember": {"type": "integer"}}},
                        },
                    }
                },
            }
        ],
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def granted(plane: ControlPlane, binaries: Binaries) -> list[JsonObject]:
    """The chart with whole gangs, and a CRD of PodGroups that is there before the webhook starts."""
    await chart.install(plane, [CRD])
    objects = chart.render(binaries, {"gangs": {"allOrNothing": True, "holdSeconds": HOLD_S}})
    await chart.install(plane, objects)
    return objects


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(plane: ControlPlane, granted: list[JsonObject], tmp_path_factory: Any) -> AsyncIterator[Replicas]:
    async with scheduling(plane, granted, tmp_path_factory.mktemp("gangs"), overrides=None) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(admin: AdminClient, namespace: str) -> AsyncIterator[list[str]]:
    names = [f"{namespace}-small", f"{namespace}-wide"]
    yield names
    await remove(admin, namespace, names)


async def add_nodes(plane: ControlPlane, admin: AdminClient, namespace: str, **cards: int) -> None:
    for name, count in cards.items():
        node = f"{namespace}-{name}"
        await add_node(plane, admin, node, namespace, [gpu(node, minor) for minor in range(count)])


async def add_group(admin: AdminClient, namespace: str, minimum: int) -> None:
    head = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "train"}}
    await admin.create(f"{GROUPS}/{namespace}/podgroups", {**head, "spec": {"minMember": minimum}})


def worker(number: int, namespace: str, *, whole: bool = True, **spec: Any) -> JsonObject:
    annotations = WHOLE if whole else {}
    asks = {"nvidia.com/gpu": "2"}
    return at_home(f"worker-{number}", namespace, asks, labels={LABEL: "train"}, annotations=annotations, **spec)


async def workers(admin: AdminClient, namespace: str) -> list[JsonObject]:
    return [one for one in await admin.items(pods_path(namespace)) if one["metadata"]["name"].startswith("worker-")]


async def events(admin: AdminClient, namespace: str, reason: str) -> list[str]:
    found = await admin.items(f"/api/v1/namespaces/{namespace}/events")
    return [event["message"] for event in found if event["reason"] == reason]


async def test_members_that_arrive_one_by_one_go_where_all_of_them_have_room(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    await add_group(admin, namespace, 4)  # before the nodes, so that whoever knows these knows it
    await add_nodes(plane, admin, namespace, small=2, wide=8)
    landed = []
    for number in range(4):
        await create(admin, [worker(number, namespace, whole=False)])
        landed.append((await bound(admin, namespace, f"worker-{number}"))["spec"]["nodeName"])
    assert landed == [f"{namespace}-wide"] * 4


async def test_a_whole_gang_is_bound_together_or_waits_at_its_gates(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    await add_nodes(plane, admin, namespace, small=4)
    await add_group(admin, namespace, 4)
    await create(admin, [worker(number, namespace) for number in range(3)])

    async def told(part: str) -> bool:
        return any(part in message for message in await events(admin, namespace, "GangWaits"))

    await until(lambda: told("the gang needs 4 Pods, and 3 of them exist"), "the Event of too few Pods")
    await create(admin, [worker(3, namespace)])
    await until(lambda: told("there is room for 2 of 4 Pods"), "the Event of too little room")
    assert [one["spec"].get("schedulingGates") for one in await workers(admin, namespace)] == [GATE] * 4
    assert (await audit_devices(admin, namespace)).used == {}

    await add_nodes(plane, admin, namespace, wide=4)
    found = [await bound(admin, namespace, f"worker-{number}") for number in range(4)]
    assert sorted(one["spec"]["nodeName"] for one in found) == [f"{namespace}-small"] * 2 + [f"{namespace}-wide"] * 2
    await audit_devices(admin, namespace)


async def test_what_is_held_in_vain_is_given_back_and_the_gang_is_bound_later(
    replicas: Replicas,
    granted: list[JsonObject],
    plane: ControlPlane,
    admin: AdminClient,
    namespace: str,
    nodes: list[str],
) -> None:
    await add_nodes(plane, admin, namespace, small=2, wide=2)
    await add_group(admin, namespace, 2)
    await plane.stop_scheduler(NAME)
    await create(admin, [worker(number, namespace) for number in range(2)])

    async def lifted() -> bool:
        return all(not one["spec"].get("schedulingGates") for one in await workers(admin, namespace))

    async def given_back() -> bool:
        return await held(admin, namespace) == []

    await until(lifted, "room is held, and the gates are lifted")
    assert await held(admin, namespace) == ["worker-0", "worker-1"]
    await until(given_back, "what was held in vain is given back", deadline_s=HOLD_S + 60)
    wide = f"{namespace}-wide"
    await admin.delete(f"{DEVICES}/{wide}")  # there is no room for both any more
    await start_koord_scheduler(plane, granted, replicas.extender)
    await waits(admin, namespace, "worker-0", "waits until room for its whole gang is held")
    await waits(admin, namespace, "worker-1")
    await admin.apply(device_object(wide, [gpu(wide, minor) for minor in range(2)]))
    found = [await bound(admin, namespace, f"worker-{number}") for number in range(2)]
    assert sorted(one["spec"]["nodeName"] for one in found) == [f"{namespace}-small", wide]


async def test_the_webhook_may_change_nothing_of_a_pod_but_its_own_gate(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str
) -> None:
    gates = [{"name": "koordgate.io/gang"}, {"name": "koordgate.test/other"}]
    await create(admin, [at_home("gated", namespace, {"cpu": "1"}, schedulingGates=gates)])
    token = await plane.service_account_token(chart.NAMESPACE, chart.RELEASE)
    path = pods_path(namespace, "gated")
    async with plane.admin(token) as webhook:
        for change in (
            {"metadata": {"labels": {"a": "b"}}},
            {"spec": {"containers": [{"name": "main", "image": "other"}]}},
            {"spec": {"schedulingGates": [gates[0]]}},
            {"spec": {"schedulingGates": None}},
        ):
            with pytest.raises(ApiError) as caught:
                await webhook.patch(path, change)
            assert caught.value.status in {403, 422}
        done = await webhook.patch(path, {"spec": {"schedulingGates": [gates[1]]}})
    assert done["spec"]["schedulingGates"] == [gates[1]]


async def held(admin: AdminClient, namespace: str) -> list[str]:
    records = await admin.items("/apis/koordgate.io/v1alpha1/nodeallocations")
    entries = (entry for record in records for entry in record["spec"].get("allocations") or ())
    return [entry["name"] for entry in entries if entry["namespace"] == namespace]
