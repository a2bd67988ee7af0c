"""What is known of a node's GPUs at one moment, as plain frozen values; None if a card does not report it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Peer(StrEnum):
    """What the far end of an NVLink is."""

    GPU = "gpu"
    SWITCH = "switch"
    OTHER = "other"


class FabricState(StrEnum):
    """A card's progress in joining the NVLink fabric (NVML, nvmlGpuFabricState_t)."""

    NOT_STARTED = "not started"
    IN_PROGRESS = "in progress"
    COMPLETED = "completed"


class RecoveryAction(StrEnum):
    """What the driver asks for before a card is used again (NVML, NVML_GPU_RECOVERY_ACTION_*)."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink lane that is up."""

    peer: Peer  # what is at its far end
    bus: str | None  # PCI address of its far end; None if NVML does not report it


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVLink fabric that a card belongs to."""

    state: FabricState  # progress of the registration
    status: int  # its result, an NVML return code: 0 is success. Valid only once the state is completed.
    cluster: str  # UUID of the fabric, 32 hexadecimal digits
    clique: int  # cards of one fabric with the same number reach each other


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device: a slice of a card, made by the administrator."""

    uuid: str  # as "MIG-..."
    profile: str  # as "1g.18gb"; "" if unknown


@dataclass(frozen=True, slots=True)
class Wear:
    """A card's memory errors, and what it did about them."""

    corrected: int | None = None  # errors corrected since the driver was loaded or the card was reset
    uncorrected: int | None = None  # errors that could not be corrected, counted from the same time
    retired_pages: int | None = None  # pages retired permanently (before Ampere)
    retirement_pending: bool | None = None  # whether pages wait for the next reset to be retired
    remapped_rows: int | None = None  # rows replaced by spare ones (from Ampere on)
    remap_pending: bool | None = None  # whether rows wait for the next reset to be replaced
    remap_failed: bool | None = None  # whether replacing a row has ever failed
    sram_worn: bool | None = None  # whether more errors were counted in on-chip memory than the maker tolerates
    repair_pending: bool | None = None  # whether a repair of a channel or a TPC waits for the next reset


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One card."""

    uuid: str  # its identity for life, as "GPU-..."
    minor: int  # the N of /dev/nvidiaN
    model: str = ""  # the product's name, as "NVIDIA H200"; "" if unknown
    memory: int | None = None  # bytes, those that the driver keeps for itself among them
    reserved: int | None = None  # bytes that the driver keeps for itself
    bus: str | None = None  # PCI address as sysfs spells it, "0000:3b:00.0"
    pcie_root: str | None = None  # PCIe root complex, "pci0000:3a"
    numa_node: int | None = None  # the nearest NUMA node of the host
    module: int | None = None  # number of its slot on a baseboard
    compute_capability: tuple[int, int] | None = None  # major and minor
    mig: bool | None = None  # whether it is in MIG mode now
    mig_devices: tuple[MigDevice, ...] = ()  # the MIG devices on it
    links: tuple[Link, ...] = ()  # NVLink lanes that are up
    fabric: Fabric | None = None  # the NVLink fabric it belongs to
    wear: Wear = Wear()  # errors in its memory
    recovery: RecoveryAction | None = None  # what the driver asks for before it is used again
    xid_events: bool = False  # whether it reports Xid errors as events
    problems: tuple[str, ...] = ()  # readings that failed for a reason other than "not supported", a sentence each


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The driver's software."""

    version: str | None  # of the kernel driver, "580.159.04"
    cuda: str | None  # the newest CUDA version that it can run, "13.0"
    # whether it keeps memory limits by cgroup (driver R615 and later); None if that is not known
    memory_limits: bool | None = None


@dataclass(frozen=True, slots=True)
class LostCard:
    """A card that the driver lists but can no longer reach."""

    index: int  # its index in NVML's list
    uuid: str | None  # None if this process never read it
    reset: bool  # whether a reset suffices; otherwise it has fallen off the bus
    message: str  # NVML's message


@dataclass(frozen=True, slots=True)
class CardLoad:
    """What a card is doing; None if it does not report it. Nothing is decided by it."""

    memory: int | None = None  # bytes in use, the driver's own among them
    busy: int | None = None  # percent of the last sampling period (up to a second) in which a kernel ran


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One full reading of a node."""

    driver: DriverFacts
    gpus: tuple[GpuFacts, ...]  # the cards that answered, in the order of NVML's list
    lost: tuple[LostCard, ...]  # the cards that did not
    boot: str  # the node's boot id, which changes at each restart
    booted: float = 0.0  # when that was, seconds since 1970; 0 if it is not known
    loads: Mapping[str, CardLoad] = field(default_factory=dict)  # UUID to what the card is doing

    @property
    def indexes(self) -> tuple[str, ...]:
        """UUIDs in the order of NVML's list; "" from the first card on that does not answer.

        Whether a process that starts now sees the cards after it under their numbers is not known.
        """
        first = min((card.index for card in self.lost), default=len(self.gpus))
        uuids = [gpu.uuid for gpu in self.gpus[:first]]
        return tuple(uuids + [""] * (len(self.gpus) + len(self.lost) - len(uuids)))


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An Xid error, or several of one number."""

    uuid: str | None  # the card's; None if NVML named no card
    xid: int  # its number in NVIDIA's catalogue
    time: float  # of the last one, seconds since 1970
    count: int = 1  # how many there were


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a card."""

    pid: int  # in the host's PID namespace
    memory: int | None  # bytes of the card's memory; None if NVML does not report it


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """What the driver says of a cgroup's memory of one card."""

    hard: int | None = None  # bytes that it can have at most; None if it has no limit
    used: int | None = None  # bytes that it has; None if the driver does not count them
    problem: str = ""  # why the driver cannot say, a part of a sentence; "" if it can
    soft: int = 0  # bytes that it is guaranteed


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit of a cgroup's memory of one card, in bytes."""

    card: str  # UUID
    cgroup: str  # full path of its folder on the host
    soft: int | None  # what it is guaranteed; None leaves that as it is
    hard: int | None  # what it can have at most; None for no limit


@dataclass(frozen=True, slots=True)
class Outage:
    """NVML cannot be read."""

    reason: str  # one word for conditions and Events: "NvmlNotFound"
    message: str  # what happened and what to do, in a sentence
    since: float  # when this was first noticed, seconds since 1970
