"""The plan of moves: what it moves, in which order, and what it leaves alone."""

from collections import Counter
from dataclasses import replace

import pytest
from defrag.fleets import ASKS, PACKED, closed, guest, room, shares, tenants, wanted
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_cpu import build, siblings_near
from trials import examples

from allocator.budget import Budget
from allocator.packing.copies import filled
from allocator.packing.defrag import Ended, MovePlan, PlanBounds, Tenant, plan
from allocator.packing.fleet import Fleet, Guest, NodeRoom, held_by
from allocator.place import Placement, place
from allocator.vocabulary.cpuask import CpuAsk, QosClass
from allocator.vocabulary.cpunode import CpuNode, CpuShare
from allocator.vocabulary.cpupolicy import BindPolicy
from allocator.vocabulary.holdings import Holding

A, B, C = "a", "b", "c"


def told(made: MovePlan) -> list[tuple[str, str, str]]:
    return [(move.tenant.guest.name, move.tenant.node, move.to) for move in made.moves]


def test_one_pod_moves_to_the_fuller_node_so_that_a_whole_node_is_free() -> None:
    rooms = [room(A, ("big", "0,1")), room(B, ("one", "0"))]
    made = plan(rooms, tenants(B, ("one", "0")), wanted("4"), PACKED, PlanBounds())
    assert told(made) == [("one", B, A)]
    assert (made.before, made.after, made.ended) == (0, 1, Ended.ENOUGH)
    assert [one.node for one in made.rooms] == [B]
    (move,) = made.moves
    assert move.before == Holding("one", "team", "one", 0, shares(B, "0"))
    assert move.after == Holding("after one", "team", "one", 0, shares(A, "2"))
    assert move.certain


HALVES = ("half", "0:50"), ("other", "1:50")


@pytest.mark.parametrize(
    ("late", "moved", "onto"), [(True, "half", "a-1"), (False, "other", "a-0")], ids=["late", "early"]
)
def test_shares_on_two_cards_of_a_node_are_joined_on_one(moved: str, onto: str, *, late: bool) -> None:
    # While "half" holds a part of gpu 0, its next Pod goes there too, so that only "other" is certain to change cards.
    made = plan([room(A, *HALVES, cards=2)], tenants(A, *HALVES, late=late), wanted("1"), PACKED, PlanBounds())
    assert told(made) == [(moved, A, A)]
    assert [share.id for share in made.moves[0].after.shares] == [onto]
    assert (made.before, made.after) == (0, 1)


def test_a_pod_that_would_get_other_cpus_while_it_is_there_is_in_doubt() -> None:
    cpus = CpuNode(build(1, 1, 4, 2, siblings_near))
    of = room(A, HALVES[0], cards=2)
    who = guest("other", "0:50")
    who = replace(who, request=replace(who.request, cpu=CpuAsk(QosClass.LSR, 2, 2000, 0)))
    held = Holding("other", "team", "other", 0, shares(A, "1:50"), CpuShare("LSR", 0b11, BindPolicy.FULL_PCPUS))
    of = replace(of, node=replace(of.node, cpu=cpus)).holding(held, ASKS)
    certain, doubted = (
        plan([of], [Tenant(each, A)], wanted("1"), PACKED, PlanBounds()) for each in (guest("other", "0:50"), who)
    )
    assert (told(certain), certain.doubted) == ([("other", A, A)], False)
    assert (told(doubted), doubted.doubted) == ([], True)


def test_shares_are_joined_within_a_node_before_another_pod_leaves_it() -> None:
    held = *HALVES, ("whole", "2")
    rooms = [room(A, *held), room(B, ("big", "0,1"))]
    movable = [*tenants(A, ("other", "1:50")), *tenants(A, ("whole", "2"), late=True)]
    made = plan(rooms, movable, wanted("3"), PACKED, PlanBounds())
    assert told(made) == [("other", A, A), ("whole", A, B)]
    assert made.after == 1


def test_a_pod_that_need_not_leave_is_moved_where_that_is_not_certain_of_the_one_that_must() -> None:
    rooms = [room(A, ("big", "0,1,2"), cpu=16), room(B, ("low", "0"), ("high", "1"), cards=2)]
    movable = [
        Tenant(guest("low", "0", frozenset({B})), B, priority=1),
        Tenant(guest("high", "1"), B, priority=9),
    ]
    made = plan(rooms, movable, wanted("1", cpu=20), PACKED, PlanBounds())
    assert told(made) == [("high", B, A)]


def test_pods_of_a_higher_priority_leave_where_those_of_a_lower_one_have_nowhere_to_go() -> None:
    held = ("p", "0"), ("q", "1"), ("r", "2"), ("s", "3")
    rooms = [room(A, *held, cards=5), room(B, ("big", "0,1"))]
    movable = [
        Tenant(guest(name, on, frozenset({A if name in "pq" else B})), A, priority)
        for priority, (name, on) in enumerate(held)
    ]
    assert told(plan(rooms, movable, wanted("3"), PACKED, PlanBounds())) == [("r", A, B), ("s", A, B)]


def test_where_pods_must_be_gone_first_the_plan_says_of_which_that_holds() -> None:
    # While "half" is there, its next Pod would share its card.
    rooms = [room(A, ("one", "0"), ("half", "1:50")), room(B, ("big", "0"), ("part", "1:50"))]
    movable = tenants(A, ("one", "0"), ("half", "1:50"))
    assert told(plan(rooms, movable, wanted("4"), PACKED, PlanBounds())) == []
    made = plan(rooms, movable, wanted("4"), PACKED, PlanBounds(), gone_first=True)
    assert [(move.tenant.guest.name, move.to, move.certain) for move in made.moves] == [
        ("half", B, False),
        ("one", B, True),
    ]


def test_a_pod_whose_controller_may_make_the_next_one_early_is_not_moved_where_the_place_is_uncertain() -> None:
    # While both hold a's last cards, the next Pod of either goes to b; once it has given its card back, to a.
    held = ("one", "2"), ("two", "3")
    rooms = [room(A, ("big", "0,1"), *held), room(B, ("other", "0"))]
    made = plan(rooms, [Tenant(guest(*one), A) for one in held], wanted("2"), PACKED, PlanBounds())
    assert (told(made), made.ended, made.doubted) == ([], Ended.NOTHING, True)


@pytest.mark.parametrize(
    ("rooms", "movable", "most", "ended"),
    [
        ([room(A, ("x", "0")), room(B, ("y", "0"))], [], 10, Ended.NOTHING),
        ([room(A, ("x", "0"))], tenants(A, ("x", "0")), 10, Ended.NOTHING),
        ([room(A, ("x", "0,1")), room(B, ("y", "0"), ("z", "1"))], tenants(B, ("y", "0"), ("z", "1")), 1, Ended.MOVES),
        ([room(A, ("x", "0,1")), closed(room(B, ("y", "0")))], tenants(B, ("y", "0")), 10, Ended.NOTHING),
        ([closed(room(A, ("x", "0,1"))), room(B, ("y", "0"))], tenants(B, ("y", "0")), 10, Ended.NOTHING),
    ],
    ids=["nobody may move", "no other node", "more moves than allowed", "room on a closed node", "nowhere to go"],
)
def test_no_move_is_planned(rooms: list[NodeRoom], movable: list[Tenant], most: int, ended: Ended) -> None:
    made = plan(rooms, movable, wanted("4"), PACKED, PlanBounds(moves=most))
    assert (told(made), made.before, made.after, made.ended) == ([], 0, 0, ended)


def test_the_node_with_the_fewest_pods_is_cleared_and_of_equal_ones_that_of_the_lowest_priority() -> None:
    rooms = [room(A, ("full", "0,1")), room(B, ("b1", "0")), room(C, ("c1", "0")), room("d", ("d1", "0"), ("d2", "1"))]
    movable = [
        *tenants(B, ("b1", "0"), priority=5),
        *tenants(C, ("c1", "0"), priority=1),
        *tenants("d", ("d1", "0"), ("d2", "1")),
    ]
    assert told(plan(rooms, movable, wanted("4"), PACKED, PlanBounds())) == [("c1", C, A)]
    two = plan(rooms, movable, wanted("4"), PACKED, PlanBounds(rooms=2))
    assert [one.node for one in two.rooms] == [C, B]
    assert two.after == 2


def test_where_a_node_cannot_be_cleared_the_next_one_is_tried() -> None:
    rooms = [room(A, ("full", "0,1")), room(B, ("b1", "0")), room(C, ("c1", "0")), room("d", ("d1", "0"))]
    stay = [Tenant(guest(f"{name}1", "0", frozenset({name})), name) for name in (B, C)]
    assert told(plan(rooms, [*stay, *tenants("d", ("d1", "0"))], wanted("4"), PACKED, PlanBounds())) == [("d1", "d", A)]


def test_no_other_node_loses_room() -> None:
    # The only other place for "one" is the idle node, which holds the size now.
    rooms = [room(A, ("one", "0")), room(B)]
    movable = [Tenant(guest("one", "0", frozenset({B})), A)]
    made = plan(rooms, movable, wanted("4"), PACKED, PlanBounds())
    assert (told(made), made.before, made.after, made.doubted) == ([], 1, 1, False)
    assert told(plan([*rooms[:1], room(B, cards=3)], movable, wanted("4"), PACKED, PlanBounds())) == [("one", A, B)]


def test_a_pod_goes_only_where_its_selection_allows_it_and_cpus_suffice() -> None:
    here = frozenset({B, C})
    rooms = [room(A, ("big", "0,1")), room(B, ("one", "0")), room(C, ("two", "0,1"), cpu=4)]
    only = [Tenant(guest("one", "0", here), B)]
    assert told(plan(rooms, only, wanted("4"), PACKED, PlanBounds())) == []
    assert told(plan([*rooms[:2], room(C, ("two", "0,1"), cpu=8)], only, wanted("4"), PACKED, PlanBounds())) == [
        ("one", B, C)
    ]


def test_pods_leave_for_the_sake_of_cpus_too() -> None:
    rooms = [room(A, ("big", "0,1"), ("half", "2:50")), room(B, ("one", "0:10"), cpu=8)]
    movable = tenants(B, ("one", "0:10"))
    made = plan(rooms, movable, wanted("2", cpu=8), PACKED, PlanBounds())
    assert (made.before, made.after) == (0, 1), "on b, 3 cards and 4 of 8 CPUs were free"
    assert told(made) == [("one", B, A)]
    assert told(plan(rooms, movable, wanted("2", cpu=9), PACKED, PlanBounds())) == []


def test_a_plan_is_for_one_room_of_ten_moves_and_some_seconds_unless_more_is_said() -> None:
    usual = PlanBounds()
    assert (usual.rooms, usual.moves) == (1, 10)
    assert (usual.steps.left, usual.landings.left, usual.decisions.left) == (4_000_000, 4000, 100_000)


# Pods of a node of 24 CPUs: the CPUs that each requests, and its priority; the CPUs of the wanted Pod; who leaves

CROWDED: dict[str, tuple[dict[str, tuple[int, int]], int, list[str]]] = {
    "the one of the lowest priority": ({"x": (4, 1), "y": (8, 9)}, 16, ["x"]),
    "of one priority the one that requests most": ({"x": (4, 1), "y": (6, 1)}, 18, ["y"]),
    "of equal ones the first": ({"y": (4, 1), "x": (4, 1)}, 20, ["x"]),
    "as many as are needed": ({"x": (4, 1), "y": (4, 1), "z": (4, 1)}, 20, ["x", "y"]),
    "none that another makes needless": ({"w": (2, 0), "x": (2, 0), "y": (8, 1)}, 20, ["y"]),
    "of needless ones the highest priority stays": ({"x": (4, 0), "y": (4, 1), "z": (8, 2)}, 20, ["x", "z"]),
    "of needless ones of one priority the first stays": ({"x": (4, 0), "y": (4, 0), "z": (8, 2)}, 20, ["y", "z"]),
    "none that requests no CPUs": ({"w": (0, 0), "x": (4, 1), "y": (16, 1)}, 8, ["y"]),
    "nobody where all of them are too few": ({"w": (0, 0), "x": (4, 1)}, 25, []),
}


@pytest.mark.parametrize(("pods", "cpu", "leave"), CROWDED.values(), ids=CROWDED)
def test_who_leaves_for_the_sake_of_cpus(pods: dict[str, tuple[int, int]], cpu: int, leave: list[str]) -> None:
    crowded, movable = room(B, cpu=24), []
    for at, (name, (asked, priority)) in enumerate(pods.items()):
        who = replace(guest(name, "0:20", frozenset({A})), asks={"cpu": asked * 1000})
        crowded = crowded.holding(Holding(name, "team", name, 0, shares(B, f"{at}:20")), who.asks)
        movable.append(Tenant(who, B, priority))
    parts = room(A, *((f"a{minor}", f"{minor}:10") for minor in range(4)))  # no whole card
    made = plan([parts, crowded], movable, wanted("1", cpu=cpu), PACKED, PlanBounds())
    assert told(made) == [(name, B, A) for name in leave]


@pytest.mark.parametrize(
    ("late", "landings", "ended"),
    [(False, 1, Ended.WORK), (False, 2, Ended.ENOUGH), (True, 0, Ended.WORK), (True, 1, Ended.ENOUGH)],
)
def test_a_search_that_is_ended_says_so(landings: int, ended: Ended, *, late: bool) -> None:
    rooms = [room(A, ("big", "0,1")), room(B, ("one", "0"))]
    bounds = PlanBounds(landings=Budget(landings))
    assert plan(rooms, tenants(B, ("one", "0"), late=late), wanted("4"), PACKED, bounds).ended is ended


def test_a_search_that_is_ended_tries_no_other_node() -> None:
    rooms = [room(A, ("big", "0,1")), room(B, ("one", "0")), room(C, ("two", "0"))]
    movable = [*tenants(B, ("one", "0")), *tenants(C, ("two", "0"), late=True)]  # one landing would suffice for two
    made = plan(rooms, movable, wanted("4"), PACKED, PlanBounds(landings=Budget(1)))
    assert (told(made), made.ended) == ([], Ended.WORK)


def test_a_choice_of_pods_that_costs_more_steps_than_are_left_is_not_made() -> None:
    rooms = [room(A, ("big", "0,1")), room(B, ("one", "0"), ("two", "1"))]
    movable = tenants(B, ("one", "0"), ("two", "1"))
    assert told(plan(rooms, movable, wanted("3"), PACKED, PlanBounds())) == [("one", B, A)]
    made = plan(rooms, movable, wanted("3"), PACKED, PlanBounds(steps=Budget(1)))
    assert (told(made), made.ended) == ([], Ended.WORK)


KINDS = st.sampled_from(["whole", "two", "half", "quarter", "tenth"])
ASKED = {"whole": "0", "two": "0,1", "half": "0:50", "quarter": "0:25", "tenth": "0:10"}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[NodeRoom], list[Tenant]]:
    """Nodes with Pods where `place()` put them; most of the Pods may be moved."""
    count = draw(st.integers(2, 4))
    rooms = [
        room(f"n{at}", cards=draw(st.sampled_from([2, 4])), cpu=draw(st.sampled_from([16, 64]))) for at in range(count)
    ]
    found = []
    for number, (at, kind) in enumerate(draw(st.lists(st.tuples(st.integers(0, count - 1), KINDS), max_size=10))):
        who = guest(f"p{number}", ASKED[kind])
        outcome = place(who.request, rooms[at].node)
        if isinstance(outcome, Placement) and not rooms[at].lacks(who.asks):
            rooms[at] = rooms[at].holding(held_by(who, outcome), who.asks)
            if draw(st.integers(0, 4)):
                found.append(Tenant(who, rooms[at].node.name, draw(st.integers(0, 2)), draw(st.booleans())))
    return rooms, found


SIZES = st.sampled_from(["50%", "1", "2", "4", "2:50%"])


def total(rooms: list[NodeRoom], of: Guest) -> int:
    return sum(filled(one, of).count for one in rooms)


def after(rooms: list[NodeRoom], made: MovePlan, count: int) -> dict[str, NodeRoom]:
    """The nodes after the first moves, made anew."""
    now = {one.node.name: one for one in rooms}
    for move in made.moves[:count]:
        who = move.tenant.guest
        now[move.tenant.node] = now[move.tenant.node].without(who.uid, who.asks)
        now[move.to] = now[move.to].holding(move.after, who.asks)
    return now


@given(clusters(), SIZES, st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=examples(60))
def test_after_the_moves_nothing_is_given_twice_and_more_pods_of_the_size_fit(
    cluster: tuple[list[NodeRoom], list[Tenant]], size: str, count: int, most: int
) -> None:
    (rooms, movable), of = cluster, wanted(size)
    made = plan(rooms, movable, of, PACKED, PlanBounds(count, most))
    assert made.before == total(rooms, of)
    assert len(made.moves) <= most
    assert len(made.rooms) <= count
    assert max(Counter(move.tenant.guest.uid for move in made.moves).values(), default=1) == 1
    assert {move.tenant.guest.uid for move in made.moves} <= {one.guest.uid for one in movable}
    for number in range(len(made.moves) + 1):
        now = after(rooms, made, number)
        for one in now.values():
            one.node.check_invariants()
            assert not one.lacks({}), one
        held = Counter(uid for one in now.values() for uid in one.node.holdings)
        assert max(held.values(), default=1) == 1
        assert total(list(now.values()), of) >= made.before, "no room is lost on the way"
    assert made.after == total(list(after(rooms, made, len(made.moves)).values()), of)
    assert made.after >= made.before + len(made.rooms)
    assert bool(made.moves) == (made.after > made.before)


@given(clusters(), SIZES)
@settings(max_examples=examples(60))
def test_each_next_pod_goes_where_it_was_planned_whether_the_old_one_is_still_there_or_gone(
    cluster: tuple[list[NodeRoom], list[Tenant]], size: str
) -> None:
    (rooms, movable), of = cluster, wanted(size)
    plans = [plan(rooms, movable, of, PACKED, PlanBounds(2), gone_first=gone_first) for gone_first in (False, True)]
    assert all(move.certain for move in plans[0].moves)
    assert plans[0].doubted or plans[0] == plans[1], "the second plan is made only where a move was doubted"
    for made, number, move in ((of_one, *each) for of_one in plans for each in enumerate(of_one.moves)):
        who, now = move.tenant.guest, after(rooms, made, number)
        here = {share.id for share in move.after.shares}

        def goes_there(at: dict[str, NodeRoom], who: Guest = who, here: set[str] = here) -> bool:
            found = Fleet(at.values(), PACKED).goes_to(who)
            return found is not None and {share.id for share in found.shares} == here

        there = goes_there(now)
        now[move.tenant.node] = now[move.tenant.node].without(who.uid, who.asks)
        assert goes_there(now)
        assert move.certain == (there or move.tenant.late)


@given(clusters(), SIZES)
@settings(max_examples=examples(40))
def test_no_move_of_a_room_can_be_left_out(cluster: tuple[list[NodeRoom], list[Tenant]], size: str) -> None:
    (rooms, movable), of = cluster, wanted(size)
    made = plan(rooms, movable, of, PACKED, PlanBounds())
    for one in made.rooms:
        start = {each.node.name: each for each in rooms}
        had = filled(start[one.node], of).count
        now = after(rooms, made, len(made.moves) - 1)
        assert filled(now[one.node], of).count == had, "the last move is needed"
        assert filled(after(rooms, made, len(made.moves))[one.node], of).count > had


@given(clusters(), SIZES, st.randoms(use_true_random=False))
@settings(max_examples=examples(40))
def test_the_plan_depends_on_no_order(
    cluster: tuple[list[NodeRoom], list[Tenant]], size: str, random: "st.random.Random"
) -> None:
    (rooms, movable), of = cluster, wanted(size)
    first = plan(rooms, movable, of, PACKED, PlanBounds(rooms=2))
    mixed, others = list(rooms), list(movable)
    random.shuffle(mixed)
    random.shuffle(others)
    assert plan(mixed, others, of, PACKED, PlanBounds(rooms=2)) == first
