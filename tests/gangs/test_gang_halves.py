"""No gang becomes half by a bind that was never performed, or by one that comes while a plan is being written."""

import asyncio

import pytest
from fake_kube import FakeKube, Fault, answer, hold
from gangs.companies import HOLD_S, SETTINGS, Company, ended, held_in_vain, members, without
from world import binding, binds, gpu_pod

from allocator.bind import GANG_WAITS
from allocator.vocabulary.holdings import WITHOUT_LIMIT
from koordgate.kube.client import KubeClient
from webhook.gangs.controller import SETTLE_S

GRACE_S = 120


@pytest.fixture
def company(fake: FakeKube, kube: KubeClient) -> Company:
    return Company(fake, kube)


async def answered(company: Company, name: str) -> None:
    """A bind of a Pod is answered, and the API server never performs it."""
    assert (await company.one.mutate(binds(binding(name, "a")))).allowed
    company.see()


async def swept(company: Company, *, tended: bool = True) -> None:
    """The grace passes until what was answered with is marked, and once more."""
    for _ in range(3):
        await company.one.parts.reconciler.reconcile()
        await company.one.idle()
        company.see()
        if tended:
            await company.tend()
        company.pass_time(GRACE_S + 1)


# Binds that were never performed


async def test_what_a_bind_that_was_never_performed_gave_is_kept_for_the_gang_while_another_pod_runs(
    company: Company,
) -> None:
    await held_in_vain(company)
    await company.schedule(["m1"])
    await answered(company, "m0")
    assert company.holds() == {}
    await swept(company, tended=False)
    company.one.add_pod(gpu_pod("quick", 200))
    company.see()
    assert not (await company.one.bind("quick", "a")).allowed
    await company.tend()
    company.pass_time(SETTLE_S + 1)
    await company.tend()
    assert company.holds() == {"m0": WITHOUT_LIMIT - company.now}
    company.one.remove_pod("quick")
    assert await company.schedule() == {}
    assert company.bound() == {"m0": "a", "m1": "a"}


async def test_what_a_bind_that_was_never_performed_gave_is_given_back_with_the_rest_if_no_pod_runs(
    company: Company,
) -> None:
    await held_in_vain(company)
    await answered(company, "m0")
    await swept(company)
    assert set(company.holds()) == {"m0", "m1"}
    company.pass_time(HOLD_S)
    await company.tend()
    await ended(company)
    assert company.held() == []


async def test_what_was_kept_for_the_gang_is_released_with_its_pod(company: Company) -> None:
    await held_in_vain(company)
    await company.schedule(["m1"])
    await answered(company, "m0")
    await swept(company)
    company.one.remove_pod("m0")
    company.see()
    await company.one.parts.reconciler.reconcile()
    assert [held.name for held in company.held()] == ["m1"]


async def test_where_gangs_need_not_be_whole_what_a_bind_that_was_never_performed_gave_is_released(
    fake: FakeKube, kube: KubeClient
) -> None:
    company = Company(fake, kube, settings=without(SETTINGS))
    company.add_nodes(a=4)
    company.add(*members(2, least=2))
    await answered(company, "m0")
    await swept(company, tended=False)
    assert company.held() == []


# Plans for Pods that have no gates any more


async def without_gates(company: Company) -> None:
    """Two Pods of two cards each for which room was held in vain, and two nodes with room for one of them each."""
    company.add_nodes(a=2, b=2)
    company.add(*members(2, least=2))
    await company.tend()
    await ended(company)
    assert (company.held(), company.gated()) == ([], [])
    company.pass_time(HOLD_S + 1)
    company.see()


async def test_a_pod_without_a_gate_is_not_bound_before_room_for_all_is_held(company: Company) -> None:
    await without_gates(company)
    second = hold()
    company.fake.faults.add("update", "nodeallocations", Fault(), second)
    planning = asyncio.create_task(company.one.parts.gang_controller.round())
    await second.reached.wait()
    (name,) = [held.name for held in company.held()]
    company.see()
    refused = await company.one.bind(name, "a")
    assert not refused.allowed
    assert GANG_WAITS.message in refused.message
    assert second.gate is not None
    second.gate.set()
    await planning
    company.see()
    assert await company.schedule() == {}
    assert sorted(company.bound().values()) == ["a", "b"]


async def test_a_plan_for_pods_without_gates_that_fails_leaves_nothing(company: Company) -> None:
    await without_gates(company)
    company.fake.faults.add("update", "nodeallocations", Fault(), answer(500))
    await company.one.parts.gang_controller.round()
    await company.one.idle()
    assert company.held() == []


async def test_a_plan_whose_marks_stay_is_given_back_as_a_whole_and_made_anew(company: Company) -> None:
    """The replica ends after it has written all holds, and removed the mark of the first."""
    await without_gates(company)
    company.fake.faults.add("update", "nodeallocations", Fault(), Fault(), Fault(), answer(500))
    await company.one.parts.gang_controller.round()
    await company.one.idle()
    assert sorted(bool(held.ending) for held in company.held()) == [False, True]
    await company.bind_all()
    assert sorted(company.bound().values()) == ["a", "b"]
