"""The ledger: every change of who holds what is one compare-and-swap on the node's record.

Changes to one node that arrive together are decided one after another on the same record and written once (group
commit). A lost race is read and decided again. No lock is held across an await: each node with pending changes has one
task of its own.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from contextvars import Context
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from allocator.budget import Steps
from allocator.vocabulary.holdings import Holding
from koordgate.breaks import Breaks, with_breaks
from webhook.ledger.store import ABSENT, FullRecordError, LostRaceError, Record, Store
from webhook.tracing import OFF, Attributes, Span, Tracing

T = TypeVar("T")
Holdings = Mapping[str, Holding]
Decided = tuple[Holdings | None, T]
Change = Callable[[Holdings], Decided[T] | Steps[Decided[T]]]
"""Decides on a node's holdings: returns the new ones, or None to leave them, and the answer for the caller.

One that may take long yields wherever others may run. Where a race is lost meanwhile, it is called again.
"""

_WRITES_AT_ONCE: Final = 8  # changes that wait for their turn are written together; more would only queue elsewhere
_MOST: Final = 16  # changes that wait for one write: each holds a seat of the API server's priority level for binds
_COMING_S: Final = 0.2  # for which changes wait for those that are known to come
_CROWD_S: Final = 0.05  # changes that arrive this close together belong to a burst
_ATTEMPTS: Final = 16  # lost races in a row before the caller is asked to try again; each costs a round trip


class BusyError(Exception):
    """The record changed repeatedly, or time ran out: it is unknown whether anything was written; try again."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What the ledger reports to metrics."""

    # called after each write with the number of changes that it carried
    written: Callable[[int], None] = lambda _changes: None
    lost_race: Callable[[], None] = lambda: None  # called when another writer was first


@dataclass(eq=False, slots=True)
class _Pending(Generic[T]):
    change: Change[T]
    answer: asyncio.Future[T]
    until: float
    at_once: bool = False
    of: object = None  # the work that it is a part of, for traces


class Ledger:
    """All nodes' records, as last seen, and the only way to change them.

    `watched`: called with the name of a node whose record, as seen here, changed. `gather`: seconds for which a change
    waits for others to join it during a burst. Schedulers that pack send one Pod after another to the same node, and
    one write can carry them all. `coming`: how many changes of a node are known to come, with those that wait already;
    they are waited for a little longer. `tracing`: records how long a change takes, and the write that carries it.
    """

    def __init__(
        self,
        store: Store,
        counters: Counters | None = None,
        watched: Callable[[str], None] = lambda _node: None,
        gather: float = 0.0,
        *,
        coming: Callable[[str], int] = lambda _node: 0,
        tracing: Tracing = OFF,
    ) -> None:
        # each is called with a node and a holding that is seen there for the first time, or that has begun anew since
        # it was seen; whoever wrote it
        self.recorded: list[Callable[[str, Holding], object]] = []
        self._tracing = tracing
        self._store = store
        self._counters = counters or Counters()
        self._watched = watched
        self._records: dict[str, Record] = {}
        self._unsure: set[str] = set()  # nodes whose last write failed, and may or may not have been performed
        self._nodes_of: dict[str, set[str]] = defaultdict(set)
        self._pending: dict[str, list[_Pending[object]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_WRITES_AT_ONCE)
        self._gather = gather
        self._coming = coming
        self._arrivals = (-math.inf, -math.inf)  # of the last two changes

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
        """Take in a record that was read or watched; one that is older than the known one is ignored."""
        if self.knows(record.node, record.revision):
            return
        known = self._records.get(record.node)
        before: Holdings = known.holdings if known else {}
        for uid in before.keys() - record.holdings.keys():
            self._leave(uid, record.node)
        for uid in record.holdings:
            self._nodes_of[uid].add(record.node)
        self._records[record.node] = record
        self._watched(record.node)
        for uid, holding in record.holdings.items():
            if (old := before.get(uid)) is None or (old.since, old.fence) != (holding.since, holding.fence):
                for tell in self.recorded:
                    tell(record.node, holding)

    def forget(self, node: str, revision: float = math.inf) -> None:
        """Take in that a node's record was deleted or damaged; a record newer than `revision` stays known."""
        known = self._records.get(node)
        if known is not None and known.revision > revision:
            return
        self._records.pop(node, None)
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
        """Read a node's record as it is now, within `deadline` seconds."""
        record = await self._store.read(node, deadline)
        self.observe(record)
        return record

    async def change(self, node: str, change: Change[T], deadline: float, *, at_once: bool = False) -> T:
        """Decide and write a change of a node's holdings.

        `change`: pure; called again on fresh holdings whenever a race was lost. `deadline`: in seconds from now.
        `at_once`: it waits for no others, and is no part of a burst. Raises BusyError: time or attempts ran out;
        RecordError: the node's record cannot be read, or would become too large (`FullRecordError`); KubeError: the
        store refused, or cannot be reached; the write may have been performed.
        """
        loop = asyncio.get_running_loop()
        if not at_once:
            self._arrivals = (self._arrivals[1], loop.time())
        with self._tracing.work("ledger change", {"k8s.node.name": node}):
            of = self._tracing.here()
            pending = _Pending(change, loop.create_future(), loop.time() + deadline, at_once, of)
            return await self._answered(node, pending, deadline)

    async def discard(self, node: str, deadline: float) -> bool:
        """Delete the record of a node without holdings.

        An empty record means the same as no record, so a change that comes in between is not lost.
        `deadline`: in seconds from now. Raises KubeError: the store refused, or cannot be reached.
        """
        record = self.record(node)
        if record.revision == ABSENT or record.holdings or node in self._pending:
            return False
        try:
            await self._store.delete(record, deadline)
        except LostRaceError:
            return False
        self.forget(node, record.revision)
        return True

    async def _answered(self, node: str, pending: _Pending[T], deadline: float) -> T:
        """Put a change into the node's queue, and wait for its answer."""
        queue = self._pending.get(node)
        if queue is None:
            self._pending[node] = [pending]  # type: ignore[list-item] # one queue holds changes of all answers
            # It serves many calls: what this one is about must not be in their log lines and spans.
            task = asyncio.get_running_loop().create_task(self._serve(node), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            queue.append(pending)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(deadline):
                return await pending.answer
        except TimeoutError as error:
            raise BusyError(f"node {node}: no answer from the ledger in {deadline:.1f} s; try again") from error

    async def idle(self) -> None:
        """Wait until no change is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, node: str) -> None:
        """Commit what is pending on a node, group by group, until nothing is."""
        while self._pending[node]:
            if self._gather and self._arrivals[1] - self._arrivals[0] < _CROWD_S:
                await self._wait_for_others(node)
            async with self._turns:
                await self._serve_group(node)
        del self._pending[node]

    async def _wait_for_others(self, node: str) -> None:
        """Let others join what is pending on a node, unless somebody is in a hurry."""
        waited = 0.0
        while not any(pending.at_once for pending in self._pending[node]):
            await asyncio.sleep(self._gather)
            waited += self._gather
            if waited >= _COMING_S or len(self._pending[node]) >= min(self._coming(node), _MOST):
                return

    async def _serve_group(self, node: str) -> None:
        """Commit all that is pending on a node by now: together, or singly where that is too large for one record."""
        group, self._pending[node] = self._pending[node], []
        for pending in await self._serve_together(node, group):
            await self._serve_together(node, [pending])

    async def _serve_together(self, node: str, group: list[_Pending[object]]) -> list[_Pending[object]]:
        """Commit these changes; returns those that have no answer yet: several that are too large together."""
        try:
            await self._commit(node, group)
        except FullRecordError as error:
            if len(group) > 1:
                return group
            for pending in group:
                if not pending.answer.done():
                    pending.answer.set_exception(error)
        except Exception as error:  # noqa: BLE001 all who wait must hear of it, whatever it was
            self._unsure.add(node)  # what is remembered may be stale: the next change reads first
            for pending in group:
                if not pending.answer.done():
                    pending.answer.set_exception(error)
        return []

    async def _commit(self, node: str, group: list[_Pending[object]]) -> None:
        clock = asyncio.get_running_loop().time
        record = self._remembered(node)
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
            holdings, answers = await _decide(record, group, self._tracing)
            if holdings is record.holdings:
                if not fresh:
                    record = None  # no write will prove that what is remembered still holds
                    continue
                _answer(answers)
                return
            with self._writing(node, group) as span:
                written = await self._written(record, holdings, left, span, fresh=fresh)
            if written is None:
                record = None
                continue
            self.observe(written)
            self._counters.written(len(group))
            _answer(answers)
            return
        for pending in group:
            if not pending.answer.done():
                pending.answer.set_exception(BusyError(f"node {node}: too many writers at once; try again"))

    def _remembered(self, node: str) -> Record | None:
        """The record to decide these changes on at first; None if it must be read.

        A node of which no record is known has none: should there be one, creating it loses the race.
        """
        return None if node in self._unsure else self.record(node)

    def _writing(self, node: str, group: list[_Pending[object]]) -> AbstractContextManager[Span]:
        """Record a write as part of the first change's work, with links to the others that it carries."""
        first, *others = [one.of for one in group if one.of is not None] or [None]
        attributes: Attributes = {"k8s.node.name": node, "koordgate.changes": len(group)}
        return self._tracing.work("ledger write", attributes, of=first, also=others)

    async def _written(
        self, record: Record, holdings: Holdings, deadline: float, span: Span, *, fresh: bool
    ) -> Record | None:
        """Write a record; None if what was decided on is not, or may not be, the record as it is now.

        Raises FullRecordError: it is too large, and was decided on a fresh read.
        """
        try:
            return await self._store.write(record, holdings, deadline)
        except LostRaceError:
            self._counters.lost_race()
            span.fail("another writer was first; all is decided again")
        except FullRecordError:  # what is remembered may have more in it than there is now
            if fresh:
                raise
        return None


_Answers = list[tuple[_Pending[object], object, Exception | None]]


async def _decide(record: Record, group: list[_Pending[object]], tracing: Tracing = OFF) -> tuple[Holdings, _Answers]:
    """Run a group's changes one after another, with breaks; returns `record.holdings` itself if none changes anything.

    Nothing else changes these holdings in a break. What a break outdates is found out as after any other wait: if the
    record changes meanwhile, the write loses its race, and all is decided again.
    """
    breaks, holdings = Breaks(), record.holdings
    answers: _Answers = []
    for pending in group:
        if breaks.due():
            await breaks.take()
        if pending.answer.done():  # the caller has left
            continue
        try:
            with tracing.work("decide", of=pending.of):
                deciding = pending.change(holdings)
                changed, answer = await with_breaks(deciding) if isinstance(deciding, Generator) else deciding
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
