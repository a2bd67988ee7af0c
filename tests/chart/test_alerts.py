"""The chart's alerts, and the page about metrics: both name exactly what the two processes export."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reporter.metrics import ReporterMetrics
from webhook.localplane import chart
from webhook.localplane.admin import JsonObject
from webhook.localplane.binaries import Binaries
from webhook.metrics import WebhookMetrics

PAGE = Path(chart.__file__).parents[2] / "docs" / "metrics.md"
_NAME = re.compile(r"\bkoordgate_[a-z_]+")


def exported() -> set[str]:
    """The names of all metrics, as they are queried."""
    families = [
        family
        for metrics in (WebhookMetrics(), ReporterMetrics())
        for family in text_string_to_metric_families(metrics.exposition().decode())
    ]
    named = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    return {name for name in named if not name.endswith("_created")}  # the client's own: when a counter began


@pytest.fixture(scope="module")
def rules(binaries: Binaries) -> list[JsonObject]:
    objects = chart.render(binaries, {"alerts": {"enabled": True, "labels": {"release": "prometheus"}}})
    (found,) = (one for one in objects if one["kind"] == "PrometheusRule")
    assert found["metadata"]["labels"]["release"] == "prometheus"
    (group,) = found["spec"]["groups"]
    return list(group["rules"])


def test_alerts_ask_for_metrics_that_exist(rules: list[JsonObject]) -> None:
    for rule in rules:
        named = set(_NAME.findall(rule["expr"]))
        assert named
        assert named <= exported(), rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_the_page_explains_every_metric_and_every_alert(rules: list[JsonObject]) -> None:
    text = PAGE.read_text()
    assert set(_NAME.findall(text)) == exported()
    assert set(re.findall(r"`(Koordgate[A-Za-z]+)`", text)) == {rule["alert"] for rule in rules}
    for rule in rules:
        rows = [line for line in text.splitlines() if f"`{rule['alert']}`" in line]
        assert {name for line in rows for name in _NAME.findall(line.split("|")[1])} >= set(_NAME.findall(rule["expr"]))


def test_without_being_asked_for_no_rule_is_installed(binaries: Binaries) -> None:
    assert all(one["kind"] != "PrometheusRule" for one in chart.render(binaries))
