from collections.abc import AsyncIterator

import pytest
from fake_kube import FakeKube

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
