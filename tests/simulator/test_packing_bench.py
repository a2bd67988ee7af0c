"""The packing benchmark in short: the trace on every sixtieth node, and the same figures on arrays and in koordgate."""

import asyncio
import random
from pathlib import Path

import pytest
from openb.arrays import Arrays, typical
from openb.objects import mix_of_trace, node_objects
from openb.play import Player
from openb.trace import TraceAsk, TraceNode, TracePod
from packing import NODES, PODS, Run, orders, stock

from console.simulator.cluster import OfflineCluster, PodFate


def run(what: str, *, share: int = 60, replay: bool = False) -> Run:
    return Run(what, 1, PODS, NODES, replay=replay, share=share)


@pytest.mark.parametrize(("what", "allocated"), [("random", 89.38), ("FGD", 92.66)])
def test_strategies_allocate_as_they_did(what: str, allocated: float) -> None:
    assert round(run(what).played().samples[-1].allocated, 2) == allocated


def test_the_taint_lets_koordgate_allocate_more() -> None:
    without = run("koordgate, packing", share=120).played()
    kept = run("koordgate, packing, with headroom", share=120).played()
    assert kept.samples[-1].allocated > without.samples[-1].allocated
    assert without.taints == 0 < kept.taints
    assert not kept.refused


async def test_pods_that_take_whole_nodes_find_room_on_equal_nodes_that_are_nearly_full() -> None:
    """Pods of all sizes ask for 94 % of the cards; the rare ones of eight cards come among all others."""
    cluster = OfflineCluster.in_process()
    await cluster.load([obj for at in range(40) for obj in node_objects(TraceNode(f"n{at}", 128_000, 2**20, 8, "A"))])
    hundred = [50] * 48 + [25] * 15 + [100] * 15 + [200] * 16 + [400] * 4 + [800] * 2
    asked = [hundred[number % 100] for number in range(280)]
    random.Random(3).shuffle(asked)
    results = []
    for number, percent in enumerate(asked):
        container = {"name": "main", "image": "i", "resources": {"limits": {"koordinator.sh/gpu": str(percent)}}}
        metadata = {"name": f"p{number}", "namespace": "d"}
        results.append(await cluster.submit({"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}))
    assert [one.reasons for one in results if one.state is not PodFate.BOUND] == []


def test_fragmentation_is_that_of_the_definition_on_arrays() -> None:
    """With thousandths that are whole percent, the product's own measure equals the one on plain arrays."""
    pods = [
        *(TracePod(f"a{number}", TraceAsk(3000, 1024, 1, 470, ())) for number in range(6)),
        *(TracePod(f"b{number}", TraceAsk(9000, 2048, 1, 1000, ("T4",))) for number in range(3)),
        *(TracePod(f"c{number}", TraceAsk(6000, 512, 2, 1000, ())) for number in range(2)),
        *(TracePod(f"d{number}", TraceAsk(2000, 4096, 0, 0, ())) for number in range(3)),
    ]
    nodes = [TraceNode(f"n{number}", 16_000, 32_768, 2, model) for number, model in enumerate(("T4", "A10", "T4"))]
    arrays, at = Arrays(nodes, typical(pods)), {node.name: number for number, node in enumerate(nodes)}
    measured: list[float] = [arrays.fragmented_percent]

    async def play() -> Player:
        cluster = OfflineCluster.in_process(plain=stock(1))
        await cluster.load([obj for node in nodes for obj in node_objects(node)])

        def moved(pod: TracePod, node: str, minors: object, sign: int) -> None:
            arrays.put(at[node], pod.ask, minors, sign)  # type: ignore[arg-type]

        player = Player(cluster, mix_of_trace(pods), moved=moved)
        await player.arrive(pods)
        return player

    player = asyncio.run(play())
    measured.append(arrays.fragmented_percent)
    samples = player.played.samples
    assert [samples[0].fragmented, samples[-1].fragmented] == pytest.approx(measured)
    assert samples[-1].allocated == pytest.approx(arrays.allocated_percent)


def test_the_paper_has_orders_for_ten_seeds_with_a_place_for_each_node() -> None:
    known = orders()
    assert sorted(known) == list(range(42, 52))
    assert all(sorted(places) == list(range(1213)) for _, places in known.values())


def test_pods_that_come_and_go_leave_nothing_behind() -> None:
    played = run("first fit", share=200, replay=True).played()
    assert played.samples[-1].allocated == 0
    assert max(sample.allocated for sample in played.samples) > 50


def test_the_data_name_their_licence() -> None:
    assert "Apache License 2.0" in (Path(NODES).parent / "README.md").read_text()
