"""Where a live Pod's own annotation and the ledger differ, both are held, nothing new lands there, and it is told.

A device that vanished under its holder, and one that two nodes list, are told as well.
"""

from collections.abc import Callable
from typing import Any

import machines_cpu
import pytest
from builders import GIB, device_entry, device_object, gpu, nic_entry, part
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples
from world import World, cpu_pod, gpu_pod, koordinator_annotation

from allocator.disputed import disputed_devices
from allocator.vocabulary.holdings import Function, Share
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, TOLD_AGAIN_S

Raw = dict[str, Any]
Edit = Callable[[Raw], object]
HALF = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}
PAIRS = {"gpu": ("gpu-memory", "gpu-memory-ratio")}
NEAR = machines_cpu.build(2, 1, 4, 2, machines_cpu.siblings_near)


def troubles(world: World, reason: str) -> float:
    return world.metric("koordgate_device_troubles", reason=reason)


async def reconcile(world: World) -> None:
    await world.parts.reconciler.reconcile()
    await world.parts.reporter.idle()
    await world.idle()


def edit(world: World, how: Edit) -> None:
    """Somebody edits the only entry of n1's record by hand; the replica sees it."""
    stored = world.fake.get(NODE_ALLOCATIONS.path("n1"))
    how(stored["spec"]["allocations"][0])
    world.fake.put(NODE_ALLOCATIONS.path(), stored)
    world.see(NODE_ALLOCATIONS)


@pytest.fixture
async def four(world: World) -> World:
    """A node with four cards, of which a running Pod has one."""
    world.add_node("n1", *(device_entry(minor) for minor in range(4)))
    world.show(gpu_pod("p", 100))
    assert (await world.bind("p")).allowed
    world.see()
    return world


EDITS: dict[str, tuple[Edit, int]] = {
    "another id": (lambda entry: entry["devices"][0].update(id="GPU-n1-3"), 2),
    "another id and minor": (lambda entry: entry["devices"][0].update(id="GPU-n1-3", minor=3), 2),
    "an id that the node lacks": (lambda entry: entry["devices"][0].update(id="GPU-x"), 1),
    "less of the card": (
        lambda entry: entry["devices"][0].update(
            amounts={"gpu-core": 10, "gpu-memory": 8 * GIB, "gpu-memory-ratio": 10}
        ),
        1,
    ),
    "no memory of the card": (lambda entry: entry["devices"][0].update(amounts={"gpu-core": 100}), 1),
    "no amounts": (lambda entry: entry["devices"][0].update(amounts={}), 1),
    "one more card": (
        lambda entry: entry["devices"].append({**entry["devices"][0], "id": "GPU-n1-2", "minor": 2}),
        1,
    ),
    "no card": (lambda entry: entry.update(devices=[]), 1),
}


@pytest.mark.parametrize("how", EDITS)
async def test_what_the_ledger_and_a_live_pods_annotation_state_is_both_held_and_told_once(
    four: World, kube: KubeClient, how: str
) -> None:
    change, closed = EDITS[how]
    edit(four, change)
    started = World(four.fake, kube)  # knows nothing but what the objects say
    started.see()
    there: set[str] = set()
    for replica in (four, started):
        node = replica.parts.cluster.snapshot("n1")
        there = {device.id for device in node.devices}
        assert "GPU-n1-0" not in {
            device.id for device in node.devices if all(node.free(device, tuple(device.capacity)))
        }
        assert len(node.disputed & there) == closed
        for _ in range(2):
            await reconcile(replica)
        assert troubles(replica, "AllocationDisputed") == 1
    told = four.events("AllocationDisputed")
    assert [event["involvedObject"]["uid"] for event in told] == ["uid-p", "uid-p"], "by each replica once"
    assert "NodeAllocation n1" in told[0]["message"]
    free = 4 - len({"GPU-n1-0"} | (four.parts.cluster.snapshot("n1").disputed & there))
    for number in range(4):
        four.show(gpu_pod(f"q{number}", 100))
        assert (await four.bind(f"q{number}")).allowed is (number < free)
    assert four.pod("q0")["metadata"]["annotations"]["visible-devices.koordgate.io/main"] != "GPU-n1-0"


async def test_what_is_edited_back_or_whose_pod_ends_is_disputed_no_more(four: World) -> None:
    edit(four, lambda entry: entry["devices"][0].update(id="GPU-n1-3"))
    await reconcile(four)
    assert troubles(four, "AllocationDisputed") == 1
    edit(four, lambda entry: entry["devices"][0].update(id="GPU-n1-0"))
    await reconcile(four)
    assert troubles(four, "AllocationDisputed") == 0
    edit(four, lambda entry: entry["devices"][0].update(id="GPU-n1-3"))
    four.remove_pod("p")
    four.see()
    await reconcile(four)
    assert (troubles(four, "AllocationDisputed"), four.holders()) == (0, [])
    assert four.parts.cluster.snapshot("n1").disputed == frozenset()


GONE: dict[str, Callable[[Raw], object]] = {
    "removed": lambda annotations: annotations.pop("scheduling.koordinator.sh/device-allocated"),
    "no JSON": lambda annotations: annotations.update({"scheduling.koordinator.sh/device-allocated": "garbage"}),
    "names nothing": lambda annotations: annotations.update({"scheduling.koordinator.sh/device-allocated": "{}"}),
    "names no card": lambda annotations: annotations.update(
        {"scheduling.koordinator.sh/device-allocated": '{"gpu":[]}'}
    ),
}


@pytest.mark.parametrize("how", GONE)
async def test_an_annotation_that_states_nothing_any_more_is_disputed_as_well(four: World, how: str) -> None:
    pod = four.pod("p")
    GONE[how](pod["metadata"]["annotations"])
    four.show(pod)
    for _ in range(2):
        await reconcile(four)
    (told,) = four.events("AllocationDisputed")
    assert ("is gone" if how == "removed" else "cannot be read") in told["message"]
    assert four.parts.cluster.snapshot("n1").disputed == {"GPU-n1-0"}
    assert not four.events("BoundWithoutDevices")
    assert four.holders() == ["p"]


async def test_an_event_about_what_is_still_disputed_is_written_again_before_kubernetes_forgets_it(four: World) -> None:
    edit(four, lambda entry: entry["devices"][0].update(id="GPU-n1-3"))
    for passed, count in ((0, 1), (TOLD_AGAIN_S - 1, 1), (1, 2), (TOLD_AGAIN_S, 3)):
        four.clock.now += passed
        await reconcile(four)
        assert len(four.events("AllocationDisputed")) == count
    assert TOLD_AGAIN_S < 3600


async def test_cpus_that_only_the_annotation_states_are_held_too(world: World) -> None:
    world.add_node("n1", cpu=NEAR)
    world.show(cpu_pod("p", 2))
    assert (await world.bind("p")).allowed
    world.see()
    mine = world.parts.cluster.snapshot("n1").cpu_use.taken
    edit(world, lambda entry: entry["cpus"].update(cpuset="12-13"))
    node = world.parts.cluster.snapshot("n1")
    assert node.cpu_use.taken == mine | 0b11 << 12
    await reconcile(world)
    assert troubles(world, "AllocationDisputed") == 1
    assert "CPUs 0-1" in world.events("AllocationDisputed")[0]["message"]


async def test_pods_that_koordinator_bound_and_that_are_alone_on_their_card_are_not_disputed(world: World) -> None:
    world.add_node("n1", *(device_entry(minor) for minor in range(3)))
    world.add_pod(gpu_pod("named", nodeName="n1", annotations=koordinator_annotation((0, HALF, "GPU-n1-0"))))
    world.add_pod(gpu_pod("numbered", nodeName="n1", annotations=koordinator_annotation((1, HALF, ""))))
    world.show(gpu_pod("whole", 100, nodeName="n1", annotations=koordinator_annotation((2, {}, "GPU-n1-2"))))
    await reconcile(world)
    assert world.holders() == ["named", "numbered", "whole"]
    await reconcile(world)
    assert troubles(world, "AllocationDisputed") == 0
    assert world.parts.cluster.snapshot("n1").disputed == frozenset()


@given(
    taken=st.lists(st.sampled_from(range(4)), unique=True, max_size=3),
    percents=st.lists(st.integers(1, 100), min_size=4, max_size=4),
    edits=st.lists(st.tuples(st.sampled_from(range(4)), st.integers(0, 100)), max_size=3),
)
@settings(max_examples=examples(200))
def test_no_device_of_which_an_annotation_states_more_than_the_ledger_is_left_open(
    taken: list[int], percents: list[int], edits: list[tuple[int, int]]
) -> None:
    cards = [gpu(minor, device_id=f"GPU-{minor}") for minor in range(4)]
    said = [part(cards[minor], percents[minor]) for minor in taken]
    held = {share.id: share for share in said}
    for minor, percent in edits:
        identity = cards[minor].id
        held.pop(identity, None)
        if percent:
            held[identity] = part(cards[minor], percent)
    found = disputed_devices(list(held.values()), [(share, (share.id,)) for share in said], PAIRS)
    for share in said:
        own = held.get(share.id)
        less = own is None or any(own.amounts[tail] < amount for tail, amount in share.amounts.items())
        assert (share.id in found) is less
    only = held.keys() - {share.id for share in said}
    assert found - {share.id for share in said} == (only if said else set())


def test_of_two_amounts_that_state_the_same_the_ledger_may_have_one() -> None:
    held = part(gpu(0), 50)
    for tail in PAIRS["gpu"]:
        less = held._replace(amounts={at: amount for at, amount in held.amounts.items() if at != tail})
        assert disputed_devices([less], [(held, (held.id,))], PAIRS) == frozenset()
        assert disputed_devices([less], [(held, (held.id,))], {}) == {held.id}


def test_functions_that_only_the_annotation_states_are_a_dispute() -> None:
    held = Share("rdma", "nic", 0, {"rdma": 1}, functions=(Function(0, "0000:01:00.1"),))
    assert disputed_devices([held], [(held, ("nic",))], PAIRS) == frozenset()
    said = held._replace(functions=(Function(1, "0000:01:00.2"),))
    assert disputed_devices([held], [(said, ("nic",))], PAIRS) == {"nic"}


def test_a_number_that_may_mean_several_devices_agrees_with_a_ledger_that_has_one_of_them() -> None:
    held = part(gpu(1, device_id="GPU-b"), 50)
    said = held._replace(id="")
    assert disputed_devices([held], [(said, ("GPU-a", "GPU-b"))], PAIRS) == frozenset()
    assert disputed_devices([held], [(said, ("GPU-a", "GPU-c"))], PAIRS) == {"GPU-a", "GPU-b", "GPU-c"}


# --- vanished, and listed twice


@pytest.mark.parametrize("left", [[1, 2, 3], []])
async def test_a_card_that_vanished_under_its_holder_is_an_event_on_the_pod(four: World, left: list[int]) -> None:
    entries = [device_entry(minor, id=f"GPU-n1-{minor}") for minor in left]
    four.fake.put(DEVICES.path(), device_object(*entries, name="n1"))
    four.see()
    for _ in range(2):
        await reconcile(four)
    (event,) = four.events("DeviceVanished")
    assert event["involvedObject"]["uid"] == "uid-p"
    assert "node n1 does not list gpu GPU-n1-0 any more" in event["message"]
    assert troubles(four, "DeviceVanished") == 1


@pytest.mark.parametrize("how", ["no Device object", "one that cannot be read", "a finished Pod"])
async def test_what_may_not_have_vanished_is_not_told(four: World, how: str) -> None:
    four.fake.remove(DEVICES.path("n1"))
    if how == "one that cannot be read":
        four.fake.put(DEVICES.path(), device_object(device_entry(0, id=7), name="n1"))
    elif how == "a finished Pod":
        four.fake.put(DEVICES.path(), device_object(device_entry(1, id="GPU-n1-1"), name="n1"))
        four.change_pod("p", status={"phase": "Succeeded"})
    four.see()
    await reconcile(four)
    assert four.events("DeviceVanished") == []
    assert troubles(four, "DeviceVanished") == 0


async def test_a_card_that_two_nodes_list_is_an_event_on_both(world: World) -> None:
    for name, ids in (("n1", "ab"), ("n2", "bc"), ("n3", "d")):
        world.add_bare_node(name)
        entries = [device_entry(minor, id=f"GPU:{one}.0") for minor, one in enumerate(ids)]
        entries += [device_entry(9, id="00000000:3B:00.0"), nic_entry(0, id="0000:1f:00.0")]
        world.fake.put(DEVICES.path(), device_object(*entries, name=name))
    world.see(NODES, DEVICES)
    for _ in range(2):
        await reconcile(world)
    told = world.events("DeviceListedTwice")
    assert {event["involvedObject"]["name"]: "GPU:b.0" in event["message"] for event in told} == {
        "n1": True,
        "n2": True,
    }
    assert {event["involvedObject"]["kind"] for event in told} == {"Node"}
    assert troubles(world, "DeviceListedTwice") == 2
