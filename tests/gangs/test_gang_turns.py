"""Which gang gets room first where several wait for it."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from fake_kube import FakeKube
from gangs.companies import Company, member
from waiting import until
from world import gpu_pod

from koordgate.kube.client import KubeClient
from webhook.gangs import controller as controller_module
from webhook.upkeep.reports import EventReports
from webhook.view.podinfo import PodInfo, read_pod_info


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
    monkeypatch.setattr(controller_module, "_MAX_GANGS", 2)
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
    monkeypatch.setattr(controller_module, "_EVERY_S", 0.0)
    company.add_nodes(a=2)
    company.add(*(member(f"m{number}", 2) for number in range(2)))
    asked: list[bool] = []

    def healthy() -> bool:
        asked.append(len(asked) >= 3)
        if not asked[-1]:
            assert company.holds() == {}
        return asked[-1]

    running = asyncio.create_task(company.one.parts.gang_controller.run(healthy))
    await until(lambda: set(company.holds()) == {"m0", "m1"})
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert asked[:4] == [False, False, False, True]


async def test_a_round_tends_a_hundred_gangs(company: Company) -> None:
    company.add(*(member(f"p{number:03}", 1, gang=f"g{number:03}") for number in range(102)))
    controller, last = company.one.parts.gang_controller, []
    for _ in range(3):
        await controller.round()
        last.append(controller._last[-1])
    assert last == ["default/g099", "default/g097", "default/g095"]


class Said(EventReports):
    """Notes why gangs wait, and of which Pods that is told."""

    def __init__(self) -> None:
        self.told: list[tuple[list[str], str]] = []

    def gang_waits(self, pods: list[PodInfo], why: str) -> None:
        self.told.append((sorted(pod.name for pod in pods), why))


def info(name: str, **about: Any) -> PodInfo:
    read = read_pod_info(member(name, 4))
    assert read is not None
    return replace(read, **about)


async def test_why_a_gang_waits_is_said_after_ten_seconds_and_another_reason_after_a_minute_more(
    company: Company,
) -> None:
    controller, said = company.one.parts.gang_controller, Said()
    controller._reports = said
    memory = controller_module._Memory(frozenset())
    pods = {
        "a": info("a"),
        "b": info("b", node="n1"),
        "c": info("c"),
        "d": replace(info("d"), finished=True),
    }
    began, told = company.now, []
    for at, why in (
        *((0, "one"), (9, "one"), (10, "one"), (11, "one"), (12, "two"), (69, "two"), (70, "two"), (71, "two")),
        *((129, "one"), (130, "one")),
        *((131, ""), (200, "two"), (209, "two"), (210, "two")),
    ):
        company.pass_time(began + at - company.now)
        before = len(said.told)
        controller._say(memory, pods, why)
        told += [(at, why)] * (len(said.told) - before)
    assert told == [(10, "one"), (70, "two"), (130, "one"), (210, "two")]
    assert {tuple(names) for names, _ in said.told} == {("a", "c")}


@pytest.mark.parametrize(("count", "refused"), [(4000, False), (4001, True)])
async def test_a_gang_of_more_than_four_thousand_pods_is_not_looked_at(
    company: Company, count: int, *, refused: bool
) -> None:
    controller, said = company.one.parts.gang_controller, Said()
    controller._reports = said
    pods = company.one.parts.cluster.pods
    made = info("p")
    for number in range(count):
        name, ended = f"p{number}", number >= 4
        pods.put(replace(made, uid=name, name=name, finished=ended, gated=not ended))
    for _ in range(2):
        await controller.round()
        company.pass_time(60)
    (why,) = {why for _, why in said.told}
    assert why.startswith(f"it has {count} Pods, and only gangs of 4000 are looked at; delete some") is refused


async def test_a_bug_about_one_gang_is_told_pauses_it_and_holds_up_no_other(
    company: Company, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    company.add_nodes(a=8)
    for name in ("a", "b"):
        company.add(*(member(f"{name}{number}", 2, gang=name) for number in range(2)))
    controller = company.one.parts.gang_controller
    least, asked = controller._least, list[str]()

    def fails(gang: str, pods: Mapping[str, PodInfo]) -> int:
        asked.append(gang)
        if gang == "default/a" and asked.count(gang) == 1:
            raise LookupError("what nobody expected")
        return least(gang, pods)

    monkeypatch.setattr(controller, "_least", fails)
    for _ in range(2):
        await company.tend(rounds=1)
        assert set(company.holds()) == {"b0", "b1"}
    assert (asked.count("default/a"), caplog.text.count("a gang cannot be tended")) == (1, 1)
    company.pass_time(2)
    await company.tend(rounds=1)
    assert set(company.holds()) >= {"a0", "a1"}
