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
    """One NVLink lane that is up.

    Attributes:
        peer: what is at its far end.
        bus: PCI address of its far end; None if NVML does not report it.
    """

    peer: Peer
    bus: str | None


@dataclass(frozen=True, slots=True)
class Fabric:
    """The NVLink fabric that a card belongs to.

    Attributes:
        state: progress of the registration.
        status: its result, an NVML return code: 0 is success. Valid only once the state is completed.
        cluster: UUID of the fabric, 32 hexadecimal digits.
        clique: cards of one fabric with the same number reach each other.
    """

    state: FabricState
    status: int
    cluster: str
    clique: int


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A MIG device: a slice of a card, made by the administrator.

    Attributes:
        uuid: as "MIG-...".
        profile: as "1g.18gb"; "" if unknown.
        memory: bytes, None if unknown.
        gpu_instance: id of its GPU instance on the card.
        compute_instance: id of its compute instance in the GPU instance.
    """

    uuid: str
    profile: str
    memory: int | None
    gpu_instance: int | None
    compute_instance: int | None


@dataclass(frozen=True, slots=True)
class Wear:
    """A card's memory errors, and what it did about them.

    Attributes:
        ecc: whether error correction is on.
        corrected: errors corrected since the driver was loaded or the card was reset.
        uncorrected: errors that could not be corrected, counted from the same time.
        retired_pages: pages retired permanently (before Ampere).
        retirement_pending: whether pages wait for the next reset to be retired.
        remapped_rows: rows replaced by spare ones (from Ampere on).
        remap_pending: whether rows wait for the next reset to be replaced.
        remap_failed: whether replacing a row has ever failed.
        sram_worn: whether more errors were counted in on-chip memory than the maker tolerates.
        repair_pending: whether a repair of a channel or a TPC waits for the next reset.
    """

    ecc: bool | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    retired_pages: int | None = None
    retirement_pending: bool | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    sram_worn: bool | None = None
    repair_pending: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One card.

    Attributes:
        uuid: its identity for life, as "GPU-...".
        minor: the N of /dev/nvidiaN.
        model: the product's name, as "NVIDIA H200"; "" if unknown.
        memory: bytes, those that the driver keeps for itself among them.
        reserved: bytes that the driver keeps for itself.
        bus: PCI address as sysfs spells it, "0000:3b:00.0".
        pcie_root: PCIe root complex, "pci0000:3a".
        numa_node: the nearest NUMA node of the host.
        module: number of its slot on a baseboard.
        compute_capability: major and minor.
        mig: whether it is in MIG mode now.
        mig_devices: the MIG devices on it.
        links: NVLink lanes that are up.
        fabric: the NVLink fabric it belongs to.
        wear: errors in its memory.
        recovery: what the driver asks for before it is used again.
        xid_events: whether it reports Xid errors as events.
        problems: readings that failed for a reason other than "not supported", a sentence each.
    """

    uuid: str
    minor: int
    model: str = ""
    memory: int | None = None
    reserved: int | None = None
    bus: str | None = None
    pcie_root: str | None = None
    numa_node: int | None = None
    module: int | None = None
    compute_capability: tuple[int, int] | None = None
    mig: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    links: tuple[Link, ...] = ()
    fabric: Fabric | None = None
    wear: Wear = Wear()
    recovery: RecoveryAction | None = None
    xid_events: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The driver's software.

    Attributes:
        version: of the kernel driver, "580.159.04".
        cuda: the newest CUDA version that it can run, "13.0".
        nvml: version of the management library.
        memory_limits: whether it keeps memory limits by cgroup (driver R615 and later); None if that is not known.
    """

    version: str | None
    cuda: str | None
    nvml: str | None
    memory_limits: bool | None = None


@dataclass(frozen=True, slots=True)
class LostCard:
    """A card that the driver lists but can no longer reach.

    Attributes:
        index: its index in NVML's list.
        uuid: None if this process never read it.
        reset: whether a reset suffices; otherwise it has fallen off the bus.
        message: NVML's message.
    """

    index: int
    uuid: str | None
    reset: bool
    message: str


@dataclass(frozen=True, slots=True)
class CardLoad:
    """What a card is doing; None if it does not report it. Nothing is decided by it.

    Attributes:
        memory: bytes in use, the driver's own among them.
        busy: percent of the last sampling period (up to a second) in which a kernel ran.
    """

    memory: int | None = None
    busy: int | None = None


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One full reading of a node.

    Attributes:
        driver: the driver's software.
        gpus: the cards that answered, in the order of NVML's list.
        lost: the cards that did not.
        boot: the node's boot id, which changes at each restart.
        booted: when that was, seconds since 1970; 0 if it is not known.
        loads: UUID to what the card is doing.
    """

    driver: DriverFacts
    gpus: tuple[GpuFacts, ...]
    lost: tuple[LostCard, ...]
    boot: str
    booted: float = 0.0
    loads: Mapping[str, CardLoad] = field(default_factory=dict)

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
    """An Xid error, or several of one number.

    Attributes:
        uuid: the card's; None if NVML named no card.
        xid: its number in NVIDIA's catalogue.
        time: of the last one, seconds since 1970.
        count: how many there were.
    """

    uuid: str | None
    xid: int
    time: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a card.

    Attributes:
        pid: in the host's PID namespace.
        memory: bytes of the card's memory; None if NVML does not report it.
    """

    pid: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """What the driver says of a cgroup's memory of one card.

    Attributes:
        soft: bytes that are guaranteed to it.
        hard: bytes that it can have at most; None if it has no limit.
        used: bytes that it has; None if the driver does not count them.
        problem: why the driver cannot say, a part of a sentence; "" if it can.
    """

    soft: int = 0
    hard: int | None = None
    used: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Outage:
    """NVML cannot be read.

    Attributes:
        reason: one word for conditions and Events: "NvmlNotFound".
        message: what happened and what to do, in a sentence.
        since: when this was first noticed, seconds since 1970.
    """

    reason: str
    message: str
    since: float
