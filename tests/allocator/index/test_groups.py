"""Groups of idle devices: what links connect, or what a partition table says."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

import pytest
from boards import BOARDS
from builders import gpu, holding, part
from hypothesis import given
from hypothesis import strategies as st

from allocator.index.rows import groups_of
from allocator.vocabulary.device import (
    HOPPER,
    LANE_WEIGHT,
    Device,
    Links,
    Partition,
    PartitionTable,
    Place,
    Wiring,
    link,
)
from allocator.vocabulary.node import NodeSnapshot

LINE: Final = ((0, 1), (1, 2), (2, 3))
EIGHT: Final = tuple((a, b) for a in range(8) for b in range(a))


def node_of(
    count: int,
    lanes: Iterable[tuple[int, int]],
    *,
    broken: Collection[int] = (),
    used: Collection[int] = (),
    table: PartitionTable | None = None,
) -> NodeSnapshot:
    cards = tuple(gpu(minor, device_id=f"c{minor}", healthy=minor not in broken) for minor in range(count))
    links = link([Place(one.id) for one in cards], {(f"c{min(pair)}", f"c{max(pair)}"): 2 for pair in lanes})
    holdings = {f"u{at}": holding(f"u{at}", part(cards[at], 10)) for at in used}
    return NodeSnapshot("n", cards, holdings, wiring=Wiring(links, table))


def grouped(node: NodeSnapshot, devices: tuple[Device, ...] = (), *, partitioned: bool = True) -> tuple[int, ...]:
    return groups_of(devices or node.devices, node, partitioned=partitioned)


QUARTERS: Final = PartitionTable((Partition((0, 1, 2)), Partition((2, 3)), Partition((3, 9)), Partition((0,))))


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param(node_of(5, []), (0, 1, 2, 3, 4), id="without links each is one of its own"),
        pytest.param(node_of(5, [(3, 4), (0, 1), (1, 3)]), (0, 0, 2, 0, 0), id="through others"),
        pytest.param(node_of(4, LINE, broken={1}), (0, 1, 2, 2), id="an unhealthy one connects nothing"),
        pytest.param(node_of(4, LINE, used={2}), (0, 0, 2, 3), id="one in use connects nothing"),
        pytest.param(node_of(3, LINE[:2], used={0, 1, 2}), (0, 1, 2), id="nothing is idle"),
        pytest.param(node_of(8, EIGHT, table=HOPPER.table), (0,) * 8, id="a whole partition of eight"),
        pytest.param(
            node_of(8, EIGHT, used={0}, table=HOPPER.table),
            (0, 1, 2, 2, 4, 4, 4, 4),
            id="partitions beside a used card",
        ),
        pytest.param(
            node_of(8, EIGHT, broken={5, 2}, table=HOPPER.table), (0, 0, 2, 3, 4, 5, 6, 6), id="beside unhealthy cards"
        ),
        pytest.param(node_of(5, [], table=QUARTERS), (0, 0, 0, 3, 4), id="partitions that overlap or name other cards"),
        pytest.param(node_of(3, LINE[:2], table=PartitionTable()), (0, 1, 2), id="a table without partitions"),
        pytest.param(node_of(1, [], table=HOPPER.table), (0,), id="one device"),
    ],
)
def test_groups_are_numbered_by_their_first_device(node: NodeSnapshot, expected: tuple[int, ...]) -> None:
    assert grouped(node) == expected


def test_a_table_divides_only_types_that_are_partitioned() -> None:
    node = node_of(8, EIGHT, used={0}, table=HOPPER.table)
    assert grouped(node, partitioned=False) == (0, 1, 1, 1, 1, 1, 1, 1)


def test_devices_of_other_types_and_unknown_ones_are_linked_to_nothing() -> None:
    node = node_of(4, LINE)
    assert grouped(node, (node.devices[3], node.devices[2])) == (0, 0)
    assert grouped(node, (node.devices[1], node.devices[0])) == (0, 0)
    new = replace(node.devices[3], id="new")
    assert grouped(node, (new, node.devices[2])) == grouped(node, (node.devices[2], new)) == (0, 1)


@given(st.sampled_from(sorted(BOARDS)), st.sets(st.integers(0, 15)))
def test_two_devices_are_in_one_group_exactly_if_a_chain_of_idle_ones_leads_from_one_to_the_other(
    board: str, used: set[int]
) -> None:
    places, links = BOARDS[board]
    cards = tuple(gpu(minor, device_id=place.id) for minor, place in enumerate(places))
    holdings = {f"u{at}": holding(f"u{at}", part(cards[at], 10)) for at in used if at < len(cards)}
    groups = grouped(NodeSnapshot("n", cards, holdings, wiring=Wiring(links)))
    idle = [at for at in range(len(cards)) if at not in used]
    for one in range(len(cards)):
        reached = _reached(one, idle, cards, links) if one in idle else {one}
        assert {other for other in range(len(cards)) if groups[other] == groups[one]} == reached
        assert groups[one] == min(reached)


def _reached(one: int, idle: list[int], cards: tuple[Device, ...], links: Links) -> set[int]:
    reached = {one}
    while more := {
        to
        for to in idle
        if to not in reached and any(links.weight(cards[at].id, cards[to].id) >= LANE_WEIGHT for at in reached)
    }:
        reached |= more
    return reached
