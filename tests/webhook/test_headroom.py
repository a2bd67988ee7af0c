"""The taint of nodes that are short of CPU for their free devices: set, kept, removed, and never another's touched."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from builders import container, device_entry, pod
from fake_kube import FakeKube, answer
from waiting import until
from world import SETTINGS, Clock, World, gpu_pod, koordinator_annotation, rank

from allocator.vocabulary.mix import Mix
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import NODES
from webhook.settings import HeadroomSettings, TypicalSettings, WebhookSettings
from webhook.upkeep import headroom as headroom_module
from webhook.upkeep.headroom import Eased, HeadroomController, with_taint
from webhook.view.podinfo import read_pod_info

TAINT = {"key": "koordgate.io/headroom", "effect": "PreferNoSchedule"}
OTHER = {"key": "team", "value": "a", "effect": "PreferNoSchedule"}
KEEPING = HeadroomSettings(mode="taint", untaint_after_seconds=0)
LATER = HeadroomSettings(mode="taint", untaint_after_seconds=600)


def add_node(world: World, name: str, cpu: float, *taints: dict[str, str], cards: int = 2) -> None:
    world.add_node(name, *(device_entry(minor) for minor in range(cards)))
    found = world.fake.get(NODES.path(name))
    status = {"allocatable": {"cpu": str(cpu), "memory": "1Ti", "pods": "110"}}
    spec = {"taints": list(taints)} if taints else {}
    world.fake.put(NODES.path(), {**found, "spec": spec, "status": status})


def add_typical(world: World) -> None:
    """A Pod with one GPU and 8 CPUs, on a node of its own: two free GPUs need 16 CPUs."""
    add_node(world, "full", 64, cards=1)
    amounts = {"cpu": "8", "memory": "1Gi", "kubernetes.io/gpu": "100"}
    made = gpu_pod("typical", 100)
    made["spec"]["containers"][0]["resources"]["requests"] |= {"cpu": amounts["cpu"], "memory": amounts["memory"]}
    made["spec"]["nodeName"] = "full"
    full = {"gpu-core": "100", "gpu-memory-ratio": "100"}
    made["metadata"]["annotations"] = koordinator_annotation(
        (0, {f"kubernetes.io/{tail}": n for tail, n in full.items()}, "")
    )
    world.add_pod(made)


def taints(world: World, name: str) -> list[dict[str, str]]:
    return (world.fake.get(NODES.path(name)).get("spec") or {}).get("taints") or []


def load(world: World, name: str, node: str, cpu: int) -> None:
    """A Pod without devices, bound to a node."""
    world.add_pod(pod(container(requests={"cpu": str(cpu)}), name=name, uid=f"uid-{name}", nodeName=node))


async def tend(world: World, keeper: HeadroomController) -> None:
    world.see()
    keeper.learn()
    await keeper.tend()


@pytest.fixture
async def world(fake: FakeKube, kube: KubeClient) -> AsyncIterator[World]:
    made = World(fake, kube, with_headroom(KEEPING))
    yield made
    await made.idle()


def with_headroom(headroom: HeadroomSettings) -> WebhookSettings:
    return msgspec.structs.replace(SETTINGS, headroom=headroom)


def keeping(world: World, headroom: HeadroomSettings = KEEPING, clock: Clock | None = None) -> HeadroomController:
    now = (clock or world.clock).monotonic
    return HeadroomController(world.kube, world.parts.cluster, headroom, world.parts.typical, clock=now)


@pytest.fixture
def keeper(world: World) -> HeadroomController:
    return keeping(world)


async def test_a_node_gets_the_taint_below_one_bound_and_loses_it_at_the_other(
    world: World, keeper: HeadroomController
) -> None:
    add_typical(world)
    add_node(world, "n1", 40, OTHER)
    await tend(world, keeper)
    assert taints(world, "n1") == [OTHER]
    load(world, "a", "n1", 16)
    await tend(world, keeper)
    assert taints(world, "n1") == [OTHER]  # 24 CPUs are left, one and a half times 16
    load(world, "b", "n1", 1)
    await tend(world, keeper)
    assert taints(world, "n1") == [OTHER, TAINT]
    world.remove_pod("b")
    await tend(world, keeper)
    assert taints(world, "n1") == [OTHER, TAINT]
    world.remove_pod("a")
    await tend(world, keeper)
    assert taints(world, "n1") == [OTHER]


async def test_a_node_loses_the_taint_only_when_it_was_not_short_for_long_enough(world: World) -> None:
    clock = Clock()
    keeper = keeping(world, LATER, clock)
    add_typical(world)
    add_node(world, "n1", 40)
    load(world, "a", "n1", 17)
    await tend(world, keeper)
    assert taints(world, "n1") == [TAINT]
    world.remove_pod("a")
    await tend(world, keeper)
    clock.now += 599
    await tend(world, keeper)
    assert taints(world, "n1") == [TAINT]
    load(world, "a", "n1", 17)  # short again: the time begins anew
    await tend(world, keeper)
    world.remove_pod("a")
    clock.now += 1
    await tend(world, keeper)
    clock.now += 599
    await tend(world, keeper)
    assert taints(world, "n1") == [TAINT]
    clock.now += 1
    await keeper.tend()  # nothing changed but the time
    assert taints(world, "n1") == []
    assert len(world.fake.seen("patch", "nodes")) == 2


async def test_pods_that_come_and_go_on_a_small_node_do_not_write_it_each_time(world: World) -> None:
    clock = Clock()
    keeper = keeping(world, LATER, clock)
    add_typical(world)
    add_node(world, "n1", 10, cards=1)
    await tend(world, keeper)
    for number in range(5):
        world.show(gpu_pod(f"p{number}", 100))
        assert (await world.bind(f"p{number}", "n1")).allowed
        clock.now += 300
        await tend(world, keeper)
        world.remove_pod(f"p{number}")
        world.see()
        await world.parts.reconciler.reconcile()
        clock.now += 300
        await tend(world, keeper)
    assert taints(world, "n1") == [TAINT]
    assert len(world.fake.seen("patch", "nodes")) == 1


async def test_a_taint_that_could_not_be_removed_is_tried_again_at_once(world: World) -> None:
    clock = Clock()
    keeper = keeping(world, LATER, clock)
    add_typical(world)
    add_node(world, "n1", 40, TAINT)
    await tend(world, keeper)
    clock.now += 600
    world.fake.faults.add("patch", "nodes", answer(409))
    await tend(world, keeper)
    assert taints(world, "n1") == [TAINT]
    await tend(world, keeper)
    assert taints(world, "n1") == []


async def test_a_stated_mix_says_what_devices_need_before_any_pod_holds_one(fake: FakeKube, kube: KubeClient) -> None:
    mix = (TypicalSettings({"kubernetes.io/gpu": "100", "cpu": "8", "memory": "512Gi"}),)
    settings = with_headroom(KEEPING)
    stated = msgspec.structs.replace(settings, scheduler=msgspec.structs.replace(settings.scheduler, mix=mix))
    made = World(fake, kube, stated)
    for name, cpu, cards in (("n1", 11.999, 1), ("n2", 12, 1), ("n3", 64, 2)):  # and each has a tebibyte of memory
        add_node(made, name, cpu, cards=cards)
    await tend(made, keeping(made))
    assert [taints(made, name) for name in ("n1", "n2", "n3")] == [[TAINT], [], [TAINT]]
    await made.idle()


def test_nodes_are_due_when_their_own_time_has_passed() -> None:
    eased = Eased(10)
    assert eased.wants_taint("a", was=True, short=False, now=0)
    assert eased.wants_taint("b", was=True, short=False, now=5)
    assert (eased.due(9), eased.due(10), eased.due(15)) == ([], ["a"], ["a", "b"])
    assert not eased.wants_taint("a", was=True, short=False, now=10)
    assert eased.due(10) == ["a"]  # until the taint is gone
    eased.forget("a")
    assert eased.wants_taint("b", was=True, short=True, now=15)
    assert eased.due(100) == []
    assert not eased.wants_taint("c", was=False, short=False, now=15)
    assert eased.wants_taint("c", was=False, short=True, now=15)


async def test_a_second_replica_finds_nothing_to_write(world: World, keeper: HeadroomController) -> None:
    add_typical(world)
    add_node(world, "n1", 10)
    other = keeping(world)
    world.see()
    keeper.learn()
    other.learn()
    await keeper.tend()
    await other.tend()
    assert taints(world, "n1") == [TAINT]
    assert len(world.fake.seen("patch", "nodes")) == 1


async def test_a_node_that_changed_meanwhile_is_read_again(world: World, keeper: HeadroomController) -> None:
    add_typical(world)
    add_node(world, "n1", 10)
    world.fake.faults.add("patch", "nodes", answer(409))
    await tend(world, keeper)
    assert taints(world, "n1") == []
    await keeper.tend()
    assert taints(world, "n1") == [TAINT]


async def test_what_could_not_be_written_is_tried_again(world: World, keeper: HeadroomController) -> None:
    add_typical(world)
    add_node(world, "n1", 10)
    world.fake.faults.add("patch", "nodes", answer(403))
    with pytest.raises(KubeError):
        await tend(world, keeper)
    await keeper.tend()
    assert taints(world, "n1") == [TAINT]


async def test_nodes_after_one_that_could_not_be_written_are_looked_at_the_next_time(
    world: World, keeper: HeadroomController
) -> None:
    add_typical(world)
    names = [f"n{number}" for number in range(4)]
    for name in names:
        add_node(world, name, 10)
    world.fake.faults.add("patch", "nodes", answer(403))
    with pytest.raises(KubeError):
        await tend(world, keeper)
    await keeper.tend()
    assert [taints(world, name) for name in names] == [[TAINT]] * 4


async def test_a_node_that_is_gone_is_no_failure_and_not_looked_at_again(world: World) -> None:
    done: list[str] = []
    keeper = HeadroomController(world.kube, world.parts.cluster, KEEPING, world.parts.typical, done.append)
    add_typical(world)
    add_node(world, "n1", 10)
    world.fake.faults.add("get", "nodes", answer(404))
    await tend(world, keeper)
    await keeper.tend()
    assert (taints(world, "n1"), done, len(world.fake.seen("get", "nodes"))) == ([], [], 1)


async def test_what_is_written_is_counted(world: World) -> None:
    done: list[str] = []
    clock = Clock()
    keeper = HeadroomController(
        world.kube, world.parts.cluster, LATER, world.parts.typical, done.append, clock=clock.monotonic
    )
    add_typical(world)
    add_node(world, "n1", 40)
    load(world, "a", "n1", 17)
    await tend(world, keeper)
    world.remove_pod("a")
    await tend(world, keeper)
    clock.now += 600
    await tend(world, keeper)
    assert done == ["set", "removed"]


async def test_what_is_typical_is_learned_at_once_and_then_each_minute_while_all_has_been_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headroom_module, "_EVERY_S", 0.0)
    clock, seen = Clock(), [False]
    looks, learned = [0], [0]

    def ready() -> bool:
        looks[0] += 1
        return seen[0]

    def mix() -> Mix:
        learned[0] += 1
        return world.parts.typical()

    async def some_looks() -> int:
        enough = looks[0] + 3
        await until(lambda: looks[0] > enough)
        return learned[0]

    keeper = HeadroomController(world.kube, world.parts.cluster, KEEPING, mix, clock=clock.monotonic)
    running = asyncio.create_task(keeper.run(ready))
    assert await some_looks() == 0
    seen[0] = True
    assert await some_looks() == 1
    clock.now += 59
    assert await some_looks() == 1
    clock.now += 1
    assert await some_looks() == 2
    running.cancel()


async def test_a_keeper_that_fails_says_so_and_tries_again(
    world: World, keeper: HeadroomController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(headroom_module, "_EVERY_S", 0.0)
    monkeypatch.setattr(headroom_module, "_FIRST_RETRY_S", 0.01)
    add_typical(world)
    add_node(world, "n1", 10)
    world.see()
    world.fake.faults.add("patch", "nodes", answer(403), answer(403))
    running = asyncio.create_task(keeper.run(lambda: True))
    await until(lambda: taints(world, "n1") == [TAINT])
    running.cancel()
    assert caplog.text.count("the taints koordgate.io/headroom are not up to date; trying again") == 2


async def test_without_pods_that_hold_devices_nothing_is_tainted(world: World, keeper: HeadroomController) -> None:
    add_node(world, "n1", 1)
    await tend(world, keeper)
    assert taints(world, "n1") == []


@pytest.mark.parametrize("node", ["full", "nowhere"])
async def test_a_pod_that_names_a_node_and_holds_nothing_there_taints_no_node(
    world: World, keeper: HeadroomController, node: str
) -> None:
    add_typical(world)
    add_node(world, "n1", 32)
    made = gpu_pod("greedy", 1)
    made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1000000"
    made["spec"]["nodeName"] = node
    world.add_pod(made)
    await tend(world, keeper)
    assert taints(world, "n1") == []


async def test_mode_remove_takes_away_this_taint_and_no_other(world: World) -> None:
    add_node(world, "n1", 1, OTHER, TAINT)
    add_node(world, "n2", 1, OTHER)
    done: list[str] = []
    removing = HeadroomSettings(mode="remove")
    keeper = HeadroomController(world.kube, world.parts.cluster, removing, world.parts.typical, done.append)
    await tend(world, keeper)
    assert (taints(world, "n1"), taints(world, "n2"), done) == ([OTHER], [OTHER], ["removed"])
    world.see()
    assert world.parts.cluster.nodes.short == set()


async def test_pods_that_ask_for_devices_go_to_a_node_with_the_taint_as_to_any_other(world: World) -> None:
    add_node(world, "a", 8, TAINT)
    add_node(world, "b", 8, OTHER)
    add_node(world, "c", 8)
    world.see()
    asking = read_pod_info(gpu_pod("p", 100))
    assert asking is not None
    shunned = world.parts.cluster.nodes.shunned(None)
    assert shunned == {"b"}
    assert rank(world.parts.ranking, asking, ["a", "b", "c"], None, shunned).named == ("a", "c", "b")


async def test_the_taint_makes_no_node_be_indexed_again(world: World) -> None:
    add_node(world, "a", 8)
    world.see()
    reader = world.parts.cluster.changes.reader()
    add_node(world, "a", 8, TAINT)
    world.see(NODES)
    assert reader.take() == ""
    assert world.parts.cluster.nodes.short == {"a"}


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        ([], True, [TAINT]),
        ([OTHER], True, [OTHER, TAINT]),
        ([{**TAINT, "effect": "NoSchedule"}, OTHER], True, [OTHER, TAINT]),
        ([TAINT, OTHER], False, [OTHER]),
    ],
)
def test_taints_of_others_stay_in_their_order(
    before: list[dict[str, Any]], *, wanted: bool, after: list[dict[str, Any]]
) -> None:
    assert with_taint(before, wanted=wanted) == after


def test_the_bounds_must_leave_room_between_them() -> None:
    with pytest.raises(ValueError, match="make untaintFromPercent the greater one"):
        HeadroomSettings(taint_below_percent=150, untaint_from_percent=150)
    assert msgspec.structs.replace(SETTINGS, headroom=KEEPING).headroom.taint_below_percent == 150
