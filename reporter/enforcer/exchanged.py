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

from allocator.vocabulary.delivery import by_enforcer
from reporter import exchange, files
from reporter.enforcer.cards import Held
from reporter.exchange import Facts, State
from reporter.files import FileError, read_bounded
from reporter.kubelet import checkpoint, devicecheckpoint

_LOG: Final = logging.getLogger(__name__)
_T = TypeVar("_T")
_NVIDIA: Final = "nvidia.com/"
_POLL_S: Final = 0.2  # a lock announces nothing
_HELD: Final = 5  # polls; the reporter tries the lock for an instant
_WRITE_S: Final = 1.0
_NO_FACTS: Final = "the reporter has told nothing of this node yet: see that it runs"
_NOT_LOOKED: Final = "the enforcer is still finding out whether {provider} keeps limits on this node: wait"
_ANYBODYS: Final = (
    "who has cards of NVIDIA's device plugin is not known, so that devices.closed keeps no container from single cards "
    "that its NVIDIA_VISIBLE_DEVICES names: {why}"
)
_UNSEEN: Final = "{folder} is not there: mount the host's folder at this path"


class _Changed(Generic[_T]):
    """A file that is read again when its stat is another, because each look is within a call of the runtime."""

    def __init__(self, path: Path, parse: Callable[[bytes], _T], max_bytes: int, absent: _T) -> None:
        self._path = path
        self._parse = parse
        self._max_bytes = max_bytes
        self._seen: tuple[int, ...] = ()
        self.value = absent
        self.problem = ""  # why the newest content is not usable

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
            _LOG.warning("a file cannot be read", extra={"problem": self.problem})
        return True


class FactsReader:
    """What the reporter knows of the node, and the rest of `Facts`.

    Attributes:
        held: Who has cards of NVIDIA's device plugin, as last read; None if that is not known.
    """

    def __init__(self, folder: Path, plugins: Path | None) -> None:
        """Name the files.

        `plugins`: the checkpoint of the kubelet's device manager; None if it does not matter who has cards otherwise.
        """
        self._facts = _Changed[Facts | None](folder / exchange.FACTS, _facts, exchange.MAX_BYTES, None)
        self.held: Held | None = None
        self._plugins: _Changed[Held] | None = None
        self._unseen = ""
        if plugins is not None and plugins.parent.is_dir():
            self._plugins = _Changed[Held](plugins, _held, checkpoint.MAX_BYTES, {})  # no plugin has registered yet
        elif plugins is not None:
            self._unseen = _UNSEEN.format(folder=plugins.parent)
        self._told: Facts | None = None
        self._found: tuple[str, str | None, str] = ("", None, "")

    @property
    def problems(self) -> tuple[str, ...]:
        """What is not known, and the cure, a sentence each."""
        why = self._plugins.problem if self._plugins is not None else self._unseen
        no_facts = _NO_FACTS if self._told is None else ""
        return tuple(filter(None, (self._facts.problem or no_facts, _ANYBODYS.format(why=why) if why else "")))

    @property
    def looked(self) -> bool:
        """Whether there are facts, and it is known whether the limits of their provider can be kept."""
        told = self._facts.value
        return told is not None and (not by_enforcer(told.provider) or self._found[0] == told.provider)

    def found(self, provider: str, no_limits: str | None, namespaces: str) -> None:
        """Take what was found of a provider's limits; see `Doors.look`."""
        if (provider, no_limits, namespaces) != self._found:
            self._found = (provider, no_limits, namespaces)
            self._join()

    def read(self) -> Facts | None:
        """Look at the files, and read what has changed."""
        if self._facts.look():
            self._join()
        if self._plugins is not None:
            self._plugins.look()
            self.held = None if self._plugins.problem else self._plugins.value
        return self._told

    def _join(self) -> None:
        told = self._facts.value
        if told is None:
            return
        provider, no_limits, namespaces = self._found
        if provider != told.provider:
            no_limits, namespaces = "" if self.looked else _NOT_LOOKED.format(provider=told.provider), ""
        self._told = structs.replace(told, no_limits=told.no_limits or no_limits or "", mps_namespaces=namespaces)


def _facts(data: bytes) -> Facts:
    return msgspec.json.decode(data, type=Facts)


def _held(data: bytes) -> Held:
    held: dict[str, tuple[str, ...]] = {}
    for entry in devicecheckpoint.parse(data).entries:
        if entry.resource.startswith(_NVIDIA):
            held[entry.pod_uid] = (*held.get(entry.pod_uid, ()), entry.container)
    return held


class StateWriter:
    """The state, written at most once a second, when it has changed. The file's time shows that the process lives.

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
        """Write it whenever it has changed, and give its file a new time every now and then; until cancelled."""
        while True:
            await wait(self._changed, exchange.BEAT_S)
            self._changed.clear()
            await self.write()
            await asyncio.sleep(_WRITE_S)

    async def write(self) -> None:
        """Write it now; if the file has it already, give that a new time."""
        if self.silent:
            return
        data = msgspec.json.encode(self._make())
        try:
            if data == self._written and self._path.is_file():
                await asyncio.to_thread(os.utime, self._path)
            else:
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
