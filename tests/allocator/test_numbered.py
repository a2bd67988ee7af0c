"""Devices that annotations name by minor alone: which ones they meant when the minors were resolved."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.disputed import meant
from allocator.vocabulary.adopted import Numbering, Numberings
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Share
from allocator.wire.deviceobject import read_numberings, starts_of, write_numberings

NOW = tuple(
    Device(kind, f"{kind}-{identity}", minor, healthy=True, capacity={kind: 100})
    for kind in ("gpu", "npu", "rdma")
    for minor, identity in enumerate("ba")
)
PAST = tuple(
    Numbering(
        since,
        after,
        minors=tuple((minor, f"gpu-{identity}") for minor, identity in enumerate(ids)),
        others=tuple((kind, minor, f"{kind}-{one}") for kind in ("npu", "rdma") for minor, one in enumerate(ids)),
    )
    for since, after, ids in ((100, 100, "ab"), (200, 190, "ba"))
)
OLD = (Numbering(100, 100, minors=((0, "gpu-a"), (1, "gpu-b"))),)


def named(kind: str, minor: int, starts: tuple[int, ...], past: Numberings = PAST) -> list[str]:
    ((_, ids),) = meant([Share(kind, "", minor, {})], starts, past, NOW)
    return [identity.removeprefix(f"{kind}-") for identity in ids]


@pytest.mark.parametrize("kind", ["gpu", "npu", "rdma"])
@pytest.mark.parametrize(
    ("minor", "starts", "ids"),
    [
        (0, (150,), "a"),
        (1, (150,), "b"),
        (0, (200,), "b"),
        (0, (10**9,), "b"),
        (0, (195,), "ab"),
        (0, (150, 250), "ab"),
        (0, (), "ab"),
        (0, (50,), "ab"),
        (7, (150,), ""),
        (7, (), ""),
    ],
    ids=[
        "before",
        "the other",
        "since then",
        "long since",
        "about then",
        "before and since",
        "nobody knows when",
        "before anything is known",
        "no such device",
        "no such device at any time",
    ],
)
def test_a_minor_is_the_device_that_had_it_when_it_was_resolved(
    kind: str, minor: int, starts: tuple[int, ...], ids: str
) -> None:
    assert named(kind, minor, starts) == list(ids)


def test_a_type_without_a_history_is_taken_as_it_is_now() -> None:
    assert named("rdma", 0, (150,), OLD) == ["b"]
    assert named("gpu", 0, (150,), ()) == ["b"]
    assert named("gpu", 0, (150,), OLD) == ["a"]


def test_an_id_needs_no_number() -> None:
    share = Share("gpu", "gpu-z", 0, {})
    assert list(meant([share], (), PAST, NOW)) == [(share, ("gpu-z",))]


MINORS = st.dictionaries(st.integers(0, 5), st.text("abc", min_size=1, max_size=2), min_size=1)
HISTORIES = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 9), MINORS, st.dictionaries(st.sampled_from(["npu", "x"]), MINORS)),
    max_size=5,
).map(
    lambda listed: tuple(
        Numbering(
            100 * at + since + gap,
            100 * at + since if at else since + gap,
            minors=tuple(sorted(minors.items())),
            others=tuple(sorted((kind, *one) for kind, those in others.items() for one in those.items())),
        )
        for at, (since, gap, minors, others) in enumerate(listed)
        if gap + since < 100
    )
)


@settings(max_examples=examples(100))
@given(HISTORIES)
def test_a_history_is_read_as_it_was_written(past: Numberings) -> None:
    assert read_numberings(write_numberings(past)) == (past, "")


@settings(max_examples=examples(200))
@given(HISTORIES, st.integers(0, 600), st.integers(0, 5))
def test_the_device_that_had_a_minor_at_a_time_is_among_those_that_it_may_have_meant(
    past: Numberings, time: int, minor: int
) -> None:
    ((_, ids),) = meant([Share("gpu", "", minor, {})], (time,), past, ())
    ends = [one.after for one in past[1:]] + [10**9]
    sure = [one for one, end in zip(past, ends, strict=False) if one.since <= time <= end]
    assert all(dict(one.minors).get(minor) in {None, *ids} for one in sure)
    assert len(ids) <= len(past)


def test_of_a_node_with_very_many_devices_the_latest_history_is_written_that_can_be_read() -> None:
    """16 entries of 1,000 NICs would be longer than what is read of an annotation."""
    nics = tuple(("rdma", minor, f"0000:{minor:02x}:00.0") for minor in range(1000))
    past = tuple(Numbering(at, at, others=nics) for at in range(1, 17))
    read, wrong = read_numberings(write_numberings(past))
    assert wrong == ""
    assert read == past[-len(read) :]
    assert read


RUNNING = {"state": {"running": {"startedAt": "1970-01-01T00:02:30Z"}}}
BOUND = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:01:40Z"}


@pytest.mark.parametrize(
    ("status", "starts"),
    [
        ({}, ()),
        ({"startTime": "1970-01-01T00:01:45Z"}, (105,)),
        ({"startTime": "1970-01-01T00:01:45Z", "conditions": [{"type": "Ready"}, BOUND]}, (100,)),
        ({"conditions": [BOUND], "containerStatuses": [RUNNING, {"state": {"waiting": {}}}, RUNNING]}, (150,)),
        ({"conditions": [{**BOUND, "lastTransitionTime": None}], "startTime": "tomorrow"}, ()),
    ],
    ids=["nothing", "the Pod's start", "its bind", "a container's start", "no time"],
)
def test_minors_are_resolved_when_containers_start_otherwise_by_the_bind(
    status: dict[str, Any], starts: tuple[int, ...]
) -> None:
    assert starts_of({"status": status}) == starts
    assert starts_of({}) == ()
