"""How few Pods could leave a node: a bound that is never above what the exact choice finds."""

from dataclasses import replace
from typing import Any

import pytest
from builders import nic
from defrag.fleets import PACKED, broken, guest, room, tenants, wanted
from defrag.test_plan import SIZES, clusters
from hypothesis import given, settings
from trials import examples

from allocator.packing import defrag
from allocator.packing.clearing import NEVER, fewest_leaving
from allocator.packing.copies import filled
from allocator.packing.defrag import PlanBounds, Tenant, plan
from allocator.packing.fleet import NodeRoom
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpuask import CpuAsk, QosClass
from allocator.vocabulary.device import Device


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
        (room("a", ("x", "0"), cards=2, cpu=5), "1", "x", 1),
        (room("a", cards=2), "4", "", NEVER),
        (room("a", ("x", "0")), "4", "", NEVER),
        (room("a", ("x", "0:50"), ("y", "0:25")), "4", "xy", 2),
        (room("a", ("x", "0"), ("y", "1")), "2", "xy", 2),
        (room("a", ("x", "0"), ("y", "1")), "2:51%", "xy", 2),
        (room("a", ("x", "0"), ("y", "1")), "2:50%", "xy", 1),
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
        "nobody may leave the only card",
        "two on the only card",
        "a second pair",
        "a second pair of more than halves",
        "a pair of halves, of which a card takes two",
    ],
)
def test_a_node_needs_no_fewer_moves(of: NodeRoom, size: str, movable: str, fewest: int) -> None:
    more = wanted(size, cpu=2)
    assert fewest_leaving(more, of.node, filled(of, more).count, list(movable)) == fewest


def test_devices_of_other_types_are_left_out() -> None:
    of = room("a", ("x", "0"), ("y", "1"))
    others = (Device("fpga", "f", 0, healthy=True, capacity={"fpga": 100}), nic(0))
    node = replace(of.node, devices=(*others, *of.node.devices, *others))
    assert fewest_leaving(wanted("3"), node, 0, ["x", "y"]) == 1


def test_nothing_is_certain_of_a_pod_that_asks_for_no_device() -> None:
    of = room("a", ("x", "0"))
    cpus = replace(wanted("1"), request=PodRequest((), CpuAsk(QosClass.LSR, 2, 2000, 0)))
    assert fewest_leaving(cpus, of.node, 0, ["x"]) == 1


@pytest.mark.parametrize("change", [{"template": "half"}, {"amounts": (0, None, 0)}], ids=["a template", "nothing"])
def test_nothing_is_certain_of_a_pod_that_asks_for_a_template_or_for_nothing_of_a_device(
    change: dict[str, Any],
) -> None:
    of, more = room("a", ("x", "0"), ("y", "1")), wanted("5")
    (one,) = more.request.containers
    assert fewest_leaving(more, of.node, 0, ["x", "y"]) == NEVER
    changed = replace(more, request=PodRequest((replace(one, ask=replace(one.ask, **change)),)))
    assert fewest_leaving(changed, of.node, 0, ["x", "y"]) == 1


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
