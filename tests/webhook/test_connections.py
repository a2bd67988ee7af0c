"""The connections of a port: too many, silent ones, and those on which no request comes."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from waiting import until

from webhook import connections as module
from webhook.app import listen
from webhook.settings import Certificate, ServeSettings
from webhook.tls.certs import MemorySource

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Port:
    """A port over TLS, its clients, and what was closed."""

    def __init__(self) -> None:
        self.port = 0
        self.closed = 0
        self.trust: ssl.SSLContext
        self.held = asyncio.Event()
        self.held.set()

    async def connect(self, *, ask: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust)
        if ask:
            await answered(*made)
        return made

    def count(self) -> None:
        self.closed += 1

    async def answer(self, _http: web.Request) -> web.Response:
        await self.held.wait()
        return web.Response(text="ok")


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ASK)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head
    assert await reader.readexactly(2) == b"ok"


@asynccontextmanager
async def port(most: int = 10, longest: float = 4.0) -> AsyncIterator[Port]:
    source, made = MemorySource(Certificate(ip_addresses=("127.0.0.1",))), Port()
    await source.start()
    made.trust = ssl.create_default_context(cadata=source.ca_bundle.decode())
    app = web.Application()
    app.router.add_get("/", made.answer)
    serve = ServeSettings(host="127.0.0.1", port=0, connections=most, deadline_seconds=longest)
    async with listen(app, serve, source.context, closed=made.count) as made.port:
        yield made


async def test_connections_within_the_bound_are_kept_and_answered() -> None:
    async with port() as made:
        peers = [await made.connect(ask=True) for _ in range(10)]
        for peer in peers:
            await answered(*peer)
        assert made.closed == 0
        for _, writer in peers:
            writer.close()


async def test_one_too_many_is_refused_while_all_others_may_have_a_request_under_way() -> None:
    async with port() as made:
        peers = [await made.connect(ask=True) for _ in range(10)]
        reader, writer = await made.connect()
        assert await reader.read() == b""
        assert made.closed == 1
        for peer in peers:
            await answered(*peer)
        for one in (*(peer[1] for peer in peers), writer):
            one.close()


async def test_for_a_new_one_that_which_was_silent_for_longest_is_closed() -> None:
    async with port(longest=0.01) as made:
        peers = [await made.connect(ask=True) for _ in range(10)]
        await answered(*peers[0])
        now = asyncio.get_running_loop().time
        silent_since = now()
        await until(lambda: now() > silent_since + 0.01)
        new = await made.connect(ask=True)
        assert await peers[1][0].read() == b""
        assert made.closed == 1
        for peer in (peers[0], *peers[2:], new):
            await answered(*peer)
            peer[1].close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:"], ids=["nothing", "half a head"])
async def test_one_on_which_no_request_comes_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(module, "FIRST_ANSWER_S", 0.05)
    async with port() as made:
        reader, writer = await made.connect()
        writer.write(sent)
        assert await reader.read() == b""
        assert made.closed == 1
        writer.close()


async def test_one_that_its_owner_closed_is_none_that_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_ANSWER_S", 0.1)
    async with port() as made:
        _, gone = await made.connect()
        gone.close()
        await gone.wait_closed()
        reader, writer = await made.connect()
        assert await reader.read() == b"", "by now the time of the first has passed as well"
        assert made.closed == 1
        writer.close()


async def test_one_that_was_answered_in_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_ANSWER_S", 0.2)
    async with port() as made:
        asked = await made.connect(ask=True)
        silent, writer = await made.connect()
        assert await silent.read() == b"", "by now the time of the first has passed as well"
        await answered(*asked)
        assert made.closed == 1
        for one in (asked[1], writer):
            one.close()


async def test_a_handshake_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.app.HANDSHAKE_S", 0.05)
    async with port() as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        assert await reader.read() == b""
        writer.close()
        peer = await made.connect(ask=True)
        await answered(*peer)
        peer[1].close()
