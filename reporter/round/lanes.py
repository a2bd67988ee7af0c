"""The lanes of the round (pure): how each begins its work, and what its results change."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from reporter.gpu.facts import XidEvent
from reporter.pods import NodeIdentity
from reporter.proof.agree import Evidence
from reporter.publish.device import worth_telling
from reporter.publish.keep import Kept, Target
from reporter.reading import HostReading
from reporter.round.decide import Decided, StandingObjects, by_index, by_minor, decide, slices
from reporter.round.messages import (
    Apply,
    AskKubelet,
    CardsAway,
    CardsRead,
    CountWrite,
    CountXid,
    CpusWritten,
    EventsSent,
    HealthSaved,
    HearXids,
    HostRead,
    KubeletAnswered,
    Lane,
    Moment,
    Note,
    PolicyRead,
    Prove,
    Proved,
    ReadCards,
    ReadHost,
    ReadPolicy,
    RoundEffect,
    SaveHealth,
    SendEvents,
    ShowRound,
    Warn,
    WatchedKind,
    WriteCpus,
    WriteRefused,
    Written,
    XidsHeard,
)
from reporter.round.occurrences import claim_events, memory_occurrences, occurrences, without_memory
from reporter.round.state import (
    DEVICE,
    STATUS,
    TOPOLOGY,
    WATCHED,
    CardsState,
    CurrentRound,
    RoundState,
    Telling,
    log_line,
)
from reporter.runtimefiles import UNTOLD

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


def on_cards_read(state: RoundState, event: CardsRead, now: Moment) -> Stepped:
    """Take in a reading. Xid errors are awaited from the first reading on: before it, no card is known."""
    cards = state.cards.read(event.reading, event.xids, now, state.plan.rules.policy)
    state = state.ended(Lane.CARDS, now.steady + state.plan.pace.every)
    if not state.lanes[Lane.XIDS].busy:
        state = state.wanted(Lane.XIDS, now.steady)
    return _changed(state, cards, now), _heard(cards, event.xids)


def on_cards_away(state: RoundState, event: CardsAway, now: Moment) -> Stepped:
    """Note that NVML is out of reach."""
    new = state.cards.view.outage is None
    said = (Warn(f"NVML cannot be read: {event.outage.message}"),) if new else ()
    wait = max(event.retry_seconds, state.plan.pace.every)
    return _changed(state.ended(Lane.CARDS, now.steady + wait), state.cards.away(event.outage), now), said


def on_xids(state: RoundState, event: XidsHeard, now: Moment) -> Stepped:
    """Take in Xid errors, and wait for the next."""
    cards = state.cards.heard(event.xids, now, state.plan.rules.policy)
    return _changed(state.ended(Lane.XIDS, now.steady), cards, now), _heard(cards, event.xids)


def on_health_saved(state: RoundState, event: HealthSaved, _: Moment) -> Stepped:
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
        if said := log_line(xid, known=known):
            effects.append(Warn(said))
    return tuple(effects)


def begin_round(state: RoundState, now: Moment) -> Stepped:
    """Read the node's files; what is unknown about the cluster now stays unknown to this round."""
    cluster = state.cluster
    current = CurrentRound(now.steady, cluster.node, cluster.pods_known, cluster.complete)
    answered = state.configz.value if state.configz is not None else None
    read = ReadHost(cluster.pods, answered.cgroup_root if answered is not None else "")
    return replace(state.begun(Lane.ROUND), current=current), (read,)


def on_host_read(state: RoundState, event: HostRead, now: Moment) -> Stepped:
    """Decide; then write cpusets, if the Pods and the kubelet's configuration are known."""
    current = state.under_way
    host = event.host
    if state.configz is not None:
        host = replace(host, configuration=state.configz, in_force=True)
    state, host = _seen(state, host, now)
    state = replace(state, host=host)
    objects = state.cluster.objects
    decided = decide(
        current.node or NodeIdentity(state.plan.name, ""),
        host,
        state.cards.view,
        state.cluster.pods,
        state.proof.evidence,
        state.plan.rules,
        StandingObjects(
            objects.get(WatchedKind.NODE),
            objects.get(WatchedKind.DEVICE),
            objects.get(WatchedKind.TOPOLOGY),
            state.policy or UNTOLD,
        ),
        now.wall,
    )
    with_cards = state.cards_settled(now) and state.runtime_known and (state.proof.done or not state.plan.proof)
    current = replace(current, configured=state.configured, with_cards=with_cards, decided=decided)
    state = replace(state, current=current)
    if not (current.pods_known and current.configured):
        return _conclude(state, current, decided, CpusWritten(), now)
    # Facts without a card would have its containers refused.
    facts = decided.facts if state.cards_settled(now) and state.runtime_known else None
    if facts is None and not state.plan.enforce:
        return _conclude(state, current, decided, CpusWritten(), now)
    return state, (WriteCpus(decided, facts, state.plan.enforce),)


def _seen(state: RoundState, host: HostReading, now: Moment) -> tuple[RoundState, HostReading]:
    """Note since when the enforcer has been away, and whether that is long."""
    if host.enforcer is None:
        return state, host
    since = now.steady if state.enforcer_away is None else state.enforcer_away
    away = None if host.enforcer.registered else since
    gone = away is not None and now.steady - away >= state.plan.pace.enforcer
    return replace(state, enforcer_away=away), replace(host, enforcer=replace(host.enforcer, gone=gone))


def on_cpus_written(state: RoundState, event: CpusWritten, now: Moment) -> Stepped:
    """Conclude the round."""
    current = state.under_way
    if current.decided is None:
        raise RuntimeError("cpusets were written before they were decided")
    return _conclude(state, current, current.decided, event, now)


def round_failed(state: RoundState, now: Moment) -> RoundState:
    """Abandon the round."""
    return replace(state.resting(Lane.ROUND, now.steady + state.plan.pace.every), current=None)


def _conclude(state: RoundState, current: CurrentRound, decided: Decided, wrote: CpusWritten, now: Moment) -> Stepped:
    """Conclude the round: metrics, logs and Kubernetes Events immediately, objects when the publisher's turn comes."""
    pace = state.plan.pace
    again = state.lanes[Lane.ROUND].due < inf  # something changed during the round
    state = state.resting(Lane.ROUND, now.steady + (pace.gather if again else pace.every))
    state = replace(state, current=None, decided=decided)
    if current.complete and state.reported.device is None:
        state = replace(
            state, reported=replace(state.reported, device=state.cluster.objects.get(WatchedKind.DEVICE) or {})
        )
    unshown = decided.unshown if current.with_cards else ()
    problems = (*_problems(state, decided, wrote, now), *(one.message for one in unshown))
    view = state.cards.view
    effects: list[RoundEffect] = [
        ShowRound(
            decided=decided,
            cards=view.node,
            loads=state.cards.loads,
            uses=state.proof.evidence.uses,
            nvml_up=view.outage is None or not (view.node.cards or (state.host is not None and state.host.nvidia)),
            findings=wrote.findings,
            problems=problems,
        )
    ]
    if problems != state.problems:
        effects += map(Warn, problems)
        state = replace(state, problems=problems)
    if current.node is not None and current.configured and state.host is not None:
        body = decided.device.body
        reported, found = occurrences(
            current.node,
            state.reported,
            state.host,
            view,
            body,
            without_memory(decided.agreements, decided.memory),
            (*decided.unread, *unshown, *claim_events(decided.claims)),
        )
        reported, of_memory = memory_occurrences(reported, decided.memory, state.proof.count)
        state = replace(state, reported=reported)
        if found or of_memory:
            effects.append(Note((*found, *of_memory)))
    if current.complete and current.configured:  # otherwise the objects would lose what this round could not know
        state = replace(state, telling=Telling(decided, current.with_cards)).wanted(Lane.PUBLISH, now.steady)
    return state, tuple(effects)


def _problems(state: RoundState, decided: Decided, wrote: CpusWritten, now: Moment) -> tuple[str, ...]:
    """Everything that is wrong now, a sentence each."""
    findings = wrote.findings
    of_cpus = [failure.message for failure in findings.failures] if findings is not None else []
    of_cpus += [note for _, note in findings.notes] if findings is not None else []
    of_cards = state.cards.problem(now, state.plan.rules.policy.quiet)
    writes = (kept.problem for kept in state.kept.values())
    several = (*decided.problems, wrote.problem, wrote.untold, of_cards, *of_cpus, *writes)
    return tuple(filter(None, several))


def proof_due(state: RoundState, now: Moment) -> float:
    """When the next proof is due: regularly, earlier if cards or containers changed; infinite if none is possible.

    A proof needs a decision, the Pods and the cards. NVML is slow for each card, so no round waits for a proof.
    """
    if not state.plan.proof or state.decided is None or not state.cluster.pods_known or not state.cards_settled(now):
        return inf
    changed = state.subject != state.proof.subject
    return min(state.lanes[Lane.PROOF].due, state.proof.not_before if changed else inf)


def begin_proof(state: RoundState, now: Moment) -> Stepped:
    """Inspect containers and cards."""
    decided = state.decided
    if decided is None or proof_due(state, now) == inf:
        return state, ()
    pods = tuple(pod for pod in state.cluster.pods if not pod.finished)
    effect = Prove(
        pods, decided.cgroup_root, state.cards.to_ask, state.cards.remembered, state.cards.view.keeps_limits is True
    )
    return replace(state.begun(Lane.PROOF), proof=replace(state.proof, subject=state.subject)), (effect,)


def on_proved(state: RoundState, event: Proved, now: Moment) -> Stepped:
    """Keep the evidence; the next round compares it."""
    cards = state.cards.view.node
    evidence = Evidence(event.containers, event.uses, by_minor(cards), by_index(cards), event.running, event.memory)
    evidence = replace(evidence, slices=slices(cards))
    news = evidence != state.proof.evidence or not state.proof.done
    proof = replace(state.proof, evidence=evidence, count=state.proof.count + 1)
    state = _proved(replace(state, proof=proof, cards=replace(state.cards, processes=event.processes)), now)
    return state.stirred(now) if news else state, ()


def proof_failed(state: RoundState, now: Moment) -> RoundState:
    """Continue without evidence: a bug in the proof must not prevent the report of the cards."""
    return _proved(state, now).stirred(now)


def _proved(state: RoundState, now: Moment) -> RoundState:
    pace = state.plan.pace
    proof = replace(state.proof, done=True, not_before=now.steady + pace.proofs_apart)
    return replace(state.resting(Lane.PROOF, now.steady + pace.proof), proof=proof)


def begin_configz(state: RoundState, _: Moment) -> Stepped:
    """Ask the kubelet; no round waits for its answer."""
    before = state.configz.value if state.configz is not None else None
    return state.begun(Lane.CONFIGZ), (AskKubelet(before),)


def on_answered(state: RoundState, event: KubeletAnswered, now: Moment) -> Stepped:
    """Keep the answer; a round follows if it changed."""
    news = event.answer != state.configz
    state = replace(state.ended(Lane.CONFIGZ, now.steady + state.plan.pace.configz), configz=event.answer)
    return state.stirred(now) if news else state, ()


def begin_policy(state: RoundState, _: Moment) -> Stepped:
    """Read the GPU Operator's ClusterPolicy; no round waits for it."""
    return state.begun(Lane.POLICY), (ReadPolicy(state.policy or UNTOLD),)


def on_policy(state: RoundState, event: PolicyRead, now: Moment) -> Stepped:
    """Keep what it says; a round follows if that changed."""
    news = event.policy != state.policy
    state = replace(state.ended(Lane.POLICY, now.steady + state.plan.pace.policy), policy=event.policy)
    return state.stirred(now) if news else state, ()


def policy_failed(state: RoundState, now: Moment) -> RoundState:
    """Continue without it: a bug there must not prevent the report of the cards."""
    state = state.resting(Lane.POLICY, now.steady + state.plan.pace.policy)
    return state if state.policy is not None else replace(state, policy=UNTOLD).stirred(now)


def begin_publish(state: RoundState, _: Moment) -> Stepped:
    """Send the waiting Events, once everything in the cluster is known."""
    if not state.cluster.complete:
        return state, ()
    return state.begun(Lane.PUBLISH), (SendEvents(),)


def on_events_sent(state: RoundState, _: EventsSent, now: Moment) -> Stepped:
    """Go on to the objects."""
    return _next(replace(state, publishing=_wanted(state)), (), now)


def on_object_written(state: RoundState, event: Written, now: Moment) -> Stepped:
    """Take the API server's answer for the current object; go on to the next."""
    kept = state.kept[event.target]
    done = CountWrite(event.target, kept.taken_back)
    cluster = state.cluster.with_object(WATCHED[event.target], event.obj)
    if cluster is not state.cluster:
        state = replace(state, cluster=cluster).stirred(now)
    return _next(_with_kept(state, event.target, kept.written()), (done,), now)


def on_write_refused(state: RoundState, event: WriteRefused, now: Moment) -> Stepped:
    """Wait before this object is tried again; go on to the next."""
    before = state.kept[event.target]
    kept = before.refused(event.problem, now.steady)
    wait = kept.retry_at - now.steady
    said = (Warn(f"not written, next attempt in {wait:.0f} s: {event.problem}"),)
    return _next(_with_kept(state, event.target, kept), said if kept.problem != before.problem else (), now)


def publish_failed(state: RoundState, now: Moment) -> RoundState:
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
