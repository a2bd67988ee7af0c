"""What the state machine requests, as values.

An effect of a lane takes time and ends in exactly one event of that lane, or in `LaneFailed`. The others are carried
out immediately and cause no event.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from reporter.cgroup.enforcer import Findings
from reporter.delivery.facts import OperatorPolicy
from reporter.gpu.facts import CardLoad, GpuProcess, XidEvent
from reporter.gpu.health import NodeRecord
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.pods import NodePod
from reporter.proof.agree import CardUse
from reporter.publish.events import Occurrence
from reporter.publish.writer import Target
from reporter.reading import HostReading
from reporter.round.decide import Decided
from reporter.round.events import Lane


@dataclass(frozen=True, slots=True)
class RoundEffect:
    """Anything that is to be done.

    Attributes:
        lane: the lane that waits for it; None if it is carried out immediately.
    """

    lane: ClassVar[Lane | None] = None


@dataclass(frozen=True, slots=True)
class ReadCards(RoundEffect):
    """Read NVML.

    Attributes:
        expected: UUIDs of the known cards.
    """

    lane: ClassVar = Lane.CARDS
    expected: frozenset[str]


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
    """Read the node's files and ask the kubelet's PodResources socket.

    Attributes:
        pods: the node's Pods as known before the kubelet is asked.
        cgroup_root: the kubelet's, as it answered; "": as its configuration file says.
    """

    lane: ClassVar = Lane.ROUND
    pods: tuple[NodePod, ...]
    cgroup_root: str = ""


@dataclass(frozen=True, slots=True)
class WriteCpus(RoundEffect):
    """Enforce cpusets, then treat the kubelet's CPU manager state as the settings require.

    Attributes:
        decided: what to enforce; None if cpusets are left alone.
        pods: all Pods of the node.
        host: the node's files.
    """

    lane: ClassVar = Lane.ROUND
    decided: Decided | None
    pods: tuple[NodePod, ...]
    host: HostReading


@dataclass(frozen=True, slots=True)
class Prove(RoundEffect):
    """Inspect what containers and cards really have.

    Attributes:
        pods: the Pods that have not finished.
        cgroup_root: the kubelet's `cgroupRoot`.
        ask: UUIDs of the cards whose processes are to be listed.
        known: each card's UUID to its processes as last listed.
        memory: whether the driver keeps memory limits, so that it is asked for them.
    """

    lane: ClassVar = Lane.PROOF
    pods: tuple[NodePod, ...]
    cgroup_root: str
    ask: tuple[str, ...]
    known: Mapping[str, tuple[GpuProcess, ...]]
    memory: bool = False


@dataclass(frozen=True, slots=True)
class AskKubelet(RoundEffect):
    """Ask the kubelet for its configuration.

    Attributes:
        before: its last good answer.
    """

    lane: ClassVar = Lane.CONFIGZ
    before: KubeletConfiguration | None


@dataclass(frozen=True, slots=True)
class ReadPolicy(RoundEffect):
    """Read the GPU Operator's ClusterPolicy.

    Attributes:
        before: what was read last.
    """

    lane: ClassVar = Lane.POLICY
    before: OperatorPolicy


@dataclass(frozen=True, slots=True)
class SendEvents(RoundEffect):
    """Write the Kubernetes Events that are waiting."""

    lane: ClassVar = Lane.PUBLISH


@dataclass(frozen=True, slots=True)
class Apply(RoundEffect):
    """Apply an object.

    Attributes:
        target: the address of the object.
        body: its fields.
    """

    lane: ClassVar = Lane.PUBLISH
    target: Target
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
    """Count an Xid error.

    Attributes:
        xid: the error.
        known: whether it names a known card.
    """

    xid: XidEvent
    known: bool


@dataclass(frozen=True, slots=True)
class CountWrite(RoundEffect):
    """Count and log a write that the API server accepted.

    Attributes:
        target: what was written.
        taken_back: whether somebody else had changed our fields.
    """

    target: Target
    taken_back: bool


@dataclass(frozen=True, slots=True)
class ShowRound(RoundEffect):
    """Show a round's outcome in the metrics.

    Attributes:
        decided: what was decided.
        cards: the cards' record.
        loads: card's UUID to what it was doing at the last reading.
        uses: processes on cards, as the last proof saw them.
        nvml_up: whether NVML answers, or the node has no card of which it could tell.
        findings: what enforcement found and did; None if it did not run.
        taken_over: whether the kubelet's CPU state was written.
        problems: all that is wrong now, a sentence each.
    """

    decided: Decided
    cards: NodeRecord
    loads: Mapping[str, CardLoad]
    uses: Sequence[CardUse]
    nvml_up: bool
    findings: Findings | None
    taken_over: bool
    problems: tuple[str, ...]
