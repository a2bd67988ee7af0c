"""A file that somebody else rewrites: read with bounds; if its newest content is unusable, the last good one counts."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

_T = TypeVar("_T")


class FileError(Exception):
    """A file that cannot be read; the message says why and who must do what."""


@dataclass(frozen=True, slots=True)
class FileReading(Generic[_T]):
    """A reading of a watched file.

    Attributes:
        value: the newest usable content, parsed; None if there was none yet.
        problem: why the newest content is not usable; None if it is.
    """

    value: _T | None
    problem: str | None


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

        Args:
            path: of the file; a link is followed, anything but a plain file is refused.
            parse: parses the content; raises ValueError if it makes no sense.
            most_bytes: a larger file is not read.
            absent: what it means if the file was missing from the start; without `absent`, that is a problem. A file
                that was good may disappear only if this returns None: otherwise somebody removed what still counts,
                which is a problem.
        """
        self._path = path
        self._parse = parse
        self._most_bytes = most_bytes
        self._absent = absent
        self._seen: bytes | None = None  # the content that `_reading` is about
        self._reading: FileReading[_T] = FileReading(None, f"{path}: not read yet")
        self._was_good = False

    @property
    def last(self) -> FileReading[_T]:
        """What `read` gave last."""
        return self._reading

    def read(self) -> FileReading[_T]:
        """Read the file; never raises for what is in it, or for a file that is missing or cannot be read."""
        try:
            data = read_bounded(self._path, self._most_bytes)
        except FileNotFoundError:
            self._seen = None
            self._reading = self._missing()
        except FileError as error:
            self._seen = None
            self._reading = FileReading(self._reading.value, str(error))
        else:
            if data != self._seen:
                self._reading = self._decode(data)
                self._seen = data
        return self._reading

    def _missing(self) -> FileReading[_T]:
        if self._absent is not None:
            meant = self._absent()
            if meant is None or not self._was_good:
                return FileReading(meant, None)
            return FileReading(
                self._reading.value,
                f"{self._path}: was there and is gone; what it said before is kept until it is there again. The kubelet"
                " writes its own files anew when it is restarted; where this file is to be gone, restart the reporter",
            )
        return FileReading(
            self._reading.value, f"{self._path}: does not exist; mount the kubelet's folder, or correct the path"
        )

    def _decode(self, data: bytes) -> FileReading[_T]:
        try:
            value = self._parse(data)
        except ValueError as error:
            kept = "none was good before" if self._reading.value is None else "what it said before is kept"
            return FileReading(self._reading.value, f"{self._path}: {error}; {kept}")
        self._was_good = True
        return FileReading(value, None)


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Read a plain file of bounded size.

    Raises:
        FileNotFoundError: it does not exist.
        FileError: it is no plain file, is larger, or cannot be read.
    """
    try:
        # O_NONBLOCK: a pipe with nobody at its other end would never be opened.
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
