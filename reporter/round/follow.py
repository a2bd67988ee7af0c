"""The lanes of the cards (pure): readings of NVML, Xid errors between them, and saving the record."""

from collections.abc import Iterable
from dataclasses import replace

from reporter.gpu.facts import XidEvent
from reporter.round.cards import CardsState, words
from reporter.round.clock import Moment
from reporter.round.effects import CountXid, HearXids, ReadCards, RoundEffect, SaveHealth, Warn
from reporter.round.events import CardsAway, CardsRead, HealthSaved, Lane, XidsHeard
from reporter.round.state import RoundState

Stepped = tuple[RoundState, tuple[RoundEffect, ...]]


def begin_cards(state: RoundState, _: Moment) -> Stepped:
    """Read NVML."""
    return state.begun(Lane.CARDS), (ReadCards(frozenset(state.cards.view.node.cards)),)


def begin_xids(state: RoundState, _: Moment) -> Stepped:
    """Wait for Xid errors."""
    return state.begun(Lane.XIDS), (HearXids(),)


def begin_health(state: RoundState, now: Moment) -> Stepped:
    """Save the record."""
    effect = SaveHealth(state.cards.view.node)
    return replace(state.begun(Lane.HEALTH), cards=state.cards.saving(now)), (effect,)


def on_read(state: RoundState, event: CardsRead, now: Moment) -> Stepped:
    """Take in a reading. Xid errors are awaited from the first reading on: before it, no card is known."""
    cards = state.cards.read(event.reading, event.xids, now, state.plan.rules.policy)
    state = state.ended(Lane.CARDS, now.steady + state.plan.pace.every)
    if not state.lanes[Lane.XIDS].busy:
        state = state.wanted(Lane.XIDS, now.steady)
    return _changed(state, cards, now), _heard(cards, event.xids)


def on_away(state: RoundState, event: CardsAway, now: Moment) -> Stepped:
    """Note that NVML is out of reach."""
    new = state.cards.view.outage is None
    said = (Warn(f"NVML cannot be read: {event.outage.message}"),) if new else ()
    wait = max(event.retry_seconds, state.plan.pace.every)
    return _changed(state.ended(Lane.CARDS, now.steady + wait), state.cards.away(event.outage), now), said


def on_xids(state: RoundState, event: XidsHeard, now: Moment) -> Stepped:
    """Take in Xid errors, and wait for the next."""
    cards = state.cards.heard(event.xids, now, state.plan.rules.policy)
    return _changed(state.ended(Lane.XIDS, now.steady), cards, now), _heard(cards, event.xids)


def on_saved(state: RoundState, event: HealthSaved, _: Moment) -> Stepped:
    """Note whether the record could be saved."""
    return replace(state.ended(Lane.HEALTH), cards=replace(state.cards, unsaved=event.problem)), ()


def _changed(state: RoundState, cards: CardsState, now: Moment) -> RoundState:
    """Store the cards; have the record saved if it must be, and start a round if more than times changed."""
    same = cards.same(state.cards)
    state = replace(state, cards=cards)
    if cards.save_due(now, state.plan.pace.save):
        state = state.wanted(Lane.HEALTH, now.steady)
    return state if same else state.stirred(now)


def _heard(cards: CardsState, xids: Iterable[XidEvent]) -> tuple[RoundEffect, ...]:
    """Count each Xid error, and log those that are grave or of a known card."""
    effects: list[RoundEffect] = []
    for xid in xids:
        known = cards.known(xid)
        effects.append(CountXid(xid, known))
        if said := words(xid, known=known):
            effects.append(Warn(said))
    return tuple(effects)
