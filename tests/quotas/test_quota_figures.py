"""Quotas as metrics: what limits Pods for devices, how much of it is used, and no more series than a scrape bears."""

from typing import Any

from prometheus_client import CollectorRegistry

from allocator.vocabulary.devicetype import BUILT_IN
from webhook.quotas.figures import QuotaFigures
from webhook.quotas.table import LimitTable, QuotaFeed

Raw = dict[str, Any]
Series = dict[tuple[str, str, str], float]


def quota(namespace: str, name: str, hard: Raw, used: Raw | None = None, *, mirror: bool = False) -> Raw:
    metadata: Raw = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7"}
    if mirror:
        metadata["labels"] = {"quota.koordgate.io/mirror": "true"}
    return {"metadata": metadata, "spec": {"hard": hard}, "status": {"used": used or {}}}


def shown(*quotas: Raw) -> tuple[Series, Series]:
    """The series of both metrics, by namespace, quota and resource."""
    table = LimitTable(BUILT_IN)
    feed = QuotaFeed(table)
    for one in quotas:
        feed.there(one)
    registry = CollectorRegistry()
    registry.register(QuotaFigures(table))
    hard, used = (
        {
            (one.labels["namespace"], one.labels["quota"], one.labels["resource"]): one.value
            for family in registry.collect()
            if family.name == name
            for one in family.samples
        }
        for name in ("koordgate_quota_hard", "koordgate_quota_used")
    )
    return hard, used


def test_a_quota_of_ones_own_and_a_mirror_show_what_they_limit_and_count() -> None:
    hard, used = shown(
        quota(
            "team-b",
            "own",
            {
                "requests.quota.koordgate.io/gpu": "800",
                "requests.quota.koordgate.io/cpus": "1500m",
                "requests.quota.koordgate.io/gpu-memory": "2Ki",
                "requests.cpu": "9",
            },
            {"requests.quota.koordgate.io/gpu": "150", "requests.cpu": "3"},
        ),
        quota("team-a", "cards", {"requests.nvidia.com/gpu": "4"}, {"requests.nvidia.com/gpu": "1"}),
        quota("team-a", "cards.koordgate", {"requests.quota.koordgate.io/gpu": "300"}, mirror=True),
        quota("team-c", "plain", {"requests.cpu": "9"}),
    )
    assert hard == {
        ("team-a", "cards.koordgate", "gpu"): 300,
        ("team-b", "own", "cpus"): 1.5,
        ("team-b", "own", "gpu"): 800,
        ("team-b", "own", "gpu-memory"): 2048,
    }
    assert used == {key: 150 if key == ("team-b", "own", "gpu") else 0 for key in hard}


def test_an_amount_that_is_no_quantity_is_left_out_and_hides_no_other() -> None:
    gpu, core = "requests.quota.koordgate.io/gpu", "requests.quota.koordgate.io/gpu-core"
    hard, used = shown(quota("team", "q", {gpu: "many", core: "100"}, {core: "some"}))
    assert (hard, used) == ({("team", "q", "gpu-core"): 100}, {("team", "q", "gpu-core"): 0})


def test_a_quota_that_is_gone_is_shown_no_more() -> None:
    table = LimitTable(BUILT_IN)
    feed = QuotaFeed(table)
    feed.there(quota("team", "q", {"requests.quota.koordgate.io/gpu": "100"}))
    feed.gone("team", "q")
    assert [family.samples for family in QuotaFigures(table).collect()] == [[], []]


def test_at_most_a_thousand_series_of_each_are_shown_the_first_by_name() -> None:
    limit = {"requests.quota.koordgate.io/gpu": "100"}
    hard, used = shown(*(quota("team", f"q{number:04}", limit) for number in reversed(range(1_005))))
    assert sorted(hard) == sorted(used) == [("team", f"q{number:04}", "gpu") for number in range(1_000)]
