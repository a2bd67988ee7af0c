"""What reporter and enforcer tell each other: two JSON files in one folder, which only root may open.

The reporter writes `facts.json`, which it alone can know of the node: pools of CPUs, what the kubelet gave, cards, and
how these get into containers. The enforcer writes `state.json`. Each file is replaced whole. While the enforcer is
registered with the runtime, it holds the lock of `lock` exclusively, and the time of its file changes; that is how the
reporter knows that it is there, and does not hang.
"""

from pathlib import Path
from typing import Final

import msgspec

from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.delivery import Keeping

FACTS: Final = "facts.json"
STATE: Final = "state.json"
LOCK: Final = "lock"
MAX_BYTES: Final = 4 * 2**20
MAX_REMARKS: Final = 256
BEAT_S: Final = 10.0  # the enforcer gives its file a new time at least as often


class Cpus(msgspec.Struct, frozen=True):
    """CPUs as lists such as 0-3,8."""

    shared: str = ""
    best_effort: str = ""
    first: str = ""  # the CPUs of the BE pool that its Pods use first; "" if they use all of it
    system: str = ""
    shared_by_node: dict[int, str] = {}
    best_effort_by_node: dict[int, str] = {}
    static: bool = False  # whether the kubelet's CPU manager has the static policy
    static_memory: bool = False
    default: str = ""  # the kubelet's shared CPUs under that policy
    given: dict[str, dict[str, str]] = {}  # Pod UID to container to the CPUs that the kubelet gave it alone
    mems: bool = False  # whether cpuset.mems follows the NUMA nodes that were allocated
    # Pod UID to the names of its containers that run in the shared pool, although the Pod has CPUs of its own
    beside: dict[str, tuple[str, ...]] = {}

    def __post_init__(self) -> None:
        """Check the lists, so that whoever has them can read them.

        Raises CpusetError: one is not such a list.
        """
        given = (text for containers in self.given.values() for text in containers.values())
        parts = (*self.shared_by_node.values(), *self.best_effort_by_node.values())
        for text in (self.shared, self.best_effort, self.first, self.system, self.default, *parts, *given):
            parse(text)


class CardPlace(msgspec.Struct, frozen=True):
    """A card, or a MIG device."""

    bus: str = ""  # PCI address, by which CUDA numbers cards with CUDA_DEVICE_ORDER=PCI_BUS_ID
    memory: int = 0  # bytes in all


class Facts(msgspec.Struct, frozen=True):
    """What the reporter knows of the node."""

    cpus: Cpus = Cpus()
    cards: dict[str, CardPlace] = {}  # by UUID
    kinds: dict[str, str] = {}  # device type to the CDI kind that names its devices by their ids
    default_shows: bool = False  # whether the default runtime shows the cards that NVIDIA_VISIBLE_DEVICES names
    showing: tuple[str, ...] = ()  # the runtime handlers that do
    mounts: bool = False  # whether these take mounts below /var/run/nvidia-container-devices
    provider: str = "none"  # name of the `LimitProvider` of this node
    # why its limits cannot be kept here, and the cure; "" if they can. The enforcer adds what it finds itself.
    no_limits: str = ""
    variable: str = ""  # the CDI kind with which NVIDIA_VISIBLE_DEVICES names a card; "" for the bare UUID
    # What the enforcer finds itself; the file does not have it.
    mps_namespaces: str = ""  # where the MPS daemon has a folder for each namespace; "" if it makes none (protocol 2)


class CardState(msgspec.Struct, frozen=True):
    """What a container's memory of a card is kept by."""

    provider: str  # name of a `LimitProvider`
    keeping: str  # name of a `Keeping`
    limit: int | None = None  # bytes

    @property
    def missing(self) -> "CardState":
        """The same, where it is not in force."""
        return msgspec.structs.replace(self, keeping=Keeping.MISSING)


class Remark(msgspec.Struct, frozen=True):
    """What is to be told of a Pod, or of the node if the Pod's UID is "": an Event."""

    reason: str  # CamelCase
    message: str
    uid: str = ""
    namespace: str = ""
    name: str = ""


class State(msgspec.Struct, frozen=True):
    """What the enforcer tells of itself."""

    runtime: str = ""  # name and version of the container runtime
    away: bool = False  # whether it is not registered with that: it holds the lock at each try
    # why it does not work in whole or in part, and the cure, a sentence each
    problems: tuple[str, ...] = ()
    provider: str = ""  # name of the `LimitProvider` for whose limits it looked last
    limits: str | None = None  # why that is not ready, and the cure; "" if it is; None if that is not known
    cpus: bool = True  # whether it sets cpusets; not beside another plugin that does
    containers: dict[str, dict[str, CardState]] = {}  # container id to card's UUID
    remarks: tuple[Remark, ...] = ()  # the last `MAX_REMARKS`


def folder(state: str) -> Path:
    """Where the files are, below the folder of the reporter's state."""
    return Path(state) / "enforcer"
