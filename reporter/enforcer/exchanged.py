"""The enforcer's end of `reporter.exchange`: the facts are read once they change, the state is written when it does."""

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import structs

from reporter import exchange, files
from reporter.exchange import Facts, State
from reporter.files import FileError, read_bounded
from reporter.kubelet import checkpoint, devicecheckpoint

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")
_Held = dict[str, tuple[str, ...]]
_NVIDIA: Final = "nvidia.com/"
_POLL_S: Final = 0.2  # a lock announces nothing
_HELD: Final = 5  # polls; the reporter tries the lock for an instant
_WRITE_S: Final = 1.0


class _Changed(Generic[_T]):
    """A file that is read again when its stat is another, because each look is within a call of the runtime."""

    def __init__(self, path: Path, parse: Callable[[bytes], _T], max_bytes: int, absent: _T) -> None:
        self._path = path
        self._parse = parse
        self._max_bytes = max_bytes
        self._seen: tuple[int, ...] = ()
        self.value = absent
        self.problem = ""  # why the newest content is not usable; what it had before counts

    def look(self) -> bool:
        """Read the file if it has changed; returns whether it had."""
        try:
            stat = os.stat(self._path)  # noqa: PTH116 twice as fast as a Path's, on each call
        except OSError:
            return False
        seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self.value = self._parse(read_bounded(self._path, self._max_bytes))
            self.problem = ""
        except (FileNotFoundError, FileError, ValueError, msgspec.MsgspecError) as error:
            self.problem = f"{self._path}: {error}"
            _LOG.warning("a file cannot be read; what it had before counts", extra={"problem": self.problem})
        return True


class FactsReader:
    """What the reporter knows of the node, and the rest of `Facts`."""

    def __init__(self, folder: Path, plugins: Path | None) -> None:
        """Name the files.

        `plugins`: the checkpoint of the kubelet's device manager; None if it does not matter who has cards otherwise.
        """
        self._facts = _Changed[Facts | None](folder / exchange.FACTS, _facts, exchange.MAX_BYTES, None)
        self._plugins: _Changed[_Held | None] | None = None
        if plugins is not None:
            # No plugin has registered yet; unless the kubelet's folder is not to be seen at all.
            absent: _Held | None = {} if plugins.parent.is_dir() else None
            self._plugins = _Changed(plugins, _held, checkpoint.MAX_BYTES, absent)
        self._told: Facts | None = None
        self._limits: str | None = None
        self._namespaces = ""

    @property
    def problem(self) -> str:
        """Why the newest facts are not usable; "" if they are."""
        return self._facts.problem

    def found(self, no_limits: str | None, namespaces: str) -> None:
        """Take what was found of the node's limits; see `Doors.look`."""
        if (no_limits, namespaces) != (self._limits, self._namespaces):
            self._limits, self._namespaces = no_limits, namespaces
            self._join()

    def read(self) -> Facts | None:
        """Look at the files, and read what has changed."""
        changed = self._facts.look()
        if self._plugins is not None and self._plugins.look():
            changed = True
        if changed:
            self._join()
        return self._told

    def _join(self) -> None:
        told = self._facts.value
        self._told = told and structs.replace(
            told,
            no_limits=told.no_limits or self._limits or "",
            mps_namespaces=self._namespaces,
            plugin_held=self._plugins.value if self._plugins is not None else None,
        )


def _facts(data: bytes) -> Facts:
    return msgspec.json.decode(data, type=Facts)


def _held(data: bytes) -> _Held:
    held: _Held = {}
    for entry in devicecheckpoint.parse(data).entries:
        if entry.resource.startswith(_NVIDIA):
            held[entry.pod_uid] = (*held.get(entry.pod_uid, ()), entry.container)
    return held


class StateWriter:
    """The state, written at most once a second, when it has changed.

    Attributes:
        silent: Whether another process may be the one whose state it is.
    """

    def __init__(self, folder: Path, make: Callable[[], State]) -> None:
        self._path = folder / exchange.STATE
        self._make = make
        self._changed = asyncio.Event()
        self._written = b""
        self.silent = True

    def changed(self) -> None:
        """Have it written soon."""
        self._changed.set()

    async def run(self) -> None:
        """Write it whenever it has changed, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.write()
            await asyncio.sleep(_WRITE_S)

    async def write(self) -> None:
        """Write it now, unless the file has it."""
        if self.silent:
            return
        data = msgspec.json.encode(self._make())
        if data == self._written:
            return
        try:
            await asyncio.to_thread(files.write_whole, self._path, data)
        except OSError as error:
            _LOG.warning("the state cannot be written", extra={"path": str(self._path), "problem": error.strerror})
            self._changed.set()
        else:
            self._written = data


@asynccontextmanager
async def only_one(folder: Path, until: asyncio.Event, waits: Callable[[], object]) -> AsyncIterator[bool]:
    """Hold the node's lock of registered enforcers; False if the event was set before it was to be had.

    `waits`: called once if another process has it. Raises OSError: the lock's file cannot be opened.
    """
    handle = os.open(folder / exchange.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        tried = 0
        while not until.is_set():
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tried += 1
                if tried == _HELD:
                    waits()
                await wait(until, _POLL_S)
            else:
                yield True
                return
        yield False
    finally:
        os.close(handle)


async def wait(until: asyncio.Event, seconds: float) -> None:
    """Wait for some time, or for the event."""
    try:
        async with asyncio.timeout(seconds):
            await until.wait()
    except TimeoutError:
        return
