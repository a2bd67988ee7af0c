"""When a holding whose Pod is not bound is marked, and when it is released: the figures, to the second."""

from math import inf
from typing import NamedTuple

import pytest

from allocator.vocabulary.holdings import WITHOUT_LIMIT, Holding
from webhook.upkeep.reconcile import is_suspect, judge, look, patience

GRACE = 100.0
DAY = 86400


class Pod(NamedTuple):
    node: str = ""
    over: bool = False
    all_or_nothing: bool = False


def holding(until: int = 0, ending: str = "", since: int = 1000) -> Holding:
    return Holding("u", "ns", "p", since, (), None, until=until, ending=ending)


@pytest.mark.parametrize(
    ("of", "seconds"),
    [
        pytest.param(holding(), 50.0, id="given: half a grace until the mark"),
        pytest.param(holding(ending="m"), 100.0, id="marked: a grace"),
        pytest.param(holding(1600, "m"), 100.0, id="held and marked: a grace"),
        pytest.param(holding(1600), 700.0, id="held: a grace more than it was to be held"),
        pytest.param(holding(900), 100.0, id="held until before it began: a grace"),
        pytest.param(holding(1000 + DAY + 1), 100.0 + DAY, id="held for too long: a day and a grace"),
        pytest.param(holding(WITHOUT_LIMIT), inf, id="held without limit: never"),
    ],
)
def test_a_holding_of_a_pod_that_is_not_bound_is_left_for_a_time(of: Holding, seconds: float) -> None:
    assert patience(of, GRACE) == seconds
    assert judge(of, "n", ("u", Pod()), seconds, GRACE) is None
    if seconds < inf:
        assert judge(of, "n", ("u", Pod()), seconds + 1, GRACE) == ("unbound" if of.ending else "end")


@pytest.mark.parametrize(
    ("live", "ending", "told"),
    [
        pytest.param(None, "", "gone", id="no Pod of that name"),
        pytest.param(("other", Pod("n")), "", "gone", id="another Pod of that name"),
        pytest.param(("u", None), "", None, id="a Pod that is none of ours, and may be bound yet"),
        pytest.param(("u", Pod("n", over=True)), "", "finished", id="finished"),
        pytest.param(("u", Pod(over=True)), "", "finished", id="being deleted before it was bound"),
        pytest.param(("u", Pod("m")), "", "moved", id="bound elsewhere, to a node before it by name"),
        pytest.param(("u", Pod("other")), "", "moved", id="bound elsewhere, to a node behind it"),
        pytest.param(("u", Pod("m")), "m", "moved", id="bound elsewhere after the mark"),
        pytest.param(("u", Pod("n")), "", None, id="bound here"),
        pytest.param(("u", Pod("n")), "m", "keep", id="bound here after the mark"),
    ],
)
def test_a_pod_that_is_bound_or_gone_decides_at_once(
    live: tuple[str, Pod | None] | None, ending: str, told: str
) -> None:
    assert judge(holding(ending=ending), "n", live, 0.0, GRACE) == told


def test_only_what_a_live_pod_holds_on_its_node_is_beyond_suspicion() -> None:
    assert not is_suspect(holding(), "n", Pod("n"))
    assert is_suspect(holding(ending="m"), "n", Pod("n"))
    for pod in (None, Pod(), Pod("m"), Pod("other"), Pod("n", over=True)):
        assert is_suspect(holding(), "n", pod)


@pytest.mark.parametrize(
    ("of", "pod", "when"),
    [
        pytest.param(holding(), Pod("n"), None, id="bound here"),
        pytest.param(holding(), None, "now", id="not known"),
        pytest.param(holding(1600), None, "now", id="not known, and room is held for it"),
        pytest.param(holding(), Pod("n", over=True), "now", id="finished"),
        pytest.param(holding(), Pod(over=True), "now", id="being deleted before it was bound"),
        pytest.param(holding(), Pod("m"), "now", id="bound elsewhere"),
        pytest.param(holding(), Pod(), "later", id="to be bound"),
        pytest.param(holding(1600), Pod(), None, id="to be bound, and its gang's keeper tends what is held for it"),
        pytest.param(holding(ending="m"), Pod("n"), "now", id="bound here, and marked"),
    ],
)
def test_a_holding_that_is_seen_for_the_first_time_is_looked_at_if_its_pod_may_have_ended(
    of: Holding, pod: Pod | None, when: str | None
) -> None:
    assert look(of, "n", pod) == when


def test_what_a_pod_that_is_none_of_ours_holds_is_marked_and_released_as_that_of_one_that_is_not_bound() -> None:
    assert judge(holding(), "n", ("u", None), 51.0, GRACE) == "end"
    assert judge(holding(ending="m"), "n", ("u", None), 101.0, GRACE) == "unbound"


@pytest.mark.parametrize(
    ("of", "all_or_nothing", "told"),
    [
        pytest.param(holding(ending="m"), True, "hold again", id="a bind took it"),
        pytest.param(holding(1600, "m"), True, "unbound", id="no bind took it"),
        pytest.param(holding(ending="m"), False, "unbound", id="of a Pod that is bound alone"),
        pytest.param(holding(1600, "m"), False, "unbound", id="held for a Pod that is bound alone by now"),
    ],
)
def test_what_a_bind_took_of_a_gangs_holds_is_held_for_the_gang_again(
    of: Holding, *, all_or_nothing: bool, told: str
) -> None:
    assert judge(of, "n", ("u", Pod(all_or_nothing=all_or_nothing)), 101.0, GRACE) == told
