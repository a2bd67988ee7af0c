"""Metrics as a scraper reads them: OpenMetrics, which has exemplars, if it takes that, else Prometheus' text format."""

from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def expose(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Write all metrics of a registry.

    `accept`: the scraper's header `Accept`. The client's own reading of it fails on versions that are no numbers.
    Returns the body, and its content type.
    """
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    if "application/openmetrics-text" in kinds:
        return generate_openmetrics(registry), _OPENMETRICS  # type: ignore[no-untyped-call] # the library has none there
    return generate_latest(registry), _TEXT
