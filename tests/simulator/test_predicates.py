"""The stand-in for kube-scheduler: Kubernetes' own rules, as tables."""

from typing import Any

import pytest
from builders import container, device_entry, device_object, pod_spec, sidecar_container
from simulator.clusters import nic

from allocator.amounts import BadQuantityError, pod_amounts
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.wire.deviceobject import read_device_object
from console.simulator.scheduler import (
    NodeCandidate,
    allocatable,
    best,
    candidate,
    closed_to_some,
    grouped,
    managed,
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


# (init containers as (cpu, is a sidecar), containers' cpu, what counts)
CPU: dict[str, tuple[list[tuple[str, bool]], list[str], int]] = {
    "containers add up": ([], ["1", "500m"], 1500),
    "the largest init container": ([("3", False), ("2", False)], ["1"], 3000),
    "containers outweigh it": ([("1", False)], ["1", "1"], 2000),
    "a sidecar runs beside containers": ([("1", True)], ["2"], 3000),
    "a sidecar runs beside later init containers": ([("1", True), ("3", False)], ["1"], 4000),
    "but not beside earlier ones": ([("3", False), ("1", True)], ["1"], 3000),
    "fractions round up": ([], ["0.1m"], 1),
}


@pytest.mark.parametrize("name", CPU)
def test_a_pods_sum_is_its_peak(name: str) -> None:
    first, apps, expected = CPU[name]
    made = [
        (sidecar_container if sidecar else container)(f"init-{n}", requests={"cpu": cpu})
        for n, (cpu, sidecar) in enumerate(first)
    ]
    spec = pod_spec(*(container(f"app-{n}", requests={"cpu": cpu}) for n, cpu in enumerate(apps)), init=made)
    assert pod_amounts(spec) == {"cpu": expected, "pods": 1}


def test_overhead_and_what_the_pod_as_a_whole_states() -> None:
    spec = pod_spec(
        container(requests={"cpu": "1", "memory": "1Gi", "example.com/a": "2"}),
        resources={"requests": {"cpu": "4", "example.com/a": "9"}},
        overhead={"memory": "1Mi"},
    )
    assert pod_amounts(spec) == {"cpu": 4000, "memory": 2**30 + 2**20, "example.com/a": 2, "pods": 1}


def test_an_amount_that_is_none_is_named() -> None:
    with pytest.raises(BadQuantityError, match=r"spec.containers\[0\].resources.requests\[cpu\]: 'x' is not"):
        pod_amounts(pod_spec(container(requests={"cpu": "x"})))


def test_devices_that_the_node_does_not_state_are_those_of_its_device_object() -> None:
    devices = read_device_object(device_object(device_entry(0), device_entry(1, health=False), device_entry(2)))
    stated = {"status": {"allocatable": {"kubernetes.io/gpu-core": "150"}}, "metadata": {"name": "node-1"}}
    has = allocatable(stated, devices.devices)
    assert has["kubernetes.io/gpu-core"] == 150
    assert has["koordinator.sh/gpu-core"] == 200  # the unhealthy one does not count
    assert has["kubernetes.io/gpu-memory"] == 160 * 2**30
    assert has["nvidia.com/gpu"] == 2
    assert "cpu" not in has


def test_nics_count_under_every_name_and_own_types_under_none() -> None:
    types = BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)])
    queue = {"type": "queue", "id": "fast", "health": True, "resources": {"example.com/queue": 9}}
    devices = read_device_object(device_object(nic(0), nic(1), nic(2, health=False), queue), types)
    has = allocatable({"metadata": {"name": "node-1"}}, devices.devices)
    assert has == {"kubernetes.io/rdma": 200, "koordinator.sh/rdma": 200}
    assert managed(types) == {"example.com/queue"}
    assert managed(BUILT_IN) == frozenset()


def test_capacity_counts_where_allocatable_is_missing() -> None:
    assert allocatable({"metadata": {"name": "a"}, "status": {"capacity": {"cpu": "2"}}}, ()) == {"cpu": 2000}


def test_a_shortage_says_what_is_asked_and_what_is_free() -> None:
    node = candidate({"metadata": {"name": "a"}}, {"cpu": 4000, "memory": 2**30, "pods": 10})
    asked = {"cpu": 1500, "memory": 2**31, "example.com/a": 1, "pods": 1}
    assert why_not({}, asked, node, {"cpu": 3000, "pods": 10}) == (
        "not enough cpu: 1500m requested, 1 of 4 free; example.com/a: 1 requested, and the node states none in "
        "status.allocatable; memory: 2Gi requested, 1Gi of 1Gi free; pods: 1 requested, 0 of 10 free"
    )


def test_the_highest_score_wins_and_names_break_ties() -> None:
    assert best({"c": 5, "b": 7, "a": 7}) == "a"
    assert best({"c": 5, "b": 7, "a": 7}, lambda equal: equal[-1]) == "b"


@pytest.mark.parametrize(
    ("node", "closed"),
    [
        ({"metadata": {"name": "a"}}, False),
        ({"metadata": {"name": "a"}, "spec": {"taints": [{**DEDICATED, "effect": "PreferNoSchedule"}]}}, False),
        ({"metadata": {"name": "a"}, "spec": {"taints": [DEDICATED]}}, True),
        ({"metadata": {"name": "a"}, "spec": {"unschedulable": True}}, True),
    ],
)
def test_a_node_is_closed_to_some_by_a_taint_or_a_cordon(node: dict[str, Any], *, closed: bool) -> None:
    assert closed_to_some(candidate(node, {})) is closed


def test_a_candidate_has_the_labels_of_its_node() -> None:
    made = candidate({"metadata": {"name": "a", "labels": {"zone": "b"}}}, {"cpu": 1})
    assert made == NodeCandidate("a", {"zone": "b"}, (), False, {"cpu": 1})
    assert candidate({"metadata": {"name": "a", "labels": None}}, {}).labels == {}
    assert why_not({"nodeSelector": {"zone": "b"}}, {}, made, {}) is None
    assert why_not({"nodeSelector": {"zone": "c"}}, {}, made, {}) == (
        "the Pod's nodeSelector or required node affinity does not match the node's labels"
    )


@pytest.mark.parametrize(
    ("name", "amount", "told"),
    [
        ("cpu", 2001, "2001m requested, 1 of 1 free"),
        ("cpu", 3000, "3 requested, 1 of 1 free"),
        ("a.example.com/x", 2048, "2048 requested, 1000 of 1000 free"),
        ("ephemeral-storage", 2048, "2Ki requested, 1000 of 1000 free"),
        ("kubernetes.io/gpu-memory", 2048, "2Ki requested, 1000 of 1000 free"),
    ],
)
def test_a_shortage_is_told_in_the_units_of_its_resource(name: str, amount: int, told: str) -> None:
    node = candidate({"metadata": {"name": "a"}}, {name: 1000})
    assert why_not({}, {name: amount}, node, {}) == f"not enough {name}: {told}"


def test_nodes_with_one_reason_share_a_line() -> None:
    reasons = {"b": "b: no GPUs", "a": "a: no GPUs", "c": "cordoned"}
    assert grouped(reasons) == ("a, b: no GPUs", "c: cordoned")


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
    assert several.startswith(f"Nodes {', '.join(f'n{number:02}' for number in range(16))} and 1 more nodes are not")


@pytest.mark.parametrize(("nodes", "more"), [(16, ""), (17, " and 1 more nodes"), (33, " and 17 more nodes")])
def test_sixteen_nodes_of_a_reason_are_named_and_the_others_counted(nodes: int, more: str) -> None:
    names = [f"n{at:02}" for at in range(nodes)]
    found = grouped({name: f"{name}: full" for name in reversed(names)})
    assert found == (f"{', '.join(names[:16])}{more}: full",)
