from collections.abc import AsyncIterator

import pytest
from fake_kube import FakeKube
from world import World

from koordgate.kube.client import KubeClient


async def _at_once(_seconds: float) -> None:
    """Stands in for sleep: the client's waits before it tries again take no time."""


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    async with FakeKube() as server:
        yield server


@pytest.fixture
async def kube(fake: FakeKube) -> AsyncIterator[KubeClient]:
    async with KubeClient(fake.url, sleep=_at_once) as client:
        yield client


@pytest.fixture
async def world(fake: FakeKube, kube: KubeClient) -> AsyncIterator[World]:
    """One node, one GPU of 80Gi, seen."""
    made = World(fake, kube)
    made.add_node()
    made.see()
    yield made
    await made.idle()
