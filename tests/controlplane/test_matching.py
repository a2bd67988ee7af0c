"""Which requests the API server itself sends to the webhooks: none of them runs, so these requests are refused."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import DEVICE_ALLOCATED, binding, pod, pods_path

from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary.names import NUMA_SCOPE, OWN_CPUS, RESOURCE_STATUS, visible_devices
from allocator.wire.nodetopology import NodeTopology, NumaZone, write_node_topology
from allocator.wire.podannotations import RESOURCE_SPEC
from localplane import chart
from localplane.admin import JSON_PATCH, STRATEGIC_PATCH, AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.waiting import until

QUEUE = {"name": "queue", "resource": "example.com/queue", "unit": "units"}
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/koordgate"
VALIDATING = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/koordgate"
CPU = {"cpu": "100m"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def down(plane: ControlPlane, binaries: Binaries, installed: list[JsonObject]) -> AsyncIterator[None]:
    """The chart with a type of its own, and no webhook behind it; its policies only take notes."""
    scope = {"namespaces": ["scoped"], "selector": {"example.com/numa": "aligned"}}
    policies = {name: {"action": "Audit"} for name in ("visibleDevices", "presetNode", "allocations", "bindings")}
    values = {"devices": {"types": [QUEUE]}, "numa": {"scope": scope}, "policies": policies}
    await chart.install(plane, chart.render(binaries, values))
    await plane.ensure_namespace("scoped")
    await plane.ensure_namespace("down")

    async with plane.admin() as admin:
        await admin.create(pods_path("down"), pod("early", "down", CPU))
        forged = {"metadata": {"annotations": {DEVICE_ALLOCATED: "{}"}}}

        async def seen() -> bool:
            try:
                told = await unreached(admin.patch(pods_path("down", "early"), forged, dryRun="All"))
            except ApiError:  # a policy that does more than take notes
                return False
            return bool(told) and await refused(admin, asking({"example.com/queue": "1"}))

        await until(seen, "the API server goes by the new match conditions, and by the policies that take notes")
        await admin.delete(pods_path("down", "early"), {"gracePeriodSeconds": 0})
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


async def unreached(request: Awaitable[JsonObject]) -> str:
    """The webhook by which a request failed, because nobody answers there; empty if it did not fail."""
    try:
        await request
    except ApiError as error:
        name = error.message.partition('failed calling webhook "')[2].partition('"')[0]
        if name:
            return name
        raise
    return ""


async def refused(admin: AdminClient, made: JsonObject) -> bool:
    """Try to create a Pod; tell whether the webhook for Pods is asked about it."""
    path = pods_path(made["metadata"]["namespace"])
    return bool(await unreached(admin.create(path, made, dryRun="All")))


@pytest.mark.parametrize(
    "made",
    [
        asking({"nvidia.com/gpu": "1"}),
        asking({"kubernetes.io/rdma": "50"}),
        asking({"example.com/queue": "3"}),
        first({"example.com/queue": "3"}),
        saying({QOS_LABEL: "LSR"}),
        saying({QOS_LABEL: "unheard-of"}),
        saying({QOS_LABEL: "SYSTEM"}, {RESOURCE_SPEC: "{}"}),
        saying(annotations={NUMA_SCOPE: "true"}),
        saying(annotations={OWN_CPUS: "main"}),
        saying({"example.com/numa": "aligned"}),
        pod("scoped", "scoped", CPU),
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
        *(saying({QOS_LABEL: qos}) for qos in ("SYSTEM", "")),
        saying({"app": "LSR"}, {"example.com/note": "x", "koordgate.io/device-order": "minor"}),
        saying({"example.com/numa": "other"}),
        pod("none", "scoped", {}),
        pod("other", "scoped", {"example.com/other": "1"}),
    ],
    ids=lambda made: str(made["metadata"].get("labels") or made["metadata"]["name"]),
)
async def test_an_ordinary_pod_is_created(down: None, admin: AdminClient, made: JsonObject) -> None:
    namespace, name = made["metadata"]["namespace"], made["metadata"]["name"]
    await admin.create(pods_path(namespace), made)

    assert await admin.get(pods_path(namespace, name))
    await admin.delete(pods_path(namespace, name), gracePeriodSeconds="0")


def large(annotations: int, containers: int, resources: int) -> JsonObject:
    made = pod("large", "down", {})
    made["metadata"]["annotations"] = {f"example.com/{number}": "" for number in range(annotations)}
    asks = {f"example.com/{number}": "1" for number in range(resources)}
    resources_of = {"requests": asks, "limits": asks}
    made["spec"]["containers"] = [
        {"name": f"c{number}", "image": "none", "resources": resources_of} for number in range(containers)
    ]
    return made


@pytest.mark.parametrize(
    ("made", "sent"),
    [
        (large(1000, 1, 1), False),
        (large(1001, 1, 1), True),
        (large(0, 200, 50), False),
        (large(0, 1, 51), True),
        (large(10_000, 1, 1), True),
    ],
    ids=["annotations", "more annotations", "containers", "more resources", "absurd"],
)
async def test_the_conditions_cost_no_more_than_the_api_server_allows(
    down: None, admin: AdminClient, made: JsonObject, *, sent: bool
) -> None:
    """If they did, ordinary Pods would be refused, with another message."""
    assert await refused(admin, made) is sent


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_an_update_is_sent_if_it_changes_what_was_decided_on(
    down: None, admin: AdminClient, subresource: str
) -> None:
    await admin.create(pods_path("down"), pod("kept", "down", CPU))
    path = pods_path("down", "kept", subresource)
    try:
        await admin.patch(path, {"metadata": {"labels": {QOS_LABEL: "LS"}, "annotations": {"note": "x"}}})
        await admin.patch(path, {"metadata": {"labels": {QOS_LABEL: "BE"}, "annotations": {"note": None}}})
        for labels, annotations in (
            ({QOS_LABEL: "LSR"}, {}),
            ({QOS_LABEL: "LSE"}, {}),
            ({}, {DEVICE_ALLOCATED: "{}"}),
            ({}, {RESOURCE_STATUS: "{}"}),
            ({}, {NUMA_SCOPE: "true"}),
            ({}, {OWN_CPUS: "main"}),
            ({}, {visible_devices("main"): "GPU-1"}),
            ({}, {visible_devices("main", "queue"): "fast"}),
        ):
            with pytest.raises(ApiError, match=r'failed calling webhook \"pods\.validate\.koordgate\.io"'):
                await admin.patch(path, {"metadata": {"labels": labels, "annotations": annotations}})
    finally:
        await admin.delete(pods_path("down", "kept"), gracePeriodSeconds="0")


async def create_around_the_webhooks(admin: AdminClient, made: JsonObject) -> None:
    """Create a Pod while the API server knows no webhook."""
    hooks = {path: (await admin.get(path))["webhooks"] for path in (MUTATING, VALIDATING)}
    for path in hooks:
        await admin.patch(path, {"webhooks": None})

    async def let_through() -> bool:
        return not await refused(admin, made)

    try:
        await until(let_through, "the API server does without the webhooks")
        await admin.create(pods_path("down"), made)
    finally:
        for path, kept in hooks.items():
            await admin.patch(path, {"webhooks": kept})


@pytest.mark.parametrize("qos", ["LSR", "LS"])
async def test_a_resize_is_sent_if_the_pod_has_cpus_of_its_own(down: None, admin: AdminClient, qos: str) -> None:
    made = saying({QOS_LABEL: qos})
    await create_around_the_webhooks(admin, made)
    status = pods_path("down", "saying", "status")

    async def sent_again() -> bool:
        forged = admin.patch(status, {"metadata": {"annotations": {DEVICE_ALLOCATED: "{}"}}}, dryRun="All")
        return bool(await unreached(forged)) and await refused(admin, made)

    await until(sent_again, "the API server knows the webhooks again")
    more = {"cpu": "200m"}
    resources = {"spec": {"containers": [{"name": "main", "resources": {"requests": more, "limits": more}}]}}
    resize = admin.patch(pods_path("down", "saying", "resize"), resources, STRATEGIC_PATCH, dryRun="All")
    assert await unreached(resize) == ("" if qos == "LS" else "pods.validate.koordgate.io")
    await admin.delete(pods_path("down", "saying"), gracePeriodSeconds="0")


async def test_of_our_schedulers_bindings_only_those_without_an_allocation_are_checked_again(
    down: None, plane: ControlPlane, admin: AdminClient
) -> None:
    """The mutating webhook is removed; otherwise it would have seen each of them."""
    hooks = (await admin.get(MUTATING))["webhooks"]
    (at,) = (index for index, hook in enumerate(hooks) if hook["name"] == "bindings.mutate.koordgate.io")
    await admin.create(pods_path("down"), pod("bound", "down", CPU))
    await admin.patch(MUTATING, [{"op": "remove", "path": f"/webhooks/{at}"}], JSON_PATCH)
    async with plane.admin(await plane.service_account_token(chart.NAMESPACE, "koord-scheduler")) as scheduler:

        async def checked(annotations: dict[str, str]) -> str:
            """The webhook that was not reached; empty for none."""
            made = binding("down", "bound", "nowhere")
            made["metadata"]["annotations"] = annotations
            return await unreached(scheduler.create(pods_path("down", "bound", "binding"), made, dryRun="All"))

        async def taken_away() -> bool:
            return await checked({"note": "x"}) == "bindings.validate.koordgate.io"

        await until(taken_away, "the API server does without the mutating webhook")
        assert await checked({}) == "bindings.validate.koordgate.io"
        assert await checked({DEVICE_ALLOCATED: "{}"}) == ""
        assert await checked({RESOURCE_STATUS: "{}"}) == ""
    await admin.delete(pods_path("down", "bound"), gracePeriodSeconds="0")


async def test_a_node_topology_is_stored_whole(installed: list[JsonObject], admin: AdminClient) -> None:
    zone = NumaZone({"cpu": 31_500, "memory": 2**36}, {"cpu": 32_000, "memory": 2**37})
    written = write_node_topology(NodeTopology("stored", zones={0: zone}))
    written["zones"][0]["costs"] = [{"name": "node-0", "value": 10}]

    path = f"/apis/{written['apiVersion']}/noderesourcetopologies"
    await admin.create(path, written)

    stored = await admin.get(f"{path}/stored")
    assert {key: stored[key] for key in ("topologyPolicies", "zones")} == {
        key: written[key] for key in ("topologyPolicies", "zones")
    }
    await admin.delete(f"{path}/stored")
