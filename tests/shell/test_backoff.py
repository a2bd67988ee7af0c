"""Backoff: waits double up to a bound, half of each is random, and success resets them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordgate.backoff import Backoff


def test_waits_double_up_to_the_bound() -> None:
    backoff = Backoff(0.5, 3.0, chance=lambda: 1.0)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failures == 5


@pytest.mark.parametrize(("chance", "wait"), [(0.0, 1.0), (0.5, 1.5), (1.0, 2.0)])
def test_half_of_a_wait_is_chance(chance: float, wait: float) -> None:
    assert Backoff(2.0, 60.0, chance=lambda: chance).failed() == wait


def test_chance_is_asked_for_each_wait() -> None:
    chances = iter([0.0, 1.0])
    backoff = Backoff(1.0, 1.0, chance=lambda: next(chances))
    assert [backoff.failed(), backoff.failed()] == [0.5, 1.0]


def test_after_a_success_waits_begin_again() -> None:
    backoff = Backoff(1.0, 60.0, chance=lambda: 1.0)
    backoff.failed()
    backoff.failed()
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.failed() == 1.0


@given(st.floats(0.001, 10), st.floats(0.001, 1000), st.integers(1, 5000))
def test_however_often_it_fails_a_wait_is_between_half_the_first_and_the_longest(
    first: float, longest: float, failures: int
) -> None:
    backoff = Backoff(first, longest)
    backoff.failures = failures
    assert min(first, longest) / 2 <= backoff.failed() <= longest
