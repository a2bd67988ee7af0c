"""Each store keeps the contract; and the properties of NodeAllocation objects."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fake_kube import FakeKube, Fault, answer, drop, hold, lose_answer
from store_contract import ONE, SOON, TWO, Heard, Kept, StoreContract, spoilt

from allocator.wire.nodeallocation import RecordError
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound, Unreachable
from koordgate.kube.resource import NODE_ALLOCATIONS
from webhook.ledger.kube import KubeStore
from webhook.ledger.store import MemoryStore, Record

PATH = NODE_ALLOCATIONS.path()


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def kept(self) -> Kept:
        store = MemoryStore()

        async def delete(node: str) -> None:
            await store.delete(await store.read(node, SOON), SOON)

        return Kept(store, delete)


class TestKubeStore(StoreContract):
    @pytest.fixture
    def kept(self, fake: FakeKube, kube: KubeClient) -> Kept:
        return Kept(
            KubeStore(kube),
            delete=coroutine(lambda node: fake.remove(NODE_ALLOCATIONS.path(node))),
            spoil=coroutine(lambda node: fake.put(PATH, spoilt(node))),
            break_watch=coroutine(fake.end_watches),
        )


def coroutine(do: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    async def done(*arguments: object) -> object:
        return do(*arguments)

    return done


# Objects of the API server only


async def test_the_object_does_not_go_with_its_node_while_a_bind_there_may_be_under_way(
    fake: FakeKube, kube: KubeClient
) -> None:
    store = KubeStore(kube)
    await store.write(Record("n1"), ONE, SOON)
    assert "ownerReferences" not in fake.get(NODE_ALLOCATIONS.path("n1"))["metadata"]


async def test_the_owner_that_an_earlier_release_wrote_is_removed_with_the_next_write(
    fake: FakeKube, kube: KubeClient
) -> None:
    store = KubeStore(kube)
    await store.write(Record("n1"), ONE, SOON)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}
    earlier = fake.get(NODE_ALLOCATIONS.path("n1"))
    fake.put(PATH, {**earlier, "metadata": {**earlier["metadata"], "ownerReferences": [owner]}})
    await store.write(await store.read("n1", SOON), TWO, SOON)
    assert "ownerReferences" not in fake.get(NODE_ALLOCATIONS.path("n1"))["metadata"]


async def test_each_change_is_one_request_on_the_revision(fake: FakeKube, kube: KubeClient) -> None:
    store = KubeStore(kube)
    first = await store.write(Record("n1"), ONE, SOON)
    second = await store.write(first, TWO, SOON)
    await store.delete(second, SOON)
    assert [request.verb for request in fake.requests] == ["create", "update", "delete"]
    for request, record in zip(fake.requests[1:], (first, second), strict=True):
        assert f'"resourceVersion":"{record.revision}"'.encode() in request.body


async def test_a_missing_crd_is_an_error_and_no_lost_race(fake: FakeKube, kube: KubeClient) -> None:
    fake.absent.add("nodeallocations")
    with pytest.raises(NotFound):
        await KubeStore(kube).write(Record("n1"), ONE, SOON)
    with pytest.raises(NotFound):
        [record async for record in KubeStore(kube).records()]


async def test_records_are_listed_in_pages_of_a_hundred(fake: FakeKube, kube: KubeClient) -> None:
    store = KubeStore(kube)
    for number in range(101):
        await store.write(Record(f"n{number:03}"), ONE, SOON)
    assert len([record async for record in store.records()]) == 101
    assert [request.query["limit"] for request in fake.seen("list", "nodeallocations")] == ["100", "100"]


@pytest.mark.parametrize("fault", [drop(), lose_answer(), answer(500), answer(503)])
async def test_a_write_without_an_answer_is_never_sent_twice(fake: FakeKube, kube: KubeClient, fault: Fault) -> None:
    fake.faults.add("create", "nodeallocations", fault)
    with pytest.raises(Unreachable):
        await KubeStore(kube).write(Record("n1"), ONE, SOON)
    assert len(fake.seen("create", "nodeallocations")) == 1


async def test_a_write_ends_at_its_deadline(fake: FakeKube, kube: KubeClient) -> None:
    held = hold()
    fake.faults.add("create", "nodeallocations", held)
    with pytest.raises(Unreachable, match="no answer within"):
        await KubeStore(kube).write(Record("n1"), ONE, 0.05)
    assert held.gate
    held.gate.set()


@pytest.mark.parametrize(
    "spec",
    [
        {"allocations": "none"},
        {"allocations": [{"uid": "u"}]},
        {"allocations": [None]},
        {"allocations": [{"uid": "u", "namespace": "d", "name": "p", "since": "yesterday", "devices": []}]},
    ],
)
async def test_an_object_that_somebody_else_damaged_is_an_error(fake: FakeKube, kube: KubeClient, spec: object) -> None:
    fake.put(PATH, {"metadata": {"name": "n1"}, "spec": spec})
    with pytest.raises(RecordError, match=r"n1.*administrator"):
        await KubeStore(kube).read("n1", SOON)


async def test_a_watch_counts_what_happens_and_says_what_failed(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.add("list", "nodeallocations", answer(403))
    counted: list[str] = []
    failed: list[str] = []
    opened = asyncio.Event()

    def count(happening: str) -> None:
        counted.append(happening)
        if happening == "watch":
            opened.set()

    watch = KubeStore(kube).watch(
        Heard(frozenset()), count, lambda about, error: failed.append(f"{about}: {type(error).__name__}")
    )
    running = asyncio.create_task(watch.run())
    await opened.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert counted == ["list", "error", "list", "watch"]
    assert failed == ["nodeallocations: Forbidden"]
