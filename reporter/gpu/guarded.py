"""NVML in a process of its own, with a deadline; the process is restarted when it hangs or dies.

In Koordinator's issues 678 and 904 a crash while devices were read brought down the whole node agent.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import cast

from koordgate.backoff import doubled
from reporter.gpu import protocol
from reporter.gpu.facts import CgroupMemory, GpuProcess, MemoryLimit, NodeReading, Outage, XidEvent


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait, in seconds."""

    answer: float = 10.0  # for an answer
    first_answer: float = 60.0  # for the first answer of a process: NVML wakes idle cards, which takes seconds each
    first_pause: float = 1.0  # between a failure and the next start; doubled with each further failure
    longest_pause: float = 300.0
    end: float = 5.0  # for a process to end after it was asked to, or after it was killed
    renewal: float = 300.0  # between restarts made only to look for a card that is missing
    # before cgroups' memory is asked for again after NVML hung or died on that: it is the newest of its calls, and no
    # card must leave service because of it
    memory: float = 900.0


@dataclass(frozen=True, slots=True)
class DriverRoots:
    """Where the host's pseudo file systems are mounted."""

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")


class NvmlUnavailableError(Exception):
    """NVML cannot be read now."""

    def __init__(self, outage: Outage, retry_seconds: float) -> None:
        super().__init__(outage.message)
        self.outage = outage  # why, and since when
        self.retry_seconds = retry_seconds  # when a new attempt makes sense, in seconds from now


class NvmlRefusedError(Exception):
    """NVML works but cannot answer this question; the message says why."""


class _EndedError(Exception):
    """The process ended; `reason` and the message say why."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Child(asyncio.SubprocessProtocol):
    """One NVML process and its answers."""

    def __init__(self, on_xid: Callable[[XidEvent], None]) -> None:
        self.gone = asyncio.Event()  # set once it has ended and its output was taken in
        self.answered = False  # whether it has answered a question
        self._on_xid = on_xid
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[protocol.Answer]] = {}
        self._unfinished = b""
        self._end: _EndedError | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the process."""
        self.transport = cast("asyncio.SubprocessTransport", transport)
        self._questions = cast("asyncio.WriteTransport", self.transport.get_pipe_transport(0))

    async def ask(
        self,
        uuid: str | None = None,
        cgroups: tuple[tuple[str, str], ...] = (),
        limits: tuple[MemoryLimit, ...] = (),
    ) -> protocol.Answer:
        """Ask for a reading, for the processes on a card, for the memory of cgroups, or that limits be set.

        Raises _EndedError: the process ended instead.
        """
        if self._end is not None:
            raise self._end
        number = next(self._numbers)
        answer: asyncio.Future[protocol.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._questions.write(protocol.encode(protocol.Ask(number, uuid, cgroups, limits)))
            said = await answer
        finally:
            del self._waiting[number]
        self.answered = True
        return said

    def hang_up(self) -> None:
        """Close its input: the process ends by itself."""
        self._questions.close()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take in output."""
        del fd  # there is only one
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        try:
            for line in lines:
                self._hear(protocol.ANSWERS.decode(line))
        except ValueError as error:  # msgspec's errors are of this kind
            self._stop(_EndedError("NvmlFailed", f"the NVML process wrote a line that cannot be read: {error}"))
        if len(self._unfinished) > protocol.MAX_LINE:
            self._stop(_EndedError("NvmlFailed", "the NVML process wrote a line that is too long"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the process has ended and its pipes are closed."""
        del exc
        self._stop(_EndedError("NvmlCrashed", _obituary(self.transport.get_returncode() or 0)))
        self.transport.close()
        self.gone.set()

    def _hear(self, said: protocol.Answer) -> None:
        if isinstance(said, protocol.Xid):
            self._on_xid(said.event)
        elif isinstance(said, protocol.Failed):
            self._stop(_EndedError(said.reason, said.message))
        elif (answer := self._waiting.get(said.number)) is not None and not answer.done():
            answer.set_result(said)

    def _stop(self, end: _EndedError) -> None:
        """Fail all pending questions; the first reason counts."""
        self._end = self._end or end
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._end)


def _obituary(code: int) -> str:
    if code >= 0:
        return f"the NVML process ended with code {code}; its last words are in the log"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the NVML library crashed ({name}); if that goes on, restart the node or change the driver"


def _kill(process: asyncio.SubprocessTransport) -> None:
    process.kill()


class GuardedNvml:
    """NVML behind a deadline.

    The NVML process starts with the first question. Xid errors are received only while it runs, so a caller should
    read regularly.
    `env`: the environment of the NVML process; None inherits. `deaf`: no Xid errors are received, and no question waits
    for the wait for one. `kill`: ends a process at once; tests replace it.
    """

    def __init__(
        self,
        patience: Patience = Patience(),
        roots: DriverRoots = DriverRoots(),
        *,
        env: Mapping[str, str] | None = None,
        deaf: bool = False,
        kill: Callable[[asyncio.SubprocessTransport], None] = _kill,
    ) -> None:
        self._patience = patience
        self._roots = roots
        self._env = env
        self._deaf = deaf
        self._kill = kill
        self._turn = asyncio.Lock()
        self._child: _Child | None = None
        self._starting: asyncio.Task[_Child] | None = None
        self._stuck: _Child | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._renew_at = 0.0
        self._memory_at = 0.0
        self._outage: Outage | None = None
        self._xids: dict[tuple[str | None, int], XidEvent] = {}
        self._stirred = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The process id of the NVML process; None if none runs."""
        return None if self._child is None else self._child.transport.get_pid()

    @property
    def outage(self) -> Outage | None:
        """Why NVML cannot be read; None once a question was answered."""
        return self._outage

    async def read(self, expected: Collection[str] = ()) -> NodeReading:
        """Read the whole node.

        `expected`: UUIDs of the known cards; if one is missing, a new process looks for it. Raises
        NvmlUnavailableError: NVML is missing, hangs or crashed, or a retry is not due yet.
        """
        async with self._turn:
            said = await self._ask()
            if not isinstance(said, protocol.NvmlReading):
                raise await self._failed(
                    "NvmlFailed", f"the NVML process answered a {type(said).__name__} for a reading"
                )
            answering = {gpu.uuid for gpu in said.node.gpus}
            away = bool(said.node.lost) or not answering.issuperset(expected)
            if away and self._clock() >= self._renew_at:
                self._renew_at = self._clock() + self._patience.renewal
                await self._close()  # NVML lists cards only when it starts
            return said.node

    async def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List the processes that use a card or a MIG device.

        Raises NvmlRefusedError: there is no such card, or it does not list its processes; NvmlUnavailableError: as for
        `read`.
        """
        async with self._turn:
            said = await self._ask(uuid)
            if isinstance(said, protocol.Processes):
                return said.processes
            if isinstance(said, protocol.Refused):
                raise NvmlRefusedError(said.message)
            raise await self._failed("NvmlFailed", f"the NVML process was asked for processes and answered {said!r}")

    async def memory(self, cgroups: tuple[tuple[str, str], ...]) -> tuple[CgroupMemory, ...]:
        """Tell the limit and the use of cgroups' memory.

        `cgroups`: pairs of a card's UUID and the cgroup's full path on the host; one or more. Raises NvmlRefusedError:
        NVML hung or died on this question not long ago; NvmlUnavailableError: as for `read`.
        """
        async with self._turn:
            wait = self._memory_at - self._clock()
            if wait > 0:
                raise NvmlRefusedError(f"NVML failed when it was asked for the memory of cgroups; next in {wait:.0f} s")
            await self._started()
            try:
                said = await self._ask(cgroups=cgroups)
                if not isinstance(said, protocol.Memory) or len(said.memory) != len(cgroups):
                    what = "the NVML process was asked for memory and answered something else"
                    raise await self._failed("NvmlFailed", what)
            except NvmlUnavailableError:
                self._memory_at = self._clock() + self._patience.memory
                raise
            return said.memory

    async def limit(self, limits: tuple[MemoryLimit, ...]) -> tuple[str, ...]:
        """Set limits, one or more, and read them back; returns for each why it is not in force, and the cure, or "".

        Raises NvmlUnavailableError: as for `read`; any of the limits may be in force.
        """
        async with self._turn:
            said = await self._ask(limits=limits)
            if isinstance(said, protocol.Limited) and len(said.problems) == len(limits):
                return said.problems
            raise await self._failed("NvmlFailed", "the NVML process was asked to set limits and answered otherwise")

    async def xids(self) -> tuple[XidEvent, ...]:
        """Wait for Xid errors and take them; those of one card and number are combined into one event."""
        await self._stirred.wait()
        return self.take_xids()

    def take_xids(self) -> tuple[XidEvent, ...]:
        """Take the Xid errors not taken yet, in order of their first occurrence."""
        self._stirred.clear()
        taken = tuple(self._xids.values())
        self._xids.clear()
        return taken

    async def aclose(self) -> None:
        """End the NVML process."""
        async with self._turn:
            await self._close()

    async def _ask(
        self,
        uuid: str | None = None,
        cgroups: tuple[tuple[str, str], ...] = (),
        limits: tuple[MemoryLimit, ...] = (),
    ) -> protocol.Answer:
        child = await self._started()
        seconds = self._patience.answer if child.answered else self._patience.first_answer
        try:
            async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may lose a cancellation
                said = await child.ask(uuid, cgroups, limits)
        except TimeoutError as error:
            message = f"NVML did not answer for {seconds:g} s; if that goes on, the driver hangs: restart the node"
            raise await self._failed("NvmlHangs", message) from error
        except _EndedError as end:
            raise await self._failed(end.reason, str(end)) from end
        self._failures = 0
        self._outage = None
        return said

    async def _started(self) -> _Child:
        """The NVML process, started if necessary.

        A start continues if its caller is cancelled: half a start would leave pipes open.
        """
        if self._child is not None:
            return self._child
        if self._starting is None:
            await self._may_start()
            self._starting = asyncio.create_task(self._start())
        try:
            self._child = await asyncio.shield(self._starting)
        except OSError as error:
            self._starting = None
            raise await self._failed("NvmlNotStarted", f"the NVML process cannot be started: {error}") from error
        self._starting = None
        return self._child

    async def _may_start(self) -> None:
        """Check that a start makes sense now.

        Raises NvmlUnavailableError: the last process has not ended, or a retry is not due yet.
        """
        if self._stuck is not None and not await self._ended(self._stuck):
            pid = self._stuck.transport.get_pid()
            message = f"process {pid} hangs in the NVIDIA driver and cannot be killed; restart the node"
            raise await self._failed("NvmlStuck", message)
        wait = self._retry_at - self._clock()
        if self._outage is not None and wait > 0:
            raise NvmlUnavailableError(self._outage, wait)

    async def _start(self) -> _Child:
        roots = ("--sysfs", str(self._roots.sysfs), "--proc", str(self._roots.proc))
        deaf = ("--deaf",) if self._deaf else ()
        command = (sys.executable, "-P", "-m", "reporter.gpu.worker", *roots, *deaf)
        loop = asyncio.get_running_loop()
        _, child = await loop.subprocess_exec(lambda: _Child(self._hear_xid), *command, stderr=None, env=self._env)
        return child

    async def _failed(self, reason: str, message: str) -> NvmlUnavailableError:
        """End the process; the error says why, and when the next attempt is due."""
        self._failures += 1
        pause = doubled(self._patience.first_pause, self._patience.longest_pause, self._failures)
        self._retry_at = self._clock() + pause
        self._outage = Outage(reason, message, self._outage.since if self._outage is not None else time.time())
        outage = self._outage
        await self._end()
        return NvmlUnavailableError(outage, pause)

    async def _close(self) -> None:
        """Let the process end by itself; kill it if it does not."""
        if self._starting is not None:
            with suppress(OSError):
                self._child = await self._starting
            self._starting = None
        if self._stuck is not None:
            await self._ended(self._stuck)
        child = self._child
        if child is None:
            return
        child.hang_up()
        if not await self._ended(child):
            await self._end()
        self._child = None

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(ProcessLookupError):
            self._kill(child.transport)
        self._stuck = (
            child  # until it is gone: a process asleep in the kernel takes no signal, and this may be cancelled
        )
        await self._ended(child)

    async def _ended(self, child: _Child) -> bool:
        """Wait for a process to end; returns whether it did."""
        try:
            async with asyncio.timeout(self._patience.end):
                await child.gone.wait()
        except TimeoutError:
            return False
        if self._stuck is child:
            self._stuck = None
        return True

    def _hear_xid(self, event: XidEvent) -> None:
        key = (event.uuid, event.xid)
        known = self._xids.get(key)
        times = event.count + (known.count if known is not None else 0)
        self._xids[key] = XidEvent(event.uuid, event.xid, event.time, times)
        self._stirred.set()

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()
