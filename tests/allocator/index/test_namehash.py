"""Hashes of many names at once: each depends on its name alone, and names that differ have different ones."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.index.namehash import name_hashes
from allocator.index.noderows import NodeRows

NAMES = st.text("ab-ü\ud800", min_size=8, max_size=40)


@given(st.lists(NAMES, min_size=1, max_size=12), st.lists(NAMES, max_size=3))
def test_a_hash_depends_on_its_name_alone(names: list[str], others: list[str]) -> None:
    alone = {name: name_hashes([name])[0] for name in names}  # type: ignore[index]
    together = name_hashes([*others, *names])
    assert together is not None
    assert together[len(others) :].tolist() == [alone[name] for name in names]
    assert len({*alone.values()}) == len({*names})


@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 17, 30])
def test_names_of_one_length_that_differ_little_have_different_hashes(length: int) -> None:
    names = {f"{number:0{length}}"[:length] for number in range(3000)}
    names |= {f"{number}{'x' * length}"[:length] for number in range(3000)}
    found = name_hashes([*names])
    assert (found is None) == (length < 8)
    assert found is None or len({*found.tolist()}) == len(names)


@pytest.mark.parametrize("begun", ["", "\t"])
def test_of_two_names_of_any_lengths_each_has_its_own_hash(begun: str) -> None:
    for one, other in product(range(8, 26), repeat=2):
        names = ["a" * one, (begun + "b" * other)[:other]]
        alone = [name_hashes([name])[0] for name in names]  # type: ignore[index]
        together = name_hashes(names)
        assert together is not None
        assert together.tolist() == alone, (one, other)


@pytest.mark.parametrize("names", [[], ["a"], ["node-00001", "n1"], ["node-00001\nnode-00002"], ["\n" * 9]])
def test_what_has_no_hash_is_found_nevertheless(names: list[str]) -> None:
    assert name_hashes(names) is None
    rows = NodeRows()
    for name in ("node-00003", *names):
        rows.add(name)
    assert rows.find(names).tolist() == list(range(2, 2 + len(names)))
    assert rows.find(["node-00003", "node-00004"]).tolist() == [1, 0]
