"""What can happen to the reporter, and what its state machine requests, as values.

Each event is one input of the machine. An effect of a lane takes time and ends in exactly one event of that lane, or in
`LaneFailed`. The other effects are carried out immediately and cause no event.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import msgspec

from reporter.cgroup.cpusets import Findings
from reporter.exchange import Facts
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


class RoundEvent(msgspec.Struct, frozen=True):
    """Anything that happens."""

    lane: ClassVar[Lane | None] = None  # the lane whose effect this event concludes; None if it concludes none


class Restored(RoundEvent, frozen=True):
    """The cards' record of an earlier process was read; the machine starts."""

    node: NodeRecord
    problems: tuple[str, ...] = ()  # what in the file could not be used, a sentence each


class Due(RoundEvent, frozen=True):
    """A lane's work is due."""

    which: Lane


class LaneFailed(RoundEvent, frozen=True):
    """A bug ended a lane's work; the lane is tried again later."""

    which: Lane


class ObjectStands(RoundEvent, frozen=True):
    """The cluster has this object."""

    what: WatchedKind  # the Node, the Device or the NodeResourceTopology
    obj: Raw


class ObjectGone(RoundEvent, frozen=True):
    """The cluster no longer has this object."""

    what: WatchedKind  # the Node, the Device or the NodeResourceTopology


class PodsChanged(RoundEvent, frozen=True):
    """The node's Pods changed."""

    pods: tuple[NodePod, ...]  # all of them, by namespace, name and UID


class Listed(RoundEvent, frozen=True):
    """A first complete list was taken in."""

    what: WatchedKind


class CardsRead(RoundEvent, frozen=True):
    """NVML was read."""

    lane: ClassVar = Lane.CARDS
    reading: NodeReading
    xids: tuple[XidEvent, ...] = ()  # Xid errors reported since the last reading and not yet heard


class CardsAway(RoundEvent, frozen=True):
    """NVML could not be read."""

    lane: ClassVar = Lane.CARDS
    outage: Outage  # why, and since when
    retry_seconds: float  # when a new attempt makes sense, in seconds from now


class XidsHeard(RoundEvent, frozen=True):
    """NVML reported Xid errors."""

    lane: ClassVar = Lane.XIDS
    xids: tuple[XidEvent, ...]


class HealthSaved(RoundEvent, frozen=True):
    """The cards' record was written."""

    lane: ClassVar = Lane.HEALTH
    problem: str = ""  # why it was not; "" if it was


class HostRead(RoundEvent, frozen=True):
    """The node's files were read, and the kubelet's PodResources socket was asked."""

    lane: ClassVar = Lane.ROUND
    host: HostReading


class CpusWritten(RoundEvent, frozen=True):
    """The enforcer was told, and cpusets were enforced, as far as the settings ask for it."""

    lane: ClassVar = Lane.ROUND
    findings: Findings | None = None  # what enforcement found and did; None if it did not run
    problem: str = ""  # why enforcement could not run; "" if it did
    untold: str = ""  # why the enforcer could not be told; "" if it was


class Proved(RoundEvent, frozen=True):
    """Containers and cards were inspected."""

    lane: ClassVar = Lane.PROOF
    containers: Mapping[str, ContainerSeen]  # container id to what was seen of it
    uses: tuple[CardUse, ...]  # processes on cards
    processes: Mapping[str, tuple[GpuProcess, ...]]  # card's UUID to its processes as last listed
    running: frozenset[str] = frozenset()  # ids of the containers with cards that have a cgroup
    # card's UUID and container id to what the driver says of the container's memory of the card
    memory: Mapping[tuple[str, str], CgroupMemory] = msgspec.field(default_factory=dict)


class KubeletAnswered(RoundEvent, frozen=True):
    """The kubelet was asked for its configuration."""

    lane: ClassVar = Lane.CONFIGZ
    answer: FileReading[KubeletConfiguration]


class PolicyRead(RoundEvent, frozen=True):
    """The GPU Operator's ClusterPolicy was read."""

    lane: ClassVar = Lane.POLICY
    policy: OperatorPolicy


class EventsSent(RoundEvent, frozen=True):
    """The waiting Kubernetes Events were written, as far as the API server accepted them."""

    lane: ClassVar = Lane.PUBLISH


class Written(RoundEvent, frozen=True):
    """The API server accepted a write."""

    lane: ClassVar = Lane.PUBLISH
    target: Target
    obj: Raw  # the object as it is now


class WriteRefused(RoundEvent, frozen=True):
    """A write failed."""

    lane: ClassVar = Lane.PUBLISH
    target: Target  # what was to be written
    problem: str  # why, a sentence


class RoundEffect(msgspec.Struct, frozen=True):
    """Anything that is to be done."""

    lane: ClassVar[Lane | None] = None  # the lane that waits for it; None if it is carried out immediately


class ReadCards(RoundEffect, frozen=True):
    """Read NVML."""

    lane: ClassVar = Lane.CARDS
    expected: frozenset[str]  # UUIDs of the known cards


class HearXids(RoundEffect, frozen=True):
    """Wait for the next Xid errors."""

    lane: ClassVar = Lane.XIDS


class SaveHealth(RoundEffect, frozen=True):
    """Save the cards' record, for the next process."""

    lane: ClassVar = Lane.HEALTH
    node: NodeRecord


class ReadHost(RoundEffect, frozen=True):
    """Read the node's files and ask the kubelet's PodResources socket."""

    lane: ClassVar = Lane.ROUND
    pods: tuple[NodePod, ...]  # the node's Pods as known before the kubelet is asked
    cgroup_root: str = ""  # the kubelet's, as it answered; "": as its configuration file says


class WriteCpus(RoundEffect, frozen=True):
    """Tell the enforcer what it must know, and enforce cpusets."""

    lane: ClassVar = Lane.ROUND
    decided: Decided  # what to enforce
    facts: Facts | None = None  # what the enforcer is told; None if it is told nothing
    enforce: bool = True  # whether cpusets are enforced


class Prove(RoundEffect, frozen=True):
    """Inspect what containers and cards really have."""

    lane: ClassVar = Lane.PROOF
    pods: tuple[NodePod, ...]  # the Pods that have not finished
    cgroup_root: str  # the kubelet's `cgroupRoot`
    ask: tuple[str, ...]  # UUIDs of the cards whose processes are to be listed
    known: Mapping[str, tuple[GpuProcess, ...]]  # each card's UUID to its processes as last listed
    memory: bool = False  # whether the driver keeps memory limits, so that it is asked for them


class AskKubelet(RoundEffect, frozen=True):
    """Ask the kubelet for its configuration."""

    lane: ClassVar = Lane.CONFIGZ
    before: KubeletConfiguration | None  # its last good answer


class ReadPolicy(RoundEffect, frozen=True):
    """Read the GPU Operator's ClusterPolicy."""

    lane: ClassVar = Lane.POLICY
    before: OperatorPolicy  # what was read last


class SendEvents(RoundEffect, frozen=True):
    """Write the Kubernetes Events that are waiting."""

    lane: ClassVar = Lane.PUBLISH


class Apply(RoundEffect, frozen=True):
    """Apply an object."""

    lane: ClassVar = Lane.PUBLISH
    target: Target  # the address of the object
    body: Mapping[str, Any]


class Note(RoundEffect, frozen=True):
    """Queue Kubernetes Events."""

    occurrences: tuple[Occurrence, ...]


class Warn(RoundEffect, frozen=True):
    """Log a warning."""

    message: str


class CountXid(RoundEffect, frozen=True):
    """Count an Xid error."""

    xid: XidEvent
    known: bool  # whether it names a known card


class CountWrite(RoundEffect, frozen=True):
    """Count and log a write that the API server accepted."""

    target: Target
    taken_back: bool  # whether somebody else had changed our fields


class ShowRound(RoundEffect, frozen=True):
    """Show a round's outcome in the metrics."""

    decided: Decided
    cards: NodeRecord
    loads: Mapping[str, CardLoad]  # card's UUID to what it was doing at the last reading
    uses: Sequence[CardUse]  # processes on cards, as the last proof saw them
    nvml_up: bool  # whether NVML answers, or the node has no card of which it could tell
    findings: Findings | None  # what enforcement found and did; None if it did not run
    problems: tuple[str, ...]  # all that is wrong now, a sentence each
