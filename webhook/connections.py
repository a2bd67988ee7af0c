"""The connections of a port: how many there may be, and how long one may be there without a request.

When there are too many, the one that was silent for longest is closed, if no request of it can be under way; otherwise
the new one. An idle connection costs its owner a new handshake. Refusing new ones would keep out the kubelet's probes.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web

HANDSHAKE_S: Final = 5.0
FIRST_ANSWER_S: Final = 15.0
"""How long a new connection may be there before a request of it was answered."""

IDLE_S: Final = 120.0
"""How long one may be there after an answer; API servers close theirs after 90 s (Go's http.DefaultTransport)."""

_NEVER: Final = float("-inf")


class Connections:
    """Keeps the connections of a port within a bound.

    Args:
        most: how many there may be.
        longest: seconds that a request may take; one that was silent for longer has none under way.
        closed: called for each connection that is closed because there are too many, or no request comes.
    """

    def __init__(self, most: int, longest: float, closed: Callable[[], object] = lambda: None) -> None:
        self._most = most
        self._longest = longest
        self._closed = closed
        self._open: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, made: "Connection", now: float) -> None:
        """Take in a new connection."""
        self._open[made] = None
        if len(self._open) > self._most:
            silent = min(self._open, key=lambda one: one.heard)
            self.close(silent if now - silent.heard > self._longest else made)

    def close(self, connection: "Connection") -> None:
        """Close a connection from our side."""
        self._closed()
        self.discard(connection)
        connection.force_close()

    def discard(self, connection: "Connection") -> None:
        """A connection is gone."""
        self._open.pop(connection, None)

    async def answered(self, request: web.Request, _answer: web.StreamResponse) -> None:
        """A request is answered (a signal of aiohttp's applications)."""
        protocol = request.protocol
        if isinstance(protocol, Connection):
            protocol.answered = True


class Connection(web.RequestHandler):
    """One connection, after its handshake.

    Attributes:
        heard: when something was last received, on the event loop's clock.
        answered: whether a request was answered.
    """

    def __init__(self, server: web.Server, connections: Connections, **more: Any) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, access_log=None, keepalive_timeout=IDLE_S, **more)  # type: ignore[arg-type]
        self.heard = _NEVER
        self.answered = False
        self._clock = loop.time
        self._connections = connections
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is complete."""
        super().connection_made(transport)
        self.heard = self._clock()
        self._timer = self._loop.call_later(FIRST_ANSWER_S, self._look)
        self._connections.add(self, self.heard)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._connections.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something came."""
        self.heard = self._clock()
        super().data_received(data)

    def _look(self) -> None:
        if not self.answered:
            self._connections.close(self)
