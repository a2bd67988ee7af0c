"""The order of NUMA nodes: a Pod's CPU preferences, what its devices open, the free part of everything it requests.

The server has two NUMA nodes, of 16 CPUs, 64 GiB, four GPUs (two per PCIe root) and two NICs each.
"""

from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, asking, gpu, holding, node, part
from hypothesis import given
from hypothesis import strategies as st
from machines import server, server_cpu, server_devices
from machines_cpu import build, siblings_near

from allocator.place import Placement, opened, place
from allocator.vocabulary.asks import DeviceOrder, PodRequest
from allocator.vocabulary.cpunode import BindPolicy, CpuNode, CpuShare, NumaPolicy, NumaShare, NumaStrategy
from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

GPU = "koordinator.sh/gpu"
SINGLE = NumaPolicy.SINGLE_NUMA_NODE
CARDS = {device.minor: device for device in server_devices() if device.type == "gpu"}


def used(percents: dict[int, int]) -> list[Holding]:
    """One Pod on each of these cards, by minor, with a percentage."""
    return [
        holding(f"card-{minor}", part(CARDS[minor], percent, "x")) for minor, percent in percents.items() if percent
    ]


def shared(*milli: int, gib: tuple[int, ...] = (0, 0)) -> Holding:
    """A Pod on the shared pool of each NUMA node: thousandths of a CPU, and GiB."""
    stands = tuple(NumaShare(at, much, gib[at] * GIB) for at, much in enumerate(milli))
    return holding("shared", cpus=CpuShare("LS", numa=stands))


def own(cpuset: str) -> Holding:
    return holding("own", cpus=CpuShare("LSR", parse(cpuset), BindPolicy.FULL_PCPUS))


def placed_at(answer: Placement | Refusal, on: NodeSnapshot) -> set[int]:
    assert isinstance(answer, Placement), answer
    of = {device.id: device.numa_node for device in on.devices}
    return {at for share in answer.shares if (at := of[share.id]) is not None} | {
        one.node for one in (answer.cpus.numa if answer.cpus else ())
    }


PACKING = ["", *(order for order in DeviceOrder if order not in {DeviceOrder.LEAST_USED, DeviceOrder.MINOR})]

# The request; the node's strategy; what is held; the NUMA node

FIRST: dict[str, tuple[PodRequest, NumaStrategy, list[Holding], int]] = {
    "a half-used card is joined": (
        asking({GPU: 50, "cpu": 2}, qos="LSR"),
        NumaStrategy.MOST_ALLOCATED,
        used({5: 50}),
        1,
    ),
    "it is joined rather than that an idle one beside a used one is begun": (
        asking({GPU: 50}),
        NumaStrategy.MOST_ALLOCATED,
        used({0: 100, 5: 50}),
        1,
    ),
    "also by a Pod without a class": (asking({GPU: 50}), NumaStrategy.MOST_ALLOCATED, used({5: 50}), 1),
    "also if fewer CPUs are free elsewhere": (
        asking({GPU: 50, "cpu": 2}, qos="LSR"),
        NumaStrategy.MOST_ALLOCATED,
        [*used({5: 50}), own("0-7")],
        1,
    ),
    "also if the node's strategy prefers the emptier one": (
        asking({GPU: 50, "cpu": 2}, qos="LSR"),
        NumaStrategy.LEAST_ALLOCATED,
        used({5: 50}),
        1,
    ),
    "a preference for whole cores comes before cards": (
        asking({GPU: 50, "cpu": 2}, qos="LSR", cpus={"preferredCPUBindPolicy": "FullPCPUs"}),
        NumaStrategy.MOST_ALLOCATED,
        [*used({5: 50}), own("16,18,20,22,24,26,28,30")],
        0,
    ),
    "a whole card is taken from a PCIe root in use": (
        asking({GPU: 100}),
        NumaStrategy.LEAST_ALLOCATED,
        used({5: 100}),
        1,
    ),
    "the administrator wants idle cards first": (
        asking({GPU: 50}, order="leastUsed"),
        NumaStrategy.LEAST_ALLOCATED,
        used({0: 50}),
        1,
    ),
    "memory decides where CPUs are equal": (
        asking({"cpu": "500m", "memory": "1Gi"}, qos="LS"),
        NumaStrategy.MOST_ALLOCATED,
        [shared(500, 500, gib=(1, 9))],
        1,
    ),
    "memory decides against CPUs if more of it is in use": (
        asking({"cpu": "500m", "memory": "1Gi"}, qos="LS"),
        NumaStrategy.MOST_ALLOCATED,
        [shared(2000, 500, gib=(1, 32))],
        1,
    ),
    "memory that is not requested does not count": (
        asking({"cpu": "500m"}, qos="LS"),
        NumaStrategy.MOST_ALLOCATED,
        [shared(2000, 500, gib=(1, 32))],
        0,
    ),
    "cards and CPUs weigh the same: an eighth of the cards is more than a sixteenth of the CPUs": (
        asking({GPU: 100, "cpu": 1}, qos="LS"),
        NumaStrategy.LEAST_ALLOCATED,
        [*used({0: 100, 1: 100, 4: 100, 5: 100, 6: 50}), shared(2000, 0)],
        1,
    ),
    "the same on the side of the cards": (
        asking({GPU: 100, "cpu": 1}, qos="LS"),
        NumaStrategy.LEAST_ALLOCATED,
        [*used({0: 100, 2: 100, 4: 100, 6: 100, 7: 100}), shared(2000, 0)],
        0,
    ),
    "equals: the lowest number": (asking({GPU: 50, "cpu": 1}, qos="LS"), NumaStrategy.MOST_ALLOCATED, [], 0),
}


@pytest.mark.parametrize("order", PACKING)
@pytest.mark.parametrize(("of", "strategy", "held", "expected"), FIRST.values(), ids=FIRST)
def test_devices_cpus_and_memory_choose_the_numa_node_together(
    of: PodRequest, strategy: NumaStrategy, held: list[Holding], expected: int, order: str
) -> None:
    on = replace(server(held, cpu=server_cpu(policy=SINGLE, strategy=strategy)), order=order)
    assert placed_at(place(of, on), on) == {expected}


@pytest.mark.parametrize("order", ["leastUsed", "minor"])
@pytest.mark.parametrize("whose", ["the Pod's", "the node's"])
def test_what_devices_open_does_not_count_where_their_order_is_another(order: str, whose: str) -> None:
    of = asking({GPU: 50}, order=order if whose == "the Pod's" else "")
    rules = server_cpu(policy=SINGLE, strategy=NumaStrategy.MOST_ALLOCATED)
    on = server(used({0: 100, 1: 100, 5: 50}), cpu=rules, order=order if whose == "the node's" else "")
    assert placed_at(place(of, on), on) == {0}


def test_a_root_on_which_the_kubelet_has_given_a_card_is_in_use() -> None:
    rules = server_cpu(policy=SINGLE, strategy=NumaStrategy.LEAST_ALLOCATED)
    on = server(cpu=rules, kubelet=[CARDS[5].id])
    assert placed_at(place(asking({GPU: 100}), on), on) == {1}


def test_a_root_that_is_not_known_is_not_opened() -> None:
    devices = [replace(card, pcie=None if card.numa_node else card.pcie) for card in CARDS.values()]
    on = server(devices=devices, cpu=server_cpu(policy=SINGLE, strategy=NumaStrategy.LEAST_ALLOCATED))
    assert placed_at(place(asking({GPU: 100}), on), on) == {1}
    beside = on.holding_all({one.uid: one for one in used({0: 100, 4: 100, 5: 100})})
    assert placed_at(place(asking({GPU: 100}), beside), beside) == {0}, "neither opens a root, and more is free there"


def test_pairs_of_numa_nodes_are_compared_likewise() -> None:
    devices = [gpu(minor, numa_node=minor // 2, pcie=f"pci{minor}") for minor in range(8)]
    held = [holding("held", part(devices[3], 50, "x"), part(devices[7], 50, "x"))]
    cpu = CpuNode(build(4, 1, 4, 2, siblings_near), policy=NumaPolicy.RESTRICTED)
    on = node(*devices, holdings=held, cpu=cpu)
    wide = asking({GPU: 50, "cpu": 6}, {GPU: 50, "cpu": 6}, qos="LSR")
    assert placed_at(place(wide, on), on) == {1, 3}


@pytest.mark.parametrize(("count", "expected"), {"sixteen": (16, 15), "seventeen": (17, 0)}.values())
def test_beyond_sixteen_sets_the_first_that_fits_is_taken(count: int, expected: int) -> None:
    devices = [gpu(minor, numa_node=minor, pcie=f"pci{minor}") for minor in range(count)]
    held = [holding("held", part(devices[-1], 50, "x"))]
    cpu = CpuNode(build(count, 1, 1, 2, siblings_near), policy=SINGLE, strategy=NumaStrategy.LEAST_ALLOCATED)
    on = node(*devices, holdings=held, cpu=cpu)
    assert placed_at(place(asking({GPU: 50}), on), on) == {expected}


@pytest.mark.parametrize(
    ("minors", "held", "fields", "figures"),
    [
        ([1], {}, {}, (1, 1)),
        ([0, 1], {}, {}, (2, 1)),
        ([1, 2], {}, {}, (2, 2)),
        ([1], {0: 50}, {}, (1, 0)),
        ([1], {1: 50, 4: 50}, {}, (0, 0)),
        ([1, 2], {1: 50, 4: 50}, {}, (1, 1)),
        ([1], {}, {"kubelet": [CARDS[0].id]}, (1, 0)),
        ([0, 1, 2], {}, {"order": "leastUsed"}, (0, 0)),
        ([0, 1, 2], {}, {"order": "minor"}, (0, 0)),
        ([0, 1, 2], {}, {"order": "mostUsed"}, (3, 2)),
    ],
)
def test_idle_devices_and_roots_without_a_device_in_use_are_opened(
    minors: list[int], held: dict[int, int], fields: dict[str, Any], figures: tuple[int, int]
) -> None:
    shares = [part(CARDS[minor], 50) for minor in minors]
    assert opened(shares, server(used(held), **fields)) == figures
    assert opened(shares, server(used(held)), "minor") == (0, 0)


def opens(answer: Placement, on: NodeSnapshot) -> tuple[int, int]:
    """The idle cards and idle PCIe roots that are taken into use, counted from scratch."""
    roots = {device.id: device.pcie for device in on.devices}
    before = {share.id for one in on.holdings.values() for share in one.shares}
    after = before | {share.id for share in answer.shares}
    return len(after) - len(before), len({roots[one] for one in after}) - len({roots[one] for one in before})


@given(
    st.lists(st.sampled_from([0, 0, 50, 100]), min_size=8, max_size=8),
    st.sampled_from([30, 50, 100, 200, 300]),
    st.sampled_from(["500m", 2, 9]),
    st.sampled_from([NumaStrategy.MOST_ALLOCATED, NumaStrategy.LEAST_ALLOCATED]),
    st.sampled_from([0, 4000, 12_000]),
    st.sampled_from(PACKING),
)
def test_no_numa_node_would_have_opened_less(
    percents: list[int], gpus: int, cpu: str | int, strategy: NumaStrategy, busy: int, order: str
) -> None:
    rules = server_cpu(policy=SINGLE, strategy=strategy)
    on = replace(server([*used(dict(enumerate(percents))), shared(busy, 0)], cpu=rules), order=order)
    of = asking({GPU: gpus, "cpu": cpu, "memory": "1Gi"}, qos="LS")
    answer = place(of, on)
    alone = []
    for at in (0, 1):
        devices = tuple(replace(one, healthy=one.healthy and one.numa_node == at) for one in on.devices)
        there = place(
            of, replace(on, devices=devices, cpu=replace(rules, reserved=parse(f"{16 - 16 * at}-{31 - 16 * at}")))
        )
        if isinstance(there, Placement):
            alone.append(opens(there, on))
    if isinstance(answer, Refusal):
        assert alone == []
    else:
        assert opens(answer, on) == min(alone)
