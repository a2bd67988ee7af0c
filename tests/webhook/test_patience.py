"""Waiting Pods are not delayed: what an ended Pod held is free immediately, and a retried Pod is judged twice."""

import asyncio
from typing import Any

import pytest
from waiting import until_it_waits
from world import World, gpu_pod

from koordgate.kube.resource import PODS

Raw = dict[str, Any]


def args(obj: Raw) -> Raw:
    return {"Pod": obj, "Nodes": None, "NodeNames": ["n1"]}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no search take so long that it takes a break, however slow the machine is."""
    monkeypatch.setattr("koordgate.breaks.HOLD_S", 3600.0)


@pytest.fixture
async def full(world: World) -> World:
    """The one card is held whole by `first`, and `second` waits."""
    world.add_pod(gpu_pod("first", 100))
    world.show(gpu_pod("second", 100))
    assert (await world.bind("first")).allowed
    return world


def names(world: World) -> list[str]:
    found: list[str] = world.parts.extender.filter(args(world.pod("second")))["NodeNames"]
    return found


async def test_what_an_ended_pod_held_is_free_for_those_who_look_before_the_ledger_knows(full: World) -> None:
    assert names(full) == []
    full.remove_pod("first")
    full.see(PODS)
    assert full.holders() == ["first"]
    assert names(full) == ["n1"]


async def test_what_a_finished_pod_held_is_free_as_well(full: World) -> None:
    full.change_pod("first", status={"phase": "Succeeded"})
    full.see(PODS)
    assert full.holders() == ["first"]
    assert names(full) == ["n1"]


async def test_a_bind_goes_by_the_ledger_all_the_same(full: World) -> None:
    full.remove_pod("first")
    full.see(PODS)
    refused = await full.bind("second")
    assert not refused.allowed
    assert full.holders() == ["first"]


async def test_a_pod_that_is_tried_again_is_looked_at_once_more_when_there_is_news(full: World) -> None:
    extender = full.parts.extender
    assert (await extender.filter_patiently(args(full.pod("second"))))["NodeNames"] == []
    asked = asyncio.create_task(extender.filter_patiently(args(full.pod("second"))))
    await until_it_waits(asked)
    assert not asked.done()
    full.remove_pod("first")
    full.see(PODS)
    assert (await asked)["NodeNames"] == ["n1"]


async def test_a_pod_that_is_tried_for_the_first_time_is_answered_at_once(full: World) -> None:
    answer = full.parts.extender.filter_patiently(args(full.pod("second")))
    with pytest.raises(StopIteration) as stopped:
        answer.send(None)
    assert stopped.value.value["NodeNames"] == []


def asked_at_once(world: World, **nodes: Any) -> list[str]:
    """The nodes that fit the second Pod, by an answer without waiting."""
    answer = world.parts.extender.filter_patiently({**args(world.pod("second")), **nodes})
    with pytest.raises(StopIteration) as stopped:
        answer.send(None)
    found = stopped.value.value
    return found.get("NodeNames") or [item["metadata"]["name"] for item in (found.get("Nodes") or {}).get("items", ())]


@pytest.mark.parametrize(
    "asked",
    [{}, {"NodeNames": None, "Nodes": {"items": [{"metadata": {"name": "n1"}}]}}],
    ids=["by name", "as whole nodes"],
)
@pytest.mark.parametrize("refused_before", [False, True])
async def test_a_pod_that_fitted_counts_as_tried_for_the_first_time_when_it_is_refused_later(
    full: World, asked: Raw, *, refused_before: bool
) -> None:
    if refused_before:
        assert asked_at_once(full, **asked) == []
    full.remove_pod("first")
    full.see(PODS)
    assert asked_at_once(full, **asked) == ["n1"]
    full.parts.ranking.assumed.drop("uid-second")
    full.parts.cluster.nodes.drop_devices("n1")
    assert asked_at_once(full, **asked) == []


async def test_of_many_that_are_tried_again_only_the_first_waits(full: World) -> None:
    extender = full.parts.extender
    waiting = [gpu_pod(f"w{number}", 100) for number in range(3)]
    for obj in waiting:
        assert (await extender.filter_patiently(args(obj)))["NodeNames"] == []
    first = asyncio.create_task(extender.filter_patiently(args(waiting[0])))
    await until_it_waits(first)
    others = [asyncio.create_task(extender.filter_patiently(args(obj))) for obj in waiting[1:]]
    await until_it_waits(*others)
    assert not first.done()
    assert all(other.done() for other in others)
    full.parts.cluster.changes.touch("n1")
    assert (await first)["NodeNames"] == []


async def test_no_news_is_answered_as_before(full: World) -> None:
    extender = full.parts.extender
    await extender.filter_patiently(args(full.pod("second")))
    answer = await extender.filter_patiently(args(full.pod("second")))
    assert answer["NodeNames"] == []
    assert list(answer["FailedNodes"]) == ["n1"]
