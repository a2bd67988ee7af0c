"""A whole replica against the fake API server, over TLS: how it becomes ready, serves, follows changes, and ends."""

import asyncio
import base64
import gc
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from aiohttp import ClientError, ClientSession, TCPConnector
from builders import gpu, holding, part
from claims import cards, resource_slice
from cryptography import x509
from fake_kube import FakeKube, answer, hold
from waiting import until
from world import World, binding, binds, body, gpu_pod, koordinator_annotation

from allocator.vocabulary.names import GANG_GATE, GANG_TOGETHER, RELEASED
from allocator.wire.gang import GANG_LABELS
from allocator.wire.nodeallocation import read_spec, write_spec
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import (
    ALL_POD_GROUPS,
    DEVICE_TAINT_RULES,
    EVENTS,
    MUTATING_WEBHOOKS,
    NODE_ALLOCATIONS,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    SECRETS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from localplane.process import free_port
from webhook import command as command_module
from webhook.command import Replica
from webhook.settings import (
    Certificate,
    CertificateFiles,
    DraSettings,
    GangSettings,
    HeadroomSettings,
    LedgerSettings,
    QuotaSettings,
    Scheduler,
    ServeSettings,
    WebhookSettings,
)
from webhook.tls import pki
from webhook.tls.certs import SecretSource
from webhook.tls.pki import Pair

Raw = dict[str, Any]
WHOLE = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory-ratio": "100"}


def configured(**serve: Any) -> WebhookSettings:
    return WebhookSettings(
        serve=ServeSettings(
            **{
                "host": "127.0.0.1",
                "port": free_port(),
                "extender_port": free_port(),
                "shutdown_delay_seconds": 0.0,
                **serve,
            }
        ),
        certificate=Certificate(ip_addresses=("127.0.0.1",)),
        ledger=LedgerSettings(reconcile_seconds=0.1),
    )


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    """A cluster in which the chart is installed: one node with one GPU."""
    async with FakeKube() as server:
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            webhooks = [{"name": "pods.koordgate.io", "clientConfig": {"service": {"name": "koordgate"}}}]
            server.put(resource.path(), {"metadata": {"name": "koordgate"}, "webhooks": webhooks})
        yield server


@pytest.fixture
async def cluster(fake: FakeKube, kube: KubeClient) -> World:
    """A world for creating objects in the cluster; its own replica sees nothing."""
    made = World(fake, kube)
    made.add_node()
    return made


@dataclass
class Running:
    replica: Replica
    settings: WebhookSettings
    end: asyncio.Event
    task: asyncio.Task[None]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.settings.serve.port}"

    @property
    def filter(self) -> str:
        return f"https://127.0.0.1:{self.settings.serve.extender_port}/scheduler/filter"

    @property
    def refused(self) -> float:
        registry = self.replica.parts.metrics._registry
        return registry.get_sample_value("koordgate_requests_total", {"path": "/scheduler", "outcome": "denied"}) or 0.0

    async def until(self, condition: Callable[[], object]) -> None:
        await until(lambda: self.task.done() or condition())
        if not condition():
            await self.task

    async def ready(self) -> None:
        await self.until(lambda: not self.replica.unready())


@asynccontextmanager
async def running(kube: KubeClient, settings: WebhookSettings | None = None) -> AsyncIterator[Running]:
    settings = settings or configured()
    replica, end = Replica(settings, kube), asyncio.Event()
    task = asyncio.create_task(replica.run(end))
    try:
        yield Running(replica, settings, end, task)
    finally:
        end.set()
        try:
            async with asyncio.timeout(20):
                await task
        finally:
            task.cancel()


@asynccontextmanager
async def trusting(fake: FakeKube, shown: Path | None = None, authority: bytes = b"") -> AsyncIterator[ClientSession]:
    """A client that trusts this CA, or that in the webhook configuration, as the API server does.

    It may show a certificate.
    """
    if not authority:
        config = fake.get(MUTATING_WEBHOOKS.path("koordgate"))
        authority = base64.b64decode(config["webhooks"][0]["clientConfig"]["caBundle"])
    trust = ssl.create_default_context(cadata=authority.decode())
    if shown is not None:
        trust.load_cert_chain(shown)
    headers = {"Content-Type": "application/json"}
    async with ClientSession(connector=TCPConnector(ssl=trust), headers=headers) as session:
        yield session


async def test_it_becomes_ready_step_by_step_and_says_what_is_missing(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    listing, publishing = hold(), answer(403)
    fake.faults.add("list", "pods", listing)
    fake.faults.always("patch", "validatingwebhookconfigurations", publishing)
    cluster.add_pod(gpu_pod("p"))
    async with running(kube) as one:
        await listing.reached.wait()
        await publishing.reached.wait()
        published = "the CA is not published: validatingwebhookconfigurations/koordgate"
        await one.until(lambda: len(one.replica.unready()) == 4 and one.replica.unready()[3].startswith(published))
        told = one.replica.unready()
        assert told[0] == "pods are not listed yet (under way)"
        assert told[1] == "the ledger is not reconciled with live Pods yet"
        assert told[2] == "quotas that name devices have no mirrors yet"
        assert listing.gate
        listing.gate.set()
        await one.until(lambda: len(one.replica.unready()) == 1)
        fake.faults.always("patch", "validatingwebhookconfigurations", None)
        await one.ready()


async def test_the_metric_shows_when_the_certificate_that_is_served_expires(cluster: World, kube: KubeClient) -> None:
    def told(one: Replica) -> float | None:
        return one.parts.metrics._registry.get_sample_value("koordgate_certificate_not_after_seconds")

    assert told(Replica(configured(), kube)) == 0
    async with running(kube) as one:
        await one.ready()
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", one.settings.serve.port))
        expires = x509.load_pem_x509_certificate(shown.encode()).not_valid_after_utc
        assert told(one.replica) == expires.timestamp()


async def test_before_it_runs_nothing_is_ready(kube: KubeClient) -> None:
    told = " / ".join(Replica(configured(), kube).unready())
    for what in ("nodes are", "devices are", "nodeallocations are", "pods are", "ledger", "certificate", "CA"):
        assert what in told


async def test_a_bind_is_served_over_tls_to_whoever_trusts_what_is_published(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    cluster.add_pod(gpu_pod("p"))
    async with running(kube) as one:
        await one.ready()
        async with trusting(fake) as session:
            async with session.get(one.url + "/readyz") as http:
                assert http.status == 200
            review = body(binds(binding("p", "n1")))
            async with session.post(one.url + "/mutate-binding?timeout=5s", data=review) as http:
                assert http.status == 200
                response = (await http.json())["response"]
                assert response["allowed"] is True
                told = response["auditAnnotations"]
                assert (told["held"], told["recorded"], told["review"]) == ("gpu:0:GPU-n1-0", "yes", response["uid"])
    stored = fake.get(NODE_ALLOCATIONS.path("n1"))
    assert [held.name for held in read_spec(stored).values()] == ["p"]
    assert "ownerReferences" not in stored["metadata"], (
        "Kubernetes would delete it with its Node, while the bind is under way"
    )


async def test_it_is_not_ready_before_the_ledger_is_in_step_with_live_pods(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    left = holding("gone", part(gpu(0, device_id="GPU-n1-0"), 50, "main"))
    fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": write_spec([left])})
    cluster.add_pod(gpu_pod("old", 100, nodeName="n1", annotations=koordinator_annotation((0, WHOLE, ""))))
    failing = answer(500)
    fake.faults.add("get", "pods", *[failing] * 8)  # the client's own attempts included
    async with running(kube) as one:
        await failing.reached.wait()
        assert "the ledger is not reconciled with live Pods yet" in one.replica.unready()
        await one.ready()
        assert cluster.holders() == ["old"]


async def test_what_a_pod_held_is_given_back_as_soon_as_it_is_deleted(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    cluster.add_pod(gpu_pod("first", 100))
    cluster.add_pod(gpu_pod("waits", 100))
    async with running(kube) as one:
        await one.ready()
        bindings = one.replica.parts.bindings
        assert (await bindings.mutate(binds(binding("first", "n1")), 4)).allowed
        assert not (await bindings.mutate(binds(binding("waits", "n1")), 4)).allowed
        cluster.remove_pod("first")
        await fake.until(lambda: cluster.holders() == [])
        assert (await bindings.mutate(binds(binding("waits", "n1")), 4)).allowed


async def test_two_replicas_serve_side_by_side_and_see_each_others_writes(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    for name in ("a", "b"):
        cluster.add_pod(gpu_pod(name, 100))
    async with running(kube) as one, running(kube) as two:
        await one.ready()
        await two.ready()
        assert len(fake.objects(SECRETS.path())) == 3
        assert one.replica.source.ca_bundle == two.replica.source.ca_bundle
        assert (await one.replica.parts.bindings.mutate(binds(binding("a", "n1")), 4)).allowed
        refused = await two.replica.parts.bindings.mutate(binds(binding("b", "n1")), 4)
        assert refused.code == 409
        await two.until(lambda: two.replica.parts.ledger.nodes_of("uid-a") == ["n1"])
    cluster.audit()


async def test_it_ends_gracefully(fake: FakeKube, cluster: World, kube: KubeClient) -> None:
    """After the signal it is not ready, serves during the delay, and finishes open requests before it ends."""
    async with running(kube, configured(shutdown_delay_seconds=0.2)) as one:
        await one.ready()
        async with trusting(fake) as session:
            reading = hold()
            fake.faults.add("get", "pods", reading)
            cluster.add_pod(gpu_pod("p"))
            asked = binds(binding("p", "n1", uid=""))  # without its uid, the Pod is read
            in_flight = asyncio.create_task(session.post(one.url + "/mutate-binding", data=body(asked)))
            await reading.reached.wait()
            one.end.set()
            await one.until(lambda: "shutting down" in one.replica.unready())
            async with session.get(one.url + "/readyz") as http:
                assert http.status == 503
                assert "shutting down" in await http.text()
            assert not one.task.done()
            assert reading.gate
            reading.gate.set()
            http = await in_flight
            assert (await http.json())["response"]["allowed"] is True
        await one.task
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", one.settings.serve.port)


async def test_it_ends_though_it_never_got_a_certificate(fake: FakeKube, kube: KubeClient) -> None:
    failing = answer(500)
    fake.faults.always("get", "secrets", failing)
    async with running(kube) as one:
        await failing.reached.wait()
        assert one.replica.unready()
        one.end.set()
        await one.task


async def test_it_serves_on_while_the_api_server_is_unreachable_and_is_ready_through_a_short_absence(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    cluster.add_pod(gpu_pod("p"))
    async with running(kube) as one:
        await one.ready()
        async with trusting(fake) as session:
            await fake.stop()
            async with session.post(
                one.url + "/mutate-binding?timeout=1s", data=body(binds(binding("p", "n1")))
            ) as http:
                assert http.status >= 500
            async with session.get(one.url + "/readyz") as http:
                assert http.status == 200
            await fake.start()
            async with session.post(one.url + "/mutate-binding", data=body(binds(binding("p", "n1")))) as http:
                assert (await http.json())["response"]["allowed"] is True


async def test_a_damaged_record_does_not_end_the_replica(fake: FakeKube, cluster: World, kube: KubeClient) -> None:
    fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": {"allocations": "?"}})
    cluster.add_pod(gpu_pod("old", 100, nodeName="n1", annotations=koordinator_annotation((0, WHOLE, ""))))
    async with running(kube) as one:
        await one.ready()
        fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": {"allocations": []}})
        with suppress(TimeoutError):
            await fake.until(lambda: cluster.holders() == ["old"], within=5)
        assert cluster.holders() == ["old"]
        assert not one.task.done()
    assert len(fake.objects(PODS.path())) == 1


# --- the extender's port

CALL = orjson.dumps({"Pod": gpu_pod("p"), "NodeNames": ["n1"]})
SCHEDULER = "koord-scheduler"


def kept(fake: FakeKube, name: str = "koordgate-tls") -> dict[str, bytes]:
    data = fake.get(SECRETS.path(name, "koordgate-system"))["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}


def authority(fake: FakeKube) -> Pair:
    """Of the extender."""
    secret = kept(fake, "koordgate-extender-tls")
    return Pair(secret["ca.crt"], secret["ca.key"])


def now() -> datetime:
    return datetime.now(UTC)


def file_of(tmp_path: Path, pair: Pair) -> Path:
    file = tmp_path / "client.pem"
    file.write_bytes(pair.key + pair.certificate)
    return file


async def asked(fake: FakeKube, url: str, shown: Path | None) -> tuple[int, Any]:
    trusted = kept(fake, "koordgate-extender-tls")["ca.crt"] if fake.objects(SECRETS.path()) else b""
    async with trusting(fake, shown, trusted) as session, session.post(url, data=CALL) as http:
        return http.status, await http.json()


async def test_the_scheduler_is_answered_with_the_certificate_of_its_secret(
    fake: FakeKube, cluster: World, kube: KubeClient, tmp_path: Path
) -> None:
    async with running(kube) as one:
        await one.ready()
        secret = kept(fake, "koordgate-scheduler-tls")
        assert set(secret) == {"tls.crt", "tls.key", "ca.crt", "extender-ca.crt"}
        assert secret["extender-ca.crt"] == one.replica.extender_source.ca_bundle != one.replica.source.ca_bundle
        status, answer = await asked(fake, one.filter, file_of(tmp_path, Pair(secret["tls.crt"], secret["tls.key"])))
        assert (status, answer["NodeNames"]) == (200, ["n1"])
        assert one.refused == 0


STRANGERS: dict[str, tuple[Callable[[FakeKube], Pair | None], str]] = {
    "none": (lambda _: None, "it presented no certificate"),
    "a foreign CA's": (
        lambda _: pki.new_client_certificate(pki.new_authority("koordgate", now(), 1), SCHEDULER, now(), 1),
        "its certificate is not accepted: unable to get local issuer certificate",
    ),
    "the server's own": (
        lambda fake: Pair(*(kept(fake, "koordgate-extender-tls")[key] for key in ("tls.crt", "tls.key"))),
        "its certificate is not accepted: unsuitable certificate purpose",
    ),
    "an expired one": (
        lambda fake: pki.new_client_certificate(authority(fake), SCHEDULER, now() - timedelta(days=2), 1),
        "its certificate is not accepted: certificate has expired",
    ),
}


@pytest.mark.parametrize("case", STRANGERS)
async def test_who_shows_no_good_certificate_gets_no_connection_and_the_log_says_why(
    fake: FakeKube, cluster: World, kube: KubeClient, tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    make, reason = STRANGERS[case]
    async with running(kube) as one:
        await one.ready()
        pair = make(fake)
        with pytest.raises((ClientError, OSError)):
            await asked(fake, one.filter, file_of(tmp_path, pair) if pair else None)
        assert one.refused > 0
        assert f"a caller of the extender was refused: {reason}" in caplog.text


@pytest.mark.parametrize(
    "name", ["koord-scheduler-2", "koord", "KOORD-SCHEDULER", "system:koord-scheduler", "koordgate"]
)
async def test_a_client_of_our_ca_by_another_name_is_refused_with_the_reason(
    fake: FakeKube, cluster: World, kube: KubeClient, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async with running(kube) as one:
        await one.ready()
        file = file_of(tmp_path, pki.new_client_certificate(authority(fake), name, now(), 1))
        status, answer = await asked(fake, one.filter, file)
        assert status == 403
        assert answer["Error"].startswith(f"its certificate is for '{name}', and only 'koord-scheduler' may call")
        assert answer["Error"] in caplog.text


async def test_webhooks_are_answered_without_a_certificate_and_with_any(
    fake: FakeKube, cluster: World, kube: KubeClient, tmp_path: Path
) -> None:
    """An administrator may have given the API server a certificate for webhooks, by any CA."""
    foreign = pki.new_client_certificate(pki.new_authority("theirs", now(), 1), "kube-apiserver", now(), 1)
    cluster.add_pod(gpu_pod("p"))
    async with running(kube) as one:
        await one.ready()
        for shown in (None, file_of(tmp_path, foreign)):
            async with trusting(fake, shown) as session:
                async with session.post(one.url + "/mutate-binding", data=body(binds(binding("p", "n1")))) as http:
                    assert (await http.json())["response"]["allowed"] is True
                async with session.post(one.url + "/scheduler/filter", data=CALL) as http:
                    assert http.status == 404


async def test_where_it_is_turned_off_anybody_is_answered_and_no_certificate_is_made(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    settings = msgspec.structs.replace(configured(), scheduler=Scheduler(client_certificates=False))
    async with running(kube, settings) as one:
        await one.ready()
        assert (await asked(fake, one.filter, None))[0] == 200
    secrets = {secret["metadata"]["name"] for secret in fake.objects(SECRETS.path())}
    assert secrets == {"koordgate-extender-tls", "koordgate-tls"}


async def test_it_is_not_ready_before_the_scheduler_has_a_certificate(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    settings = configured()
    for certificate in (settings.certificate, settings.certificate.of_extender):
        await SecretSource(kube, "koordgate-system", certificate).start()
    refused = answer(403)
    fake.faults.always("create", "secrets", refused)
    async with running(kube, settings) as one:
        await refused.reached.wait()
        told = "the scheduler has no certificate: a fault of the test"
        await one.until(lambda: [reason[: len(told)] for reason in one.replica.unready()] == [told])
        fake.faults.always("create", "secrets", None)
        await one.ready()


async def test_with_certificates_from_files_the_scheduler_shows_one_by_the_ca_that_is_named(
    fake: FakeKube, cluster: World, kube: KubeClient, tmp_path: Path
) -> None:
    serving, calling = (pki.new_authority(name, now(), 1) for name in ("serving", "calling"))
    leaf = pki.new_certificate(serving, (), ("127.0.0.1",), now(), 1)
    for name, content in (
        ("tls.crt", leaf.certificate),
        ("tls.key", leaf.key),
        ("ca.crt", serving.certificate),
        ("clients.crt", calling.certificate),
    ):
        (tmp_path / name).write_bytes(content)
    files = CertificateFiles(*(str(tmp_path / name) for name in ("tls.crt", "tls.key", "ca.crt")))
    certificate = Certificate(files=files, client_authority=str(tmp_path / "clients.crt"))
    settings = msgspec.structs.replace(configured(), certificate=certificate)
    async with running(kube, settings) as one:
        await one.ready()
        good = pki.new_client_certificate(calling, SCHEDULER, now(), 1)
        assert (await asked(fake, one.filter, file_of(tmp_path, good)))[0] == 200
        other = pki.new_client_certificate(serving, SCHEDULER, now(), 1)
        with pytest.raises((ClientError, OSError)):
            await asked(fake, one.filter, file_of(tmp_path, other))
    assert not fake.objects(SECRETS.path())


async def test_who_was_refused_for_a_pod_that_is_not_bound_after_all_is_woken(
    fake: FakeKube, cluster: World, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_module, "_EXPIRY_S", 0.01)
    for name in ("sent", "refused"):
        cluster.add_pod(gpu_pod(name, 100))
    made = configured()
    made = msgspec.structs.replace(made, scheduler=msgspec.structs.replace(made.scheduler, assume_seconds=0.01))
    async with running(kube, made) as one:
        await one.ready()
        extender = one.replica.parts.extender
        named = [extender.filter({"Pod": cluster.pod(name), "NodeNames": ["n1"]}) for name in ("sent", "refused")]
        assert [answer["NodeNames"] for answer in named] == [["n1"], []]
        await one.until(lambda: not one.replica.parts.ranking.assumed.on("n1"))
        fake.requests.clear()  # a start wakes as well, some time later
        await one.until(lambda: fake.seen("patch", "nodes/status"))
        assert RELEASED in fake.get(NODES.path("n1"))["metadata"]["annotations"]
        assert extender.filter({"Pod": cluster.pod("refused"), "NodeNames": ["n1"]})["NodeNames"] == ["n1"]


@pytest.mark.parametrize("resource", [versions[-1] for versions in ALL_POD_GROUPS], ids=attrgetter("group"))
async def test_a_replica_finds_the_size_of_a_gang_holds_room_and_lifts_the_gates(
    resource: Resource, fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    fake.serve(resource.group, **{resource.version: ["podgroups"]})
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}} if resource in POD_GROUPS else {"minMember": 2}
    group = {"metadata": {"name": "g", "namespace": "default"}, "spec": spec}
    fake.put(resource.path(namespace="default"), group)
    node = fake.get(NODES.path("n1"))
    fake.put(NODES.path(), {**node, "status": {"allocatable": {"pods": "10", **WHOLE}}})
    about: Any = {"annotations": {GANG_TOGETHER: "true"}, "labels": {GANG_LABELS[0]: "g"}}
    for name in ("a", "b"):
        cluster.add_pod(gpu_pod(name, 50, schedulingGates=[{"name": GANG_GATE}], **about))

    def lifted() -> bool:
        return not any(pod["spec"]["schedulingGates"] for pod in fake.objects(PODS.path()))

    settings = msgspec.structs.replace(configured(), gangs=GangSettings(all_or_nothing=True))
    async with running(kube, settings) as one:
        await one.until(lifted)
    assert sorted(held.name for held in read_spec(fake.get(NODE_ALLOCATIONS.path("n1"))).values()) == ["a", "b"]


# --- quotas


def team_quota(**hard: str) -> Raw:
    return {"metadata": {"name": "q", "namespace": "team", "uid": "uid-q"}, "spec": {"hard": hard}}


async def test_quotas_that_exist_have_mirrors_before_the_replica_is_ready(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    fake.put(RESOURCE_QUOTAS.path(namespace="team"), team_quota(**{"requests.nvidia.com/gpu": "2"}))
    writing = hold()
    fake.faults.add("create", "resourcequotas", writing)
    async with running(kube) as one:
        await one.until(lambda: one.replica.unready() == ["quotas that name devices have no mirrors yet"])
        assert writing.reached.is_set()
        assert writing.gate
        writing.gate.set()
        await one.ready()
        mirror = fake.get(RESOURCE_QUOTAS.path("q.koordgate", "team"))
        assert mirror["spec"]["hard"] == {"requests.quota.koordgate.io/gpu": "200"}
        assert one.replica.parts.limits.of("team").counted == {"quota.koordgate.io/gpu"}


async def test_a_mirror_that_cannot_be_written_is_reported_and_keeps_no_replica_from_being_ready(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    fake.put(RESOURCE_QUOTAS.path(namespace="team"), team_quota(**{"requests.nvidia.com/gpu": "2"}))
    fake.faults.always("create", "resourcequotas", answer(403))
    async with running(kube) as one:
        await one.ready()
        registry = one.replica.parts.metrics._registry
        assert registry.get_sample_value("koordgate_bad_objects", {"resource": "resourcequotas"}) == 1
        await one.until(lambda: fake.objects(EVENTS.path(namespace="team")))
        (event,) = fake.objects(EVENTS.path(namespace="team"))
        assert event["involvedObject"] == {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "namespace": "team",
            "name": "q",
        }
        assert "its mirror q.koordgate cannot be written" in event["message"]


async def test_a_replica_without_quotas_reads_and_writes_none(fake: FakeKube, cluster: World, kube: KubeClient) -> None:
    fake.put(RESOURCE_QUOTAS.path(namespace="team"), team_quota(**{"requests.nvidia.com/gpu": "2"}))
    fake.faults.always("list", "resourcequotas", answer(403))
    fake.faults.always("list", "limitranges", answer(403))
    off = msgspec.structs.replace(configured(), quota=QuotaSettings(enabled=False))
    async with running(kube, off) as one:
        await one.ready()
    assert len(fake.objects(RESOURCE_QUOTAS.path(namespace="team"))) == 1


# --- what is turned on

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {"dra": DraSettings(enabled=False), "quota": QuotaSettings(enabled=False)},
    "DRA": {"quota": QuotaSettings(enabled=False)},
    "taints of DRA": {"dra": DraSettings(taints=True), "quota": QuotaSettings(enabled=False)},
    "taints without DRA": {"dra": DraSettings(enabled=False, taints=True), "quota": QuotaSettings(enabled=False)},
    "quotas": {"dra": DraSettings(enabled=False)},
    "headroom": {"headroom": HeadroomSettings(mode="taint")},
    "callers without certificates": {"scheduler": Scheduler(client_certificates=False)},
}
CLAIMS, QUOTAS = ["resourceslices", "resourceclaims"], ["limitranges", "resourcequotas"]
CLIENT = "the scheduler's certificate"
HAS: dict[str, tuple[list[str], list[str]]] = {
    "nothing": ([], [CLIENT]),
    "DRA": (CLAIMS, [CLIENT]),
    "taints of DRA": (CLAIMS, ["taints", CLIENT]),
    "taints without DRA": ([], [CLIENT]),
    "quotas": (QUOTAS, ["quotas", CLIENT]),
    "headroom": ([*CLAIMS, *QUOTAS], ["headroom", "quotas", CLIENT]),
    "callers without certificates": ([*CLAIMS, *QUOTAS], ["quotas"]),
}


@pytest.mark.parametrize("option", OPTIONS)
async def test_a_replica_has_the_parts_that_are_turned_on(kube: KubeClient, option: str) -> None:
    replica = Replica(msgspec.structs.replace(configured(), **OPTIONS[option]), kube)
    always = ["namespaces", "runtimeclasses", "nodes", "devices", "noderesourcetopologies", "nodeallocations", "pods"]
    more, parts = HAS[option]
    assert [name for name, _ in replica.watches] == [*always, *more]
    optional = ("taints", "headroom", "quotas", CLIENT)
    assert [name for name in optional if any(one.name == name for one in replica.services)] == parts


async def test_what_is_turned_on_is_kept_once_the_replica_is_ready_and_not_before(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    rules, node = DEVICE_TAINT_RULES[0], NODES.path("n1")
    fake.serve(rules.group, **{rules.version: [rules.plural]})
    fake.put(RESOURCE_SLICES.path(), resource_slice("n1", cards("n1", 1)))
    taint = {"key": "koordgate.io/headroom", "effect": "PreferNoSchedule"}
    fake.put(NODES.path(), {**fake.get(node), "spec": {"taints": [taint]}})
    cluster.show(gpu_pod("p"))
    assert (await cluster.bind("p")).allowed
    on = msgspec.structs.replace(
        configured(),
        headroom=HeadroomSettings(mode="remove"),
        dra=DraSettings(enabled=True, taints=True),
    )

    def kept() -> list[bool]:
        tainted = bool((fake.get(node).get("spec") or {}).get("taints"))
        return [not tainted, bool(fake.objects(rules.path()))]

    fake.faults.always("patch", "validatingwebhookconfigurations", answer(403))
    async with running(kube, on) as one:
        await one.until(lambda: len(one.replica.unready()) == 1)
        assert kept() == [False, False]
        fake.faults.always("patch", "validatingwebhookconfigurations", None)
        await one.until(lambda: kept() == [True, True])
        gc_first, *_ = gc.get_threshold()
        assert gc_first == 20_000


async def test_what_is_turned_off_is_not_even_looked_at(fake: FakeKube, cluster: World, kube: KubeClient) -> None:
    off = msgspec.structs.replace(configured(), dra=DraSettings(enabled=False))
    async with running(kube, off) as one:
        await one.ready()
        for resource in (RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_TAINT_RULES[0]):
            assert not fake.seen("list", resource.plural)
        assert not {"taints", "headroom"}.intersection(service.name for service in one.replica.services)


# --- bugs in the background, and health

WORK = (
    "releases",
    "waker",
    "loop lag",
    "gangs",
    "reconciliation",
    "records of nodes that are gone",
    "expiry",
    "certificates",
    "publication of the CA",
    "the scheduler's certificate",
)


@pytest.mark.parametrize("part", WORK)
async def test_a_bug_in_the_background_is_logged_and_counted_and_the_work_begins_again(
    fake: FakeKube,
    cluster: World,
    kube: KubeClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    begun = 0

    async def fail(*_: object) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise LookupError("what nobody expected")
        await asyncio.Event().wait()

    monkeypatch.setattr("koordgate.steady._FIRST_S", 0.01)
    settings = msgspec.structs.replace(configured(), gangs=GangSettings(all_or_nothing=True))
    replica, end = Replica(settings, kube), asyncio.Event()
    at = max(at for at, one in enumerate(replica.services) if one.name == part)
    replica.services[at] = replace(replica.services[at], run=fail)
    task = asyncio.create_task(replica.run(end))
    one = Running(replica, settings, end, task)
    await one.until(lambda: begun == 2)
    end.set()
    await task
    assert "what nobody expected" in caplog.text
    registry = replica.parts.metrics._registry
    assert registry.get_sample_value("koordgate_bugs_total", {"path": part}) == 1


async def test_it_is_not_ready_while_the_api_server_says_nothing_or_the_loop_is_held(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    async with running(kube) as one:
        await one.ready()
        now = asyncio.get_running_loop().time()
        name, watch = one.replica.watches[0]
        watch.heard_at = now - 151  # type: ignore[misc]
        (reason,) = one.replica.unready()
        assert reason.startswith(f"{name} were last heard of 151 s ago")
        watch.heard_at = now  # type: ignore[misc]
        one.replica.parts.loop_lag._worst[0] = 5.1
        assert one.replica.unready() == ["the event loop was held for 5.1 s"]
        assert one.replica.sick() == []


async def test_it_is_sick_only_when_a_watch_stands_still(fake: FakeKube, cluster: World, kube: KubeClient) -> None:
    async with running(kube) as one:
        await one.ready()
        async with trusting(fake) as session:
            async with session.get(one.url + "/healthz") as http:
                assert http.status == 200
            name, watch = one.replica.watches[0]
            watch.stirred_at = asyncio.get_running_loop().time() - 601  # type: ignore[misc]
            async with session.get(one.url + "/healthz") as http:
                assert http.status == 503
                assert (await http.text()).startswith(f"not healthy: the watch of {name} has done nothing for 601 s")


async def test_an_api_server_that_is_away_for_long_makes_nobody_sick(
    fake: FakeKube, cluster: World, kube: KubeClient
) -> None:
    """A restart would not bring it back; each attempt that fails shows that the watch works."""
    async with running(kube) as one:
        await one.ready()
        for _, watch in one.replica.watches:
            watch.stirred_at -= 601  # type: ignore[misc]
        assert len(one.replica.sick()) == len(one.replica.watches)
        await fake.stop()
        await one.until(lambda: not one.replica.sick())
        await fake.start()
