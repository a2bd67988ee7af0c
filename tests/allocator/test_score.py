"""Which of the nodes that fit is the better one: packing, so that whole cards and whole nodes stay free."""

import pytest
from builders import app, ask, gpu, gpus, held, holding, init, node, part, request, share
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import devices, machine
from strategies import device_lists, pod_requests

from allocator.device import Device
from allocator.holdings import NodeSnapshot
from allocator.place import Placement, place
from allocator.request import PodRequest
from allocator.score import MAX_SCORE, score


def busy(name: str, *parts: tuple[int, int]) -> NodeSnapshot:
    """A named machine with (minor, percent) held by others."""
    cards = devices(name)
    return node(*cards, holdings=held(*(part(cards[minor], percent) for minor, percent in parts)))


def scored(of: PodRequest, on: NodeSnapshot) -> int:
    answer = place(of, on)
    assert isinstance(answer, Placement), answer
    return score(answer, on)


HALF, WHOLE, TWO = (request(app("a", gpus(percent))) for percent in (50, 100, 200))
FOUR, EIGHT, ONE = "four A100", "eight A100", "one T4"

# (a request, the better node, the worse node)

BETTER: dict[str, tuple[PodRequest, NodeSnapshot, NodeSnapshot]] = {
    "a share beside a share, not on a fresh card": (HALF, busy(FOUR, (0, 50)), machine(FOUR)),
    "a share on a node with one card in use, not on a fuller one without room there": (
        HALF,
        busy(FOUR, (0, 50)),
        busy(FOUR, (0, 60), (1, 60), (2, 60)),
    ),
    "a whole card on the fuller node": (WHOLE, busy(FOUR, (0, 100), (1, 100)), busy(FOUR, (0, 100))),
    "a whole card on a used node, not on an empty one": (WHOLE, busy(FOUR, (0, 100)), machine(FOUR)),
    "a whole card on the smaller node": (WHOLE, machine(FOUR), machine(EIGHT)),
    "two cards that fill a node": (TWO, busy(FOUR, (0, 100), (1, 100)), machine(FOUR)),
    "a share that fills its card": (HALF, busy(ONE, (0, 50)), busy(ONE, (0, 25))),
    "the node whose other cards are broken is full": (
        WHOLE,
        node(gpu(0), gpu(1, healthy=False)),
        node(gpu(0), gpu(1)),
    ),
}


@pytest.mark.parametrize(("of", "better", "worse"), BETTER.values(), ids=BETTER)
def test_the_node_that_packs_tighter_scores_higher(of: PodRequest, better: NodeSnapshot, worse: NodeSnapshot) -> None:
    assert scored(of, better) > scored(of, worse)


# (a request, the node, its score: cards that stay unbroken, a node in use, how full it is then)

SCORES: dict[str, tuple[PodRequest, NodeSnapshot, int]] = {
    "the last free card": (WHOLE, busy(FOUR, (0, 100), (1, 100), (2, 100)), 50 + 20 + 30),
    "the only card": (WHOLE, machine(ONE), 50 + 0 + 30),
    "half of the only card, empty": (HALF, machine(ONE), 0 + 0 + 15),
    "the other half of it": (HALF, busy(ONE, (0, 50)), 50 + 20 + 30),
    "half of it beside a quarter": (HALF, busy(ONE, (0, 25)), 50 + 20 + 22),
    "half of one of four": (HALF, machine(FOUR), 0 + 0 + 3),
    "half of a second card of four": (HALF, busy(FOUR, (0, 100)), 0 + 20 + 11),
    "one of four": (WHOLE, machine(FOUR), 50 + 0 + 7),
    "one of eight": (WHOLE, machine(EIGHT), 50 + 0 + 3),
    "two of four, beside one in use": (TWO, busy(FOUR, (0, 50)), 50 + 20 + 18),
    "memory alone fills a card as well": (request(app("a", ask(ratio=100))), machine(ONE), 50 + 0 + 15),
    "nothing asked": (request(), machine(FOUR), 0),
    "an init container counts": (request(init("i", gpus(100)), app("a", gpus(50))), machine(ONE), 50 + 0 + 30),
    "a node without GPUs": (request(), node(), 0),
}


@pytest.mark.parametrize(("of", "on", "expected"), SCORES.values(), ids=SCORES)
def test_a_placement_is_scored(of: PodRequest, on: NodeSnapshot, expected: int) -> None:
    assert scored(of, on) == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(device_lists(), st.lists(pod_requests(3, 3), max_size=6))
def test_a_score_lies_between_0_and_100_and_is_always_the_same(made: list[Device], asked: list[PodRequest]) -> None:
    on = node(*made)
    for index, of in enumerate(asked):
        answer = place(of, on)
        if isinstance(answer, Placement):
            assert 0 <= score(answer, on) <= MAX_SCORE
            assert score(answer, on) == score(answer, node(*made, holdings=on.holdings.values()))
            on = on.with_holding(holding(f"uid-{index}", *answer.shares))


def test_a_card_that_holds_more_than_it_has_does_not_lift_a_score_above_100() -> None:
    shrunk = gpu(0)
    on = node(shrunk, gpu(1), holdings=held(share(shrunk, core=500, ratio=500)))
    assert scored(WHOLE, on) == MAX_SCORE


def test_a_placement_on_cards_that_went_away_scores_within_bounds() -> None:
    answer = place(TWO, machine("two T4"))
    assert isinstance(answer, Placement)
    assert score(answer, node(gpu(0, healthy=False), gpu(1))) in range(MAX_SCORE + 1)
    assert score(answer, node()) == 0
