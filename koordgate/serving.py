"""Health and metrics of a process that serves nothing else, over HTTP."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@contextlib.asynccontextmanager
async def listen(
    host: str, port: int, exposition: Callable[[], bytes], unhealthy: Callable[[], list[str]]
) -> AsyncIterator[int]:
    """Serve /healthz and /metrics; yields the port.

    Args:
        host: the address.
        port: the TCP port; 0 takes a free one.
        exposition: the metrics in Prometheus' text format.
        unhealthy: why the process should be restarted, a sentence each.
    """

    async def healthz(_: web.Request) -> web.Response:
        reasons = unhealthy()
        return web.Response(status=503 if reasons else 200, text="\n".join(reasons) or "ok")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=exposition(), headers={"Content-Type": METRICS_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
