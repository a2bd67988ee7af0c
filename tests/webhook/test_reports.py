"""Unreadable objects are reported where an operator looks: as an Event on the object, and as a metric."""

from typing import Any

from builders import device_entry
from world import World

from koordgate.kube.resource import DEVICES, EVENTS


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


async def test_a_very_long_complaint_is_cut_to_what_an_event_may_hold(world: World) -> None:
    world.add_node("n2", *({"type": "gpu", "minor": number} for number in range(60)))
    world.see(DEVICES)
    (event,) = await told(world)
    assert len(event["message"]) == 1024
