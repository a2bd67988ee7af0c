"""The Nodes of a DaemonSet, its Pods, and which Node such a Pod is for."""

from typing import Any

import pytest

from console.simulator.workloads import daemon_pod, nodes_of_daemon, of_another_node

Raw = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ADDED = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]


def named(*values: str, key: str = "metadata.name", operator: str = "In") -> Raw:
    return {"matchFields": [{"key": key, "operator": operator, "values": [*values]}]}


def required(*terms: Raw) -> Raw:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [*terms]}}}}


def test_a_pod_of_a_daemon_set_is_bound_to_its_node_and_tolerates_its_troubles() -> None:
    template = {"metadata": {"name": "t"}, "spec": {"containers": []}}
    made = daemon_pod(template, "n")
    assert made == {"metadata": {"name": "t"}, "spec": {"containers": [], "tolerations": ADDED, **required(named("n"))}}
    assert template == {"metadata": {"name": "t"}, "spec": {"containers": []}}


def test_the_nodes_are_those_that_it_selects_and_whose_taints_it_tolerates() -> None:
    def node(name: str, *taints: str, labels: Raw | None = None, effect: str = "NoSchedule") -> Raw:
        spec = {"taints": [{"key": key, "effect": effect} for key in taints]}
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}

    nodes = [
        node("z"),
        node("y", "gpu"),
        node("x", "node.kubernetes.io/unschedulable", "gpu"),
        node("w", "gpu", effect="PreferNoSchedule"),
        node("v", "gpu", effect="NoExecute"),
        node("u", "node.kubernetes.io/memory-pressure", labels={"zone": "a"}),
        node("t", "gpu", labels={"zone": "a"}),
        {"metadata": {"name": "s"}},
        {"metadata": {"name": "r"}, "spec": {"taints": None}},
    ]
    assert nodes_of_daemon({}, nodes) == ["r", "s", "u", "w", "z"]
    assert nodes_of_daemon({"nodeSelector": {"zone": "a"}}, nodes) == ["u"]
    gpu = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
    assert nodes_of_daemon(gpu, nodes) == ["r", "s", "t", "u", "v", "w", "x", "y", "z"]
    assert nodes_of_daemon({}, [node("a", "node.kubernetes.io/network-unavailable")]) == []
    assert nodes_of_daemon({"hostNetwork": True}, [node("a", "node.kubernetes.io/network-unavailable")]) == ["a"]


@pytest.mark.parametrize(
    ("owners", "spec", "other"),
    [
        ([{"kind": "DaemonSet", "controller": True}], required(named("n")), True),
        ([{"kind": "Job"}, {"kind": "DaemonSet", "controller": True}], required(named("n")), True),
        ([{"kind": "DaemonSet", "controller": True}], required(named("here")), False),
        ([{"kind": "DaemonSet", "controller": True}], {}, False),
        ([{"kind": "DaemonSet", "controller": True}], {**required(named("n")), "nodeName": "m"}, False),
        ([{"kind": "DaemonSet", "controller": False}], required(named("n")), False),
        ([{"kind": "CronJob", "controller": True}], required(named("n")), False),
        ([{"kind": "Job", "controller": True}], required(named("n")), False),
        ([], required(named("n")), False),
        (None, required(named("n")), False),
    ],
)
def test_a_pod_that_waits_for_another_node_is_a_daemon_sets(
    owners: list[Raw] | None, spec: Raw, *, other: bool
) -> None:
    assert of_another_node({"metadata": {"ownerReferences": owners}, "spec": spec}, "here") is other
