"""Pods of a device plugin that run before koordgate is installed: their cards are never allocated."""

import json
from dataclasses import replace
from typing import Any

import foreignpods
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.clusters import asking, device, gpus, held, machine, node, saved

from allocator.vocabulary.adopted import Product
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.wire.foreignpods import NO_ADOPTION
from console.simulator.cluster import OfflineCluster, PodFate
from console.simulator.running import plugin_devices, unnamed_products
from koordgate.cli import main
from webhook.view.podinfo import read_pod_info

Raw = dict[str, Any]
CHECKPOINTS = "node.koordinator.sh/devices-checkpoints"


def running(name: str, cards: int, on: str = "node-1", **status: Any) -> Raw:
    made = asking(name, {"nvidia.com/gpu": str(cards)}, nodeName=on, schedulerName="default-scheduler")
    return {**made, "status": status or {"phase": "Running"}}


async def loaded(*objects: Raw) -> OfflineCluster:
    cluster = OfflineCluster.in_process()
    await cluster.load(objects)
    return cluster


def cards_of(cluster: OfflineCluster, name: str) -> list[str]:
    pod = next(one for one in cluster.pods if one["metadata"]["name"] == name)
    holding = cluster.account().holding(pod)
    return [share.id for share in holding.shares] if holding else []


async def test_as_many_idle_cards_as_it_asks_for_are_withheld() -> None:
    cluster = await loaded(*machine(cards=4), held("ours", "node-1", (0, 30)), running("theirs", 2))
    assert cards_of(cluster, "theirs") == ["GPU-node-1-1", "GPU-node-1-2"]
    bound = [await cluster.submit(gpus(name, 100)) for name in ("first", "second")]
    assert [one.state for one in bound] == [PodFate.BOUND, PodFate.UNSCHEDULABLE]
    assert cards_of(cluster, "first") == ["GPU-node-1-3"]
    await cluster.delete("default", "theirs")
    assert (await cluster.submit(gpus("third", 200))).state is PodFate.BOUND


async def test_cards_of_the_kubelets_checkpoint_are_not_assumed_a_second_time() -> None:
    cards = device(cards=3)
    cards["metadata"]["annotations"] = {CHECKPOINTS: json.dumps([{"deviceIDs": ["GPU-node-1-2"]}])}
    cluster = await loaded(node(), cards, running("told", 1), running("untold", 1))
    assert cards_of(cluster, "told") == []
    assert cards_of(cluster, "untold") == ["GPU-node-1-0"]
    assert (await cluster.submit(gpus("new", 100))).state is PodFate.BOUND
    assert (await cluster.submit(gpus("newer", 10))).state is PodFate.UNSCHEDULABLE


def test_the_table_says_that_they_are_assumed(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-f", saved(tmp_path, [*machine(), running("theirs", 1)])]) == 0
    table = capsys.readouterr().out
    assert "which ones is unknown, so idle ones are assumed" in table
    assert "holds none" not in table


@settings(max_examples=25)
@given(st.integers(1, 8), st.lists(st.integers(1, 4), max_size=4), st.integers(0, 4))
async def test_what_is_left_is_what_nobody_can_hold(cards: int, theirs: list[int], given_away: int) -> None:
    machine_object = device(cards=cards)
    ids = [f"GPU-node-1-{at}" for at in range(min(given_away, cards, sum(theirs)))]
    machine_object["metadata"]["annotations"] = {CHECKPOINTS: json.dumps([{"deviceIDs": ids}])}
    plugin = [running(f"theirs-{at}", count) for at, count in enumerate(theirs)]
    cluster = await loaded(node(), machine_object, *plugin)
    left = max(cards - sum(theirs), 0)
    results = [await cluster.submit(gpus(f"new-{at}", 100)) for at in range(left + 1)]
    assert [one.state for one in results] == [PodFate.BOUND] * left + [PodFate.UNSCHEDULABLE]


WHOLE = {"gpu": [{"minor": 0, "id": "GPU-node-1-0", "resources": {"koordinator.sh/gpu-core": "100"}}]}


@pytest.mark.parametrize(
    ("change", "cards"),
    [
        ({}, {"gpu": 2}),
        ({"spec": {"nodeName": ""}}, {}),
        ({"status": {"phase": "Failed"}}, {}),
        ({"annotations": {"scheduling.koordinator.sh/device-allocated": json.dumps(WHOLE)}}, {}),
        ({"asks": {"nvidia.com/gpu": "2", "kubernetes.io/gpu": "100"}}, {}),
    ],
    ids=["it runs", "it waits", "it has ended", "it states what it holds", "it asks koordgate too"],
)
def test_cards_of_a_device_plugin_are_those_of_a_pod_that_runs_and_states_nothing(
    change: Raw, cards: dict[str, int]
) -> None:
    made = running("theirs", 2)
    made["metadata"] |= {"uid": "u", "annotations": change.get("annotations", {})}
    made["spec"] |= change.get("spec", {})
    if "asks" in change:
        made["spec"]["containers"][0]["resources"]["requests"] = change["asks"]
    info = read_pod_info({**made, "status": change.get("status", made["status"])})
    assert info is not None
    assert plugin_devices(info, BUILT_IN) == cards


async def test_what_others_leave_is_assumed_for_one_pod_after_the_other_on_each_node() -> None:
    cards = device(cards=5)
    cards["spec"]["devices"][0]["health"] = False
    cards["metadata"]["annotations"] = {CHECKPOINTS: json.dumps([{"deviceIDs": ["GPU-node-1-3"]}])}
    cluster = await loaded(
        node(),
        cards,
        *machine("node-2"),
        asking("plain", nodeName="node-1"),
        running("three", 3),
        running("one", 1),
        running("more", 4),
        running("other", 1, "node-2"),
    )
    assert {name: cards_of(cluster, name) for name in ("plain", "three", "one", "more", "other")} == {
        "plain": [],
        "three": ["GPU-node-1-1", "GPU-node-1-2"],
        "one": ["GPU-node-1-4"],
        "more": ["GPU-node-1-0"],
        "other": ["GPU-node-2-0"],
    }
    marks = {pod["metadata"]["name"]: (pod["metadata"].get("annotations") or {}) for pod in cluster.pods}
    assert {name: of.get("koordgate.io/assumed") for name, of in marks.items()} == {
        "plain": None,
        "three": "2",
        "one": "1",
        "more": "1",
        "other": "1",
    }


def test_products_that_are_not_counted_are_told_by_name_with_the_number_of_their_pods() -> None:
    text = "GPU-1,NVIDIA,20480,30:;"
    pods = [
        foreignpods.running("plain"),
        foreignpods.hami(text, name="a"),
        foreignpods.kai("group", name="b"),
        foreignpods.hami(text, name="c"),
    ]
    assert list(unnamed_products(pods, NO_ADOPTION)) == [
        (
            "2 running Pods state in hami.io/vgpu-devices-allocated what hami gave, and this does not count: "
            "add hami to adopt.peers"
        ),
        "1 running Pod states in runai-gpu-group what kai gave, and this does not count: add kai to adopt.peers",
    ]
    counted = replace(NO_ADOPTION, peers=frozenset({Product.HAMI}))
    assert [told.partition(" in ")[0] for told in unnamed_products(pods, counted)] == ["1 running Pod states"]
