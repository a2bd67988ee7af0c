"""A node's record has a size that it may not exceed: who would make it grow beyond is refused, and nobody else."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import orjson
import pytest
from builders import gpu, holding
from fake_kube import FakeKube, Fault, answer

from allocator.vocabulary.holdings import Holding, Share
from allocator.wire.nodeallocation import write_spec
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import NODE_ALLOCATIONS
from webhook.ledger.kube import KubeStore, read_record
from webhook.ledger.ledger import Change, Holdings, Ledger
from webhook.ledger.store import FullRecordError, Record

SOON = 20.0
LIMIT = 768 * 1024
CARDS = tuple(gpu(minor) for minor in range(8))
TOO_LARGE = (
    "etcdserver: request is too large",
    "rpc error: trying to send message larger than max (3000000 vs. 2097152)",
)


def large(uid: str, containers: int = 1000) -> Holding:
    """Some 66 bytes for each of so many containers, once."""
    names = tuple(f"{number:063}" for number in range(containers))
    shares = (Share(card.type, card.id, card.minor, {"gpu-core": 1}, names) for card in CARDS[:1])
    return holding(uid, *shares)


def add(*more: Holding) -> Change[str]:
    def change(holdings: Holdings) -> tuple[Holdings, str]:
        return {**holdings, **{one.uid: one for one in more}}, "added"

    return change


def drop(uid: str) -> Change[str]:
    def change(holdings: Holdings) -> tuple[Holdings, str]:
        return {other: one for other, one in holdings.items() if other != uid}, "dropped"

    return change


def stored(fake: FakeKube) -> Mapping[str, Holding]:
    return read_record(fake.get(NODE_ALLOCATIONS.path("n1"))).holdings


def size(*holdings: Holding) -> int:
    return len(orjson.dumps(write_spec(holdings)))


@pytest.fixture
async def ledger(kube: KubeClient) -> AsyncIterator[Ledger]:
    made = Ledger(KubeStore(kube))
    yield made
    await made.idle()


async def fill(ledger: Ledger) -> list[Holding]:
    """Let the record have more than 90 % of what it may have."""
    held = [large(f"f{number}") for number in range(LIMIT // size(large("f0")))]
    assert 0.9 * LIMIT < size(*held) <= LIMIT
    await ledger.change("n1", add(*held), SOON)
    return held


async def test_of_a_group_only_who_would_make_the_record_too_large_is_refused(fake: FakeKube, ledger: Ledger) -> None:
    held = await fill(ledger)
    changes = [add(holding("small")), add(large("greedy")), drop(held[0].uid), add(holding("late"))]
    answers = await asyncio.gather(*(ledger.change("n1", one, SOON) for one in changes[:2]), return_exceptions=True)
    assert answers[0] == "added"
    assert isinstance(answers[1], FullRecordError)
    assert str(answers[1]).startswith("the record of what Pods hold on node n1 would have ")
    assert "bytes, and 786432 are allowed: bind Pods with fewer containers" in str(answers[1])
    assert await asyncio.gather(*(ledger.change("n1", one, SOON) for one in changes[2:])) == ["dropped", "added"]
    assert sorted(stored(fake)) == sorted(["small", "late", *(one.uid for one in held[1:])])
    assert await ledger.change("n1", add(large("greedy")), SOON) == "added", "there is room again"


def exactly(length: int, *others: Holding) -> dict[str, Holding]:
    """These holdings, and one of a Pod with a name so long that all have this length in bytes."""
    last = holding("last")
    name = "p" * (length - size(*others, replace(last, name="")))
    found = {one.uid: one for one in (*others, replace(last, name=name))}
    assert size(*found.values()) == length
    return found


async def test_a_record_may_have_768_kib_and_not_one_byte_more(fake: FakeKube, kube: KubeClient) -> None:
    store = KubeStore(kube)
    others = [large(f"f{number}") for number in range(LIMIT // size(large("f0")))]
    with pytest.raises(FullRecordError, match="would have 786433 bytes, and 786432 are allowed"):
        await store.write(Record("n1"), exactly(LIMIT + 1, *others), SOON)
    assert fake.objects(NODE_ALLOCATIONS.path()) == []
    largest = exactly(LIMIT, *others)
    await store.write(Record("n1"), largest, SOON)
    assert stored(fake) == largest


async def test_a_record_that_is_too_large_already_may_become_smaller_or_be_written_as_it_is(
    fake: FakeKube, kube: KubeClient
) -> None:
    held = exactly(LIMIT + 9, *(large(f"f{number}") for number in range(11)))
    fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": write_spec(held.values())})
    store = KubeStore(kube)
    same = await store.write(await store.read("n1", SOON), held, SOON)
    assert stored(fake) == held
    with pytest.raises(FullRecordError):
        await store.write(same, exactly(LIMIT + 10, *(large(f"f{number}") for number in range(11))), SOON)
    smaller = exactly(LIMIT + 8, *(large(f"f{number}") for number in range(11)))
    await store.write(same, smaller, SOON)
    assert stored(fake) == smaller


async def test_a_record_that_is_too_large_already_may_become_smaller(fake: FakeKube, ledger: Ledger) -> None:
    """Another writer, or an older koordgate, has made it so."""
    held = [large(f"f{number}") for number in range(14)]
    assert size(*held) > LIMIT
    fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": write_spec(held)})
    with pytest.raises(FullRecordError):
        await ledger.change("n1", add(holding("more")), SOON)
    assert await ledger.change("n1", drop("f0"), SOON) == "dropped"
    assert len(stored(fake)) == 13


async def test_a_refusal_is_based_on_the_record_as_it_is(kube: KubeClient, fake: FakeKube, ledger: Ledger) -> None:
    held = await fill(ledger)
    other = Ledger(KubeStore(kube))
    assert await other.change("n1", drop(held[0].uid), SOON) == "dropped"
    assert await ledger.change("n1", add(large("greedy")), SOON) == "added"
    assert "greedy" in stored(fake)


@pytest.mark.parametrize(
    "fault",
    [answer(413, "Request entity too large"), *(answer(500, words) for words in TOO_LARGE)],
    ids=["413", "etcd", "gRPC"],
)
async def test_where_the_api_server_refuses_the_size_of_a_group_each_change_is_written_by_itself(
    fake: FakeKube, ledger: Ledger, fault: Fault
) -> None:
    await ledger.change("n1", add(holding("first")), SOON)
    refused = Fault(status=fault.status, message=fault.message)
    # The group, on the remembered record and on a fresh one; then the first of them likewise.
    fake.faults.add("update", "nodeallocations", fault, refused, refused, refused)
    answers = await asyncio.gather(
        *(ledger.change("n1", add(holding(uid)), SOON) for uid in ("a", "b", "c")), return_exceptions=True
    )
    assert isinstance(answers[0], FullRecordError)
    assert fault.message in str(answers[0])
    assert answers[1:] == ["added", "added"]
    assert sorted(stored(fake)) == ["b", "c", "first"]


def test_the_names_of_many_containers_take_room_once_whatever_the_devices() -> None:
    names = tuple(f"{number:063}" for number in range(64))
    shares = [Share(card.type, card.id, card.minor, {"gpu-core": 1}, names) for card in CARDS]
    assert size(holding("p", *shares)) < 10_000
    one, all_cards = size(holding("p", shares[0])), size(holding("p", *shares))
    assert all_cards - one < 7 * 400
