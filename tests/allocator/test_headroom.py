"""Whether a node is short of CPU or memory for its free devices."""

from dataclasses import replace

import pytest
from builders import asking, gpu, gpus, holding, nic, nics, node, part

from allocator.headroom import Bounds, Need, asked_percent, free_percent, is_short, needs_of
from allocator.vocabulary.devicetype import GPU_TYPE, RDMA_TYPE
from allocator.vocabulary.mix import NO_MIX, TypicalRequest, mix_of

BOUNDS = Bounds(150, 200)
# Half a GPU with 4 CPUs and 8 bytes, twice as often as a Pod without devices: a whole one needs 8 CPUs and 16 bytes.
MIX = mix_of([TypicalRequest(4000, 8, gpus(50), weight=2), TypicalRequest(64_000, 2**40)])
NEEDS = needs_of(MIX)
PLENTY = 10**9


def test_a_node_becomes_short_below_one_and_a_half_times_the_need_and_ends_at_twice_as_much_unless_set() -> None:
    assert Bounds() == Bounds(below=150, until=200)


@pytest.mark.parametrize(
    ("cpu", "was", "short"),
    [
        pytest.param(23_999, False, True, id="becomes short below one and a half times what two GPUs need"),
        pytest.param(24_000, False, False, id="is not short at that bound"),
        pytest.param(24_000, True, True, id="stays short at that bound"),
        pytest.param(31_999, True, True, id="stays short below twice as much"),
        pytest.param(32_000, True, False, id="is not short any more at twice as much"),
        pytest.param(None, True, False, id="what is unknown suffices"),
    ],
)
def test_bounds_of_cpu(cpu: int | None, *, was: bool, short: bool) -> None:
    assert is_short(node(gpu(0), gpu(1)), cpu, PLENTY, NEEDS, BOUNDS, was=was) is short


def test_memory_counts_likewise() -> None:
    assert is_short(node(gpu(0), gpu(1)), PLENTY, 47, NEEDS, BOUNDS, was=False)
    assert not is_short(node(gpu(0), gpu(1)), PLENTY, 48, NEEDS, BOUNDS, was=False)


def test_only_what_is_free_of_devices_counts() -> None:
    one, other = gpu(0), gpu(1)
    half = node(one, other, holdings=[holding("1", part(one, 100)), holding("2", part(other, 50))])
    assert is_short(half, 5_999, PLENTY, NEEDS, BOUNDS, was=False)
    assert not is_short(half, 6_000, PLENTY, NEEDS, BOUNDS, was=False)


def test_a_node_without_free_devices_is_not_short() -> None:
    one = gpu(0)
    assert not is_short(node(one, holdings=[holding("1", part(one, 100))]), 0, 0, NEEDS, BOUNDS, was=True)
    assert not is_short(node(gpu(0, healthy=False)), 0, 0, NEEDS, BOUNDS, was=True)


def test_of_a_device_that_has_nothing_of_a_resource_the_others_count() -> None:
    card = replace(gpu(0), capacity={"gpu-core": 0, "gpu-memory": 1, "gpu-memory-ratio": 100})
    assert free_percent(GPU_TYPE, node(card), card) == 100
    board = replace(nic(0), capacity={"rdma": 0})
    assert free_percent(RDMA_TYPE, node(board), board) == 0


def test_without_a_mix_no_node_is_short() -> None:
    assert not is_short(node(gpu(0)), 0, 0, needs_of(NO_MIX), BOUNDS, was=True)


def test_an_ask_takes_its_greatest_percentage_and_all_where_it_states_none() -> None:
    assert asked_percent(gpus(30)) == 30
    for amounts, percent in (
        ({"kubernetes.io/gpu-memory": "8Gi"}, 100),
        ({"kubernetes.io/gpu-core": "20", "kubernetes.io/gpu-memory": "8Gi"}, 20),
        ({"kubernetes.io/gpu-core": "20", "kubernetes.io/gpu-memory-ratio": "60"}, 60),
    ):
        (only,) = asking(amounts).containers
        assert asked_percent(only.ask) == percent


def test_what_requests_need_adds_up_by_type_and_weight() -> None:
    mix = mix_of(
        [
            TypicalRequest(4000, 8, gpus(50), weight=2),
            TypicalRequest(1000, 1, gpus(200), weight=3),
            TypicalRequest(64_000, 2**40, weight=5),
            TypicalRequest(7, 9, nics(20)),
        ]
    )
    assert needs_of(mix) == {"gpu": Need(GPU_TYPE, 700, 11_000, 19), "rdma": Need(RDMA_TYPE, 20, 7, 9)}


def test_what_is_needed_is_rounded_up_and_added_over_types() -> None:
    needs = needs_of(mix_of([TypicalRequest(1000, 1, gpus(300)), TypicalRequest(10, 1, nics(100))]))
    there = node(gpu(0), gpu(1, healthy=False))
    assert [is_short(there, cpu, None, needs, BOUNDS, was=False) for cpu in (499, 500)] == [True, False]
    assert [is_short(there, cpu, None, needs, BOUNDS, was=True) for cpu in (666, 667)] == [True, False]
    assert [is_short(there, None, memory, needs, BOUNDS, was=True) for memory in (0, 1)] == [True, False]
