import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from breaks import Others, others
from fake_kube import FakeKube, Fault, answer, drop, hold
from waiting import until

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, Unreachable
from koordgate.kube.resource import NODE_ALLOCATIONS, NODES
from koordgate.kube.watch import Happening, Reflector, WatchPace


class Mirror:
    """A handler that keeps names and one field, drops what a list lacks, and wakes a waiting test."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self.calls: list[str] = []
        self.poison: str | None = None
        self._fresh: set[str] = set()
        self._tick = asyncio.Event()

    def begin_list(self) -> None:
        self._fresh = set()
        self._note("begin")

    def put(self, obj: dict[str, Any]) -> None:
        name = obj["metadata"]["name"]
        self._note(f"put {name}")
        if name == self.poison:
            raise LookupError(name)
        self.held[name] = obj.get("spec")
        self._fresh.add(name)

    def drop(self, obj: dict[str, Any]) -> None:
        del self.held[obj["metadata"]["name"]]
        self._note(f"drop {obj['metadata']['name']}")

    def end_list(self) -> None:
        self.held = {name: spec for name, spec in self.held.items() if name in self._fresh}
        self._note("end")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self._tick.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._tick.clear()
                await self._tick.wait()


class Watching:
    """A running Reflector with everything that it reported."""

    def __init__(
        self, kube: KubeClient, resource: Any = NODES, settled: float = 3600, silent: float = 75, **options: Any
    ) -> None:
        self.mirror = Mirror()
        self.counts: list[Happening] = []
        self.errors: list[tuple[str, Exception]] = []
        self.waits: list[float] = []
        self.pause: Callable[[], Any] = lambda: None  # called at each wait; may return an awaitable
        self.reflector = Reflector(
            kube,
            resource,
            self.mirror,
            pace=WatchPace(sleep=self._sleep, jitter=lambda: 1.0, settled=settled, silent=silent),
            count=self.counts.append,
            on_error=lambda ref, error: self.errors.append((ref, error)),
            **options,
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        result = self.pause()
        if result is not None:
            await result


@asynccontextmanager
async def watching(kube: KubeClient, *args: Any, **options: Any) -> AsyncIterator[Watching]:
    made = Watching(kube, *args, **options)
    task = asyncio.create_task(made.reflector.run())
    try:
        yield made
    finally:
        assert not task.done() or task.exception() is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def synced(watch: Watching) -> None:
    async with asyncio.timeout(10):
        await watch.reflector.synced.wait()


def node(name: str, spec: Any = None, **about: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **about}, "spec": spec}


async def test_what_is_there_is_listed_in_pages_and_what_changes_is_followed(kube: KubeClient, fake: FakeKube) -> None:
    for number in range(5):
        fake.put(NODES.path(), node(f"n{number}"))
    async with watching(kube, page=2) as watch:
        await synced(watch)
        assert watch.mirror.calls == ["begin", "put n0", "put n1", "put n2", "put n3", "put n4", "end"]
        fake.put(NODES.path(), node("n1", "changed"))
        fake.remove(NODES.path("n0"))
        fake.put(NODES.path(), node("n5"))
        await watch.mirror.until(lambda: "n5" in watch.mirror.held)
        assert watch.mirror.held == {"n1": "changed", "n2": None, "n3": None, "n4": None, "n5": None}
        assert watch.counts == ["list", "watch"]
        assert len(fake.seen("list", "nodes")) == 3


async def test_the_revision_up_to_which_everything_was_told_is_known(kube: KubeClient, fake: FakeKube) -> None:
    fake.put(NODES.path(), node("n0"))
    fake.put(NODES.path(), node("gone"))
    fake.remove(NODES.path("gone"))
    async with watching(kube) as watch:
        await synced(watch)
        assert watch.reflector.seen == fake.revision, "of the list, and not of what is left in it"
        fake.put(NODES.path(), node("n0", "changed"))
        await until(lambda: watch.reflector.seen == fake.revision)
        fake.put("/api/v1/namespaces/default/pods", node("p"))
        fake.bookmark()
        await until(lambda: watch.reflector.seen == fake.revision)


async def test_nothing_is_missed_between_list_and_watch(kube: KubeClient, fake: FakeKube) -> None:
    held = hold()
    fake.faults.add("watch", "nodes", held)
    async with watching(kube) as watch:
        await held.reached.wait()
        fake.put(NODES.path(), node("between"))
        assert held.gate is not None
        held.gate.set()
        await watch.mirror.until(lambda: "between" in watch.mirror.held)


async def test_selectors_apply_to_list_and_watch(kube: KubeClient, fake: FakeKube) -> None:
    fake.put(NODES.path(), node("no"))
    fake.put(NODES.path(), node("yes", labels={"gpu": ""}))
    async with watching(kube, selectors={"labelSelector": "gpu"}) as watch:
        await synced(watch)
        assert set(watch.mirror.held) == {"yes"}
        fake.put(NODES.path(), node("no", "changed"))
        fake.put(NODES.path(), node("yes"))  # loses its label: to us it is gone
        await watch.mirror.until(lambda: not watch.mirror.held)
        assert "put no" not in watch.mirror.calls


async def test_a_broken_watch_continues_where_it_was(kube: KubeClient, fake: FakeKube) -> None:
    async with watching(kube) as watch:
        await synced(watch)
        await fake.until(lambda: fake.watchers)
        fake.put(NODES.path(), node("n1"))
        await watch.mirror.until(lambda: "n1" in watch.mirror.held)
        watch.pause = lambda: fake.put(NODES.path(), node("meanwhile")) and None
        fake.break_watches()
        await watch.mirror.until(lambda: "meanwhile" in watch.mirror.held)
        assert watch.counts == ["list", "watch", "error", "watch"]
        assert watch.mirror.calls.count("put n1") == 1
        assert [type(error) for _, error in watch.errors] == [Unreachable]
        assert watch.reflector.last_error is None


async def test_a_watch_that_the_server_ended_continues_without_an_error(kube: KubeClient, fake: FakeKube) -> None:
    async with watching(kube) as watch:
        await fake.until(lambda: fake.watchers)
        fake.end_watches()
        await fake.until(lambda: len(fake.seen("watch", "nodes")) == 2)
        assert watch.counts[:2] == ["list", "watch"]
        assert "error" not in watch.counts


async def test_after_a_watch_that_lived_long_enough_the_next_one_is_not_waited_for(
    kube: KubeClient, fake: FakeKube
) -> None:
    async with watching(kube, settled=0.0) as watch:
        for opened in range(1, 4):
            await fake.until(lambda: fake.watchers)
            assert len(fake.seen("watch", "nodes")) == opened
            fake.end_watches()
            await fake.until(lambda: not fake.watchers)
        await fake.until(lambda: fake.watchers)
        assert watch.waits == []


async def test_bookmarks_keep_the_revision_fresh_through_a_compaction(kube: KubeClient, fake: FakeKube) -> None:
    async with watching(kube) as watch:
        await fake.until(lambda: fake.watchers)
        fake.put(NODE_ALLOCATIONS.path(), node("of another resource"))
        fake.bookmark()
        fake.compact()
        fake.end_watches()
        await fake.until(lambda: len(fake.seen("watch", "nodes")) == 2)
        assert fake.seen("watch", "nodes")[-1].query["resourceVersion"] == str(fake.revision)
        assert "relist" not in watch.counts


async def test_a_compacted_revision_is_answered_by_a_list_that_drops_what_is_gone(
    kube: KubeClient, fake: FakeKube
) -> None:
    fake.put(NODES.path(), node("old"))
    async with watching(kube) as watch:
        await fake.until(lambda: fake.watchers)

        def compact() -> None:
            watch.pause = lambda: None
            fake.remove(NODES.path("old"))
            fake.put(NODES.path(), node("new"))
            fake.compact()

        watch.pause = compact
        fake.break_watches()
        await watch.mirror.until(lambda: watch.mirror.calls.count("end") == 2)
        assert watch.mirror.held == {"new": None}
        assert watch.counts[:4] == ["list", "watch", "error", "relist"]


async def test_an_error_event_with_410_is_answered_by_a_list(kube: KubeClient, fake: FakeKube) -> None:
    async with watching(kube) as watch:
        await fake.until(lambda: fake.watchers)
        fake.expire_watches()
        await watch.mirror.until(lambda: watch.mirror.calls.count("end") == 2)
        assert watch.counts[:4] == ["list", "watch", "relist", "list"]
        assert watch.errors == []


async def test_a_list_that_expires_on_the_way_begins_again(kube: KubeClient, fake: FakeKube) -> None:
    for number in range(4):
        fake.put(NODES.path(), node(f"n{number}"))
    second_page = hold()
    fake.faults.add("list", "nodes", Fault(), second_page)
    async with watching(kube, page=2) as watch:
        await second_page.reached.wait()
        fake.compact()
        assert second_page.gate is not None
        second_page.gate.set()
        await synced(watch)
        assert watch.mirror.calls == ["begin", "put n0", "put n1", "begin", *(f"put n{i}" for i in range(4)), "end"]
        assert watch.waits == []


async def test_a_revision_that_is_too_old_again_and_again_is_waited_for(kube: KubeClient, fake: FakeKube) -> None:
    fake.faults.add("list", "nodes", *[answer(410)] * 4)
    async with watching(kube) as watch:
        await synced(watch)
        assert watch.waits == [1.0, 2.0, 4.0]  # the first time it is listed again at once
        assert watch.counts[:9] == ["list", "relist"] * 4 + ["list"]
        assert watch.errors == []


class Turns(Mirror):
    """A handler that notes how often another task has run when an object is put."""

    def __init__(self, ran: Others) -> None:
        super().__init__()
        self.ran_at: list[int] = []
        self._ran = ran

    def put(self, obj: dict[str, Any]) -> None:
        self.ran_at.append(self._ran.ran)
        super().put(obj)


async def test_others_run_between_two_objects_of_a_list(kube: KubeClient, fake: FakeKube, breaking: None) -> None:
    for name in "abc":
        fake.put(NODES.path(), node(name))
    async with others() as ran:
        mirror = Turns(ran)
        task = asyncio.create_task((reflector := Reflector(kube, NODES, mirror)).run())
        await reflector.synced.wait()
        task.cancel()
    assert [later - before for before, later in pairwise(mirror.ran_at)] == [3, 3]
    assert set(mirror.held) == set("abc")


async def test_others_run_between_two_events_that_arrive_together(breaking: None) -> None:
    """The events are all there: nothing is waited for between them, so that only breaks let others run."""
    events = [{"type": "ADDED", "object": node(name, resourceVersion="1")} for name in "abc"]

    class Burst(KubeClient):
        async def watch_lines(self, *_: Any, **__: Any) -> AsyncGenerator[dict[str, Any], None]:
            for event in events:
                yield event

    async with others() as ran:
        mirror = Turns(ran)
        await Reflector(Burst("http://127.0.0.1:1"), NODES, mirror)._watch()
    assert [later - before for before, later in pairwise(mirror.ran_at)] == [3, 3]


async def test_lists_ask_for_pages_of_a_hundred_objects(kube: KubeClient, fake: FakeKube) -> None:
    async with watching(kube) as watch:
        await synced(watch)
        assert [request.query["limit"] for request in fake.seen("list", "nodes")] == ["100"]


async def test_an_absent_resource_is_empty_and_asked_for_quietly(kube: KubeClient, fake: FakeKube) -> None:
    fake.absent.add("nodeallocations")
    installed = asyncio.Event()
    waiting = asyncio.Event()
    async with watching(kube, NODE_ALLOCATIONS) as watch:

        def pause() -> Any:
            waiting.set()
            return installed.wait()

        watch.pause = pause
        await synced(watch)
        await waiting.wait()
        assert watch.mirror.calls == ["begin", "begin", "end"]
        assert (watch.errors, watch.reflector.last_error) == ([], None)
        assert watch.waits == [33.0]
        fake.absent.clear()
        fake.put(NODE_ALLOCATIONS.path(), node("n1"))
        installed.set()
        await watch.mirror.until(lambda: "n1" in watch.mirror.held)


async def test_a_resource_that_vanishes_is_emptied(kube: KubeClient, fake: FakeKube) -> None:
    fake.put(NODE_ALLOCATIONS.path(), node("n1"))
    async with watching(kube, NODE_ALLOCATIONS) as watch:
        await fake.until(lambda: fake.watchers)
        forever = asyncio.Event()
        watch.pause = lambda: forever.wait() if watch.waits[-1] == 33.0 else None
        fake.absent.add("nodeallocations")
        fake.end_watches()
        await watch.mirror.until(lambda: not watch.mirror.held)


async def test_forbidden_is_reported_and_tried_again(kube: KubeClient, fake: FakeKube) -> None:
    fake.faults.add("list", "nodes", answer(403), answer(403))
    async with watching(kube) as watch:
        states, since = [], []

        def pause() -> None:
            states.append((watch.reflector.healthy_since, type(watch.reflector.last_error)))
            since.append(watch.reflector.failing_since)

        watch.pause = pause
        await synced(watch)
        assert since[0] is not None
        assert since[0] == since[1], "since the first of the failures"
        assert states == [(None, Forbidden), (None, Forbidden)]
        assert watch.waits == [0.5, 1.0]
        assert watch.reflector.healthy_since is not None
        assert watch.reflector.failing_since is None
        assert watch.reflector.last_error is None
        assert [ref for ref, _ in watch.errors] == ["nodes", "nodes"]


async def test_failures_in_a_row_wait_longer_up_to_a_limit(kube: KubeClient, fake: FakeKube) -> None:
    fake.faults.add("list", "nodes", *[answer(403)] * 9)
    async with watching(kube) as watch:
        await synced(watch)
        assert watch.waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_tight_loop(
    kube: KubeClient, fake: FakeKube
) -> None:
    async with watching(kube) as watch:
        third = asyncio.Event()
        forever = asyncio.Event()

        def pause() -> Any:
            if len(watch.waits) < 3:
                return None
            third.set()
            return forever.wait()

        watch.pause = pause
        for _ in range(3):
            await fake.until(lambda: fake.watchers)
            fake.end_watches()
            await fake.until(lambda: not fake.watchers)
        async with asyncio.timeout(10):
            await third.wait()
        assert watch.waits == [0.5, 1.0, 2.0]


async def test_an_object_that_the_handler_cannot_take_does_not_stop_the_rest(kube: KubeClient, fake: FakeKube) -> None:
    for name in ("a", "bad", "c"):
        fake.put(NODES.path(), node(name))
    watch = Watching(kube)
    watch.mirror.poison = "bad"
    task = asyncio.create_task(watch.reflector.run())
    await synced(watch)
    fake.put(NODES.path(), node("bad", "again"))
    fake.put(NODES.path(), node("d"))
    await watch.mirror.until(lambda: "d" in watch.mirror.held)
    assert set(watch.mirror.held) == {"a", "c", "d"}
    assert [(ref, type(error)) for ref, error in watch.errors] == [("nodes bad", LookupError)] * 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_server_that_restarts_is_found_again(kube: KubeClient, fake: FakeKube) -> None:
    async with watching(kube) as watch:
        await fake.until(lambda: fake.watchers)
        await fake.stop()
        fake.put(NODES.path(), node("while away"))

        async def start() -> None:
            watch.pause = lambda: None
            await fake.start()

        watch.pause = start
        await watch.mirror.until(lambda: "while away" in watch.mirror.held)
        assert watch.mirror.calls.count("begin") == 1


async def test_a_watch_lives_between_four_and_eight_minutes(kube: KubeClient, fake: FakeKube) -> None:
    async with watching(kube):
        await fake.until(lambda: fake.watchers)
        (request,) = fake.seen("watch", "nodes")
        assert request.query["timeoutSeconds"] == "480"
        assert request.query["allowWatchBookmarks"] == "true"


async def test_a_dropped_watch_request_is_tried_again(kube: KubeClient, fake: FakeKube) -> None:
    fake.faults.add("watch", "nodes", drop())
    async with watching(kube) as watch:
        await fake.until(lambda: fake.watchers)
        assert watch.waits == [0.5]


def test_a_watch_that_lived_five_seconds_starts_the_waits_anew(kube: KubeClient) -> None:
    now = [1000.0]
    reflector = Reflector(kube, NODES, Mirror(), pace=WatchPace(jitter=lambda: 1.0, clock=lambda: now[0]))
    waits = []
    for lived in (None, None, 4.75, 5.0, 0.0, 1009.75):
        if lived is not None:
            reflector._opened_at = now[0]
            now[0] += lived
        waits.append(reflector._next_wait())
    assert waits == [0.5, 1.0, 2.0, 0.5, 1.0, 0.5]


async def test_a_429_that_names_no_time_is_waited_for_as_any_failure(kube: KubeClient, fake: FakeKube) -> None:
    fake.faults.add("list", "nodes", *[answer(429) for _ in range(4)])
    async with watching(kube) as watch:
        await synced(watch)
    assert watch.waits[:1] == [0.5]


# --- silence, and bugs


async def test_a_watch_that_is_silent_is_opened_again_and_that_is_no_failure(kube: KubeClient, fake: FakeKube) -> None:
    async with watching(kube, silent=0.05, settled=0) as watch:
        await synced(watch)
        heard = watch.reflector.heard_at
        await fake.until(lambda: watch.counts.count("watch") >= 3)
        assert watch.errors == []
        assert watch.counts.count("list") == 1
        assert watch.reflector.failing_since is None
        assert watch.reflector.heard_at > heard
        fake.put(NODES.path(), node("n1"))
        await watch.mirror.until(lambda: "n1" in watch.mirror.held)


async def test_a_server_that_is_silent_and_takes_no_watch_is_a_failure(kube: KubeClient, fake: FakeKube) -> None:
    async with watching(kube, silent=0.05, settled=0) as watch:
        await synced(watch)
        fake.faults.always("watch", "nodes", answer(503))
        await fake.until(lambda: watch.reflector.failing_since is not None)
        assert isinstance(watch.reflector.last_error, Unreachable)
        fake.faults.always("watch", "nodes", None)
        await fake.until(lambda: watch.reflector.failing_since is None)


def test_a_hung_watch_is_noticed_within_ninety_seconds() -> None:
    """Its silence, and the longest time in which the next one must be accepted."""
    deadline = inspect.signature(KubeClient.watch_lines).parameters["deadline"].default
    assert WatchPace().silent + deadline <= 90


@pytest.mark.parametrize("method", ["begin_list", "end_list"])
async def test_a_bug_at_the_end_of_a_list_is_told_and_the_list_is_repeated(
    kube: KubeClient, fake: FakeKube, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    fake.put(NODES.path(), node("n1"))
    whole, bugs = getattr(Mirror, method), [LookupError("once")]

    def fail(mirror: Mirror) -> None:
        if bugs:
            raise bugs.pop()
        whole(mirror)

    monkeypatch.setattr(Mirror, method, fail)
    async with watching(kube) as watch:
        await synced(watch)
        assert [(about, str(error)) for about, error in watch.errors] == [("nodes", "once")]
        assert watch.mirror.held == {"n1": None}
        assert len(watch.waits) == 1
