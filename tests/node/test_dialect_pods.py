"""What containers of Pods in each dialect find in their environment on a real node, as the kubelet resolves it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import allocated
from dialects.rows import ALWAYS
from node import images
from node.harness import Node

from allocator.vocabulary.dialects import PEERS
from allocator.vocabulary.names import DEVICE_QUOTAS
from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.replicas import Replicas

MIB, GIB = 2**20, 2**30
GPUS = ("GPU-3e3b6a1e-0d0f-4a55-9f0e-5b1f2f7f7b01", "GPU-4f4b6a1e-0d0f-4a55-9f0e-5b1f2f7f7b02")
CARD = 16 * GIB
TELL = 'echo "$NVIDIA_VISIBLE_DEVICES|$KOORDGATE_GPU_MEMORY_BYTES|$KOORDGATE_GPU_CORE_PERCENT"'
VENDOR = "node.koordinator.sh/gpu-vendor"
UNITS = {"elastic-gpu": "1Mi"}


@pytest.fixture(scope="module")
def node_chart(node_binaries: Binaries, node_values: JsonObject) -> list[JsonObject]:
    """The chart for the node, with every dialect on, and with quotas in the environment of each container."""
    dialects = {
        one.name: {"enabled": True} | ({"memoryUnit": UNITS[one.name]} if one.name in UNITS else {}) for one in PEERS
    }
    return chart.render(node_binaries, {**node_values, "dialects": dialects, "devices": {"quotaEnvironment": True}})


def device_object(node: str, vendor: str) -> JsonObject:
    """Two cards of 16 GiB as a reporter would publish them."""
    amounts = {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu-memory": "16Gi"}
    resources = {f"kubernetes.io/{tail}": amount for tail, amount in amounts.items()}
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node, "labels": {VENDOR: vendor}},
        "spec": {
            "devices": [
                {"type": "gpu", "id": uuid, "minor": minor, "health": True, "resources": resources}
                for minor, uuid in enumerate(GPUS)
            ]
        },
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(node: Node, node_replicas: Replicas) -> Replicas:
    """koordgate as installed, and the node's capacity as a reporter would state it."""
    totals = {"gpu-core": "200", "gpu-memory-ratio": "200", "gpu-memory": "32Gi"}
    await node.set_capacity({f"kubernetes.io/{tail}": amount for tail, amount in totals.items()})
    return node_replicas


@dataclass(frozen=True)
class Told:
    """What a container is to find: of how many cards, and of each the bytes and the percent ("unlimited")."""

    cards: int
    memory: int
    core: int | str


NOBODY = Told(0, 0, 0)


@dataclass(frozen=True)
class Case:
    """A Pod of an init container, a sidecar and two apps: what each asks for, and what it is to find.

    Containers that ask for nothing are not named.
    """

    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    told: Mapping[str, Told] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    vendor: str = "nvidia"


HAMI, VGPU = "nvidia.com/gpu", "volcano.sh/vgpu-"
ELASTIC = "elasticgpu.io/gpu-"
CASES = {
    "koordinator": Case(
        {"first": {"koordinator.sh/gpu": 100}, "main": {"koordinator.sh/gpu": 50}},
        {"first": Told(1, CARD, 100), "main": Told(1, CARD // 2, 50)},
    ),
    "nvidia": Case(
        {"side": {"nvidia.com/gpu": 1}, "main": {"nvidia.com/gpu": 1}},
        {"side": Told(1, CARD, 100), "main": Told(1, CARD, 100)},
    ),
    "hami": Case(
        {"first": {f"{HAMI}mem": 1000}, "main": {HAMI: 2, f"{HAMI}mem": 3000, f"{HAMI}cores": 30}},
        {"first": Told(1, 1000 * MIB, "unlimited"), "main": Told(2, 3000 * MIB, 30)},
    ),
    "volcano": Case(
        {
            "side": {f"{VGPU}number": 1, f"{VGPU}memory": 1000},
            "main": {f"{VGPU}number": 2, f"{VGPU}memory": 3000, f"{VGPU}cores": 50},
        },
        {"side": Told(1, 1000 * MIB, "unlimited"), "main": Told(2, 3000 * MIB, 50)},
    ),
    "volcano-share": Case(
        {
            "first": {"volcano.sh/gpu-memory": 8192},
            "side": {"volcano.sh/gpu-memory": 2048},
            "main": {"volcano.sh/gpu-memory": 4096},
        },
        {
            "first": Told(1, 8 * GIB, "unlimited"),
            "side": Told(1, 2 * GIB, "unlimited"),
            "main": Told(1, 4 * GIB, "unlimited"),
        },
    ),
    "gpushare": Case(
        {"first": {"aliyun.com/gpu-mem": 2}, "main": {"aliyun.com/gpu-mem": 3}},
        {"first": Told(1, 2 * GIB, "unlimited"), "main": Told(1, 3 * GIB, "unlimited")},
    ),
    "kai": Case(
        told={"main": Told(2, CARD // 2, 50)},
        annotations={
            "gpu-fraction": "0.5",
            "gpu-fraction-num-devices": "2",
            "gpu-fraction-container-name": "main",
        },
    ),
    "tencent": Case(
        {"main": {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 30}},
        {"main": Told(1, 30 * 256 * MIB, 50)},
    ),
    "elastic-gpu": Case(
        {"main": {f"{ELASTIC}core": 30, f"{ELASTIC}memory": 1024}},
        {"main": Told(1, GIB, 30)},
    ),
    "amd": Case({"main": {"amd.com/gpu": 2}}, {"main": Told(2, CARD, 100)}, vendor="amd"),
    "dcu": Case({"main": {"dcu.com/gpu": 1}}, {"main": Told(1, CARD, 100)}, vendor="hygon"),
}


def container(name: str, asks: Mapping[str, int] | None, then: str = "") -> JsonObject:
    resources = {"limits": {key: str(amount) for key, amount in asks.items()}} if asks else {}
    made: JsonObject = {"name": name, "image": images.BUSYBOX, "imagePullPolicy": "Never", "resources": resources}
    # The environment of an image for the NVIDIA runtime: all cards, unless it is replaced.
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return {**made, "env": env, "command": ["/bin/sh", "-c", f"{TELL}{then}"]}


def pod(case: Case) -> JsonObject:
    stays = '; trap "exit 0" TERM; while true; do sleep 0.1; done'
    first = container("first", case.limits.get("first"))
    side = {**container("side", case.limits.get("side"), stays), "restartPolicy": "Always"}
    apps = [container(name, case.limits.get(name)) for name in ("main", "bare")]
    spec = {"restartPolicy": "Never", "initContainers": [first, side], "containers": apps}
    metadata = {"name": "p", "annotations": dict(case.annotations)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def test_there_is_a_pod_of_each_dialect() -> None:
    assert CASES.keys() == {*(one.name for one in PEERS), *ALWAYS} - {"npu", "mig"}  # neither has a variable


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_each_container_finds_its_cards_and_its_part_of_them(
    replicas: Replicas,
    node: Node,
    node_plane: ControlPlane,
    node_admin: AdminClient,
    node_namespace: str,
    case: Case,
) -> None:
    await node_admin.apply(device_object(node.name, case.vendor))
    await node_admin.create(f"/api/v1/namespaces/{node_namespace}/pods", pod(case))

    found = await node.phase(node_namespace, "p", "Succeeded")

    quotas: dict[str, Any] = json.loads(found["metadata"]["annotations"][DEVICE_QUOTAS])
    held = {share["id"] for share in allocated(found)}
    for name in ("first", "side", "main", "bare"):
        visible, memory, core = (await node.logs(node_namespace, "p", name)).strip().split("|")
        wanted = case.told.get(name, NOBODY)
        if not wanted.cards:
            assert (visible, memory, core) == ("void", "", ""), name
            assert name not in quotas
            continue
        ids = visible.split(",")
        assert len(set(ids)) == len(ids) == wanted.cards, name
        assert set(ids) <= held
        assert memory.split(",") == [str(wanted.memory)] * wanted.cards, name
        assert core.split(",") == [str(wanted.core)] * wanted.cards, name
        assert [one["id"] for one in quotas[name]["gpu"]] == ids
