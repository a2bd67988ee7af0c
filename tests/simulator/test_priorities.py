"""The API server's plugin Priority by itself: what it writes into Pods, and which it refuses."""

from typing import Any

import pytest

from console.simulator.apiserver import Priorities

Raw = dict[str, Any]
GONE = "is forbidden: no PriorityClass with name gone was found"


def priority_class(name: str, **fields: Any) -> Raw:
    return {"kind": "PriorityClass", "metadata": {"name": name}, **fields}


CLASSES = [
    priority_class("first"),
    priority_class("plain", value=7),
    priority_class("patient", value=9, preemptionPolicy="Never"),
    priority_class("system-node-critical-of-ours", value=3),
]
# The classes and the Pod's spec -> what is written, and why it is refused.
WRITTEN: dict[str, tuple[list[Raw], Raw, Raw, str]] = {
    "a class": (
        CLASSES,
        {"priorityClassName": "plain", "priority": 5},
        {"priority": 7, "preemptionPolicy": "PreemptLowerPriority"},
        "",
    ),
    "a class that never preempts": (
        CLASSES,
        {"priorityClassName": "patient"},
        {"priority": 9, "preemptionPolicy": "Never"},
        "",
    ),
    "a class without a value": (
        CLASSES,
        {"priorityClassName": "first"},
        {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"},
        "",
    ),
    "Kubernetes' own": ([], {"priorityClassName": "system-cluster-critical"}, {"priority": 2_000_000_000}, ""),
    "Kubernetes' own of nodes": (
        CLASSES,
        {"priorityClassName": "system-node-critical"},
        {"priority": 2_000_001_000},
        "",
    ),
    "no class and no default": (CLASSES, {}, {}, ""),
    "no class at all": ([], {}, {}, ""),
    "the default of the lowest value": (
        [
            *CLASSES,
            priority_class("c", value=1, globalDefault=True),
            priority_class("b", value=0, globalDefault=True),
            priority_class("a", value=1, globalDefault=True),
        ],
        {},
        {"priorityClassName": "b", "priority": 0, "preemptionPolicy": "PreemptLowerPriority"},
        "",
    ),
    "a default without a value is 0": (
        [
            priority_class("a", value=1, globalDefault=True),
            priority_class("b", globalDefault=True),
            priority_class("c", value=0, globalDefault=True),
            priority_class("d", value=-1),
        ],
        {},
        {"priorityClassName": "b", "priority": 0, "preemptionPolicy": "PreemptLowerPriority"},
        "",
    ),
    "of equal defaults the first by name": (
        [
            priority_class("b", globalDefault=True),
            priority_class("a", value=0, globalDefault=True),
        ],
        {},
        {"priorityClassName": "a", "priority": 0, "preemptionPolicy": "PreemptLowerPriority"},
        "",
    ),
    "a priority of its own in place of the default": (
        [priority_class("a", value=1, globalDefault=True)],
        {"priority": 0},
        {},
        "",
    ),
    "a class that there is not": (CLASSES, {"priorityClassName": "gone"}, {}, f"Pod team/p {GONE}"),
    "a class that there is not, with its priority": (CLASSES, {"priorityClassName": "gone", "priority": 0}, {}, ""),
}


@pytest.mark.parametrize(("classes", "spec", "written", "why"), WRITTEN.values(), ids=WRITTEN)
def test_the_priority_of_its_class_is_written_into_a_pod(classes: list[Raw], spec: Raw, written: Raw, why: str) -> None:
    notes: list[str] = []
    plugin = Priorities(notes.append)
    for one in classes:
        plugin.put(one)
    pod = {"metadata": {"name": "p", "namespace": "team"}, "spec": dict(spec)}
    assert plugin.write(pod) == why
    assert pod["spec"] == {**spec, **written}
    assert notes == []


def test_without_any_class_each_that_is_named_is_told_once() -> None:
    notes: list[str] = []
    plugin = Priorities(notes.append)
    for name in ("a", "b", "a"):
        pod = {"metadata": {"name": "p"}, "spec": {"priorityClassName": name}}
        assert plugin.write(pod) == ""
        assert pod["spec"] == {"priorityClassName": name}
    assert notes == [f"PriorityClass {name} is not in the input: its Pods are given priority 0" for name in ("a", "b")]


def test_only_a_pod_that_states_no_priority_is_completed() -> None:
    plugin = Priorities(lambda _note: None)
    plugin.put(CLASSES[1])
    pods = [{"spec": {"priorityClassName": "plain", **given}} for given in ({}, {"priority": 0})]
    for pod in pods:
        plugin.complete(pod)
    assert [pod["spec"]["priority"] for pod in pods] == [7, 0]
