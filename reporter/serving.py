"""Health and metrics, served on a local port."""

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from reporter.metrics import ReporterMetrics
from reporter.settings import ReporterServeSettings


@contextlib.asynccontextmanager
async def listen(
    serve: ReporterServeSettings, metrics: ReporterMetrics, unhealthy: Callable[[], list[str]]
) -> AsyncIterator[int]:
    """Serve /healthz and /metrics; yields the port.

    Args:
        serve: the address.
        metrics: served at /metrics.
        unhealthy: why the process should be restarted, a sentence each.
    """

    async def healthz(_: web.Request) -> web.Response:
        reasons = unhealthy()
        return web.Response(status=503 if reasons else 200, text="\n".join(reasons) or "ok")

    async def exposition(http: web.Request) -> web.Response:
        body, kind = metrics.exposed(http.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": kind})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", exposition)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, serve.host, serve.port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
