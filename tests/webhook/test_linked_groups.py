"""What linked groups of cards stay whole with the preference fragmentation: through filter and bind, as Pods come and go."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import combinations
from typing import Any, Final

import msgspec
import pytest
from builders import device_entry, device_object
from fake_kube import FakeKube
from world import SETTINGS, World, gpu_pod

from allocator.vocabulary.preference import Preference
from allocator.wire.devicelinks import DEVICE_LINKS, write_links
from allocator.wire.gang import GANG_LABELS
from allocator.wire.partitions import GPU_MODEL
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


if __name__ == "__main__":
    import asyncio
    import sys
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        for p in (Preference.PACKING, Preference.FRAGMENTATION):
            print(seed, p, *asyncio.run(run(p, seed, 40)))
