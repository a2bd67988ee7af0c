"""How few Pods could leave a node: a bound that is never above what the exact choice finds."""

import pytest
from defrag.fleets import PACKED, broken, guest, room, tenants, wanted
from defrag.test_plan import SIZES, clusters
from hypothesis import given, settings
from trials import examples

from allocator.packing import defrag
from allocator.packing.clearing import NEVER, fewest_leaving
from allocator.packing.copies import filled
from allocator.packing.defrag import PlanBounds, Tenant, plan
from allocator.packing.fleet import NodeRoom


@pytest.mark.parametrize(
    ("of", "size", "movable", "fewest"),
    [
        (room("a", ("x", "0"), ("y", "1")), "4", "xy", 2),
        (room("a", ("x", "0"), ("y", "1")), "3", "xy", 1),
        (room("a", ("x", "0,1")), "4", "x", 1),
        (room("a", ("x", "0"), ("y", "1")), "4", "x", NEVER),
        (room("a", ("x", "0:50"), ("y", "0:25"), ("z", "1")), "4", "xyz", 3),
        (room("a", ("x", "0:50"), ("y", "0:25")), "4:50%", "xy", 1),
        (broken(room("a", ("x", "0")), 1), "4", "x", NEVER),
        (room("a", ("x", "0")), "2", "x", 1),
        (room("a", cpu=2), "1", "", 1),
        (room("a", cards=2), "4", "", NEVER),
    ],
    ids=[
        "two",
        "one of two",
        "one on two cards",
        "one stays",
        "three on two cards",
        "half of each card",
        "broken card",
        "one more",
        "cards suffice",
        "too few cards",
    ],
)
def test_a_node_needs_no_fewer_moves(of: NodeRoom, size: str, movable: str, fewest: int) -> None:
    more = wanted(size, cpu=2)
    assert fewest_leaving(more, of.node, filled(of, more).count, list(movable)) == fewest


@given(clusters(), SIZES)
@settings(max_examples=examples(60))
def test_the_plan_is_the_same_as_without_the_bound(cluster: tuple[list[NodeRoom], list[Tenant]], size: str) -> None:
    (rooms, movable), of = cluster, wanted(size)
    with pytest.MonkeyPatch.context() as patched:
        found = plan(rooms, movable, of, PACKED, PlanBounds(2))
        patched.setattr(defrag, "fewest_leaving", lambda *_: 1)
        assert plan(rooms, movable, of, PACKED, PlanBounds(2)) == found


def test_a_plan_looks_closely_at_few_nodes() -> None:
    # Ten nodes would need three moves each; only the one that needs one is searched for what must leave it.
    three = ("x", "0"), ("y", "1"), ("z", "2")
    many = [room(f"m{at}", *((f"{name}{at}", on) for name, on in three)) for at in range(10)]
    movable = [one for at in range(10) for one in tenants(f"m{at}", *((f"{name}{at}", on) for name, on in three))]
    single = room("few", ("x", "0"))
    bounds = PlanBounds()
    had = bounds.steps.left
    made = plan([*many, single], [*movable, Tenant(guest("x", "0"), "few")], wanted("4"), PACKED, bounds)
    assert [one.node for one in made.rooms] == ["few"]
    assert had - bounds.steps.left < 100
