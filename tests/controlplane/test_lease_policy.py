"""What a stolen token of the health lease's keeper cannot do, as the API server decides with the chart's policies."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import pod, pods_path, refusal

from localplane import chart
from localplane.admin import JSON_PATCH, AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.waiting import until
from webhook.lease.selftest import POLICY, Probe
from webhook.lease.selftest import pod as probe_pod

GROUP = "/apis/admissionregistration.k8s.io/v1"
MUTATING, VALIDATING = (f"{GROUP}/{kind}webhookconfigurations/{chart.RELEASE}" for kind in ("mutating", "validating"))
ENTRIES = {MUTATING: "pods.mutate.koordgate.io", VALIDATING: "pods.validate.koordgate.io"}
KEEPER = "koordgate-lease"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{chart.NAMESPACE}/leases"
GPU = {"nvidia.com/gpu": "1"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(binaries: Binaries) -> AsyncIterator[ControlPlane]:
    """A control plane with the chart; no replica lives."""
    async with ControlPlane(binaries) as plane:
        await chart.install(plane, chart.render(binaries))
        for name in ("default", "team"):
            await plane.ensure_namespace(name)
        async with plane.admin(await plane.service_account_token(chart.NAMESPACE, KEEPER)) as thief:

            async def in_force() -> bool:
                change = [{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 1}]
                return bool(await refusal(thief.patch(MUTATING, change, JSON_PATCH, dryRun="All")))

            await until(in_force, "the API server goes by the policy")
        yield plane


@pytest_asyncio.fixture(loop_scope="session")
async def thief(guarded: ControlPlane) -> AsyncIterator[AdminClient]:
    """A client with the keeper's token."""
    async with guarded.admin(await guarded.service_account_token(chart.NAMESPACE, KEEPER)) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def root(guarded: ControlPlane) -> AsyncIterator[AdminClient]:
    async with guarded.admin() as client:
        yield client


async def index(root: AdminClient, path: str) -> int:
    return [hook["name"] for hook in (await root.get(path))["webhooks"]].index(ENTRIES[path])


def noted(entry: str) -> JsonObject:
    return {"op": "add", "path": "/metadata/annotations", "value": {"koordgate.io/opened": f"{entry} since now"}}


def policy(at: int, value: str = "Ignore") -> JsonObject:
    return {"op": "replace", "path": f"/webhooks/{at}/failurePolicy", "value": value}


@pytest.mark.parametrize("path", ENTRIES, ids=["mutating", "validating"])
async def test_its_entry_may_be_opened_if_that_is_noted_and_shut(
    root: AdminClient, thief: AdminClient, path: str
) -> None:
    at = await index(root, path)
    assert not await refusal(thief.patch(path, [policy(at), noted(ENTRIES[path])], JSON_PATCH))
    undo = [policy(at, "Fail"), {"op": "remove", "path": "/metadata/annotations"}]
    assert not await refusal(thief.patch(path, undo, JSON_PATCH))


@pytest.mark.parametrize("path", ENTRIES, ids=["mutating", "validating"])
@pytest.mark.parametrize("note", ["", "x", "pods.mutate", "bindings.mutate.koordgate.io since now", "since now"])
async def test_an_entry_may_not_be_opened_without_a_note_that_names_it(
    root: AdminClient, thief: AdminClient, path: str, note: str
) -> None:
    value = {"op": "add", "path": "/metadata/annotations", "value": {"koordgate.io/opened": note}}
    changes = [policy(await index(root, path)), *([value] if note else [])]
    assert await refusal(thief.patch(path, changes, JSON_PATCH, dryRun="All")) == KEEPER


async def test_the_note_of_an_open_entry_may_not_be_removed(root: AdminClient, thief: AdminClient) -> None:
    at = await index(root, MUTATING)
    await thief.patch(MUTATING, [policy(at), noted(ENTRIES[MUTATING])], JSON_PATCH)
    removed = [{"op": "remove", "path": "/metadata/annotations"}]
    assert await refusal(thief.patch(MUTATING, removed, JSON_PATCH, dryRun="All")) == KEEPER
    await thief.patch(MUTATING, [policy(at, "Fail"), *removed], JSON_PATCH)


@pytest.mark.parametrize("path", ENTRIES, ids=["mutating", "validating"])
@pytest.mark.parametrize(
    "changes",
    [
        [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}],
        [{"op": "replace", "path": "/webhooks/AT/rules", "value": []}],
        [{"op": "replace", "path": "/webhooks/AT/matchConditions", "value": []}],
        [{"op": "replace", "path": "/webhooks/AT/timeoutSeconds", "value": 30}],
        [{"op": "replace", "path": "/webhooks/AT/namespaceSelector", "value": {}}],
        [{"op": "add", "path": "/webhooks/AT/clientConfig/caBundle", "value": "QQ=="}],
        [{"op": "replace", "path": "/webhooks/AT/clientConfig/service/path", "value": "/x"}],
        [{"op": "remove", "path": "/webhooks/AT"}],
        [{"op": "replace", "path": "/webhooks", "value": []}],
        [{"op": "remove", "path": "/metadata/labels"}],
        [{"op": "add", "path": "/metadata/annotations", "value": {"cert-manager.io/inject-ca-from": "a/b"}}],
        [{"op": "add", "path": "/metadata/finalizers", "value": ["example.com/held"]}],
    ],
    ids=[
        "an entry of Bindings",
        "no rules",
        "no conditions",
        "a deadline",
        "all namespaces",
        "a CA",
        "another path",
        "one less",
        "none",
        "no labels",
        "another annotation",
        "a finalizer",
    ],
)
async def test_nothing_else_of_the_configurations_may_be_changed(
    root: AdminClient, thief: AdminClient, path: str, changes: list[JsonObject]
) -> None:
    at = str(await index(root, path))
    made = [{**one, "path": one["path"].replace("AT", at)} for one in changes]
    assert await refusal(thief.patch(path, made, JSON_PATCH, dryRun="All")) == KEEPER


async def test_pods_may_be_created_as_dry_runs_in_one_namespace_only(root: AdminClient, thief: AdminClient) -> None:
    plain = pod("plain", "default", {"cpu": "100m"})
    assert not await refusal(thief.create(pods_path("default"), plain, dryRun="All"))
    assert await refusal(thief.create(pods_path("default"), plain)) == KEEPER
    with pytest.raises(ApiError, match="cannot create resource"):
        await thief.create(pods_path("team"), pod("plain", "team", {"cpu": "100m"}), dryRun="All")


async def test_its_dry_runs_pass_the_policy_while_entries_are_open_but_for_the_one_that_asks_not_to(
    root: AdminClient, thief: AdminClient
) -> None:
    opened = {path: await index(root, path) for path in ENTRIES}
    for path, at in opened.items():
        await thief.patch(path, [policy(at), noted(ENTRIES[path])], JSON_PATCH)
    try:

        async def holds() -> bool:
            try:
                made = root.create(pods_path("default"), pod("gpu", "default", GPU), dryRun="All")
                return await refusal(made) == POLICY
            except ApiError as error:  # the API server still goes by Fail
                if "failed calling webhook" not in error.message:
                    raise
                return False

        await until(holds, "the policy goes by the open entry")
        for probe in (Probe.TRANSLATED, Probe.REFUSED):
            assert not await refusal(thief.create(pods_path("default"), probe_pod(probe), dryRun="All"))
        assert await refusal(thief.create(pods_path("default"), probe_pod(Probe.HELD), dryRun="All")) == POLICY
        assert await refusal(root.create(pods_path("default"), probe_pod(Probe.TRANSLATED), dryRun="All")) == POLICY
    finally:
        for path, at in opened.items():
            undo = [policy(at, "Fail"), {"op": "remove", "path": "/metadata/annotations"}]
            await thief.patch(path, undo, JSON_PATCH)


async def test_an_administrator_may_set_entries_to_ignore_and_the_policy_then_refuses_nothing(
    root: AdminClient,
) -> None:
    """Who does that wants Pods to go around koordgate; the health lease leaves it alone."""
    for path in ENTRIES:
        await root.patch(path, [policy(await index(root, path))], JSON_PATCH)

    async def passes() -> bool:
        try:
            return not await refusal(root.create(pods_path("default"), pod("gpu", "default", GPU), dryRun="All"))
        except ApiError:  # the API server still goes by Fail
            return False

    await until(passes, "the API server goes by Ignore")
    for path in ENTRIES:
        await root.patch(path, [policy(await index(root, path), "Fail")], JSON_PATCH)


async def test_of_leases_a_replica_may_make_its_own_only(guarded: ControlPlane) -> None:
    async with guarded.admin(await guarded.service_account_token(chart.NAMESPACE, chart.RELEASE)) as webhook:

        def lease(name: str) -> JsonObject:
            return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}

        assert await refusal(webhook.create(LEASES, lease("koord-scheduler"), dryRun="All")) == "koordgate-webhook"
        assert not await refusal(webhook.create(LEASES, lease("koordgate-health"), dryRun="All"))
        with pytest.raises(ApiError, match="cannot patch resource"):
            await webhook.patch(f"{LEASES}/koord-scheduler", {"spec": {"holderIdentity": "thief"}})
