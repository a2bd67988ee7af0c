"""No interleaving gives a card to a Pod and to a ResourceClaim, or leaks it; one wrong rule is found out."""

from collections.abc import Iterator

import pytest
from model.claim_protocol import Held, Protocol, Scope, State, Stored, Sweep, Write, bounded, explore, record

from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot

COMPLETE: dict[str, Scope] = {
    "one card, an allocation, a bind": Scope(deletions=1, ends=1),
    "two allocations of one claim, deallocated": Scope(writes=2, deallocations=1),
    "two replicas": Scope(replicas=2),
}
BOUNDED: dict[str, Scope] = {
    "two replicas, allocated again": Scope(replicas=2, writes=2, binds=2, deallocations=1, deletions=1, states=20_000),
    "two cards": Scope(cards=("c0", "c1"), pods=("p", "q"), writes=2, binds=2, deallocations=1, states=20_000),
    "two claims": Scope(claims=("x", "y"), writes=2, binds=2, deallocations=1, deletions=1, states=20_000),
}


@pytest.mark.parametrize("name", COMPLETE)
def test_in_all_states_of_a_small_world_nothing_is_given_twice_or_leaked(name: str) -> None:
    explored = explore(COMPLETE[name])
    print(f"{name}: all {explored.states} states")  # noqa: T201 pytest -rP shows it
    assert (explored.found, explored.story) == ("", ())
    assert explored.complete
    assert explored.states > 1_000


@pytest.mark.parametrize("name", BOUNDED)
def test_in_the_first_states_of_a_larger_world_nothing_is_given_twice_or_leaked(name: str) -> None:
    explored = explore(BOUNDED[name])
    assert (explored.found, explored.story) == ("", ())
    assert explored.states == BOUNDED[name].states


# --- protocols with one wrong rule


class OnlyLooks(Protocol):
    """The review records nothing: it looks whether the card is free."""

    def review(self, state: State, at: Write, replica: int) -> tuple[State, bool]:
        return state, super().review(state, at, replica)[1]


class BindsByTheView(Protocol):
    """A bind counts the claims that were seen, and not what was reserved for others."""

    def _bound(self, there: tuple[Held, ...], seen: tuple[Stored, ...], uid: str) -> tuple[tuple[Held, ...], str]:
        after, card = super()._bound(tuple(held for held in there if not held.fence), seen, uid)
        return tuple(sorted({*after, *(held for held in there if held.fence)})), card


class BelievesOldKnowledge(Protocol):
    """A claim that was seen unallocated makes its reservation void, however old that knowledge is."""

    def snapshot(self, holdings: dict[str, Holding], seen: tuple[Stored, ...]) -> NodeSnapshot:  # type: ignore[override]
        free = {one.uid for one in seen if not one.card}
        return super().snapshot({uid: one for uid, one in holdings.items() if uid not in free}, seen)

    def _bound(self, there: tuple[Held, ...], seen: tuple[Stored, ...], uid: str) -> tuple[tuple[Held, ...], str]:
        after, card = super()._bound(there, seen, uid)
        return tuple(sorted({*after, *(held for held in there if held.fence)})), card


class ReleasesAtOnce(Protocol):
    """What was reserved is released as soon as a live read finds the claim unallocated."""

    def sweeps(self, state: State, replica: int) -> Iterator[tuple[str, Held, Sweep]]:
        for what, held, how in super().sweeps(state, replica):
            yield what, held, "release" if how == "end" else how
        for held, _ in state.replicas[replica].sights:
            if any(one.uid == held.uid and not one.card for one in state.claims):
                yield "unallocated", held, "release"


class ReleasesUnguarded(Protocol):
    """A release does not look at the fence that it was decided on."""

    def sweep(self, state: State, seen: Held, how: Sweep) -> State:
        if how == "end":
            return super().sweep(state, seen, how)
        return state._replace(record=tuple(held for held in state.record if held.uid != seen.uid))


class AnswersMarked(Protocol):
    """A review is answered with what is marked."""

    def _reviewed(self, there: tuple[Held, ...], seen: tuple[Stored, ...], at: Write) -> tuple[tuple[Held, ...], bool]:
        if any(
            (held.uid, held.fence) == (at.uid, at.revision) and held.mark and at.card in held.cards for held in there
        ):
            return there, True
        return super()._reviewed(there, seen, at)


class Replaces(Protocol):
    """A second attempt at the same revision replaces what the first was answered with."""

    def _reviewed(self, there: tuple[Held, ...], seen: tuple[Stored, ...], at: Write) -> tuple[tuple[Held, ...], bool]:
        return super()._reviewed(tuple(held for held in there if held.uid != at.uid), seen, at)


class BindDropsReservations(Protocol):
    """A bind writes what Pods hold, and loses what is reserved."""

    def _bound(self, there: tuple[Held, ...], seen: tuple[Stored, ...], uid: str) -> tuple[tuple[Held, ...], str]:
        after, card = super()._bound(there, seen, uid)
        return (record({held.uid: self.holding(held) for held in after if not held.fence}) if card else after), card


class NeverReleases(Protocol):
    """What is marked stays."""

    def sweeps(self, state: State, replica: int) -> Iterator[tuple[str, Held, Sweep]]:
        for what, held, how in super().sweeps(state, replica):
            if not (held.mark and what.endswith("unperformed")):
                yield what, held, how


TWICE = "is given to"
LEAKS = "reserved in the end"
TWO_CARDS = ("c0", "c1")

DOCTORED: dict[type[Protocol], tuple[Scope, str]] = {
    OnlyLooks: (Scope(), TWICE),
    BindsByTheView: (Scope(), TWICE),
    BelievesOldKnowledge: (Scope(), TWICE),
    ReleasesAtOnce: (Scope(), TWICE),
    ReleasesUnguarded: (Scope(writes=2, deallocations=1), TWICE),
    AnswersMarked: (Scope(writes=2), TWICE),
    Replaces: (Scope(cards=TWO_CARDS, writes=2, binds=2, pods=("p", "q")), TWICE),
    BindDropsReservations: (Scope(cards=TWO_CARDS, pods=("p", "q"), binds=2), TWICE),
    NeverReleases: (Scope(), LEAKS),
}


@pytest.mark.parametrize("doctored", DOCTORED, ids=lambda doctored: doctored.__name__)
def test_a_protocol_with_one_wrong_rule_is_found_guilty(doctored: type[Protocol]) -> None:
    scope, why = DOCTORED[doctored]
    explored = explore(scope, doctored, ends=why == LEAKS)
    assert why in explored.found
    assert explored.story
    same = explore(bounded(scope, explored.states), ends=why == LEAKS)
    assert same.found == "", "the rule is what makes the difference"
