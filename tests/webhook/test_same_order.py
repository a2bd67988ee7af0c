"""Replicas that saw the same Pods order nodes alike, in whatever order they saw them, and so does one that starts."""

import random
from typing import Final

import msgspec
import pytest
from builders import container, device_entry, device_object, pod
from fake_kube import FakeKube
from world import SETTINGS, World, gpu_pod, rank

from allocator.index.search import NodeFigures
from allocator.vocabulary.asks import Preference
from allocator.vocabulary.mix import Mix
from allocator.wire.deviceobject import DEVICE_LINKS, write_links
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, NODES
from webhook.view.podinfo import read_pod_info

NODE_CPUS: Final = {"a": 8, "b": 16, "c": 16, "d": 64, "e": 64}
PAIRS: Final = ((0, 1), (2, 3))
PERCENTS: Final = (20, 30, 50, 100, 200)
LEARNS: Final = msgspec.structs.replace(
    SETTINGS, scheduler=msgspec.structs.replace(SETTINGS.scheduler, preference=Preference.FRAGMENTATION)
)
Standing = dict[int, tuple[tuple[str, ...], dict[str, NodeFigures]]]


def add_node(world: World, name: str, cpus: int) -> None:
    world.add_bare_node(name)
    status = {"allocatable": {"cpu": str(cpus), "memory": "256Gi", "pods": "110"}}
    world.fake.put(NODES.path(), {**world.fake.get(NODES.path(name)), "status": status})
    cards = [device_entry(minor, id=f"GPU-{name}-{minor}") for minor in range(4)]
    lanes = {(f"GPU-{name}-{a}", f"GPU-{name}-{b}"): 4 for a, b in PAIRS} if cpus > 8 else {}
    links = {DEVICE_LINKS: write_links(lanes)} if lanes else {}
    world.fake.put(DEVICES.path(), device_object(*cards, name=name, annotations=links))


def new_pod(name: str, percent: int, cpus: int) -> dict[str, object]:
    made = gpu_pod(name, percent)
    made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = str(cpus)
    return made


def standing(world: World) -> tuple[Mix, Standing]:
    """What is typical, and the order and the figures of all nodes for a Pod of each size."""
    found: Standing = {}
    for percent in PERCENTS:
        asking = read_pod_info(new_pod(f"asks-{percent}", percent, 2))
        assert asking is not None
        ranking, names = world.parts.ranking, list(NODE_CPUS)
        found[percent] = rank(ranking, asking, names, None, frozenset()).named, ranking.parts(asking, names)
    return world.parts.typical(), found


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_replicas_that_saw_the_same_pods_in_another_order_and_one_that_starts_order_nodes_alike(
    fake: FakeKube, kube: KubeClient, seed: int
) -> None:
    chance = random.Random(seed)
    first, other = World(fake, kube, LEARNS), World(fake, kube, LEARNS)
    for name, cpus in NODE_CPUS.items():
        add_node(first, name, cpus)
    names = [f"p{number:02d}" for number in range(40)]
    chance.shuffle(names)  # a list names Pods by name, not as they came
    living: list[str] = []
    orders = []
    for number, name in enumerate(names):
        first.add_pod(new_pod(name, chance.choice(PERCENTS), chance.randrange(1, 6)))
        first.show(pod(container(requests={"cpu": "1"}), name=f"plain-{name}", nodeName=chance.choice("abcde")))
        asking = first.parts.cluster.pods.get("default", name)
        assert asking is not None
        for node in rank(first.parts.ranking, asking, list(NODE_CPUS), 1, frozenset()).named:
            assert (await first.bind(name, node)).allowed
            living.append(name)
        if len(living) > 6 and chance.random() < 0.6:
            first.remove_pod(living.pop(chance.randrange(len(living))))
            first.see()
            await first.parts.reconciler.reconcile()
        if chance.random() < 0.3 or number == len(names) - 1:  # the other one sees several changes at once
            first.see()
            other.see()
            assert standing(first) == standing(other)
            started = World(fake, kube, LEARNS)
            started.see()
            assert standing(first) == standing(started)
            orders.append(standing(first)[1][100][0])
    assert first.parts.typical()
    assert len({*orders}) > 1  # what happened matters
    await first.idle()
    await other.idle()
