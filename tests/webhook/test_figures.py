"""The figures of the cluster: sums over nodes that follow every change, and what waiting Pods were answered."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest
from builders import GIB, container, device_entry, gpu, pod
from fake_kube import FakeKube
from msgspec.structs import replace
from world import SETTINGS, World, admitted, gpu_pod

from allocator.vocabulary.asks import Preference
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import InvariantError
from allocator.vocabulary.node import NodeSnapshot
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import NODES, PODS
from webhook.settings import SchedulerNames, TypicalSettings
from webhook.view.capacity import Capacity, DeviceState, DeviceSum, counted

Raw = dict[str, Any]


async def shown(world: World, *names: str) -> dict[str, float]:
    """The samples of some metrics, by what is written before the value."""
    await world.parts.figures.refresh()
    lines = world.parts.metrics.exposition().decode().splitlines()
    wanted = re.compile("|".join(rf"{name}(?:\{{|_count|_sum| )" for name in names))
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines) if wanted.match(key)}


def devices(model: Any = "", kind: Any = "gpu", **states: int) -> dict[str, float]:
    counted: Mapping[str, int] = dict.fromkeys(("idle", "shared", "full", "unusable"), 0) | states
    return {
        f'koordgate_devices{{model="{model}",state="{state}",type="{kind}"}}': number
        for state, number in counted.items()
    }


def amounts(what: str, core: int, ratio: int, memory: int, model: str = "") -> dict[str, float]:
    of = {"gpu-core": (core, "percent"), "gpu-memory-ratio": (ratio, "percent"), "gpu-memory": (memory, "bytes")}
    return {
        f'koordgate_{what}{{model="{model}",resource="{tail}",type="gpu",unit="{unit}"}}': amount
        for tail, (amount, unit) in of.items()
    }


async def test_what_is_there_given_and_free_is_summed_by_type_and_model(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1), device_entry(2), device_entry(3, health=False))
    for name, percent in (("half", 50), ("whole", 100)):
        world.add_pod(gpu_pod(name, percent))
    world.see()
    assert await shown(world, "koordgate_devices") == devices(idle=3, unusable=1)
    assert (await world.bind("half")).allowed
    assert (await world.bind("whole")).allowed
    assert await shown(world, "koordgate_devices") == devices(idle=1, shared=1, full=1, unusable=1)
    assert await shown(world, "koordgate_capacity") == amounts("capacity", 400, 400, 320 * GIB)
    assert await shown(world, "koordgate_allocated") == amounts("allocated", 150, 150, 120 * GIB)
    assert await shown(world, "koordgate_free") == amounts("free", 150, 150, 120 * GIB)
    world.remove_pod("half")
    world.see(PODS)
    assert await shown(world, "koordgate_devices") == devices(idle=2, full=1, unusable=1)


@pytest.mark.parametrize(("ratio", "state"), [("100", "full"), ("99", "shared")])
async def test_a_card_whose_memory_is_used_up_is_full_although_its_compute_is_free(
    world: World, ratio: str, state: str
) -> None:
    asked = {"kubernetes.io/gpu-memory-ratio": ratio}
    world.show(admitted(pod(container(limits=asked), name="p", uid="uid-p")))
    assert (await world.bind("p")).allowed
    assert await shown(world, "koordgate_devices") == devices(**{state: 1})


async def test_nodes_that_go_and_nodes_that_cannot_be_read_are_followed(world: World) -> None:
    world.add_node("n2", device_entry(0), device_entry(1))
    world.see()
    assert await shown(world, "koordgate_devices") == devices(idle=3)
    world.parts.cluster.nodes.block("n2", "unreadable")
    assert await shown(world, "koordgate_devices") == devices(idle=1, unusable=2)
    assert await shown(world, "koordgate_free") == amounts("free", 100, 100, 80 * GIB)
    assert await shown(world, "koordgate_capacity") == amounts("capacity", 300, 300, 240 * GIB)
    world.parts.cluster.nodes.drop_devices("n1")
    world.parts.cluster.nodes.drop_devices("n2")
    assert await shown(world, "koordgate_devices", "koordgate_capacity") == {}


async def test_the_101st_model_and_those_after_it_are_one(world: World) -> None:
    for number in range(102):
        labels = {"node.koordinator.sh/gpu-model": f"m{number:03}"}
        world.add_node(f"n{number}", device_entry(0, labels=labels))
    world.see()
    found = await shown(world, "koordgate_devices")
    idle = {key: value for key, value in found.items() if value}
    assert len(idle) == 101
    assert 'koordgate_devices{model="m099",state="idle",type="gpu"}' in idle
    assert idle['koordgate_devices{model="other",state="idle",type="gpu"}'] == 2


ANSWERS: dict[str, tuple[Raw, str]] = {
    "it fits": (gpu_pod("p", 50), "fits"),
    "a card that others hold": (gpu_pod("p", 100), "full"),
    "more cards than any node has": (gpu_pod("p", 200), "impossible"),
    "a request that cannot be read": (gpu_pod("p", 150, admit=False), "unreadable"),
}


@pytest.mark.parametrize(("obj", "answer"), ANSWERS.values(), ids=ANSWERS)
async def test_a_waiting_pod_is_counted_by_what_was_said_of_it_last(world: World, obj: Raw, answer: str) -> None:
    world.show(gpu_pod("holder", 50))
    assert (await world.bind("holder")).allowed
    world.change_pod("holder", spec={"nodeName": "n1"})
    obj["spec"]["schedulerName"] = "koord-scheduler"
    world.show(obj)
    assert await shown(world, "koordgate_pods_waiting") == {'koordgate_pods_waiting{answer="unasked"}': 1}
    asked = {"Pod": world.pod("p"), "NodeNames": ["n1"]}
    for _ in range(2):
        world.parts.extender.filter(asked)
        assert await shown(world, "koordgate_pods_waiting") == {f'koordgate_pods_waiting{{answer="{answer}"}}': 1}
    counted = await shown(world, "koordgate_filter_answers_total")
    assert counted == {f'koordgate_filter_answers_total{{answer="{answer}"}}': 2}
    world.change_pod("p", spec={"nodeName": "n1"})
    world.see()
    assert await shown(world, "koordgate_pods_waiting") == {}


async def test_the_wait_for_a_bind_is_counted_from_when_the_pod_was_first_seen(world: World) -> None:
    world.show(gpu_pod("p", 50))
    world.clock.now += 20
    world.change_pod("p", metadata={"labels": {"any": "change"}})
    world.see()
    world.clock.now += 22
    refused = await world.bind("p", "unknown")
    assert not refused.allowed
    wait = "koordgate_bind_wait_seconds"
    assert await shown(world, wait) == {f"{wait}_count": 0, f"{wait}_sum": 0}
    assert (await world.bind("p", see=False)).allowed
    assert await shown(world, wait) == {f"{wait}_count": 1, f"{wait}_sum": 42}


async def test_a_pod_that_takes_the_name_of_a_waiting_one_waits_from_its_own_beginning(world: World) -> None:
    world.show(gpu_pod("p", 50))
    world.clock.now += 20
    world.remove_pod("p")
    world.show(gpu_pod("p", 50, uid="another"))
    world.clock.now += 5
    pods = world.parts.cluster.pods
    assert (pods.waited("another"), pods.waited("uid-p")) == (5, 0)
    assert list(pods.waiting(SchedulerNames())) == ["another"]
    assert list(pods.waiting(SchedulerNames("another"))) == []


async def test_a_dry_run_is_no_bind(world: World) -> None:
    world.show(gpu_pod("p", 50))
    world.clock.now += 3
    assert (await world.bind("p", dry_run=True)).allowed
    assert (await shown(world, "koordgate_bind_wait_seconds"))["koordgate_bind_wait_seconds_count"] == 0


async def test_sums_that_are_wrong_are_found(world: World) -> None:
    capacity = Capacity(world.parts.cluster, BUILT_IN)
    await capacity.refresh()
    capacity.check_invariants()
    world.parts.cluster.nodes.drop_devices("n1")
    with pytest.raises(InvariantError, match="the sums of what nodes have are"):
        capacity.check_invariants()


def free_devices(model: str = "", **worth: float) -> dict[str, float]:
    return {
        f'koordgate_free_devices{{model="{model}",type="gpu",worth="{part}"}}': worth.get(part, 0) for part in PARTS
    }


PARTS = ("node_short", "remainder", "useful")


async def sized(world: World, name: str, cpus: int) -> None:
    """State what a Node has for Pods."""
    obj = world.fake.get(NODES.path(name))
    obj["status"] = {"allocatable": {"cpu": str(cpus), "memory": "64Gi", "pods": "110"}}
    world.fake.put(NODES.path(), obj)
    world.see()


async def test_what_is_free_is_told_by_what_it_is_worth_to_the_requests_of_running_pods(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.add_node("n2", device_entry(0))
    await sized(world, "n1", 8)
    await sized(world, "n2", 3)
    assert await shown(world, "koordgate_free_devices") == {}  # no Pod holds a device
    asked = {"kubernetes.io/gpu": "60", "cpu": "4"}
    for name in ("first", "second"):
        world.add_pod(admitted(pod(container(limits=asked, requests=asked), name=name, uid=f"uid-{name}")))
    world.see()
    assert (await world.bind("first", "n1")).allowed
    world.clock.now += 300
    # Two fifths of the first card are too little for such a Pod. The node of the third card has too few CPUs.
    assert await shown(world, "koordgate_free_devices") == free_devices(useful=1, remainder=0.4, node_short=1)
    await sized(world, "n2", 4)
    assert await shown(world, "koordgate_free_devices") == free_devices(useful=2, remainder=0.4)
    assert (await world.bind("second", "n2")).allowed
    assert await shown(world, "koordgate_free_devices") == free_devices(useful=1, remainder=0.8)
    world.parts.cluster.nodes.block("n1", "unreadable")
    assert await shown(world, "koordgate_free_devices") == free_devices(remainder=0.4)


async def test_a_stated_mix_is_what_free_devices_are_compared_with(fake: FakeKube, kube: KubeClient) -> None:
    mix = (TypicalSettings({"kubernetes.io/gpu": "100", "cpu": "1"}), TypicalSettings({"kubernetes.io/gpu": "200"}))
    settings = replace(SETTINGS, scheduler=replace(SETTINGS.scheduler, mix=mix))
    made = World(fake, kube, settings)
    made.add_node()
    made.see()
    assert await shown(made, "koordgate_free_devices") == free_devices(useful=0.5, remainder=0.5)


async def test_figures_asked_for_twice_at_once_are_those_of_one_moment(world: World, breaking: None) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.show(gpu_pod("p", 50))
    assert (await world.bind("p")).allowed
    await asyncio.gather(*(world.parts.figures.refresh() for _ in range(3)))
    assert await shown(world, "koordgate_free_devices") == free_devices(useful=1.5)


async def test_where_nobody_follows_the_mix_pods_are_counted_every_five_minutes(
    fake: FakeKube, kube: KubeClient
) -> None:
    settings = replace(SETTINGS, scheduler=replace(SETTINGS.scheduler, preference=Preference.PACKING))
    made = World(fake, kube, settings)
    made.add_node("n1", device_entry(0), device_entry(1))
    made.show(gpu_pod("p", 50))
    assert await shown(made, "koordgate_free_devices") == {}
    assert (await made.bind("p")).allowed
    made.clock.now += 299
    assert await shown(made, "koordgate_free_devices") == {}
    made.clock.now += 1
    assert await shown(made, "koordgate_free_devices") == free_devices(useful=1.5)


def test_of_a_type_that_is_not_known_nothing_is_counted_and_the_others_are() -> None:
    queue = Device("queue", "queue-a", 0, healthy=True, capacity={"queue": 7})
    found = counted(NodeSnapshot("n", (queue, gpu(0), gpu(1))), BUILT_IN)
    assert {key.type for key in found} == {"gpu"}
    assert found[DeviceSum("gpu", "", DeviceState.IDLE)] == 2
