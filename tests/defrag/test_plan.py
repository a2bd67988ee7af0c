"""The plan of moves: what it moves, in which order, and what it leaves alone."""

from collections import Counter

import pytest
from defrag.fleets import PACKED, closed, guest, room, tenants, wanted
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.budget import Budget
from allocator.packing.copies import filled
from allocator.packing.defrag import Ended, MovePlan, PlanBounds, Tenant, plan
from allocator.packing.fleet import Fleet, Guest, NodeRoom, held_by
from allocator.place import Placement, place

A, B, C = "a", "b", "c"


def told(made: MovePlan) -> list[tuple[str, str, str]]:
    return [(move.tenant.guest.name, move.tenant.node, move.to) for move in made.moves]


def test_one_pod_moves_to_the_fuller_node_so_that_a_whole_node_is_free() -> None:
    rooms = [room(A, ("big", "0,1")), room(B, ("one", "0"))]
    made = plan(rooms, tenants(B, ("one", "0")), wanted("4"), PACKED, PlanBounds())
    assert told(made) == [("one", B, A)]
    assert (made.before, made.after, made.ended) == (0, 1, Ended.ENOUGH)
    assert [one.node for one in made.rooms] == [B]


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
    # While "one" holds a's last card, the next Pod goes to b; once it has given it back, to a.
    rooms = [room(A, ("big", "0,1,2"), ("one", "3"), cards=4), room(B, ("two", "0"), cards=4)]
    early = plan(rooms, tenants(A, ("one", "3")), wanted("4"), PACKED, PlanBounds())
    assert told(early) == []


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


def test_no_other_node_loses_room() -> None:
    # The only other place for "one" is the idle node, which holds the size now.
    rooms = [room(A, ("one", "0")), room(B)]
    made = plan(rooms, tenants(A, ("one", "0")), wanted("4"), PACKED, PlanBounds())
    assert (told(made), made.before, made.after) == ([], 1, 1)


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


def test_a_search_that_is_ended_says_so() -> None:
    rooms = [room(A, ("big", "0,1")), room(B, ("one", "0"))]
    bounds = PlanBounds(landings=Budget(1))
    assert plan(rooms, tenants(B, ("one", "0")), wanted("4"), PACKED, bounds).ended is Ended.WORK


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
