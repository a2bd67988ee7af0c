"""Results over all nodes that are kept: what is computed again, and which are forgotten."""

import numpy as np

from allocator.index.memo import Memo


class Counted:
    """Computes ten times a node's number, and notes for which nodes."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, at: object) -> np.ndarray:
        nodes = np.arange(100)[at]  # type: ignore[index]
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
    memo.get("a", 50, compute)
    assert compute.asked[2:] == [list(range(50))], "the number of nodes is another"
