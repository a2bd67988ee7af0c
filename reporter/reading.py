"""One reading of the node, as frozen values: its files, and its cards as NVML reports them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from allocator.wire.nodetopology import NumaZone
from reporter.exchange import State
from reporter.files import FileReading
from reporter.gpu.facts import DriverFacts, LostCard, Outage
from reporter.gpu.faults import STANDING
from reporter.gpu.health import NOTHING_KNOWN, NodeRecord
from reporter.inventory import CpuInventory, PciDevice
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.kubelet.cpustate import CpuState
from reporter.kubelet.devicecheckpoint import DeviceCheckpoint
from reporter.kubelet.podresources import Allocations
from reporter.runtimefiles import RuntimeReading


@dataclass(frozen=True, slots=True)
class EnforcerReading:
    """The enforcer, as it shows itself."""

    registered: bool = False  # whether it is registered with the container runtime
    gone: bool = False  # whether it has not been for a minute
    state: State = field(default_factory=State)  # what it told last
    problem: str = ""  # why that cannot be read; "" if it can
    library: bool = False  # whether HAMi-core's library is where the settings say
    pipe: bool = False  # whether the MPS daemon's pipe directory is


def _unread() -> FileReading[Any]:
    return FileReading(None, None)


@dataclass(frozen=True, slots=True)
class HostReading:
    """The node's files as read once."""

    cpus: CpuInventory  # CPUs of the machine
    zones: Mapping[int, NumaZone] = field(default_factory=dict)  # NUMA node to its CPUs, memory and huge pages
    devices: tuple[PciDevice, ...] = ()  # RDMA NICs, FPGAs and configured types
    nvidia: bool = False  # whether sysfs lists an NVIDIA card, independently of NVML
    configuration: FileReading[KubeletConfiguration] = field(default_factory=_unread)
    in_force: bool = False  # whether it is what the kubelet answered, with its flags
    cpu_state: FileReading[CpuState] = field(default_factory=_unread)  # the kubelet's CPU manager state
    # the kubelet's device manager checkpoint
    checkpoint: FileReading[DeviceCheckpoint] = field(default_factory=_unread)
    # the kubelet's answer on its PodResources socket
    pod_resources: FileReading[Allocations] = field(default_factory=_unread)
    # UID of each Pod that has, or may have, CPUs of its own, to the CPUs that its containers run on, but for those that
    # run in the shared pool
    cpusets: Mapping[str, int] = field(default_factory=dict)
    enforcer: EnforcerReading | None = None  # None if the settings have none
    # the files about the container runtime; None on a machine without NVIDIA's cards
    runtime: RuntimeReading | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """Why a file of the kubelet, or its PodResources answer, cannot be used: a sentence each."""
        readings = (
            self.configuration.problem,
            self.cpu_state.problem,
            self.checkpoint.problem,
            self.pod_resources.problem,
        )
        return tuple(problem for problem in readings if problem)

    @property
    def cgroup_root(self) -> str:
        """The cgroup under which the kubelet keeps its Pods; "/" while its configuration is unknown."""
        return (self.configuration.value or KubeletConfiguration()).cgroup_root


@dataclass(frozen=True, slots=True)
class GpuView:
    """The node's cards as currently known."""

    node: NodeRecord = NOTHING_KNOWN  # the record of all cards
    driver: DriverFacts | None = None  # the driver as last read; None if it never was
    outage: Outage | None = None  # why NVML cannot be read; None while it can
    unnamed: tuple[LostCard, ...] = ()  # cards that have never answered, so that their UUIDs are unknown
    # UUIDs in the order of NVML's list, as `NodeReading` states them; empty before NVML was read
    indexes: tuple[str, ...] = ()
    booted: float = 0.0  # when the node booted, seconds since 1970; 0 if that is not known
    read: float = 0.0  # when NVML was last read, likewise; 0 before
    until: float = 0.0  # when it was last read with other indexes, likewise; 0 if this process did not

    @property
    def keeps_limits(self) -> bool | None:
        """Whether the driver keeps memory limits; None if that is not known."""
        return self.driver.memory_limits if self.driver is not None else None

    @property
    def problems(self) -> tuple[str, ...]:
        """A sentence for each card without a known UUID."""
        return tuple(
            f"the card at index {card.index} of NVML's list has not answered since the driver was loaded "
            f"({card.message}): {STANDING['GpuNeedsReset' if card.reset else 'GpuLost'].message}"
            for card in self.unnamed
        )
