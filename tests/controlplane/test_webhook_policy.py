"""What a stolen token of the webhook cannot do, as decided by the API server with the chart's policies."""

import copy
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
import pytest_asyncio
from controlplane.conftest import POLICED, WEBHOOKS
from controlplane.gpu_cluster import pod, pods_path, refusal

from allocator.vocabulary.names import GANG_GATE, HEADROOM, RELEASED
from localplane import chart
from localplane.admin import JSON_PATCH, AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.waiting import until

pytestmark = pytest.mark.usefixtures("guarded")
GROUP = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = [f"{GROUP}/{kind}webhookconfigurations/{chart.RELEASE}" for kind in ("mutating", "validating")]
SECRETS = f"/api/v1/namespaces/{chart.NAMESPACE}/secrets"
NODE = "/api/v1/nodes/node-1"
WEBHOOK, GATES, NOMINATIONS = "koordgate-webhook", "koordgate-gates", "koordgate-nominations"
CA = {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "QQ=="}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(policed: ControlPlane, binaries: Binaries) -> AsyncIterator[ControlPlane]:
    """The control plane for policies, meanwhile with webhook configurations, and with a Node; no replica lives."""
    configurations = [one for one in chart.render(binaries, POLICED) if one["kind"] in WEBHOOKS]
    await policed.add_node("node-1", {"cpu": "8", "pods": "110"}, labels={"kept": "yes"})
    await policed.ensure_namespace("team")
    async with policed.admin() as admin:
        await admin.patch(NODE, {"metadata": {"annotations": {"kept": "yes"}}})
        await chart.install(policed, configurations)
        async with policed.admin(await policed.service_account_token(chart.NAMESPACE, chart.RELEASE)) as webhook:

            async def in_force() -> bool:
                return bool(await refusal(noted(webhook, {"other": "x"})))

            await until(in_force, "the API server goes by the policy")
        yield policed
        for path in (*CONFIGURATIONS, NODE):
            await admin.delete(path)

        async def let_through() -> bool:
            try:
                await admin.create(pods_path("team"), pod("p", "team", {"nvidia.com/gpu": "1"}), dryRun="All")
            except ApiError:
                return False
            return True

        await until(let_through, "the API server does without the webhooks")


@pytest_asyncio.fixture(loop_scope="session")
async def thief(guarded: ControlPlane) -> AsyncIterator[AdminClient]:
    """A client with the webhook's token."""
    async with guarded.admin(await guarded.service_account_token(chart.NAMESPACE, chart.RELEASE)) as client:
        yield client


def noted(client: AdminClient, annotations: dict[str, str | None]) -> Awaitable[JsonObject]:
    """Write annotations through the Node's status, as a dry run."""
    return client.patch(f"{NODE}/status", {"metadata": {"annotations": annotations}}, dryRun="All")


# Webhook configurations


@pytest.mark.parametrize("path", CONFIGURATIONS)
async def test_the_ca_of_its_configurations_may_be_published(thief: AdminClient, path: str) -> None:
    assert not await refusal(thief.patch(path, [CA], JSON_PATCH, dryRun="All"))
    removed = [CA, {"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
    assert not await refusal(thief.patch(path, removed, JSON_PATCH, dryRun="All"))


@pytest.mark.parametrize(
    "changes",
    [
        [{"op": "replace", "path": "/webhooks/0/rules/0/resources", "value": ["*"]}],
        [
            {"op": "remove", "path": "/webhooks/0/clientConfig/service"},
            {"op": "add", "path": "/webhooks/0/clientConfig/url", "value": "https://thief.example"},
        ],
        [{"op": "replace", "path": "/webhooks/0/clientConfig/service/namespace", "value": "team"}],
        [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}],
        [{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 30}],
        [{"op": "replace", "path": "/webhooks/0/namespaceSelector", "value": {}}],
        [{"op": "replace", "path": "/webhooks/0/matchConditions", "value": []}],
        [{"op": "replace", "path": "/webhooks", "value": []}],
        [
            {"op": "copy", "from": "/webhooks/0", "path": "/webhooks/-"},
            {"op": "replace", "path": "/webhooks/0/name", "value": "a.b.c"},
        ],
        [{"op": "add", "path": "/metadata/annotations", "value": {"cert-manager.io/inject-ca-from": "team/theirs"}}],
        [{"op": "remove", "path": "/metadata/labels"}],
        [CA, {"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 1}],
    ],
    ids=[
        "more resources",
        "a URL",
        "another namespace's Service",
        "a failure policy",
        "a deadline",
        "all namespaces",
        "no conditions",
        "none",
        "one more",
        "another injector",
        "no labels",
        "a deadline beside the CA",
    ],
)
async def test_nothing_else_of_its_configurations_may_be_changed(thief: AdminClient, changes: list[JsonObject]) -> None:
    for path in CONFIGURATIONS:
        assert await refusal(thief.patch(path, changes, JSON_PATCH, dryRun="All")) == WEBHOOK


async def test_an_administrator_goes_on_to_change_them(root: AdminClient) -> None:
    change = [{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 1}]

    for path in CONFIGURATIONS:
        assert not await refusal(root.patch(path, change, JSON_PATCH, dryRun="All"))


@pytest.mark.parametrize("path", CONFIGURATIONS)
async def test_no_configuration_of_another_name_may_be_touched(thief: AdminClient, path: str) -> None:
    made = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "theirs"}, "webhooks": []}
    for request in (
        thief.patch(path.replace(f"/{chart.RELEASE}", "/other"), [CA], JSON_PATCH),
        thief.create(path.rpartition("/")[0], made),
        thief.delete(path),
    ):
        with pytest.raises(ApiError, match=r"cannot (patch|create|delete) resource"):
            await request


# Nodes


async def test_waiting_pods_may_be_woken(thief: AdminClient) -> None:
    assert not await refusal(noted(thief, {RELEASED: "now"}))
    assert not await refusal(noted(thief, {RELEASED: None}))


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"annotations": {"other": "x"}}},
        {"metadata": {"annotations": {"kept": None}}},
        {"metadata": {"annotations": {RELEASED: "now", "kept": "no"}}},
        {"metadata": {"labels": {"kept": "no"}}},
        {"metadata": {"finalizers": ["example.com/held"]}},
        {"status": {"capacity": {"cpu": "9"}}},
        {"status": {"allocatable": {"nvidia.com/gpu": "8"}}},
        {"status": {"conditions": []}},
        {"status": None},
    ],
    ids=str,
)
async def test_nothing_else_of_a_node_may_be_changed(thief: AdminClient, body: JsonObject) -> None:
    assert await refusal(thief.patch(f"{NODE}/status", body, dryRun="All")) == WEBHOOK


SHORT = {"key": HEADROOM, "effect": "PreferNoSchedule"}


async def test_its_own_taint_of_a_node_may_be_set_and_removed_and_no_other(
    root: AdminClient, thief: AdminClient
) -> None:
    theirs = {"key": "team", "value": "a", "effect": "NoSchedule"}
    await root.patch(NODE, {"spec": {"taints": [theirs]}})
    assert not await refusal(thief.patch(NODE, {"spec": {"taints": [theirs, SHORT]}}))
    for taints in (
        [SHORT],
        [theirs, {**SHORT, "effect": "NoSchedule"}],
        [{**theirs, "value": "b"}, SHORT],
        [theirs, SHORT, {"key": "more", "effect": "PreferNoSchedule"}],
    ):
        assert await refusal(thief.patch(NODE, {"spec": {"taints": taints}}, dryRun="All")) == WEBHOOK
    assert await refusal(thief.patch(NODE, {"spec": {"unschedulable": True}}, dryRun="All")) == WEBHOOK
    assert await refusal(thief.patch(NODE, {"metadata": {"labels": {"kept": "no"}}}, dryRun="All"))
    assert not await refusal(thief.patch(NODE, {"spec": {"taints": [theirs]}}))
    await root.patch(NODE, {"spec": {"taints": None}})


async def test_a_node_with_absurdly_many_annotations_is_not_looked_through(
    guarded: ControlPlane, root: AdminClient, thief: AdminClient
) -> None:
    await guarded.add_node("swollen", {"cpu": "8", "pods": "110"})
    await root.patch("/api/v1/nodes/swollen", {"metadata": {"annotations": {f"a{n}": "" for n in range(1001)}}})
    with pytest.raises(ApiError, match="more than 1000 annotations"):
        await thief.patch("/api/v1/nodes/swollen/status", {"metadata": {"annotations": {RELEASED: "now"}}})


# Secrets


def secret(name: str, **more: Any) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "kubernetes.io/tls",
        "data": {"tls.crt": "", "tls.key": ""},
        **more,
    }


@pytest.mark.parametrize("name", ["koordgate-tls", "koordgate-scheduler-tls"])
async def test_the_secrets_of_its_certificates_may_be_made(thief: AdminClient, name: str) -> None:
    assert not await refusal(thief.create(SECRETS, secret(name), dryRun="All"))


async def test_no_token_of_another_account_can_be_had_by_a_secret(thief: AdminClient) -> None:
    token = secret("koordgate-tls", type="kubernetes.io/service-account-token", data={})
    token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "koord-scheduler"}

    assert await refusal(thief.create(SECRETS, token, dryRun="All")) == WEBHOOK


async def test_no_other_secret_may_be_made(thief: AdminClient) -> None:
    assert await refusal(thief.create(SECRETS, secret("other"), dryRun="All")) == WEBHOOK
    generated = secret("") | {"metadata": {"generateName": "koordgate-tls"}}
    assert await refusal(thief.create(SECRETS, generated, dryRun="All")) == WEBHOOK


# Pods


async def test_with_its_gate_nothing_else_of_a_pod_may_be_changed(root: AdminClient, thief: AdminClient) -> None:
    gated = pod("gated", "team", {"cpu": "1"}, schedulingGates=[{"name": GANG_GATE}])
    gated["metadata"] |= {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    path = pods_path("team", "gated")
    stored = await root.create(pods_path("team"), gated)
    lifted = copy.deepcopy(stored)
    del lifted["spec"]["schedulingGates"]

    def changed(part: str, **fields: Any) -> JsonObject:
        return {**lifted, part: {**lifted[part], **fields}}

    attempts = {
        "a label": changed("metadata", labels={"a": "c"}),
        "an annotation": changed(
            "metadata", annotations={"c": "d", "scheduling.koordinator.sh/device-allocated": "{}"}
        ),
        "no annotation": changed("metadata", annotations={}),
        "a finalizer": changed("metadata", finalizers=["example.com/held"]),
        "a node selector": changed("spec", nodeSelector={"kubernetes.io/hostname": "node-1"}),
        "a deadline": changed("spec", activeDeadlineSeconds=1),
        "a toleration": changed("spec", tolerations=[*lifted["spec"]["tolerations"], {"operator": "Exists"}]),
        "the gate left": {**stored, "metadata": {**stored["metadata"], "labels": {"a": "c"}}},
    }
    for what, body in attempts.items():
        change = {"metadata": body["metadata"], "spec": body["spec"]}
        operations = [{"op": "replace", "path": f"/{part}", "value": value} for part, value in change.items()]
        refusals = await refusal(thief.patch(path, operations, JSON_PATCH, dryRun="All"))
        assert refusals in {GATES, "koordgate-allocations"}, what
    lift = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    assert not await refusal(thief.patch(path, lift, JSON_PATCH))


@pytest_asyncio.fixture(loop_scope="session")
async def status(root: AdminClient) -> AsyncIterator[str]:
    """The status of a Pod that waits, with a condition."""
    path = pods_path("team", "waits")
    await root.create(pods_path("team"), pod("waits", "team", {"cpu": "1"}))
    await root.patch(f"{path}/status", {"status": {"conditions": [CONDITION], "message": "kept"}})
    yield f"{path}/status"
    await root.delete(path, {"gracePeriodSeconds": 0})


CONDITION = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
STARTED = {"name": "main", "image": "none", "imageID": "none", "ready": True, "restartCount": 0}
NOMINATED = "/status/nominatedNodeName"


async def test_a_node_may_be_nominated_for_a_pod_and_the_nomination_be_changed_and_withdrawn(
    thief: AdminClient, status: str
) -> None:
    """As the API server reads a test: what is not there is null."""
    for before, change in (
        (None, {"op": "add", "path": NOMINATED, "value": "node-1"}),
        ("node-1", {"op": "replace", "path": NOMINATED, "value": "node-2"}),
        ("node-2", {"op": "remove", "path": NOMINATED}),
    ):
        test = {"op": "test", "path": NOMINATED, "value": before}
        assert not await refusal(thief.patch(status, [test, change], JSON_PATCH))
        with pytest.raises(ApiError):
            await thief.patch(status, [test, change], JSON_PATCH)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "replace", "path": "/status/phase", "value": "Failed"},
        {"op": "replace", "path": "/status/message", "value": "changed"},
        {"op": "remove", "path": "/status/message"},
        {"op": "add", "path": "/status/reason", "value": "Evicted"},
        {"op": "replace", "path": "/status/conditions/0/status", "value": "True"},
        {"op": "remove", "path": "/status/conditions"},
        {"op": "add", "path": "/status/podIP", "value": "10.0.0.1"},
        {"op": "add", "path": "/status/containerStatuses", "value": [STARTED]},
        {"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}},
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
        {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/held"]},
    ],
    ids=lambda change: f"{change['op']} {change['path']}",
)
async def test_beside_a_nomination_nothing_of_a_pods_status_may_be_changed(
    root: AdminClient, thief: AdminClient, status: str, change: JsonObject
) -> None:
    for operations in ([change], [{"op": "add", "path": NOMINATED, "value": "node-1"}, change]):
        assert await refusal(thief.patch(status, operations, JSON_PATCH, dryRun="All")) == NOMINATIONS
    assert not await refusal(root.patch(status, [change], JSON_PATCH, dryRun="All")), "others may"
