"""The search for the best set of devices: exact among few, and without detours among many."""

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.topology.sets import BestPlaces, _Search, best_places

Rows = tuple[tuple[int, ...], ...]


def symmetric(size: int, weight: Callable[[int, int], int]) -> Rows:
    """Weights of pairs, by the lower and the higher place."""
    return tuple(tuple(weight(min(a, b), max(a, b)) if a != b else 0 for b in range(size)) for a in range(size))


@st.composite
def weighed(draw: st.DrawFn) -> tuple[Rows, tuple[int, ...], tuple[int, ...], int]:
    size = draw(st.integers(1, 7))
    drawn = draw(st.lists(st.integers(0, 3), min_size=size * size, max_size=size * size))
    amounts = st.lists(st.integers(0, 2), min_size=size, max_size=size).map(tuple)
    rows = symmetric(size, lambda a, b: drawn[a * size + b])
    return rows, draw(amounts), draw(amounts), draw(st.integers(1, size))


@settings(max_examples=examples(200))
@given(weighed())
def test_among_few_it_is_the_greatest_then_the_cheapest_then_the_first(
    asked: tuple[Rows, tuple[int, ...], tuple[int, ...], int],
) -> None:
    rows, gains, losses, count = asked

    def order(places: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        total = sum(rows[a][b] for a, b in combinations(places, 2)) + sum(gains[at] for at in places)
        return -total, sum(losses[at] for at in places), places

    assert best_places(*asked).places == min(combinations(range(len(rows)), count), key=order)


# Nodes of more devices than are searched exactly: weights of pairs, the size of the set, and the best one.


@pytest.mark.parametrize(
    ("same", "best"),
    [
        pytest.param(lambda a, b: a // 4 == b // 4, BestPlaces((0, 1, 2, 3, 4, 5), 23), id="switches one by one"),
        pytest.param(lambda a, b: a % 4 == b % 4, BestPlaces((0, 1, 4, 5, 8, 12), 28), id="switches in turn"),
    ],
)
def test_of_devices_that_are_interchangeable_the_later_ones_are_not_tried(
    same: Callable[[int, int], bool], best: BestPlaces
) -> None:
    """Without that it would take some hundred steps."""
    rows = symmetric(16, lambda a, b: 9 if same(a, b) else 1)
    assert best_places(rows, (0,) * 16, (0,) * 16, 6) == best


@pytest.mark.parametrize("size", [16, 17, 20])
def test_a_search_among_more_than_sixteen_ends_after_512_steps_with_the_best_set_so_far(size: int) -> None:
    rows = symmetric(size, lambda a, b: (a * 131 + b * b * 17) * 7919 % 101)
    search = _Search(rows, [0] * size, size // 2)
    assert len(set(search.found)) == size // 2
    assert search.best == sum(rows[a][b] for a, b in combinations(search.found, 2))
    assert (search.considered == 512) is (size > 16)
    assert (search.considered > 512) is (size == 16)
