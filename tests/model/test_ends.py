"""What a Pod's bind records is held for nobody once the Pod has ended, in whichever order replicas see the two."""

import pytest
from model.ends import Look, Protocol, Replica, Scope, State, explore
from model.protocol import Bound, Held

from webhook.upkeep.reconcile import Ended

TWO_NODES = (("c0",), ("c1",))
SCOPES: dict[str, tuple[Scope, int]] = {
    "one replica": (Scope(pods=("p",)), 3_000),
    "one replica, a Pod created again under its name": (Scope(binds=2), 3_000),
    "one replica that lists and starts anew": (Scope(binds=2, lists=1, starts=1), 3_000),
    "two replicas": (Scope(replicas=2, binds=2), 3_000),
    "two replicas, two nodes": (Scope(TWO_NODES, replicas=2, binds=3, lists=1), 3_000),
}


@pytest.mark.parametrize("name", SCOPES)
def test_in_no_first_state_does_an_ended_pod_keep_anything_or_a_live_one_lose_it(name: str) -> None:
    scope, states = SCOPES[name]
    explored = explore(scope, states=states)
    assert (explored.found, explored.story) == ("", ())
    assert explored.complete or explored.states == states


@pytest.mark.parametrize("name", SCOPES)
def test_on_no_long_way_does_an_ended_pod_keep_anything_or_a_live_one_lose_it(name: str) -> None:
    explored = explore(SCOPES[name][0], walks=60)
    assert (explored.found, explored.story) == ("", ())
    assert explored.states > 100


# --- protocols with one wrong rule


class LooksForEndsOnly(Protocol):
    """What is recorded is not looked at: the Pod's end will find it."""

    def recorded(self, replica: Replica, node: int, one: Held) -> Replica:  # noqa: ARG002 nothing counts
        return replica


class TrustsItsWatch(Protocol):
    """A Pod that was not seen does not exist."""

    def told(self, state: State, replica: Replica, uid: str) -> tuple[str, Bound] | None:
        return None if self.known(replica, uid) is None else super().told(state, replica, uid)


class AsksByName(Protocol):
    """A Pod of that name is the Pod."""

    def live(self, state: State, uid: str) -> tuple[str, Bound] | None:
        found = super().live(state, uid)
        return None if found is None else (uid, found[1])


class LooksOnce(Protocol):
    """What is not bound yet is not looked at again."""

    def looked(self, state: State, replica: Replica, at: Look) -> tuple[Ended | None, bool]:
        return super().looked(state, replica, at)[0], False


class ReleasesWhatIsNotBound(Protocol):
    """A Pod that the API server has, and that is not bound, holds nothing."""

    def looked(self, state: State, replica: Replica, at: Look) -> tuple[Ended | None, bool]:
        how, again = super().looked(state, replica, at)
        return ("gone", False) if again else (how, again)


class WaitsForFinalizers(Protocol):
    """A Pod that is being deleted before it was bound may still be bound."""

    def bound(self, phase: str, card: str) -> Bound:
        return Bound(self.node_of(card), over=phase == "finished")


LEAKS, LOST = "leaves", "the ledger does not hold it"
DOCTORED: dict[type[Protocol], str] = {
    LooksForEndsOnly: LEAKS,
    TrustsItsWatch: LOST,
    AsksByName: LEAKS,
    LooksOnce: LEAKS,
    ReleasesWhatIsNotBound: LOST,
    WaitsForFinalizers: LEAKS,
}


@pytest.mark.parametrize("doctored", DOCTORED, ids=lambda doctored: doctored.__name__)
def test_a_protocol_with_one_wrong_rule_is_found_guilty(doctored: type[Protocol]) -> None:
    explored = explore(Scope(), doctored, states=20_000)
    assert DOCTORED[doctored] in explored.found
    assert explored.story
