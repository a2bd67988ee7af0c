"""The reporter's end of `reporter.exchange`: facts are written when they change, the state is read each round."""

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from reporter import exchange, files
from reporter.exchange import Facts, State
from reporter.files import FileError, read_bounded
from reporter.reading import EnforcerReading
from reporter.settings import Enforcement

_LOG: Final = logging.getLogger(__name__)
_SILENT_S: Final = 4 * exchange.BEAT_S
_HANGS: Final = f"it has not answered for {_SILENT_S:g} s: it hangs, or its process is stopped"


class EnforcerFiles:
    """The files in the folder that reporter and enforcer share. `now`: the seconds of a steady clock."""

    def __init__(self, folder: Path, settings: Enforcement, now: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._settings = settings
        self._now = now
        self._seen: tuple[int, float] = (0, now())  # the time of the enforcer's file, and since when it has that
        self._told = b""
        self._state = State()
        self._bug = ""

    def read(self) -> EnforcerReading:
        """Read what the enforcer tells; never raises. What it told before counts while the file cannot be read."""
        problem = ""
        path = self._folder / exchange.STATE
        try:
            self._state = msgspec.json.decode(read_bounded(path, exchange.MAX_BYTES, follow=False), type=State)
        except FileNotFoundError:
            self._state = State()
        except FileError as error:
            problem = str(error)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            problem = f"{path}: {error}; what the enforcer told before counts"
        library, pipe = self._settings.hami_core.library, self._settings.mps.pipe
        silent = self._silent(path) and bool(self._state.runtime)
        return EnforcerReading(
            registered=held(self._folder) and bool(self._state.runtime) and not (self._state.away or silent),
            state=msgspec.structs.replace(self._state, problems=(_HANGS,)) if silent else self._state,
            problem=problem,
            library=bool(library) and Path(library).is_file(),
            pipe=bool(pipe) and Path(pipe).is_dir(),
        )

    def _silent(self, path: Path) -> bool:
        """Whether the enforcer has not touched its file for long: a process that hangs keeps its lock."""
        try:
            changed = path.stat(follow_symlinks=False).st_mtime_ns
        except OSError:
            changed = 0
        if changed != self._seen[0]:
            self._seen = (changed, self._now())
        return self._now() - self._seen[1] >= _SILENT_S

    def tell(self, facts: Facts) -> str:
        """Write the facts if they have changed; returns why that failed, "" if it did not. Never raises."""
        try:
            return self._tell(facts)
        except Exception as error:  # noqa: BLE001 a bug here must not end the round, which also writes cpusets
            bug = f"{self._folder / exchange.FACTS}: a bug keeps the facts from being written ({error!r}); see the log"
            if bug != self._bug:
                self._bug = bug
                _LOG.exception("a bug in what the enforcer is told; it goes on with what it has")
            return bug

    def _tell(self, facts: Facts) -> str:
        # An order is made of text keys only, and NUMA nodes are numbers.
        data = msgspec.json.encode(msgspec.to_builtins(facts, str_keys=True), order="deterministic")
        path = self._folder / exchange.FACTS
        if data == self._told and path.is_file():
            return ""
        if len(data) > exchange.MAX_BYTES:
            return f"{path}: would be larger than {exchange.MAX_BYTES} bytes; the enforcer goes on with what it has"
        try:
            files.own_folder(self._folder)
            files.write_whole(path, data)
        except OSError as error:
            return f"{path}: cannot be written ({error.strerror}); mount {self._folder.parent} read-write"
        self._told = data
        return ""


def held(folder: Path) -> bool:
    """Whether an enforcer holds the lock in the folder that it shares with the reporter."""
    try:
        handle = os.open(folder / exchange.LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False
