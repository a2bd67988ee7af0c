"""The growth of fragmentation in the index: as the definition says of every node, through any history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from builders import GIB, app, ask, gpu, gpus, holding, nic, part, request
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import asks
from trials import examples

from allocator.fragmentation import Worth, fragmentation, worth
from allocator.index.cluster import ClusterIndex
from allocator.index.fragments import Made, Stock, narrowest
from allocator.index.packed import Packed
from allocator.index.preference import coarse
from allocator.index.rows import load_row, query_with_load, type_rows
from allocator.index.search import NodeSearch
from allocator.index.table import Ints, Make, TypeRow, TypeTable, unpack
from allocator.place import Placement, place
from allocator.vocabulary.asks import DeviceAsk, Preference
from allocator.vocabulary.device import Place, Wiring, link
from allocator.vocabulary.devicetype import GPU_TYPE, RDMA_TYPE, DeviceType, Unit
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.mix import MAX_TYPICAL, MAX_WEIGHT, Mix, TypicalRequest, mix_of
from allocator.vocabulary.names import model_name
from allocator.vocabulary.node import NodeSnapshot, fullness, size_class

TYPES = (GPU_TYPE, RDMA_TYPE)
MODELS = ("", "A100", "T4")
FRAGMENTATION = Preference.FRAGMENTATION


@dataclass(frozen=True)
class Machine:
    """A node, and what it has and what its Pods request of it, in thousandths of a CPU and GiB; None: not stated."""

    node: NodeSnapshot
    has: tuple[int, int] | None
    used: tuple[int, int] = (0, 0)

    def left(self, taken: tuple[int, int] = (0, 0)) -> tuple[int | None, int | None]:
        if self.has is None:
            return None, None
        cpu, memory = (max(h - u - t, 0) for h, u, t in zip(self.has, self.used, taken, strict=True))
        return cpu, memory * GIB

    def fragmentation(self, mix: Mix, node: NodeSnapshot | None = None, taken: tuple[int, int] = (0, 0)) -> int:
        return fragmentation(node or self.node, *self.left(taken), mix)


def new_index() -> ClusterIndex:
    return ClusterIndex({kind.name: fullness(kind) for kind in TYPES}, {kind.name: size_class(kind) for kind in TYPES})


def put(index: ClusterIndex, machine: Machine) -> None:
    has = machine.has or (0, 0)
    load = load_row({"cpu": has[0], "memory": has[1] * GIB}, {"cpu": machine.used[0], "memory": machine.used[1] * GIB})
    index.put(machine.node.name, [*type_rows(machine.node, makes_and_groups=True), load])


@st.composite
def machines(draw: st.DrawFn, name: str) -> Machine:
    sizes = draw(st.sampled_from([(16,), (80,), (16, 80)]))
    cards = [
        gpu(
            minor,
            draw(st.sampled_from(sizes)) * GIB,
            device_id=f"{name}-{minor}",
            healthy=draw(st.integers(0, 9)) > 0,
            model=draw(st.sampled_from(MODELS)),
            vendor=draw(st.sampled_from(["", "nvidia", "amd"])),
        )
        for minor in range(draw(st.integers(0, 4)))
    ]
    nics = [nic(minor, device_id=f"{name}-nic-{minor}") for minor in range(draw(st.integers(0, 2)))]
    node = NodeSnapshot(name, (*cards, *nics))
    for number in range(draw(st.integers(0, 4))):
        node = bound(node, draw(asks(2)), f"{name}-{number}") or node
    has = draw(st.none() | st.tuples(st.integers(1, 8000), st.integers(1, 64)))  # 0 is not stated
    return Machine(node, has, draw(st.tuples(st.integers(0, 9000), st.integers(0, 64))))


def bound(node: NodeSnapshot, of: DeviceAsk, uid: str) -> NodeSnapshot | None:
    """The node with a Pod on it; None where it does not fit."""
    outcome = place(request(app("main", of)), node)
    if not isinstance(outcome, Placement):
        return None
    return node.with_holding(Holding(uid, "default", uid, 0, outcome.shares))


@st.composite
def typicals(draw: st.DrawFn) -> TypicalRequest:
    of = draw(st.none() | asks(3) | st.sampled_from([DeviceAsk(RDMA_TYPE, 1, (50,)), replace(gpus(100), vendor="amd")]))
    models = draw(st.sampled_from([(), (), ("A100",), ("A100", "T4")])) if of is not None else ()
    cpu, memory = draw(st.integers(0, 4000)), draw(st.integers(0, 32)) * GIB
    return TypicalRequest(cpu, memory, of, models, draw(st.integers(1, 900)))


MIXES = st.lists(typicals(), max_size=8).map(mix_of)
NAMES = ("n1", "n2", "n3", "n4")
HISTORIES = st.lists(
    st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), st.none() | machines(name))),
    min_size=1,
    max_size=8,
)


@given(HISTORIES, st.lists(MIXES, min_size=1, max_size=2), asks(2))
def test_after_any_history_the_index_has_the_fragmentation_that_the_definition_counts_from_scratch(
    history: list[tuple[str, Machine | None]], mixes: list[Mix], of: DeviceAsk
) -> None:
    index, now = new_index(), dict[str, Machine]()
    wanted = query_with_load(request(app("main", of)), [("cpu", 500)])
    for number, (name, machine) in enumerate(history):
        if machine is None:
            now.pop(name, None)
            index.drop(name)
        else:
            now[name] = machine
            put(index, machine)
        mix = mixes[number * len(mixes) // len(history)]
        index.typify(mix)
        for _ in range(2):  # the second time from what is kept
            rows = index.positions(list(now))
            index.growth(rows, wanted)
            assert index.fragmentation(rows).tolist() == [one.fragmentation(mix) for one in now.values()]


@given(machines("n1"), MIXES, asks(3), st.integers(0, 4000), st.integers(0, 32))
def test_the_growth_is_that_of_the_devices_that_place_chooses(
    machine: Machine, mix: Mix, of: DeviceAsk, cpu: int, memory: int
) -> None:
    node = replace(machine.node, devices=tuple(replace(d, model="A100") for d in machine.node.devices))
    machine = replace(machine, node=node)
    after = bound(node, of, "new")
    if after is None:
        return
    index = new_index()
    put(index, machine)
    index.typify(mix)
    query = query_with_load(request(app("main", of)), [("cpu", cpu), ("memory", memory * GIB)])
    growth = index.growth(index.positions(["n1"]), query)
    assert growth.tolist() == [machine.fragmentation(mix, after, (cpu, memory)) - machine.fragmentation(mix)]


MANY = 70  # nodes from which arrays are computed in other ways than for few


@given(
    kinds=st.lists(machines("n"), min_size=1, max_size=4),
    mix=MIXES,
    of=asks(3),
    cpu=st.integers(0, 4000),
    smallest=st.booleans(),
)
@settings(max_examples=examples(60))
def test_many_nodes_have_the_figures_that_each_has_alone(
    kinds: list[Machine], mix: Mix, of: DeviceAsk, cpu: int, *, smallest: bool
) -> None:
    query = query_with_load(request(app("main", of)), [("cpu", cpu)])
    names = [f"n{number}" for number in range(MANY)]
    together, alone = new_index(), new_index()
    for number, name in enumerate(names):
        machine = kinds[number % len(kinds)]
        put(together, replace(machine, node=replace(machine.node, name=name)))
    for number, machine in enumerate(kinds):
        put(alone, replace(machine, node=replace(machine.node, name=names[number])))
    figures = []
    for index in (together, alone):
        index.typify(mix)
        rows = index.positions(names if index is together else names[: len(kinds)])
        growth = index.growth(rows, query, smallest=smallest)
        figures.append([index.fragmentation(rows).tolist(), growth.tolist()])
    assert figures[0] == [[each[number % len(kinds)] for number in range(MANY)] for each in figures[1]]


def test_more_nodes_than_are_looked_at_in_one_go_have_the_figures_that_each_has_alone() -> None:
    # 64 classes of requests on 32 cards: the index looks at some 256 nodes in one go.
    mix = mix_of([TypicalRequest(100 * percent, 0, gpus(percent)) for percent in range(37, 101)])
    machines = [Machine(cards(f"n{at}", 1, 50 + at % 50), (20 * at + 1, 64)) for at in range(300)]
    machines[299] = Machine(cards("n299", 32), None)
    index = new_index()
    for machine in machines:
        put(index, machine)
    index.typify(mix)
    rows = index.positions([machine.node.name for machine in machines])
    assert index.fragmentation(rows).tolist() == [machine.fragmentation(mix) for machine in machines]


@pytest.mark.parametrize("nodes", [1, MANY])
def test_the_largest_mix_and_the_largest_nodes_are_counted_exactly(nodes: int) -> None:
    most = [replace(typical(gpus(100), cpu=number), weight=MAX_WEIGHT // MAX_TYPICAL) for number in range(60)]
    mix = mix_of([*most, typical(gpus(200), cpu=2**70), typical(gpus(12800), memory=2**62)])
    devices = tuple(gpu(minor, device_id=f"card-{minor}") for minor in range(128))
    index = new_index()
    for number in range(nodes):
        index.put(f"n{number}", type_rows(NodeSnapshot(f"n{number}", devices), makes_and_groups=True))
    index.typify(mix)
    rows = index.positions([f"n{number}" for number in range(nodes)])
    query = query_with_load(request(app("main", gpus(100))), [])
    before = fragmentation(NodeSnapshot("n", devices), None, None, mix)
    one = Holding("u", "d", "u", 0, (Share("gpu", "card-0", 0, devices[0].capacity),))
    after = fragmentation(NodeSnapshot("n", devices, {"u": one}), None, None, mix)
    assert index.fragmentation(rows).tolist() == [before] * nodes
    assert index.growth(rows, query).tolist() == [after - before] * nodes


def test_makes_that_come_after_a_mix_are_told_apart() -> None:
    index, mix = new_index(), mix_of([TypicalRequest(0, 0, gpus(100), ("A100",))])
    index.typify(mix)
    for name, model in (("a", "T4"), ("b", "A100"), ("c", "H100")):
        put(index, Machine(NodeSnapshot(name, (gpu(0, device_id=name, model=model),)), None))
        assert index.fragmentation(index.positions([name])).tolist() == [0 if model == "A100" else 200]
    both = (gpu(0, device_id="0", model="L4"), gpu(1, device_id="1", model="L40"), gpu(2, device_id="2", model="A100"))
    put(index, Machine(NodeSnapshot("d", both), None))
    assert index.fragmentation(index.positions(["d"])).tolist() == [400]


def test_a_new_mix_counts_from_when_it_is_given() -> None:
    index = new_index()
    put(index, Machine(NodeSnapshot("a", (gpu(0, device_id="a"),)), None))
    rows, query = index.positions(["a"]), query_with_load(request(app("main", gpus(100))), [])
    for percent, lost in ((100, 0), (200, 200), (100, 0)):
        index.typify(mix_of([TypicalRequest(0, 0, gpus(percent))]))
        assert (index.fragmentation(rows).tolist(), index.growth(rows, query).tolist()) == ([lost], [-lost])


@pytest.mark.parametrize(
    ("cpu", "memory", "lost"), [(4000, 64, 0), (3999, 64, 200), (4000, 63, 200), (0, 64, 0), (4000, 0, 0), (1, 1, 200)]
)
def test_a_typical_request_fits_where_as_much_as_it_asks_is_left(cpu: int, memory: int, lost: int) -> None:
    index, node = new_index(), NodeSnapshot("a", (gpu(0, device_id="a"),))
    index.put("a", [*type_rows(node, makes_and_groups=True), load_row({"cpu": cpu, "memory": memory}, {})])
    mix = mix_of([TypicalRequest(4000, 64, gpus(100))])
    index.typify(mix)
    assert index.fragmentation(index.positions(["a"])).tolist() == [lost]
    assert worth(node, cpu or None, memory or None, mix) == {("gpu", ""): Worth(200 - lost, lost, 0)}


@pytest.mark.parametrize(
    ("vendor", "among", "makes"),
    [
        ("intel", [], [("intel", "X")]),
        ("nvidia", [], [("nvidia", "A100"), ("", "A100")]),
        ("", [["A100", "X"]], [("intel", "X"), ("nvidia", "A100"), ("", "A100")]),
        ("", [["A100", "X"], ["X", "L4"]], [("intel", "X")]),
        ("nvidia", [["X"]], []),
    ],
)
def test_a_make_is_of_the_vendor_and_of_all_sets_of_models(
    vendor: str, among: list[list[str]], makes: list[Make]
) -> None:
    made = Made(vendor, frozenset(frozenset(map(model_name, named)) for named in among))
    every: list[Make] = [("amd", "Y"), ("intel", "X"), ("nvidia", "A100"), ("", "A100"), ("zeta", "Z")]
    assert [make for make in every if made(make)] == makes


@pytest.mark.parametrize("has", [1, 99, 100, 101])
def test_all_that_a_device_has_is_a_hundred_points(has: int) -> None:
    pool = DeviceType("pool", tails=("slots",), plain="slots", units=(Unit.UNITS,))
    index = ClusterIndex({"pool": fullness(pool)})
    index.put("a", [TypeRow("pool", (Packed.of("slots", [has], [has]),), 1, 0, (("", ""),), (0,))])
    index.typify(mix_of([TypicalRequest(0, 0, DeviceAsk(pool, 2, (1,)))]))
    assert index.fragmentation(index.positions(["a"])).tolist() == [100]


@pytest.mark.parametrize("classes", [1, 2, 3, 6])
def test_as_many_devices_of_several_classes_as_a_node_may_have_are_counted(classes: int) -> None:
    tails = tuple("abcdef"[:classes])
    kind = DeviceType("x", tails=tails, plain="a", units=(Unit.UNITS,) * classes)
    hundred = tuple(Packed.of(tail, [100] * 128, [100] * 128) for tail in tails)
    index = ClusterIndex({"x": tails})
    index.put("a", [TypeRow("x", hundred, 2**128 - 1, 0, (("", "T4"),) * 128, (0,) * 128)])
    for models, lost in (("A100",), 12_800 * classes), ((), 0):
        index.typify(mix_of([TypicalRequest(0, 0, DeviceAsk(kind, 128, (1,) * classes), models)]))
        assert index.fragmentation(index.positions(["a"])).tolist() == [lost]


@pytest.mark.parametrize(
    ("most", "kind"),
    [(0, np.int16), (32_767, np.int16), (32_768, np.int32), (2**31 - 1, np.int32), (2**31, np.int64)],
)
def test_figures_are_counted_in_the_narrowest_numbers_that_hold_them(most: int, kind: type[np.integer[Any]]) -> None:
    assert narrowest(most) is kind


def test_requests_without_devices_take_no_room_from_the_figures_of_the_others() -> None:
    index = new_index()
    put(index, Machine(cards("a", 128), None))
    index.typify(mix_of([typical(gpus(100), weight=2), typical(cpu=1)]))
    assert index.fragmentation(index.positions(["a"])).tolist() == [128 * 200]


def test_what_is_left_of_a_device_counts_in_percent_of_what_it_has() -> None:
    pool = DeviceType("pool", tails=("slots",), plain="slots", units=(Unit.UNITS,))
    index = ClusterIndex({"pool": fullness(pool)})
    for name, has, held in (("a", 7, 2), ("b", 7, 0), ("c", 100, 1), ("d", 300, 7), ("e", 0, 0)):
        index.put(
            name, [TypeRow("pool", (Packed.of("slots", [has], [has - held]),), 1, int(held > 0), (("", ""),), (0,))]
        )
    index.typify(mix_of([TypicalRequest(0, 0, DeviceAsk(pool, 2, (1,)))]))
    assert index.fragmentation(index.positions(["a", "b", "c", "d", "e"])).tolist() == [71, 100, 99, 97, 0]


def test_a_device_whose_make_is_not_stated_is_of_no_model() -> None:
    index = new_index()
    for name in ("a", "b"):
        index.put(
            name, type_rows(NodeSnapshot(name, (gpu(0, device_id=name, model="A100"),)), makes_and_groups=name == "a")
        )
    index.typify(mix_of([TypicalRequest(0, 0, gpus(100), ("A100",))]))
    assert index.fragmentation(index.positions(["a", "b"])).tolist() == [0, 200]
    index.typify(mix_of([TypicalRequest(0, 0, gpus(100))]))
    assert index.fragmentation(index.positions(["a", "b"])).tolist() == [0, 0]


# Sizes of two cards in GiB, the part of the first that is in use; what a Pod and the typical one ask; the growth

TAKEN: dict[str, tuple[int, int, int, DeviceAsk, DeviceAsk, int]] = {
    "the smaller one": (1023, 1022, 0, gpus(100), ask(1, memory=1023 * GIB), -200),
    "of more than 1023 units the first": (1024, 1023, 0, gpus(100), ask(1, memory=1024 * GIB), 0),
    "the one in use before a smaller idle one": (2000, 1, 10, gpus(50), gpus(100), -100),
}


@pytest.mark.parametrize(("one", "other", "used", "of", "often", "growth"), TAKEN.values(), ids=TAKEN)
def test_of_two_cards_a_pod_takes(
    one: int, other: int, used: int, of: DeviceAsk, often: DeviceAsk, growth: int
) -> None:
    devices = tuple(gpu(at, size * GIB, device_id=f"c{at}") for at, size in enumerate((one, other)))
    held = {"p": holding("p", part(devices[0], used))} if used else {}
    index = new_index()
    put(index, Machine(NodeSnapshot("a", devices, held), None))
    index.typify(mix_of([TypicalRequest(0, 0, often)]))
    rows, query = index.positions(["a"]), query_with_load(request(app("main", of)), [])
    assert index.growth(rows, query).tolist() == [growth]
    assert index.growth_steps(rows, query).tolist() == [growth // 80]


@pytest.mark.parametrize(("differs", "first"), [*((tail, 1) for tail in "abcdef"), ("g", 0)])
def test_devices_are_compared_by_what_is_left_in_six_classes(differs: str, first: int) -> None:
    def free(tail: str) -> Ints:
        return np.array([[100], [99 if tail == differs else 100]])

    every, hundred, none = np.ones((2, 1), np.bool_), np.full((1, 1), 100), np.zeros((2, 1), np.int64)
    stock = Stock(every, ~every, lambda _: hundred, free, lambda: none, lambda _: every[0])
    order = stock.order(None, tuple("abcdefg"))
    assert order.argmin() == first
    assert (order >= 0).all()


def test_the_class_that_is_compared_first_outweighs_all_others() -> None:
    free = {"x": np.array([[0], [100]]), "y": np.array([[51], [50]])}
    every, hundred, none = np.ones((2, 1), np.bool_), np.full((1, 1), 100), np.zeros((2, 1), np.int64)
    stock = Stock(every, ~every, lambda _: hundred, free.__getitem__, lambda: none, lambda _: every[0])
    assert stock.order(None, ("x", "y")).argmin() == 1, "by y"
    assert stock.order(None, ("y", "x")).argmin() == 0, "by x"


def test_of_many_nodes_the_card_in_use_is_taken_and_of_use_no_more() -> None:
    index, names = new_index(), [f"n{number}" for number in range(MANY)]
    for number, name in enumerate(names):  # each of another size
        put(index, Machine(cards(name, 4, 50), (4000 + number, 64)))
    rows, query = index.positions(names), query_with_load(request(app("main", gpus(40))), [])
    for often, growth in ((gpus(100), -80), (gpus(50), 20), (gpus(10), 0)):
        index.typify(mix_of([TypicalRequest(0, 0, often)]))
        assert {*index.growth(rows, query).tolist()} == {growth}


def test_of_one_type_4096_makes_are_told_apart() -> None:
    table, core = TypeTable(33), Packed.of("gpu-core", [100] * 128, [100] * 128)
    for node in range(33):
        makes = tuple((f"v{node}", f"m{at}") for at in range(128))
        table.write(node, unpack(TypeRow("gpu", (core,), 0, 0, makes, (0,) * 128)))
    numbers = table.makes(slice(33))
    assert numbers[:, :32].T.ravel().tolist() == list(range(1, 4097))
    assert not numbers[:, 32].any()


def test_of_many_nodes_those_without_room_disturb_no_other() -> None:
    index, names = new_index(), [f"n{number}" for number in range(MANY)]
    for number, name in enumerate(names):  # each of another size
        put(index, Machine(cards(name, 4, *([100] * 4 if name == "n3" else [])), (4000 + number, 64)))
    index.typify(mix_of([TypicalRequest(0, 0, gpus(400))]))
    query = query_with_load(request(app("main", gpus(100))), [])
    both = query_with_load(request(app("one", gpus(100)), app("two", gpus(100))), [])
    for of, lost in ((query, 600), (both, 400)):
        growth = dict(zip(names, index.growth(index.positions(names), of).tolist(), strict=True))
        assert {growth[name] for name in names if name != "n3"} == {lost}


def typical(of: DeviceAsk | None = None, cpu: int = 0, memory: int = 0, weight: int = 1) -> TypicalRequest:
    return TypicalRequest(cpu, memory, of, weight=weight)


def best(machines: Sequence[Machine], mix: Mix, of: DeviceAsk, **requests: int) -> list[str]:
    index = new_index()
    for machine in machines:
        put(index, machine)
    index.typify(mix)
    query = query_with_load(request(app("main", of)), requests.items())
    search = NodeSearch(index, query, [machine.node.name for machine in reversed(machines)])
    return list(search.best_first(FRAGMENTATION, {}, smallest=True))


def cards(name: str, count: int, *percents: int, lanes: Sequence[tuple[int, int]] = ()) -> NodeSnapshot:
    """A node of so many cards, of which Pods hold these percents, each on the fullest card that has room."""
    devices = tuple(gpu(minor, device_id=f"{name}-{minor}") for minor in range(count))
    places = [Place(device.id) for device in devices]
    linked: Mapping[tuple[str, str], int] = {(devices[a].id, devices[b].id): 12 for a, b in lanes}
    node = NodeSnapshot(name, devices, wiring=Wiring(link(places, linked)) if lanes else Wiring())
    for number, percent in enumerate(percents):
        after = bound(node, gpus(percent), f"{name}-{number}")
        assert after is not None
        node = after
    return node


WHOLE = typical(gpus(100), cpu=4000, memory=GIB)
HALF = typical(gpus(50), cpu=1000)


def test_a_pod_with_little_cpu_goes_where_no_typical_pod_has_enough_for_the_free_card() -> None:
    starved, fed = Machine(cards("a", 1), (3000, 64)), Machine(cards("b", 1), (8000, 64))
    assert best([fed, starved], mix_of([WHOLE]), gpus(100), cpu=1000) == ["a", "b"]
    assert best(
        [replace(fed, node=cards("a", 1)), replace(starved, node=cards("b", 1))], mix_of([WHOLE]), gpus(100)
    ) == [
        "b",
        "a",
    ]


@pytest.mark.parametrize("weight", [1, 10, 1000], ids=["few", "many", "nearly all"])
def test_typical_requests_for_nics_alone_do_not_hide_what_cards_lose(weight: int) -> None:
    starved, fed = Machine(cards("b", 1), (3000, 64)), Machine(cards("a", 1), (8000, 64))
    mix = mix_of([WHOLE, typical(DeviceAsk(RDMA_TYPE, 1, (50,)), cpu=1000, weight=weight)])
    assert best([fed, starved], mix, gpus(100), cpu=1000) == ["b", "a"]


def test_the_steps_of_all_types_of_which_a_pod_takes_something_are_added() -> None:
    nics = (nic(0, device_id="nic-0"), nic(1, device_id="nic-1"))
    index = new_index()
    for name, cpu in (("b", 3000), ("a", 8000)):
        node = cards(name, 1)
        put(index, Machine(replace(node, devices=(*node.devices, *nics)), (cpu, 64)))
    index.typify(mix_of([replace(WHOLE, weight=3), typical(DeviceAsk(RDMA_TYPE, 1, (100,)), cpu=4000, weight=100)]))
    # On b all is useless already: 200 points of the card and 100 of the NIC are lost no more. On a both are of use.
    both = query_with_load(request(app("main", gpus(100)), app("beside", DeviceAsk(RDMA_TYPE, 1, (100,)))), [])
    assert index.growth_steps(index.positions(["b", "a"]), both).tolist() == [-3 - 2, 0]


def test_memory_that_others_request_counts_as_cpu_does() -> None:
    full = Machine(cards("b", 1), (8000, 64), (0, 64))
    assert best([Machine(cards("a", 1), (8000, 64)), full], mix_of([WHOLE]), gpus(50)) == ["b", "a"]


def test_a_share_goes_where_typical_shares_can_use_what_it_leaves() -> None:
    mix = mix_of([typical(gpus(90))])
    # The fuller node has a card with 95 % free, which would become useless; on the other 80 % are useless already.
    fuller, useless = Machine(cards("a", 2, 100, 5), None), Machine(cards("b", 1, 20), None)
    assert best([fuller, useless], mix, gpus(10)) == ["b", "a"]
    assert best([fuller, useless], mix_of([]), gpus(10)) == ["a", "b"]


def test_growths_that_differ_by_less_than_a_step_are_equally_good() -> None:
    mix = mix_of([typical(gpus(50))])
    # 50 % of the card with 60 free leaves 10 % that are of no use, 20 points; the idle card would be opened.
    used, idle = Machine(cards("b", 1, 40), None), Machine(cards("a", 1), None)
    index = new_index()
    for machine in (used, idle):
        put(index, machine)
    index.typify(mix)
    query = query_with_load(request(app("main", gpus(50))), [])
    rows = index.positions(["b", "a"])
    assert index.growth(rows, query).tolist() == [20, 0]
    assert index.growth_steps(rows, query).tolist() == [0, 0]
    assert best([used, idle], mix, gpus(50)) == ["b", "a"]


def test_without_a_mix_a_card_in_use_is_first() -> None:
    used, idle = Machine(cards("b", 2, 50), None), Machine(cards("a", 2), None)
    assert best([idle, used], mix_of([]), gpus(50)) == ["b", "a"]


def test_an_idle_card_is_opened_on_the_smallest_node_whatever_is_free_there() -> None:
    mix = mix_of([typical(gpus(50))])
    large, small = Machine(cards("a", 2), (8000, 64)), Machine(cards("b", 2), (4000, 64), (3000, 60))
    assert best([large, small], mix, gpus(50)) == ["b", "a"]
    unstated = Machine(cards("c", 2), None)
    assert best([unstated, large, small], mix, gpus(50)) == ["b", "a", "c"]


def test_a_card_in_use_comes_before_an_idle_one_on_a_smaller_node() -> None:
    mix = mix_of([typical(gpus(50))])
    used, idle = Machine(cards("b", 2, 50), (9000, 64), (9000, 64)), Machine(cards("a", 2), (4000, 64))
    assert best([idle, used], mix, gpus(50)) == ["b", "a"]


@pytest.mark.parametrize(
    ("sizes", "used", "first"),
    [
        pytest.param((8000, 8000), ((6000, 0), (4000, 32)), "b", id="of equal nodes the balanced one"),
        pytest.param((7000, 8000), ((6000, 0), (4000, 32)), "a", id="7000 and 8000 are of two sizes"),
        pytest.param((8000, 8100), ((6000, 0), (4000, 32)), "b", id="8000 and 8100 are of one size"),
        pytest.param((8100, 8000), ((6000, 0), (4000, 32)), "b", id="and so are 8100 and 8000"),
    ],
)
def test_of_nodes_that_hardly_differ_in_size_the_most_balanced_one_is_first(
    sizes: tuple[int, int], used: tuple[tuple[int, int], tuple[int, int]], first: str
) -> None:
    nodes = [Machine(cards(name, 2), (size, 64), of) for name, size, of in zip(("a", "b"), sizes, used, strict=True)]
    assert best(nodes, mix_of([typical(gpus(50))]), gpus(100))[0] == first


@pytest.mark.parametrize(
    ("amount", "kept"), [(0, 0), (1, 1), (7, 7), (9, 8), (104_000, 98_304), (128_000, 114_688), (2**53 - 1, 7 << 50)]
)
def test_three_binary_digits_of_a_size_are_kept(amount: int, kept: int) -> None:
    assert coarse(np.array([amount])).tolist() == [kept]


def test_a_request_without_devices_changes_the_order_of_no_node() -> None:
    nodes = [
        Machine(cards("a", 2, 50), (8000, 64)),
        Machine(cards("b", 2), (8000, 64)),
        Machine(cards("c", 1), (3000, 9)),
    ]
    alone, beside = mix_of([WHOLE, HALF]), mix_of([WHOLE, HALF, typical(cpu=1000, weight=500)])
    assert best(nodes, alone, gpus(50), cpu=1000) == best(nodes, beside, gpus(50), cpu=1000)


RING = [(0, 1), (1, 2), (2, 3)]
PAIRS = [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("of", "first"),
    [
        pytest.param(100, ["pairs", "ring"], id="one card breaks a pair before a group of four"),
        pytest.param(200, ["pairs", "ring"], id="two cards take a pair before half of a group of four"),
        pytest.param(300, ["ring", "pairs"], id="three cards take a group that holds all of them"),
    ],
)
def test_of_nodes_that_fragment_equally_the_one_that_breaks_the_smallest_sufficient_group_is_first(
    of: int, first: list[str]
) -> None:
    ring, pairs = cards("ring", 4, lanes=RING), cards("pairs", 4, lanes=PAIRS)
    mix = mix_of([typical(gpus(100)), typical(gpus(50))])
    assert best([Machine(ring, None), Machine(pairs, None)], mix, gpus(of)) == first
    renamed = [replace(ring, name="a"), replace(pairs, name="b")]
    order = [{"ring": "a", "pairs": "b"}[name] for name in first]
    assert best([Machine(one, None) for one in renamed], mix, gpus(of)) == order


def test_the_larger_group_stays_whole_although_its_node_is_smaller() -> None:
    ring, pairs = cards("a", 4, lanes=RING), cards("b", 4, lanes=PAIRS)
    mix = mix_of([typical(gpus(100)), typical(gpus(50))])
    assert best([Machine(ring, (4000, 64)), Machine(pairs, (64_000, 64))], mix, gpus(100)) == ["b", "a"]


def test_a_share_that_a_card_in_use_can_serve_breaks_no_group() -> None:
    ring, unlinked = cards("a", 4, 50, lanes=RING), cards("b", 4, 50)
    assert best([Machine(ring, None), Machine(unlinked, None)], mix_of([typical(gpus(50))]), gpus(50)) == ["a", "b"]


@given(HISTORIES, MIXES, asks(2))
def test_nodes_have_one_order_whatever_the_order_of_events_and_names(
    history: list[tuple[str, Machine | None]], mix: Mix, of: DeviceAsk
) -> None:
    last = {name: machine for name, machine in history if machine is not None}
    query = query_with_load(request(app("main", of)), [("cpu", 100)])
    orders, standings = [], []
    for turn in (1, -1):
        index = new_index()
        index.typify(mix)
        for name, machine in history if turn > 0 else []:
            put(index, machine) if machine is not None else index.drop(name)
        for machine in list(last.values())[::turn]:
            put(index, machine)
        search = NodeSearch(index, query, list(last)[::turn])
        orders.append(list(search.best_first(FRAGMENTATION, {}, smallest=True)))
        standings.append(search.standing(FRAGMENTATION, {}, smallest=True))
        assert [standings[-1][name] for name in orders[-1]] == sorted(standings[-1].values())
    assert orders[0] == orders[1]
    assert standings[0] == standings[1]
