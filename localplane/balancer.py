"""A TCP balancer, round-robin or sticky, in place of a cluster's Service and kube-proxy."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Self

_CHUNK = 65_536


class Balancer:
    """Forwards each connection to the next backend that accepts it, or all connections to the first that does.

    A Service with session affinity does the latter for one client. TLS passes through unchanged. A backend that refuses
    a connection is down, and the next one is tried, as in a cluster whose endpoints follow readiness.
    """

    def __init__(self, host: str, port: int, backends: Sequence[tuple[str, int]] = (), *, sticky: bool = False) -> None:
        self.host = host
        self.port = port
        self._sticky = sticky
        self._backends = tuple(backends)
        self._next = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
            await self.drop()
            await self._server.wait_closed()

    def set_backends(self, backends: Sequence[tuple[str, int]]) -> None:
        """Send new connections to these from now on; open ones stay."""
        self._backends = tuple(backends)

    async def drop(self) -> None:
        """Close every open connection, as a network failure does."""
        open_now = tuple(self._connections)
        for connection in open_now:
            connection.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is always served in a task")
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # drop(): the streams' protocol would report the cancellation as an error
        finally:
            self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(_closed, writer)
            backend = await self._connect()
            if backend is None:
                return
            there, back = backend
            stack.push_async_callback(_closed, back)
            await asyncio.gather(_pump(reader, back), _pump(there, writer))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        backends = self._backends
        first = 0 if self._sticky else self._next
        self._next += 1
        for step in range(len(backends)):
            host, port = backends[(first + step) % len(backends)]
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(host, port)
        return None


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # uvloop's error for a sink that was closed meanwhile
        while chunk := await source.read(_CHUNK):
            sink.write(chunk)
            await sink.drain()
    # Half-close: the other direction may have more to send. A sink that is gone cannot be closed.
    with contextlib.suppress(OSError, RuntimeError):
        if sink.can_write_eof():
            sink.write_eof()


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
