"""The annotation device-sharing: what is read, and every mistake that is named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharings import read, serves, sharing, uses, wrong

from allocator.request.original import read_asks
from allocator.request.pod import is_ours
from allocator.vocabulary.asks import Regions, TypeSharing
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.names import DEVICE_SHARING
from allocator.vocabulary.outcome import Problem
from allocator.wire.podannotations import read_sharing, write_sharing

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
        (f'{{"gpu":{{}}{" " * 2**16}}}', "more than the 64 KiB that are read"),
        (None, "a NoneType where text must be"),
    ],
)
def test_an_annotation_of_another_form_is_refused(text: object, told: str) -> None:
    assert told in problems(text)[0]


def test_mistakes_are_bounded() -> None:
    assert len(problems(json.dumps({f"type-{at}": {} for at in range(500)}))) == 16


MIXED = (
    "which cannot be mixed: state an amount in every container that uses gpu and leave out users, or state none and "
    "name all of them in users"
)
NO_SLOT = (
    "states no slot, and there is no default: write slot, percent of one card for all users together; or ask an "
    "administrator for devices.defaultSlotResourceFraction"
)
EACH = "write regions: GroupEach, so that each has its own"
MANY = [f"c{at:02}" for at in range(18)]
FIRST = "c00, c01, c02, c03, c04, c05, c06"


def over(containers: str, core: int) -> str:
    """That containers of one group ask for more of a card than it has."""
    only = "where only multiples of 100 are whole devices; ask 100 or 200"
    return f"{containers} share one holding: gpu-core {core} is over 100, {only} in all; or {EACH}"


QUEUES = BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)])


@pytest.mark.parametrize(
    ("obj", "where", "told"),
    [
        (
            sharing(uses("a"), users=["x", "a", "y"], slot=50),
            ".gpu.users",
            "x is no container of the Pod; name those of its containers",
        ),
        (
            sharing(uses("a", 10), groups={"g": ["a", "x"], "h": ["y"]}),
            ".gpu.groups",
            "x is no container of the Pod; name those of its containers",
        ),
        (
            sharing(uses("a", 10), uses("b"), uses("c"), groups={"g": ["b", "a", "c"]}),
            ".gpu.groups",
            "container b asks for no gpu; state an amount in it, or name it in users",
        ),
        (
            sharing(uses("a", 10), uses("b", 10), uses("c", 10), groups={"g": ["c", "b"], "h": ["a", "b", "c"]}),
            ".gpu.groups",
            "container c is named twice; a container has one group",
        ),
        (
            sharing(uses("a", 10), groups={"g": ["a"], "h": ["a"], "i": ["a"]}),
            ".gpu.groups",
            "container a is named twice; a container has one group",
        ),
        (
            sharing(uses("a", 10), uses("b"), users=["b"], slot=50),
            ".gpu.users",
            f"container a states an amount of gpu, and container b is a user without one, {MIXED}",
        ),
        (
            sharing(uses("a", 10), uses("b", 10), users=["b", "a"], slot=50),
            ".gpu.users",
            f"containers a and b state an amount of gpu, and containers b and a are users without one, {MIXED}",
        ),
        (
            sharing(uses("a"), uses("b"), users=["a"], weights={"x": 2, "b": 2, "a": 1}, slot=50),
            ".gpu.weights",
            (
                "x is not in users; weights are for containers that state no amount, and the amounts of others state "
                "their parts"
            ),
        ),
        (
            sharing(uses("a", 10), slot=50),
            ".gpu.slot",
            "is for users, and there are none: the amounts of containers state what they get",
        ),
        (sharing(uses("a"), users=["a"]), ".gpu", NO_SLOT),
        (
            sharing(uses("a"), types={"queue": {"users": ["a"], "slot": 50}}),
            ".queue.users",
            "devices of type queue are not given in any percent; state an amount in containers",
        ),
        (
            sharing(uses("a", 20), uses("b", core=20, ratio=20, shared=2), uses("c", core=20, ratio=20, shared=2)),
            ".gpu",
            f"container b asks for parts of several cards, and a group shares one; {EACH}",
        ),
        (
            sharing(uses("a", 20), uses("b", ratio=20, shared=2), groups={"g": ["a", "b"]}),
            ".gpu",
            "container b asks for parts of several cards, and a group shares one; put them into different groups",
        ),
        (
            sharing(uses("a", ratio=20), uses("b", memory=1), uses("c", memory=2), uses("d", ratio=20)),
            ".gpu",
            (
                "containers a, b, c and d share one holding: b states gpu-memory and a gpu-memory-ratio; state the "
                f"same one in all of them; {EACH}"
            ),
        ),
        (sharing(uses("a", 60), uses("b", 60)), ".gpu", over("containers a and b", 120)),
        (sharing(*(uses(name, 20) for name in MANY[:8])), ".gpu", over(f"containers {FIRST} and c07", 160)),
        (sharing(*(uses(name, 20) for name in MANY[:9])), ".gpu", over(f"containers {FIRST}, c07 and 1 more", 180)),
        (sharing(*(uses(name, 10) for name in MANY)), ".gpu", over(f"containers {FIRST}, c07 and 10 more", 180)),
    ],
)
def test_what_the_annotation_says_of_other_containers_than_the_pod_has_is_named(
    obj: Any, where: str, told: str
) -> None:
    assert wrong(obj, QUEUES) == [f"{PATH}{where}: {told}"]


def test_the_mistakes_of_all_types_are_named_and_one_of_a_type_hides_none_of_another() -> None:
    types = {"gpu": {"slot": 5}, "rdma": {"weights": {"a": 1}}, "fpga": {}}
    told = wrong(sharing(uses("a", 10, rdma=10, fpga=10), types=types))
    assert [one.partition(": ")[0] for one in told] == [f"{PATH}.gpu.slot", f"{PATH}.rdma.weights"]
    twice = sharing(uses("a", 60, rdma=60), uses("b", 60, rdma=60), types={"gpu": {}, "rdma": {}})
    assert [one.partition(": ")[0] for one in wrong(twice)] == [f"{PATH}.gpu", f"{PATH}.rdma"]


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
