"""The HTTPS server: which handler answers which path, and on which ports."""

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

from koordgate.kube.client import KubeClient
from koordgate.serving import serve as served
from webhook import shapes
from webhook.assembly import Parts, wall_clock
from webhook.devicemap.access import TokenGuard
from webhook.devicemap.feed import MapFeed, WaitingPods
from webhook.devicemap.server import MapServer
from webhook.edge import CallerCheck, Draining, Edge
from webhook.settings import ServeSettings

_LOG: Final = logging.getLogger(__name__)
_IN_FLIGHT_S: Final = 30.0  # how long the shutdown waits for answers that are under way


def make_app(
    parts: Parts,
    unready: Callable[[], list[str]],
    draining: Draining | None = None,
    why_refused: CallerCheck = lambda _http: "",
    *,
    sick: Callable[[], list[str]] = list,
) -> web.Application:
    """Make the application that the API server, the kubelet and Prometheus call.

    `unready`: the reasons why the process is not ready, a clause each; empty when it is. `draining`: `begun` is set
    once the process is to end. `why_refused`: says why a caller is refused; "" if it is not. `sick`: the reasons why
    only a restart helps, likewise.
    """
    metrics = parts.metrics
    edge = Edge(parts.settings.serve, metrics, draining or Draining(), why_refused, tracing=parts.tracing)

    async def healthz(_: web.Request) -> web.Response:
        return _verdict("not healthy", sick())

    async def readyz(_: web.Request) -> web.Response:
        reasons = unready()
        metrics.ready.set(not reasons)
        return _verdict("not ready", reasons)

    async def exposition(http: web.Request) -> web.Response:
        await parts.figures.refresh()
        body, kind = metrics.exposed(http.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    app = web.Application(client_max_size=parts.settings.serve.body_limit_bytes)
    app.router.add_post("/mutate-pod", edge.pod_review("/mutate-pod", parts.pods.mutate))
    app.router.add_post("/validate-pod", edge.pod_review("/validate-pod", parts.pods.validate))
    app.router.add_post("/warn-pod", edge.pod_review("/warn-pod", parts.pods.warn))
    app.router.add_post("/mutate-binding", edge.binding_review("/mutate-binding", parts.bindings.mutate))
    app.router.add_post("/validate-binding", edge.binding_review("/validate-binding", parts.bindings.validate))
    # In observed namespaces nobody is refused; the API server ignores a failure there.
    app.router.add_post("/shadow-pod", edge.pod_review("/shadow-pod", parts.shadow.pod, stops=False))
    shadow_binding = edge.binding_review("/shadow-binding", parts.shadow.binding, stops=False)
    app.router.add_post("/shadow-binding", shadow_binding)
    claims = edge.binding_review("/validate-claim", parts.claims.validate, shapes.ClaimShape)
    app.router.add_post("/validate-claim", claims)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", exposition)
    return app


def _verdict(what: str, reasons: list[str]) -> web.Response:
    if reasons:
        return web.Response(text="".join(f"{what}: {reason}\n" for reason in reasons), status=503)
    return web.Response(text="ok\n")


def make_extender(
    parts: Parts, draining: Draining | None = None, why_refused: CallerCheck = lambda _http: ""
) -> web.Application:
    """Make the application that kube-scheduler calls, for a port of its own.

    `draining`: `begun` is set once the process is to end. `why_refused`: says why a caller is refused; "" if it
    is not.
    """
    edge = Edge(parts.settings.serve, parts.metrics, draining or Draining(), tracing=parts.tracing)
    app = web.Application(client_max_size=parts.settings.serve.body_limit_bytes)
    extender = parts.extender
    handlers = {
        "filter": extender.filter_patiently,
        "prioritize": extender.prioritize_patiently,
        "preempt": extender.preempt_patiently,
    }
    for verb, handler in handlers.items():
        path = f"/scheduler/{verb}"
        app.router.add_post(path, edge.extender(path, handler, why_refused))
    return app


@contextlib.asynccontextmanager
async def listen(
    app: web.Application,
    serve: ServeSettings,
    context: ssl.SSLContext,
    *,
    port: int | None = None,
    closed: Callable[[], object] = lambda: None,
) -> AsyncIterator[int]:
    """Serve an application over TLS until the context ends; answers that are under way then are still sent.

    `serve`: the address, and how many connections there may be. `port`: instead of the one in `serve`; 0 for any free
    one.
    """
    async with served(
        app,
        serve.host,
        serve.port if port is None else port,
        context=context,
        most=serve.connections,
        longest=serve.deadline_seconds,
        in_flight=_IN_FLIGHT_S,
        closed=closed,
    ) as taken:
        _LOG.info("serving on %s:%d", serve.host, taken)
        yield taken


@contextlib.asynccontextmanager
async def served_map(parts: Parts, kube: KubeClient, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Serve the device map on a port of its own until the context ends, if the settings say so.

    Yields the port; 0 where it is not served.
    """
    stated = parts.settings.map
    if not stated.enabled:
        yield 0
        return
    waiting = WaitingPods(parts.cluster, parts.ranking, parts.settings.scheduler.names, parts.extender.said_of)
    feed = MapFeed(parts.cluster, parts.types, waiting, wall_clock)
    server = MapServer(feed, TokenGuard(kube), stated.clients)
    closed = parts.metrics.connections_closed.labels("map").inc
    async with listen(server.app(), parts.settings.serve, context, port=stated.port, closed=closed) as port:
        yield port
