"""A model of the ledger's protocol: all interleavings of binds, sweeps, deletions and time, up to a bound.

The decisions are those of the product: `bind`, `end`, `keep` and `release` of `allocator.bind`, and `judge` of
`webhook.upkeep.reconcile`. The model has what surrounds them: an API server that performs a Binding some time after
it was answered, or never; replicas whose knowledge of records is old; sweeps that stop between their read and their
write; time that passes for all alike, and clocks that differ.

Time has a unit. A request lives for one unit at most, and so does a grace. A write to a record is atomic, as the
store promises (`tests/store_contract.py`), and decides on the record as it is: a lost race is decided again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from builders import app, gpu, gpus, part, request
from model.search import Explored, search

from allocator.bind import Holdings, PodToBind, bind, end, keep, release
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from koordgate.breaks import at_once
from webhook.upkeep.reconcile import Sweep, judge

GRACE: Final = 1.0
LIFE: Final = 1  # units for which a request may be performed
OLD: Final = 2  # units after which nothing depends on how much longer something was seen
WHOLE_CARD: Final = request(app("main", gpus(100)))
CLOCKS: Final = (1_000_000, 1_086_400)  # of the replicas: a day apart

UNBOUND: Final = ""
GONE: Final = "gone"


class Held(NamedTuple):
    """A holding of one card."""

    uid: str
    card: str
    since: int
    mark: str = ""


class Bind(NamedTuple):
    """A Binding under way: the card that it was answered with ("" while it was not), and its age."""

    uid: str
    node: int
    card: str
    age: int


class Sight(NamedTuple):
    """A holding as a replica has seen it, where, and for how long."""

    node: int
    held: Held
    age: int


class Replica(NamedTuple):
    """What a replica has seen, and the sweep that it has decided on and not written yet."""

    sights: tuple[Sight, ...] = ()
    pending: tuple[int, Held, Sweep] | None = None


class State(NamedTuple):
    """The cluster.

    Attributes:
        records: for each node, what is held there.
        pods: for each Pod UNBOUND, GONE, or the card that its annotations name once it is bound.
        binds: the Bindings under way.
        replicas: who sweep.
        broken: cards that became unhealthy.
        left: how many Bindings may still be sent, cards break, and Pods be deleted.
    """

    records: tuple[tuple[Held, ...], ...]
    pods: tuple[tuple[str, str], ...]
    binds: tuple[Bind, ...]
    replicas: tuple[Replica, ...]
    broken: tuple[str, ...]
    left: tuple[int, int, int]


@dataclass(frozen=True)
class Scope:
    """How large the explored cluster is.

    Attributes:
        cards: of each node.
        pods: each asks for a whole card.
        replicas: that sweep.
        binds: how many Bindings are sent in all, to whichever node for whichever Pod: by an honest scheduler that
            retries, or by a forger.
        breaks: how many cards become unhealthy.
        deletions: how many Pods are deleted.
        states: after how many states the search ends.
    """

    cards: tuple[tuple[str, ...], ...]
    pods: tuple[str, ...] = ("p", "q")
    replicas: int = 1
    binds: int = 3
    breaks: int = 0
    deletions: int = 0
    states: int = 1_000_000

    def begin(self) -> State:
        """The state in which nothing has happened."""
        return State(
            tuple(() for _ in self.cards),
            tuple((uid, UNBOUND) for uid in self.pods),
            (),
            (Replica(),) * self.replicas,
            (),
            (self.binds, self.breaks, self.deletions),
        )


@cache
def holding(held: Held) -> Holding:
    share = part(gpu(0, device_id=held.card), 100, "main")
    return Holding(held.uid, "default", held.uid, held.since, (share,), ending=held.mark)


def held(of: Holding) -> Held:
    (share,) = of.shares
    return Held(of.uid, share.id, of.since, of.ending)


def record(holdings: Holdings) -> tuple[Held, ...]:
    return tuple(sorted(map(held, holdings.values())))


@dataclass(frozen=True)
class Bound:
    """What a live read tells of a Pod."""

    node: str
    over: bool = False
    all_or_nothing: bool = False


class Protocol:
    """The product's decisions on the model's states. The doctored protocols of the tests change one each."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._bind = cache(self._bound)

    def _bound(
        self, there: tuple[Held, ...], node: int, broken: tuple[str, ...], uid: str, now: int, mark: str
    ) -> tuple[tuple[Held, ...], str]:
        cards = [
            gpu(minor, device_id=card, healthy=card not in broken) for minor, card in enumerate(self.scope.cards[node])
        ]
        empty = NodeSnapshot(f"n{node}", tuple(cards))
        change = bind(PodToBind(uid, "default", uid, WHOLE_CARD), empty.holding_all, now, mark)
        changed, decided = at_once(change({one.uid: holding(one) for one in there}))
        card = decided.outcome.shares[0].id if isinstance(decided.outcome, Holding) else ""
        return (there if changed is None else record(changed)), card

    def decide(self, state: State, at: Bind, replica: int) -> tuple[State, str]:
        """Decide a Binding on the record as it is: the state after the write, and the card that is the answer."""
        there, card = self._bind(
            state.records[at.node], at.node, state.broken, at.uid, CLOCKS[replica], self.new_mark(state)
        )
        return with_record(state, at.node, there), card

    def new_mark(self, state: State) -> str:
        """A name that no mark has which anybody knows of."""
        known = {one.mark for there in state.records for one in there}
        for replica in state.replicas:
            known.update(sight.held.mark for sight in replica.sights)
            if replica.pending is not None:
                known.add(replica.pending[1].mark)
        return next(mark for mark in "abcdefgh" if mark not in known)

    def judge(self, state: State, sight: Sight, replica: int) -> Sweep | None:  # noqa: ARG002 no clock counts
        """Read the Pod, and decide what is done about a holding."""
        return judge(holding(sight.held), f"n{sight.node}", self.live(state, sight.held.uid), sight.age, GRACE)

    def live(self, state: State, uid: str) -> tuple[str, Bound] | None:
        card = dict(state.pods)[uid]
        return None if card == GONE else (uid, Bound(self.node_of(card)))

    def node_of(self, card: str) -> str:
        return next((f"n{node}" for node, cards in enumerate(self.scope.cards) if card in cards), "")

    def sweep(self, state: State, node: int, seen: Held, how: Sweep) -> State:
        """Write what was decided about a holding."""
        match how:
            case "end":
                change = end(holding(seen), self.new_mark(state))
            case "keep":
                change = keep(seen.uid)
            case "unbound":
                change = release(seen.uid, ending=seen.mark)
            case _:
                change = release(seen.uid)
        changed, _ = change({one.uid: holding(one) for one in state.records[node]})
        return state if changed is None else with_record(state, node, record(changed))


def with_record(state: State, node: int, there: tuple[Held, ...]) -> State:
    return state._replace(records=(*state.records[:node], there, *state.records[node + 1 :]))


def with_pod(state: State, uid: str, now: str) -> State:
    return state._replace(pods=tuple((other, now if other == uid else was) for other, was in state.pods))


def with_replica(state: State, at: int, now: Replica) -> State:
    return state._replace(replicas=(*state.replicas[:at], now, *state.replicas[at + 1 :]))


def without(state: State, gone: Bind) -> State:
    left = list(state.binds)
    left.remove(gone)
    return state._replace(binds=tuple(left))


def and_bind(state: State, more: Bind) -> State:
    return state._replace(binds=tuple(sorted((*state.binds, more))))


Step = tuple[str, State]


def steps(protocol: Protocol, state: State) -> Iterator[Step]:
    """All that may happen next."""
    yield "time passes", passed(state)
    yield from _of_binds(protocol, state)
    yield from _of_replicas(protocol, state)
    binds, breaks, deletions = state.left
    if breaks:
        for card in (card for cards in protocol.scope.cards for card in cards if card not in state.broken):
            yield (
                f"{card} breaks",
                state._replace(broken=tuple(sorted((*state.broken, card))), left=(binds, breaks - 1, deletions)),
            )
    if deletions:
        for uid, now in state.pods:
            if now != GONE:
                yield f"{uid} is deleted", with_pod(state, uid, GONE)._replace(left=(binds, breaks, deletions - 1))


def _of_binds(protocol: Protocol, state: State) -> Iterator[Step]:
    binds, breaks, deletions = state.left
    if binds:
        for uid, _ in state.pods:
            for node in range(len(state.records)):
                sent = and_bind(state, Bind(uid, node, "", 0))
                yield f"a bind of {uid} to n{node} is sent", sent._replace(left=(binds - 1, breaks, deletions))
    for one in dict.fromkeys(state.binds):
        rest = without(state, one)
        if one.card:
            done = with_pod(rest, one.uid, one.card) if dict(state.pods)[one.uid] == UNBOUND else rest
            yield f"the bind of {one.uid} to {one.card} is performed", done
            continue
        for replica in range(len(state.replicas)):
            after, card = protocol.decide(rest, one, replica)
            what = f"replica {replica} decides the bind of {one.uid} to n{one.node}: {card or 'refused'}"
            yield what, and_bind(after, one._replace(card=card)) if card else after
            if after.records != state.records:
                yield f"{what}; it ends before it answers", after


def _of_replicas(protocol: Protocol, state: State) -> Iterator[Step]:
    for at, replica in enumerate(state.replicas):
        for node in range(len(state.records)):
            seen = _seen(replica, node, state.records[node])
            if seen != replica.sights:
                yield f"replica {at} sees n{node}", with_replica(state, at, replica._replace(sights=seen))
        if replica.pending is not None:
            idle = with_replica(state, at, replica._replace(pending=None))
            _, seen_as, how = replica.pending
            yield f"replica {at} writes: {how} {seen_as}", protocol.sweep(idle, *replica.pending)
            continue
        for sight in replica.sights:
            decided = protocol.judge(state, sight, at)
            if decided is not None:
                pending = replica._replace(pending=(sight.node, sight.held, decided))
                yield f"replica {at} reads {sight.held.uid} and decides: {decided}", with_replica(state, at, pending)


def _seen(replica: Replica, node: int, there: tuple[Held, ...]) -> tuple[Sight, ...]:
    """What a replica has seen once it sees a record: what is unchanged keeps its age."""
    before = {sight.held: sight.age for sight in replica.sights if sight.node == node}
    others = [sight for sight in replica.sights if sight.node != node]
    return tuple(sorted([*others, *(Sight(node, one, before.get(one, 0)) for one in there)]))


def passed(state: State) -> State:
    """A unit of time passes: requests that are too old are never performed."""
    replicas = tuple(
        replica._replace(sights=tuple(sight._replace(age=min(sight.age + 1, OLD)) for sight in replica.sights))
        for replica in state.replicas
    )
    binds = tuple(sorted(one._replace(age=one.age + 1) for one in state.binds if one.age < LIFE))
    return state._replace(replicas=replicas, binds=binds)


def wrong(state: State) -> str:
    """What must never be so in a state; "" if nothing is wrong."""
    pods = dict(state.pods)
    owners: dict[str, set[str]] = {}
    for uid, card in state.pods:
        if card not in {UNBOUND, GONE}:
            owners.setdefault(card, set()).add(uid)
    for one in state.binds:
        if one.card and pods[one.uid] == UNBOUND:
            owners.setdefault(one.card, set()).add(one.uid)
    for card, uids in owners.items():
        if len(uids) > 1:
            return f"{card} is given to {' and '.join(sorted(uids))}"
    recorded = {(one.uid, one.card) for there in state.records for one in there}
    for uid, card in state.pods:
        if card not in {UNBOUND, GONE} and (uid, card) not in recorded:
            return f"{uid} is bound to {card}, which the ledger does not hold for it"
    return ""


def leaked(protocol: Protocol, state: State) -> str:
    """What is held by nobody who lives after all requests have ended and one new replica has swept; "" if nothing."""
    state = state._replace(binds=(), replicas=(Replica(),), left=(0, 0, 0))
    for _ in range(12):
        for node, there in enumerate(state.records):
            state = with_replica(state, 0, Replica(_seen(state.replicas[0], node, there)))
        for sight in state.replicas[0].sights:
            how = protocol.judge(state, sight, 0)
            if how is not None:
                state = protocol.sweep(state, sight.node, sight.held, how)
        state = passed(state)
    bound = {(uid, card, "") for uid, card in state.pods if card not in {UNBOUND, GONE}}
    kept = {(one.uid, one.card, one.mark) for there in state.records for one in there}
    return "" if kept == bound else f"held in the end: {sorted(kept)}; bound: {sorted(bound)}"


def explore(scope: Scope, make: Callable[[Scope], Protocol] = Protocol, *, ends: bool = True) -> Explored:
    """Visit all states, those with the fewest steps first, until one is wrong or the bound is reached.

    Args:
        scope: what may happen.
        make: makes the protocol.
        ends: whether it counts what is held in the end by nobody who lives.
    """
    protocol = make(scope)
    drained: set[tuple[object, ...]] = set()

    def bad(state: State) -> str:
        why = wrong(state)
        rest = (state.records, state.pods)
        if ends and not why and rest not in drained:
            drained.add(rest)
            why = leaked(protocol, state)
        return why

    return search(scope.begin(), lambda state: steps(protocol, state), bad, states=scope.states)
