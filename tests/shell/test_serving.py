"""What a process answers that serves health and metrics alone."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter
from waiting import until

from koordgate import serving as module
from koordgate.serving import expose, listen, serve
from webhook.settings import Certificate
from webhook.tls.certs import MemorySource


@pytest.mark.parametrize(
    ("reasons", "status", "text"),
    [([], 200, "ok"), (["no round for 9 s", "NVML hangs"], 503, "no round for 9 s\nNVML hangs")],
    ids=["healthy", "unhealthy"],
)
async def test_health_is_503_with_all_reasons_or_200(reasons: list[str], status: int, text: str) -> None:
    async with (
        listen("127.0.0.1", 0, lambda _: (b"up 1\n", "text/plain"), lambda: reasons) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.get("/healthz") as health,
    ):
        assert (health.status, await health.text()) == (status, text)


async def test_metrics_come_in_the_format_that_the_scraper_accepts() -> None:
    asked: list[str] = []

    def exposed(accept: str) -> tuple[bytes, str]:
        asked.append(accept)
        return b"up 1\n", "application/openmetrics-text; version=1.0.0; charset=utf-8"

    async with (
        listen("127.0.0.1", 0, exposed, list) as port,
        aiohttp.ClientSession(
            f"http://127.0.0.1:{port}", headers={"Accept": "application/openmetrics-text"}
        ) as session,
        session.get("/metrics") as metrics,
    ):
        assert (await metrics.read(), metrics.headers["Content-Type"]) == exposed("application/openmetrics-text")
    assert set(asked) == {"application/openmetrics-text"}


TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("application/openmetrics-textual", TEXT),
        ("text/plain;x=application/openmetrics-text", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("text/plain;q=0.1, Application/OpenMetrics-Text ;version=9.9;q=0.9", OPENMETRICS),
    ],
)
def test_a_scraper_gets_openmetrics_only_where_it_takes_that(accept: str, kind: str) -> None:
    registry = CollectorRegistry()
    for name in ("binds", "reviews"):
        Counter(name, "So many.", registry=registry).inc()
    body, told = expose(registry, accept)
    assert told == kind
    assert body.endswith(b"# EOF\n") is (kind == OPENMETRICS)
    assert b"binds_total 1.0\n" in body
    assert b"reviews_total 1.0\n" in body


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
    app.router.add_route("*", "/", made.answer)
    async with serve(
        app, "127.0.0.1", 0, context=source.context, most=most, longest=longest, closed=made.count
    ) as made.port:
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


@pytest.mark.parametrize("longest", [0.0, 4.0])
async def test_for_a_new_one_the_oldest_on_which_no_request_came_is_closed_however_much_it_sends(
    longest: float,
) -> None:
    async with port(longest=longest) as made:
        used = [await made.connect(ask=True) for _ in range(4)]
        silent = [await made.connect() for _ in range(6)]
        for number in range(5):
            silent[number][1].write(b"GET / HTTP/1.1\r\n")  # it is not silent any more, and asks nothing
            new = await made.connect(ask=True)
            assert await silent[number][0].read() == b""
            assert made.closed == number + 1
            used.append(new)
        for peer in used:
            await answered(*peer)
        for _, writer in (*used, *silent):
            writer.close()


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
    monkeypatch.setattr("koordgate.serving.HANDSHAKE_S", 0.05)
    async with port() as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        assert await reader.read() == b""
        writer.close()
        peer = await made.connect(ask=True)
        await answered(*peer)
        peer[1].close()


# --- what one may send


async def refusal(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """The status and the body of an answer behind which the connection is closed."""
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split()[1]), orjson.loads(await reader.read())


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity", "gzip, gzip", "GZIP", "\xff"])
@pytest.mark.parametrize("head", ["GET /", "POST /", "POST /nothing-there"])
async def test_a_compressed_body_is_refused_by_its_head_alone(head: str, encoding: str) -> None:
    async with port() as made:
        reader, writer = await made.connect()
        sent = f"{head} HTTP/1.1\r\nHost: x\r\nContent-Encoding: {encoding}\r\nContent-Length: 1000000\r\n\r\n"
        writer.write(sent.encode("latin-1"))
        status, body = await refusal(reader)
        assert (status, body["kind"], body["reason"], made.closed) == (415, "Status", "UnsupportedMediaType", 1)
        assert body["message"] == "Content-Encoding: no body is decompressed; send it plain"
        writer.close()


async def test_what_comes_compressed_all_the_same_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    inflated: list[object] = []
    monkeypatch.setattr(
        "aiohttp.http_parser.ZLibDecompressor.decompress_sync", lambda *given, **_: inflated.append(given)
    )
    async with port() as made:
        reader, writer = await made.connect()
        bomb = gzip.compress(bytes(10_000_000))
        head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
        writer.write(head.encode() + bomb)
        assert (await refusal(reader))[0] == 415
        assert not inflated
        writer.close()


@pytest.mark.parametrize("before", [0, 1, 2], ids=["the first", "the second", "the third"])
async def test_a_head_that_does_not_end_is_cut_off_at_32_kib(before: int) -> None:
    async with port() as made:
        reader, writer = await made.connect()
        for _ in range(before):
            await answered(reader, writer)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        for number in range(15):
            writer.write(f"x-{number}: ".encode() + b"x" * 2000 + b"\r\n")
        await writer.drain()
        assert made.closed == 0
        writer.write(b"y: " + b"y" * 6000)
        assert await reader.read() == b""
        assert made.closed == 1
        writer.close()


@pytest.mark.parametrize(("headers", "status"), [(15, 200), (20, 431)])
async def test_a_whole_head_has_at_most_32_kib(headers: int, status: int) -> None:
    async with port() as made:
        reader, writer = await made.connect()
        head = "".join(f"x-{number}: {'x' * 2000}\r\n" for number in range(headers))
        writer.write(f"GET / HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        assert f" {status} ".encode() in await reader.readline()
        writer.close()


async def test_bodies_count_for_no_head() -> None:
    async with port() as made:
        reader, writer = await made.connect()
        for _ in range(3):
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
            for _ in range(10):
                writer.write(b" " * 10_000)
                await writer.drain()
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(2)
        assert made.closed == 0
        writer.close()


async def test_a_body_that_nobody_reads_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DRAIN_S", 0.05)
    async with port() as made:
        reader, writer = await made.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        assert b" 200 " in await reader.readline()
        await reader.read()  # until the end
        writer.close()
