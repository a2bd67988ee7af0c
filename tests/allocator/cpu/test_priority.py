"""A Pod's Koordinator priority class beside its QoS class: by label, by name, by the band of its priority."""

from typing import Any

import pytest
from builders import container, pod

from allocator.request.cpus import PRIORITY_CLASS_LABEL, QOS_LABEL, read_cpu_ask

CASES: dict[str, tuple[str, dict[str, str], dict[str, Any], str]] = {
    "no priority": ("LSR", {}, {}, ""),
    "prod": ("LSR", {}, {"priority": 9999}, ""),
    "mid, first of its band": ("LSR", {}, {"priority": 7000}, "spec.priority"),
    "mid, last of its band": ("LSE", {}, {"priority": 7999}, "spec.priority"),
    "above mid": ("LSR", {}, {"priority": 8000}, ""),
    "below mid": ("LSR", {}, {"priority": 6999}, ""),
    "batch": ("LSR", {}, {"priority": 5500}, "spec.priority"),
    "free": ("LSR", {}, {"priority": 3000, "priorityClassName": "mine"}, "spec.priority"),
    "a system priority": ("LSR", {}, {"priority": 2_000_000_000}, ""),
    "the label comes before the band": ("LSR", {PRIORITY_CLASS_LABEL: "koord-prod"}, {"priority": 5500}, ""),
    "the name comes before the band": ("LSR", {}, {"priority": 5500, "priorityClassName": "koord-prod"}, ""),
    "a name of its own": ("LSR", {}, {"priorityClassName": "mine", "priority": 100}, ""),
    "BE without a priority": ("BE", {}, {}, ""),
    "BE of batch": ("BE", {}, {"priority": 5500}, ""),
    "BE of prod, by band": ("BE", {}, {"priority": 9500}, "spec.priority"),
    "BE of prod, by name": ("BE", {}, {"priorityClassName": "koord-prod"}, "spec.priorityClassName"),
    "BE of prod, by label": ("BE", {PRIORITY_CLASS_LABEL: "koord-prod"}, {}, "metadata.labels"),
    "a label that names no class": ("LSR", {PRIORITY_CLASS_LABEL: "zzz"}, {}, "metadata.labels"),
    "BE of a label that names no class": ("BE", {PRIORITY_CLASS_LABEL: "zzz"}, {}, ""),
    "an empty label and a name": (
        "LSR",
        {PRIORITY_CLASS_LABEL: ""},
        {"priorityClassName": "koord-mid"},
        "spec.priorityClassName",
    ),
    "LS of any": ("LS", {}, {"priority": 5500}, ""),
}


@pytest.mark.parametrize(("qos", "labels", "spec", "path"), CASES.values(), ids=CASES)
def test_a_priority_that_contradicts_the_class_is_refused(
    qos: str, labels: dict[str, str], spec: dict[str, Any], path: str
) -> None:
    two = {"cpu": 2}
    reading = read_cpu_ask(pod(container(requests=two, limits=two), labels={QOS_LABEL: qos, **labels}, **spec))
    assert [problem.path.startswith(path) for problem in reading.problems] == ([True] if path else [])


@pytest.mark.parametrize(("qos", "first"), [("LSR", 7000), ("LSE", 5000), ("LSR", 3000), ("BE", 9000)])
def test_a_band_has_a_thousand_priorities(qos: str, first: int) -> None:
    two = {"cpu": 2}
    refused = [
        priority
        for priority in (first - 1, first, first + 999, first + 1000)
        if read_cpu_ask(pod(container(requests=two, limits=two), labels={QOS_LABEL: qos}, priority=priority)).problems
    ]
    assert refused == [first, first + 999]
