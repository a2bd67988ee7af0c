"""Which requests the API server itself sends to the webhooks: with none of them running, those are refused."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import DEVICE_ALLOCATED, binding, pod, pods_path

from allocator.cpu.qos import QOS_LABEL
from allocator.names import RESOURCE_STATUS, visible_devices
from allocator.wire.resourcespec import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC
from koordgate.localplane import chart
from koordgate.localplane.admin import JSON_PATCH, AdminClient, ApiError, JsonObject
from koordgate.localplane.binaries import Binaries
from koordgate.localplane.plane import ControlPlane
from koordgate.localplane.waiting import until

QUEUE = {"name": "queue", "resource": "example.com/queue", "unit": "units"}
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/koordgate"
CPU = {"cpu": "100m"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def down(plane: ControlPlane, binaries: Binaries, installed: list[JsonObject]) -> AsyncIterator[None]:
    """The chart with a type of its own, and no webhook behind it."""
    await chart.install(plane, chart.render(binaries, {"devices": {"types": [QUEUE]}}))
    await plane.ensure_namespace("down")

    async with plane.admin() as admin:

        async def seen() -> bool:
            return await refused(admin, asking({"example.com/queue": "1"}))

        await until(seen, "the API server goes by the new match conditions")
    yield
    await chart.install(plane, installed)


def asking(asks: dict[str, str], **spec: Any) -> JsonObject:
    return pod("asking", "down", asks, **spec)


def saying(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> JsonObject:
    made = pod("saying", "down", CPU)
    made["metadata"] |= {"labels": labels or {}, "annotations": annotations or {}}
    return made


def first(asks: dict[str, str]) -> JsonObject:
    """What an init container asks for."""
    resources = {"requests": asks, "limits": asks}
    return asking(CPU, initContainers=[{"name": "first", "image": "none", "resources": resources}])


async def refused(admin: AdminClient, made: JsonObject) -> bool:
    """Try to create a Pod; tell whether that was refused because the webhook for Pods was not reached."""
    try:
        await admin.create(pods_path("down"), made, dryRun="All")
    except ApiError as error:
        assert 'failed calling webhook "pods.mutate.koordgate.io"' in error.message, error.message
        return True
    return False


@pytest.mark.parametrize(
    "made",
    [
        asking({"nvidia.com/gpu": "1"}),
        asking({"kubernetes.io/rdma": "50"}),
        asking({"koordinator.sh/rdma": "100"}),
        asking({"kubernetes.io/fpga": "100"}),
        asking({"example.com/queue": "3"}),
        first({"example.com/queue": "3"}),
        first({"koordinator.sh/fpga": "200"}),
        saying({QOS_LABEL: "LSR"}),
        saying({QOS_LABEL: "LSE"}),
        saying({QOS_LABEL: "unheard-of"}),
        saying({QOS_LABEL: "LS"}, {RESOURCE_SPEC: "{}"}),
        saying(annotations={NUMA_TOPOLOGY_SPEC: "{}"}),
        saying(annotations={RESOURCE_STATUS: "{}"}),
        saying(annotations={visible_devices("main", "queue"): "fast"}),
    ],
    ids=lambda made: str(made["metadata"].get("annotations") or made["metadata"].get("labels") or "asks"),
)
async def test_a_pod_of_ours_is_sent(down: None, admin: AdminClient, made: JsonObject) -> None:
    assert await refused(admin, made)


@pytest.mark.parametrize(
    "made",
    [
        pod("plain", "down", CPU),
        pod("none", "down", {}),
        pod("other", "down", {"example.com/other": "1", "amd.com/gpu": "1"}),
        *(saying({QOS_LABEL: qos}) | {} for qos in ("LS", "BE", "SYSTEM", "")),
        saying({"app": "LSR"}, {"example.com/note": "x", "koordgate.io/device-order": "minor"}),
    ],
    ids=lambda made: str(made["metadata"].get("labels") or made["metadata"]["name"]),
)
async def test_an_ordinary_pod_is_created(down: None, admin: AdminClient, made: JsonObject) -> None:
    await admin.create(pods_path("down"), made)

    name = made["metadata"]["name"]
    assert await admin.get(pods_path("down", name))
    await admin.delete(pods_path("down", name), gracePeriodSeconds="0")
