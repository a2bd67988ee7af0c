"""Replicas renew one Lease while they are ready, and none waits for another."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from fake_kube import FakeKube, Fault, answer
from waiting import until

from koordgate.kube.client import KubeClient
from koordgate.kube.resource import LEASES
from webhook.lease.record import beat_of, renewal
from webhook.lease.renewal import LeaseRenewal
from webhook.settings import parse

SETTINGS = parse("healthLease: {enabled: true, renewSeconds: 0.01, openAfterSeconds: 1}")
COLLECTION = LEASES.path(namespace="koordgate-system")
PATH = LEASES.path("koordgate-health", "koordgate-system")


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeKube]:
    async with FakeKube() as server:
        yield server


@pytest_asyncio.fixture
async def kube(fake: FakeKube) -> AsyncIterator[KubeClient]:
    async with KubeClient(fake.url) as client:
        yield client


async def test_the_lease_is_made_at_the_first_renewal_and_changed_at_each_further_one(
    fake: FakeKube, kube: KubeClient
) -> None:
    moments = iter((1000.0, 1010.5))
    renewal = LeaseRenewal(kube, SETTINGS, "webhook-a", clock=lambda: next(moments))
    await renewal.renew()
    made = fake.get(PATH)
    assert made["metadata"]["labels"]["app.kubernetes.io/part-of"] == "koordgate"
    assert made["spec"]["renewTime"] == "1970-01-01T00:16:40.000000Z"
    await renewal.renew()
    renewed = fake.get(PATH)
    assert renewed["spec"]["renewTime"] == "1970-01-01T00:16:50.500000Z"
    assert beat_of(renewed) != beat_of(made)
    assert renewal.problem == ""


async def test_replicas_with_the_same_clock_renew_the_same_lease(fake: FakeKube, kube: KubeClient) -> None:
    beats = set()
    for name in ("webhook-a", "webhook-b", "webhook-c"):
        await LeaseRenewal(kube, SETTINGS, name, clock=lambda: 0.0).renew()
        beats.add(beat_of(fake.get(PATH)))
    assert len(beats) == 3
    assert len(fake.objects(COLLECTION)) == 1


@pytest.mark.parametrize(("every", "lasts"), [(10.0, 30), (0.5, 2), (0.01, 1), (0.1, 1)])
def test_a_lease_says_that_it_lasts_for_three_renewals_and_a_second_at_least(every: float, lasts: int) -> None:
    assert renewal("webhook-a", 0.0, every)["spec"]["leaseDurationSeconds"] == lasts


def test_a_label_is_no_renewal() -> None:
    spec = {"holderIdentity": "a", "renewTime": "t"}
    assert beat_of({"spec": spec}) == beat_of(
        {"metadata": {"labels": {"a": "b"}, "resourceVersion": "9"}, "spec": spec}
    )


@pytest.mark.parametrize("lease", [{}, {"spec": None}, {"spec": {"holderIdentity": None}}])
def test_an_empty_lease_can_be_read(lease: dict[str, object]) -> None:
    assert beat_of(lease) == ("", "", "")


async def test_a_lease_that_another_replica_has_just_made_is_left_alone(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.add("create", "leases", answer(409))
    fake.faults.add("create", "leases", Fault(status=409, reason="AlreadyExists"))
    renewal = LeaseRenewal(kube, SETTINGS, "webhook-a")
    await renewal.renew()
    assert renewal.problem
    await renewal.renew()
    assert renewal.problem == ""


async def test_a_failure_is_told_once_and_so_is_its_end(
    fake: FakeKube, kube: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    renewal = LeaseRenewal(kube, SETTINGS, "webhook-a")
    fake.faults.always("patch", "leases", answer(403))
    await renewal.renew()
    await renewal.renew()
    fake.faults.always("patch", "leases", None)
    await renewal.renew()
    await renewal.renew()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_a_replica_that_is_not_ready_is_silent(fake: FakeKube, kube: KubeClient) -> None:
    ready, asked = [False], []

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        ready[0] = len(asked) > 3
        await asyncio.sleep(0)

    task = asyncio.create_task(LeaseRenewal(kube, SETTINGS, "webhook-a", sleep=sleep).run(lambda: ready[0]))
    await until(lambda: bool(fake.objects(COLLECTION)))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(asked) > 3
    assert set(asked) == {0.01}
