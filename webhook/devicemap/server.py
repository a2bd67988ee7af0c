"""The page and its data over HTTP: read only, and for those whom a guard lets in.

`/` is the page, without data: nobody is asked who they are. `/api/nodes` gives nodes in pages (`after`, `limit`),
`/api/changes` what changed since a revision (`since`, `epoch`), and `/api/events` the same as server-sent events.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from webhook.devicemap.access import ALLOWED_S, MapGuard
from webhook.devicemap.feed import PAGE, MapFeed
from webhook.devicemap.pagefiles import SERVED_POLICY, files

_HEADERS: Final = {
    "Server": "koordgate",
    "Content-Security-Policy": SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_JSON: Final = "application/json"
_HEARTBEAT_S: Final = 5.0  # of silence after which a stream shows that it is alive, and which Pods wait
_GATHER_S: Final = 0.5  # changes that come within it are sent together
_PATIENCE_S: Final = 10.0  # for which a client may take nothing
_MOST_BODY: Final = 1024
_LONGEST_NUMBER: Final = 18
_LOG: Final = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MapServer:
    """Answers requests for the map.

    `most`: clients that may follow the changes at once. `heartbeat`: seconds of silence after which a stream shows that
    it is alive.
    """

    def __init__(self, feed: MapFeed, guard: MapGuard, most: int, heartbeat: float = _HEARTBEAT_S) -> None:
        self.following = 0  # how many clients follow the changes
        self._feed = feed
        self._guard = guard
        self._most = most
        self._heartbeat = heartbeat
        self._ending = asyncio.Event()

    def app(self) -> web.Application:
        """Make the application."""
        app = web.Application(client_max_size=_MOST_BODY, middlewares=[_hardened])
        for name in files():
            app.router.add_get(f"/{name}", _file)
        app.router.add_get("/api/nodes", self._nodes)
        app.router.add_get("/api/changes", self._changes)
        app.router.add_get("/api/events", self._events, allow_head=False)
        app.on_shutdown.append(self._end)
        return app

    async def _end(self, _app: web.Application) -> None:
        """Streams have no end of their own."""
        self._ending.set()

    async def _nodes(self, http: web.Request) -> web.Response:
        await self._guard.admit(http)
        limit = min(max(_number(http, "limit", PAGE), 1), PAGE)
        return _json(await self._feed.page(http.query.get("after", "")[:253], limit))

    async def _changes(self, http: web.Request) -> web.Response:
        await self._guard.admit(http)
        return _json((await self._feed.changes(self._since(http))).body)

    def _since(self, http: web.Request) -> int:
        """The revision from which a client goes on; one of another process is none of ours."""
        return _number(http, "since", 0) if http.query.get("epoch") == self._feed.epoch else -1

    async def _events(self, http: web.Request) -> web.StreamResponse:
        await self._guard.admit(http)
        if self.following >= self._most or self._ending.is_set():
            raise web.HTTPServiceUnavailable(
                text=f"{self._most} clients follow the map already, as many as map.clients allows: poll, or try again",
                headers={"Retry-After": "10"},
            )
        since = self._since(http)
        self.following += 1
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = web.StreamResponse(headers={**_HEADERS, **headers})
        try:
            await stream.prepare(http)
            await self._follow(http, stream, since)
        except (TimeoutError, ConnectionError):
            _LOG.debug("a client that followed the device map took nothing for %.0f s, or left", _PATIENCE_S)
            if http.transport is not None:
                http.transport.abort()
        finally:
            self.following -= 1
        return stream

    async def _follow(self, http: web.Request, stream: web.StreamResponse, since: int) -> None:
        loop = asyncio.get_running_loop()
        admitted, told = loop.time(), b""
        while not self._ending.is_set():
            if loop.time() - admitted >= ALLOWED_S:
                try:
                    await self._guard.admit(http)
                except web.HTTPException as error:
                    await _send(stream, b"event: refused\ndata: " + (error.text or "").encode()[:200] + b"\n\n")
                    return
                admitted = loop.time()
            changed = await self._feed.changes(since, told)
            await _send(stream, b"data: " + changed.body + b"\n\n")  # JSON has no line breaks
            if changed.reset:
                return
            since, told = changed.revision, changed.waiting
            if not changed.more:
                await self._quiet(since)

    async def _quiet(self, since: int) -> None:
        """Wait for changes, until the client should hear something, or until the end."""
        waiting = asyncio.ensure_future(self._feed.news())
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            if not self._feed.moved(since):
                await asyncio.wait({waiting, ending}, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await asyncio.wait({ending}, timeout=_GATHER_S)
        finally:
            waiting.cancel()
            ending.cancel()


async def _send(stream: web.StreamResponse, data: bytes) -> None:
    """Send something, unless the client takes nothing for too long.

    Raises TimeoutError: it does.
    """
    async with asyncio.timeout(_PATIENCE_S):
        await stream.write(data)


async def _file(http: web.Request) -> web.StreamResponse:
    file = files()[http.path.removeprefix("/")]
    if http.headers.get("If-None-Match") == f'"{file.etag}"':
        return web.Response(status=304, headers={"ETag": f'"{file.etag}"'})
    headers = {"Content-Type": file.type, "ETag": f'"{file.etag}"', "Cache-Control": "no-cache"}
    response = web.Response(body=file.body, headers=headers)
    response.enable_compression()
    return response


def _json(body: bytes) -> web.Response:
    response = web.Response(body=body, content_type=_JSON)
    response.enable_compression()
    return response


def _number(http: web.Request, name: str, default: int) -> int:
    """A whole number of the query.

    Raises web.HTTPBadRequest: it is none.
    """
    text = http.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER):
        raise web.HTTPBadRequest(text=f"{name}={text[:40]!r}: state a whole number, as in {name}=0")
    return int(text)


@web.middleware
async def _hardened(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give each answer the headers that keep others from using it; answers with data are kept by nobody."""
    headers = _HEADERS | ({"Cache-Control": "no-store"} if request.path.startswith("/api/") else {})
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.headers.update({**_HEADERS, "Cache-Control": "no-store"})
        raise
    if not response.prepared:
        response.headers.update(headers)
    return response
