"""Replicas that end after any write, or plan the same gang at the same moment: no gang is half, and nothing is lost."""

import asyncio
from typing import Any

import pytest
from fake_kube import FakeKube
from gangs.companies import Company, ended, member

from koordgate.kube.client import KubeClient
from koordgate.kube.resource import PODS
from webhook.gangs.controller import SETTLE_S

GANG = 4


def gang(name: str, percent: int = 200) -> list[dict[str, Any]]:
    return [member(f"{name}-{number}", GANG, percent, gang=name) for number in range(GANG)]


@pytest.fixture
def pair(fake: FakeKube, kube: KubeClient) -> Company:
    """Two replicas; three nodes with room for one gang."""
    company = Company(fake, kube, 2)
    company.add_nodes(a=2, b=4, c=2)
    return company


async def crash(company: Company, after: int, *, answer_lost: bool) -> bool:
    """Let the first replica tend until it has written so often, and end it; tell whether it came to that."""
    fake = company.fake
    fake.writes_left, fake.answer_lost = after, answer_lost
    first, second = company.replicas
    for _ in range(2):
        await first.parts.gang_controller.round()
        await first.idle()
        first.see()
    came = fake.writes_left == 0
    fake.writes_left = None
    company.replicas = [second]
    company.see()
    return came


# Three holds and four gates are written.
@pytest.mark.parametrize("answer_lost", [False, True])
@pytest.mark.parametrize("after", range(1, 8))
async def test_another_replica_goes_on_wherever_one_ended(pair: Company, after: int, answer_lost: bool) -> None:  # noqa: FBT001 a case
    pair.add(*gang("g"))
    assert await crash(pair, after, answer_lost=answer_lost)
    await pair.bind_all()
    assert len(pair.bound()) == GANG
    assert pair.holds() == {}


@pytest.mark.parametrize("answer_lost", [False, True])
@pytest.mark.parametrize("after", range(1, 8))
async def test_of_two_gangs_that_need_the_same_room_one_is_bound_wherever_a_replica_ended(
    pair: Company,
    after: int,
    answer_lost: bool,  # noqa: FBT001 a case
) -> None:
    pair.add(*gang("g"), *gang("h"))
    await crash(pair, after, answer_lost=answer_lost)
    await pair.bind_all()
    assert sorted(pair.bound()) in [[f"{name}-{number}" for number in range(GANG)] for name in "gh"]


@pytest.mark.parametrize("after", range(1, 8))
async def test_what_a_replica_that_ended_held_is_given_back_if_the_gang_goes(pair: Company, after: int) -> None:
    pair.add(*gang("g"))
    await crash(pair, after, answer_lost=False)
    pair.one.remove_pod("g-3")
    pair.see()
    await pair.one.parts.reconciler.reconcile()
    await pair.tend()
    pair.pass_time(SETTLE_S + 1)
    await pair.tend()
    await ended(pair)
    assert pair.held() == []


@pytest.mark.parametrize("gangs", ["g", "gh"])
async def test_two_replicas_at_the_same_moment_bind_one_gang(pair: Company, gangs: str) -> None:
    for name in gangs:
        pair.add(*gang(name))
    await asyncio.gather(*(replica.parts.gang_controller.round() for replica in pair.replicas))
    for replica in pair.replicas:
        await replica.idle()
    pair.see()
    pair.check()
    await pair.bind_all()
    assert len(pair.bound()) == GANG
    assert len({name[0] for name in pair.bound()}) == 1


async def test_two_complete_plans_become_one(pair: Company) -> None:
    pair.add_nodes(d=4, e=4)
    pair.add(*gang("g"))
    first, second = pair.replicas
    await first.parts.gang_controller.round()
    await first.idle()
    gates = pair.gated()
    for pod in pair.fake.objects(PODS.path()):  # the second does not know of the first's plan
        assert not second.parts.ledger.nodes_of(pod["metadata"]["uid"])
    second.parts.ranking.catch_up()
    await second.parts.gang_controller.round()
    await second.idle()
    pair.see()
    pair.check()
    assert gates == []
    await pair.bind_all()
    assert len(pair.bound()) == GANG
    assert len(pair.held()) == GANG
