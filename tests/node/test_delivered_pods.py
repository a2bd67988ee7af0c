"""From `kubectl create` to the card in the container: koordgate as installed, on a node with NVIDIA's own runtime.

The Device object says what the node's runtime can do: as the reporter tells it, or as a test writes it by hand.
"""

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import allocated, device_object, gpu, metric, waits
from node import images
from node.harness import Node, Reporter
from node.nvidia import (
    CARDS,
    CONTROL,
    HANDLER,
    MANAGEMENT_KIND,
    PLUGIN_KIND,
    REFRESHED_KIND,
    Toolkit,
    limits_in,
    sysfs_with_cards,
)

from allocator.vocabulary.delivery import Delivery, NodeRuntime
from allocator.wire.noderuntime import NODE_RUNTIME, write_runtime
from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.replicas import Replicas, laid_over, this_koordgate
from localplane.waiting import until

MIB, GIB = 2**20, 2**30
HANDLERS = ("nvidia", "runc")
TOOLKIT = (1, 20, 2)
TELL = "echo $(find /dev -type c -name 'nvidia*' | sed 's|.*/||')"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
POLICY: dict[str, Any] = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "metadata": {"name": "cluster-policy"},
    "spec": {"cdi": {"enabled": True, "nriPluginEnabled": True}, "toolkit": {"enabled": True, "version": "v1.20.2"}},
}
_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class Setup:
    """A node as it is, and what is told of it.

    Attributes:
        told: Of its container runtime; None if its reporter is to tell.
        mode: Of NVIDIA's runtime.
        default_kind: Of CDI devices that NVIDIA's runtime is told without a kind.
        default: The handler of Pods without a RuntimeClass.
        plugin: Whether NVIDIA's NRI plugin runs.
        unprivileged: Whether NVIDIA's runtime heeds the variable of an unprivileged container.
        policy: Whether there is a ClusterPolicy of the GPU Operator's that turns the plugin on.
    """

    told: NodeRuntime | None
    mode: str = "cdi"
    default_kind: str = MANAGEMENT_KIND
    default: str = "runc"
    plugin: bool = False
    unprivileged: bool = True
    policy: bool = False


def told(**what: Any) -> NodeRuntime:
    """NVIDIA's runtime is there, but not the default; limits are kept."""
    return NodeRuntime(handlers=HANDLERS, showing=("nvidia",), toolkit=TOOLKIT, no_limits="", **what)


BY_CLASS = Setup(told(default_shows=False, mode="cdi"))
BY_CLASS_AUTO = Setup(told(default_shows=False, mode="auto"), mode="auto", default_kind=REFRESHED_KIND)
BY_PLUGIN = Setup(told(default_shows=False, nri=True, kinds=(PLUGIN_KIND,)), plugin=True)
BY_DEFAULT = Setup(told(default_shows=True, mode="cdi"), default=HANDLER)
NO_WAY = Setup(NodeRuntime(handlers=("runc",), default_shows=False, nri=False))
WAYS = {
    "the RuntimeClass, mode cdi": BY_CLASS,
    "the RuntimeClass, mode auto": BY_CLASS_AUTO,
    "NVIDIA's NRI plugin": BY_PLUGIN,
    "the default runtime": BY_DEFAULT,
}


@pytest.fixture(scope="module")
def node_chart(node_binaries: Binaries, node_values: JsonObject) -> list[JsonObject]:
    """The chart for the node, with cards, and with memory limits by NVIDIA's toolkit where a Pod requires them."""
    with_cards = laid_over(node_values, {"reporter": {"gpus": {"enabled": True}}})
    return chart.render(node_binaries, {**with_cards, "limits": {"provider": "nvidia-toolkit"}})


@dataclass(frozen=True)
class Installed:
    """koordgate on the node."""

    node: Node
    plane: ControlPlane
    admin: AdminClient
    replicas: Replicas
    toolkit: Toolkit
    namespace: str

    @contextlib.asynccontextmanager
    async def as_in(self, setup: Setup) -> AsyncIterator[None]:
        """Make the node so, and tell koordgate what is told of it."""
        self.toolkit.configure(setup.mode, setup.default_kind, unprivileged=setup.unprivileged)
        async with contextlib.AsyncExitStack() as stack:
            if setup.plugin:
                await stack.enter_async_context(self.toolkit.nri_plugin(self.node.nri_socket))
            if setup.default != "runc":
                await stack.enter_async_context(self.node.defaulting_to(setup.default))
            if setup.policy:
                await self.admin.create(POLICIES, POLICY)
                stack.push_async_callback(self.admin.delete, f"{POLICIES}/{POLICY['metadata']['name']}")
            if setup.told is not None:
                await self._publish(setup.told)
            yield

    async def _publish(self, runtime: NodeRuntime) -> None:
        """Publish two cards, and wait until the replica has read it: no two publications state the same memory."""
        memory = 80 * GIB - next(_NUMBERS) * MIB
        resources = {"gpu-core": "100", "gpu-memory-ratio": "100", "gpu-memory": str(memory)}
        named = {f"kubernetes.io/{tail}": amount for tail, amount in resources.items()}
        cards = [gpu(self.node.name, minor, id=CARDS[minor], resources=named) for minor in (1, 2)]
        body = device_object(self.node.name, cards)
        body["metadata"]["annotations"] = {NODE_RUNTIME: write_runtime(runtime)}
        await self.admin.apply(body)
        await self.node.set_capacity(
            {
                "kubernetes.io/gpu-core": "200",
                "kubernetes.io/gpu-memory-ratio": "200",
                "kubernetes.io/gpu-memory": "160Gi",
            }
        )

        async def read() -> bool:
            seen = await metric(self.replicas, "koordgate_capacity", type="gpu", resource="gpu-memory")
            return seen == 2 * memory

        await until(read, "the replica has read what is told of the node")

    async def reported(self) -> None:
        """Wait until the replica has read what the reporter tells of the node's cards and runtime."""
        path = f"{DEVICES}/{self.node.name}"

        async def read() -> bool:
            found = await self.admin.find(path)
            there = found is not None and NODE_RUNTIME in found["metadata"].get("annotations", {})
            return there and await metric(self.replicas, "koordgate_capacity", type="gpu", resource="gpu-core") >= 200

        await until(read, "the reporter's Device object is read")

    async def create(
        self, name: str, *containers: JsonObject, annotations: Mapping[str, str] | None = None, **rest: Any
    ) -> None:
        spec = {"restartPolicy": "Never", "containers": list(containers), **rest}
        metadata = {"name": name, "annotations": dict(annotations or {})}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        await self.admin.create(f"/api/v1/namespaces/{self.namespace}/pods", body)

    async def seen(self, name: str, container: str) -> set[str]:
        """The device nodes of NVIDIA's that a container has, when its Pod has ended."""
        await self.node.phase(self.namespace, name, "Succeeded", "Failed")
        return set((await self.node.logs(self.namespace, name, container)).split())

    async def probe(self) -> JsonObject:
        """Run `koordgate doctor --probe`; what it says of the node's probe, with the findings about it."""
        argv = (*this_koordgate(), "doctor", "--probe", images.BUSYBOX, "--try-in", self.namespace, "-o", "json")
        env = {**os.environ, "KUBECONFIG": str(self.plane.admin_kubeconfig)}
        done = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        said = json.loads(done.stdout)
        assert said["exitStatus"] == done.returncode
        (probe,) = said["probe"]
        return {**probe, "findings": [one for one in said["findings"] if one["area"] == "probe"]}


@pytest_asyncio.fixture(loop_scope="session")
async def installed(
    node: Node,
    node_plane: ControlPlane,
    node_admin: AdminClient,
    node_namespace: str,
    node_replicas: Replicas,
    nvidia_toolkit: Toolkit,
    nvidia_class: None,
) -> Installed:
    """koordgate as installed, with a RuntimeClass for NVIDIA's runtime."""
    return Installed(node, node_plane, node_admin, node_replicas, nvidia_toolkit, node_namespace)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster_policies(node_plane: ControlPlane) -> AsyncIterator[None]:
    """The kind ClusterPolicy, as the GPU Operator brings it."""
    names = {
        "kind": "ClusterPolicy",
        "listKind": "ClusterPolicyList",
        "plural": "clusterpolicies",
        "singular": "clusterpolicy",
    }
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterpolicies.nvidia.com"},
        "spec": {
            "group": "nvidia.com",
            "names": names,
            "scope": "Cluster",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    await chart.install(node_plane, [body])
    yield
    async with node_plane.admin() as admin:
        await admin.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusterpolicies.nvidia.com")


@pytest_asyncio.fixture(loop_scope="session")
async def reporter(
    installed: Installed, cluster_policies: None, node_chart: list[JsonObject], tmp_path: Path
) -> AsyncIterator[Reporter]:
    """The node's reporter, not started; its Device object is deleted at the end."""
    account = "koordgate-reporter"
    node, toolkit = installed.node, installed.toolkit
    folders = (toolkit.specs, node.containerd_configuration, toolkit.configuration)
    sysfs = sysfs_with_cards(tmp_path / "sys")
    path = f"{DEVICES}/{node.name}"
    if await installed.admin.find(path) is not None:  # another test's
        await installed.admin.delete(path)
    yield Reporter(
        node,
        chart.find(node_chart, "ConfigMap", account)["data"][chart.CONFIG_KEY],
        kubeconfig=await node.service_account_kubeconfig(chart.NAMESPACE, account),
        workdir=tmp_path,
        overrides={
            "roots": {"sysfs": str(sysfs)},
            # It runs in no container of the node: nothing follows from the cards that it sees.
            "runtime": {"directories": [str(folder) for folder in folders], "ownHandler": None},
        },
        environment=toolkit.environment,
    )
    await installed.admin.delete(path)


def container(name: str, asks: dict[str, str], script: str = TELL) -> JsonObject:
    return {
        "name": name,
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": asks},
    }


@pytest.mark.parametrize("setup", WAYS.values(), ids=WAYS)
async def test_a_container_has_the_cards_that_its_pod_was_bound_with_and_no_others(
    installed: Installed, setup: Setup
) -> None:
    async with installed.as_in(setup):
        await installed.create("one", container("asks", {"nvidia.com/gpu": "1"}), container("sidecar", {"cpu": "10m"}))
        await installed.create("half", container("asks", {"kubernetes.io/gpu": "50"}))

        for name in ("one", "half"):
            seen = await installed.seen(name, "asks")
            (share,) = allocated(await installed.node.phase(installed.namespace, name, "Succeeded"))
            assert seen == {f"nvidia{share['minor']}", *CONTROL}, name
        assert await installed.seen("one", "sidecar") == set()
        await installed.create("two", container("asks", {"nvidia.com/gpu": "2"}))
        assert await installed.seen("two", "asks") == {"nvidia1", "nvidia2", *CONTROL}


REPORTED = {
    "a handler in containerd's configuration, mode cdi": (Setup(None), Delivery.RUNTIME_CLASS),
    "the same, mode auto": (replace(BY_CLASS_AUTO, told=None), Delivery.RUNTIME_CLASS),
    "the default runtime in containerd's configuration": (Setup(None, default=HANDLER), Delivery.ENVIRONMENT),
    "the GPU operator's NRI plugin": (Setup(None, plugin=True, policy=True), Delivery.NVIDIA_NRI),
}


@pytest.mark.parametrize(("setup", "way"), REPORTED.values(), ids=REPORTED)
async def test_containers_get_their_cards_by_the_way_that_the_reporter_reads_on_the_node_and_a_probe_proves_it(
    installed: Installed, reporter: Reporter, setup: Setup, way: Delivery
) -> None:
    async with installed.as_in(setup), reporter:
        await installed.reported()
        await installed.create("one", container("asks", {"nvidia.com/gpu": "1"}))
        seen = await installed.seen("one", "asks")
        probe = await installed.probe()
    (share,) = allocated(await installed.node.phase(installed.namespace, "one", "Succeeded"))
    assert seen == {f"nvidia{share['minor']}", *CONTROL}
    assert (probe["verdict"], probe["way"]) == ("right", str(way)), probe
    assert [one["level"] for one in probe["findings"]] == ["ok"]


WRONG = {
    "a default runtime that is not NVIDIA's, though it is told so": (
        replace(BY_DEFAULT, default="runc"),
        "without its card",
        "does not heed NVIDIA_VISIBLE_DEVICES",
    ),
    "mode cdi, of which nothing is told": (
        replace(BY_CLASS, told=replace(BY_CLASS.told, mode="", toolkit=())),  # type: ignore[type-var]
        "not created",
        "the runtime is in mode cdi, and a bare UUID is no name there",
    ),
    "the variable of unprivileged containers is not heeded, which is not told": (
        replace(BY_CLASS, unprivileged=False),
        "without its card",
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false",
    ),
    "no NRI plugin, though it is told that there is one": (
        replace(BY_PLUGIN, plugin=False),
        "without its card",
        "NVIDIA's NRI plugin is not at work there",
    ),
    "a CDI kind that has no such card": (
        replace(BY_PLUGIN, told=replace(BY_PLUGIN.told, kinds=("gone.nvidia.com/gpu",))),  # type: ignore[type-var]
        "not created",
        "no CDI specification there has this name",
    ),
    "no runtime of NVIDIA's": (NO_WAY, "not placed", "configure NVIDIA's runtime there"),
}


@pytest.mark.parametrize(("setup", "verdict", "cure"), WRONG.values(), ids=WRONG)
async def test_a_probe_tells_apart_why_a_container_has_no_card(
    installed: Installed, setup: Setup, verdict: str, cure: str
) -> None:
    async with installed.as_in(setup):
        probe = await installed.probe()
    assert probe["verdict"] == verdict, probe
    (finding,) = probe["findings"]
    assert cure in finding["todo"]


async def test_a_node_that_cannot_show_cards_takes_no_pod_and_says_the_cure(installed: Installed) -> None:
    async with installed.as_in(NO_WAY):
        await installed.create("waits", container("asks", {"nvidia.com/gpu": "1"}))
        await waits(installed.admin, installed.namespace, "waits", "configure NVIDIA's runtime there")


async def test_the_limits_that_the_bind_wrote_are_kept_by_nvidias_hook_before_the_first_instruction(
    installed: Installed,
) -> None:
    reads = {"volumeMounts": [{"name": "told", "mountPath": "/told"}]}
    asks = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory": "20Gi"}
    async with installed.as_in(BY_CLASS):
        await installed.create(
            "limited",
            {**container("main", asks, "cat /told/limits"), **reads},
            annotations={"koordgate.io/limits": "require"},
            volumes=[{"name": "told", "hostPath": {"path": str(installed.toolkit.told)}}],
        )
        found = await installed.node.phase(installed.namespace, "limited", "Succeeded")
    (share,) = allocated(found)
    own = found["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    text = await installed.node.logs(installed.namespace, "limited", "main")
    kept = [(one.card, one.soft, one.hard) for one in limits_in(text) if one.cgroup.endswith(f"/{own}")]
    assert kept == [(share["minor"], 0, 20 * GIB)]


async def test_limits_that_the_node_does_not_keep_are_refused_before_a_container_is_made(installed: Installed) -> None:
    not_kept = replace(BY_CLASS, told=replace(BY_CLASS.told, no_limits="it has cgroup v1: use cgroup v2"))  # type: ignore[type-var]
    async with installed.as_in(not_kept):
        asks = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory": "20Gi"}
        await installed.create("waits", container("main", asks), annotations={"koordgate.io/limits": "require"})
        await waits(installed.admin, installed.namespace, "waits", "does not keep memory limits")
