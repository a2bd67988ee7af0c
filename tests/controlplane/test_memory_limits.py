"""Pods whose memory limits must be kept, through a real API server and kube-scheduler, forged ones among them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    WOKEN,
    add_node,
    at_home,
    audit,
    bound,
    device_object,
    gpu,
    pods_path,
    refusal,
    remove,
    scheduling,
    waits,
)

from allocator.vocabulary.delivery import NodeRuntime
from allocator.wire.noderuntime import NODE_RUNTIME, write_runtime
from localplane.admin import MERGE_PATCH, AdminClient, JsonObject
from localplane.plane import ControlPlane
from localplane.replicas import Replicas

LIMITS = "koordgate.io/limits"
ABLE = NodeRuntime(default_shows=True, mode="auto", toolkit=(1, 20, 2), no_limits="")
UNABLE = NodeRuntime(default_shows=True, mode="auto", no_limits="the driver is 580.95: install R615 or later")
HALF = {"kubernetes.io/gpu": "50"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(
    plane: ControlPlane, installed: list[JsonObject], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    limits = {"limits": {"provider": "nvidia-toolkit", "require": ["nowhere"]}}
    async with scheduling(plane, installed, tmp_path_factory.mktemp("limits"), overrides={**WOKEN, **limits}) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def node(plane: ControlPlane, admin: AdminClient, namespace: str, replicas: Replicas) -> AsyncIterator[str]:
    """A node with two cards of 80 GiB, of which nothing is told, for this test's Pods."""
    name = f"{namespace}-n0"
    await add_node(plane, admin, name, namespace, [gpu(name, 0), gpu(name, 1)])
    yield name
    await remove(admin, namespace, [name])


async def tells(admin: AdminClient, node: str, runtime: NodeRuntime) -> None:
    """The node's reporter tells what its runtime can do."""
    device = device_object(node, [gpu(node, 0), gpu(node, 1)])
    device["metadata"]["annotations"] = {NODE_RUNTIME: write_runtime(runtime)}
    await admin.apply(device)


def limited(name: str, namespace: str, said: str = "require", **spec: Any) -> JsonObject:
    return at_home(name, namespace, HALF, annotations={LIMITS: said}, **spec)


def resolved(obj: JsonObject) -> dict[str, str]:
    """The first container's variables about limits, as the kubelet resolves them."""
    annotations = obj["metadata"]["annotations"]
    return {
        entry["name"]: annotations[entry["valueFrom"]["fieldRef"]["fieldPath"].split("'")[1]]
        for entry in obj["spec"]["containers"][0]["env"]
        if entry["name"].startswith("NVIDIA_GPU_MEMORY")
    }


async def test_the_variables_resolve_as_soon_as_the_pod_has_a_node(
    admin: AdminClient, namespace: str, node: str
) -> None:
    await tells(admin, node, ABLE)

    async def first_with_a_node() -> JsonObject:
        async for event in admin.watch(pods_path(namespace)):
            if event["object"]["spec"].get("nodeName"):
                return dict(event["object"])
        raise AssertionError("the watch ended before the Pod had a node")

    watching = asyncio.create_task(first_with_a_node())
    await admin.create(pods_path(namespace), limited("limited", namespace))
    await bound(admin, namespace, "limited")
    found = await asyncio.wait_for(watching, 60)
    assert resolved(found) == {
        "NVIDIA_GPU_MEMORY_REQUEST": "0",
        "NVIDIA_GPU_MEMORY_REQUESTS": "0",
        "NVIDIA_GPU_MEMORY_LIMIT": "40960",
        "NVIDIA_GPU_MEMORY_LIMITS": "40960",
    }
    await audit(admin)


async def test_a_pod_that_requires_limits_waits_for_a_node_that_keeps_them(
    admin: AdminClient, namespace: str, node: str
) -> None:
    await admin.create(pods_path(namespace), limited("limited", namespace))
    await admin.create(pods_path(namespace), at_home("other", namespace, HALF))
    assert resolved(await bound(admin, namespace, "other")) == {}
    await waits(admin, namespace, "limited", "the node does not keep memory limits, which the Pod requires")
    await tells(admin, node, UNABLE)
    await admin.create(pods_path(namespace), limited("second", namespace))
    await waits(admin, namespace, "second", "the node does not keep memory limits, which the Pod requires")
    await tells(admin, node, ABLE)
    for name in ("limited", "second"):
        assert resolved(await bound(admin, namespace, name))["NVIDIA_GPU_MEMORY_LIMITS"] == "40960"
    await audit(admin)


async def test_nobody_states_a_limit_but_the_bind(admin: AdminClient, namespace: str, node: str) -> None:
    key = "nvidia-gpu-memory-limit.koordgate.io/main"
    await tells(admin, node, ABLE)
    forged = limited("forged", namespace)
    forged["metadata"]["annotations"][key] = "81920"
    assert await refusal(admin.create(pods_path(namespace), forged)) == "koordgate-allocations"
    await admin.create(pods_path(namespace), limited("limited", namespace))
    path = pods_path(namespace, "limited")
    await bound(admin, namespace, "limited")
    for text in ("81920", None):
        change = {"metadata": {"annotations": {key: text}}}
        assert await refusal(admin.patch(path, change, MERGE_PATCH)) == "koordgate-allocations"
