"""Partition tables: reading, and which partition comes first."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_near

from allocator.topology.sets import broken, fits, why_none
from allocator.vocabulary.device import Board, Partition, PartitionPolicy, PartitionTable, Wiring
from allocator.wire.deviceobject import GPU_PARTITION_POLICY, GPU_PARTITIONS, built_in, policy_of, read_partitions

GIB = 2**30
HOPPER = built_in("", "H100") or PartitionTable()
ALL = range(8)


def table(*partitions: Partition) -> PartitionTable:
    return PartitionTable(partitions)


def part(*minors: int, score: int = 1, bandwidth: int | None = None) -> Partition:
    return Partition(minors, score, bandwidth)


SCORED = table(
    part(0, 1, score=1, bandwidth=100),
    part(2, 3, score=3, bandwidth=200),
    part(4, 5, score=3, bandwidth=400),
    part(6, 7, score=2),
)

# table, free, count, ring bandwidth, restricted, partitions best first

ORDER: dict[str, tuple[PartitionTable, list[int], int, int | None, bool, list[tuple[int, ...]]]] = {
    "empty machine: the table's order": (HOPPER, [*ALL], 2, None, False, [(0, 1), (2, 3), (4, 5), (6, 7)]),
    "what breaks nothing first": (HOPPER, [1, 2, 3, 4, 5, 6, 7], 1, None, False, [(i,) for i in (1, 2, 3, 4, 5, 6, 7)]),
    "the broken half first": (HOPPER, [2, 3, 4, 5, 6, 7], 2, None, False, [(2, 3), (4, 5), (6, 7)]),
    "the broken pair first": (
        HOPPER,
        [0, 1, 2, 3, 4, 5, 7],
        1,
        None,
        False,
        [(7,), *((i,) for i in (4, 5, 0, 1, 2, 3))],
    ),
    "all": (HOPPER, [*ALL], 8, None, False, [tuple(ALL)]),
    "one missing": (HOPPER, [0, 1, 2, 3, 4, 5, 6], 8, None, False, []),
    "not a size": (HOPPER, [*ALL], 3, None, False, []),
    "nothing free": (HOPPER, [], 2, None, False, []),
    "higher scores first": (SCORED, [*ALL], 2, None, False, [(2, 3), (4, 5), (6, 7), (0, 1)]),
    "lower scores where higher are taken": (SCORED, [0, 1, 6, 7], 2, None, False, [(6, 7), (0, 1)]),
    "restricted: highest score only": (SCORED, [*ALL], 2, None, True, [(2, 3), (4, 5)]),
    "restricted: though taken": (SCORED, [0, 1, 6, 7], 2, None, True, []),
    "bandwidth": (SCORED, [*ALL], 2, 150, False, [(2, 3), (4, 5)]),
    "bandwidth, exactly": (SCORED, [*ALL], 2, 400, False, [(4, 5)]),
    "bandwidth, none": (SCORED, [*ALL], 2, 401, False, []),
    "bandwidth of nothing must be stated too": (SCORED, [*ALL], 2, 0, False, [(2, 3), (4, 5), (0, 1)]),
    "restricted and bandwidth": (SCORED, [*ALL], 2, 100, True, [(2, 3), (4, 5)]),
    "a larger partition outweighs many smaller ones": (
        table(part(0), part(1), part(0, 2), part(0, 3), part(0, 4), part(1, 2, 3), part(5, 6, 7)),
        [*ALL],
        1,
        None,
        False,
        [(0,), (1,)],
    ),
    "a score outweighs what is kept whole": (
        table(part(0, score=2), part(1, score=1), part(0, 2)),
        [*ALL],
        1,
        None,
        False,
        [(0,), (1,)],
    ),
    "only the best-scored larger ones are kept": (
        table(part(0), part(1), part(0, 2, score=1), part(1, 3, score=5)),
        [*ALL],
        1,
        None,
        False,
        [(0,), (1,)],
    ),
    "one that breaks none of its own size first": (
        table(part(0, 1), part(1, 2), part(3, 4)),
        [*ALL],
        2,
        None,
        False,
        [(3, 4), (0, 1), (1, 2)],
    ),
    "smaller ones are no matter": (
        table(part(2), part(0), part(0, 1), part(2, 3)),
        [*ALL],
        2,
        None,
        False,
        [(0, 1), (2, 3)],
    ),
}


@pytest.mark.parametrize(("of", "free", "count", "bandwidth", "restricted", "order"), ORDER.values(), ids=ORDER)
def test_partitions_come_in_order(
    of: PartitionTable,
    free: list[int],
    count: int,
    bandwidth: int | None,
    order: list[tuple[int, ...]],
    *,
    restricted: bool,
) -> None:
    found = fits(PartitionTable(of.partitions), count, free, bandwidth, restricted=restricted)
    assert [fit.partition.minors for fit in found] == order
    assert [fit.standing for fit in found] == sorted(fit.standing for fit in found)


WHY: dict[str, tuple[PartitionTable | None, list[int], int, int | None, bool, str]] = {
    "no table": (None, [*ALL], 2, None, False, f"no partition table (annotation {GPU_PARTITIONS}"),
    "not a size": (
        HOPPER,
        [*ALL],
        3,
        None,
        False,
        "3 GPUs are not a partition here; ask for a number that the table has: 1, 2, 4, 8",
    ),
    "an empty table": (table(), [*ALL], 2, None, False, "the table has: none"),
    "nothing free": (
        HOPPER,
        [0, 2, 4],
        2,
        None,
        False,
        "4 partitions of 2 GPUs are suitable, but in each a GPU is in use",
    ),
    "how many are free": (HOPPER, [0, 2, 4], 2, None, False, "(3 GPUs wholly free)"),
    "restricted": (SCORED, [0, 1, 6, 7], 2, None, True, "2 best-scored partitions of 2 GPUs are suitable"),
    "bandwidth too low": (SCORED, [*ALL], 2, 401, False, "partitions of 2 GPUs have at most 400"),
    "bandwidth in units": (
        table(part(0, 1, bandwidth=200 * GIB)),
        [0, 1],
        2,
        400 * GIB,
        False,
        "ringBusBandwidth 400Gi asked; partitions of 2 GPUs have at most 200Gi",
    ),
    "bandwidth not stated": (HOPPER, [*ALL], 2, 1, False, "partitions of 2 GPUs state none"),
    "bandwidth high enough, taken": (SCORED, [0, 1], 2, 300, False, "1 partitions of 2 GPUs are suitable"),
}


@pytest.mark.parametrize(("of", "free", "count", "bandwidth", "restricted", "reason"), WHY.values(), ids=WHY)
def test_the_reason_is_reported_where_nothing_fits(
    of: PartitionTable | None, free: list[int], count: int, bandwidth: int | None, reason: str, *, restricted: bool
) -> None:
    assert of is None or not fits(of, count, free, bandwidth, restricted=restricted)
    assert reason in why_none(of, count, free, bandwidth, restricted=restricted)


# Where the table comes from

MODELS = {
    ("", "H100"): True,
    ("nvidia", "H800"): True,
    ("nvidia", "H20"): True,
    ("nvidia", "H100-80GB-HBM3"): True,
    ("nvidia", "H100-PCIe"): False,
    ("nvidia", "H100-NVL"): False,
    ("nvidia", "A100-SXM4-80GB"): False,
    ("nvidia", "H1000"): False,
    ("nvidia", ""): False,
    ("huawei", "H100"): False,
}


@pytest.mark.parametrize(("vendor", "model"), MODELS)
def test_boards_of_the_hopper_family_have_a_table(vendor: str, model: str) -> None:
    assert (built_in(vendor, model) is not None) is MODELS[vendor, model]


def test_the_built_in_table_is_pairs_halves_and_all() -> None:
    assert {size: [p.minors for p in listed] for size, listed in HOPPER.sizes.items()} == {
        1: [(minor,) for minor in range(8)],
        2: [(0, 1), (2, 3), (4, 5), (6, 7)],
        4: [(0, 1, 2, 3), (4, 5, 6, 7)],
        8: [(0, 1, 2, 3, 4, 5, 6, 7)],
    }


def test_devices_of_a_type_have_its_own_table_or_that_of_all_others() -> None:
    common, own = table(part(0)), table(part(1))
    wiring = Wiring(partitions=common, others=(("b", own), ("d", None)))
    assert [wiring.table(kind) for kind in "abcde"] == [common, own, common, None, common]


@pytest.mark.parametrize(
    ("vendors", "vendor", "fits"),
    [((), "", True), ((), "x", True), (("x", "y"), "", True), (("x", "y"), "y", True), (("x", "y"), "z", False)],
)
def test_a_board_of_no_stated_vendor_may_be_anybodys(vendors: tuple[str, ...], vendor: str, *, fits: bool) -> None:
    assert Board(("A",), table(), vendors).fits(vendor, "A") is fits


POLICIES: dict[str, tuple[dict[str, Any], dict[str, Any], bool, PartitionPolicy]] = {
    "none": ({}, {}, True, PartitionPolicy.PREFER),
    "Device": ({GPU_PARTITION_POLICY: "Honor"}, {}, True, PartitionPolicy.HONOR),
    "Device's counts with its table": (
        {GPU_PARTITION_POLICY: "Prefer"},
        {GPU_PARTITION_POLICY: "Honor"},
        True,
        PartitionPolicy.PREFER,
    ),
    "Node's counts without": (
        {GPU_PARTITION_POLICY: "Prefer"},
        {GPU_PARTITION_POLICY: "Honor"},
        False,
        PartitionPolicy.HONOR,
    ),
    "anything else": ({GPU_PARTITION_POLICY: "honor"}, {}, True, PartitionPolicy.PREFER),
    "no text": ({GPU_PARTITION_POLICY: ["Honor"]}, {}, True, PartitionPolicy.PREFER),
}


@pytest.mark.parametrize(("device", "node", "stated", "policy"), POLICIES.values(), ids=POLICIES)
def test_the_policy_is_read_where_the_table_stands(
    device: dict[str, Any], node: dict[str, Any], policy: PartitionPolicy, *, stated: bool
) -> None:
    assert policy_of(device, node, stated=stated) is policy


# The annotation


def test_koordinators_format_is_read() -> None:
    text = (
        '{"2":[{"minors":[1,0],"gpuLinkType":"NVLink","ringBusBandwidth":"400Gi","allocationScore":1},{"minors":[2,3]}],'
        '"1":[{"minors":[5]}]}'
    )
    found, problems = read_partitions(text)
    assert problems == ()
    assert found.partitions == (Partition((0, 1), 1, 400 * GIB, "NVLink"), Partition((2, 3)), Partition((5,)))


WRONG: dict[str, tuple[object, int, str]] = {
    "not text": (None, 0, "not JSON"),
    "too long": (" " * 2**18 + "{}", 0, "more than the 256 KiB that are read"),
    "not JSON": ("{", 0, "not JSON"),
    "deep": ("[" * 100_000, 0, "not JSON"),
    "a list": ("[]", 0, "not an object"),
    "no list": ('{"2":{},"1":[{"minors":[0]}]}', 1, "'2']: not a list"),
    "no object": ('{"1":[7,{"minors":[0]}]}', 1, "'1'][0]: not an object"),
    "an unknown key": ('{"1":[{"minors":[0],"score":1}]}', 0, "unknown key 'score'"),
    "no minors": ('{"1":[{}]}', 0, "minors is not a list of '1' numbers"),
    "fewer minors than said": ('{"2":[{"minors":[0]}]}', 0, "minors is not a list of '2' numbers"),
    "no minors, as is said": ('{"0":[{"minors":[]}],"1":[{"minors":[3]}]}', 1, "minors is not a list of '0' numbers"),
    "a minor twice": ('{"2":[{"minors":[0,0]}]}', 0, "a minor occurs twice"),
    "a set twice": ('{"2":[{"minors":[0,1]},{"minors":[1,0]}]}', 1, "these minors occur twice"),
    "65 minors": (json.dumps({str(n): [{"minors": [*range(n)]}] for n in (64, 65)}), 1, "'65' numbers (1 to 64)"),
    "a negative minor": ('{"1":[{"minors":[-1]}]}', 0, "a minor is not"),
    "true for a minor": ('{"1":[{"minors":[true]}]}', 0, "a minor is not"),
    "a minor beyond int32": ('{"1":[{"minors":[2147483647]},{"minors":[2147483648]}]}', 1, "a minor is not"),
    "a bandwidth of nonsense": ('{"1":[{"minors":[0],"ringBusBandwidth":"fast"}]}', 0, "ringBusBandwidth: 'fast'"),
    "a negative bandwidth": ('{"1":[{"minors":[0],"ringBusBandwidth":"-1"}]}', 0, "negative"),
    "half a score": ('{"1":[{"minors":[0],"allocationScore":0.5}]}', 0, "allocationScore is not"),
    "a link of 65 characters": (
        json.dumps({"1": [{"minors": [at], "gpuLinkType": "x" * (64 + at)} for at in range(2)]}),
        1,
        "gpuLinkType is not",
    ),
    "a link of nonsense": ('{"1":[{"minors":[0],"gpuLinkType":["NVLink"]}]}', 0, "gpuLinkType is not"),
}


@pytest.mark.parametrize(("text", "read", "problem"), WRONG.values(), ids=WRONG)
def test_what_makes_no_sense_is_left_out_and_named(text: object, read: int, problem: str) -> None:
    found, problems = read_partitions(text)
    assert len(found.partitions) == read
    assert len(problems) == 1
    assert problem in problems[0]
    assert GPU_PARTITIONS in problems[0]


def test_a_table_of_too_many_partitions_is_cut_and_that_is_reported() -> None:
    raw = {"1": [{"minors": [minor]} for minor in range(2000)]}
    found, problems = read_partitions(json.dumps(raw))
    assert len(found.partitions) == 1024
    assert "rest left out" in problems[-1]


def test_problems_are_bounded_in_number_and_length() -> None:
    raw = {"x" * 1000: [{"minors": ["y" * 1000]}] * 1000}
    _, problems = read_partitions(json.dumps(raw))
    assert 0 < len(problems) <= 9
    assert all(len(problem) < 500 for problem in problems)


def test_partitions_that_a_share_breaks_are_counted_the_largest_size_first() -> None:
    four = [Partition((0, 1, 2, 3), 9), Partition((0, 1, 4, 5), 9), Partition((0, 2, 4, 6), 8)]
    two = [Partition((0, 1), 5), Partition((0, 2), 4), Partition((2, 3), 5)]
    whole = table(*two, *four, Partition((0,), 1), Partition((3,), 1))

    assert broken(whole, 0, frozenset(range(6))) == (2, 1, 1)
    assert broken(whole, 3, frozenset(range(6))) == (1, 1, 1)
    assert broken(whole, 0, frozenset({0, 2, 4, 6})) == (0, 0, 1)


KEYS = ["1", "2", "minors", "gpuLinkType", "ringBusBandwidth", "allocationScore"]


@given(json_near(KEYS, [0, 1, -1, True, None, [0], [0, 1], "400Gi", "NVLink", 2**70, 0.5]))
def test_any_json_is_read_without_harm(raw: Any) -> None:
    found, problems = read_partitions(json.dumps(raw))
    assert read_partitions(written(found)) == (PartitionTable(_by_size(found)), ())
    assert all(isinstance(problem, str) for problem in problems)


def written(of: PartitionTable) -> str:
    """The annotation as Koordinator writes it: empty fields left out."""
    raw: dict[str, list[dict[str, Any]]] = {}
    for one in of.partitions:
        told = {"gpuLinkType": one.link, "allocationScore": one.score}
        ring = {} if one.bandwidth is None else {"ringBusBandwidth": str(one.bandwidth)}
        entry = {"minors": list(one.minors), **ring, **{key: value for key, value in told.items() if value}}
        raw.setdefault(str(len(one.minors)), []).append(entry)
    return json.dumps(raw)


def _by_size(of: PartitionTable) -> tuple[Partition, ...]:
    return tuple(partition for listed in of.sizes.values() for partition in listed)


@st.composite
def tables(draw: st.DrawFn) -> PartitionTable:
    sets = draw(st.lists(st.frozensets(st.integers(0, 15), min_size=1, max_size=8), max_size=10, unique=True))
    made = PartitionTable(
        tuple(
            Partition(
                tuple(sorted(one)),
                draw(st.integers(0, 9)),
                draw(st.none() | st.integers(0, 2**62)),
                draw(st.sampled_from(["", "NVLink", "PCIe"])),
            )
            for one in sets
        )
    )
    return PartitionTable(_by_size(made))


@given(tables())
def test_whatever_is_written_is_read(of: PartitionTable) -> None:
    assert read_partitions(written(of)) == (of, ())


@given(
    of=tables(),
    count=st.integers(1, 8),
    free=st.frozensets(st.integers(0, 15)),
    bandwidth=st.none() | st.integers(0, 2**62),
    restricted=st.booleans(),
)
def test_all_that_fit_are_found_and_nothing_else(
    of: PartitionTable, count: int, free: frozenset[int], bandwidth: int | None, *, restricted: bool
) -> None:
    found = [fit.partition for fit in fits(of, count, free, bandwidth, restricted=restricted)]
    sized = [one for one in of.partitions if len(one.minors) == count]
    best = max((one.score for one in sized), default=0)
    good = [
        one
        for one in sized
        if set(one.minors) <= free
        and (bandwidth is None or (one.bandwidth is not None and one.bandwidth >= bandwidth))
        and (not restricted or one.score == best)
    ]
    assert sorted(found) == sorted(good)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    if not found:
        assert why_none(of, count, free, bandwidth, restricted=restricted)
