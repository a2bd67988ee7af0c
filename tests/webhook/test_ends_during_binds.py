"""A Pod that ends while its bind is under way holds nothing, whichever of the two is seen first; a live one keeps all.

Nothing here reconciles: only what is seen of Pods and of records releases anything.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest
from builders import gpu, part
from fake_kube import Fault, answer, hold
from waiting import until
from world import World, binding, binds, cpu_pod, gpu_pod, releasing

from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary.holdings import Holding
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import NODE_ALLOCATIONS, PODS
from webhook import patch
from webhook.upkeep import reconcile as reconcile_module


@pytest.fixture
async def other(world: World, kube: KubeClient) -> World:
    """A second replica, which has seen all that there is."""
    second = World(world.fake, kube)
    second.see()
    return second


@pytest.fixture(autouse=True)
async def soon(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(reconcile_module, "_BIND_S", 0.01)
    world.see()
    async with releasing(world):
        yield


def held_write(world: World) -> Fault:
    """The next write of a record waits."""
    fault = hold()
    world.fake.faults.add("create", "nodeallocations", fault)
    return fault


def let_go(fault: Fault) -> None:
    assert fault.gate
    fault.gate.set()


async def nothing_is_held(world: World) -> None:
    await until(lambda: world.holders() == [])


async def no_look_is_left(world: World) -> None:
    """All that is to be looked at now has been: everybody waits for the next."""
    await until(lambda: len(world.parts.reconciler._looks._getters) == reconcile_module._AT_ONCE)  # type: ignore[attr-defined]
    await world.idle()


def reads(world: World) -> int:
    return len(world.fake.seen("get", "pods"))


@pytest.mark.parametrize("how", ["deleted", "deleted, with a finalizer", "finished", "created again"])
async def test_a_pod_that_is_seen_to_end_before_its_record_is_written_holds_nothing(world: World, how: str) -> None:
    world.show(gpu_pod("p"))
    write = held_write(world)
    bind = asyncio.create_task(world.mutate(binds(binding("p", "n1"))))
    await write.reached.wait()
    match how:
        case "deleted":
            world.remove_pod("p")
        case "deleted, with a finalizer":
            world.change_pod("p", metadata={"deletionTimestamp": "2026-11-27T09:00:00Z", "finalizers": ["team/x"]})
        case "finished":
            world.change_pod("p", status={"phase": "Failed"})
        case _:
            world.remove_pod("p")
            world.add_pod(gpu_pod("p", uid="uid-another"))
    world.see(PODS)
    let_go(write)
    assert (await bind).allowed
    await nothing_is_held(world)


@pytest.mark.parametrize("how", ["deleted", "deleted, with a finalizer"])
async def test_a_pod_that_is_seen_to_end_while_its_bind_waits_for_its_turn_is_given_nothing(
    world: World, how: str
) -> None:
    for name in ("first", "second"):
        world.add_pod(gpu_pod(name))
    world.see()
    write = held_write(world)
    binds_of = [asyncio.create_task(world.mutate(binds(binding("first", "n1"))))]
    await write.reached.wait()
    binds_of.append(asyncio.create_task(world.mutate(binds(binding("second", "n1")))))
    await asyncio.sleep(0)
    if how == "deleted":
        world.remove_pod("second")
    else:
        world.change_pod("second", metadata={"deletionTimestamp": "2026-11-27T09:00:00Z", "finalizers": ["team/x"]})
    world.see(PODS)
    let_go(write)
    first, second = await asyncio.gather(*binds_of)
    assert first.allowed
    ended = "the Pod has ended, or is being deleted; create it again if it should run"
    assert second.message == f"Pod default/second is not bound: n1: {ended}"
    assert world.holders() == ["first"]


@pytest.mark.parametrize("seen", ["the Pod and its end", "the Pod", "neither"])
async def test_another_replica_releases_what_one_wrote_that_then_ended(world: World, other: World, seen: str) -> None:
    """The first replica releases nothing: it ended when it had answered."""
    world.add_pod(gpu_pod("p"))
    if seen != "neither":
        other.see(PODS)
    other_binds = World(world.fake, world.kube)
    other_binds.see()
    assert (await other_binds.mutate(binds(binding("p", "n1")))).allowed
    world.remove_pod("p")
    if seen == "the Pod and its end":
        other.see(PODS)
    async with releasing(other):
        other.see(NODE_ALLOCATIONS)
        await nothing_is_held(world)


async def test_of_a_pod_that_was_never_seen_the_api_server_is_asked_and_a_live_one_keeps_all(world: World) -> None:
    world.add_pod(gpu_pod("p"))
    assert (await world.bind("p", see=False)).allowed
    await until(lambda: reads(world) >= 2)  # the bind's own, and the look
    await no_look_is_left(world)
    assert world.holders() == ["p"]


async def test_of_a_bind_whose_end_no_watch_shows_the_api_server_is_asked_until_the_pod_is_gone(world: World) -> None:
    world.show(gpu_pod("p"))
    assert (await world.mutate(binds(binding("p", "n1")))).allowed
    await until(lambda: reads(world) == 2)
    assert world.holders() == ["p"], "it lives, and may be bound yet"
    world.remove_pod("p")
    await nothing_is_held(world)


async def test_a_bind_that_is_seen_to_be_performed_is_not_asked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_module, "_BIND_S", 600.0)
    world.show(gpu_pod("p"))
    assert (await world.bind("p")).allowed
    world.parts.reconciler._look("n1", "uid-p")  # as after these 600 s
    await no_look_is_left(world)
    assert reads(world) == 0
    assert world.holders() == ["p"]


async def test_what_a_bind_gave_is_there_when_it_is_performed_however_often_it_was_looked_at(world: World) -> None:
    world.show(gpu_pod("p"))
    asked = binding("p", "n1")
    mutated = await world.mutate(binds(asked))
    await until(lambda: reads(world) == 3)
    asked = patch.apply(asked, mutated.patch)
    assert (await world.validate(binds(asked))).allowed
    await world.kube.create(PODS.path("p", "default", "binding"), asked)
    world.see()
    assert world.holders() == ["p"]


async def test_a_pod_that_is_none_of_ours_any_more_keeps_what_a_bind_under_way_gave_it(world: World) -> None:
    """Its label is removed while it is bound; the bind writes the annotation that makes it ours again."""
    world.show(cpu_pod("p"))
    obj = world.pod("p")
    del obj["metadata"]["labels"][QOS_LABEL]
    world.add_pod(obj)
    share = part(gpu(0, device_id="GPU-n1-0"), 50, "main")
    made = Holding("uid-p", "default", "p", world.clock.now, (share,))
    await world.parts.ledger.change("n1", lambda old: ({**old, made.uid: made}, None), 5)
    world.see(PODS)
    await until(lambda: reads(world) >= 1)
    await no_look_is_left(world)
    assert world.holders() == ["p"]
    assert not world.parts.cluster.pods.is_gone("uid-p")


@pytest.mark.parametrize("verb", ["get", "update"])
async def test_a_look_that_fails_is_repeated(world: World, verb: str) -> None:
    share = part(gpu(0, device_id="GPU-n1-0"), 50, "main")
    made = Holding("uid-p", "default", "p", world.clock.now, (share,))
    world.fake.faults.add(verb, "pods" if verb == "get" else "nodeallocations", answer(500), answer(500))
    await world.parts.ledger.change("n1", lambda old: ({**old, made.uid: made}, None), 5)
    await nothing_is_held(world)


async def test_room_that_is_held_for_a_pod_of_a_gang_that_ended_meanwhile_is_released(world: World) -> None:
    world.show(gpu_pod("p"))
    world.remove_pod("p")
    world.see(PODS)
    share = part(gpu(0, device_id="GPU-n1-0"), 50, "main")
    made = Holding("uid-p", "default", "p", world.clock.now, (share,), gang="default/g", until=world.clock.now + 600)
    await world.parts.ledger.change("n1", lambda old: ({**old, made.uid: made}, None), 5)
    await nothing_is_held(world)
    assert reads(world) == 0, "its end was seen"


async def test_what_came_and_went_before_a_list_is_looked_for_after_it(world: World, other: World) -> None:
    """The watch broke: the Pod was neither seen to come nor to go, and its record was seen while it lived."""
    world.add_pod(gpu_pod("p"))
    assert (await other.bind("p", see=False)).allowed
    world.see(NODE_ALLOCATIONS)
    await no_look_is_left(world)
    assert world.holders() == ["p"]
    timer = asyncio.create_task(world.parts.reconciler.run_timer(3600))
    world.remove_pod("p")
    world.see(PODS)
    await nothing_is_held(world)
    timer.cancel()


async def test_a_replica_that_starts_asks_for_no_pod_before_it_has_listed_them(
    world: World, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_module, "_BIND_S", 600.0)
    world.show(gpu_pod("p"))
    assert (await world.bind("p")).allowed
    started = World(world.fake, kube)
    async with releasing(started):
        started.see(NODE_ALLOCATIONS)
        started.see()
        await no_look_is_left(started)
    assert reads(world) == 0


@pytest.mark.parametrize("how", ["gone", "being deleted", "waiting"])
async def test_no_room_is_kept_for_a_pod_that_is_filtered_after_it_ended(world: World, how: str) -> None:
    obj = gpu_pod("p")
    world.show(obj)
    if how == "gone":
        world.remove_pod("p")
    elif how == "being deleted":
        world.change_pod("p", metadata={"deletionTimestamp": "2026-11-27T09:00:00Z", "finalizers": ["team/x"]})
    world.see(PODS)
    assert world.parts.extender.filter({"Pod": obj, "NodeNames": ["n1"]})["NodeNames"] == ["n1"]
    assert bool(world.parts.ranking.assumed.node_of("uid-p")) is (how == "waiting")
