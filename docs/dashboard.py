"""The Grafana dashboard of the chart, from a short table of its panels (pure)."""

import json
from dataclasses import dataclass
from typing import Any, Final

_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_WIDE: Final = 24  # columns of Grafana's grid
_HIGH: Final = 8
_CARDS: Final = 'type="gpu", model=~"$model"'
_OWN: Final = 'type="gpu"'
# A quantile of nothing is NaN, which no comparison lets pass: `>= 0` leaves out paths that nobody calls.


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: of the panel.
        queries: legend -> query.
        unit: Grafana's name of the unit.
        kind: timeseries, stat, bargauge or table.
        columns: of 24, that it is wide.
        text: what it says, and what to do.
    """

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    columns: int = 8
    text: str = ""


def _share(what: str, resource: str) -> str:
    of = f'{{{_CARDS}, resource="{resource}"}}'
    return f"sum(max by (model) (koordgate_{what}{of})) / sum(max by (model) (koordgate_capacity{of}))"


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Now": (
        Panel("Compute given", {"given": _share("allocated", "gpu-core")}, "percentunit", "stat", 4),
        Panel("Memory given", {"given": _share("allocated", "gpu-memory-ratio")}, "percentunit", "stat", 4),
        Panel(
            "Cards",
            {"{{state}}": f"sum by (state) (max by (model, state) (koordgate_devices{{{_CARDS}}}))"},
            kind="bargauge",
            columns=6,
            text="idle: nobody holds any; shared: something is free; full: nothing fits; unusable: out of service.",
        ),
        Panel(
            "Pods that wait",
            {
                "{{answer}}": 'max by (answer) (koordgate_pods_waiting{answer!="unasked"})',
                "unasked": 'min(koordgate_pods_waiting{answer="unasked"})',
            },
            kind="bargauge",
            columns=6,
            text="full: they fit once others leave; impossible: no node could hold them; gang: their gang lacks room. "
            "A replica knows only what it answered itself: unasked are those that no replica was asked about.",
        ),
        Panel("Replicas ready", {"ready": "sum(koordgate_ready)"}, kind="stat", columns=4),
    ),
    "Capacity": (
        Panel(
            "Compute by model",
            {
                "{{model}} given": f'max by (model) (koordgate_allocated{{{_CARDS}, resource="gpu-core"}}) / 100',
                "{{model}} there": f'max by (model) (koordgate_capacity{{{_CARDS}, resource="gpu-core"}}) / 100',
            },
            columns=12,
            text="In whole cards.",
        ),
        Panel(
            "Cards by state",
            {"{{state}}": f"sum by (state) (max by (model, state) (koordgate_devices{{{_CARDS}}}))"},
            columns=12,
        ),
    ),
    "Free and of use": (
        Panel(
            "Free cards by what they are worth",
            {"{{worth}}": f"sum by (worth) (max by (model, worth) (koordgate_free_devices{{{_CARDS}}}))"},
            columns=12,
            text="In whole cards, for typical Pods. node_short: their node lacks CPU or memory, see headroom; "
            "remainder: too little is left of the cards, or they are of another model.",
        ),
        Panel(
            "Free and of no use, by model",
            {
                "{{model}}": "sum by (model) (max by (model, worth) "
                f'(koordgate_free_devices{{{_CARDS}, worth!="useful"}}))'
            },
            columns=6,
            text="In whole cards.",
        ),
        Panel(
            "Nodes that are short of CPU or memory",
            {"tainted": "max(koordgate_headroom_nodes)"},
            columns=6,
            text="They have the taint koordgate.io/headroom (headroom.mode).",
        ),
    ),
    "Given and used": (
        Panel(
            "Cards that are given and idle for an hour",
            {
                "{{node}} {{id}}": f"min_over_time(koordgate_reporter_device_pods{{{_OWN}}}[1h]) > 0 and on (id) "
                f"max_over_time(koordgate_reporter_device_busy_ratio{{{_OWN}}}[1h]) < 0.01"
            },
            kind="table",
            columns=12,
            text="Somebody held them all the time and no kernel ran; the value is the number of Pods. Ask who holds "
            "them: reporter.metrics.pods names the Pods. Cards that are watched for less than an hour count too.",
        ),
        Panel(
            "Busy cards, mean of those that are given",
            {
                "busy": f"avg(koordgate_reporter_device_busy_ratio{{{_OWN}}} and on (id) "
                f"koordgate_reporter_device_pods{{{_OWN}}} > 0)"
            },
            "percentunit",
            columns=6,
        ),
        Panel(
            "Memory used of memory given",
            {
                "used": f"sum(koordgate_reporter_device_memory_used_bytes{{{_OWN}}} and on (id) "
                f"koordgate_reporter_device_pods{{{_OWN}}} > 0) / "
                f'sum(koordgate_reporter_device_allocated{{{_OWN}, resource="gpu-memory"}})'
            },
            "percentunit",
            columns=6,
            text="Of the cards that are given; what the driver uses itself is among it.",
        ),
        Panel(
            "Memory that a Pod uses of what it holds",
            {
                "{{namespace}}/{{pod}}": "sum by (namespace, pod) (koordgate_reporter_pod_memory_used_bytes) / "
                'sum by (namespace, pod) (koordgate_reporter_pod_allocated{type="gpu", resource="gpu-memory"})'
            },
            "percentunit",
            columns=24,
            text="Only with reporter.metrics.pods. Above 100 %: the Pod uses more than its share.",
        ),
    ),
    "Pods": (
        Panel(
            "From the first sight of a Pod to its bind",
            {
                f"{part:.0%}": f"histogram_quantile({part}, sum by (le) (rate(koordgate_bind_wait_seconds_bucket[5m])))"
                " >= 0"
                for part in (0.5, 0.95)
            },
            "s",
        ),
        Panel(
            "Answers to kube-scheduler",
            {"{{answer}}": "sum by (answer) (rate(koordgate_filter_answers_total[5m]))"},
            "ops",
        ),
        Panel(
            "Requests that were denied or failed",
            {
                "{{path}} {{outcome}}": "sum by (path, outcome) "
                '(rate(koordgate_requests_total{outcome=~"denied|errored|bad"}[5m])) > 0'
            },
            "ops",
        ),
        Panel(
            "Refusals by reason",
            {"{{path}} {{reason}}": "sum by (path, reason) (rate(koordgate_refusals_total[5m])) > 0"},
            "ops",
            columns=12,
            text="docs/operate/metrics.md says what each reason means.",
        ),
        Panel(
            "Quotas, used of what they limit",
            {
                "{{namespace}} {{resource}}": "topk(12, max by (namespace, resource) "
                "(koordgate_quota_used / (koordgate_quota_hard > 0)))"
            },
            "percentunit",
            "bargauge",
            columns=12,
            text="The fullest twelve. Of several quotas of a namespace, the one of which the largest part is used.",
        ),
    ),
    "Health": (
        Panel(
            "Time to answer, 99 %",
            {
                "{{path}}": "histogram_quantile(0.99, sum by (path, le) "
                "(rate(koordgate_request_seconds_bucket[5m]))) >= 0"
            },
            "s",
        ),
        Panel(
            "Event loop's greatest lag",
            {"{{pod}}": "koordgate_event_loop_worst_lag_seconds"},
            "s",
            text="All requests to the replica wait for so long.",
        ),
        Panel(
            "What is wrong",
            {
                "held twice": "max(koordgate_devices_held_twice)",
                "claimed too": "max(koordgate_devices_claimed_too)",
                "bound around": "max(koordgate_pods_bound_around)",
                "unreadable Pods": "max(koordgate_pods_unreadable)",
                "unreadable {{resource}}": "max by (resource) (koordgate_bad_objects) > 0",
                "mismatch: {{kind}}": "sum by (kind) (koordgate_reporter_mismatches) > 0",
                "reporters' problems": "sum(koordgate_reporter_problems)",
            },
            text="docs/operate/operations.md says what to do about each.",
        ),
        Panel(
            "Devices out of service",
            {
                "{{id}} {{reason}}": "koordgate_reporter_devices_unusable",
                "{{uuid}} {{reason}}": "koordgate_reporter_gpu_errors",
            },
            kind="table",
            columns=12,
        ),
        Panel(
            "The ledger",
            {
                "writes": "sum(rate(koordgate_ledger_writes_total[5m]))",
                "changes": "sum(rate(koordgate_ledger_changes_total[5m]))",
                "lost races": "sum(rate(koordgate_ledger_lost_races_total[5m]))",
            },
            "ops",
            columns=12,
        ),
    ),
}


def text() -> str:
    """Write the dashboard as Grafana imports it."""
    made = {
        "uid": "koordgate",
        "title": "koordgate",
        "tags": ["kubernetes", "gpu"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_source(), _model()]},
        "panels": _panels(),
    }
    return json.dumps(made, indent=1) + "\n"


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _model() -> dict[str, Any]:
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": _SOURCE,
        "query": 'label_values(koordgate_devices{type="gpu"}, model)',
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    down = 0
    for title, panels in ROWS.items():
        found.append(_at({"type": "row", "title": title, "collapsed": False, "panels": []}, 0, down, _WIDE, 1))
        down, across = down + 1, 0
        for panel in panels:
            if across + panel.columns > _WIDE:
                across, down = 0, down + _HIGH
            found.append(_at(_panel(panel), across, down, panel.columns, _HIGH))
            across += panel.columns
        down += _HIGH
    return [{"id": number, **panel} for number, panel in enumerate(found, 1)]


def _at(panel: dict[str, Any], x: int, y: int, w: int, h: int) -> dict[str, Any]:
    return {**panel, "gridPos": {"x": x, "y": y, "w": w, "h": h}}


def _panel(panel: Panel) -> dict[str, Any]:
    now = panel.kind in {"stat", "bargauge", "table"}
    targets = [
        {
            "refId": chr(ord("A") + number),
            "datasource": _SOURCE,
            "expr": query,
            "legendFormat": legend,
            "instant": now,
            "range": not now,
            **({"format": "table"} if panel.kind == "table" else {}),
        }
        for number, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
    }
