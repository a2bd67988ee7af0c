"""The HTTPS server: which handler answers which path, and on which ports."""

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

from webhook.assembly import Parts
from webhook.edge import Draining, Edge, Stranger
from webhook.settings import ServeSettings

_LOG: Final = logging.getLogger(__name__)
_IN_FLIGHT_S: Final = 30.0  # how long the shutdown waits for answers that are under way


def make_app(parts: Parts, unready: Callable[[], list[str]], draining: Draining | None = None) -> web.Application:
    """Make the application that the API server, the kubelet and Prometheus call.

    Args:
        parts: of the replica.
        unready: the reasons why the process is not ready, a clause each; empty when it is.
        draining: `begun` is set once the process is to end.
    """
    metrics = parts.metrics
    edge = Edge(parts.settings.serve, metrics, draining or Draining())

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reasons = unready()
        metrics.ready.set(not reasons)
        if reasons:
            return web.Response(text="".join(f"not ready: {reason}\n" for reason in reasons), status=503)
        return web.Response(text="ok\n")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.exposition(), headers={"Content-Type": metrics.content_type})

    app = web.Application(client_max_size=parts.settings.serve.body_limit_bytes)
    app.router.add_post("/mutate-pod", edge.pod_review("/mutate-pod", parts.pods.mutate))
    app.router.add_post("/validate-pod", edge.pod_review("/validate-pod", parts.pods.validate))
    app.router.add_post("/mutate-binding", edge.binding_review("/mutate-binding", parts.bindings.mutate))
    app.router.add_post("/validate-binding", edge.binding_review("/validate-binding", parts.bindings.validate))
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    return app


def make_extender(
    parts: Parts, draining: Draining | None = None, stranger: Stranger = lambda _http: ""
) -> web.Application:
    """Make the application that kube-scheduler calls, for a port of its own.

    Args:
        parts: of the replica.
        draining: `begun` is set once the process is to end.
        stranger: why the caller of a request is refused; "" if it is not.
    """
    edge = Edge(parts.settings.serve, parts.metrics, draining or Draining())
    app = web.Application(client_max_size=parts.settings.serve.body_limit_bytes)
    extender = parts.extender
    handlers = {"filter": extender.filter_patiently, "prioritize": extender.prioritize, "preempt": extender.preempt}
    for verb, handler in handlers.items():
        path = f"/scheduler/{verb}"
        app.router.add_post(path, edge.extender(path, handler, stranger))
    return app


@contextlib.asynccontextmanager
async def listen(
    app: web.Application, serve: ServeSettings, context: ssl.SSLContext, *, port: int | None = None
) -> AsyncIterator[int]:
    """Serve an application over TLS until the context ends; answers that are under way then are still sent.

    Args:
        app: what to serve.
        serve: the address.
        context: with the certificate.
        port: instead of the one in `serve`; 0 for any free one.

    Yields:
        The port.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_IN_FLIGHT_S, keepalive_timeout=120.0)
    await runner.setup()
    try:
        wanted = serve.port if port is None else port
        site = web.TCPSite(runner, serve.host, wanted, ssl_context=context, backlog=1024)
        await site.start()
        taken: int = runner.addresses[0][1]
        _LOG.info("serving on %s:%d", serve.host, taken)
        yield taken
    finally:
        await runner.cleanup()
