"""The health lease on a real API server: entries open while no replica lives, and are shut after self-tests."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import pod, pods_path, refusal

from koordgate.kube.client import KubeClient
from localplane import chart
from localplane.admin import JSON_PATCH, STRATEGIC_PATCH, AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until
from webhook.lease import keeper
from webhook.lease.entries import Guarded
from webhook.lease.metrics import LeaseMetrics
from webhook.lease.selftest import POLICY
from webhook.settings import parse

GROUP = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    Guarded.MUTATING: f"{GROUP}/mutatingwebhookconfigurations/{chart.RELEASE}",
    Guarded.VALIDATING: f"{GROUP}/validatingwebhookconfigurations/{chart.RELEASE}",
}
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{chart.NAMESPACE}/leases/koordgate-health"
EVENTS = f"/api/v1/namespaces/{chart.NAMESPACE}/events"
KEEPER = "koordgate-lease"
VALUES = {
    "healthLease": {"renewSeconds": 0.2, "openAfterSeconds": 1.5, "selfTests": 2},
    "numa": {"scope": {"namespaces": ["aligned"]}},
}
TEAM = "team"
GPU, CPU = {"nvidia.com/gpu": "1"}, {"cpu": "100m"}
PINNED = {"koordinator.sh/qosClass": "LSR"}
FAIL, OPEN = {"Fail"}, {"Ignore"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def objects(binaries: Binaries) -> list[JsonObject]:
    return chart.render(binaries, VALUES)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def leased(binaries: Binaries, objects: list[JsonObject]) -> AsyncIterator[ControlPlane]:
    """A control plane with the chart; neither a replica nor a keeper lives."""
    async with ControlPlane(binaries, controller_manager=True) as plane:
        await chart.install(plane, objects)
        for name in (TEAM, "aligned", "default"):
            await plane.ensure_namespace(name)
        yield plane


@pytest_asyncio.fixture(loop_scope="session")
async def root(leased: ControlPlane) -> AsyncIterator[AdminClient]:
    async with leased.admin() as client:
        yield client
        for path in PATHS.values():  # as an upgrade leaves them
            await client.patch(path, {"metadata": {"annotations": {"koordgate.io/opened": None}}})
            hooks = (await client.get(path))["webhooks"]
            guarded = [hook["name"] in {one.entry for one in Guarded} for hook in hooks].index(True)
            change = [{"op": "replace", "path": f"/webhooks/{guarded}/failurePolicy", "value": "Fail"}]
            await client.patch(path, change, JSON_PATCH)


@pytest.fixture
def replicas(leased: ControlPlane, objects: list[JsonObject], tmp_path: Path) -> Callable[..., object]:
    numbers = itertools.count()

    async def made(count: int = 1) -> Replicas:
        return Replicas(
            chart.settings_text(objects),
            kubeconfig=await leased.service_account_kubeconfig(chart.NAMESPACE, chart.RELEASE),
            workdir=tmp_path / str(next(numbers)),
            listen=await leased.service_address(chart.NAMESPACE, chart.RELEASE),
            count=count,
        )

    return made


@contextlib.asynccontextmanager
async def keeping(
    plane: ControlPlane, objects: list[JsonObject], **how: Callable[[], float]
) -> AsyncIterator[LeaseMetrics]:
    """A keeper with the rights of its account."""
    config = await plane.service_account_kubeconfig(chart.NAMESPACE, KEEPER)
    metrics = LeaseMetrics()
    async with KubeClient.from_kubeconfig(config) as kube:
        one = keeper.LeaseKeeper(kube, parse(chart.settings_text(objects)), metrics, **how)
        running = asyncio.create_task(one.run())
        try:
            yield metrics
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert metrics.bugs._value.get() == 0


async def policies(admin: AdminClient) -> dict[str, str]:
    found = [hook for path in PATHS.values() for hook in (await admin.get(path))["webhooks"]]
    return {hook["name"].removesuffix(".koordgate.io"): hook["failurePolicy"] for hook in found}


async def entries(admin: AdminClient, expected: set[str], what: str) -> None:
    """Wait until both guarded entries stand as expected."""

    async def so() -> bool:
        now = await policies(admin)
        return {now["pods.mutate"], now["pods.validate"]} == expected

    await until(so, what, deadline_s=60)


async def told(admin: AdminClient, reason: str) -> list[str]:
    found = await admin.items(EVENTS, fieldSelector="involvedObject.name=koordgate-health")
    return [event["message"] for event in found if event["reason"] == reason]


async def told_of_both(admin: AdminClient, reason: str) -> None:
    """Wait until there is an Event about each entry; it is written after the change."""

    async def so() -> bool:
        return len(await told(admin, reason)) == len(PATHS)

    await until(so, f"an Event {reason} about each entry")


async def goes_by_open_entries(admin: AdminClient) -> bool:
    """Whether the API server has seen the open entries, and the policy with it."""
    try:
        await admin.create(pods_path(TEAM), labelled("pinned", PINNED), dryRun="All")
        return await refusal(admin.create(pods_path(TEAM), pod("gpu", TEAM, GPU), dryRun="All")) == POLICY
    except ApiError as error:
        if "failed calling webhook" not in error.message:
            raise
        return False


class Clock:
    """A keeper's clock, in seconds, that can be stopped for a while."""

    def __init__(self) -> None:
        self._lost = 0.0
        self._stopped: float | None = None

    def __call__(self) -> float:
        return (time.monotonic() if self._stopped is None else self._stopped) - self._lost

    def stop(self) -> None:
        self._stopped = time.monotonic()

    def go_on(self) -> None:
        assert self._stopped is not None
        self._lost += time.monotonic() - self._stopped
        self._stopped = None


def labelled(name: str, labels: dict[str, str], namespace: str = TEAM, **asks: str) -> JsonObject:
    made = pod(name, namespace, asks or CPU)
    made["metadata"]["labels"] = labels
    return made


async def test_entries_open_when_replicas_are_killed_and_are_shut_once_one_answers_again(
    leased: ControlPlane, objects: list[JsonObject], root: AdminClient, replicas
) -> None:
    before = await policies(root)
    clock = Clock()
    async with await replicas(2) as running, keeping(leased, objects, clock=clock) as metrics:
        await root.create(pods_path(TEAM), pod("served", TEAM, GPU))

        async def renewed() -> bool:
            return bool(await root.find(LEASE))

        await until(renewed, "a replica renews the lease")
        clock.stop()  # the entries are open only after a Pod was refused
        for number in range(2):
            running.kill(number)
        with pytest.raises(ApiError, match="failed calling webhook"):
            await root.create(pods_path(TEAM), labelled("pinned", PINNED))
        clock.go_on()
        await entries(root, OPEN, "both entries are open")
        await until(lambda: goes_by_open_entries(root), "the API server goes by the open entries")

        # Pods that ask for CPUs, or that numa.scope names, are created without koordgate.
        pinned = await root.create(pods_path(TEAM), labelled("pinned", PINNED))
        assert pinned["spec"]["schedulerName"] == "default-scheduler"
        await root.create(pods_path("aligned"), pod("aligned", "aligned", CPU))
        await root.create(pods_path(TEAM), labelled("limited", {}, cpu="100m", **{"nvidia.com/gpu": "0"}))
        # Those for devices are not.
        for asks in (
            GPU,
            {"kubernetes.io/gpu": "50"},
            {"koordinator.sh/gpu-core": "100"},
            {"koordinator.sh/rdma": "1"},
        ):
            assert await refusal(root.create(pods_path(TEAM), pod("gpu", TEAM, asks))) == POLICY
        with pytest.raises(ApiError, match="no replica of koordgate's webhook has lived"):
            await root.create(pods_path(TEAM), pod("gpu", TEAM, GPU, schedulerName="koord-scheduler"))
        forged = pod("forged", TEAM, CPU)
        forged["metadata"]["annotations"] = {"koordgate.io/original-request": "{}"}
        assert await refusal(root.create(pods_path(TEAM), forged)) == POLICY
        # What only the webhook checks of a Pod that exists stays as it is.
        hint = {"metadata": {"annotations": {"scheduling.koordinator.sh/device-allocate-hint": "{}"}}}
        assert await refusal(root.patch(pods_path(TEAM, "served"), hint)) == POLICY
        relabelled = {"metadata": {"labels": {"koordinator.sh/qosClass": "LSE"}}}
        assert await refusal(root.patch(pods_path(TEAM, "pinned"), relabelled, STRATEGIC_PATCH)) == POLICY
        await root.patch(pods_path(TEAM, "served"), {"metadata": {"labels": {"team": "a"}}})

        assert await policies(root) == before | {"pods.mutate": "Ignore", "pods.validate": "Ignore"}

        await told_of_both(root, "HealthLeaseOpened")
        assert [metrics.open.labels(one.entry)._value.get() for one in Guarded] == [1, 1]

        await running.start(1)
        await entries(root, FAIL, "both entries are shut")
        assert await policies(root) == before
        await told_of_both(root, "HealthLeaseShut")
        for path in PATHS.values():
            assert "koordgate.io/opened" not in (await root.get(path))["metadata"].get("annotations", {})

        async def served() -> bool:
            return not await refusal(root.create(pods_path(TEAM), pod("after", TEAM, GPU), dryRun="All"))

        await until(served, "Pods for devices are created again")


async def test_of_several_keepers_one_makes_each_change_although_their_clocks_differ(
    leased: ControlPlane, objects: list[JsonObject], root: AdminClient, replicas
) -> None:
    # Keepers end first: they would open the entries again.
    async with contextlib.AsyncExitStack() as living, contextlib.AsyncExitStack() as stack:
        hours = 3600.0
        walls = [lambda: 0.0, lambda: 10 * hours, lambda: 1e9]
        keepers = [await stack.enter_async_context(keeping(leased, objects, wall=wall)) for wall in walls]
        await entries(root, OPEN, "both entries are open")
        await living.enter_async_context(await replicas())
        await entries(root, FAIL, "both entries are shut")

        def done() -> dict[str, float]:
            return {what: sum(one.changes.labels(what)._value.get() for one in keepers) for what in ("opened", "shut")}

        async def all_counted() -> bool:
            return min(done().values()) >= len(PATHS)

        await until(all_counted, "each change is counted")
    assert done() == {"opened": 2, "shut": 2}


async def test_a_lease_that_is_deleted_or_that_nobody_can_renew_opens_nothing_while_replicas_answer(
    leased: ControlPlane, objects: list[JsonObject], root: AdminClient, replicas
) -> None:
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{chart.NAMESPACE}/roles/koordgate"
    async with await replicas():
        await root.create(pods_path(TEAM), pod("here", TEAM, GPU))
        rules = (await root.get(role))["rules"]
        less = [rule for rule in rules if "leases" not in rule["resources"]]
        await root.patch(role, [{"op": "replace", "path": "/rules", "value": less}], JSON_PATCH)
        try:
            with contextlib.suppress(ApiError):
                await root.delete(LEASE)
            async with keeping(leased, objects) as metrics:

                async def silent() -> bool:
                    return metrics.problem._value.get() == 1

                await until(silent, "the keeper sees that replicas answer and do not renew", deadline_s=60)
                assert set((await policies(root)).values()) >= FAIL
                assert metrics.changes.labels("opened")._value.get() == 0
                await root.patch(role, [{"op": "replace", "path": "/rules", "value": rules}], JSON_PATCH)

                async def well() -> bool:
                    return bool(await root.find(LEASE)) and metrics.problem._value.get() == 0

                await until(well, "the lease is made again", deadline_s=60)
        finally:
            await root.patch(role, [{"op": "replace", "path": "/rules", "value": rules}], JSON_PATCH)


async def test_a_forged_lease_keeps_entries_shut_and_never_shuts_them(
    leased: ControlPlane, objects: list[JsonObject], root: AdminClient
) -> None:
    """Whoever may write the Lease can say that a replica lives; only a self-test shuts an entry."""

    async def forge() -> None:
        for number in itertools.count():
            head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "koordgate-health"}}
            await root.apply({**head, "spec": {"holderIdentity": f"thief-{number}"}}, namespace=chart.NAMESPACE)

    async with keeping(leased, objects) as metrics:
        await entries(root, OPEN, "both entries are open")
        forging = asyncio.create_task(forge())
        try:

            async def seen() -> bool:
                return metrics.problem._value.get() == 1

            await until(seen, "the keeper sees renewals and no answer", deadline_s=60)
            assert {one for name, one in (await policies(root)).items() if name.startswith("pods.")} >= OPEN
            assert metrics.changes.labels("shut")._value.get() == 0
        finally:
            forging.cancel()
            await asyncio.gather(forging, return_exceptions=True)


async def test_a_keeper_and_the_publication_of_the_ca_do_not_undo_each_other(
    leased: ControlPlane, objects: list[JsonObject], root: AdminClient
) -> None:
    async def publish() -> None:
        """End after some hundred writes: on a busy machine they could keep the keeper from its own for ever."""
        for number in range(300):
            for path in PATHS.values():
                value = "QQ==" if number % 2 else "Qg=="
                change = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": value}]
                await root.patch(path, change, JSON_PATCH)

    async with keeping(leased, objects):
        publishing = asyncio.create_task(publish())
        await entries(root, OPEN, "both entries are open")
        await publishing
        await entries(root, OPEN, "both entries are still open")
    for path in PATHS.values():
        (first, *_) = (await root.get(path))["webhooks"]
        assert first["clientConfig"]["caBundle"] == "QQ=="


async def test_after_a_power_failure_the_control_plane_the_keeper_and_a_replica_come_up_in_any_order(
    leased: ControlPlane, objects: list[JsonObject], root: AdminClient, replicas
) -> None:
    async with keeping(leased, objects), await replicas() as running:
        running.kill(0)
        leased.power_off()
        await leased.power_on()
        await entries(root, OPEN, "the keeper, which lived on, opens both entries")
        made = await root.create(pods_path(chart.NAMESPACE), labelled("own", PINNED, chart.NAMESPACE), dryRun="All")
        assert made["spec"]["schedulerName"] == "default-scheduler"
        await running.start(0)
        await entries(root, FAIL, "both entries are shut")


async def test_without_the_policy_in_force_the_validating_entry_stays_shut(
    leased: ControlPlane, objects: list[JsonObject], root: AdminClient
) -> None:
    binding = f"{GROUP}/validatingadmissionpolicybindings/{POLICY}"
    await root.delete(binding)
    try:
        async with keeping(leased, objects) as metrics:

            async def stuck() -> bool:
                return (await policies(root))["pods.mutate"] == "Ignore" and metrics.problem._value.get() == 1

            await until(stuck, "the keeper misses the policy", deadline_s=60)
            assert (await policies(root))["pods.validate"] == "Fail"
            with pytest.raises(ApiError, match="failed calling webhook"):
                await root.create(pods_path(TEAM), pod("gpu", TEAM, GPU))
    finally:
        await root.apply(chart.find(objects, "ValidatingAdmissionPolicyBinding", POLICY), manager="helm")


async def test_a_quota_that_refuses_all_self_tests_keeps_no_entry_open_once_replicas_live(
    leased: ControlPlane, objects: list[JsonObject], root: AdminClient, replicas
) -> None:
    """Else Pods for devices would be refused, although replicas live, until somebody removes the quota."""
    quotas = "/api/v1/namespaces/default/resourcequotas"
    head = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": "default"}}
    await root.create(quotas, {**head, "spec": {"hard": {"pods": "0"}}})
    try:
        async with keeping(leased, objects):
            await entries(root, OPEN, "both entries are open")
            async with await replicas():
                await entries(root, FAIL, "both entries are shut")

                async def served() -> bool:
                    return not await refusal(root.create(pods_path(TEAM), pod("again", TEAM, GPU), dryRun="All"))

                await until(served, "Pods for devices are created again")
                assert set((await policies(root)).values()) >= FAIL
    finally:
        await root.delete(f"{quotas}/none")


async def test_if_the_policy_is_removed_while_entries_are_open_the_validating_entry_is_shut(
    leased: ControlPlane, objects: list[JsonObject], root: AdminClient
) -> None:
    async with keeping(leased, objects):
        await entries(root, OPEN, "both entries are open")
        await root.delete(f"{GROUP}/validatingadmissionpolicybindings/{POLICY}")
        try:

            async def half() -> bool:
                now = await policies(root)
                return (now["pods.mutate"], now["pods.validate"]) == ("Ignore", "Fail")

            async def refused() -> bool:
                try:
                    await root.create(pods_path(TEAM), pod("gpu", TEAM, GPU), dryRun="All")
                except ApiError as error:
                    return "failed calling webhook" in str(error)
                return False

            await until(half, "the validating entry is shut", deadline_s=60)
            await until(refused, "the API server goes by it")
        finally:
            await root.apply(chart.find(objects, "ValidatingAdmissionPolicyBinding", POLICY), manager="helm")
        await entries(root, OPEN, "both are open again")


@pytest.mark.parametrize("namespace", ["kube-system", chart.NAMESPACE])
async def test_without_a_keeper_koordgates_own_pods_and_those_of_the_system_are_created_while_all_is_down(
    leased: ControlPlane, root: AdminClient, namespace: str
) -> None:
    for made in (pod("any", namespace, GPU), labelled("pinned", PINNED, namespace), pod("plain", namespace, CPU)):
        assert not await refusal(root.create(pods_path(namespace), made, dryRun="All"))


async def test_the_types_of_the_policies_are_right(leased: ControlPlane, root: AdminClient) -> None:
    for name in (POLICY, KEEPER):

        async def checked(name: str = name) -> bool:
            found = await root.get(f"{GROUP}/validatingadmissionpolicies/{name}")
            return found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]

        await until(checked, "the controller has checked the types")
        found = await root.get(f"{GROUP}/validatingadmissionpolicies/{name}")
        assert not found["status"].get("typeChecking", {}).get("expressionWarnings")
