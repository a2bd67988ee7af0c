"""A file that another program rewrites: read with bounds; the last good content counts if the newest is unusable."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Generic, TypeVar

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
        self,
        path: Path,
        parse: Callable[[bytes], _T],
        *,
        most_bytes: int,
        absent: Callable[[], _T] | None = None,
    ) -> None:
        """Name the file.

        `path`: path of the file; a link is followed, anything but a plain file is refused. `parse`: parses the content;
        raises ValueError if it makes no sense. `absent`: returns the meaning of a file that was missing from the start;
        without `absent`, that is a problem. A file that was good may disappear only if this returns None. Otherwise its
        content still counts, and its removal is a problem.
        """
        self._path = path
        self._parse = parse
        self._most_bytes = most_bytes
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


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a plain file of bounded size.

    Raises FileNotFoundError: it does not exist; FileError: it is not a plain file, is larger, or cannot be read.
    """
    try:
        # O_NONBLOCK: opening a pipe without a writer would never end.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
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
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise FileError(f"{path}: cannot be read ({error.strerror})") from error
    finally:
        os.close(handle)
    if len(data) > most_bytes:
        raise FileError(f"{path}: larger than {most_bytes} bytes; it is not read")
    return data
