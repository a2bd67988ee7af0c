"""The index, compared with a plain recount: nodes that fit, numbers of devices, order of nodes, after any history."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.index.cluster import ClusterIndex
from allocator.index.packed import Packed
from allocator.index.preference import FIGURES, Filled
from allocator.index.query import (
    MAX_AMOUNT,
    MAX_WANTED,
    Amount,
    PartOf,
    Query,
    QueryError,
    RatioFrom,
    Want,
)
from allocator.index.rows import CPU_ROW, NUMA_ROW, load_row
from allocator.index.search import NodeSearch
from allocator.index.table import RowError, TypeRow
from allocator.vocabulary.asks import NODE_CLASSES, Preference

MAX_KEPT = 64
MAX_SLOTS = 128
MAX_TAILS = 16

GIB = 2**30
GPU, RDMA, CPU = "gpu", "rdma", "cpu"
CORE, MEMORY, RATIO = "gpu-core", "gpu-memory", "gpu-memory-ratio"
TAILS: dict[str, tuple[str, ...]] = {GPU: (CORE, MEMORY, RATIO), RDMA: ("rdma",), CPU: ("free-numa", "free-cores")}
FULLNESS = {GPU: (CORE, RATIO)}

# A plain model, recounted from scratch


@dataclass(frozen=True)
class Slot:
    """One device: its total and free amounts, by tail."""

    total: Mapping[str, int]
    free: Mapping[str, int]
    usable: bool = True
    in_use: bool = False


Node = Mapping[str, Sequence[Slot]]


def rows(node: Node) -> list[TypeRow]:
    made = []
    for kind, slots in node.items():
        tails = list(slots[0].total) if slots else []
        packed = [Packed.of(tail, [s.total[tail] for s in slots], [s.free[tail] for s in slots]) for tail in tails]
        usable = sum(slot.usable << place for place, slot in enumerate(slots))
        in_use = sum(slot.in_use << place for place, slot in enumerate(slots))
        made.append(TypeRow(kind, tuple(packed), usable, in_use))
    return made


def need(amount: Amount, tail: str, total: Mapping[str, int]) -> int | None:
    """The amount that a request takes on a device; None if no device could suffice."""
    if isinstance(amount, PartOf):
        return total.get(tail, 0) * amount.percent // 100
    if isinstance(amount, RatioFrom):
        base = total.get(amount.tail, 0)
        return None if amount.amount > base else amount.amount * 100 // max(base, 1)
    return amount


def could(slot: Slot, want: Want) -> bool:
    needs = [(tail, need(amount, tail, slot.total)) for tail, amount in want.amounts]
    return slot.usable and all(figure is not None and figure <= slot.free.get(tail, 0) for tail, figure in needs)


def fit_for(node: Node, want: Want) -> list[Slot]:
    return [slot for slot in node.get(want.type, ()) if could(slot, want)]


def fits(node: Node, query: Query) -> bool:
    return all(len(fit_for(node, want)) >= want.count for want in query.wants)


def room(node: Node, want: Want, most: int) -> int:
    """How many times a want can be served, by taking it again and again, of the fullest devices last."""
    return next((times for times in range(most, 0, -1) if often(node, want, times)), 0)


def often(node: Node, want: Want, times: int) -> bool:
    """Whether a request could be served this number of times, taking the fullest devices last."""
    slots = fit_for(node, want)
    lefts = []
    for slot in slots:
        left, free = 0, dict(slot.free)
        while left < times and could(Slot(slot.total, free), want):
            free = {tail: amount - need_of(want, tail, slot.total) for tail, amount in free.items()}
            left += 1
        lefts.append(left)
    for _ in range(times):
        lefts.sort(reverse=True)
        if len(lefts) < want.count or not lefts[want.count - 1]:
            return False
        lefts = [left - (place < want.count) for place, left in enumerate(lefts)]
    return True


def need_of(want: Want, tail: str, total: Mapping[str, int]) -> int:
    return sum(need(amount, tail, total) or 0 for name, amount in want.amounts if name == tail)


def asked(node: Node, query: Query) -> dict[tuple[str, str], int]:
    """The amount taken of each class, on the smallest devices that fit."""
    taken: dict[tuple[str, str], int] = {}
    for want in query.wants:
        for tail, amount in want.amounts:
            base = amount.tail if isinstance(amount, RatioFrom) else tail
            smallest = min((slot.total.get(base, 0) for slot in fit_for(node, want)), default=0)
            each = need(amount, tail, {base: smallest})
            assert each is not None
            taken[want.type, tail] = taken.get((want.type, tail), 0) + want.count * each
    return taken


def has_and_used(node: Node, kind: str, tail: str, more: int) -> tuple[int, int]:
    usable = [slot for slot in node.get(kind, ()) if slot.usable]
    has = sum(slot.total.get(tail, 0) for slot in usable)
    used = sum(slot.total.get(tail, 0) - slot.free.get(tail, 0) for slot in usable)
    return has, min(used + more, has)


def taking(query: Query) -> Query:
    """The query of a Pod that holds all that it asks for at once."""
    return replace(query, steps=(query.wants,))


def filled(node: Node, query: Query) -> list[Filled]:
    """Every class of the node with what the query takes, but for bytes that a ratio states as well."""
    more = asked(node, query)
    return [
        Filled(*reversed(has_and_used(node, kind, tail, more.get((kind, tail), 0))))
        for kind in node
        for tail in FULLNESS.get(kind, TAILS[kind])
    ]


def fills(slot: Slot, want: Want, tails: Iterable[str]) -> bool:
    """Whether one class is requested in full; a ratio of 100 is all of a device."""
    for tail, amount in want.amounts:
        if tail not in tails:
            continue
        figure = need(amount, tail, slot.total)
        most = 100 if isinstance(amount, RatioFrom) else slot.total.get(tail, 0)
        if isinstance(amount, PartOf):
            if amount.percent == 100:
                return True
        elif figure and figure >= most:
            return True
    return False


def packing(node: Node, query: Query) -> int:
    kept = wanted = 0
    for want in query.wants:
        tails = FULLNESS.get(want.type, TAILS[want.type])
        chosen = sorted(fit_for(node, want), key=lambda slot: (not slot.in_use, not fills(slot, want, tails)))
        kept += sum(slot.in_use or fills(slot, want, tails) for slot in chosen[: want.count])
        wanted += want.count
    more = asked(node, query)
    full = 0
    kinds = dict.fromkeys(want.type for want in query.wants)
    for kind in kinds:
        tails = FULLNESS.get(kind, TAILS[kind])
        pairs = [has_and_used(node, kind, tail, more.get((kind, tail), 0)) for tail in tails]
        full += 30 * sum(used for _, used in pairs) // max(sum(has for has, _ in pairs), 1)
    in_use = any(slot.in_use for slots in node.values() for slot in slots)
    return 50 * kept // wanted + 20 * in_use + full // len(kinds)


def index_of(nodes: Mapping[str, Node]) -> ClusterIndex:
    index = ClusterIndex(FULLNESS)
    for name, node in nodes.items():
        index.put(name, rows(node))
    return index


def agree(index: ClusterIndex, nodes: Mapping[str, Node], query: Query) -> None:
    """Every figure of the index is that of the plain recount."""
    names = [*nodes, "no such node"]
    at = index.positions(names)
    assert [index.names[row] for row in at] == [*nodes, ""]
    assert index.fitting(query)[at].tolist() == [*(fits(node, query) for node in nodes.values()), False]
    counts = [[len(fit_for(node, want)) for node in nodes.values()] for want in query.wants]
    assert index.counts(query)[:, at].tolist() == [[*each, 0] for each in counts]
    for most in (1, 3):
        rooms = [min((room(node, want, most) for want in query.wants), default=most) for node in nodes.values()]
        assert index.rooms(query, at, most).tolist()[:-1] == rooms
    expected = [packing(node, query) if fits(node, query) else 0 for node in nodes.values()]
    assert index.packing(at, query).tolist() == [*expected, 0]
    assert all(0 <= score <= 100 for score in expected)
    fitting = [name for name, node in nodes.items() if fits(node, query)]
    for way, figure in FIGURES.items():
        exact = [figure(filled(nodes[name], query)) for name in fitting]
        numbers = {one: number for number, one in enumerate(sorted(set(exact)))}
        told = index.ranks(way, index.positions(fitting), taking(query))
        assert told.tolist() == [numbers[one] for one in exact], way


# Clusters and queries of any kind

CAPACITIES = (80 * GIB, 24 * GIB, 15472384 * 1024, 8_589_934_591, 1_000_003, 101, 3, 1, 0, 2**49)
FREE_SHARE = (0, 0, 1, 25, 33, 50, 67, 99, 100, 100)


@st.composite
def slot_lists(draw: st.DrawFn, kind: str) -> list[Slot]:
    made = []
    uniform = draw(st.booleans())
    capacity = draw(st.sampled_from(CAPACITIES))
    for _ in range(draw(st.integers(0, 9))):
        memory = capacity if uniform else draw(st.sampled_from(CAPACITIES))
        total = {tail: memory if tail == MEMORY else 100 for tail in TAILS[kind]}
        if kind == CPU:
            total = {"free-numa": draw(st.sampled_from([0, 16, 64])), "free-cores": 8}
        part = draw(st.sampled_from(FREE_SHARE))
        free = {tail: amount * part // 100 for tail, amount in total.items()}
        if draw(st.integers(0, 3)) == 0:
            free = {tail: draw(st.integers(0, amount)) for tail, amount in total.items()}
        made.append(Slot(total, free, draw(st.integers(0, 7)) < 7, free != total))
    return made


@st.composite
def node_values(draw: st.DrawFn) -> Node:
    kinds = draw(st.lists(st.sampled_from([GPU, GPU, GPU, RDMA, CPU]), unique=True, max_size=3))
    return {kind: draw(slot_lists(kind)) for kind in kinds}


PERCENTS = st.sampled_from([0, 1, 10, 33, 50, 67, 99, 100])
BYTES = st.builds(lambda of, part: of * part // 100, st.sampled_from([*CAPACITIES, MAX_AMOUNT]), PERCENTS)


@st.composite
def wants(draw: st.DrawFn) -> Want:
    kind = draw(st.sampled_from([GPU, GPU, GPU, RDMA, CPU]))
    count = draw(st.sampled_from([1, 1, 2, 4, 8, MAX_WANTED]))
    if kind == GPU:
        memory = draw(BYTES)
        ratio = draw(PERCENTS)
        two: tuple[tuple[str, Amount], ...] = draw(
            st.sampled_from(
                [
                    ((MEMORY, memory), (RATIO, RatioFrom(MEMORY, memory))),
                    ((MEMORY, PartOf(ratio)), (RATIO, ratio)),
                    ((RATIO, PartOf(ratio)),),
                    ((RATIO, RatioFrom(MEMORY, memory)),),
                ]
            )
        )
        return Want(kind, count, ((CORE, draw(PERCENTS)), *two))
    tails = draw(st.lists(st.sampled_from(TAILS[kind]), min_size=1, unique=True))
    return Want(kind, count, tuple((tail, draw(st.sampled_from([0, 1, 8, 16, 50, 100]))) for tail in tails))


QUERIES = st.lists(wants(), min_size=1, max_size=3).map(lambda made: Query(tuple(made)))


@given(st.lists(node_values(), max_size=6), st.lists(QUERIES, min_size=1, max_size=3))
def test_any_cluster_gives_what_a_plain_recount_gives(made: list[Node], queries: list[Query]) -> None:
    nodes = {f"node-{number}": node for number, node in enumerate(made)}
    index = index_of(nodes)
    for query in queries:
        agree(index, nodes, query)
        agree(index, nodes, query)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Node], list[tuple[str, int | None]]]:
    """Some kinds of node, and events: a node appears as one of these kinds, or (None) disappears."""
    made = draw(st.lists(node_values(), min_size=1, max_size=4))
    names = st.sampled_from([f"node-{number}" for number in range(50)])
    return made, draw(st.lists(st.tuples(names, st.none() | st.integers(0, len(made) - 1)), max_size=25))


@given(histories(), QUERIES)
def test_nodes_that_come_change_and_go_leave_what_building_again_gives(
    history: tuple[list[Node], list[tuple[str, int | None]]], query: Query
) -> None:
    made, events = history
    nodes: dict[str, Node] = {f"node-{number}": made[number % len(made)] for number in range(40)}
    index = index_of(nodes)
    agree(index, nodes, query)
    for place, (name, kind) in enumerate(events):
        if kind is None:
            nodes.pop(name, None)
            index.drop(name)
        else:
            nodes[name] = made[kind]
            index.put(name, rows(made[kind]))
        if place % 3 == 0:  # so that figures are stored and updated in between
            agree(index, nodes, query)
    agree(index, nodes, query)
    assert len(index) == len(nodes)
    anew = index_of(dict(sorted(nodes.items())))
    names = sorted(nodes)
    for way in FIGURES:
        there, again = (one.ranks(way, one.positions(names), taking(query)) for one in (index, anew))
        assert there.tolist() == again.tolist()


# The figures, one by one


def gpus(*parts: int, memory: int = 80 * GIB, unhealthy: Iterable[int] = ()) -> list[Slot]:
    """Cards with these percentages in use."""
    return [
        Slot(
            {CORE: 100, MEMORY: memory, RATIO: 100},
            {CORE: 100 - part, MEMORY: memory - memory * part // 100, RATIO: 100 - part},
            usable=minor not in unhealthy,
            in_use=part > 0,
        )
        for minor, part in enumerate(parts)
    ]


def percent(part: int, count: int = 1) -> Query:
    return Query((Want(GPU, count, ((CORE, part), (MEMORY, PartOf(part)), (RATIO, part))),))


def size(memory: int, count: int = 1, core: int = 0) -> Query:
    return Query((Want(GPU, count, ((CORE, core), (MEMORY, memory), (RATIO, RatioFrom(MEMORY, memory)))),))


def packed(node: Node, query: Query) -> int:
    index = index_of({"node": node})
    return int(index.packing(index.positions(["node"]), query)[0])


# (cards, query, how many of them could serve it)

COUNTED: dict[str, tuple[list[Slot], Query, int]] = {
    "a share beside a share": (gpus(0, 50, 60), percent(50), 2),
    "whole cards only where idle": (gpus(0, 1, 100, 0), percent(100), 2),
    "an unhealthy card is none": (gpus(0, 0, unhealthy=[1]), percent(10), 1),
    "bytes that are all of a card": (gpus(0, 0), size(80 * GIB), 2),
    "a byte more than a card has": (gpus(0, 0), size(80 * GIB + 1), 0),
    "bytes as a ratio are rounded down: 33 percent of 3": (gpus(67, memory=3), size(1), 1),
    "bytes as a ratio that just does not fit": (gpus(68, memory=3), size(1), 0),
    "a ratio as bytes is rounded down: 1 of 3": (
        [Slot({CORE: 100, MEMORY: 3, RATIO: 100}, {CORE: 100, MEMORY: 1, RATIO: 100})],
        percent(66),
        1,
    ),
    "a ratio as bytes, one more than is free": (
        [Slot({CORE: 100, MEMORY: 3, RATIO: 100}, {CORE: 100, MEMORY: 1, RATIO: 100})],
        percent(67),
        0,
    ),
    "the most that is counted, all of it": (gpus(0, memory=MAX_AMOUNT - 1), size(MAX_AMOUNT - 1, core=100), 1),
    "more than anything that is counted": (gpus(0, memory=MAX_AMOUNT - 1), size(MAX_AMOUNT), 0),
    "half of the most that is counted": (gpus(50, memory=MAX_AMOUNT - 1), percent(50), 1),
    "a class that the node does not have": (gpus(0), Query((Want(GPU, 1, (("gpu-encoder", 1),)),)), 0),
    "nothing of a class that the node does not have": (gpus(0), Query((Want(GPU, 1, (("gpu-encoder", 0),)),)), 1),
    "as many cards as there may be": (gpus(*[50] * MAX_SLOTS), percent(50, MAX_WANTED), MAX_SLOTS),
    "a ratio of more than 100 of a card fits none": (
        [Slot({MEMORY: 3, RATIO: 200}, {MEMORY: 3, RATIO: 200})],
        Query((Want(GPU, 1, ((RATIO, RatioFrom(MEMORY, 4)),)),)),
        0,
    ),
    "a larger card behind a smaller one": ([*gpus(0, memory=40 * GIB), *gpus(0)], size(60 * GIB), 1),
    "no cards": ([], percent(50), 0),
}


@pytest.mark.parametrize(("cards", "query", "expected"), COUNTED.values(), ids=COUNTED)
def test_devices_that_could_serve_are_counted(cards: list[Slot], query: Query, expected: int) -> None:
    index = index_of({"node": {GPU: cards}})
    assert index.counts(query)[0, index.positions(["node"])].tolist() == [expected]
    assert index.fitting(query)[index.positions(["node"])].tolist() == [expected >= query.wants[0].count]


def load(cpu: int, memory: int, disk: int = 0) -> TypeRow:
    """A node of 100 of each, of which so much is requested."""
    return load_row(dict.fromkeys(NODE_CLASSES, 100), dict(zip(NODE_CLASSES, (cpu, memory, disk), strict=True)))


def order(
    way: Preference, nodes: Mapping[str, Sequence[TypeRow]], query: Query, counted: Iterable[str] = ()
) -> list[list[str]]:
    """The names of nodes that are equally good, the best first."""
    index = ClusterIndex(FULLNESS, counted=counted)
    for name, types in nodes.items():
        index.put(name, types)
    levels: dict[int, list[str]] = {}
    for name, rank in zip(nodes, index.ranks(way, index.positions(list(nodes)), query).tolist(), strict=True):
        levels.setdefault(rank, []).append(name)
    return [levels[rank] for rank in sorted(levels)]


LEAST, BALANCED = Preference.LEAST_REQUESTED, Preference.MOST_BALANCED
CARD = taking(percent(100))

# (preference, nodes, query, classes that count, nodes that are equally good, the best first)

CLAIM_7: dict[str, tuple[Preference, dict[str, list[TypeRow]], Query, tuple[str, ...], list[list[str]]]] = {
    "a node full of ordinary Pods comes after one with a card in use": (
        LEAST,
        {"busy": [*rows({GPU: gpus(0, 0)}), load(88, 90)], "used": [*rows({GPU: gpus(20, 0)}), load(0, 0)]},
        CARD,
        (),
        [["used"], ["busy"]],
    ),
    "by devices alone the node without a Pod on its cards comes first": (
        LEAST,
        {"busy": [*rows({GPU: gpus(0, 0)}), load(88, 90)], "used": [*rows({GPU: gpus(20, 0)}), load(0, 0)]},
        CARD,
        (GPU,),
        [["busy"], ["used"]],
    ),
    "by disk alone they differ by what is requested of the disk": (
        LEAST,
        {"a": [load(0, 0, 2)], "b": [load(99, 99, 1)], "c": [load(1, 1, 2)]},
        Query(()),
        ("ephemeral-storage",),
        [["b"], ["a", "c"]],
    ),
    "0.511 and 0.515 differ": (
        LEAST,
        {"a": [load_row({"cpu": 1000}, {"cpu": 515})], "b": [load_row({"cpu": 1000}, {"cpu": 511})]},
        Query(()),
        (),
        [["b"], ["a"]],
    ),
    "what differs by a byte of a terabyte differs": (
        LEAST,
        {name: [load_row({"memory": 2**40}, {"memory": used})] for name, used in (("a", 7), ("b", 6), ("c", 7))},
        Query(()),
        (),
        [["b"], ["a", "c"]],
    ),
    "equal shares of nodes that differ in size are equal": (
        LEAST,
        {"a": [load_row({"cpu": 3000}, {"cpu": 1000})], "b": [load_row({"cpu": 21000}, {"cpu": 7000})]},
        Query(()),
        (),
        [["a", "b"]],
    ),
    "all of one CPU is more than most of four": (
        LEAST,
        {"a": [load_row({"cpu": 1}, {"cpu": 1})], "b": [load_row({"cpu": 4}, {"cpu": 3})]},
        Query(()),
        (),
        [["b"], ["a"]],
    ),
    "what the Pod requests fills a small node further": (
        LEAST,
        {"small": [load_row({"cpu": 2000}, {})], "large": [load_row({"cpu": 9000}, {"cpu": 2000})]},
        Query((), (), (("cpu", 1000),)),
        (),
        [["large"], ["small"]],
    ),
    "a whole card where CPU and memory are as much in use is balanced": (
        BALANCED,
        {"idle": [*rows({GPU: gpus(0, 0)}), load(0, 0)], "half": [*rows({GPU: gpus(0, 0)}), load(50, 50, 50)]},
        CARD,
        (),
        [["half"], ["idle"]],
    ),
    "a node without a class that counts comes last": (
        BALANCED,
        {"none": rows({GPU: gpus(0)}), "all": [*rows({GPU: gpus(0)}), load(100, 0, 50)], "empty": [load_row({}, {})]},
        Query(()),
        NODE_CLASSES,
        [["all"], ["none", "empty"]],
    ),
    "more than a node has counts as all of it": (
        LEAST,
        {"a": [load(100, 100)], "b": [load(900, 100)], "c": [load(99, 100)]},
        Query((), (), (("cpu", 1),)),
        (),
        [["a", "b", "c"]],
    ),
    "more than can be counted counts as the most that can be": (
        LEAST,
        {"a": [load_row({"memory": 2**62}, {"memory": 2**62})], "b": [load_row({"memory": 2**62}, {"memory": 1})]},
        Query(()),
        (),
        [["b"], ["a"]],
    ),
    "a node that cannot serve the Pod is compared as it is": (
        LEAST,
        {"full": rows({GPU: gpus(100)}), "more than half": rows({GPU: gpus(60)})},
        CARD,
        (),
        [["more than half"], ["full"]],
    ),
    "the Pod's steps of life count by the greatest": (
        LEAST,
        {"one": rows({GPU: gpus(0)}), "four": rows({GPU: gpus(0, 0, 0, 0)}), "half": rows({GPU: gpus(50, 0)})},
        Query((), (percent(100).wants, (*percent(50).wants, *percent(20).wants)), ()),
        (),
        [["four"], ["half"], ["one"]],
    ),
}


@pytest.mark.parametrize(("way", "nodes", "query", "counted", "expected"), CLAIM_7.values(), ids=CLAIM_7)
def test_nodes_are_preferred_as_claim_7_says(
    way: Preference,
    nodes: dict[str, list[TypeRow]],
    query: Query,
    counted: tuple[str, ...],
    expected: list[list[str]],
) -> None:
    assert order(way, nodes, query, counted) == expected


# (preference, requests of CPU, memory and disk that add up to the same, of which the float of the first is greater)

EQUAL: dict[Preference, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    LEAST: ((1, 2, 4), (2, 4, 1)),
    BALANCED: ((2, 4, 1), (1, 2, 4)),
}


@pytest.mark.parametrize("way", EQUAL)
def test_of_equal_nodes_that_floats_tell_apart_the_first_by_name_comes_first(way: Preference) -> None:
    index = ClusterIndex(FULLNESS)
    for name, requested in zip("ab", EQUAL[way], strict=True):
        index.put(name, [load(*requested)])
    index.put("c", [load(90, 1, 1)])
    assert list(NodeSearch(index, Query(()), ["c", "b", "a"]).best_first(way, {})) == ["a", "b", "c"]


@pytest.mark.parametrize("way", EQUAL)
def test_of_nodes_that_floats_do_not_tell_apart_the_better_one_comes_first(way: Preference) -> None:
    index = ClusterIndex(FULLNESS)
    for name, used in zip("abc", (7, 6, 7), strict=True):
        index.put(name, [load_row({"cpu": 2**52, "memory": 2**52}, {"memory": used})])
    assert list(NodeSearch(index, Query(()), ["c", "b", "a"]).best_first(way, {})) == ["b", "a", "c"]


def test_the_cpus_that_pods_have_as_their_own_count_by_what_is_requested_of_the_node() -> None:
    taken = {kind: [Slot({"free": 8}, {"free": free}) for free in (0, 8)] for kind in (CPU_ROW, NUMA_ROW)}
    nodes = {"taken": [*rows(taken), load(5, 0)], "not": [load(6, 0)]}
    assert order(LEAST, nodes, Query(())) == [["taken"], ["not"]]


def test_least_requested_spreads_packing_fills_and_balance_evens_out() -> None:
    uneven = [Slot({CORE: 100, RATIO: 100}, {CORE: 100, RATIO: 20}, in_use=True)]
    even = [Slot({CORE: 100, RATIO: 100}, {CORE: 60, RATIO: 60}, in_use=True)]
    idle = [Slot({CORE: 100, RATIO: 100}, {CORE: 100, RATIO: 100})]
    nodes = {"uneven": {GPU: uneven}, "even": {GPU: even}, "idle": {GPU: idle}, "full": {GPU: gpus(100)}}
    query = taking(Query((Want(GPU, 1, ((CORE, 20), (RATIO, 10))),)))
    of = {name: rows(node) for name, node in nodes.items()}
    assert order(LEAST, of, query) == [["idle"], ["uneven", "even"], ["full"]]
    assert order(BALANCED, of, query) == [["full"], ["even", "idle"], ["uneven"]]
    index = index_of(nodes)
    assert index.packing(index.positions([*nodes]), query).tolist() == [86, 86, 4, 0]


# (cards, query, its score: devices that stay unbroken, a node in use, how full its devices are then)

PACKED_TIGHT: dict[str, tuple[list[Slot], Query, int]] = {
    "the last free card": (gpus(100, 100, 100, 0), percent(100), 50 + 20 + 30),
    "the only card": (gpus(0), percent(100), 50 + 0 + 30),
    "half of the only card, empty": (gpus(0), percent(50), 0 + 0 + 15),
    "the other half of it": (gpus(50), percent(50), 50 + 20 + 30),
    "half of it beside a quarter": (gpus(25), percent(50), 50 + 20 + 22),
    "half of one of four": (gpus(0, 0, 0, 0), percent(50), 0 + 0 + 3),
    "half of a second card of four": (gpus(100, 0, 0, 0), percent(50), 0 + 20 + 11),
    "one of four": (gpus(0, 0, 0, 0), percent(100), 50 + 0 + 7),
    "two of four, beside one in use": (gpus(50, 0, 0, 0), percent(100, 2), 50 + 20 + 18),
    "two halves, one beside another": (gpus(50, 0), percent(50, 2), 25 + 20 + 22),
    "memory alone fills a card as well": (gpus(0), Query((Want(GPU, 1, ((RATIO, 100),)),)), 50 + 0 + 15),
    "bytes that fill a card": (gpus(0), size(80 * GIB), 50 + 0 + 15),
    "bytes that are 99 percent of a card": (gpus(0, memory=100), size(99), 0 + 0 + 14),
    "a card in use and no more than was asked, though another would be filled": (
        [
            Slot({CORE: 100, RATIO: 100}, {CORE: 50, RATIO: 100}, in_use=True),
            Slot({CORE: 100, RATIO: 100}, {CORE: 100, RATIO: 100}),
        ],
        Query((Want(GPU, 1, ((RATIO, 100),)),)),
        50 + 20 + 11,
    ),
    "bytes of the card that fits, not of a smaller one that is full": (
        [*gpus(100, memory=40 * GIB), *gpus(0)],
        size(20 * GIB),
        0 + 20 + 16,
    ),
    "a card that is not usable counts for nothing": (gpus(0, 0, unhealthy=[1]), percent(100), 50 + 0 + 30),
    "and no matter which one it is": (gpus(0, 0, unhealthy=[0]), percent(100), 50 + 0 + 30),
    "nothing asked": (gpus(0), Query(()), 0),
    "what does not fit": (gpus(60), percent(50), 0),
    "no cards": ([], percent(50), 0),
}


@pytest.mark.parametrize(("cards", "query", "expected"), PACKED_TIGHT.values(), ids=PACKED_TIGHT)
def test_packing_scores_by_what_stays_unbroken(cards: list[Slot], query: Query, expected: int) -> None:
    assert packed({GPU: cards}, query) == expected


def test_all_classes_measure_how_full_devices_are_of_which_none_is_named() -> None:
    index = ClusterIndex({})
    index.put("node", rows({GPU: gpus(0, memory=200)}))
    at = index.positions(["node"])
    asked = [percent(50), percent(100), size(150), size(100, core=20)]
    assert [index.packing(at, query).tolist() for query in asked] == [[15], [80], [16], [12]]


def test_types_are_asked_together() -> None:
    nics = [Slot({"rdma": 100}, {"rdma": 50}, in_use=True)]
    index = index_of({"both": {GPU: gpus(0), RDMA: nics}, "cards": {GPU: gpus(0)}, "nics": {RDMA: nics}})
    query = Query((*percent(100).wants, Want(RDMA, 1, (("rdma", 50),))))
    at = index.positions(["both", "cards", "nics"])
    assert index.fitting(query)[at].tolist() == [True, False, False]
    assert index.counts(query)[:, at].tolist() == [[1, 1, 0], [1, 0, 1]]
    assert index.packing(at, query).tolist() == [50 + 20 + 30, 0, 0]


def test_a_type_that_no_node_has_fits_nowhere() -> None:
    index = index_of({"node": {GPU: gpus(0)}})
    query = Query((Want("fpga", 1, (("fpga", 100),)),))
    at = index.positions(["node"])
    assert index.fitting(query)[at].tolist() == [False]
    assert index.counts(query)[:, at].tolist() == [[0]]
    assert index.packing(at, query).tolist() == [0]
    assert index.ranks(LEAST, at, taking(query)).tolist() == [0]
    assert index.rooms(query, at, 1).tolist() == [0]


def test_a_request_for_nothing_fits_every_node_there_is() -> None:
    index = index_of({"a": {GPU: gpus(0)}, "b": {}, "c": {}})
    index.drop("b")
    at = index.positions(["a", "b", "c"])
    assert index.fitting(Query(()))[at].tolist() == [True, False, True]
    assert index.counts(Query(())).shape == (0, 4)
    assert index.packing(at, Query(())).tolist() == [0, 0, 0]


# Used parts of a node's cards, one of them unhealthy; the request; how often it can be served, one after another

OFTEN: dict[str, tuple[list[Slot], Query, int]] = {
    "halves: two a card": (gpus(0, 0), percent(50), 4),
    "halves: of what is free": (gpus(0, 50, 60), percent(50), 3),
    "halves: none of an unhealthy card": (gpus(0, 0, unhealthy=[1]), percent(50), 2),
    "whole cards": (gpus(0, 10, 0), percent(100), 2),
    "two halves each, of two cards": (gpus(0, 0), percent(50, 2), 2),
    "two halves each, never both of one card": (gpus(0, 50), percent(50, 2), 1),
    "two halves each, of one card": (gpus(0), percent(50, 2), 0),
    "two cards each": (gpus(0, 0, 0, 0, 0), percent(100, 2), 2),
    "bytes": (gpus(0, memory=80 * GIB), size(16 * GIB), 5),
    "bytes, all of a card": (gpus(0, memory=300), size(100), 3),  # 33 % each
    "bytes, and compute that runs out first": (gpus(0), size(GIB, core=40), 2),
}


@pytest.mark.parametrize(("cards", "query", "times"), OFTEN.values(), ids=OFTEN)
def test_how_often_a_node_could_serve_is_counted_on_each_device(cards: list[Slot], query: Query, times: int) -> None:
    index = index_of({"node": {GPU: cards}})
    at = index.positions(["node", "no such node"])
    found = [index.rooms(query, at, most).tolist() for most in (0, times, times + 1, 1000)]
    assert found == [[0, 0], [times, 0], [times, 0], [times, 0]]


# Rows


def test_a_node_keeps_its_row_while_others_come_and_go() -> None:
    index = index_of({name: {GPU: gpus(0)} for name in "abc"})
    index.drop("b")
    assert list(index.names) == ["", "a", "", "c"]
    index.put("d", rows({GPU: gpus(100)}))
    index.put("e", rows({GPU: gpus(0)}))
    assert list(index.names) == ["", "a", "d", "c", "e"]
    assert index.fitting(percent(100)).tolist() == [False, True, False, True, True]


def test_figures_given_out_do_not_change_afterwards() -> None:
    index = index_of({f"node-{number}": {GPU: gpus(0)} for number in range(40)})
    at = index.positions([f"node-{number}" for number in range(40)])
    given_out = [index.fitting(percent(100)), index.counts(percent(100)), index.packing(at, percent(100))]
    before = [figures.tolist() for figures in given_out]
    index.put("node-7", rows({GPU: gpus(100)}))
    assert index.fitting(percent(100)).sum() == 39
    assert index.packing(at, percent(100))[7] == 0
    assert [figures.tolist() for figures in given_out] == before


def test_a_type_that_a_node_lost_is_gone_with_its_use() -> None:
    index = index_of({"node": {GPU: gpus(50, 0), RDMA: [Slot({"rdma": 100}, {"rdma": 0}, in_use=True)]}})
    index.put("node", rows({GPU: gpus(0)}))
    at = index.positions(["node"])
    assert index.counts(percent(100))[0, at].tolist() == [1]
    assert index.packing(at, percent(100)).tolist() == [50 + 0 + 30]
    assert index.counts(Query((Want(RDMA, 1, (("rdma", 0),)),)))[0, at].tolist() == [0]


def test_a_node_has_nothing_of_what_another_had_in_whose_place_it_comes() -> None:
    index = index_of({})
    index.put("gone", [*rows({GPU: gpus(100)}), load(10, 10)])
    index.put("other", [*rows({GPU: gpus(100)}), load(40, 40, 40)])
    index.drop("gone")
    index.put("new", [load(50, 50, 50)])
    assert index.ranks(LEAST, index.positions(["new", "other"]), Query(())).tolist() == [0, 1]
    index.put("other", [load(40, 40, 40)])
    assert index.ranks(LEAST, index.positions(["new", "other"]), Query(())).tolist() == [1, 0]


def test_figures_hold_when_a_node_comes_and_when_it_has_more_devices_or_classes_than_any_before() -> None:
    nodes: dict[str, Node] = {f"node-{number}": {GPU: gpus(50)} for number in range(40)}
    index = index_of(nodes)
    query = Query((*percent(50).wants, Want(GPU, 1, (("gpu-encoder", 1),))))
    agree(index, nodes, query)
    nodes["node-40"] = {GPU: gpus(0)}
    index.put("node-40", rows(nodes["node-40"]))
    agree(index, nodes, query)
    coded = [Slot({**slot.total, "gpu-encoder": 4}, {**slot.free, "gpu-encoder": 1}) for slot in gpus(0, 50)]
    for more in (gpus(0, 50, 100), coded, []):
        nodes["node-7"] = {GPU: more}
        index.put("node-7", rows(nodes["node-7"]))
        agree(index, nodes, query)
        agree(index, nodes, percent(50))


def test_changes_just_before_and_after_the_oldest_are_forgotten_are_seen() -> None:
    nodes: dict[str, Node] = {f"node-{number}": {GPU: gpus(50)} for number in range(200)}
    index = index_of(nodes)
    full = rows({GPU: gpus(100)})
    changed = [f"node-{number}" for number in range(3)]
    for _ in range(4096 // 6 + 2):  # the remembered ones are forgotten between two of three
        for kind, still in ((full, 197), (rows({GPU: gpus(50)}), 200)):
            for name in changed:
                index.put(name, kind)
            assert index.fitting(percent(50)).sum() == still
    agree(index, nodes, percent(50))


def test_figures_hold_after_more_changes_and_queries_than_are_remembered() -> None:
    nodes: dict[str, Node] = {f"node-{number}": {GPU: gpus(number, 0)} for number in range(30)}
    index = index_of(nodes)
    agree(index, nodes, percent(50))
    free, full = rows({GPU: gpus(0)}), rows({GPU: gpus(100)})
    for number in range(5000):
        index.put("node-3", full if number % 2 else free)
    nodes["node-3"] = {GPU: gpus(100)}
    for part in range(1, MAX_KEPT + 2):
        agree(index, nodes, percent(part))
    agree(index, nodes, percent(50))


# What is refused

ONE = Packed.of(CORE, [100], [100])
TWO = Packed.of(MEMORY, [5, 5], [5, 5])

REFUSED_ROWS: dict[str, tuple[str, list[TypeRow]]] = {
    "no name": ("", []),
    "a type twice": ("node", [TypeRow(GPU, (ONE,), 1, 0), TypeRow(GPU, (ONE,), 1, 0)]),
    "classes of different devices": ("node", [TypeRow(GPU, (ONE, TWO), 1, 0)]),
    "a class twice": ("node", [TypeRow(GPU, (ONE, ONE), 1, 0)]),
    "a device that is not there is usable": ("node", [TypeRow(GPU, (ONE,), 0b10, 0)]),
    "a device that is not there is in use": ("node", [TypeRow(GPU, (ONE,), 1, 0b10)]),
    "a device far beyond is usable": ("node", [TypeRow(GPU, (ONE,), 0b100, 0)]),
    "a device far beyond is in use": ("node", [TypeRow(GPU, (ONE,), 1, 0b100)]),
    "a negative mask": ("node", [TypeRow(GPU, (ONE,), -1, 0)]),
    "devices without a class": ("node", [TypeRow(GPU, (), 1, 0)]),
    "too many devices": ("node", [TypeRow(GPU, (Packed.of(CORE, [1] * 129, [1] * 129),), 1, 0)]),
    "too many classes": (
        "node",
        [TypeRow(GPU, tuple(Packed.of(f"c{number}", [1], [1]) for number in range(MAX_TAILS + 1)), 1, 0)],
    ),
    "more than can be counted": ("node", [TypeRow(GPU, (Packed.of(MEMORY, [MAX_AMOUNT], [0]),), 1, 0)]),
    "more than can be counted in sum": ("node", [TypeRow(GPU, (Packed.of(MEMORY, [2**52] * 2, [0] * 2),), 1, 0)]),
    "a good type beside a bad one": ("node", [TypeRow(RDMA, (ONE,), 1, 0), TypeRow(GPU, (ONE,), 2, 0)]),
}


@pytest.mark.parametrize(("name", "types"), REFUSED_ROWS.values(), ids=REFUSED_ROWS)
def test_a_node_that_cannot_be_held_leaves_the_index_as_it_was(name: str, types: list[TypeRow]) -> None:
    for nodes in ({"other": {GPU: gpus(0, 50)}}, {"node": {GPU: gpus(0, 50)}}):
        index = index_of(nodes)
        with pytest.raises(RowError):
            index.put(name, types)
        assert len(index) == 1
        agree(index, nodes, percent(50))


FAR = Packed.of(CORE, [100] * 129, [100] * 129)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (TypeRow(GPU, (ONE, ONE), 1, 0), "type gpu: 2 classes; each must occur once, at most 16 in all"),
        (TypeRow(GPU, (FAR,), 1, 0), "type gpu: all classes must have the same number of devices, at most 128"),
        (TypeRow(GPU, (ONE,), 2, 0), "type gpu: usable or in use names a device beyond the existing 1"),
        (TypeRow(GPU, (ONE,), 1, 0, (("", ""),) * 2, (0,)), "type gpu: 2 makes and 1 groups of 1 devices"),
        (TypeRow(GPU, (ONE,), 1, 0, (("", ""),), (0, 1)), "type gpu: 1 makes and 2 groups of 1 devices"),
        (TypeRow(GPU, (ONE,), 1, 0, (("", ""),), (-1,)), "type gpu: groups of devices are numbered from 0 to 127"),
        (TypeRow(GPU, (ONE,), 1, 0, (("", ""),), (128,)), "type gpu: groups of devices are numbered from 0 to 127"),
    ],
)
def test_the_reason_is_told_why_devices_cannot_be_held(row: TypeRow, told: str) -> None:
    with pytest.raises(RowError) as error:
        index_of({}).put("node", [row])
    assert str(error.value) == told
    index_of({}).put("node", [TypeRow(GPU, (ONE,), 1, 0, (("", ""),), (127,))])


REFUSED_WANTS: dict[str, Callable[[], Want]] = {
    "no devices": lambda: Want(GPU, 0, ((CORE, 1),)),
    "fewer than none": lambda: Want(GPU, -1, ((CORE, 1),)),
    "too many devices": lambda: Want(GPU, MAX_WANTED + 1, ((CORE, 1),)),
    "nothing of each": lambda: Want(GPU, 1, ()),
    "a resource twice": lambda: Want(GPU, 1, ((CORE, 1), (CORE, 2))),
    "less than nothing": lambda: Want(GPU, 1, ((CORE, -1),)),
    "more than can be counted": lambda: Want(GPU, 1, ((MEMORY, MAX_AMOUNT + 1),)),
    "more than all of a device": lambda: Want(GPU, 1, ((MEMORY, PartOf(101)),)),
    "a ratio from less than nothing": lambda: Want(GPU, 1, ((RATIO, RatioFrom(MEMORY, -1)),)),
}


@pytest.mark.parametrize("make", REFUSED_WANTS.values(), ids=REFUSED_WANTS)
def test_a_want_out_of_bounds_is_refused(make: Callable[[], Want]) -> None:
    with pytest.raises(QueryError):
        make()
