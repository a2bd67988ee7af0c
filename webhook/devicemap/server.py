"""The page and its data over HTTP: read only, and for those whom a guard lets in.

`/` is the page, without data: nobody is asked who they are. `/api/nodes` gives nodes in pages (`after`, `limit`),
`/api/changes` what changed since a revision (`since`, `epoch`), and `/api/events` the same as server-sent events.
"""

import asyncio
import base64
import hashlib
import logging
import mimetypes
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson
from aiohttp import web

from webhook.devicemap.access import ALLOWED_S, MapGuard
from webhook.devicemap.feed import PAGE, MapFeed

_FOLDER: Final = Path(__file__).resolve().parent / "static"
_INDEX: Final = "index.html"
_STYLE: Final = '<link rel="stylesheet" href="style.css">'
_DATA_SCRIPT: Final = '<script type="application/json" id="data"></script>'
SCRIPTS: Final = (
    "vendor/preact-10.29.8.js",
    "vendor/preact-hooks-10.29.8.js",
    "vendor/htm-3.1.1.js",
    "model.js",
    "source.js",
    "topology.js",
    "cards.js",
    "nodes.js",
    "overview.js",
    "side.js",
    "app.js",
)
"""In the order in which they are run; index.html names the same."""

_CSP: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:"
SERVED_POLICY: Final = f"{_CSP}; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"
"""The Content-Security-Policy of the page as it is served: nothing inline, nothing from elsewhere."""


class PageFile(NamedTuple):
    """A file to serve."""

    body: bytes
    type: str  # the media type, with the character set of text
    etag: str  # changes with the bytes


@cache
def files() -> dict[str, PageFile]:
    """The files by path below the page; "" is the page itself.

    Raises FileNotFoundError: the installation lacks one.
    """
    found = {name: _read(name) for name in (*SCRIPTS, "style.css")}
    return {"": _read(_INDEX), **found}


def _read(name: str) -> PageFile:
    try:
        body = (_FOLDER / name).read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no file {name} in {_FOLDER}; install again") from error
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "text/plain"
    return PageFile(body, f"{kind}; charset=utf-8", hashlib.sha256(body).hexdigest()[:16])


def single(document: dict[str, Any]) -> str:
    """The page with this document in it, as one file that needs no server.

    Its policy admits the scripts and the style by their hashes and nothing else.
    """
    known = files()
    page = known[""].body.decode()
    style = known["style.css"].body.decode()
    scripts = [(name, known[name].body.decode()) for name in SCRIPTS]
    hashes = " ".join(f"'sha256-{_hash(text)}'" for _, text in scripts)
    policy = f"{_CSP}; script-src {hashes}; style-src 'sha256-{_hash(style)}'"
    page = page.replace(
        _STYLE, f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    )
    # Within a script element only these characters could end it, or open a comment that hides the end.
    data = orjson.dumps(document).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    page = page.replace(_DATA_SCRIPT, f'<script type="application/json" id="data">{data}</script>')
    for name, text in scripts:
        page = page.replace(f'<script defer src="{name}"></script>', f"<script>{text}</script>")
    return page


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
_MAX_BODY: Final = 1024
_MAX_NUMBER: Final = 18
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
        app = web.Application(client_max_size=_MAX_BODY, middlewares=[_hardened])
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
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_NUMBER):
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
