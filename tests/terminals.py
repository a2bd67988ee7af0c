"""A command on a terminal of its own."""

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import termios
from collections.abc import AsyncIterator
from pathlib import Path

from waiting import until

from localplane.replicas import this_koordgate

LOADED = 120.0  # seconds in which a process starts on a busy machine


class Terminal:
    """The terminal, and the command.

    Attributes:
        process: the command.
    """

    def __init__(self, process: asyncio.subprocess.Process, terminal: int, seen: bytearray) -> None:
        self.process = process
        self._terminal = terminal
        self._seen = seen

    async def reads(self, text: bytes) -> None:
        """Wait until the command has written something."""
        await until(lambda: text in self.seen, within=LOADED)

    def types(self, text: bytes) -> None:
        """Write as a user does."""
        os.write(self._terminal, text)

    async def ends(self) -> int:
        """Wait until the command ends; returns its status."""
        async with asyncio.timeout(LOADED):
            return await self.process.wait()

    @property
    def seen(self) -> bytes:
        """What it wrote, lines joined."""
        return b" ".join(bytes(self._seen).split(b"\r\n"))


@contextlib.asynccontextmanager
async def on_terminal(kubeconfig: Path, *words: str, columns: int) -> AsyncIterator[Terminal]:
    """Run `koordgate` with these words on a terminal of 24 lines; it is killed if it has not ended."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen = bytearray()
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, lambda: seen.extend(os.read(ours, 65536)))
    process = await asyncio.create_subprocess_exec(
        *(*this_koordgate(), *words),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "TERM": "xterm", "PYTHONUTF8": "1"},
    )
    try:
        yield Terminal(process, ours, seen)
    finally:
        loop.remove_reader(ours)
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)
        os.close(theirs)
