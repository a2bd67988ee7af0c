"""Traces: what a collector gets of a Pod's calls, by whose decision, and that a dead collector costs nothing else."""

import asyncio
import gzip
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, unused_port
from fake_kube import FakeKube
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from waiting import until
from world import TENANT, World, asks, binding, binds, body, gpu_pod

from koordgate.kube.client import KubeClient
from koordgate.settings import SettingsError
from webhook import otlp, settings
from webhook.app import make_app, make_extender
from webhook.metrics import WebhookMetrics
from webhook.otlp import OtlpTracing
from webhook.settings import TracingSettings
from webhook.tls.pki import new_authority, new_certificate
from webhook.traces import check, opened
from webhook.tracing import OFF, Tracing

JSON = {"Content-Type": "application/json"}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE}-{PARENT}-01"


class Collector:
    """Receives spans by OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        self.spans: list[Sent] = []
        self.resources: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200

    async def receive(self, http: web.Request) -> web.Response:
        message = ExportTraceServiceRequest()
        body = await http.read()
        message.ParseFromString(body if body[:2] != b"\x1f\x8b" else gzip.decompress(body))
        self.headers.append(dict(http.headers))
        if self.status == 200:
            for of in message.resource_spans:
                self.resources.append({one.key: one.value.string_value for one in of.resource.attributes})
                self.spans += [span for scope in of.scope_spans for span in scope.spans]
        return web.Response(status=self.status)

    def named(self, name: str) -> list[Sent]:
        return [span for span in self.spans if span.name == name]


def noted(span: Sent) -> dict[str, Any]:
    return {
        one.key: one.value.string_value if one.value.HasField("string_value") else one.value.int_value
        for one in span.attributes
    }


@pytest.fixture
async def collector() -> AsyncIterator[tuple[Collector, str]]:
    made = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", made.receive)
    async with TestServer(app) as server:
        yield made, f"http://127.0.0.1:{server.port}"


@contextmanager
def tracing(endpoint: str, metrics: WebhookMetrics | None = None, percent: float = 100.0) -> Iterator[OtlpTracing]:
    made = opened(TracingSettings(endpoint, percent), metrics or WebhookMetrics())
    assert isinstance(made, OtlpTracing)
    try:
        yield made
    finally:
        made._provider.shutdown()


@asynccontextmanager
async def traced(world: World, made: Tracing) -> AsyncIterator[Callable[..., Any]]:
    """Calls of a replica that is traced."""
    object.__setattr__(world.parts, "tracing", made)
    world.parts.ledger._tracing = made
    async with (
        TestClient(TestServer(make_app(world.parts, list)), headers=JSON) as webhooks,
        TestClient(TestServer(make_extender(world.parts)), headers=JSON) as extender,
    ):

        async def call(path: str, data: bytes, caller: str | None = CALLER) -> Any:
            to = extender if path.startswith("/scheduler") else webhooks
            return await to.post(path, data=data, headers={} if caller is None else {"traceparent": caller})

        call.webhooks = webhooks  # type: ignore[attr-defined]
        yield call


async def sent(made: OtlpTracing) -> None:
    """All spans that ended are with the collector."""
    await asyncio.to_thread(made._provider.force_flush)


async def test_a_pods_way_is_traced_from_filter_to_ledger(world: World, collector: tuple[Collector, str]) -> None:
    got, url = collector
    world.show(gpu_pod("p"))
    asked = orjson.dumps({"Pod": world.pod("p"), "NodeNames": ["n1"]})
    with tracing(url) as made:
        async with traced(world, made) as call:
            await call("/mutate-pod", body(asks(gpu_pod("p", admit=False))))
            await call("/scheduler/filter", asked)
            await call("/scheduler/prioritize", asked)
            await call("/mutate-binding", body(binds(binding("p", "n1"))))
        await sent(made)
    assert {span.name for span in got.spans} == {
        "/mutate-pod",
        "/scheduler/filter",
        "/scheduler/prioritize",
        "/mutate-binding",
        "ledger change",
        "decide",
        "ledger write",
    }
    assert {span.trace_id.hex() for span in got.spans} == {TRACE}
    (bind,), (change,), decides, (write,) = map(
        got.named, ("/mutate-binding", "ledger change", "decide", "ledger write")
    )
    assert bind.parent_span_id.hex() == PARENT
    assert bind.kind == Sent.SPAN_KIND_SERVER
    assert change.parent_span_id == bind.span_id
    assert {span.parent_span_id for span in (*decides, write)} == {change.span_id}
    assert noted(write) == {"k8s.node.name": "n1", "koordgate.changes": 1}
    assert {
        "koordgate.review": "review-1",
        "k8s.pod.uid": "uid-p",
        "k8s.node.name": "n1",
        "http.route": "/mutate-binding",
        "koordgate.outcome": "patched",
        "koordgate.held": "gpu:0:GPU-n1-0",
    }.items() <= noted(bind).items()
    assert got.resources[0]["service.name"] == "koordgate"


async def test_binds_that_share_a_write_are_links_of_it(world: World, collector: tuple[Collector, str]) -> None:
    got, url = collector
    for name in ("p", "q", "r"):
        world.add_pod(gpu_pod(name, 20))
    world.see()
    with tracing(url) as made:
        world.parts.ledger._gather = 0.05
        async with traced(world, made) as call:
            await asyncio.gather(
                *(
                    call("/mutate-binding", body(binds(binding(name, "n1"))), f"00-{number:032x}-{number:016x}-01")
                    for number, name in enumerate("pqr", 1)
                )
            )
        await sent(made)
    writes = got.named("ledger write")
    assert sum(noted(write)["koordgate.changes"] for write in writes) == 3
    of = {write.trace_id for write in writes} | {link.trace_id for write in writes for link in write.links}
    assert of == {bytes.fromhex(f"{number:032x}") for number in (1, 2, 3)}
    changes = {change.trace_id: change for change in got.named("ledger change")}
    assert all(write.parent_span_id == changes[write.trace_id].span_id for write in writes)


@pytest.mark.parametrize(
    ("caller", "percent", "recorded", "own"),
    [
        pytest.param(CALLER, 0.0, True, False, id="the caller traces it"),
        pytest.param(CALLER[:-1] + "0", 100.0, False, False, id="the caller does not trace it"),
        pytest.param(None, 100.0, True, True, id="no caller's trace, all are taken"),
        pytest.param(None, 0.0, False, True, id="no caller's trace, none is taken"),
        pytest.param("00-zz-01", 100.0, True, True, id="nonsense"),
        pytest.param(f"01{CALLER[2:]}-{'x' * 72}", 0.0, True, False, id="128 characters of a later version"),
        pytest.param(f"01{CALLER[2:]}-{'x' * 73}", 100.0, True, True, id="one character more"),
        pytest.param("x" * 5_000, 100.0, True, True, id="long nonsense"),
        pytest.param(f"00-{'0' * 32}-{PARENT}-01", 100.0, True, True, id="a trace without an id"),
    ],
)
async def test_the_caller_decides_what_is_traced_and_the_share_decides_the_rest(
    world: World, collector: tuple[Collector, str], caller: str | None, percent: float, *, recorded: bool, own: bool
) -> None:
    got, url = collector
    with tracing(url, percent=percent) as made:
        async with traced(world, made) as call:
            http = await call("/mutate-pod", body(asks(gpu_pod("p", admit=False))), caller)
            assert http.status == 200
        await sent(made)
    assert len(got.spans) == recorded
    if recorded:
        assert (got.spans[0].trace_id.hex() != TRACE) == own


async def test_a_refusal_is_no_error_and_a_failure_of_ours_is_one(
    world: World, collector: tuple[Collector, str]
) -> None:
    got, url = collector
    world.show(gpu_pod("p"))
    with tracing(url) as made:
        async with traced(world, made) as call:
            await call("/validate-binding", body(binds(binding("p", "n1"), username=TENANT)))
            await world.fake.stop()
            await call("/mutate-binding?timeout=1s", body(binds(binding("p", "n1"))))
        await sent(made)
    (refused,), (failed,) = got.named("/validate-binding"), got.named("/mutate-binding")
    assert refused.status.code == Status.STATUS_CODE_UNSET
    assert "is not its scheduler" in noted(refused)["koordgate.why"]
    assert failed.status.code == Status.STATUS_CODE_ERROR
    assert failed.status.message


async def test_exemplars_point_at_the_trace_where_there_is_one(world: World, collector: tuple[Collector, str]) -> None:
    _, url = collector
    with tracing(url) as made:
        async with traced(world, made) as call:
            await call("/mutate-pod", body(asks(gpu_pod("p", admit=False))))
            await call("/validate-pod", body(asks(gpu_pod("p"))), CALLER[:-1] + "0")
            http = await call.webhooks.get("/metrics", headers={"Accept": "application/openmetrics-text"})  # type: ignore[attr-defined]
            found = {
                sample.labels["path"]: sample.exemplar.labels
                for family in text_string_to_metric_families(await http.text())
                for sample in family.samples
                if sample.exemplar is not None
            }
    assert found == {"/mutate-pod": {"trace_id": TRACE}, "/validate-pod": {"review": "review-1"}}


async def test_attributes_are_cut(world: World, collector: tuple[Collector, str]) -> None:
    got, url = collector
    with tracing(url) as made:
        async with traced(world, made) as call:
            await call("/validate-pod", body(asks(gpu_pod("p" * 5_000, admit=False))))
        await sent(made)
        for length in (256, 257):
            with pytest.raises(ValueError, match="x"), made.called("failed", ""):
                raise ValueError("x" * (length - len("ValueError: ")))
        await sent(made)
    (span,) = got.named("/validate-pod")
    assert max(len(str(value)) for value in noted(span).values()) == 256
    told = [failed.status.message for failed in got.named("failed")]
    assert told == ["ValueError: " + "x" * 244, "ValueError: " + "x" * 240 + " ..."]


async def test_a_span_has_32_attributes_and_links_to_what_is_traced_at_most(collector: tuple[Collector, str]) -> None:
    got, url = collector
    with tracing(url) as made:
        others = []
        for _ in range(40):
            for caller in (CALLER[:-1] + "0", ""):
                with made.called("other", caller):
                    others.append(made.here())
        with (
            made.called("whole", CALLER, {f"a{number}": number for number in range(40)}),
            made.work("part", also=others),
            made.work("small", also=[*others[:6], None]),
        ):
            pass
        await sent(made)
    (whole,), (part,), (small,) = map(got.named, ("whole", "part", "small"))
    assert (len(whole.attributes), len(part.links), len(small.links)) == (32, 32, 3)


async def test_work_outside_of_calls_is_not_traced(world: World, collector: tuple[Collector, str]) -> None:
    got, url = collector
    with tracing(url) as made:
        world.parts.ledger._tracing = made
        await world.parts.ledger.change("n1", lambda holdings: (None, len(holdings)), 4.0)
        await sent(made)
    assert got.spans == []


# --- collectors that do not take them


@pytest.mark.parametrize("status", [0, 400, 503])
async def test_a_collector_that_is_dead_or_refuses_stops_no_bind(
    world: World, collector: tuple[Collector, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, url = collector
    got.status = status
    monkeypatch.setattr(otlp, "_EXPORT_S", 0.3)
    endpoint = url if status else f"http://127.0.0.1:{unused_port()}"
    world.show(gpu_pod("p"))
    with tracing(endpoint, world.parts.metrics) as made:
        async with traced(world, made) as call:
            http = await call("/mutate-binding", body(binds(binding("p", "n1"))))
            assert (await http.json())["response"]["allowed"] is True
        await sent(made)
    assert got.spans == []
    assert world.metric("koordgate_spans_total", outcome="failed") == 4


async def test_what_does_not_fit_into_the_queue_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_QUEUE", 8)
    monkeypatch.setattr(otlp, "_BATCH", 8)
    monkeypatch.setattr(otlp, "_EXPORT_S", 0.2)
    metrics = WebhookMetrics()
    with tracing(f"http://127.0.0.1:{unused_port()}", metrics) as made:
        for _ in range(1_000):
            with made.called("x", ""):
                pass
        dropped = metrics._registry.get_sample_value("koordgate_spans_total", {"outcome": "dropped"}) or 0
        assert dropped > 900
        await sent(made)
        failed = metrics._registry.get_sample_value("koordgate_spans_total", {"outcome": "failed"}) or 0
        assert dropped + failed == 1_000


class Stuck(SpanExporter):
    """Takes one message, and does not get on with it before it may."""

    def __init__(self) -> None:
        self.messages: list[int] = []
        self.busy, self.may = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.messages.append(len(spans))
        self.busy.set()
        self.may.wait()
        return SpanExportResult.SUCCESS


async def test_2048_spans_wait_and_a_message_has_128_at_most() -> None:
    exporter, counted, provider = Stuck(), Counter[str](), TracerProvider()
    provider.add_span_processor(otlp._Bounded(exporter, lambda outcome, spans: counted.update({outcome: spans})))
    tracer, ended = provider.get_tracer("x"), 0
    while not counted["dropped"]:
        tracer.start_span("x").end()
        ended += 1
        if ended == 128:
            await until(exporter.busy.is_set)
    assert ended - 1 - exporter.messages[0] == 2048
    for _ in range(3):
        tracer.start_span("x").end()
    assert counted == {"dropped": 4}
    exporter.may.set()
    await asyncio.to_thread(provider.shutdown)
    assert max(exporter.messages) == 128
    assert counted == {"dropped": 4, "exported": ended - 1}


async def test_the_end_of_a_process_does_not_wait_for_a_dead_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and never answers is the slowest."""
    monkeypatch.setattr(otlp, "_END_S", 0.1)
    monkeypatch.setattr(otlp, "_EXPORT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as hung:
        made = OtlpTracing(TracingSettings(f"http://127.0.0.1:{hung.getsockname()[1]}", 100.0))
        with made.called("x", ""):
            pass
        await asyncio.to_thread(made.end)
        assert "OtelBatchSpanRecordProcessor" in threads()  # it still tries, and keeps nobody
        await until(lambda: "OtelBatchSpanRecordProcessor" not in threads())


# --- over TLS


AUTHORITY, OTHERS = (new_authority(name, datetime.now(UTC), 1) for name in ("collector", "other"))


@asynccontextmanager
async def secured(folder: Path, *names: str) -> AsyncIterator[tuple[Collector, int]]:
    """A collector whose certificate is for these names and for no address, by `AUTHORITY`; yields its port."""
    made = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", made.receive)
    pair = new_certificate(AUTHORITY, names, [], datetime.now(UTC), 1)
    (folder / "tls.pem").write_bytes(pair.certificate + pair.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "tls.pem")
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=tls)
    try:
        yield made, server.port or 0
    finally:
        await server.close()


@contextmanager
def tracing_to(port: int, authority: str, metrics: WebhookMetrics) -> Iterator[OtlpTracing]:
    made = opened(TracingSettings(f"https://localhost:{port}", 100.0, authority), metrics)
    assert isinstance(made, OtlpTracing)
    try:
        yield made
    finally:
        made.end()


async def test_spans_reach_a_collector_over_tls_by_the_authority_that_is_stated(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "other.pem").write_bytes(OTHERS.certificate)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "other.pem"))  # as some base images do
    world.show(gpu_pod("p"))
    async with secured(tmp_path, "localhost") as (got, port):
        with tracing_to(port, AUTHORITY.certificate.decode(), world.parts.metrics) as made:
            async with traced(world, made) as call:
                await call("/mutate-binding", body(binds(binding("p", "n1"))))
            await sent(made)
        assert {span.name for span in got.spans} == {"/mutate-binding", "ledger change", "decide", "ledger write"}
    assert not await asyncio.to_thread(lambda: list(tmp_path.glob("koordgate-*.pem")))  # the authority's file is gone


@pytest.mark.parametrize(
    ("authority", "name"),
    [
        pytest.param(OTHERS.certificate.decode(), "localhost", id="another authority"),
        pytest.param("", "localhost", id="no authority, and nobody else trusts it"),
        pytest.param(AUTHORITY.certificate.decode(), "collector.monitoring.svc", id="another name"),
    ],
)
async def test_a_collector_that_cannot_be_trusted_gets_no_span_and_stops_no_bind(
    world: World, tmp_path: Path, authority: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "_EXPORT_S", 0.5)
    world.show(gpu_pod("p"))
    async with secured(tmp_path, name) as (got, port):
        with tracing_to(port, authority, world.parts.metrics) as made:
            async with traced(world, made) as call:
                http = await call("/mutate-binding", body(binds(binding("p", "n1"))))
                assert (await http.json())["response"]["allowed"] is True
            await sent(made)
        assert got.headers == []
    assert world.metric("koordgate_spans_total", outcome="failed") == 4


def test_the_images_pins_have_what_traces_need() -> None:
    """The image is built of requirements.txt, and the endpoint is refused where OpenTelemetry is missing."""
    root = Path(otlp.__file__).parents[1]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {re.split(r"[<>=~! ]", one)[0] for one in extras["tracing"]}
    pinned = re.findall(r"^([a-z0-9.-]+)==", (root / "requirements.txt").read_text(), re.MULTILINE)
    assert needed
    assert needed <= set(pinned)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


async def test_headers_for_the_collector_come_from_the_environment(
    collector: tuple[Collector, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    got, url = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    with tracing(url) as made:
        with made.called("x", ""):
            pass
        await sent(made)
    assert got.headers[0]["Authorization" if "Authorization" in got.headers[0] else "authorization"] == "Bearer secret"


# --- off, and settings


async def test_without_an_endpoint_there_is_no_tracing(fake: FakeKube, kube: KubeClient) -> None:
    assert World(fake, kube).parts.tracing is OFF
    assert opened(TracingSettings(), WebhookMetrics()) is OFF
    with OFF.called("x", CALLER) as span, OFF.work("y", of=OFF.here()) as part:
        span.note({"a": 1})
        part.fail("why")
        assert span.trace_id == part.trace_id == ""
    OFF.end()


def test_opentelemetry_is_not_even_imported_without_an_endpoint() -> None:
    code = (
        "import sys, webhook.command; from webhook import traces; from webhook.settings import TracingSettings\n"
        "traces.check(TracingSettings())\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_opentelemetry_a_configured_endpoint_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "webhook.otlp", None)
    with pytest.raises(SettingsError, match=r"koordgate\[tracing\]"):
        check(TracingSettings("http://collector:4318"))


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector:4318/", "https://collector:4318/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
        ("https://tempo.example.com/otlp/v1/traces", "https://tempo.example.com/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_gets_that_of_otlp(endpoint: str, address: str) -> None:
    assert TracingSettings(endpoint).address == address


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("endpoint: collector:4318", "http or https"),
        ("endpoint: grpc://collector:4317", "http or https"),
        ("endpoint: 'http://'", "http or https"),
        ("endpoint: 'http://collector:port'", "no address"),
        ("endpoint: 'http://[::1'", "no address"),
        ("endpoint: 'http://me:secret@collector:4318'", "tracing.headersSecret"),
        ("endpoint: 'http://collector:4318/?key=secret'", "tracing.headersSecret"),
        ("{endpoint: 'https://collector:4318', authority: no certificate}", "not a certificate"),
        ("samplingPercent: 101", "<= 100"),
        ("samplingPercent: -1", ">= 0"),
        ("samplingPercent: .nan", "samplingPercent"),
        ("sampling: 5", "sampling"),
    ],
)
def test_wrong_settings_are_refused_with_what_is_right(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings.parse(f"tracing: {text}" if text.startswith("{") else f"tracing:\n  {text}")
    assert told in str(refused.value)
    assert "secret@" not in str(refused.value)
