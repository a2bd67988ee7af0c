"""What watches koordgate: alerts, dashboard, monitors and the page about metrics name what the processes export."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from console.simulator.cluster import OfflineCluster
from localplane import chart
from localplane.admin import JsonObject
from localplane.binaries import Binaries
from reporter.metrics import ReporterMetrics

DOCS = Path(chart.__file__).parents[1] / "docs"
PAGE = DOCS / "operate" / "metrics.md"
_NAME = re.compile(r"\bkoordgate_[a-z_]+")


def exported() -> set[str]:
    """The names of all metrics, as they are queried."""
    families = [
        family
        for metrics in (OfflineCluster.in_process().parts.metrics, ReporterMetrics())
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


def test_the_page_lists_every_metric_with_its_labels_and_every_alert(rules: list[JsonObject]) -> None:
    text = PAGE.read_text()
    listed = re.findall(r"^\| `(koordgate_[a-z_]+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(exported())
    assert re.findall(r"^\| `(Koordgate[A-Za-z]+)` \|", text, re.MULTILINE) == [rule["alert"] for rule in rules]
    assert "| `koordgate_pods_waiting` | gauge | `answer` | " in text
    assert all(f"| {rule['labels']['severity']} | {rule['annotations']['summary']} (" in text for rule in rules)


def test_what_is_written_from_the_code_is_current() -> None:
    command = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def queried(name: str) -> set[str]:
    """The metrics that a name in a query may mean: the series of a histogram are named after it."""
    return {name, re.sub(r"_(bucket|sum|count)$", "", name)}


def names(query: str) -> Iterator[str]:
    """The names of metrics in a query, without those of our labels' values."""
    yield from _NAME.findall(re.sub(r'"[^"]*"', "", query))


def test_every_query_of_the_page_asks_for_metrics_that_exist() -> None:
    section = PAGE.read_text().partition("## Questions")[2].partition("\n## ")[0]
    queries = re.findall(r"\| `([^`]+)`", section)
    assert len(queries) == 11
    for query in queries:
        assert all(queried(name) & exported() for name in names(query)), query


@pytest.fixture(scope="module")
def watched(binaries: Binaries) -> dict[str, JsonObject]:
    values = {
        "monitors": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s"},
        "dashboard": {"enabled": True},
    }
    return {one["kind"] + one["metadata"]["name"]: one for one in chart.render(binaries, values)}


def test_every_panel_asks_for_metrics_that_exist(watched: dict[str, JsonObject]) -> None:
    found = watched["ConfigMapkoordgate-dashboard"]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    board = json.loads(found["data"]["koordgate.json"])
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len(panels) > 10
    for panel in panels:
        for target in panel["targets"]:
            asked = list(names(target["expr"]))
            assert asked
            assert all(queried(name) & exported() for name in asked), panel["title"]


def test_no_two_panels_of_the_dashboard_overlap(watched: dict[str, JsonObject]) -> None:
    board = json.loads(watched["ConfigMapkoordgate-dashboard"]["data"]["koordgate.json"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_prometheus_is_told_where_both_processes_serve_their_metrics(watched: dict[str, JsonObject]) -> None:
    service, monitor = watched["Servicekoordgate"], watched["ServiceMonitorkoordgate"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["tlsConfig"]["serverName"] == f"koordgate.{service['metadata']['namespace']}.svc"
    assert endpoint["interval"] == "15s"
    pods, reporter = watched["DaemonSetkoordgate-reporter"], watched["PodMonitorkoordgate-reporter"]
    labels = pods["spec"]["template"]["metadata"]["labels"]
    assert reporter["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    (endpoint,) = reporter["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in container["ports"]}


@pytest.mark.parametrize(
    ("monitor", "endpoints", "labelled"),
    [
        pytest.param("ServiceMonitorkoordgate", "endpoints", "koordgate_quota_used", id="webhook"),
        pytest.param(
            "PodMonitorkoordgate-reporter", "podMetricsEndpoints", "koordgate_reporter_pod_allocated", id="reporter"
        ),
    ],
)
def test_the_namespace_that_a_metric_names_is_not_replaced_by_koordgates_own(
    monitor: str, endpoints: str, labelled: str, watched: dict[str, JsonObject]
) -> None:
    (row,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{labelled}` |"))
    assert "`namespace`" in row.split("|")[3]
    (endpoint,) = watched[monitor]["spec"][endpoints]
    assert endpoint["honorLabels"] is True


def test_nothing_of_it_is_installed_without_being_asked_for(binaries: Binaries) -> None:
    kinds = {one["kind"] for one in chart.render(binaries)}
    names_ = {one["metadata"]["name"] for one in chart.render(binaries)}
    assert not kinds & {"PrometheusRule", "ServiceMonitor", "PodMonitor"}
    assert "koordgate-dashboard" not in names_
