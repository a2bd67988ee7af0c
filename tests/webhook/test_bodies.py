"""The memory of request bodies: a bound over all connections, and who waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from waiting import until

from webhook.edge import Bodies

KIB = 2**10
LARGE = 100 * KIB


class Served:
    """A server that reads bodies within a bound, and answers when it is told to."""

    def __init__(self, most: int, limit: int = 2 * LARGE) -> None:
        self.bodies = Bodies(limit, most)
        self.answer = asyncio.Event()
        self.answer.set()
        self.most_held = 0
        self.url = ""

    async def serve(self, http: web.Request) -> web.Response:
        try:
            body = await self.bodies.read(http, asyncio.get_running_loop().time() + float(http.query.get("for", "30")))
            self.most_held = max(self.most_held, self.bodies.held)
            await asyncio.sleep(0)  # others begin meanwhile
            await self.answer.wait()
            return web.Response(text=str(len(body)))
        except TimeoutError:
            return web.Response(status=408)
        finally:
            self.bodies.done(http)

    async def send(self, size: int, **query: str) -> tuple[int, str, str]:
        headers = {"Content-Length": str(size)}
        async with (
            ClientSession() as session,
            session.post(self.url, data=_pieces(size), params=query, headers=headers) as answer,
        ):
            return answer.status, await answer.text(), answer.headers.get("Retry-After", "")


async def _pieces(size: int) -> AsyncIterator[bytes]:
    """A body that does not come with the head."""
    for _ in range(0, size, KIB):
        yield b" " * KIB


@asynccontextmanager
async def served(most: int = 2 * LARGE, limit: int = 2 * LARGE) -> AsyncIterator[Served]:
    made = Served(most, limit)
    app = web.Application()
    app.router.add_post("/", made.serve)
    async with TestServer(app) as server:
        made.url = str(server.make_url("/"))
        yield made


async def stalled(made: Served, size: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that states a body and sends none of it."""
    host, port = made.url.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
    return reader, writer


async def test_bodies_of_any_size_up_to_the_limit_are_read() -> None:
    async with served() as made:
        for size in (0, KIB, 64 * KIB, LARGE, 2 * LARGE):
            assert await made.send(size) == (200, str(size), "")
        assert made.bodies.held == 0


@pytest.mark.parametrize("size", [2 * LARGE + KIB, 10 * LARGE])
async def test_a_body_above_the_limit_is_a_413(size: int) -> None:
    async with served() as made:
        assert (await made.send(size))[0] == 413
        _, writer = peer = await stalled(made, size)
        assert b" 413 " in await peer[0].readline()
        writer.close()
        assert made.bodies.held == 0


async def test_room_is_given_back_when_the_request_is_answered() -> None:
    async with served() as made:
        made.answer.clear()
        first = asyncio.create_task(made.send(2 * LARGE))
        await until(lambda: made.bodies.held == 2 * LARGE)
        second = asyncio.create_task(made.send(2 * LARGE))
        await until(lambda: len(made.bodies._waiting) == 1)
        made.answer.set()
        assert [*await asyncio.gather(first, second)] == [(200, str(2 * LARGE), "")] * 2
        assert made.bodies.held == 0


async def test_while_large_bodies_stall_a_large_one_gets_a_503_soon_and_a_small_one_is_answered() -> None:
    async with served() as made:
        peers = [await stalled(made, LARGE) for _ in range(2)]
        await until(lambda: made.bodies.held == 2 * LARGE)
        assert await made.send(65 * KIB) == (503, "too many large requests are under way; try again", "1")
        assert await made.send(64 * KIB) == (200, str(64 * KIB), "")
        for _, writer in peers:
            writer.close()
        await until(lambda: made.bodies.held == 0)
        assert (await made.send(LARGE))[0] == 200


async def test_those_that_wait_are_admitted_in_order_and_not_more_than_sixty_four_wait() -> None:
    async with served() as made:
        made.answer.clear()
        first = asyncio.create_task(made.send(2 * LARGE))
        await until(lambda: made.bodies.held == 2 * LARGE)
        peers = [await stalled(made, LARGE) for _ in range(64)]
        await until(lambda: len(made.bodies._waiting) == 64)
        reader, writer = await stalled(made, LARGE)
        assert b" 503 " in await reader.readline()
        for one in (*(peer[1] for peer in peers), writer):
            one.close()
        made.answer.set()
        assert (await first)[0] == 200


async def test_a_body_that_does_not_come_in_time_gives_its_room_back() -> None:
    async with served() as made:
        host, port = made.url.removeprefix("http://").rstrip("/").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST /?for=0.05 HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE}\r\n\r\n".encode())
        assert b" 408 " in await reader.readline()
        writer.close()
        assert made.bodies.held == 0


async def test_who_hangs_up_while_it_waits_takes_no_room() -> None:
    async with served() as made:
        peers = [await stalled(made, 2 * LARGE) for _ in range(2)]
        await until(lambda: made.bodies.held == 2 * LARGE and len(made.bodies._waiting) == 1)
        for _, writer in reversed(peers):
            writer.close()
        await until(lambda: made.bodies.held == 0 and not made.bodies._waiting)


async def test_room_is_never_above_the_bound_whatever_is_sent_at_once() -> None:
    async with served(most=5 * LARGE) as made:
        sizes = [LARGE + number * KIB for number in range(30)]
        answers = await asyncio.gather(*(made.send(size) for size in sizes))
        assert answers == [(200, str(size), "") for size in sizes]
        assert 2 * LARGE < made.most_held <= 5 * LARGE
        assert made.bodies.held == 0


@pytest.mark.parametrize(("size", "held"), [(64 * KIB, 0), (64 * KIB + 1, 64 * KIB + 1)])
async def test_room_is_taken_by_a_body_of_more_than_64_kib(size: int, held: int) -> None:
    async with served() as made, ClientSession() as session:
        async with session.post(made.url, data=b" " * size) as answer:
            assert (answer.status, await answer.text()) == (200, str(size))
        assert (made.most_held, made.bodies.held) == (held, 0)


@pytest.mark.parametrize("size", [1, KIB, LARGE])
async def test_a_body_that_does_not_state_its_size_is_a_411(size: int) -> None:
    async with served() as made, ClientSession() as session:
        async with session.post(made.url, data=_pieces(size)) as answer:
            assert (answer.status, await answer.text()) == (411, "a request must state its Content-Length")
        assert (made.most_held, made.bodies.held) == (0, 0)
