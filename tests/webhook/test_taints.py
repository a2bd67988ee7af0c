"""DeviceTaintRules: one for each card that a Pod holds, and none for others; other people's rules are left alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from builders import device_entry
from claims import DRIVER, cards, resource_slice
from fake_kube import answer
from world import World, gpu_pod

from allocator.vocabulary.holdings import DeviceName
from koordgate.kube.resource import DEVICE_TAINT_RULES, NODE_ALLOCATIONS, PODS, RESOURCE_SLICES
from webhook.dra.taints import PREFIX, RuleFeed, TaintController, rule, rule_name

RULES = DEVICE_TAINT_RULES[1]
CARD_0, CARD_1 = (DeviceName(DRIVER, "n1", f"gpu-{minor}") for minor in range(2))


@pytest.fixture
def tainted(world: World) -> tuple[World, TaintController, RuleFeed]:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.fake.put(RESOURCE_SLICES.path(), resource_slice("n1", cards("n1", 2)))
    feed = RuleFeed()
    keeper = TaintController(world.kube, world.parts.cluster, feed, lambda: RULES)
    world.see()
    return world, keeper, feed


@asynccontextmanager
async def running(keeper: TaintController, *, ready: bool = True) -> AsyncIterator[None]:
    task = asyncio.create_task(keeper.run(lambda: ready))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def rules(world: World) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in world.fake.objects(RULES.path()))


def devices(world: World) -> list[str]:
    return sorted(obj["spec"]["deviceSelector"]["device"] for obj in world.fake.objects(RULES.path()))


async def bind(world: World, name: str, percent: int) -> None:
    world.add_pod(gpu_pod(name, percent))
    world.see(PODS)
    assert (await world.bind(name)).allowed


def listing(world: World, feed: RuleFeed) -> None:
    feed.begin_list()
    for obj in world.fake.objects(RULES.path()):
        feed.put(obj)
    feed.end_list()


def test_a_rule_keeps_dra_from_scheduling_onto_one_device() -> None:
    made = rule(CARD_0, "resource.k8s.io/v1beta2")
    assert made["metadata"]["name"] == rule_name(CARD_0) != rule_name(CARD_1)
    assert made["spec"] == {
        "deviceSelector": {"driver": DRIVER, "pool": "n1", "device": "gpu-0"},
        "taint": {"key": "koordgate.io/held", "effect": "NoSchedule"},
    }
    beginning, _, digest = made["metadata"]["name"].partition("-")
    assert (beginning, len(digest)) == ("koordgate", 32)


async def test_held_cards_are_tainted_and_free_ones_are_not(tainted: tuple[World, TaintController, RuleFeed]) -> None:
    world, keeper, _ = tainted
    async with running(keeper):
        await bind(world, "p", 50)
        await world.fake.until(lambda: devices(world) == ["gpu-0"])
        await bind(world, "q", 100)
        await world.fake.until(lambda: devices(world) == ["gpu-0", "gpu-1"])
        world.remove_pod("p")
        world.see(PODS)
        await world.fake.until(lambda: devices(world) == ["gpu-1"])


async def test_rules_of_others_and_rules_that_are_there_are_left_alone(
    tainted: tuple[World, TaintController, RuleFeed],
) -> None:
    world, keeper, feed = tainted
    theirs: list[Any] = [
        {**rule(CARD_0, RULES.api_version), "metadata": {"name": "theirs"}},
        {**rule(CARD_0, RULES.api_version), "metadata": {"name": f"{PREFIX}without-a-label"}},
    ]
    stale = rule(DeviceName(DRIVER, "gone", "gpu-0"), RULES.api_version)
    for one in (*theirs, stale, rule(CARD_0, RULES.api_version)):
        world.fake.put(RULES.path(), one)
    listing(world, feed)
    await bind(world, "p", 50)
    async with running(keeper):
        await world.fake.until(lambda: stale["metadata"]["name"] not in rules(world))
    assert rules(world) == sorted([rule_name(CARD_0), "theirs", f"{PREFIX}without-a-label"])
    assert not world.fake.seen("create", "devicetaintrules")


async def test_a_rule_that_another_replica_made_or_deleted_is_no_failure(
    tainted: tuple[World, TaintController, RuleFeed],
) -> None:
    world, keeper, feed = tainted
    world.fake.put(RULES.path(), rule(CARD_0, RULES.api_version))  # not seen yet
    seen = [rule(card, RULES.api_version) for card in (CARD_1, CARD_1._replace(device="gpu-7"))]
    for one in seen:
        feed.put(one)
    world.fake.put(RULES.path(), max(seen, key=lambda one: one["metadata"]["name"]))  # the other is gone meanwhile
    await bind(world, "p", 50)
    async with running(keeper):
        await world.fake.until(lambda: devices(world) == ["gpu-0"])


async def test_a_rule_that_exists_already_keeps_no_other_from_being_made(
    tainted: tuple[World, TaintController, RuleFeed],
) -> None:
    world, keeper, _ = tainted
    known = min((rule(card, RULES.api_version) for card in (CARD_0, CARD_1)), key=lambda one: one["metadata"]["name"])
    world.fake.put(RULES.path(), known)  # not seen yet
    await bind(world, "p", 100)
    await bind(world, "q", 100)
    async with running(keeper):
        await world.fake.until(lambda: devices(world) == ["gpu-0", "gpu-1"])


async def test_a_refusal_is_tried_again(tainted: tuple[World, TaintController, RuleFeed]) -> None:
    world, keeper, _ = tainted
    world.fake.faults.add("create", "devicetaintrules", answer(403))
    await bind(world, "p", 50)
    async with running(keeper):
        await world.fake.until(lambda: devices(world) == ["gpu-0"])


async def test_nothing_is_written_before_all_has_been_seen(tainted: tuple[World, TaintController, RuleFeed]) -> None:
    world, keeper, feed = tainted
    world.fake.put(RULES.path(), rule(CARD_0, RULES.api_version))
    listing(world, feed)
    async with running(keeper, ready=False):
        await bind(world, "p", 100)
        await world.fake.until(world.holdings)
    assert devices(world) == ["gpu-0"]
    assert not world.fake.seen("delete", "devicetaintrules")
    assert world.fake.seen("create", NODE_ALLOCATIONS.plural) or world.fake.seen("update", NODE_ALLOCATIONS.plural)
