"""The place of a PCI device in the machine, as Linux reports it.

The roots are arguments, so that recorded trees can be read as well. Nothing here raises: what cannot be read is
unknown.
"""

import re
from pathlib import Path

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.IGNORECASE)
_BOOTED = re.compile(r"^btime ([0-9]{1,12})$", re.MULTILINE | re.ASCII)
_ONE_NODE = "0"  # the list of NUMA nodes of a machine that has only one


def pcie_root(sysfs: Path, bus: str) -> str | None:
    """Name the PCIe root complex of a device: `pci0000:3a`."""
    try:
        place = (sysfs / "bus" / "pci" / "devices" / bus).resolve(strict=True)
    except (OSError, RuntimeError):  # the latter for links in a circle
        return None
    return next((part for part in place.parts if _ROOT.fullmatch(part)), None)


def numa_node(sysfs: Path, bus: str) -> int | None:
    """Find the NUMA node that a device is nearest to.

    A virtual machine's sysfs often has -1 (unknown). If the machine has only one NUMA node, it is that one.
    """
    stated = _number(_read(sysfs / "bus" / "pci" / "devices" / bus / "numa_node"))
    if stated is not None and stated >= 0:
        return stated
    return 0 if _read(sysfs / "devices" / "system" / "node" / "online") == _ONE_NODE else None


def boot_id(proc: Path) -> str:
    """The id of the node's current boot; "" if it is unknown."""
    return _read(proc / "sys" / "kernel" / "random" / "boot_id") or ""


def booted(proc: Path) -> float:
    """When the node booted, in seconds since 1970; 0 if it is unknown."""
    try:
        with (proc / "stat").open("rb") as file:
            text = file.read(1 << 20).decode("ascii")
    except (OSError, ValueError):
        return 0.0
    found = _BOOTED.search(text)
    return float(found[1]) if found else 0.0


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(256).decode("ascii").strip()
    except (OSError, ValueError):
        return None


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
