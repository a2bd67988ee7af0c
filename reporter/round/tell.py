"""The lane of the publisher (pure): Kubernetes Events first, then each object that is not as it should be."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reporter.publish.device import worth_telling
from reporter.publish.keep import Kept
from reporter.publish.writer import Target
from reporter.round.clock import Moment
from reporter.round.effects import Apply, CountWrite, RoundEffect, SendEvents, Warn
from reporter.round.events import EventsSent, Lane, WatchedKind, WriteRefused, Written
from reporter.round.follow import Stepped
from reporter.round.state import DEVICE, STATUS, TOPOLOGY, WATCHED, RoundState


def begin(state: RoundState, _: Moment) -> Stepped:
    """Send the waiting Events, once everything in the cluster is known."""
    if not state.cluster.complete:
        return state, ()
    return state.begun(Lane.PUBLISH), (SendEvents(),)


def on_sent(state: RoundState, _: EventsSent, now: Moment) -> Stepped:
    """Go on to the objects."""
    return _next(replace(state, publishing=_wanted(state)), (), now)


def on_written(state: RoundState, event: Written, now: Moment) -> Stepped:
    """Take the API server's answer for the current object; go on to the next."""
    kept = state.kept[event.target]
    done = CountWrite(event.target, kept.taken_back)
    cluster = state.cluster.with_object(WATCHED[event.target], event.obj)
    if cluster is not state.cluster:
        state = replace(state, cluster=cluster).stirred(now)
    return _next(_with_kept(state, event.target, kept.written()), (done,), now)


def on_refused(state: RoundState, event: WriteRefused, now: Moment) -> Stepped:
    """Wait before this object is tried again; go on to the next."""
    before = state.kept[event.target]
    kept = before.refused(event.problem, now.steady, state.plan.pace.retry)
    wait = kept.retry_at - now.steady
    said = (Warn(f"not written, next attempt in {wait:.0f} s: {event.problem}"),)
    return _next(_with_kept(state, event.target, kept), said if kept.problem != before.problem else (), now)


def failed(state: RoundState, now: Moment) -> RoundState:
    """Abandon this publication."""
    kept = {target: one.dropped() for target, one in state.kept.items()}
    return replace(state.ended(Lane.PUBLISH, now.steady + state.plan.pace.every), publishing=(), kept=kept)


def _wanted(state: RoundState) -> tuple[tuple[Target, Mapping[str, Any]], ...]:
    """Each object with its wanted fields; nothing if the Node is gone or was created again since the last round."""
    telling, node = state.telling, state.cluster.node
    if telling is None or node is None:
        return ()
    decided = telling.decided
    device = decided.device.body
    if device["metadata"]["ownerReferences"][0]["uid"] != node.uid:
        return ()
    wanted: dict[Target, Mapping[str, Any] | None] = {TOPOLOGY: decided.topology.body}
    if telling.with_cards:
        worth = worth_telling(device, state.cluster.objects.get(WatchedKind.DEVICE))
        wanted = {DEVICE: device if worth else None, **wanted, STATUS: decided.status}
    return tuple((target, body) for target, body in wanted.items() if body is not None)


def _next(state: RoundState, effects: tuple[RoundEffect, ...], now: Moment) -> Stepped:
    """Write the next object that must be written; end the publication if there is none."""
    rest = list(state.publishing)
    while rest:
        target, body = rest.pop(0)
        kept = state.kept[target].begun(body, state.cluster.objects.get(WATCHED[target]), now.steady)
        if kept is not None:
            state = _with_kept(replace(state, publishing=tuple(rest)), target, kept)
            return state, (*effects, Apply(target, body))
    state = state.ended(Lane.PUBLISH, now.steady + state.plan.pace.every)
    return replace(state, publishing=()), effects


def _with_kept(state: RoundState, target: Target, kept: Kept) -> RoundState:
    return replace(state, kept={**state.kept, target: kept})
