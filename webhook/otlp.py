"""Traces that are sent to a collector by OTLP over HTTP; the only importer of OpenTelemetry.

Spans wait in a bounded queue, which a thread of its own empties. A collector that is slow or dead costs spans, which
are counted, and never time of a call.
"""

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import requests
from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from koordgate.log import cut
from webhook.settings import TracingSettings
from webhook.tracing import NO_SPAN, Attributes, Span, Tracing

_MAX_TEXT: Final = 256  # characters of an attribute
_LIMITS: Final = SpanLimits(max_attributes=32, max_links=32, max_attribute_length=_MAX_TEXT)
_QUEUE: Final = 2048  # spans that wait, some kilobytes each
_BATCH: Final = 128  # spans of one message; few, because encoding them shares the interpreter with calls
_EVERY_MS: Final = 2_000
_EXPORT_S: Final = 5.0  # for one message and its repetitions
_END_S: Final = 3.0  # for what is left when the process ends
_MAX_CALLER: Final = 128  # characters of a traceparent; one of version 00 has 55 (W3C Trace Context)
_NONE: Final[Attributes] = {}
_READER: Final = TraceContextTextMapPropagator()

Counted = Callable[[str, int], object]
"""Called with what became of spans (exported, failed, dropped), and of how many."""


class _Counting(SpanExporter):
    """Counts the spans that another exporter sends."""

    def __init__(self, inner: SpanExporter, counted: Counted) -> None:
        self._inner = inner
        self._counted = counted
        self._lock = threading.Lock()
        self.waiting = 0  # spans that were queued and not given to the exporter yet

    def queued(self, spans: int) -> None:
        with self._lock:
            self.waiting += spans

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.queued(-len(spans))
        result = self._inner.export(spans)
        self._counted("exported" if result is SpanExportResult.SUCCESS else "failed", len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class _Bounded(SpanProcessor):
    """Queues spans while there is room. The queue of OpenTelemetry alone would drop the oldest, uncounted."""

    def __init__(self, exporter: SpanExporter, counted: Counted) -> None:
        self._counted = counted
        self._exporter = _Counting(exporter, counted)
        self._queue = BatchSpanProcessor(
            self._exporter, max_queue_size=_QUEUE, schedule_delay_millis=_EVERY_MS, max_export_batch_size=_BATCH
        )

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if self._exporter.waiting >= _QUEUE:
            self._counted("dropped", 1)
            return
        self._exporter.queued(1)
        self._queue.on_end(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._queue.force_flush(timeout_millis)

    def shutdown(self) -> None:
        self._queue.shutdown()


class _OtlpSpan(Span):
    """A span that is recorded."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.trace_id = trace.format_trace_id(span.get_span_context().trace_id)

    def note(self, attributes: Attributes) -> None:
        """Add attributes; texts are cut."""
        self._span.set_attributes(attributes)

    def fail(self, why: str) -> None:
        """Mark the work as failed."""
        self._span.set_status(trace.StatusCode.ERROR, cut(why, _MAX_TEXT))


class _Trusting(requests.Session):
    """A session that trusts the settings' authority alone.

    Requests puts REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE, which some base images set, above what a session was given.
    """

    def __init__(self, authority: Path) -> None:
        super().__init__()
        self._authority = str(authority)

    def merge_environment_settings(self, *args: Any, **options: Any) -> Any:
        return {**super().merge_environment_settings(*args, **options), "verify": self._authority}


class OtlpTracing(Tracing):
    """Makes spans and sends them."""

    def __init__(self, settings: TracingSettings, counted: Counted = lambda _outcome, _spans: None) -> None:
        self._authority = _file(settings.authority) if settings.authority else None
        exporter = OTLPSpanExporter(
            settings.address,
            certificate_file=None if self._authority is None else str(self._authority),
            session=None if self._authority is None else _Trusting(self._authority),
            timeout=_EXPORT_S,
            compression=Compression.Gzip,
        )
        self._provider = TracerProvider(
            sampler=ParentBasedTraceIdRatio(settings.sampling_percent / 100),
            resource=_resource(),
            span_limits=_LIMITS,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(_Bounded(exporter, counted))
        self._tracer = self._provider.get_tracer("koordgate")

    @contextmanager
    def called(self, name: str, caller: str, attributes: Attributes = _NONE) -> Iterator[Span]:
        """Record the answer to a call; see `Tracing.called`."""
        given = {"traceparent": caller} if len(caller) <= _MAX_CALLER else {}
        parent = _READER.extract(given, context=Context())
        with self._recorded(name, attributes, parent, trace.SpanKind.SERVER, ()) as span:
            yield span

    @contextmanager
    def work(
        self, name: str, attributes: Attributes = _NONE, *, of: object = None, also: Iterable[object] = ()
    ) -> Iterator[Span]:
        """Record a part of a call's work, and nothing outside of calls; see `Tracing.work`."""
        parent = of if isinstance(of, Context) else get_current()
        if not _span_of(parent).is_valid:
            yield NO_SPAN
            return
        others = [_span_of(one) for one in also if isinstance(one, Context)]
        links = [trace.Link(one) for one in others if one.is_valid and one.trace_flags.sampled]
        with self._recorded(name, attributes, parent, trace.SpanKind.INTERNAL, links) as span:
            yield span

    @contextmanager
    def _recorded(
        self, name: str, attributes: Attributes, parent: Context, kind: trace.SpanKind, links: Sequence[trace.Link]
    ) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name, parent, kind, attributes, links, record_exception=False, set_status_on_exception=False
        ) as begun:
            span = _OtlpSpan(begun) if begun.is_recording() else NO_SPAN
            try:
                yield span
            except BaseException as error:
                span.fail(f"{type(error).__name__}: {error}")
                raise

    def here(self) -> object:
        """The work that is under way; see `Tracing.here`."""
        return get_current()

    def end(self) -> None:
        """Send what is left, within three seconds, and stop."""
        ending = threading.Thread(target=self._provider.shutdown, name="end of traces", daemon=True)
        ending.start()
        ending.join(_END_S)
        if self._authority is not None:
            self._authority.unlink(missing_ok=True)


def _span_of(context: Context) -> trace.SpanContext:
    return trace.get_current_span(context).get_span_context()


def _resource() -> Resource:
    """Who makes the spans; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are read too."""
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: "koordgate"}
    return Resource.create(
        {**named, "service.version": version("koordgate"), "service.instance.id": socket.gethostname()}
    )


def _file(authority: str) -> Path:
    """Write a certificate to a file of its own: the exporter reads it from there."""
    with tempfile.NamedTemporaryFile("w", prefix="koordgate-", suffix=".pem", delete=False) as file:
        file.write(authority)
    return Path(file.name)
