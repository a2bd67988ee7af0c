"""The ledger: group commit, lost races, failures; nothing is ever given twice or lost."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import gpu, holding, part
from clocks import standing
from fake_kube import FakeKube, Fault, answer, drop, hold, hold_answer, lose_answer
from hypothesis import given, settings
from hypothesis import strategies as st
from world import BEGINNING, World, gpu_pod

from allocator.bind import Decision, PodToBind, bind, release
from allocator.budget import Steps
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.nodeallocation import RecordError
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, Unreachable
from koordgate.kube.resource import NODE_ALLOCATIONS
from webhook.ledger.kube import KubeStore, read_record
from webhook.ledger.ledger import BusyError, Change, Counters, Holdings, Ledger
from webhook.ledger.store import LostRaceError, MemoryStore, Record
from webhook.view.podinfo import read_pod_info

CARDS = tuple(gpu(minor) for minor in range(4))
SOON = 5.0


class Told:
    """What the ledger reported to its counters."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.lost = 0
        self.counters = Counters(written=self.groups.append, lost_race=self._lose)

    def _lose(self) -> None:
        self.lost += 1


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def ledger(kube: KubeClient, told: Told) -> AsyncIterator[Ledger]:
    made = Ledger(KubeStore(kube), told.counters)
    yield made
    await made.idle()


@pytest.fixture
async def other(kube: KubeClient) -> AsyncIterator[Ledger]:
    """Another replica, whose watch reports nothing."""
    made = Ledger(KubeStore(kube))
    yield made
    await made.idle()


def put(uid: str, percent: int = 10, minor: int = 0) -> Change[str]:
    """Add a holding, and answer with all holders."""

    def change(holdings: Holdings) -> tuple[Holdings, str]:
        now = {**holdings, uid: holding(uid, part(CARDS[minor], percent))}
        return now, " ".join(sorted(now))

    return change


def take_free(uid: str, percent: int) -> Change[int | None]:
    """The first card with this much free, or None: a small allocator, so that over-allocation is visible."""

    def change(holdings: Holdings) -> tuple[Holdings | None, int | None]:
        held = holdings.get(uid)
        if held is not None:
            return None, held.shares[0].minor
        node = NodeSnapshot("n1", CARDS, holdings)
        for card in CARDS:
            if node.used.get(card.id, {}).get("gpu-core", 0) + percent <= 100:
                return {**holdings, uid: holding(uid, part(card, percent))}, card.minor
        return None, None

    return change


def look(holdings: Holdings) -> tuple[None, list[str]]:
    return None, sorted(holdings)


def stored(fake: FakeKube, node: str = "n1") -> Mapping[str, Holding]:
    return read_record(fake.get(NODE_ALLOCATIONS.path(node))).holdings


def gate_of(fault: Fault) -> asyncio.Event:
    gate = fault.gate or fault.answer_gate
    assert gate
    return gate


async def pending(ledger: Ledger, changes: int) -> None:
    """Wait until this number of changes wait for their turn on n1."""
    async with asyncio.timeout(SOON):
        while len(ledger._pending.get("n1", ())) < changes:  # noqa: ASYNC110 the ledger tells nobody of its queue
            await asyncio.sleep(0)


# --- group commit


async def test_changes_that_come_during_a_write_are_written_together(
    fake: FakeKube, ledger: Ledger, told: Told
) -> None:
    held = hold()
    fake.faults.add("create", "nodeallocations", held)
    first = asyncio.create_task(ledger.change("n1", put("first"), SOON))
    await held.reached.wait()
    rest = [asyncio.create_task(ledger.change("n1", put(f"u{n:02}"), SOON)) for n in range(20)]
    await pending(ledger, 20)
    gate_of(held).set()
    await asyncio.gather(first, *rest)
    assert told.groups == [1, 20]
    assert len(fake.seen("create", "nodeallocations")) + len(fake.seen("update", "nodeallocations")) == 2
    assert len(stored(fake)) == 21


async def test_changes_are_decided_in_the_order_in_which_they_came(fake: FakeKube, ledger: Ledger) -> None:
    held = hold()
    fake.faults.add("create", "nodeallocations", held)
    tasks = [asyncio.create_task(ledger.change("n1", put(name), SOON)) for name in "badc"]
    await held.reached.wait()
    gate_of(held).set()
    assert await asyncio.gather(*tasks) == ["b", "a b", "a b d", "a b c d"]


async def test_nodes_do_not_wait_for_each_other(fake: FakeKube, ledger: Ledger) -> None:
    held = hold()
    fake.faults.add("create", "nodeallocations", held)
    slow = asyncio.create_task(ledger.change("n1", put("slow"), SOON))
    await held.reached.wait()
    assert await ledger.change("n2", put("fast"), SOON) == "fast"
    assert not slow.done()
    gate_of(held).set()
    await slow


class Crowded(MemoryStore):
    """Counts the writes that are under way at the same time; each ends when `gate` is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.under_way = self.most = 0

    async def write(self, record: Record, holdings: Holdings, deadline: float) -> Record:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.gate.wait()
        self.under_way -= 1
        return await super().write(record, holdings, deadline)


async def turns(number: int = 50) -> None:
    """Let everything else run that needs no waiting."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_eight_nodes_are_written_at_once_and_the_others_wait_for_their_turn(told: Told) -> None:
    store = Crowded()
    ledger = Ledger(store, told.counters)
    changes = [asyncio.create_task(ledger.change(f"n{n}", put("a"), SOON)) for n in range(10)]
    await turns()
    assert store.under_way == 8
    late = [asyncio.create_task(ledger.change("n9", put(uid), SOON)) for uid in "bc"]
    await turns()
    store.gate.set()
    await asyncio.gather(*changes, *late)
    assert store.most == 8
    assert told.groups == [1] * 9 + [3]  # those that waited for the same node's turn share a write


@pytest.mark.parametrize(("gather", "groups"), [(0.0, [2, 1]), (0.2, [3])])
async def test_in_a_burst_a_change_waits_for_others_to_join_it(told: Told, gather: float, groups: list[int]) -> None:
    ledger = Ledger(MemoryStore(), told.counters, gather=gather)
    burst = [asyncio.create_task(ledger.change("n1", put(uid), SOON)) for uid in "ab"]
    await turns()
    await ledger.change("n1", put("c"), SOON)
    await asyncio.gather(*burst)
    assert told.groups == groups


async def test_in_a_burst_changes_wait_for_those_that_are_known_to_come(told: Told) -> None:
    burst: list[asyncio.Task[str]] = []

    def coming(_node: str) -> int:  # asked when a first wait is over
        if len(burst) < 3:
            burst.append(asyncio.create_task(made.change("n1", put("c"), SOON)))
        return 3

    made = Ledger(MemoryStore(), told.counters, gather=0.001, coming=coming)
    burst += [asyncio.create_task(made.change("n1", put(uid), SOON)) for uid in "ab"]
    await asyncio.gather(*burst)
    assert await burst[2] == "a b c"
    assert told.groups == [3]


@pytest.mark.parametrize(("changes", "waits"), [(2, 3), (15, 3), (16, 1)])
async def test_changes_wait_a_few_times_at_most_and_not_where_they_are_many(
    told: Told, changes: int, waits: int
) -> None:
    asked: list[str] = []

    def coming(node: str) -> int:
        asked.append(node)
        return 99

    ledger = Ledger(MemoryStore(), told.counters, gather=0.05, coming=coming)
    await asyncio.gather(*(ledger.change("n1", put(f"u{number}"), SOON) for number in range(changes)))
    assert (asked, told.groups) == (["n1"] * waits, [changes])


async def test_a_change_that_arrives_alone_waits_for_nobody() -> None:
    ledger = Ledger(MemoryStore(), gather=3600.0)
    assert await ledger.change("n1", put("a"), SOON) == "a"
    ledger._arrivals = (0.0, 0.0)  # a burst of long ago
    assert await ledger.change("n1", put("b"), SOON) == "a b"


async def test_a_change_that_is_written_at_once_waits_for_nobody_in_a_burst_and_is_no_part_of_one(told: Told) -> None:
    ledger = Ledger(MemoryStore(), told.counters, gather=3600.0)
    for uid in "abc":
        assert await ledger.change("n1", put(uid), SOON, at_once=True)
    assert await ledger.change("n1", put("d"), SOON) == "a b c d"
    ledger._arrivals = (ledger._arrivals[1], ledger._arrivals[1])  # two binds came together
    burst = asyncio.create_task(ledger.change("n1", put("e"), SOON))
    hurried = asyncio.create_task(ledger.change("n1", put("f"), SOON, at_once=True))
    assert [*await asyncio.gather(burst, hurried)] == ["a b c d e", "a b c d e f"]
    assert told.groups == [1, 1, 1, 1, 2]


async def test_a_group_in_which_nobody_changes_anything_is_not_written(
    fake: FakeKube, ledger: Ledger, told: Told
) -> None:
    assert await ledger.change("n1", look, SOON) == []
    assert told.groups == []
    assert not fake.seen("create", "nodeallocations")


async def test_a_change_that_raises_does_not_hurt_its_neighbours(fake: FakeKube, ledger: Ledger) -> None:
    def bug(_holdings: Holdings) -> tuple[None, None]:
        raise ZeroDivisionError("a bug")

    results = await asyncio.gather(
        ledger.change("n1", put("a"), SOON),
        ledger.change("n1", bug, SOON),
        ledger.change("n1", put("b"), SOON),
        return_exceptions=True,
    )
    assert results[0] == "a"
    assert isinstance(results[1], ZeroDivisionError)
    assert results[2] == "a b"
    assert sorted(stored(fake)) == ["a", "b"]


# --- races


async def test_the_first_change_of_a_node_needs_no_read(fake: FakeKube, ledger: Ledger, other: Ledger) -> None:
    assert await ledger.change("n1", put("a"), SOON) == "a"
    assert fake.seen("get", "nodeallocations") == []
    assert await other.change("n1", put("b"), SOON) == "a b"  # which has not heard of the record
    assert len(fake.seen("get", "nodeallocations")) == 1
    assert sorted(stored(fake)) == ["a", "b"]


async def test_a_lost_race_is_read_and_decided_again(fake: FakeKube, ledger: Ledger, other: Ledger, told: Told) -> None:
    await ledger.change("n1", put("mine"), SOON)
    await other.change("n1", put("theirs"), SOON)
    assert await ledger.change("n1", put("again"), SOON) == "again mine theirs"
    assert told.lost == 1
    assert sorted(stored(fake)) == ["again", "mine", "theirs"]


async def test_an_answer_that_writes_nothing_is_never_given_from_memory_alone(ledger: Ledger, other: Ledger) -> None:
    # This replica's watch is late: what it remembers says that the Pod holds card 0, which is another's by now.
    assert await ledger.change("n1", take_free("pod", 100), SOON) == 0
    await other.change("n1", release("pod"), SOON)
    assert await other.change("n1", take_free("thief", 100), SOON) == 0
    assert await ledger.change("n1", take_free("pod", 100), SOON) == 1


async def test_a_record_deleted_under_us_is_made_again(fake: FakeKube, ledger: Ledger) -> None:
    await ledger.change("n1", put("a"), SOON)
    fake.remove(NODE_ALLOCATIONS.path("n1"))
    assert await ledger.change("n1", put("b"), SOON) == "b"
    assert sorted(stored(fake)) == ["b"]


async def test_who_loses_every_race_is_answered_that_the_node_is_busy(told: Told) -> None:
    class Contested(MemoryStore):
        async def write(self, record: Record, holdings: Holdings, deadline: float) -> Record:  # noqa: ARG002
            raise LostRaceError(record.node)

    with pytest.raises(BusyError, match=r"n1: too many writers at once; try again"):
        await Ledger(Contested(), told.counters).change("n1", put("a"), SOON)
    assert told.lost == 16


async def test_three_replicas_neither_lose_nor_double_anything(fake: FakeKube, kube: KubeClient) -> None:
    ledgers = [Ledger(KubeStore(kube)) for _ in range(3)]
    uids = [f"u{number:02}" for number in range(60)]

    async def ask(number: int, uid: str) -> int | None:
        while True:
            try:
                return await ledgers[number % 3].change("n1", take_free(uid, 10), SOON)
            except BusyError:
                continue

    minors = await asyncio.gather(*(ask(number, uid) for number, uid in enumerate(uids)))
    held = stored(fake)
    NodeSnapshot("n1", CARDS, held).check_invariants()
    given = {uid: minor for uid, minor in zip(uids, minors, strict=True) if minor is not None}
    assert len(given) == 40  # four cards of ten tenths each: full, and not one more
    assert {uid: one.shares[0].minor for uid, one in held.items()} == given


OPERATIONS = st.lists(
    st.tuples(
        st.integers(0, 2),  # which replica
        st.sampled_from(["take", "take", "release", "watch", "discard"]),
        st.sampled_from("abcdefgh"),
        st.sampled_from([20, 50, 60, 100]),
    ),
    max_size=30,
)


class Slow(MemoryStore):
    """A remote store: each request gives way to others; `after` says when it is performed."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__()
        self._faults = faults

    async def read(self, node: str, deadline: float) -> Record:
        await asyncio.sleep(0)
        record = await super().read(node, deadline)
        await asyncio.sleep(0)
        return record

    async def write(self, record: Record, holdings: Holdings, deadline: float) -> Record:
        fault = self._faults.pop() if self._faults else ""
        await asyncio.sleep(0)
        if fault == "before":
            raise Unreachable("not performed")
        written = await super().write(record, holdings, deadline)
        await asyncio.sleep(0)
        if fault == "after":
            raise Unreachable("performed, but the answer is lost")
        return written

    async def delete(self, record: Record, deadline: float) -> None:
        fault = self._faults.pop() if self._faults else ""
        await asyncio.sleep(0)
        if fault == "before":
            raise Unreachable("not performed")
        await super().delete(record, deadline)
        await asyncio.sleep(0)
        if fault == "after":
            raise Unreachable("performed, but the answer is lost")


@given(OPERATIONS, st.lists(st.sampled_from(["", "", "", "before", "after"]), max_size=10))
@settings(max_examples=200)
def test_whatever_replicas_do_and_whatever_fails_nothing_is_given_twice(
    operations: list[tuple[int, str, str, int]], faults: list[str]
) -> None:
    """Independent audit: a card's shares never exceed it, and every Pod holds what it was answered."""
    answered: dict[str, int] = {}

    async def run() -> None:
        store = Slow(list(faults))
        ledgers = [Ledger(store) for _ in range(3)]
        ended: set[str] = set()

        async def perform(number: int, what: str, uid: str, percent: int) -> None:
            try:
                if what == "watch":
                    ledgers[number].observe(store._records.get("n1", Record("n1")))
                elif what == "discard":
                    await ledgers[number].discard("n1", SOON)
                elif what == "release":
                    ended.add(uid)
                    await ledgers[number].change("n1", release(uid), SOON)
                else:
                    minor = await ledgers[number].change("n1", take_free(uid, percent), SOON)
                    if minor is not None:
                        assert answered.setdefault(uid, minor) == minor or uid in ended
            except KubeError:
                pass

        await asyncio.gather(*(perform(*operation) for operation in operations))
        held = store._records.get("n1", Record("n1")).holdings
        NodeSnapshot("n1", CARDS, held).check_invariants()
        for uid, minor in answered.items():
            assert uid in ended or held[uid].shares[0].minor == minor

    asyncio.run(run())


# --- failures


@pytest.mark.parametrize("verb", ["create", "update"])
async def test_a_lost_answer_leaves_the_holding_and_the_retry_gets_the_same_answer(
    fake: FakeKube, ledger: Ledger, told: Told, verb: str
) -> None:
    if verb == "update":
        await ledger.change("n1", put("before", 100), SOON)
    fake.faults.add(verb, "nodeallocations", lose_answer())
    with pytest.raises(Unreachable) as caught:
        await ledger.change("n1", take_free("pod", 60), SOON)
    assert caught.value.maybe_performed
    there = stored(fake)["pod"].shares[0].minor
    revision = fake.revision
    assert await ledger.change("n1", take_free("pod", 60), SOON) == there
    assert fake.revision == revision  # nothing was written again
    assert told.lost == 0


@pytest.mark.parametrize("fault", [drop(), answer(500), answer(403)])
async def test_a_write_that_was_not_performed_is_an_error_and_may_be_tried_again(
    fake: FakeKube, ledger: Ledger, fault: Fault
) -> None:
    fake.faults.add("create", "nodeallocations", fault)
    with pytest.raises(KubeError):
        await ledger.change("n1", put("a"), SOON)
    assert await ledger.change("n1", put("a"), SOON) == "a"


async def test_a_failed_write_is_reported_to_the_whole_group(fake: FakeKube, ledger: Ledger) -> None:
    fake.faults.add("create", "nodeallocations", drop())
    results = await asyncio.gather(*(ledger.change("n1", put(name), SOON) for name in "abc"), return_exceptions=True)
    assert [type(result) for result in results] == [Unreachable] * 3


async def test_a_failed_write_does_not_make_a_full_node_look_empty(fake: FakeKube, ledger: Ledger) -> None:
    # No watch event follows a write that was not performed: a record forgotten now would stay forgotten.
    await ledger.change("n1", put("a", 100), SOON)
    fake.faults.add("update", "nodeallocations", answer(500))
    with pytest.raises(KubeError):
        await ledger.change("n1", put("b"), SOON)
    assert sorted(ledger.record("n1").holdings) == ["a"]
    assert ledger.nodes_of("a") == ["n1"]


async def test_after_a_failed_write_the_next_change_reads_first(fake: FakeKube, ledger: Ledger, other: Ledger) -> None:
    await ledger.change("n1", put("a"), SOON)
    fake.faults.add("update", "nodeallocations", lose_answer())
    with pytest.raises(KubeError):
        await ledger.change("n1", put("b"), SOON)
    await other.change("n1", put("c"), SOON)
    before = len(fake.seen("get", "nodeallocations"))
    assert await ledger.change("n1", put("d"), SOON) == "a b c d"
    assert len(fake.seen("get", "nodeallocations")) == before + 1


async def test_a_record_that_cannot_be_read_fails_the_change_and_stays_as_it_is(fake: FakeKube, ledger: Ledger) -> None:
    spoilt = fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": {"allocations": "?"}})
    with pytest.raises(RecordError):
        await ledger.change("n1", put("a"), SOON)
    assert fake.get(NODE_ALLOCATIONS.path("n1")) == spoilt


# --- deadlines and callers that leave


async def test_a_deadline_that_passes_is_busy_and_what_was_performed_is_found_by_the_retry(
    fake: FakeKube, ledger: Ledger
) -> None:
    held = hold_answer()
    fake.faults.add("create", "nodeallocations", held)
    with pytest.raises(BusyError, match=r"n1.*0\.1 s"):
        await ledger.change("n1", take_free("pod", 60), 0.1)
    gate_of(held).set()
    assert await ledger.change("n1", take_free("pod", 60), SOON) == 0
    assert sorted(stored(fake)) == ["pod"]


@pytest.mark.parametrize("deadline", [0, -0.5])
async def test_a_change_without_any_time_left_is_busy_and_not_written(deadline: float) -> None:
    store = MemoryStore()
    ledger = Ledger(store)
    with standing(), pytest.raises(BusyError, match=r"n1.*try again"):
        await ledger.change("n1", put("a"), deadline)
    await ledger.idle()
    assert await store.read("n1", SOON) == Record("n1")


class Timed(MemoryStore):
    """Notes for how long each request may take."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[float] = []

    async def read(self, node: str, deadline: float) -> Record:
        self.given.append(deadline)
        return await super().read(node, deadline)

    async def write(self, record: Record, holdings: Holdings, deadline: float) -> Record:
        self.given.append(deadline)
        return await super().write(record, holdings, deadline)


async def test_the_store_is_given_the_time_that_the_most_patient_change_has_left() -> None:
    store = Timed()
    ledger = Ledger(store)
    with standing(at=100.0):
        await ledger.change("n1", put("a"), 0.5)
        await asyncio.gather(*(ledger.change("n1", put(f"u{seconds}"), seconds) for seconds in (2, 250, 3)))
    assert store.given == [0.5, 250.0]


async def test_a_patient_neighbour_is_answered_though_an_impatient_one_left(fake: FakeKube, ledger: Ledger) -> None:
    held = hold()
    fake.faults.add("create", "nodeallocations", held)
    patient = asyncio.create_task(ledger.change("n1", put("patient"), SOON))
    with pytest.raises(BusyError):
        await ledger.change("n1", put("impatient"), 0.05)
    gate_of(held).set()
    assert "patient" in (await patient).split()


async def test_a_caller_that_left_while_it_waited_for_its_turn_is_skipped(fake: FakeKube, ledger: Ledger) -> None:
    held = hold()
    fake.faults.add("create", "nodeallocations", held)
    first = asyncio.create_task(ledger.change("n1", put("first"), SOON))
    await held.reached.wait()
    leaving = asyncio.create_task(ledger.change("n1", put("leaving"), SOON))
    staying = asyncio.create_task(ledger.change("n1", put("staying"), SOON))
    await pending(ledger, 2)
    leaving.cancel()
    gate_of(held).set()
    assert await staying == "first staying"
    await asyncio.gather(first, leaving, return_exceptions=True)
    assert sorted(stored(fake)) == ["first", "staying"]


async def test_a_caller_that_left_while_its_change_was_written_keeps_no_neighbour_waiting(
    fake: FakeKube, ledger: Ledger
) -> None:
    held = hold()
    fake.faults.add("create", "nodeallocations", held)
    leaving, staying, last = (asyncio.create_task(ledger.change("n1", put(uid), SOON)) for uid in "abc")
    await held.reached.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    gate_of(held).set()
    assert [*await asyncio.gather(staying, last)] == ["a b", "a b c"]
    assert sorted(stored(fake)) == ["a", "b", "c"]


async def test_a_caller_that_left_while_the_record_was_read_is_skipped(
    fake: FakeKube, ledger: Ledger, other: Ledger
) -> None:
    await other.change("n1", put("first"), SOON)
    held = hold()
    fake.faults.add("get", "nodeallocations", held)
    leaving = asyncio.create_task(ledger.change("n1", put("leaving"), SOON))
    staying = asyncio.create_task(ledger.change("n1", put("staying"), SOON))
    await held.reached.wait()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    gate_of(held).set()
    assert await staying == "first staying"


# --- what is seen


def record(revision: int, *uids: str, node: str = "n1") -> Record:
    return Record(node, revision, {uid: holding(uid, part(CARDS[0], 1)) for uid in uids})


def test_an_older_record_is_ignored() -> None:
    ledger = Ledger(MemoryStore())
    ledger.observe(record(5, "new"))
    ledger.observe(record(4, "old"))
    ledger.observe(record(5, "same revision"))
    assert sorted(ledger.record("n1").holdings) == ["new"]
    assert ledger.nodes_of("old") == []


def test_nodes_of_a_pod_follow_what_is_seen() -> None:
    ledger = Ledger(MemoryStore())
    ledger.observe(record(1, "a", "b", node="n2"))
    ledger.observe(record(2, "a", node="n1"))
    assert (ledger.nodes_of("a"), ledger.nodes_of("b"), ledger.nodes_of("c")) == (["n1", "n2"], ["n2"], [])
    ledger.observe(record(3, "b", node="n2"))
    assert (ledger.nodes_of("a"), ledger.nodes_of("b")) == (["n1"], ["n2"])
    ledger.forget("n2")
    assert (ledger.nodes_of("a"), ledger.nodes_of("b")) == (["n1"], [])
    assert ledger._nodes_of.keys() == {"a"}  # a Pod without a holding leaves nothing behind


def test_a_deleted_record_that_is_made_again_is_seen() -> None:
    ledger = Ledger(MemoryStore())
    ledger.observe(record(5, "a"))
    ledger.forget("n1")
    assert ledger.record("n1") == Record("n1")
    ledger.observe(record(6, "b"))
    assert sorted(ledger.record("n1").holdings) == ["b"]


def test_a_listener_gets_only_changes() -> None:
    watched: list[str] = []
    ledger = Ledger(MemoryStore(), watched=watched.append)
    ledger.observe(record(5, "a"))
    ledger.observe(record(5, "a"))
    ledger.observe(record(3, "a"))
    assert watched == ["n1"]
    ledger.forget("n1")
    assert watched == ["n1", "n1"]


def test_records_come_by_node_name() -> None:
    ledger = Ledger(MemoryStore())
    for name in ("n3", "n1", "n2"):
        ledger.observe(record(1, node=name))
    assert [one.node for one in ledger.records()] == ["n1", "n2", "n3"]


async def test_nothing_is_left_running_or_remembered_when_all_is_answered(kube: KubeClient) -> None:
    ledger = Ledger(KubeStore(kube))
    await asyncio.gather(*(ledger.change(f"n{n % 5}", put(f"u{n}"), SOON) for n in range(20)))
    await ledger.idle()
    assert not ledger._pending
    assert not ledger._tasks


def test_the_deletion_of_an_older_record_does_not_make_a_younger_one_forgotten() -> None:
    ledger = Ledger(MemoryStore())
    ledger.observe(record(5, "a"))
    ledger.forget("n1", 4)
    assert sorted(ledger.record("n1").holdings) == ["a"]
    ledger.forget("n1", 5)
    assert ledger.record("n1") == Record("n1")
    assert ledger.nodes_of("a") == []


# --- records that are discarded


async def test_an_empty_record_is_deleted_and_comes_back_with_the_next_change(fake: FakeKube, ledger: Ledger) -> None:
    await ledger.change("n1", put("a"), SOON)
    await ledger.change("n1", release("a"), SOON)
    assert await ledger.discard("n1", SOON)
    assert fake.objects(NODE_ALLOCATIONS.path()) == []
    assert ledger.records() == []
    assert await ledger.change("n1", put("b"), SOON) == "b"


async def test_a_record_with_holdings_is_not_deleted_whoever_wrote_them(
    fake: FakeKube, ledger: Ledger, other: Ledger
) -> None:
    await ledger.change("n1", put("a"), SOON)
    assert not await ledger.discard("n1", SOON)
    await ledger.change("n1", release("a"), SOON)
    await other.change("n1", put("b"), SOON)  # not seen by the first one
    assert not await ledger.discard("n1", SOON)
    assert sorted(stored(fake)) == ["b"]


async def test_a_change_that_comes_during_a_deletion_is_not_lost(fake: FakeKube, ledger: Ledger) -> None:
    await ledger.change("n1", put("a"), SOON)
    await ledger.change("n1", release("a"), SOON)
    held = hold_answer()
    fake.faults.add("delete", "nodeallocations", held)
    discarding = asyncio.create_task(ledger.discard("n1", SOON))
    await held.performed.wait()
    assert await ledger.change("n1", put("b"), SOON) == "b"
    gate_of(held).set()
    assert await discarding
    assert sorted(stored(fake)) == sorted(ledger.record("n1").holdings) == ["b"]


async def test_nothing_is_deleted_where_there_is_no_record(fake: FakeKube, ledger: Ledger) -> None:
    assert not await ledger.discard("n1", SOON)
    assert fake.requests == []


# --- with the real decision


@pytest.mark.parametrize("age", [0, 59, 61, 3600])
async def test_the_same_pod_again_gets_the_same_share_whatever_its_age(
    fake: FakeKube, kube: KubeClient, age: int
) -> None:
    world = World(fake, kube)
    world.add_node()
    world.see()
    pod = read_pod_info(gpu_pod("p", 50))
    assert pod

    def change(now: int) -> Change[Decision]:
        return bind(PodToBind(pod.uid, pod.namespace, pod.name, pod.request), snapshot, now, "mark")

    def snapshot(holdings: Holdings) -> NodeSnapshot:
        return world.parts.cluster.snapshot_on("n1", holdings)

    first = await world.parts.ledger.change("n1", change(BEGINNING), SOON)
    again = await world.parts.ledger.change("n1", change(BEGINNING + age), SOON)
    assert isinstance(first.outcome, Holding)
    assert isinstance(again.outcome, Holding)
    assert (first.repeated, again.repeated) == (False, True)
    assert again.outcome == first.outcome
    assert world.holdings()[pod.uid].since == BEGINNING


@pytest.mark.parametrize(("hold_s", "others"), [(0.0, 6), (1e9, 0)], ids=["long decisions", "short decisions"])
async def test_others_run_between_the_decisions_of_a_group_that_take_long(
    monkeypatch: pytest.MonkeyPatch, hold_s: float, others: int
) -> None:
    monkeypatch.setattr("koordgate.breaks.HOLD_S", hold_s)
    ledger, ran, seen = Ledger(MemoryStore()), 0, list[int]()

    async def other() -> None:
        nonlocal ran
        while True:
            ran += 1
            await asyncio.sleep(0)

    def noted(uid: str) -> Change[str]:
        def change(holdings: Holdings) -> Any:
            seen.append(ran)
            return put(uid)(holdings)

        return change

    await ledger.change("n1", put("before"), SOON)  # so that the record is known
    task = asyncio.create_task(other())
    answers = await asyncio.gather(*(ledger.change("n1", noted(uid), SOON) for uid in "abc"))
    task.cancel()
    assert answers == ["a before", "a b before", "a b before c"]
    assert len(seen) == 3
    assert seen[2] - seen[0] == others
    assert sorted(ledger.record("n1").holdings) == ["a", "b", "before", "c"]


async def test_a_change_whose_record_changes_while_others_run_is_decided_again(breaking: None) -> None:
    kept = MemoryStore()
    ledger, other, seen = Ledger(kept), Ledger(kept), list[list[str]]()

    def in_parts(holdings: Holdings) -> Steps[tuple[Holdings, str]]:
        seen.append(sorted(holdings))
        while not rival.done():
            yield 0
        return {**holdings, "mine": holding("mine", part(CARDS[1], 10))}, " ".join(holdings)

    await ledger.change("n1", put("before"), SOON)
    rival = asyncio.create_task(other.change("n1", put("rival"), SOON))
    assert await ledger.change("n1", in_parts, SOON) == "before rival"
    assert seen == [["before"], ["before", "rival"]]
    assert sorted((await ledger.read("n1", SOON)).holdings) == ["before", "mine", "rival"]


async def test_a_change_in_parts_that_fails_is_its_callers_alone(breaking: None) -> None:
    ledger = Ledger(MemoryStore())

    def failing(_holdings: Holdings) -> Steps[tuple[None, str]]:
        yield 0
        raise LookupError("half way")

    answers = await asyncio.gather(
        ledger.change("n1", failing, SOON), ledger.change("n1", put("a"), SOON), return_exceptions=True
    )
    assert [str(answer) for answer in answers] == ["half way", "a"]


async def test_each_holding_is_told_when_it_is_first_seen_and_when_it_has_begun_anew_whoever_wrote_it(
    ledger: Ledger, other: Ledger
) -> None:
    told: list[tuple[str, str, int]] = []
    ledger.recorded.append(lambda node, one: told.append((node, one.uid, one.since)))
    share = part(CARDS[0], 10)

    async def holds(by: Ledger, *held: Holding) -> None:
        await by.change("n1", lambda _there: ({one.uid: one for one in held}, None), SOON)

    a, b = holding("a", share, since=1), holding("b", share, since=1)
    await holds(ledger, a)
    await holds(other, a, b)
    await ledger.read("n1", SOON)
    await ledger.read("n1", SOON)
    assert told == [("n1", "a", 1), ("n1", "b", 1)]
    await holds(ledger, replace(a, since=2), replace(b, ending="m"))
    await holds(ledger, replace(a, since=2, fence=3))
    await holds(ledger, replace(a, since=2, fence=3), b)
    assert told[2:] == [("n1", "a", 2), ("n1", "a", 2), ("n1", "b", 1)]
    ledger.forget("n1")
    await ledger.read("n1", SOON)
    assert told[5:] == [("n1", "a", 2), ("n1", "b", 1)], "what it was is not known any more"
