"""What is known of the cards (pure): their record, Xid errors that name none of them, and what must be saved."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from reporter.gpu.facts import CardLoad, GpuProcess, LostCard, NodeReading, Outage, XidEvent
from reporter.gpu.health import HealthPolicy, NodeRecord, advance, hear
from reporter.gpu.xid import Xids, kind_of
from reporter.reading import GpuView
from reporter.round.clock import Moment


@dataclass(frozen=True, slots=True)
class CardsState:
    """The cards."""

    view: GpuView = field(default_factory=GpuView)  # the cards as currently known
    # grave Xid errors that name no known card: number to their count and the time of the last (steady clock)
    strays: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    # card's UUID to its processes as last listed
    processes: Mapping[str, tuple[GpuProcess, ...]] = field(default_factory=dict)
    # card's UUID to what it was doing at the last reading; empty while NVML is out of reach
    loads: Mapping[str, CardLoad] = field(default_factory=dict)
    # the record as last saved, without the times that every reading changes; None if none was saved
    saved: NodeRecord | None = None
    saved_at: float = 0.0  # when it was saved, on the steady clock
    unsaved: str = ""  # why the last save failed; "" if it did not

    @property
    def to_ask(self) -> tuple[str, ...]:
        """UUIDs of the cards whose processes can be listed now: those that answer; none if NVML is out of reach."""
        if self.view.outage is not None:
            return ()
        return tuple(uuid for uuid, card in self.view.node.cards.items() if card.health.present)

    @property
    def remembered(self) -> dict[str, tuple[GpuProcess, ...]]:
        """The processes last listed of the cards that are still known."""
        return {uuid: listed for uuid, listed in self.processes.items() if uuid in self.view.node.cards}

    def restored(self, node: NodeRecord, now: Moment) -> "CardsState":
        """A copy with the record of an earlier process."""
        view = replace(self.view, node=node, driver=node.driver)
        return replace(self, view=view, saved=timeless(node), saved_at=now.steady)

    def read(self, reading: NodeReading, xids: Iterable[XidEvent], now: Moment, policy: HealthPolicy) -> "CardsState":
        """A copy after a reading of NVML, and after the Xid errors that came with it."""
        xids = tuple(xids)
        node = advance(self.view.node, reading, xids, now.wall, policy)
        indexes, before = reading.indexes, self.view
        until = before.until if indexes == before.indexes else before.read
        unnamed = _unnamed(reading, node)
        view = GpuView(node, reading.driver, None, unnamed, indexes, reading.booted, now.wall, until)
        return replace(self, view=view, strays=self._strays(node, xids, now, policy.quiet), loads=reading.loads)

    def heard(self, xids: Iterable[XidEvent], now: Moment, policy: HealthPolicy) -> "CardsState":
        """A copy after Xid errors that came between two readings."""
        xids = tuple(xids)
        node = hear(self.view.node, xids, now.wall, policy)
        view = replace(self.view, node=node)
        return replace(self, view=view, strays=self._strays(node, xids, now, policy.quiet))

    def away(self, outage: Outage) -> "CardsState":
        """A copy while NVML is out of reach: the cards stay as they were last known."""
        return replace(self, view=replace(self.view, outage=outage), loads={})

    def known(self, xid: XidEvent) -> bool:
        """Whether an Xid error names a known card."""
        return xid.uuid in self.view.node.cards

    def settled(self, now: Moment, outage_seconds: float) -> bool:
        """Whether a card that is not in the view does not exist.

        False between a start without a saved record and NVML's first answer: until then the cluster's existing objects
        are better than none. A lasting outage counts as an answer.
        """
        outage = self.view.outage
        lasted = outage is not None and now.wall - outage.since >= outage_seconds
        return self.view.node.known or lasted

    def save_due(self, now: Moment, every: float) -> bool:
        """Whether the record must be saved: more than times changed, or the saved one is older than `every`."""
        return self.saved is None or timeless(self.view.node) != self.saved or now.steady - self.saved_at > every

    def saving(self, now: Moment) -> "CardsState":
        """A copy with the present record being saved."""
        return replace(self, saved=timeless(self.view.node), saved_at=now.steady)

    def same(self, other: "CardsState") -> bool:
        """Whether two states differ in times only, so that no round need follow."""
        mine, theirs = self.view, other.view
        return mine.outage == theirs.outage and timeless(mine.node) == timeless(theirs.node)

    def problem(self, now: Moment, quiet: float) -> str:
        """Why the record cannot be saved, and which recent errors name no known card; "" without either."""
        recent = (
            f"Xid {xid} ({kind_of(xid).name}), {count} times, names no known card: no card is taken out of service; "
            "look for NVRM: Xid in the kernel's log"
            for xid, (count, last) in sorted(self.strays.items())
            if last > now.steady - quiet
        )
        return "; ".join(filter(None, (self.unsaved, *recent)))

    def _strays(
        self, node: NodeRecord, xids: Iterable[XidEvent], now: Moment, quiet: float
    ) -> Mapping[int, tuple[int, float]]:
        """The grave errors that name no card of a record, with further ones added."""
        strays = dict(self.strays)
        for xid in xids:
            if xid.uuid not in node.cards and kind_of(xid.xid).says >= Xids.SUSPECT:
                count, last = strays.get(xid.xid, (0, now.steady))
                again = count if now.steady - last < quiet else 0
                strays[xid.xid] = (again + xid.count, now.steady)
        return strays


def words(xid: XidEvent, *, known: bool) -> str:
    """What the log says about an Xid error; "" if it is neither grave nor of a known card."""
    if known:
        return f"Xid {xid.xid} on card {xid.uuid}"
    kind = kind_of(xid.xid)
    if kind.says < Xids.SUSPECT:
        return ""
    return f"Xid {xid.xid} ({kind.name}) on no known card ({xid.uuid or 'NVML names none'})"


def timeless(node: NodeRecord) -> NodeRecord:
    """The record without the times that every reading changes."""
    cards = {
        uuid: replace(card, read=0.0, health=replace(card.health, last_error=0.0)) for uuid, card in node.cards.items()
    }
    return replace(node, cards=cards)


def _unnamed(reading: NodeReading, node: NodeRecord) -> tuple[LostCard, ...]:
    """The cards that do not answer and cannot be cards that an earlier process knew."""
    unnamed = tuple(card for card in reading.lost if card.uuid is None)
    named = {card.uuid for card in reading.lost}
    away = sum(not card.health.present for uuid, card in node.cards.items() if uuid not in named)
    return unnamed if len(unnamed) > away else ()
