"""The index and `place()`: the index excludes no node that `place()` accepts, and what it counts is what is free."""

import pytest
from builders import GIB, app, ask, init, request, sidecar
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_cpu import build, siblings_far, siblings_near
from strategies import aligned_requests, server_nodes

from allocator.index.cluster import ClusterIndex
from allocator.index.packed import Packed
from allocator.index.query import PartOf, RatioFrom, Want
from allocator.index.rows import load_row, query_of, query_with_load, type_rows, want_of
from allocator.index.table import TypeRow
from allocator.place import Placement, place
from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.cpunode import BindPolicy, CpuAsk, NumaPolicy, QosClass
from allocator.vocabulary.devicetype import BUILT_IN, DeviceType
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot, fullness

CPUS = {"siblings near": build(2, 1, 4, 2, siblings_near), "no siblings": build(2, 1, 8, 1, siblings_far)}


@pytest.mark.parametrize(
    ("of", "memory", "ratio"),
    [
        pytest.param(ask(2, core=30, ratio=50), PartOf(50), 50, id="by ratio"),
        pytest.param(ask(2, core=30, memory=GIB), GIB, RatioFrom("gpu-memory", GIB), id="by bytes"),
        pytest.param(ask(2, core=30), PartOf(0), RatioFrom("gpu-memory", 0), id="none"),
    ],
)
def test_memory_is_wanted_in_bytes_and_as_a_ratio(of: DeviceAsk, memory: int | PartOf, ratio: int | RatioFrom) -> None:
    wanted = (("gpu-core", 30), ("gpu-memory", memory), ("gpu-memory-ratio", ratio))
    assert want_of(of) == Want("gpu", 2, wanted)


def test_of_two_tails_of_memory_the_one_that_is_not_stated_follows_whatever_their_names() -> None:
    kind = DeviceType("x", tails=("core", "z-bytes", "a-ratio"), plain="core", memory=("z-bytes", "a-ratio"))
    amounts = [want_of(DeviceAsk(kind, 1, asked)).amounts for asked in ((None, None, 50), (5, 7, None))]
    assert amounts == [
        (("core", PartOf(100)), ("z-bytes", PartOf(50)), ("a-ratio", 50)),
        (("core", 5), ("z-bytes", 7), ("a-ratio", RatioFrom("z-bytes", 7))),
    ]


# CPUs, the bind policy that is required, the NUMA policy; what is wanted of which row

CPUS_WANTED: dict[str, tuple[int, BindPolicy | None, NumaPolicy | None, tuple[Want, ...]]] = {
    "any": (3, BindPolicy.SPREAD_BY_PCPUS, NumaPolicy.RESTRICTED, (Want("(CPUs)", 1, (("free", 3),)),)),
    "on whole cores": (2, BindPolicy.FULL_PCPUS, None, (Want("(CPUs)", 1, (("whole", 2),)),)),
    "of one NUMA node": (1, None, NumaPolicy.SINGLE_NUMA_NODE, (Want("(NUMA)", 1, (("free", 1),)),)),
    "more than are counted": (2**60, None, None, (Want("(CPUs)", 1, (("free", 2**53 - 1),)),)),
    "none of its own": (0, BindPolicy.FULL_PCPUS, NumaPolicy.SINGLE_NUMA_NODE, ()),
}


@pytest.mark.parametrize(("count", "bind", "numa", "wants"), CPUS_WANTED.values(), ids=CPUS_WANTED)
def test_cpus_are_wanted_as_a_device(
    count: int, bind: BindPolicy | None, numa: NumaPolicy | None, wants: tuple[Want, ...]
) -> None:
    of = CpuAsk(QosClass.LSR, count, count * 1000, 0, required=bind, numa_policy=numa)
    assert query_of(request(cpu=of)).wants == wants
    device = ask(1, core=10)
    assert query_of(request(app("a", device), app("b", device), cpu=of)).wants == (want_of(device), *wants)


def test_what_a_node_has_for_all_its_pods_is_packed_as_one_device() -> None:
    row = load_row({"cpu": 8000, "memory": 2**60, "pods": 110}, {"cpu": 500, "memory": 1, "pods": 3})
    largest = 2**53 - 2
    assert row == TypeRow(
        "(node)",
        (
            Packed.of("cpu", [8000], [7500]),
            Packed.of("memory", [largest], [largest - 1]),
            Packed.of("ephemeral-storage", [0], [0]),
        ),
        usable=1,
        in_use=0,
    )


@pytest.mark.parametrize(
    ("has", "requested", "free"), [(7, 0, 7), (7, 6, 1), (7, 7, 0), (7, 9, 0), (7, -1, 7), (0, 0, 0), (-1, 0, 0)]
)
def test_what_no_pod_requests_of_a_node_is_free(has: int, requested: int, free: int) -> None:
    assert load_row({"cpu": has}, {"cpu": requested}).classes[0] == Packed.of("cpu", [max(has, 0)], [free])
    assert load_row({"cpu": has}, {}).classes[0] == Packed.of("cpu", [max(has, 0)], [max(has, 0)])


def test_what_a_pod_takes_of_a_node_is_stated_by_its_amounts_and_its_steps() -> None:
    first, beside, main = ask(2, core=10), ask(1, core=20), ask(1, core=30)
    of = request(init("first", first), sidecar("beside", beside), init("second", first), app("main", main))
    asked = [("cpu", 1), ("memory", 2**60), ("pods", 1), ("ephemeral-storage", 0)]
    query = query_with_load(of, asked)
    wants = [want_of(one) for one in (first, beside, main)]
    assert query.requests == (("cpu", 1), ("memory", 2**53 - 1))
    assert query.wants == tuple(wants)
    assert query.steps == ((wants[0],), (wants[1], wants[0]), (wants[1], wants[2]))


@st.composite
def nodes_in_use(draw: st.DrawFn) -> NodeSnapshot:
    """A node of two NUMA nodes, with some Pods on it."""
    on = draw(server_nodes(draw(st.sampled_from([*CPUS.values()]))))
    for number, of in enumerate(draw(st.lists(aligned_requests(), max_size=5))):
        placed = place(of, on)
        if isinstance(placed, Placement):
            uid = f"uid-{number}"
            on = on.with_holding(Holding(uid, "d", uid, 0, placed.shares, placed.cpus))
    return on


@given(nodes_in_use(), aligned_requests())
@settings(max_examples=400)
def test_the_index_excludes_no_node_that_place_accepts(on: NodeSnapshot, of: PodRequest) -> None:
    index = ClusterIndex({kind.name: fullness(kind) for kind in BUILT_IN.types})
    index.put(on.name, type_rows(on))
    may = bool(index.fitting(query_of(of))[index.positions([on.name])][0])
    if isinstance(place(of, on), Placement):
        assert may


@given(nodes_in_use())
@settings(max_examples=100)
def test_what_is_packed_of_each_device_is_what_is_free_of_it(on: NodeSnapshot) -> None:
    rows = {row.type: row for row in type_rows(on)}
    for kind in ("gpu", "rdma"):
        devices = [device for device in on.devices if device.type == kind]
        row = rows[kind]
        assert [(row.usable >> at) & 1 for at in range(len(devices))] == [on.is_usable(one) for one in devices]
        assert [(row.in_use >> at) & 1 for at in range(len(devices))] == [one.id in on.used for one in devices]
        for packed in row.classes:
            assert packed.totals() == [device.capacity[packed.name] for device in devices]
            assert packed.frees() == [on.free(device, (packed.name,))[0] for device in devices]
