"""The whole state of the reporter, as frozen values, and its invariants."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

from koordgate.kube.resource import DEVICES, NODES, TOPOLOGIES
from reporter.delivery.facts import OperatorPolicy
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.kubelet.watched import FileReading
from reporter.proof.agree import Evidence
from reporter.publish.identity import NodeIdentity
from reporter.publish.keep import Kept, RetryPace
from reporter.publish.writer import Target
from reporter.reading import HostReading
from reporter.round.cards import CardsState
from reporter.round.clock import Moment
from reporter.round.cluster import ClusterState
from reporter.round.decide import Decided, Rules
from reporter.round.events import Lane, WatchedKind
from reporter.round.occurrences import EventMemory

DEVICE: Final = Target(DEVICES)
TOPOLOGY: Final = Target(TOPOLOGIES)
STATUS: Final = Target(NODES, "status")
WATCHED: Final = {DEVICE: WatchedKind.DEVICE, TOPOLOGY: WatchedKind.TOPOLOGY, STATUS: WatchedKind.NODE}


@dataclass(frozen=True, slots=True)
class RoundPace:
    """How often things are done, in seconds, all above 0."""

    every: float = 10.0  # between rounds, readings of NVML, and attempts to publish, if nothing requests one earlier
    gather: float = 0.1  # how long a round waits after a change for further changes
    proof: float = 60.0  # between proofs if nothing changes
    proofs_apart: float = 5.0  # the shortest time between proofs: each looks at every process of every container
    configz: float = 60.0  # between questions for the kubelet's configuration
    policy: float = 300.0  # between readings of the GPU Operator's ClusterPolicy
    save: float = 300.0  # the greatest age of the cards' saved record while only times change
    stuck: float = 300.0  # a round that takes longer counts as hanging; the process must be restarted
    retry: RetryPace = field(default_factory=RetryPace)  # pauses after failed writes


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What never changes while the process runs."""

    name: str  # name of the Node
    rules: Rules  # the settings that decide
    pace: RoundPace = RoundPace()  # how often things are done
    gpus: bool = True  # whether NVML is read
    enforce: bool = True  # whether cpusets are written
    configz: bool = False  # whether the kubelet is asked for its configuration
    policies: bool = False  # whether the GPU Operator's ClusterPolicy is read
    proof: bool = True  # whether allocations are compared with what containers and cards have
    settle_seconds: float = 60.0  # how long NVML must be out of reach to count as an answer; see `CardsState.settled`


@dataclass(frozen=True, slots=True)
class Work:
    """One lane."""

    busy: bool = False  # whether an effect of the lane is under way
    due: float = inf  # when its next work is due, on the steady clock; infinite if none is


@dataclass(frozen=True, slots=True)
class CurrentRound:
    """The round that is under way."""

    began: float  # when, on the steady clock
    node: NodeIdentity | None  # the Node as it was at the beginning; None if it did not exist or was unknown
    pods_known: bool  # whether the Pods were known at the beginning
    complete: bool  # whether everything in the cluster was known at the beginning
    configured: bool = False  # whether the kubelet's configuration is known; valid once the files are read
    with_cards: bool = False  # whether the cards and their holders are known; valid once the files are read
    decided: Decided | None = None  # what was decided; None until the files are read


@dataclass(frozen=True, slots=True)
class Telling:
    """What is to be published."""

    decided: Decided  # by the last round that knew everything in the cluster and the kubelet's configuration
    # whether that round knew the cards and their holders. If not, neither the Device object nor the Node's amounts are
    # written: a card would be missing, or one in use would be reported as free.
    with_cards: bool


@dataclass(frozen=True, slots=True)
class ProofState:
    """The proof: what containers and cards really have."""

    evidence: Evidence = field(default_factory=Evidence)  # what the last proof saw
    done: bool = False  # whether one has ended, even by a bug: a bug there must not prevent the report of the cards
    subject: tuple[frozenset[str], frozenset[str]] | None = None  # the cards and containers that it looked at
    not_before: float = 0.0  # the earliest time of the next one, on the steady clock
    count: int = 0  # how many have ended with evidence


@dataclass(frozen=True, slots=True)
class RoundState:
    """Everything that the reporter knows and is about to do."""

    plan: RoundPlan
    lanes: Mapping[Lane, Work] = field(default_factory=lambda: dict.fromkeys(Lane, Work()))  # each line of work
    cluster: ClusterState = field(default_factory=ClusterState)  # what is known of the cluster
    cards: CardsState = field(default_factory=CardsState)  # what is known of the cards
    host: HostReading | None = None  # the node's files as last read; None before the first time
    # the kubelet's last answer about its configuration; None before the first
    configz: FileReading[KubeletConfiguration] | None = None
    # what the GPU Operator's ClusterPolicy said last; None before it was first asked for
    policy: OperatorPolicy | None = None
    proof: ProofState = ProofState()
    current: CurrentRound | None = None  # the round under way; None between rounds
    decided: Decided | None = None  # what the last round decided; None before the first
    telling: Telling | None = None  # what is to be published; None until everything that it needs is known
    # the objects that the present publication must still check, each with its wanted fields
    publishing: tuple[tuple[Target, Mapping[str, Any]], ...] = ()
    # the writes of each object so far
    kept: Mapping[Target, Kept] = field(default_factory=lambda: dict.fromkeys(WATCHED, Kept()))
    reported: EventMemory = field(default_factory=EventMemory)  # what Kubernetes Events were written about
    problems: tuple[str, ...] = ()  # everything that was wrong in the last round, a sentence each

    @property
    def configured(self) -> bool:
        """Whether the kubelet's configuration is known."""
        return not self.plan.configz or self.configz is not None

    @property
    def runtime_known(self) -> bool:
        """Whether all is known that tells of the container runtime: a restart must not tell less than before it."""
        return not self.plan.policies or self.policy is not None

    @property
    def under_way(self) -> CurrentRound:
        """The round under way.

        Raises RuntimeError: there is none.
        """
        if self.current is None:
            raise RuntimeError("no round is under way")
        return self.current

    @property
    def subject(self) -> tuple[frozenset[str], frozenset[str]]:
        """What a proof would inspect: cards and containers."""
        return frozenset(self.cards.view.node.cards), self.cluster.containers

    def cards_settled(self, now: Moment) -> bool:
        """Whether the node's cards are known."""
        if not self.plan.gpus or (self.host is not None and not self.host.nvidia):
            return True
        return self.cards.settled(now, self.plan.settle_seconds)

    def wanted(self, lane: Lane, at: float) -> "RoundState":
        """A copy with a lane's work due at a time; an earlier due time stays."""
        work = self.lanes[lane]
        return self if work.due <= at else self._with(lane, replace(work, due=at))

    def stirred(self, now: Moment) -> "RoundState":
        """A copy with a round due shortly: something changed."""
        return self.wanted(Lane.ROUND, now.steady + self.plan.pace.gather)

    def begun(self, lane: Lane) -> "RoundState":
        """A copy with a lane's effect under way."""
        return self._with(lane, Work(busy=True))

    def ended(self, lane: Lane, due: float = inf) -> "RoundState":
        """A copy with a lane at rest until a time, or until an earlier time that was requested while it was busy."""
        return self._with(lane, Work(due=min(due, self.lanes[lane].due)))

    def resting(self, lane: Lane, due: float) -> "RoundState":
        """A copy with a lane at rest until exactly a time, even if an earlier one was requested while it was busy."""
        return self._with(lane, Work(due=due))

    def _with(self, lane: Lane, work: Work) -> "RoundState":
        return replace(self, lanes={**self.lanes, lane: work})


def unhealthy(state: RoundState, now: Moment) -> list[str]:
    """Why the process should be restarted: a round that does not end."""
    stuck = state.plan.pace.stuck
    if state.current is not None and now.steady - state.current.began > stuck:
        return [f"a round has taken more than {stuck:.0f} s: a file of this node does not answer"]
    return []


def check_invariants(state: RoundState) -> None:
    """Raise AssertionError if the state contradicts itself."""
    broken = [words for words, holds in _invariants(state).items() if not holds]
    if broken:
        raise AssertionError("; ".join(broken))


def _invariants(state: RoundState) -> dict[str, bool]:
    """What must always hold, and whether it does."""
    lanes, cluster, plan, telling = state.lanes, state.cluster, state.plan, state.telling
    busy = frozenset(lane for lane, work in lanes.items() if work.busy)
    trying = [target for target, kept in state.kept.items() if kept.trying is not None]
    cards_written = any(state.kept[target].last is not None for target in (DEVICE, STATUS))
    holders_known = state.proof.done or not plan.proof
    return {
        "a round is under way exactly while its lane is busy": (Lane.ROUND in busy) == (state.current is not None),
        "without GPUs no card is read": plan.gpus or busy.isdisjoint({Lane.CARDS, Lane.XIDS, Lane.HEALTH}),
        "the kubelet is asked only if the settings say so": plan.configz or Lane.CONFIGZ not in busy,
        "the ClusterPolicy is read only if the settings say so": plan.policies or Lane.POLICY not in busy,
        "proofs are made only if the settings say so": plan.proof or Lane.PROOF not in busy,
        "no proof before the Pods are known": cluster.pods_known or not state.proof.done,
        "nothing is published before the cluster is known": cluster.complete or Lane.PUBLISH not in busy,
        "writes are pending only during a publication": Lane.PUBLISH in busy or not state.publishing,
        "one write at a time": len(trying) <= (Lane.PUBLISH in busy),
        "what is published is known": telling is None
        or (cluster.complete and state.configured and bool(state.decided)),
        "cards are published once their holders are known": telling is None or not telling.with_cards or holders_known,
        "cards are published once the runtime is known": telling is None
        or not telling.with_cards
        or state.runtime_known,
        "cards are written once their holders are known": not cards_written or holders_known,
        "cards go by their UUIDs": all(card.facts.uuid == uuid for uuid, card in state.cards.view.node.cards.items()),
    }
