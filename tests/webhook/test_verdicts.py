"""Remembered verdicts: never a stale one, and never more bytes than the bound."""

import pytest
from builders import app, ask, gpu, gpus, init, node, request

from allocator.place import Placement, place
from allocator.vocabulary.asks import PodRequest
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


def test_64_mib_are_remembered() -> None:
    assert Verdicts()._requests._most == 64 * 1024 * 1024
