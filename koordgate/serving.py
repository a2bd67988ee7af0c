"""Ports: how all of them are opened, what may be sent there, and the port that serves health and metrics alone.

A port has a bound of connections. When there are too many, the oldest on which no request came yet is closed. If there
is none, it is the one that was silent for longest, if no request of it can be under way; otherwise the new one. An idle
connection costs its owner a new handshake. Refusing new ones would keep out the kubelet's probes.

No body is ever decompressed: of some kilobytes anybody could make hundreds of megabytes, before it is known who asks.
Neither API servers nor kube-scheduler nor browsers compress what they send.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from itertools import chain
from typing import Final

from aiohttp import EMPTY_PAYLOAD, web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

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
        elif sum(map(len, chain.from_iterable(request.raw_headers))) > MAX_HEAD:
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


_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def expose(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Write all metrics of a registry.

    `accept`: the scraper's header `Accept`. The client's own reading of it fails on versions that are no numbers.
    Returns the body, and its content type.
    """
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    if "application/openmetrics-text" in kinds:
        return generate_openmetrics(registry), _OPENMETRICS
    return generate_latest(registry), _TEXT


_SHUTDOWN_S: Final = 1.0
_GOODBYE_S: Final = 3.0  # for which a peer may take to end a TLS connection
_WAITING: Final = 1024  # connections that the system keeps until they are accepted
_MAX_CONNECTIONS: Final = 100  # connections to a port that kubelets and scrapers use
_MAX_REQUEST_S: Final = 4.0


@contextlib.asynccontextmanager
async def serve(
    app: web.Application,
    host: str,
    port: int,
    *,
    context: ssl.SSLContext | None = None,
    most: int = _MAX_CONNECTIONS,
    longest: float = _MAX_REQUEST_S,
    in_flight: float = _SHUTDOWN_S,
    closed: Callable[[], object] = lambda: None,
) -> AsyncIterator[int]:
    """Serve an application until the context ends; yields the port.

    `context`: with the certificate; without it, requests are served over plain HTTP. `most`: how many connections there
    may be. `longest`: seconds that a request may take. `in_flight`: for how many seconds answers that are under way at
    the end are waited for. Raises OSError: the port cannot be used.
    """
    connections = Connections(most, longest, closed)
    app.middlewares.append(connections.admit)
    app.on_response_prepare.append(connections.answered)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=in_flight)
    await runner.setup()
    try:
        handled = runner.server
        if handled is None:
            raise RuntimeError("a runner that is set up has a server")
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(handled, connections),
            host,
            port,
            ssl=context,
            backlog=_WAITING,
            ssl_handshake_timeout=HANDSHAKE_S if context else None,
            ssl_shutdown_timeout=_GOODBYE_S if context else None,
        )
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def listen(
    host: str, port: int, exposed: Callable[[str], tuple[bytes, str]], unhealthy: Callable[[], list[str]]
) -> AsyncIterator[int]:
    """Serve /healthz and /metrics; yields the port.

    `exposed`: given the scraper's header `Accept`, the metrics and their content type. `unhealthy`: why the process
    should be restarted, a sentence each.
    """

    async def healthz(_: web.Request) -> web.Response:
        reasons = unhealthy()
        return web.Response(status=503 if reasons else 200, text="\n".join(reasons) or "ok")

    async def metrics(http: web.Request) -> web.Response:
        body, kind = exposed(http.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    async with serve(app, host, port) as taken:
        yield taken
