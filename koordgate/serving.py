"""Ports: how all of them are opened, and the one of a process that serves health and metrics alone."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

from koordgate.connections import HANDSHAKE_S, Connection, Connections

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
