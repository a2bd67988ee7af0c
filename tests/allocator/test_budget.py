"""The budget of a decision: hostile requests end in bounded work, with a reason; others do not notice it."""

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from types import FrameType
from typing import Any

import pytest
from builders import GIB, app, ask, gpu, gpus, held, init, nic, nics, node, part, request
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.budget import Budget
from allocator.place import Placement, place, place_by_numa
from allocator.vocabulary.asks import ContainerAsk, Joint, PodRequest, Scope, TypeHint, Wishes
from allocator.vocabulary.cpunode import CpuAsk, CpuNode, NumaPolicy, QosClass
from allocator.vocabulary.cputopology import Cpu, CpuTopology
from allocator.vocabulary.device import Place, Wiring, link
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

MAX_CALLS = 150_000  # of Python functions in one decision; a decision about one card takes some hundred


def machine(cards: int, used: Sequence[int] = (), *, wired: bool = False, nics: int = 0, **more: Any) -> NodeSnapshot:
    """A node of cards of which others hold these percentages; wired: each pair of cards is connected in another way."""
    half, places = max(cards // 2, 1), []
    devices = [gpu(at, numa_node=at // half, pcie=f"p{at // 2}") for at in range(cards)]
    devices += [nic(at, numa_node=at * 2 // nics, pcie=f"p{at}") for at in range(nics)]
    if wired:
        places = [Place(one.id, one.numa_node, one.pcie) for one in devices]
        pairs = itertools.combinations([one.id for one in devices], 2)
        lanes = {(min(pair), max(pair)): at * 7 % 5 for at, pair in enumerate(pairs)}
        more["wiring"] = Wiring(link(places, lanes))
    return node(*devices, holdings=held(*(part(devices[at], much) for at, much in enumerate(used))), **more)


def uneven(cards: int) -> range:
    """Another percentage of each card, so that no two are alike."""
    return range(1, cards + 1)


def halves(cards: int) -> list[ContainerAsk]:
    """One container more than there are cards, each of a little more than half a card."""
    return [app(f"c{at}", gpus(51 + at % 9)) for at in range(cards + 1)]


def thirds(cards: int) -> list[ContainerAsk]:
    return [app(f"c{at}", gpus(34 + at % 5)) for at in range(2 * cards + 1)]


EIGHT_NUMA = CpuNode(
    CpuTopology.of(Cpu(at, at // 2, at // 32, at // 128) for at in range(256)), policy=NumaPolicy.RESTRICTED
)
HOSTILE: dict[str, tuple[NodeSnapshot, PodRequest]] = {
    "nine halves, cards alike": (machine(8), request(*halves(8))),
    "nine halves, no card alike": (machine(8, uneven(8)), request(*halves(8))),
    "nine halves, wired": (machine(8, uneven(8), wired=True), request(*halves(8))),
    "seventeen halves": (machine(16, uneven(16)), request(*halves(16))),
    "seventeen thirds": (machine(8), request(*thirds(8))),
    "thirty-three thirds, wired": (machine(16, uneven(16), wired=True), request(*thirds(16))),
    "pairs": (machine(16, uneven(16)), request(*(app(f"c{at}", ask(2, core=51, ratio=51)) for at in range(9)))),
    "eights of sixteen, wired": (
        machine(16, uneven(16), wired=True),
        request(app("a", ask(8, core=50, ratio=50)), app("b", ask(9, core=51, ratio=51))),
    ),
    "half of sixteen cards and more than half": (
        machine(16, wired=True),
        request(app("a", gpus(800)), app("b", gpus(900))),
    ),
    "sixty-four containers": (machine(16, uneven(16)), request(*(app(f"c{at}", gpus(20 + at)) for at in range(64)))),
    "1,200 containers": (machine(8), request(*(app(f"c{at}", gpus(1)) for at in range(1200)))),
    "1,200 init containers": (machine(8), request(*(init(f"c{at}", gpus(1 + at % 50)) for at in range(1200)))),
    "joint, on the same roots": (
        machine(16, uneven(16), nics=8),
        request(
            *(app(f"c{at}", ask(4, core=51, ratio=51)) for at in range(5)),
            *(app(f"c{at}", nics(51, 4)) for at in range(5)),
            wishes=Wishes(joint=Joint(("gpu", "rdma"), same_pcie=True)),
        ),
    ),
    "joint, near": (
        machine(16, uneven(16), nics=16),
        request(
            *(app(f"c{at}", gpus(51 + at % 9)) for at in range(17)),
            *(app(f"c{at}", nics(51)) for at in range(17)),
            wishes=Wishes(joint=Joint(("gpu", "rdma"), same_pcie=False)),
        ),
    ),
    "eight NUMA nodes": (machine(8, uneven(8), cpu=EIGHT_NUMA), request(*halves(8))),
    "eight NUMA nodes, thirds": (machine(16, uneven(16), cpu=EIGHT_NUMA), request(*thirds(16))),
}


def calls(of: Callable[[], object]) -> int:
    """How many Python functions a call enters."""
    count = 0

    def counted(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        of()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_costs_bounded_work(name: str) -> None:
    on, of = HOSTILE[name]
    assert calls(lambda: place(of, on)) < MAX_CALLS


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_gets_the_same_answer_each_time(name: str) -> None:
    on, of = HOSTILE[name]
    assert place(of, on) == place(of, on)


ENDED = [
    "nine halves, no card alike",
    "nine halves, wired",
    "seventeen halves",
    "seventeen thirds",
    "1,200 containers",
    "1,200 init containers",
]


@pytest.mark.parametrize("name", ENDED)
def test_a_search_that_was_ended_says_so_and_what_to_do(name: str) -> None:
    on, of = HOSTILE[name]
    refusal = place(of, on)
    assert isinstance(refusal, Refusal)
    assert refusal.unfinished
    assert not refusal.permanent
    assert refusal.short == "the search for devices was ended: too many ways to serve the containers"
    assert refusal.message == (
        f"node-1: {refusal.short}; {len(of.containers)} requests of containers for devices were tried together; "
        "let fewer containers request devices, or let them request equal amounts"
    )


@pytest.mark.parametrize(("used", "steps"), [((1, 1), 108), ((1, 1, 5), 187)])
def test_of_each_kind_of_cards_one_choice_stands_for_all(used: tuple[int, ...], steps: int) -> None:
    budget = Budget(4000)
    refusal = place(request(*(app(f"c{at}", gpus(51)) for at in range(5))), machine(4, used), None, budget)
    assert isinstance(refusal, Refusal)
    assert 4000 - budget.left == steps


def test_what_one_container_lacks_is_said_even_if_the_search_was_ended() -> None:
    of = request(*halves(8), init("large", ask(8, core=60, ratio=60)))
    refusal = place(of, machine(8, [*uneven(7), 45]))
    assert isinstance(refusal, Refusal)
    assert "container large asks 8 x (core 60 %, memory 60 %); 7 of 8 GPUs can hold it" in refusal.message
    assert not refusal.unfinished


@pytest.mark.parametrize(("number", "more"), [(16, ""), (17, ", and 1 more"), (33, ", and 17 more")])
def test_of_many_containers_a_refusal_names_sixteen(number: int, more: str) -> None:
    of = request(*(app(f"c{at}", gpus(51)) for at in range(number)))
    refusal = place(of, machine(8))
    assert isinstance(refusal, Refusal)
    assert f"c15 1 x (core 51 %, memory 51 %){more})" in refusal.message
    assert "c16" not in refusal.message


@pytest.mark.parametrize(("number", "told"), [(127, True), (128, False)])
def test_what_one_of_128_containers_lacks_of_sixteen_cards_is_said_and_not_of_more(number: int, *, told: bool) -> None:
    small = [app(f"c{at}", ask(core=1 + at % 100, ratio=1 + at // 100)) for at in range(number)]
    refusal = place(request(*small, app("large", gpus(1700))), machine(16))
    assert isinstance(refusal, Refusal)
    assert ("container large asks 17 x" in refusal.message) is told


@pytest.mark.parametrize(("left", "rest"), [(10, 0), (17, 0), (18, 0), (19, 1)])
def test_the_explanation_of_a_refusal_is_paid_for_as_far_as_there_is_anything_left(left: int, rest: int) -> None:
    budget = Budget(left)
    refusal = place(request(app("a", gpus(900))), machine(8), None, budget)
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith("node-1: container a asks 9 x")
    assert budget.left == rest


def test_devices_of_which_a_pod_would_hold_more_than_is_counted_of_it_are_not_tried() -> None:
    on = node(*(gpu(at, 24 * GIB) for at in range(5)), gpu(5))
    of = request(app("a", ask(memory=10 * GIB)))
    for most, minor, steps in (((), 0, 2 + 6 + 1), ((("quota.koordgate.io/gpu", 13),), 5, 2 + 6 + 1)):
        budget = Budget(4000)
        placed = place(replace(of, most=most), on, None, budget)
        assert isinstance(placed, Placement)
        assert ([share.minor for share in placed.shares], 4000 - budget.left) == ([minor], steps)


def test_a_best_effort_pod_is_placed_anywhere_if_the_search_in_few_numa_nodes_was_ended() -> None:
    cpu = CpuNode(CpuTopology.of(Cpu(at, at // 2, at // 8, at // 8) for at in range(16)), policy=NumaPolicy.BEST_EFFORT)
    of = request(*(app(f"c{at}", gpus(51 + at % 4)) for at in range(8)), app("small", gpus(2)))
    placed = place(of, machine(8, uneven(8), cpu=cpu))
    assert isinstance(placed, Placement)
    assert len(placed.shares) == 8


def test_a_strict_pod_whose_aligned_search_was_ended_is_told_where_it_was_sought() -> None:
    cpu = CpuNode(
        CpuTopology.of(Cpu(at, at // 2, at // 8, at // 8) for at in range(16)), policy=NumaPolicy.SINGLE_NUMA_NODE
    )
    of = request(*(app(f"c{at}", gpus(26 + at % 7)) for at in range(13)))
    refusal = place(of, machine(8, uneven(8), cpu=cpu))
    assert isinstance(refusal, Refusal)
    assert refusal.unfinished
    assert refusal.short.startswith("the search for devices in one NUMA node (NUMA policy SingleNUMANode) was ended")


def test_it_is_told_of_which_numa_node_by_itself_not_everything_was_tried() -> None:
    hard = HOSTILE["nine halves, no card alike"][1]
    cards = [gpu(at, numa_node=0) for at in range(8)]
    on = node(*cards, gpu(8, numa_node=1), holdings=held(*(part(card, 1 + card.minor) for card in cards)))
    aligned = replace(hard, cpu=CpuAsk(QosClass.LS, 0, 0, 0, numa_policy=NumaPolicy.SINGLE_NUMA_NODE, implied=True))
    found = place_by_numa(aligned, replace(on, cpu=TWO_NUMA))
    assert [(at, isinstance(told, Refusal) and told.unfinished) for at, told in found.items()] == [
        (0, True),
        (1, False),
    ]
    assert found[0].short.startswith("the search for devices in NUMA node 0 was ended")  # type: ignore[union-attr]


TWO_NUMA = CpuNode(
    CpuTopology.of(Cpu(at, at // 2, at // 8, at // 8) for at in range(16)), policy=NumaPolicy.BEST_EFFORT
)
STEPS: dict[str, tuple[NodeSnapshot, PodRequest, int]] = {
    "one card": (machine(8), request(app("a", gpus(100))), 11),
    "half a card": (machine(8, uneven(8)), request(app("a", gpus(50))), 11),
    "parts of two cards": (machine(8), request(app("a", ask(2, core=50, ratio=50))), 12),
    "wired cards": (machine(8, wired=True), request(app("a", gpus(200)), app("b", gpus(100))), 49),
    "an init container too": (
        machine(8, wired=True),
        request(init("i", gpus(100)), app("a", gpus(200)), app("b", gpus(100))),
        58,
    ),
    "fourteen containers": (machine(1), request(*(app(f"c{at}", gpus(1)) for at in range(14))), 2 + 14 * 2),
    "fifteen containers": (machine(1), request(*(app(f"c{at}", gpus(1)) for at in range(15))), 2 + 15 * 3),
    "sixty-four containers": (machine(8, uneven(4)), request(*(app(f"c{at}", gpus(12)) for at in range(64))), 834),
    "two cards inside one NUMA node": (
        machine(8),
        request(app("a", gpus(200)), wishes=Wishes(hints=(("gpu", TypeHint(scope=Scope.NUMA_NODE)),))),
        12,
    ),
    "cards with NICs": (
        machine(8, nics=8),
        request(
            app("a", gpus(200)), app("b", nics(50, 2)), wishes=Wishes(joint=Joint(("gpu", "rdma"), same_pcie=True))
        ),
        33,
    ),
    "a third of the budget is kept where the cards of one NUMA node suffice": (
        machine(8, cpu=TWO_NUMA),
        request(app("a", gpus(300))),
        1333 + 18,
    ),
    "and where they do not": (machine(8, cpu=TWO_NUMA), request(app("a", gpus(500))), 1333 + 35),
    "eight of sixteen wired cards": (machine(16, wired=True), request(app("a", gpus(800))), 1342),
    "eight of twenty-four wired cards": (machine(24, wired=True), request(app("a", gpus(800))), 2082),
}


@pytest.mark.parametrize(("on", "of", "steps"), STEPS.values(), ids=STEPS)
def test_a_decision_takes_the_steps_that_its_devices_and_containers_cost(
    on: NodeSnapshot, of: PodRequest, steps: int
) -> None:
    budget = Budget(4000)
    assert isinstance(place(of, on, None, budget), Placement)
    assert 4000 - budget.left == steps
    assert not budget.short


def test_decisions_that_share_a_budget_end_together() -> None:
    on, of = HOSTILE["nine halves, no card alike"]
    budget = Budget(100)
    assert isinstance(place(request(app("a", gpus(50))), on, None, budget), Placement)
    assert 0 < budget.left < 100
    ended = place(of, on, None, budget)
    assert isinstance(ended, Refusal)
    assert ended.unfinished
    assert budget.left == 0
    assert isinstance(place(request(app("a", gpus(50))), on, None, budget), Refusal)


@st.composite
def small(draw: st.DrawFn) -> tuple[NodeSnapshot, PodRequest]:
    """Up to four cards, alike or not, and up to four containers of one or two devices."""
    used = draw(st.lists(st.sampled_from([0, 20, 40, 60]), min_size=1, max_size=4))
    asks = draw(st.lists(st.tuples(st.integers(1, 2), st.sampled_from([30, 40, 50, 60])), min_size=1, max_size=4))
    containers = [app(f"c{at}", ask(count, core=much, ratio=much)) for at, (count, much) in enumerate(asks)]
    return machine(len(used), used), request(*containers)


@settings(max_examples=examples(200))
@given(small())
def test_a_pod_is_refused_only_where_no_choice_of_devices_serves_all_containers(
    case: tuple[NodeSnapshot, PodRequest],
) -> None:
    on, of = case
    free = [100 - on.used.get(device.id, {}).get("gpu-core", 0) for device in on.devices]
    sets = [itertools.combinations(range(len(free)), one.ask.count) for one in of.containers]

    def serves(chosen: Sequence[Sequence[int]]) -> bool:
        left = list(free)
        for one, places in zip(of.containers, chosen, strict=True):
            for at in places:
                left[at] -= one.ask.amounts[0] or 0
        return min(left) >= 0

    assert isinstance(place(of, on), Placement) == any(map(serves, itertools.product(*sets)))


def test_what_can_be_left_out_is_done_with_the_last_steps_and_left_out_without() -> None:
    budget = Budget(3)
    assert budget.covers(2)
    assert budget.covers(1)
    assert (budget.left, budget.short) == (0, False)
    assert not budget.covers(1)
    assert (budget.left, budget.short) == (0, True)


@pytest.mark.parametrize(("left", "aside", "rest"), [(10, 3, 7), (2, 0, 2), (0, 0, 0), (inf, inf, inf)])
def test_a_part_of_a_budget_is_set_aside(left: float, aside: float, rest: float) -> None:
    budget = Budget(left)
    assert budget.set_aside(3).left == aside
    assert budget.left == rest
