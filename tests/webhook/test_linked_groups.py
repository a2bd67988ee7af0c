"""What groups of cards stay whole with the preference fragmentation, through filter and bind, as Pods come and go."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import msgspec
import pytest
from builders import device_entry, device_object
from fake_kube import FakeKube
from world import SETTINGS, World, gpu_pod

from allocator.vocabulary.asks import Preference
from allocator.wire.deviceobject import DEVICE_LINKS, GPU_MODEL, write_links
from allocator.wire.gang import GANG_LABELS
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES

Raw = dict[str, Any]
Groups = Sequence[Collection[int]]

SWITCHED: Final = (range(8),)
QUADS: Final = (range(4), range(4, 8))
PAIRS: Final = (range(2), range(2, 4), range(4, 6), range(6, 8))
BOARDS: Final[dict[str, Groups]] = {"a": SWITCHED, "b": QUADS, "c": QUADS, "d": PAIRS, "e": SWITCHED, "f": ()}
PERCENTS: Final = (25, 25, 50, 50, 100, 100, 100, 200, 400)


def add_cards(
    world: World, name: str, groups: Groups, *, count: int = 8, broken: Iterable[int] = (), hopper: bool = False
) -> None:
    """A node of so many cards; those of a group are linked pairwise, and those of a Hopper board divided."""
    world.add_bare_node(name, labels={GPU_MODEL: "H100"} if hopper else None)
    cards = [device_entry(minor, id=f"GPU-{name}-{minor}", health=minor not in broken) for minor in range(count)]
    lanes = {(f"GPU-{name}-{a}", f"GPU-{name}-{b}"): 4 for group in groups for a, b in combinations(sorted(group), 2)}
    links = {DEVICE_LINKS: write_links(lanes)}
    world.fake.put(DEVICES.path(), device_object(*cards, name=name, annotations=links))


@asynccontextmanager
async def cluster(preference: Preference) -> AsyncIterator[World]:
    scheduler = msgspec.structs.replace(SETTINGS.scheduler, preference=preference, most_nodes=1)
    async with FakeKube() as fake, KubeClient(fake.url) as kube:
        world = World(fake, kube, msgspec.structs.replace(SETTINGS, scheduler=scheduler))
        yield world
        await world.idle()


async def scheduled(world: World, name: str, percent: int, gang: str = "") -> str:
    """Create a Pod, filter for it and bind it; returns its node, "" where it fits nowhere."""
    obj = world.add_pod(gpu_pod(name, percent, labels={GANG_LABELS[0]: gang} if gang else {}))
    world.see()
    answer = world.parts.extender.filter({"Pod": obj, "NodeNames": sorted(world.parts.cluster.nodes.known())})
    for node in answer["NodeNames"]:
        response = await world.bind(name, node)
        assert response.allowed, response.message
        return str(node)
    world.remove_pod(name)
    world.see()
    return ""


async def leave(world: World, name: str) -> None:
    world.remove_pod(name)
    world.see()
    await world.parts.reconciler.reconcile()


def held(world: World, node: str) -> set[int]:
    return {share.minor for one in world.holdings(node).values() for share in one.shares}


async def run(preference: Preference, seed: int, steps: int) -> tuple[Counter[str], Counter[int]]:
    """Let Pods come and go; returns what was bound, and how often groups of each size were wholly idle."""
    chance, bound, whole = random.Random(seed), Counter[str](), Counter[int]()
    async with cluster(preference) as world:
        for name, groups in BOARDS.items():
            add_cards(world, name, groups)
        living: list[str] = []
        for number in range(steps):
            if living and chance.random() < 0.4:
                await leave(world, living.pop(chance.randrange(len(living))))
            percent, members = chance.choice(PERCENTS), chance.choice((1, 1, 1, 2))
            for member in range(members):
                name = f"p{number}-{member}"
                if await scheduled(world, name, percent, gang=f"g{number}" if members > 1 else ""):
                    living.append(name)
                    bound[str(percent)] += 1
            for name, groups in BOARDS.items():
                taken = held(world, name)
                whole.update(len(group) for group in groups if taken.isdisjoint(group))
    return bound, whole


@pytest.mark.parametrize("seed", [1, 2])
async def test_more_cards_are_left_in_whole_large_groups_than_by_packing_and_as_many_pods_are_bound(seed: int) -> None:
    packed, packed_whole = await run(Preference.PACKING, seed, 24)
    bound, whole = await run(Preference.FRAGMENTATION, seed, 24)
    assert bound.total() >= packed.total()
    assert whole[8] > packed_whole[8]
    assert 8 * whole[8] + 4 * whole[4] > 8 * packed_whole[8] + 4 * packed_whole[4]


@dataclass(frozen=True)
class Case:
    """Pods that come one after another, and where the last one belongs.

    Attributes:
        nodes: how each was made: the arguments of `add_cards`.
        first: node and percent of each Pod that is there before.
        percent: of the last Pod.
        belongs: its node and its cards.
    """

    nodes: dict[str, dict[str, Any]]
    percent: int
    belongs: tuple[str, set[int]]
    first: tuple[tuple[str, int], ...] = ()


LINE: Final = ((0, 1), (1, 2), (2, 3))
CASES: Final = {
    "a card that an unhealthy one has cut off, before one of a pair": Case(
        {"b": {"groups": LINE, "count": 4, "broken": {1}}, "a": {"groups": [(0, 1)], "count": 2}}, 100, ("b", {0})
    ),
    "a pair that a card in use has cut off, before a pair of three": Case(
        {"b": {"groups": LINE, "count": 4}, "a": {"groups": [range(3)], "count": 3}},
        200,
        ("b", {2, 3}),
        (("b", 100), ("b", 100)),
    ),
    "a single card beside a four and a pair": Case({"a": {"groups": [range(4), (4, 5)], "count": 7}}, 100, ("a", {6})),
    "a pair beside a four": Case({"a": {"groups": [range(4), (4, 5)], "count": 7}}, 200, ("a", {4, 5})),
    "three cards of a four, whole pairs elsewhere": Case(
        {"a": {"groups": PAIRS}, "b": {"groups": [range(4)], "count": 4}}, 300, ("b", {0, 1, 2})
    ),
    "the card that a taken one leaves of a partition of two, before a whole partition of four": Case(
        {"b": {"groups": SWITCHED, "hopper": True}, "a": {"groups": SWITCHED, "hopper": True, "broken": range(4)}},
        100,
        ("b", {1}),
        (("b", 100),),
    ),
    "a partition of two beside a taken one, before a whole partition of four": Case(
        {"b": {"groups": SWITCHED, "hopper": True}, "a": {"groups": SWITCHED, "hopper": True, "broken": range(4)}},
        200,
        ("b", {2, 3}),
        (("b", 200),),
    ),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
async def test_a_pod_is_bound_to_the_smallest_group_of_idle_cards_that_suffices(case: Case) -> None:
    async with cluster(Preference.FRAGMENTATION) as world:
        for name, about in case.nodes.items():
            add_cards(world, name, **about)
        for number, (node, percent) in enumerate(case.first):
            world.show(gpu_pod(f"first-{number}", percent))
            assert (await world.bind(f"first-{number}", node)).allowed
        before = held(world, case.belongs[0])
        node = await scheduled(world, "last", case.percent)
        assert (node, held(world, node) - before) == case.belongs


async def test_a_gang_goes_where_one_group_holds_all_its_cards_and_a_lone_pod_where_it_breaks_less() -> None:
    async with cluster(Preference.FRAGMENTATION) as world:
        for name, groups in {"a": PAIRS, "b": SWITCHED, "c": QUADS}.items():
            add_cards(world, name, groups)
        for name in ("first", "second"):
            world.add_pod(gpu_pod(name, 200, labels={GANG_LABELS[0]: "g"}))
        world.see()
        assert [await scheduled(world, name, 200, "g") for name in ("first", "second")] == ["c", "c"]
        assert held(world, "c") in ({0, 1, 2, 3}, {4, 5, 6, 7})
        assert await scheduled(world, "alone", 200) == "a"


async def test_a_gang_that_no_group_holds_goes_to_groups_that_hold_its_pods() -> None:
    async with cluster(Preference.FRAGMENTATION) as world:
        for name, groups in {"a": (), "b": PAIRS}.items():
            add_cards(world, name, groups, count=8)
        for name in ("first", "second"):
            world.add_pod(gpu_pod(name, 200, labels={GANG_LABELS[0]: "g"}))
        world.see()
        assert [await scheduled(world, name, 200, "g") for name in ("first", "second")] == ["b", "b"]


async def test_shares_of_a_gang_break_no_more_than_one_of_them_does() -> None:
    async with cluster(Preference.FRAGMENTATION) as world:
        for name, groups in {"a": PAIRS, "b": ()}.items():
            add_cards(world, name, groups, count=8)
        for name in ("first", "second"):
            world.add_pod(gpu_pod(name, 50, labels={GANG_LABELS[0]: "g"}))
        world.see()
        assert [await scheduled(world, name, 50, "g") for name in ("first", "second")] == ["b", "b"]
        assert len(held(world, "b")) == 1
