"""The health of each card, as a state machine on values (pure): from what was known, what is seen, and the time.

A card leaves service because of an Xid error or a fault in its own readings (`faults`). A suspect card returns after a
while without errors. An unhealthy card returns only once its fault is gone and, if the fault requires it, a reset or
restart was seen. Both recover for a while before they take new Pods. Each relapse doubles both times. The record is
saved as JSON, so that a fatal error outlives the reporter's process.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import msgspec

from koordgate.backoff import doubled
from reporter.gpu.facts import DriverFacts, GpuFacts, LostCard, NodeReading, XidEvent
from reporter.gpu.faults import STANDING, Fault, Remedy, Xids, kind_of, standing

_RECOVERY: Final = frozenset({"RecoveryReset", "RecoveryReboot", "RecoveryDue"})
_ABSENCE: Final = frozenset({"GpuLost", "GpuNeedsReset"})


class CardState(StrEnum):
    """The states of a card; only a healthy card takes new Pods."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    UNHEALTHY = "unhealthy"
    RECOVERING = "recovering"


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """How long a card must prove itself, in seconds."""

    quiet: float = 300.0  # how long a suspect card must show no errors before it recovers
    proving: float = 600.0  # how long a recovering card must show none before it is in service again
    longest: float = 24 * 3600.0  # the upper bound of both, however many relapses there were
    # after this long in service a relapse counts as the first; a card missing for this long is forgotten
    forget: float = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """How healthy a card is. Times are seconds since 1970."""

    state: CardState
    since: float  # since when it is in that state
    cause: Fault | None = None  # what took it out of service; None if it never was
    count: int = 0  # errors since it was last healthy
    last_error: float = 0.0  # when the last of them came, or a standing fault was last seen
    owed: Remedy = Remedy.TIME  # the remedy that must be seen before it may recover
    falls: int = 0  # how often it fell; relapses within `HealthPolicy.forget` add up
    standing: tuple[str, ...] = ()  # its standing faults when it was last seen, sorted
    uncorrected: int | None = None  # its count of uncorrected errors when it was last seen

    @property
    def usable(self) -> bool:
        """Whether it takes new Pods."""
        return self.state is CardState.HEALTHY

    @property
    def present(self) -> bool:
        """Whether it answered when it was last read."""
        return _ABSENCE.isdisjoint(self.standing)


@dataclass(frozen=True, slots=True)
class SeenCard:
    """What was seen of a card."""

    gpu: GpuFacts | None  # its facts; None if it does not answer
    lost: LostCard | None = None  # how NVML reported it if it does not answer
    xids: tuple[XidEvent, ...] = ()
    rebooted: bool = False  # whether the node was restarted since it was last seen


@dataclass(frozen=True, slots=True)
class CardRecord:
    """Everything that is kept of a card."""

    facts: GpuFacts  # as last read
    health: GpuHealth
    read: float  # when the facts were read, seconds since 1970


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Everything that is kept of a node's cards."""

    boot: str  # the node's boot id when it was last read
    cards: Mapping[str, CardRecord]  # by UUID
    driver: DriverFacts | None = None  # as last read; None if it never was

    @property
    def known(self) -> bool:
        """Whether the node was ever read: only then does an empty record mean that it has no card."""
        return bool(self.boot or self.cards or self.driver)


NOTHING_KNOWN: Final = NodeRecord("", {})


def step(previous: GpuHealth | None, seen: SeenCard, now: float, policy: HealthPolicy) -> GpuHealth:
    """Compute a card's health.

    `now`: seconds since 1970. A clock that was set back never shortens a card's recovery.
    """
    before = _no_later(previous or GpuHealth(CardState.HEALTHY, now), now)
    stands = _standing(before, seen)
    events = _events(before, seen)
    appeared = [STANDING[reason] for reason in sorted(stands.difference(before.standing))]
    faults = [*events, *(STANDING[reason] for reason in sorted(stands))]
    owed = max([_still_owed(before, seen, stands), *(fault.remedy for fault in events if fault.says is Xids.FATAL)])
    last_error = now if faults else before.last_error
    state = _next_state(before, faults, owed, now, policy)
    health = replace(
        before,
        state=state,
        since=before.since if state is before.state else now,
        count=0 if state is CardState.HEALTHY else before.count + _times(seen.xids) + len(appeared) + _silent(events),
        last_error=last_error,
        owed=owed,
        standing=tuple(sorted(stands)),
        uncorrected=before.uncorrected if seen.gpu is None else seen.gpu.wear.uncorrected,
    )
    if state in {CardState.SUSPECT, CardState.UNHEALTHY}:
        health = replace(health, cause=_cause(before, health, faults, [*events, *appeared]))
        if before.state in {CardState.HEALTHY, CardState.RECOVERING}:
            fresh = before.state is CardState.HEALTHY and now - before.since > policy.forget
            health = replace(health, falls=1 if fresh else before.falls + 1)
    return health


def advance(
    node: NodeRecord, reading: NodeReading, xids: Iterable[XidEvent], now: float, policy: HealthPolicy
) -> NodeRecord:
    """Take in a reading of the node and the Xid errors since the last.

    `xids`: errors since the last reading; those that name no known card change nothing.
    """
    rebooted = bool(node.boot and reading.boot and node.boot != reading.boot)
    events = _by_card(xids)
    cards: dict[str, CardRecord] = {}
    for gpu in reading.gpus:
        known = node.cards.get(gpu.uuid)
        seen = SeenCard(gpu, None, events.get(gpu.uuid, ()), rebooted)
        facts = _settled(
            gpu, known, same_driver=node.driver is not None and node.driver.version == reading.driver.version
        )
        cards[gpu.uuid] = CardRecord(facts, step(known.health if known else None, seen, now, policy), now)
    lost = {card.uuid: card for card in reading.lost if card.uuid is not None}
    places = {gpu.bus for gpu in reading.gpus if gpu.bus is not None}
    for uuid, card in node.cards.items():
        if uuid in cards or card.facts.bus in places or now - card.read > policy.forget:
            continue
        seen = SeenCard(None, lost.get(uuid), events.get(uuid, ()), rebooted)
        cards[uuid] = replace(card, health=step(card.health, seen, now, policy), read=min(card.read, now))
    return NodeRecord(reading.boot or node.boot, cards, reading.driver)


def hear(node: NodeRecord, xids: Iterable[XidEvent], now: float, policy: HealthPolicy) -> NodeRecord:
    """Take in Xid errors between two readings; do not give them to `advance` as well. Arguments as there."""
    cards = dict(node.cards)
    for uuid, events in _by_card(xids).items():
        card = cards.get(uuid or "")
        if card is not None:
            seen = SeenCard(card.facts if card.health.present else None, None, events)
            cards[card.facts.uuid] = replace(card, health=step(card.health, seen, now, policy))
    return replace(node, cards=cards)


def waits(health: GpuHealth, policy: HealthPolicy) -> float:
    """How long a card's present stage, quiet or proving, lasts without errors, in seconds."""
    stage = policy.proving if health.state is CardState.RECOVERING else policy.quiet
    return doubled(stage, policy.longest, max(health.falls, 1))


def _settled(gpu: GpuFacts, known: CardRecord | None, *, same_driver: bool) -> GpuFacts:
    """A card with what its driver was first seen to keep: that varies a little, and what the card gives must not."""
    before = known.facts if known is not None and same_driver else None
    if before is None or before.reserved is None or before.memory != gpu.memory:
        return gpu
    return replace(gpu, reserved=before.reserved)


def _no_later(health: GpuHealth, now: float) -> GpuHealth:
    return replace(health, since=min(health.since, now), last_error=min(health.last_error, now))


def _standing(before: GpuHealth, seen: SeenCard) -> frozenset[str]:
    kept = frozenset(before.standing) & STANDING.keys()  # a record of another version may name other faults
    if seen.gpu is not None:
        return standing(seen.gpu, kept)
    if seen.lost is not None:
        return kept - _ABSENCE | {"GpuNeedsReset" if seen.lost.reset else "GpuLost"}
    return kept if kept & _ABSENCE else kept | {"GpuLost"}


def _events(before: GpuHealth, seen: SeenCard) -> list[Fault]:
    """The events that count against the card."""
    found = []
    for event in seen.xids:
        kind = kind_of(event.xid)
        if kind.says >= Xids.SUSPECT:
            text = f"Xid {event.xid}: {kind.name}"
            found.append(Fault(kind.says, kind.remedy, f"Xid{event.xid}", text, event.xid))
    uncorrected = None if seen.gpu is None else seen.gpu.wear.uncorrected
    if uncorrected is not None and before.uncorrected is not None and uncorrected > before.uncorrected:
        found.append(Fault(Xids.SUSPECT, Remedy.TIME, "UncorrectedErrors", "new uncorrectable memory errors"))
    return found


def _still_owed(before: GpuHealth, seen: SeenCard, stands: frozenset[str]) -> Remedy:
    """The remedy that is still owed, judging by the signs of the remedies already applied."""
    gone = frozenset(before.standing) - stands
    uncorrected = None if seen.gpu is None else seen.gpu.wear.uncorrected
    done = Remedy.TIME
    if seen.rebooted or "GpuLost" in gone:
        done = Remedy.REBOOT
    elif gone & (_RECOVERY | {"GpuNeedsReset"}) or (
        uncorrected is not None and uncorrected < (before.uncorrected or 0)
    ):
        done = Remedy.RESET  # the driver no longer asks for it, or counters start again
    return before.owed if before.owed > done else Remedy.TIME


def _next_state(before: GpuHealth, faults: list[Fault], owed: Remedy, now: float, policy: HealthPolicy) -> CardState:
    worst = max((fault.says for fault in faults), default=None)
    if worst is Xids.FATAL or owed is not Remedy.TIME:
        return CardState.UNHEALTHY
    if worst is not None:
        return CardState.SUSPECT
    if before.state is CardState.UNHEALTHY:
        return CardState.RECOVERING
    if before.state is CardState.SUSPECT:
        return CardState.RECOVERING if now - before.last_error >= waits(before, policy) else CardState.SUSPECT
    if before.state is CardState.RECOVERING:
        return CardState.HEALTHY if now - before.since >= waits(before, policy) else CardState.RECOVERING
    return CardState.HEALTHY


def _cause(before: GpuHealth, after: GpuHealth, faults: list[Fault], new: list[Fault]) -> Fault | None:
    """Choose the cause to name: what took the card out of service, until it is gone or something worse comes."""
    cause = before.cause
    worst = max(faults, key=lambda fault: fault.weight, default=None)  # among equals, events come first
    if cause is None or before.usable or before.state is CardState.RECOVERING:
        return worst or cause
    heaviest = max(new, key=lambda fault: fault.weight, default=None)
    if heaviest is not None and heaviest.weight > cause.weight:
        return heaviest
    if cause.reason in STANDING:
        holds = cause.reason in after.standing
    else:
        holds = after.owed is not Remedy.TIME or cause.says is Xids.SUSPECT or not after.present
    return cause if holds else worst or cause


def _times(xids: Iterable[XidEvent]) -> int:
    return sum(event.count for event in xids if kind_of(event.xid).says >= Xids.SUSPECT)


def _silent(events: Iterable[Fault]) -> int:
    """Count the events that are no Xid errors."""
    return sum(event.xid is None for event in events)


def _by_card(xids: Iterable[XidEvent]) -> dict[str | None, tuple[XidEvent, ...]]:
    found: dict[str | None, tuple[XidEvent, ...]] = {}
    for event in xids:
        found[event.uuid] = (*found.get(event.uuid, ()), event)
    return found


_MAX_RECORD: Final = 1 << 20  # bytes; a node of 16 cards needs about 50 kB


class _Record(msgspec.Struct, frozen=True):
    """The whole record; its cards are read one by one afterwards."""

    boot: str
    cards: dict[str, Any]
    driver: Any = None  # older files lack it


def encode(node: NodeRecord) -> bytes:
    """Write a record."""
    return msgspec.json.encode({"boot": node.boot, "cards": dict(node.cards), "driver": node.driver})


def decode(data: bytes) -> tuple[NodeRecord, tuple[str, ...]]:
    """Read a record.

    Returns the record, and a sentence for each part (a card, the driver) that cannot be read and is left out.
    """
    if len(data) > _MAX_RECORD:
        return NOTHING_KNOWN, (f"{len(data)} bytes are no record of a node's cards; a new one is started",)
    try:
        record = msgspec.json.decode(data, type=_Record)
    except (ValueError, RecursionError) as error:  # msgspec's are of the first kind
        return NOTHING_KNOWN, (f"no record of a node's cards ({error}); a new one is started",)
    cards: dict[str, CardRecord] = {}
    problems = []
    for uuid, raw in record.cards.items():
        try:
            cards[uuid] = _read_card(uuid, raw)
        except ValueError as error:
            problems.append(f"card {uuid}: {error}; forgotten")
    driver = None
    try:
        driver = msgspec.convert(record.driver, DriverFacts | None)
    except ValueError as error:
        problems.append(f"the driver: {error}; forgotten")
    return NodeRecord(record.boot, cards, driver), tuple(problems)


def _read_card(uuid: str, raw: Any) -> CardRecord:
    card = msgspec.convert(raw, CardRecord)
    health = card.health
    if card.facts.uuid != uuid:
        raise ValueError(f"its facts are of {card.facts.uuid}")
    if health.count < 0 or health.falls < 0:
        raise ValueError("a count is below zero")
    return card
