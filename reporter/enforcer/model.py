"""Sandboxes and containers as the enforcer knows them, and what is to be changed of them; free of NRI's types.

Sets of CPUs and NUMA nodes are integers, in which bit i stands for CPU, or NUMA node, i.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from reporter.exchange import CardState, Remark


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A Pod's sandbox. Its annotations are those of its creation: what a Pod is given later is not among them."""

    id: str
    uid: str  # the Pod's UID; of a static Pod, the hash of its file
    namespace: str
    name: str  # of the Pod
    # the QoS label, and what koordgate and NVIDIA's fractioning operator decided: nothing else of them counts
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup: str = ""  # the Pod's cgroup, as the runtime names it (`layout.from_runtime`)
    handler: str = ""  # the runtime handler; "" for the default one

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Container:
    """A container, as the runtime's stored specification has it."""

    id: str
    sandbox: str  # the sandbox's id
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)  # the image's too; only what shows or limits cards
    mounts: tuple[str, ...] = ()  # destinations
    cdi: tuple[str, ...] = ()  # CDI devices that others have asked for
    cpus: int = 0  # 0: none are stated
    mems: int = 0  # likewise
    cgroup: str = ""  # as the runtime names it (`layout.from_runtime`)
    pid: int = 0  # 0 before it is created


class Mount(NamedTuple):
    """A bind mount."""

    source: str  # on the host
    destination: str
    writable: bool = False


class CardLimit(NamedTuple):
    """The driver's limit of a cgroup's memory of a card, in bytes; `hard` None for no limit."""

    card: str  # UUID
    cgroup: str  # full path on the host
    soft: int
    hard: int | None


@dataclass(frozen=True, slots=True)
class Edits:
    """What is added to a container that is created."""

    cpus: int = 0  # 0: left as they are
    mems: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    cdi: tuple[str, ...] = ()  # qualified names


class Update(NamedTuple):
    """New cpusets of a container that exists; 0: left as it is."""

    container: str
    cpus: int
    mems: int = 0


class MpsShare(NamedTuple):
    """A namespace of the MPS daemon, for one container."""

    namespace: str  # "" if the daemon makes none (protocol 2): it must answer, no more
    percent: int  # of each card's threads that its programs may use at a time


@dataclass(frozen=True, slots=True)
class Answer:
    """What is decided about a container, or about all of them."""

    edits: Edits = field(default_factory=Edits)
    updates: tuple[Update, ...] = ()  # of other containers
    limits: tuple[CardLimit, ...] = ()  # to be set in the driver, and read back, before the call is answered
    # whether the container is refused if one of these limits, or what follows, cannot be had; otherwise it is told as
    # missing
    required: bool = False
    # folders that must be there, empty, and writable for everybody, before the call is answered
    caches: tuple[str, ...] = ()
    mps: MpsShare | None = None  # what must be there before the call is answered
    refusal: str = ""  # why the container is refused, and the cure; "" if it is not
    remarks: tuple[Remark, ...] = ()  # what is to be told
    # container's id and card to what keeps its memory: `enforced` as soon as the limits are read back
    kept: Mapping[str, Mapping[str, CardState]] = field(default_factory=dict)
