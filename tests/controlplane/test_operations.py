"""`koordgate doctor` and `koordgate cleanup` on a real API server: damage is found, and nothing is left."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import HOME, at_home, bound, create, pods_path
from controlplane.test_rbac import Faulty, reporter_settings

from koordgate.cli import main
from koordgate.kube.client import KubeClient
from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until
from reporter.agent import Agent
from reporter.metrics import ReporterMetrics
from reporter.round.state import RoundPace

TEAM, NODE, RESOURCE = "team", "reported", "kubernetes.io/rdma"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
QUOTAS = f"/api/v1/namespaces/{TEAM}/resourcequotas"
CLUSTER_ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/koordgate"
AUTOMANAGED = "kube-aggregator.kubernetes.io/automanaged"
OURS = "koordgate"


@dataclass
class Whole:
    """An installation at work.

    Attributes:
        plane: the control plane.
        objects: what the chart rendered, with the hooks of `helm test`.
        replicas: the webhook.
    """

    plane: ControlPlane
    objects: list[JsonObject]
    replicas: Replicas


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Whole]:
    """A webhook, a scheduler, a reporter that has ended, a quota with its mirror, and two Pods: one waits."""
    objects = chart.render(binaries, {"policies": {"visibleDevices": {"action": "Deny"}}}, tests=True)
    objects = [one for one in objects if one["kind"] != "Pod"]
    folder = tmp_path_factory.mktemp("whole")
    async with ControlPlane(binaries) as plane, contextlib.AsyncExitStack() as stack:
        for space in (TEAM, "kube-system", "kube-node-lease"):
            await plane.ensure_namespace(space)
        await chart.install(plane, objects)
        replicas = await Replicas.installed(plane, objects, folder, count=1)
        await stack.enter_async_context(replicas)
        await start_koord_scheduler(plane, objects, replicas.extender)
        async with plane.admin() as admin:
            await _reported(plane, admin, folder)
            await admin.create(QUOTAS, _quota())
            await until(lambda: admin.find(f"{QUOTAS}/cards.koordgate"), "the quota has a mirror")
            asks = {RESOURCE: "100"}
            await create(admin, [at_home("runs", TEAM, asks, nodeSelector={HOME: NODE})])
            await bound(admin, TEAM, "runs")
            await create(admin, [at_home("waits", TEAM, asks, nodeSelector={HOME: "nowhere"})])
            made = {"koordgate.io/classes": "{}", "example.com/own": "stays"}
            await admin.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": made}})
        yield Whole(plane, objects, replicas)


@pytest_asyncio.fixture(loop_scope="session")
async def admin(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AdminClient]:
    monkeypatch.setenv("KUBECONFIG", str(whole.plane.admin_kubeconfig))
    async with whole.plane.admin() as client:
        yield client


def _quota() -> JsonObject:
    spec = {"hard": {"requests.nvidia.com/gpu": "4"}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cards"}, "spec": spec}


async def _reported(plane: ControlPlane, admin: AdminClient, folder: Path) -> None:
    """Let a reporter report a node with a NIC."""
    machine = Faulty(folder / "machine")
    machine.cpus(sockets=1, nodes=1, cores=2, threads=1)
    machine.memory(0, kib=2**20)
    machine.rdma("mlx5_0", "0000:3b:00.0")
    machine.plug(up=True)
    await plane.add_node(NODE, {"cpu": "4", "memory": "8Gi", "pods": "10"}, labels={HOME: NODE})
    config = await plane.service_account_kubeconfig(chart.NAMESPACE, "koordgate-reporter", node=NODE)
    settings = reporter_settings(machine, NODE)
    async with KubeClient.from_kubeconfig(config) as kube:
        ended = asyncio.Event()
        agent = Agent(settings, NODE, kube, None, ReporterMetrics(), pace=RoundPace(every=0.05))
        running = asyncio.create_task(agent.run(ended))

        async def amounts() -> bool:
            node = await admin.get(f"/api/v1/nodes/{NODE}")
            topologies = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
            there = await admin.find(f"{topologies}/{NODE}")
            return RESOURCE in node["status"]["allocatable"] and there is not None

        try:
            await until(amounts, "the node's amounts are reported")
        finally:
            ended.set()
            await running
    # The Pod that its token names was none of the DaemonSet's.
    for one in await admin.items(f"/api/v1/namespaces/{chart.NAMESPACE}/pods"):
        await admin.delete(pods_path(chart.NAMESPACE, one["metadata"]["name"]), gracePeriodSeconds="0")


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    status = await asyncio.to_thread(main, list(arguments))
    said = capsys.readouterr()
    return status, said.out + said.err


async def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, list[JsonObject]]]:
    """Run it; returns the exit status and the findings by level."""
    status, text = await run(capsys, "doctor", "--try-in", TEAM, "--output", "json", *arguments)
    said = json.loads(text)
    assert said["exitStatus"] == status
    levels: dict[str, list[JsonObject]] = {"ok": [], "unknown": [], "warning": [], "failure": []}
    for one in said["findings"]:
        levels[one["level"]].append(one)
        assert bool(one["todo"]) is (one["level"] != "ok"), one
    return status, levels


def told(findings: list[JsonObject], area: str) -> str:
    return "\n".join(f"{one['what']} -> {one['todo']}" for one in findings if one["area"] == area)


async def test_an_installation_that_works_has_no_failure_but_what_no_controller_runs_here(
    whole: Whole, admin: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(await everything(admin))
    _, found = await doctor(capsys)
    assert {one["area"] for one in found["failure"]} == {"installed", "nodes"}, found["failure"]  # no Pods run here
    assert "0 of 2 Pods are ready" in told(found["failure"], "installed")
    assert f"not kept up to date: {NODE}" in told(found["failure"], "nodes")
    assert not found["unknown"], found["unknown"]
    tried = [one for one in found["ok"] if one["area"] == "dry run"]
    assert len(tried) == 12
    assert "account koordgate has its" in told(found["ok"], "rights")
    assert "their mirrors (1)" in told(found["ok"], "quotas")
    assert "valid until" in told(found["ok"], "certificates")
    assert set(await everything(admin)) == before  # nothing was stored


async def test_the_account_of_helm_test_sees_the_same_but_two_things_and_may_create_nothing(
    whole: Whole, admin: AdminClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = await whole.plane.service_account_kubeconfig(chart.NAMESPACE, "koordgate-doctor")
    monkeypatch.setenv("KUBECONFIG", str(config))
    _, found = await doctor(capsys, "--try-in", "default")
    assert {one["area"] for one in found["failure"]} == {"installed", "nodes"}, found["failure"]
    unknown = [one["what"] for one in found["unknown"]]
    assert len(unknown) == 2, unknown
    assert "the Secrets with certificates cannot be read" in unknown[0]
    assert "impersonate" in unknown[1]
    token = await whole.plane.service_account_token(chart.NAMESPACE, "koordgate-doctor")
    async with whole.plane.admin(token) as thief:
        stored = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "thief"}}
        stored["spec"] = {"containers": [{"name": "main", "image": "x"}]}
        with pytest.raises(ApiError, match="as dry runs only"):
            await thief.create(pods_path("default"), stored)
        await thief.create(pods_path("default"), stored, dryRun="All")


async def test_each_damage_is_found_with_what_to_do(
    whole: Whole, admin: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    role = await admin.get(CLUSTER_ROLE)
    kept = [rule for rule in role["rules"] if "nodeallocations" not in rule["resources"]]
    await admin.patch(CLUSTER_ROLE, {"rules": kept})
    bindings = f"{ADMISSION}/validatingadmissionpolicybindings/koordgate-bindings"
    policy = await admin.get(bindings)
    await admin.delete(bindings)
    mirror = f"{QUOTAS}/cards.koordgate"
    whole.replicas.kill(0)
    await admin.delete(mirror)
    agent = {"name": "main", "image": "registry.example.com/projecthami/hami:v2.6"}
    await admin.create("/apis/apps/v1/namespaces/team/daemonsets", _daemon_set("hami-device-plugin", agent))
    lacks = "account koordgate may not create nodeallocations.koordgate.io"

    async def noticed() -> tuple[int, dict[str, list[JsonObject]]] | None:
        """What the doctor says, once the API server has seen the role without that right."""
        status, found = await doctor(capsys)
        return (status, found) if lacks in told(found["failure"], "rights") else None

    status, found = await until(noticed, lacks)
    assert status == 2
    failed = found["failure"]
    tried = [one for one in failed if one["area"] == "dry run"]
    assert [one for one in tried if "failed calling webhook" not in one["what"] or "kubectl" not in one["todo"]] == []
    assert len(tried) == 7  # six Pods and a Binding
    assert f"no right mirror (1): {TEAM}/cards" in told(failed, "quotas")
    assert "koordgate-bindings is not installed" in told(found["warning"], "enforcement")
    assert "HAMi runs: team/hami-device-plugin" in told(found["warning"], "other products")
    left_alone = [one for one in found["ok"] if one["area"] == "dry run" and "left alone" in one["what"]]
    assert len(left_alone) == 3  # an outage stops nobody else
    await admin.delete("/apis/apps/v1/namespaces/team/daemonsets/hami-device-plugin")
    await admin.patch(CLUSTER_ROLE, {"rules": role["rules"]})
    policy["metadata"] = {key: policy["metadata"][key] for key in ("name", "labels")}
    await admin.create(f"{ADMISSION}/validatingadmissionpolicybindings", policy)
    await whole.replicas.start(0)
    await until(lambda: admin.find(mirror), "the mirror is back")


def _daemon_set(name: str, container: JsonObject) -> JsonObject:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": spec}


async def everything(admin: AdminClient) -> dict[str, JsonObject]:
    """Every object that the API server stores, but Events, leases, and what its own controllers tend."""
    found = {}
    groups = (await admin.get("/apis"))["groups"]
    roots = ["/api/v1", *(f"/apis/{one['preferredVersion']['groupVersion']}" for one in groups)]
    for root in roots:
        for resource in await listed(admin, root, "resources"):
            if "list" in resource["verbs"] and resource["name"] not in {"events", "leases", "componentstatuses"}:
                for obj in await listed(admin, f"{root}/{resource['name']}", "items"):
                    about = obj["metadata"]
                    if AUTOMANAGED in (about.get("labels") or {}):
                        continue  # an APIService; it goes some time after the last CRD of its group
                    found[f"{root}/{resource['name']}/{about.get('namespace', '')}/{about['name']}"] = obj
    return found


async def listed(admin: AdminClient, path: str, key: str) -> list[JsonObject]:
    """A list; empty where discovery still names what was just removed."""
    try:
        return list((await admin.get(path))[key])
    except ApiError as error:
        if error.status == 404:
            return []
        raise


def left(found: Mapping[str, JsonObject]) -> dict[str, Any]:
    """The objects in which our name or domain stands: all but Pods, which are not touched, and the namespace."""
    kept = {}
    for path, obj in found.items():
        about = {**obj["metadata"], "managedFields": None}
        whole_text = f"{path} {json.dumps({**obj, 'metadata': about})}"
        if OURS in whole_text.replace(chart.NAMESPACE, "").replace(HOME, "") and "/pods/" not in path:
            kept[path] = obj
    return kept


async def test_after_uninstall_and_cleanup_nothing_is_left_and_pods_are_as_they_were(
    whole: Whole, admin: AdminClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last test of this file: it removes the installation."""
    release = {"metadata": {"annotations": {"meta.helm.sh/release-name": "koordgate"}}}
    deployment = f"/apis/apps/v1/namespaces/{chart.NAMESPACE}/deployments/koordgate"
    await admin.patch(deployment, release)
    status, text = await run(capsys, "cleanup", "--yes")
    assert status == 2
    assert "first run helm uninstall koordgate -n koordgate-system" in text
    before = set(await everything(admin))
    status, text = await run(capsys, "cleanup", "--dry-run")
    assert status == 0
    assert "nothing was; --yes removes it" in text
    assert set(await everything(admin)) == before
    await whole.plane.stop_scheduler(NAME)
    await whole.replicas.stop(0)
    await chart.uninstall(whole.plane, [one for one in whole.objects if one["metadata"]["name"] != "koordgate-doctor"])
    pods = {name: await admin.get(pods_path(TEAM, name)) for name in ("runs", "waits")}
    theirs = {"key": "example.com/own", "value": "stays", "effect": "NoSchedule"}
    headroom = {"key": "koordgate.io/headroom", "effect": "PreferNoSchedule"}
    await admin.patch(f"/api/v1/namespaces/{TEAM}", {"metadata": {"labels": {"koordgate.io/mode": "enforce"}}})
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{chart.NAMESPACE}/leases"
    for name in ("koord-scheduler",):  # as it is made in time
        lock = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
        await admin.apply(lock, namespace=chart.NAMESPACE)
    assert len(await admin.items(leases)) == 1
    await admin.patch(f"/api/v1/nodes/{NODE}", {"spec": {"taints": [headroom, theirs]}})
    assert any("noderesourcetopologies" in path for path in left(await everything(admin)))

    status, text = await run(capsys, "cleanup", "--yes")
    assert status == 3
    assert f"Node {NODE} keeps {RESOURCE}: {TEAM}/runs request it" in text
    assert f"Pods that wait for koordgate and are never placed (1): {TEAM}/waits" in text
    node = await admin.get(f"/api/v1/nodes/{NODE}")
    assert node["status"]["allocatable"][RESOURCE] == "100"
    assert node["metadata"]["annotations"]["example.com/own"] == "stays"
    assert node["spec"]["taints"] == [theirs]
    assert {name: await admin.get(pods_path(TEAM, name)) for name in pods} == pods

    async def nothing() -> bool:
        return left(await everything(admin)) == {}

    await until(nothing, "the API server has forgotten the group of the definitions too")

    assert await admin.items(leases) == []

    await admin.delete(pods_path(TEAM, "runs"), gracePeriodSeconds="0")
    await admin.delete(pods_path(TEAM, "waits"), gracePeriodSeconds="0")
    status, text = await run(capsys, "cleanup", "--yes")
    assert (status, "nothing of koordgate is left" in text) == (0, True), text
    node = await admin.get(f"/api/v1/nodes/{NODE}")
    assert RESOURCE not in {**node["status"]["allocatable"], **node["status"]["capacity"]}
    assert "koordgate-reporter" not in {one["manager"] for one in node["metadata"]["managedFields"]}
    status, text = await run(capsys, "cleanup", "--yes")
    assert (status, text.splitlines()[-1]) == (0, "0 removed; nothing of koordgate is left")
    status, found = await doctor(capsys)
    assert status == 2
    assert "koordgate is not installed" in told(found["failure"], "installed")
