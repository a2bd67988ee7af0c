"""Which gang gets room first where several wait for it."""

import asyncio
from contextlib import suppress

import pytest
from fake_kube import FakeKube
from gangs.companies import Company, member
from waiting import until
from world import gpu_pod

from koordgate.kube.client import KubeClient
from webhook.gangs import keeper as keeper_module


@pytest.fixture
def company(fake: FakeKube, kube: KubeClient) -> Company:
    return Company(fake, kube)


async def fill(company: Company) -> None:
    company.add_nodes(a=4)
    company.add(gpu_pod("filler", 400))
    await company.schedule()


async def free(company: Company) -> None:
    """The filler ends; what it held is released, as a watch would have it."""
    company.one.remove_pod("filler")
    company.see()
    await company.one.parts.reconciler.reconcile()


async def add_gang(company: Company, name: str, priority: int = 0, percent: int = 200) -> None:
    company.add(*(member(f"{name}{number}", 2, percent, gang=name, priority=priority) for number in range(2)))
    await company.tend()
    company.pass_time(10)
    await company.tend()


ORDERS: dict[str, tuple[list[tuple[str, int]], str]] = {
    "who waits longest": ([("z", 0), ("m", 0), ("a", 0)], "z"),
    "who has the highest priority": ([("a", 0), ("m", 5), ("z", 1)], "m"),
    "of equal priority, who waits longest": ([("a", 1), ("z", 5), ("m", 5)], "z"),
}


@pytest.mark.parametrize(("gangs", "first"), ORDERS.values(), ids=ORDERS)
async def test_when_devices_are_released_the_first_gang_gets_them(
    company: Company, gangs: list[tuple[str, int]], first: str
) -> None:
    await fill(company)
    for name, priority in gangs:
        await add_gang(company, name, priority)
    assert company.holds() == {}
    await free(company)
    await company.tend(rounds=1)
    assert set(company.holds()) == {f"{first}0", f"{first}1"}


async def test_a_gang_that_waits_for_room_holds_up_no_other(company: Company) -> None:
    await fill(company)
    await add_gang(company, "large", 5, percent=400)
    await add_gang(company, "small")
    await free(company)
    await company.tend(rounds=1)
    assert set(company.holds()) == {"small0", "small1"}


async def test_of_many_gangs_each_round_tends_those_that_follow_the_last_one(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "_MOST_GANGS", 2)
    company.add_nodes(a=10)
    gangs = {"e": 9, "a": 5, "b": 5, "c": 5, "d": 1}
    for name, priority in gangs.items():
        company.add(*(member(f"{name}{number}", 2, gang=name, priority=priority) for number in range(2)))
    seen: list[str] = []
    while len(seen) < len(gangs):
        await company.tend(rounds=1)
        seen.append("".join(sorted({name[0] for name in company.holds()})))
        company.pass_time(1)
    assert seen == ["ae", "abce", "abcde", "abcde", "abcde"]


async def test_no_gang_is_tended_while_the_replica_does_not_see_the_cluster(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "_EVERY_S", 0.0)
    company.add_nodes(a=2)
    company.add(*(member(f"m{number}", 2) for number in range(2)))
    asked: list[bool] = []

    def healthy() -> bool:
        asked.append(len(asked) >= 3)
        if not asked[-1]:
            assert company.holds() == {}
        return asked[-1]

    running = asyncio.create_task(company.one.parts.keeper.run(healthy))
    await until(lambda: set(company.holds()) == {"m0", "m1"})
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert asked[:4] == [False, False, False, True]
