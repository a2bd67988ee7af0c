"""No interleaving makes half a gang, gives a card twice or holds room for ever; a wrong rule is found guilty.

Small scopes are gone through from the beginning, state by state, as far as the bound; and at random, 80 steps far.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from model.gangprotocol import GangProtocol
from model.gangs import explore_gangs
from model.gangstate import GangScope, Held, State

from webhook.gangs.step import Close, GangMember, GangStep, GangTimes, GiveBack, Limit, OwnHold, Prolong, Rest
from webhook.upkeep.reconcile import Sweep

ONE_EACH = (("c0",), ("c1",))
TWO_EACH = (("c0", "c1"), ("c2", "c3"))
THREE = ("p", "q", "r")

SCOPES: dict[str, tuple[GangScope, int]] = {
    "two Pods, two cards, two replicas": (GangScope(ONE_EACH, crashes=2), 60),
    "room is held, no gate is left": (GangScope(ONE_EACH, crashes=2, begin_with="room"), 60),
    "no gate is left, room was held in vain": (GangScope(ONE_EACH, crashes=1, begin_with="no gates"), 60),
    "three Pods, four cards": (GangScope(TWO_EACH, THREE, least=3, crashes=2), 20),
    "two of three Pods are needed, one is deleted": (GangScope(TWO_EACH, THREE, deletions=1), 15),
    "one replica": (GangScope(ONE_EACH, replicas=1, crashes=3, begin_with="room"), 60),
}


@pytest.mark.parametrize("name", SCOPES)
def test_in_no_first_state_is_a_gang_half_or_a_card_given_twice_or_held_for_ever(name: str) -> None:
    explored = explore_gangs(SCOPES[name][0], states=1_500)
    assert (explored.found, explored.story) == ("", ())
    assert explored.states == 1_500 or explored.complete


@pytest.mark.parametrize("name", SCOPES)
def test_on_no_long_way_is_a_gang_half_or_a_card_given_twice_or_held_for_ever(name: str) -> None:
    scope, walks = SCOPES[name]
    explored = explore_gangs(scope, walks=walks)
    assert (explored.found, explored.story) == ("", ())
    assert explored.states > 500


# --- protocols with one wrong rule


class BindsWithoutRoom(GangProtocol):
    """A Pod is bound although nothing is held for it."""

    all_or_nothing = False


class GivesBackUnmarked(GangProtocol):
    """Holds whose time is over are released one after another, without marks."""

    def next(self, members: Sequence[GangMember], times: GangTimes, own: frozenset[OwnHold]) -> GangStep:
        step = super().next(members, times, own)
        return GiveBack(step.holds, over=True) if isinstance(step, Close) else step


class TouchesPlansOfOthers(GangProtocol):
    """What another replica may still be writing is taken for all that it writes."""

    def next(self, members: Sequence[GangMember], times: GangTimes, own: frozenset[OwnHold]) -> GangStep:
        return super().next(members, replace(times, fresh=frozenset()), own)


class LetsTheRestEnd(GangProtocol):
    """What is held for the others keeps its end, and its mark, although a Pod of the gang is bound."""

    def next(self, members: Sequence[GangMember], times: GangTimes, own: frozenset[OwnHold]) -> GangStep:
        step = super().next(members, times, own)
        return GiveBack(step.holds, over=False) if isinstance(step, Prolong) else step


class PlansUnmarked(GangProtocol):
    """What is held for Pods without gates can be taken before all of it is held."""

    def plan_mark(self, state: State) -> str:  # noqa: ARG002 other marks depend on it
        return ""


class ReleasesWhatWasNotPerformed(GangProtocol):
    """What a Pod was given by a bind that was never performed is released, though others of its gang are bound."""

    def judge(self, state: State, node: int, seen: Held, seen_s: int) -> Sweep | None:
        how = super().judge(state, node, seen, seen_s)
        return "unbound" if how == "hold again" else how


class NeverLimits(GangProtocol):
    """What is held without an end stays so although no Pod of the gang is live any more."""

    def next(self, members: Sequence[GangMember], times: GangTimes, own: frozenset[OwnHold]) -> GangStep:
        step = super().next(members, times, own)
        return Rest() if isinstance(step, Limit) else step


class NeverGivesBack(GangProtocol):
    """What is marked stays; nor is it swept."""

    def judge(self, state: State, node: int, seen: Held, seen_s: int) -> Sweep | None:
        how = super().judge(state, node, seen, seen_s)
        return None if how == "unbound" else how

    def next(self, members: Sequence[GangMember], times: GangTimes, own: frozenset[OwnHold]) -> GangStep:
        step = super().next(members, times, own)
        return Rest() if isinstance(step, GiveBack) else step


HALF = "half a gang"
STAYS = "held in the end"
HELD = GangScope(ONE_EACH, begin_with="room")
IN_VAIN = GangScope(ONE_EACH, begin_with="no gates", crashes=0)

DOCTORED: dict[type[GangProtocol], tuple[GangScope, str]] = {
    BindsWithoutRoom: (IN_VAIN, HALF),
    GivesBackUnmarked: (HELD, HALF),
    TouchesPlansOfOthers: (GangScope(ONE_EACH), HALF),
    LetsTheRestEnd: (HELD, HALF),
    PlansUnmarked: (IN_VAIN, HALF),
    ReleasesWhatWasNotPerformed: (HELD, HALF),
    NeverLimits: (HELD, STAYS),
    NeverGivesBack: (HELD, STAYS),
}


@pytest.mark.parametrize("doctored", DOCTORED, ids=lambda doctored: doctored.__name__)
def test_a_protocol_with_one_wrong_rule_is_found_guilty(doctored: type[GangProtocol]) -> None:
    scope, why = DOCTORED[doctored]
    explored = explore_gangs(scope, doctored, walks=300)
    assert why in explored.found
    assert explored.story
