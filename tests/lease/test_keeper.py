"""The keeper against an API server: what it reads, what it writes, and what it does when that fails."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fake_kube import FakeKube, Fault, answer, hold
from waiting import until

from koordgate.kube.client import KubeClient
from koordgate.kube.resource import EVENTS, LEASES, PODS
from webhook.lease.decide import LeaseWish
from webhook.lease.entries import Guarded
from webhook.lease.keeper import LeaseKeeper
from webhook.lease.metrics import LeaseMetrics
from webhook.settings import parse

SETTINGS = parse("healthLease: {enabled: true, renewSeconds: 10, openAfterSeconds: 30, selfTests: 2}")
NAMESPACE = "koordgate-system"
DOWN = Fault(status=500, message='failed calling webhook "pods.mutate.koordgate.io": connection refused')
HELD = Fault(status=403, message="ValidatingAdmissionPolicy 'koordgate-while-open' denied request")
REFUSED = Fault(status=422, message='"pods.validate.koordgate.io" denied: [koordgate.io/self-test] marks a self-test')


class Desk:
    """A keeper with a clock of its own, and the API server."""

    def __init__(self, fake: FakeKube, kube: KubeClient) -> None:
        self.fake = fake
        self.now = 5000.0
        self.metrics = LeaseMetrics()
        self.keeper = LeaseKeeper(kube, SETTINGS, self.metrics, clock=lambda: self.now, wall=lambda: 0.0)
        for guarded in Guarded:
            collection = guarded.resource.path()
            fake.put(
                collection, {"metadata": {"name": "koordgate"}, "webhooks": [{"name": "a.koordgate.io"}, hook(guarded)]}
            )
        self.renewed()

    def renewed(self) -> None:
        spec = {"holderIdentity": "a", "renewTime": str(self.now)}
        lease = {"metadata": {"name": "koordgate-health"}, "spec": spec}
        self.fake.put(LEASES.path(namespace=NAMESPACE), lease)

    async def look(self, *answers: Fault) -> LeaseWish:
        """Look ten seconds later; dry runs are answered by these."""
        self.now += 10
        self.fake.faults.add("create", "pods", *answers)
        return await self.keeper.look()

    async def silent(self) -> None:
        for _ in range(3):
            assert await self.look() is LeaseWish.NOTHING

    @property
    def policies(self) -> list[str]:
        return [self.fake.get(one.resource.path("koordgate"))["webhooks"][1]["failurePolicy"] for one in Guarded]

    @property
    def events(self) -> list[str]:
        return [one["reason"] for one in self.fake.objects(EVENTS.path(namespace=NAMESPACE))]

    @property
    def problem(self) -> bool:
        return bool(self.metrics.problem._value.get())


def hook(guarded: Guarded) -> dict[str, Any]:
    return {"name": guarded.entry, "failurePolicy": "Fail"}


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    async with FakeKube() as fake, KubeClient(fake.url) as kube:
        yield Desk(fake, kube)


async def test_while_the_lease_is_renewed_no_pod_is_tried(desk: Desk) -> None:
    for _ in range(20):
        desk.renewed()
        assert await desk.look() is LeaseWish.NOTHING
    assert not desk.fake.seen("create", "pods")
    assert not desk.problem


async def test_entries_are_opened_one_after_the_other(desk: Desk) -> None:
    await desk.silent()
    assert await desk.look(DOWN) is LeaseWish.OPEN_MUTATING
    assert desk.policies == ["Ignore", "Fail"]
    note = desk.fake.get(Guarded.MUTATING.resource.path("koordgate"))["metadata"]["annotations"]
    assert note == {"koordgate.io/opened": "pods.mutate.koordgate.io since 1970-01-01T00:00:00Z"}
    assert await desk.look(DOWN, HELD) is LeaseWish.OPEN_VALIDATING
    assert desk.policies == ["Ignore", "Ignore"]
    assert await desk.look(DOWN, HELD) is LeaseWish.NOTHING
    assert desk.events == ["HealthLeaseOpened"] * 2
    exposed = desk.metrics.exposition().decode()
    assert 'koordgate_lease_open{entry="pods.mutate.koordgate.io"} 1.0' in exposed
    assert 'koordgate_lease_changes_total{done="opened"} 2.0' in exposed


async def test_the_pods_of_self_tests_are_dry_runs(desk: Desk) -> None:
    await desk.silent()
    await desk.look(DOWN)
    (asked,) = desk.fake.seen("create", "pods")
    assert asked.path == PODS.path(namespace="default")
    assert asked.query["dryRun"] == "All"


async def test_without_the_policy_the_validating_entry_stays_shut(desk: Desk) -> None:
    await desk.silent()
    await desk.look(DOWN)
    for _ in range(3):
        await desk.look(DOWN, DOWN)
    assert desk.policies == ["Ignore", "Fail"]
    assert desk.problem


async def opened(desk: Desk) -> None:
    """Let both entries be opened."""
    await desk.silent()
    await desk.look(DOWN)
    await desk.look(DOWN, HELD)
    assert desk.policies == ["Ignore", "Ignore"]


async def test_if_the_policy_goes_while_entries_are_open_the_validating_entry_is_shut_at_once(desk: Desk) -> None:
    await opened(desk)
    assert await desk.look(DOWN) is LeaseWish.SHUT_VALIDATING  # the dry run passes the policy
    for _ in range(3):
        await desk.look(DOWN)
        assert desk.policies == ["Ignore", "Fail"]
        assert desk.problem


QUOTA = Fault(status=403, message='pods "koordgate-lease-x" is forbidden: exceeded quota: none')


async def test_if_something_else_refuses_all_self_tests_entries_are_shut_once_replicas_renew(desk: Desk) -> None:
    await opened(desk)
    for _ in range(3):
        assert await desk.look(QUOTA) is LeaseWish.NOTHING
    wishes = []
    for _ in range(3):
        desk.renewed()
        wishes.append(await desk.look(QUOTA))
    assert wishes == [LeaseWish.NOTHING, LeaseWish.SHUT, LeaseWish.NOTHING]
    assert desk.policies == ["Fail", "Fail"]
    assert desk.events.count("HealthLeaseShut") == 2


async def test_a_keeper_that_starts_anew_takes_an_old_lease_for_no_renewal(desk: Desk) -> None:
    await opened(desk)
    async with KubeClient(desk.fake.url) as kube:
        desk.keeper = LeaseKeeper(kube, SETTINGS, desk.metrics, clock=lambda: desk.now, wall=lambda: 0.0)
        for _ in range(5):
            assert await desk.look(QUOTA) is LeaseWish.NOTHING
    assert desk.policies == ["Ignore", "Ignore"]


async def test_if_the_namespace_of_self_tests_is_no_longer_koordgates_nothing_stays_open(desk: Desk) -> None:
    await opened(desk)
    wishes = []
    for _ in range(2):
        desk.renewed()
        wishes.append(await desk.look())  # both dry runs pass untouched
    assert wishes == [LeaseWish.SHUT_VALIDATING, LeaseWish.SHUT]
    assert desk.policies == ["Fail", "Fail"]


async def test_what_an_upgrade_shut_is_opened_again_only_after_as_much_silence_as_at_first(desk: Desk) -> None:
    """An upgrade may take the keeper away: it must not open something in its last seconds."""
    await opened(desk)
    for guarded in Guarded:
        body = desk.fake.get(guarded.resource.path("koordgate"))
        body["webhooks"][1] = hook(guarded)
        desk.fake.put(guarded.resource.path(), body)
    assert await desk.look(DOWN) is LeaseWish.TIDY
    for _ in range(2):
        assert await desk.look(DOWN) is LeaseWish.NOTHING
    assert desk.policies == ["Fail", "Fail"]
    assert await desk.look(DOWN) is LeaseWish.OPEN_MUTATING


@pytest.mark.parametrize("resource", ["leases", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"])
@pytest.mark.parametrize("status", [403, 500])
async def test_what_cannot_be_read_opens_nothing_and_silence_begins_again(
    desk: Desk, resource: str, status: int
) -> None:
    await desk.silent()
    desk.fake.faults.always("get", resource, answer(status))
    desk.keeper._kube._sleep = no_sleep
    for _ in range(5):
        assert await desk.look() is LeaseWish.NOTHING
        assert desk.problem
    desk.fake.faults.always("get", resource, None)
    for _ in range(3):
        assert await desk.look() is LeaseWish.NOTHING
        assert not desk.problem
    assert await desk.look(DOWN) is LeaseWish.OPEN_MUTATING


async def no_sleep(_seconds: float) -> None:
    return


@pytest.mark.parametrize("status", [409, 422])
async def test_a_lost_race_is_tried_again_at_once(desk: Desk, status: int) -> None:
    await desk.silent()
    desk.fake.faults.add("patch", "mutatingwebhookconfigurations", *[answer(status)] * 4)
    assert await desk.look(DOWN) is LeaseWish.OPEN_MUTATING
    assert desk.policies == ["Ignore", "Fail"]
    assert not desk.problem


async def test_races_that_are_always_lost_are_told_and_tried_again_later(desk: Desk) -> None:
    await desk.silent()
    desk.fake.faults.add("patch", "mutatingwebhookconfigurations", *[answer(409)] * 5)
    assert await desk.look(DOWN) is LeaseWish.OPEN_MUTATING
    assert (desk.policies, desk.events, desk.problem) == (["Fail", "Fail"], [], True)
    assert await desk.look(DOWN) is LeaseWish.OPEN_MUTATING
    assert (desk.policies, desk.problem) == (["Ignore", "Fail"], False)


async def test_what_another_keeper_has_opened_meanwhile_is_not_told_twice(desk: Desk) -> None:
    await desk.silent()
    held = hold()
    desk.fake.faults.add("patch", "mutatingwebhookconfigurations", held)
    looking = asyncio.create_task(desk.look(DOWN))
    await held.reached.wait()
    about = {"name": "koordgate", "annotations": {"koordgate.io/opened": "pods.mutate.koordgate.io since noon"}}
    opened = hook(Guarded.MUTATING) | {"failurePolicy": "Ignore"}
    desk.fake.put(Guarded.MUTATING.resource.path(), {"metadata": about, "webhooks": [{"name": "a"}, opened]})
    assert held.gate is not None
    held.gate.set()
    await looking
    assert desk.events == []
    assert desk.problem


async def test_an_event_that_cannot_be_written_stops_nothing(desk: Desk) -> None:
    await desk.silent()
    desk.fake.faults.always("create", "events", answer(403))
    await desk.look(DOWN)
    await desk.look(DOWN, HELD)
    assert desk.policies == ["Ignore", "Ignore"]


async def test_what_an_upgrade_shut_is_forgotten_without_an_event(desk: Desk) -> None:
    for guarded in Guarded:
        noted = {"koordgate.io/opened": f"{guarded.entry} since x", "kept": "yes"}
        body = {"metadata": {"name": "koordgate", "annotations": noted}, "webhooks": [{"name": "a"}, hook(guarded)]}
        desk.fake.put(guarded.resource.path(), body)
    assert await desk.look() is LeaseWish.TIDY
    found = [desk.fake.get(one.resource.path("koordgate"))["metadata"]["annotations"] for one in Guarded]
    assert found == [{"kept": "yes"}] * 2
    assert desk.events == []


async def test_without_configurations_nothing_is_done(desk: Desk) -> None:
    for guarded in Guarded:
        desk.fake.remove(guarded.resource.path("koordgate"))
    await desk.silent()
    assert await desk.look() is LeaseWish.NOTHING


async def test_a_keeper_that_hangs_is_not_healthy(desk: Desk) -> None:
    await desk.look()
    assert desk.keeper.unhealthy() == []
    desk.now += 310
    assert desk.keeper.unhealthy() == []
    desk.now += 1
    assert desk.keeper.unhealthy() == ["the last look began 311 s ago"]
    await desk.look()
    assert desk.keeper.unhealthy() == []


async def test_metrics_and_events_say_what_is_open_since_when_and_for_how_long_nobody_lived(desk: Desk) -> None:
    await opened(desk)
    exposed = desk.metrics.exposition().decode().splitlines()
    assert "koordgate_lease_silent_seconds 40.0" in exposed
    assert [line for line in exposed if line.startswith("koordgate_lease_open{")] == [
        f'koordgate_lease_open{{entry="{guarded.entry}"}} 1.0' for guarded in Guarded
    ]
    for _ in range(2):
        desk.renewed()
        await desk.look()  # both dry runs pass untouched
    exposed = desk.metrics.exposition().decode().splitlines()
    assert [line for line in exposed if line.startswith("koordgate_lease_open{")] == [
        f'koordgate_lease_open{{entry="{guarded.entry}"}} 0.0' for guarded in Guarded
    ]
    assert 'koordgate_lease_changes_total{done="opened"} 2.0' in exposed
    assert 'koordgate_lease_changes_total{done="shut"} 2.0' in exposed
    told = sorted((one["message"], one) for one in desk.fake.objects(EVENTS.path(namespace=NAMESPACE)))
    assert [message.partition(" (")[0] for message, _ in told] == [
        "no replica has lived for 30 s, so pods.mutate.koordgate.io is open",
        "no replica has lived for 40 s, so pods.validate.koordgate.io is open",
        "pods.mutate.koordgate.io guards Pods again",
        "pods.validate.koordgate.io guards Pods again",
    ]
    assert told[3][0].endswith("(Fail); it was open since 1970-01-01T00:00:00Z")
    assert [(one["type"], one["count"]) for _, one in told] == [("Warning", 1)] * 2 + [("Normal", 1)] * 2
    assert {(one["firstTimestamp"], one["lastTimestamp"]) for _, one in told} == {("1970-01-01T00:00:00Z",) * 2}


async def test_a_problem_is_told_once_and_its_end_too(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "webhook.lease.keeper")
    desk.keeper._kube._sleep = no_sleep
    for status in (403, 404):
        desk.fake.faults.always("get", "mutatingwebhookconfigurations", answer(403, f"no {status}"))
        for _ in range(2):
            await desk.look()
    desk.fake.faults.always("get", "mutatingwebhookconfigurations", None)
    for _ in range(2):
        await desk.look()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "INFO"]


async def test_a_bug_is_counted_and_told(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> LeaseWish:
        raise ZeroDivisionError

    desk.keeper.look = look  # type: ignore[method-assign]
    keeping = asyncio.create_task(desk.keeper.run())
    await until(lambda: "koordgate_lease_bugs_total 1.0" in desk.metrics.exposition().decode())
    keeping.cancel()
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_each_configuration_is_found_by_its_own_name(desk: Desk) -> None:
    named = parse(
        "{healthLease: {enabled: true, renewSeconds: 10, openAfterSeconds: 30, selfTests: 2}, "
        "identity: {mutating: ours-m, validating: ours-v}}"
    )
    desk.keeper = LeaseKeeper(desk.keeper._kube, named, desk.metrics, clock=lambda: desk.now, wall=lambda: 0.0)
    names = {Guarded.MUTATING: "ours-m", Guarded.VALIDATING: "ours-v"}
    for guarded, name in names.items():
        body = {"metadata": {"name": name}, "webhooks": [{"name": "a.koordgate.io"}, hook(guarded)]}
        desk.fake.put(guarded.resource.path(), body)
    await desk.silent()
    assert await desk.look(DOWN) is LeaseWish.OPEN_MUTATING
    assert await desk.look(DOWN, HELD) is LeaseWish.OPEN_VALIDATING
    for guarded, name in names.items():
        assert desk.fake.get(guarded.resource.path(name))["webhooks"][1]["failurePolicy"] == "Ignore"
    assert desk.policies == ["Fail", "Fail"]
