"""The annotation device-sharing: what is read, and every mistake that is named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharings import read, serves, sharing, uses, wrong

from allocator.request.original import read_asks
from allocator.request.pod import is_ours
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.names import DEVICE_SHARING
from allocator.vocabulary.outcome import Problem
from allocator.vocabulary.sharing import Regions, TypeSharing
from allocator.wire.devicesharing import read_sharing, write_sharing

PATH = f"metadata.annotations[{DEVICE_SHARING}]"


def problems(text: object) -> list[str]:
    found = read_sharing({DEVICE_SHARING: text}, BUILT_IN.by_name)
    assert isinstance(found, tuple)
    assert all(isinstance(one, Problem) for one in found)
    return [str(one) for one in found]


def test_everything_that_may_be_said_is_read() -> None:
    said = {
        "users": ["a", "b"],
        "weights": {"a": 1000, "b": 1},
        "groups": {"g": ["a"], "h": ["b"]},
        "regions": "GroupEach",
        "slot": 100,
    }
    assert read_sharing({DEVICE_SHARING: json.dumps({"gpu": said, "rdma": {}})}, BUILT_IN.by_name) == {
        "gpu": TypeSharing(
            ("a", "b"), (("a", 1000), ("b", 1)), (("g", ("a",)), ("h", ("b",))), Regions.GROUP_EACH, 100
        ),
        "rdma": TypeSharing(),
    }


def test_a_pod_without_the_annotation_says_nothing() -> None:
    assert read_sharing({}, BUILT_IN.by_name) is None
    assert read_sharing({DEVICE_SHARING: "{}"}, BUILT_IN.by_name) == {}


@pytest.mark.parametrize(
    ("said", "where", "told"),
    [
        ({"user": ["a"]}, "", "unknown key 'user'; use users or weights or groups or regions or slot"),
        ({"users": "a"}, ".users", "must be a list of at most 64"),
        ({"users": [f"c{at}" for at in range(65)]}, ".users", "must be a list of at most 64"),
        ({"users": ["a", "a"]}, ".users", "must name each container once"),
        ({"users": ["A b"]}, ".users", "'A b' is not a container's name"),
        ({"users": [1]}, ".users", "what is written here is not a container's name"),
        ({"users": ["x" * 64]}, ".users", f"'{'x' * 64}' is not a container's name"),
        ({"users": ["\ud800"]}, ".users", "'\\ud800' is not a container's name"),
        ({"weights": {"a": 0}}, ".weights.'a'", "must be a whole number from 1 to 1000"),
        ({"weights": {"a": 1001}}, ".weights.'a'", "must be a whole number from 1 to 1000"),
        ({"weights": {"a": True}}, ".weights.'a'", "must be a whole number from 1 to 1000"),
        ({"weights": {"a": 1.5}}, ".weights.'a'", "must be a whole number from 1 to 1000"),
        ({"weights": ["a"]}, ".weights", "must be a JSON object"),
        ({"weights": {f"c{at}": 1 for at in range(65)}}, ".weights", "must have at most 64 entries"),
        ({"groups": {"g": []}}, ".groups.'g'", "must be a list of containers"),
        ({"groups": {"g": "a"}}, ".groups.'g'", "must be a list of at most 64"),
        ({"groups": {f"g{at}": ["a"] for at in range(65)}}, ".groups", "must have at most 64 entries"),
        ({"regions": "Each"}, ".regions", "'Each' is not allowed; use OneGroup or GroupEach"),
        ({"slot": 0}, ".slot", "must be a whole number from 1 to 100"),
        ({"slot": 101}, ".slot", "must be a whole number from 1 to 100"),
        ({"slot": "50"}, ".slot", "must be a whole number from 1 to 100"),
    ],
)
def test_each_mistake_is_named(said: Any, where: str, told: str) -> None:
    assert problems(json.dumps({"gpu": said}))[0] == f"{PATH}.gpu{where}: {told}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "must be a JSON object"),
        ("{", "must be a JSON object (Expecting"),
        ('{"gpu":{},"gpu":{}}', "must be a JSON object (a key occurs twice)"),
        ('{"tpu":{}}', "unknown key 'tpu'; use fpga or gpu or rdma"),
        ('{"gpu":[]}', "must be a JSON object"),
        (f'{{"gpu":{{}}{" " * 2**16}}}', "must be a text of at most 64 KiB"),
        (None, "must be a text of at most 64 KiB"),
    ],
)
def test_an_annotation_of_another_form_is_refused(text: object, told: str) -> None:
    assert told in problems(text)[0]


def test_mistakes_are_bounded() -> None:
    assert len(problems(json.dumps({f"type-{at}": {} for at in range(500)}))) == 16


def test_an_unreadable_annotation_refuses_a_pod_that_asks_for_devices_and_one_that_does_not() -> None:
    for obj in (sharing(uses("a", 50), slots=3), sharing(uses("a"), slots=3)):
        assert wrong(obj)[0].startswith(f"{PATH}.gpu: unknown key 'slots'")


NAME = st.from_regex(r"[a-z][a-z0-9-]{0,5}[a-z0-9]", fullmatch=True)
NAMES = st.lists(NAME, max_size=4, unique=True).map(tuple)
SAID = st.builds(
    TypeSharing,
    NAMES,
    st.dictionaries(NAME, st.integers(1, 1000), max_size=3).map(lambda one: tuple(one.items())),
    st.dictionaries(st.text(max_size=4), NAMES.filter(bool), max_size=3).map(lambda one: tuple(one.items())),
    st.sampled_from(Regions),
    st.integers(0, 100),
)


@given(st.dictionaries(st.sampled_from(sorted(BUILT_IN.by_name)), SAID))
def test_what_is_written_reads_back(said: dict[str, TypeSharing]) -> None:
    assert read_sharing({DEVICE_SHARING: write_sharing(said)}, BUILT_IN.by_name) == said


KEYS = st.sampled_from(["gpu", "users", "weights", "groups", "slot", "regions", "a"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(KEYS, one)
)


@given(st.text() | ANYTHING.map(json.dumps))
def test_no_annotation_makes_reading_fail(text: str) -> None:
    obj = sharing(uses("a", 50), init=[serves("b")])
    obj["metadata"]["annotations"][DEVICE_SHARING] = text
    assert is_ours(obj)
    assert read_asks(obj).request is not None


def test_a_pod_that_names_users_is_ours_before_it_is_translated() -> None:
    obj = sharing(uses("a"), users=["a"], slot=10)
    assert is_ours(obj)
    assert read(obj).request
