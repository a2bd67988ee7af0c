"""Opens the tracing that settings ask for. OpenTelemetry is loaded only then."""

import importlib

from koordgate.settings import SettingsError
from webhook.metrics import WebhookMetrics
from webhook.settings import TracingSettings
from webhook.tracing import OFF, Tracing


def opened(settings: TracingSettings, metrics: WebhookMetrics) -> Tracing:
    """Open the tracing that settings ask for."""
    if not settings.endpoint:
        return OFF
    check(settings)
    made: Tracing = importlib.import_module("webhook.otlp").OtlpTracing(
        settings, lambda outcome, spans: metrics.spans.labels(outcome).inc(spans)
    )
    return made


def check(settings: TracingSettings) -> None:
    """Check that what traces need is installed, or raise SettingsError."""
    if not settings.endpoint:
        return
    try:
        importlib.import_module("webhook.otlp")
    except ImportError as error:
        raise SettingsError(
            f"tracing.endpoint is set, and OpenTelemetry is not installed ({error}): install koordgate with it "
            '(pip install "koordgate[tracing]"; koordgate\'s image has it), or leave tracing.endpoint empty'
        ) from error
