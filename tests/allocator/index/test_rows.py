"""The index and `place()`: the index excludes no node that `place()` accepts, and what it counts is what is free."""

import pytest
from builders import GIB, ask
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_cpu import build, siblings_far, siblings_near
from strategies import aligned_requests, server_nodes

from allocator.index.cluster import ClusterIndex
from allocator.index.query import PartOf, RatioFrom, Want
from allocator.index.rows import query_of, type_rows, want_of
from allocator.place import Placement, place
from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.devicetype import BUILT_IN
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
