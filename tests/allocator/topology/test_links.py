"""Connections between the devices of one node."""

import json
from itertools import combinations
from typing import Any

import pytest
from boards import BOARDS, CUBE_MESH, bridged, places, switched
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_near

from allocator.vocabulary.device import (
    LANE_WEIGHT,
    MAX_DEVICES,
    MAX_LANES,
    NO_LINKS,
    NUMA_WEIGHT,
    PCIE_WEIGHT,
    SOCKET_WEIGHT,
    SWITCH,
    Place,
    link,
)
from allocator.wire.deviceobject import DEVICE_LINKS, read_links, write_links

ROOT, NUMA, SOCKET, LANE = PCIE_WEIGHT, NUMA_WEIGHT, SOCKET_WEIGHT, LANE_WEIGHT

WEIGHTS: dict[str, tuple[Place, Place, int, int]] = {
    "nothing in common": (Place("a", 0, "x", 0), Place("b", 1, "y", 1), 0, 0),
    "nothing known": (Place("a"), Place("b"), 0, 0),
    "one socket": (Place("a", 0, "x", 0), Place("b", 1, "y", 0), 0, SOCKET),
    "one NUMA node": (Place("a", 0, "x"), Place("b", 0, "y"), 0, NUMA),
    "one PCIe root": (Place("a", 0, "x", 0), Place("b", 0, "x", 0), 0, ROOT + NUMA + SOCKET),
    "lanes over all": (Place("a", 0, "x", 0), Place("b", 1, "y", 1), 2, 2 * LANE),
}


@pytest.mark.parametrize(("one", "other", "lanes", "weight"), WEIGHTS.values(), ids=WEIGHTS)
def test_a_pair_weighs_what_joins_it(one: Place, other: Place, lanes: int, weight: int) -> None:
    links = link([one, other], {("a", "b"): lanes} if lanes else {})
    assert links.weight("a", "b") == links.weight("b", "a") == weight
    assert links.weight("a", "a") == 0


def test_a_device_that_is_not_known_is_connected_to_nothing() -> None:
    _, links = BOARDS["DGX-1V: hybrid cube mesh"]
    assert links.weight("GPU-00", "elsewhere") == 0
    assert links.measure(["GPU-00", "elsewhere", "GPU-03"]) == links.weight("GPU-00", "GPU-03")


def test_no_number_of_weaker_pairs_outweighs_one_stronger() -> None:
    pairs = 64 * 63 // 2
    assert SOCKET_WEIGHT == 1
    assert pairs * SOCKET < NUMA_WEIGHT == 2**11
    assert pairs * (SOCKET + NUMA) < PCIE_WEIGHT == 2**22
    assert pairs * (SOCKET + NUMA + ROOT) < LANE_WEIGHT == 2**33


def test_more_devices_than_any_node_has_are_not_linked() -> None:
    assert link(places(MAX_DEVICES, roots=2)) is not NO_LINKS
    assert link(places(MAX_DEVICES + 1, roots=2)) is NO_LINKS


def test_nodes_of_one_make_share_their_matrix() -> None:
    lanes = bridged(CUBE_MESH)
    one = link(places(8, roots=4, numas=2), lanes)
    renamed = [
        place._replace(id=place.id.replace("GPU", "GPU-of-another-node")) for place in places(8, roots=4, numas=2)
    ]
    ids = {place.id: other.id for place, other in zip(places(8), renamed, strict=True)}
    other = link(renamed, {(ids[a], ids[b]): count for (a, b), count in lanes.items()})
    assert other.rows is one.rows
    assert other.ids != one.ids


# The annotation

READ: dict[str, tuple[Any, dict[tuple[str, str], int]]] = {
    "both state them": ({"a": {"b": 12}, "b": {"a": 12}}, {("a", "b"): 12}),
    "one states them": ({"b": {"a": 3}}, {("a", "b"): 3}),
    "none": ({}, {}),
    "no lanes": ({"a": {"b": 0}}, {}),
    "switched": ({"a": {SWITCH: 12}, "b": {SWITCH: 12}, "c": {}}, {("a", "b"): 12}),
    "switched, but for the first": ({"b": {SWITCH: 12}, "c": {SWITCH: 12}}, {("b", "c"): 12}),
    "switched with fewer lanes": ({"a": {SWITCH: 12}, "b": {SWITCH: 10}}, {("a", "b"): 10}),
    "switched and direct": ({"a": {SWITCH: 4, "b": 2}, "b": {SWITCH: 4}}, {("a", "b"): 6}),
}


@pytest.mark.parametrize(("raw", "lanes"), READ.values(), ids=READ)
def test_lanes_are_read(raw: Any, lanes: dict[tuple[str, str], int]) -> None:
    assert read_links(json.dumps(raw), ["a", "b", "c"]) == (lanes, ())


def test_ids_before_and_after_the_word_for_switches_are_devices() -> None:
    raw = {"GPU-0": {"GPU-1": 2, "Z": 3, SWITCH: 4}, "GPU-1": {"Z": 5, SWITCH: 6}, "Z": {SWITCH: 1}}

    found = read_links(json.dumps(raw), ["GPU-0", "GPU-1", "Z"])

    assert found == ({("GPU-0", "GPU-1"): 6, ("GPU-0", "Z"): 4, ("GPU-1", "Z"): 6}, ())


WRONG: dict[str, tuple[object, dict[tuple[str, str], int], str]] = {
    "not text": (12, {}, "not JSON"),
    "too long": (" " * 2**18 + "{}", {}, "more than the 256 KiB that are read"),
    "not JSON": ("{", {}, "not JSON"),
    "deep": ("[" * 100_000, {}, "not JSON"),
    "a list": ("[]", {}, "not an object of devices"),
    "peers that are a list": ('{"a":["b"],"b":{"c":1}}', {("b", "c"): 1}, "not an object of peers"),
    "a device of another node": ('{"x":{"b":1},"b":{"c":1}}', {("b", "c"): 1}, "not a device of this node"),
    "a peer of another node": ('{"a":{"x":1,"b":1}}', {("a", "b"): 1}, "no other device"),
    "itself": ('{"a":{"a":1}}', {}, "no other device"),
    "text for lanes": ('{"a":{"b":"NV12","c":1}}', {("a", "c"): 1}, "not a number of lanes"),
    "half a lane": ('{"a":{"b":1.5}}', {}, "not a number of lanes"),
    "true": ('{"a":{"b":true}}', {}, "not a number of lanes"),
    "negative": ('{"a":{"b":-1}}', {}, "not a number of lanes"),
    "absurd": ('{"a":{"b":65}}', {}, "not a number of lanes"),
    "a contradiction": ('{"a":{"b":4},"b":{"a":2}}', {("a", "b"): 2}, "'a' and 'b' state 4 and 2 lanes; the smaller"),
    "its reverse": ('{"a":{"b":2},"b":{"a":4}}', {("a", "b"): 2}, "'a' and 'b' state 2 and 4 lanes; the smaller"),
}


@pytest.mark.parametrize(("text", "lanes", "problem"), WRONG.values(), ids=WRONG)
def test_what_makes_no_sense_is_left_out_and_named(
    text: object, lanes: dict[tuple[str, str], int], problem: str
) -> None:
    found, problems = read_links(text, ["a", "b", "c"])
    assert found == lanes
    assert len(problems) == 1
    assert problem in problems[0]
    assert DEVICE_LINKS in problems[0]


def test_problems_are_bounded_in_number_and_length() -> None:
    raw: dict[str, Any] = {"x" * 1000 + str(index): {} for index in range(100)}
    _, problems = read_links(json.dumps(raw), ["a"])
    assert 0 < len(problems) <= 8
    assert all(len(problem) < 300 for problem in problems)


@given(json_near(["a", "b", "c", SWITCH], [0, 1, 12, 64, 65, -1, True, None]))
def test_any_json_is_read_without_harm(raw: Any) -> None:
    lanes, problems = read_links(json.dumps(raw), ["a", "b", "c"])
    assert all(one < other and 0 < count <= 2 * MAX_LANES for (one, other), count in lanes.items())
    assert all(isinstance(problem, str) for problem in problems)


@given(st.dictionaries(st.sampled_from(list(combinations("abcd", 2))), st.integers(1, MAX_LANES)))
def test_what_is_written_is_read(lanes: dict[tuple[str, str], int]) -> None:
    assert read_links(write_links(lanes), "abcd") == (lanes, ())


def test_links_are_written_in_the_order_of_devices() -> None:
    assert write_links({("b", "c"): 2, ("a", "c"): 1}) == '{"a":{"c":1},"b":{"c":2},"c":{"a":1,"b":2}}'


def test_links_do_not_depend_on_the_order_of_lanes() -> None:
    lanes = bridged(CUBE_MESH)
    assert link(places(8), lanes) == link(places(8), dict(reversed(lanes.items())))
    assert switched(3, 18) == {("GPU-00", "GPU-01"): 18, ("GPU-00", "GPU-02"): 18, ("GPU-01", "GPU-02"): 18}
