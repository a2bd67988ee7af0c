"""RuntimeClasses in files: which Pods get one, what the API server adds with it, and what nodes refuse."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import container, device_entry, device_object, pod
from simulator.clusters import node

from allocator.vocabulary.delivery import NodeRuntime
from allocator.wire.noderuntime import NODE_RUNTIME, write_runtime
from console.simulator.apiserver import RuntimeClassPlugin
from console.simulator.arrivals import read_cluster
from console.simulator.cluster import OfflineCluster, PodFate
from webhook.view.cluster import ClusterView, SeenObjects

Raw = dict[str, Any]
HALF = {"kubernetes.io/gpu": "50"}
SMALL = {"cpu": "250m"}
NO_CARDS = "the node has a default runtime that shows containers no cards"


def runtime_class(name: str = "nvidia", handler: str = "nvidia", **fields: Any) -> Raw:
    about = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
    return {**about, "handler": handler, **fields}


def operators_node() -> list[Raw]:
    """A node as the GPU Operator makes it: NVIDIA's runtime is not the default."""
    runtime = NodeRuntime(("nvidia", "runc"), ("nvidia",), default_shows=False, toolkit=(1, 18, 1), mode="cdi")
    told = {NODE_RUNTIME: write_runtime(runtime)}
    return [node(labels={"pool": "gpu"}), device_object(device_entry(0), name="node-1", annotations=told)]


async def result(*objects: Raw) -> Any:
    cluster = OfflineCluster.in_process()
    await cluster.load([*objects, *operators_node()])
    return await cluster.submit(pod(container(limits=HALF), name="p"))


async def test_a_pod_gets_the_class_and_what_the_api_server_adds_with_it() -> None:
    scheduling = {"nodeSelector": {"pool": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    found = await result(runtime_class(overhead={"podFixed": SMALL}, scheduling=scheduling))
    assert found.state is PodFate.BOUND, found.message
    spec = found.pod["spec"]
    assert (spec["runtimeClassName"], spec["overhead"]) == ("nvidia", SMALL)
    assert spec["nodeSelector"] == scheduling["nodeSelector"]
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}, *scheduling["tolerations"]]
    shown = found.pod["metadata"]["annotations"]["visible-devices.koordgate.io/main"]
    assert shown.startswith("runtime.nvidia.com/gpu=GPU-")


async def test_without_the_class_no_node_shows_cards_and_the_author_is_told() -> None:
    found = await result()
    assert found.state is PodFate.UNSCHEDULABLE
    assert NO_CARDS in found.message
    assert NO_CARDS.removeprefix("the node ") in found.warnings[-1]


REMARKED: dict[str, tuple[Raw, tuple[Raw, ...], int]] = {
    "the class is left out": ({"defaultShows": False}, (), 1),
    "a class is there": ({"defaultShows": False}, (runtime_class(),), 0),
    "the default runtime shows cards": ({"defaultShows": True}, (), 0),
    "NVIDIA's NRI plugin shows them": ({"defaultShows": False, "nri": True}, (), 0),
    "nothing is known": ({}, (), 0),
}


@pytest.mark.parametrize(("told", "classes", "remarks"), REMARKED.values(), ids=REMARKED)
def test_classes_that_are_left_out_of_the_input_are_remarked_where_nodes_need_one(
    tmp_path: Path, told: Raw, classes: tuple[Raw, ...], remarks: int
) -> None:
    annotations = {NODE_RUNTIME: json.dumps(told)}
    of_nodes = [
        one
        for name in ("n1", "n2")
        for one in (node(name), device_object(device_entry(0), name=name, annotations=annotations))
    ]
    file = tmp_path / "cluster.yaml"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*of_nodes, *classes]}))
    found = [one for one in read_cluster([str(file)]).notes if "kubectl get runtimeclasses -o yaml" in one]
    assert len(found) == remarks


WRITTEN: dict[str, tuple[Raw, Raw, str]] = {
    "no class": ({}, {}, ""),
    "a class that is not in the input": ({"runtimeClassName": "kata"}, {}, ""),
    "a class without more": ({"runtimeClassName": "plain"}, {}, ""),
    "an overhead": ({"runtimeClassName": "heavy"}, {"overhead": SMALL}, ""),
    "the same overhead": ({"runtimeClassName": "heavy", "overhead": SMALL}, {}, ""),
    "another overhead": ({"runtimeClassName": "heavy", "overhead": {"cpu": "1"}}, {}, "Overhead doesn't match"),
    "labels beside the Pod's": (
        {"runtimeClassName": "placed", "nodeSelector": {"a": "b"}},
        {"nodeSelector": {"a": "b", "pool": "gpu"}},
        "",
    ),
    "labels against the Pod's": ({"runtimeClassName": "placed", "nodeSelector": {"pool": "x"}}, {}, "conflict"),
    "a toleration that the Pod has": ({"runtimeClassName": "tolerant", "tolerations": [{"key": "gpu"}]}, {}, ""),
    "a toleration more": (
        {"runtimeClassName": "tolerant", "tolerations": [{"key": "x"}]},
        {"tolerations": [{"key": "x"}, {"key": "gpu"}]},
        "",
    ),
}


@pytest.mark.parametrize(("spec", "written", "refusal"), WRITTEN.values(), ids=WRITTEN)
def test_the_plugin_writes_and_refuses_as_the_api_servers(spec: Raw, written: Raw, refusal: str) -> None:
    plugin = RuntimeClassPlugin(ClusterView(SeenObjects(lambda: 0)))
    for one in (
        runtime_class("plain"),
        runtime_class("heavy", overhead={"podFixed": SMALL}),
        runtime_class("placed", scheduling={"nodeSelector": {"pool": "gpu"}}),
        runtime_class("tolerant", scheduling={"tolerations": [{"key": "gpu"}]}),
    ):
        plugin.put(one)
    made = pod(**spec)
    wanted = {**made["spec"], **written}
    said = plugin.write(made)
    assert refusal in said
    assert bool(said) == bool(refusal)
    assert made["spec"] == wanted
