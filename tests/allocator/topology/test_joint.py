"""Devices of a second type beside those of a first."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.budget import Budget
from allocator.topology.sets import PLAIN_RULE, Candidate, SetRule, choices_beside, free_function, why_none_beside
from allocator.vocabulary.asks import Operator, Requirement, Scope, Selector
from allocator.vocabulary.device import NO_LINKS, Partition, PartitionTable, VirtualFunction


def card(minor: int, root: str | None, numa: int | None = 0) -> Candidate:
    return Candidate(f"GPU-{minor}", minor, (), numa, root)


def nic(minor: int, root: str | None, numa: int | None = 0, rank: int = 0) -> Candidate:
    return Candidate(f"NIC-{minor}", minor, (rank,), numa, root)


# Two NUMA nodes, two roots each, a NIC on each root; a fifth NIC on a root without cards.
FOUR = (card(0, "a"), card(1, "a"), card(2, "b"), card(3, "b"))
NICS = [nic(0, "a"), nic(1, "b"), nic(2, "c", 1), nic(3, "d", 1), nic(4, "e", 0)]

PAIRS = PartitionTable((Partition((0, 1)), Partition((2, 3))))
PARTITIONED = SetRule(partitions=PAIRS, partition_required=True)


def minors(chosen: Sequence[Candidate]) -> list[int]:
    return [one.minor for one in chosen]


# primary, secondary, count, same PCIe, minors

CHOSEN: dict[str, tuple[tuple[Candidate, ...], list[Candidate], int, bool, list[int]]] = {
    "one root, one NIC": (FOUR[:2], NICS, 1, False, [0]),
    "two roots, a NIC each": (FOUR, NICS, 1, False, [0, 1]),
    "two roots, two asked": (FOUR, NICS, 2, False, [0, 1]),
    "more than roots: the same NUMA node": (FOUR, NICS, 3, False, [0, 1, 4]),
    "more than the NUMA node has": (FOUR, NICS, 4, False, [0, 1, 4, 2]),
    "none on the root: the same NUMA node": (FOUR[:2], NICS[1:], 1, False, [1]),
    "none in the NUMA node: any": (FOUR[:2], NICS[2:4], 1, False, [2]),
    "a root without: the nearest instead": (FOUR, [NICS[0], NICS[2], NICS[4]], 1, False, [0, 4]),
    "fewer than roots, as many as asked": (FOUR, [NICS[3]], 1, False, [3]),
    "in turn, not one root first": (FOUR, [nic(0, "a"), nic(1, "a"), nic(2, "b")], 2, False, [0, 2]),
    "in turn, second round": (FOUR, [nic(0, "a"), nic(1, "a"), nic(2, "b"), nic(3, "b")], 3, False, [0, 2, 1]),
    "in turn, the better rank of either root second": (
        FOUR,
        [nic(1, "a", rank=1), nic(2, "a", rank=1), nic(5, "b"), nic(6, "b")],
        3,
        False,
        [5, 1, 6],
    ),
    "rank within a root": (FOUR[:2], [nic(0, "a", rank=1), nic(1, "a", rank=0)], 1, False, [1]),
    "rank among the rest": (FOUR[:2], [nic(5, "e", rank=2), nic(6, "f", rank=1), nic(7, "c", 1)], 1, False, [6]),
    "roots in the order of the cards": ((FOUR[3], FOUR[0]), NICS, 2, False, [0, 1]),
    "roots not reported": ((card(0, None),), NICS, 1, False, [0]),
    "NUMA node not reported": ((card(0, "z", None),), NICS, 1, False, [0]),
    "same PCIe: one root": (FOUR[:2], NICS, 1, True, [0]),
    "same PCIe: raised to the roots": (FOUR, NICS, 1, True, [0, 1]),
    "same PCIe: several on each": (FOUR, [nic(0, "a"), nic(1, "a"), nic(2, "b")], 3, True, [0, 2, 1]),
    "GPUs as the second type": ((nic(1, "b"),), list(FOUR), 1, True, [2]),
}


@pytest.mark.parametrize(("primary", "offered", "count", "same", "given"), CHOSEN.values(), ids=CHOSEN)
def test_the_nearest_are_chosen_in_turn(
    primary: tuple[Candidate, ...], offered: list[Candidate], count: int, given: list[int], *, same: bool
) -> None:
    for order in (offered, offered[::-1]):
        assert minors(next(choices_beside(primary, order, count, NO_LINKS, same_pcie=same))) == given


# primary, secondary, count, the rule, same PCIe; the first sets

RULED: dict[str, tuple[tuple[Candidate, ...], list[Candidate], int, SetRule, bool, list[list[int]]]] = {
    "one NUMA node: rather as many as roots": (
        FOUR,
        [nic(0, "a"), nic(1, "b", 1), nic(2, "e", 1)],
        1,
        SetRule(Scope.NUMA_NODE),
        False,
        [[1, 2], [0], [1], [2]],
    ),
    "one NUMA node: on as many roots as can be": (
        FOUR,
        [nic(0, "a"), nic(1, "b", 1), nic(2, "a"), nic(3, "b")],
        2,
        SetRule(Scope.NUMA_NODE),
        False,
        [[0, 3], [2, 3], [0, 2]],
    ),
    "partitions that are only preferred are no matter": (
        FOUR,
        [nic(0, "a"), nic(1, "b"), nic(2, "a")],
        2,
        SetRule(partitions=PartitionTable((Partition((1, 2)),))),
        False,
        [[0, 1], [0, 2], [1, 2]],
    ),
    "one PCIe root: of those that the cards have": (
        FOUR,
        [nic(0, "e"), nic(1, "e"), nic(2, "b"), nic(3, "b")],
        2,
        SetRule(Scope.PCIE),
        False,
        [[2, 3], [0, 1]],
    ),
    "a partition: on the root": ((nic(1, "b"),), list(FOUR), 2, PARTITIONED, False, [[2, 3], [0, 1]]),
    "a partition: of more than asked, for the roots": (
        (nic(0, "a"), nic(1, "b")),
        [card(0, "a"), card(1, "b")],
        1,
        PARTITIONED,
        False,
        [[0, 1]],
    ),
    "a partition: none of three": ((nic(0, "a"),), list(FOUR), 3, PARTITIONED, False, []),
    "same PCIe: a partition on the root alone": ((nic(0, "a"),), list(FOUR), 2, PARTITIONED, True, [[0, 1]]),
    "same PCIe: no partition on the root": ((nic(0, "a"),), [card(0, "a"), card(2, "a")], 2, PARTITIONED, True, []),
}


@pytest.mark.parametrize(("primary", "offered", "count", "rule", "same", "given"), RULED.values(), ids=RULED)
def test_what_is_beside_keeps_the_rule_of_its_own_type(
    primary: tuple[Candidate, ...],
    offered: list[Candidate],
    count: int,
    rule: SetRule,
    given: list[list[int]],
    *,
    same: bool,
) -> None:
    found = [minors(chosen) for chosen in choices_beside(primary, offered, count, NO_LINKS, rule, same_pcie=same)]
    assert found == given


@pytest.mark.parametrize(
    ("rule", "spent"),
    [
        pytest.param(PLAIN_RULE, 6 + 4, id="each set"),
        pytest.param(SetRule(Scope.NUMA_NODE), 2 * 2 + 4, id="each pair that keeps the rule, to sort them too"),
    ],
)
def test_a_step_is_spent_for_each_set_that_is_looked_at(rule: SetRule, spent: int) -> None:
    offered, budget = [nic(0, "a"), nic(1, "b", 1), nic(2, "a"), nic(3, "b", 1)], Budget(100)
    list(choices_beside(FOUR, offered, 1, NO_LINKS, rule, budget=budget))
    assert budget.left == 100 - spent


def test_no_more_than_20000_sets_of_a_size_are_looked_at() -> None:
    offered = [nic(minor, "a") for minor in range(18)]
    assert sum(1 for _ in choices_beside(FOUR[:1], offered, 9, NO_LINKS)) == 20_000


REFUSED: dict[str, tuple[tuple[Candidate, ...], list[Candidate], int, bool, str]] = {
    "too few": (FOUR, NICS[:1], 2, False, "2 devices are requested beside the others, 1 are suitable"),
    "none": (FOUR, [], 1, False, "1 devices are requested beside the others, 0"),
    "same PCIe: a root without": (FOUR, NICS[:1], 1, True, "no device of the second type is left on PCIe root b"),
    "same PCIe: all roots without": (FOUR, NICS[2:], 1, True, "on PCIe root a, b"),
    "same PCIe: too few on them": (
        FOUR,
        NICS,
        3,
        True,
        "3 devices are requested, 2 are suitable on the PCIe roots a, b",
    ),
    "same PCIe: root not reported": ((card(0, "a"), card(7, None)), NICS, 1, True, "the devices 7 of the first type"),
}


@pytest.mark.parametrize(("primary", "offered", "count", "same", "reason"), REFUSED.values(), ids=REFUSED)
def test_the_reason_is_reported_where_none_can_be_chosen(
    primary: tuple[Candidate, ...], offered: list[Candidate], count: int, reason: str, *, same: bool
) -> None:
    assert list(choices_beside(primary, offered, count, NO_LINKS, same_pcie=same)) == []
    assert reason in why_none_beside(primary, offered, count, same_pcie=same)


def test_the_reason_is_that_of_the_rule_where_that_forbids_every_set() -> None:
    told = why_none_beside((nic(0, "a"),), list(FOUR), 3, PARTITIONED)
    assert told == "3 GPUs are not a partition here; ask for a number that the table has: 2"
    same = why_none_beside((nic(0, "a"),), [card(0, "a"), card(2, "a")], 2, PARTITIONED, same_pcie=True)
    assert same.startswith("SamePCIe is requested; on those roots: 2 partitions of 2 GPUs are suitable")


def test_a_scope_forbids_no_single_device_and_is_no_reason() -> None:
    lost = (nic(0, "a"), nic(1, None))
    for rule in (PLAIN_RULE, SetRule(Scope.NUMA_NODE)):
        told = why_none_beside(lost, list(FOUR), 1, rule, same_pcie=True)
        assert told.endswith("the node does not report the PCIe roots of the devices 1 of the first type")


ROOTS = st.sampled_from(["a", "b", "c", None])


@st.composite
def devices(draw: st.DrawFn, least: int) -> list[Candidate]:
    spots = draw(st.lists(st.tuples(ROOTS, st.sampled_from([0, 1, None])), min_size=least, max_size=6))
    return [card(minor, root, numa) for minor, (root, numa) in enumerate(spots)]


def legal(chosen: Sequence[Candidate], primary: Sequence[Candidate], rule: SetRule, *, same: bool) -> bool:
    """Whether a set keeps the rules, checked in the plainest way."""
    roots = {one.pcie for one in primary}
    if same and (None in roots or {one.pcie for one in chosen} != roots):
        return False
    if rule.partition_required and tuple(minors(chosen)) not in {one.minors for one in PAIRS.partitions}:
        return False
    where = {one.numa for one in chosen}
    return rule.scope is Scope.NODE or len(chosen) == 1 or (len(where) == 1 and None not in where)


@given(
    primary=devices(1),
    offered=devices(0),
    count=st.integers(1, 6),
    rule=st.sampled_from([PLAIN_RULE, PARTITIONED, SetRule(Scope.NUMA_NODE)]),
    same=st.booleans(),
)
def test_all_sets_that_keep_the_rules_come_once_and_the_one_on_most_roots_first(
    primary: list[Candidate], offered: list[Candidate], count: int, rule: SetRule, *, same: bool
) -> None:
    found = list(choices_beside(primary, offered, count, NO_LINKS, rule, same_pcie=same))
    wanted = {one.pcie for one in primary} - {None}
    most = max(count, len(wanted))
    sizes = [most] if same else range(count, most + 1)
    expected = {
        chosen for size in sizes for chosen in combinations(offered, size) if legal(chosen, primary, rule, same=same)
    }
    given_ = [tuple(sorted(one, key=lambda device: device.minor)) for one in found]
    assert len(set(given_)) == len(given_)
    assert set(given_) == expected
    if found:
        assert isinstance(found[0], tuple)
        covered = [len(wanted & {device.pcie for device in one}) for one in found if len(one) == len(found[0])]
        assert covered[0] == max(covered)
    else:
        assert why_none_beside(primary, offered, count, rule, same_pcie=same)


# Virtual functions

FUNCTIONS = [
    VirtualFunction(None, "0000:1f:00.10", {"tier": "fast"}),
    VirtualFunction(1, "0000:1f:00.3", {"tier": "fast"}),
    VirtualFunction(0, "0000:1f:00.2", {"tier": "slow"}),
]
ANY = Selector()
FAST = Selector((Requirement("tier", Operator.IN, ("fast",)),))

FREE: dict[str, tuple[Selector, set[str], str | None]] = {
    "the smallest bus id, as text": (ANY, set(), "0000:1f:00.10"),
    "the next where it is taken": (ANY, {"0000:1f:00.10"}, "0000:1f:00.2"),
    "of a group that matches": (FAST, {"0000:1f:00.10"}, "0000:1f:00.3"),
    "none free": (FAST, {"0000:1f:00.10", "0000:1f:00.3"}, None),
}


@pytest.mark.parametrize(("selector", "taken", "bus_id"), FREE.values(), ids=FREE)
def test_a_device_gives_its_first_free_virtual_function(
    selector: Selector, taken: set[str], bus_id: str | None
) -> None:
    for functions in (FUNCTIONS, FUNCTIONS[::-1]):
        found: Any = free_function(functions, selector, taken)
        assert (found and found.bus_id) == bus_id
