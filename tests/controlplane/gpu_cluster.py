"""GPU nodes and Pods on a real API server, and an auditor that counts from Pod annotations alone."""

import json
from collections import defaultdict
from typing import Any

from koordgate.localplane.admin import AdminClient, JsonObject
from koordgate.localplane.plane import ControlPlane

GIB = 2**30
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
ALLOCATIONS = "/apis/koordgate.io/v1alpha1/nodeallocations"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def uuid_of(node: str, minor: int) -> str:
    return f"GPU-{node}-{minor}"


async def add_gpu_node(
    plane: ControlPlane, admin: AdminClient, name: str, gpus: int, gib: int = 80, domain: str = "kubernetes.io"
) -> None:
    capacity = {
        "cpu": "128",
        "memory": "1Ti",
        "pods": "250",
        f"{domain}/gpu-core": str(100 * gpus),
        f"{domain}/gpu-memory-ratio": str(100 * gpus),
        f"{domain}/gpu-memory": f"{gib * gpus}Gi",
    }
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": uuid_of(name, minor),
                    "minor": minor,
                    "health": True,
                    "resources": {
                        f"{domain}/gpu-core": "100",
                        f"{domain}/gpu-memory-ratio": "100",
                        f"{domain}/gpu-memory": f"{gib}Gi",
                    },
                }
                for minor in range(gpus)
            ]
        },
    }
    await admin.apply(device)
    await plane.add_node(name, capacity)


def pod(name: str, namespace: str, asks: dict[str, str], **spec: Any) -> JsonObject:
    container = {"name": "main", "image": "none", "resources": {"requests": asks, "limits": asks}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def pods_path(namespace: str, name: str = "", subresource: str = "") -> str:
    return "/".join(filter(None, (f"/api/v1/namespaces/{namespace}/pods", name, subresource)))


def binding(namespace: str, name: str, node: str, uid: str | None = None) -> JsonObject:
    metadata = {"name": name, "namespace": namespace}
    if uid is not None:
        metadata["uid"] = uid
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def allocated(found: JsonObject) -> list[JsonObject]:
    return json.loads(found["metadata"]["annotations"][DEVICE_ALLOCATED])["gpu"]


async def audit(admin: AdminClient) -> dict[str, dict[str, int]]:
    """Count, from the annotations of live Pods and nothing else, what each GPU gave; fail where one gave too much."""
    used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for found in await admin.items("/api/v1/pods"):
        annotations = found["metadata"].get("annotations") or {}
        if DEVICE_ALLOCATED not in annotations or found.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            continue
        shares = allocated(found)
        assert len({share["id"] for share in shares}) == len(shares), f"{found['metadata']['name']} has one GPU twice"
        for share in shares:
            assert share["id"].startswith(f"GPU-{found['spec']['nodeName']}-"), "a GPU of another node"
            for name, amount in share["resources"].items():
                if not name.endswith("/gpu-memory"):
                    used[share["id"]][name.rpartition("/")[2]] += int(amount)
    over = {gpu: dict(sums) for gpu, sums in used.items() if any(amount > 100 for amount in sums.values())}
    assert not over, f"over-allocated: {over}"
    return {gpu: dict(sums) for gpu, sums in used.items()}


async def ledger(admin: AdminClient) -> dict[str, dict[str, list[JsonObject]]]:
    """The ledger as it stands: node -> Pod UID -> devices."""
    return {
        record["metadata"]["name"]: {held["uid"]: held["devices"] for held in record["spec"].get("allocations") or ()}
        for record in await admin.items(ALLOCATIONS)
    }
