"""How Pods get their cards, from admission to the bind: the RuntimeClass, what authors are told, and the forms."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from builders import container, device_entry, device_object, pod
from fake_kube import FakeKube
from runtimes import OPERATOR, OPERATOR_NRI, PLUGIN
from world import SETTINGS, World, asks, binding, binds, gpu_pod, plain_pod

from allocator.devices.delivery import DeliveryRules
from allocator.vocabulary.delivery import NodeRuntime
from allocator.wire.noderuntime import NODE_RUNTIME, write_runtime
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, RUNTIME_CLASSES
from webhook import patch
from webhook.view.runtimeclasses import RuntimeClassTable

Raw = dict[str, Any]
PACKAGES = replace(OPERATOR, default_shows=True, mode="auto")


def runtime_class(name: str, handler: str) -> Raw:
    return {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": handler}


def tell(world: World, node: str, runtime: NodeRuntime) -> None:
    """The reporter of a node tells of its runtime."""
    told = {NODE_RUNTIME: write_runtime(runtime)}
    entry = {**device_entry(0), "id": f"GPU-{node}-0"}
    world.fake.put(DEVICES.path(), device_object(entry, name=node, annotations=told))


def admit(world: World, made: Raw) -> tuple[Raw, tuple[str, ...]]:
    response = world.parts.pods.mutate(asks(made))
    assert response.allowed, response.message
    return patch.apply(made, response.patch), tuple(response.warnings)


async def a_cluster(world: World, *classes: Raw, **runtimes: NodeRuntime | None) -> None:
    for one in classes:
        world.fake.put(RUNTIME_CLASSES.path(), one)
    for name, runtime in runtimes.items():
        world.add_node(name, labels={"kubernetes.io/hostname": name})
        if runtime is not None:
            tell(world, name, runtime)
    world.see()


CLASSED = {
    # classes, runtimes, what the Pod names, the class that it ends with
    "the GPU Operator's default": ({"nvidia": "nvidia"}, {"n1": OPERATOR}, None, "nvidia"),
    "a cluster without the class": ({"other": "nvidia"}, {"n1": OPERATOR}, None, None),
    "a default runtime that shows cards": ({"nvidia": "nvidia"}, {"n1": PACKAGES}, None, None),
    "a cluster of which nothing is known": ({"nvidia": "nvidia"}, {"n1": None}, None, None),
    "NVIDIA's NRI plugin": ({"nvidia": "nvidia"}, {"n1": OPERATOR_NRI}, None, None),
    "a Pod that names another": ({"nvidia": "nvidia"}, {"n1": OPERATOR}, "kata", "kata"),
    "a Pod that names it": ({"nvidia": "nvidia"}, {"n1": PACKAGES}, "nvidia", "nvidia"),
}


@pytest.mark.parametrize(("classes", "runtimes", "named", "wanted"), CLASSED.values(), ids=CLASSED)
async def test_a_pod_gets_the_runtime_class_that_shows_it_cards(
    world: World,
    classes: Mapping[str, str],
    runtimes: Mapping[str, NodeRuntime | None],
    named: str | None,
    wanted: str | None,
) -> None:
    await a_cluster(world, *(runtime_class(*one) for one in classes.items()), **runtimes)
    stated: dict[str, Any] = {} if named is None else {"runtimeClassName": named}
    stored, _ = admit(world, gpu_pod("p", admit=False, **stated))
    assert stored["spec"].get("runtimeClassName") == wanted
    again, _ = admit(world, stored)
    assert again == stored


async def test_pods_without_cards_get_no_runtime_class(world: World) -> None:
    await a_cluster(world, runtime_class("nvidia", "nvidia"), n1=OPERATOR)
    nic, others_card = container(limits={"kubernetes.io/rdma": "50"}), container(limits={"amd.com/gpu": 1})
    for made in (plain_pod("p"), pod(nic), pod(others_card)):
        stored, _ = admit(world, made)
        assert "runtimeClassName" not in stored["spec"]


async def test_only_the_nodes_that_a_pod_selects_count(world: World) -> None:
    await a_cluster(world, runtime_class("nvidia", "nvidia"), n1=OPERATOR, n2=PACKAGES, n3=PACKAGES)
    for node, wanted in (("n1", "nvidia"), ("n2", None)):
        made = gpu_pod("p", admit=False, nodeSelector={"kubernetes.io/hostname": node})
        stored, _ = admit(world, made)
        assert stored["spec"].get("runtimeClassName") == wanted


async def test_a_class_that_comes_and_goes_is_followed_without_a_change_of_nodes(world: World) -> None:
    await a_cluster(world, n1=OPERATOR)
    _, warned = admit(world, gpu_pod("p", admit=False))
    assert "no node that this Pod selects can show its containers their cards" in warned[-1]
    assert "create a RuntimeClass for NVIDIA's runtime" in warned[-1]
    world.fake.put(RUNTIME_CLASSES.path(), runtime_class("nvidia", "nvidia"))
    world.see(RUNTIME_CLASSES)
    stored, warned = admit(world, gpu_pod("p", admit=False))
    assert (stored["spec"]["runtimeClassName"], warned) == ("nvidia", ())
    world.fake.remove(RUNTIME_CLASSES.path("nvidia"))
    world.see(RUNTIME_CLASSES)
    stored, _ = admit(world, gpu_pod("p", admit=False))
    assert "runtimeClassName" not in stored["spec"]


WARNED = {
    "a handler that shows no cards": (
        {"kata": "kata"},
        OPERATOR,
        "kata",
        "has the handler kata, which is none of those that show containers cards (nvidia)",
    ),
    "a handler of NVIDIA's": ({"more": "nvidia"}, OPERATOR, "more", ""),
    "a class that does not exist": ({}, OPERATOR, "kata", ""),
    "NVIDIA's NRI plugin, whatever the handler": ({"kata": "kata"}, OPERATOR_NRI, "kata", ""),
    "the class, and no node has its handler": (
        {"nvidia": "nvidia"},
        OPERATOR_NRI,
        "nvidia",
        "has no runtime handler nvidia",
    ),
}


@pytest.mark.parametrize(("classes", "runtime", "named", "words"), WARNED.values(), ids=WARNED)
async def test_an_author_is_warned_of_a_runtime_class_that_shows_no_cards(
    world: World, classes: Mapping[str, str], runtime: NodeRuntime, named: str, words: str
) -> None:
    await a_cluster(world, *(runtime_class(*one) for one in classes.items()), n1=runtime)
    stored, warned = admit(world, gpu_pod("p", admit=False, runtimeClassName=named))
    assert stored["spec"]["runtimeClassName"] == named
    assert (words in " ".join(warned)) if words else not warned


BOUND = {
    "the class": (OPERATOR, "nvidia", {"visible-devices.koordgate.io/main": "runtime.nvidia.com/gpu=GPU-n1-0"}),
    "nothing is known": (None, None, {"visible-devices.koordgate.io/main": "GPU-n1-0"}),
    "NVIDIA's NRI plugin": (
        OPERATOR_NRI,
        None,
        {
            "visible-devices.koordgate.io/main": "GPU-n1-0",
            "nvidia.cdi.k8s.io/container.main": f"{PLUGIN}=GPU-n1-0",
        },
    ),
}


@pytest.mark.parametrize(("runtime", "named", "shown"), BOUND.values(), ids=BOUND)
async def test_the_bind_names_cards_in_the_form_of_the_node(
    world: World, runtime: NodeRuntime | None, named: str | None, shown: Mapping[str, str]
) -> None:
    await a_cluster(world, runtime_class("nvidia", "nvidia"), n1=runtime)
    stored, _ = admit(world, gpu_pod("p", admit=False))
    assert stored["spec"].get("runtimeClassName") == named
    world.show(stored)
    response = await world.bind("p")
    assert response.allowed, response.message
    annotations = world.pod("p")["metadata"]["annotations"]
    assert shown.items() <= annotations.items()
    assert ("nvidia.cdi.k8s.io/container.main" in annotations) == (runtime is OPERATOR_NRI)
    world.see()
    assert world.parts.cluster.snapshot("n1").holdings["uid-p"].shares[0].containers == ("main",)


async def test_a_node_that_cannot_show_cards_is_refused_by_the_filter_and_by_the_bind(world: World) -> None:
    await a_cluster(world, n1=OPERATOR)
    world.show(gpu_pod("p"))
    response = await world.bind("p")
    assert not response.allowed
    assert "n1: the node has a default runtime that shows containers no cards" in response.message


async def test_a_replica_that_heard_otherwise_of_a_node_accepts_what_another_wrote(world: World) -> None:
    await a_cluster(world, n1=PACKAGES)
    world.show(gpu_pod("p"))
    asked = binding("p", "n1")
    mutated = await world.mutate(binds(asked))
    written = patch.apply(asked, mutated.patch)
    for runtime in (OPERATOR_NRI, replace(PACKAGES, mode="legacy")):
        tell(world, "n1", runtime)
        world.see(DEVICES)
        assert (await world.validate(binds(written))).allowed
    key = "visible-devices.koordgate.io/main"
    written["metadata"]["annotations"][key] = "runtime.nvidia.com/gpu=GPU-n1-1"
    refused = await world.validate(binds(written))
    assert "carries another allocation than the ledger holds" in refused.message


def test_rules_change_only_with_the_class_that_counts() -> None:
    changes: list[str] = []
    table = RuntimeClassTable(DeliveryRules(runtime_class="nvidia"), lambda: changes.append(table.rules.handler))
    table.put("kata", "kata")
    table.put("nvidia", "nv")
    table.put("nvidia", "nv")
    table.put("nvidia", "other")
    table.drop("kata")
    table.drop("nvidia")
    assert changes == ["nv", "other", ""]
    assert table.rules.runtime_class == ""


async def test_with_delivery_runtime_class_every_pod_gets_it(fake: FakeKube, kube: KubeClient) -> None:
    devices = msgspec.structs.replace(SETTINGS.devices, delivery="runtimeClass", runtime_class_name="gpus")
    world = World(fake, kube, msgspec.structs.replace(SETTINGS, devices=devices))
    await a_cluster(world, runtime_class("gpus", "nvidia"), n1=PACKAGES)
    stored, _ = admit(world, gpu_pod("p", admit=False))
    assert stored["spec"]["runtimeClassName"] == "gpus"
