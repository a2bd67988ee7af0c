"""Unreadable objects are reported where an operator looks: as an Event on the object, and as a metric."""

from typing import Any

import pytest
from builders import device_entry
from world import World, gpu_pod

from allocator.claimed import ClaimedToo
from allocator.vocabulary.adopted import AdoptionConflict, ConflictKind, Product
from allocator.vocabulary.asks import UNSTATED, GangSize
from koordgate.kube.resource import DEVICES, EVENTS, PLUGIN_POD_GROUPS, TOLD_AGAIN_S
from webhook.view.podinfo import PodInfo, read_pod_info


async def told(world: World) -> list[Any]:
    await world.parts.reporter.idle()
    return world.events("CannotBeRead")


async def test_a_device_that_makes_no_sense_is_an_event_on_its_object_and_the_rest_continues(world: World) -> None:
    world.add_node("n2", device_entry(0), device_entry(0), device_entry(1))
    world.see(DEVICES)
    (event,) = await told(world)
    about = event["involvedObject"]
    assert (about["apiVersion"], about["kind"], about["name"]) == (
        "scheduling.koordinator.sh/v1alpha1",
        "Device",
        "n2",
    )
    assert "occurs twice" in event["message"]
    assert [device.id for device in world.parts.cluster.snapshot("n2").devices] == ["GPU-n2-0", "GPU-n2-1"]
    counted = world.metric("koordgate_bad_objects", resource="devices")
    assert counted == 1


async def test_the_same_complaint_is_reported_once(world: World) -> None:
    world.add_node("n2", device_entry(0, resources={}))
    for _ in range(3):
        world.see(DEVICES)
    assert len(await told(world)) == 1


async def test_the_event_of_an_object_with_the_longest_name_has_a_name_that_kubernetes_takes(world: World) -> None:
    name = "n" * 253
    world.add_node(name, device_entry(0, resources={}))
    world.see(DEVICES)
    (event,) = await told(world)
    assert event["involvedObject"]["name"] == name
    assert event["metadata"]["generateName"] == "n" * 200 + "."


async def test_a_very_long_complaint_is_cut_to_what_an_event_may_hold(world: World) -> None:
    world.add_node("n2", *({"type": "gpu", "minor": number} for number in range(60)))
    world.see(DEVICES)
    (event,) = await told(world)
    assert len(event["message"]) == 1024


async def test_a_pod_group_without_a_right_size_is_an_event_in_its_namespace_and_states_none(world: World) -> None:
    for namespace, name, count in (("a", "g", 4), ("b", "g", "4"), ("b", "h", 2)):
        group = {"metadata": {"name": name, "namespace": namespace}, "spec": {"minMember": count}}
        world.fake.put(PLUGIN_POD_GROUPS.path(namespace=namespace), group)
    world.see(PLUGIN_POD_GROUPS)
    (event,) = await told(world)
    about = event["involvedObject"]
    assert (about["kind"], about["namespace"], about["name"]) == ("PodGroup", "b", "g")
    assert event["metadata"]["namespace"] == "b"
    assert event["message"] == "spec.minMember: 4 is no number of Pods; write a whole number from 1 on"
    sizes = world.parts.cluster.groups
    assert [sizes.size(gang) for gang in ("a/g", "b/g", "b/h")] == [GangSize(4, 4), UNSTATED, GangSize(2, 2)]
    world.fake.remove(PLUGIN_POD_GROUPS.path("g", "a"))
    world.see(PLUGIN_POD_GROUPS)
    assert sizes.size("a/g") == UNSTATED


def test_a_gang_of_two_api_groups_has_the_larger_size(world: World) -> None:
    sizes = world.parts.cluster.groups
    sizes.put("one", "default/g", GangSize(2, 8))
    sizes.put("two", "default/g", GangSize(4, 4))
    assert sizes.size("default/g") == GangSize(4, 8)
    sizes.drop("one", "default/g")
    sizes.drop("one", "default/unknown")
    assert sizes.size("default/g") == GangSize(4, 4)
    sizes.put("two", "default/g", UNSTATED)
    assert sizes.size("default/g") == UNSTATED


# How many Events are written at once


def infos(count: int, **about: Any) -> list[PodInfo]:
    read = (read_pod_info(gpu_pod(f"p{number:03}", **about)) for number in reversed(range(count)))
    return [pod for pod in read if pod is not None]


async def written(world: World) -> list[str]:
    """The names of the objects that Events are about, in order."""
    await world.parts.reporter.idle()
    return sorted(event["involvedObject"]["name"] for event in world.fake.objects(EVENTS.path()))


async def test_the_first_sixteen_pods_of_a_gang_that_waits_get_an_event(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "webhook.upkeep.reports")
    pods = infos(20)
    world.parts.reporter.gang_waits(pods, "there is no room")
    assert await written(world) == [f"p{number:03}" for number in range(16)]
    (record,) = caplog.records
    assert (record.__dict__["pod"], record.__dict__["pods"]) == ("default/p019", 20)


async def test_while_a_hundred_events_are_being_written_no_other_is_begun(world: World) -> None:
    complain = world.parts.reporter.bad_object("nodes")
    for number in range(130):
        complain(f"n{number:03}", ("nonsense",))
    assert world.metric("koordgate_bad_objects", resource="nodes") == 130
    assert await written(world) == [f"n{number:03}" for number in range(100)]
    complain("n200", ("nonsense", "and more"))
    assert len(await written(world)) == 101
    for name in ("n200", "n000", "unknown"):
        complain(name, ())
    assert world.metric("koordgate_bad_objects", resource="nodes") == 129


async def test_what_cannot_be_read_is_told_until_all_is_and_again_before_kubernetes_forgets_it(world: World) -> None:
    reporter, complain = world.parts.reporter, world.parts.reporter.bad_object("nodes")
    for number in range(130):
        complain(f"n{number:03}", ("nonsense",))
    (pod,) = infos(1, nodeName="n1")
    reporter.unreadable([pod])
    assert len(await written(world)) == 100, "as many as are written at once"
    for passed, count in ((0, 131), (0, 131), (TOLD_AGAIN_S - 1, 131), (1, 231), (0, 262)):
        world.clock.now += passed
        reporter.unreadable([pod])
        reporter.troubles([])
        assert len(await written(world)) == count
    for number in range(130):
        complain(f"n{number:03}", ())
    world.clock.now += TOLD_AGAIN_S
    reporter.troubles([])
    assert len(await written(world)) == 262


async def test_of_conflicts_between_products_a_hundred_are_told_in_a_round_each_once(world: World) -> None:
    found = [
        AdoptionConflict("n1", ConflictKind.OVERFULL, (), (f"team/p{number:03}",), (f"uid-{number}",), "why")
        for number in range(130)
    ]
    for count in (100, 130, 130):
        world.parts.reporter.adopted({Product.HAMI: 7}, found)
        assert len(await written(world)) == count
    assert world.metric("koordgate_adoption_conflicts", kind="overfull") == 130
    assert [world.metric("koordgate_adopted_pods", peer=peer) for peer in ("hami", "volcano")] == [7, 0]
    world.parts.reporter.adopted({}, [])
    world.parts.reporter.adopted({}, found[:1])
    assert len(await written(world)) == 131, "it was gone, and is there again"


async def test_of_claims_a_hundred_are_told_in_a_round(world: World) -> None:
    reporter, names = world.parts.reporter, [f"team/c{number:03}" for number in range(130)]
    reporter.unmatched({name: ["n1", "n2"] for name in names})
    assert await written(world) == [name.removeprefix("team/") for name in names[:100]]
    devices = [ClaimedToo("n1", "gpu", f"GPU-{name}", ("uid-a", "uid-b"), (name,)) for name in names]
    for _ in range(2):
        reporter.claimed_too(devices)
    assert len(await written(world)) == 200
    assert world.metric("koordgate_claims_unmatched") == world.metric("koordgate_devices_claimed_too") == 130


async def test_an_event_is_counted_once_and_is_a_warning_with_its_time(world: World) -> None:
    world.parts.reporter.bad_object("nodes")("n1", ("nonsense",))
    world.parts.reporter.observed(infos(1)[0], "WouldFit", "it fits")
    await world.parts.reporter.idle()
    told = {event["reason"]: event for event in world.fake.objects(EVENTS.path())}
    assert {reason: (event["type"], event["count"]) for reason, event in told.items()} == {
        "CannotBeRead": ("Warning", 1),
        "WouldFit": ("Normal", 1),
    }
    assert all(event["firstTimestamp"] == event["lastTimestamp"] for event in told.values())
