"""The whole state of the reporter, as frozen values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

from koordgate.kube.resource import DEVICES, NODES, TOPOLOGIES
from reporter.files import FileReading
from reporter.gpu.facts import CardLoad, GpuProcess, LostCard, NodeReading, Outage, XidEvent
from reporter.gpu.faults import Xids, kind_of
from reporter.gpu.health import HealthPolicy, NodeRecord, advance, hear
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.pods import NodeIdentity, NodePod, read_node
from reporter.proof.agree import Evidence
from reporter.publish.keep import Kept, Target
from reporter.reading import GpuView, HostReading
from reporter.round.decide import Decided, Rules
from reporter.round.messages import Lane, Moment, WatchedKind
from reporter.round.occurrences import EventMemory
from reporter.runtimefiles import OperatorPolicy


@dataclass(frozen=True, slots=True)
class CardsState:
    """The cards."""

    view: GpuView = field(default_factory=GpuView)  # the cards as currently known
    # grave Xid errors that name no known card: number to their count and the time of the last (steady clock)
    strays: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    # card's UUID to its processes as last listed
    processes: Mapping[str, tuple[GpuProcess, ...]] = field(default_factory=dict)
    # card's UUID to what it was doing at the last reading; empty while NVML is out of reach
    loads: Mapping[str, CardLoad] = field(default_factory=dict)
    # the record as last saved, without the times that every reading changes; None if none was saved
    saved: NodeRecord | None = None
    saved_at: float = 0.0  # when it was saved, on the steady clock
    unsaved: str = ""  # why the last save failed; "" if it did not

    @property
    def to_ask(self) -> tuple[str, ...]:
        """UUIDs of the cards whose processes can be listed now: those that answer; none if NVML is out of reach."""
        if self.view.outage is not None:
            return ()
        return tuple(uuid for uuid, card in self.view.node.cards.items() if card.health.present)

    @property
    def remembered(self) -> dict[str, tuple[GpuProcess, ...]]:
        """The processes last listed of the cards that are still known."""
        return {uuid: listed for uuid, listed in self.processes.items() if uuid in self.view.node.cards}

    def restored(self, node: NodeRecord, now: Moment) -> "CardsState":
        """A copy with the record of an earlier process."""
        view = replace(self.view, node=node, driver=node.driver)
        return replace(self, view=view, saved=timeless(node), saved_at=now.steady)

    def read(self, reading: NodeReading, xids: Iterable[XidEvent], now: Moment, policy: HealthPolicy) -> "CardsState":
        """A copy after a reading of NVML, and after the Xid errors that came with it."""
        xids = tuple(xids)
        node = advance(self.view.node, reading, xids, now.wall, policy)
        indexes, before = reading.indexes, self.view
        until = before.until if indexes == before.indexes else before.read
        unnamed = _unnamed(reading, node)
        view = GpuView(node, reading.driver, None, unnamed, indexes, reading.booted, now.wall, until)
        return replace(self, view=view, strays=self._strays(node, xids, now, policy.quiet), loads=reading.loads)

    def heard(self, xids: Iterable[XidEvent], now: Moment, policy: HealthPolicy) -> "CardsState":
        """A copy after Xid errors that came between two readings."""
        xids = tuple(xids)
        node = hear(self.view.node, xids, now.wall, policy)
        view = replace(self.view, node=node)
        return replace(self, view=view, strays=self._strays(node, xids, now, policy.quiet))

    def away(self, outage: Outage) -> "CardsState":
        """A copy while NVML is out of reach: the cards stay as they were last known."""
        return replace(self, view=replace(self.view, outage=outage), loads={})

    def known(self, xid: XidEvent) -> bool:
        """Whether an Xid error names a known card."""
        return xid.uuid in self.view.node.cards

    def settled(self, now: Moment, outage_seconds: float) -> bool:
        """Whether a card that is not in the view does not exist.

        False between a start without a saved record and NVML's first answer: until then the cluster's existing objects
        are better than none. A lasting outage counts as an answer.
        """
        outage = self.view.outage
        lasted = outage is not None and now.wall - outage.since >= outage_seconds
        return self.view.node.known or lasted

    def save_due(self, now: Moment, every: float) -> bool:
        """Whether the record must be saved: more than times changed, or the saved one is older than `every`."""
        return self.saved is None or timeless(self.view.node) != self.saved or now.steady - self.saved_at > every

    def saving(self, now: Moment) -> "CardsState":
        """A copy with the present record being saved."""
        return replace(self, saved=timeless(self.view.node), saved_at=now.steady)

    def same(self, other: "CardsState") -> bool:
        """Whether two states differ in times only, so that no round need follow."""
        mine, theirs = self.view, other.view
        return mine.outage == theirs.outage and timeless(mine.node) == timeless(theirs.node)

    def problem(self, now: Moment, quiet: float) -> str:
        """Why the record cannot be saved, and which recent errors name no known card; "" without either."""
        recent = (
            f"Xid {xid} ({kind_of(xid).name}), {count} times, names no known card: no card is taken out of service; "
            "look for NVRM: Xid in the kernel's log"
            for xid, (count, last) in sorted(self.strays.items())
            if last > now.steady - quiet
        )
        return "; ".join(filter(None, (self.unsaved, *recent)))

    def _strays(
        self, node: NodeRecord, xids: Iterable[XidEvent], now: Moment, quiet: float
    ) -> Mapping[int, tuple[int, float]]:
        """The grave errors that name no card of a record, with further ones added."""
        strays = dict(self.strays)
        for xid in xids:
            if xid.uuid not in node.cards and kind_of(xid.xid).says >= Xids.SUSPECT:
                count, last = strays.get(xid.xid, (0, now.steady))
                again = count if now.steady - last < quiet else 0
                strays[xid.xid] = (again + xid.count, now.steady)
        return strays


def log_line(xid: XidEvent, *, known: bool) -> str:
    """What the log says about an Xid error; "" if it is neither grave nor of a known card."""
    if known:
        return f"Xid {xid.xid} on card {xid.uuid}"
    kind = kind_of(xid.xid)
    if kind.says < Xids.SUSPECT:
        return ""
    return f"Xid {xid.xid} ({kind.name}) on no known card ({xid.uuid or 'NVML names none'})"


def timeless(node: NodeRecord) -> NodeRecord:
    """The record without the times that every reading changes."""
    cards = {
        uuid: replace(card, read=0.0, health=replace(card.health, last_error=0.0)) for uuid, card in node.cards.items()
    }
    return replace(node, cards=cards)


def _unnamed(reading: NodeReading, node: NodeRecord) -> tuple[LostCard, ...]:
    """The cards that do not answer and cannot be cards that an earlier process knew."""
    unnamed = tuple(card for card in reading.lost if card.uuid is None)
    named = {card.uuid for card in reading.lost}
    away = sum(not card.health.present for uuid, card in node.cards.items() if uuid not in named)
    return unnamed if len(unnamed) > away else ()


Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The cluster as far as the reporter watches it."""

    # the existing objects; one that is missing does not exist, or is not known yet
    objects: Mapping[WatchedKind, Raw] = field(default_factory=dict)
    pods: tuple[NodePod, ...] = ()  # the node's Pods, by namespace, name and UID
    containers: frozenset[str] = frozenset()  # ids of the containers of Pods that have not finished
    listed: frozenset[WatchedKind] = frozenset()  # the kinds that were listed completely at least once

    @property
    def complete(self) -> bool:
        """Whether everything was listed: only then does a missing object not exist."""
        return self.listed == frozenset(WatchedKind)

    @property
    def pods_known(self) -> bool:
        """Whether the Pods were listed."""
        return WatchedKind.PODS in self.listed

    @property
    def node(self) -> NodeIdentity | None:
        """The Node; None while it does not exist or is unknown."""
        obj = self.objects.get(WatchedKind.NODE)
        return read_node(obj) if obj is not None else None

    def with_object(self, what: WatchedKind, obj: Raw) -> "ClusterState":
        """A copy with an object; unchanged if this version of it, or a newer one, is known from our own write."""
        known = self.objects.get(what)
        if known is not None and (obj == known or _older(obj, known)):
            return self
        return replace(self, objects={**self.objects, what: obj})

    def without(self, what: WatchedKind) -> "ClusterState":
        """A copy without an object; unchanged if none was known."""
        if what not in self.objects:
            return self
        return replace(self, objects={key: obj for key, obj in self.objects.items() if key is not what})

    def with_pods(self, pods: tuple[NodePod, ...]) -> "ClusterState":
        """A copy with other Pods."""
        containers = (identity for pod in pods if not pod.finished for identity in pod.containers)
        return replace(self, pods=pods, containers=frozenset(containers))

    def with_list(self, what: WatchedKind) -> "ClusterState":
        """A copy with one more kind listed."""
        return replace(self, listed=self.listed | {what})


def _older(one: Raw, other: Raw) -> bool:
    """Compare resource versions, which the API server counts up; an object with another UID is never older."""
    if one["metadata"].get("uid") != other["metadata"].get("uid"):
        return False
    versions = [str(obj["metadata"].get("resourceVersion")) for obj in (one, other)]
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])


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
    enforcer: float = 60.0  # how long the enforcer may be away before that is told
    policy: float = 300.0  # between readings of the GPU Operator's ClusterPolicy
    save: float = 300.0  # the greatest age of the cards' saved record while only times change
    stuck: float = 300.0  # a round that takes longer counts as hanging; the process must be restarted


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
    enforcer_away: float | None = None  # since when the enforcer has been away, on the steady clock; None if it is not
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
