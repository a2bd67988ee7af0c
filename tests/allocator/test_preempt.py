"""Which Pods must leave a node: the proposed ones, and the fewest and least important others that make room."""

from collections.abc import Collection
from dataclasses import replace
from itertools import combinations

import pytest
from builders import app, gpu, gpus, holding, nic, nics, node, part, request
from builders import asking as read
from hypothesis import given
from hypothesis import strategies as st
from machines_cpu import machine

from allocator.budget import Budget
from allocator.place import Placement, place
from allocator.preempt import LongRefusals, PodStanding, choose_victims
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import CpuNode, CpuShare
from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.node import NodeSnapshot
from koordgate.breaks import at_once

ABOVE = 9


def asking(percent: int) -> PodRequest:
    return request(app("main", gpus(percent)))


def standing(*cards: list[int]) -> NodeSnapshot:
    """Pods that hold these amounts of each card: a0, a1, ... on the first one, b0, ... on the second."""
    on = [
        (f"{'abcd'[at]}{number}", part(gpu(at), held)) for at, of in enumerate(cards) for number, held in enumerate(of)
    ]
    return node(*(gpu(at) for at in range(len(cards))), holdings=[holding(uid, share) for uid, share in on])


def alike(priorities: dict[str, int], **requests: dict[str, int]) -> dict[str, PodStanding]:
    """Pods with only these amounts in the scheduler's count."""
    return {uid: PodStanding(priority, requests.get(uid, {})) for uid, priority in priorities.items()}


@pytest.mark.parametrize(
    ("cards", "percent", "expected"),
    [
        (([25, 25, 25, 25], [100]), 100, ("b0",)),
        (([25, 25, 25, 25], [60, 40]), 100, ("b0", "b1")),
        (([10, 90], [30, 30, 40]), 100, ("a0", "a1")),
        (([25, 25, 25, 25], [60, 40]), 30, ("b1",)),
        (([20, 80], [50, 50]), 20, ("a0",)),
        (([100], [100], [40]), 200, ("a0", "c0")),
    ],
    ids=[
        "one instead of four",
        "two instead of four",
        "two instead of three",
        "the smaller of two that do",
        "the smallest that does",
        "one of two beside the smallest",
    ],
)
def test_of_one_priority_few_go(cards: tuple[list[int], ...], percent: int, expected: tuple[str, ...]) -> None:
    on = standing(*cards)
    assert at_once(choose_victims(asking(percent), on, alike(dict.fromkeys(on.holdings, 1)), ABOVE, ())) == expected


EIGHT_CPUS = CpuNode(machine("one socket, 4 cores, SMT"))


@pytest.mark.parametrize(
    ("cpu", "first", "second", "expected"),
    [
        pytest.param(EIGHT_CPUS, (50, "0-3"), (50, "4-5"), "b0", id="fewer CPUs"),
        pytest.param(EIGHT_CPUS, (50, "0-1"), (50, ""), "b0", id="none"),
        pytest.param(EIGHT_CPUS, (50, "0-1"), (50, "4-5"), "a0", id="as many: by UID"),
        pytest.param(EIGHT_CPUS, (50, ""), (40, "0-2"), "a0", id="three eighths of the CPUs are more than a tenth"),
        pytest.param(EIGHT_CPUS, (50, ""), (40, "0-1"), "b0", id="two eighths are less"),
        pytest.param(EIGHT_CPUS, (50, "0"), (50, ""), "b0", id="none is less than one"),
        pytest.param(EIGHT_CPUS, (54, ""), (49, "0"), "b0", id="one CPU is less than five percent of a card"),
        pytest.param(None, (50, "0-3"), (50, ""), "a0", id="where the node's CPUs are not known, they do not count"),
    ],
)
def test_of_one_priority_the_one_goes_that_holds_less_with_its_cpus(
    cpu: CpuNode | None, first: tuple[int, str], second: tuple[int, str], expected: str
) -> None:
    on = node(
        gpu(0),
        gpu(1),
        holdings=[
            holding(uid, part(gpu(at), percent), cpus=CpuShare("LSR", parse(cpus)) if cpus else None)
            for at, (uid, (percent, cpus)) in enumerate({"a0": first, "b0": second}.items())
        ],
        cpu=cpu,
    )
    assert at_once(choose_victims(asking(100), on, alike({"a0": 1, "b0": 1}), ABOVE, ())) == (expected,)


def test_of_one_priority_one_goes_before_two_that_hold_less() -> None:
    cards = [gpu(at) for at in range(4)]
    alone = [holding(uid, part(card, 100)) for uid, card in zip("xy", cards[2:], strict=True)]
    on = node(*cards, holdings=[*alone, holding("both", *(part(card, 100) for card in cards[:2]))])
    pods = alike(dict.fromkeys(on.holdings, 1))
    assert at_once(choose_victims(asking(200), on, pods, ABOVE, ())) == ("both",)
    assert at_once(choose_victims(asking(100), on, pods, ABOVE, ())) == ("x",)
    assert at_once(choose_victims(asking(300), on, pods, ABOVE, ())) == ("both", "x")


def test_of_one_priority_who_shares_no_device_goes_first() -> None:
    cpus = {"few": "0-1", "many": "2-5", "own": "6-7"}
    held = [holding(uid, cpus=CpuShare("LSR", parse(of))) for uid, of in cpus.items() if uid != "few"]
    few = holding("few", part(gpu(0), 1), cpus=CpuShare("LSR", parse(cpus["few"])))
    on = node(gpu(0), holdings=[few, *held], cpu=EIGHT_CPUS)
    pods = alike({"few": 1, "many": 1, "own": ABOVE})
    assert at_once(choose_victims(read({"cpu": 2}, qos="LSR"), on, pods, ABOVE, ())) == ("many",)


def test_four_of_a_low_priority_go_before_one_of_a_higher() -> None:
    on = standing([25, 25, 25, 25], [100])
    priorities = {uid: 2 if uid == "b0" else 1 for uid in on.holdings}
    assert at_once(choose_victims(asking(100), on, alike(priorities), ABOVE, ())) == ("a0", "a1", "a2", "a3")


def test_what_is_proposed_stands_where_it_makes_room() -> None:
    on = standing([50, 50], [100])
    assert at_once(choose_victims(asking(50), on, alike({"a0": 1, "a1": 1, "b0": 5}), ABOVE, ["b0", "plain"])) == (
        "b0",
        "plain",
    )


def test_to_what_is_proposed_is_added_what_is_missing() -> None:
    on = standing([50, 50], [50, 50])
    priorities = {"a0": 2, "a1": 1, "b0": 3, "b1": 2}
    assert at_once(choose_victims(asking(100), on, alike(priorities), ABOVE, ["b0", "plain"])) == ("plain", "b1", "b0")


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({}, ("a0", "a1")),
        ({"b0": {"cpu": 1000}, "a1": {"cpu": 1000}, "a0": {"cpu": 1}}, ("a0", "a1")),
        ({"b0": {"cpu": 1000}, "a1": {"cpu": 999}}, ("a0", "b0", "a1")),
        ({"b0": {"cpu": 1000, "pods": 1}, "a1": {"cpu": 1000}}, ("a0", "a1")),
        ({"b0": {"memory": 1}, "a1": {"cpu": 1000}}, ("a0", "b0", "a1")),
    ],
    ids=["nothing", "made up for", "too few CPUs", "but not of Pods", "no memory"],
)
def test_a_proposed_pod_is_spared_whose_requests_the_others_make_up_for(
    requests: dict[str, dict[str, int]], expected: tuple[str, ...]
) -> None:
    """Two halves of two cards are proposed and make no room; the third Pod does, together with either."""
    on = standing([50, 50], [50, 50])
    pods = alike({"a0": 1, "b0": 1, "a1": 2, "b1": ABOVE}, **requests)
    assert at_once(choose_victims(asking(100), on, pods, ABOVE, ["a0", "b0"])) == expected


def test_of_two_that_could_be_spared_the_more_important_one_is() -> None:
    on = standing([50], [50], [100])
    pods = alike({"a0": 1, "b0": 2, "c0": 1}, a0={"cpu": 4}, b0={"cpu": 4}, c0={"cpu": 4})
    assert at_once(choose_victims(asking(300), on, pods, ABOVE, ["a0", "b0"])) == ("a0", "c0", "b0")
    on = standing([50, 50], [50, 50], [100])
    priorities = {"a0": 1, "a1": ABOVE, "b0": 2, "b1": ABOVE, "c0": 3}
    pods = alike(priorities, a0={"cpu": 4}, b0={"cpu": 4}, c0={"cpu": 4})
    assert at_once(choose_victims(asking(100), on, pods, ABOVE, ["a0", "b0"])) == ("a0", "c0")


def test_a_proposed_pod_of_which_no_priority_is_known_goes() -> None:
    assert at_once(choose_victims(asking(100), standing([100]), {}, ABOVE, ["a0"])) == ("a0",)


@pytest.mark.parametrize("priority", [ABOVE, ABOVE + 1])
def test_a_proposed_pod_that_is_not_lower_is_no_victim(priority: int) -> None:
    assert at_once(choose_victims(asking(100), standing([100]), alike({"a0": priority}), ABOVE, ["a0"])) is None


held = st.lists(st.integers(1, 10).map(lambda tenths: 10 * tenths), max_size=3).filter(lambda card: sum(card) <= 100)


@given(st.data())
def test_no_more_and_no_more_important_ones_go_than_need_to(data: st.DataObject) -> None:
    on = standing(*data.draw(st.lists(held, min_size=1, max_size=3)))
    priorities = {uid: data.draw(st.integers(7, 10)) for uid in on.holdings}
    cpus = {uid: {"cpu": data.draw(st.integers(0, 3))} for uid in on.holdings}
    lower = {uid for uid, priority in priorities.items() if priority < ABOVE}
    proposed = [uid for uid in sorted(lower) if data.draw(st.booleans())]
    of = asking(data.draw(st.sampled_from([10, 40, 100, 200])))

    def fits(*gone: str) -> bool:
        return isinstance(place(of, on.without(set(gone))), Placement)

    def freed(gone: Collection[str]) -> int:
        return sum(cpus[uid]["cpu"] for uid in gone)

    chosen = at_once(choose_victims(of, on, alike(priorities, **cpus), ABOVE, proposed))

    if chosen is None:
        assert not fits(*lower)
        return
    assert {*chosen} <= lower
    assert fits(*chosen)
    if fits(*proposed):
        assert list(chosen) == proposed
        return
    assert freed(chosen) >= freed(proposed)
    added = {*chosen} - {*proposed}
    assert not any(fits(*proposed, *(added - {spared})) for spared in added)
    highest = max(priorities[uid] for uid in added)
    below = [uid for uid in lower if priorities[uid] < highest]
    assert not fits(*proposed, *below)
    if sum(priorities[uid] == highest for uid in added) > 1:
        assert not any(fits(*proposed, *below, uid) for uid in lower if priorities[uid] == highest)
    for uid in {*chosen} & {*proposed}:
        rest = {*chosen} - {uid}
        assert not (fits(*rest) and freed(rest) >= freed(proposed)), f"{uid} could have been spared"


def test_the_fewest_go_wherever_two_cards_are_held_by_up_to_three_pods_each() -> None:
    sizes = [[100], [50, 50], [40, 60], [30, 30, 40], [10, 90], [20, 20, 60]]
    for one, other in combinations(sizes, 2):
        on = standing(one, other)
        chosen = at_once(choose_victims(asking(100), on, alike(dict.fromkeys(on.holdings, 1)), ABOVE, ()))
        assert chosen is not None
        assert len(chosen) == min(len(one), len(other)), (one, other)


def test_nobody_is_chosen_once_the_budget_is_spent() -> None:
    on = standing([25, 25, 25, 25], [60, 40])
    budget, of = Budget(1000), alike(dict.fromkeys(on.holdings, 1))
    assert at_once(choose_victims(asking(100), on, of, ABOVE, (), budget)) == ("b0", "b1")
    needed = int(1000 - budget.left)
    answers = [at_once(choose_victims(asking(100), on, of, ABOVE, (), Budget(steps))) for steps in range(needed + 1)]
    enough = answers.index(("b0", "b1"))
    assert enough > needed // 2
    assert answers == [None] * enough + [("b0", "b1")] * (needed + 1 - enough), "no other victims, whatever is left"


def uneven(name: str) -> NodeSnapshot:
    """Eight cards of which others hold unequal parts, and beside them a Pod that is of no help."""
    cards = [gpu(at, device_id=f"GPU-{name}-{at}") for at in range(8)]
    held = [holding(f"{name}{at}", part(card, 1 + at)) for at, card in enumerate(cards)]
    return replace(node(*cards, holdings=[*held, holding("low", part(cards[0], 20))]), name=name)


HARD = request(*(app(f"c{at}", gpus(51 + at % 8)) for at in range(9)))


def test_a_long_refusal_is_found_out_once_for_all_nodes_that_are_alike() -> None:
    known, steps = LongRefusals(HARD), []
    for name in ("m", "n", "o"):
        budget = Budget(8000)
        assert at_once(choose_victims(HARD, uneven(name), alike({"low": 1}), ABOVE, (), budget, known)) is None
        steps.append(8000 - budget.left)
    assert steps[0] > 4000
    assert steps[1:] == [12, 12], "10 to find it, and 2 to sum up nine holdings"


@pytest.mark.parametrize(("cards", "boards", "steps"), [(48, 24, 2 * 99), (49, 24, 100 + 10), (48, 25, 101 + 10)])
def test_a_refusal_of_a_hundred_steps_is_remembered_and_one_of_fewer_is_not(
    cards: int, boards: int, steps: int
) -> None:
    of = request(app("a", gpus(100)), app("b", nics(100, count=26)))
    on = node(*(gpu(at) for at in range(cards)), *(nic(at) for at in range(boards)))
    budget = Budget(8000)
    assert at_once(choose_victims(of, on, {}, ABOVE, (), budget)) is None
    assert 8000 - budget.left == steps, "the same is asked with and without the Pods that may leave"


@pytest.mark.parametrize(("number", "others", "chosen"), [(7, 6344, ("both",)), (4, 6364, None)])
def test_a_choice_takes_8000_steps_at_most(number: int, others: int, chosen: tuple[str, ...] | None) -> None:
    """It makes five decisions, of which each sums up all holdings: 8000 steps with seven cards, 8001 with four."""
    cards = [gpu(at) for at in range(number)]
    wholes = {"one": cards[:1], "both": cards[1:3], "above": cards[3:]}
    held = [holding(uid, *(part(card, 100) for card in of)) for uid, of in wholes.items()]
    on = node(*cards, holdings=[*held, *(holding(f"x{at}") for at in range(others - len(held)))])
    budget = Budget(9000)
    assert at_once(choose_victims(asking(200), on, alike({"one": 1, "both": 1}), ABOVE, (), budget)) == ("both",)
    assert 9000 - budget.left == (8000 if chosen else 8001)
    assert at_once(choose_victims(asking(200), on, alike({"one": 1, "both": 1}), ABOVE, ())) == chosen


def test_what_fewer_steps_did_not_suffice_for_is_not_remembered() -> None:
    known = LongRefusals(HARD)
    assert at_once(choose_victims(HARD, uneven("m"), alike({"low": 1}), ABOVE, (), Budget(300), known)) is None
    budget = Budget(8000)
    assert at_once(choose_victims(HARD, uneven("n"), alike({"low": 1}), ABOVE, (), budget, known)) is None
    assert 8000 - budget.left > 4000


def test_a_choice_yields_after_each_decision() -> None:
    on = standing([25, 25, 25, 25], [60, 40])
    decisions = list(choose_victims(asking(100), on, alike(dict.fromkeys(on.holdings, 1)), ABOVE, ()))
    assert len(decisions) > 3
