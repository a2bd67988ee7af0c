"""Every right that the chart gives is used, and no other is asked for: by the API server's own audit log."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from claiming import TaintRules, claim, listed_cards, resource_slice
from controlplane.features import TAINT_RULES
from controlplane.gpu_cluster import (
    DEVICES,
    add_node,
    at_home,
    binding,
    bound,
    create,
    device_object,
    gpu,
    pods_path,
    waits,
)
from controlplane.test_dra import allocate, claims_path
from controlplane.test_gangs import CRD, GROUPS, LABEL, WHOLE
from sysfs_tree import Machine

from koordgate.kube.client import KubeClient
from localplane import chart
from localplane.admin import APPLY_PATCH, JSON_PATCH, AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import NotInTimeError, until
from reporter import once
from reporter.agent import Agent
from reporter.delivery import ask_operator
from reporter.metrics import ReporterMetrics
from reporter.round.state import RoundPace
from reporter.settings import ReporterSettings, parse

ACCOUNTS = ("koordgate", "koord-scheduler", "koordgate-reporter")
VALUES = {
    "gangs": {"allOrNothing": True},
    "dra": {"taints": True},
    "scheduler": {"nominateFrom": 1},
    "reporter": {"kubelet": {"configz": True}},
}
TEAM, LIMITED = "team", "limited"
QUOTAS = f"/api/v1/namespaces/{LIMITED}/resourcequotas"
SECRETS = f"/api/v1/namespaces/{chart.NAMESPACE}/secrets"
CLUSTER_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
# Of the group of PodGroups a cluster serves one; any of them needs the right.
pytestmark = TAINT_RULES
POD_GROUPS = "podgroups"
# server-side apply is a patch; the API server asks for the right to create in its course, and does not audit that
BY_APPLY = {
    ("koordgate-reporter", "scheduling.koordinator.sh", "devices", "create"),
    ("koordgate-reporter", "topology.node.k8s.io", "noderesourcetopologies", "create"),
}

Right = tuple[str, str, str, str]  # the account, the API group, the resource with its subresource, the verb


@dataclass(frozen=True)
class Audited:
    """A control plane with an audit log of our accounts."""

    plane: ControlPlane
    log: Path
    objects: list[JsonObject]
    rules: str  # where the DeviceTaintRules are

    def entries(self) -> Iterator[JsonObject]:
        for line in self.log.read_text().splitlines():
            if line.endswith("}"):  # the last may be in the course of being written
                yield json.loads(line)

    def asked(self, decision: str) -> set[Right]:
        """What our accounts asked for, where RBAC decided so and, if it allowed, by a role of the chart."""
        found = set()
        for entry in self.entries():
            annotations, ref = entry.get("annotations") or {}, entry.get("objectRef") or {}
            if annotations.get("authorization.k8s.io/decision") != decision or "resource" not in ref:
                continue
            reason = annotations.get("authorization.k8s.io/reason", "")
            if decision == "allow" and not any(f'Role "{name}"' in reason for name in ACCOUNTS):
                continue
            account = entry["user"]["username"].rpartition(":")[2]
            resource = "/".join(filter(None, (ref["resource"], ref.get("subresource"))))
            group = "" if resource == POD_GROUPS else ref.get("apiGroup", "")
            found.add((account, group, resource, entry["verb"]))
        return found


def granted(objects: list[JsonObject]) -> set[Right]:
    """Every right of the chart's own roles."""
    found = set()
    for item in objects:
        if item["kind"] in {"Role", "ClusterRole"}:
            for rule in item["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        of = "" if resource == POD_GROUPS else group
                        found |= {(item["metadata"]["name"], of, resource, verb) for verb in rule["verbs"]}
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def audited(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Audited]:
    folder = tmp_path_factory.mktemp("audit")
    users = [f"system:serviceaccount:{chart.NAMESPACE}:{name}" for name in ACCOUNTS]
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": users}],
    }
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    log = folder / "audit.log"
    log.touch()
    rules = TaintRules.of(binaries.kubernetes)
    arguments = (f"--audit-policy-file={folder / 'policy.yaml'}", f"--audit-log-path={log}", *rules.arguments)
    objects = chart.render(binaries, VALUES)
    async with ControlPlane(binaries, apiserver_args=arguments, feature_gates=rules.gates) as plane:
        await chart.install(plane, [CRD])
        await chart.install(plane, objects)
        await plane.ensure_namespace(TEAM)
        yield Audited(plane, log, objects, rules.path)


@pytest_asyncio.fixture(loop_scope="session")
async def admin(audited: Audited) -> AsyncIterator[AdminClient]:
    async with audited.plane.admin() as client:
        yield client


async def replicas(audited: Audited, workdir: Path) -> Replicas:
    """One webhook process; holdings of Nodes that are gone are swept each second."""
    return await Replicas.installed(
        audited.plane, audited.objects, workdir, count=1, overrides={"ledger": {"reconcileSeconds": 1}}
    )


async def works(audited: Audited, admin: AdminClient, workdir: Path) -> None:
    """Let the webhook and the scheduler do all that they ever do: a certificate, binds, a gang, a release, a sweep."""
    plane = audited.plane
    async with await replicas(audited, workdir / "first"):
        damaged = {"data": {"tls.crt": "bm90aGluZw=="}}
    await admin.patch(f"{SECRETS}/koordgate-tls", damaged)
    await add_node(plane, admin, "wide", "wide", [gpu("wide", minor) for minor in range(2)])
    async with await replicas(audited, workdir / "second") as running:
        await start_koord_scheduler(plane, audited.objects, running.extender, elect=True)
        asks, too_many = {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "4"}
        home = {"nodeSelector": {"koordgate.test/home": "wide"}}
        await admin.apply(resource_slice("wide", listed_cards("wide", 2)))
        await create(admin, [at_home("first", TEAM, asks, **home)])
        await bound(admin, TEAM, "first")
        await until(lambda: admin.items(audited.rules), "the cards that it holds are tainted")
        await create(admin, [at_home("second", TEAM, asks, **home), at_home("large", TEAM, too_many, **home)])
        await waits(admin, TEAM, "second")
        await waits(admin, TEAM, "large")
        token = await plane.service_account_token(chart.NAMESPACE, ACCOUNTS[1])
        async with plane.admin(token) as binder:
            with pytest.raises(ApiError):  # a bind that writes nothing is judged by a record that was just read
                await binder.create(pods_path(TEAM, "large", "binding"), binding(TEAM, "large", "wide"))
        await admin.delete(pods_path(TEAM, "first"), gracePeriodSeconds="0")  # those that still wait are woken
        await bound(admin, TEAM, "second")
        await admin.delete(pods_path(TEAM, "second"), gracePeriodSeconds="0")
        head = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "train"}}
        await admin.create(f"{GROUPS}/{TEAM}/podgroups", {**head, "spec": {"minMember": 1}})
        gang = at_home("gang", TEAM, asks, labels={LABEL: "train"}, annotations=WHOLE, **home)
        await create(admin, [gang])
        await bound(admin, TEAM, "gang")
        with pytest.raises(ApiError):  # the guard asks who the Pod is
            await admin.create(pods_path(TEAM, "gang", "binding"), binding(TEAM, "gang", "wide"))
        await admin.delete(pods_path(TEAM, "gang"), gracePeriodSeconds="0")
        await untainted(audited, admin)
        await claims(audited, admin)
        await nominations(audited, admin)
        spoilt = device_object("wide", [{"type": "gpu", "id": "x", "minor": -1, "health": True, "resources": {}}])
        await admin.apply(spoilt)  # an Event on it
        await admin.delete("/api/v1/nodes/wide")

        async def swept() -> bool:
            return not await admin.items("/apis/koordgate.io/v1alpha1/nodeallocations")

        await until(swept, "the record of the Node that is gone is deleted")
        await admin.delete(pods_path(TEAM, "large"), gracePeriodSeconds="0")
        await plane.stop_scheduler(NAME)
        await mirrors(plane, admin)


async def untainted(audited: Audited, admin: AdminClient) -> None:
    async def no_rules() -> bool:
        return not await admin.items(audited.rules)

    await until(no_rules, "no card is tainted")


async def nominations(audited: Audited, admin: AdminClient) -> None:
    """Create Pods, many at once, until a node was nominated for one that waits behind others."""
    share, home = {"kubernetes.io/gpu": "5"}, {"nodeSelector": {"koordgate.test/home": "wide"}}
    names = [f"burst-{number}" for number in range(16)]

    async def nominated() -> bool:
        await create(admin, [at_home(name, TEAM, share, **home) for name in names])
        for name in names:
            await bound(admin, TEAM, name)
            await admin.delete(pods_path(TEAM, name), gracePeriodSeconds="0")
        return ("koordgate", "", "pods/status", "patch") in audited.asked("allow")

    await until(nominated, "a node was nominated for a Pod")


async def claims(audited: Audited, admin: AdminClient) -> None:
    """Let the webhook review allocations until it has to read a claim that it has not seen as it is."""
    await admin.create(claims_path(TEAM), claim("c", TEAM))
    numbers = itertools.count()

    async def changed() -> None:
        await admin.patch(claims_path(TEAM, "c"), {"metadata": {"annotations": {"n": str(next(numbers))}}})

    async def reviewed() -> None:
        with contextlib.suppress(ApiError):  # refused if the claim has changed again
            await allocate(admin, TEAM, "c", "wide", 0, dryRun="All")

    async def read() -> bool:
        await asyncio.gather(*(changed() for _ in range(4)), *(reviewed() for _ in range(4)))
        return ("koordgate", "resource.k8s.io", "resourceclaims", "get") in audited.asked("allow")

    await until(read, "the webhook has read a claim")
    await admin.delete(claims_path(TEAM, "c"))


async def mirrors(plane: ControlPlane, admin: AdminClient) -> None:
    """Let the webhook make, change and delete the mirror of a quota, and find that another has the mirror's name."""
    await plane.ensure_namespace(LIMITED)

    async def mirror(name: str) -> object:
        found = await admin.find(f"{QUOTAS}/{name}.koordgate")
        return found and found["spec"]["hard"].get("requests.quota.koordgate.io/gpu")

    await admin.create(QUOTAS, quota("cards", "4"))
    await until(lambda: mirror("cards"), "the quota has a mirror")
    await admin.patch(f"{QUOTAS}/cards", {"spec": {"hard": {"requests.nvidia.com/gpu": "3"}}})

    async def follows() -> bool:
        return await mirror("cards") == "300"

    await until(follows, "the mirror follows its quota")
    await admin.delete(f"{QUOTAS}/cards")

    async def gone() -> bool:
        return await mirror("cards") is None

    await until(gone, "the mirror went with its quota")
    await admin.create(QUOTAS, {**quota("taken.koordgate", "1"), "spec": {"hard": {"pods": "5"}}})
    await admin.create(QUOTAS, quota("taken", "4"))

    async def told() -> bool:
        events = await admin.items(f"/api/v1/namespaces/{LIMITED}/events", fieldSelector="involvedObject.name=taken")
        return any("taken.koordgate" in event["message"] for event in events)

    await until(told, "that the mirror's name is taken is told")


def quota(name: str, cards: str) -> JsonObject:
    head = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}}
    return {**head, "spec": {"hard": {"requests.nvidia.com/gpu": cards}}}


class Faulty(Machine):
    """A machine whose only NIC goes up and down."""

    def plug(self, *, up: bool) -> None:
        port = self.sysfs / "class" / "infiniband" / "mlx5_0" / "ports" / "1" / "state"
        port.write_text("4: ACTIVE\n" if up else "1: DOWN\n")


def reporter_settings(machine: Machine, node: str) -> ReporterSettings:
    folder = machine.folder
    return parse(
        f"""
node: {node}
roundSeconds: 0.05
roots: {{sysfs: {machine.sysfs}, proc: {machine.proc}, cgroup: {folder}, kubelet: {folder}, state: {folder}/state}}
serve: {{port: 0}}
kubelet: {{deviceCheckpoint: {folder}/kubelet_internal_checkpoint, configz: true}}
"""
    )


async def reports(audited: Audited, admin: AdminClient, folder: Path) -> None:
    """Let a reporter do all that it ever does: two equal Events, all objects, and a single look."""
    machine = Faulty(folder)
    machine.cpus(sockets=1, nodes=1, cores=2, threads=1)
    machine.memory(0, kib=2**20)
    machine.rdma("mlx5_0", "0000:3b:00.0")
    await audited.plane.add_node("reported", {"cpu": "2", "pods": "10"})
    configured = reporter_settings(machine, "reported")
    config = await audited.plane.service_account_kubeconfig(chart.NAMESPACE, ACCOUNTS[2], node="reported")
    async with KubeClient.from_kubeconfig(config) as kube:
        ended = asyncio.Event()
        agent = Agent(configured, "reported", kube, None, ReporterMetrics(), pace=RoundPace(every=0.05, configz=0.1))
        running = asyncio.create_task(agent.run(ended))

        async def healthy(expected: object) -> bool:
            device = await admin.find(f"{DEVICES}/reported")
            return device is not None and [one["health"] for one in device["spec"]["devices"]] == [expected]

        async def counted(least: int) -> bool:
            found = await admin.items("/api/v1/namespaces/default/events", fieldSelector="involvedObject.name=reported")
            return any(one["reason"] == "LinkDown" and one["count"] >= least for one in found)

        try:
            for times in (1, 2):
                machine.plug(up=True)
                await until(lambda: healthy(True), "the NIC is in service")
                machine.plug(up=False)
                await until(lambda: healthy(False), "the NIC is out of service")
                await until(lambda times=times: counted(times), f"its fall is told {times} times")  # type: ignore[misc]
        finally:
            ended.set()
            await running
        await once.look(configured, "reported", kube, None)
        await ask_operator(kube)  # as a reporter with cards does


async def test_every_right_is_used_and_no_other_is_asked_for(
    audited: Audited, admin: AdminClient, tmp_path: Path
) -> None:
    """A right that nobody used would be one that only a thief uses."""
    await works(audited, admin, tmp_path)
    await reports(audited, admin, tmp_path)

    expected = granted(audited.objects) - BY_APPLY

    async def all_used() -> bool:
        return expected <= audited.asked("allow")

    with contextlib.suppress(NotInTimeError):
        await until(all_used, "the audit log shows every right")
    assert audited.asked("allow") == expected
    assert audited.asked("forbid") == set()
    told = ((entry.get("responseStatus") or {}).get("message", "") for entry in audited.entries())
    met = [message for message in told if "ValidatingAdmissionPolicy" in message]
    assert met == [], "no policy meets honest writes"


@pytest.mark.parametrize("right", sorted(BY_APPLY), ids=lambda right: right[2])
async def test_without_the_right_to_create_the_reporter_cannot_apply_what_is_not_there(
    audited: Audited, admin: AdminClient, right: Right
) -> None:
    _, group, resource, verb = right
    role = f"{CLUSTER_ROLES}/{ACCOUNTS[2]}"
    rules = (await admin.get(role))["rules"]
    less = [
        {**rule, "verbs": [one for one in rule["verbs"] if one != verb]} if resource in rule["resources"] else rule
        for rule in rules
    ]
    await audited.plane.add_node("bare", {"cpu": "2", "pods": "10"})
    kind = {"devices": "Device", "noderesourcetopologies": "NodeResourceTopology"}[resource]
    body: dict[str, Any] = {"apiVersion": f"{group}/v1alpha1", "kind": kind, "metadata": {"name": "bare"}}
    body |= {"spec": {"devices": []}} if kind == "Device" else {"zones": [], "topologyPolicies": []}
    token = await audited.plane.service_account_token(chart.NAMESPACE, ACCOUNTS[2], node="bare")
    async with audited.plane.admin(token) as reporter:

        def applied() -> Awaitable[JsonObject]:
            path = f"/apis/{group}/v1alpha1/{resource}/bare"
            return reporter.patch(path, body, APPLY_PATCH, fieldManager="x", force="true", dryRun="All")

        async def passes() -> bool:
            try:
                await applied()
            except ApiError as error:
                if error.status != 403:
                    raise
                return False
            return True

        async def stopped() -> bool:
            return not await passes()

        await until(passes, "with the right it is applied")
        await admin.patch(role, [{"op": "replace", "path": "/rules", "value": less}], JSON_PATCH)
        try:
            await until(stopped, "without the right it is refused")
            with pytest.raises(ApiError, match="cannot create resource"):
                await applied()
        finally:
            await admin.patch(role, [{"op": "replace", "path": "/rules", "value": rules}], JSON_PATCH)
