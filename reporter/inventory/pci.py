"""RDMA NICs, FPGAs and configured types of PCI devices, from sysfs below a given root.

Nothing here raises: what cannot be read is unknown, and a device of unknown state is not healthy.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from allocator.vocabulary.device import pci_address
from allocator.vocabulary.names import TYPE_FPGA, TYPE_RDMA
from reporter.gpu import sysfs as place
from reporter.inventory import files

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
        numa_node=place.numa_node(sysfs, bus),
        pcie_root=place.pcie_root(sysfs, bus),
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
