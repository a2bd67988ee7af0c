"""Small files of sysfs and procfs, read with bounds; None if they cannot be read."""

import os
from itertools import islice
from pathlib import Path
from typing import Final

from allocator.vocabulary.cpuset import CpusetError
from allocator.vocabulary.cpuset import parse as parse_cpuset

_MOST_BYTES: Final = 65536
_MOST_OF_A_WORD: Final = 64
MOST_NAMES: Final = 8192  # entries of one folder: CPUs, devices, virtual functions


def text(path: Path | str) -> str | None:
    """Read the first 64 KiB of a file, without surrounding white space."""
    return _text(path, _MOST_BYTES)


def word(path: Path | str) -> str | None:
    """Read the first 64 bytes of a file that holds a word or a number, without surrounding white space."""
    return _text(path, _MOST_OF_A_WORD)


def _text(path: Path | str, most: int) -> str | None:
    data = content(path, most)
    return None if data is None else data.decode("ascii", errors="replace").strip()


def content(path: Path | str, most: int) -> bytes | None:
    """Read the first `most` bytes of a file; some hundred of these are read in each round, so without buffers."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):  # ValueError: a path with a null character
        return None
    pieces: list[bytes] = []
    try:
        while piece := os.read(handle, most):  # nothing, once it was asked for nothing
            pieces.append(piece)
            most -= len(piece)
    except OSError:
        return None
    finally:
        os.close(handle)
    return b"".join(pieces)


def number(path: Path, base: int = 10) -> int | None:
    """Read a file that holds one integer; base 0 takes `0x10ee` as well."""
    try:
        return int(word(path) or "", base)
    except ValueError:
        return None


def cpu_list(path: Path | str) -> int | None:
    """Read a Linux list of CPUs, or of NUMA nodes, as a set."""
    listed = text(path)
    try:
        return None if listed is None else parse_cpuset(listed)
    except CpusetError:
        return None


def names(folder: Path | str) -> list[str]:
    """List a folder, sorted; empty if it is missing.

    No more than MOST_NAMES entries are read of a larger folder, whichever come first: a container's own folders may
    have any number.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, MOST_NAMES))
    except OSError:
        return []


def target(link: Path) -> str | None:
    """Name what a link points to: its last part, as sysfs links end in a device's name."""
    try:
        return link.readlink().name or None
    except OSError:
        return None
