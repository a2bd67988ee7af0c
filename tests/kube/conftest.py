from collections.abc import AsyncIterator

import pytest
from fake_kube import FakeKube

from koordgate.kube.client import KubeClient


class Waits:
    """Stands in for sleep: records the length of each wait, and does not wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
async def kube(fake: FakeKube, waits: Waits) -> AsyncIterator[KubeClient]:
    async with KubeClient(fake.url, sleep=waits, jitter=lambda: 1.0) as client:
        yield client
