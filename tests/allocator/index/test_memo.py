"""Results over all nodes that are kept: what is computed again, and which are forgotten."""

from typing import Any

import numpy as np
import pytest

from allocator.index.memo import Memo


class Counted:
    """Computes ten times a node's number, and notes for which nodes."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, at: Any) -> Any:
        nodes = np.arange(70_000)[at]
        self.asked.append(nodes.tolist())
        return nodes * 10


def test_the_result_that_was_not_asked_for_the_longest_is_forgotten() -> None:
    memo, compute = Memo(most=2), Counted()
    for key in ("a", "b", "a", "c", "a", "c"):
        memo.get(key, 100, compute)
    assert len(compute.asked) == 3, "all are kept that were asked for since"
    memo.get("b", 100, compute)
    assert len(compute.asked) == 4


def test_only_nodes_that_changed_since_are_computed_again() -> None:
    memo, compute = Memo(most=2), Counted()
    memo.get("a", 100, compute)
    for node in (7, 3, 7):
        memo.changed(node)
    assert memo.get("a", 100, compute).tolist() == [10 * node for node in range(100)]
    memo.get("a", 100, compute)
    assert compute.asked == [list(range(100)), [3, 7]]
    for nodes in (50, 60):
        assert len(memo.get("a", nodes, compute)) == nodes
    assert compute.asked[2:] == [list(range(50)), list(range(60))], "the number of nodes is another"


def test_the_last_axis_of_a_result_is_the_nodes() -> None:
    memo = Memo(most=1)
    for nodes in (50, 60):
        assert memo.get("a", nodes, lambda at: np.zeros((60, 100))[:, at]).shape == (60, nodes)


def test_results_that_were_last_asked_for_at_different_times_are_each_brought_up_to_date() -> None:
    memo, compute = Memo(most=2), Counted()
    memo.get("a", 100, compute)
    memo.changed(3)
    memo.get("b", 100, compute)
    memo.changed(7)
    for key in "bab":
        memo.get(key, 100, compute)
    assert compute.asked[2:] == [[7], [3, 7]]


@pytest.mark.parametrize(
    ("nodes", "changes", "every"), [(112, 7, False), (111, 7, True), (96, 6, False), (96, 7, True)]
)
def test_where_more_than_a_sixteenth_of_the_nodes_changed_all_are_computed(
    nodes: int, changes: int, *, every: bool
) -> None:
    memo, compute = Memo(most=2), Counted()
    memo.get("a", nodes, compute)
    for node in range(changes):
        memo.changed(node)
    assert memo.get("a", nodes, compute).tolist() == [10 * node for node in range(nodes)]
    assert compute.asked[1:] == [list(range(nodes if every else changes))]


def test_of_more_than_4096_changes_the_first_are_forgotten_and_all_are_computed() -> None:
    memo, compute, nodes = Memo(most=3), Counted(), 70_000
    for key in "abc":
        memo.get(key, nodes, compute)
    for _ in range(4096):
        memo.changed(3)
    memo.get("a", nodes, compute)
    memo.changed(5)
    for key in "ab":
        memo.get(key, nodes, compute)
    memo.changed(8)
    for key in "abc":
        memo.get(key, nodes, compute)
    every = list(range(nodes))
    assert compute.asked[3:] == [[3], [5], every, [8], [8], every]
