"""What is unreadable, what is plain and what is larger than needed: the answers on a real API server and scheduler."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from controlplane.gpu_cluster import (
    DEVICE_ALLOCATED,
    DEVICES,
    add_node,
    at_home,
    binding,
    bound,
    create,
    gpu,
    metric,
    pod,
    pods_path,
    remove,
    scheduling,
    uuid_of,
    waits,
)

from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.waiting import until

EXEMPT = "kube-system"  # the Pod webhooks and the guard do not see it
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
POD_WEBHOOKS = {
    "mutatingwebhookconfigurations": "pods.mutate.koordgate.io",
    "validatingwebhookconfigurations": "pods.validate.koordgate.io",
}
JSON_PATCH = "application/json-patch+json"
OFTEN = {"ledger": {"reconcileSeconds": 1}}


@contextlib.asynccontextmanager
async def unseen(admin: AdminClient, namespace: str) -> AsyncIterator[None]:
    """Let the Pod webhooks pass over a namespace for a while: its Pods then are as old as before an installation."""
    undo = []
    rule = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace]}
    for plural, webhook in POD_WEBHOOKS.items():
        path = f"{CONFIGURATIONS}/{plural}/koordgate"
        listed = (await admin.get(path))["webhooks"]
        index = [one["name"] for one in listed].index(webhook)
        rules = f"/webhooks/{index}/namespaceSelector/matchExpressions"
        end = len(listed[index]["namespaceSelector"]["matchExpressions"])
        await admin.patch(path, [{"op": "add", "path": f"{rules}/-", "value": rule}], JSON_PATCH)
        undo.append((path, f"{rules}/{end}"))
    try:
        yield
    finally:
        for path, at in undo:
            await admin.patch(path, [{"op": "remove", "path": at}], JSON_PATCH)


async def reported(admin: AdminClient, namespace: str, name: str, reason: str) -> str:
    """Wait for an Event about a Pod; returns its message."""

    async def message() -> str:
        events = await admin.items(f"/api/v1/namespaces/{namespace}/events")
        return next(
            (one["message"] for one in events if (one["involvedObject"]["name"], one["reason"]) == (name, reason)), ""
        )

    return await until(message, f"Event {reason} about Pod {namespace}/{name}")


async def test_an_unreadable_allocation_closes_the_cards_of_its_node_until_the_pod_is_gone(
    plane: ControlPlane, admin: AdminClient, namespace: str, installed: list[JsonObject], tmp_path: Path
) -> None:
    await plane.ensure_namespace(EXEMPT)
    node = f"{namespace}-gpu"
    await add_node(plane, admin, node, namespace, [gpu(node, minor) for minor in range(2)])
    garbled = at_home(
        "garbled", EXEMPT, {"cpu": "1"}, annotations={DEVICE_ALLOCATED: '{"gpu":[{"minor":'}, nodeName=node
    )
    await create(admin, [garbled, at_home("plain", EXEMPT, {"cpu": "1"}, nodeName=node)])
    try:
        async with scheduling(plane, installed, tmp_path, count=1, overrides=OFTEN) as replicas:
            message = await reported(admin, EXEMPT, "garbled", "AllocationUnreadable")
            assert node in message
            assert await metric(replicas, "koordgate_pods_unreadable") == 1

            await create(admin, [at_home(name, namespace, {"kubernetes.io/gpu": "10"}) for name in ("a", "b")])
            for name in ("a", "b"):
                await waits(admin, namespace, name, "annotation of Pod kube-system/garbled cannot be read")

            await admin.delete(pods_path(EXEMPT, "garbled"), {"gracePeriodSeconds": 0})
            for name in ("a", "b"):
                assert (await bound(admin, namespace, name))["spec"]["nodeName"] == node
    finally:
        for name in ("garbled", "plain"):
            if await admin.find(pods_path(EXEMPT, name)) is not None:
                await admin.delete(pods_path(EXEMPT, name), {"gracePeriodSeconds": 0})
        await remove(admin, namespace, [node])


async def test_a_pod_older_than_the_installation_is_bound_to_no_node_whose_cards_koordgate_gives(
    plane: ControlPlane, admin: AdminClient, namespace: str, installed: list[JsonObject], tmp_path: Path
) -> None:
    ours, plugins = f"{namespace}-ours", f"{namespace}-plugin"
    await add_node(plane, admin, ours, namespace, [gpu(ours, 0)])
    await plane.add_node(plugins, {"cpu": "8", "memory": "32Gi", "pods": "100", "nvidia.com/gpu": "2"})
    try:
        async with scheduling(plane, installed, tmp_path, count=1, overrides=OFTEN):
            async with unseen(admin, namespace):

                async def untranslated() -> bool:
                    made = pod("older", namespace, {"nvidia.com/gpu": "1"}, schedulerName="nobody")
                    try:
                        made = await admin.create(pods_path(namespace), made)
                    except ApiError as refused:  # one webhook passes over the namespace already, the other not yet
                        if POD_WEBHOOKS["validatingwebhookconfigurations"] in str(refused):
                            return False
                        raise
                    if made["spec"]["schedulerName"] == "nobody":
                        return True
                    await admin.delete(pods_path(namespace, "older"), {"gracePeriodSeconds": 0})
                    return False

                await until(untranslated, "the API server follows the changed webhook configuration")
            with pytest.raises(ApiError, match="was never translated by koordgate") as refused:
                await admin.create(pods_path(namespace, "older", "binding"), binding(namespace, "older", ours))
            assert refused.value.status == 403
            await admin.create(pods_path(namespace, "older", "binding"), binding(namespace, "older", plugins))
            assert (await admin.get(pods_path(namespace, "older")))["spec"]["nodeName"] == plugins
    finally:
        await remove(admin, namespace, [ours, plugins])


async def test_a_card_that_the_kubelet_gave_to_an_exempt_pod_as_well_is_reported_on_both_pods(
    plane: ControlPlane, admin: AdminClient, namespace: str, installed: list[JsonObject], tmp_path: Path
) -> None:
    await plane.ensure_namespace(EXEMPT)
    node = f"{namespace}-gpu"
    await add_node(plane, admin, node, namespace, [gpu(node, minor) for minor in range(3)])
    asks = {"nvidia.com/gpu": "1"}
    await create(admin, [at_home(name, EXEMPT, asks, nodeName=node) for name in ("twice", "beside")])
    uids = {name: (await admin.get(pods_path(EXEMPT, name)))["metadata"]["uid"] for name in ("twice", "beside")}
    try:
        async with scheduling(plane, installed, tmp_path, count=1, overrides=OFTEN) as replicas:
            await create(admin, [at_home("ours", namespace, {"kubernetes.io/gpu": "50"})])
            (held,) = json.loads((await bound(admin, namespace, "ours"))["metadata"]["annotations"][DEVICE_ALLOCATED])[
                "gpu"
            ]
            free = next(uuid_of(node, minor) for minor in range(3) if uuid_of(node, minor) != held["id"])
            given = [
                {"podUID": uids["twice"], "deviceIDs": [held["id"]]},
                {"podUID": uids["beside"], "deviceIDs": [free]},
            ]
            annotations = {"node.koordinator.sh/devices-checkpoints": json.dumps(given)}
            await admin.patch(f"{DEVICES}/{node}", {"metadata": {"annotations": annotations}})

            assert f"{namespace}/ours" in await reported(admin, EXEMPT, "twice", "DeviceHeldTwice")
            assert f"{EXEMPT}/twice" in await reported(admin, namespace, "ours", "DeviceHeldTwice")
            assert await metric(replicas, "koordgate_devices_held_twice") == 1
    finally:
        for name in uids:
            await admin.delete(pods_path(EXEMPT, name), {"gracePeriodSeconds": 0})
        await remove(admin, namespace, [node])
