"""How full and how fragmented the GPUs of a cluster are."""

from typing import Any

import pytest
from builders import device_entry, device_object
from simulator.clusters import asking, held, nic, node

from allocator.request.typical import stated
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.mix import Mix, mix_of
from console.simulator.cluster import OfflineCluster
from console.simulator.compare import Measure

Raw = dict[str, Any]
FPGA = {"type": "fpga", "id": "fpga-0", "minor": 0, "health": True, "resources": {"koordinator.sh/fpga": "100"}}


def mix(**requests: str) -> Mix:
    asks = {"kubernetes.io/gpu": "100", **requests}
    return mix_of([stated(asks, (), 1, BUILT_IN)])


def cards(*healthy: bool, name: str = "node-1") -> Raw:
    found = [device_entry(at, id=f"GPU-{name}-{at}", health=ok) for at, ok in enumerate(healthy)]
    return device_object(*found, FPGA, nic(0), name=name)


async def measured(of: Mix, *objects: Raw) -> Measure:
    cluster = OfflineCluster.in_process()
    await cluster.load(objects)
    return Measure(cluster, of)


async def test_usable_gpus_alone_are_measured() -> None:
    held_ = asking("nic", {"kubernetes.io/rdma": "100"}, nodeName="node-1")
    measure = await measured(mix(), node(), cards(True, False, True), held("a", "node-1", (0, 30), (1, 90)), held_)
    assert (measure.gpus, measure.allocated()) == (2, 15.0)


async def test_the_greater_of_compute_and_memory_is_given() -> None:
    cluster = OfflineCluster.in_process()
    await cluster.load([node(), cards(True, True)])
    measure = Measure(cluster, mix())
    assert (measure.allocated(), measure.fragmented()) == (0.0, 0.0)
    amounts = {"kubernetes.io/gpu-core": "10", "kubernetes.io/gpu-memory-ratio": "60"}
    await cluster.submit(asking("a", amounts))
    assert (measure.allocated(), measure.fragmented()) == (0.0, 0.0), "nothing is known to have changed"
    measure.touch("node-1")
    assert (measure.allocated(), measure.fragmented()) == (30.0, 32.5)


# What the node states of CPU and memory, what its Pods request, what a typical Pod asks -> how much is fragmented.
LEFT: dict[str, tuple[Raw, Raw, Raw, float]] = {
    "all CPU": ({"cpu": "4"}, {}, {"cpu": "4"}, 0.0),
    "a thousandth more": ({"cpu": "4"}, {}, {"cpu": "4001m"}, 100.0),
    "the rest": ({"cpu": "4"}, {"cpu": "1500m"}, {"cpu": "2500m"}, 0.0),
    "a thousandth more than the rest": ({"cpu": "4"}, {"cpu": "1500m"}, {"cpu": "2501m"}, 100.0),
    "memory": ({"memory": "8"}, {"memory": "5"}, {"memory": "3"}, 0.0),
    "a byte more": ({"memory": "8"}, {"memory": "5"}, {"memory": "4"}, 100.0),
    "nothing of nothing": ({}, {}, {}, 0.0),
    "a byte of nothing": ({}, {}, {"memory": "1"}, 100.0),
}


@pytest.mark.parametrize(("has", "used", "asks", "fragmented"), LEFT.values(), ids=LEFT)
async def test_cards_beside_too_little_cpu_or_memory_are_fragments(
    has: Raw, used: Raw, asks: Raw, fragmented: float
) -> None:
    machine = node()
    machine["status"]["allocatable"] = has
    measure = await measured(mix(**asks), machine, cards(True), asking("p", used, nodeName="node-1"))
    assert measure.fragmented() == fragmented


async def test_what_is_left_of_a_card_is_a_fragment_for_whole_ones() -> None:
    pods = [held("a", "node-1", (0, 25)), held("b", "node-2", (0, 100))]
    nodes = [node("node-1"), cards(True, True), node("node-2"), cards(True, True, name="node-2")]
    measure = await measured(mix(), *nodes, *pods)
    assert (measure.allocated(), measure.fragmented()) == (31.25, 18.75)
    both = await measured(
        mix_of([*mix().requests, *[stated({"kubernetes.io/gpu": "75"}, (), 2, BUILT_IN)]]), *nodes, *pods
    )
    assert both.fragmented() == 6.25
