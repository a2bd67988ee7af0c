"""Each alert of the chart, tried by promtool: what it fires on, and what it does not."""

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_server import programs

from localplane import chart
from localplane.binaries import Binaries

JsonObject = dict[str, Any]


class Case(NamedTuple):
    """Series by name, in promtool's notation (a reading each minute), and whether the alert fires after so long.

    Attributes:
        alert: its name.
        series: name and labels -> readings.
        after: when it is asked, such as 5m.
        labels: of each alert that fires, beside the severity; none: it does not fire.
    """

    alert: str
    series: dict[str, str]
    after: str
    labels: tuple[dict[str, str], ...] = ()


FIRES: tuple[dict[str, str], ...] = ({},)
A, B = '{pod="a"}', '{pod="b"}'
REPORTER = 'up{job="gpu/koordgate-reporter",node="n1",pod="r"}'
DAY = 86_400
CASES = {
    "no replica is ready": Case(
        "KoordgateNotReady", {f"koordgate_ready{A}": "0x10", f"koordgate_ready{B}": "0x10"}, "3m", FIRES
    ),
    "nothing is scraped any more": Case("KoordgateNotReady", {f"koordgate_ready{A}": "1 1 stale"}, "6m", FIRES),
    "all replicas end again and again": Case(
        "KoordgateNotReady", {f"koordgate_ready{A}": "1 stale 0 stale 0 stale 0 stale"}, "6m", FIRES
    ),
    "one of two is ready": Case(
        "KoordgateNotReady", {f"koordgate_ready{A}": "0x10", f"koordgate_ready{B}": "1x10"}, "9m"
    ),
    "none is ready for a moment": Case("KoordgateNotReady", {f"koordgate_ready{A}": "1 1 0 1 1 1"}, "5m"),
    "the very first bug of a replica": Case(
        "KoordgateBug", {'koordgate_bugs_total{path="/mutate-pod"}': "_x5 1x30"}, "8m", ({"path": "/mutate-pod"},)
    ),
    "the very first bug of a reporter": Case(
        "KoordgateBug", {'koordgate_reporter_bugs_total{part="round"}': "_x5 1x30"}, "8m", ({"part": "round"},)
    ),
    "one more bug": Case("KoordgateBug", {'koordgate_bugs_total{path="p"}': "1x70 2x20"}, "80m", ({"path": "p"},)),
    "a bug of long ago": Case("KoordgateBug", {'koordgate_bugs_total{path="p"}': "1x200"}, "180m"),
    "the index contradicts": Case("KoordgateBug", {"koordgate_index_contradictions_total": "0x5 1x30"}, "8m", FIRES),
    "requests wait": Case(
        "KoordgateEventLoopHeld",
        {f"koordgate_event_loop_worst_lag_seconds{A}": "0.7x9", f"koordgate_event_loop_worst_lag_seconds{B}": "0x9"},
        "4m",
        ({"pod": "a"},),
    ),
    "requests waited once": Case("KoordgateEventLoopHeld", {"koordgate_event_loop_worst_lag_seconds": "0.7 0x9"}, "4m"),
    "searches end": Case(
        "KoordgateSearchesEnded", {'koordgate_searches_ended_total{reason="time"}': "0+12x40"}, "25m", FIRES
    ),
    "a search ended": Case(
        "KoordgateSearchesEnded", {'koordgate_searches_ended_total{reason="time"}': "0 1x40"}, "25m"
    ),
    "connections are closed": Case(
        "KoordgateConnectionsClosed", {'koordgate_connections_closed_total{port="webhooks"}': "0+900x30"}, "20m", FIRES
    ),
    "some connections are closed": Case(
        "KoordgateConnectionsClosed", {'koordgate_connections_closed_total{port="webhooks"}': "0+60x30"}, "20m"
    ),
    "the certificate ends": Case(
        "KoordgateCertificateExpires",
        {f"koordgate_certificate_not_after_seconds{A}": f"{5 * DAY}x70"},
        "65m",
        ({"pod": "a"},),
    ),
    "the certificate is new": Case(
        "KoordgateCertificateExpires", {f"koordgate_certificate_not_after_seconds{A}": f"{6 * DAY}x70"}, "65m"
    ),
    "the extender's authority ends": Case(
        "KoordgateExtenderAuthorityExpires",
        {"koordgate_extender_authority_not_after_seconds": f"{89 * DAY}x70"},
        "65m",
        FIRES,
    ),
    "the authority is from files": Case(
        "KoordgateExtenderAuthorityExpires", {"koordgate_extender_authority_not_after_seconds": "0x70"}, "65m"
    ),
    "the kubelet gave a card too": Case(
        "KoordgateDevicesHeldTwice", {"koordgate_devices_held_twice": "1x5"}, "2m", FIRES
    ),
    "DRA gave a card too": Case("KoordgateDevicesHeldTwice", {"koordgate_devices_claimed_too": "1x5"}, "2m", FIRES),
    "no card is held twice": Case(
        "KoordgateDevicesHeldTwice",
        {"koordgate_devices_held_twice": "0x5", "koordgate_devices_claimed_too": "0x5"},
        "5m",
    ),
    "a Pod was bound around": Case("KoordgatePodsBoundAround", {"koordgate_pods_bound_around": "1x9"}, "6m", FIRES),
    "a Pod was bound around and went": Case(
        "KoordgatePodsBoundAround", {"koordgate_pods_bound_around": "1 1 0x9"}, "6m"
    ),
    "a Pod is unreadable": Case("KoordgateUnreadable", {"koordgate_pods_unreadable": "1x9"}, "6m", FIRES),
    "a quota is unreadable": Case(
        "KoordgateUnreadable", {'koordgate_bad_objects{resource="quotas"}': "1x9"}, "6m", ({"resource": "quotas"},)
    ),
    "all is readable": Case(
        "KoordgateUnreadable",
        {"koordgate_pods_unreadable": "0x9", 'koordgate_bad_objects{resource="quotas"}': "0x9"},
        "9m",
    ),
    "watches of the webhook fail": Case(
        "KoordgateWatchFails",
        {'koordgate_watch_total{resource="pods",happening="error"}': "0+6x30"},
        "25m",
        ({"resource": "pods"},),
    ),
    "watches of many reporters fail": Case(
        "KoordgateWatchFails",
        {f'koordgate_reporter_watch_total{{resource="pods",happening="error",node="{n}"}}': "0+6x30" for n in range(6)},
        "25m",
        ({"resource": "pods"},),
    ),
    "watches begin anew": Case(
        "KoordgateWatchFails", {'koordgate_watch_total{resource="pods",happening="relist"}': "0+60x30"}, "25m"
    ),
    "a reporter is not reached": Case(
        "KoordgateReporterSilent",
        {REPORTER: "1x5 0x30", REPORTER.replace("n1", "n2"): "1x40"},
        "25m",
        ({"node": "n1"},),
    ),
    "a reporter ends again and again": Case(
        "KoordgateReporterSilent", {REPORTER: "0 0 0 1 0 0 0 1 0 0 0 1 0x20"}, "25m", ({"node": "n1"},)
    ),
    "a reporter does nothing": Case(
        "KoordgateReporterSilent",
        {REPORTER: "1x40", 'koordgate_reporter_rounds_total{node="n1"}': "0+6x10 60x40"},
        "35m",
        ({"node": "n1"},),
    ),
    "reporters report": Case(
        "KoordgateReporterSilent", {REPORTER: "1x40", 'koordgate_reporter_rounds_total{node="n1"}': "0+6x40"}, "35m"
    ),
    "a reporter was restarted": Case("KoordgateReporterSilent", {REPORTER: "1x10 0 0 1x40"}, "25m"),
    "a node was removed": Case("KoordgateReporterSilent", {REPORTER: "1x10 0x4 stale"}, "28m"),
    "another product's reporter": Case("KoordgateReporterSilent", {'up{job="gpu/other",node="n1"}': "0x40"}, "35m"),
    "a reporter has problems": Case(
        "KoordgateReporterProblems",
        {'koordgate_reporter_problems{node="n1"}': "2x30", 'koordgate_reporter_problems{node="n2"}': "0x30"},
        "20m",
        ({"node": "n1"},),
    ),
    "NVML does not answer": Case(
        "KoordgateReporterProblems", {'koordgate_reporter_nvml_up{node="n1"}': "0x30"}, "20m", ({"node": "n1"},)
    ),
    "NVML answers": Case(
        "KoordgateReporterProblems",
        {'koordgate_reporter_nvml_up{node="n1"}': "1x30", 'koordgate_reporter_problems{node="n1"}': "0x30"},
        "30m",
    ),
    "a NIC has no link": Case(
        "KoordgateDeviceUnusable",
        {'koordgate_reporter_devices_unusable{id="d",reason="LinkDown"}': "1x30"},
        "20m",
        ({"id": "d", "reason": "LinkDown"},),
    ),
    "a card has errors": Case(
        "KoordgateDeviceUnusable",
        {'koordgate_reporter_gpu_errors{uuid="u",reason="Xid79"}': "1x30"},
        "20m",
        ({"uuid": "u", "reason": "Xid79"},),
    ),
    "a card recovered": Case(
        "KoordgateDeviceUnusable", {'koordgate_reporter_gpu_errors{uuid="u",reason="Xid79"}': "1x9 stale"}, "20m"
    ),
    "a Pod has another card": Case(
        "KoordgateMismatch",
        {'koordgate_reporter_mismatches{kind="device",node="n1"}': "1x9"},
        "6m",
        ({"kind": "device", "node": "n1"},),
    ),
    "Pods have what they were given": Case(
        "KoordgateMismatch", {'koordgate_reporter_mismatches{kind="device",node="n1"}': "0x9"}, "9m"
    ),
    "a record was edited by hand": Case(
        "KoordgateDeviceTroubles",
        {
            'koordgate_device_troubles{pod="a",reason="AllocationDisputed"}': "1x30",
            'koordgate_device_troubles{pod="b",reason="AllocationDisputed"}': "1x30",
            'koordgate_device_troubles{pod="a",reason="DeviceVanished"}': "0x30",
        },
        "9m",
        ({"reason": "AllocationDisputed"},),
    ),
    "a record was corrected soon": Case(
        "KoordgateDeviceTroubles", {'koordgate_device_troubles{reason="AllocationDisputed"}': "1x3 0x30"}, "9m"
    ),
    "Pods of other products contradict": Case(
        "KoordgateAdoptionConflicts",
        {'koordgate_adoption_conflicts{kind="twice"}': "1x30"},
        "20m",
        ({"kind": "twice"},),
    ),
    "no conflict": Case("KoordgateAdoptionConflicts", {'koordgate_adoption_conflicts{kind="twice"}': "0x30"}, "20m"),
    "the collector refuses spans": Case(
        "KoordgateSpansLost", {'koordgate_spans_total{outcome="failed"}': "0+60x60"}, "45m", FIRES
    ),
    "the collector takes spans": Case(
        "KoordgateSpansLost", {'koordgate_spans_total{outcome="exported"}': "0+60x60"}, "45m"
    ),
    "an environment names a card": Case(
        "KoordgateCardsClaimed", {'koordgate_reporter_card_claims{node="n1"}': "1x30"}, "20m", ({"node": "n1"},)
    ),
    "no environment names a card": Case(
        "KoordgateCardsClaimed", {'koordgate_reporter_card_claims{node="n1"}': "0x30"}, "20m"
    ),
    "a container lacks its limit": Case(
        "KoordgateLimitMissing",
        {'koordgate_reporter_memory_limits{node="n1",state="missing"}': "1x30"},
        "20m",
        ({"node": "n1"},),
    ),
    "containers have their limits, or need none": Case(
        "KoordgateLimitMissing",
        {
            f'koordgate_reporter_memory_limits{{node="n1",state="{state}"}}': "3x30"
            for state in ("enforced", "accounting")
        },
        "20m",
    ),
}


@pytest.fixture(scope="module")
def rules(binaries: Binaries) -> JsonObject:
    found: JsonObject = chart.find(
        chart.render(binaries, {"alerts": {"enabled": True}}), "PrometheusRule", "koordgate"
    )["spec"]
    return found


def tried(folder: Path, rules: JsonObject, cases: dict[str, Case]) -> subprocess.CompletedProcess[str]:
    stated = {rule["alert"]: rule for rule in rules["groups"][0]["rules"]}
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
            "alert_rule_test": [
                {
                    "eval_time": case.after,
                    "alertname": case.alert,
                    "exp_alerts": [
                        {
                            "exp_labels": {**stated[case.alert]["labels"], **labels},
                            "exp_annotations": stated[case.alert]["annotations"],
                        }
                        for labels in case.labels
                    ],
                }
            ],
        }
        for name, case in cases.items()
    ]
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    (folder / "tests.yml").write_text(
        json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests})
    )
    command = (str(programs().tool), "test", "rules", "tests.yml")
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_alerts_fire_on_what_they_tell_and_on_nothing_else(rules: JsonObject, tmp_path: Path) -> None:
    done = tried(tmp_path, rules, CASES)
    assert done.returncode == 0, done.stderr


def test_every_alert_is_tried_with_what_it_fires_on_and_what_it_does_not(rules: JsonObject) -> None:
    stated = {rule["alert"] for rule in rules["groups"][0]["rules"]}
    assert {case.alert for case in CASES.values() if case.labels} == stated
    assert {case.alert for case in CASES.values() if not case.labels} == stated


def test_the_rules_are_as_prometheus_wants_them(rules: JsonObject, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    command = (str(programs().tool), "check", "rules", "--lint=all", "--lint-fatal", "rules.yml")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
