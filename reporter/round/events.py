"""What can happen to the reporter, as values: each is one input of the state machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from reporter.cgroup.enforcer import Findings
from reporter.delivery.facts import OperatorPolicy
from reporter.gpu.facts import CgroupMemory, GpuProcess, NodeReading, Outage, XidEvent
from reporter.gpu.health import NodeRecord
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.kubelet.watched import FileReading
from reporter.pods import NodePod
from reporter.proof.agree import CardUse, ContainerSeen
from reporter.publish.writer import Target
from reporter.reading import HostReading
from reporter.takeover.rounds import TakenOver

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
