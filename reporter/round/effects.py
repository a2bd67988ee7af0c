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
