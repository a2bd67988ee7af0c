"""The cards followed: read on a timer in their guarded process, Xid errors heard at once, their health kept."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from reporter.decide import GpuView
from reporter.gpu.facts import GpuProcess, LostCard, NodeReading, XidEvent
from reporter.gpu.guarded import GuardedNvml, NvmlRefusedError, NvmlUnavailableError
from reporter.gpu.health import HealthPolicy, NodeRecord, advance, hear
from reporter.gpu.xid import Xids, kind_of

_LOG: Final = logging.getLogger(__name__)
_SAVE_S: Final = 300.0  # how old the kept record may grow while nothing but times changes
_T = TypeVar("_T")
InThread = Callable[[Callable[[], _T]], Awaitable[_T]]


class Cards:
    """What is known of the node's cards.

    Args:
        nvml: how they are asked; None where GPUs are switched off.
        policy: how long cards prove themselves.
        save: keeps a record, blocking; answers why it could not, "" where it could.
        in_thread: runs what blocks.
        changed: called when anything but times changed.
        heard: called with each Xid error, and whether it is of a card that is known.
        outage_seconds: how long NVML must be out of reach before that is an answer too (`settled`).

    Attributes:
        view: what is known.
    """

    def __init__(
        self,
        nvml: GuardedNvml | None,
        policy: HealthPolicy,
        save: Callable[[NodeRecord], str],
        in_thread: InThread[str],
        changed: Callable[[], None] = lambda: None,
        heard: Callable[[XidEvent, bool], None] = lambda _xid, _known: None,
        *,
        outage_seconds: float = 0.0,
    ) -> None:
        self._nvml = nvml
        self._policy = policy
        self._save = save
        self._in_thread = in_thread
        self._changed = changed
        self._heard = heard
        self._outage_seconds = outage_seconds
        self._strays: dict[int, tuple[int, float]] = {}  # grave Xid errors of no known card: how many, when the last
        self._saved: tuple[NodeRecord, float] | None = None
        self._processes: dict[str, tuple[GpuProcess, ...]] = {}
        self._unkept = ""
        self.view = GpuView()

    @property
    def problem(self) -> str:
        """Why their health cannot be kept, and what errors of late are of no known card; "" where there is neither."""
        late = time.monotonic() - self._policy.quiet
        strays = (
            f"Xid {xid} ({kind_of(xid).name}), {count} times, of no card that NVML names or that is known: no card is "
            "taken out of service for it; the kernel's log (NVRM: Xid) may name it"
            for xid, (count, last) in sorted(self._strays.items())
            if last > late
        )
        return "; ".join(filter(None, (self._unkept, *strays)))

    @property
    def settled(self) -> bool:
        """Whether the view may be relied on, so that a card that is not in it is not there.

        Not between a start without a kept record and NVML's first answer: what the cluster was told before is better
        than no card. An outage that has lasted is an answer too.
        """
        outage = self.view.outage
        lasted = outage is not None and time.time() - outage.since >= self._outage_seconds
        return self._nvml is None or self.view.node.known or lasted

    def start_from(self, node: NodeRecord) -> None:
        """Take what an earlier process kept."""
        self.view = replace(self.view, node=node, driver=node.driver)
        self._saved = (_timeless(node), time.monotonic())

    async def run(self, every: float) -> None:
        """Read regularly until cancelled, and hear Xid errors in between."""
        if self._nvml is None:
            return
        hearing = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                wait = await self.read()
                if hearing is None and self.view.outage is None:  # before, no card is known that an error could be of
                    hearing = tasks.create_task(self._hear(self._nvml))
                await asyncio.sleep(max(wait, every))

    async def read(self) -> float:
        """Read once; returns in how many seconds reading again has any use."""
        if self._nvml is None:
            return 0.0
        wait = 0.0
        try:
            reading = await self._nvml.read(self.view.node.cards.keys())
        except NvmlUnavailableError as error:
            before = self.view
            if before.outage is None:
                _LOG.warning("NVML cannot be read: %s", error)
            self.view = replace(before, outage=error.outage)
            wait = error.retry_seconds
        else:
            before = self.view  # not of before the reading: Xid errors may have been heard meanwhile
            xids = self._nvml.take_xids()
            node = advance(before.node, reading, xids, time.time(), self._policy)
            self.view = GpuView(node, reading.driver, None, _unnamed(reading, node))
            self._note(xids)
        await self._after(before)
        return wait

    async def processes(self) -> dict[str, tuple[GpuProcess, ...]]:
        """List the processes on each card; of one that does not tell now, those that it told last.

        A card must not seem unused because NVML is away. That a process has ended meanwhile, procfs tells.
        """
        found: dict[str, tuple[GpuProcess, ...]] = {}
        asked = self.view.outage is None
        for uuid, card in self.view.node.cards.items():
            told = self._processes.get(uuid)
            if self._nvml is not None and asked and card.health.present:
                try:
                    told = await self._nvml.processes(uuid)
                except NvmlRefusedError:
                    pass
                except NvmlUnavailableError:
                    asked = False
            if told is not None:
                found[uuid] = told
        self._processes = found
        return found

    async def _hear(self, nvml: GuardedNvml) -> None:
        while True:
            xids = await nvml.xids()
            before = self.view
            self.view = replace(before, node=hear(before.node, xids, time.time(), self._policy))
            self._note(xids)
            await self._after(before)

    def _note(self, xids: Iterable[XidEvent]) -> None:
        """Log and count Xid errors; of a grave one that no card is blamed for, say so for a while."""
        now = time.monotonic()
        for xid in xids:
            known = xid.uuid in self.view.node.cards
            self._heard(xid, known)
            if known:
                _LOG.warning("Xid %d on card %s", xid.xid, xid.uuid)
            elif (kind := kind_of(xid.xid)).says >= Xids.SUSPECT:
                _LOG.warning("Xid %d (%s) on no known card (%s)", xid.xid, kind.name, xid.uuid or "NVML names none")
                count, last = self._strays.get(xid.xid, (0, now))
                again = count if now - last < self._policy.quiet else 0
                self._strays[xid.xid] = (again + xid.count, now)

    async def _after(self, before: GpuView) -> None:
        """Keep the record, where it changed or is old, and tell of changes."""
        node = _timeless(self.view.node)
        saved = self._saved
        if saved is None or node != saved[0] or time.monotonic() - saved[1] > _SAVE_S:
            self._saved = (node, time.monotonic())
            self._unkept = await self._in_thread(lambda: self._save(self.view.node))
        if node != _timeless(before.node) or self.view.outage != before.outage:
            self._changed()


def _unnamed(reading: NodeReading, node: NodeRecord) -> tuple[LostCard, ...]:
    """Find the cards that do not answer and are none of those that an earlier process knew."""
    unnamed = tuple(card for card in reading.lost if card.uuid is None)
    named = {card.uuid for card in reading.lost}
    away = sum(not card.health.present for uuid, card in node.cards.items() if uuid not in named)
    return unnamed if len(unnamed) > away else ()


def _timeless(node: NodeRecord) -> NodeRecord:
    """The record without the times that each reading moves."""
    cards = {
        uuid: replace(card, read=0.0, health=replace(card.health, last_error=0.0)) for uuid, card in node.cards.items()
    }
    return replace(node, cards=cards)
