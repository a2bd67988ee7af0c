"""The memory of request bodies: how much of them may be there at once, over all connections of a port.

A small body is always read. A large one is read when there is room for all of it, in the order of arrival; the room is
given back when the request is answered, because what was parsed takes memory for as long. Whoever sends many large
bodies slowly therefore keeps others with large ones waiting, and nobody with a small one. A body must state its size:
API servers and kube-scheduler do, and one in chunks could have trailers, which no bound counts.
"""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from aiohttp import web

SMALL: Final = 64 * 2**10
"""Bytes of a body that is always read: most Pods take some 5 to 20 KiB, both versions of an update twice that."""

_MOST_WAITING: Final = 64
_LONGEST_WAIT_S: Final = 1.0
_AGAIN_S: Final = "1"
_CLAIM: Final = web.RequestKey("claim", int)


class Bodies:
    """Reads request bodies within a bound.

    `limit`: bytes of the largest body. `most`: bytes of all bodies above `SMALL` that are in memory at once; at least
    `limit`.
    """

    def __init__(self, limit: int, most: int) -> None:
        self.held = 0  # bytes that are reserved now
        self._limit = limit
        self._most = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def read(self, http: web.Request, until: float) -> bytes:
        """Read the body of a request; `done` must be called with it afterwards.

        `until`: when it must be there, on the event loop's clock. Raises TimeoutError: it is not there by then;
        web.RequestPayloadError: it cannot be read; web.HTTPLengthRequired: it comes in chunks;
        web.HTTPRequestEntityTooLarge: it is above the limit; web.HTTPServiceUnavailable: there is no room for it now.
        """
        size = http.content_length or 0
        if http.content_length is None and http.can_read_body:
            raise web.HTTPLengthRequired(text="a request must state its Content-Length")
        if size > self._limit:
            raise web.HTTPRequestEntityTooLarge(self._limit)
        content = http.content
        if size <= SMALL and content.is_eof():  # all of it came with the head, so there is nothing to wait for
            return await content.readany()
        async with asyncio.timeout_at(until):
            if size > SMALL:
                await self._claim(http, size, until)
            body = bytearray()
            while chunk := await content.readany():
                body += chunk
            return bytes(body)

    def done(self, http: web.Request) -> None:
        """Give back what was reserved for a request, if anything was."""
        claim = http.get(_CLAIM, 0)
        if claim:
            del http[_CLAIM]
            self.held -= claim
            self._admit()

    async def _claim(self, http: web.Request, size: int, until: float) -> None:
        if self._waiting or self.held + size > self._most:
            await self._wait(size, until)
        else:
            self.held += size
        http[_CLAIM] = size

    async def _wait(self, size: int, until: float) -> None:
        loop = asyncio.get_running_loop()
        if len(self._waiting) >= _MOST_WAITING:
            raise _no_room()
        entry = size, loop.create_future()
        self._waiting.append(entry)
        try:
            async with asyncio.timeout_at(min(until, loop.time() + _LONGEST_WAIT_S)):
                await entry[1]
        except BaseException as error:
            if entry[1].done() and not entry[1].cancelled():
                self.held -= size  # it was admitted in the moment in which it gave up
            with suppress(ValueError):
                self._waiting.remove(entry)
            self._admit()
            if isinstance(error, TimeoutError):
                raise _no_room() from None
            raise

    def _admit(self) -> None:
        """Let those in that wait, in order, while there is room."""
        while self._waiting:
            size, future = self._waiting[0]
            if future.cancelled():
                self._waiting.popleft()
            elif self.held + size <= self._most:
                self._waiting.popleft()
                self.held += size
                future.set_result(None)
            else:
                return


def _no_room() -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(
        text="too many large requests are under way; try again", headers={"Retry-After": _AGAIN_S}
    )
