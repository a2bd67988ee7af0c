"""What Kubernetes counts of a Pod and of a Node: CPU in thousandths, all else in its own unit, rounded up."""

from typing import Any

import pytest
from builders import container, pod_spec, sidecar_container

from allocator.amounts import BadQuantityError, amounts, node_amounts, pod_amounts, pod_charges

Raw = dict[str, Any]


def asks(name: str, **requests: Any) -> Raw:
    return container(name, requests=requests)


READ: dict[str, tuple[Any, int, int]] = {
    "whole": ("2", 2000, 2),
    "an integer": (2, 2000, 2),
    "a part, rounded up": ("1500m", 1500, 2),
    "less than a thousandth": ("1n", 1, 1),
    "nothing": ("0", 0, 0),
    "sixty-four characters": ("0" * 63 + "3", 3000, 3),
}


@pytest.mark.parametrize(("quantity", "cpu", "other"), READ.values(), ids=READ)
def test_cpu_counts_in_thousandths_and_everything_else_as_it_is(quantity: Any, cpu: int, other: int) -> None:
    assert amounts({"cpu": quantity, "a/b": quantity, "pods": quantity}, "x") == {
        "cpu": cpu,
        "a/b": other,
        "pods": other,
    }


@pytest.mark.parametrize(
    ("quantity", "told"),
    [("lots", "'lots'"), (True, "True"), (None, "None"), (["1"], "a list"), ("1" * 65, f"'{'1' * 64}'")],
    ids=["a word", "true", "null", "a list", "sixty-five characters"],
)
def test_what_is_no_quantity_is_refused_with_its_place(quantity: Any, told: str) -> None:
    amounts({"memory": 1}, "x")  # which is as true as `True`
    with pytest.raises(BadQuantityError) as refused:
        amounts({"cpu": "1", "memory": quantity}, "spec.overhead")
    assert str(refused.value).startswith(f"spec.overhead[memory]: {told} is not a Kubernetes quantity")


PODS: dict[str, tuple[Raw, Raw]] = {
    "nothing": (pod_spec(container("a")), {}),
    "requests of nothing": (pod_spec(asks("a", cpu=0), init=[asks("i", disk=0)]), {"cpu": 0}),
    "containers add up": (pod_spec(asks("a", cpu=1, memory=5), asks("b", cpu="500m")), {"cpu": 1500, "memory": 5}),
    "an init container that needs more": (
        pod_spec(asks("a", cpu=1, memory=5), init=[asks("i", cpu=3), asks("j", cpu=2, disk=7)]),
        {"cpu": 3000, "memory": 5, "disk": 7},
    ),
    "sidecars run beside what comes after them": (
        pod_spec(
            asks("a", cpu=1),
            init=[
                asks("i", cpu=4),
                sidecar_container("s", requests={"cpu": 2}),
                asks("j", cpu=3),
                sidecar_container("t", requests={"cpu": 1}),
                asks("k", cpu=1),
            ],
        ),
        {"cpu": 5000},
    ),
    "sidecars and apps add up": (
        pod_spec(asks("a", cpu=4), init=[sidecar_container(name, requests={"cpu": 2}) for name in "st"]),
        {"cpu": 8000},
    ),
    "overhead": (pod_spec(asks("a", cpu=1), overhead={"cpu": "250m", "memory": 3}), {"cpu": 1250, "memory": 3}),
    "the Pod as a whole, for CPU, memory and huge pages alone": (
        pod_spec(
            asks("a", **{"cpu": 1, "memory": 9, "hugepages-2Mi": 4, "disk": 1}),
            overhead={"cpu": 1},
            resources={"requests": {"cpu": 4, "memory": 2, "hugepages-2Mi": 8, "disk": 5}},
        ),
        {"cpu": 5000, "memory": 2, "hugepages-2Mi": 8, "disk": 1},
    ),
    "what only quotas count is none": (pod_spec(asks("a", **{"quota.koordgate.io/gpu": 100, "cpu": 1})), {"cpu": 1000}),
}


@pytest.mark.parametrize(("spec", "counted"), PODS.values(), ids=PODS)
def test_the_greatest_sum_over_a_pods_life_is_counted_and_the_pod_as_one(spec: Raw, counted: Raw) -> None:
    assert pod_amounts(spec) == {**counted, "pods": 1}


def test_what_quotas_count_is_summed_likewise_and_by_itself() -> None:
    gpu = "quota.koordgate.io/gpu"
    spec = pod_spec(
        asks("a", **{gpu: 50, "cpu": 1}), asks("b", **{gpu: 30}), init=[asks("i", **{gpu: 70})], overhead={"cpu": 1}
    )
    assert pod_charges(spec) == {gpu: 80}


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (pod_spec(asks("a"), asks("b", cpu="x")), "spec.containers[1].resources.requests"),
        (pod_spec(asks("a"), init=[asks("i"), asks("j", cpu="x")]), "spec.initContainers[1].resources.requests"),
        (pod_spec(asks("a"), resources={"requests": {"cpu": "x"}}), "spec.resources.requests"),
        (pod_spec(asks("a"), overhead={"cpu": "x"}), "spec.overhead"),
    ],
)
def test_a_request_that_is_no_quantity_is_named(spec: Raw, where: str) -> None:
    with pytest.raises(BadQuantityError) as refused:
        pod_amounts(spec)
    assert str(refused.value).startswith(f"{where}[cpu]: 'x' is not")


@pytest.mark.parametrize(
    ("status", "has"),
    [
        ({"allocatable": {"cpu": "3500m"}, "capacity": {"cpu": 4}}, {"cpu": 3500}),
        ({"capacity": {"cpu": 4, "pods": "110"}}, {"cpu": 4000, "pods": 110}),
        ({"allocatable": {}, "capacity": {"cpu": 4}}, {}),
        ({}, {}),
        (None, {}),
    ],
    ids=["allocatable", "capacity alone", "none allocatable", "neither", "no status"],
)
def test_a_node_has_what_is_allocatable_or_else_its_capacity(status: Raw | None, has: Raw) -> None:
    assert node_amounts({"metadata": {"name": "n1"}, "status": status}) == has


def test_an_amount_of_a_node_that_is_no_quantity_is_named() -> None:
    with pytest.raises(BadQuantityError) as refused:
        node_amounts({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "x"}}})
    assert str(refused.value).startswith("Node n1: status.allocatable[cpu]: 'x' is not")
