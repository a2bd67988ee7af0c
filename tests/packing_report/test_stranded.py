"""What of what is free Pods of a size can use, and why not the rest."""

from dataclasses import replace

import pytest
from builders import nic, nics, plain
from packing_report.rooms import broken, closed, room, wanted

from allocator.budget import Budget
from allocator.packing.filling import Filling, NodeRoom
from allocator.packing.stranded import ModelStock, Size, SizeError, Use, read_size, sample_of, stranded
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import GPU_TYPE, DeviceType, Unit
from allocator.vocabulary.mix import NO_MIX, TypicalRequest, mix_of


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
    assert Filling(wanted(size), Budget(100)).count(of) == fit


def test_what_is_free_is_the_sum_of_what_is_usable_and_of_what_is_lost() -> None:
    rooms = [
        room("a", ("x", "0:30"), ("y", "1")),
        closed(room("b", ("z", "0:25"))),
        broken(room("c", cpu=4), 0),
        room("d", ("v", "0"), model="H100"),
    ]
    sizes = [sample_of(read_size(text), GPU_TYPE, NO_MIX, asks={"cpu": 3000}) for text in ("10%", "1", "2", "4")]
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
    sizes = [sample_of(read_size(text), GPU_TYPE, NO_MIX, asks={"cpu": 3000}) for text in ("50%", "1", "2")]
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


# What a node has and what of it is used; what a Pod asks; for how many it has enough, and what it lacks for one

AMOUNTS: dict[str, tuple[dict[str, int], dict[str, int], dict[str, int], int, str]] = {
    "as much as is left": ({"cpu": 8}, {"cpu": 3}, {"cpu": 5}, 1, ""),
    "one more than is left": ({"cpu": 8}, {"cpu": 3}, {"cpu": 6}, 0, "cpu"),
    "for several": ({"cpu": 8, "memory": 9}, {"cpu": 2}, {"cpu": 2, "memory": 4}, 2, ""),
    "nothing of what it does not have": ({"cpu": 8}, {}, {"cpu": 4, "disk": 0}, 2, ""),
    "something of what it does not have": ({"cpu": 8}, {}, {"cpu": 4, "disk": 1}, 0, "disk"),
    "too much of two": ({"cpu": 8}, {}, {"disk": 1, "cpu": 9}, 0, "cpu"),
    "more is used than there is": ({"cpu": 8}, {"cpu": 9}, {"cpu": 1}, 0, "cpu"),
    "nothing is stated": ({"disk": 1}, {"cpu": 9}, {"cpu": 5, "memory": 5, "pods": 1, "disk": 1}, 1, ""),
    "nothing is asked": ({"cpu": 8}, {}, {}, 2**31, ""),
    "very little is asked": ({"cpu": 2**40}, {}, {"cpu": 1}, 2**31, ""),
}


@pytest.mark.parametrize(("has", "used", "asks", "times", "lacks"), AMOUNTS.values(), ids=AMOUNTS)
def test_a_node_has_enough_for_so_many_pods(
    has: dict[str, int], used: dict[str, int], asks: dict[str, int], times: int, lacks: str
) -> None:
    of = NodeRoom(room("a").node, has, used)
    assert (of.times(asks), of.lacks(asks)) == (times, lacks)
    assert times == 2**31 or of.lacks(asks, times + 1)
    assert not times or of.lacks(asks, times) == ""


def test_devices_of_other_types_are_not_counted() -> None:
    of = room("a", ("x", "0:50"))
    others = (Device("fpga", "f", 0, healthy=True, capacity={"fpga": 100}), nic(0))
    both = replace(of, node=replace(of.node, devices=(*others, *of.node.devices, *others)))
    sizes = [sample_of(Size(1), GPU_TYPE, NO_MIX)]
    mix = mix_of([TypicalRequest(0, 0, plain())])
    found = stranded([both], GPU_TYPE, sizes, mix)
    assert found == stranded([of], GPU_TYPE, sizes, mix)
    assert found.stock == {"A100": ModelStock(nodes=1, devices=4, idle=3, parts=1, free=700)}


def test_memory_that_is_missing_is_told_apart_from_cpu() -> None:
    sizes = [sample_of(Size(1), GPU_TYPE, NO_MIX, asks={"cpu": 4000, "memory": 200 * 2**30})]
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
    asks = [sample_of(size, GPU_TYPE, mix).asks for size in (Size(3), Size(1), Size(1, 50), Size(2, 10))]
    assert asks == [
        {"cpu": 1000, "memory": 10, "pods": 1},
        {"cpu": 334, "memory": 4, "pods": 1},
        {"cpu": 167, "memory": 2, "pods": 1},
        {"cpu": 67, "memory": 1, "pods": 1},
    ]
    assert sample_of(Size(1), GPU_TYPE, mix, asks={"cpu": 5}).asks == {"cpu": 5, "memory": 4, "pods": 1}


def test_parts_are_asked_only_of_devices_that_are_divided_in_percent() -> None:
    whole = DeviceType("chip", tails=("chip",), plain="chip", units=(Unit.DEVICES,))
    assert sample_of(Size(2), whole, NO_MIX).request.containers[0].ask == DeviceAsk(whole, 2, (None,))
    with pytest.raises(SizeError, match="2:50%: devices of type chip are not divided in percent; ask for whole ones"):
        sample_of(Size(2, 50), whole, NO_MIX)


SIZES = {
    "8": Size(8),
    "50%": Size(1, 50),
    "2:50": Size(2, 50),
    "1": Size(1),
    "128": Size(128),
    "1%": Size(1, 1),
    "100%": Size(1),
    "128:100%": Size(128),
    "2:99%": Size(2, 99),
}


@pytest.mark.parametrize(("text", "size"), SIZES.items())
def test_a_size_is_read_and_written(text: str, size: Size) -> None:
    assert read_size(text) == size
    assert read_size(str(size)) == size


@pytest.mark.parametrize("text", ["0", "129", "0%", "101%", "129:50%", "0:50%", "2:101%", "2:0%"])
def test_a_size_of_nothing_and_one_of_more_than_any_node_has_are_refused(text: str) -> None:
    with pytest.raises(SizeError, match="from 1 to 128 cards, from 1% to 100% of each"):
        read_size(text)


def test_a_node_that_states_neither_cpu_nor_memory_has_enough_of_both() -> None:
    silent = NodeRoom(room("a").node)
    assert Filling(wanted("1", cpu=64), Budget(100)).count(silent) == 4
