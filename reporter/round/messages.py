"""What can happen to the reporter, and what its state machine requests, as values.

Each event is one input of the machine. An effect of a lane takes time and ends in exactly one event of that lane, or in
`LaneFailed`. The other effects are carried out immediately and cause no event.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from reporter.cgroup.enforcer import Findings
from reporter.files import FileReading
from reporter.gpu.facts import CardLoad, CgroupMemory, GpuProcess, NodeReading, Outage, XidEvent
from reporter.gpu.health import NodeRecord
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.pods import NodePod
from reporter.proof.agree import CardUse, ContainerSeen
from reporter.publish.events import Occurrence
from reporter.publish.keep import Target
from reporter.reading import HostReading
from reporter.round.decide import Decided
from reporter.runtimefiles import OperatorPolicy
from reporter.takeover import TakenOver


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment on two clocks."""

    wall: float  # seconds since 1970, as written into records and objects
    steady: float  # seconds on a clock that never jumps, by which waits are counted


Raw = Mapping[str, Any]


class Lane(StrEnum):
    """A line of work, one effect at a time; the lanes run side by side and never wait for one another."""

    CARDS = "cards"  # NVML is read
    XIDS = "xids"  # Xid errors are awaited
    HEALTH = "health"  # the cards' record is saved
    ROUND = "round"  # files are read, and cpusets are written
    PROOF = "proof"  # containers and cards are inspected
    CONFIGZ = "configz"  # the kubelet is asked for its configuration
    POLICY = "policy"  # the GPU Operator's ClusterPolicy is read
    PUBLISH = "publish"  # Events and objects are written to the API server


class WatchedKind(StrEnum):
    """The kinds of objects that are watched in the cluster."""

    NODE = "nodes"
    DEVICE = "devices"
    TOPOLOGY = "noderesourcetopologies"
    PODS = "pods"


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """Anything that happens."""

    lane: ClassVar[Lane | None] = None  # the lane whose effect this event concludes; None if it concludes none


@dataclass(frozen=True, slots=True)
class Restored(RoundEvent):
    """The cards' record of an earlier process was read; the machine starts."""

    node: NodeRecord
    problems: tuple[str, ...] = ()  # what in the file could not be used, a sentence each


@dataclass(frozen=True, slots=True)
class Due(RoundEvent):
    """A lane's work is due."""

    which: Lane


@dataclass(frozen=True, slots=True)
class LaneFailed(RoundEvent):
    """A bug ended a lane's work; the lane is tried again later."""

    which: Lane


@dataclass(frozen=True, slots=True)
class ObjectStands(RoundEvent):
    """The cluster has this object."""

    what: WatchedKind  # the Node, the Device or the NodeResourceTopology
    obj: Raw


@dataclass(frozen=True, slots=True)
class ObjectGone(RoundEvent):
    """The cluster no longer has this object."""

    what: WatchedKind  # the Node, the Device or the NodeResourceTopology


@dataclass(frozen=True, slots=True)
class PodsChanged(RoundEvent):
    """The node's Pods changed."""

    pods: tuple[NodePod, ...]  # all of them, by namespace, name and UID


@dataclass(frozen=True, slots=True)
class Listed(RoundEvent):
    """A first complete list was taken in."""

    what: WatchedKind


@dataclass(frozen=True, slots=True)
class CardsRead(RoundEvent):
    """NVML was read."""

    lane: ClassVar = Lane.CARDS
    reading: NodeReading
    xids: tuple[XidEvent, ...] = ()  # Xid errors reported since the last reading and not yet heard


@dataclass(frozen=True, slots=True)
class CardsAway(RoundEvent):
    """NVML could not be read."""

    lane: ClassVar = Lane.CARDS
    outage: Outage  # why, and since when
    retry_seconds: float  # when a new attempt makes sense, in seconds from now


@dataclass(frozen=True, slots=True)
class XidsHeard(RoundEvent):
    """NVML reported Xid errors."""

    lane: ClassVar = Lane.XIDS
    xids: tuple[XidEvent, ...]


@dataclass(frozen=True, slots=True)
class HealthSaved(RoundEvent):
    """The cards' record was written."""

    lane: ClassVar = Lane.HEALTH
    problem: str = ""  # why it was not; "" if it was


@dataclass(frozen=True, slots=True)
class HostRead(RoundEvent):
    """The node's files were read, and the kubelet's PodResources socket was asked."""

    lane: ClassVar = Lane.ROUND
    host: HostReading


@dataclass(frozen=True, slots=True)
class CpusWritten(RoundEvent):
    """Cpusets were enforced and the kubelet's CPU state was taken over, as far as the settings ask for it."""

    lane: ClassVar = Lane.ROUND
    findings: Findings | None = None  # what enforcement found and did; None if it did not run
    problem: str = ""  # why enforcement could not run; "" if it did
    taken: TakenOver = field(default_factory=TakenOver)  # the result of the take-over


@dataclass(frozen=True, slots=True)
class Proved(RoundEvent):
    """Containers and cards were inspected."""

    lane: ClassVar = Lane.PROOF
    containers: Mapping[str, ContainerSeen]  # container id to what was seen of it
    uses: tuple[CardUse, ...]  # processes on cards
    processes: Mapping[str, tuple[GpuProcess, ...]]  # card's UUID to its processes as last listed
    running: frozenset[str] = frozenset()  # ids of the containers with cards that have a cgroup
    # card's UUID and container id to what the driver says of the container's memory of the card
    memory: Mapping[tuple[str, str], CgroupMemory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubeletAnswered(RoundEvent):
    """The kubelet was asked for its configuration."""

    lane: ClassVar = Lane.CONFIGZ
    answer: FileReading[KubeletConfiguration]


@dataclass(frozen=True, slots=True)
class PolicyRead(RoundEvent):
    """The GPU Operator's ClusterPolicy was read."""

    lane: ClassVar = Lane.POLICY
    policy: OperatorPolicy


@dataclass(frozen=True, slots=True)
class EventsSent(RoundEvent):
    """The waiting Kubernetes Events were written, as far as the API server accepted them."""

    lane: ClassVar = Lane.PUBLISH


@dataclass(frozen=True, slots=True)
class Written(RoundEvent):
    """The API server accepted a write."""

    lane: ClassVar = Lane.PUBLISH
    target: Target
    obj: Raw  # the object as it is now


@dataclass(frozen=True, slots=True)
class WriteRefused(RoundEvent):
    """A write failed."""

    lane: ClassVar = Lane.PUBLISH
    target: Target  # what was to be written
    problem: str  # why, a sentence


@dataclass(frozen=True, slots=True)
class RoundEffect:
    """Anything that is to be done."""

    lane: ClassVar[Lane | None] = None  # the lane that waits for it; None if it is carried out immediately


@dataclass(frozen=True, slots=True)
class ReadCards(RoundEffect):
    """Read NVML."""

    lane: ClassVar = Lane.CARDS
    expected: frozenset[str]  # UUIDs of the known cards


@dataclass(frozen=True, slots=True)
class HearXids(RoundEffect):
    """Wait for the next Xid errors."""

    lane: ClassVar = Lane.XIDS


@dataclass(frozen=True, slots=True)
class SaveHealth(RoundEffect):
    """Save the cards' record, for the next process."""

    lane: ClassVar = Lane.HEALTH
    node: NodeRecord


@dataclass(frozen=True, slots=True)
class ReadHost(RoundEffect):
    """Read the node's files and ask the kubelet's PodResources socket."""

    lane: ClassVar = Lane.ROUND
    pods: tuple[NodePod, ...]  # the node's Pods as known before the kubelet is asked
    cgroup_root: str = ""  # the kubelet's, as it answered; "": as its configuration file says


@dataclass(frozen=True, slots=True)
class WriteCpus(RoundEffect):
    """Enforce cpusets, then treat the kubelet's CPU manager state as the settings require."""

    lane: ClassVar = Lane.ROUND
    decided: Decided | None  # what to enforce; None if cpusets are left alone
    pods: tuple[NodePod, ...]  # all Pods of the node
    host: HostReading


@dataclass(frozen=True, slots=True)
class Prove(RoundEffect):
    """Inspect what containers and cards really have."""

    lane: ClassVar = Lane.PROOF
    pods: tuple[NodePod, ...]  # the Pods that have not finished
    cgroup_root: str  # the kubelet's `cgroupRoot`
    ask: tuple[str, ...]  # UUIDs of the cards whose processes are to be listed
    known: Mapping[str, tuple[GpuProcess, ...]]  # each card's UUID to its processes as last listed
    memory: bool = False  # whether the driver keeps memory limits, so that it is asked for them


@dataclass(frozen=True, slots=True)
class AskKubelet(RoundEffect):
    """Ask the kubelet for its configuration."""

    lane: ClassVar = Lane.CONFIGZ
    before: KubeletConfiguration | None  # its last good answer


@dataclass(frozen=True, slots=True)
class ReadPolicy(RoundEffect):
    """Read the GPU Operator's ClusterPolicy."""

    lane: ClassVar = Lane.POLICY
    before: OperatorPolicy  # what was read last


@dataclass(frozen=True, slots=True)
class SendEvents(RoundEffect):
    """Write the Kubernetes Events that are waiting."""

    lane: ClassVar = Lane.PUBLISH


@dataclass(frozen=True, slots=True)
class Apply(RoundEffect):
    """Apply an object."""

    lane: ClassVar = Lane.PUBLISH
    target: Target  # the address of the object
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Note(RoundEffect):
    """Queue Kubernetes Events."""

    occurrences: tuple[Occurrence, ...]


@dataclass(frozen=True, slots=True)
class Warn(RoundEffect):
    """Log a warning."""

    message: str


@dataclass(frozen=True, slots=True)
class CountXid(RoundEffect):
    """Count an Xid error."""

    xid: XidEvent
    known: bool  # whether it names a known card


@dataclass(frozen=True, slots=True)
class CountWrite(RoundEffect):
    """Count and log a write that the API server accepted."""

    target: Target
    taken_back: bool  # whether somebody else had changed our fields


@dataclass(frozen=True, slots=True)
class ShowRound(RoundEffect):
    """Show a round's outcome in the metrics."""

    decided: Decided
    cards: NodeRecord
    loads: Mapping[str, CardLoad]  # card's UUID to what it was doing at the last reading
    uses: Sequence[CardUse]  # processes on cards, as the last proof saw them
    nvml_up: bool  # whether NVML answers, or the node has no card of which it could tell
    findings: Findings | None  # what enforcement found and did; None if it did not run
    taken_over: bool  # whether the kubelet's CPU state was written
    problems: tuple[str, ...]  # all that is wrong now, a sentence each
