"""Exclusive devices, and the scope that holds all devices of a Pod, over all its containers.

Nodes have few devices, and each states its place: gpu minor, NUMA node and PCIe root.
"""

from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, app, asking, gpu, holding, nic, node, part, request
from machines import server

from allocator.place import Placement, place
from allocator.vocabulary.asks import DeviceAsk, ExclusiveLevel, PodRequest, TypeHint, Wishes
from allocator.vocabulary.device import Device, Place, VirtualFunction, Wiring, link
from allocator.vocabulary.devicetype import Unit, own_type
from allocator.vocabulary.holdings import Function, Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.nodeallocation import read_spec, write_spec

GPU, NIC = "koordinator.sh/gpu", "koordinator.sh/rdma"
QUEUE = own_type("queue", "example.com/queue", Unit.UNITS)
DEVICE_LEVEL = {"gpu": {"exclusivePolicy": "DeviceLevel"}}
PCIE_LEVEL = {"gpu": {"exclusivePolicy": "PCIeLevel"}}


def queue(units: int) -> Device:
    return Device("queue", "queue-0", 0, True, {"queue": units})


def units(amount: int, level: ExclusiveLevel | None = None) -> PodRequest:
    hints = (("queue", TypeHint(exclusive=level)),) if level else ()
    return request(app("a", DeviceAsk(QUEUE, 1, (amount,))), wishes=Wishes(hints=hints))


def given(answer: Placement | Refusal) -> dict[str, tuple[str, ...]]:
    """Device to the containers that see it."""
    assert isinstance(answer, Placement), answer
    return {share.id: share.containers for share in answer.shares}


def refused(answer: Placement | Refusal) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.message


def held_by(answer: Placement | Refusal) -> Holding:
    assert isinstance(answer, Placement), answer
    return holding("first", *answer.shares)


# DeviceLevel

SUFFICE: dict[str, tuple[NodeSnapshot, PodRequest, bool]] = {
    "bytes that the card has": (node(gpu(0)), asking({f"{GPU}-memory": "80Gi"}, hint=DEVICE_LEVEL), True),
    "more bytes than the card has": (node(gpu(0)), asking({f"{GPU}-memory": "100Gi"}, hint=DEVICE_LEVEL), False),
    "bytes of one of two cards": (
        node(gpu(0, 40 * 2**30), gpu(1)),
        asking({f"{GPU}-memory": "80Gi"}, hint=DEVICE_LEVEL),
        True,
    ),
    "units that there are": (node(queue(5)), units(5, ExclusiveLevel.DEVICE), True),
    "more units than there are": (node(queue(5)), units(41, ExclusiveLevel.DEVICE), False),
}


@pytest.mark.parametrize(("on", "of", "fits"), SUFFICE.values(), ids=SUFFICE)
def test_a_device_that_is_to_be_ones_own_must_still_have_what_is_asked(
    on: NodeSnapshot, of: PodRequest, *, fits: bool
) -> None:
    answer = place(of, on)
    assert isinstance(answer, Placement) == fits
    if isinstance(answer, Placement):
        (share,) = answer.shares
        (device,) = [one for one in on.devices if one.id == share.id]
        assert share.amounts == device.capacity


@pytest.mark.parametrize("level", ExclusiveLevel)
def test_what_the_record_states_about_a_holder_keeps_others_out(level: ExclusiveLevel) -> None:
    holder = held_by(place(units(1, level), node(queue(10))))
    (share,) = holder.shares
    assert (share.alone, share.unshared) == (level is ExclusiveLevel.PCIE, level is ExclusiveLevel.DEVICE)
    told = read_spec({"spec": write_spec([holder])})
    assert told == {"first": holder}
    assert isinstance(place(units(1), node(queue(20)).holding_all(told)), Refusal)


def test_a_broken_card_is_given_to_nobody_though_its_holder_does_not_share_it() -> None:
    holder = held_by(place(asking({GPU: 50}, hint=DEVICE_LEVEL), node(gpu(0))))
    refusal = refused(place(asking({GPU: 50}), node(gpu(0, healthy=False), holdings=[holder])))
    assert "0 of 1 GPUs (1 unhealthy) can hold it" in refusal


# PCIeLevel where the root is not known

UNKNOWN = node(gpu(0), gpu(1), nic(0))


def test_a_pod_alone_on_its_pcie_root_is_alone_at_least_on_a_card_of_an_unknown_one() -> None:
    holder = held_by(place(asking({GPU: 50}, hint=PCIE_LEVEL), UNKNOWN))
    on = UNKNOWN.with_holding(holder)
    assert given(place(asking({GPU: 50}), on)) == {"GPU-1": ("a",)}
    assert given(place(asking({NIC: 50}), on)) == {"NIC-0": ("a",)}
    assert "1 of 2 GPUs can hold it" in refused(place(asking({GPU: 200}), on))


def test_it_does_not_come_to_a_card_of_an_unknown_root_that_somebody_is_on() -> None:
    on = UNKNOWN.with_holding(holding("other", part(gpu(0), 10)))
    assert given(place(asking({GPU: 50}, hint=PCIE_LEVEL), on)) == {"GPU-1": ("a",)}
    assert given(place(asking({GPU: 50}), on)) == {"GPU-0": ("a",)}


# Selectors


@pytest.mark.parametrize("label", ["nvidia.com/gpu.product", "koordgate.io/model"])
@pytest.mark.parametrize("spelled", ["A10", "NVIDIA-A10", "NVIDIA-A10-SHARED"])
@pytest.mark.parametrize("reported", ["A10", "NVIDIA-A10"])
def test_a_model_is_selected_however_the_hint_and_the_card_spell_it(label: str, spelled: str, reported: str) -> None:
    of = asking({GPU: 50}, hint={"gpu": {"selector": {"matchLabels": {label: spelled}}}})
    on = node(gpu(0, model="A100"), gpu(1, model=reported))
    assert given(place(of, on)) == {"GPU-1": ("a",)}


# Virtual functions that two devices list


def test_a_virtual_function_that_two_devices_list_is_given_once() -> None:
    shared, own = VirtualFunction(1, "0000:1f:00.3"), VirtualFunction(2, "0000:1f:00.4")
    of = asking({NIC: 200}, hint={"rdma": {"vfSelector": {}}})
    assert "1 of 2 rdma devices can hold it" in refused(place(of, node(nic(0, shared), nic(1, shared))))
    on = node(nic(0, shared), nic(1, shared, own))
    answer = place(of, on)
    assert isinstance(answer, Placement)
    assert [one.bus_id for share in answer.shares for one in share.functions] == ["0000:1f:00.3", "0000:1f:00.4"]
    on.with_holding(holding("uid", *answer.shares)).check_invariants()


@pytest.mark.parametrize(("minor", "told"), [(None, -1), (0, 0), (3, 3)])
def test_a_virtual_function_without_a_number_is_given_as_minus_one(minor: int | None, told: int) -> None:
    answer = place(
        asking({NIC: 10}, hint={"rdma": {"vfSelector": {}}}), node(nic(0, VirtualFunction(minor, "0000:1f:00.3")))
    )
    assert isinstance(answer, Placement)
    assert answer.shares[0].functions == (Function(told, "0000:1f:00.3"),)


# The scope of a Pod of several containers: their requests, the scope, the cards; who gets which, or why not

TWO_NODES = (gpu(0, numa_node=0, pcie="a"), gpu(1, numa_node=1, pcie="b"))
ROOM_ON_ONE = (*TWO_NODES, gpu(2, numa_node=1, pcie="c"))
Scoped = tuple[tuple[int, ...], str, tuple[Device, ...], dict[str, tuple[str, ...]] | str]
SCOPED: dict[str, Scoped] = {
    "a NUMA node that holds both": ((100, 100), "NUMANode", ROOM_ON_ONE, {"GPU-1": ("a",), "GPU-2": ("b",)}),
    "no NUMA node holds both": (
        (100, 100),
        "NUMANode",
        TWO_NODES,
        "each container fits alone, not all together inside one NUMA node",
    ),
    "no root holds both": ((100, 100), "PCIe", ROOM_ON_ONE, "not all together inside one PCIe root"),
    "no NUMA node has what each asks": (
        (100, 200),
        "NUMANode",
        (*TWO_NODES, gpu(2, numa_node=2), gpu(3, numa_node=3)),
        "2 devices inside one NUMA node are requested; suitable inside one: at most 1",
    ),
    "each finds its own in another NUMA node": (
        (100, 200),
        "NUMANode",
        (gpu(0, numa_node=0), gpu(1, numa_node=1), gpu(2, numa_node=1)),
        "each container fits alone, not all together inside one NUMA node",
    ),
    "anywhere on the node": ((100, 100), "Node", TWO_NODES, {"GPU-0": ("a",), "GPU-1": ("b",)}),
    "one device for both": ((50, 50), "Device", TWO_NODES, {"GPU-0": ("a", "b")}),
    "one device is not enough for both": ((60, 60), "Device", TWO_NODES, "not all together inside one device"),
    "cards that do not say where they are": ((100, 100), "NUMANode", (gpu(0), gpu(1)), "not all together inside one"),
    "both on one card that does not say where it is": ((50, 50), "NUMANode", (gpu(0), gpu(1)), {"GPU-0": ("a", "b")}),
}


@pytest.mark.parametrize(("percents", "scope", "devices", "expected"), SCOPED.values(), ids=SCOPED)
def test_the_scope_holds_for_all_containers_of_a_pod_together(
    percents: tuple[int, ...], scope: str, devices: tuple[Device, ...], expected: dict[str, tuple[str, ...]] | str
) -> None:
    of = asking(*({GPU: percent} for percent in percents), hint={"gpu": {"requiredTopologyScope": scope}})
    answer = place(of, node(*devices))
    if isinstance(expected, str):
        assert expected in refused(answer)
    else:
        assert given(answer) == expected


@pytest.mark.parametrize(("scope", "expected"), [("NUMANode", [1, 2]), ("PCIe", [2, 3]), ("Node", [0, 1])])
@pytest.mark.parametrize("order", ["", "minor"])
def test_parts_of_two_cards_are_inside_the_scope_too(scope: str, expected: list[int], order: str) -> None:
    places = [(0, "a"), (1, "b"), (1, "c"), (1, "c")]
    cards = [gpu(minor, numa_node=numa, pcie=pcie) for minor, (numa, pcie) in enumerate(places)]
    of = asking(
        {f"{GPU}-core": 60, f"{GPU}-memory-ratio": 60, f"{GPU}.shared": 2},
        hint={"gpu": {"requiredTopologyScope": scope}},
        order=order,
    )
    assert given(place(of, node(*cards))) == {f"GPU-{minor}": ("a",) for minor in expected}


def test_where_each_container_could_stand_but_nowhere_all_it_is_said_so() -> None:
    small = (gpu(1, 40 * GIB, numa_node=1), gpu(2, 40 * GIB, numa_node=1))
    hint = {"gpu": {"requiredTopologyScope": "NUMANode"}}
    answer = place(asking({GPU: 200}, {f"{GPU}-memory": "60Gi"}, hint=hint), node(gpu(0, numa_node=0), *small))
    assert refused(answer).endswith(
        "all containers together: devices inside one NUMA node are requested (requiredTopologyScope), "
        "and no NUMA node has enough for each container"
    )


def test_every_device_that_is_selected_is_not_only_every_one_in_one_numa_node() -> None:
    hint = {"rdma": {"allocateStrategy": "ApplyForAll", "requiredTopologyScope": "NUMANode"}}
    of = asking({NIC: 10}, {NIC: 20}, hint=hint)
    here = [nic(0, numa_node=0), nic(1, numa_node=0)]
    assert given(place(of, node(*here))) == {"NIC-0": ("a", "b"), "NIC-1": ("a", "b")}
    assert isinstance(place(of, node(*here, nic(2, numa_node=1))), Refusal)


# SingleNUMANode on a node whose CPUs are not known

NUMAS: dict[str, tuple[str, int, tuple[Device, ...], dict[str, tuple[str, ...]] | str]] = {
    "two cards of two NUMA nodes": (
        "SingleNUMANode",
        200,
        TWO_NODES,
        "the Pod fits, but not in one NUMA node (NUMA policy SingleNUMANode)",
    ),
    "two cards of one": ("SingleNUMANode", 200, ROOM_ON_ONE, {"GPU-1": ("a",), "GPU-2": ("a",)}),
    "in as few as an empty node would need": (
        "Restricted",
        300,
        ROOM_ON_ONE,
        dict.fromkeys(("GPU-0", "GPU-1", "GPU-2"), ("a",)),
    ),
    "in one if it can be": ("BestEffort", 200, ROOM_ON_ONE, {"GPU-1": ("a",), "GPU-2": ("a",)}),
    "in two where it cannot": ("BestEffort", 200, TWO_NODES, {"GPU-0": ("a",), "GPU-1": ("a",)}),
    "nothing says where it is": ("SingleNUMANode", 200, (gpu(0), gpu(1)), {"GPU-0": ("a",), "GPU-1": ("a",)}),
}


@pytest.mark.parametrize(("policy", "percent", "devices", "expected"), NUMAS.values(), ids=NUMAS)
def test_without_a_cpu_topology_the_devices_report_the_numa_nodes(
    policy: str, percent: int, devices: tuple[Device, ...], expected: dict[str, tuple[str, ...]] | str
) -> None:
    answer = place(asking({GPU: percent}, numa={"numaTopologyPolicy": policy}), node(*devices))
    if isinstance(expected, str):
        assert expected in refused(answer)
    else:
        assert given(answer) == expected


def test_many_numa_nodes_that_devices_report_are_tried_one_by_one_and_all_together() -> None:
    cards = [gpu(minor, numa_node=minor // 2) for minor in range(20)]
    of: dict[str, Any] = {"numa": {"numaTopologyPolicy": "BestEffort"}}
    assert list(given(place(asking({GPU: 200}, **of), node(*cards[1:])))) == ["GPU-2", "GPU-3"]
    assert len(given(place(asking({GPU: 300}, **of), node(*cards)))) == 3


# A gang whose Pods are still to come


def bridged() -> tuple[list[Device], Wiring]:
    """Eight cards in two groups of four, each joined by NVLink."""
    cards = [gpu(minor, numa_node=minor // 4) for minor in range(8)]
    lanes = {(a.id, b.id): 4 for a in cards for b in cards if a.id < b.id and a.numa_node == b.numa_node}
    return cards, Wiring(link([Place(card.id, card.numa_node) for card in cards], lanes))


def started(waiting: int, count: int = 1) -> list[str]:
    """The cards of a gang's Pods, one after another, on a node whose first group has one card less."""
    cards, wiring = bridged()
    on = node(*cards, wiring=wiring, holdings=[holding("other", part(cards[0], 100))])
    of = asking({GPU: 100 * count}, gang="train")
    found: list[str] = []
    for left in range(waiting, -1, -1):
        answer = place(replace(of, wishes=replace(of.wishes, waiting=left)), on)
        assert isinstance(answer, Placement)
        found += [share.id for share in answer.shares]
        on = on.with_holding(holding(f"mate-{left}", *answer.shares, gang="default/train"))
    return found


def test_the_first_of_a_gang_begins_in_the_nvlink_group_that_holds_all_that_are_to_come() -> None:
    assert started(0) == ["GPU-1"]  # alone it takes a card of the group that is broken already
    assert started(2) == ["GPU-1", "GPU-2", "GPU-3"]
    assert started(3) == ["GPU-4", "GPU-5", "GPU-6", "GPU-7"]
    assert started(1, count=2) == ["GPU-4", "GPU-5", "GPU-6", "GPU-7"]
    assert sorted(started(6)) == [f"GPU-{minor}" for minor in range(1, 8)]


def test_a_gang_that_is_too_large_for_the_node_begins_as_if_none_were_to_come() -> None:
    cards, wiring = bridged()
    of = asking({GPU: 100}, gang="train")
    answers = [
        place(replace(of, wishes=replace(of.wishes, waiting=waiting)), node(*cards, wiring=wiring))
        for waiting in (0, 8, 10**6)
    ]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(("gang", "cards"), [("train", ["GPU-4", "GPU-6"]), ("other", ["GPU-6", "GPU-7"])])
def test_parts_of_cards_come_near_the_card_of_a_mate(gang: str, cards: list[str]) -> None:
    on = server([holding("mate", part(gpu(5), 100), gang="default/train")])
    halves = {f"{GPU}-core": 120, f"{GPU}-memory-ratio": 120, f"{GPU}.shared": 2}
    assert list(given(place(asking(halves, gang=gang), on))) == cards


def test_parts_of_cards_are_packed_however_many_are_to_come() -> None:
    on = server([holding("other", part(gpu(2), 30))])
    of = asking({GPU: 40}, gang="train")
    assert given(place(replace(of, wishes=replace(of.wishes, waiting=3)), on)) == {"GPU-2": ("a",)}
