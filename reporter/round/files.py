"""The lane of the rounds (pure): files are read, everything is decided, cpusets are written, results are passed on."""

from dataclasses import replace
from math import inf

from reporter.delivery.facts import UNTOLD
from reporter.publish.identity import NodeIdentity
from reporter.round.clock import Moment
from reporter.round.decide import Decided, StandingObjects, decide
from reporter.round.effects import Note, ReadHost, RoundEffect, ShowRound, Warn, WriteCpus
from reporter.round.events import CpusWritten, HostRead, Lane, WatchedKind
from reporter.round.follow import Stepped
from reporter.round.occurrences import beside_memory, claim_events, memory_occurrences, occurrences
from reporter.round.state import CurrentRound, RoundState, Telling


def begin(state: RoundState, now: Moment) -> Stepped:
    """Read the node's files; what is unknown about the cluster now stays unknown to this round."""
    cluster = state.cluster
    current = CurrentRound(now.steady, cluster.node, cluster.pods_known, cluster.complete)
    answered = state.configz.value if state.configz is not None else None
    read = ReadHost(cluster.pods, answered.cgroup_root if answered is not None else "")
    return replace(state.begun(Lane.ROUND), current=current), (read,)


def on_read(state: RoundState, event: HostRead, now: Moment) -> Stepped:
    """Decide; then write cpusets, if the Pods and the kubelet's configuration are known."""
    current = state.under_way
    host = event.host
    if state.configz is not None:
        host = replace(host, configuration=state.configz, in_force=True)
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
    return state, (WriteCpus(decided if state.plan.enforce else None, state.cluster.pods, host),)


def on_written(state: RoundState, event: CpusWritten, now: Moment) -> Stepped:
    """Conclude the round."""
    current = state.under_way
    if current.decided is None:
        raise RuntimeError("cpusets were written before they were decided")
    return _conclude(state, current, current.decided, event, now)


def failed(state: RoundState, now: Moment) -> RoundState:
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
            taken_over=wrote.taken.written,
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
            beside_memory(decided.agreements, decided.memory),
            wrote.taken,
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
    several = (*decided.problems, *wrote.taken.problems, wrote.problem, of_cards, *of_cpus, *writes)
    return tuple(filter(None, several))
