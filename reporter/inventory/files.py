"""Small files of sysfs and procfs, read in bounds; what cannot be read is None."""

from pathlib import Path
from typing import Final

from allocator.cpu.cpuset import CpusetError
from allocator.cpu.cpuset import parse as parse_cpuset

_MOST_BYTES: Final = 65536
_MOST_NAMES: Final = 8192  # entries of one folder: CPUs, devices, virtual functions


def text(path: Path, most: int = _MOST_BYTES) -> str | None:
    """Read a file without the white space around it; only its first `most` bytes."""
    try:
        with path.open("rb") as file:
            return file.read(most).decode("ascii", errors="replace").strip()
    except (OSError, ValueError):  # the latter for a path with a null character
        return None


def number(path: Path, base: int = 10) -> int | None:
    """Read a file that holds one integer; base 0 takes `0x10ee` as well."""
    try:
        return int(text(path, 64) or "", base)
    except ValueError:
        return None


def cpu_list(path: Path) -> int | None:
    """Read a Linux list of CPUs, or of NUMA nodes, as a set."""
    content = text(path)
    try:
        return None if content is None else parse_cpuset(content)
    except CpusetError:
        return None


def names(folder: Path) -> list[str]:
    """List a folder in order; empty where it is missing, and never more than a machine has."""
    try:
        return sorted(entry.name for entry in folder.iterdir())[:_MOST_NAMES]
    except OSError:
        return []


def target(link: Path) -> str | None:
    """Name what a link points to: its last part, as sysfs links end in a device's name."""
    try:
        return link.readlink().name or None
    except OSError:
        return None
