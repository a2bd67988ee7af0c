"""What may happen next to gangs in the model: to Pods and Bindings, in replicas, and as time passes."""

from collections.abc import Iterator

from model.gangprotocol import GangProtocol
from model.gangstate import (
    GONE,
    LIFE,
    LONG_AGO,
    MOMENT_S,
    NOW,
    UNBOUND,
    Bind,
    Held,
    Replica,
    Seen,
    State,
    Step,
    Work,
    Write,
    node_name,
    with_pod,
    with_replica,
)

from allocator.vocabulary.holdings import WITHOUT_LIMIT
from webhook.gangs.step import (
    FindRoom,
    OwnHold,
    Rest,
)


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
