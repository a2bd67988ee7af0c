"""What the ledger relies on: a suite for any store. A test file makes a subclass with a fixture `kept`.

class TestMyStore(StoreContract):
    @pytest.fixture
    async def kept(self) -> AsyncIterator[Kept]:
        yield Kept(MyStore(), delete=...)
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from builders import GIB, gpu, holding, part, share

from allocator.vocabulary.cpunode import BindPolicy, CpuShare, ExclusivePolicy, NumaShare
from allocator.vocabulary.holdings import Function, Holding, Share
from allocator.wire.nodeallocation import API_VERSION, KIND
from webhook.ledger.store import ABSENT, LostRaceError, Record, Store, UnreadableError

A, B = gpu(0), gpu(1)
ONE = {"u1": holding("u1", part(A, 50, "main"))}
TWO = {**ONE, "u2": holding("u2", part(B, 100, "main", "side"))}
SOON = 10.0
Said = tuple[str, int]
"""What a listener heard of a node: `put`, `spoilt` or `drop`, and the revision."""


@dataclass
class Kept:
    """A store, and a test's direct access to its records.

    Attributes:
        store: the store.
        delete: deletes a node's record.
        spoil: writes a malformed record of a node; None if nobody else can write to the store.
        break_watch: ends an open watch, as a network failure does; None if that cannot happen.
        n1: a node's name that no other test of the same store uses.
        n2: another such name.
    """

    store: Store
    delete: Callable[[str], Awaitable[object]]
    spoil: Callable[[str], Awaitable[object]] | None = None
    break_watch: Callable[[], Awaitable[object]] | None = None
    n1: str = "n1"
    n2: str = "n2"

    async def all(self) -> dict[str, Record | UnreadableError]:
        """All records of this test."""
        return {one.node: one async for one in self.store.records() if one.node in {self.n1, self.n2}}


@dataclass
class Heard:
    """A listener that keeps the reports about some nodes, and wakes tests that wait for them."""

    nodes: frozenset[str]
    records: dict[str, Record] = field(default_factory=dict)
    spoilt: dict[str, str] = field(default_factory=dict)
    said: dict[str, list[Said]] = field(default_factory=dict)
    lists: int = 0
    listed: set[str] | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def begin_list(self) -> None:
        self.listed = set()

    def put(self, node: str, revision: int, read: Callable[[], Record]) -> None:
        if node not in self.nodes:
            return
        if self.listed is not None:
            self.listed.add(node)
        try:
            self.records[node] = read()
            self.spoilt.pop(node, None)
            assert self.records[node].revision == revision
            self._say(node, "put", revision)
        except UnreadableError as error:
            self.records.pop(node, None)
            self.spoilt[node] = str(error)
            self._say(node, "spoilt", revision)

    def drop(self, node: str, revision: int) -> None:
        if node in self.nodes:
            self.records.pop(node, None)
            self.spoilt.pop(node, None)
            self._say(node, "drop", revision)

    def end_list(self) -> None:
        assert self.listed is not None
        for node in (self.records.keys() | self.spoilt.keys()) - self.listed:
            self.records.pop(node, None)
            self.spoilt.pop(node, None)
        self.listed = None
        self.lists += 1
        self.news.set()

    def _say(self, node: str, what: str, revision: int) -> None:
        self.said.setdefault(node, []).append((what, revision))
        self.news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                self.news.clear()
                await self.news.wait()


@contextlib.asynccontextmanager
async def watching(kept: Kept) -> AsyncIterator[Heard]:
    """A watch that is up to date."""
    heard = Heard(frozenset({kept.n1, kept.n2}))
    watch = kept.store.watch(heard)
    running = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(SOON):
            await watch.synced.wait()
        yield heard
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


HOLDINGS: dict[str, Holding] = {
    "a share": holding("u", share(A)),
    "two whole cards": holding("u", part(A, 100, "main"), part(B, 100, "main")),
    "odd amounts": holding("u", share(A, "a", "b", core=1, memory=80 * GIB - 1, ratio=100), since=0),
    "an odd id": holding("u", share(gpu(7, device_id="GPU-ünïcode/~1 and spaces"), "c", memory=2**62)),
    "nothing": Holding("u", "a-namespace", "a.pod", 1_234_567_890, ()),
    "functions, alone, in a gang": Holding(
        "u",
        "default",
        "p",
        1,
        (Share("rdma", "0000:01:00.0", 1, {"rdma": 100}, ("c",), (Function(-1, "0000:01:00.1"),), alone=True),),
        gang="default/g",
        until=253_402_300_799,
    ),
    "CPUs": Holding(
        "u",
        "default",
        "p",
        1,
        (),
        CpuShare(
            "LSR",
            0b1100,
            BindPolicy.FULL_PCPUS,
            ExclusivePolicy.PCPU_LEVEL,
            (NumaShare(0, 2000, GIB, 0), NumaShare(1, 500, 0, 0)),
        ),
    ),
}


class StoreContract:
    """One test per promise."""

    async def test_a_record_that_was_never_written_reads_as_absent_and_empty(self, kept: Kept) -> None:
        assert await kept.store.read(kept.n1, SOON) == Record(kept.n1, ABSENT, {})

    async def test_what_was_written_is_read_back(self, kept: Kept) -> None:
        written = await kept.store.write(Record(kept.n1), TWO, SOON)
        assert written.holdings == TWO
        assert await kept.store.read(kept.n1, SOON) == written

    async def test_each_write_has_a_greater_revision(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), ONE, SOON)
        second = await kept.store.write(first, TWO, SOON)
        third = await kept.store.write(second, {}, SOON)
        assert ABSENT < first.revision < second.revision < third.revision

    async def test_nodes_are_kept_apart_and_all_are_listed(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), ONE, SOON)
        second = await kept.store.write(Record(kept.n2), TWO, SOON)
        assert await kept.store.read(kept.n1, SOON) == first
        assert await kept.store.read(kept.n2, SOON) == second
        assert await kept.all() == {kept.n1: first, kept.n2: second}

    async def test_of_two_that_create_one_loses_and_changes_nothing(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), ONE, SOON)
        with pytest.raises(LostRaceError):
            await kept.store.write(Record(kept.n1), TWO, SOON)
        assert await kept.store.read(kept.n1, SOON) == first

    async def test_of_two_that_replace_one_loses_and_changes_nothing(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), ONE, SOON)
        second = await kept.store.write(first, TWO, SOON)
        with pytest.raises(LostRaceError):
            await kept.store.write(first, {}, SOON)
        assert await kept.store.read(kept.n1, SOON) == second

    async def test_a_write_of_the_same_holdings_at_an_old_revision_still_loses(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), ONE, SOON)
        await kept.store.write(first, TWO, SOON)
        with pytest.raises(LostRaceError):
            await kept.store.write(first, TWO, SOON)

    async def test_a_write_on_a_record_that_was_deleted_meanwhile_loses(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), ONE, SOON)
        await kept.delete(kept.n1)
        with pytest.raises(LostRaceError):
            await kept.store.write(first, TWO, SOON)
        assert await kept.store.read(kept.n1, SOON) == Record(kept.n1)

    async def test_a_record_deleted_and_created_again_is_at_a_greater_revision(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), ONE, SOON)
        await kept.delete(kept.n1)
        again = await kept.store.write(Record(kept.n1), TWO, SOON)
        assert again.revision > first.revision
        with pytest.raises(LostRaceError):
            await kept.store.write(first, {}, SOON)

    async def test_changing_what_was_handed_over_does_not_change_what_is_kept(self, kept: Kept) -> None:
        mine = dict(ONE)
        written = await kept.store.write(Record(kept.n1), mine, SOON)
        mine.clear()
        assert written.holdings == ONE
        assert (await kept.store.read(kept.n1, SOON)).holdings == ONE

    @pytest.mark.parametrize("name", HOLDINGS)
    async def test_a_holding_comes_back_as_it_went(self, kept: Kept, name: str) -> None:
        await kept.store.write(Record(kept.n1), {"u": HOLDINGS[name]}, SOON)
        assert (await kept.store.read(kept.n1, SOON)).holdings == {"u": HOLDINGS[name]}

    async def test_of_many_writers_at_one_revision_exactly_one_wins(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), {}, SOON)
        writes = (kept.store.write(first, {f"u{at}": holding(f"u{at}", part(A, at + 1))}, SOON) for at in range(8))
        results = await asyncio.gather(*writes, return_exceptions=True)
        (won,) = [result for result in results if isinstance(result, Record)]
        assert sum(isinstance(result, LostRaceError) for result in results) == 7
        assert await kept.store.read(kept.n1, SOON) == won

    # Deletion

    async def test_what_is_deleted_is_absent_and_the_others_stay(self, kept: Kept) -> None:
        record = await kept.store.write(Record(kept.n1), ONE, SOON)
        other = await kept.store.write(Record(kept.n2), TWO, SOON)
        await kept.store.delete(record, SOON)
        assert await kept.store.read(kept.n1, SOON) == Record(kept.n1)
        assert await kept.all() == {kept.n2: other}

    async def test_a_delete_at_an_old_revision_loses_and_deletes_nothing(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), {}, SOON)
        second = await kept.store.write(first, ONE, SOON)
        with pytest.raises(LostRaceError):
            await kept.store.delete(first, SOON)
        assert await kept.store.read(kept.n1, SOON) == second

    async def test_a_delete_of_what_is_gone_does_nothing(self, kept: Kept) -> None:
        record = await kept.store.write(Record(kept.n1), ONE, SOON)
        await kept.delete(kept.n1)
        await kept.store.delete(record, SOON)
        assert await kept.store.read(kept.n1, SOON) == Record(kept.n1)

    # Watching

    async def test_a_watch_begins_with_all_there_is(self, kept: Kept) -> None:
        first = await kept.store.write(Record(kept.n1), ONE, SOON)
        second = await kept.store.write(Record(kept.n2), TWO, SOON)
        async with watching(kept) as heard:
            assert heard.records == {kept.n1: first, kept.n2: second}

    async def test_a_watch_of_nothing_is_in_step_at_once(self, kept: Kept) -> None:
        async with watching(kept) as heard:
            assert heard.records == {}
            assert heard.lists == 1

    async def test_every_change_is_reported_in_the_order_of_revisions(self, kept: Kept) -> None:
        async with watching(kept) as heard:
            first = await kept.store.write(Record(kept.n1), ONE, SOON)
            second = await kept.store.write(first, TWO, SOON)
            await kept.store.delete(second, SOON)
            third = await kept.store.write(Record(kept.n1), {}, SOON)
            await heard.until(lambda: heard.records.get(kept.n1) == third)
        said = heard.said[kept.n1]
        assert [what for what, _ in said] == ["put", "put", "drop", "put"]
        revisions = [revision for _, revision in said]
        assert revisions == sorted(revisions)
        assert (revisions[0], revisions[1], revisions[3]) == (first.revision, second.revision, third.revision)
        assert second.revision < revisions[2] < third.revision

    async def test_two_watches_are_reported_alike(self, kept: Kept) -> None:
        async with watching(kept) as one, watching(kept) as other:
            written = await kept.store.write(Record(kept.n1), ONE, SOON)
            for heard in (one, other):
                await heard.until(lambda heard=heard: heard.records == {kept.n1: written})  # type: ignore[misc]

    async def test_a_deletion_behind_its_back_is_reported(self, kept: Kept) -> None:
        written = await kept.store.write(Record(kept.n1), ONE, SOON)
        async with watching(kept) as heard:
            await kept.delete(kept.n1)
            await heard.until(lambda: not heard.records)
        assert heard.said[kept.n1][-1][0] == "drop"
        assert heard.said[kept.n1][-1][1] >= written.revision

    async def test_a_watch_that_broke_continues_and_misses_nothing(self, kept: Kept) -> None:
        if kept.break_watch is None:
            return  # nothing to break
        first = await kept.store.write(Record(kept.n1), ONE, SOON)
        async with watching(kept) as heard:
            await kept.break_watch()
            second = await kept.store.write(first, TWO, SOON)
            await heard.until(lambda: heard.records.get(kept.n1) == second)

    # Records that others damaged

    async def test_a_damaged_record_is_an_error_and_never_empty(self, kept: Kept) -> None:
        if kept.spoil is None:
            return  # nobody else can write there
        written = await kept.store.write(Record(kept.n1), ONE, SOON)
        other = await kept.store.write(Record(kept.n2), ONE, SOON)
        async with watching(kept) as heard:
            await kept.spoil(kept.n1)
            await heard.until(lambda: kept.n1 in heard.spoilt)
            assert heard.records == {kept.n2: other}
        with pytest.raises(UnreadableError, match=rf"{kept.n1}.*administrator") as caught:
            await kept.store.read(kept.n1, SOON)
        assert caught.value.node == kept.n1
        found = await kept.all()
        assert isinstance(found[kept.n1], UnreadableError)
        assert found[kept.n2] == other
        with pytest.raises(LostRaceError):
            await kept.store.write(written, TWO, SOON)
        async with watching(kept) as heard:
            assert set(heard.spoilt) == {kept.n1}


def spoilt(node: str) -> dict[str, Any]:
    """A NodeAllocation that the CRD's schema accepts although it is malformed."""
    entry = {"uid": "u", "namespace": "d", "name": "p", "since": "2026-01-01T00:00:00Z", "devices": [{}]}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": node},
        "spec": {"allocations": [entry]},
    }
