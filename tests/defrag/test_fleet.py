"""Where a Pod would go: as a replica would send it."""

import asyncio

import pytest
from builders import container, nics, plain, pod
from defrag.clusters import Raw, bound, node
from defrag.fleets import broken, closed, room, wanted

from allocator.packing.copies import filled
from allocator.packing.fleet import Fleet, NodeRoom
from allocator.packing.sizes import Size, SizeError, guest_of, read_size
from allocator.packing.stranded import ModelStock, Use, stranded
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.mix import NO_MIX, TypicalRequest, mix_of
from allocator.vocabulary.preference import Preference
from webhook.explain.reading import Reading
from webhook.offline.cluster import OfflineCluster
from webhook.packing.state import read_state
from webhook.settings import WebhookSettings, parse

PREFERENCES = pytest.mark.parametrize("preference", [str(one) for one in Preference])


def _settings(preference: str) -> WebhookSettings:
    mix = "[{requests: {cpu: 4, kubernetes.io/gpu: 50}}, {requests: {cpu: 8, nvidia.com/gpu: 2}}]"
    return parse(f"scheduler: {{preference: {preference}, mix: {mix}}}", "the test")


@PREFERENCES
async def test_a_pod_goes_where_the_extender_and_the_bind_would_place_it(preference: str) -> None:
    # The Pod that is moved is created once more, under another name, in the cluster without it.
    cluster: list[Raw] = [*node("a", 8, cpu=96), *node("b", 4), *node("c", 2, cpu=8), *node("d", 4)]
    settings = _settings(preference)
    for name, on, gpus in (("p1", "a", "200"), ("p2", "b", "50"), ("p3", "c", "50"), ("p4", "d", "100")):
        cluster.append(await bound_later(name, on, cluster, gpus))
    for gpus in ("50", "100", "25", "200"):
        moving = await bound_later("mover", "d", cluster, gpus)
        state = read_state(Reading([("the test", one, one["kind"]) for one in [*cluster, moving]]), settings)
        guest = next(one.guest for one in state.tenants if one.guest.name == "mover")
        gone = [each.without(guest.uid, guest.asks) if each.node.name == "d" else each for each in state.rooms]
        found = Fleet(gone, state.compared).goes_to(guest)
        offline = OfflineCluster.in_process(settings)
        await offline.load([{"apiVersion": "v1", **one} for one in cluster])
        again = await offline.submit(fresh(gpus))
        assert found is not None
        assert again.pod["spec"]["nodeName"] == found.node, (preference, gpus)


async def bound_later(name: str, on: str, cluster: list[Raw], gpus: str) -> Raw:
    return await asyncio.to_thread(bound, name, on, cluster, gpus)


def fresh(gpus: str) -> Raw:
    asks = {"kubernetes.io/gpu": gpus}
    return pod(container(limits=asks, requests={**asks, "cpu": "4"}), name="again", namespace="team", uid="u-again")


@pytest.mark.parametrize(
    ("of", "size", "fit"),
    [
        (room("a", ("x", "0:50")), "50%", 7),
        (room("a", ("x", "0:50")), "2:50%", 3),
        (room("a", ("x", "0")), "1", 3),
        (broken(room("a"), 0, 1), "1", 2),
        (closed(room("a")), "1", 0),
        (room("a"), "8", 0),
    ],
    ids=["halves", "pairs of halves", "whole", "broken cards", "closed", "too large"],
)
def test_a_node_is_filled_with_as_many_pods_as_fit(of: NodeRoom, size: str, fit: int) -> None:
    full = filled(of, wanted(size))
    assert full.count == fit
    full.room.node.check_invariants()


def test_what_is_free_is_the_sum_of_what_is_usable_and_of_what_is_lost() -> None:
    rooms = [
        room("a", ("x", "0:30"), ("y", "1")),
        closed(room("b", ("z", "0:25"))),
        broken(room("c", cpu=4), 0),
        room("d", ("v", "0"), model="H100"),
    ]
    sizes = [guest_of(read_size(text), GPU_TYPE, NO_MIX, asks={"cpu": 3000}) for text in ("10%", "1", "2", "4")]
    found = stranded(rooms, GPU_TYPE, sizes, NO_MIX)
    assert (found.stock["A100"].devices, found.stock["A100"].out, found.stock["A100"].idle) == (12, 5, 5)
    assert found.stock["A100"].free == 140 + 400 + 600
    for uses in found.sizes:
        for model, use in uses.items():
            assert use.free == found.stock[model].free + found.stock[model].free_out
    assert [uses["H100"].fit for uses in found.sizes] == [20, 3, 1, 0]


def test_what_is_free_is_told_by_cause_for_each_size_and_model() -> None:
    rooms = [
        room("a", ("x", "0:30"), cpu=13),  # of 13 CPUs one Pod has 4; 3 further Pods of 3 CPUs find enough
        closed(room("b", ("z", "0:25"))),
        room("none", cards=0),
        broken(room("c", cards=3, cpu=4, model="H100"), 0),
        room("d", ("v", "0"), ("w", "1:99"), cards=2),
    ]
    sizes = [guest_of(read_size(text), GPU_TYPE, NO_MIX, asks={"cpu": 3000}) for text in ("50%", "1", "2")]
    found = stranded(rooms, GPU_TYPE, sizes, NO_MIX)
    assert found.stock == {
        "A100": ModelStock(nodes=3, devices=10, out=4, idle=3, parts=2, free=742, free_out=750),
        "H100": ModelStock(nodes=1, devices=3, out=1, idle=2, parts=0, free=400, free_out=200),
    }
    assert found.sizes == [
        {
            "A100": Use(fit=3, usable=300, cpu=400, remainder=42, out=750),
            "H100": Use(fit=1, usable=100, cpu=300, out=200),
        },
        {
            "A100": Use(fit=3, usable=600, remainder=142, out=750),
            "H100": Use(fit=1, usable=200, cpu=200, out=200),
        },
        {
            "A100": Use(fit=1, usable=400, remainder=342, out=750),
            "H100": Use(fit=1, usable=400, out=200),
        },
    ]
    assert (found.typical, found.weight, found.ended) == ({}, 0, 0)


def test_memory_that_is_missing_is_told_apart_from_cpu() -> None:
    sizes = [guest_of(Size(1), GPU_TYPE, NO_MIX, asks={"cpu": 4000, "memory": 200 * 2**30})]
    found = stranded([room("a"), room("b", cpu=4)], GPU_TYPE, sizes, NO_MIX)
    assert found.sizes == [{"A100": Use(fit=3, usable=600, cpu=600, memory=400)}]


def test_what_a_mix_loses_is_told_by_cause_too() -> None:
    mix = mix_of(
        [
            TypicalRequest(4000, 200 * 2**30, plain(), weight=2),
            TypicalRequest(1000, 600 * 2**30, plain(2)),
            TypicalRequest(64_000, 0, nics(10)),
        ]
    )
    rooms = [room("a"), room("b", ("x", "0:50"), cpu=7), closed(room("c"))]  # 3 of the CPUs of b are left
    found = stranded(rooms, GPU_TYPE, [], mix)
    assert found.weight == 3
    assert found.typical == {"A100": Use(usable=1600, cpu=1200, memory=1400, remainder=300, out=2400)}


def test_a_size_requests_what_the_mix_does_with_as_much_rounded_up() -> None:
    mix = mix_of([TypicalRequest(1000, 10, plain(3)), TypicalRequest(9000, 2**40, nics(100))])
    asks = [guest_of(size, GPU_TYPE, mix).asks for size in (Size(3), Size(1), Size(1, 50), Size(2, 10))]
    assert asks == [
        {"cpu": 1000, "memory": 10, "pods": 1},
        {"cpu": 334, "memory": 4, "pods": 1},
        {"cpu": 167, "memory": 2, "pods": 1},
        {"cpu": 67, "memory": 1, "pods": 1},
    ]
    assert guest_of(Size(1), GPU_TYPE, mix, asks={"cpu": 5}).asks == {"cpu": 5, "memory": 4, "pods": 1}


SIZES = {"1": Size(1), "128": Size(128), "1%": Size(1, 1), "100%": Size(1), "128:100%": Size(128), "2:99%": Size(2, 99)}


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_the_smallest_and_the_largest_size_are_read(text: str, size: Size) -> None:
    assert read_size(text) == size
    assert read_size(str(size)) == size


@pytest.mark.parametrize("text", ["0", "129", "0%", "101%", "129:50%", "0:50%", "2:101%", "2:0%"])
def test_a_size_of_nothing_and_one_of_more_than_any_node_has_are_refused(text: str) -> None:
    with pytest.raises(SizeError, match="from 1 to 128 cards, from 1% to 100% of each"):
        read_size(text)


@pytest.mark.parametrize(("text", "size"), [("8", Size(8)), ("50%", Size(1, 50)), ("2:50", Size(2, 50))])
def test_a_size_is_read_and_written(text: str, size: Size) -> None:
    assert read_size(text) == size
    assert read_size(str(size)) == size


def test_a_node_that_states_neither_cpu_nor_memory_has_enough_of_both() -> None:
    silent = NodeRoom(room("a").node)
    assert filled(silent, wanted("1", cpu=64)).count == 4
