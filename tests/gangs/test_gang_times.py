"""What is held for gangs has an end: when time runs out, when Pods go, and who has to wait because it was in vain."""

from typing import Any

import pytest
from fake_kube import FakeKube
from gangs.companies import HOLD_S, Company, ended, held_in_vain, member, members

from allocator.bind import GANG_WAITS
from allocator.vocabulary.holdings import WITHOUT_LIMIT
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import EVENTS
from webhook.gangs.controller import MARGIN_S, SETTLE_S


@pytest.fixture
def company(fake: FakeKube, kube: KubeClient) -> Company:
    return Company(fake, kube)


async def test_room_is_given_back_as_a_whole_when_no_pod_was_bound_in_time(company: Company) -> None:
    await held_in_vain(company)
    company.pass_time(HOLD_S)
    await company.one.parts.reconciler.reconcile()
    await company.tend()
    company.pass_time(MARGIN_S)
    await company.one.parts.reconciler.reconcile()
    await company.tend()
    assert set(company.holds()) == {"m0", "m1"}
    assert await company.schedule() == dict.fromkeys(["m0", "m1"], GANG_WAITS.message)
    company.pass_time(1)
    await company.tend()
    assert company.held() == []
    assert await company.schedule() == dict.fromkeys(["m0", "m1"], GANG_WAITS.message)
    company.pass_time(HOLD_S + 1)
    await company.tend()
    assert company.holds() == {"m0": HOLD_S, "m1": HOLD_S}
    assert await company.schedule() == {}
    assert company.bound() == {"m0": "a", "m1": "a"}


async def test_a_bind_after_the_end_of_the_holds_is_refused(company: Company) -> None:
    await held_in_vain(company)
    company.pass_time(HOLD_S)
    await company.tend()
    refused = await company.one.bind("m0", "a")
    assert not refused.allowed
    assert GANG_WAITS.message in refused.message


async def test_a_bind_before_anybody_ended_the_holds_is_performed_and_the_gang_is_whole(company: Company) -> None:
    await held_in_vain(company)
    company.pass_time(10 * HOLD_S)
    assert (await company.one.bind("m0", "a")).allowed
    await company.tend()
    assert company.holds() == {"m1": WITHOUT_LIMIT - company.now}
    assert await company.schedule() == {}
    assert company.bound() == {"m0": "a", "m1": "a"}


async def test_a_bind_between_the_marks_takes_them_away_again(company: Company) -> None:
    """One Pod's hold is on a node whose record the replica cannot write; it is bound while the other is marked."""
    company.add_nodes(a=2, b=2)
    company.add(*members(2, least=2))
    await company.tend()
    assert company.holds() == {"m0": HOLD_S, "m1": HOLD_S}
    company.pass_time(HOLD_S)
    company.fake.writes_left = 1
    await company.one.parts.gang_controller.round()
    company.fake.writes_left = None
    company.see()
    (taken,) = (held.name for held in company.held() if not held.ending)
    (node,) = (node for node in "ab" if taken in company.one.holders(node))
    assert (await company.one.bind(taken, node)).allowed
    company.pass_time(MARGIN_S + 1)
    await company.tend()
    assert {held.name for held in company.held()} == {"m0", "m1"}
    assert [held.ending for held in company.held()] == ["", ""]
    assert await company.schedule() == {}
    assert len(company.bound()) == 2


@pytest.mark.parametrize("ahead", [-100_000, 100_000])
async def test_replicas_whose_clocks_are_a_day_apart_neither_end_holds_early_nor_keep_them(
    fake: FakeKube, kube: KubeClient, ahead: int
) -> None:
    pair = Company(fake, kube, 2)
    pair.replicas[1].clock.ahead = ahead
    await held_in_vain(pair)
    for _ in range(HOLD_S // 20 - 1):
        pair.pass_time(20)
        await pair.tend()
        assert {held.ending for held in pair.held()} == {""}
    pair.pass_time(SETTLE_S)
    await pair.tend()
    pair.pass_time(MARGIN_S + 1)
    await pair.tend()
    assert pair.held() == []
    pair.pass_time(HOLD_S + 1)
    await pair.tend()
    assert await pair.schedule(replica=pair.replicas[1]) == {}
    assert len(pair.bound()) == 2


async def test_a_bind_to_where_nothing_is_held_is_refused(company: Company) -> None:
    await held_in_vain(company)
    company.add_nodes(b=8)
    refused = await company.one.bind("m0", "b")
    assert not refused.allowed
    assert company.one.holders("b") == []


async def test_once_one_is_bound_the_others_are_held_without_limit(company: Company) -> None:
    await held_in_vain(company)
    await company.schedule(["m1"])
    await company.tend()
    company.pass_time(10 * HOLD_S)
    await company.one.parts.reconciler.reconcile()
    await company.tend()
    assert company.holds() == {"m0": WITHOUT_LIMIT - company.now}


ENDS: dict[str, dict[str, Any] | None] = {
    "deleted": None,
    "succeeded": {"phase": "Succeeded"},
    "failed": {"phase": "Failed"},
}


@pytest.mark.parametrize("status", ENDS.values(), ids=ENDS)
async def test_once_no_pod_of_the_gang_runs_any_more_what_is_held_has_an_end_again(
    company: Company, status: dict[str, Any] | None
) -> None:
    company.add_nodes(a=6)
    company.add(*members(3, least=2))
    await company.tend()
    await company.schedule(["m1"])
    await company.tend()
    assert company.holds() == dict.fromkeys(["m0", "m2"], WITHOUT_LIMIT - company.now)
    company.pass_time(10 * HOLD_S)
    if status is None:
        company.one.remove_pod("m1")
    else:
        company.one.change_pod("m1", status=status)
    company.see()
    await company.one.parts.reconciler.reconcile()
    await company.tend()
    assert company.holds() == dict.fromkeys(["m0", "m2"], HOLD_S)
    await ended(company)
    assert company.held() == []


async def test_what_has_an_end_again_can_be_taken_until_then(company: Company) -> None:
    await held_in_vain(company)
    await company.schedule(["m1"])
    await company.tend()
    company.one.remove_pod("m1")
    company.see()
    await company.tend()
    assert company.holds() == {"m0": HOLD_S}
    assert await company.schedule() == {}
    assert company.bound() == {"m0": "a"}


async def test_what_is_held_for_a_pod_that_is_deleted_is_released(company: Company) -> None:
    await held_in_vain(company)
    company.one.remove_pod("m0")
    company.see()
    await company.one.parts.reconciler.reconcile()
    assert set(company.holds()) == {"m1"}
    company.add(member("m2", 2, 200))
    company.pass_time(SETTLE_S + 1)
    await company.tend()
    assert company.holds() == dict.fromkeys(["m1", "m2"], HOLD_S - SETTLE_S - 1)
    assert company.gated() == []


async def test_a_pod_that_replaces_one_of_a_running_gang_is_bound_alone(company: Company) -> None:
    await held_in_vain(company)
    await company.schedule()
    company.one.change_pod("m0", status={"phase": "Failed"})
    company.see()
    await company.one.parts.reconciler.reconcile()
    company.add(member("m2", 2, 200))
    await company.tend()
    await company.schedule()
    assert company.bound() == dict.fromkeys(["m0", "m1", "m2"], "a")


async def test_the_pods_of_a_gang_that_failed_as_a_whole_do_not_stand_in_for_new_ones(company: Company) -> None:
    await held_in_vain(company)
    await company.schedule()
    for name in ("m0", "m1"):
        company.one.change_pod(name, status={"phase": "Failed"})
    company.see()
    await company.one.parts.reconciler.reconcile()
    company.add(member("m2", 2, 200))
    await company.tend()
    assert company.gated() == ["m2"]
    company.add(member("m3", 2, 200))
    await company.tend()
    assert company.gated() == []


# Pauses


def other_gang() -> list[dict[str, Any]]:
    return [member(f"h{number}", 2, 200, gang="h") for number in range(2)]


def other_tenant() -> list[dict[str, Any]]:
    return [member(f"o{number}", 2, 200, gang="g", namespace="other") for number in range(2)]


def holders(company: Company) -> set[str]:
    return set(company.holds())


async def test_a_tenant_that_creates_pods_anew_holds_cards_for_half_of_the_time_at_most(company: Company) -> None:
    await held_in_vain(company)
    held = 0
    for number in range(40):
        company.pass_time(HOLD_S // 4)
        if number % 5 == 4:
            company.one.remove_pod("m0")
            company.see()
            await company.one.parts.reconciler.reconcile()
            company.add(member("m0", 2, 200, uid=f"uid-m0-{number}"))
        await company.tend()
        held += bool(company.holds())
    assert 10 <= held <= 24


@pytest.mark.parametrize("early", [False, True])
async def test_after_a_hold_in_vain_the_gangs_of_the_namespace_wait_and_others_do_not(
    company: Company,
    early: bool,  # noqa: FBT001 a case
) -> None:
    await held_in_vain(company)
    company.add(*other_gang())
    if early:  # just before the time is over
        company.pass_time(HOLD_S - 1)
        for name in ("m0", "m1"):
            company.one.remove_pod(name)
        company.see()
        await company.one.parts.reconciler.reconcile()
    else:
        await ended(company)
    await company.tend()
    assert holders(company) == set()
    for _ in range(2):
        company.pass_time(HOLD_S // 4)
        await company.tend()
    assert holders(company) == set()
    await company.one.parts.reporter.idle()
    events = [event for event in company.fake.objects(EVENTS.path()) if event["involvedObject"]["name"] == "h0"]
    assert events[-1]["message"] == (
        "room was held in vain for gang default/g: for up to 100 s no gang of its namespace gets any"
    )
    company.add(*other_tenant())
    await company.tend()
    assert holders(company) == {"o0", "o1"}


async def test_a_gang_that_runs_gets_room_for_more_pods_while_its_namespace_waits(company: Company) -> None:
    company.add_nodes(b=6)
    company.add(*other_gang())
    await company.tend()
    await company.schedule()
    await held_in_vain(company)
    await ended(company)
    company.add(member("h2", 2, 200, gang="h"))
    await company.tend()
    await company.schedule()
    assert "h2" in company.bound()


async def give_way(company: Company) -> None:
    """The Pods of the first gang are deleted, and another gang comes."""
    for name in ("m0", "m1"):
        company.one.remove_pod(name)
    company.see()
    await company.one.parts.reconciler.reconcile()
    company.add(*other_gang())
    await company.tend()


async def test_a_short_hold_that_ended_early_costs_a_short_pause(company: Company) -> None:
    await held_in_vain(company)
    company.pass_time(5)
    await give_way(company)
    assert holders(company) == set()
    company.pass_time(6)
    await company.tend()
    assert holders(company) == {"h0", "h1"}


async def test_a_gang_that_ran_and_is_gone_was_not_held_in_vain(company: Company) -> None:
    await held_in_vain(company)
    company.pass_time(HOLD_S // 2)
    await company.schedule()
    await company.tend()
    await give_way(company)
    assert holders(company) == {"h0", "h1"}
