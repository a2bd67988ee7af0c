"""Pods that would fill a node's record, on a real API server with its own limits: refused, and others are bound."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import ALLOCATIONS, add_gpu_node, allocated, audit, binding, pod, pods_path

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import TooLarge
from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane

PERCENT = {"kubernetes.io/gpu-core": "8", "kubernetes.io/gpu-memory-ratio": "8", "kubernetes.io/gpu.shared": "8"}


def many(name: str, namespace: str, count: int) -> JsonObject:
    """A Pod of so many init containers that share all cards of a node."""
    made = pod(name, namespace, {})
    resources = {"requests": PERCENT, "limits": PERCENT}
    made["spec"]["initContainers"] = [
        {"name": f"{number:063}", "image": "none", "resources": resources} for number in range(count)
    ]
    return made


@pytest_asyncio.fixture(loop_scope="session")
async def scheduler(plane: ControlPlane, installed: list[JsonObject]) -> AsyncIterator[AdminClient]:
    async with plane.admin(await plane.service_account_token("koordgate-system", "koord-scheduler")) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[tuple[str, str]]:
    """A node with eight cards, and one with one."""
    names = f"{namespace}-eight", f"{namespace}-one"
    for name, gpus in zip(names, (8, 1), strict=True):
        await add_gpu_node(plane, admin, name, gpus=gpus)
    yield names
    await admin.delete(pods_path(namespace), {"gracePeriodSeconds": 0})
    for name in names:
        await admin.delete(f"/api/v1/nodes/{name}")
        await admin.delete(f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{name}")


async def test_pods_of_many_containers_lock_no_node(
    webhooks: Any, admin: AdminClient, scheduler: AdminClient, namespace: str, nodes: tuple[str, str]
) -> None:
    node, other = nodes
    await webhooks(count=1)
    with pytest.raises(ApiError, match="200 containers ask for devices, and 64 of a Pod may"):
        await admin.create(pods_path(namespace), many("hostile", namespace, 200))
    names = [f"large-{number}" for number in range(20)]
    bodies = [many(name, namespace, 64) for name in names] + [pod("small", namespace, {"nvidia.com/gpu": "1"})]
    uids = {}
    for body in bodies:
        made = await admin.create(pods_path(namespace), body)
        uids[made["metadata"]["name"]] = made["metadata"]["uid"]
    await asyncio.gather(
        *(
            scheduler.create(pods_path(namespace, name, "binding"), binding(namespace, name, node, uids[name]))
            for name in names
        )
    )
    small = binding(namespace, "small", other, uids["small"])
    await scheduler.create(pods_path(namespace, "small", "binding"), small)
    record = await admin.get(f"{ALLOCATIONS}/{node}")
    assert {entry["uid"] for entry in record["spec"]["allocations"]} == {uids[name] for name in names}
    for name in names:
        assert len(allocated(await admin.get(pods_path(namespace, name)))) == 8
    await admin.patch(pods_path(namespace, names[0], "status"), {"status": {"phase": "Running"}})
    await audit(admin)


@pytest.mark.filterwarnings("ignore:Sending a large body")
@pytest.mark.parametrize("size", [1_600_000, 4_000_000], ids=["more than etcd accepts", "more than a request may have"])
async def test_what_the_api_server_says_of_an_object_that_is_too_large_is_understood(
    plane: ControlPlane, installed: list[JsonObject], namespace: str, size: int
) -> None:
    kubeconfig = await plane.service_account_kubeconfig(chart.NAMESPACE, chart.RELEASE)
    body = {
        "apiVersion": "koordgate.io/v1alpha1",
        "kind": "NodeAllocation",
        "metadata": {"name": f"{namespace}-large"},
        "spec": {"allocations": [], "filler": "x" * size},
    }
    async with KubeClient.from_kubeconfig(kubeconfig) as kube:
        with pytest.raises(TooLarge):
            await kube.create(ALLOCATIONS, body)
