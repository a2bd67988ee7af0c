"""The map over HTTP: what is served to whom, with which headers, and how changes are followed."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from fake_kube import FakeKube
from waiting import until
from world import World, gpu_pod

from koordgate.kube.client import KubeClient
from webhook.devicemap import server as server_module
from webhook.devicemap.access import MapGuard, TokenGuard
from webhook.devicemap.feed import Changed, MapFeed
from webhook.devicemap.server import SCRIPTS, MapServer, files

TOKEN = {"Authorization": "Bearer good"}
DATA = ("/api/nodes", "/api/changes", "/api/events")


async def nobody() -> dict[str, Any]:
    return {"pods": [], "total": 0}


@dataclass
class Served:
    world: World
    client: TestClient[web.Request, web.Application]
    server: MapServer


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(world: World, fake: FakeKube, kube: KubeClient) -> AsyncIterator[Serve]:
    fake.users["good"] = {"username": "alice"}
    fake.may.add(("alice", "/koordgate/map"))
    clients = []

    async def start(most: int = 2, guard: MapGuard | None = None) -> Served:
        feed = MapFeed(world.parts.cluster, world.parts.types, nobody, world.clock, epoch="e")
        server = MapServer(feed, guard or TokenGuard(kube), most, heartbeat=0.05)
        client: TestClient[web.Request, web.Application] = TestClient(TestServer(server.app()))
        await client.start_server()
        clients.append(client)
        return Served(world, client, server)

    yield start
    for client in clients:
        await client.close()


async def events(answer: ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """What a stream says, heartbeats left out."""
    async for line in answer.content:
        if line.startswith(b"data: "):
            told = orjson.loads(line[6:])
            if told.get("nodes") or told.get("gone") or told.get("reset"):
                yield told


@pytest.mark.parametrize("path", DATA)
async def test_no_data_is_given_to_whoever_shows_no_token(serve: Serve, path: str) -> None:
    served = await serve()
    async with served.client.get(path) as answer:
        assert answer.status == 401
        assert "n1" not in await answer.text()


@pytest.mark.parametrize("path", [f"/{name}" for name in ("", "style.css", *SCRIPTS)])
async def test_the_page_itself_is_for_everybody_and_says_nothing_of_the_cluster(serve: Serve, path: str) -> None:
    served = await serve()
    async with served.client.get(path) as answer:
        assert answer.status == 200
        assert await answer.read() == files()[path.removeprefix("/")].body
        tag = answer.headers["ETag"]
    async with served.client.get(path, headers={"If-None-Match": tag}) as answer:
        assert answer.status == 304
    for other in ('"0"', '"zz"', ""):
        async with served.client.get(path, headers={"If-None-Match": other}) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
    ],
)
async def test_a_file_is_served_with_its_type_and_a_tag_of_its_bytes(serve: Serve, path: str, kind: str) -> None:
    served = await serve()
    async with served.client.get(path) as answer:
        tag = hashlib.sha256(await answer.read()).hexdigest()[:16]
        assert (answer.headers["Content-Type"], answer.headers["ETag"]) == (kind, f'"{tag}"')
        assert answer.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/nodes", "/api/events", "/nowhere"])
@pytest.mark.parametrize("headers", [{}, TOKEN], ids=["a stranger", "a reader"])
async def test_every_answer_forbids_what_a_page_of_data_needs_not(
    serve: Serve, path: str, headers: dict[str, str]
) -> None:
    served = await serve()
    async with served.client.get(path, headers=headers) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Server"] == "koordgate"
        if path.startswith("/api"):
            assert answer.headers["Cache-Control"] == "no-store"
        answer.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_written(serve: Serve, method: str) -> None:
    served = await serve()
    for path in ("/", *DATA):
        async with served.client.request(method, path, headers=TOKEN) as answer:
            assert answer.status == 405


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("limit=1", 200),
        ("limit=999999", 200),
        ("limit=0", 200),
        ("limit=-1", 400),
        ("limit=x", 400),
        ("limit=" + "9" * 19, 400),
        ("after=%00%ff", 200),
        ("after=" + "z" * 5000, 200),
    ],
)
async def test_a_query_is_bounded_and_a_wrong_one_is_told(serve: Serve, query: str, status: int) -> None:
    served = await serve()
    async with served.client.get(f"/api/nodes?{query}", headers=TOKEN) as answer:
        assert answer.status == status
        if status == 400:
            assert "state a whole number" in await answer.text()


@pytest.mark.parametrize(
    ("query", "nodes"), [("limit=0", 1), ("limit=2", 2), ("limit=200", 3), ("after=n1", 2), ("", 3), ("after=n3", 0)]
)
async def test_a_limit_is_at_least_one_node(serve: Serve, query: str, nodes: int) -> None:
    served = await serve()
    for name in ("n2", "n3"):
        served.world.add_node(name)
    served.world.see()
    async with served.client.get(f"/api/nodes?{query}", headers=TOKEN) as answer:
        assert len((await answer.json())["nodes"]) == nodes


@pytest.mark.parametrize(("digits", "status"), [(18, 200), (19, 400)])
async def test_a_number_has_at_most_18_digits(serve: Serve, digits: int, status: int) -> None:
    served = await serve()
    async with served.client.get(f"/api/changes?epoch=e&since={'9' * digits}", headers=TOKEN) as answer:
        assert answer.status == status


async def test_a_wrong_number_is_told_in_at_most_40_characters(serve: Serve) -> None:
    served = await serve()
    async with served.client.get(f"/api/nodes?limit={'x' * 50}", headers=TOKEN) as answer:
        assert await answer.text() == f"limit='{'x' * 40}': state a whole number, as in limit=0"


async def test_without_a_revision_all_nodes_of_this_process_have_changed(serve: Serve) -> None:
    served = await serve()
    async with served.client.get("/api/changes?epoch=e", headers=TOKEN) as answer:
        assert [one["name"] for one in (await answer.json())["nodes"]] == ["n1"]
    for query in ("since=0", "since=0&epoch=a", "since=0&epoch=z"):
        async with served.client.get(f"/api/changes?{query}", headers=TOKEN) as answer:
            assert (await answer.json())["reset"] is True


async def test_changes_come_as_they_happen(serve: Serve) -> None:
    served = await serve()
    async with served.client.get("/api/nodes", headers=TOKEN) as answer:
        page = await answer.json()
    async with served.client.get(
        f"/api/events?since={page['revision']}&epoch={page['epoch']}", headers=TOKEN
    ) as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        told = events(stream)
        served.world.add_pod(gpu_pod("a", 40))
        served.world.see()
        await served.world.bind("a")
        async with asyncio.timeout(30):
            changed = await anext(told)
        assert changed["nodes"][0]["devices"][0]["amounts"][0] == [100, 40, 60]
        assert changed["nodes"][0]["holders"][0]["name"] == "a"


async def test_a_stream_of_another_process_ends_with_a_new_beginning(serve: Serve) -> None:
    served = await serve()
    async with served.client.get("/api/events?since=1&epoch=other", headers=TOKEN) as stream:
        assert (await anext(events(stream)))["reset"] is True
        assert await stream.content.read() == b"\n"
    await until(lambda: served.server.following == 0)


async def test_so_many_follow_and_no_more_until_one_leaves(serve: Serve) -> None:
    served = await serve(most=1)
    first = await served.client.get("/api/events?since=0&epoch=e", headers=TOKEN)
    async with served.client.get("/api/events?since=0&epoch=e", headers=TOKEN) as second:
        assert second.status == 503
        assert "map.clients" in await second.text()
    async with served.client.get("/api/changes?since=0&epoch=e", headers=TOKEN) as polled:
        assert polled.status == 200
    first.close()
    await until(lambda: served.server.following == 0)
    async with served.client.get("/api/events?since=0&epoch=e", headers=TOKEN) as third:
        assert third.status == 200


@pytest.mark.parametrize(
    ("why", "told"),
    [("no longer", "no longer"), ("x" * 200, "x" * 200), ("x" * 201, "x" * 200), ("x" * 500, "x" * 200)],
    ids=["a few words", "200 bytes", "201 bytes", "500 bytes"],
)
async def test_a_reader_who_loses_the_right_is_sent_away_with_200_bytes_of_why(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, why: str, told: str
) -> None:
    class Once:
        """Lets each reader in one time."""

        asked = 0

        async def admit(self, _http: web.Request) -> None:
            self.asked += 1
            if self.asked > 1:
                raise web.HTTPForbidden(text=why)

    monkeypatch.setattr(server_module, "ALLOWED_S", 0.0)
    served = await serve(guard=Once())
    async with served.client.get("/api/events?since=0&epoch=e") as stream, asyncio.timeout(30):
        assert (await stream.content.read()).endswith(f"event: refused\ndata: {told}\n\n".encode())


async def test_a_name_of_253_characters_is_compared_whole(serve: Serve) -> None:
    served = await serve()
    for name in ("m" * 252, "m" * 253):
        served.world.add_node(name)
    served.world.see()
    for after, nodes in ((252, ["m" * 253, "n1"]), (253, ["n1"]), (300, ["n1"])):
        async with served.client.get(f"/api/nodes?after={'m' * after}", headers=TOKEN) as answer:
            assert [one["name"] for one in (await answer.json())["nodes"]] == nodes


async def test_a_client_that_takes_nothing_is_dropped(
    serve: Serve, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(server_module, "_GATHER_S", 0.0)
    served = await serve()
    big = orjson.dumps({"x": "y" * 4_000_000})

    async def much(*_: Any) -> Any:
        return Changed(big, 1, more=True)

    monkeypatch.setattr(served.server._feed, "changes", much)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.client.port)
    writer.write(b"GET /api/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\n\r\n")
    await until(lambda: served.server.following == 1)
    await until(lambda: served.server.following == 0)
    async with asyncio.timeout(30):
        received = await reader.read()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert not received.endswith(b"0\r\n\r\n")  # the end of a whole answer
    writer.close()


@pytest.mark.parametrize("token", [b"\xff", b"good\xff", "gööd".encode()])
async def test_a_token_of_bytes_that_none_has_is_refused_and_costs_the_api_server_nothing(
    serve: Serve, fake: FakeKube, token: bytes
) -> None:
    served = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.client.port)
    writer.write(
        b"GET /api/nodes HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
    )
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert [one for one in fake.requests if one.resource == "tokenreviews"] == []


async def test_an_ending_server_ends_its_streams(serve: Serve) -> None:
    served = await serve()
    async with served.client.get("/api/events?since=0&epoch=e", headers=TOKEN) as stream:
        await anext(events(stream))
        ended = asyncio.create_task(served.client.server.close())
        async with asyncio.timeout(30):
            await stream.content.read()
        await ended
