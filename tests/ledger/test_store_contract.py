"""What the ledger relies on, held to both stores: in memory, and objects of the API server."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from builders import GIB, gpu, holding, part, share
from fake_kube import FakeKube, answer, drop, hold, lose_answer

from allocator.vocabulary.holdings import Holding
from allocator.wire.nodeallocation import RecordError
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound, Unreachable
from koordgate.kube.resource import NODE_ALLOCATIONS
from webhook.ledger.store import ABSENT, KubeStore, LostRaceError, MemoryStore, Record, Store, read_record

A, B = gpu(0), gpu(1)
ONE = {"u1": holding("u1", part(A, 50, "main"))}
TWO = {**ONE, "u2": holding("u2", part(B, 100, "main", "side"))}
SOON = 5.0


@dataclass
class Kept:
    """A store, and how its record of a node is deleted behind its back."""

    store: Store
    delete: Callable[[str], object]
    node_uids: dict[str, str] = field(default_factory=dict)


@pytest.fixture(params=["memory", "kube"])
def kept(request: pytest.FixtureRequest) -> Kept:
    if request.param == "memory":
        memory = MemoryStore()
        return Kept(memory, memory._records.pop)
    fake: FakeKube = request.getfixturevalue("fake")
    kube: KubeClient = request.getfixturevalue("kube")
    return Kept(KubeStore(kube, lambda _node: None), lambda node: fake.remove(NODE_ALLOCATIONS.path(node)))


# --- both stores


async def test_a_record_that_was_never_written_reads_as_absent_and_empty(kept: Kept) -> None:
    assert await kept.store.read("n1", SOON) == Record("n1", ABSENT, {})


async def test_what_was_written_is_read_back(kept: Kept) -> None:
    written = await kept.store.write(Record("n1"), TWO, SOON)
    assert written.holdings == TWO
    assert await kept.store.read("n1", SOON) == written


async def test_each_write_has_a_greater_revision(kept: Kept) -> None:
    first = await kept.store.write(Record("n1"), ONE, SOON)
    second = await kept.store.write(first, TWO, SOON)
    third = await kept.store.write(second, {}, SOON)
    assert ABSENT < first.revision < second.revision < third.revision


async def test_nodes_are_kept_apart(kept: Kept) -> None:
    await kept.store.write(Record("n1"), ONE, SOON)
    await kept.store.write(Record("n2"), TWO, SOON)
    assert dict((await kept.store.read("n1", SOON)).holdings) == ONE
    assert dict((await kept.store.read("n2", SOON)).holdings) == TWO


async def test_of_two_that_create_one_loses_and_changes_nothing(kept: Kept) -> None:
    first = await kept.store.write(Record("n1"), ONE, SOON)
    with pytest.raises(LostRaceError):
        await kept.store.write(Record("n1"), TWO, SOON)
    assert await kept.store.read("n1", SOON) == first


async def test_of_two_that_replace_one_loses_and_changes_nothing(kept: Kept) -> None:
    first = await kept.store.write(Record("n1"), ONE, SOON)
    second = await kept.store.write(first, TWO, SOON)
    with pytest.raises(LostRaceError):
        await kept.store.write(first, {}, SOON)
    assert await kept.store.read("n1", SOON) == second


async def test_a_write_of_the_same_holdings_on_an_old_revision_still_loses(kept: Kept) -> None:
    first = await kept.store.write(Record("n1"), ONE, SOON)
    await kept.store.write(first, TWO, SOON)
    with pytest.raises(LostRaceError):
        await kept.store.write(first, TWO, SOON)


async def test_a_write_on_a_record_that_was_deleted_under_us_loses(kept: Kept) -> None:
    first = await kept.store.write(Record("n1"), ONE, SOON)
    kept.delete("n1")
    with pytest.raises(LostRaceError):
        await kept.store.write(first, TWO, SOON)
    assert await kept.store.read("n1", SOON) == Record("n1")


async def test_a_record_deleted_and_made_again_is_at_another_revision(kept: Kept) -> None:
    first = await kept.store.write(Record("n1"), ONE, SOON)
    kept.delete("n1")
    again = await kept.store.write(Record("n1"), TWO, SOON)
    assert again.revision > first.revision
    with pytest.raises(LostRaceError):
        await kept.store.write(first, {}, SOON)


async def test_changing_what_was_handed_over_does_not_change_what_is_kept(kept: Kept) -> None:
    mine = dict(ONE)
    await kept.store.write(Record("n1"), mine, SOON)
    mine.clear()
    assert dict((await kept.store.read("n1", SOON)).holdings) == ONE


@pytest.mark.parametrize(
    "kept_holding",
    [
        holding("u", share(A)),
        holding("u", part(A, 100, "main"), part(B, 100, "main")),
        holding("u", share(A, "a", "b", core=1, memory=80 * GIB - 1, ratio=100), since=0),
        holding("u", share(gpu(7, device_id="GPU-ünïcode/~1 and spaces"), "c", memory=2**62)),
        Holding("u", "a-namespace", "a.pod", 1_234_567_890, ()),
    ],
)
async def test_a_holding_comes_back_as_it_went(kept: Kept, kept_holding: Holding) -> None:
    await kept.store.write(Record("n1"), {"u": kept_holding}, SOON)
    assert dict((await kept.store.read("n1", SOON)).holdings) == {"u": kept_holding}


# --- objects of the API server only


async def test_the_object_is_deleted_with_its_node_where_the_nodes_uid_is_known(
    fake: FakeKube, kube: KubeClient
) -> None:
    store = KubeStore(kube, {"n1": "node-uid"}.get)
    await store.write(Record("n1"), ONE, SOON)
    await store.write(Record("n2"), ONE, SOON)
    known, unknown = fake.objects(NODE_ALLOCATIONS.path())
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}
    assert known["metadata"]["ownerReferences"] == [owner]
    assert "ownerReferences" not in unknown["metadata"]


async def test_the_owner_follows_a_node_that_was_made_again(fake: FakeKube, kube: KubeClient) -> None:
    uids = {"n1": "first"}
    store = KubeStore(kube, uids.get)
    record = await store.write(Record("n1"), ONE, SOON)
    uids["n1"] = "second"
    await store.write(record, TWO, SOON)
    assert fake.get(NODE_ALLOCATIONS.path("n1"))["metadata"]["ownerReferences"][0]["uid"] == "second"


async def test_a_create_is_one_post_and_a_replace_is_one_put_on_the_revision(fake: FakeKube, kube: KubeClient) -> None:
    store = KubeStore(kube, lambda _node: None)
    record = await store.write(Record("n1"), ONE, SOON)
    await store.write(record, TWO, SOON)
    assert [request.verb for request in fake.requests] == ["create", "update"]
    assert f'"resourceVersion":"{record.revision}"'.encode() in fake.requests[1].body


async def test_a_missing_crd_is_told_and_is_no_lost_race(fake: FakeKube, kube: KubeClient) -> None:
    fake.absent.add("nodeallocations")
    with pytest.raises(NotFound):
        await KubeStore(kube, lambda _node: None).write(Record("n1"), ONE, SOON)


@pytest.mark.parametrize("fault", [drop(), lose_answer(), answer(500), answer(503)])
async def test_a_write_without_an_answer_is_never_sent_twice(fake: FakeKube, kube: KubeClient, fault: object) -> None:
    fake.faults.add("create", "nodeallocations", fault)  # type: ignore[arg-type] # a Fault
    with pytest.raises(Unreachable):
        await KubeStore(kube, lambda _node: None).write(Record("n1"), ONE, SOON)
    assert len(fake.seen("create", "nodeallocations")) == 1


async def test_a_write_ends_at_its_deadline(fake: FakeKube, kube: KubeClient) -> None:
    held = hold()
    fake.faults.add("create", "nodeallocations", held)
    with pytest.raises(Unreachable, match="no answer within"):
        await KubeStore(kube, lambda _node: None).write(Record("n1"), ONE, 0.05)
    held.gate.set()  # type: ignore[union-attr] # `hold` has one


@pytest.mark.parametrize(
    "spec",
    [
        {"allocations": "none"},
        {"allocations": [{"uid": "u"}]},
        {"allocations": [None]},
        {"allocations": [{"uid": "u", "namespace": "d", "name": "p", "since": "yesterday", "devices": []}]},
    ],
)
async def test_a_record_that_somebody_else_spoilt_is_an_error_and_never_empty(
    fake: FakeKube, kube: KubeClient, spec: object
) -> None:
    fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": spec})
    with pytest.raises(RecordError, match=r"n1.*administrator"):
        await KubeStore(kube, lambda _node: None).read("n1", SOON)


async def test_a_watched_object_is_the_record_that_was_written(fake: FakeKube, kube: KubeClient) -> None:
    written = await KubeStore(kube, lambda _node: None).write(Record("n1"), TWO, SOON)
    assert read_record(fake.get(NODE_ALLOCATIONS.path("n1"))) == written
