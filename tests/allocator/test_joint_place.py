"""GPUs and RDMA that belong together: a NIC for each PCIe root of the cards, and the same roots if required.

PCIe root k of the named server has the GPUs 2k and 2k+1 and the NIC k; roots 0 and 1 are in NUMA node 0.
"""

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from builders import app, ask, asking, gpu, holding, nic, nics, node, part, request
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import server, server_devices, wired
from trials import examples

from allocator.place import Placement, place
from allocator.vocabulary.asks import Joint, PodRequest, Wishes
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.deviceobject import built_in

GPU, NIC, FPGA = "koordinator.sh/gpu", "koordinator.sh/rdma", "koordinator.sh/fpga"
NEAR = {"deviceTypes": ["gpu", "rdma"]}
SAME = {**NEAR, "requiredScope": "SamePCIe"}
EVERY = {"rdma": {"allocateStrategy": "ApplyForAll"}}
DEVICES = {(device.type, device.minor): device for device in server_devices()}


def cards(*minors: int) -> list[Holding]:
    """Others that hold all of these cards."""
    return [holding(f"card-{minor}", part(DEVICES["gpu", minor], 100, "x")) for minor in minors]


def ports(*minors: int) -> list[Holding]:
    """Others that hold all of these NICs."""
    return [
        holding(f"port-{minor}", Share("rdma", DEVICES["rdma", minor].id, minor, {"rdma": 100}, ("x",)))
        for minor in minors
    ]


def chosen(answer: Placement | Refusal) -> dict[str, list[int]]:
    """Minors by type."""
    assert isinstance(answer, Placement), answer
    found: dict[str, list[int]] = {}
    for share in answer.shares:
        found.setdefault(share.type, []).append(share.minor)
    return found


def both(gpus: int, rdma: int = 1, joint: dict[str, Any] | None = None, **fields: Any) -> PodRequest:
    return asking({GPU: gpus, NIC: rdma}, joint=joint, **fields)


# The request, what is held; the minors of each type

TOGETHER: dict[str, tuple[PodRequest, list[Holding], dict[str, list[int]]]] = {
    "apart: the first NIC whatever the card": (both(100), cards(0, 1), {"gpu": [2], "rdma": [0]}),
    "near: the NIC of the card's root": (both(100, joint=NEAR), cards(0, 1), {"gpu": [2], "rdma": [1]}),
    "near: a card where a NIC is free": (both(100, joint=NEAR), ports(0), {"gpu": [2], "rdma": [1]}),
    "near: two cards of one root, one NIC": (both(200, joint=NEAR), [], {"gpu": [0, 1], "rdma": [0]}),
    "near: four cards of two roots, a NIC on each": (both(400, joint=NEAR), [], {"gpu": [0, 1, 2, 3], "rdma": [0, 1]}),
    "near: all cards, all NICs": (both(800, joint=NEAR), [], {"gpu": list(range(8)), "rdma": [0, 1, 2, 3]}),
    "near: no NIC on the cards' root, so one of their NUMA node": (
        both(100, joint=NEAR),
        [*ports(0), *cards(2, 3, 4, 5, 6, 7)],
        {"gpu": [0], "rdma": [1]},
    ),
    "near: none in their NUMA node either": (
        both(100, joint=NEAR),
        [*ports(0, 1), *cards(2, 3, 4, 5, 6, 7)],
        {"gpu": [0], "rdma": [2]},
    ),
    "near: fewer NICs than roots will do": (
        both(400, joint=NEAR),
        [*ports(1, 2, 3), *cards(4, 5, 6, 7)],
        {"gpu": [0, 1, 2, 3], "rdma": [0]},
    ),
    "near: more NICs than roots": (both(100, 200, joint=NEAR), [], {"gpu": [0], "rdma": [0, 1]}),
    "same: the NIC of the card's root": (both(100, joint=SAME), cards(0, 1), {"gpu": [2], "rdma": [1]}),
    "same: a card where a NIC is free": (both(100, joint=SAME), [*ports(0, 1), *cards(4)], {"gpu": [5], "rdma": [2]}),
    "same: cards of two roots with a NIC each": (
        both(400, joint=SAME),
        ports(1),
        {"gpu": [4, 5, 6, 7], "rdma": [2, 3]},
    ),
    "same: parts of a card": (both(30, joint=SAME), [*ports(0), *cards(2)], {"gpu": [3], "rdma": [1]}),
    "the NIC first, the card beside it": (
        both(100, joint={"deviceTypes": ["rdma", "gpu"]}),
        ports(0),
        {"rdma": [1], "gpu": [2]},
    ),
    "two containers": (
        asking({GPU: 100, NIC: 1}, {GPU: 100, NIC: 1}, joint=SAME),
        cards(0),
        {"gpu": [1, 2], "rdma": [0, 1]},
    ),
    "a type alone is joint to nothing": (asking({GPU: 100}, joint=SAME), cards(0, 1), {"gpu": [2]}),
    "same: every NIC leaves the cards their own choice": (
        both(400, joint=SAME, hint=EVERY),
        [],
        {"gpu": [0, 1, 2, 3], "rdma": [0, 1, 2, 3]},
    ),
    "same: one card does not wait for a root with every NIC": (
        both(100, joint=SAME, hint=EVERY),
        cards(0),
        {"gpu": [1], "rdma": [0, 1, 2, 3]},
    ),
    "near: every NIC": (both(200, joint=NEAR, hint=EVERY), cards(0), {"gpu": [2, 3], "rdma": [0, 1, 2, 3]}),
    "every NIC leads nothing": (
        both(200, joint={**SAME, "deviceTypes": ["rdma", "gpu"]}, hint=EVERY),
        [],
        {"gpu": [0, 1], "rdma": [0, 1, 2, 3]},
    ),
    "types that are not named stay apart": (both(100, joint={}), cards(0, 1), {"gpu": [2], "rdma": [0]}),
}


@pytest.mark.parametrize(("of", "held", "expected"), TOGETHER.values(), ids=TOGETHER)
def test_devices_that_belong_together_are_chosen_together(
    of: PodRequest, held: list[Holding], expected: dict[str, list[int]]
) -> None:
    on = server(held)
    answer = place(of, on)
    assert chosen(answer) == expected
    assert place(of, server(held[::-1])) == answer
    assert isinstance(answer, Placement)
    on.with_holding(holding("uid", *answer.shares)).check_invariants()


REFUSED: dict[str, tuple[PodRequest, list[Holding], str]] = {
    "same: no root has both free": (
        both(100, joint=SAME),
        [*ports(0, 1), *cards(4, 5, 6, 7)],
        (
            "node-1: a 1 x (core 100 %, memory 100 %): "
            "SamePCIe is requested; 1 GPUs are requested, 0 suitable ones have rdma devices free on their PCIe root"
        ),
    ),
    "same: no NIC at all": (both(100, joint=SAME), ports(0, 1, 2, 3), "0 of 4 rdma devices can hold it"),
    "same: more NICs than the roots have": (
        both(100, 200, joint=SAME),
        [],
        (
            "a 2 x (rdma 100 %): SamePCIe is requested; 2 rdma devices are requested, "
            "at most 1 suitable ones are on PCIe roots where 1 GPUs could be"
        ),
    ),
    "same: a NIC for each of two containers, on one root": (
        asking({GPU: 100, NIC: 100}, {GPU: 100, NIC: 100}, joint=SAME),
        [*ports(1, 2, 3)],
        (
            "all containers together: "
            "SamePCIe is requested; 1 GPUs are requested, 0 suitable ones have rdma devices free on their PCIe root"
        ),
    ),
    "near: no NIC at all": (both(100, joint=NEAR), ports(0, 1, 2, 3), "0 of 4 rdma devices can hold it"),
    "near: no card at all": (both(100, joint=NEAR), cards(*range(8)), "0 of 8 GPUs can hold it"),
}


@pytest.mark.parametrize(("of", "held", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_together_is_refused_with_the_reason(of: PodRequest, held: list[Holding], message: str) -> None:
    answer = place(of, server(held))
    assert isinstance(answer, Refusal)
    assert message in answer.message
    assert not answer.permanent


def test_roots_with_too_few_nics_are_passed_over_for_one_with_enough() -> None:
    devices = [gpu(0, pcie="pci0"), gpu(1, pcie="pci1"), nic(0, pcie="pci0"), nic(1, pcie="pci1"), nic(2, pcie="pci1")]
    assert chosen(place(both(100, 200, joint=SAME), node(*devices))) == {"gpu": [1], "rdma": [1, 2]}


def test_same_pcie_is_refused_where_the_node_does_not_say_on_which_root_devices_are() -> None:
    answer = place(both(100, joint=SAME), node(gpu(0), nic(0)))
    assert isinstance(answer, Refusal)
    assert "SamePCIe is requested" in answer.message
    assert chosen(place(both(100, joint=NEAR), node(gpu(0), nic(0)))) == {"gpu": [0], "rdma": [0]}


def test_a_third_type_is_chosen_on_its_own() -> None:
    fpga = replace(nic(0), type="fpga", id="FPGA-0", capacity={"fpga": 100})
    on = server([*cards(0, 1)], devices=[*server_devices(), fpga])
    answer = place(asking({GPU: 100, NIC: 1, FPGA: 10}, joint=SAME), on)
    assert chosen(answer) == {"gpu": [2], "rdma": [1], "fpga": [0]}
    three = {"deviceTypes": ["gpu", "rdma", "fpga"], "requiredScope": "SamePCIe"}
    near = server(cards(0, 1), devices=[*server_devices(), replace(fpga, pcie="pci3")])
    assert chosen(place(asking({GPU: 100, NIC: 1, FPGA: 10}, joint=three), near)) == {
        "gpu": [6],
        "rdma": [3],
        "fpga": [0],
    }


def test_a_virtual_function_comes_with_each_nic_beside_the_cards() -> None:
    of = both(400, joint=SAME, hint={"rdma": {"vfSelector": {"matchLabels": {"speed": "fast"}}}})
    answer = place(of, server(cards(0)))
    assert isinstance(answer, Placement)
    found = [function.bus_id for share in answer.shares for function in share.functions]
    assert found == ["0000:2f:00.1", "0000:3f:00.1"]


def test_devices_that_belong_together_stand_in_the_pods_numa_node() -> None:
    single = {"numaTopologyPolicy": "SingleNUMANode"}
    of = asking({GPU: 200, NIC: 1, "cpu": 4}, joint=SAME, numa=single, qos="LSR")
    answer = place(of, server([*cards(0, 3), *ports(0)]))
    assert chosen(answer) == {"gpu": [4, 5], "rdma": [2]}
    assert isinstance(answer, Placement)
    assert answer.cpus is not None
    assert [one.node for one in answer.cpus.numa] == [1]


# Several containers: their requests and what is held; the devices of each container

TWICE = ({GPU: 100, NIC: 100}, {GPU: 100, NIC: 100})
CONTAINERS: dict[str, tuple[PodRequest, list[Holding], dict[str, dict[str, list[int]]]]] = {
    "near: each NIC beside its own container's card": (
        asking(*TWICE, joint=NEAR),
        [],
        {"a": {"gpu": [0], "rdma": [0]}, "b": {"gpu": [2], "rdma": [1]}},
    ),
    "same: each NIC on the root of its own container's card": (
        asking(*TWICE, joint=SAME),
        cards(0, 1, 4),
        {"a": {"gpu": [5], "rdma": [2]}, "b": {"gpu": [2], "rdma": [1]}},
    ),
    "half a NIC each, of one where the cards are on one root": (
        asking({GPU: 100, NIC: 50}, {GPU: 100, NIC: 50}, joint=SAME),
        [],
        {"a": {"gpu": [0], "rdma": [0]}, "b": {"gpu": [1], "rdma": [0]}},
    ),
    "near: the second gives up a NIC for each root so that both have one": (
        asking({GPU: 400, NIC: 100}, {GPU: 100, NIC: 100}, joint=NEAR),
        ports(2, 3),
        {"a": {"gpu": [0, 1, 2, 3], "rdma": [0]}, "b": {"gpu": [4], "rdma": [1]}},
    ),
    "same: the first goes where the second finds its own, too": (
        asking({GPU: 200, NIC: 100}, {GPU: 100, NIC: 100}, joint=SAME),
        [*cards(0, 4, 5, 6, 7)],
        {"a": {"gpu": [2, 3], "rdma": [1]}, "b": {"gpu": [1], "rdma": [0]}},
    ),
    "a container without cards has its NIC beside the Pod's": (
        asking({GPU: 100}, {NIC: 10}, joint=SAME),
        ports(0),
        {"a": {"gpu": [2]}, "b": {"rdma": [1]}},
    ),
    "a container without a NIC has its card anywhere": (
        asking({GPU: 100, NIC: 100}, {GPU: 200}, joint=SAME),
        [*ports(1, 2, 3)],
        {"a": {"gpu": [0], "rdma": [0]}, "b": {"gpu": [2, 3]}},
    ),
}


@pytest.mark.parametrize(("of", "held", "expected"), CONTAINERS.values(), ids=CONTAINERS)
def test_each_container_has_its_devices_together(
    of: PodRequest, held: list[Holding], expected: dict[str, dict[str, list[int]]]
) -> None:
    on = server(held)
    answer = place(of, on)
    assert isinstance(answer, Placement), answer
    found: dict[str, dict[str, list[int]]] = {}
    for share in answer.shares:
        for container in share.containers:
            found.setdefault(container, {}).setdefault(share.type, []).append(share.minor)
    assert found == expected
    on.with_holding(holding("uid", *answer.shares)).check_invariants()
    assert place(of, server(held[::-1])) == answer


def test_each_container_is_charged_its_own_nic_alone() -> None:
    devices = [gpu(0, pcie="a"), gpu(1, pcie="b"), nic(0, pcie="a"), nic(1, pcie="b")]
    answer = place(asking({GPU: 100, NIC: 50}, {GPU: 100, NIC: 50}, joint=NEAR), node(*devices))
    assert isinstance(answer, Placement)
    told = [(share.id, share.amounts["rdma"], share.containers) for share in answer.shares if share.type == "rdma"]
    assert told == [("NIC-0", 50, ("a",)), ("NIC-1", 50, ("b",))]


# The rules of the second type

CARDS_SECOND = {"deviceTypes": ["rdma", "gpu"]}
RULES: dict[str, tuple[PodRequest, bool, dict[str, list[int]] | str]] = {
    "Honor: no partition of three": (
        both(300, 100, CARDS_SECOND),
        True,
        "3 GPUs are not a partition here; ask for a number that the table has: 1, 2, 4, 8",
    ),
    "Prefer: three": (both(300, 100, CARDS_SECOND), False, {"rdma": [0], "gpu": [0, 1, 2]}),
    "a partition that is asked": (
        both(
            200,
            100,
            CARDS_SECOND,
            partition={},
            hint={"rdma": {"selector": {"matchLabels": {"koordgate.io/minor": "1"}}}},
        ),
        False,
        {"rdma": [1], "gpu": [2, 3]},
    ),
    "no partition on one root": (
        both(400, 100, {**CARDS_SECOND, "requiredScope": "SamePCIe"}, partition={}),
        False,
        "4 GPUs are requested, at most 2 suitable ones are on PCIe roots where 1 rdma devices could be",
    ),
    "a ring that no partition has": (
        both(200, 100, CARDS_SECOND, partition={"ringBusBandwidth": "400Gi"}),
        False,
        "ringBusBandwidth 400Gi asked; partitions of 2 GPUs state none",
    ),
    "NICs on one root, beside cards of two": (
        both(400, 100, NEAR, hint={"rdma": {"requiredTopologyScope": "PCIe"}}),
        False,
        {"gpu": [0, 1, 2, 3], "rdma": [0]},
    ),
    "NICs in one NUMA node, beside cards of two": (
        both(800, 200, NEAR, hint={"rdma": {"requiredTopologyScope": "NUMANode"}}),
        False,
        {"gpu": list(range(8)), "rdma": [0, 1]},
    ),
    "more NICs than a root has": (
        both(400, 200, NEAR, hint={"rdma": {"requiredTopologyScope": "PCIe"}}),
        False,
        "a 2 x (rdma 100 %): 2 devices inside one PCIe root are requested; suitable inside one: at most 1",
    ),
    "NICs on one root, and on each of two": (
        both(400, 100, SAME, hint={"rdma": {"requiredTopologyScope": "PCIe"}}),
        False,
        "on those roots: 2 devices inside one PCIe root are requested; suitable inside one: at most 1",
    ),
}


@pytest.mark.parametrize(("of", "honour", "expected"), RULES.values(), ids=RULES)
def test_a_type_that_comes_second_keeps_its_own_rules(
    of: PodRequest, expected: dict[str, list[int]] | str, *, honour: bool
) -> None:
    wiring = wired(server_devices(), partitions=built_in("nvidia", "H100"), honour_partitions=honour)
    answer = place(of, server(wiring=wiring))
    if isinstance(expected, str):
        assert isinstance(answer, Refusal)
        assert expected in answer.message
    else:
        assert chosen(answer) == expected


# SamePCIe compared with brute force


@st.composite
def rooted(draw: st.DrawFn) -> NodeSnapshot:
    roots = st.sampled_from("abcd"[: draw(st.integers(1, 4))])
    made = [gpu(minor, pcie=draw(roots)) for minor in range(draw(st.integers(1, 6)))]
    made += [nic(minor, pcie=draw(roots)) for minor in range(draw(st.integers(1, 5)))]
    taken = [one for one in made if draw(st.integers(0, 4)) == 0]
    return node(*made, holdings=[holding(one.id, Share(one.type, one.id, one.minor, one.capacity)) for one in taken])


def can_be(on: NodeSnapshot, asked: list[dict[str, tuple[int, int]]], first: str) -> bool:
    """Whether every container can have its devices of both types on the same roots; found by trying all sets.

    Args:
        on: the node.
        asked: for each container, by type the number of devices and the percent of each.
        first: the type that the other one is placed beside, with at least one device on each root.
    """
    free = {device.id: 0 if device.id in on.used else 100 for device in on.devices}

    def serve(turns: list[tuple[int, str]], had: dict[int, set[str | None]]) -> bool:
        if not turns:
            return True
        (at, kind), *rest = turns
        count, percent = asked[at][kind]
        roots = had.get(at) or {root for found in had.values() for root in found}
        open_to = [device for device in on.devices if device.type == kind and free[device.id] >= percent]
        for chosen in combinations(open_to, count if kind == first else max(count, len(roots))):
            there = {device.pcie for device in chosen}
            if kind != first and there != roots:
                continue
            for device in chosen:
                free[device.id] -= percent
            if serve(rest, {**had, at: there} if kind == first else had):
                return True
            for device in chosen:
                free[device.id] += percent
        return False

    turns = [(at, kind) for at, one in enumerate(asked) for kind in one]
    return serve(sorted(turns, key=lambda turn: turn[1] != first), {})


@st.composite
def containers(draw: st.DrawFn) -> list[dict[str, tuple[int, int]]]:
    cards = st.tuples(st.integers(1, 3), st.just(100)) | st.just((1, 40))
    ports = st.tuples(st.integers(1, 3), st.sampled_from([30, 50, 100]))
    both = st.fixed_dictionaries({"gpu": cards, "rdma": ports})
    some = st.lists(both | st.fixed_dictionaries({"gpu": cards}) | st.fixed_dictionaries({"rdma": ports}), max_size=2)
    return [draw(both), *draw(some)]


@given(rooted(), st.permutations(["gpu", "rdma"]), containers())
@settings(max_examples=examples(150))
def test_same_pcie_is_refused_only_where_no_sets_do(
    on: NodeSnapshot, types: list[str], asked: list[dict[str, tuple[int, int]]]
) -> None:
    asks = [
        app(f"c{at}", ask(count, core=percent, ratio=percent) if kind == "gpu" else nics(percent, count))
        for at, one in enumerate(asked)
        for kind, (count, percent) in one.items()
    ]
    answer = place(request(*asks, wishes=Wishes(joint=Joint(tuple(types), same_pcie=True))), on)
    assert isinstance(answer, Placement) == can_be(on, asked, types[0])


def test_cards_are_spread_over_the_roots_that_have_the_nics() -> None:
    cards = [gpu(minor, pcie=root) for minor, root in enumerate("aabab")]
    others = [nic(minor, pcie=root) for minor, root in enumerate("abba")]
    answer = place(both(200, 300, SAME), node(*cards, *others, wiring=wired([*cards, *others])))
    assert chosen(answer) == {"gpu": [0, 2], "rdma": [0, 1, 2]}


@pytest.mark.parametrize("joint", [NEAR, SAME])
@pytest.mark.parametrize(
    ("used", "expected"), [((5, 6), [1, 5, 6]), ((1, 2), [1, 2, 5]), ((2, 6), [1, 2, 6]), ((), [1, 2, 5])]
)
def test_further_nics_are_taken_by_rank_whatever_their_root(
    joint: dict[str, Any], used: tuple[int, ...], expected: list[int]
) -> None:
    made = [gpu(minor, pcie=root) for minor, root in enumerate("aabb")]
    ports = [nic(1, pcie="a"), nic(2, pcie="a"), nic(5, pcie="b"), nic(6, pcie="b")]
    others = [
        holding(f"on-{one.minor}", Share("rdma", one.id, one.minor, {"rdma": 1})) for one in ports if one.minor in used
    ]
    on = node(*made, *ports, holdings=others, wiring=wired([*made, *ports]))
    of = both(400, 3, joint, hint={"rdma": {"allocateStrategy": "RequestsAsCount"}})
    assert chosen(place(of, on)) == {"gpu": [0, 1, 2, 3], "rdma": expected}
