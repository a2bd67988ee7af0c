"""Quotas that come after Pods: what these hold counts, nothing is given twice, and room returns when they end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quotas.laterquotas import KEY, NVIDIA, Run
from trials import examples


@pytest.mark.parametrize("prompt", [True, False], ids=["replicas know quotas at once", "replicas lag"])
@pytest.mark.parametrize("key", [KEY, NVIDIA])
@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_counted_and_given_never_exceeds_the_limit_and_what_fits_is_bound(
    key: str,
    prompt: bool,  # noqa: FBT001 a parameter of the test
    seed: int,
) -> None:
    run = Run(seed, key, prompt=prompt)
    for _ in range(150):
        run.step()
    run.quota()
    run.settle()
    assert not run.waiting() or sum(run.sums()) + run.first() > run.limit(), "a Pod waits that would fit"
