"""The main job on a real API server and kube-scheduler, installed from the chart, with the chart's own rights."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    DEVICE_ALLOCATED,
    add_gpu_node,
    allocated,
    audit,
    bind_at_last,
    binding,
    ledger,
    pod,
    pods_path,
    uuid_of,
)

from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

VISIBLE = "visible-devices.koordgate.io/main"


@pytest_asyncio.fixture(loop_scope="session")
async def node(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[str]:
    name = f"{namespace}-gpu"
    await add_gpu_node(plane, admin, name, gpus=4)
    yield name
    for found in await admin.items("/api/v1/pods", fieldSelector=f"spec.nodeName={name}"):
        await admin.delete(pods_path(found["metadata"]["namespace"], found["metadata"]["name"]))
    await admin.delete(f"/api/v1/nodes/{name}")
    await admin.delete(f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{name}")


async def bound(admin: AdminClient, namespace: str, name: str) -> JsonObject:
    async def is_bound() -> JsonObject | None:
        found = await admin.get(pods_path(namespace, name))
        return found if found["spec"].get("nodeName") else None

    return await until(is_bound, f"Pod {namespace}/{name} is bound")


async def test_a_pod_is_translated_scheduled_and_bound_with_its_devices(
    lone_scheduler, admin: AdminClient, namespace: str, node: str
) -> None:
    asks = {"nvidia.com/gpu": "2"}
    translated = {"gpu-core": "200", "gpu-memory-ratio": "200", "gpu-memory": "160Gi"}
    made = pod("one", namespace, asks, nodeSelector={})

    async def sized() -> bool:
        """Whether the replica knows cards: only then it states memory."""
        tried = await admin.create(pods_path(namespace), made, dryRun="All")
        return "kubernetes.io/gpu-memory" in tried["spec"]["containers"][0]["resources"]["limits"]

    await until(sized, "the replica has seen the node's cards")
    created = await admin.create(pods_path(namespace), made)
    wanted = {f"kubernetes.io/{tail}": amount for tail, amount in translated.items()}
    resources = created["spec"]["containers"][0]["resources"]
    assert resources == {"requests": wanted, "limits": wanted}
    assert created["spec"]["schedulerName"] == "koord-scheduler"
    original = json.loads(created["metadata"]["annotations"]["koordgate.io/original-request"])
    assert original == {"main": {"requests": asks, "limits": asks}}

    found = await bound(admin, namespace, "one")

    shares = allocated(found)
    assert found["metadata"]["annotations"][VISIBLE] == ",".join(share["id"] for share in shares)
    assert (await audit(admin))[shares[0]["id"]]["gpu-core"] > 0
    held = (await ledger(admin))[found["spec"]["nodeName"]][found["metadata"]["uid"]]
    assert [device["id"] for device in held] == [share["id"] for share in shares]


async def test_no_event_shows_a_pod_bound_and_not_allocated(
    lone_scheduler, admin: AdminClient, namespace: str, node: str
) -> None:
    events: list[JsonObject] = []

    async def watch() -> None:
        async for event in admin.watch(pods_path(namespace)):
            events.append(event)
            if event["object"]["spec"].get("nodeName"):
                return

    watching = asyncio.create_task(watch())
    await admin.create(pods_path(namespace), pod("watched", namespace, {"kubernetes.io/gpu": "50"}))
    await asyncio.wait_for(watching, 60)

    for event in events:
        about = event["object"]
        assert bool(about["spec"].get("nodeName")) == (DEVICE_ALLOCATED in about["metadata"].get("annotations", {}))


@pytest.mark.parametrize(
    ("who", "subresource"),
    [("admin", False), ("koord-scheduler-impostor", True)],
    ids=["an administrator by bindings", "an impostor by pods/binding"],
)
async def test_a_foreign_binding_is_refused(
    webhook: Replicas,
    plane: ControlPlane,
    admin: AdminClient,
    namespace: str,
    node: str,
    who: str,
    subresource: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    created = await admin.create(pods_path(namespace), pod("guarded", namespace, {"kubernetes.io/gpu": "50"}))
    path = pods_path(namespace, "guarded", "binding") if subresource else f"/api/v1/namespaces/{namespace}/bindings"
    account = "admin"
    client = admin
    if who != "admin":
        account = who
        await _impostor(admin, namespace, who)
        client = plane.admin(await plane.service_account_token(namespace, who))
        await client.__aenter__()
        await until(lambda: _may_bind(client), "the API server has seen the impostor's rights")
    try:
        with pytest.raises(ApiError) as refused:
            await client.create(path, binding(namespace, "guarded", node, created["metadata"]["uid"]))
    finally:
        if client is not admin:
            await client.__aexit__(None, None, None)
    assert refused.value.status == 403
    assert "koord-scheduler may bind it" in refused.value.message
    assert account.split("-")[0] in refused.value.message or account == "admin"
    assert not (await admin.get(pods_path(namespace, "guarded")))["spec"].get("nodeName")


async def _impostor(admin: AdminClient, namespace: str, name: str) -> None:
    """An account whose name contains the scheduler's, with every right to bind."""
    metadata = {"name": name, "namespace": namespace}
    await admin.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    await admin.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{namespace}-{name}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
    )


async def _may_bind(client: AdminClient) -> bool:
    what = {"verb": "create", "resource": "pods", "subresource": "binding"}
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    review = {**kind, "spec": {"resourceAttributes": what}}
    answer = await client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


async def test_the_schedulers_own_binding_by_the_old_resource_is_refused(
    webhook: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, node: str
) -> None:
    await admin.create(pods_path(namespace), pod("old", namespace, {"kubernetes.io/gpu": "50"}))
    async with plane.admin(await plane.service_account_token("koordgate-system", "koord-scheduler")) as scheduler:
        with pytest.raises(ApiError, match=r"may bind by the subresource pods/binding only|cannot create resource"):
            await scheduler.create(f"/api/v1/namespaces/{namespace}/bindings", binding(namespace, "old", node))


async def test_a_deleted_pod_frees_its_share(lone_scheduler, admin: AdminClient, namespace: str, node: str) -> None:
    await admin.create(pods_path(namespace), pod("first", namespace, {"nvidia.com/gpu": "4"}))
    first = await bound(admin, namespace, "first")
    await admin.create(pods_path(namespace), pod("second", namespace, {"nvidia.com/gpu": "4"}))

    async def waits() -> bool:
        found = await admin.get(pods_path(namespace, "second"))
        return any(c.get("reason") == "Unschedulable" for c in found["status"].get("conditions") or ())

    await until(waits, "the second Pod is found unschedulable")
    await admin.delete(pods_path(namespace, "first"), gracePeriodSeconds="0")

    second = await bound(admin, namespace, "second")
    assert {share["id"] for share in allocated(second)} == {uuid_of(node, minor) for minor in range(4)}

    async def freed() -> bool:
        return first["metadata"]["uid"] not in (await ledger(admin))[node]

    await until(freed, "the ledger forgets the deleted Pod")


async def test_a_dry_run_binds_and_records_nothing(
    webhook: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, node: str
) -> None:
    created = await admin.create(pods_path(namespace), pod("dry", namespace, {"kubernetes.io/gpu": "50"}))
    async with plane.admin(await plane.service_account_token("koordgate-system", "koord-scheduler")) as scheduler:
        body = binding(namespace, "dry", node, created["metadata"]["uid"])
        await bind_at_last(scheduler, namespace, "dry", body, dryRun="All")
    assert created["metadata"]["uid"] not in (await ledger(admin)).get(node, {})
    assert not (await admin.get(pods_path(namespace, "dry")))["spec"].get("nodeName")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: p["spec"].update(nodeName="somewhere"), "spec.nodeName"),
        (lambda p: p["metadata"].update(annotations={DEVICE_ALLOCATED: "{}"}), "leave them out"),
        (lambda p: p["spec"]["containers"][0].update(resources={"limits": {"kubernetes.io/gpu": "250"}}), "200 or 300"),
    ],
    ids=["nodeName preset", "forged allocation", "250 percent"],
)
async def test_a_pod_that_can_never_work_is_refused_with_what_to_do(
    webhook: Replicas, admin: AdminClient, namespace: str, change, told: str
) -> None:
    wrong = pod("wrong", namespace, {"kubernetes.io/gpu": "50"})
    change(wrong)
    with pytest.raises(ApiError) as refused:
        await admin.create(pods_path(namespace), wrong)
    assert 400 <= refused.value.status < 500
    assert told in refused.value.message


async def test_allocation_annotations_cannot_be_forged_later(
    lone_scheduler, admin: AdminClient, namespace: str, node: str
) -> None:
    await admin.create(pods_path(namespace), pod("steady", namespace, {"kubernetes.io/gpu": "50"}))
    await bound(admin, namespace, "steady")
    for annotations in ({DEVICE_ALLOCATED: "{}"}, {DEVICE_ALLOCATED: None}, {VISIBLE: "GPU-other"}):
        for subresource in ("", "status"):
            with pytest.raises(ApiError) as refused:
                await admin.patch(
                    pods_path(namespace, "steady", subresource), {"metadata": {"annotations": annotations}}
                )
            assert refused.value.status == 403, (annotations, subresource)
    await admin.patch(pods_path(namespace, "steady"), {"metadata": {"annotations": {"other": "fine"}}})


async def test_with_the_webhook_stopped_other_pods_are_created_and_bound(
    plane: ControlPlane, admin: AdminClient, installed: list[JsonObject], webhook: Replicas, namespace: str
) -> None:
    await plane.add_node(f"{namespace}-plain", {"cpu": "8", "memory": "32Gi", "pods": "100"})
    await webhook.stop(0)

    await admin.create(pods_path(namespace), pod("plain", namespace, {"cpu": "100m"}))
    await admin.create(pods_path(namespace, "plain", "binding"), binding(namespace, "plain", f"{namespace}-plain"))
    await admin.create(pods_path(namespace), pod("older", namespace, {"cpu": "100m"}))
    await admin.create(f"/api/v1/namespaces/{namespace}/bindings", binding(namespace, "older", f"{namespace}-plain"))

    for name in ("plain", "older"):
        assert (await admin.get(pods_path(namespace, name)))["spec"]["nodeName"] == f"{namespace}-plain"
    with pytest.raises(ApiError, match="failed calling webhook"):
        await admin.create(pods_path(namespace), pod("ours", namespace, {"kubernetes.io/gpu": "50"}))
