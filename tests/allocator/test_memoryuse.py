"""The annotation that says what containers have of their cards' memory: what is written reads back, and is bounded."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.vocabulary.delivery import Keeping, LimitProvider, MemoryUse
from allocator.wire.noderuntime import read_uses, write_uses

ENFORCED = MemoryUse("GPU-a", "team", "p", "main", Keeping.ENFORCED, 5, 10, 10, 10)
MISSING = MemoryUse("GPU-b", "team", "p", "main", Keeping.MISSING, 5, None, 10, 10)
ANOTHER = MemoryUse("GPU-a", "team", "q", "side", Keeping.MISSING, None, 20, 10, 10)
COUNTED = MemoryUse("GPU-a", "team", "q", "main", Keeping.ACCOUNTING, 0, None, None, 0)
WRITTEN = {
    "GPU-a": [
        {"pod": "team/q", "container": "side", "state": "missing", "limit": 20, "wanted": 10, "held": 10},
        {"pod": "team/p", "container": "main", "state": "enforced", "used": 5, "limit": 10, "held": 10},
        {"pod": "team/q", "container": "main", "state": "accounting", "used": 0, "held": 0},
    ],
    "GPU-b": [{"pod": "team/p", "container": "main", "state": "missing", "used": 5, "wanted": 10, "held": 10}],
}


def test_it_is_json_by_card_with_missing_limits_first() -> None:
    text = write_uses([COUNTED, ENFORCED, MISSING, ANOTHER])
    assert json.loads(text) == WRITTEN
    assert " " not in text
    assert read_uses(text) == ((ANOTHER, ENFORCED, COUNTED, MISSING), "")


def test_what_a_library_keeps_is_told_with_its_name_and_the_limit_that_it_was_given() -> None:
    injected = replace(COUNTED, keeping=Keeping.INJECTED, wanted=10, provider=LimitProvider.HAMI_CORE)
    text = write_uses([injected, COUNTED])
    told = json.loads(text)["GPU-a"][0]
    assert (told["state"], told["provider"], told["wanted"]) == ("injected", "HAMi-core", 10)
    assert read_uses(text) == ((injected, COUNTED), "")
    assert read_uses(text.replace("HAMi-core", "later"))[0][0].provider is LimitProvider.NONE


def test_nothing_is_no_annotation_and_no_annotation_is_nothing() -> None:
    assert write_uses(()) == ""
    assert read_uses(None) == read_uses("") == read_uses("{}") == ((), "")


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.builds(
            MemoryUse,
            card=st.sampled_from(["GPU-a", "GPU-b"]),
            namespace=st.from_regex(r"[a-z]{1,9}", fullmatch=True),
            pod=st.from_regex(r"[a-z.-]{1,9}", fullmatch=True),
            container=st.from_regex(r"[a-z-]{1,9}", fullmatch=True),
            keeping=st.just(Keeping.MISSING),
            provider=st.sampled_from(LimitProvider),
            used=st.none() | st.integers(0, 2**63 - 1),
            limit=st.none() | st.integers(1, 100),
            wanted=st.integers(101, 2**63 - 1),
            held=st.integers(0, 2**63 - 1),
        ),
        max_size=9,
    )
)
def test_what_is_written_reads_back(uses: list[MemoryUse]) -> None:
    found, problem = read_uses(write_uses(uses))
    assert problem == ""
    assert sorted(found, key=repr) == sorted(uses, key=repr)


def test_of_too_many_those_without_their_limit_are_told_first_and_the_text_has_64_kib_at_most() -> None:
    many = [MemoryUse("GPU-a", "team", f"p{at}", "main", Keeping.ACCOUNTING, at, None, None, 9) for at in range(2000)]
    text = write_uses([*many, MISSING])
    found, problem = read_uses(text)
    assert (problem, MISSING in found) == ("", True)
    assert 65_300 < len(text) <= 65_536


UNREADABLE = {
    "not JSON": ("{", "not JSON"),
    "a list": ("[]", "a list where an object must be"),
    "cards that are no list": ('{"GPU-a":{}}', "a dict where a list must be"),
    "an entry that is no object": ('{"GPU-a":[1]}', "a int where an object must be"),
    "an unknown word": ('{"GPU-a":[{"pod":"a/b","state":"kept"}]}', "'kept' is none of enforced, injected, missing"),
    "a negative amount": ('{"GPU-a":[{"state":"missing","used":-1}]}', "used is no number of bytes"),
    "a fraction": ('{"GPU-a":[{"state":"missing","held":1.5}]}', "held is no number of bytes"),
    "too long": ('{"GPU-a":[' + " " * 65536 + "]}", "more than the 64 KiB that are read"),
    "nested": ("[" * 60000, "nested too deeply"),
    "no text": (7, "a int where text must be"),
}


@pytest.mark.parametrize(("text", "why"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_tells_nothing_and_says_why(text: object, why: str) -> None:
    found, problem = read_uses(text)
    assert found == ()
    assert problem.startswith("annotation koordgate.io/memory-limits: ")
    assert why in problem


@pytest.mark.parametrize(
    ("use", "exceeds"),
    [
        (MemoryUse("c", "n", "p", "m", Keeping.ACCOUNTING, 11, None, None, 10), True),
        (MemoryUse("c", "n", "p", "m", Keeping.ACCOUNTING, 10, None, None, 10), False),
        (MemoryUse("c", "n", "p", "m", Keeping.MISSING, 11, None, 20, 10), False),
        (MemoryUse("c", "n", "p", "m", Keeping.MISSING, 21, None, 20, 10), True),
        (MemoryUse("c", "n", "p", "m", Keeping.ACCOUNTING, None, None, None, 10), False),
        (MemoryUse("c", "n", "p", "m", Keeping.ACCOUNTING, 11, None, None, 0), False),
    ],
    ids=["more", "all of it", "granted", "more than granted", "unknown", "what it holds is not stated"],
)
def test_more_than_is_held_and_granted_exceeds_the_share(use: MemoryUse, exceeds: bool) -> None:  # noqa: FBT001
    assert use.exceeds is exceeds
