"""Namespaces that are only observed, and their switch to enforcement and back, on a real API server."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import HOME, add_gpu_node, at_home, binding, ledger, metric, pod, pods_path

from koordgate.cli import main
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

HALF, WRONG = {"kubernetes.io/gpu": "50"}, {"kubernetes.io/gpu": "250"}
MODE = "koordgate.io/mode"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


async def adopt(*words: str) -> int:
    """`koordgate adopt` as a user calls it; returns the exit status."""
    return await asyncio.to_thread(main, ["adopt", *words])


@pytest_asyncio.fixture(loop_scope="session")
async def node(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[str]:
    name = f"{namespace}-gpu"
    await add_gpu_node(plane, admin, name, gpus=2)
    await admin.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {HOME: namespace}}})
    yield name
    await admin.delete(pods_path(namespace), {"gracePeriodSeconds": 0})
    await admin.delete(f"/api/v1/nodes/{name}")
    await admin.delete(f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{name}")


@pytest_asyncio.fixture(loop_scope="session")
async def observed(admin: AdminClient, namespace: str) -> str:
    """The test's namespace, in mode shadow."""
    await admin.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {MODE: "shadow"}}})
    return namespace


async def told(admin: AdminClient, namespace: str, name: str) -> dict[str, str]:
    """The Events about a Pod: reason -> message."""
    found = await admin.items(f"/api/v1/namespaces/{namespace}/events")
    return {one["reason"]: one["message"] for one in found if one["involvedObject"]["name"] == name}


async def until_observed(admin: AdminClient, namespace: str) -> None:
    """Wait until the API server asks about the Pods of a namespace that is observed."""

    async def seen() -> bool:
        await admin.create(pods_path(namespace), pod("probe", namespace, WRONG), dryRun="All")
        return any("koordgate only observes this namespace" in warning for warning in admin.warnings)

    await until(seen, "the API server asks about an observed namespace")


async def until_enforced(admin: AdminClient, namespace: str) -> None:
    """Wait until the API server lets koordgate translate Pods of a namespace."""

    async def translated() -> bool:
        made = await admin.create(pods_path(namespace), pod("probe", namespace, HALF), dryRun="All")
        return bool(made["spec"]["schedulerName"] == "koord-scheduler")

    await until(translated, "the Pods of the namespace are translated")


def as_written(made: JsonObject) -> bool:
    """Whether a Pod is as its author wrote it, as far as koordgate would change it."""
    (container,) = made["spec"]["containers"]
    same = container["resources"]["limits"] in (HALF, WRONG) and not container.get("env")
    return same and made["spec"]["schedulerName"] == "default-scheduler" and not made["metadata"].get("annotations")


@pytest.mark.usefixtures("as_administrator")
async def test_an_observed_namespace_is_left_as_it_is_and_told_about_then_switched_and_switched_back(
    webhooks,
    admin: AdminClient,
    node: str,
    observed: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replicas: Replicas = await webhooks(count=2)
    await until_observed(admin, observed)

    # Observed: nothing is changed and nobody is refused, and all of it is told.
    half = await admin.create(pods_path(observed), at_home("half", observed, HALF))
    wrong = await admin.create(pods_path(observed), pod("wrong", observed, WRONG))
    assert any("would refuse" in warning and "gpu 250" in warning for warning in admin.warnings)
    assert as_written(half)
    assert as_written(wrong)

    async def said() -> bool:
        placed, refused = await told(admin, observed, "half"), await told(admin, observed, "wrong")
        return "WouldBePlaced" in placed and "WouldBeRefused" in refused

    await until(said, "it is told where the Pod would be, and that the other would be refused")
    assert node in (await told(admin, observed, "half"))["WouldBePlaced"]
    assert "gpu 250" in (await told(admin, observed, "wrong"))["WouldBeRefused"]
    assert await metric(replicas, "koordgate_shadow_pods_total", outcome="translated") == 1
    assert await metric(replicas, "koordgate_shadow_refused_total", reason="translation") == 1

    async def counted() -> bool:
        return await metric(replicas, "koordgate_shadow_placements_total", outcome="fits") == 1

    await until(counted, "the placement is counted")

    # Another scheduler binds as it likes.
    await admin.create(pods_path(observed, "half", "binding"), binding(observed, "half", node))

    async def compared() -> bool:
        return await metric(replicas, "koordgate_shadow_compared_total", outcome="same_node") == 1

    await until(compared, "the Pod's node is compared")
    assert as_written(await admin.get(pods_path(observed, "half")))
    assert half["metadata"]["uid"] not in str(await ledger(admin))

    # The report, and the switch: what is in the way is said.
    assert await adopt("report") == 0
    assert f"{observed}/half: {node}" in capsys.readouterr().out
    assert await adopt("switch", observed, "--to", "enforce") == 3
    said_no = capsys.readouterr().out
    assert f"{observed}/wrong wait" in said_no
    assert f"{observed}/half (" in said_no
    await admin.delete(pods_path(observed), {"gracePeriodSeconds": 0})
    assert await adopt("switch", observed, "--to", "enforce", "--dry-run") == 0
    assert "dry run" in capsys.readouterr().out
    assert (await admin.get(f"/api/v1/namespaces/{observed}"))["metadata"]["labels"][MODE] == "shadow"
    assert await adopt("switch", observed, "--to", "enforce") == 0
    await until_enforced(admin, observed)
    with pytest.raises(ApiError, match="gpu 250"):
        await admin.create(pods_path(observed), pod("wrong", observed, WRONG))
    await admin.create(pods_path(observed), at_home("late", observed, HALF))

    # And back: a Pod that was translated stays koordgate's.
    assert await adopt("switch", observed, "--to", "shadow") == 0
    await until_observed(admin, observed)
    assert as_written(await admin.create(pods_path(observed), pod("again", observed, HALF)))
    late = await admin.get(pods_path(observed, "late"))
    assert late["spec"]["schedulerName"] == "koord-scheduler"


async def test_while_no_replica_answers_observed_namespaces_go_on_and_enforced_ones_do_not(
    webhooks, plane: ControlPlane, admin: AdminClient, observed: str
) -> None:
    other = f"{observed}-enforced"
    await plane.ensure_namespace(other)
    replicas: Replicas = await webhooks(count=1)
    await until_observed(admin, observed)
    await until_enforced(admin, other)
    await replicas.stop(0)
    assert as_written(await admin.create(pods_path(observed), pod("half", observed, HALF)))
    with pytest.raises(ApiError, match="koordgate"):
        await admin.create(pods_path(other), pod("half", other, HALF))


async def test_the_mode_of_a_namespace_is_changed_only_by_who_may_set_it(
    installed, plane: ControlPlane, admin: AdminClient, namespace: str
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant", "namespace": namespace}}
    await admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
    rules = [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "patch", "update"]}]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": namespace}}
    await admin.create(f"{RBAC}/clusterroles", {**role, "rules": rules})
    bound: JsonObject = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}],
    }
    await admin.create(f"{RBAC}/clusterrolebindings", bound)
    path = f"/api/v1/namespaces/{namespace}"
    async with plane.admin(await plane.service_account_token(namespace, "tenant")) as tenant:

        async def allowed() -> bool:
            try:
                await tenant.patch(path, {"metadata": {"labels": {"team": "a"}}})
            except ApiError:
                return False
            return True

        await until(allowed, "the tenant may change his Namespace")

        async def refused() -> bool:
            try:
                await tenant.patch(path, {"metadata": {"labels": {MODE: "off"}}}, dryRun="All")
            except ApiError as error:
                return "namespacemodes" in error.message
            return False

        await until(refused, "the policy is in force")
        for labels in ({MODE: "shadow"}, {MODE: "enforce"}, {MODE: "Off"}):
            with pytest.raises(ApiError, match=r"koordgate\.io/mode"):
                await tenant.patch(path, {"metadata": {"labels": labels}})
        rules.append({"apiGroups": ["koordgate.io"], "resources": ["namespacemodes"], "verbs": ["set"]})
        await admin.replace(f"{RBAC}/clusterroles/{namespace}", {**role, "rules": rules})

        async def may() -> bool:
            try:
                await tenant.patch(path, {"metadata": {"labels": {MODE: "shadow"}}})
            except ApiError:
                return False
            return True

        await until(may, "the tenant may set modes")
        with pytest.raises(ApiError, match="enforce, shadow or off"):
            await tenant.patch(path, {"metadata": {"labels": {MODE: "Off"}}})
