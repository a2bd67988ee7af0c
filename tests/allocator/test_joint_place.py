"""GPUs and RDMA that belong together: a NIC for each PCIe root of the cards, and the very same roots where asked.

PCIe root k of the named server has the GPUs 2k and 2k+1 and the NIC k; roots 0 and 1 are in NUMA node 0.
"""

from dataclasses import replace
from typing import Any

import pytest
from builders import asking, gpu, holding, nic, node, part
from machines import server, server_devices

from allocator.asks import PodRequest
from allocator.holdings import Holding, Share
from allocator.outcome import Refusal
from allocator.place import Placement, place

GPU, NIC, FPGA = "koordinator.sh/gpu", "koordinator.sh/rdma", "koordinator.sh/fpga"
NEAR = {"deviceTypes": ["gpu", "rdma"]}
SAME = {**NEAR, "requiredScope": "SamePCIe"}
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


def both(gpus: int, nics: int = 1, joint: dict[str, Any] | None = None, **fields: Any) -> PodRequest:
    return asking({GPU: gpus, NIC: nics}, joint=joint, **fields)


# What is asked, what is held; the minors of each type

TOGETHER: dict[str, tuple[PodRequest, list[Holding], dict[str, list[int]]]] = {
    "apart: the first NIC whatever the card": (both(100), cards(0, 1), {"gpu": [2], "rdma": [0]}),
    "near: the NIC of the card's root": (both(100, joint=NEAR), cards(0, 1), {"gpu": [2], "rdma": [1]}),
    "near: a card where a NIC is free": (both(100, joint=NEAR), ports(0), {"gpu": [2], "rdma": [1]}),
    "near: two cards of one root, one NIC": (both(200, joint=NEAR), [], {"gpu": [0, 1], "rdma": [0]}),
    "near: four cards of two roots, a NIC on each": (both(400, joint=NEAR), [], {"gpu": [0, 1, 2, 3], "rdma": [0, 1]}),
    "near: all cards, all NICs": (
        both(800, joint=NEAR),
        [],
        {"gpu": list(range(8)), "rdma": [0, 1, 2, 3]},
    ),
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
        "node-1: container a asks 1 x (core 100 %, memory 100 %); 0 of 8 GPUs can hold it",
    ),
    "same: no NIC at all": (
        both(100, joint=SAME),
        ports(0, 1, 2, 3),
        "node-1: SamePCIe asked; no PCIe root has rdma devices that can serve it",
    ),
    "same: more NICs than the roots have": (
        both(100, 200, joint=SAME),
        [],
        "a 2 x (rdma 100 %): SamePCIe asked; 2 devices asked, 1 can serve it on the PCIe roots pci0",
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
    devices = [
        gpu(0, pcie="pci0"),
        gpu(1, pcie="pci1"),
        nic(0, pcie="pci0"),
        nic(1, pcie="pci1"),
        nic(2, pcie="pci1"),
    ]
    assert chosen(place(both(100, 200, joint=SAME), node(*devices))) == {"gpu": [1], "rdma": [1, 2]}


def test_same_pcie_is_refused_where_the_node_does_not_say_on_which_root_devices_are() -> None:
    answer = place(both(100, joint=SAME), node(gpu(0), nic(0)))
    assert isinstance(answer, Refusal)
    assert "SamePCIe asked" in answer.message
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


def test_each_nic_is_charged_all_that_is_asked_of_one() -> None:
    answer = place(both(400, 5, joint=NEAR), server())
    assert isinstance(answer, Placement)
    assert [share.amounts for share in answer.shares if share.type == "rdma"] == [{"rdma": 5}, {"rdma": 5}]


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
