"""The lanes that inspect (pure): what containers and cards have, the kubelet's configuration, the operator's policy."""

from dataclasses import replace
from math import inf

from reporter.delivery.facts import UNTOLD
from reporter.proof.agree import Evidence
from reporter.round.clock import Moment
from reporter.round.decide import by_index, by_minor, slices
from reporter.round.effects import AskKubelet, Prove, ReadPolicy
from reporter.round.events import KubeletAnswered, Lane, PolicyRead, Proved
from reporter.round.follow import Stepped
from reporter.round.state import RoundState


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
