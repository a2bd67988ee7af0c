"""Rows by node name, and states of nodes: as a dict would have them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.index.cluster import BLOCK, ClusterIndex, NodeRows, States
from allocator.index.packed import Packed
from allocator.index.query import Query, Want
from allocator.index.table import RowError, TypeRow


def test_names_are_looked_up_again_each_time() -> None:
    nodes = NodeRows()
    assert [nodes.add(name) for name in "abc"] == [1, 2, 3]
    names = ["a", "b"]
    assert nodes.find(names).tolist() == [1, 2]
    names[1] = "c"
    assert nodes.find(names).tolist() == [1, 3]
    assert nodes.drop("c") == 3
    assert nodes.find(names).tolist() == [1, 0]
    assert nodes.add("d") == 3
    assert nodes.find([*names, "d", "", "d"]).tolist() == [1, 0, 3, 0, 3]
    assert nodes.find([]).tolist() == []
    assert nodes.drop("c") is None


def test_the_order_of_names_takes_in_who_comes_and_who_goes() -> None:
    nodes = NodeRows()
    assert nodes.by_name().tolist() == [0]
    for name in ("b", "d"):
        nodes.add(name)
    assert nodes.by_name().tolist() == [0, 1, 2]
    nodes.add("a")  # into a row of its own
    assert nodes.by_name().tolist() == [0, 2, 3, 1]
    nodes.drop("b")
    assert nodes.by_name()[[2, 3]].tolist() == [3, 2]
    nodes.add("c")  # into the row that became free
    assert nodes.by_name().tolist() == [0, 2, 3, 1]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefgh")), max_size=40))
def test_a_node_has_one_row_of_its_own_while_it_is_there(steps: list[tuple[bool, str]]) -> None:
    nodes = NodeRows()
    there: dict[str, int] = {}
    names = tuple("abcdefgh")  # the same tuple is not looked up again until a node comes or goes
    for comes, name in steps:
        if comes and name not in there:
            there[name] = nodes.add(name)
            assert 0 < there[name] < nodes.end
        elif not comes:
            assert nodes.drop(name) == there.pop(name, None)
        assert nodes.find(names).tolist() == [there.get(name, 0) for name in names]
    assert nodes.find([*"abcdefgh"]).tolist() == [there.get(name, 0) for name in "abcdefgh"]
    assert [nodes.names[row] for row in there.values()] == [*there]
    assert [*filter(None, nodes.names)] == sorted(there, key=there.__getitem__)
    by_name = nodes.by_name()
    assert sorted(there) == sorted(there, key=lambda name: by_name[there[name]])


def test_equal_nodes_share_a_state() -> None:
    states = States()
    assert [states.enter(state) for state in "abab"] == [(1, True), (2, True), (1, False), (2, False)]
    assert states.nodes().tolist() == [0, 2, 2, *[0] * (BLOCK - 3)]


def test_a_state_is_known_until_its_number_is_needed() -> None:
    states = States()
    for state in "abab":
        states.enter(state)
    for number in (0, 1, 2, 2, 1):
        states.leave(number)
    assert states.enter("b") == (2, False)
    states.leave(2)
    assert [states.enter(state) for state in "cb"] == [(1, True), (2, False)], "a was left first"
    assert states.enter("a") == (3, True)
    assert states.nodes()[:4].tolist() == [0, 1, 1, 1]


def test_a_state_that_is_forgotten_is_new_again() -> None:
    states = States()
    states.forget(states.enter("a")[0])
    assert [states.enter(state) for state in "aba"] == [(1, True), (2, True), (1, False)]


def test_the_number_of_results_seldom_changes() -> None:
    states = States()
    ends = [(states.enter(number), states.end)[1] for number in range(3 * BLOCK)]
    assert ends == [BLOCK] * (BLOCK - 1) + [2 * BLOCK] * BLOCK + [3 * BLOCK] * BLOCK + [4 * BLOCK]


def cards(free: list[int]) -> TypeRow:
    in_use = sum((part < 100) << at for at, part in enumerate(free))
    return TypeRow("gpu", (Packed.of("gpu-core", [100] * len(free), free),), (1 << len(free)) - 1, in_use)


CHANGE = st.tuples(st.integers(0, 5), st.none() | st.lists(st.sampled_from([0, 30, 60, 100]), max_size=3))


@given(st.lists(CHANGE, max_size=40), st.integers(1, 100), st.integers(1, 2))
def test_nodes_that_come_change_and_go_have_the_figures_of_their_devices(
    changes: list[tuple[int, list[int] | None]], percent: int, count: int
) -> None:
    index, now = ClusterIndex({"gpu": ["gpu-core"]}), dict[str, list[int]]()
    query = Query((Want("gpu", count, (("gpu-core", percent),)),))
    for number, free in changes:
        name = f"n{number}"
        if free is None:
            index.drop(name)
            now.pop(name, None)
        else:
            index.put(name, (cards(free),))
            now[name] = free
        names = [f"n{number}" for number in range(6)]
        found = index.counts(query)[0, index.positions(names)].tolist()
        assert found == [sum(part >= percent for part in now.get(name, ())) for name in names]
        assert index.fitting(query)[index.positions(names)].tolist() == [each >= count for each in found]


def test_a_state_that_none_is_in_any_more_leaves_nothing_to_the_next() -> None:
    index, chance = ClusterIndex({"gpu": ["gpu-core"]}), random.Random(5)
    query = Query((Want("gpu", 1, (("gpu-core", 1),)),))
    for number in range(4 * BLOCK):
        index.put("a", (cards([chance.randint(1, 100)]),))
        index.put("b", ())
        found = index.counts(query)[0, index.positions(["a", "b", "c"])].tolist()
        assert found == [1, 0, 0], number


def test_a_node_that_is_refused_leaves_no_state() -> None:
    index = ClusterIndex({"gpu": ["gpu-core"]})
    index.put("a", (cards([100]),))
    twice = (cards([50]), cards([50]))
    for _ in range(2):
        with pytest.raises(RowError, match="once"):
            index.put("a", twice)
    query = Query((Want("gpu", 1, (("gpu-core", 100),)),))
    assert index.fitting(query)[index.positions(["a"])].tolist() == [True]
