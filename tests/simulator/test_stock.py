"""The scores of a stock kube-scheduler, and where it puts Pods without devices."""

import pytest

from console.simulator.predicates import NodeCandidate
from console.simulator.stock import balanced, least_allocated, stock_scores

GIB = 2**30


def candidate(name: str, cpu: int, memory: int, *taints: dict[str, str]) -> NodeCandidate:
    return NodeCandidate(name, {}, taints, unschedulable=False, allocatable={"cpu": cpu, "memory": memory})


def test_what_is_left_counts_in_whole_points_of_each_resource() -> None:
    assert least_allocated([(1000, 250), (3, 1)]) == (75 + 66) // 2
    assert least_allocated([(1000, 2000)]) == 0
    assert least_allocated([]) == 0


def test_equal_parts_are_balanced_and_unequal_ones_lose_half_their_difference() -> None:
    assert balanced([(1000, 500), (4, 2)]) == 100
    assert balanced([(1000, 1000), (4, 0)]) == 50
    assert balanced([(1000, 300), (10, 1)]) == 90


def test_the_emptier_node_scores_higher() -> None:
    nodes = [candidate("a", 8000, 8 * GIB), candidate("b", 8000, 8 * GIB)]
    asked = {"cpu": 1000, "memory": GIB}
    scores = stock_scores({}, asked, nodes, {"a": {"cpu": 4000, "memory": 4 * GIB}})
    assert scores == {"a": 37 + 100 + 300, "b": 87 + 100 + 300}


def test_a_taint_that_is_preferred_not_outweighs_what_is_left() -> None:
    taint = {"key": "koordgate.io/headroom", "effect": "PreferNoSchedule"}
    nodes = [candidate("a", 8000, 8 * GIB), candidate("b", 8000, 8 * GIB, taint)]
    used = {"a": {"cpu": 6000, "memory": 6 * GIB}}
    asked = {"cpu": 1000, "memory": GIB}
    scores = stock_scores({}, asked, nodes, used)
    assert scores["a"] > scores["b"]
    tolerant = stock_scores({"tolerations": [{"key": taint["key"], "operator": "Exists"}]}, asked, nodes, used)
    assert tolerant["b"] > tolerant["a"]


def test_a_pod_without_requests_counts_as_a_small_one() -> None:
    assert stock_scores({}, {}, [candidate("a", 1000, 2000 * 2**20)], {}) == {"a": 90 + 100 + 300}


MIB = 2**20


@pytest.mark.parametrize(
    ("cpu", "memory", "score"),
    [
        (100, 200 * MIB, (0 + 0) // 2 + 100 + 300),
        (1000, 2000 * MIB, (90 + 90) // 2 + 100 + 300),
        (101, 200 * MIB, (0 + 0) // 2 + 99 + 300),
        (100, 201 * MIB, (0 + 0) // 2 + 99 + 300),
        (200, 400 * MIB, (50 + 50) // 2 + 100 + 300),
    ],
)
def test_a_pod_that_requests_nothing_counts_with_a_tenth_of_a_cpu_and_200_mib(
    cpu: int, memory: int, score: int
) -> None:
    assert stock_scores({}, {"cpu": 0}, [candidate("a", cpu, memory)], {"a": {}}) == {"a": score}


def test_a_resource_that_a_node_does_not_state_is_left_out() -> None:
    nodes = [
        NodeCandidate(name, {}, (), unschedulable=False, allocatable=has)
        for name, has in (("cpu", {"cpu": 1000}), ("zero", {"cpu": 1000, "memory": 0}), ("none", {}))
    ]
    used = {"cpu": {"cpu": 400}, "other": {"cpu": 900}}
    assert stock_scores({}, {"cpu": 100}, nodes, used) == {
        "cpu": 50 + 100 + 300,
        "zero": 90 + 100 + 300,
        "none": 0 + 100 + 300,
    }


def test_of_taints_those_that_are_preferred_not_and_not_tolerated_count() -> None:
    soft = [{"key": key, "effect": "PreferNoSchedule"} for key in "abc"]
    hard = {"key": "d", "effect": "NoSchedule"}
    nodes = [candidate(f"n{at}", 1000, 2000 * MIB, *soft[:at], hard) for at in range(4)]
    found = stock_scores({"tolerations": [{"key": "c", "operator": "Exists"}]}, {}, nodes, {})
    assert found == {"n0": 190 + 300, "n1": 190 + 150, "n2": 190, "n3": 190}
    assert stock_scores({}, {}, nodes, {}) == {"n0": 190 + 300, "n1": 190 + 198, "n2": 190 + 99, "n3": 190}
