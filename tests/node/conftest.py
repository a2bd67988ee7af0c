"""One real node with its own control plane for the tests of this folder."""

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from controlplane.needs import missing
from node import harness, machine

from koordgate.localplane.admin import AdminClient
from koordgate.localplane.binaries import Binaries, BuildError, find_or_build
from koordgate.localplane.plane import CONTROL_PLANE, ControlPlane

_HERE = Path(__file__).parent
_NAME = "node-1"
_NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lives in this folder, and run it in the loop that the session's fixtures live in."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.node)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def node_binaries() -> Binaries:
    """The programs of a control plane and of a node; built if need be, which takes minutes the first time."""
    trouble = machine.problem()
    if trouble:
        missing(trouble)
    try:
        return find_or_build((*CONTROL_PLANE, *harness.RUNTIME, "helm"))
    except BuildError as error:
        missing(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node_plane(node_binaries: Binaries) -> AsyncIterator[ControlPlane]:
    """A control plane with a controller manager, and with the node's user."""
    users = harness.node_user(_NAME)
    async with ControlPlane(node_binaries, controller_manager=True, users=users) as started:
        yield started


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def node(node_plane: ControlPlane, node_binaries: Binaries) -> AsyncIterator[harness.Node]:
    """A node that runs Pods."""
    async with harness.Node(node_plane, node_binaries, name=_NAME) as started:
        yield started


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
