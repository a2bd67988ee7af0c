"""A device type of one's own, from the chart's values to a bound Pod, on a real API server and scheduler."""

import json
from collections.abc import AsyncIterator

import pytest_asyncio
from controlplane.gpu_cluster import DEVICE_ALLOCATED, pod, pods_path

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.koord import start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.waiting import until

POOL = {"nodeSelector": {"example.com/site": "west"}, "devices": {"fast": 5, "slow": 40}}
QUEUE = {"name": "queue", "resource": "example.com/queue", "unit": "units", "environment": "QUEUE", "pools": [POOL]}


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[dict[str, str]]:
    """Site -> a node there; neither node reports queues."""
    made = {site: f"{namespace}-{site}" for site in ("east", "west")}
    for site, name in made.items():
        capacity = {"cpu": "8", "memory": "32Gi", "pods": "100"}
        await plane.add_node(name, capacity, labels={"example.com/site": site, "test": namespace})
    yield made
    for found in await admin.items(pods_path(namespace)):
        await admin.delete(pods_path(namespace, found["metadata"]["name"]), gracePeriodSeconds="0")
    for name in made.values():
        await admin.delete(f"/api/v1/nodes/{name}")


@pytest_asyncio.fixture(loop_scope="session")
async def scheduler(
    plane: ControlPlane, binaries: Binaries, installed: list[JsonObject], webhooks
) -> AsyncIterator[None]:
    """Everything as the chart installs it with this type."""
    rendered = chart.render(binaries, {"devices": {"types": [QUEUE]}})
    await chart.install(plane, rendered)
    replicas = await webhooks(count=1, overrides={"devices": {"types": [QUEUE]}})
    await start_koord_scheduler(plane, rendered, replicas.extender)
    yield
    await plane.stop_scheduler("koord-scheduler")
    await chart.install(plane, installed)


async def test_a_pod_gets_units_of_a_pool_that_no_node_reports(
    scheduler, admin: AdminClient, namespace: str, nodes: dict[str, str]
) -> None:
    asked = pod("asked", namespace, {"example.com/queue": "30"}, nodeSelector={"test": namespace})

    async def created() -> JsonObject | None:
        """Create it, as soon as the API server uses the new match conditions."""
        answer = await admin.create(pods_path(namespace), asked, dryRun="All")
        if answer["spec"]["schedulerName"] != "koord-scheduler":
            return None
        return await admin.create(pods_path(namespace), asked)

    made = await until(created, "the Pod is translated")
    (entry,) = (one for one in made["spec"]["containers"][0]["env"] if one["name"] == "QUEUE")
    path = "metadata.annotations['queue.visible-devices.koordgate.io/main']"
    assert entry["valueFrom"]["fieldRef"]["fieldPath"] == path

    async def bound() -> JsonObject | None:
        found = await admin.get(pods_path(namespace, "asked"))
        return found if found["spec"].get("nodeName") else None

    found = await until(bound, "the Pod is bound")
    assert found["spec"]["nodeName"] == nodes["west"]
    annotations = found["metadata"]["annotations"]
    assert annotations["queue.visible-devices.koordgate.io/main"] == "slow"
    (share,) = json.loads(annotations[DEVICE_ALLOCATED])["queue"]
    assert (share["id"], share["resources"]) == ("slow", {"example.com/queue": "30"})
