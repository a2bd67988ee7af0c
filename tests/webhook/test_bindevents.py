"""Each bind is told once, as an Event on the Pod, after it and off its way."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from builders import gpu, holding, node, part
from world import World, binding, binds, gpu_pod

from allocator.vocabulary.asks import Preference
from allocator.vocabulary.devicetype import BUILT_IN
from webhook.upkeep import reports
from webhook.upkeep.reports import BindEvents
from webhook.view.podinfo import PodInfo


async def told(world: World) -> list[Any]:
    await world.parts.bind_events.idle()
    return world.events("DevicesAllocated")


async def test_a_bind_is_an_event_that_says_what_was_given_where_and_what_stayed_whole(world: World) -> None:
    world.add_pod(gpu_pod("one"))
    assert (await world.bind("one")).allowed
    (event,) = await told(world)
    assert event["involvedObject"]["name"] == "one"
    assert event["type"] == "Normal"
    assert event["message"].startswith("on n1: gpu 0 GPU-n1-0 (core 50 %, memory 40 GiB (50 %)")
    assert "idle devices of type gpu stay whole. Nodes are compared by fragmentation" in event["message"]


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


CARD = gpu(0)


@dataclass
class Time:
    """Passes only while somebody pauses."""

    now: float = 100.0
    pauses: list[float] = field(default_factory=list)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def writer(
    write: Callable[[PodInfo, str], Awaitable[None]],
    dropped: list[int],
    bugs: list[int] | None = None,
    passing: Time | None = None,
) -> BindEvents:
    passing = passing or Time()
    counts = [lambda: dropped.append(1), lambda: ([] if bugs is None else bugs).append(1)]
    return BindEvents(
        write,
        lambda _node: node(CARD),
        BUILT_IN,
        Preference.PACKING,
        *counts,
        clock=lambda: passing.now,
        pause=passing.pause,
    )


def bind(events: BindEvents, name: str) -> None:
    events.bound(info(name), holding(name, part(CARD, 1)), "node-1")


async def test_events_are_written_five_a_second_while_pods_are_bound_and_fifty_a_second_later() -> None:
    passing, written = Time(), list[float]()

    async def write(_pod: PodInfo, _message: str) -> None:
        written.append(round(passing.now, 2))
        if len(written) == 3:
            bind(events, "late")  # the burst goes on

    events = writer(write, [], passing=passing)
    for number in range(10):
        bind(events, f"pod-{number}")
    await events.idle()
    assert written == [100.0, 100.2, 100.4, 100.6, 100.8, 101.0, 101.2, 101.4, 101.42, 101.44, 101.46]


async def test_too_many_events_are_dropped_and_counted() -> None:
    written: list[tuple[str, int]] = []
    dropped: list[int] = []

    async def write(pod: PodInfo, message: str) -> None:
        written.append((pod.uid, len(message)))

    events = writer(write, dropped)
    for number in range(40):
        bind(events, f"pod-{number}")
    await events.idle()
    assert [uid for uid, _ in written] == [f"pod-{number}" for number in range(32)]
    assert len(dropped) == 8
    bind(events, "later")
    await events.idle()
    assert written[-1][0] == "later"


async def test_an_event_that_fails_on_a_bug_is_told_and_keeps_no_other_back() -> None:
    written: list[str] = []
    bugs: list[int] = []

    async def write(pod: PodInfo, _message: str) -> None:
        if pod.uid == "odd":
            raise KeyError(pod.uid)
        written.append(pod.uid)

    events = writer(write, [], bugs)
    for name in ("odd", "next"):
        bind(events, name)
    await events.idle()
    assert (written, len(bugs)) == (["next"], 1)


async def test_what_waits_at_the_end_is_written_and_what_cannot_be_is_dropped(monkeypatch) -> None:
    written: list[str] = []
    dropped: list[int] = []
    answers = asyncio.Event()
    answers.set()

    async def write(pod: PodInfo, _message: str) -> None:
        await answers.wait()
        written.append(pod.uid)

    events = writer(write, dropped)
    bind(events, "one")
    await events.close()
    assert (written, dropped) == (["one"], [])
    answers.clear()
    monkeypatch.setattr(reports, "_LAST_S", 0.0)
    for name in ("two", "three", "four"):
        bind(events, name)
    await asyncio.sleep(0)  # the first of them is being written
    await events.close()
    assert (written, len(dropped)) == (["one"], 2)
