"""Metrics, in the format that the scraper takes."""

import pytest
from prometheus_client import CollectorRegistry, Counter

from koordgate.serving import expose

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
