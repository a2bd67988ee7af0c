"""Waiting Pods are retried when resources are released: a Node's annotation notifies kube-scheduler."""

import asyncio
from datetime import UTC, datetime

import pytest
from fake_kube import FakeKube, answer
from waiting import until

from allocator.vocabulary.names import RELEASED
from koordgate.kube.client import KubeClient
from webhook.upkeep.waker import Waker

NOW = datetime(2026, 11, 20, 22, 44, tzinfo=UTC)
NODE = "/api/v1/nodes/n1"


@pytest.fixture(autouse=True)
def node(fake: FakeKube) -> None:
    fake.put("/api/v1/nodes", {"metadata": {"name": "n1", "annotations": {"other": "stays"}}})


def annotations(fake: FakeKube) -> dict[str, str]:
    found: dict[str, str] = fake.get(NODE)["metadata"]["annotations"]
    return found


async def test_a_release_is_reported_on_the_node_while_a_pod_waits(fake: FakeKube, kube: KubeClient) -> None:
    waker = Waker(kube, lambda: True, lambda: NOW, soon=0)
    running = asyncio.create_task(waker.run())

    waker.released("n1")

    await fake.until(lambda: RELEASED in annotations(fake))
    assert annotations(fake) == {"other": "stays", RELEASED: "2026-11-20T22:44:00.000000+00:00"}
    running.cancel()


async def test_nothing_is_written_while_nobody_waits(fake: FakeKube, kube: KubeClient) -> None:
    asked = asyncio.Event()

    def nobody() -> bool:
        asked.set()
        return False

    waker = Waker(kube, nobody, lambda: NOW, soon=0)
    running = asyncio.create_task(waker.run())
    waker.released("n1")

    await asked.wait()
    assert RELEASED not in annotations(fake)
    running.cancel()


async def test_a_refused_write_does_not_end_it(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.add("patch", "nodes/status", answer(403))
    waker = Waker(kube, lambda: True, lambda: NOW, soon=0, late=0)
    running = asyncio.create_task(waker.run())

    waker.released("n1")

    await fake.until(lambda: RELEASED in annotations(fake))
    assert not running.done()
    running.cancel()


@pytest.mark.parametrize(
    ("last", "refused"),
    [
        pytest.param("n1", 3, id="the API server refuses"),
        pytest.param("gone", 0, id="the Node is gone"),
        pytest.param("no/node", 0, id="no Node can have such a name"),
    ],
)
async def test_a_write_that_fails_is_repeated_and_another_node_will_do(
    fake: FakeKube, kube: KubeClient, last: str, refused: int
) -> None:
    for _ in range(refused):
        fake.faults.add("patch", "nodes/status", answer(503))
    waker = Waker(kube, lambda: True, lambda: NOW, soon=0, late=3600, again=0)
    waker.released("n1")
    waker.released(last)
    running = asyncio.create_task(waker.run())

    await fake.until(lambda: RELEASED in annotations(fake))
    running.cancel()


async def test_a_release_is_reported_soon_though_one_before_is_still_to_be_reported_once_more(
    fake: FakeKube, kube: KubeClient
) -> None:
    fake.put("/api/v1/nodes", {"metadata": {"name": "n2"}})
    waker = Waker(kube, lambda: True, lambda: NOW, soon=0, apart=0, late=3600)
    running = asyncio.create_task(waker.run())
    waker.released("n1")
    await fake.until(lambda: RELEASED in annotations(fake))

    waker.released("n2")

    await fake.until(lambda: "annotations" in fake.get("/api/v1/nodes/n2")["metadata"])
    running.cancel()


@pytest.mark.parametrize(("apart", "looked"), [(0, 2), (3600, 1)])
async def test_releases_one_upon_another_are_reported_separately(kube: KubeClient, apart: float, looked: int) -> None:
    looks = []

    def nobody() -> bool:
        looks.append(1)
        return False

    waker = Waker(kube, nobody, soon=0, apart=apart, late=3600)
    running = asyncio.create_task(waker.run())
    for number in (1, 2):
        waker.released("n1")
        await until(lambda number=number: not waker._released.is_set() and len(looks) >= min(number, looked))  # type: ignore[misc]
    assert len(looks) == looked
    running.cancel()


@pytest.mark.parametrize(("others", "kept"), [(7, True), (8, False)])
async def test_the_last_eight_nodes_are_tried_the_latest_first(
    fake: FakeKube, kube: KubeClient, others: int, *, kept: bool
) -> None:
    waker = Waker(kube, lambda: True, lambda: NOW, soon=0, late=3600, again=0)
    gone = [f"gone{number}" for number in range(others)]
    for name in ("n1", *gone, gone[0]):
        waker.released(name)
    running = asyncio.create_task(waker.run())
    await until(lambda: len(fake.seen("patch", "nodes/status")) > others)
    running.cancel()
    tried = [seen.path.split("/")[-2] for seen in fake.seen("patch", "nodes/status")][: others + 1]
    assert tried == [gone[0], *reversed(gone[1:]), "n1" if kept else gone[0]]
    assert (RELEASED in annotations(fake)) is kept
