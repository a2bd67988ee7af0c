"""A resource that a cluster may not serve: watched while it is served, in the version that is, and empty otherwise."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fake_kube import FakeKube, answer

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import POD_GROUPS, Resource
from webhook.view.served import ServedWatch

GROUP = POD_GROUPS[0].group
NEW, OLD = POD_GROUPS[0], POD_GROUPS[-1]


class Looking:
    """A running ServedWatch, which looks again when the test says so.

    Attributes:
        held: the names that its handler knows.
        errors: what it reported.
    """

    def __init__(self, kube: KubeClient) -> None:
        self.held: set[str] = set()
        self.errors: list[str] = []
        self._fresh: set[str] = set()
        self._go = asyncio.Event()
        self._slept = asyncio.Event()
        self._heard = asyncio.Event()
        self.watch = ServedWatch(
            kube, POD_GROUPS, self, on_error=lambda about, _: self.errors.append(about), sleep=self._sleep
        )

    async def _sleep(self, _seconds: float) -> None:
        self._slept.set()
        self._go.clear()
        await self._go.wait()

    async def look(self) -> None:
        """Let it look at what is served, and wait until it has."""
        await self._slept.wait()
        self._slept.clear()
        self._go.set()
        await self._slept.wait()

    def begin_list(self) -> None:
        self._fresh = set()

    def put(self, obj: dict[str, Any]) -> None:
        self._fresh.add(obj["metadata"]["name"])
        self.held.add(obj["metadata"]["name"])
        self._heard.set()

    def drop(self, obj: dict[str, Any]) -> None:
        self.held.remove(obj["metadata"]["name"])

    def end_list(self) -> None:
        self.held = set(self._fresh)
        self._heard.set()

    async def holds(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while self.held != set(names):
                self._heard.clear()
                await self._heard.wait()


@asynccontextmanager
async def looking(kube: KubeClient) -> AsyncIterator[Looking]:
    made = Looking(kube)
    task = asyncio.create_task(made.watch.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


def put(fake: FakeKube, of: Resource, *names: str) -> None:
    for name in names:
        fake.put(of.path(namespace="team"), {"metadata": {"name": name}})


async def test_a_group_that_is_not_served_costs_one_look_at_a_time(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, OLD, "a")
    async with looking(kube) as one:
        await one.look()
        await one.look()
        assert (one.watch.served, one.held, one.errors, fake.requests) == (None, set(), [], [])


async def test_a_group_in_which_the_resource_is_missing_is_not_watched(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, OLD, "a")
    fake.serve(GROUP, v1=["priorityclasses"], v1alpha2=["workloads"])
    async with looking(kube) as one:
        await one.look()
        assert (one.watch.served, one.held) == (None, set())
        assert {seen.verb for seen in fake.requests} == {"discover"}


async def test_it_follows_what_is_served(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, OLD, "a", "b")
    async with looking(kube) as one:
        await one.look()
        fake.serve(GROUP, v1=["priorityclasses"], v1alpha2=["workloads", "podgroups"])
        await one.look()
        await one.holds("a", "b")
        assert one.watch.served == OLD
        put(fake, OLD, "c")
        await one.holds("a", "b", "c")
        fake.serve(GROUP, v1alpha2=["podgroups"], v1beta1=["podgroups"])
        await one.look()
        assert one.watch.served == NEW
        await fake.until(lambda: any("v1beta1" in seen.path for seen in fake.seen("watch", "podgroups")))
        fake.serve(GROUP)
        await one.look()
        assert (one.watch.served, one.held, one.errors) == (None, set(), [])  # type: ignore[comparison-overlap]


async def test_a_look_that_fails_changes_nothing_and_is_reported_once(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, OLD, "a")
    fake.serve(GROUP, v1alpha2=["podgroups"])
    async with looking(kube) as one:
        await one.look()
        await one.holds("a")
        fake.faults.always("discover", "", answer(503))
        await one.look()
        await one.look()
        assert (one.watch.served, one.held, one.errors) == (OLD, {"a"}, [GROUP])


async def test_a_list_that_is_forbidden_is_reported_once(fake: FakeKube, kube: KubeClient) -> None:
    put(fake, OLD, "a")
    fake.serve(GROUP, v1alpha2=["podgroups"])
    fake.faults.always("list", "podgroups", answer(403))
    async with looking(kube) as one:
        await fake.until(lambda: len(fake.seen("list", "podgroups")) >= 2)
        assert one.errors == ["podgroups"]
        fake.faults.always("list", "podgroups", None)
        await one.holds("a")


def test_of_errors_that_differ_100_are_reported_until_a_watch_is_opened(kube: KubeClient) -> None:
    one = Looking(kube)
    for _ in range(2):
        one.errors.clear()
        for number in range(150):
            one.watch._report(str(number), KubeError("it fails"))
        assert one.errors == [str(number) for number in range(100)]
        one.watch._happened("list")
        one.watch._report("another", KubeError("it fails"))
        assert len(one.errors) == 100
        one.watch._happened("watch")
