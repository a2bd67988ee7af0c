"""A model of gangs that are bound as a whole: plans, gates, marks, binds, sweeps, crashes, time and old views.

The decisions are those of the product: `next_step` and `SeenHolds` of `webhook.gangs`, the changes of
`allocator.gangreservation` and `allocator.bind`, `place`, and `judge` of `webhook.upkeep.reconcile`. The model has what
surrounds them. A replica sees records and Pods late, decides on a step by what it has seen, and writes one record or
Pod after another: anything may happen between two writes, and it may end there. The API server performs a Binding some
time after it was answered, or never. A write to a record is atomic and decides on the record as it is.

Time passes in moments of `MOMENT_S`. A watch is late by less than one. A Binding is performed within two, all writes of
a step are over within two, and a replica does within two what is to be done. The present is always `NOW`: what is
written is shifted as time passes, so that states that differ in nothing else are the same.
"""

from collections.abc import Callable
from functools import cache

from model.gangprotocol import GangProtocol
from model.gangstate import (
    GONE,
    LENGTH,
    UNBOUND,
    GangScope,
    Held,
    Pods,
    Records,
    Replica,
    State,
    Write,
    node_name,
    with_pod,
    with_replica,
)
from model.gangsteps import passed, steps
from model.search import Explored, search, wander

from allocator.vocabulary.holdings import WITHOUT_LIMIT
from webhook.gangs.step import (
    FindRoom,
)


def wrong(scope: GangScope, state: State) -> str:
    """What must never be so in a state; "" if nothing is wrong."""
    pods = {pod.uid: pod for pod in state.pods}
    owners: dict[str, set[str]] = {}
    for pod in state.pods:
        if pod.card not in {UNBOUND, GONE}:
            owners.setdefault(pod.card, set()).add(pod.uid)
    for one in state.binds:
        if pods[one.uid].card == UNBOUND:
            owners.setdefault(one.card, set()).add(one.uid)
    for card, uids in owners.items():
        if len(uids) > 1:
            return f"{card} is given to {' and '.join(sorted(uids))}"
    recorded = {(one.uid, one.card) for there in state.records for one in there}
    bound = {pod.uid for pod in state.pods if pod.card not in {UNBOUND, GONE}}
    for uid in bound:
        if (uid, pods[uid].card) not in recorded:
            return f"{uid} is bound to {pods[uid].card}, which the ledger does not hold for it"
    standing = bound | {uid for uid, _ in recorded}
    if bound and len(standing) < scope.least and all(pod.card != GONE for pod in state.pods):
        return f"half a gang: {sorted(bound)} are bound, and only {sorted(standing)} have room"
    return ""


def drained(protocol: GangProtocol, state: State, *, scheduled: bool) -> str:
    """What is wrong after all requests have ended and one new replica has tended and swept for long; "" if nothing is.

    Args:
        protocol: decides.
        state: where that begins.
        scheduled: whether Pods are bound meanwhile. If not, no room is looked for either.
    """
    state = state._replace(binds=(), replicas=(Replica(state.records, state.pods),), deletions=0, crashes=0)
    for _ in range(24):
        state = _tended(protocol, state, scheduled=scheduled)
        for node, one, seen_s in state.replicas[0].sights:
            how = protocol.judge(state, node, one, seen_s)
            if how is not None:
                state, _ = protocol.written(state, 0, Write(how, node, (one,)))
        if scheduled:
            state = _scheduled(protocol, state)
        state = passed(protocol, state)
    bound = {(pod.uid, pod.card) for pod in state.pods if pod.card not in {UNBOUND, GONE}}
    waiting = {pod.uid for pod in state.pods if pod.card == UNBOUND}
    kept = {(one.uid, one.card) for there in state.records for one in there if not (one.until or one.mark)}
    others = [one for there in state.records for one in there if one.until or one.mark]
    left = [one for one in others if not (bound and one.uid in waiting and one.until == WITHOUT_LIMIT and not one.mark)]
    if kept != bound or left:
        return f"held in the end: {sorted(kept)} and {left}; bound: {sorted(bound)}"
    whole = len(bound) == len(state.pods) or any(pod.card == GONE for pod in state.pods)
    return "" if whole or not scheduled else f"not bound in the end: {sorted(waiting)}"


def _tended(protocol: GangProtocol, state: State, *, scheduled: bool) -> State:
    for _ in range(8):
        state = with_replica(state, 0, state.replicas[0]._replace(records=state.records, pods=state.pods))
        step, seen = protocol.step(state.replicas[0])
        state = with_replica(state, 0, state.replicas[0]._replace(seen=seen))
        work = None if isinstance(step, FindRoom) and not scheduled else protocol.work(state, 0, step)
        if work is None:
            break
        for write in work.left:
            state, _ = protocol.written(state, 0, write)
        if work.plan:
            made = {
                (node_name(w.node), one.uid, one.since) for w in work.left for one in w.about if isinstance(one, Held)
            }
            state = with_replica(
                state, 0, state.replicas[0]._replace(own=tuple(sorted({*state.replicas[0].own, *made})))
            )
    return state


def _scheduled(protocol: GangProtocol, state: State) -> State:
    for uid, node in ((pod.uid, node) for pod in state.pods for node in range(len(state.records))):
        pod = next(pod for pod in state.pods if pod.uid == uid)
        if pod.card == UNBOUND and not pod.gated:
            state, card = protocol.decide(state, 0, uid, node)
            state = with_pod(state, pod._replace(card=card)) if card else state
    return state


def explore_gangs(
    scope: GangScope, make: Callable[[GangScope], GangProtocol] = GangProtocol, *, states: int = 0, walks: int = 0
) -> Explored:
    """Visit the first states, or go at random from the beginning; until something is wrong or the bound is reached.

    Args:
        scope: what may happen.
        make: makes the protocol.
        states: how many are visited, those with the fewest steps first.
        walks: how many times it goes from the beginning, each `LENGTH` steps far.
    """
    protocol = make(scope)
    judged: dict[tuple[Records, Pods], str] = {}

    def bad(state: State) -> str:
        rest = state.records, state.pods
        if rest not in judged:
            judged[rest] = next(filter(None, (drained(protocol, state, scheduled=how) for how in (False, True))), "")
        return wrong(scope, state) or judged[rest]

    ways = cache(lambda state: tuple(steps(protocol, state)))
    if walks:
        return wander(scope.begin(), ways, bad, walks=walks, length=LENGTH)
    return search(scope.begin(), ways, bad, states=states)
