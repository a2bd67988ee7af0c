"""The connections of a port: how many there may be, how long one may be there without a request, and what one may send.

When there are too many, the oldest on which no request came yet is closed. If there is none, it is the one that was
silent for longest, if no request of it can be under way; otherwise the new one. An idle connection costs its owner a
new handshake. Refusing new ones would keep out the kubelet's probes.

No body is ever decompressed: of some kilobytes anybody could make hundreds of megabytes, before it is known who asks.
Neither API servers nor kube-scheduler nor browsers compress what they send.
"""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from aiohttp import EMPTY_PAYLOAD, web

from koordgate.failure import failure

HANDSHAKE_S: Final = 5.0
FIRST_ANSWER_S: Final = 15.0
"""How long a new connection may be there before a request of it was answered."""

IDLE_S: Final = 120.0
"""How long one may be there after an answer; API servers close theirs after 90 s (Go's http.DefaultTransport)."""

MAX_HEAD: Final = 32 * 2**10
"""Bytes of a request's head; those of API servers have some hundred."""

_DRAIN_S: Final = 1.0  # for which what is left of a body is taken, so that its sender reads the answer
_NEVER: Final = float("-inf")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Connections:
    """Keeps the connections of a port within a bound.

    `most`: how many there may be. `longest`: seconds that a request may take; one that was silent for longer has none
    under way. `closed`: called for each connection that is closed because there are too many, because no request comes,
    or because of what it sends.
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
            unused = next(one for one in self._open if not one.asked)  # the new one is the last of them
            silent = min(self._open, key=lambda one: one.heard)
            self.close(silent if unused is made and now - silent.heard > self._longest else unused)

    def close(self, connection: "Connection") -> None:
        """Close a connection from our side."""
        self._closed()
        self.discard(connection)
        connection.force_close()

    def discard(self, connection: "Connection") -> None:
        """A connection is gone."""
        self._open.pop(connection, None)

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request by its head, before anything of its body is read."""
        if "Content-Encoding" in request.headers:
            code, message = (
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "Content-Encoding: no body is decompressed; send it plain",
            )
        elif sum(len(key) + len(value) for key, value in request.raw_headers) > MAX_HEAD:
            code = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            message = f"the request's head has more than {MAX_HEAD} bytes"
        else:
            return await handler(request)
        self._closed()
        refused = web.Response(status=code, body=failure(code, message), content_type="application/json")
        refused.force_close()
        return refused

    async def answered(self, request: web.Request, _answer: web.StreamResponse) -> None:
        """A request is answered (a signal of aiohttp's applications)."""
        protocol = request.protocol
        if isinstance(protocol, Connection):
            protocol.answered = True


class Connection(web.RequestHandler):
    """One connection, after its handshake."""

    def __init__(self, server: web.Server, connections: Connections) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=IDLE_S,
            lingering_time=_DRAIN_S,
            auto_decompress=False,
        )
        self.heard = _NEVER  # when something was last received, on the event loop's clock
        self.asked = False  # whether the head of a request came
        self.answered = False  # whether a request was answered
        self._head = 0  # bytes of a head that is not complete
        self._body = EMPTY_PAYLOAD  # of the latest request
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
        requests, in_head = self._request_count, self._body.is_eof()
        super().data_received(data)
        if self._request_count > requests:
            self.asked = True
            self._head, self._body = 0, self._messages[-1][1]
        elif in_head:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._connections.close(self)

    def _look(self) -> None:
        if not self.answered:
            self._connections.close(self)
