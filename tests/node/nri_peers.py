"""What else there may be at a node's NRI socket: another plugin, and a connection that spoils an answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Self

from localplane.waiting import until
from reporter.enforcer.model import Container, Edits, Update
from reporter.enforcer.nri.connection import Plugin, serve

_CHUNK = 2**20


class AnotherPlugin(Plugin):
    """An NRI plugin that edits each container in the same way.

    Attributes:
        changed: The ids of the containers that the kubelet gave other resources.
    """

    def __init__(self, edits: Edits) -> None:
        self.changed: list[str] = []
        self._edits = edits
        self._ended = asyncio.Event()
        self._registered = asyncio.Event()

    @contextlib.asynccontextmanager
    async def registered(self, socket: Path) -> AsyncIterator[None]:
        """Be registered for the duration, before all others."""
        serving = asyncio.create_task(serve(str(socket), "another", "10", self, self._ended))
        try:
            async with asyncio.timeout(30.0):
                await self._registered.wait()
            yield
        finally:
            self._ended.set()
            await serving

    def configured(self, *_: object) -> None:
        pass

    async def synchronized(self, *_: object) -> tuple[Update, ...]:
        self._registered.set()
        return ()

    async def created(self, *_: object) -> tuple[Edits, tuple[Update, ...]]:
        return self._edits, ()

    async def updated(self, container: Container, *_: object) -> tuple[Update, ...]:
        self.changed.append(container.id)
        return ()

    async def started(self, *_: object) -> None:
        pass

    async def stopped(self, *_: object) -> None:
        pass

    async def removed(self, *_: object) -> None:
        pass

    async def sandbox_removed(self, *_: object) -> None:
        pass


Spoil = Callable[[bytes], bytes]


class Between:
    """A socket that leads to the runtime's, and can spoil an answer of a plugin; an async context manager.

    Attributes:
        socket: Where plugins register.
        spoilt: How many answers were spoilt.
    """

    def __init__(self, socket: Path, runtime: Path) -> None:
        self.socket = socket
        self.spoilt = 0
        self._runtime = runtime
        self._spoil: tuple[bytes, Spoil] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._connected, self.socket)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spoil(self, pod: str, how: Spoil) -> None:
        """Spoil the answer to the first call about creating a container of a Pod."""
        self._spoil = (pod.encode(), how)

    async def once(self) -> None:
        """Wait until an answer has been spoilt."""

        async def done() -> bool:
            return self.spoilt > 0

        await until(done, "an answer is spoilt")

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls, answers = await asyncio.open_unix_connection(self._runtime)
        armed = asyncio.Event()

        def call(data: bytes) -> bytes:
            if self._spoil is not None and b"CreateContainer" in data and self._spoil[0] in data:
                armed.set()
            return data

        def answer(data: bytes) -> bytes:
            if self._spoil is None or not armed.is_set():
                return data
            (_, how), self._spoil = self._spoil, None
            self.spoilt += 1
            return how(data)

        both = {asyncio.create_task(_copy(calls, writer, call)), asyncio.create_task(_copy(reader, answers, answer))}
        self._tasks |= both
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (writer, answers):
                end.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, change: Spoil) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(_CHUNK):
            target.write(change(data))
            await target.drain()
