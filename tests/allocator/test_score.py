"""Which of the nodes that fit is the better one: packing, and the patent's least mean and least variance, exactly."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import pytest
from builders import GIB, app, gpu, gpus, held, holding, init, nic, node, part, request, sidecar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import devices, machine
from strategies import asks
from trials import examples

from allocator.index.cluster import ClusterIndex
from allocator.index.preference import FIGURES, NO_CLASS, Filled, mean, variance
from allocator.index.query import MAX_AMOUNT
from allocator.index.rows import load_row, query_of, query_with_load, type_rows, want_of
from allocator.place import Placement, place
from allocator.vocabulary.asks import NODE_CLASSES, DeviceAsk, PodRequest, Preference
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.node import NodeSnapshot, fullness

CPU, MEMORY, DISK = NODE_CLASSES

# --- the formulas, in figures that are easily computed by hand

# (classes as (requested, capacity), mean, variance)

FORMULAS: dict[str, tuple[list[tuple[int, int]], Fraction, Fraction]] = {
    "an idle node": ([(0, 64), (0, 256), (0, 800)], Fraction(0), Fraction(0)),
    "a full node": ([(64, 64), (256, 256), (800, 800)], Fraction(1), Fraction(0)),
    "all classes alike": ([(16, 64), (64, 256), (200, 800)], Fraction(1, 4), Fraction(0)),
    "a quarter, half, three quarters": ([(25, 100), (50, 100), (75, 100)], Fraction(1, 2), Fraction(1, 24)),
    "half of the classes idle, half full: the greatest variance": ([(0, 9), (9, 9)], Fraction(1, 2), Fraction(1, 4)),
    "one class": ([(1, 3)], Fraction(1, 3), Fraction(0)),
    "CPU, memory, disk, bandwidth and GPU": (
        [(88, 100), (90, 100), (0, 100), (0, 100), (0, 800)],
        Fraction(178, 500),
        (2 * Fraction(88**2 + 90**2, 10**4) * Fraction(1, 2)) / 5 - Fraction(178, 500) ** 2,
    ),
    "a class of capacity 0 does not count": ([(0, 0), (1, 2), (1, 4)], Fraction(3, 8), Fraction(1, 64)),
    "without a class that counts": ([(0, 0)], Fraction(2), Fraction(2)),
    "without a class": ([], Fraction(2), Fraction(2)),
}


@pytest.mark.parametrize(("classes", "middle", "spread"), FORMULAS.values(), ids=FORMULAS)
def test_the_mean_and_the_variance_are_exact(
    classes: list[tuple[int, int]], middle: Fraction, spread: Fraction
) -> None:
    filled = [Filled(*one) for one in classes]
    assert (mean(filled), variance(filled)) == (middle, spread)


def test_no_class_is_worse_than_any() -> None:
    assert all(figure([Filled(1, 1), Filled(0, 1)]) < NO_CLASS for figure in FIGURES.values())
    assert sorted(FIGURES) == [Preference.LEAST_REQUESTED, Preference.MOST_BALANCED]


def test_what_a_pod_requests_of_a_node_is_bounded_and_only_of_classes_that_count() -> None:
    stated = ((CPU, 0), (DISK, 2**60), (MEMORY, -5), ("hugepages-2Mi", 7), ("pods", 1))
    assert query_with_load(request(), stated).requests == ((DISK, MAX_AMOUNT),)


def test_a_pod_takes_in_each_step_of_its_life_what_runs_then() -> None:
    of = request(
        init("i", gpus(100)), sidecar("s", gpus(20)), init("j", gpus(60)), app("a", gpus(50)), app("b", gpus(50))
    )
    whole, fifth, most, half = (want_of(gpus(percent)) for percent in (100, 20, 60, 50))
    query = query_with_load(of, ())
    assert query.steps == ((whole,), (fifth, most), (fifth, half, half))
    assert query.wants == query_of(of).wants
    assert query_of(of).steps == ()


# --- packing


def busy(name: str, *parts: tuple[int, int]) -> NodeSnapshot:
    """A named machine with (minor, percent) held by others."""
    cards = devices(name)
    return node(*cards, holdings=held(*(part(cards[minor], percent) for minor, percent in parts)))


def index_of(nodes: Mapping[str, NodeSnapshot]) -> ClusterIndex:
    index = ClusterIndex({kind.name: fullness(kind) for kind in BUILT_IN.types})
    for name, on in nodes.items():
        index.put(name, type_rows(on))
    return index


HALF, WHOLE, TWO = (request(app("a", gpus(percent))) for percent in (50, 100, 200))
FOUR, EIGHT, ONE = "four A100", "eight A100", "one T4"

# (a request, the better node, the worse node)

BETTER: dict[str, tuple[PodRequest, NodeSnapshot, NodeSnapshot]] = {
    "a share beside a share, not on a fresh card": (HALF, busy(FOUR, (0, 50)), machine(FOUR)),
    "a share on a node with one card in use, not on a fuller one without room there": (
        HALF,
        busy(FOUR, (0, 50)),
        busy(FOUR, (0, 60), (1, 60), (2, 60)),
    ),
    "a whole card on the fuller node": (WHOLE, busy(FOUR, (0, 100), (1, 100)), busy(FOUR, (0, 100))),
    "a whole card on a used node, not on an empty one": (WHOLE, busy(FOUR, (0, 100)), machine(FOUR)),
    "a whole card on the smaller node": (WHOLE, machine(FOUR), machine(EIGHT)),
    "two cards that fill a node": (TWO, busy(FOUR, (0, 100), (1, 100)), machine(FOUR)),
    "a share that fills its card": (HALF, busy(ONE, (0, 50)), busy(ONE, (0, 25))),
    "the node whose other cards are broken is full": (WHOLE, node(gpu(0), gpu(1, healthy=False)), node(gpu(0), gpu(1))),
    "what the kubelet holds is not there": (WHOLE, node(gpu(0), gpu(1), kubelet=["GPU-1"]), node(gpu(0), gpu(1))),
}


@pytest.mark.parametrize(("of", "better", "worse"), BETTER.values(), ids=BETTER)
def test_the_node_that_packs_tighter_scores_higher(of: PodRequest, better: NodeSnapshot, worse: NodeSnapshot) -> None:
    index = index_of({"better": better, "worse": worse})
    high, low = index.packing(index.positions(["better", "worse"]), query_of(of)).tolist()
    assert high > low > 0


# --- the index beside the exact figures of what `place()` gives


@dataclass(frozen=True)
class Server:
    """A node, what it has for its Pods, and what these request."""

    on: NodeSnapshot
    allocatable: Mapping[str, int]
    requested: Mapping[str, int]


POD_REQUESTS = ((CPU, 1500), (DISK, 10), (MEMORY, 3 * GIB), ("pods", 1))


@st.composite
def servers(draw: st.DrawFn) -> Server:
    """A node of cards that are alike, in use in all ways, some unhealthy or the kubelet's; NICs beside them."""
    memory = draw(st.sampled_from([80 * GIB, 8_589_934_591, 101]))
    cards = [gpu(minor, memory, healthy=draw(st.integers(0, 7)) > 0) for minor in range(draw(st.integers(1, 8)))]
    boards = [nic(minor) for minor in range(draw(st.integers(0, 2)))]
    on = node(*cards, *boards, kubelet=draw(st.sets(st.sampled_from([card.id for card in cards]), max_size=1)))
    for index in range(draw(st.integers(0, 4))):
        answer = place(request(app("a", draw(asks()))), on)
        if isinstance(answer, Placement):
            on = on.with_holding(holding(f"other-{index}", *answer.shares))
    has = {CPU: st.sampled_from([0, 32_000, 64_000]), MEMORY: st.sampled_from([256 * GIB, 256 * GIB - 4096])}
    allocatable = {name: draw(amount) for name, amount in has.items()} if draw(st.integers(0, 3)) else {}
    used = st.integers(0, 20).map(lambda steps: steps * 3200)
    return Server(on, allocatable, {CPU: draw(used), MEMORY: draw(used) * 2**20, "pods": 7})


def after(server: Server, placement: Placement, counted: frozenset[str]) -> list[Filled]:
    """Every class of the node that counts, with the Pod, recounted from the devices themselves."""
    on = server.on.with_holding(holding("new", *placement.shares))
    classes = []
    for kind in {one.type for one in on.devices if not counted or one.type in counted}:
        usable = [one for one in on.devices if one.type == kind and on.is_usable(one)]
        for tail in fullness(BUILT_IN.by_name[kind]):
            total = sum(one.capacity[tail] for one in usable)
            used = sum(one.capacity[tail] - on.free(one, (tail,))[0] for one in usable)
            classes.append(Filled(used, total))
    for name in NODE_CLASSES:
        total = server.allocatable.get(name, 0)
        if not counted or name in counted:
            classes.append(Filled(min(server.requested.get(name, 0) + dict(POD_REQUESTS)[name], total), total))
    return classes


@given(
    st.lists(servers(), min_size=1, max_size=6),
    asks(),
    st.sampled_from(list(FIGURES)),
    st.frozensets(st.sampled_from(["gpu", "rdma", *NODE_CLASSES]), max_size=3),
)
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_order_of_the_index_is_that_of_the_exact_figures_of_the_placements(
    made: list[Server], of: DeviceAsk, way: Preference, counted: frozenset[str]
) -> None:
    asked = request(app("a", of))
    index = ClusterIndex({kind.name: fullness(kind) for kind in BUILT_IN.types}, counted=counted)
    exact: dict[str, Fraction] = {}
    for number, server in enumerate(made):
        index.put(f"n{number}", [*type_rows(server.on), load_row(server.allocatable, server.requested)])
        answer = place(asked, server.on)
        if isinstance(answer, Placement):
            exact[f"n{number}"] = FIGURES[way](after(server, answer, counted))
    numbers = {figure: number for number, figure in enumerate(sorted(set(exact.values())))}
    told = index.ranks(way, index.positions(list(exact)), query_with_load(asked, POD_REQUESTS))
    assert told.tolist() == [numbers[figure] for figure in exact.values()]
