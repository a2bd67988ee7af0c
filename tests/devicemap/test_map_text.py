"""Text on the device map, and the figures of what the map takes, remembers and looks at."""

import pytest

from webhook.devicemap import access, document, feed, server, text, waiting
from webhook.devicemap.text import LONGEST, cut


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
    assert cut("x" * length, LONGEST) == told


def test_what_the_map_takes_and_remembers_has_bounds() -> None:
    assert cut("x") == "x"
    assert (text._SHORT, text.LONGEST) == (256, 1024)
    assert (access._MOST_KNOWN, access._LONGEST) == (1024, 8190)
    assert (feed.PAGE, feed._REMEMBERED_BYTES, feed._MOST_GONE) == (200, 16_777_216, 10_000)
    assert (server._MOST_BODY, server._LONGEST_NUMBER) == (1024, 18)
    assert (waiting._MOST_PODS, waiting._MOST_NODES, waiting._MOST_REASONS, waiting._STEPS) == (200, 16, 4, 200)
    assert (document.VERSION, document._MOST) == (1, 9_223_372_036_854_775_807)


def test_a_pod_that_waits_is_told_with_short_words_and_a_long_explanation() -> None:
    long = "x" * 2000
    assert waiting.waiting_entry(long, long, long, long, [long, "y"]) == {
        "uid": "x" * 255 + "…",
        "namespace": "x" * 255 + "…",
        "name": "x" * 255 + "…",
        "state": "x" * 255 + "…",
        "reasons": ["x" * 1023 + "…", "y"],
        "seconds": 0,
    }
