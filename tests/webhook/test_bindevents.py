"""Each bind is told once, as an Event on the Pod, after it and off its way."""

from typing import Any

from builders import gpu, holding, node, part
from world import World, binding, binds, gpu_pod

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.preference import Preference
from koordgate.kube.resource import EVENTS
from webhook.upkeep import bindevents
from webhook.upkeep.bindevents import BindEvents
from webhook.view.podinfo import PodInfo


async def told(world: World) -> list[Any]:
    await world.parts.bind_events.idle()
    return [obj for obj in world.fake.objects(EVENTS.path()) if obj["reason"] == "DevicesAllocated"]


async def test_a_bind_is_an_event_that_says_what_was_given_where_and_what_stayed_whole(world: World) -> None:
    world.add_pod(gpu_pod("one"))
    assert (await world.bind("one")).allowed
    (event,) = await told(world)
    assert event["involvedObject"]["name"] == "one"
    assert event["type"] == "Normal"
    assert event["message"].startswith("on n1: gpu 0 GPU-n1-0 (core 50 %, memory 50 %")
    assert "idle devices of type gpu stay whole. Nodes are compared by packing" in event["message"]


async def test_a_bind_that_is_retried_is_told_once(world: World) -> None:
    world.add_pod(gpu_pod("one"))
    for _ in range(3):
        assert (await world.mutate(binds(binding("one", "n1")))).allowed
    assert len(await told(world)) == 1


async def test_a_refused_bind_and_a_dry_run_are_not_told(world: World) -> None:
    world.add_pod(gpu_pod("one"))
    assert (await world.bind("one", dry_run=True)).allowed
    assert await told(world) == []


def info(uid: str) -> PodInfo:
    return PodInfo(uid, "team", uid, "", False, False, "koord-scheduler", True, None)  # type: ignore[arg-type]


async def test_too_many_events_are_dropped_and_counted(monkeypatch) -> None:
    monkeypatch.setattr(bindevents, "_PAUSE_S", 0.0)
    card, written, dropped = gpu(0), [], []

    async def write(pod: PodInfo, message: str) -> None:
        written.append((pod.uid, len(message)))

    there = node(card)
    events = BindEvents(write, lambda _node: there, BUILT_IN, Preference.PACKING, lambda: dropped.append(1))
    for number in range(300):
        events.bound(info(f"pod-{number}"), holding(f"pod-{number}", part(card, 1)), "node-1")
    await events.idle()
    assert [uid for uid, _ in written] == [f"pod-{number}" for number in range(256)]
    assert len(dropped) == 44
    events.bound(info("later"), holding("later", part(card, 1)), "node-1")
    await events.idle()
    assert written[-1][0] == "later"
