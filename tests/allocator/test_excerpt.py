"""A message repeats at most 80 characters of what somebody else wrote."""

import pytest

from allocator.vocabulary.excerpt import excerpt


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", ""),
        ("a" * 80, "a" * 80),
        ("a" * 81, "a" * 80),
        (12, "12"),
        (["x" * 100], "['" + "x" * 78),
    ],
)
def test_a_message_repeats_80_characters(value: object, shown: str) -> None:
    assert excerpt(value) == shown
