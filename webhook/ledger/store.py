"""The contract of a store of records, and the store in memory.

`tests/store_contract.py` holds each store to this:

- A record carries the revision at which it was read. Revisions of one node grow, across deletion too.
- A write or a delete succeeds only at that revision; otherwise it changes nothing and raises `LostRaceError`.
- A watch first reports all records, then every change, each node's in the order of its revisions.
- A record that another writer damaged is an error, never an empty record.
"""

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from allocator.vocabulary.holdings import Holding
from allocator.wire.nodeallocation import RecordError
from koordgate.kube.watch import Happening

ABSENT: Final = 0  # the revision of a record that does not exist


class FullRecordError(RecordError):
    """What is to be written is larger than a record may be. Nothing was written; the message says which node's."""


class LostRaceError(Exception):
    """The record is at another revision than the one that was decided on: read again and decide again."""


class UnreadableError(RecordError):
    """A malformed record. Its message is for users, and says what an administrator must do."""

    def __init__(self, message: str, node: str) -> None:
        super().__init__(message)
        self.node = node


@dataclass(frozen=True, slots=True)
class Record:
    """One node's holdings at one revision."""

    node: str
    revision: int = ABSENT  # grows with every write; ABSENT if there is no record
    holdings: Mapping[str, Holding] = field(default_factory=dict)  # by Pod UID


class Listener(Protocol):
    """Receives records. Its methods are called one after another, never at the same time, and do not wait.

    Between `begin_list` and `end_list` comes a `put` for each record there is; a record that was not put by then is
    gone. A list that fails is followed by another `begin_list`, without `end_list`.
    """

    def begin_list(self) -> None:
        """A list begins."""

    def put(self, node: str, revision: int, read: Callable[[], Record]) -> None:
        """A record was listed, created or changed.

        `read`: reads it, which takes time; raises UnreadableError if it is malformed.
        """

    def drop(self, node: str, revision: int) -> None:
        """A node's record was deleted; one that is created after that has a greater revision than this."""

    def end_list(self) -> None:
        """The list is complete."""


class Watch(Protocol):
    """Keeps a listener up to date with a store; `koordgate.kube.watch.Reflector` is one."""

    @property
    def synced(self) -> asyncio.Event:
        """Set once the listener has had a first whole list."""

    @property
    def failing_since(self) -> float | None:
        """Since when, in the event loop's time, the store cannot be watched; None while it can."""

    @property
    def last_error(self) -> Exception | None:
        """The last failure; None after a success."""

    @property
    def heard_at(self) -> float:
        """When the store last said something, in the event loop's time."""

    @property
    def stirred_at(self) -> float:
        """When the watch last did something, even if it failed."""

    async def run(self) -> None:
        """Watch until cancelled."""


class Store(Protocol):
    """Keeps the record of each node.

    Deadlines are in seconds from now. Any error that a store raises besides those named here is a `KubeError`: it
    refused, or cannot be reached, and a write may have been performed.
    """

    @property
    def kind(self) -> str:
        """What its records are called in metrics and messages, in the plural."""

    async def read(self, node: str, deadline: float) -> Record:
        """Read a node's record as it is now; one at revision ABSENT if there is none.

        Raises UnreadableError: it is malformed.
        """

    def records(self) -> AsyncIterator[Record | UnreadableError]:
        """Read all records as they are now."""

    async def write(self, record: Record, holdings: Mapping[str, Holding], deadline: float) -> Record:
        """Replace the holdings of a record, or create it if it is ABSENT.

        Returns the record as it is now. Raises LostRaceError: the record is at another revision; FullRecordError: the
        record would grow beyond what the store keeps.
        """

    async def delete(self, record: Record, deadline: float) -> None:
        """Delete a record; do nothing if it is already gone.

        Raises LostRaceError: the record is at another revision.
        """

    def watch(
        self,
        listener: Listener,
        count: Callable[[Happening], None] = lambda _happening: None,
        on_error: Callable[[str, Exception], None] = lambda _about, _error: None,
    ) -> Watch:
        """Make a watch of all records; it begins when it is run.

        `count`: called with each list, watch and failure, for metrics.
        """


def new_mark() -> str:
    """A name that no other mark has: nobody can take a later holding for the one that bore it."""
    return secrets.token_hex(8)


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
