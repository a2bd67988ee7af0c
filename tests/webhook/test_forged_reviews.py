"""Bind reviews that did not come from the API server, over TLS: what they can hold, for how long, and who may call."""

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from aiohttp import ClientSession, TCPConnector
from builders import container, device_entry, pod
from fake_kube import FakeKube
from waiting import until
from world import SETTINGS, World, admitted, asks, binding, binds, body, gpu_pod

from koordgate.kube.client import KubeClient
from koordgate.kube.resource import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from localplane.process import free_port
from webhook.app import listen, make_app
from webhook.command import Replica
from webhook.settings import Certificate, ServeSettings
from webhook.tls import pki
from webhook.tls.certs import MemorySource

NODES = 200
JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def served(world: World) -> AsyncIterator[ClientSession]:
    """The webhooks' real port, and a caller that the settings do not keep out."""
    source = MemorySource(Certificate(ip_addresses=("127.0.0.1",)))
    await source.start()
    trust = ssl.create_default_context(cadata=source.ca_bundle.decode())
    app = make_app(world.parts, list)
    async with (
        listen(app, ServeSettings(host="127.0.0.1", port=0), source.context) as port,
        ClientSession(f"https://127.0.0.1:{port}", connector=TCPConnector(ssl=trust), headers=JSON) as session,
    ):
        yield session


async def forge(session: ClientSession, name: str, node: str) -> dict[str, Any]:
    async with session.post("/mutate-binding", data=body(binds(binding(name, node)))) as http:
        answer: dict[str, Any] = orjson.loads(await http.read())["response"]
        return answer


def held_on(world: World) -> list[str]:
    return [f"n{number}" for number in range(NODES) if world.holdings(f"n{number}")]


async def test_forged_reviews_hold_two_of_two_hundred_nodes_for_a_pod_and_not_for_long(
    fake: FakeKube, kube: KubeClient
) -> None:
    world = World(fake, kube)
    for number in range(NODES):
        world.add_node(f"n{number}")
    world.show(gpu_pod("p", 100))
    async with served(world) as session:
        answers = await asyncio.gather(*(forge(session, "p", f"n{number}") for number in range(NODES)))
        assert sum(answer["allowed"] for answer in answers) == 2
        codes = {answer["status"]["code"] for answer in answers if not answer["allowed"]}
        assert codes == {409}
        refused = next(answer for answer in answers if not answer["allowed"])
        assert "within 240 s" in refused["status"]["message"]
        first = held_on(world)
        assert len(first) == 2
        for _ in range(13):  # every 20 s, for all nodes anew
            await asyncio.gather(*(forge(session, "p", f"n{number}") for number in range(0, NODES, 10)))
            for node in first:
                await forge(session, "p", node)
            await world.parts.reconciler.reconcile()
            assert len(held_on(world)) <= 2
            if not set(first) & set(held_on(world)):
                break
            world.clock.now += 20
        assert not set(first) & set(held_on(world)), "240 s after they were held"


async def test_another_replica_that_has_not_seen_them_adds_two_nodes_at_most(fake: FakeKube, kube: KubeClient) -> None:
    replicas = [World(fake, kube), World(fake, kube)]
    for number in range(NODES):
        replicas[0].add_node(f"n{number}")
    replicas[0].add_pod(gpu_pod("p", 100))
    for world in replicas:
        world.see()
    for world, nodes in zip(replicas, (range(100), range(100, NODES)), strict=True):
        async with served(world) as session:
            await asyncio.gather(*(forge(session, "p", f"n{number}") for number in nodes))
    assert len(held_on(replicas[0])) == 4


async def test_an_honest_retry_may_go_to_a_second_node_and_then_stays_with_these_two(world: World) -> None:
    for node in ("n2", "n3"):
        world.add_node(node)
    world.show(gpu_pod("p", 100))
    for node in ("n1", "n2", "n1", "n2"):
        assert (await world.mutate(binds(binding("p", node)))).allowed
    refused = await world.mutate(binds(binding("p", "n3")))
    assert "n3: the Pod was given room on n1 and n2, and no bind to one of these nodes has been performed yet" in (
        refused.message
    )
    assert (await world.bind("p", "n2")).allowed
    await world.parts.reconciler.reconcile()
    assert (world.holders("n1"), world.holders("n2"), world.holders("n3")) == ([], ["p"], [])


# --- Pods that would fill a node's record, or their own annotations


def asking(count: int, name: str = "p") -> dict[str, Any]:
    asked = {"kubernetes.io/gpu-core": "8", "kubernetes.io/gpu-memory-ratio": "8", "kubernetes.io/gpu.shared": "8"}
    init = [container(f"{number:063}", requests=asked, limits=asked) for number in range(count)]
    return pod(container("main"), init=init, name=name, uid=f"uid-{name}")


async def test_a_pod_of_more_than_64_containers_that_ask_for_devices_is_refused_at_admission_and_at_its_bind(
    world: World,
) -> None:
    many, most = admitted(asking(65, "many")), admitted(asking(64, "most"))
    message = "65 containers ask for devices, and 64 of a Pod may; ask in fewer of them"
    refused = world.parts.pods.validate(asks(many))
    assert not refused.allowed
    assert message in refused.message
    assert world.parts.pods.validate(asks(most)).allowed
    world.add_node("n1", *map(device_entry, range(8)))
    for obj in (many, most):
        world.add_pod(obj)
    world.see()
    assert message in (await world.mutate(binds(binding("many", "n1")))).message
    assert (await world.bind("most")).allowed
    record = orjson.dumps(world.fake.objects("/apis/koordgate.io/v1alpha1/nodeallocations"))
    assert len(record) < 12_000


async def test_a_bind_whose_annotations_would_be_too_long_is_refused_and_nothing_is_held(world: World) -> None:
    asked = {"nvidia.com/gpu": "32"}
    init = [container(f"{number:063}", requests=asked, limits=asked) for number in range(31)]
    world.add_pod(admitted(pod(container("main"), init=init, name="p", uid="uid-p")))
    long = "n" * 60  # which is part of its devices' ids
    for node in ("n1", long):
        world.add_node(node, *map(device_entry, range(32)))
    world.see()
    refused = await world.bind("p", long)
    assert "bytes, and 65536 are allowed; ask for devices in fewer containers, or for fewer devices" in refused.message
    assert world.holders(long) == []
    assert (await world.bind("p", "n1")).allowed
    assert world.holders("n1") == ["p"]


# --- the API server's certificate


@pytest.fixture
async def cluster(fake: FakeKube, kube: KubeClient) -> World:
    for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
        webhooks = [{"name": "pods.koordgate.io", "clientConfig": {"service": {"name": "koordgate"}}}]
        fake.put(resource.path(), {"metadata": {"name": "koordgate"}, "webhooks": webhooks})
    made = World(fake, kube)
    made.add_node()
    made.add_pod(gpu_pod("p"))
    return made


def with_certificate(trust: str, pair: pki.Pair | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trust)
    if pair is not None:
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder, "c"), Path(folder, "k")
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            context.load_cert_chain(certificate, key)
    return context


async def post(url: str, context: ssl.SSLContext) -> tuple[int, Mapping[str, Any]]:
    async with (
        ClientSession(connector=TCPConnector(ssl=context), headers=JSON) as session,
        session.post(f"{url}/mutate-binding", data=body(binds(binding("p", "n1")))) as http,
    ):
        return http.status, orjson.loads(await http.read())


async def test_with_the_api_servers_ca_only_its_certificate_may_ask_for_reviews_and_probes_need_none(
    cluster: World, kube: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC)
    authority = pki.new_authority("api-server-ca", now, 10)
    pairs = {name: pki.new_client_certificate(authority, name, now, 5) for name in ("api-server", "somebody")}
    other = pki.new_client_certificate(pki.new_authority("other", now, 10), "api-server", now, 5)
    serve = ServeSettings(
        host="127.0.0.1",
        port=free_port(),
        extender_port=free_port(),
        shutdown_delay_seconds=0.0,
        client_authority=authority.certificate.decode(),
        client_name="api-server",
    )
    certificate = Certificate(ip_addresses=("127.0.0.1",))
    replica = Replica(msgspec.structs.replace(SETTINGS, serve=serve, certificate=certificate), kube)
    end = asyncio.Event()
    running = asyncio.create_task(replica.run(end))
    try:
        await until(lambda: not replica.unready())
        url, trust = f"https://127.0.0.1:{serve.port}", replica.source.ca_bundle.decode()
        assert (await post(url, with_certificate(trust, pairs["api-server"])))[0] == 200
        status, answer = await post(url, with_certificate(trust, None))
        assert (status, answer["kind"]) == (403, "Status")
        assert "it presented no certificate" in answer["message"]
        assert "--admission-control-config-file" in answer["message"]
        assert "a caller of the webhooks was refused: it presented no certificate" in caplog.text
        status, answer = await post(url, with_certificate(trust, pairs["somebody"]))
        assert status == 403
        assert (
            "its certificate is for 'somebody', and only 'api-server' may call (serve.clientName)" in answer["message"]
        )
        with pytest.raises((OSError, ssl.SSLError)):
            await post(url, with_certificate(trust, other))
        assert "a caller of the webhooks was refused: its certificate is not accepted" in caplog.text
        async with (
            ClientSession(connector=TCPConnector(ssl=with_certificate(trust, None))) as session,
            session.get(f"{url}/readyz") as http,
        ):
            assert http.status == 200
    finally:
        end.set()
        await running
