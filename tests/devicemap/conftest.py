from collections.abc import AsyncIterator

import pytest
from fake_kube import FakeKube
from world import World

from koordgate.kube.client import KubeClient


@pytest.fixture
async def world(fake: FakeKube, kube: KubeClient) -> AsyncIterator[World]:
    """A world with one seen node that has one GPU of 80Gi."""
    made = World(fake, kube)
    made.add_node()
    made.see()
    yield made
    await made.idle()
