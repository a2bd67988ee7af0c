"""What a node has besides GPUs, from sysfs and procfs: CPUs, memory of NUMA nodes, and PCI devices of other types."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from allocator.vocabulary.cputopology import Cpu, CpuTopology, TopologyError, format_cpuset, members
from allocator.vocabulary.device import pci_address
from allocator.vocabulary.names import TYPE_FPGA, TYPE_RDMA
from allocator.wire.nodetopology import CpuBasicInfo, NumaZone
from reporter import files
from reporter.files import numa_node, pcie_root


@dataclass(frozen=True, slots=True)
class CpuInventory:
    """The CPUs as read."""

    topology: CpuTopology | None  # None if it cannot be read or contradicts itself
    basic: CpuBasicInfo  # the processors' model and features
    problem: str | None = None  # why there is no topology; None if there is one


class CpuReader:
    """Reads the CPUs, again only if the set of online CPUs changed: a large machine has a thousand such files."""

    def __init__(self, sysfs: Path, proc: Path) -> None:
        self._sysfs = sysfs
        self._proc = proc
        self._online: int | None = None
        self._reading: CpuInventory | None = None

    def read(self) -> CpuInventory:
        """Read; never raises."""
        online = files.cpu_list(self._sysfs / "devices" / "system" / "cpu" / "online")
        if self._reading is None or online is None or online != self._online or self._reading.problem is not None:
            self._online = online
            self._reading = read_cpus(self._sysfs, self._proc)
        return self._reading


def read_cpus(sysfs: Path, proc: Path) -> CpuInventory:
    """Read the CPUs that are online; never raises.

    Cores are numbered through the whole machine by the lowest of their CPUs, as lscpu does. (Koordinator, too, reports
    lscpu's numbers.) The kernel's own `core_id` starts again in each socket, and on some machines in each die.
    """
    system = sysfs / "devices" / "system"
    basic = read_basic(sysfs, proc)
    online = files.cpu_list(system / "cpu" / "online")
    if not online:
        return CpuInventory(None, basic, f"{system / 'cpu' / 'online'} names no CPU; mount the host's /sys")
    nodes = _nodes(system / "node")
    cpus: list[Cpu] = []
    cores: dict[int, int] = {}  # set of siblings -> number
    alone = 0  # CPUs whose siblings are not told
    for cpu in members(online):
        place = system / "cpu" / f"cpu{cpu}" / "topology"
        told = files.cpu_list(place / "core_cpus_list") or files.cpu_list(place / "thread_siblings_list")
        siblings = ((told or 0) | 1 << cpu) & online
        alone |= 0 if told else 1 << cpu
        core = cores.setdefault(siblings, len(cores))
        socket = files.number(place / "physical_package_id")
        node = nodes.get(cpu, 0) if nodes is not None else 0
        cpus.append(Cpu(cpu, core, max(socket or 0, 0), node))  # -1: the firmware does not say
    # Some machines tell nothing of siblings. What is told of some CPUs only could not be read of the others.
    unread = (alone if alone != online else 0) | (online & ~sum(1 << cpu for cpu in nodes) if nodes is not None else 0)
    if unread:
        return CpuInventory(None, basic, f"{system}: what it tells of CPUs {format_cpuset(unread)} cannot be read")
    try:
        return CpuInventory(CpuTopology.of(cpus), basic)
    except TopologyError as error:
        return CpuInventory(None, basic, f"{system}: {error}; the CPU topology cannot be used")


def _nodes(folder: Path) -> dict[int, int] | None:
    """CPU to NUMA node, as far as it can be read; None on a machine that reports no NUMA nodes."""
    found: dict[int, int] | None = None
    for name in files.names(folder):
        number = name.removeprefix("node")
        if number.isdecimal() and name != number:
            found = found or {}
            for cpu in members(files.cpu_list(folder / name / "cpulist") or 0):
                found[cpu] = int(number)
    return found


def read_basic(sysfs: Path, proc: Path) -> CpuBasicInfo:
    """Read what the processors are: model and maker of the first, hyper-threading, turbo, and the cache mask."""
    fields: dict[str, str] = {}
    for line in (files.text(proc / "cpuinfo") or "").splitlines():
        key, colon, value = line.partition(":")
        if not colon and fields:
            break  # the end of the first processor's paragraph
        fields.setdefault(key.strip(), value.strip()[:256])
    boost = files.number(sysfs / "devices" / "system" / "cpu" / "cpufreq" / "boost")
    no_turbo = files.number(sysfs / "devices" / "system" / "cpu" / "intel_pstate" / "no_turbo")
    return CpuBasicInfo(
        model=fields.get("model name", ""),
        hyper_threading=files.text(sysfs / "devices" / "system" / "cpu" / "smt" / "active") == "1",
        turbo=no_turbo == 0 if no_turbo is not None else boost == 1,
        cat_l3_mask=(files.text(sysfs / "fs" / "resctrl" / "info" / "L3" / "cbm_mask") or "")[:64],
        vendor=fields.get("vendor_id", ""),
    )


_TOTAL: Final = re.compile(r"MemTotal:\s+([0-9]{1,15}) kB", re.ASCII)
_PAGES: Final = {"hugepages-2048kB": ("hugepages-2Mi", 2 * 2**20), "hugepages-1048576kB": ("hugepages-1Gi", 2**30)}


def read_zones(sysfs: Path, topology: CpuTopology | None) -> dict[int, NumaZone]:
    """Read the online NUMA nodes, by number; amounts that cannot be read are left out.

    As Koordinator reports them (pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go): zones `node-N`, with
    CPUs, memory without huge pages, and huge pages.

    `topology`: the CPUs; a node's CPUs are left out without it.
    """
    folder = sysfs / "devices" / "system" / "node"
    zones: dict[int, NumaZone] = {}
    for name in files.names(folder):
        number = name.removeprefix("node")
        if name == number or not number.isdecimal():
            continue
        amounts = _memory(folder / name)
        if topology is not None:
            amounts["cpu"] = 1000 * topology.nodes.get(int(number), 0).bit_count()
        if amounts:
            zones[int(number)] = NumaZone(amounts, amounts)
    return dict(sorted(zones.items()))


def _memory(node: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    pages = 0
    for folder, (resource, size) in _PAGES.items():
        count = files.number(node / "hugepages" / folder / "nr_hugepages")
        if count is not None and count >= 0:
            pages += count * size
            found[resource] = count * size
    total = _TOTAL.search(files.text(node / "meminfo") or "")
    if total is not None:
        found["memory"] = max(int(total[1]) * 1024 - pages, 0)
    return found


_MLX: Final = re.compile(r"mlx[0-9]{1,4}_([0-9]{1,6})", re.ASCII)
_ACTIVE: Final = "ACTIVE"
_ACCELERATOR: Final = 0x12  # PCI base class "processing accelerators"
_UNKNOWN: Final = "unknown"

LINK_DOWN: Final = "LinkDown"
LINK_UNKNOWN: Final = "LinkUnknown"
NO_PORT: Final = "NoPort"
FALLEN_OFF_BUS: Final = "FallenOffBus"


@dataclass(frozen=True, slots=True)
class PciMatch:
    """Which PCI devices have a type; None matches anything."""

    type: str  # as Device objects spell it
    vendor: int  # PCI vendor id
    device: int | None = None  # PCI device id
    base_class: int | None = None  # the upper byte of the class
    sub_class: int | None = None
    model: str = ""  # of these devices, for templates, boards and selectors; "" if there is none
    # (name, amount) of what such a device has and PCI does not report: bytes of memory, cores
    amounts: tuple[tuple[str, int], ...] = ()


# Xilinx and Altera make only FPGAs of this class; Intel's FPGA cards are recognised by ids (Linux, driver dfl-pci).
FPGAS: Final = (
    PciMatch(TYPE_FPGA, vendor=0x10EE, base_class=_ACCELERATOR),
    PciMatch(TYPE_FPGA, vendor=0x1172, base_class=_ACCELERATOR),
    *(PciMatch(TYPE_FPGA, vendor=0x8086, device=device) for device in (0x09C4, 0x0B2B, 0x0B30, 0xBCCE)),
)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One device."""

    type: str  # as Device objects spell it
    bus: str  # PCI address, as `0000:3b:00.0`; it is also its id
    minor: int  # its number among those of its type
    name: str = ""  # the device's name in its class, as `mlx5_0`; "" if it has none
    numa_node: int | None = None  # None if unknown
    pcie_root: str | None = None  # as `pci0000:3a`; None if unknown
    problem: str = ""  # why it cannot be used; "" if it can
    functions: tuple[str, ...] = ()  # PCI addresses of its virtual functions, ascending
    reason: str = ""  # the problem in one word; "" if there is none
    model: str = ""  # as the match states it
    amounts: tuple[tuple[str, int], ...] = ()  # as the match states them


class _Problem(NamedTuple):
    """Why a device cannot be used: a word and a sentence; both "" if it can."""

    reason: str = ""
    message: str = ""


def read_devices(sysfs: Path, matches: Iterable[PciMatch] = FPGAS) -> tuple[PciDevice, ...]:
    """List RDMA NICs and matching devices, by type and minor."""
    found = [*_rdma(sysfs), *_matched(sysfs, tuple(matches))]
    return tuple(sorted(found, key=lambda device: (device.type, device.minor, device.bus)))


def _rdma(sysfs: Path) -> list[PciDevice]:
    """RDMA NICs, virtual functions apart: those come with their physical one."""
    folder = sysfs / "class" / "infiniband"
    named: list[tuple[str, str]] = []
    for name in files.names(folder):
        bus = pci_address(files.target(folder / name / "device") or "")
        if bus is not None and not (_device(sysfs, bus) / "physfn").exists():
            named.append((bus, name))
    named.sort()
    minors = _rdma_minors(named)
    return [
        _make(sysfs, TYPE_RDMA, bus, minors[name], name=name, problem=_ports(folder / name / "ports"))
        for bus, name in named
    ]


def _rdma_minors(named: list[tuple[str, str]]) -> dict[str, int]:
    """Number NICs by their names, as Koordinator does (mlx5_3 is 3); one whose number is taken gets a free one."""
    minors: dict[str, int] = {}
    taken: set[int] = set()
    for _, name in named:
        match = _MLX.fullmatch(name)
        if match is not None and int(match[1]) not in taken:
            minors[name] = int(match[1])
            taken.add(int(match[1]))
    free = (number for number in range(len(named) * 2 + 1) if number not in taken)
    for _, name in named:
        if name not in minors:
            minors[name] = next(free)
    return minors


def _ports(folder: Path) -> _Problem:
    """Report the ports that make a NIC unusable: as in Koordinator, all must be ACTIVE."""
    ports = files.names(folder)
    if not ports:
        return _Problem(NO_PORT, "it has no port that can be read")
    states = {port: _port_state(folder / port) for port in ports}
    return _not_up("port", {port: state for port, state in states.items() if state != _ACTIVE})


def _not_up(what: str, states: Mapping[str, str]) -> _Problem:
    """Report links that are not up; if no state can be read, the links are unknown, not down."""
    if not states:
        return _Problem()
    reason = LINK_UNKNOWN if set(states.values()) == {_UNKNOWN} else LINK_DOWN
    return _Problem(reason, "; ".join(f"{what} {name} is {state}" for name, state in list(states.items())[:8]))


def _port_state(port: Path) -> str:
    """A port's state: `4: ACTIVE` is ACTIVE."""
    return (files.word(port / "state") or _UNKNOWN).rpartition(":")[2].strip()


def _matched(sysfs: Path, matches: tuple[PciMatch, ...]) -> list[PciDevice]:
    """Devices by id; the first function of a slot represents the card."""
    slots: dict[tuple[str, str], tuple[str, PciMatch]] = {}
    for name in files.names(sysfs / "bus" / "pci" / "devices"):
        bus = pci_address(name)
        if bus is None or bus != name or (_device(sysfs, bus) / "physfn").exists():
            continue
        match = _match(_device(sysfs, bus), matches)
        if match is not None:
            slots.setdefault((match.type, bus.rpartition(".")[0]), (bus, match))
    devices: list[PciDevice] = []
    counts: dict[str, int] = {}
    for (kind, _), (bus, match) in sorted(slots.items(), key=lambda slot: slot[0]):
        minor = counts[kind] = counts.get(kind, -1) + 1
        made = _make(sysfs, kind, bus, minor, problem=_interfaces(_device(sysfs, bus) / "net"))
        devices.append(replace(made, model=match.model, amounts=match.amounts))
    return devices


def _match(device: Path, matches: tuple[PciMatch, ...]) -> PciMatch | None:
    vendor = files.number(device / "vendor", 0)
    if vendor not in {match.vendor for match in matches}:
        return None  # true of most devices: the rest is not read
    number, code = files.number(device / "device", 0), files.number(device / "class", 0)
    if number is None or code is None:
        return None
    for match in matches:
        asked = (
            (match.vendor, vendor),
            (match.device, number),
            (match.base_class, code >> 16 & 0xFF),
            (match.sub_class, code >> 8 & 0xFF),
        )
        if all(want is None or want == has for want, has in asked):
            return match
    return None


def _interfaces(folder: Path) -> _Problem:
    """Report a device with network interfaces none of which is up; a device without interfaces has no problem."""
    states = {name: files.word(folder / name / "operstate") or _UNKNOWN for name in files.names(folder)}
    return _not_up("interface", {} if "up" in states.values() else states)


def _make(sysfs: Path, kind: str, bus: str, minor: int, *, problem: _Problem, name: str = "") -> PciDevice:
    silence = _silence(_device(sysfs, bus))
    cause = silence if silence.reason else problem  # a silent device has no link either
    return PciDevice(
        type=kind,
        bus=bus,
        minor=minor,
        name=name,
        numa_node=numa_node(sysfs, bus),
        pcie_root=pcie_root(sysfs, bus),
        problem=cause.message,
        functions=_functions(_device(sysfs, bus)),
        reason=cause.reason,
    )


def _silence(device: Path) -> _Problem:
    """Report a device that does not answer: its configuration space then reads as ones."""
    gone = files.content(device / "config", 4) == b"\xff\xff\xff\xff"
    return _Problem(FALLEN_OFF_BUS, "it does not answer any more (fallen off the bus)") if gone else _Problem()


def _functions(device: Path) -> tuple[str, ...]:
    found = []
    for name in files.names(device):
        if name.startswith("virtfn"):
            bus = pci_address(files.target(device / name) or "")
            if bus is not None:
                found.append(bus)
    return tuple(sorted(found))


def _device(sysfs: Path, bus: str) -> Path:
    return sysfs / "bus" / "pci" / "devices" / bus
