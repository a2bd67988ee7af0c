"""What a node has for Pods, and what of it a Pod lacks."""

from typing import Any

import pytest
from builders import device_entry, device_object, nic_entry

from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.wire.deviceobject import read_device_object
from console.simulator.scheduler import allocatable, managed, shortages

NODE: dict[str, Any] = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "2"}}}


def test_healthy_devices_are_summed_up_under_every_name_of_their_resources() -> None:
    cards = [device_entry(0, "80Gi", health=False), device_entry(1, "80Gi"), device_entry(2, "40Gi")]
    devices = read_device_object(device_object(*cards, nic_entry(0), nic_entry(1, health=False))).devices
    amounts = {
        "gpu": 200,
        "gpu-core": 200,
        "gpu-memory": 120 * 2**30,
        "gpu-memory-ratio": 200,
        "gpu.shared": 200,
        "rdma": 100,
    }
    domains = ("kubernetes.io", "koordinator.sh")
    assert allocatable(NODE, devices) == {
        "cpu": 2000,
        "nvidia.com/gpu": 2,
        **{f"{domain}/{tail}": amount for domain in domains for tail, amount in amounts.items()},
    }


@pytest.mark.parametrize(
    ("has", "used", "told"),
    [
        (2000, 0, []),
        (2001, 0, []),
        (2000, 1, [("cpu", 2000, 1999, 2000)]),
        (1999, 0, [("cpu", 2000, 1999, 1999)]),
        (2000, 3000, [("cpu", 2000, 0, 2000)]),
        (None, 0, [("cpu", 2000, 0, 0)]),
    ],
)
def test_a_pod_lacks_what_is_not_free(has: int | None, used: int, told: list[tuple[str, int, int, int]]) -> None:
    total = {} if has is None else {"cpu": has}
    assert list(shortages({"cpu": 2000}, total, {"cpu": used} if used else {})) == told


def test_a_pod_that_asks_for_nothing_of_an_overfull_resource_lacks_nothing_and_others_are_told_by_name() -> None:
    asked = {"b": 1, "a": 1, "none": 0, "gone": 0}
    assert list(shortages(asked, {"a": 1, "b": 1, "none": 1}, {"a": 1, "b": 2, "none": 5})) == [
        ("a", 1, 0, 1),
        ("b", 1, 0, 1),
    ]


def test_only_types_of_ones_own_are_left_to_the_extender() -> None:
    types = BUILT_IN.with_types(
        [own_type("queue", "example.com/queue", Unit.UNITS), own_type("seat", "x.com/seat", Unit.PERCENT)]
    )
    assert managed(types) == {"example.com/queue", "x.com/seat"}
