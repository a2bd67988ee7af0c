"""Sets of devices in the promised order."""

from collections.abc import Callable, Sequence
from itertools import combinations, islice, pairwise, permutations
from math import comb
from random import Random
from typing import Any, NamedTuple

import pytest
from boards import BOARDS, bridged, candidates, gpu, places
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.budget import Budget
from allocator.topology.sets import (
    PLAIN_RULE,
    BestPlaces,
    Candidate,
    SetRule,
    _Search,
    best_places,
    choices,
    why_no_set,
)
from allocator.vocabulary.asks import Scope
from allocator.vocabulary.device import NO_LINKS, Links, Partition, PartitionTable, Place, link
from allocator.wire.deviceobject import built_in

A100 = "DGX A100: eight, switched"
H100 = "HGX H100: eight, switched, two NUMA nodes"
FLAT = "switched, nothing else reported"
PCIE = "eight PCIe cards on four roots"
CUBE = "DGX-1V: hybrid cube mesh"
HGX2 = "HGX-2: sixteen, switched"
MIXED = "mixed: two bridged pairs and four cards"
HOPPER = built_in("nvidia", "H100")
SHARED = SetRule(rank_first=True)


def minors(chosen: Sequence[Candidate] | None) -> list[int]:
    return sorted(candidate.minor for candidate in chosen or ())


def without(count: int, *taken: int) -> list[int]:
    return [minor for minor in range(count) if minor not in taken]


def near(*taken: int) -> SetRule:
    return SetRule(near=frozenset(map(gpu, taken)))


def within(scope: Scope) -> SetRule:
    return SetRule(scope=scope)


# machine, minors that are free, devices asked, rule, minors given

CASES: dict[str, tuple[str, list[int], int, SetRule, list[int]]] = {
    # If nothing else distinguishes devices, minors do.
    "all alike: one": (FLAT, without(8), 1, PLAIN_RULE, [0]),
    "all alike: five": (FLAT, without(8, 2), 5, PLAIN_RULE, [0, 1, 3, 4, 5]),
    "nothing reported: four": ("nothing reported", without(8, 0), 4, PLAIN_RULE, [1, 2, 3, 4]),
    # Switched machines: lanes are alike, places decide.
    "A100: two on one root": (A100, without(8, 0), 2, PLAIN_RULE, [2, 3]),
    "A100: one from the broken root": (A100, without(8, 2), 1, PLAIN_RULE, [3]),
    "A100: three leave whole roots": (A100, without(8, 2), 3, PLAIN_RULE, [0, 1, 3]),
    "A100: all": (A100, without(8), 8, PLAIN_RULE, without(8)),
    "H100: two in the NUMA node that is broken": (H100, [2, 3, 5, 6, 7], 2, PLAIN_RULE, [2, 3]),
    "H100: three in the one that has three": (H100, [2, 3, 5, 6, 7], 3, PLAIN_RULE, [5, 6, 7]),
    "H100: four in one NUMA node": (H100, without(8, 1), 4, PLAIN_RULE, [4, 5, 6, 7]),
    # Cards without NVLink.
    "PCIe: two on one root": (PCIE, without(8), 2, PLAIN_RULE, [0, 1]),
    "PCIe: one from the broken root": (PCIE, without(8, 4), 1, PLAIN_RULE, [5]),
    "PCIe: two on the whole root beside the broken one": (PCIE, without(8, 4), 2, PLAIN_RULE, [6, 7]),
    "PCIe: three from the NUMA node with three": (PCIE, without(8, 0), 3, PLAIN_RULE, [1, 2, 3]),
    "PCIe: four are one NUMA node": (PCIE, without(8, 0), 4, PLAIN_RULE, [4, 5, 6, 7]),
    "PCIe: five keep a root whole": (PCIE, without(8), 5, PLAIN_RULE, [0, 1, 2, 3, 4]),
    # The hybrid cube mesh: lanes decide.
    "cube mesh: two with two lanes and one root": (CUBE, without(8), 2, PLAIN_RULE, [2, 3]),
    "cube mesh: two lanes over NUMA nodes beat one inside": (CUBE, [0, 1, 5, 7], 2, PLAIN_RULE, [1, 5]),
    "cube mesh: three": (CUBE, without(8), 3, PLAIN_RULE, [0, 2, 3]),
    "cube mesh: four are a half": (CUBE, without(8), 4, PLAIN_RULE, [0, 1, 2, 3]),
    "cube mesh: four are the half that is free": (CUBE, without(8, 1), 4, PLAIN_RULE, [4, 5, 6, 7]),
    "cube mesh: four across": (CUBE, [0, 1, 4, 5, 6], 4, PLAIN_RULE, [0, 1, 4, 5]),
    "cube mesh: one that lost its best partner": (CUBE, without(8, 5), 1, PLAIN_RULE, [6]),
    # Sixteen.
    "HGX-2: eight are one board": (HGX2, without(16, 3), 8, PLAIN_RULE, list(range(8, 16))),
    "HGX-2: four from the broken board": (HGX2, without(16, 8), 4, PLAIN_RULE, [10, 11, 12, 13]),
    "HGX-2: all": (HGX2, without(16), 16, PLAIN_RULE, without(16)),
    # Mixed.
    "mixed: two are bridged": (MIXED, without(8), 2, PLAIN_RULE, [0, 1]),
    "mixed: one leaves bridges whole": (MIXED, without(8), 1, PLAIN_RULE, [2]),
    "mixed: three are a pair and a neighbour": (MIXED, without(8, 1), 3, PLAIN_RULE, [4, 5, 6]),
    # The gang's devices.
    "near: one": (CUBE, without(8, 5), 1, near(5), [6]),
    "near: one, inside the NUMA node": (CUBE, without(8, 0), 1, near(0), [3]),
    "near: two": (CUBE, without(8, 4), 2, near(4), [6, 7]),
    "near: two mates": (PCIE, without(8, 4, 5), 2, near(4, 5), [6, 7]),
    "near: a device that is not known": (PCIE, without(8), 2, near(99), [0, 1]),
    # Scopes.
    "NUMA node: four": (CUBE, without(8, 0), 4, within(Scope.NUMA_NODE), [4, 5, 6, 7]),
    "NUMA node: two, in the one where they have more lanes": (CUBE, [0, 1, 6, 7], 2, within(Scope.NUMA_NODE), [6, 7]),
    "NUMA node: five": (CUBE, without(8), 5, within(Scope.NUMA_NODE), []),
    "PCIe: two": (CUBE, without(8, 2, 6), 2, within(Scope.PCIE), [0, 1]),
    "PCIe: none left whole": (CUBE, [0, 2, 4, 6], 2, within(Scope.PCIE), []),
    "PCIe: three": (CUBE, without(8), 3, within(Scope.PCIE), []),
    "PCIe: one": (CUBE, [0, 2], 1, within(Scope.PCIE), [0]),
    "Device: one": (CUBE, [3], 1, within(Scope.DEVICE), [3]),
    "Device: two": (CUBE, without(8), 2, within(Scope.DEVICE), []),
    "Node: eight": (CUBE, without(8), 8, within(Scope.NODE), without(8)),
    "places not reported: one inside of any": (FLAT, [5], 1, within(Scope.NUMA_NODE), [5]),
    "places not reported: two inside of none": (FLAT, without(8), 2, within(Scope.NUMA_NODE), []),
    # Roots on which another type has something free.
    "roots: preferred": (PCIE, without(8), 2, SetRule(roots=frozenset({"pci0000:02"})), [4, 5]),
    "roots: too few there": (PCIE, without(8), 3, SetRule(roots=frozenset({"pci0000:02"})), [0, 1, 2]),
    "roots: one": (PCIE, without(8, 4), 1, SetRule(roots=frozenset({"pci0000:02"})), [5]),
    # The rest of a gang follows.
    "company: the first of four begins where four are": (PCIE, without(8, 0), 1, SetRule(company=3), [4]),
    "company: a mate draws the second": (PCIE, without(8, 0, 4), 1, SetRule(company=2, near=frozenset({gpu(4)})), [5]),
    "company: two of four": (CUBE, without(8, 1), 2, SetRule(company=2), [6, 7]),
    "company: more than there are": (PCIE, without(8, 0), 1, SetRule(company=7), [1]),
    "company: inside the scope": (PCIE, without(8, 0), 1, SetRule(Scope.NUMA_NODE, company=3), [4]),
    "company: parts of devices go by order": (PCIE, without(8, 0), 1, SetRule(rank_first=True, company=3), [1]),
    # Partitions.
    "partition: a pair": (H100, without(8, 0), 2, SetRule(partitions=HOPPER, partition_required=True), [2, 3]),
    "partition: none free": (H100, [0, 2, 4, 6], 2, SetRule(partitions=HOPPER, partition_required=True), []),
    "partition: not a size": (H100, without(8), 3, SetRule(partitions=HOPPER, partition_required=True), []),
    "partition: no table": (H100, without(8), 2, SetRule(partition_required=True), []),
    "partition: preferred": (H100, [1, 2, 4, 5], 2, SetRule(partitions=HOPPER), [4, 5]),
    "partition: preferred, none free": (H100, [0, 2, 5], 2, SetRule(partitions=HOPPER), [0, 2]),
    "partition: preferred, not a size": (H100, without(8), 3, SetRule(partitions=HOPPER), [0, 1, 2]),
    "partition: one that breaks nothing": (H100, without(8, 4), 1, SetRule(partitions=HOPPER), [5]),
    "partition: inside a PCIe root": (H100, without(8), 2, SetRule(Scope.PCIE, partitions=HOPPER), []),
    "partition: inside a PCIe root, after one that is not": (
        PCIE,
        without(8),
        2,
        SetRule(Scope.PCIE, partitions=PartitionTable(tuple(map(Partition, [(1, 2), (6, 7), (4, 5)])))),
        [6, 7],
    ),
    "partition: inside a NUMA node": (
        H100,
        without(8, 0),
        4,
        SetRule(Scope.NUMA_NODE, partitions=HOPPER),
        [4, 5, 6, 7],
    ),
    "partition: near the gang": (
        H100,
        without(8, 4, 5),
        2,
        SetRule(partitions=HOPPER, near=frozenset({gpu(4), gpu(5)})),
        [6, 7],
    ),
    "partition: on the roots that serve": (
        A100,
        without(8),
        2,
        SetRule(partitions=HOPPER, roots=frozenset({"pci0000:03"})),
        [6, 7],
    ),
    "partition: no matter to shares": (
        H100,
        [1, 2, 4, 5],
        2,
        SetRule(partitions=HOPPER, partition_required=True, rank_first=True),
        [1, 2],
    ),
}


@pytest.mark.parametrize(("name", "free", "count", "rule", "given"), CASES.values(), ids=CASES)
def test_the_first_set_is_the_best(name: str, free: list[int], count: int, rule: SetRule, given: list[int]) -> None:
    offered = candidates(name, free)
    assert minors(next(choices(offered, count, BOARDS[name][1], rule), None)) == given


@pytest.mark.parametrize(("name", "free", "count", "rule", "given"), CASES.values(), ids=CASES)
def test_the_order_of_candidates_does_not_matter(
    name: str, free: list[int], count: int, rule: SetRule, given: list[int]
) -> None:
    offered = candidates(name, free)
    links = BOARDS[name][1]
    first = list(islice(choices(offered, count, links, rule), 20))
    assert first == list(islice(choices(offered[::-1], count, links, rule), 20))


# The caller's rank


def ranked(name: str, ranks: dict[int, Any], **fields: Any) -> list[Candidate]:
    return [one._replace(rank=(ranks[one.minor],), **fields) for one in candidates(name, ranks)]


RANKED: dict[str, tuple[list[Candidate], int, SetRule, list[int]]] = {
    "whole: after connections": (ranked(CUBE, {0: 0, 1: 1, 2: 9, 3: 9}), 2, PLAIN_RULE, [2, 3]),
    "whole: before minors": (
        ranked(CUBE, {0: 1, 1: 1, 2: 1, 3: 1, 4: 0, 5: 0, 6: 0, 7: 0}),
        4,
        PLAIN_RULE,
        [4, 5, 6, 7],
    ),
    "shared: before connections": (ranked(CUBE, {0: 0, 1: 1, 2: 9, 3: 9}), 2, SHARED, [0, 1]),
    "shared: equal ranks leave it to connections": (ranked(CUBE, {0: 0, 1: 0, 2: 0, 3: 0}), 2, SHARED, [2, 3]),
    "shared: the rest goes with what is best": (ranked(CUBE, {5: 0, 0: 1, 1: 1, 4: 1}), 2, SHARED, [1, 5]),
    "shared: one": (ranked(CUBE, {4: 2, 5: 1, 6: 3}), 1, SHARED, [5]),
    "shared: one of equals breaks the least": (ranked(CUBE, {4: 1, 5: 1, 0: 1}), 1, SHARED, [5]),
    "shared: one where nothing distinguishes them": (ranked(FLAT, {4: 2, 5: 1, 6: 1}), 1, SHARED, [5]),
    "shared: inside a NUMA node": (
        ranked(CUBE, {0: 0, 4: 1, 5: 2}),
        2,
        SetRule(Scope.NUMA_NODE, rank_first=True),
        [4, 5],
    ),
}


@pytest.mark.parametrize(("offered", "count", "rule", "given"), RANKED.values(), ids=RANKED)
def test_ranks_count_in_their_place(offered: list[Candidate], count: int, rule: SetRule, given: list[int]) -> None:
    name = FLAT if offered[0].numa is None else CUBE
    assert minors(next(choices(offered, count, BOARDS[name][1], rule))) == given


def test_a_device_of_which_no_link_is_known_has_none() -> None:
    offered = [Candidate("new", 0), *candidates(CUBE, [1, 3])]
    assert minors(next(choices(offered, 2, BOARDS[CUBE][1]))) == [1, 3]


def test_of_several_sizes_the_sets_of_the_smallest_come_first() -> None:
    offered = [Candidate(f"GPU-{minor}", minor, size=(size, "")) for minor, size in enumerate((8, 9, 8, 8))]
    found = [[one.minor for one in chosen] for chosen in choices(offered, 2, NO_LINKS)]
    assert found == [[0, 2], [0, 3], [2, 3], [0, 1], [2, 1], [3, 1]]


def test_what_the_pod_holds_anyway_comes_before_better_connections() -> None:
    offered = [one._replace(fresh=one.minor not in {0, 5}) for one in candidates(CUBE)]
    assert minors(next(choices(offered, 2, BOARDS[CUBE][1]))) == [0, 5]
    assert minors(next(choices(offered, 1, BOARDS[CUBE][1]))) == [0]
    assert set(minors(next(choices(offered, 4, BOARDS[CUBE][1])))) > {0, 5}


def test_whole_devices_are_broken_last() -> None:
    offered = [one._replace(idle=one.minor not in {1, 6}) for one in candidates(CUBE)]
    assert minors(next(choices(offered, 2, BOARDS[CUBE][1]))) == [1, 6]


def test_a_device_in_use_is_no_partition() -> None:
    offered = [one._replace(idle=one.minor != 0) for one in candidates(H100)]
    rule = SetRule(partitions=HOPPER, partition_required=True)
    assert [minors(one) for one in choices(offered, 2, BOARDS[H100][1], rule)] == [[2, 3], [4, 5], [6, 7]]


def test_partitions_come_first_and_no_set_twice() -> None:
    found = [minors(one) for one in choices(candidates(H100), 2, BOARDS[H100][1], SetRule(partitions=HOPPER))]
    assert found[:4] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert len(found) == len({tuple(one) for one in found}) == comb(8, 2)


# Nothing found

NONE: dict[str, tuple[list[Candidate], int, SetRule, str]] = {
    "too few": (candidates(CUBE, [1, 2]), 3, PLAIN_RULE, "3 devices asked, 2 can serve it"),
    "scope Device": (candidates(CUBE), 2, within(Scope.DEVICE), "requiredTopologyScope Device allows one device"),
    "scope NUMA node": (
        candidates(CUBE),
        5,
        within(Scope.NUMA_NODE),
        "one NUMA node are requested; suitable inside one: at most 4",
    ),
    "scope PCIe": (
        candidates(CUBE, [0, 2]),
        2,
        within(Scope.PCIE),
        "one PCIe root are requested; suitable inside one: at most 1",
    ),
    "places not reported": (
        candidates(FLAT),
        2,
        within(Scope.PCIE),
        "suitable inside one: at most 0; of 8 the PCIe root",
    ),
    "no table": (candidates(CUBE), 2, SetRule(partition_required=True), "no partition table"),
    "no such size": (candidates(H100), 3, SetRule(partitions=HOPPER, partition_required=True), "1, 2, 4, 8"),
    "none free": (
        candidates(H100, [0, 2]),
        2,
        SetRule(partitions=HOPPER, partition_required=True),
        "2 GPUs wholly free",
    ),
    "none inside": (
        candidates(H100),
        2,
        SetRule(Scope.PCIE, partitions=HOPPER, partition_required=True),
        "none of them inside one PCIe root",
    ),
}


@pytest.mark.parametrize(("offered", "count", "rule", "reason"), NONE.values(), ids=NONE)
def test_the_reason_is_reported_where_there_is_no_set(
    offered: list[Candidate], count: int, rule: SetRule, reason: str
) -> None:
    links = BOARDS[FLAT][1] if offered[0].numa is None else BOARDS[CUBE][1]
    assert list(choices(offered, count, links, rule)) == []
    assert reason in why_no_set(offered, count, rule)


# Everything recomputed from scratch


class Case(NamedTuple):
    offered: list[Candidate]
    asked: int
    links: Links
    rule: SetRule


@st.composite
def cases(draw: st.DrawFn, most: int = 8) -> Case:
    size = draw(st.integers(1, most))
    known = places(size, roots=draw(st.sampled_from([0, 2, 4])), numas=draw(st.sampled_from([0, 1, 2])))
    moved = draw(st.lists(st.integers(0, size - 1), max_size=2))
    where = [
        Place(one.id, *(draw(st.sampled_from([(None, None), (0, "odd"), (1, None)])) if at in moved else one[1:3]))
        for at, one in enumerate(known)
    ]
    pairs = list(combinations(range(size), 2))
    lanes = draw(st.dictionaries(st.sampled_from(pairs), st.integers(1, 3))) if pairs else {}
    links = link(where, bridged(lanes))
    offered = [
        Candidate(
            one.id,
            # Minors do not sort as ids do, so that an order by the wrong one shows.
            at * 5 % 9 if size < 9 else at,
            draw(st.sampled_from([(), (0,), (1,)])) if draw(st.booleans()) else (),
            one.numa,
            one.pcie,
            idle=draw(st.integers(0, 4)) > 0,
            fresh=draw(st.integers(0, 6)) > 0,
        )
        for at, one in enumerate(where)
        if draw(st.integers(0, 7)) > 0
    ]
    if draw(st.integers(0, 9)) == 0:
        offered.append(Candidate("stranger", 77))
    rule = SetRule(
        scope=draw(st.sampled_from([Scope.NODE, Scope.NODE, *Scope])),
        rank_first=draw(st.booleans()),
        near=frozenset(draw(st.lists(st.sampled_from([one.id for one in where]), max_size=2))),
        roots=frozenset(draw(st.lists(st.sampled_from(["pci0000:00", "pci0000:01", "odd"]), max_size=1))),
        company=draw(st.sampled_from([0, 0, 1, 3])),
    )
    return Case(offered, draw(st.integers(1, most)), links, rule)


def expected(case: Case) -> list[tuple[str, ...]]:
    """All sets that keep the rule, in the order that the module promises, computed in the plainest way."""
    offered, count, links, rule = case
    state = (lambda one: one.rank) if rule.rank_first else (lambda one: (one.fresh, one.idle))
    order = sorted(offered, key=lambda one: (state(one), one.rank, one.minor, one.id))
    free = {one.id for one in offered if one.idle and one.fresh}

    def legal(chosen: tuple[Candidate, ...]) -> bool:
        if len(chosen) == 1 or rule.scope is Scope.NODE:
            return True
        if rule.scope is Scope.DEVICE:
            return False
        where = {one.numa if rule.scope is Scope.NUMA_NODE else one.pcie for one in chosen}
        return len(where) == 1 and None not in where

    def key(chosen: tuple[Candidate, ...]) -> tuple[Any, ...]:
        """The rank without roots and company, which precede it."""
        ids = [one.id for one in chosen]
        towards = sum(links.weight(one, mate) for one in ids for mate in rule.near)
        measure = 0 if links.flat else links.measure(ids) + towards
        loss = 0 if links.flat else sum(links.weight(one, other) for one in ids if one in free for other in free)
        return ([state(one) for one in chosen], -measure, loss, [order.index(one) for one in chosen])

    everyone: list[tuple[Candidate, ...]] = []
    if rule.company and not rule.rank_first:
        everyone = sorted(filter(legal, combinations(order, count + rule.company)), key=key)[:1]

    def turn(chosen: tuple[Candidate, ...]) -> tuple[bool, bool]:
        on_roots = bool(rule.roots) and all(one.pcie in rule.roots for one in chosen)
        return not on_roots, not on_roots and not any(set(chosen) <= set(together) for together in everyone)

    sets = filter(legal, combinations(order, count))
    return [tuple(one.id for one in chosen) for chosen in sorted(sets, key=lambda chosen: (turn(chosen), key(chosen)))]


@settings(max_examples=400)
@given(cases())
def test_the_sequence_is_all_legal_sets_in_the_promised_order(case: Case) -> None:
    found = [tuple(one.id for one in chosen) for chosen in choices(*case)]
    assert found == expected(case)


@settings(max_examples=60)
@given(cases(most=9), st.randoms(use_true_random=False))
def test_the_first_set_does_not_depend_on_the_order_of_candidates(case: Case, random: Random) -> None:
    shuffled = random.sample(case.offered, len(case.offered))
    first = list(islice(choices(*case), 1))
    assert list(islice(choices(shuffled, case.asked, case.links, case.rule), 1)) == first
    assert [tuple(one.id for one in chosen) for chosen in first] == expected(case)[:1]


@st.composite
def tables(draw: st.DrawFn) -> PartitionTable:
    sets = draw(st.lists(st.frozensets(st.integers(0, 7), min_size=1, max_size=4), max_size=12, unique=True))
    return PartitionTable(
        tuple(
            Partition(tuple(sorted(one)), draw(st.integers(0, 2)), draw(st.sampled_from([None, 100, 200])))
            for one in sets
        )
    )


@st.composite
def partitioned(draw: st.DrawFn) -> Case:
    case = draw(cases())
    return case._replace(
        rule=SetRule(
            case.rule.scope,
            partitions=draw(tables()),
            partition_required=draw(st.booleans()),
            restricted=draw(st.booleans()),
            ring_bandwidth=draw(st.sampled_from([None, 100, 150])),
            near=case.rule.near,
            roots=case.rule.roots,
        )
    )


@settings(max_examples=200)
@given(partitioned())
def test_with_partitions_too_every_set_keeps_the_rule_and_comes_once(case: Case) -> None:
    offered, count, links, rule = case
    by_id = {one.id: one for one in offered}
    listed = {one.minors: one for one in rule.partitions.partitions} if rule.partitions else {}
    best = max((one.score for one in listed.values() if len(one.minors) == count), default=0)

    def fits(ids: frozenset[str]) -> bool:
        partition = listed.get(tuple(minors([by_id[one] for one in ids])))
        return (
            partition is not None
            and all(by_id[one].idle for one in ids)
            and (rule.ring_bandwidth is None or (partition.bandwidth or 0) >= rule.ring_bandwidth)
            and (not rule.restricted or partition.score == best)
        )

    legal = {frozenset(one) for one in expected(case)}
    good = set(filter(fits, legal))
    found = [frozenset(one.id for one in chosen) for chosen in choices(offered, count, links, rule)]
    assert len(set(found)) == len(found)
    assert set(found[: len(good)]) == good
    assert set(found) == (good if rule.partition_required else legal)


# Large nodes


def random_links(size: int, seed: int) -> Links:
    random = Random(seed)
    return link(
        places(size, roots=8, numas=2), bridged({pair: random.randrange(7) for pair in combinations(range(size), 2)})
    )


def offers(size: int) -> list[Candidate]:
    return [
        Candidate(one.id, minor, (), one.numa, one.pcie) for minor, one in enumerate(places(size, roots=8, numas=2))
    ]


@pytest.mark.parametrize("seed", range(4))
def test_of_sixteen_devices_the_first_set_is_the_best_of_all(seed: int) -> None:
    links = random_links(16, seed)
    found = [links.measure([one.id for one in chosen]) for chosen in choices(offers(16), 6, links)]
    assert len(found) == comb(16, 6)
    assert all(one >= next_one for one, next_one in pairwise(found))
    first = next(choices(offers(16), 6, links))
    assert links.measure([one.id for one in first]) == found[0]


@pytest.mark.parametrize(("size", "ordered"), [(16, True), (17, False)])
def test_eight_of_sixteen_devices_are_put_in_order_and_eight_of_seventeen_are_not(size: int, *, ordered: bool) -> None:
    links = random_links(size, 2)
    first, *others = islice(choices(offers(size), 8, links), 100)
    plain = islice((each for each in combinations(offers(size), 8) if each != first), 99)
    measured = [links.measure([one.id for one in chosen]) for chosen in (first, *others)]
    assert (measured == sorted(measured, reverse=True)) is ordered
    assert (others == [*plain]) is not ordered


def test_sets_are_put_in_order_if_the_budget_covers_all_of_them() -> None:
    links, budget = BOARDS[CUBE][1], Budget(10_000)
    first, *others = choices(candidates(CUBE), 2, links, PLAIN_RULE, budget)
    assert minors(first) == [2, 3]
    spent = 10_000 - int(budget.left)
    assert spent == 4 * 4 + 2 * comb(8, 2)
    assert [*choices(candidates(CUBE), 2, links, PLAIN_RULE, Budget(spent))] == [first, *others]
    plain = [each for each in combinations(candidates(CUBE), 2) if each != first]
    assert others != plain
    assert [*choices(candidates(CUBE), 2, links, PLAIN_RULE, Budget(spent - 1))] == [first, *plain]


def test_of_more_sets_than_are_put_in_order_each_still_comes_once() -> None:
    links = random_links(20, 1)
    found = [tuple(one.minor for one in chosen) for chosen in choices(offers(20), 6, links)]
    assert len(found) == len(set(found)) == comb(20, 6)


def test_of_very_many_devices_the_first_set_is_good_and_the_same_each_time() -> None:
    links = random_links(64, 1)
    first = next(choices(offers(64), 8, links))
    assert first == next(choices(offers(64)[::-1], 8, links))
    usual = sorted(links.measure(Random(seed).sample(links.ids, 8)) for seed in range(200))
    assert links.measure([one.id for one in first]) > usual[-1]


def test_every_permutation_of_a_small_node_gives_the_same_sets() -> None:
    links = BOARDS[MIXED][1]
    offered = candidates(MIXED, [0, 1, 2, 4])
    answers = {tuple(choices(order, 2, links)) for order in permutations(offered)}
    assert len(answers) == 1


Rows = tuple[tuple[int, ...], ...]


def symmetric(size: int, weight: Callable[[int, int], int]) -> Rows:
    """Weights of pairs, by the lower and the higher place."""
    return tuple(tuple(weight(min(a, b), max(a, b)) if a != b else 0 for b in range(size)) for a in range(size))


@st.composite
def weighed(draw: st.DrawFn) -> tuple[Rows, tuple[int, ...], tuple[int, ...], int]:
    size = draw(st.integers(1, 7))
    drawn = draw(st.lists(st.integers(0, 3), min_size=size * size, max_size=size * size))
    amounts = st.lists(st.integers(0, 2), min_size=size, max_size=size).map(tuple)
    rows = symmetric(size, lambda a, b: drawn[a * size + b])
    return rows, draw(amounts), draw(amounts), draw(st.integers(1, size))


@settings(max_examples=examples(200))
@given(weighed())
def test_among_few_it_is_the_greatest_then_the_cheapest_then_the_first(
    asked: tuple[Rows, tuple[int, ...], tuple[int, ...], int],
) -> None:
    rows, gains, losses, count = asked

    def order(places: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        total = sum(rows[a][b] for a, b in combinations(places, 2)) + sum(gains[at] for at in places)
        return -total, sum(losses[at] for at in places), places

    assert best_places(*asked).places == min(combinations(range(len(rows)), count), key=order)


# Nodes of more devices than are searched exactly: weights of pairs, the size of the set, and the best one.


@pytest.mark.parametrize(
    ("same", "best"),
    [
        pytest.param(lambda a, b: a // 4 == b // 4, BestPlaces((0, 1, 2, 3, 4, 5), 23), id="switches one by one"),
        pytest.param(lambda a, b: a % 4 == b % 4, BestPlaces((0, 1, 4, 5, 8, 12), 28), id="switches in turn"),
    ],
)
def test_of_devices_that_are_interchangeable_the_later_ones_are_not_tried(
    same: Callable[[int, int], bool], best: BestPlaces
) -> None:
    """Without that it would take some hundred steps."""
    rows = symmetric(16, lambda a, b: 9 if same(a, b) else 1)
    assert best_places(rows, (0,) * 16, (0,) * 16, 6) == best


@pytest.mark.parametrize("size", [16, 17, 20])
def test_a_search_among_more_than_sixteen_ends_after_512_steps_with_the_best_set_so_far(size: int) -> None:
    rows = symmetric(size, lambda a, b: (a * 131 + b * b * 17) * 7919 % 101)
    search = _Search(rows, [0] * size, size // 2)
    assert len(set(search.found)) == size // 2
    assert search.best == sum(rows[a][b] for a, b in combinations(search.found, 2))
    assert (search.considered == 512) is (size > 16)
    assert (search.considered > 512) is (size == 16)
