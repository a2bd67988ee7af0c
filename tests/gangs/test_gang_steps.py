"""The next step for a gang that is bound as a whole, for every state that it can be in."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from builders import app, gpus, request
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.vocabulary.asks import Wishes
from allocator.vocabulary.holdings import WITHOUT_LIMIT, Holding
from webhook.gangs.step import (
    Close,
    FindRoom,
    GangHold,
    GangMember,
    GangStep,
    GangTimes,
    GiveBack,
    Lift,
    Limit,
    Prolong,
    Rest,
    next_step,
)
from webhook.view.podinfo import PodInfo

NOW = 1_000_000
OLD = NOW - 1000
UNTIL = NOW + 50
ENDED = NOW - 50


def waiting(name: str, cards: int = 1, *, gated: bool = True, **about: Any) -> PodInfo:
    of = replace(request(app("main", gpus(100 * cards))), wishes=Wishes(gang="default/g", all_or_nothing=True))
    return replace(
        PodInfo(f"uid-{name}", "default", name, "", False, False, "koord-scheduler", True, of, gated=gated), **about
    )


def holds(pod: PodInfo, *held: tuple[str, int] | tuple[str, int, str]) -> GangMember:
    """A Pod that holds something: node, until, and the mark on it."""
    made = [
        (node, Holding(pod.uid, "default", pod.name, OLD, (), None, "default/g", until, mark[0] if mark else ""))
        for node, until, *mark in held
    ]
    return GangMember(pod, tuple(made))


def at(*held: tuple[str, str, int] | tuple[str, str, int, str]) -> tuple[GangHold, ...]:
    return tuple(GangHold(node, f"uid-{name}", until, *mark) for node, name, until, *mark in held)


A, B, C = (waiting(name) for name in "abc")
FREE_A, FREE_B = (replace(pod, gated=False) for pod in (A, B))
BOUND = GangMember(waiting("x", gated=False, node="n"))
TAKEN = holds(waiting("y", gated=False), ("n", 0))
FEW = "the gang needs 3 Pods, and 2 of them exist and can be scheduled; only Pods with devices and the annotation count"
OVER = Rest("the time for which room was held is over, and none of its Pods was bound", over=True)

STEPS: dict[str, tuple[list[GangMember], int, GangStep]] = {
    "no Pod": ([], 2, Rest()),
    "nobody states the size": (
        [GangMember(A)],
        0,
        Rest("nobody states how many Pods the gang needs: create its PodGroup, or annotate its Pods"),
    ),
    "too few Pods": ([GangMember(A), GangMember(B)], 3, Rest(FEW)),
    "enough Pods": ([GangMember(B), GangMember(A)], 2, FindRoom((A, B), 2, 0)),
    "more than enough, the larger first": (
        [GangMember(A), GangMember(waiting("z", 4)), GangMember(B)],
        2,
        FindRoom((waiting("z", 4), A, B), 2, 0),
    ),
    "one has another gate": ([GangMember(A), GangMember(replace(B, gates=True)), GangMember(C)], 3, Rest(FEW)),
    "one cannot be read": ([GangMember(A), GangMember(replace(B, problem="x")), GangMember(C)], 3, Rest(FEW)),
    "one was never translated": ([GangMember(A), GangMember(replace(B, canonical=False)), GangMember(C)], 3, Rest(FEW)),
    "one is being deleted": ([GangMember(A), GangMember(replace(B, terminating=True)), GangMember(C)], 3, Rest(FEW)),
    "one failed before it was bound": (
        [GangMember(A), GangMember(replace(B, finished=True)), GangMember(C)],
        3,
        Rest(FEW),
    ),
    "one failed": (
        [GangMember(A), GangMember(replace(BOUND.pod, finished=True)), GangMember(C)],
        3,
        Rest(FEW),
    ),
    "one has succeeded": (
        [GangMember(A), GangMember(replace(BOUND.pod, finished=True, succeeded=True)), GangMember(C)],
        3,
        FindRoom((A, C), 2, 0),
    ),
    "one has succeeded, and one is bound": (
        [GangMember(A), GangMember(replace(BOUND.pod, finished=True, succeeded=True)), TAKEN],
        3,
        FindRoom((A,), 1, WITHOUT_LIMIT),
    ),
    "one is bound": ([GangMember(A), BOUND], 2, FindRoom((A,), 1, WITHOUT_LIMIT)),
    "more than the gang needs are bound": (
        [GangMember(A), GangMember(B), BOUND, TAKEN],
        1,
        FindRoom((A, B), 1, WITHOUT_LIMIT),
    ),
    "all are held": ([holds(A, ("n", UNTIL)), holds(B, ("m", UNTIL))], 2, Lift((A, B))),
    "all are held, one gate is gone": ([holds(FREE_A, ("n", UNTIL)), holds(B, ("m", UNTIL))], 2, Lift((B,))),
    "all are held, no gate is left": ([holds(FREE_A, ("n", UNTIL)), holds(FREE_B, ("m", UNTIL))], 2, Rest()),
    "one of two is held": ([holds(A, ("n", UNTIL)), GangMember(B)], 2, FindRoom((B,), 1, UNTIL)),
    "one of three is held, one is missing": ([holds(A, ("n", UNTIL)), GangMember(B)], 3, Rest(FEW)),
    "one is held and is being deleted": (
        [holds(replace(A, terminating=True), ("n", UNTIL)), GangMember(B), GangMember(C)],
        3,
        Rest(FEW),
    ),
    "held for different times": (
        [holds(A, ("n", UNTIL)), holds(B, ("m", UNTIL + 9)), holds(C, ("m", UNTIL + 1))],
        3,
        Prolong(at(("n", "a", UNTIL), ("m", "c", UNTIL + 1)), UNTIL + 9),
    ),
    "one time is over, the other not": (
        [holds(A, ("n", ENDED)), holds(B, ("m", UNTIL))],
        2,
        Prolong(at(("n", "a", ENDED)), UNTIL),
    ),
    "an end that has passed by this replica's clock": (
        [holds(A, ("n", ENDED)), holds(B, ("m", ENDED))],
        2,
        Lift((A, B)),
    ),
    "another replica has begun to end the holds": (
        [holds(FREE_A, ("n", UNTIL, "x")), holds(B, ("m", UNTIL))],
        2,
        Close(at(("m", "b", UNTIL))),
    ),
    "all holds are marked": ([holds(FREE_A, ("n", UNTIL, "x")), holds(B, ("m", UNTIL, "y"))], 2, OVER),
    "one is bound, and the others are marked": (
        [BOUND, holds(FREE_B, ("m", ENDED, "x")), holds(C, ("m", WITHOUT_LIMIT, "y"))],
        2,
        Prolong(at(("m", "b", ENDED, "x"), ("m", "c", WITHOUT_LIMIT, "y")), WITHOUT_LIMIT),
    ),
    "the bind of one has been decided": (
        [TAKEN, holds(FREE_B, ("m", UNTIL))],
        2,
        Prolong(at(("m", "b", UNTIL)), WITHOUT_LIMIT),
    ),
    "the gang had begun, and the others are gone": (
        [holds(A, ("n", WITHOUT_LIMIT)), holds(B, ("m", UNTIL))],
        2,
        Limit(at(("n", "a", WITHOUT_LIMIT))),
    ),
    "the gang had begun, and the others have succeeded": (
        [holds(A, ("n", WITHOUT_LIMIT)), GangMember(replace(BOUND.pod, finished=True, succeeded=True))],
        2,
        Limit(at(("n", "a", WITHOUT_LIMIT))),
    ),
    "the gang had begun, and what has finished has not left the ledger": (
        [holds(A, ("n", WITHOUT_LIMIT)), holds(replace(BOUND.pod, finished=True), ("n", 0))],
        2,
        Limit(at(("n", "a", WITHOUT_LIMIT))),
    ),
    "the gang has begun, and one is being deleted": (
        [holds(A, ("n", WITHOUT_LIMIT)), GangMember(replace(BOUND.pod, terminating=True))],
        2,
        Lift((A,)),
    ),
    "one holds something twice": (
        [holds(A, ("m", UNTIL), ("n", UNTIL)), holds(B, ("m", UNTIL))],
        2,
        GiveBack(at(("n", "a", UNTIL)), over=False),
    ),
    "one holds something twice, and a bind has taken one": (
        [holds(FREE_A, ("m", WITHOUT_LIMIT), ("n", 0)), holds(B, ("m", WITHOUT_LIMIT))],
        2,
        Lift((B,)),
    ),
}


@pytest.mark.parametrize(("members", "least", "step"), STEPS.values(), ids=STEPS)
def test_the_next_step(members: list[GangMember], least: int, step: GangStep) -> None:
    assert next_step(members, least, GangTimes(), frozenset()) == step
    assert next_step(members[::-1], least, GangTimes(), frozenset()) == (
        step if isinstance(step, Rest | FindRoom | Lift) else replace(step, holds=step.holds[::-1])
    )


def test_holds_whose_time_is_over_are_marked_then_released_together_when_the_marks_have_been_seen_for_long() -> None:
    members = [holds(FREE_A, ("n", UNTIL)), holds(B, ("m", UNTIL))]
    over = GangTimes(over=True)
    assert next_step(members, 2, over, frozenset()) == Close(at(("n", "a", UNTIL), ("m", "b", UNTIL)))
    marked = [holds(FREE_A, ("n", UNTIL, "x")), holds(B, ("m", UNTIL, "y"))]
    assert next_step(marked, 2, over, frozenset()) == OVER
    both = at(("n", "a", UNTIL, "x"), ("m", "b", UNTIL, "y"))
    assert next_step(marked, 2, GangTimes(over=True, closed=True), frozenset()) == GiveBack(both, over=True)
    assert next_step([BOUND, *marked], 3, GangTimes(over=True, closed=True), frozenset()) == Prolong(
        both, WITHOUT_LIMIT
    )


def test_what_a_replica_has_held_itself_needs_not_settle() -> None:
    members = [holds(A, ("n", UNTIL)), holds(B, ("m", UNTIL))]
    both = {("n", "uid-a", OLD), ("m", "uid-b", OLD)}
    fresh = GangTimes(fresh=both)
    assert next_step(members, 2, fresh, both) == Lift((A, B))
    assert next_step(members, 2, fresh, both - {("n", "uid-a", OLD)}) == Rest()
    assert next_step(members, 2, fresh, {("m", "uid-a", OLD), ("n", "uid-b", OLD)}) == Rest()
    assert next_step(members, 2, fresh, {("n", "uid-a", OLD - 1), ("m", "uid-b", OLD)}) == Rest()


@st.composite
def states(draw: st.DrawFn) -> list[GangMember]:
    found = []
    for name in "abcde"[: draw(st.integers(0, 5))]:
        node = draw(st.sampled_from(["", "", "", "n"]))
        pod = waiting(
            name,
            draw(st.integers(1, 2)),
            gated=not node and draw(st.booleans()),
            node=node,
            finished=draw(st.sampled_from([False, False, True])),
            terminating=draw(st.sampled_from([False, False, True])),
        )
        untils = st.sampled_from([0, ENDED, NOW, UNTIL, UNTIL + 1, WITHOUT_LIMIT])
        ends = st.tuples(untils, st.sampled_from(["", "", "x"]))
        held = draw(st.dictionaries(st.sampled_from("mn"), ends, max_size=2))
        found.append(holds(pod, *((node, until, mark) for node, (until, mark) in sorted(held.items()))))
    return found


def applied(members: Iterable[GangMember], step: GangStep) -> list[GangMember]:
    """The state after a step."""
    changed = (
        {(one.node, one.uid) for one in step.holds} if isinstance(step, Close | GiveBack | Prolong | Limit) else set()
    )
    found = []
    for member in members:
        pod, held = member.pod, list(member.held)
        if isinstance(step, GiveBack):
            held = [one for one in held if (one[0], pod.uid) not in changed]
        elif isinstance(step, Close):
            held = [
                (node, replace(holding, ending="new") if (node, pod.uid) in changed else holding)
                for node, holding in held
            ]
        elif isinstance(step, Prolong | Limit):
            until = step.until if isinstance(step, Prolong) else NOW + 100
            held = [
                (node, replace(holding, until=until, ending="") if (node, pod.uid) in changed else holding)
                for node, holding in held
            ]
        elif isinstance(step, Lift) and pod in step.pods:
            pod = replace(pod, gated=False)
        elif isinstance(step, FindRoom) and pod in step.pods:
            held = list(holds(pod, ("p", step.until or UNTIL)).held)
        found.append(GangMember(pod, tuple(held)))
    return found


@given(states(), st.integers(0, 5), st.builds(GangTimes, over=st.booleans(), closed=st.booleans()))
@settings(max_examples=examples(300))
def test_steps_come_to_an_end_and_are_safe(members: list[GangMember], least: int, times: GangTimes) -> None:
    for _ in range(8):
        step = next_step(members, least, times, frozenset())
        started = any(member.live for member in members)
        if isinstance(step, Rest):
            return
        if isinstance(step, GiveBack):
            lost = {member.pod.uid for member in members if member.held} - {
                member.pod.uid for member in applied(members, step) if member.held
            }
            assert not (started and lost), "a Pod of a gang that has begun keeps what is held for it"
            if lost:
                assert all(hold.ending for hold in step.holds), "no bind can take one hold while another one goes"
        if isinstance(step, Lift):
            assert all(pod.gated for pod in step.pods)
            untils = {holding.until for member in members for _, holding in member.held if holding.until}
            assert len(untils) <= 1, "all holds end together before a gate is lifted"
        members = applied(members, step)
        if not isinstance(step, Close):
            times = GangTimes()  # the holds are others now, or end at another time
    pytest.fail(f"no end: {members}")
