"""The ledger on a real API server: it is rebuilt from live Pods, and forgets Pods that ended or were never bound."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    ALLOCATIONS,
    DEVICE_ALLOCATED,
    add_gpu_node,
    allocated,
    bind_at_last,
    binding,
    ledger,
    pod,
    pods_path,
)

from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.waiting import until

SWIFT = {"ledger": {"graceSeconds": 2, "reconcileSeconds": 0.5}}


async def bind(plane: ControlPlane, namespace: str, name: str, node: str, uid: str, **metadata: str) -> None:
    async with plane.admin(await plane.service_account_token("koordgate-system", "koord-scheduler")) as scheduler:
        body = binding(namespace, name, node, uid)
        body["metadata"].update(metadata)
        await scheduler.create(pods_path(namespace, name, "binding"), body)


async def holders(admin: AdminClient, node: str) -> set[str]:
    return set((await ledger(admin)).get(node, {}))


async def test_a_lost_ledger_is_rebuilt_from_what_live_pods_say(
    webhooks, plane: ControlPlane, admin: AdminClient, namespace: str
) -> None:
    node = f"{namespace}-gpu"
    await add_gpu_node(plane, admin, node, gpus=2)
    replicas = await webhooks(count=1)
    made = await admin.create(pods_path(namespace), pod("one", namespace, {"kubernetes.io/gpu": "60"}))
    uid = made["metadata"]["uid"]
    await bind(plane, namespace, "one", node, uid)
    before = (await ledger(admin))[node][uid]

    await replicas.stop(0)
    await admin.delete(f"{ALLOCATIONS}/{node}")
    await replicas.start(0)  # waits until it is ready, which is after the ledger is reconciled

    after = (await ledger(admin))[node][uid]
    assert after == before
    second = await admin.create(pods_path(namespace), pod("two", namespace, {"kubernetes.io/gpu": "60"}))
    await bind(plane, namespace, "two", node, second["metadata"]["uid"])
    given = [allocated(await admin.get(pods_path(namespace, name)))[0]["id"] for name in ("one", "two")]
    assert len(set(given)) == 2


async def test_a_finished_pod_gives_back_what_it_held(
    webhooks, plane: ControlPlane, admin: AdminClient, namespace: str
) -> None:
    node = f"{namespace}-gpu"
    await add_gpu_node(plane, admin, node, gpus=1)
    await webhooks(count=2)
    made = await admin.create(pods_path(namespace), pod("job", namespace, {"nvidia.com/gpu": "1"}))
    await bind(plane, namespace, "job", node, made["metadata"]["uid"])
    assert await holders(admin, node) == {made["metadata"]["uid"]}

    await admin.patch(pods_path(namespace, "job", "status"), {"status": {"phase": "Succeeded"}})

    async def freed() -> bool:
        return not await holders(admin, node)

    await until(freed, "the ledger forgets the finished Pod")
    second = await admin.create(pods_path(namespace), pod("next", namespace, {"nvidia.com/gpu": "1"}))
    async with plane.admin(await plane.service_account_token("koordgate-system", "koord-scheduler")) as scheduler:
        # The other replica may not have seen that the Pod has finished.
        await bind_at_last(scheduler, namespace, "next", binding(namespace, "next", node, second["metadata"]["uid"]))


async def test_what_was_allocated_for_a_bind_that_failed_is_swept(
    webhooks, plane: ControlPlane, admin: AdminClient, namespace: str
) -> None:
    node = f"{namespace}-gpu"
    await add_gpu_node(plane, admin, node, gpus=1)
    await webhooks(count=1, overrides=SWIFT)
    made = await admin.create(pods_path(namespace), pod("never", namespace, {"nvidia.com/gpu": "1"}))
    uid = made["metadata"]["uid"]

    with pytest.raises(ApiError) as refused:  # the API server itself refuses, after our webhooks have answered
        await bind(plane, namespace, "never", node, uid, resourceVersion="1")
    assert refused.value.status == 409
    assert await holders(admin, node) == {uid}

    async def swept() -> bool:
        return not await holders(admin, node)

    await until(swept, "the ledger forgets what was never bound")
    assert DEVICE_ALLOCATED not in (await admin.get(pods_path(namespace, "never")))["metadata"].get("annotations", {})


@pytest_asyncio.fixture(loop_scope="session")
async def foreseen(
    plane: ControlPlane, binaries: Binaries, installed: list[JsonObject], admin: AdminClient
) -> AsyncIterator[None]:
    """The policy of an installation whose scheduler is Koordinator's, named by `scheduler.username`."""
    name = ("ValidatingAdmissionPolicy", "koordgate-allocations")
    user = {"username": f"system:serviceaccount:{chart.NAMESPACE}:koord-scheduler"}
    await admin.apply(chart.find(chart.render(binaries, {"scheduler": user}), *name), manager="helm")
    yield
    await admin.apply(chart.find(installed, *name), manager="helm")


async def test_a_pod_that_koordinators_scheduler_has_annotated_is_checked_and_adopted(
    webhooks, foreseen: None, plane: ControlPlane, admin: AdminClient, namespace: str
) -> None:
    node = f"{namespace}-gpu"
    await add_gpu_node(plane, admin, node, gpus=2)
    await webhooks(count=1)
    await _let_patch(admin, namespace)
    uids = {}
    for name, core in (("right", "50"), ("too-much", "80")):
        asks = {"kubernetes.io/gpu": core}
        uids[name] = (await admin.create(pods_path(namespace), pod(name, namespace, asks)))["metadata"]["uid"]
        await _annotate(plane, namespace, name, node, core)

    await bind(plane, namespace, "right", node, uids["right"])
    with pytest.raises(ApiError, match="cannot be adopted"):
        await bind(plane, namespace, "too-much", node, uids["too-much"])

    (share,) = allocated(await admin.get(pods_path(namespace, "right")))
    assert (share["minor"], share["id"]) == (1, f"GPU-{node}-1")
    assert await holders(admin, node) == {uids["right"]}


async def _annotate(plane: ControlPlane, namespace: str, name: str, node: str, core: str) -> None:
    """Write the Pod's allocation, as Koordinator's scheduler does before it binds."""
    resources = {"koordinator.sh/gpu-core": core, "koordinator.sh/gpu-memory-ratio": core}
    said = json.dumps({"gpu": [{"minor": 1, "resources": resources, "id": f"GPU-{node}-1"}]})
    async with plane.admin(await plane.service_account_token("koordgate-system", "koord-scheduler")) as scheduler:

        async def patched() -> bool:
            try:
                await scheduler.patch(
                    pods_path(namespace, name), {"metadata": {"annotations": {DEVICE_ALLOCATED: said}}}
                )
            except ApiError as error:
                if not any(why in error.message for why in ("cannot patch resource", "koordgate-allocations")):
                    raise
                return False  # the API server has not seen the Role or the policy yet
            return True

        await until(patched, "koord-scheduler may patch Pods")


async def _let_patch(admin: AdminClient, namespace: str) -> None:
    """The right that Koordinator's role has and a stock kube-scheduler's lacks."""
    metadata = {"name": "koordinator", "namespace": namespace}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    api = "rbac.authorization.k8s.io"
    await admin.apply({"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": rules})
    await admin.apply(
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": "koordinator"},
            "subjects": [{"kind": "ServiceAccount", "name": "koord-scheduler", "namespace": "koordgate-system"}],
        }
    )
