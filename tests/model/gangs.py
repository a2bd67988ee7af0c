"""A model of gangs that are bound as a whole: plans, gates, marks, binds, sweeps, crashes, time and old views.

The decisions are those of the product: `next_step` and `SeenHolds` of `webhook.gangs`, the changes of `allocator.hold`
and `allocator.bind`, `place`, and `judge` of `webhook.upkeep.sweep`. The model has what surrounds them. A replica sees
records and Pods late, decides on a step by what it has seen, and writes one record or Pod after another: anything may
happen between two writes, and it may end there. The API server performs a Binding some time after it was answered, or
never. A write to a record is atomic and decides on the record as it is.

Time passes in moments of `MOMENT_S`. A watch is late by less than one. A Binding is performed within two, all writes of
a step are over within two, and a replica does within two what is to be done. The present is always `NOW`: what is
written is shifted as time passes, so that states that differ in nothing else are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal, NamedTuple, assert_never

from builders import app, finish, gpu, gpus, part, request
from model.search import Explored, search, wander

from allocator.bind import MOST_UNBOUND, Claim, Holdings, bind, end, keep, release
from allocator.hold import Planned, close, give_back, hold, hold_again, limit, prolong
from allocator.place import place
from allocator.vocabulary.asks import Wishes
from allocator.vocabulary.holdings import WITHOUT_LIMIT, Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from webhook.gangs.seen import SeenHolds, _Seen
from webhook.gangs.step import (
    Close,
    FindRoom,
    GangHold,
    GangMember,
    GangStep,
    GangTimes,
    GiveBack,
    Lift,
    Limit,
    OwnHold,
    Prolong,
    Rest,
    next_step,
)
from webhook.upkeep.sweep import Sweep, judge
from webhook.view.podinfo import PodInfo

MOMENT_S: Final = 30
HOLD_S: Final = 3 * MOMENT_S
GRACE_S: Final = 4.0 * MOMENT_S
NOW: Final = 1_000_000
LONG_AGO: Final = 8 * MOMENT_S  # nothing depends on how much longer ago something was
LENGTH: Final = 80  # steps of a walk
LIFE: Final = 1  # moments that a Binding or a step outlasts
GANG: Final = "default/g"
UNBOUND: Final = ""
GONE: Final = "gone"


class Held(NamedTuple):
    """A holding of one card; times in seconds, as in `Holding`."""

    uid: str
    card: str
    since: int
    until: int = 0
    mark: str = ""


class Pod(NamedTuple):
    """A Pod: UNBOUND, GONE, or the card that its annotations name once it is bound."""

    uid: str
    gated: bool
    card: str = UNBOUND


class Bind(NamedTuple):
    """A Binding that was answered with a card, and its age in moments."""

    uid: str
    node: int
    card: str
    age: int = 0


class Write(NamedTuple):
    """One write of a step: the kind, its node or -1, and what it is about."""

    kind: str
    node: int
    about: tuple[Held | str, ...]
    until: int = 0

    def __str__(self) -> str:
        names = [f"{one.uid} {one.mark}".strip() if isinstance(one, Held) else one for one in self.about]
        return f"{self.kind} {', '.join(names)}{f' on n{self.node}' if self.node >= 0 else ''}"


class Work(NamedTuple):
    """What a replica is about to write, what a plan has written by then, and the age of the step in moments."""

    left: tuple[Write, ...]
    written: tuple[tuple[int, Held], ...] = ()
    plan: bool = False
    age: int = 0

    @property
    def told(self) -> str:
        return "; ".join(map(str, self.left))


Record = tuple[Held, ...]
Records = tuple[Record, ...]
Pods = tuple[Pod, ...]
Seen = tuple[tuple[tuple[OwnHold, int], ...], tuple[int, int], int | None]
"""As `_Seen`, with ages in seconds: of each hold, the latest end and its age, and the age of the marks on all."""

UNSEEN: Final[Seen] = ((), (0, 0), None)


class Replica(NamedTuple):
    """What a replica has seen and remembers.

    Attributes:
        records, pods: as last seen.
        seen: for how long it has seen the holds of the gang.
        sights: for how many seconds it has seen each holding as it is, with its node.
        own: holds of plans that it has completed.
        work: what it is about to write; None while it does nothing.
        idle: whether a moment has passed in which it did not do what is to be done.
    """

    records: Records
    pods: Pods
    seen: Seen = UNSEEN
    sights: tuple[tuple[int, Held, int], ...] = ()
    own: tuple[OwnHold, ...] = ()
    work: Work | None = None
    idle: bool = False


class State(NamedTuple):
    """The cluster, and how many deletions, crashes and strangers' Pods may still come."""

    records: Records
    pods: Pods
    binds: tuple[Bind, ...]
    replicas: tuple[Replica, ...]
    deletions: int
    crashes: int


Step = tuple[str, State]


@dataclass(frozen=True)
class GangScope:
    """How large the explored cluster is.

    Attributes:
        cards: of each node.
        pods: of the gang, each of which asks for a whole card.
        least: how many of them the gang needs.
        replicas: that tend and sweep.
        deletions: how many Pods are deleted.
        crashes: how often a replica ends, and another one takes its place.
        begin_with: the gates; or none, after room was held in vain; or none, and room for as many Pods as there are
            cards.
    """

    cards: tuple[tuple[str, ...], ...]
    pods: tuple[str, ...] = ("p", "q")
    least: int = 2
    replicas: int = 2
    deletions: int = 0
    crashes: int = 1
    begin_with: Literal["gates", "no gates", "room"] = "gates"

    def begin(self) -> State:
        """The state in which nothing has happened."""
        records: Records = tuple(() for _ in self.cards)
        if self.begin_with == "room":
            left = list(self.pods)
            records = tuple(
                tuple(Held(left.pop(0), card, NOW, NOW + HOLD_S) for card in cards if left) for cards in self.cards
            )
        pods = tuple(Pod(uid, gated=self.begin_with == "gates") for uid in self.pods)
        replicas = (Replica(records, pods),) * self.replicas
        return State(records, pods, (), replicas, self.deletions, self.crashes)


def node_name(node: int) -> str:
    return f"n{node}"


@cache
def holding(held: Held) -> Holding:
    share = part(gpu(0, device_id=held.card), 100, "main")
    return Holding(held.uid, "default", held.uid, held.since, (share,), None, GANG, held.until, held.mark)


def held(of: Holding) -> Held:
    (share,) = of.shares
    return Held(of.uid, share.id, of.since, of.until, of.ending)


def holdings(record: Record) -> dict[str, Holding]:
    return {one.uid: holding(one) for one in record}


def record(of: Holdings) -> Record:
    return tuple(sorted(map(held, of.values())))


ASKS: Final = replace(request(app("main", gpus(100))), wishes=Wishes(gang=GANG, together=True))


def with_record(state: State, node: int, now: Record) -> State:
    return state._replace(records=(*state.records[:node], now, *state.records[node + 1 :]))


def with_pod(state: State, now: Pod) -> State:
    return state._replace(pods=tuple(now if one.uid == now.uid else one for one in state.pods))


def with_replica(state: State, at: int, now: Replica) -> State:
    return state._replace(replicas=(*state.replicas[:at], now, *state.replicas[at + 1 :]))


class GangProtocol:
    """The product's decisions on the model's states. The doctored protocols of the tests change one each."""

    def __init__(self, scope: GangScope) -> None:
        self.scope = scope
        self._info = cache(self._made_info)
        self._planned = cache(self._found)

    def node_of(self, card: str) -> int:
        return next((node for node, cards in enumerate(self.scope.cards) if card in cards), -1)

    def snapshot(self, node: int) -> Callable[[Holdings], NodeSnapshot]:
        cards = [gpu(minor, device_id=card) for minor, card in enumerate(self.scope.cards[node])]
        return NodeSnapshot(node_name(node), tuple(cards)).holding_all

    def _made_info(self, pod: Pod) -> PodInfo:
        node = node_name(self.node_of(pod.card)) if pod.card else ""
        return PodInfo(pod.uid, "default", pod.uid, node, False, False, "koord-scheduler", True, ASKS, gated=pod.gated)

    # --- the keeper

    def step(self, replica: Replica) -> tuple[GangStep, Seen]:
        """Decide on the next step by what a replica has seen."""
        members = [
            GangMember(
                self._info(pod),
                tuple(
                    (node_name(node), holding(one))
                    for node, there in enumerate(replica.records)
                    for one in there
                    if one.uid == pod.uid
                ),
            )
            for pod in replica.pods
            if pod.card != GONE
        ]
        times, seen = looked(replica.seen, members)
        return self.next(members, times, frozenset(replica.own)), seen

    def next(self, members: Sequence[GangMember], times: GangTimes, own: frozenset[OwnHold]) -> GangStep:
        return next_step(members, self.scope.least, times, own)

    def work(self, state: State, at: int, step: GangStep) -> Work | None:
        """The writes of a step; None where there are none."""
        match step:
            case Rest():
                writes: tuple[Write, ...] = ()
            case Lift(pods):
                writes = tuple(Write("lift", -1, (pod.uid,)) for pod in pods)
            case Close(holds):
                writes = _on_nodes("close", holds)
            case GiveBack(holds):
                writes = _on_nodes("give back", holds)
            case Prolong(holds, until):
                writes = _on_nodes("prolong", holds, until)
            case Limit(holds):
                writes = _on_nodes("limit", holds, NOW + HOLD_S)
            case FindRoom():
                writes = self._plan(state, at, step)
            case _:
                assert_never(step)
        return Work(writes, plan=isinstance(step, FindRoom)) if writes else None

    def _plan(self, state: State, at: int, step: FindRoom) -> tuple[Write, ...]:
        """Replicas prefer other nodes, so that two plans differ."""
        uids = tuple(pod.uid for pod in step.pods)
        records = state.replicas[at].records
        order = -1 if at % 2 else 1
        found = self._planned(records, uids, order) or self._planned(records, uids[: step.needed], order)
        if not found:
            return ()
        since, until = self._since(state), step.until or NOW + HOLD_S
        mark = "" if all(pod.gated for pod in step.pods) else self.plan_mark(state)
        writes = tuple(
            Write(
                "hold", node, tuple(Held(uid, card, since, until, mark) for there, uid, card in found if there == node)
            )
            for node in sorted({node for node, *_ in found})
        )
        unmarked = tuple(write._replace(kind="prolong", until=until) for write in writes) if mark else ()
        return *writes, *unmarked

    def plan_mark(self, state: State) -> str:
        return self.new_mark(state)

    def _found(self, records: Records, uids: tuple[str, ...], order: int) -> tuple[tuple[int, str, str], ...]:
        """Room for all of these Pods, as (node, UID, card); empty where there is none."""
        there = [dict(holdings(one)) for one in records]
        found = []
        for uid in uids:
            for node in sorted(range(len(there)), reverse=order < 0):
                placed = place(ASKS, self.snapshot(node)(there[node]))
                if uid not in there[node] and not isinstance(placed, Refusal):
                    card = placed.shares[0].id
                    there[node][uid] = holding(Held(uid, card, NOW, NOW + HOLD_S))
                    found.append((node, uid, card))
                    break
            else:
                return ()
        return tuple(found)

    def _since(self, state: State) -> int:
        """A beginning that no hold has which anybody knows of."""
        known = {one.since for there in state.records for one in there}
        for replica in state.replicas:
            known.update(since for _, _, since in replica.own)
            known.update(one.since for there in replica.records for one in there)
            for write in replica.work.left if replica.work else ():
                known.update(one.since for one in write.about if isinstance(one, Held))
        return next(since for since in range(NOW, NOW + MOMENT_S) if since not in known)

    def new_mark(self, state: State) -> str:
        """A name that no mark has which anybody knows of."""
        known = {one.mark for there in state.records for one in there}
        for replica in state.replicas:
            known.update(one.mark for there in replica.records for one in there)
            known.update(one.mark for _, one, _ in replica.sights)
            for write in replica.work.left if replica.work else ():
                known.update(one.mark for one in write.about if isinstance(one, Held))
        return next(mark for mark in "abcdefghijkl" if mark not in known)

    def written(self, state: State, at: int, write: Write) -> tuple[State, bool]:
        """Perform a write on the record or the Pod as it is; False where a plan finds its room taken."""
        if write.kind == "lift":
            pod = next(pod for pod in state.pods if pod.uid == write.about[0])
            return with_pod(state, pod._replace(gated=False)), True
        after, good = self.changed(state.records[write.node], write, self.new_mark(state))
        state = with_record(state, write.node, after)
        replica = state.replicas[at]  # a write shows the record as it is
        seen = (*replica.records[: write.node], after, *replica.records[write.node + 1 :])
        return with_replica(state, at, replica._replace(records=seen)), good

    @cache  # noqa: B019 a protocol lives as long as a search
    def changed(self, there: Record, write: Write, mark: str) -> tuple[Record, bool]:
        about = [one for one in write.about if isinstance(one, Held)]
        uids = [one.uid for one in about]
        change: Callable[[Holdings], tuple[Holdings | None, object]]
        match write.kind:
            case "hold":
                planned = [Planned(Claim(one.uid, "default", one.uid, ASKS), holding(one)) for one in about]
                held = hold(planned, self.snapshot(write.node), about[0].since, about[0].until, about[0].mark)
                change = lambda there: finish(held(there))  # noqa: E731 as the other changes are
            case "close":
                change = close(uids, mark)
            case "prolong":
                change = prolong(uids, write.until)
            case "limit":
                change = limit(uids, write.until)
            case "give back":
                change = give_back({one.uid: (one.until, one.mark) for one in about})
            case how:
                change = self.sweep(holding(about[0]), how, mark)
        changed, answer = change(holdings(there))
        return (there if changed is None else record(changed)), not isinstance(answer, Refusal)

    # --- the sweep

    def judge(self, state: State, node: int, seen: Held, seen_s: int) -> Sweep | None:
        """Read the Pod, and decide what is done about a holding."""
        pod = next(pod for pod in state.pods if pod.uid == seen.uid)
        live = None if pod.card == GONE else (pod.uid, self._info(pod))
        return judge(holding(seen), node_name(node), live, seen_s, GRACE_S)

    def sweep(self, seen: Holding, how: str, mark: str) -> Callable[[Holdings], tuple[Holdings | None, object]]:
        match how:
            case "end":
                return end(seen, mark)
            case "keep":
                return keep(seen.uid)
            case "unbound":
                return release(seen.uid, ending=seen.ending)
            case "hold again":
                return hold_again(seen.uid, seen.ending, NOW + HOLD_S)
            case _:
                return release(seen.uid)

    # --- the bind

    def decide(self, state: State, at: int, uid: str, node: int) -> tuple[State, str]:
        """Decide a Binding on the record as it is: the state after the write, and the card that is the answer."""
        elsewhere = [
            other
            for other, there in enumerate(state.replicas[at].records)
            if other != node and any(one.uid == uid for one in there)
        ]
        if len(elsewhere) >= MOST_UNBOUND:
            return state, ""
        after, card = self.bound(state.records[node], node, uid, self.new_mark(state))
        return with_record(state, node, after), card

    @cache  # noqa: B019 as above
    def bound(self, there: Record, node: int, uid: str, mark: str) -> tuple[Record, str]:
        claim = Claim(uid, "default", uid, ASKS, together=self.together)
        changed, decided = finish(bind(claim, self.snapshot(node), NOW, mark)(holdings(there)))
        card = decided.outcome.shares[0].id if isinstance(decided.outcome, Holding) else ""
        return (there if changed is None else record(changed)), card

    together = True


def looked(seen: Seen, members: Sequence[GangMember]) -> tuple[GangTimes, Seen]:
    """Let `SeenHolds` look at the holds: what it tells, and what it remembers then."""
    first, (until, age), closed = seen
    memory = SeenHolds(lambda: NOW, HOLD_S)
    memory._gangs[GANG] = _Seen(
        {one: NOW - old for one, old in first}, (until, NOW - age), None if closed is None else NOW - closed
    )
    times = memory.see(GANG, members)
    kept = memory._gangs.get(GANG)
    if kept is None:
        return times, UNSEEN
    ages = tuple(sorted((one, int(NOW - since)) for one, since in kept.first.items()))
    return times, (
        ages,
        (kept.latest[0], int(NOW - kept.latest[1])),
        None if kept.closed is None else int(NOW - kept.closed),
    )


def _on_nodes(kind: str, holds: Sequence[GangHold], until: int = 0) -> tuple[Write, ...]:
    nodes: dict[int, list[Held]] = {}
    for one in sorted(holds, key=lambda one: (one.node, one.uid)):
        nodes.setdefault(int(one.node[1:]), []).append(Held(one.uid, "", NOW - LONG_AGO, one.until, one.ending))
    return tuple(Write(kind, node, tuple(about), until) for node, about in nodes.items())


def steps(protocol: GangProtocol, state: State) -> Iterator[Step]:
    """All that may happen next."""
    if all(replica.work.age < LIFE if replica.work else not replica.idle for replica in state.replicas):
        yield "time passes", passed(protocol, state)
    yield from _of_pods(protocol, state)
    for at in range(len(state.replicas)):
        yield from _of_replica(protocol, state, at)


def _of_pods(protocol: GangProtocol, state: State) -> Iterator[Step]:
    for pod in state.pods:
        if pod.card == GONE:
            continue
        if state.deletions:
            yield (
                f"{pod.uid} is deleted",
                with_pod(state, pod._replace(card=GONE))._replace(deletions=state.deletions - 1),
            )
        if pod.gated or pod.card:
            continue
        for at, node in ((at, node) for at in range(len(state.replicas)) for node in range(len(state.records))):
            after, card = protocol.decide(state, at, pod.uid, node)
            told = f"replica {at} decides the bind of {pod.uid} to n{node}: {card or 'refused'}"
            if card:
                answered = Bind(pod.uid, node, card)
                if answered not in after.binds:
                    yield told, after._replace(binds=tuple(sorted((*after.binds, answered))))
            if after != state:
                yield f"{told}; it ends before it answers", after
    for one in dict.fromkeys(state.binds):
        rest = list(state.binds)
        rest.remove(one)
        pod = next(pod for pod in state.pods if pod.uid == one.uid)
        done = with_pod(state, pod._replace(card=one.card)) if pod.card == UNBOUND else state
        yield f"the bind of {one.uid} to {one.card} is performed", done._replace(binds=tuple(rest))


def _of_replica(protocol: GangProtocol, state: State, at: int) -> Iterator[Step]:
    replica = state.replicas[at]
    if state.crashes:
        new = Replica(state.records, state.pods)
        yield f"replica {at} ends, another one begins", with_replica(state, at, new)._replace(crashes=state.crashes - 1)
    if replica.records != state.records:
        yield f"replica {at} sees the records", with_replica(state, at, replica._replace(records=state.records))
    if replica.pods != state.pods:
        yield f"replica {at} sees the Pods", with_replica(state, at, replica._replace(pods=state.pods))
    if replica.work is not None:
        yield from _works(protocol, state, at, replica.work)
        return
    step, seen = protocol.step(replica)
    idle = with_replica(state, at, replica._replace(seen=seen))
    work = protocol.work(idle, at, step)
    if work is not None:
        begun = replica._replace(seen=seen, work=work, idle=False)
        yield f"replica {at} begins: {work.told}", with_replica(idle, at, begun)
    elif replica.idle:
        yield f"replica {at} finds nothing to do", with_replica(idle, at, replica._replace(seen=seen, idle=False))
    for node, one, seen_s in replica.sights:
        how = protocol.judge(state, node, one, seen_s)
        if how is not None:
            work = Work((Write(how, node, (one,)),))
            yield f"replica {at} reads {one.uid}: {how}", with_replica(state, at, replica._replace(work=work))


def _works(protocol: GangProtocol, state: State, at: int, work: Work) -> Iterator[Step]:
    """The next write, and the failure of a plan."""
    write, *left = work.left
    after, good = protocol.written(state, at, write)
    replica = after.replicas[at]
    holding_now = write.kind == "hold"
    done = tuple((write.node, one) for one in write.about if isinstance(one, Held) and holding_now)
    told = f"replica {at} writes {write}{'' if good else ', refused'}"
    if good:
        written = (*work.written, *done)
        made = () if any(later.kind == "hold" for later in left) or not work.plan else written
        own = tuple(sorted({*replica.own, *((node_name(node), one.uid, one.since) for node, one in made)}))
        rest = work._replace(left=tuple(left), written=written) if left else None
        now = replica._replace(work=rest, own=own)
        yield told, with_replica(after, at, now)
    if work.plan:
        back = _given_back(work.written) if holding_now else None
        if not good:
            yield told, with_replica(after, at, replica._replace(work=back and back._replace(age=work.age)))
        yield (
            f"replica {at} gives its plan up",
            with_replica(state, at, state.replicas[at]._replace(work=back and back._replace(age=work.age))),
        )


def _given_back(written: tuple[tuple[int, Held], ...]) -> Work | None:
    nodes = sorted({node for node, _ in written})
    writes = tuple(Write("give back", node, tuple(one for there, one in written if there == node)) for node in nodes)
    return Work(writes) if writes else None


def passed(protocol: GangProtocol, state: State) -> State:
    """A moment passes: all replicas see what is so, then everything is a moment older."""
    state = state._replace(replicas=tuple(_sees(protocol, replica, state) for replica in state.replicas))
    return State(
        tuple(tuple(sorted(map(_older, there))) for there in state.records),
        state.pods,
        tuple(sorted(one._replace(age=one.age + 1) for one in state.binds if one.age < LIFE)),
        tuple(map(_later, state.replicas)),
        state.deletions,
        state.crashes,
    )


def _sees(protocol: GangProtocol, replica: Replica, state: State) -> Replica:
    """A replica looks at everything as it is."""
    replica = replica._replace(records=state.records, pods=state.pods)
    before = {(node, one): age for node, one, age in replica.sights}
    sights = tuple((node, one, before.get((node, one), 0)) for node, there in enumerate(state.records) for one in there)
    step, seen = protocol.step(replica)
    idle = replica.work is None and not isinstance(step, Rest | FindRoom)
    return replica._replace(seen=seen, sights=sights, idle=idle)


def _older(one: Held) -> Held:
    until = one.until if one.until in {0, WITHOUT_LIMIT} else max(one.until - MOMENT_S, NOW - LONG_AGO)
    return one._replace(since=max(one.since - MOMENT_S, NOW - LONG_AGO), until=until)


def _later(replica: Replica) -> Replica:
    """A replica's memory, a moment later."""
    first, (until, age), closed = replica.seen

    def moved(own: OwnHold) -> OwnHold:
        return own[0], own[1], max(own[2] - MOMENT_S, NOW - LONG_AGO)

    def aged(seconds: int) -> int:
        return min(seconds + MOMENT_S, LONG_AGO)

    older = _older(Held("", "", 0, until)).until
    seen: Seen = (
        tuple((moved(own), aged(old)) for own, old in first),
        (older, aged(age)) if first else (0, 0),
        None if closed is None else aged(closed),
    )
    work = replica.work and replica.work._replace(
        left=tuple(
            write._replace(
                about=tuple(_older(one) if isinstance(one, Held) else one for one in write.about),
                until=_older(Held("", "", 0, write.until)).until,
            )
            for write in replica.work.left
        ),
        written=tuple((node, _older(one)) for node, one in replica.work.written),
        age=replica.work.age + 1,
    )
    return Replica(
        tuple(tuple(sorted(map(_older, there))) for there in replica.records),
        replica.pods,
        seen,
        tuple(sorted((node, _older(one), aged(old)) for node, one, old in replica.sights)),
        tuple(sorted({moved(own) for own in replica.own})),
        work,
        replica.idle,
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
