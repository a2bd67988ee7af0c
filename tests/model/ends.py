"""A model of Pods that end while their bind is under way, and of replicas that see both late, in any order.

The decisions are those of the product: `bind` and `release` of `allocator.bind`, `look`, `is_suspect` and `judge` of
`webhook.upkeep.reconcile`. The model has what surrounds them: an API server that performs a Binding, or refuses it,
some time after it was answered; Pods that are deleted at any moment, with and without a finalizer, and created again
under the same name; replicas that see Pods and records late, list again and so miss what came and went, or start
anew; looks that stop between their read and their write.

No time passes: what is held for nobody must be released by what replicas see, and not by a sweep.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, NamedTuple

from builders import gpu
from model.protocol import GRACE, WHOLE_CARD, Bound, Held, holding, record
from model.search import Explored, search, wander

from allocator.bind import PodToBind, bind, release
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from koordgate.breaks import at_once
from webhook.upkeep.reconcile import Ended, is_suspect, judge, look

Phase = Literal["none", "waits", "bound", "ending", "finished", "gone"]
"""Of a Pod. One that is `ending` was deleted before it was bound, and has a finalizer."""

UNHEARD: Final = ("none", "")


class Pod(NamedTuple):
    """A Pod: what has become of it, the card that its annotations name, and whether it was ever bound."""

    uid: str
    phase: Phase = "none"
    card: str = ""
    served: bool = False

    @property
    def told(self) -> tuple[Phase, str]:
        """What a watch tells of it."""
        return self.phase, self.card


class Bind(NamedTuple):
    """A Binding under way, and the card that it was answered with."""

    uid: str
    node: int
    card: str = ""


Look = tuple[str, int]
"""The UID of a Pod and a node, on which what is recorded for the Pod is looked at."""


class Replica(NamedTuple):
    """What a replica knows.

    Attributes:
        heard: how many of the events of Pods it has seen, or skipped.
        pods: what it knows of each Pod.
        records: as it has seen them.
        now: what it is about to look at.
        later: what it looks at if nothing is seen of the bind by then.
        pending: a release that was decided and not written yet.
    """

    heard: int = 0
    pods: tuple[tuple[Phase, str], ...] = ()
    records: tuple[tuple[Held, ...], ...] = ()
    now: frozenset[Look] = frozenset()
    later: frozenset[Look] = frozenset()
    pending: Look | None = None


class State(NamedTuple):
    """The cluster.

    Attributes:
        records: for each node, what is held there.
        pods: all of one name, of which one at most is there at a time.
        events: of Pods, as a watch tells them: which, and what it is then.
        binds: the Bindings under way.
        replicas: who bind and release.
        left: how many Bindings, lists and starts of replicas may still come.
    """

    records: tuple[tuple[Held, ...], ...]
    pods: tuple[Pod, ...]
    events: tuple[tuple[int, tuple[Phase, str]], ...]
    binds: tuple[Bind, ...]
    replicas: tuple[Replica, ...]
    left: tuple[int, int, int]


@dataclass(frozen=True)
class Scope:
    """How large the explored cluster is; the last three are as in `State.left`."""

    cards: tuple[tuple[str, ...], ...] = (("c0",),)
    pods: tuple[str, ...] = ("p", "q")
    replicas: int = 1
    binds: int = 2
    lists: int = 0
    starts: int = 0

    def begin(self) -> State:
        """The state in which nothing has happened."""
        empty: tuple[tuple[Held, ...], ...] = tuple(() for _ in self.cards)
        idle = Replica(0, (UNHEARD,) * len(self.pods), empty)
        pods = tuple(map(Pod, self.pods))
        return State(empty, pods, (), (), (idle,) * self.replicas, (self.binds, self.lists, self.starts))


class Protocol:
    """The product's decisions on the model's states. The doctored protocols of the tests change one each."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._bind = cache(self._bound)

    def _bound(self, there: tuple[Held, ...], node: int, uid: str) -> tuple[tuple[Held, ...], str]:
        cards = (gpu(minor, device_id=card) for minor, card in enumerate(self.scope.cards[node]))
        empty = NodeSnapshot(f"n{node}", tuple(cards))
        change = bind(PodToBind(uid, "default", "web", WHOLE_CARD), empty.holding_all, 0, "mark")
        changed, decided = at_once(change({one.uid: holding(one) for one in there}))
        card = decided.outcome.shares[0].id if isinstance(decided.outcome, Holding) else ""
        return (there if changed is None else record(changed)), card

    def node_of(self, card: str) -> str:
        return next((f"n{node}" for node, cards in enumerate(self.scope.cards) if card in cards), "")

    def known(self, replica: Replica, uid: str) -> Bound | None:
        """A Pod as a replica's view has it; None where it was not seen, or is gone."""
        phase, card = replica.pods[self.scope.pods.index(uid)]
        return None if phase in {"none", "gone"} else self.bound(phase, card)

    def bound(self, phase: Phase, card: str) -> Bound:
        return Bound(self.node_of(card), over=phase in {"ending", "finished"})

    def recorded(self, replica: Replica, node: int, one: Held) -> Replica:
        """A replica sees a holding for the first time."""
        match look(holding(one), f"n{node}", self.known(replica, one.uid)):
            case "now":
                return replica._replace(now=replica.now | {(one.uid, node)})
            case "later":
                return replica._replace(later=replica.later | {(one.uid, node)})
            case None:
                return replica

    def live(self, state: State, uid: str) -> tuple[str, Bound] | None:  # noqa: ARG002 all have one name
        """The Pod of that name, as the API server has it."""
        return next(((pod.uid, self.bound(*pod.told)) for pod in state.pods if pod.phase not in {"none", "gone"}), None)

    def told(self, state: State, replica: Replica, uid: str) -> tuple[str, Bound] | None:
        """What is known of a Pod for certain: what its watch showed, or what the API server says."""
        pod = self.known(replica, uid)
        if pod is None and replica.pods[self.scope.pods.index(uid)][0] == "gone":
            return None
        return (uid, pod) if pod is not None and (pod.over or pod.node) else self.live(state, uid)

    def looked(self, state: State, replica: Replica, at: Look) -> tuple[Ended | None, bool]:
        """Look at a holding: why it is released, if it is; and whether it is looked at again later."""
        uid, node = at
        one = next((one for one in replica.records[node] if one.uid == uid), None)
        if one is None or not is_suspect(holding(one), f"n{node}", self.known(replica, uid)):
            return None, False
        told = self.told(state, replica, uid)
        how = judge(holding(one), f"n{node}", told, 0.0, GRACE)
        if how in {"gone", "finished", "moved"}:
            return how, False
        return None, not (told is not None and told[1].node)


def with_replica(state: State, at: int, now: Replica) -> State:
    return state._replace(replicas=(*state.replicas[:at], now, *state.replicas[at + 1 :]))


def with_record(state: State, node: int, there: tuple[Held, ...]) -> State:
    return state._replace(records=(*state.records[:node], there, *state.records[node + 1 :]))


def with_pod(state: State, at: int, phase: Phase, card: str = "") -> State:
    """A Pod changes, which watches will tell."""
    was = state.pods[at]
    now = Pod(was.uid, phase, card or was.card, was.served or bool(card))
    pods = (*state.pods[:at], now, *state.pods[at + 1 :])
    return state._replace(pods=pods, events=(*state.events, (at, now.told)))


def sees(protocol: Protocol, state: State, at: int, node: int) -> State:
    """A replica sees a node's record as it is."""
    replica = state.replicas[at]
    before, there = replica.records[node], state.records[node]
    replica = replica._replace(records=(*replica.records[:node], there, *replica.records[node + 1 :]))
    for one in there:
        if one.uid not in {old.uid for old in before}:
            replica = protocol.recorded(replica, node, one)
    return with_replica(state, at, replica)


def hears(protocol: Protocol, state: State, at: int) -> State:
    """A replica sees the next event of a Pod."""
    replica = state.replicas[at]
    index, told = state.events[replica.heard]
    pods = (*replica.pods[:index], told, *replica.pods[index + 1 :])
    replica = replica._replace(heard=replica.heard + 1, pods=pods)
    uid, (phase, card) = protocol.scope.pods[index], told
    here = protocol.node_of(card) if phase == "bound" else ""
    if phase in {"bound", "ending", "finished", "gone"}:  # `Reconciler.bound` and `Reconciler.ended`
        found = {
            (uid, node)
            for node, there in enumerate(replica.records)
            if any(one.uid == uid for one in there) and f"n{node}" != here
        }
        replica = replica._replace(now=replica.now | found)
    return with_replica(state, at, replica)


def lists(protocol: Protocol, state: State, at: int, *, anew: bool) -> State:
    """A replica lists all Pods and looks at all suspects; one that starts anew lists the records too.

    Of a Pod that it never saw and that is gone it learns nothing.
    """
    replica = state.replicas[at]
    seen = [
        pod.told if pod.phase != "gone" or known != UNHEARD else UNHEARD
        for pod, known in zip(state.pods, (UNHEARD,) * len(state.pods) if anew else replica.pods, strict=True)
    ]
    records = state.records if anew else replica.records
    kept = (frozenset[Look](), frozenset[Look](), None) if anew else (replica.now, replica.later, replica.pending)
    replica = Replica(len(state.events), tuple(seen), records, *kept)
    suspects = {
        (one.uid, node)
        for node, there in enumerate(records)
        for one in there
        if is_suspect(holding(one), f"n{node}", protocol.known(replica, one.uid))
    }
    return with_replica(state, at, replica._replace(now=replica.now | suspects))


def looks(protocol: Protocol, state: State, at: int, what: Look) -> State:
    """A replica looks at a holding, and decides."""
    replica = state.replicas[at]
    replica = replica._replace(now=replica.now - {what}, later=replica.later - {what})
    how, again = protocol.looked(state, replica, what)
    if again:
        replica = replica._replace(later=replica.later | {what})
    return with_replica(state, at, replica._replace(pending=what if how else replica.pending))


def writes(protocol: Protocol, state: State, at: int) -> State:
    """A replica writes the release that it has decided on, and sees the record."""
    replica = state.replicas[at]
    assert replica.pending
    uid, node = replica.pending
    changed, _ = release(uid)({one.uid: holding(one) for one in state.records[node]})
    state = with_replica(state, at, replica._replace(pending=None))
    return sees(protocol, state if changed is None else with_record(state, node, record(changed)), at, node)


Step = tuple[str, State]


def steps(protocol: Protocol, state: State) -> Iterator[Step]:
    """All that may happen next."""
    yield from _of_pods(state)
    yield from _of_binds(protocol, state)
    for at, replica in enumerate(state.replicas):
        if replica.heard < len(state.events):
            yield f"replica {at} hears {state.events[replica.heard]}", hears(protocol, state, at)
        for node, there in enumerate(state.records):
            if there != replica.records[node]:
                yield f"replica {at} sees n{node}", sees(protocol, state, at, node)
        if replica.pending is not None:
            yield f"replica {at} releases {replica.pending}", writes(protocol, state, at)
        else:
            for what in sorted(replica.now | replica.later):
                yield f"replica {at} looks at {what}", looks(protocol, state, at, what)
        binds, listed, starts = state.left
        if listed:
            yield (
                f"replica {at} lists",
                lists(protocol, state._replace(left=(binds, listed - 1, starts)), at, anew=False),
            )
        if starts:
            yield (
                f"replica {at} starts",
                lists(protocol, state._replace(left=(binds, listed, starts - 1)), at, anew=True),
            )


def _of_pods(state: State) -> Iterator[Step]:
    there = [at for at, pod in enumerate(state.pods) if pod.phase not in {"none", "gone"}]
    if not there:
        new = next((at for at, pod in enumerate(state.pods) if pod.phase == "none"), None)
        if new is not None:
            yield f"{state.pods[new].uid} is created", with_pod(state, new, "waits")
    for at in there:
        pod = state.pods[at]
        yield f"{pod.uid} is gone", with_pod(state, at, "gone")
        if pod.phase == "waits":
            yield f"{pod.uid} is deleted, and kept by a finalizer", with_pod(state, at, "ending")
        if pod.phase == "bound":
            yield f"{pod.uid} finishes", with_pod(state, at, "finished")


def _of_binds(protocol: Protocol, state: State) -> Iterator[Step]:
    binds, listed, starts = state.left
    pods = {pod.uid: pod for pod in state.pods}
    if binds:
        for pod in state.pods:
            if pod.phase == "waits":  # whatever becomes of it before the bind is decided
                for node in range(len(state.records)):
                    sent = tuple(sorted((*state.binds, Bind(pod.uid, node))))
                    yield f"bind {pod.uid} to n{node}", state._replace(binds=sent, left=(binds - 1, listed, starts))
    for one in dict.fromkeys(state.binds):
        left = list(state.binds)
        left.remove(one)
        rest = state._replace(binds=tuple(left))
        if one.card:
            at = protocol.scope.pods.index(one.uid)
            done = with_pod(rest, at, "bound", one.card) if pods[one.uid].phase == "waits" else rest
            yield f"performed {one}", done
            yield f"given up {one}", rest
            continue
        yield f"given up {one}", rest
        for at in range(len(state.replicas)):
            there, card = protocol._bind(state.records[one.node], one.node, one.uid)
            after = sees(protocol, with_record(rest, one.node, there), at, one.node)
            answered = tuple(sorted((*after.binds, one._replace(card=card)))) if card else after.binds
            yield f"decided {one} by replica {at}: {card or 'refused'}", after._replace(binds=answered)


def wrong(state: State) -> str:
    """What must never be so in a state; "" if nothing is wrong."""
    owners: dict[str, set[str]] = {}
    phases = {pod.uid: pod.phase for pod in state.pods}
    for pod in state.pods:
        if pod.phase == "bound":
            owners.setdefault(pod.card, set()).add(pod.uid)
    for one in state.binds:
        if one.card and phases[one.uid] == "waits":
            owners.setdefault(one.card, set()).add(one.uid)
    for card, uids in owners.items():
        if len(uids) > 1:
            return f"{card} is given to {' and '.join(sorted(uids))}"
        if not any(one.card == card and one.uid in uids for there in state.records for one in there):
            return f"{card} is given to {' and '.join(uids)}, and the ledger does not hold it"
    return ""


def leaked(protocol: Protocol, state: State, *, watches: bool) -> str:
    """What is still held for a Pod that ended, once all requests are over; "" if nothing is.

    Each replica alone must see to that, for any other may have ended.

    Args:
        protocol: decides.
        state: where that begins.
        watches: whether the replica hears of Pods. It looks at nothing later then, since that takes time. If it hears
            nothing, what Pods hold that were bound before they ended remains, until it does.
    """
    for at in range(len(state.replicas)):
        end = state._replace(binds=(), left=(0, 0, 0))
        for _ in range(12):
            while watches and end.replicas[at].heard < len(end.events):
                end = hears(protocol, end, at)
            for node in range(len(end.records)):
                end = sees(protocol, end, at, node)
            if end.replicas[at].pending is not None:
                end = writes(protocol, end, at)
            replica = end.replicas[at]
            for what in sorted(replica.now if watches else replica.now | replica.later):
                if end.replicas[at].pending is None:
                    end = looks(protocol, end, at, what)
        over = {pod.uid for pod in end.pods if pod.phase in {"ending", "finished", "gone"}}
        if not watches:
            over -= {pod.uid for pod in end.pods if pod.served}
        if kept := sorted(one for there in end.records for one in there if one.uid in over):
            return f"replica {at} leaves {kept}"
    return ""


def explore(scope: Scope, make: Callable[[Scope], Protocol] = Protocol, *, states: int = 0, walks: int = 0) -> Explored:
    """Visit the first states, or go at random from the beginning; until one is wrong or the bound is reached.

    Args:
        scope: what may happen.
        make: makes the protocol.
        states: how many are visited, those with the fewest steps first.
        walks: how many times it goes from the beginning.
    """
    protocol = make(scope)

    def bad(state: State) -> str:
        return wrong(state) or leaked(protocol, state, watches=True) or leaked(protocol, state, watches=False)

    def ways(state: State) -> Iterator[Step]:
        return steps(protocol, state)

    if walks:
        return wander(scope.begin(), ways, bad, walks=walks, length=40)
    return search(scope.begin(), ways, bad, states=states)
