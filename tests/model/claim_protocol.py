"""A model of how binds and allocations of ResourceClaims share one node: all interleavings, up to a bound.

The decisions are those of the product: `bind` of `allocator.bind`, `reserve`, `judge`, `end` and `release` of
`allocator.claimed`, and what `ClaimTable` says of claims that were seen at any time. The model has what surrounds them:
writes that are performed some time after they were answered, or never, and only if the claim is still at the revision
that was reviewed; replicas that see claims late; and time, whose unit is the longest life of a request.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal, NamedTuple

from builders import app, gpu, gpus, part, request

from allocator import bind as pods
from allocator import claimed
from allocator.bind import Holdings, PodToBind
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.holdings import (
    ClaimedDevice,
    DeviceName,
    Holding,
    ListedDevice,
    ResourceClaim,
    ResourceSlice,
    of_claims,
)
from allocator.vocabulary.node import NodeSnapshot
from koordgate.breaks import at_once
from webhook.view.changes import Changes
from webhook.view.claims import ClaimTable

GRACE: Final = 1.0
LIFE: Final = 1  # units for which a request may be performed
OLD: Final = 2  # units after which nothing depends on how much longer something was seen
WHOLE_CARD: Final = request(app("main", gpus(100)))
DRIVER: Final = "gpu.nvidia.com"
NODE: Final = "n0"
UNBOUND: Final = ""
GONE: Final = "gone"


class Held(NamedTuple):
    """A holding of whole cards: of a claim, if it has a fence."""

    uid: str
    cards: tuple[str, ...]
    fence: int = 0
    mark: str = ""


class Stored(NamedTuple):
    """A claim as stored, or as seen: allocated to a card, or to none; revision 0 for one that is gone."""

    uid: str
    revision: int
    card: str = ""


class Write(NamedTuple):
    """An allocation under way, of the claim at a revision."""

    uid: str
    revision: int
    card: str
    age: int = 0
    reviewed: bool = False


class Bind(NamedTuple):
    """A Binding under way, answered with a card or not yet."""

    uid: str
    card: str = ""
    age: int = 0


Sweep = Literal["end", "release"]


class Replica(NamedTuple):
    """What a replica has seen of claims and of reservations (with its age), and what it is about to write."""

    claims: tuple[Stored, ...] = ()
    sights: tuple[tuple[Held, int], ...] = ()
    pending: tuple[Held, Sweep] | None = None


class State(NamedTuple):
    """The node and the API server.

    Attributes:
        record: what is recorded as held.
        claims: as stored.
        pods: for each Pod UNBOUND, GONE, or its card.
        writes: allocations under way.
        binds: Bindings under way.
        replicas: who review, bind and sweep.
        left: how many allocations and Bindings may still be sent, claims deallocated, claims deleted, Pods deleted.
    """

    record: tuple[Held, ...]
    claims: tuple[Stored, ...]
    pods: tuple[tuple[str, str], ...]
    writes: tuple[Write, ...]
    binds: tuple[Bind, ...]
    replicas: tuple[Replica, ...]
    left: tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Scope:
    """How large the explored world is; the last five bound what happens, in the order of `State.left`."""

    cards: tuple[str, ...] = ("c0",)
    claims: tuple[str, ...] = ("x",)
    pods: tuple[str, ...] = ("p",)
    replicas: int = 1
    writes: int = 1
    binds: int = 1
    deallocations: int = 0
    deletions: int = 0
    ends: int = 0
    states: int = 1_000_000

    def begin(self) -> State:
        stored = tuple(Stored(uid, 1) for uid in self.claims)
        left = (self.writes, self.binds, self.deallocations, self.deletions, self.ends)
        replicas = (Replica(stored),) * self.replicas
        return State((), stored, tuple((uid, UNBOUND) for uid in self.pods), (), (), replicas, left)


def claim_of(stored: Stored) -> ResourceClaim:
    devices = (ClaimedDevice(DeviceName(DRIVER, "pool", stored.card)),) if stored.card else ()
    return ResourceClaim(stored.uid, "default", stored.uid, stored.revision, NODE, devices)


class Protocol:
    """The product's decisions on the model's states. The doctored protocols of the tests change one each."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.devices = tuple(gpu(minor, device_id=card) for minor, card in enumerate(scope.cards))
        listed = {card: ListedDevice(NODE, (card,)) for card in scope.cards}
        self.slices = ResourceSlice("slice", DRIVER, "pool", 1, listed)
        self.table = cache(self._table)
        self._binds = cache(self._bound)
        self._reviews = cache(self._reviewed)

    def holding(self, held: Held) -> Holding:
        shares = tuple(part(device, 100) for device in self.devices if device.id in held.cards)
        return Holding(held.uid, "default", held.uid, 0, shares, ending=held.mark, fence=held.fence)

    def holdings(self, there: tuple[Held, ...]) -> dict[str, Holding]:
        return {held.uid: self.holding(held) for held in there}

    def _table(self, seen: tuple[Stored, ...]) -> ClaimTable:
        table = ClaimTable(Changes(), {DRIVER: GPU_TYPE})
        table.put_slice(self.slices)
        for stored in seen:
            if stored.revision:
                table.put(claim_of(stored))
            else:
                table.drop(stored.uid, deleted=True)
        return table

    def snapshot(self, holdings: Holdings, seen: tuple[Stored, ...]) -> NodeSnapshot:
        """As `Snapshots.on` makes it."""
        claims = self.table(seen).on(NODE, self.devices, of_claims(holdings))
        ours = {uid: one for uid, one in holdings.items() if not one.fence}
        return NodeSnapshot(NODE, self.devices, ours, claims=claims)

    def _bound(self, there: tuple[Held, ...], seen: tuple[Stored, ...], uid: str) -> tuple[tuple[Held, ...], str]:
        claim = PodToBind(uid, "default", uid, WHOLE_CARD)
        change = pods.bind(claim, lambda holdings: self.snapshot(holdings, seen), 0, "unused")
        changed, decided = at_once(change(self.holdings(there)))
        card = decided.outcome.shares[0].id if isinstance(decided.outcome, Holding) else ""
        return (there if changed is None else record(changed)), card

    def _reviewed(self, there: tuple[Held, ...], seen: tuple[Stored, ...], at: Write) -> tuple[tuple[Held, ...], bool]:
        wanted = self.holding(Held(at.uid, (at.card,), at.revision))
        change = claimed.reserve(wanted, lambda holdings: self.snapshot(holdings, seen))
        changed, refusal = change(self.holdings(there))
        return (there if changed is None else record(changed)), refusal is None

    def decide(self, state: State, uid: str, replica: int) -> tuple[State, str]:
        """Decide a Binding on the record as it is: the state after the write, and the card that is the answer."""
        there, card = self._binds(state.record, state.replicas[replica].claims, uid)
        return state._replace(record=there), card

    def review(self, state: State, at: Write, replica: int) -> tuple[State, bool]:
        """Review an allocation on the record as it is: the state after the write, and whether it is allowed."""
        seen = state.replicas[replica].claims
        known = next((one for one in seen if one.uid == at.uid and one.revision >= at.revision), None)
        if (known or stored(state, at.uid)).revision != at.revision:
            return state, False
        there, allowed = self._reviews(state.record, seen, at)
        return state._replace(record=there), allowed

    def sweeps(self, state: State, replica: int) -> Iterator[tuple[str, Held, Sweep]]:
        """What a replica decides about reservations: by what it has seen, and by a live read."""
        mine = state.replicas[replica]
        table = self.table(mine.claims)
        for held, age in mine.sights:
            reservation = self.holding(held)
            known = table.known(held.uid)
            if table.is_over(reservation) and not (known is not None and known.holds):
                yield f"replica {replica} has seen the end of {held}", held, "release"
            live = stored(state, held.uid)
            read = claim_of(live) if live.revision else None
            here = bool(live.revision and live.card)
            how = claimed.judge(reservation, read, here=here, seen_s=age, grace=GRACE)
            if how is not None:
                yield f"replica {replica} reads {live} and decides: {how}", held, "end" if how == "end" else "release"

    def sweep(self, state: State, seen: Held, how: Sweep) -> State:
        """Write what was decided about a reservation."""
        known = {held.mark for held in state.record}
        known.update(held.mark for replica in state.replicas for held, _ in replica.sights)
        known.update(replica.pending[0].mark for replica in state.replicas if replica.pending is not None)
        mark = next(mark for mark in "abcdefgh" if mark not in known)
        change = claimed.end(self.holding(seen), mark) if how == "end" else claimed.release(self.holding(seen))
        changed, _ = change(self.holdings(state.record))
        return state if changed is None else state._replace(record=record(changed))


def record(holdings: Holdings) -> tuple[Held, ...]:
    made = (Held(one.uid, tuple(sorted(s.id for s in one.shares)), one.fence, one.ending) for one in holdings.values())
    return tuple(sorted(made))


def stored(state: State, uid: str) -> Stored:
    return next(one for one in state.claims if one.uid == uid)


def with_claim(state: State, now: Stored) -> State:
    return state._replace(claims=tuple(now if one.uid == now.uid else one for one in state.claims))


def with_pod(state: State, uid: str, now: str) -> State:
    return state._replace(pods=tuple((other, now if other == uid else was) for other, was in state.pods))


def with_replica(state: State, at: int, now: Replica) -> State:
    return state._replace(replicas=(*state.replicas[:at], now, *state.replicas[at + 1 :]))


def spent(state: State, what: int) -> State:
    left = tuple(number - (at == what) for at, number in enumerate(state.left))
    return state._replace(left=left)  # type: ignore[arg-type] # as many as before


def steps(protocol: Protocol, state: State) -> Iterator[tuple[str, State]]:
    """All that may happen next."""
    yield "time passes", passed(state)
    yield from _of_claims(protocol, state)
    yield from _of_writes(protocol, state)
    yield from _of_pods(protocol, state)
    for at in range(len(state.replicas)):
        yield from _of_replica(protocol, state, at)


def _of_claims(protocol: Protocol, state: State) -> Iterator[tuple[str, State]]:
    writes, _, deallocations, deletions, _ = state.left
    for one in state.claims:
        if not one.revision:
            continue
        if writes and not one.card:
            for card in protocol.scope.cards:
                write = Write(one.uid, one.revision, card)
                sent = state._replace(writes=tuple(sorted((*state.writes, write))))
                yield f"an allocation of {one.uid} to {card} is sent", spent(sent, 0)
        if deallocations and one.card:
            now = with_claim(state, Stored(one.uid, one.revision + 1))
            yield f"{one.uid} is deallocated", spent(now, 2)
        if deletions:
            yield f"{one.uid} is deleted", spent(with_claim(state, Stored(one.uid, 0)), 3)


def _of_writes(protocol: Protocol, state: State) -> Iterator[tuple[str, State]]:
    for write in dict.fromkeys(state.writes):
        left = list(state.writes)
        left.remove(write)
        rest = state._replace(writes=tuple(left))
        if write.reviewed:
            now = stored(state, write.uid)
            done = with_claim(rest, Stored(write.uid, now.revision + 1, write.card))
            yield f"{write} is performed, or fails", done if now.revision == write.revision else rest
            continue
        for replica in range(len(state.replicas)):
            after, allowed = protocol.review(rest, write, replica)
            what = f"replica {replica} reviews {write}: {'allowed' if allowed else 'refused'}"
            answered = write._replace(reviewed=True)
            yield what, after._replace(writes=tuple(sorted((*after.writes, answered)))) if allowed else after
            if after.record != state.record:
                yield f"{what}; it ends before it answers", after


def _of_pods(protocol: Protocol, state: State) -> Iterator[tuple[str, State]]:
    _, binds, _, _, ends = state.left
    for uid, now in state.pods:
        if binds:
            yield f"a bind of {uid} is sent", spent(state._replace(binds=tuple(sorted((*state.binds, Bind(uid))))), 1)
        if ends and now != GONE:
            yield f"{uid} is deleted", spent(with_pod(state, uid, GONE), 4)
        if now == GONE and uid in {held.uid for held in state.record}:
            left = tuple(held for held in state.record if held.uid != uid)
            yield f"what {uid} held is released", state._replace(record=left)
    for one in dict.fromkeys(state.binds):
        left_over = list(state.binds)
        left_over.remove(one)
        rest = state._replace(binds=tuple(left_over))
        if one.card:
            done = with_pod(rest, one.uid, one.card) if dict(state.pods)[one.uid] == UNBOUND else rest
            yield f"the bind of {one.uid} to {one.card} is performed", done
            continue
        for replica in range(len(state.replicas)):
            after, card = protocol.decide(rest, one.uid, replica)
            answered = after._replace(binds=tuple(sorted((*after.binds, one._replace(card=card)))))
            yield f"replica {replica} binds {one.uid}: {card or 'refused'}", answered if card else after


def _of_replica(protocol: Protocol, state: State, at: int) -> Iterator[tuple[str, State]]:
    replica = state.replicas[at]
    for one in state.claims:
        if one not in replica.claims:
            seen = tuple(one if known.uid == one.uid else known for known in replica.claims)
            yield f"replica {at} sees {one}", with_replica(state, at, replica._replace(claims=seen))
    before = dict(replica.sights)
    sights = tuple((held, before.get(held, 0)) for held in state.record if held.fence)
    if sights != replica.sights:
        yield f"replica {at} sees the record", with_replica(state, at, replica._replace(sights=sights))
    if replica.pending is not None:
        idle = with_replica(state, at, replica._replace(pending=None))
        yield f"replica {at} writes: {replica.pending}", protocol.sweep(idle, *replica.pending)
        return
    for what, held, how in protocol.sweeps(state, at):
        yield what, with_replica(state, at, replica._replace(pending=(held, how)))


def passed(state: State) -> State:
    """A unit of time passes: requests that are too old are never performed."""
    replicas = tuple(
        one._replace(sights=tuple((held, min(age + 1, OLD)) for held, age in one.sights)) for one in state.replicas
    )
    writes = tuple(sorted(one._replace(age=one.age + 1) for one in state.writes if one.age < LIFE))
    binds = tuple(sorted(one._replace(age=one.age + 1) for one in state.binds if one.age < LIFE))
    return state._replace(replicas=replicas, writes=writes, binds=binds)


def wrong(state: State) -> str:
    """Which card a Pod has, or is about to get, that another Pod or a claim has or is about to get; "" if none."""
    bound = {card: {uid for uid, has in state.pods if has == card} for _, card in state.pods if card not in {"", GONE}}
    for one in state.binds:
        if one.card and dict(state.pods)[one.uid] == UNBOUND:
            bound.setdefault(one.card, set()).add(one.uid)
    claims = {(one.card, one.uid) for one in state.claims if one.revision and one.card}
    claims |= {
        (one.card, one.uid) for one in state.writes if one.reviewed and stored(state, one.uid).revision == one.revision
    }
    for card, uids in bound.items():
        holders = {*uids, *(uid for other, uid in claims if other == card)}
        if len(holders) > 1:
            return f"{card} is given to {' and '.join(sorted(holders))}"
    return ""


def leaked(protocol: Protocol, state: State) -> str:
    """What is reserved for no claim after all requests have ended and one new replica has swept; "" if nothing."""
    state = state._replace(writes=(), binds=(), replicas=(Replica(state.claims),))
    for _ in range(6):
        before = dict(state.replicas[0].sights)
        sights = tuple((held, before.get(held, 0)) for held in state.record if held.fence)
        state = with_replica(state, 0, state.replicas[0]._replace(sights=sights))
        for _what, held, how in list(protocol.sweeps(state, 0)):
            state = protocol.sweep(state, held, how)
        state = passed(state)
    allocated = {one.uid for one in state.claims if one.card}
    kept = [held for held in state.record if held.fence and held.uid not in allocated]
    return f"reserved in the end: {kept}" if kept else ""


@dataclass(frozen=True)
class Explored:
    """How many states a search has visited, whether there are no others, what is wrong, and the steps to it."""

    states: int
    complete: bool
    found: str = ""
    story: tuple[str, ...] = ()


def explore(scope: Scope, make: Callable[[Scope], Protocol] = Protocol, *, ends: bool = True) -> Explored:
    """Visit all states, those with the fewest steps first, until one is wrong or the bound is reached.

    Args:
        scope: what may happen.
        make: makes the protocol.
        ends: whether it counts what is reserved in the end for nobody.
    """
    protocol = make(scope)
    begin = scope.begin()
    came: dict[State, tuple[State, str] | None] = {begin: None}
    drained: set[tuple[object, ...]] = set()
    waiting = deque([begin])
    while waiting:
        state = waiting.popleft()
        why = wrong(state)
        rest = (state.record, state.claims)
        if ends and not why and rest not in drained:
            drained.add(rest)
            why = leaked(protocol, state)
        if why:
            return Explored(len(came), complete=False, found=why, story=_story(came, state))
        for what, after in steps(protocol, state):
            if after not in came and len(came) < scope.states:
                came[after] = (state, what)
                waiting.append(after)
    return Explored(len(came), complete=len(came) < scope.states)


def _story(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    told: list[str] = []
    step = came[state]
    while step is not None:
        told.append(step[1])
        step = came[step[0]]
    return tuple(reversed(told))


def bounded(scope: Scope, states: int) -> Scope:
    """The same scope, up to a number of states."""
    return replace(scope, states=states)
