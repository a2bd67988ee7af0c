"""How a Pod or its node affects the choice of devices: order, hints, scopes, exclusivity, partitions, gangs, cordons.

Pods are written with their annotations, as authors write them; nodes are the named server.
"""

from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, asking, container, gpu, holding, node, part, pod
from machines import server, server_devices, wired

from allocator.place import Placement, place
from allocator.request.pod import read_request
from allocator.vocabulary.asks import DeviceOrder
from allocator.vocabulary.device import NO_LINKS, Partition, PartitionTable
from allocator.vocabulary.holdings import Function, Holding, Share
from allocator.vocabulary.names import CORDONED, DEVICE_ORDER, ISOLATION_PROVIDER
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.deviceobject import built_in, read_device_object

GPU, NIC = "koordinator.sh/gpu", "koordinator.sh/rdma"


def chosen(answer: Placement | Refusal) -> dict[str, list[int]]:
    """Minors by type."""
    assert isinstance(answer, Placement), answer
    found: dict[str, list[int]] = {}
    for share in answer.shares:
        found.setdefault(share.type, []).append(share.minor)
    return found


def refused(answer: Placement | Refusal) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.message


CARDS = {device.minor: device for device in server_devices() if device.type == "gpu"}
NICS = {device.minor: device for device in server_devices() if device.type == "rdma"}


def cards(*parts: tuple[int, int]) -> list[Holding]:
    """Other Pods that hold these amounts of these cards."""
    return [holding(f"other-{minor}", part(CARDS[minor], percent, "x")) for minor, percent in parts]


def ports(*parts: tuple[int, int]) -> list[Holding]:
    """Other Pods that hold these amounts of these NICs."""
    return [
        holding(f"port-{minor}", Share("rdma", NICS[minor].id, minor, {"rdma": percent}, ("x",)))
        for minor, percent in parts
    ]


# Which of the fitting devices: the Pod's order, the node's, what is held; the card

ORDERS: dict[str, tuple[str, str, list[Holding], int]] = {
    "the default: the fullest that fits": ("", "", cards((2, 30), (5, 60)), 5),
    "most used": ("mostUsed", "", cards((2, 30), (5, 60)), 5),
    "least used: an idle one": ("leastUsed", "", cards((0, 30), (5, 60)), 1),
    "least used: of cards in use that with most left": ("leastUsed", "", cards(*((at, 60 - at) for at in range(8))), 7),
    "by minor": ("minor", "", cards((2, 30), (5, 60)), 0),
    "by minor, past one that is full": ("minor", "", cards((0, 100), (5, 60)), 1),
    "the node's, where the Pod says nothing": ("", "leastUsed", cards((0, 30), (5, 60)), 1),
    "the Pod's before the node's": ("mostUsed", "leastUsed", cards((0, 30), (5, 60)), 5),
}


@pytest.mark.parametrize(("own", "nodes", "held", "minor"), ORDERS.values(), ids=ORDERS)
def test_devices_are_taken_in_the_order_of_the_pod_or_its_node(
    own: str, nodes: str, held: list[Holding], minor: int
) -> None:
    assert chosen(place(asking({GPU: 40}, order=own), server(held, order=nodes))) == {"gpu": [minor]}


def test_whole_cards_by_minor_are_those_of_the_smallest_minors_whatever_connects_them() -> None:
    on = server(cards((0, 50)))
    assert chosen(place(asking({GPU: 200}), on)) == {"gpu": [2, 3]}  # on one PCIe root
    assert chosen(place(asking({GPU: 200}, order="minor"), on)) == {"gpu": [1, 2]}


def test_an_order_that_does_not_exist_is_reported() -> None:
    reading = read_request(pod(container(limits={GPU: 50}), annotations={DEVICE_ORDER: "fullest"}), {})
    (problem,) = reading.problems
    assert str(problem) == (
        "metadata.annotations[koordgate.io/device-order]: 'fullest' is no order of devices; "
        "use smallest, mostUsed, leastUsed, minor"
    )
    assert set(DeviceOrder) == {"smallest", "mostUsed", "leastUsed", "minor"}


# Which devices may be chosen at all: a hint, the request, what is held; what is chosen, or why not

LABELLED = [
    replace(card, labels={"rack": "left" if at < 4 else "right"}, model="H100" if at % 2 else "A100")
    for at, card in CARDS.items()
]


def minor(operator: str, *values: str) -> dict[str, Any]:
    """A selector of devices by their minors."""
    return {"matchExpressions": [{"key": "koordgate.io/minor", "operator": operator, "values": values}]}


SELECTORS: dict[str, tuple[dict[str, Any], int, list[int] | str]] = {
    "by a label": ({"matchLabels": {"rack": "right"}}, 50, [4]),
    "by id": ({"matchLabels": {"koordgate.io/uuid": "GPU-6"}}, 50, [6]),
    "by minor": (minor("In", "3", "5"), 200, [3, 5]),
    "by model": ({"matchLabels": {"koordgate.io/model": "H100"}}, 100, [1]),
    "by model with its maker": ({"matchLabels": {"koordgate.io/model": "NVIDIA-H100"}}, 100, [1]),
    "by NVIDIA's label": ({"matchLabels": {"nvidia.com/gpu.product": "NVIDIA-H100"}}, 100, [1]),
    "by NVIDIA's label, shared by time": ({"matchLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-SHARED"}}, 100, [1]),
    "all but a product": (
        {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "NotIn", "values": ["NVIDIA-A100"]}]},
        100,
        [1],
    ),
    "by NVIDIA's count and memory": (
        {"matchLabels": {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": str(80 * 1024)}},
        800,
        [0, 1, 2, 3, 4, 5, 6, 7],
    ),
    "another count": ({"matchLabels": {"nvidia.com/gpu.count": "4"}}, 50, "0 of 8 GPUs (8 not selected) can hold it"),
    "by two at once": ({"matchLabels": {"koordgate.io/model": "H100", "rack": "right"}}, 200, [5, 7]),
    "all but one": (minor("NotIn", "0"), 50, [2]),
    "more than are selected": (
        {"matchLabels": {"koordgate.io/uuid": "GPU-6"}},
        200,
        "container a asks 2 x (core 100 %, memory 100 %); 1 of 8 GPUs (7 not selected) can hold it",
    ),
    "none is selected": ({"matchLabels": {"rack": "middle"}}, 50, "0 of 8 GPUs (8 not selected) can hold it"),
}


@pytest.mark.parametrize(("selector", "percent", "expected"), SELECTORS.values(), ids=SELECTORS)
def test_a_selector_leaves_only_the_devices_it_selects(
    selector: dict[str, Any], percent: int, expected: list[int] | str
) -> None:
    answer = place(asking({GPU: percent}, hint={"gpu": {"selector": selector}}), server(devices=LABELLED))
    if isinstance(expected, str):
        assert expected in refused(answer)
        assert not isinstance(answer, Placement)
        assert not answer.permanent
    else:
        assert chosen(answer) == {"gpu": expected}


def functions(answer: Placement | Refusal) -> list[tuple[int, str]]:
    assert isinstance(answer, Placement), answer
    return [(share.minor, function.bus_id) for share in answer.shares for function in share.functions]


def test_a_virtual_function_is_the_smallest_free_one_of_its_group_and_never_given_twice() -> None:
    of = asking({NIC: 10}, hint={"rdma": {"vfSelector": {"matchLabels": {"speed": "fast"}}}})
    on = server()
    given = []
    while isinstance(answer := place(of, on), Placement):
        given += functions(answer)
        on = on.with_holding(holding(f"uid-{len(given)}", *answer.shares))
        on.check_invariants()
    assert given == [(root, f"0000:{root}f:00.{end}") for root in range(4) for end in (1, 3)]
    assert "0 of 4 rdma devices can hold it" in refused(answer)
    slow = asking({NIC: 10}, hint={"rdma": {"vfSelector": {"matchLabels": {"speed": "slow"}}}})
    assert functions(place(slow, on)) == [(0, "0000:0f:00.2")]
    again = on.without(["uid-3"])
    assert functions(place(of, again)) == [(1, "0000:1f:00.1")]


def test_a_function_reports_its_number_where_it_has_one() -> None:
    of = asking({NIC: 10}, hint={"rdma": {"vfSelector": {}}})
    answer = place(of, server())
    assert isinstance(answer, Placement)
    assert answer.shares[0].functions == (Function(0, "0000:0f:00.1"),)


# How an amount is spread: the request for NICs, the hint, what is held; percent by minor, or why not

SPREAD: dict[str, tuple[int, dict[str, Any], list[Holding], dict[int, int] | str]] = {
    "on one device": (10, {}, [], {0: 10}),
    "on whole ones": (200, {}, [], {0: 100, 1: 100}),
    "for all": (10, {"allocateStrategy": "ApplyForAll"}, [], {0: 10, 1: 10, 2: 10, 3: 10}),
    "for all that are selected": (
        10,
        {"allocateStrategy": "ApplyForAll", "selector": minor("NotIn", "2")},
        [],
        {0: 10, 1: 10, 3: 10},
    ),
    "for all, of which one is full": (
        10,
        {"allocateStrategy": "ApplyForAll"},
        ports((2, 95)),
        "container a asks 1 x (rdma 10 %), of each of 4; 3 of 4 rdma devices can hold it",
    ),
    "for all of none": (
        10,
        {"allocateStrategy": "ApplyForAll", "selector": {"matchLabels": {"rack": "x"}}},
        [],
        "0 of 4 rdma devices (4 not selected) can hold it",
    ),
    "whole ones for all": (100, {"allocateStrategy": "ApplyForAll"}, [], {0: 100, 1: 100, 2: 100, 3: 100}),
    "as a count": (3, {"allocateStrategy": "RequestsAsCount"}, ports((0, 100)), {1: 1, 2: 1, 3: 1}),
    "as a count, of more than there are": (
        5,
        {"allocateStrategy": "RequestsAsCount"},
        [],
        "container a asks 5 x (rdma 1 %); 4 of 4 rdma devices can hold it",
    ),
    "as a count, alone on each": (
        2,
        {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"},
        ports((0, 1)),
        {2: 100, 3: 100},  # whole ones, in one NUMA node
    ),
    "alone on a device": (10, {"exclusivePolicy": "DeviceLevel"}, ports((0, 1), (1, 1), (2, 1)), {3: 100}),
    "alone where somebody is everywhere": (
        10,
        {"exclusivePolicy": "DeviceLevel"},
        ports((0, 1), (1, 1), (2, 1), (3, 1)),
        "0 of 4 rdma devices can hold it",
    ),
}


@pytest.mark.parametrize(("amount", "hint", "held", "expected"), SPREAD.values(), ids=SPREAD)
def test_an_amount_is_spread_as_the_hint_says(
    amount: int, hint: dict[str, Any], held: list[Holding], expected: dict[int, int] | str
) -> None:
    on = server(held)
    answer = place(asking({NIC: amount}, hint={"rdma": hint}), on)
    if isinstance(expected, str):
        assert expected in refused(answer)
        return
    assert isinstance(answer, Placement), answer
    assert {share.minor: share.amounts["rdma"] for share in answer.shares} == expected
    on.with_holding(holding("uid", *answer.shares)).check_invariants()


# No other Pod on the PCIe root

ALONE = {"gpu": {"exclusivePolicy": "PCIeLevel"}}


def test_a_pod_that_wants_a_root_to_itself_goes_where_nobody_holds_anything() -> None:
    on = server([*cards((0, 10)), *ports((1, 10))], kubelet=["GPU-5"])
    answer = place(asking({GPU: 50}, hint=ALONE), on)
    assert chosen(answer) == {"gpu": [6]}
    assert isinstance(answer, Placement)
    assert [share.alone for share in answer.shares] == [True]
    full = server([*cards((0, 10), (7, 10)), *ports((1, 10))], kubelet=["GPU-5"])
    assert "0 of 8 GPUs (1 held by the kubelet's device plugin) can hold it" in refused(
        place(asking({GPU: 50}, hint=ALONE), full)
    )


def test_nobody_comes_to_the_root_of_a_pod_that_wants_it_to_itself() -> None:
    first = place(asking({GPU: 50}, hint=ALONE), server())
    assert isinstance(first, Placement)
    on = server([holding("alone", *first.shares)])
    assert chosen(place(asking({GPU: 10}), on)) == {"gpu": [2]}
    assert chosen(place(asking({NIC: 10}), on)) == {"rdma": [1]}
    assert chosen(place(asking({GPU: 600}), on)) == {"gpu": [2, 3, 4, 5, 6, 7]}
    answer = place(asking({GPU: 700}), on)
    assert "6 of 8 GPUs can hold it" in refused(answer)
    assert isinstance(answer, Refusal)
    assert not answer.permanent  # the Pod that wants it alone may end


def test_a_pod_is_no_stranger_to_itself_on_its_own_root() -> None:
    of = asking({GPU: 200, NIC: 10}, {GPU: 100}, hint=ALONE)
    assert chosen(place(of, server())) == {"gpu": [0, 1, 2], "rdma": [0]}


# How close together: the request, the scope, what is held; the cards, or why not

SCOPES: dict[str, tuple[int, str, list[Holding], list[int] | str]] = {
    "two on one root": (200, "PCIe", cards((0, 10), (2, 10), (4, 10)), [6, 7]),
    "two on one root, where only far ones are free": (
        200,
        "PCIe",
        cards((0, 10), (2, 10), (4, 10), (6, 10)),
        "2 devices inside one PCIe root are requested; suitable inside one: at most 1",
    ),
    "three on one root": (
        300,
        "PCIe",
        [],
        "3 devices inside one PCIe root are requested; suitable inside one: at most 2",
    ),
    "four in one NUMA node": (400, "NUMANode", cards((1, 10)), [4, 5, 6, 7]),
    "five in one NUMA node": (
        500,
        "NUMANode",
        [],
        "5 devices inside one NUMA node are requested; suitable inside one: at most 4",
    ),
    "five on the node": (500, "Node", cards((0, 10), (4, 10)), [1, 2, 3, 6, 7]),
    "one inside a device": (100, "Device", [], [0]),
    "two inside a device": (200, "Device", [], "requiredTopologyScope Device allows one device, not 2"),
}


@pytest.mark.parametrize(("percent", "scope", "held", "expected"), SCOPES.values(), ids=SCOPES)
def test_devices_stand_as_close_together_as_is_required(
    percent: int, scope: str, held: list[Holding], expected: list[int] | str
) -> None:
    answer = place(asking({GPU: percent}, hint={"gpu": {"requiredTopologyScope": scope}}), server(held))
    if isinstance(expected, str):
        assert expected in refused(answer)
    else:
        assert chosen(answer) == {"gpu": expected}


def test_parts_of_devices_keep_a_required_scope_too() -> None:
    of = asking({GPU: 60, f"{GPU}.shared": 2}, hint={"gpu": {"requiredTopologyScope": "PCIe"}})
    assert chosen(place(of, server(cards((0, 50), (3, 50), (5, 50))))) == {"gpu": [0, 1]}
    assert chosen(place(of, server(cards((0, 90), (3, 90), (5, 50))))) == {"gpu": [4, 5]}


def test_devices_of_which_the_place_is_not_known_are_close_to_nothing() -> None:
    of = asking({GPU: 200}, hint={"gpu": {"requiredTopologyScope": "NUMANode"}})
    message = refused(place(of, node(gpu(0), gpu(1), gpu(2, numa_node=0))))
    assert "suitable inside one: at most 1; of 2 the NUMA node is not known" in message


# Whole cards: what is held; the set for each number

SETS: dict[str, tuple[int, list[Holding], list[int]]] = {
    "one: not where a pair would be broken": (1, cards((4, 10)), [5]),
    "two: a pair on one root": (2, cards((0, 10), (3, 10)), [4, 5]),
    "two of three on a NUMA node, one root broken": (2, cards((0, 10), (4, 10), (6, 10), (5, 10)), [2, 3]),
    "three: of one NUMA node": (3, cards((1, 10), (2, 10)), [4, 5, 6]),
    "four: a NUMA node": (4, cards((3, 10)), [4, 5, 6, 7]),
    "all": (8, [], [0, 1, 2, 3, 4, 5, 6, 7]),
}


@pytest.mark.parametrize(("count", "held", "expected"), SETS.values(), ids=SETS)
def test_whole_cards_are_the_best_connected_set(count: int, held: list[Holding], expected: list[int]) -> None:
    assert chosen(place(asking({GPU: 100 * count}), server(held))) == {"gpu": expected}


# Partitions: the table, whether it must be honoured, the Pod's spec, the request, what is held; the cards, or why not

BOARD = built_in("nvidia", "H100")
TIERS = PartitionTable(
    (
        Partition((0, 1), 1, 100 * GIB),
        Partition((2, 3), 2, 200 * GIB),
        Partition((4, 5), 2, 400 * GIB),
        Partition((0, 1, 2, 3), 1),
    )
)
Cut = tuple[PartitionTable | None, bool, dict[str, Any] | None, int, list[Holding], "list[int] | str"]
PARTITIONS: dict[str, Cut] = {
    "two": (BOARD, True, None, 200, cards((0, 10)), [2, 3]),
    "two, where none is whole": (
        BOARD,
        True,
        None,
        200,
        cards((0, 10), (2, 10), (4, 10), (6, 10)),
        "4 partitions of 2 GPUs are suitable, but in each a GPU is in use or unhealthy (4 GPUs wholly free)",
    ),
    "preferred, where none is whole": (BOARD, False, None, 200, cards((0, 10), (2, 10), (4, 10), (6, 10)), [1, 3]),
    "asked, where none is whole": (
        BOARD,
        False,
        {},
        200,
        cards((0, 10), (2, 10), (4, 10), (6, 10)),
        "in each a GPU is in use",
    ),
    "three, which is no partition": (
        BOARD,
        True,
        None,
        300,
        [],
        "3 GPUs are not a partition here; ask for a number that",
    ),
    "three, where partitions are preferred": (BOARD, False, None, 300, [], [0, 1, 2]),
    "no table, and it must be honoured": (None, True, None, 200, [], "the node has no partition table"),
    "no table, and the Pod asks for one": (None, False, {}, 200, [], "the node has no partition table"),
    "the higher score first": (TIERS, True, None, 200, [], [4, 5]),  # which leaves the four whole, unlike 2 and 3
    "a lower score where the higher is gone": (TIERS, True, None, 200, cards((2, 10), (4, 10)), [0, 1]),
    "only the highest score": (
        TIERS,
        True,
        {"allocatePolicy": "Restricted"},
        200,
        cards((2, 10), (4, 10)),
        "2 best-scored partitions of 2 GPUs are suitable",
    ),
    "as good as can be": (TIERS, True, {"allocatePolicy": "BestEffort"}, 200, cards((2, 10), (4, 10)), [0, 1]),
    "a ring quick enough": (TIERS, False, {"ringBusBandwidth": "150Gi"}, 200, cards((4, 10)), [2, 3]),
    "no ring quick enough": (
        TIERS,
        False,
        {"ringBusBandwidth": "500Gi"},
        200,
        [],
        "ringBusBandwidth 500Gi asked; partitions of 2 GPUs have at most 400Gi",
    ),
    "parts of cards are no matter of partitions": (BOARD, True, {}, 50, cards((3, 10)), [3]),
}


def cut(table: PartitionTable | None, honour: bool, held: list[Holding]) -> NodeSnapshot:  # noqa: FBT001 - of the table
    return server(held, wiring=wired(server_devices(), partitions=table, honour_partitions=honour))


def check(answer: Placement | Refusal, expected: list[int] | str) -> None:
    if isinstance(expected, str):
        assert expected in refused(answer)
    else:
        assert chosen(answer) == {"gpu": expected}


@pytest.mark.parametrize(
    ("table", "honour", "spec", "percent", "held", "expected"), PARTITIONS.values(), ids=PARTITIONS
)
def test_whole_cards_come_as_partitions(
    table: PartitionTable | None,
    honour: bool,  # noqa: FBT001 - a column of the table
    spec: dict[str, Any] | None,
    percent: int,
    held: list[Holding],
    expected: list[int] | str,
) -> None:
    check(place(asking({GPU: percent}, partition=spec), cut(table, honour, held)), expected)


REQUIRED = {name: row for name, row in PARTITIONS.items() if (row[1] or row[2] is not None) and row[3] >= 100}


@pytest.mark.parametrize(("table", "honour", "spec", "percent", "held", "expected"), REQUIRED.values(), ids=REQUIRED)
def test_a_partition_that_is_required_comes_before_the_order_of_minors(
    table: PartitionTable | None,
    honour: bool,  # noqa: FBT001 - a column of the table
    spec: dict[str, Any] | None,
    percent: int,
    held: list[Holding],
    expected: list[int] | str,
) -> None:
    check(place(asking({GPU: percent}, order="minor", partition=spec), cut(table, honour, held)), expected)


WHOLE = {
    "ratio alone": {f"{GPU}-memory-ratio": 300},
    "core and ratio": {f"{GPU}-core": 300, f"{GPU}-memory-ratio": 300},
    "a little core and ratio": {f"{GPU}.shared": 3, f"{GPU}-core": 30, f"{GPU}-memory-ratio": 300},
    "bytes of the cards": {f"{GPU}.shared": 3, f"{GPU}-memory": "240Gi"},
}
PARTS = {
    "bytes that leave one": {f"{GPU}.shared": 3, f"{GPU}-memory": 3 * (80 * GIB - 1)},
    "a percent less": {f"{GPU}.shared": 3, f"{GPU}-memory-ratio": 297},
    "bytes that leave a percent": {f"{GPU}.shared": 3, f"{GPU}-memory": "237Gi"},
    "core without the memory": {f"{GPU}.shared": 3, f"{GPU}-core": 300, f"{GPU}-memory": "3Gi"},
}


@pytest.mark.parametrize("limits", WHOLE.values(), ids=WHOLE)
def test_cards_whose_memory_is_wholly_taken_are_whole_cards_however_asked(limits: dict[str, Any]) -> None:
    for honour, spec in ((True, None), (False, {})):
        answer = place(asking(limits, partition=spec), cut(BOARD, honour, []))
        assert "3 GPUs are not a partition here" in refused(answer)
    assert chosen(place(asking(limits), server(cards((0, 10))))) == {"gpu": [1, 2, 3]}  # near one another
    own = place(asking({GPU: 10}, {GPU: 10}, hint={"gpu": {"exclusivePolicy": "DeviceLevel"}}), cut(BOARD, True, []))
    assert len(chosen(own)["gpu"]) == 2


@pytest.mark.parametrize("limits", PARTS.values(), ids=PARTS)
def test_cards_of_which_others_may_have_a_part_are_no_whole_cards(limits: dict[str, Any]) -> None:
    answer = place(asking(limits), cut(BOARD, True, []))
    assert chosen(answer) == {"gpu": [0, 1, 2]}


@pytest.mark.parametrize(("table", "links"), [(None, True), (BOARD, False), (BOARD, True)])
@pytest.mark.parametrize("order", ["", "smallest", "mostUsed", "leastUsed"])
@pytest.mark.parametrize("limits", [{GPU: 50}, {GPU: 100}, {f"{GPU}-memory": "1Gi"}], ids=["half", "whole", "bytes"])
@pytest.mark.parametrize("gone", range(8))
def test_no_untouched_pair_is_broken_where_another_is_broken_already(
    gone: int, limits: dict[str, Any], order: str, table: PartitionTable | None, *, links: bool
) -> None:
    wiring = wired(server_devices(), partitions=table)
    on = server(cards((gone, 100)), wiring=wiring if links else replace(wiring, links=NO_LINKS))
    assert chosen(place(asking(limits, order=order), on)) == {"gpu": [gone ^ 1]}


# Gangs


def mates(*minors: int, gang: str = "default/train") -> list[Holding]:
    return [holding(f"mate-{minor}", part(CARDS[minor], 100, "x"), gang=gang) for minor in minors]


GANGS: dict[str, tuple[list[Holding], int, list[int]]] = {
    "beside the mate on its root": (mates(5), 100, [4]),
    "in the mates' NUMA node": (mates(4, 5), 200, [6, 7]),
    "strangers draw nobody": (mates(5, gang="default/other"), 100, [4]),  # it breaks no whole root
    "no mate: as without": (mates(5, gang="elsewhere/train"), 200, [6, 7]),
}


@pytest.mark.parametrize(("held", "percent", "expected"), GANGS.values(), ids=GANGS)
def test_the_cards_of_a_gang_stand_near_one_another(held: list[Holding], percent: int, expected: list[int]) -> None:
    assert chosen(place(asking({GPU: percent}, gang="train"), server(held))) == {"gpu": expected}


def test_a_mate_outweighs_a_whole_root() -> None:
    held = mates(6)
    alone = server([*held, *cards((5, 10))])
    assert chosen(place(asking({GPU: 200}), alone)) == {"gpu": [0, 1]}
    assert chosen(place(asking({GPU: 200}, gang="train"), alone)) == {"gpu": [4, 7]}


# Cordoned devices


def test_a_cordoned_card_takes_nothing_new_and_keeps_what_it_has() -> None:
    entries = [
        {"type": "gpu", "id": f"GPU-{minor}", "minor": minor, "health": True, "resources": {f"{GPU}-memory": "80Gi"}}
        for minor in range(2)
    ]
    obj = {"metadata": {"name": "node-1", "annotations": {CORDONED: "GPU-0"}}, "spec": {"devices": entries}}
    told = read_device_object(obj)
    held = [holding("other", part(gpu(0), 50, "x"))]
    on = NodeSnapshot("node-1", told.devices, {"other": held[0]}, wiring=told.wiring({}))
    on.check_invariants()
    assert chosen(place(asking({GPU: 50}), on)) == {"gpu": [1]}
    assert refused(place(asking({GPU: 200}), on)) == (
        "node-1: container a asks 2 x (core 100 %, memory 100 %); 1 of 2 GPUs (1 cordoned) can hold it; "
        "the most free is gpu 1 with core 100 %, memory 80 GiB (100 %)"
    )


# What keeps Pods on one card apart: the Pod's label, the node's, the request; whether it is placed

ISOLATED: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "a share where it is there": ("HAMi-core", "HAMi-core", {GPU: 50}, True),
    "a share where it is not": ("HAMi-core", "", {GPU: 50}, False),
    "a share where there is another": ("HAMi-core", "other", {GPU: 50}, False),
    "bytes where it is not": ("HAMi-core", "", {f"{GPU}-memory": "80Gi"}, False),
    "no demand": ("", "HAMi-core", {GPU: 50}, True),
    "whole cards need none": ("HAMi-core", "", {GPU: 200}, True),
    "all the memory needs none": ("HAMi-core", "", {f"{GPU}-memory-ratio": 100}, True),
    "other devices need none": ("HAMi-core", "", {NIC: 50}, True),
}


@pytest.mark.parametrize(("label", "of_node", "limits", "placed"), ISOLATED.values(), ids=ISOLATED)
def test_a_share_of_a_card_lands_where_it_is_isolated_as_demanded(
    label: str, of_node: str, limits: dict[str, Any], *, placed: bool
) -> None:
    labels = {ISOLATION_PROVIDER: label} if label else {}
    reading = read_request(pod(container(requests=limits, limits=limits), labels=labels), {})
    answer = place(reading.request, server(isolation=of_node))
    assert isinstance(answer, Placement) == placed
    if isinstance(answer, Refusal):
        assert answer.permanent
        has = f"is {of_node}" if of_node else "is not set"
        why = f"the Pod's label koordinator.sh/gpu-isolation-provider is {label}, the Node's {has}"
        assert (answer.message, answer.short) == (f"node-1: {why}; use nodes with this label", why)
