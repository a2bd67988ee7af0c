"""Text on the device map, and the figures of what the map takes, remembers and looks at."""

import pytest

from webhook.devicemap.document import MAX_EXPLANATION, cut
from webhook.devicemap.feed import waiting_entry


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param("x" * 256, "x" * 256, id="as long as it may be"),
        pytest.param("x" * 257, "x" * 255 + "…", id="one too many"),
        pytest.param("é" * 256, "é" * 256, id="characters, not bytes"),
        pytest.param("a\ud800b", "a?b", id="what UTF-8 cannot encode"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_text_has_256_characters_at_most(given: str, told: str) -> None:
    assert cut(given) == told


@pytest.mark.parametrize(("length", "told"), [(1024, "x" * 1024), (1025, "x" * 1023 + "…")])
def test_an_explanation_may_be_four_times_as_long(length: int, told: str) -> None:
    assert cut("x" * length, MAX_EXPLANATION) == told


def test_a_pod_that_waits_is_told_with_short_words_and_a_long_explanation() -> None:
    long = "x" * 2000
    assert waiting_entry(long, long, long, long, [long, "y"]) == {
        "uid": "x" * 255 + "…",
        "namespace": "x" * 255 + "…",
        "name": "x" * 255 + "…",
        "state": "x" * 255 + "…",
        "reasons": ["x" * 1023 + "…", "y"],
        "seconds": 0,
    }
