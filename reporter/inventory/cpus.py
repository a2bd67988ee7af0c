"""The online CPUs of this machine, from /sys/devices/system.

Cores are numbered through the whole machine by the lowest of their CPUs, as lscpu does. (Koordinator, too, reports
lscpu's numbers.) The kernel's own `core_id` starts again in each socket, and on some machines in each die.
"""

from dataclasses import dataclass
from pathlib import Path

from allocator.vocabulary.cpuset import format_cpuset, members
from allocator.vocabulary.cputopology import Cpu, CpuTopology, TopologyError
from allocator.wire.nodetopology import CpuBasicInfo
from reporter.inventory import files


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
    """Read the CPUs that are online; never raises."""
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
