"""The product's decisions about gangs, on the states of the model."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import assert_never

from builders import gpu
from model.gangstate import (
    ASKS,
    GANG,
    GONE,
    GRACE_S,
    HOLD_S,
    LONG_AGO,
    MOMENT_S,
    NOW,
    UNSEEN,
    GangScope,
    Held,
    Pod,
    Record,
    Records,
    Replica,
    Seen,
    State,
    Work,
    Write,
    holding,
    holdings,
    node_name,
    record,
    with_pod,
    with_record,
    with_replica,
)

from allocator.bind import MAX_UNBOUND, Holdings, PodToBind, bind, end, keep, release
from allocator.gangreservation import Planned, close, give_back, hold, hold_again, limit, prolong
from allocator.place import place
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from koordgate.breaks import at_once
from webhook.gangs.controller import SeenHolds, _Seen
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
from webhook.upkeep.reconcile import Sweep, judge
from webhook.view.podinfo import PodInfo


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

    # --- the controller

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
                planned = [Planned(PodToBind(one.uid, "default", one.uid, ASKS), holding(one)) for one in about]
                held = hold(planned, self.snapshot(write.node), about[0].since, about[0].until, about[0].mark)
                change = lambda there: at_once(held(there))  # noqa: E731 as the other changes are
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
        if len(elsewhere) >= MAX_UNBOUND:
            return state, ""
        after, card = self.bound(state.records[node], node, uid, self.new_mark(state))
        return with_record(state, node, after), card

    @cache  # noqa: B019 as above
    def bound(self, there: Record, node: int, uid: str, mark: str) -> tuple[Record, str]:
        claim = PodToBind(uid, "default", uid, ASKS, all_or_nothing=self.all_or_nothing)
        changed, decided = at_once(bind(claim, self.snapshot(node), NOW, mark)(holdings(there)))
        card = decided.outcome.shares[0].id if isinstance(decided.outcome, Holding) else ""
        return (there if changed is None else record(changed)), card

    all_or_nothing = True


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
