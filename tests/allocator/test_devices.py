"""Choosing cards: tables of nodes, asks and answers."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from builders import GIB, app, ask, gpu, gpus, held, holding, init, nic, node, part, request, share, sidecar
from machines import A100_80G, L4, ODD, T4, devices, machine, server, server_devices

from allocator.place import Placement, place
from allocator.vocabulary.adopted import ForeignHolding, Product
from allocator.vocabulary.asks import DeviceAsk, Operator, PodRequest, Requirement, Selector, TypeHint, Wishes
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal


class Got(NamedTuple):
    """A share as in the tables: minor, amount, containers."""

    minor: int
    core: int
    memory: int
    ratio: int
    containers: str = "a"


def told(answer: Placement | Refusal) -> list[Got]:
    assert isinstance(answer, Placement), answer
    return [
        Got(
            one.minor,
            one.amounts[GPU_CORE],
            one.amounts[GPU_MEMORY],
            one.amounts[GPU_MEMORY_RATIO],
            " ".join(one.containers),
        )
        for one in answer.shares
    ]


def minors(answer: Placement | Refusal) -> list[int]:
    return [got.minor for got in told(answer)]


def busy(name: str, *parts: tuple[int, int]) -> NodeSnapshot:
    """A named machine with (minor, percent) held by others."""
    cards = devices(name)
    return node(*cards, holdings=held(*(part(cards[minor], percent) for minor, percent in parts)))


A, T = A100_80G, T4
SECOND = Selector((Requirement("koordgate.io/minor", Operator.IN, ("1",)),))
FOUR = "four A100"
MIXED = "mixed: two A100 of 80G, two of 40G, two L4"

# The amounts taken of each card: (node, one container's request, shares)

AMOUNTS: dict[str, tuple[NodeSnapshot, DeviceAsk, list[Got]]] = {
    "a whole card": (machine(FOUR), gpus(100), [Got(0, 100, A, 100)]),
    "two whole cards": (machine(FOUR), gpus(200), [Got(0, 100, A, 100), Got(1, 100, A, 100)]),
    "all cards": (machine(FOUR), gpus(400), [Got(minor, 100, A, 100) for minor in range(4)]),
    "half a card": (machine(FOUR), gpus(50), [Got(0, 50, A // 2, 50)]),
    "two half cards are two cards": (
        machine(FOUR),
        ask(2, core=50, ratio=50),
        [Got(0, 50, A // 2, 50), Got(1, 50, A // 2, 50)],
    ),
    "core and ratio apart": (machine(FOUR), ask(core=50, ratio=60), [Got(0, 50, A * 6 // 10, 60)]),
    "core and bytes": (machine(FOUR), ask(core=60, memory=40 * GIB), [Got(0, 60, 40 * GIB, 50)]),
    "bytes alone": (machine(FOUR), ask(memory=8 * GIB), [Got(0, 0, 8 * GIB, 10)]),
    "one byte is no percent": (machine(FOUR), ask(memory=1), [Got(0, 0, 1, 0)]),
    "all bytes of a card": (machine(FOUR), ask(memory=A), [Got(0, 0, A, 100)]),
    "all bytes but one": (machine(FOUR), ask(memory=A - 1), [Got(0, 0, A - 1, 99)]),
    "ratio alone leaves compute": (machine(FOUR), ask(ratio=100), [Got(0, 0, A, 100)]),
    "the device proposal's card by half": (machine("one T4"), gpus(50), [Got(0, 50, 15472384 * 512, 50)]),
    "a ratio of odd bytes rounds down": (machine("odd bytes"), ask(ratio=33), [Got(1, 0, (ODD - 2) * 33 // 100, 33)]),
    "bytes of an odd card round down": (machine("odd bytes"), ask(memory=ODD // 2), [Got(1, 0, ODD // 2, 50)]),
    "a third of three bytes": (machine("tiny: three bytes"), ask(memory=1), [Got(0, 0, 1, 33)]),
    "a ratio too small for a byte": (machine("tiny: three bytes"), ask(ratio=1), [Got(0, 0, 0, 1)]),
    "cards of two models": (
        busy(MIXED, (0, 100), (1, 100), (2, 100), (4, 100)),
        gpus(200),
        [Got(3, 100, A // 2, 100), Got(5, 100, L4, 100)],
    ),
}


@pytest.mark.parametrize(("on", "of", "shares"), AMOUNTS.values(), ids=AMOUNTS)
def test_a_container_gets_what_it_asks_of_each_card(on: NodeSnapshot, of: DeviceAsk, shares: list[Got]) -> None:
    assert told(place(request(app("a", of)), on)) == shares


# Which cards: (node, one container's request, minors)


def cards(*made: Any) -> NodeSnapshot:
    """A node with these cards: a Device, or (Device, percent held by another Pod)."""
    pairs = [one if isinstance(one, tuple) else (one, 0) for one in made]
    return node(*(d for d, _ in pairs), holdings=held(*(part(d, percent) for d, percent in pairs if percent)))


CHOICES: dict[str, tuple[NodeSnapshot, DeviceAsk, list[int]]] = {
    "the first of equals": (machine(FOUR), gpus(100), [0]),
    "the first two of equals": (machine(FOUR), gpus(200), [0, 1]),
    "past the cards in use": (busy(FOUR, (0, 50), (2, 10)), gpus(200), [1, 3]),
    "a share goes where a share is": (busy(FOUR, (2, 30)), gpus(30), [2]),
    "the tightest of the cards in use": (busy(FOUR, (0, 10), (1, 60), (2, 40)), gpus(40), [1]),
    "the tightest that still fits": (busy(FOUR, (0, 10), (1, 60), (2, 40)), gpus(50), [2]),
    "an untouched card where no other fits": (busy(FOUR, (0, 10), (1, 60)), gpus(95), [2]),
    "equally tight: the first": (busy(FOUR, (3, 40), (1, 40)), gpus(50), [1]),
    "equal memory left: the tightest in compute": (
        node(gpu(0), gpu(1), holdings=held(share(gpu(0), core=10, ratio=40), share(gpu(1), core=40, ratio=40))),
        ask(core=50, ratio=50),
        [1],
    ),
    "mixed models: the smallest card that is enough": (machine(MIXED), ask(memory=20 * GIB), [4]),
    "mixed models: only large cards are enough": (machine(MIXED), ask(memory=50 * GIB), [0]),
    "mixed models: medium": (machine(MIXED), ask(memory=30 * GIB), [2]),
    "mixed models: a card in use before a smaller idle one": (busy(MIXED, (0, 50)), ask(memory=20 * GIB), [0]),
    "mixed models: the smallest cards first, whole ones": (machine(MIXED), gpus(200), [4, 5]),
    "mixed models: the smallest cards first, then the next larger": (machine(MIXED), gpus(300), [2, 4, 5]),
    "mixed models: the smallest card that suffices, by bytes": (machine(MIXED), ask(memory=20 * GIB), [4]),
    "mixed models: the smallest card that suffices is not the smallest": (machine(MIXED), ask(memory=30 * GIB), [2]),
    "mixed models: of cards in use the smaller": (busy(MIXED, (0, 50), (2, 10)), gpus(50), [2]),
    "mixed models: cards that differ by less than a GiB are alike": (
        cards(gpu(0, 80 * GIB), gpu(1, 80 * GIB + 5), gpu(2, 80 * GIB + 1), gpu(3, 79 * GIB + 2)),
        gpus(200),
        [0, 3],
    ),
    "mixed models: three that hold 30 GiB": (machine(MIXED), ask(3, memory=30 * GIB), [0, 2, 3]),
    "an unhealthy card is passed over": (cards(gpu(0, healthy=False), gpu(1)), gpus(10), [1]),
    "an unhealthy card is passed over even where it is in use": (
        cards((gpu(0, healthy=False), 50), gpu(1)),
        gpus(10),
        [1],
    ),
    "a card of the kubelet's is passed over": (node(gpu(0), gpu(1), kubelet=["GPU-0"]), gpus(10), [1]),
    "what the kubelet holds elsewhere is nothing to us": (node(gpu(0), kubelet=["GPU-9"]), gpus(100), [0]),
    "minors with gaps": (node(gpu(7), gpu(3), gpu(5)), gpus(200), [3, 5]),
    "two digits come after one": (node(gpu(10), gpu(9)), gpus(100), [9]),
    "a device of another type is none of ours": (
        node(Device("npu", "NPU-0", 0, healthy=True, capacity={}), gpu(1)),
        gpus(100),
        [1],
    ),
    "compute is full, memory is not": (
        node(gpu(0), gpu(1), holdings=held(share(gpu(0), core=100, memory=GIB, ratio=2))),
        gpus(10),
        [1],
    ),
    "memory without compute fits beside full compute": (
        node(gpu(0), gpu(1), holdings=held(share(gpu(0), core=100, memory=GIB, ratio=2))),
        ask(memory=GIB),
        [0],
    ),
    "memory is full, compute is not": (
        node(gpu(0), gpu(1), holdings=held(share(gpu(0), core=1, memory=80 * GIB, ratio=100))),
        ask(core=1, memory=1),
        [1],
    ),
}


@pytest.mark.parametrize(("on", "of", "expected"), CHOICES.values(), ids=CHOICES)
def test_the_best_cards_are_chosen(on: NodeSnapshot, of: DeviceAsk, expected: list[int]) -> None:
    assert minors(place(request(app("a", of)), on)) == expected


@pytest.mark.parametrize(
    ("order", "expected"), [("", [1]), ("smallest", [1]), ("mostUsed", [0]), ("leastUsed", [0]), ("minor", [0])]
)
def test_only_where_smaller_cards_come_first_does_the_model_decide(order: str, expected: list[int]) -> None:
    cards = [replace(one, model="A" if one.minor else "B") for one in server_devices() if one.type == "gpu"]
    on = server(devices=cards)
    assert minors(place(request(app("a", gpus(100)), wishes=Wishes(order=order)), on)) == expected


def test_a_holding_is_counted_by_identity_not_by_minor() -> None:
    renumbered = gpu(5, device_id="GPU-0")
    on = node(renumbered, gpu(0, device_id="GPU-1"), holdings=held(part(gpu(0), 100)))
    assert [one.id for one in told_shares(place(request(app("a", gpus(100))), on))] == ["GPU-1"]


def told_shares(answer: Placement | Refusal) -> tuple[Share, ...]:
    assert isinstance(answer, Placement), answer
    return answer.shares


def test_of_two_cards_with_one_minor_the_smaller_id_comes_first() -> None:
    twins = (gpu(0, device_id="GPU-b"), gpu(0, device_id="GPU-a"))
    for made in (twins, twins[::-1]):
        on = NodeSnapshot("node-1", made)  # in the order given
        assert [one.id for one in told_shares(place(request(app("a", gpus(100))), on))] == ["GPU-a"]


def test_a_card_that_holds_more_than_it_has_gives_nothing_and_never_less_than_nothing() -> None:
    on = node(gpu(0, 8 * GIB), holdings=held(part(gpu(0, 80 * GIB), 50)))
    answer = place(request(app("a", ask(memory=1))), on)
    assert answer == Refusal(
        "node-1: container a asks 1 x (memory 1 byte); 0 of 1 GPUs can hold it; "
        "the most free is gpu 0 with core 50 %, memory 0 GiB (0 %)"
    )


# Several containers: (node, request, shares)

SEVERAL: dict[str, tuple[NodeSnapshot, PodRequest, list[Got]]] = {
    "two halves share a card": (
        machine(FOUR),
        request(app("a", gpus(50)), app("b", gpus(50))),
        [Got(0, 100, A, 100, "a b")],
    ),
    "three thirds of odd bytes share a card": (
        machine("odd bytes"),
        request(*(app(name, ask(ratio=33)) for name in "abc")),
        [Got(1, 0, 3 * ((ODD - 2) * 33 // 100), 99, "a b c")],
    ),
    "two that do not fit on one take two": (
        machine(FOUR),
        request(app("a", gpus(60)), app("b", gpus(50))),
        [Got(0, 60, A * 6 // 10, 60, "a"), Got(1, 50, A // 2, 50, "b")],
    ),
    "the harder container is served first, whatever its place": (
        busy(FOUR, (0, 50), (1, 100), (2, 100), (3, 10)),
        request(app("a", gpus(50)), app("b", gpus(90))),
        [Got(0, 50, A // 2, 50, "a"), Got(3, 90, A * 9 // 10, 90, "b")],
    ),
    "of two that ask the same memory, the one that asks for compute too is harder": (
        node(gpu(0), gpu(1), holdings=held(share(gpu(0), core=90, memory=A // 2, ratio=50))),
        request(app("a", ask(ratio=50)), app("b", ask(core=1, ratio=50))),
        [Got(0, 1, A // 2, 50, "b"), Got(1, 0, A // 2, 50, "a")],
    ),
    "one of two cards, one of one": (
        machine(FOUR),
        request(app("a", gpus(100)), app("b", gpus(200))),
        [Got(0, 100, A, 100, "b"), Got(1, 100, A, 100, "b"), Got(2, 100, A, 100, "a")],
    ),
    "bytes and percent on one card": (
        machine("one T4"),
        request(app("a", ask(core=50, memory=T // 2)), app("b", gpus(50))),
        [Got(0, 100, T, 100, "a b")],
    ),
    "the best fit would leave the other without: the next choice": (
        node(gpu(0), gpu(1), holdings=held(share(gpu(0), core=50, ratio=40), share(gpu(1), core=0, ratio=50))),
        request(app("a", ask(core=50, ratio=10)), app("b", ask(core=10, ratio=60))),
        [Got(0, 10, 48 * GIB, 60, "b"), Got(1, 50, 8 * GIB, 10, "a")],
    ),
    "an init container uses again what the app will need": (
        machine(FOUR),
        request(init("i", gpus(100)), app("a", gpus(100))),
        [Got(0, 100, A, 100, "i a")],
    ),
    "init containers run one after the other": (
        machine("one T4"),
        request(init("i", gpus(100)), init("j", gpus(60)), app("a", gpus(50))),
        [Got(0, 100, T, 100, "i j a")],
    ),
    "an init container of more cards than the app": (
        machine(FOUR),
        request(init("i", gpus(300)), app("a", gpus(100))),
        [Got(0, 100, A, 100, "i a"), Got(1, 100, A, 100, "i"), Got(2, 100, A, 100, "i")],
    ),
    "an init container goes to the app's card, not to a tighter one": (
        busy(FOUR, (0, 70)),
        request(init("i", gpus(30)), app("a", gpus(100))),
        [Got(1, 100, A, 100, "i a")],
    ),
    "the peak counts each resource apart": (
        machine("one T4"),
        request(init("i", ask(core=90, ratio=10)), app("a", ask(core=10, ratio=90))),
        [Got(0, 90, T * 9 // 10, 90, "i a")],
    ),
    "an init container alone": (machine(FOUR), request(init("i", gpus(50))), [Got(0, 50, A // 2, 50, "i")]),
    "a sidecar runs beside the app": (
        machine(FOUR),
        request(sidecar("s", gpus(50)), app("a", gpus(50))),
        [Got(0, 100, A, 100, "s a")],
    ),
    "a sidecar runs beside the init container after it": (
        machine("two T4"),
        request(sidecar("s", gpus(50)), init("i", gpus(100))),
        [Got(0, 50, T // 2, 50, "s"), Got(1, 100, T, 100, "i")],
    ),
    "a sidecar does not yet run during the init container before it": (
        machine("one T4"),
        request(init("i", gpus(100)), sidecar("s", gpus(50)), app("a", gpus(50))),
        [Got(0, 100, T, 100, "i s a")],
    ),
    "sidecars add up": (
        machine("one T4"),
        request(sidecar("s", gpus(30)), init("i", gpus(40)), sidecar("t", gpus(30)), app("a", gpus(40))),
        [Got(0, 100, 2 * (T * 3 // 10) + T * 4 // 10, 100, "s i t a")],
    ),
    "nothing asked": (machine(FOUR), request(), []),
    "nothing asked of a node without GPUs": (node(), request(), []),
}


@pytest.mark.parametrize(("on", "of", "shares"), SEVERAL.values(), ids=SEVERAL)
def test_containers_of_one_pod_are_served_together(on: NodeSnapshot, of: PodRequest, shares: list[Got]) -> None:
    assert told(place(of, on)) == shares


@pytest.mark.parametrize("kind", ["fpga", "rdma"])
def test_what_is_named_as_a_device_of_another_type_does_not_name_the_card(kind: str) -> None:
    named = holding("p", part(gpu(0), 50)._replace(type=kind), part(gpu(1), 50))
    assert minors(place(request(app("a", gpus(50))), node(gpu(0), gpu(1), gpu(2)), named)) == [1]


# Refusals: the node, the request, whether it is permanent, the message


def unread_holding(uid: str, *cards: Device) -> Holding:
    """The holding of a Pod whose annotation about GPUs cannot be read: all of these."""
    return replace(holding(uid, *(part(card, 100) for card in cards)), unread=("gpu",))


def said(asks: str, fit: str, most_free: str = "") -> str:
    more = f"; the most free is {most_free}" if most_free else ""
    return f"node-1: container {asks}; {fit} can hold it{more}"


REFUSED: dict[str, tuple[NodeSnapshot, PodRequest, bool, str]] = {
    "no GPUs": (
        node(),
        request(app("a", gpus(50))),
        True,
        "node-1: no GPUs known here (no Device object, or none in it)",
    ),
    "more cards than there are": (
        machine("one T4"),
        request(app("a", gpus(200))),
        True,
        said("a asks 2 x (core 100 %, memory 100 %)", "1 of 1 GPUs", "gpu 0 with core 100 %, memory 14.7 GiB (100 %)"),
    ),
    "more bytes than a card has": (
        machine(MIXED),
        request(app("a", ask(core=10, memory=81 * GIB))),
        True,
        said("a asks 1 x (core 10 %, memory 81 GiB)", "0 of 6 GPUs", "gpu 0 with core 100 %, memory 80 GiB (100 %)"),
    ),
    "more large cards than there are": (
        machine(MIXED),
        request(app("a", ask(3, memory=50 * GIB))),
        True,
        said("a asks 3 x (memory 50 GiB)", "2 of 6 GPUs", "gpu 0 with core 100 %, memory 80 GiB (100 %)"),
    ),
    "of cards that lack as much, the one with more of its memory free is named": (
        node(
            gpu(0, 80 * GIB),
            gpu(1, 24 * GIB),
            holdings=held(
                share(gpu(0), core=50, memory=56 * GIB, ratio=70), share(gpu(1), core=50, memory=12 * GIB, ratio=50)
            ),
        ),
        request(app("a", ask(core=100, ratio=10))),
        False,
        said("a asks 1 x (core 100 %, memory 10 %)", "0 of 2 GPUs", "gpu 1 with core 50 %, memory 12 GiB (50 %)"),
    ),
    "full for now": (
        busy("two T4", (0, 60), (1, 45)),
        request(app("a", gpus(60))),
        False,
        said("a asks 1 x (core 60 %, memory 60 %)", "0 of 2 GPUs", "gpu 1 with core 55 %, memory 8.1 GiB (55 %)"),
    ),
    "unhealthy": (
        node(gpu(0, healthy=False), gpu(1, healthy=False)),
        request(app("a", gpus(10))),
        False,
        said("a asks 1 x (core 10 %, memory 10 %)", "0 of 2 GPUs (2 unhealthy)"),
    ),
    "cordoned and unhealthy": (
        node(gpu(0, healthy=False), gpu(1, healthy=False, cordoned=True), gpu(2, healthy=False, cordoned=True)),
        request(app("a", gpus(10))),
        False,
        said("a asks 1 x (core 10 %, memory 10 %)", "0 of 3 GPUs (1 unhealthy, 2 cordoned)"),
    ),
    "passed over by the Pod's hint": (
        node(gpu(0), gpu(1), gpu(2)),
        request(app("a", gpus(200)), wishes=Wishes(hints=(("gpu", TypeHint(selector=SECOND)),))),
        False,
        said(
            "a asks 2 x (core 100 %, memory 100 %)",
            "1 of 3 GPUs (2 not selected)",
            "gpu 1 with core 100 %, memory 80 GiB (100 %)",
        ),
    ),
    "held by a Pod whose annotation cannot be read": (
        node(gpu(0), gpu(1), nic(0), holdings=[unread_holding("a", gpu(0), gpu(1))]),
        request(app("a", gpus(10))),
        False,
        said(
            "a asks 1 x (core 10 %, memory 10 %)",
            "0 of 2 GPUs (2 held because the annotation of Pod default/pod-a cannot be read)",
        ),
    ),
    "held by two such Pods": (
        node(gpu(0), gpu(1), nic(0), holdings=[unread_holding(name, gpu(0), gpu(1)) for name in "ba"]),
        request(app("a", gpus(10))),
        False,
        said(
            "a asks 1 x (core 10 %, memory 10 %)",
            "0 of 2 GPUs (2 held because the annotation of Pod default/pod-a and of 1 more cannot be read)",
        ),
    ),
    "held by claims and by Pods of other products, in part or as a whole": (
        node(
            *(gpu(minor) for minor in range(7)),
            claims={"c": replace(holding("c", part(gpu(0), 100), part(gpu(1), 40), part(gpu(5), 1)), fence=1)},
            foreign={
                "f": ForeignHolding(
                    "f", "t", "f", Product.HAMI, "x", (part(gpu(2), 30), part(gpu(3), 100), part(gpu(6), 100))
                )
            },
        ),
        request(app("a", gpus(200))),
        False,
        said(
            "a asks 2 x (core 100 %, memory 100 %)",
            "1 of 7 GPUs (1 held by ResourceClaims, 2 held in part by ResourceClaims, "
            "2 held by Pods of other products, 1 held in part by Pods of other products)",
            "gpu 4 with core 100 %, memory 80 GiB (100 %)",
        ),
    ),
    "of another type nothing is held for it": (
        node(
            gpu(0), nic(0), holdings=[replace(holding("a", Share("rdma", "NIC-0", 0, {"rdma": 100})), unread=("rdma",))]
        ),
        request(app("a", gpus(200))),
        True,
        said("a asks 2 x (core 100 %, memory 100 %)", "1 of 1 GPUs", "gpu 0 with core 100 %, memory 80 GiB (100 %)"),
    ),
    "the kubelet's": (
        node(gpu(0), gpu(1), kubelet=["GPU-1"]),
        request(app("a", gpus(200))),
        False,
        said(
            "a asks 2 x (core 100 %, memory 100 %)",
            "1 of 2 GPUs (1 held by the kubelet's device plugin)",
            "gpu 0 with core 100 %, memory 80 GiB (100 %)",
        ),
    ),
    "unhealthy and the kubelet's": (
        node(gpu(0, healthy=False), gpu(1), kubelet=["GPU-1"]),
        request(app("a", ask(memory=GIB))),
        False,
        said("a asks 1 x (memory 1 GiB)", "0 of 2 GPUs (1 unhealthy, 1 held by the kubelet's device plugin)"),
    ),
    "the kubelet holds nothing of ours": (
        node(gpu(0), kubelet=["NIC-1"]),
        request(app("a", gpus(200))),
        True,
        said("a asks 2 x (core 100 %, memory 100 %)", "1 of 1 GPUs", "gpu 0 with core 100 %, memory 80 GiB (100 %)"),
    ),
    "the first container that fails alone is named": (
        machine("one T4"),
        request(app("a", gpus(50)), app("b", gpus(200)), app("c", gpus(300))),
        True,
        said("b asks 2 x (core 100 %, memory 100 %)", "1 of 1 GPUs", "gpu 0 with core 100 %, memory 14.7 GiB (100 %)"),
    ),
    "of those that fail alone, the first is named": (
        machine("one T4"),
        request(app("a", gpus(300)), app("b", gpus(200)), app("c", gpus(300))),
        True,
        said("a asks 3 x (core 100 %, memory 100 %)", "1 of 1 GPUs", "gpu 0 with core 100 %, memory 14.7 GiB (100 %)"),
    ),
    "each alone, not together": (
        machine("one T4"),
        request(app("a", gpus(60)), app("b", gpus(50))),
        False,
        (
            "node-1: each container fits alone, not all together "
            "(a 1 x (core 60 %, memory 60 %), b 1 x (core 50 %, memory 50 %)); 1 GPU usable"
        ),
    ),
    "a sidecar beside an init container": (
        machine("one T4"),
        request(sidecar("s", gpus(10)), init("i", gpus(100))),
        False,
        (
            "node-1: each container fits alone, not all together "
            "(s 1 x (core 10 %, memory 10 %), i 1 x (core 100 %, memory 100 %)); 1 GPU usable"
        ),
    ),
    "compute alone is short": (
        machine("one T4"),
        request(app("a", ask(core=60, ratio=10)), app("b", ask(core=60, ratio=10))),
        False,
        (
            "node-1: each container fits alone, not all together "
            "(a 1 x (core 60 %, memory 10 %), b 1 x (core 60 %, memory 10 %)); 1 GPU usable"
        ),
    ),
    "bytes of more cards than there are": (
        machine("tiny: three bytes"),
        request(*(app(name, ask(3, memory=1)) for name in "a")),
        True,
        said("a asks 3 x (memory 1 byte)", "2 of 2 GPUs", "gpu 0 with core 100 %, memory 3 bytes (100 %)"),
    ),
}


@pytest.mark.parametrize(("on", "of", "permanent", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_says_what_is_asked_and_what_would_fit(
    on: NodeSnapshot,
    of: PodRequest,
    permanent: bool,  # noqa: FBT001 - a column of the table
    message: str,
) -> None:
    assert place(of, on) == Refusal(message, permanent=permanent)


def test_twenty_four_gigabytes_hold_two_pods_of_twelve_and_never_three() -> None:
    on = machine("one T4").with_holding(holding("uid-0", part(devices("one T4")[0], 0)))
    third = place(request(app("a", ask(memory=T // 2 + 1)), app("b", ask(memory=T // 2))), on)
    assert isinstance(third, Refusal)
