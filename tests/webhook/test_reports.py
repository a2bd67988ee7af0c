"""Unreadable objects are reported where an operator looks: as an Event on the object, and as a metric."""

from typing import Any

from builders import device_entry
from world import World

from allocator.vocabulary.gangs import UNSTATED, GangSize
from koordgate.kube.resource import DEVICES, EVENTS, PLUGIN_POD_GROUPS


def events(world: World) -> list[Any]:
    return [obj for obj in world.fake.objects(EVENTS.path()) if obj["reason"] == "CannotBeRead"]


async def told(world: World) -> list[Any]:
    await world.parts.reporter.idle()
    return events(world)


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
    counted = world.parts.metrics._registry.get_sample_value("koordgate_bad_objects", {"resource": "devices"})
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
