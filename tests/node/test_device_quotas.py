"""What containers that share a card find in their environment on a real node: their quotas, as the bind wrote them."""

import json

import pytest_asyncio
from controlplane.gpu_cluster import allocated
from node import images
from node.harness import Node

from localplane.admin import AdminClient, JsonObject
from localplane.plane import ControlPlane
from localplane.replicas import Replicas

GIB = 2**30
GPUS = ("GPU-1c1b6a1e-0d0f-4a55-9f0e-5b1f2f7f7b01", "GPU-2d2b6a1e-0d0f-4a55-9f0e-5b1f2f7f7b02")
TELL = 'echo "$NVIDIA_VISIBLE_DEVICES $KOORDGATE_GPU_MEMORY_BYTES $KOORDGATE_GPU_CORE_PERCENT"'


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(node: Node, node_plane: ControlPlane, node_replicas: Replicas) -> Replicas:
    """koordgate as installed, and two cards of 16 GiB as a reporter would publish them."""
    amounts = {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu-memory": "16Gi"}
    resources = {f"kubernetes.io/{tail}": amount for tail, amount in amounts.items()}
    devices = [
        {"type": "gpu", "id": uuid, "minor": minor, "health": True, "resources": resources}
        for minor, uuid in enumerate(GPUS)
    ]
    async with node_plane.admin() as admin:
        await admin.apply(
            {
                "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                "kind": "Device",
                "metadata": {"name": node.name},
                "spec": {"devices": devices},
            }
        )
    totals = {"gpu-core": "200", "gpu-memory-ratio": "200", "gpu-memory": "32Gi"}
    await node.set_capacity({f"kubernetes.io/{tail}": amount for tail, amount in totals.items()})
    return node_replicas


def container(name: str, asks: dict[str, str] | None = None) -> JsonObject:
    made = {"name": name, "image": images.BUSYBOX, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", TELL]}
    return {**made, **({"resources": {"limits": asks}} if asks else {})}


def pod(name: str, said: JsonObject, *apps: JsonObject, init: tuple[JsonObject, ...] = ()) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"koordgate.io/device-sharing": json.dumps({"gpu": said})}},
        "spec": {"restartPolicy": "Never", "containers": list(apps), "initContainers": list(init)},
    }


async def told(node: Node, namespace: str, found: JsonObject) -> dict[str, str]:
    """What each container of a Pod printed."""
    name = found["metadata"]["name"]
    of = [*found["spec"].get("initContainers", ()), *found["spec"]["containers"]]
    return {one["name"]: (await node.logs(namespace, name, one["name"])).strip() for one in of}


async def test_users_of_a_slot_find_their_parts_in_bytes_and_percent(
    replicas: Replicas, node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    said = {"users": ["first", "trainer", "loader", "tiny"], "weights": {"trainer": 600, "loader": 200}, "slot": 50}
    apps = [container(name) for name in ("trainer", "loader", "tiny", "none")]
    made = pod("users", said, *apps, init=(container("first"),))
    await node_admin.create(f"/api/v1/namespaces/{node_namespace}/pods", made)

    found = await node.phase(node_namespace, "users", "Succeeded")

    (share,) = allocated(found)
    words = await told(node, node_namespace, found)
    assert words["first"] == f"{share['id']} {8 * GIB} 50"  # alone in its region
    assert words["none"] == "void"
    split = {name: words[name].split() for name in ("trainer", "loader", "tiny")}
    assert sum(int(memory) for _, memory, _ in split.values()) == 8 * GIB
    assert [core for _, _, core in split.values()] == ["37", "13", "none"]  # of 50: 37.45, 12.48 and 0.06


async def test_containers_that_state_amounts_find_these_and_nothing_of_what_they_do_not_state(
    replicas: Replicas, node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    asks = {
        "a": {"kubernetes.io/gpu-core": "25", "kubernetes.io/gpu-memory": "4Gi"},
        "b": {"kubernetes.io/gpu-memory": "4Gi"},
    }
    made = pod("stated", {}, *(container(name, amounts) for name, amounts in asks.items()))
    await node_admin.create(f"/api/v1/namespaces/{node_namespace}/pods", made)

    found = await node.phase(node_namespace, "stated", "Succeeded")

    (share,) = allocated(found)
    words = await told(node, node_namespace, found)
    assert words == {"a": f"{share['id']} {4 * GIB} 25", "b": f"{share['id']} {4 * GIB} none"}


async def test_whole_cards_that_are_shared_have_an_entry_each(
    replicas: Replicas, node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    made = pod("cards", {}, container("a", {"nvidia.com/gpu": "1"}), container("b", {"nvidia.com/gpu": "1"}))
    await node_admin.create(f"/api/v1/namespaces/{node_namespace}/pods", made)

    found = await node.phase(node_namespace, "cards", "Succeeded")

    half = f"{8 * GIB},{8 * GIB} 50,50"
    assert await told(node, node_namespace, found) == dict.fromkeys("ab", f"{','.join(GPUS)} {half}")
