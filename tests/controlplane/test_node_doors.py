"""Annotations by which software of the nodes shows devices: what replicas refuse while the policies only take notes.

`test_policies.py` and `test_peer_results.py` show what the policies refuse while no replica lives.
"""

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import DEVICE_ALLOCATED, binding, pod, pods_path

from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

PEER = "kai-binder"
CPU = {"cpu": "100m"}
PODS, GUARD = "pods.validate.koordgate.io", "guard.validate.koordgate.io"
SHOWING = {
    "nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=0",
    "nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all",
    "nvidia.cdi.k8s.io": "nvidia.com/gpu=all",
    "cdi.k8s.io/gpu": "nvidia.com/gpu=all",
    "cdi.k8s.io": "nvidia.com/gpu=all",
    "nvidia.com/container.main.gpus.devices": "GPU-1",
}
LIMITS = {f"nvidia-gpu-memory-{what}.koordgate.io/main": "99999" for what in ("limit", "request")}
ASKING = {
    "nvidia.com/container.main.gpu-memory.request": "8Gi",
    "nvidia.com/container.main.gpu-memory.limit": "16Gi",
    "my.cdi.k8s.io/gpu": "x",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doors(
    plane: ControlPlane, binaries: Binaries, installed: list[JsonObject], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    """Replicas that know the binder of another product, beside policies that only take notes."""
    policies = {name: {"action": "Audit"} for name in ("visibleDevices", "presetNode", "allocations", "bindings")}
    writer = f"system:serviceaccount:doors:{PEER}"
    objects = chart.render(binaries, {"adopt": {"writers": [writer]}, "policies": policies})
    await chart.install(plane, objects)
    await plane.ensure_namespace("doors")
    replicas = await Replicas.installed(plane, objects, Path(tmp_path_factory.mktemp("doors")), count=1)
    async with replicas, plane.admin() as admin:
        await admin.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": PEER, "namespace": "doors"}}
        )
        await admin.apply(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": PEER},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": PEER, "namespace": "doors"}],
            }
        )

        async def alone() -> bool:
            return await denied(admin.create(pods_path("doors"), noted(SHOWING), dryRun="All")) == PODS

        await until(alone, "the policies only take notes")
        yield replicas
    await chart.install(plane, installed)


@pytest_asyncio.fixture(loop_scope="session")
async def peer(plane: ControlPlane, doors: Replicas) -> AsyncIterator[AdminClient]:
    """The binder of another product, which has every right."""
    async with plane.admin(await plane.service_account_token("doors", PEER)) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def standing(doors: Replicas, admin: AdminClient) -> AsyncIterator[str]:
    """A Pod that exists meanwhile; its name."""
    made = await admin.create(pods_path("doors"), noted({"note": "x"}))
    yield made["metadata"]["name"]
    await admin.delete(pods_path("doors", made["metadata"]["name"]), gracePeriodSeconds="0")


def noted(annotations: dict[str, str]) -> JsonObject:
    made = pod("noted", "doors", CPU)
    made["metadata"]["annotations"] = annotations
    return made


async def denied(request: Awaitable[JsonObject]) -> str:
    """The webhook that refused a request; empty if it passed."""
    try:
        await request
    except ApiError as error:
        found = error.message.partition('admission webhook "')[2].partition('" denied')[0]
        if found:
            return found
        raise
    return ""


@pytest.mark.parametrize("key", [*SHOWING, *LIMITS])
async def test_nobody_creates_a_pod_that_shows_itself_devices(admin: AdminClient, peer: AdminClient, key: str) -> None:
    for client in (admin, peer):
        made = noted({key: "nvidia.com/gpu=all"})
        with pytest.raises(ApiError) as refused:
            await client.create(pods_path("doors"), made, dryRun="All")
        assert PODS in refused.value.message
        assert f"metadata.annotations[{key}]" in refused.value.message
        assert "remove it" in refused.value.message


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_only_another_products_binder_shows_its_pods_devices(
    admin: AdminClient, peer: AdminClient, standing: str, subresource: str
) -> None:
    path = pods_path("doors", standing, subresource)
    for key, text in (SHOWING | LIMITS).items():
        change = {"metadata": {"annotations": {key: text}}}
        assert await denied(admin.patch(path, change, dryRun="All")) == PODS
        assert await denied(peer.patch(path, change, dryRun="All")) == (PODS if key in LIMITS else "")
    await peer.patch(path, {"metadata": {"annotations": SHOWING}})
    for key in SHOWING:
        for wrong in (None, "other"):
            assert await denied(admin.patch(path, {"metadata": {"annotations": {key: wrong}}})) == PODS
    both = {"metadata": {"annotations": dict.fromkeys(SHOWING) | {DEVICE_ALLOCATED: "{}"}}}
    with pytest.raises(ApiError) as refused:
        await peer.patch(path, both)
    assert DEVICE_ALLOCATED in refused.value.message
    assert "cdi.k8s.io" not in refused.value.message
    await peer.patch(path, {"metadata": {"annotations": dict.fromkeys(SHOWING)}})


@pytest.mark.parametrize("resource", ["binding", "bindings"])
async def test_a_stranger_shows_no_devices_by_a_binding(
    admin: AdminClient, peer: AdminClient, standing: str, resource: str
) -> None:
    path = "/api/v1/namespaces/doors/bindings" if resource == "bindings" else pods_path("doors", standing, "binding")
    for key, text in (SHOWING | LIMITS).items():
        made = binding("doors", standing, "nowhere")
        made["metadata"]["annotations"] = {key: text, "note": "y"}
        assert await denied(admin.create(path, made, dryRun="All")) == GUARD
        assert await denied(peer.create(path, made, dryRun="All")) == (GUARD if key in LIMITS else "")


async def test_what_authors_ask_for_passes(admin: AdminClient, standing: str) -> None:
    asking = noted(ASKING)
    asking["metadata"]["name"] = "asking"
    assert not await denied(admin.create(pods_path("doors"), asking, dryRun="All"))
    await admin.patch(pods_path("doors", standing), {"metadata": {"annotations": ASKING}}, dryRun="All")
