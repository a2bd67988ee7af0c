"""Records in memory: for commands that run offline, and for fast tests."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from allocator.vocabulary.holdings import Holding
from koordgate.kube.watch import Happening
from webhook.ledger.store import ABSENT, Listener, LostRaceError, Record, UnreadableError


class MemoryStore:
    """A `Store` for one process."""

    kind: Final = "records"

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._revision = ABSENT
        self._watches: list[_MemoryWatch] = []

    async def read(self, node: str, deadline: float) -> Record:  # noqa: ARG002 the contract's
        """Read a node's record."""
        return self._records.get(node, Record(node))

    async def records(self) -> AsyncIterator[Record | UnreadableError]:
        """Read all records."""
        for record in list(self._records.values()):
            yield record

    async def write(
        self,
        record: Record,
        holdings: Mapping[str, Holding],
        deadline: float,  # noqa: ARG002 the contract's
    ) -> Record:
        """Compare and swap."""
        self._check(record)
        self._revision += 1
        written = Record(record.node, self._revision, dict(holdings))
        self._records[record.node] = written
        for watch in self._watches:
            watch.changes.put_nowait(written)
        return written

    async def delete(self, record: Record, deadline: float) -> None:  # noqa: ARG002 the contract's
        """Compare and delete."""
        if record.node not in self._records:
            return
        self._check(record)
        self._revision += 1
        del self._records[record.node]
        for watch in self._watches:
            watch.changes.put_nowait((record.node, self._revision))

    def _check(self, record: Record) -> None:
        if self._records.get(record.node, Record(record.node)).revision != record.revision:
            raise LostRaceError(record.node)

    def watch(
        self,
        listener: Listener,
        count: Callable[[Happening], None] = lambda _happening: None,
        on_error: Callable[[str, Exception], None] = lambda _about, _error: None,  # noqa: ARG002 memory does not fail
    ) -> "_MemoryWatch":
        """Make a watch of all records."""
        return _MemoryWatch(self._records, self._watches, listener, count)


class _MemoryWatch:
    """Reports all records to a listener, then the changes that the store queues."""

    failing_since: Final = None
    heard_at: Final = math.inf  # it is never silent
    stirred_at: Final = math.inf
    last_error: Final = None

    def __init__(
        self,
        records: Mapping[str, Record],
        watches: "list[_MemoryWatch]",
        listener: Listener,
        count: Callable[[Happening], None],
    ) -> None:
        self.synced = asyncio.Event()
        self.changes: asyncio.Queue[Record | tuple[str, int]] = asyncio.Queue()  # a record, or who was deleted and when
        self._records = records
        self._watches = watches
        self._listener = listener
        self._count = count

    async def run(self) -> None:
        """Watch until cancelled."""
        self._watches.append(self)
        try:
            self._list()
            while True:
                change = await self.changes.get()
                if isinstance(change, Record):
                    self._put(change)
                else:
                    self._listener.drop(*change)
        finally:
            self._watches.remove(self)

    def _list(self) -> None:
        self._count("list")
        self._listener.begin_list()
        for record in self._records.values():
            self._put(record)
        self._listener.end_list()
        self._count("watch")
        self.synced.set()

    def _put(self, record: Record) -> None:
        self._listener.put(record.node, record.revision, lambda: record)
