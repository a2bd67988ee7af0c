"""Work that grows with the cluster lets others run, and takes in what they change meanwhile."""

import asyncio

import msgspec
import pytest
from breaks import others
from builders import device_entry, device_object, gpu, part
from uneven import hostile
from waiting import until
from world import SETTINGS, World, admitted, binding, binds, gpu_pod

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import GANG_TOGETHER
from allocator.wire.deviceobject import read_device_object
from allocator.wire.gang import GANG_ANNOTATION
from koordgate.breaks import at_once, with_breaks
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import PODS
from webhook.command import Replica
from webhook.gangs.room import GangRoom
from webhook.scheduling.fairness import Effort, SearchTime
from webhook.settings import Certificate
from webhook.view.nodes import NodeFacts
from webhook.view.podinfo import read_pod_info

LONG = Effort(steps=1001)
ENDED = "the search for devices was ended"


@pytest.fixture
def account(world: World) -> SearchTime:
    """What namespaces have used: filter, preemption, binds and gangs share it."""
    shared = world.parts.extender._search_time
    assert world.parts.bindings._search_time is shared
    assert world.parts.gang_controller._new_room()._search_time is shared
    return shared


async def store(world: World, node: str) -> None:
    """Let the API server have what the ledger has seen of a node."""
    held = world.parts.ledger.record(node).holdings
    world.parts.ledger.forget(node)
    await world.parts.ledger.change(node, lambda _: (held, None), 5)


# Binds


async def test_a_bind_that_takes_long_counts_for_its_namespace_and_a_short_one_does_not(
    uneven: World, account: SearchTime
) -> None:
    for name in ("m0", "m1"):
        await store(uneven, name)
    uneven.add_pod(admitted(hostile("long")))
    uneven.add_pod(gpu_pod("short", namespace="other"))
    uneven.see(PODS)
    assert ENDED in (await uneven.bind("long", "m0")).message
    assert (await uneven.mutate(binds(binding("short", "m1", namespace="other")))).allowed
    assert list(account._used) == ["default"]


async def test_a_bind_is_decided_in_full_whatever_its_namespace_has_used(uneven: World, account: SearchTime) -> None:
    account.charge("default", LONG, 3600.0)
    await store(uneven, "m0")
    uneven.add_pod(admitted(hostile("long")))
    uneven.add_pod(gpu_pod("short"))
    uneven.see(PODS)
    assert ENDED in (await uneven.bind("long", "m0")).message, "and not that its time is used up"
    assert (await uneven.bind("short", "m0")).allowed


# Gangs


async def test_the_search_for_a_gang_ends_in_time_and_counts_for_its_namespace(uneven: World) -> None:
    account = SearchTime()
    account.charge("default", LONG, 3600.0)
    room = GangRoom(uneven.parts.cluster, uneven.parts.ranking, frozenset({"kubernetes.io/gpu", "pods"}), account)
    made = hostile("p", annotations={GANG_ANNOTATION: "g", GANG_TOGETHER: "true"})
    whole = read_pod_info(made)
    assert whole is not None
    why = await room.find([whole])
    assert "the time for long searches for Pods of namespace default is used up" in why
    account = SearchTime()
    room = GangRoom(uneven.parts.cluster, uneven.parts.ranking, frozenset({"kubernetes.io/gpu", "pods"}), account)
    assert ENDED in await room.find([whole])
    assert list(account._used) == ["default"]


# What was seen


async def test_a_list_that_says_nothing_new_changes_no_node(world: World) -> None:
    world.add_pod(gpu_pod("p", 50))
    world.see(PODS)
    assert (await world.bind("p")).allowed
    world.see()
    changed, remade = world.parts.cluster.changes.reader(), world.parts.cluster.nodes.remade.reader()
    world.see()
    assert (list(changed.drain()), list(remade.drain())) == ([], [])
    world.add_pod({**gpu_pod("p", 50, nodeName="n1"), "status": {"phase": "Succeeded"}})
    world.see(PODS)
    assert list(changed.drain()) == ["n1"]


async def test_others_run_while_the_memory_of_gpus_is_taken_in(uneven: World, breaking: None) -> None:
    reach = uneven.parts.cluster.reach
    for name in uneven.parts.cluster.nodes.known():
        uneven.parts.cluster.nodes.remade.touch(name)
    async with others() as ran:
        await reach.catch_up_slowly()
    assert ran.breaks == 7, "after each of the six nodes, and of n1"
    assert list(reach._take_in()) == []
    reach.check_invariants()


async def test_changed_nodes_are_taken_in_although_nobody_asks(kube: KubeClient) -> None:
    replica = Replica(msgspec.structs.replace(SETTINGS, certificate=Certificate(dns_names=("koordgate",))), kube)
    cluster, ranking = replica.parts.cluster, replica.parts.ranking
    keeping_up = asyncio.create_task(replica._keep_up())
    cluster.nodes.put("n1", NodeFacts({}))
    cluster.nodes.put_devices(read_device_object(device_object(device_entry(0), name="n1"), BUILT_IN))
    await until(lambda: "n1" in ranking._index.names)
    await until(lambda: cluster.reach._of)
    keeping_up.cancel()


# Reconciliation


async def test_others_run_while_the_ledger_is_compared_with_pods(uneven: World, breaking: None) -> None:
    """Seven records and three Pods: nothing is read, written or reported, so that only breaks let others run."""
    for number in range(3):
        uneven.add_pod(gpu_pod(f"p{number}", nodeName="m0"))
    uneven.see(PODS)
    reconciler = uneven.parts.reconciler
    for walk, parts in (
        (reconciler._suspects, 6),
        (reconciler._held_twice, 6),
        (reconciler._missing, 3),
        (reconciler._unreadable, 3),
        (reconciler._bound_around, 3),
    ):
        async with others() as ran:
            await with_breaks(walk())
        assert ran.breaks == parts, walk.__name__


async def test_a_pod_that_changes_while_pods_are_compared_is_compared_as_it_is_then(world: World) -> None:
    """One goes, one ends, and one is bound to its devices meanwhile."""
    for name in ("a", "b", "c", "d"):
        world.add_pod(gpu_pod(name, nodeName="n1"))
    world.see(PODS)
    walk = world.parts.reconciler._bound_around()
    next(walk)
    world.remove_pod("b")
    world.add_pod({**gpu_pod("c", nodeName="n1"), "status": {"phase": "Failed"}})
    world.see(PODS)
    assert [str(pod) for pod in at_once(walk)] == ["default/a", "default/d"]


async def test_a_holding_that_is_given_anew_while_the_ledger_is_compared_is_not_released(world: World) -> None:
    """The walk saw it without its Pod; by the time of the correction the Pod is bound."""
    world.add_pod(gpu_pod("p", 50))
    world.see(PODS)
    share = part(gpu(0, device_id="GPU-n1-0"), 50, "main")
    made = Holding("uid-p", "default", "p", world.clock.now, (share,))
    await world.parts.ledger.change("n1", lambda old: ({**old, "uid-p": made}, None), 5)
    reconciler = world.parts.reconciler
    suspects = at_once(reconciler._suspects())
    assert [one.uid for _, one in suspects] == ["uid-p"]
    assert (await world.bind("p")).allowed
    reconciler._see(suspects)
    world.clock.now += 1000
    await reconciler._all(reconciler._check(node, one) for node, one in suspects)
    assert world.holders() == ["p"]
