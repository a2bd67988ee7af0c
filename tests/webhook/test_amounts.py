"""What nodes have left of CPU, memory and the like: the sums of what Pods request, whatever comes and goes."""

from typing import Any

import pytest
from builders import container, pod
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from trials import examples

from allocator.vocabulary.holdings import InvariantError
from webhook.view.amounts import NodeAmounts


def node(name: str = "a", **allocatable: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": allocatable}}


def asking(name: str, on: str = "a", phase: str = "Running", namespace: str = "default", **requests: str) -> Any:
    made = pod(container(requests=requests), name=name, nodeName=on, namespace=namespace)
    return {**made, "status": {"phase": phase}}


HAS = {"cpu": "4", "memory": "8Gi", "pods": "3", "example.com/licence": "1"}
LACKS: dict[str, tuple[list[dict[str, Any]], dict[str, int], str]] = {
    "an empty node": ([], {"cpu": 4000, "memory": 8 * 2**30, "pods": 1}, ""),
    "more CPU than there is": ([], {"cpu": 4001, "memory": 9 * 2**30}, "cpu"),
    "more memory than there is": ([], {"cpu": 1, "memory": 8 * 2**30 + 1}, "memory"),
    "what the node does not state": ([], {"ephemeral-storage": 1}, "ephemeral-storage"),
    "what is not counted": ([], {"example.com/licence": 5}, ""),
    "others are there": ([asking("x", cpu="1500m"), asking("y", memory="1Gi", cpu="1")], {"cpu": 1501}, "cpu"),
    "others are there, and it fits": ([asking("x", cpu="1500m"), asking("y", cpu="1")], {"cpu": 1500, "pods": 1}, ""),
    "too many Pods": ([asking(name) for name in "xyz"], {"pods": 1}, "pods"),
    "others have ended": (
        [asking("x", phase="Failed", cpu="4"), asking("y", phase="Succeeded", cpu="4")],
        {"cpu": 4000},
        "",
    ),
    "others are elsewhere": ([asking("x", "b", cpu="4"), asking("y", "", cpu="4")], {"cpu": 4000}, ""),
    "of one name in two namespaces": (
        [asking("x", cpu="2"), asking("x", namespace="b", cpu="2")],
        {"cpu": 1},
        "cpu",
    ),
    "a request that cannot be read": ([asking("x", cpu="many"), asking("y"), asking("z")], {"pods": 1}, "pods"),
    "more is held than there is, and nothing is asked": ([asking("x", cpu="9")], {"cpu": 0, "memory": 1}, ""),
}


@pytest.mark.parametrize(("pods", "asked", "lacking"), LACKS.values(), ids=LACKS)
def test_what_a_node_lacks(pods: list[dict[str, Any]], asked: dict[str, int], lacking: str) -> None:
    table = NodeAmounts(kept=True)
    table.put_node(node(**HAS))
    table.put_node(node("b", cpu="100"))
    for one in pods:
        table.put_pod(one)
    assert table.lacks("a", asked.items()) == lacking


def test_several_requests_are_added_up() -> None:
    table = NodeAmounts(kept=True)
    table.put_node(node(**HAS))
    assert table.lacks("a", [("cpu", 2000), ("cpu", 2000)]) == ""
    assert table.lacks("a", [("cpu", 2000), ("pods", 1), ("cpu", 2001)]) == "cpu"


def test_a_node_that_is_unknown_gone_or_unreadable_has_nothing() -> None:
    table = NodeAmounts(kept=True)
    table.put_node(node(**HAS))
    table.put_node(node("b", cpu="many"))
    assert [table.lacks(name, [("cpu", 1)]) for name in "abc"] == ["", "cpu", "cpu"]
    table.drop_node("a")
    assert table.lacks("a", [("cpu", 1)]) == "cpu"


def test_where_it_is_not_kept_every_node_has_enough() -> None:
    table = NodeAmounts()
    table.put_node(node(**HAS))
    table.put_pod(asking("x", cpu="4"))
    assert table.lacks("a", [("cpu", 10**9)]) == ""
    assert (table._has, table._pods) == ({}, {})


def test_a_wrong_sum_is_found() -> None:
    table = NodeAmounts(kept=True)
    table.put_pod(asking("x", cpu="4"))
    table._used["a"]["cpu"] += 1
    with pytest.raises(InvariantError):
        table.check_invariants()


class AmountsMachine(RuleBasedStateMachine):
    """Pods in any order: created, bound, finished, created again, gone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = NodeAmounts(kept=True)
        self.there: dict[str, tuple[str, int]] = {}
        for name in "ab":
            self.table.put_node(node(name, cpu="10", pods="10"))

    @rule(
        name=st.sampled_from("xyz"),
        on=st.sampled_from(["", "a", "b"]),
        phase=st.sampled_from(["Running", "Running", "Failed"]),
        cpu=st.integers(0, 3),
    )
    def put(self, name: str, on: str, phase: str, cpu: int) -> None:
        self.table.put_pod(asking(name, on, phase, cpu=str(cpu)))
        self.there.pop(name, None)
        if on and phase == "Running":
            self.there[name] = on, cpu

    @rule(name=st.sampled_from("xyz"))
    def drop(self, name: str) -> None:
        self.table.drop_pod("default", name)
        self.there.pop(name, None)

    @invariant()
    def the_rest_is_free(self) -> None:
        self.table.check_invariants()
        for name in "ab":
            left = 10 - sum(cpu for on, cpu in self.there.values() if on == name)
            asked = 1000 * left
            assert self.table.lacks(name, [("cpu", asked)]) == ""
            assert self.table.lacks(name, [("cpu", asked + 1)]) == "cpu"


AmountsMachine.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=20)
TestAmountsMachine = AmountsMachine.TestCase
