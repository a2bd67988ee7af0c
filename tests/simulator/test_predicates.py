"""The stand-in for kube-scheduler: Kubernetes' own rules, as tables."""

from typing import Any

import pytest

from console.simulator.scheduler import (
    allocatable,
    candidate,
    grouped,
    unready,
    why_not,
)

DEDICATED = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}
CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}

# (the Node's spec, the Pod's tolerations, why not)
TAINTS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str | None]] = {
    "no taint": ({}, [], None),
    "not tolerated": ({"taints": [DEDICATED]}, [], "the Pod does not tolerate the taint dedicated=gpu:NoSchedule"),
    "tolerated by value": ({"taints": [DEDICATED]}, [{"key": "dedicated", "value": "gpu"}], None),
    "another value": ({"taints": [DEDICATED]}, [{"key": "dedicated", "value": "cpu"}], "taint dedicated=gpu"),
    "tolerated whatever the value": ({"taints": [DEDICATED]}, [{"key": "dedicated", "operator": "Exists"}], None),
    "tolerated for another effect": (
        {"taints": [DEDICATED]},
        [{"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}],
        "taint dedicated=gpu",
    ),
    "everything tolerated": ({"taints": [DEDICATED]}, [{"operator": "Exists"}], None),
    "a key is needed for Equal": ({"taints": [{**DEDICATED, "value": ""}]}, [{"operator": "Equal"}], "taint dedicated"),
    "NoExecute": ({"taints": [{**DEDICATED, "effect": "NoExecute"}]}, [], "dedicated=gpu:NoExecute"),
    "PreferNoSchedule stops nobody": ({"taints": [{**DEDICATED, "effect": "PreferNoSchedule"}]}, [], None),
    "cordoned": ({"unschedulable": True}, [], "the node is cordoned"),
    "cordoned and tolerated": ({"unschedulable": True}, [CORDON], None),
}


@pytest.mark.parametrize("name", TAINTS)
def test_taints(name: str) -> None:
    spec, tolerations, told = TAINTS[name]
    node = candidate({"metadata": {"name": "node-1"}, "spec": spec}, {"pods": 1})
    why = why_not({"tolerations": tolerations}, {"pods": 1}, node, {})
    assert why is None if told is None else told in (why or "")


def test_capacity_counts_where_allocatable_is_missing() -> None:
    assert allocatable({"metadata": {"name": "a"}, "status": {"capacity": {"cpu": "2"}}}, ()) == {"cpu": 2000}


@pytest.mark.parametrize(
    ("name", "amount", "told"),
    [
        ("cpu", 2001, "2001m requested, 1 of 1 free"),
        ("cpu", 3000, "3 requested, 1 of 1 free"),
        ("a.example.com/x", 2048, "2048 requested, 1000 of 1000 free"),
        ("ephemeral-storage", 2048, "2048 bytes requested, 1000 bytes of 1000 bytes free"),
        ("kubernetes.io/gpu-memory", 2048, "2048 bytes requested, 1000 bytes of 1000 bytes free"),
    ],
)
def test_a_shortage_is_told_in_the_units_of_its_resource(name: str, amount: int, told: str) -> None:
    node = candidate({"metadata": {"name": "a"}}, {name: 1000})
    assert why_not({}, {name: amount}, node, {}) == f"not enough {name}: {told}"


def test_reasons_of_nodes_that_are_not_meant_for_the_pod_come_last() -> None:
    reasons = {
        "a": "the Pod does not tolerate the taint node-role.kubernetes.io/control-plane:NoSchedule",
        "b": "the node is cordoned (spec.unschedulable)",
        "c": "b: not enough cpu: 2 requested, 1 of 4 free",
    }
    assert [line.partition(":")[0] for line in grouped(reasons)] == ["c", "a", "b"]


def test_nodes_that_are_not_ready_and_have_no_taint_are_told_in_one_sentence() -> None:
    def node(name: str, status: str | None, *taints: str) -> dict[str, Any]:
        conditions = [{"type": kind, "status": "False"} for kind in ("Other", "SomethingElse")]
        conditions += [{"type": "Ready", "status": status}] if status is not None else []
        spec = {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}
        return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}}

    fine = [node("a", "True"), node("b", None), {"metadata": {"name": "c"}}]
    fine += [node("d", "False", "x", "node.kubernetes.io/not-ready")]
    fine += [node("e", "Unknown", "node.kubernetes.io/unreachable")]
    assert list(unready(fine)) == []
    taint = "without the taint node.kubernetes.io/not-ready: counted as taking Pods, because kube-scheduler looks at"
    (one,) = unready([*fine, node("f", "False", "x")])
    assert one.startswith(f"Node f is not Ready, {taint} taints alone")
    (several,) = unready([*fine, *(node(f"n{number:02}", "Unknown") for number in reversed(range(17)))])
    assert several.startswith(f"Nodes {', '.join(f'n{number:02}' for number in range(16))} and 1 more are not")
