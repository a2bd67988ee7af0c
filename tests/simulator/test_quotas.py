"""The API server's plugin ResourceQuota by itself: what quotas limit, which Pods they count, and what is said."""

from typing import Any

import pytest
from builders import container, pod

from allocator.vocabulary.devicetype import BUILT_IN
from console.simulator.apiserver import QuotaPlugin
from webhook.quotas.mirror import MIRROR_LABEL, written_names
from webhook.quotas.table import LimitTable, QuotaFeed

Raw = dict[str, Any]


def quota(name: str, hard: Raw | None = None, *, labels: Raw | None = None, **spec: Any) -> Raw:
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "labels": labels or {}}
    return {"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard, **spec}}


def plugin(*quotas: Raw, mirrors: bool = True) -> QuotaPlugin:
    table = LimitTable(BUILT_IN)
    feed, made = QuotaFeed(table), QuotaPlugin(table, written_names(BUILT_IN, "kubernetes.io"), mirrors)
    for one in quotas:
        feed.put(one)
        assert list(made.put_quota(one)) == []
    return made


def asks(name: str = "p", requests: Raw | None = None, limits: Raw | None = None, **spec: Any) -> Raw:
    return pod(container(requests=requests, limits=limits), name=name, uid=name, **spec)


def refused(key: str, asked: str, used: str, most: str, of: str = "q") -> str:
    return f"exceeded quota: {of}, requested: {key}={asked}, used: {key}={used}, limited: {key}={most}"


CPU = {"cpu": "1", "memory": "1Gi"}

# The limits -> what the first Pod has, what the second asks for, and why that is refused.
LIMITS: dict[str, tuple[Raw | None, Raw, Raw, str]] = {
    "no limits": (None, CPU, CPU, ""),
    "up to the last thousandth": ({"cpu": "2500m"}, {"cpu": "1"}, {"cpu": "1500m"}, ""),
    "a thousandth more": (
        {"cpu": "2500m"},
        {"cpu": "1"},
        {"cpu": "1501m"},
        refused("cpu", "1501m", "1", "2500m"),
    ),
    "requests of CPU": ({"requests.cpu": "1"}, CPU, CPU, refused("requests.cpu", "1", "1", "1")),
    "limits of CPU": ({"limits.cpu": "1"}, CPU, CPU, refused("limits.cpu", "1", "1", "1")),
    "memory": ({"memory": "1Gi"}, CPU, CPU, refused("memory", "1073741824", "1073741824", "1073741824")),
    "huge pages by either name": (
        {"requests.hugepages-2Mi": "9Mi", "hugepages-2Mi": "4Mi"},
        {"hugepages-2Mi": "4Mi"},
        {"hugepages-2Mi": "2Mi"},
        refused("hugepages-2Mi", "2097152", "4194304", "4194304"),
    ),
    "limits of huge pages": (
        {"limits.hugepages-2Mi": "4Mi"},
        {"hugepages-2Mi": "4Mi"},
        {"hugepages-2Mi": "2Mi"},
        refused("limits.hugepages-2Mi", "2097152", "4194304", "4194304"),
    ),
    "what comes before Pods and after them": (
        {"requests.a.example.com/x": "9", "requests.z.example.com/x": "1", "limits.z.example.com/x": "0"},
        {"z.example.com/x": "1", "a.example.com/x": "2"},
        {"z.example.com/x": "1", "a.example.com/x": "2"},
        refused("limits.z.example.com/x", "1", "1", "0"),
    ),
    "the first of several by name": (
        {"requests.z.example.com/x": "0", "requests.a.example.com/x": "1"},
        {"a.example.com/x": "1"},
        {"z.example.com/x": "1", "a.example.com/x": "1"},
        refused("requests.a.example.com/x", "1", "1", "1"),
    ),
    "no plain name of an extended resource": ({"z.example.com/x": "0"}, {}, {"z.example.com/x": "1"}, ""),
    "Pods by either name": ({"count/pods": "1", "pods": "2"}, {}, {}, refused("count/pods", "1", "1", "1")),
    "Pods are neither requested nor limited": ({"requests.pods": "0", "limits.pods": "0"}, CPU, CPU, ""),
    "other objects": ({"services": "0", "count/services": "0"}, CPU, CPU, ""),
    "what it does not ask for": ({"requests.z.example.com/x": "0"}, {"z.example.com/x": "5"}, CPU, ""),
    "nothing is used": ({"cpu": "1"}, {"cpu": "0"}, CPU, ""),
}


@pytest.mark.parametrize(("hard", "first", "second", "why"), LIMITS.values(), ids=LIMITS)
def test_a_pod_is_created_up_to_the_limit_and_refused_beyond(
    hard: Raw | None, first: Raw, second: Raw, why: str
) -> None:
    made = plugin(quota("q", hard))
    made.put(asks("first", first, first), ended=False)
    assert made.refusal(asks("second", second, second)) == why


STATED = {"limits": {"cpu": "1"}, "requests": {"cpu": "1", "memory": "1Gi"}}
UNSTATED: dict[str, tuple[Raw, Raw, list[Raw], str]] = {
    "nothing must be": ({"requests.z.example.com/x": "9", "count/pods": "9", "pods": "9"}, {}, [{}], ""),
    "all is": ({"limits.cpu": "9", "requests.cpu": "9", "memory": "9Gi"}, {}, [STATED], ""),
    "by one of several containers": (
        {"count/pods": "9", "cpu": "9", "limits.cpu": "9", "limits.memory": "9Gi"},
        {},
        [STATED, {"requests": {"cpu": "1"}}, STATED],
        "limits.cpu,limits.memory",
    ),
    "by the Pod as a whole": (
        {"limits.cpu": "9", "requests.cpu": "9", "requests.memory": "9Gi"},
        {"resources": {"requests": {"cpu": "1"}}},
        [STATED, {}],
        "limits.cpu,requests.memory",
    ),
}


@pytest.mark.parametrize(("hard", "spec", "containers", "missing"), UNSTATED.values(), ids=UNSTATED)
def test_what_a_quota_limits_must_be_stated_by_each_container(
    hard: Raw, spec: Raw, containers: list[Raw], missing: str
) -> None:
    made = pod(*({"name": f"c{at}", "resources": one} for at, one in enumerate(containers)), **spec)
    expected = f"failed quota: q: must specify {missing}" if missing else ""
    assert plugin(quota("q", hard)).refusal(made) == expected


def test_the_first_scope_that_is_not_read_is_told_and_the_quota_is_not_used() -> None:
    made = plugin()
    scopes = ["VolumeAttributesClass", "Terminating", "CrossNamespacePodAffinity"]
    assert list(made.put_quota(quota("q", {"pods": "0"}, scopes=scopes))) == [
        "ResourceQuota default/q is not used: its scope CrossNamespacePodAffinity is not read here"
    ]
    assert made.refusal(asks(activeDeadlineSeconds=1)) == ""
    assert list(made.put_quota({"metadata": {"name": "empty", "namespace": "default"}})) == []
    assert made.refusal(asks()) == ""


@pytest.mark.parametrize(
    ("labels", "mirrors", "why"),
    [
        ({}, True, refused("requests.quota.koordgate.io/gpu", "50", "60", "100", "q.koordgate")),
        ({}, False, ""),
        ({MIRROR_LABEL: "true"}, True, ""),
        ({MIRROR_LABEL: "true"}, False, ""),
    ],
)
def test_a_quota_that_names_devices_has_a_mirror(labels: Raw, why: str, *, mirrors: bool) -> None:
    made = plugin(quota("q", {"requests.nvidia.com/gpu": "1"}, labels=labels), mirrors=mirrors)
    resource = "quota.koordgate.io/gpu"
    made.put(asks("first", {resource: "60"}), ended=False)
    assert made.refusal(asks("second", {resource: "40"})) == ""
    assert made.refusal(asks("third", {resource: "50"})) == why
