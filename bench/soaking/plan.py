"""What a soak does, and what it finds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

NAMESPACE: Final = "soak"
KILLED, API_KILLED, CUT = "replica killed", "API server killed", "connections cut"
PAUSED, ETCD_PAUSED = "replica paused", "etcd paused"
EDITED, RACED = "record edited by hand", "Pod deleted during its bind"
ASKS: Final = "koordgate.test/percent"  # label of a Pod: what it asks for, in percent of a card
CARDS: Final = 8  # of a node
AWAY_S: Final = 0.1  # before a request that was not answered is tried again
LOST: Final = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(frozen=True)
class Soak:
    """What is done to the cluster. All times are in seconds; an event that is `every` 0 seconds never happens.

    Attributes:
        binds: how many Pods are to be bound; more are, until each kind of event has happened.
        seconds: after which no more Pods are created.
        nodes: of 8 GPUs each.
        workers: Pods that are bound at the same time.
        grace: of the ledger: after how long a holding that was never bound is released.
        kill_every: between kills (SIGKILL) of a replica.
        api_every: between kills of the API server.
        cut_every: between cuts of all connections between replicas and the API server.
        pause_every: between pauses (SIGSTOP) of a replica.
        pause: how long a replica is paused: longer than the grace.
        etcd_every: between pauses of etcd.
        etcd_pause: how long etcd is paused.
        edit_every: between edits of a record: a running Pod's card is replaced by another one of its node.
        raced: of a hundred Pods, how many are deleted while their bind is under way.
        shifts: of the replicas' clocks.
        seed: of the choices.
    """

    binds: int = 100_000
    seconds: float = 24 * 3600.0
    nodes: int = 16
    workers: int = 16
    grace: float = 15.0
    kill_every: float = 2.0
    api_every: float = 60.0
    cut_every: float = 7.0
    pause_every: float = 45.0
    pause: float = 20.0
    etcd_every: float = 20.0
    etcd_pause: float = 2.0
    edit_every: float = 10.0
    raced: int = 10
    shifts: Sequence[float] = (0.0, 40.0, -40.0)
    seed: int = 1

    @property
    def events(self) -> set[str]:
        """What is to happen to the cluster, by its name in `Findings.done`."""
        every = {
            KILLED: self.kill_every,
            API_KILLED: self.api_every,
            CUT: self.cut_every,
            PAUSED: self.pause_every,
            ETCD_PAUSED: self.etcd_every,
            EDITED: self.edit_every,
            RACED: self.raced,
        }
        return {event for event, often in every.items() if often}

    @property
    def settled_s(self) -> float:
        """Seconds after which every replica has seen a Pod bound, a paused one too."""
        return self.pause + 10.0

    @property
    def names(self) -> list[str]:
        """Of the nodes."""
        return [f"soak-{number}" for number in range(self.nodes)]


@dataclass
class Findings:
    """What happened, and what is wrong.

    Attributes:
        bound: Pods that were seen bound.
        twice: devices that were given twice, each with the Pods.
        bare: Pods that were bound without the devices that they ask for.
        unreachable: devices that nobody can get although no Pod has them, after the grace.
        done: what was done to the cluster -> how often.
        tries: outcomes of requests -> how often.
        seconds: that it took.
    """

    bound: int = 0
    twice: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def wrong(self) -> int:
        """How much is wrong."""
        return len(self.twice) + len(self.bare) + len(self.unreachable)

    def summary(self, seed: int) -> dict[str, Any]:
        """What can be added up over several runs, as JSON."""
        return {
            "seed": seed,
            "seconds": round(self.seconds),
            "binds": self.bound,
            "events": dict(sorted(self.done.items())),
            "requests": dict(sorted(self.tries.items())),
            "faults": {"twice": len(self.twice), "bare": len(self.bare), "unreachable": len(self.unreachable)},
        }
