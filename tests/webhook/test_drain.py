"""Draining a device: Pods that take time to end, budgets that allow an eviction later, and what ends the wait."""

import asyncio

import pytest
from builders import gpu, holding, part
from fake_kube import FakeKube, answer

from console.devices.cordoncommands import Drain, DrainStep, DryRun, Progress
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden
from koordgate.kube.resource import PODS

HOLDERS = [holding(name, part(gpu(0), 30)) for name in "abc"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits between attempts take no time worth mentioning."""
    monkeypatch.setattr("console.devices.cordoncommands._FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("console.devices.cordoncommands._MAX_WAIT_S", 0.001)


@pytest.fixture
def pods(fake: FakeKube) -> FakeKube:
    """The Pods a, b and c, which hold some of the device."""
    for name in "abc":
        put(fake, name)
    return fake


def put(fake: FakeKube, name: str, **status: str) -> None:
    metadata = {"name": f"pod-{name}", "namespace": "default", "uid": name}
    fake.put(PODS.path(namespace="default"), {"metadata": metadata, "spec": {}, "status": status})


def draining(kube: KubeClient, reported: list[Progress], timeout: float = 30.0) -> asyncio.Task[list[Progress]]:
    return asyncio.ensure_future(Drain(kube, DryRun.NONE, timeout, reported.append).run(HOLDERS))


def steps(progress: list[Progress], uid: str) -> list[DrainStep]:
    return [one.step for one in progress if one.pod.uid == uid]


def looked_at(fake: FakeKube, name: str) -> int:
    return sum(one.verb == "get" and one.path.endswith(f"/pod-{name}") for one in fake.requests)


async def test_a_pod_that_takes_time_to_end_is_waited_for(pods: FakeKube, kube: KubeClient) -> None:
    pods.faults.always("create", "pods/eviction", answer(201))
    reported: list[Progress] = []
    task = draining(kube, reported)
    await pods.until(lambda: min(looked_at(pods, name) for name in "abc") >= 3)
    pods.remove(PODS.path("pod-a", "default"))
    put(pods, "b", phase="Succeeded")
    put(pods, "c", phase="Failed")
    assert [one.step for one in await task] == [DrainStep.GONE] * 3
    for name in "abc":
        assert steps(reported, name) == [DrainStep.EVICTED, DrainStep.GONE]


async def test_a_pod_that_does_not_end_in_time_is_left(pods: FakeKube, kube: KubeClient) -> None:
    pods.faults.always("create", "pods/eviction", answer(201))
    put(pods, "b", phase="Succeeded")
    reported: list[Progress] = []
    done = await draining(kube, reported, timeout=0)
    assert [one.step for one in done] == [DrainStep.LEFT, DrainStep.GONE, DrainStep.LEFT]
    assert steps(reported, "a") == [DrainStep.EVICTED, DrainStep.LEFT]


@pytest.mark.parametrize(("stated", "wait"), [(None, 0), (7, 7)])
async def test_the_wait_that_the_api_server_asks_for_is_the_least(
    pods: FakeKube, kube: KubeClient, stated: int | None, wait: int
) -> None:
    pods.faults.always("create", "pods/eviction", answer(429, "the budget", retry_after=stated))
    _, least = await Drain(kube, DryRun.NONE, 0, lambda _: None)._attempt(HOLDERS[0])
    assert least == wait


async def test_an_eviction_is_tried_again_until_the_budget_allows_it_and_told_of_once(
    pods: FakeKube, kube: KubeClient
) -> None:
    pods.faults.always("create", "pods/eviction", answer(429, "the budget"))
    reported: list[Progress] = []
    task = draining(kube, reported)
    await pods.until(lambda: len(pods.requests) >= 50)
    pods.faults.always("create", "pods/eviction", None)
    assert [one.step for one in await task] == [DrainStep.GONE] * 3
    for name in "abc":
        assert steps(reported, name) == [DrainStep.BUDGET, DrainStep.EVICTED, DrainStep.GONE]
    assert {one.why for one in reported if one.step is DrainStep.BUDGET} == {"the budget"}


async def test_a_refusal_of_one_eviction_ends_the_drain(pods: FakeKube, kube: KubeClient) -> None:
    pods.faults.always("create", "pods/eviction", answer(403))
    with pytest.raises(Forbidden):
        await draining(kube, [])
