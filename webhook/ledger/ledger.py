"""The ledger: every change of who holds what is one compare-and-swap on the node's record.

Changes to one node that arrive together are decided one after another on the same record and written once (group
commit). A lost race is read and decided again. Nobody holds a lock across an await: each node with work has one task.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from allocator.vocabulary.holdings import Holding
from webhook.ledger.store import LostRaceError, Record, Store

T = TypeVar("T")
Holdings = Mapping[str, Holding]
Change = Callable[[Holdings], tuple[Holdings | None, T]]
"""Decides on the holdings of a node: the new ones, or None to leave them, and the answer for whoever asked."""

_WRITES_AT_ONCE: Final = 8  # what waits for its turn is decided and written together; more would only queue elsewhere
_CROWD_S: Final = 0.05  # changes that come this close after one another are part of many
_ATTEMPTS: Final = 16  # lost races in a row before the caller is told to try again; each is a full round trip


class BusyError(Exception):
    """The record changed again and again under us, or time ran out: nothing is known to be written, try again."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What the ledger tells metrics."""

    written: Callable[[int], None] = lambda _changes: None
    lost_race: Callable[[], None] = lambda: None


@dataclass(eq=False, slots=True)
class _Pending(Generic[T]):
    change: Change[T]
    answer: asyncio.Future[T]
    until: float


class Ledger:
    """All nodes' records, as last seen, and the only way to change them.

    Args:
        store: where records live.
        counters: told of writes and lost races.
        watched: called with the name of a node whose record, as seen here, changed.
        gather: seconds that a change waits for others to join it, while changes come one close upon another: schedulers
            that pack send one Pod after another to the same node, and one write can carry them all.
    """

    def __init__(
        self,
        store: Store,
        counters: Counters | None = None,
        watched: Callable[[str], None] = lambda _node: None,
        gather: float = 0.0,
    ) -> None:
        self._store = store
        self._counters = counters or Counters()
        self._watched = watched
        self._records: dict[str, Record] = {}
        self._unsure: set[str] = set()  # nodes whose last write failed, so that it may or may not be performed
        self._nodes_of: dict[str, set[str]] = defaultdict(set)
        self._pending: dict[str, list[_Pending[object]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_WRITES_AT_ONCE)
        self._gather = gather
        self._arrivals = (-math.inf, -math.inf)  # when the last two changes came

    def record(self, node: str) -> Record:
        """A node's record as last seen here; another replica may have written since."""
        return self._records.get(node) or Record(node)

    def records(self) -> list[Record]:
        """All records as last seen here, by node name."""
        return [self._records[node] for node in sorted(self._records)]

    def nodes_of(self, uid: str) -> list[str]:
        """The nodes on which a Pod holds something, as last seen here."""
        return sorted(self._nodes_of.get(uid, ()))

    def knows(self, node: str, revision: int) -> bool:
        """Whether a node's record was seen here at this revision or a later one."""
        known = self._records.get(node)
        return known is not None and revision <= known.revision

    def observe(self, record: Record) -> None:
        """Take in a record that was read or watched; an older one than ours is ignored."""
        if self.knows(record.node, record.revision):
            return
        known = self._records.get(record.node)
        for uid in known.holdings.keys() - record.holdings.keys() if known else ():
            self._leave(uid, record.node)
        for uid in record.holdings:
            self._nodes_of[uid].add(record.node)
        self._records[record.node] = record
        self._watched(record.node)

    def forget(self, node: str) -> None:
        """Take in that a node's record is deleted."""
        known = self._records.pop(node, None)
        for uid in known.holdings if known else ():
            self._leave(uid, node)
        self._watched(node)

    def _leave(self, uid: str, node: str) -> None:
        nodes = self._nodes_of.get(uid)
        if nodes is not None:
            nodes.discard(node)
            if not nodes:
                del self._nodes_of[uid]

    async def read(self, node: str, deadline: float) -> Record:
        """Read a node's record as it stands now, within so many seconds."""
        record = await self._store.read(node, deadline)
        self.observe(record)
        return record

    async def change(self, node: str, change: Change[T], deadline: float) -> T:
        """Decide and write a change of a node's holdings.

        Args:
            node: its name.
            change: pure; called again on fresh holdings whenever a race was lost.
            deadline: in seconds from now.

        Raises:
            BusyError: time or attempts ran out.
            KubeError: the API server refused, or cannot be reached; the write may have been performed.
        """
        loop = asyncio.get_running_loop()
        self._arrivals = (self._arrivals[1], loop.time())
        answer: asyncio.Future[T] = loop.create_future()
        pending = _Pending(change, answer, loop.time() + deadline)
        queue = self._pending.get(node)
        if queue is None:
            self._pending[node] = [pending]  # type: ignore[list-item] # one queue holds changes of all answers
            task = loop.create_task(self._serve(node))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            queue.append(pending)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(deadline):
                return await answer
        except TimeoutError as error:
            raise BusyError(f"node {node}: no answer from the ledger in {deadline:.1f} s; try again") from error

    async def idle(self) -> None:
        """Wait until nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, node: str) -> None:
        """Commit what is pending on a node, group by group, until nothing is."""
        while self._pending[node]:
            if self._gather and self._arrivals[1] - self._arrivals[0] < _CROWD_S:
                await asyncio.sleep(self._gather)
            async with self._turns:
                await self._serve_group(node)
        del self._pending[node]

    async def _serve_group(self, node: str) -> None:
        """Commit all that is pending on a node by now."""
        group, self._pending[node] = self._pending[node], []
        try:
            await self._commit(node, group)
        except Exception as error:  # noqa: BLE001 whoever waits must be told, whatever it was
            self._unsure.add(node)  # decide on nothing remembered: the next change reads first
            for pending in group:
                if not pending.answer.done():
                    pending.answer.set_exception(error)

    async def _commit(self, node: str, group: list[_Pending[object]]) -> None:
        clock = asyncio.get_running_loop().time
        record = None if node in self._unsure else self._records.get(node)
        fresh = False
        for _ in range(_ATTEMPTS):
            group = [pending for pending in group if not pending.answer.done()]
            if not group:
                return
            left = max(pending.until for pending in group) - clock()
            if left <= 0:
                break
            if record is None:
                record = await self.read(node, left)
                self._unsure.discard(node)
                fresh = True
            holdings, answers = _decide(record, group)
            if holdings is record.holdings:
                if not fresh:
                    record = None  # no write will tell whether what we remember still holds
                    continue
                _answer(answers)
                return
            try:
                written = await self._store.write(record, holdings, left)
            except LostRaceError:
                self._counters.lost_race()
                record = None
                continue
            self.observe(written)
            self._counters.written(len(group))
            _answer(answers)
            return
        for pending in group:
            if not pending.answer.done():
                pending.answer.set_exception(BusyError(f"node {node}: too many writers at once; try again"))


_Answers = list[tuple[_Pending[object], object, Exception | None]]


def _decide(record: Record, group: list[_Pending[object]]) -> tuple[Holdings, _Answers]:
    """Run a group's changes one after another; `record.holdings` itself comes back where none changes anything."""
    holdings = record.holdings
    answers: _Answers = []
    for pending in group:
        if pending.answer.done():  # whoever asked has left
            continue
        try:
            changed, answer = pending.change(holdings)
        except Exception as error:  # noqa: BLE001 one caller's bug is not its neighbours'
            answers.append((pending, None, error))
            continue
        if changed is not None:
            holdings = changed
        answers.append((pending, answer, None))
    return holdings, answers


def _answer(answers: _Answers) -> None:
    for pending, answer, error in answers:
        if pending.answer.done():
            continue
        if error is not None:
            pending.answer.set_exception(error)
        else:
            pending.answer.set_result(answer)
