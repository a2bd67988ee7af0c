"""Remembered verdicts: never a stale one, and never more bytes than the bound."""

from dataclasses import replace

import pytest
from builders import app, ask, gpu, gpus, holding, init, node, part, request

from allocator.place import Placement, place
from allocator.vocabulary.asks import PodRequest, Wishes
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from webhook.scheduling.verdicts import PlaceVerdict, Verdicts

HALF, WHOLE = (request(app("main", ask(core=percent, ratio=percent))) for percent in (50, 100))


def verdict(of: PodRequest = HALF) -> PlaceVerdict:
    return place(of, node(gpu(0)))


def test_a_verdict_is_of_one_request_on_one_node() -> None:
    verdicts = Verdicts()
    given = verdicts.put(HALF, "n1", verdict())
    assert verdicts.get(HALF, "n1") is given
    assert verdicts.get(WHOLE, "n1") is None
    assert verdicts.get(HALF, "n2") is None


def test_a_node_that_changes_loses_its_verdicts_and_no_others() -> None:
    verdicts = Verdicts()
    for of in (HALF, WHOLE):
        for name in ("n1", "n2"):
            verdicts.put(of, name, verdict(of))
    verdicts.forget("n1")
    verdicts.forget("nowhere")
    left = [(of, name) for name in ("n1", "n2") for of in (HALF, WHOLE) if verdicts.get(of, name) is not None]
    assert left == [(HALF, "n2"), (WHOLE, "n2")]
    again = verdicts.put(HALF, "n1", verdict())
    assert verdicts.get(HALF, "n1") is again
    assert verdicts.get(WHOLE, "n1") is None, "of the node as it was before"


def test_a_verdict_given_again_weighs_once() -> None:
    verdicts = Verdicts()
    verdicts.put(HALF, "n1", verdict())
    once = verdicts.weight
    assert once > 0
    for _ in range(5):
        verdicts.forget("n1")
        verdicts.put(HALF, "n1", verdict())
    assert verdicts.weight == once
    verdicts.put(HALF, "n2", verdict())
    assert verdicts.weight > once


@pytest.mark.parametrize("name_length", [1, 300])
def test_the_bound_is_in_bytes_and_the_request_asked_for_last_stays(name_length: int) -> None:
    verdicts = Verdicts(most=10_000)
    for number in range(1, 50):
        asked = request(app(f"{number}" * name_length, ask(core=number, ratio=number)))
        verdicts.put(asked, "n1", verdict())
        assert verdicts.weight <= 10_000
        assert verdicts.get(asked, "n1") is not None
    assert verdicts.get(request(app("1" * name_length, ask(core=1, ratio=1))), "n1") is None


def test_a_long_refusal_and_a_request_beyond_the_bound_are_not_remembered() -> None:
    verdicts = Verdicts(most=10_000)
    long = Refusal("x" * 10_000)
    assert verdicts.put(HALF, "n1", long) is long
    assert verdicts.get(HALF, "n1") is None
    assert verdicts.weight == 0


@pytest.mark.parametrize(
    ("of", "shares"),
    [
        pytest.param(HALF, 1 + 1, id="a card of one container"),
        pytest.param(request(app("main", gpus(300))), 3 * (1 + 1), id="three cards"),
        pytest.param(request(init("i", gpus(200)), app("a", gpus(100)), app("b", gpus(100))), 2 + 4, id="cards of two"),
    ],
)
def test_a_verdict_weighs_by_its_devices_and_their_containers(of: PodRequest, shares: int) -> None:
    verdicts = Verdicts()
    outcome = place(of, node(*map(gpu, range(4))))
    assert isinstance(outcome, Placement)
    assert sum(1 + len(share.containers) for share in outcome.shares) == shares
    verdicts.put(of, "n1", outcome)
    assert verdicts.weight == 1000 + len(repr(of)) + 500 + 150 * shares
    verdicts.put(of, "n2", Refusal("too full"))
    assert verdicts.weight == 1000 + len(repr(of)) + 500 + 150 * shares + 500 + len("too full")


# Nodes that are alike


def of_name(name: str, percent: int = 60) -> NodeSnapshot:
    card = gpu(0, device_id=f"GPU-{name}")
    return replace(node(card, holdings=[holding(f"u-{name}", part(card, percent), gang="default/train")]), name=name)


def refused(of: PodRequest, on: NodeSnapshot) -> Refusal:
    outcome = place(of, on)
    assert isinstance(outcome, Refusal)
    return outcome


def sharing(of: PodRequest = HALF) -> Verdicts:
    """What is remembered after one node, n1, has refused a request."""
    verdicts = Verdicts()
    verdicts.put(of, "n1", refused(of, of_name("n1")))
    verdicts.put_alike(of, of_name("n1"), refused(of, of_name("n1")))
    return verdicts


def test_a_refusal_holds_on_the_nodes_that_are_alike_in_their_own_words() -> None:
    verdicts, other = sharing(), of_name("n2")
    assert verdicts.get(HALF, "n2") is None
    told = verdicts.get_alike(HALF, other)
    assert told == refused(HALF, other)
    assert verdicts.get(HALF, "n2") is told, "it is remembered as the node's own"
    assert verdicts.get_alike(WHOLE, other) is None
    assert verdicts.get_alike(HALF, of_name("n3", 61)) is None


def test_a_node_that_changed_is_alike_to_what_it_is_now() -> None:
    verdicts = sharing()
    assert verdicts.get_alike(HALF, of_name("n2", 61)) is None
    verdicts.forget("n2")
    assert verdicts.get_alike(HALF, of_name("n2", 60)) is not None
    verdicts.forget("n2")
    assert verdicts.get_alike(HALF, of_name("n2", 10)) is None


def test_the_refusal_outlives_the_node_that_gave_it() -> None:
    verdicts = sharing()
    verdicts.forget("n1")
    assert verdicts.get_alike(HALF, of_name("n2")) == refused(HALF, of_name("n2"))
    assert verdicts.get(HALF, "n1") is None


def test_a_refusal_that_depends_on_names_is_not_shared() -> None:
    of = replace(HALF, wishes=Wishes(gang="default/train"))
    assert sharing(of).get_alike(of, of_name("n2")) is None


def test_refusals_that_are_shared_weigh_too() -> None:
    verdicts, outcome = Verdicts(), refused(HALF, of_name("n1"))
    verdicts.put(HALF, "n1", outcome)
    once = verdicts.weight
    for _ in range(3):
        verdicts.put_alike(HALF, of_name("n1"), outcome)
    assert verdicts.weight == once + 500 + len(outcome.message)


def test_a_bounded_number_of_kinds_of_nodes_is_kept() -> None:
    verdicts = sharing()
    for number in range(5000):
        card = gpu(0, device_id=f"GPU-{number}")
        verdicts.put_alike(HALF, replace(node(card, order=f"{number}"), name=f"m{number}"), Refusal("x"))
    assert len(verdicts._kinds._numbers) == 5001 - 2 * 2048, "all were forgotten twice"
    assert verdicts.get_alike(HALF, of_name("n2")) is None, "its kind has another number now"
