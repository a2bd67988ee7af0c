"""Which of the nodes that fit is the better one: packing, so that whole cards and whole nodes stay free."""

import pytest
from builders import app, ask, gpu, gpus, held, holding, init, node, part, request, share
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import devices, machine
from strategies import asks, device_lists, pod_requests

from allocator.index.cluster import ClusterIndex
from allocator.index.rows import query_of, type_rows
from allocator.place import Placement, place
from allocator.score import MAX_SCORE, score
from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.node import NodeSnapshot, fullness
from allocator.vocabulary.preference import Preference


def busy(name: str, *parts: tuple[int, int]) -> NodeSnapshot:
    """A named machine with (minor, percent) held by others."""
    cards = devices(name)
    return node(*cards, holdings=held(*(part(cards[minor], percent) for minor, percent in parts)))


def scored(of: PodRequest, on: NodeSnapshot, preference: Preference = Preference.PACKING) -> int:
    answer = place(of, on)
    assert isinstance(answer, Placement), answer
    return score(answer, on, preference)


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


# (a request, the node, its score: cards that stay whole, whether the node is in use, how full it is then)

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


LEAST, BALANCED = Preference.LEAST_REQUESTED, Preference.MOST_BALANCED
MEMORY = request(app("a", ask(ratio=100)))

# (a request, the node, the strategy, the score): comments give the thousandths of core, bytes and ratio then in use

PREFERRED: dict[str, tuple[PodRequest, NodeSnapshot, Preference, int]] = {
    "nothing left": (WHOLE, machine(ONE), LEAST, 0),
    "half of the only card": (HALF, machine(ONE), LEAST, 50),
    "half of one of eight": (HALF, machine(EIGHT), LEAST, 93),  # 62, 62, 62
    "one of four, beside one in use": (WHOLE, busy(FOUR, (0, 50)), LEAST, 62),  # 375 each
    "memory of one of four": (MEMORY, machine(FOUR), LEAST, 83),  # 0, 250, 250
    "all classes alike": (HALF, machine(ONE), BALANCED, 100),
    "memory alone": (MEMORY, machine(ONE), BALANCED, 100 - 88),  # 0, 1000, 1000: 2/9 of the square, of 1/4
    "memory of one of four is little": (MEMORY, machine(FOUR), BALANCED, 100 - 5),
    "memory beside compute": (
        MEMORY,
        node(gpu(0), gpu(1), holdings=held(share(gpu(0), core=100, ratio=1))),
        BALANCED,
        100,
    ),  # 500, 500, 505
    "nothing asked is 0": (request(), machine(FOUR), LEAST, 0),
}


@pytest.mark.parametrize(("of", "on", "preference", "expected"), PREFERRED.values(), ids=PREFERRED)
def test_a_placement_is_scored_by_the_share_of_each_class(
    of: PodRequest, on: NodeSnapshot, preference: Preference, expected: int
) -> None:
    assert scored(of, on, preference) == expected


def test_what_the_kubelet_holds_counts_for_nothing() -> None:
    for preference in Preference:
        kept = node(gpu(0), gpu(1), kubelet=["GPU-1"])
        assert scored(HALF, kept, preference) == scored(HALF, node(gpu(0)), preference)


@st.composite
def alike(draw: st.DrawFn) -> NodeSnapshot:
    """A node of equal cards in any state of use; some are unhealthy or the kubelet's."""
    memory = draw(st.sampled_from([80 * 2**30, 8_589_934_591, 101]))
    cards = [gpu(minor, memory, healthy=draw(st.integers(0, 7)) > 0) for minor in range(draw(st.integers(1, 8)))]
    on = node(*cards, kubelet=draw(st.sets(st.sampled_from([card.id for card in cards]), max_size=1)))
    for index in range(draw(st.integers(0, 6))):
        answer = place(request(app("a", draw(asks()))), on)
        if isinstance(answer, Placement):
            on = on.with_holding(holding(f"other-{index}", *answer.shares))
    return on


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(alike(), asks(), st.sampled_from(Preference))
def test_the_index_says_of_alike_cards_what_a_placement_says(
    on: NodeSnapshot, of: DeviceAsk, preference: Preference
) -> None:
    asked = request(app("a", of))
    index = ClusterIndex({kind.name: fullness(kind) for kind in BUILT_IN.types})
    index.put(on.name, type_rows(on))
    [row] = index.positions([on.name])
    answer = place(asked, on)
    assert index.fitting(query_of(asked))[row] == isinstance(answer, Placement)
    told = index.scores(preference, index.positions([on.name]), query_of(asked))
    assert told.tolist() == [score(answer, on, preference) if isinstance(answer, Placement) else 0]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(device_lists(), st.lists(pod_requests(3, 3), max_size=6))
def test_a_score_lies_between_0_and_100_and_is_always_the_same(made: list[Device], asked: list[PodRequest]) -> None:
    on = node(*made)
    for index, of in enumerate(asked):
        answer = place(of, on)
        if isinstance(answer, Placement):
            for preference in Preference:
                told = score(answer, on, preference)
                assert 0 <= told <= MAX_SCORE
                assert told == score(answer, node(*made, holdings=on.holdings.values()), preference)
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
