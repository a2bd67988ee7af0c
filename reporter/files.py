"""Files, read with bounds: small ones of sysfs and procfs, and those that other programs rewrite; and ours, written."""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Generic, TypeVar

from allocator.vocabulary.cputopology import CpusetError
from allocator.vocabulary.cputopology import parse as parse_cpuset

_MAX_BYTES: Final = 65536
_MAX_OF_A_WORD: Final = 64
MAX_NAMES: Final = 8192  # entries of one folder: CPUs, devices, virtual functions


def text(path: Path | str) -> str | None:
    """Read the first 64 KiB of a file, without surrounding white space."""
    return _text(path, _MAX_BYTES)


def word(path: Path | str) -> str | None:
    """Read the first 64 bytes of a file that holds a word or a number, without surrounding white space."""
    return _text(path, _MAX_OF_A_WORD)


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

    No more than MAX_NAMES entries are read of a larger folder, whichever come first: a container's own folders may
    have any number.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, MAX_NAMES))
    except OSError:
        return []


def target(link: Path) -> str | None:
    """Name what a link points to: its last part, as sysfs links end in a device's name."""
    try:
        return link.readlink().name or None
    except OSError:
        return None


_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.IGNORECASE)
_BOOTED = re.compile(rb"^btime ([0-9]{1,12})$", re.MULTILINE)
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
    stated = number(sysfs / "bus" / "pci" / "devices" / bus / "numa_node")
    if stated is not None and stated >= 0:
        return stated
    return 0 if word(sysfs / "devices" / "system" / "node" / "online") == _ONE_NODE else None


def boot_id(proc: Path) -> str:
    """The id of the node's current boot; "" if it is unknown."""
    return word(proc / "sys" / "kernel" / "random" / "boot_id") or ""


def booted_at(proc: Path) -> float:
    """When the node booted, in seconds since 1970; 0 if it is unknown."""
    found = _BOOTED.search(content(proc / "stat", 1 << 20) or b"")
    return float(found[1]) if found else 0.0


_T = TypeVar("_T")


class FileError(Exception):
    """A file that cannot be read; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class FileReading(Generic[_T]):
    """A reading of a watched file."""

    value: _T | None  # the newest usable content, parsed; None if there was none yet
    problem: str | None  # why the newest content is not usable; None if it is


class WatchedFile(Generic[_T]):
    """One file, read on each request and parsed only when it changed."""

    def __init__(
        self, path: Path, parse: Callable[[bytes], _T], *, max_bytes: int, absent: Callable[[], _T] | None = None
    ) -> None:
        """Name the file.

        `path`: path of the file; a link is followed, anything but a plain file is refused. `parse`: parses the content;
        raises ValueError if it makes no sense. `absent`: returns the meaning of a file that was missing from the start;
        without `absent`, that is a problem. A file that was good may disappear only if this returns None. Otherwise its
        content still counts, and its removal is a problem.
        """
        self._path = path
        self._parse = parse
        self._most_bytes = max_bytes
        self._absent = absent
        self._seen: bytes | None = None  # the digest of what `_reading` is about: a content may hold credentials
        self._reading: FileReading[_T] = FileReading(None, f"{path}: not read yet")
        self._was_good = False

    @property
    def last(self) -> FileReading[_T]:
        """The last result of `read`."""
        return self._reading

    def read(self) -> FileReading[_T]:
        """Read the file; never raises because of its content, or because it is missing or cannot be read."""
        try:
            data = read_bounded(self._path, self._most_bytes)
        except FileNotFoundError:
            self._seen = None
            self._reading = self._missing()
        except FileError as error:
            self._seen = None
            self._reading = FileReading(self._reading.value, str(error))
        else:
            from hashlib import blake2b  # noqa: PLC0415 it brings OpenSSL, which the NVML process never needs

            digest = blake2b(data).digest()
            if digest != self._seen:
                self._reading = self._decode(data)
                self._seen = digest
        return self._reading

    def _missing(self) -> FileReading[_T]:
        if self._absent is not None:
            meant = self._absent()
            if meant is None or not self._was_good:
                return FileReading(meant, None)
            return FileReading(
                self._reading.value,
                f"{self._path}: the file has disappeared; its previous content counts until it is back. The kubelet"
                " writes its own files again when it is restarted; if the removal is intended, restart the reporter",
            )
        return FileReading(
            self._reading.value, f"{self._path}: does not exist; mount the kubelet's folder, or correct the path"
        )

    def _decode(self, data: bytes) -> FileReading[_T]:
        try:
            value = self._parse(data)
        except ValueError as error:
            kept = "no earlier content was usable" if self._reading.value is None else "its previous content is kept"
            return FileReading(self._reading.value, f"{self._path}: {error}; {kept}")
        self._was_good = True
        return FileReading(value, None)


def read_bounded(path: Path, max_bytes: int, *, follow: bool = True) -> bytes:
    """Read a plain file of bounded size.

    `follow`: whether it may be a link. Raises FileNotFoundError: it does not exist; FileError: it is not a plain file,
    is larger, or cannot be read.
    """
    try:
        # O_NONBLOCK: opening a pipe without a writer would never end.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FileError(
            f"{path}: cannot be opened ({error.strerror}); the reporter must be root, and see it"
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FileError(f"{path}: not a plain file; it is left alone")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    finally:
        os.close(handle)
    if len(data) > max_bytes:
        raise FileError(f"{path}: larger than {max_bytes} bytes; it is not read")
    return data


def own_folder(path: Path) -> None:
    """Make a folder of ours, which only root may open; the kubelet may have made it, for everybody, to mount it.

    Raises OSError: as the file system does.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file of ours, whole or not at all; its folder is made if it is missing. Only root may read the file.

    It must have one writer. Raises OSError: as the file system does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink()
        raise
