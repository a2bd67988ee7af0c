"""What a container sees on a real node: the cards that its annotation names, none, or `void`."""

import json

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import DEVICE_ALLOCATED, allocated
from node import images
from node.harness import Node

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Share
from allocator.wire.deviceobject import read_device_object
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.koord import NAME
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until
from reporter.publish import nodestatus

GPUS = ("GPU-58b7ec2c-9f6b-4dba-9d1d-6a8a3a0f7a01", "GPU-8d7a5d34-51a3-4b12-8f0e-2f5f9f2f7a02")
TELL = 'echo "visible=[$NVIDIA_VISIBLE_DEVICES]"'


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(node: Node, node_plane: ControlPlane, node_replicas: Replicas) -> Replicas:
    """koordgate as installed, and the node's cards published as a reporter would."""
    async with node_plane.admin() as admin:
        await admin.apply(_device_object(node.name))
    amounts = {"gpu-core": "200", "gpu-memory-ratio": "200", "gpu-memory": "32Gi"}
    await node.set_capacity({f"kubernetes.io/{tail}": amount for tail, amount in amounts.items()})
    return node_replicas


def _device_object(node: str) -> JsonObject:
    amounts = {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu-memory": "16Gi"}
    resources = {f"kubernetes.io/{tail}": amount for tail, amount in amounts.items()}
    devices = [
        {"type": "gpu", "id": uuid, "minor": minor, "health": True, "resources": resources}
        for minor, uuid in enumerate(GPUS)
    ]
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node},
        "spec": {"devices": devices},
    }


def container(name: str, asks: dict[str, str]) -> JsonObject:
    return {
        "name": name,
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", TELL],
        # The environment of an image for the NVIDIA runtime: all cards, unless it is replaced.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
        "resources": {"limits": asks},
    }


def pod(name: str, *containers: JsonObject) -> JsonObject:
    spec = {"restartPolicy": "Never", "containers": list(containers)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("asks", [{"nvidia.com/gpu": "1"}, {"kubernetes.io/gpu": "50"}], ids=["a card", "half a card"])
async def test_a_container_sees_the_card_that_its_pods_annotation_names_and_the_kubelet_drops_what_quotas_count(
    replicas: Replicas, node: Node, node_admin: AdminClient, node_namespace: str, asks: dict[str, str]
) -> None:
    none = {"nvidia.com/gpu": "0"}
    limits = [{"type": "Container", "max": {"nvidia.com/gpu": "2"}, "default": none, "defaultRequest": none}]
    about = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "cards"}, "spec": {"limits": limits}}
    await node_admin.create(f"/api/v1/namespaces/{node_namespace}/limitranges", about)
    pods, one = f"/api/v1/namespaces/{node_namespace}/pods", pod("one", container("main", asks))

    async def stated() -> bool:
        """Whether the replica knows what the namespace limits."""
        try:
            tried = await node_admin.create(pods, one, dryRun="All")
        except ApiError:
            return False
        return "quota.koordgate.io/gpu" in tried["spec"]["containers"][0]["resources"]["requests"]

    await until(stated, "Pods state what the namespace limits")
    await node_admin.create(pods, one)

    found = await node.phase(node_namespace, "one", "Succeeded")

    (share,) = allocated(found)
    assert share["id"] in GPUS
    requests = found["spec"]["containers"][0]["resources"]["requests"]
    assert "quota.koordgate.io/gpu" in requests  # which no node has
    assert await node.logs(node_namespace, "one", "main") == f"visible=[{share['id']}]\n"


async def test_a_card_out_of_service_takes_no_other_with_it_and_its_pod_survives_a_restart_of_the_kubelet(
    replicas: Replicas, node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    stays = {**container("main", {"nvidia.com/gpu": "1"}), "command": ["/bin/sh", "-c", "sleep 600"]}
    pods = f"/api/v1/namespaces/{node_namespace}/pods"
    await node_admin.create(pods, pod("first", stays))
    (share,) = allocated(await node.phase(node_namespace, "first", "Running"))
    try:
        await _publish(node, node_admin, bad=share["id"])
        await node.restart_kubelet()
        await node_admin.create(pods, pod("second", stays))
        (other,) = allocated(await node.phase(node_namespace, "second", "Running"))
        first = await node.phase(node_namespace, "first", "Running", "Failed")
        assert first["status"]["phase"] == "Running"
        assert {share["id"], other["id"]} == set(GPUS)
    finally:
        for name in ("first", "second"):
            await node_admin.delete(f"{pods}/{name}", gracePeriodSeconds="1")  # a shell's sleep heeds no signal to end
        await _publish(node, node_admin)


async def _publish(node: Node, admin: AdminClient, *, bad: str = "") -> None:
    """Publish the cards; one may be out of service and held whole."""
    body = _device_object(node.name)
    for entry in body["spec"]["devices"]:
        entry["health"] = entry["id"] != bad
    await admin.apply(body)
    devices = read_device_object(body).devices
    held = [Share("gpu", one.id, one.minor, one.capacity) for one in devices if one.id == bad]
    await node.set_capacity(dict(nodestatus.amounts(devices, BUILT_IN, held)))


async def test_a_container_that_asks_for_none_sees_void(
    replicas: Replicas, node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    both = pod("two", container("asks", {"kubernetes.io/gpu": "25"}), container("sidecar", {"cpu": "10m"}))
    await node_admin.create(f"/api/v1/namespaces/{node_namespace}/pods", both)

    found = await node.phase(node_namespace, "two", "Succeeded")

    assert await node.logs(node_namespace, "two", "asks") == f"visible=[{allocated(found)[0]['id']}]\n"
    assert await node.logs(node_namespace, "two", "sidecar") == "visible=[void]\n"


async def test_a_pod_bound_around_koordgate_sees_no_card(
    replicas: Replicas, node: Node, node_plane: ControlPlane, node_admin: AdminClient, node_namespace: str
) -> None:
    process = node_plane.process(NAME)
    process.kill()  # its own scheduler must not be quicker
    made = await node_admin.create(
        f"/api/v1/namespaces/{node_namespace}/pods", pod("around", container("main", {"kubernetes.io/gpu": "50"}))
    )
    await replicas.stop(0)  # the guard's outage stops no other binder, by default
    try:
        await node.bind(made)
        found = await node.phase(node_namespace, "around", "Succeeded")
    finally:
        await replicas.start(0)
        process.start()

    assert DEVICE_ALLOCATED not in found["metadata"]["annotations"]
    assert json.loads(found["metadata"]["annotations"]["koordgate.io/original-request"])
    assert await node.logs(node_namespace, "around", "main") == "visible=[]\n"
