"""Opens the tracing that settings ask for; OpenTelemetry is imported only then."""

import importlib

from koordgate.settings import SettingsError
from webhook.metrics import WebhookMetrics
from webhook.tracing import OFF, Tracing
from webhook.tracingsettings import TracingSettings


def opened(settings: TracingSettings, metrics: WebhookMetrics) -> Tracing:
    """Open the tracing; what is off costs nothing.

    Args:
        settings: of traces.
        metrics: count the spans.

    Raises:
        SettingsError: as for `check`.
    """
    if not settings.endpoint:
        return OFF
    check(settings)
    made: Tracing = importlib.import_module("webhook.otlp").OtlpTracing(
        settings, lambda outcome, spans: metrics.spans.labels(outcome).inc(spans)
    )
    return made


def check(settings: TracingSettings) -> None:
    """Check that what traces need is installed.

    Raises:
        SettingsError: it is not; the message says how to install it.
    """
    if not settings.endpoint:
        return
    try:
        importlib.import_module("webhook.otlp")
    except ImportError as error:
        raise SettingsError(
            f"tracing.endpoint is set, and OpenTelemetry is not installed ({error}): install koordgate with it "
            '(pip install "koordgate[tracing]"; koordgate\'s image has it), or leave tracing.endpoint empty'
        ) from error
