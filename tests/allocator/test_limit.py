"""What a Pod may hold of one type of device in sum: no more than quotas count of it (`PodRequest.most`)."""

from dataclasses import replace

import pytest
from builders import GIB, app, ask, gpu, gpus, init, nic, nics, node, part, request, share

from allocator.place import Placement, place
from allocator.request.quotaamounts import beyond
from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceType, Unit
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.outcome import Refusal

CARDS = [gpu(minor) for minor in range(3)]
BOTH = request(app("a", gpus(50)), app("b", nics(50)))
COMPUTE = Share("gpu", "GPU-0", 0, {"gpu-core": 40})


def limited(of: PodRequest, **most: int) -> PodRequest:
    return replace(
        of, most=tuple((f"quota.koordgate.io/{name.replace('_', '-')}", much) for name, much in most.items())
    )


@pytest.mark.parametrize(
    ("most", "shares", "told"),
    [
        ({}, [part(CARDS[0], 100)], ""),
        ({"rdma": 50}, [part(CARDS[0], 100)], ""),
        ({"gpu": 100}, [part(CARDS[0], 60), part(CARDS[1], 40)], ""),
        ({"gpu": 100}, [part(CARDS[0], 60), part(CARDS[1], 41)], "gpu 101 is more than quotas count of the Pod (100)"),
        ({"gpu": 99, "gpu_core": 60}, [share(CARDS[0], core=61, ratio=99)], "gpu-core 61"),
        ({"gpu_memory_ratio": 40, "gpu": 70}, [share(CARDS[0], core=60, ratio=41)], "gpu-memory-ratio 41"),
        ({"gpu_memory_ratio": 0}, [COMPUTE], ""),
        ({"gpu_memory_ratio": 0}, [COMPUTE, share(CARDS[1], ratio=1)], "gpu-memory-ratio 1"),
        ({"rdma": 49}, [Share("rdma", "NIC-0", 0, {"rdma": 50})], "rdma 50"),
        ({"gpu": 100, "rdma": 49}, [part(CARDS[0], 100), Share("rdma", "NIC-0", 0, {"rdma": 50})], "rdma 50"),
    ],
)
def test_the_first_limit_that_shares_exceed_together_is_told(
    most: dict[str, int], shares: list[Share], told: str
) -> None:
    found = beyond(limited(BOTH, **most), shares)
    assert found.startswith(f"quota.koordgate.io/{told}" if told else "")
    assert bool(found) is bool(told)


@pytest.mark.parametrize(
    ("most", "named"),
    [
        ({"gpu": 150, "gpu_core": 99}, "gpu-core 99"),
        ({"gpu": 99, "gpu_core": 150}, "gpu 99"),
        ({"gpu": 150, "gpu_core": 150, "gpu_memory_ratio": 99}, "gpu-memory-ratio 99"),
    ],
)
def test_the_limit_that_a_pod_would_exceed_is_named(most: dict[str, int], named: str) -> None:
    refused = place(limited(request(app("a", gpus(100))), **most), node(*CARDS))
    assert isinstance(refused, Refusal)
    assert f"more than quotas count of the Pod (quota.koordgate.io/{named}) on these GPUs" in refused.short


@pytest.mark.parametrize(("most", "fits"), [(199, False), (200, True), (201, True)])
def test_a_pod_holds_as_much_as_is_counted_of_it_and_no_more(most: int, *, fits: bool) -> None:
    for of in (request(app("a", gpus(200))), request(app("a", gpus(100)), app("b", gpus(100)))):
        assert isinstance(place(limited(of, gpu=most), node(*CARDS)), Placement) is fits


@pytest.mark.parametrize(("most", "fits"), [(138, False), (139, True)])
def test_sets_of_cards_that_are_unlike_are_within_the_limit_if_the_least_of_them_are(most: int, *, fits: bool) -> None:
    """Ten GiB are 100, 40, 40 and 12 percent of these cards, of which the smallest would come first."""
    cards = [gpu(0, 10 * GIB), gpu(1, 25 * GIB), gpu(2, 25 * GIB), gpu(3, 80 * GIB)]
    for count, more in ((2, 0), (3, 40)):
        placed = place(limited(request(app("a", ask(count, memory=10 * GIB))), gpu=most - 87 + more), node(*cards))
        assert isinstance(placed, Placement) is fits


def test_an_init_container_uses_a_card_that_the_pod_has_where_another_would_be_too_much() -> None:
    on = node(*CARDS, holdings=[])
    of = request(init("i", gpus(80)), app("a", gpus(30)))
    placed = place(limited(of, gpu=80), on)
    assert isinstance(placed, Placement)
    assert [(one.id, one.amounts["gpu-core"], one.containers) for one in placed.shares] == [("GPU-0", 80, ("i", "a"))]
    refused = place(limited(of, gpu=79), on)
    assert isinstance(refused, Refusal)
    assert "the Pod would hold more than quotas count of the Pod (quota.koordgate.io/gpu 79)" in refused.message


def test_what_other_types_hold_does_not_count() -> None:
    fpga = Device("fpga", "FPGA-0", 0, healthy=True, capacity={"fpga": 100})
    placed = place(limited(BOTH, gpu=50, rdma=50), node(fpga, *CARDS, nic(0)))
    assert isinstance(placed, Placement)
    assert [one.id for one in placed.shares] == ["GPU-0", "NIC-0"]
    pool = DeviceType("pool", ("slot", "lane"), Unit.UNITS, plain="pool")  # any part of it counts as one device
    held = [Share("pool", "P", 0, {"slot": 1, "lane": 1}), *placed.shares]
    assert beyond(limited(request(app("a", DeviceAsk(pool, 1, (1, 1)))), pool=100), held) == ""
    assert beyond(limited(BOTH, gpu=50, rdma=50), [*placed.shares, Share("fpga", "FPGA-0", 0, {"fpga": 100})]) == ""
