"""The exact order beside sorted fractions, of figures that floats hardly tell apart or not at all."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.index.preference import FIGURES, Filled, Floats, doubt, figures, least, ranks
from allocator.index.query import MAX_AMOUNT
from allocator.index.table import Ints
from allocator.vocabulary.asks import Preference

Classes = Sequence[tuple[int, int]]
LARGE = 2**40


def lines(nodes: Sequence[Classes]) -> Ints:
    """Two lines per class (used, capacity) x nodes."""
    return np.array(nodes, np.int64).reshape(len(nodes), -1).T


def figures_of(way: Preference, nodes: Sequence[Classes]) -> Floats:
    table = lines(nodes)
    return figures(way, table[0::2], table[1::2])


def exact(way: Preference, node: Classes) -> Fraction:
    return FIGURES[way]([Filled(*one) for one in node])


@st.composite
def clusters(draw: st.DrawFn) -> list[Classes]:
    """Nodes of so many classes, some made of the same, and many that differ by nearly nothing."""
    count = draw(st.integers(1, 5))
    capacity = st.sampled_from([0, 1, 3, 7, 100, LARGE - 1, LARGE, LARGE + 1, 2 * LARGE, MAX_AMOUNT])
    part = st.sampled_from([Fraction(0), Fraction(1, 3), Fraction(1, 2), Fraction(1)])

    def filled(total: int, of: Fraction, more: int) -> tuple[int, int]:
        return min(max(total * of.numerator // of.denominator + more, 0), total), total

    one = st.builds(filled, capacity, part, st.integers(-1, 1))
    return draw(st.lists(st.tuples(*[one] * count), min_size=1, max_size=12))


@given(clusters(), st.sampled_from(list(FIGURES)))
@example([((1, 3),), ((2, 6),), ((LARGE, 3 * LARGE),), ((0, 7),), ((0, 9),), ((0, 0),)], Preference.LEAST_REQUESTED)
@settings(max_examples=examples(300))
def test_nodes_are_numbered_by_their_exact_figures(nodes: list[Classes], way: Preference) -> None:
    approximate = figures_of(way, nodes)
    certain = doubt(len(nodes[0]))
    expected = [exact(way, node) for node in nodes]
    for about, figure in zip(approximate.tolist(), expected, strict=True):
        assert abs(Fraction(about) - figure) <= Fraction(certain) / 2
    numbers = {figure: number for number, figure in enumerate(sorted(set(expected)))}
    told = ranks(approximate, certain, lines(nodes), FIGURES[way])
    assert told.tolist() == [numbers[figure] for figure in expected]
    assert least(lines(nodes), FIGURES[way]).tolist() == [numbers[figure] == 0 for figure in expected]


@pytest.mark.parametrize(("classes", "units"), [(1, 40), (4, 64), (9, 104)])
def test_figures_are_in_doubt_by_more_units_the_more_classes_they_are_made_of(classes: int, units: int) -> None:
    assert doubt(classes) == units * 2.0**-53


def near(count: int) -> Iterator[Classes]:
    """Nodes of which each has a little less free than the one before, by less than a float of the mean can tell."""
    for number in range(count):
        yield ((number + 1, MAX_AMOUNT), (MAX_AMOUNT // 2, MAX_AMOUNT))


@pytest.mark.parametrize("count", [2, 3, 40])
def test_what_a_float_cannot_tell_apart_is_compared_exactly(count: int) -> None:
    nodes = list(near(count))
    approximate = figures_of(Preference.LEAST_REQUESTED, nodes)
    assert np.ptp(approximate) <= doubt(2), "the float does not decide"
    for turned in (nodes, nodes[::-1], nodes[1::2] + nodes[0::2]):
        told = ranks(approximate, doubt(2), lines(turned), FIGURES[Preference.LEAST_REQUESTED])
        assert told.tolist() == [turned[at][0][0] - 1 for at in range(count)]


def test_shares_that_differ_by_as_little_as_two_shares_can_are_told_apart() -> None:
    large, less = MAX_AMOUNT, MAX_AMOUNT - 2
    used = pow(less, -1, large)
    nodes = [((used, large),), (((used * less - 1) // large, less),), ((used, large),)]
    assert exact(Preference.LEAST_REQUESTED, nodes[0]) - exact(Preference.LEAST_REQUESTED, nodes[1]) == Fraction(
        1, large * less
    )
    told = ranks(np.zeros(3), 1.0, lines(nodes), FIGURES[Preference.LEAST_REQUESTED])
    assert told.tolist() == [1, 0, 1]


def test_only_what_is_in_doubt_is_computed_exactly() -> None:
    """The others have a figure of their own or are made of the same; idle classes of any capacity are the same."""
    asked: list[Sequence[Filled]] = []

    def figure(classes: Sequence[Filled]) -> Fraction:
        asked.append(classes)
        return FIGURES[Preference.LEAST_REQUESTED](classes)

    nodes = [((1, 2),), ((1, 2),), ((1, 4),), ((0, 5),), ((0, 9),), ((3, 4),), ((6, 8),), ((3, 4),)]
    approximate = figures_of(Preference.LEAST_REQUESTED, nodes)
    assert ranks(approximate, doubt(1), lines(nodes), figure).tolist() == [2, 2, 1, 0, 0, 3, 3, 3]
    assert sorted(map(list, asked)) == [[(3, 4)], [(6, 8)]]
