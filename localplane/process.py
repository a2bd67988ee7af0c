"""A child process with a log file, which never outlives its parent."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from localplane.waiting import NotInTimeError, until

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_TERMINATE_S = 20.0
# Below Linux's range for outgoing connections: no client takes the port of a server that is restarting.
_PORTS = range(16_384, 32_768)

_GOGC = "400"  # memory is plentiful and cores are few: Go's garbage collector runs less often


class StartError(RuntimeError):
    """A process ended, or did not become ready, during its start."""


# The marks of the ports given last. A server may be started late, or again, on the port that it was given.
_GIVEN: deque[int] = deque(maxlen=256)


def free_port(host: str = "127.0.0.1") -> int:
    """Find a free TCP port, which is given to nobody else on this machine for a while."""
    for port in random.SystemRandom().sample(_PORTS, k=min(200, len(_PORTS))):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As Go's listeners do: a port whose last connections are in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            if _marked(port):
                return port
    raise StartError(f"no free TCP port found on {host}")


def _marked(port: int) -> bool:
    """Mark this port as given, for every process here; False where another has it."""
    if sys.platform != "linux":
        return True
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # A name in Linux's abstract namespace: it ends with this process, and leaves no file.
        mark.bind(f"\0koordgate-port-{port}")
    except OSError:
        mark.close()
        return False
    if len(_GIVEN) == _GIVEN.maxlen:
        os.close(_GIVEN.popleft())
    _GIVEN.append(mark.detach())
    return True


def die_with_parent() -> None:
    """Run in a child, so that a killed parent leaves no child behind."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child(Protocol):
    """What is asked of a child process: `subprocess.Popen` has it."""

    @property
    def pid(self) -> int:
        """The process id, which is that of its process group too."""

    def poll(self) -> int | None:
        """The exit status, None while it runs."""

    def wait(self) -> int:
        """Wait until it has ended; returns the exit status."""


class Process:
    """One child in a process group of its own, whose output goes to a file.

    It belongs to no event loop: a process started in one may be stopped in another.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._argv = [str(argument) for argument in argv]
        self._env = {"GOGC": _GOGC, **(os.environ if env is None else env)}
        self._cwd = cwd
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            StartError: It is not running.
        """
        if self._child is None:
            raise StartError(f"{self.name} was not started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start it; its output is appended to the log file.

        Raises:
            StartError: It is already running, or cannot be executed.
        """
        if self.alive:
            raise StartError(f"{self.name} is already running")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._child = self._spawned()
        except OSError as error:
            raise StartError(f"{self.name} cannot be started: {error}") from error

    def _spawned(self) -> Child:
        """Start the child, as the leader of a process group."""
        with self.log.open("ab") as output:
            return subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one prctl call, nothing that takes a lock
            )

    async def ready(self, check: Callable[[], Awaitable[bool]], *, deadline_s: float = 60.0) -> None:
        """Wait until a check succeeds.

        Args:
            check: Whether the process serves.
            deadline_s: How long it may take, in seconds.

        Raises:
            StartError: The process ended or was not ready in time; the message quotes the end of its log.
        """

        async def ready_or_ended() -> bool:
            return not self.alive or await check()

        try:
            await until(ready_or_ended, f"{self.name} is ready", deadline_s=deadline_s)
        except NotInTimeError as error:
            raise StartError(f"{error}\n{self.tail()}") from error
        if not self.alive:
            raise StartError(f"{self.name} ended with status {self.status}\n{self.tail()}")

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return None if self._child is None else self._child.poll()

    def tail(self, lines: int = 30) -> str:
        """The last lines of the log, with the file's name."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"--- end of {self.log} ---\n" + "\n".join(text.splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group, unless it has ended."""
        if self._child is None:
            return
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            return

    def kill(self) -> None:
        """Kill it, and reap it."""
        if self._child is not None:
            self.signal(signal.SIGKILL)
            self._child.wait()

    async def stop(self, *, deadline_s: float = _TERMINATE_S) -> None:
        """Ask it to end; processes of its group that are left after the deadline are killed."""

        async def ended() -> bool:
            return not self.alive

        try:
            if self.alive:
                self.signal(signal.SIGTERM)
                await until(ended, f"{self.name} ends", deadline_s=deadline_s)
        except NotInTimeError:
            pass  # killed below, in any case
        finally:
            self.kill()
