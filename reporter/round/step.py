"""The transitions (pure): from a state and an event to the next state and its effects."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final

from reporter.round import lanes
from reporter.round.lanes import Stepped
from reporter.round.messages import (
    CardsAway,
    CardsRead,
    CpusWritten,
    Due,
    EventsSent,
    HealthSaved,
    HostRead,
    KubeletAnswered,
    Lane,
    LaneFailed,
    Listed,
    Moment,
    ObjectGone,
    ObjectStands,
    PodsChanged,
    PolicyRead,
    Proved,
    Restored,
    RoundEffect,
    RoundEvent,
    Warn,
    WriteRefused,
    Written,
    XidsHeard,
)
from reporter.round.state import RoundState


def step(state: RoundState, event: RoundEvent, now: Moment) -> tuple[RoundState, tuple[RoundEffect, ...]]:
    """Take one event in.

    Returns the state after, and the effects: at most one of each lane, and only of lanes that were at rest or whose
    effect the event concludes.
    """
    return _ON[type(event)](state, event, now)


def next_due(state: RoundState, now: Moment) -> Lane | None:
    """The lane whose work is due, the first in the order of lanes; None if there is none."""
    return next((lane for lane in Lane if due_at(state, lane, now) <= now.steady), None)


def wakes_at(state: RoundState, now: Moment) -> float:
    """When the next lane's work is due, on the steady clock; infinite if only an event can bring work."""
    return min(due_at(state, lane, now) for lane in Lane)


def due_at(state: RoundState, lane: Lane, now: Moment) -> float:
    """When a lane's work is due, on the steady clock; infinite while it is busy or has none."""
    work = state.lanes[lane]
    if work.busy or (lane is Lane.PUBLISH and not state.cluster.complete):
        return inf
    return lanes.proof_due(state, now) if lane is Lane.PROOF else work.due


def _on_restored(state: RoundState, event: Restored, now: Moment) -> Stepped:
    """Start with the record of an earlier process, which has already written the Events about it."""
    cards = state.cards.restored(event.node, now)
    state = replace(state, cards=cards, reported=replace(state.reported, health=event.node))
    for lane in {Lane.CARDS, Lane.ROUND, Lane.PROOF, Lane.CONFIGZ, Lane.POLICY} - _off(state):
        state = state.wanted(lane, now.steady)
    return state, tuple(map(Warn, event.problems))


def _on_due(state: RoundState, event: Due, now: Moment) -> Stepped:
    """Begin a lane's work; a busy lane repeats it afterwards."""
    if state.lanes[event.which].busy:
        return state.wanted(event.which, now.steady), ()
    if event.which in _off(state):
        return state, ()
    return _BEGIN[event.which](state, now)


def _off(state: RoundState) -> frozenset[Lane]:
    """The lanes that the settings switch off."""
    off = frozenset({Lane.CARDS, Lane.XIDS, Lane.HEALTH}) if not state.plan.gpus else frozenset()
    if not state.plan.configz:
        off |= {Lane.CONFIGZ}
    return off | ({Lane.POLICY} if not state.plan.policies else set())


def _on_failed(state: RoundState, event: LaneFailed, now: Moment) -> Stepped:
    """Try a lane's work again later: a bug in one must not end the node's reporter."""
    lane = event.which
    if lane is Lane.ROUND:
        return lanes.round_failed(state, now), ()
    if lane is Lane.PROOF:
        return lanes.proof_failed(state, now), ()
    if lane is Lane.PUBLISH:
        return lanes.publish_failed(state, now), ()
    if lane is Lane.POLICY:
        return lanes.policy_failed(state, now), ()
    if lane is Lane.CONFIGZ:
        return state.resting(lane, now.steady + state.plan.pace.configz), ()
    if lane is Lane.HEALTH:
        state = replace(state, cards=replace(state.cards, saved=None))  # so the next reading tries again
    return state.resting(lane, now.steady + state.plan.pace.every if lane is Lane.CARDS else inf), ()


def _on_stands(state: RoundState, event: ObjectStands, now: Moment) -> Stepped:
    cluster = state.cluster.with_object(event.what, event.obj)
    return (state if cluster is state.cluster else replace(state, cluster=cluster).stirred(now)), ()


def _on_gone(state: RoundState, event: ObjectGone, now: Moment) -> Stepped:
    cluster = state.cluster.without(event.what)
    return (state if cluster is state.cluster else replace(state, cluster=cluster).stirred(now)), ()


def _on_pods(state: RoundState, event: PodsChanged, now: Moment) -> Stepped:
    return replace(state, cluster=state.cluster.with_pods(event.pods)).stirred(now), ()


def _on_listed(state: RoundState, event: Listed, now: Moment) -> Stepped:
    """Once everything was listed, a round that knows it all follows."""
    if event.what in state.cluster.listed:
        return state, ()
    return replace(state, cluster=state.cluster.with_list(event.what)).stirred(now), ()


_ON: Final[Mapping[type[RoundEvent], Callable[[RoundState, Any, Moment], Stepped]]] = {
    Restored: _on_restored,
    Due: _on_due,
    LaneFailed: _on_failed,
    ObjectStands: _on_stands,
    ObjectGone: _on_gone,
    PodsChanged: _on_pods,
    Listed: _on_listed,
    CardsRead: lanes.on_cards_read,
    CardsAway: lanes.on_cards_away,
    XidsHeard: lanes.on_xids,
    HealthSaved: lanes.on_health_saved,
    HostRead: lanes.on_host_read,
    CpusWritten: lanes.on_cpus_written,
    Proved: lanes.on_proved,
    KubeletAnswered: lanes.on_answered,
    PolicyRead: lanes.on_policy,
    EventsSent: lanes.on_events_sent,
    Written: lanes.on_object_written,
    WriteRefused: lanes.on_write_refused,
}

_BEGIN: Final[Mapping[Lane, Callable[[RoundState, Moment], Stepped]]] = {
    Lane.CARDS: lanes.begin_cards,
    Lane.XIDS: lanes.begin_xids,
    Lane.HEALTH: lanes.begin_health,
    Lane.ROUND: lanes.begin_round,
    Lane.PROOF: lanes.begin_proof,
    Lane.CONFIGZ: lanes.begin_configz,
    Lane.POLICY: lanes.begin_policy,
    Lane.PUBLISH: lanes.begin_publish,
}
