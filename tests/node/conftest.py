"""One real node with its own control plane for the tests of this folder."""

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from controlplane.needs import missing
from node import harness, machine, nvidia
from node.enforcers import Bench

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import NVIDIA_TOOLKIT, Binaries, BuildError, find_or_build
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import CONTROL_PLANE, ControlPlane
from localplane.process import free_port
from localplane.replicas import Replicas
from localplane.waiting import until

_HERE = Path(__file__).parent
_NAME = "node-1"
_NUMBERS = itertools.count(1)
# CPU 0 is reserved, because a static policy requires some. A changed cpuset of a container is restored once a second.
_STATIC = {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "cpuManagerReconcilePeriod": "1s"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and run them in the event loop of the session's fixtures."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.node)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def node_binaries() -> Binaries:
    """The programs of a control plane and of a node; built if they are missing, which takes minutes the first time."""
    trouble = machine.problem()
    if trouble:
        missing(trouble)
    try:
        return find_or_build((*CONTROL_PLANE, *harness.RUNTIME, *NVIDIA_TOOLKIT, "helm"))
    except BuildError as error:
        missing(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node_plane(node_binaries: Binaries) -> AsyncIterator[ControlPlane]:
    """A control plane with a controller manager, and with the node's user."""
    users = harness.node_user(_NAME)
    async with ControlPlane(node_binaries, controller_manager=True, users=users) as started:
        yield started


@pytest.fixture(scope="session")
def nvidia_toolkit(node_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[nvidia.Toolkit]:
    """NVIDIA's container toolkit of the node; it acts on containers of its handler alone."""
    toolkit = nvidia.Toolkit(tmp_path_factory.mktemp("nvidia"), node_binaries)
    yield toolkit
    toolkit.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node(
    node_plane: ControlPlane, node_binaries: Binaries, nvidia_toolkit: nvidia.Toolkit
) -> AsyncIterator[harness.Node]:
    """A node that runs Pods, with runc or by NVIDIA's runtime."""
    runtimes = {nvidia.HANDLER: nvidia_toolkit.runtime}
    async with harness.Node(
        node_plane, node_binaries, name=_NAME, runtimes=runtimes, cdi=nvidia_toolkit.specs
    ) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def static_node(node: harness.Node) -> AsyncIterator[harness.Node]:
    """The node with the kubelet's static CPU policy, until the module ends; its tests come last in their module.

    A machine runs one node at a time, so it is the same node: Pods end, and the kubelet starts with an empty state.
    """
    async with node.configured(_STATIC):
        yield node


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def nvidia_class(node_plane: ControlPlane) -> AsyncIterator[None]:
    """A RuntimeClass for NVIDIA's runtime, as the GPU operator makes one."""
    path, name = "/apis/node.k8s.io/v1/runtimeclasses", nvidia.HANDLER
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
    async with node_plane.admin() as admin:
        await admin.create(path, body)
        yield
        await admin.delete(f"{path}/{name}")


@pytest.fixture(scope="session")
def node_values(node: harness.Node) -> JsonObject:
    """Values of the chart for the node: its defaults, except the kubelet's folder, and without cards."""
    kubelet = {"directory": str(node.root), "configuration": str(node.configuration)}
    return {"reporter": {"kubelet": kubelet, "gpus": {"enabled": False}, "port": free_port()}}


@pytest.fixture(scope="session")
def node_chart(node_binaries: Binaries, node_values: JsonObject) -> list[JsonObject]:
    """The chart rendered for the node."""
    return chart.render(node_binaries, node_values)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def node_replicas(
    node_plane: ControlPlane, node_chart: list[JsonObject], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    """koordgate installed from the chart: a webhook replica, and its scheduler.

    At the end it is removed: its webhooks would have no server.
    """
    await chart.install(node_plane, node_chart)
    running = await Replicas.installed(node_plane, node_chart, tmp_path_factory.mktemp("webhooks"), count=1)
    async with running:
        await start_koord_scheduler(node_plane, node_chart, running.extender)
        yield running
        await node_plane.stop_scheduler(NAME)
    await chart.uninstall(node_plane, node_chart)


@pytest_asyncio.fixture(loop_scope="session")
async def node_admin(node_plane: ControlPlane) -> AsyncIterator[AdminClient]:
    """A client with all rights."""
    async with node_plane.admin() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def node_namespace(node_plane: ControlPlane) -> str:
    """A namespace of this test's own."""
    name = f"node-test-{next(_NUMBERS)}"
    await node_plane.ensure_namespace(name)
    return name


@pytest_asyncio.fixture(loop_scope="session")
async def bench(node: harness.Node, node_admin: AdminClient, node_namespace: str) -> AsyncIterator[Bench]:
    """Pods that this test binds by hand; they are deleted at its end."""
    yield Bench(node, node_admin, node_namespace)
    await node_admin.delete(f"/api/v1/namespaces/{node_namespace}/pods", gracePeriodSeconds="1")

    async def gone() -> bool:
        return not await node_admin.items(f"/api/v1/namespaces/{node_namespace}/pods")

    await until(gone, "all Pods are gone")
