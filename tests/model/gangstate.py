"""The states of the model of gangs: what is recorded, and what each replica has seen and is about to write."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal, NamedTuple

from builders import app, gpu, gpus, part, request

from allocator.bind import Holdings
from allocator.vocabulary.asks import Wishes
from allocator.vocabulary.holdings import Holding
from webhook.gangs.step import (
    OwnHold,
)

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


ASKS: Final = replace(request(app("main", gpus(100))), wishes=Wishes(gang=GANG, all_or_nothing=True))


def with_record(state: State, node: int, now: Record) -> State:
    return state._replace(records=(*state.records[:node], now, *state.records[node + 1 :]))


def with_pod(state: State, now: Pod) -> State:
    return state._replace(pods=tuple(now if one.uid == now.uid else one for one in state.pods))


def with_replica(state: State, at: int, now: Replica) -> State:
    return state._replace(replicas=(*state.replicas[:at], now, *state.replicas[at + 1 :]))
