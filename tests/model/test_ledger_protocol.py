"""No interleaving gives a card twice, releases what is bound, or leaks; a protocol with one wrong rule is found guilty.

A card that is lost from the ledger while a Pod is bound to it can be given again: that is found first.
"""

from dataclasses import replace

import pytest
from model.protocol import CLOCKS, GRACE, Bind, Held, Protocol, Scope, Sight, State, explore, with_record
from model.search import Explored

from webhook.upkeep.reconcile import Sweep

ONE_CARD = (("c0",),)
TWO_CARDS = (("c0", "c1"),)
TWO_NODES = (("c0",), ("c1",))

COMPLETE: dict[str, Scope] = {
    "one card, three binds, a deletion": Scope(ONE_CARD, binds=3, deletions=1),
    "two nodes, two binds, a deletion": Scope(TWO_NODES, binds=2, deletions=1),
    "two cards, one of which breaks": Scope(TWO_CARDS, binds=2, breaks=1, deletions=1),
    "two replicas, one Pod, two binds": Scope(ONE_CARD, pods=("p",), replicas=2, binds=2),
}
BOUNDED: dict[str, Scope] = {
    "two nodes, four binds": Scope(TWO_NODES, binds=4, deletions=1, states=10_000),
    "two cards, one of which breaks, four binds": Scope(TWO_CARDS, binds=4, breaks=1, states=10_000),
    "two replicas, four binds": Scope(ONE_CARD, replicas=2, binds=4, deletions=1, states=10_000),
}


def told(name: str, explored: Explored) -> None:
    how = "all" if explored.complete else "the first"
    print(f"{name}: {how} {explored.states} states, up to {explored.depth} steps")  # noqa: T201 pytest -rP shows it


@pytest.mark.parametrize("name", COMPLETE)
def test_in_all_states_of_a_small_cluster_nothing_is_given_twice_or_lost_or_leaked(name: str) -> None:
    explored = explore(COMPLETE[name])
    told(name, explored)
    assert (explored.found, explored.story) == ("", ())
    assert explored.complete
    assert explored.states > 1_000


@pytest.mark.parametrize("name", BOUNDED)
def test_in_the_first_states_of_a_larger_cluster_nothing_is_given_twice_or_lost_or_leaked(name: str) -> None:
    explored = explore(BOUNDED[name])
    told(name, explored)
    assert (explored.found, explored.story) == ("", ())
    assert explored.states == BOUNDED[name].states


# --- protocols with one wrong rule


class SweepsByTheClock(Protocol):
    """A holding is released when it is old by the clock of the replica that sweeps."""

    def judge(self, state: State, sight: Sight, replica: int) -> Sweep | None:
        how = super().judge(state, sight._replace(age=0), replica)
        old = CLOCKS[replica] - sight.held.since > GRACE
        return "gone" if how is None and old and self._unbound(state, sight) else how

    def _unbound(self, state: State, sight: Sight) -> bool:
        live = self.live(state, sight.held.uid)
        return live is not None and not live[1].node


class ReleasesTheFirstNode(Protocol):
    """A bind to a second node releases what the Pod was given on the first."""

    def decide(self, state: State, at: Bind, replica: int) -> tuple[State, str]:
        after, card = super().decide(state, at, replica)
        for node, there in enumerate(after.records):
            if card and node != at.node:
                after = with_record(after, node, tuple(one for one in there if one.uid != at.uid))
        return after, card


class Replaces(Protocol):
    """What no longer serves a Pod that a live read finds unbound is replaced at once."""

    def decide(self, state: State, at: Bind, replica: int) -> tuple[State, str]:
        live = self.live(state, at.uid)
        there = state.records[at.node]
        mine = [one for one in there if one.uid == at.uid and one.card in state.broken]
        if mine and live is not None and not live[1].node:
            state = with_record(state, at.node, tuple(one for one in there if one not in mine))
        return super().decide(state, at, replica)


class IgnoresMarks(Protocol):
    """A bind is answered with what is marked."""

    def decide(self, state: State, at: Bind, replica: int) -> tuple[State, str]:
        marked = [one for one in state.records[at.node] if one.uid == at.uid and one.mark]
        return (state, marked[0].card) if marked else super().decide(state, at, replica)


class ReleasesAtOnce(Protocol):
    """The grace is shorter than a request lives."""

    def judge(self, state: State, sight: Sight, replica: int) -> Sweep | None:
        return super().judge(state, sight._replace(age=sight.age + 1), replica)


class OneMark(Protocol):
    """All marks have the same name."""

    def new_mark(self, state: State) -> str:  # noqa: ARG002 other names depend on it
        return "a"


class ReleasesUnread(Protocol):
    """The Pod is not read before its marked holding is released."""

    def judge(self, state: State, sight: Sight, replica: int) -> Sweep | None:
        if sight.held.mark and sight.age > GRACE:
            return "unbound"
        return super().judge(state, sight, replica)


class ReleasesWhatItSaw(Protocol):
    """A release does not look for the mark that it was decided on."""

    def sweep(self, state: State, node: int, seen: Held, how: Sweep) -> State:
        return super().sweep(state, node, seen, "gone" if how == "unbound" else how)


class NeverReleases(Protocol):
    """What is marked stays."""

    def judge(self, state: State, sight: Sight, replica: int) -> Sweep | None:
        how = super().judge(state, sight, replica)
        return None if how == "unbound" else how


class LeavesMarks(Protocol):
    """The mark of a Pod that was bound stays."""

    def judge(self, state: State, sight: Sight, replica: int) -> Sweep | None:
        how = super().judge(state, sight, replica)
        return None if how == "keep" else how


LOST = "which the ledger does not hold for it"
LEAKS = "held in the end"

DOCTORED: dict[type[Protocol], tuple[Scope, str]] = {
    SweepsByTheClock: (Scope(ONE_CARD, replicas=2, binds=2), LOST),
    ReleasesTheFirstNode: (Scope(TWO_NODES, binds=3), LOST),
    Replaces: (Scope(TWO_CARDS, binds=3, breaks=1), LOST),
    IgnoresMarks: (Scope(ONE_CARD, binds=3), LOST),
    ReleasesAtOnce: (Scope(ONE_CARD, binds=2), LOST),
    OneMark: (Scope(ONE_CARD, pods=("p",), replicas=2, binds=2), LOST),
    ReleasesUnread: (Scope(ONE_CARD, binds=1), LOST),
    ReleasesWhatItSaw: (Scope(ONE_CARD, pods=("p",), replicas=2, binds=2), LOST),
    NeverReleases: (Scope(ONE_CARD, binds=1), LEAKS),
    LeavesMarks: (Scope(ONE_CARD, binds=1), LEAKS),
}


@pytest.mark.parametrize("doctored", DOCTORED, ids=lambda doctored: doctored.__name__)
def test_a_protocol_with_one_wrong_rule_is_found_guilty(doctored: type[Protocol]) -> None:
    scope, why = DOCTORED[doctored]
    explored = explore(scope, doctored, ends=why == LEAKS)
    assert why in explored.found
    assert explored.story
    same = explore(replace(scope, states=explored.states), ends=why == LEAKS)
    assert same.found == "", "the rule is what makes the difference"
