"""Rows by node name: the same as a dict would find, for thousands of names at once."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.index.noderows import NodeRows


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


def test_rows_found_are_the_callers_own() -> None:
    nodes = NodeRows()
    nodes.add("a")
    nodes.find(["a"])[0] = 5
    assert nodes.find(["a"]).tolist() == [1]


def test_rows_found_for_a_tuple_are_everybodys_and_cannot_be_changed() -> None:
    nodes = NodeRows()
    nodes.add("a")
    with pytest.raises(ValueError, match="read-only"):
        nodes.find(("a",))[0] = 5


def test_sixteen_tuples_are_remembered_until_a_node_comes_or_goes() -> None:
    nodes = NodeRows()
    nodes.add("a")
    asked = [("a", str(number)) for number in range(17)]
    first, *others = [nodes.find(names) for names in asked[:16]]
    assert nodes.find(asked[0]) is first
    assert first.tolist() == [1, 0]
    nodes.find(asked[16])
    assert nodes.find(asked[0]) is not first
    assert nodes.find(asked[1]) is not others[0]
    again = nodes.find(asked[0])
    nodes.add("0")
    assert nodes.find(asked[0]).tolist() == [1, 2]
    nodes.drop("a")
    assert nodes.find(asked[0]).tolist() == [0, 2]
    assert again.tolist() == [1, 0]


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


def test_thousands_of_names_are_found_whichever_share_a_slot() -> None:
    """Of 3,000 names in 32,768 slots about a hundred collide with another; some take slots that became free."""
    nodes, known, chance = NodeRows(), dict[str, int](), random.Random(5)
    for step in range(6000):
        name = f"worker-{chance.randrange(4000)}"
        if name in known and step % 3 == 0:
            assert nodes.drop(name) == known.pop(name)
        elif name not in known:
            known[name] = nodes.add(name)
    asked = [f"worker-{number}" for number in range(4500)]  # long enough for hashes
    chance.shuffle(asked)
    assert nodes.find(asked).tolist() == [known.get(name, 0) for name in asked]
    assert len(known) > 1500
    assert len(nodes) == len(known) == len(set(known.values()))


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefgh")), max_size=40))
def test_a_node_has_one_row_of_its_own_while_it_is_there(steps: list[tuple[bool, str]]) -> None:
    nodes = NodeRows()
    there: dict[str, int] = {}
    for comes, name in steps:
        if comes and name not in there:
            there[name] = nodes.add(name)
            assert 0 < there[name] < nodes.end
        elif not comes:
            assert nodes.drop(name) == there.pop(name, None)
    assert nodes.find([*"abcdefgh"]).tolist() == [there.get(name, 0) for name in "abcdefgh"]
    assert [nodes.names[row] for row in there.values()] == [*there]
    assert [*filter(None, nodes.names)] == sorted(there, key=there.__getitem__)
    by_name = nodes.by_name()
    assert sorted(there) == sorted(there, key=lambda name: by_name[there[name]])
