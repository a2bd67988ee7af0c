"""A real control plane for these tests: one per session (and xdist worker); all tests run in one event loop."""

import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from controlplane import features
from controlplane.gpu_cluster import add_gpu_node, remove
from controlplane.needs import missing

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries, BuildError, find_or_build
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import CONTROL_PLANE, ControlPlane
from localplane.replicas import Replicas
from localplane.versions import KUBERNETES

StartWebhooks = Callable[..., Awaitable[Replicas]]
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
KUBELET = "system:node:node-1"
POLICED: JsonObject = {
    "devices": {"types": [{"name": "queue", "resource": "example.com/queue", "unit": "units", "environment": "QUEUE"}]},
    "exemptNamespaces": ["exempt"],
    "gangs": {"allOrNothing": True},
    "headroom": {"mode": "taint"},
    "reporter": {"kubelet": {"configz": True}},
    "policies": {
        "visibleDevices": {
            "action": "Deny",
            "variables": ["CUDA_DISABLE_CONTROL"],
            "exemptNamespaces": ["gpu-operator"],
        },
        "binders": {"action": "Deny"},
    },
}
_HERE = Path(__file__).parent
_NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and run them in the event loop of the session's fixtures."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.controlplane)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            for needed in features.needed(item):
                if needed.lacking(KUBERNETES):
                    raise pytest.UsageError(f"{item.nodeid} would never run: it needs Kubernetes {needed.since}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs a feature of a newer Kubernetes than the one that runs, before its fixtures use it."""
    for needed in features.needed(item):
        version = _programs().kubernetes
        if needed.lacking(version):
            pytest.skip(f"needs {needed.feature} (Kubernetes {needed.since}), this is {version}")


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """The control plane's programs and helm; built if they are missing, which takes minutes the first time."""
    return _programs()


@functools.cache
def _programs() -> Binaries:
    try:
        return find_or_build((*CONTROL_PLANE, "helm"))
    except BuildError as error:
        missing(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def plane(binaries: Binaries) -> AsyncIterator[ControlPlane]:
    """A control plane without scheduler; it contains only what the tests of this session create."""
    async with ControlPlane(binaries) as started:
        yield started


@pytest.fixture
def as_administrator(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that a test runs use the administrator's kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(plane.admin_kubeconfig))


@pytest_asyncio.fixture(loop_scope="session")
async def admin(plane: ControlPlane) -> AsyncIterator[AdminClient]:
    """A client with all rights; it shares no code with the tested parts."""
    async with plane.admin() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(plane: ControlPlane, admin: AdminClient) -> AsyncIterator[str]:
    """A namespace of this test's own. Its Pods and the nodes that bear its name end with it.

    A Pod left waiting would be placed on a later test's node, and a later test's Pod on a node left behind.
    """
    name = f"test-{next(_NUMBERS)}"
    await plane.ensure_namespace(name)
    yield name
    nodes = [node["metadata"]["name"] for node in await admin.items("/api/v1/nodes")]
    await remove(admin, name, [node for node in nodes if node.startswith(f"{name}-")])


@pytest_asyncio.fixture(loop_scope="session")
async def node(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[str]:
    """A node with two cards. It ends with its test: a later test's Pods would land on it."""
    name = f"{namespace}-gpu"
    await add_gpu_node(plane, admin, name, gpus=2)
    yield name
    await remove(admin, namespace, [name])


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def installed(plane: ControlPlane, binaries: Binaries) -> list[JsonObject]:
    """The chart with its own values, installed: the objects that it rendered."""
    objects = chart.render(binaries)
    await chart.install(plane, objects)
    return objects


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def policed(binaries: Binaries) -> AsyncIterator[ControlPlane]:
    """A second control plane, for what policies alone refuse: no replica lives, and no webhook is configured.

    Its controllers check the types of policies. Each file that uses it has namespaces and nodes of its own there.
    """
    objects = [one for one in chart.render(binaries, POLICED) if one["kind"] not in WEBHOOKS]
    users = {KUBELET: ["system:nodes"]}
    controllers = "*,-node-lifecycle-controller"  # it would taint nodes that no kubelet tends
    async with ControlPlane(binaries, controller_manager=True, controllers=controllers, users=users) as started:
        await chart.install(started, objects)
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def root(policed: ControlPlane) -> AsyncIterator[AdminClient]:
    """An administrator of that control plane: no right is missing, so only the policies refuse."""
    async with policed.admin() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def webhooks(plane: ControlPlane, installed: list[JsonObject], tmp_path: Path) -> AsyncIterator[StartWebhooks]:
    """Start webhook processes behind the chart's Service; they end with the test.

    Example: `replicas = await webhooks(count=2, overrides={"logLevel": "debug"})`.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def start(count: int = 2, overrides: Mapping[str, Any] | None = None) -> Replicas:
            replicas = await Replicas.installed(plane, installed, tmp_path, count=count, overrides=overrides)
            return await stack.enter_async_context(replicas)

        yield start


@pytest_asyncio.fixture(loop_scope="session")
async def scheduler(
    plane: ControlPlane, installed: list[JsonObject], webhooks: StartWebhooks
) -> AsyncIterator[Replicas]:
    """koord-scheduler, and two replicas that reconcile twice a second; they end with the test."""
    replicas = await webhooks(count=2, overrides={"ledger": {"reconcileSeconds": 0.5}})
    await start_koord_scheduler(plane, installed, replicas.extender)
    yield replicas
    await plane.stop_scheduler(NAME)


@pytest_asyncio.fixture(loop_scope="session")
async def webhook(webhooks: StartWebhooks) -> Replicas:
    """One replica: what it has seen is all that any replica has."""
    return await webhooks(count=1)


@pytest_asyncio.fixture(loop_scope="session")
async def lone_scheduler(plane: ControlPlane, installed: list[JsonObject], webhook: Replicas) -> AsyncIterator[None]:
    """koord-scheduler with the one replica of `webhook`."""
    await start_koord_scheduler(plane, installed, webhook.extender)
    yield
    await plane.stop_scheduler(NAME)
