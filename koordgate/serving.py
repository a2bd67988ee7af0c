"""Health and metrics of a process that serves nothing else, over HTTP."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from aiohttp import web

_SHUTDOWN_S: Final = 1.0


@contextlib.asynccontextmanager
async def listen(
    host: str, port: int, exposed: Callable[[str], tuple[bytes, str]], unhealthy: Callable[[], list[str]]
) -> AsyncIterator[int]:
    """Serve /healthz and /metrics; yields the port.

    Args:
        host: the address.
        port: the TCP port; 0 takes a free one.
        exposed: given the scraper's header `Accept`, the metrics and their content type.
        unhealthy: why the process should be restarted, a sentence each.
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
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        address, *_ = runner.addresses
        yield int(address[1])
    finally:
        await runner.cleanup()
