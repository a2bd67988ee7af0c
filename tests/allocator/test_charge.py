"""What quotas count for a Pod's containers: every type and unit, exclusive policies, CPUs of its own."""

import json
from typing import Any

import pytest
from builders import GIB, container, pod, sidecar_container
from hypothesis import given, settings
from hypothesis import strategies as st
from npus import TYPES as NPU_TYPES
from trials import examples

from allocator.amounts import pod_amounts
from allocator.request.charge import Charge, charges
from allocator.request.cpus import QOS_LABEL
from allocator.request.original import read_asks
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypeError, DeviceTypes, Unit, own_type
from allocator.vocabulary.owntype import Part, composed_type
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT

QUEUE = own_type("queue", "example.com/queue", Unit.UNITS)
SLOT = own_type("slot", "example.com/slot", Unit.DEVICES)
TYPES = NPU_TYPES.with_types([QUEUE, SLOT])
Raw = dict[str, Any]


def charged(obj: Raw, memory: int | None = None, types: DeviceTypes = TYPES) -> list[Charge]:
    reading = read_asks(obj, types, implied=False)
    assert reading.problems == ()
    return charges(reading, reading.request, obj["spec"], memory)


def named(names: Raw) -> Raw:
    return {f"quota.koordgate.io/{name.replace('_', '-')}": amount for name, amount in names.items()}


def one(limits: Raw, memory: int | None = None, **hint: Any) -> Charge:
    """The charge of a Pod of one container, with a hint for all types."""
    text = json.dumps(dict.fromkeys(("gpu", "rdma", "queue", "dcu"), hint))
    (charge,) = charged(pod(container(limits=limits), annotations={DEVICE_ALLOCATE_HINT: text} if hint else {}), memory)
    return charge


# What is asked for, the memory of every GPU in reach if it is known, and what is counted
COUNTED: dict[str, tuple[Raw, int | None, Raw]] = {
    "whole cards": ({"nvidia.com/gpu": 2}, None, {"gpu": 200, "gpu_core": 200, "gpu_memory_ratio": 200}),
    "whole cards of known memory": (
        {"nvidia.com/gpu": 2},
        8 * GIB,
        {"gpu": 200, "gpu_core": 200, "gpu_memory_ratio": 200, "gpu_memory": 16 * GIB},
    ),
    "more compute than memory": (
        {"kubernetes.io/gpu-core": 60, "kubernetes.io/gpu-memory-ratio": 30},
        None,
        {"gpu": 60, "gpu_core": 60, "gpu_memory_ratio": 30},
    ),
    "more memory than compute": (
        {"koordinator.sh/gpu-core": 30, "koordinator.sh/gpu-memory-ratio": 60},
        None,
        {"gpu": 60, "gpu_core": 30, "gpu_memory_ratio": 60},
    ),
    "no compute": ({"kubernetes.io/gpu-memory-ratio": 7}, None, {"gpu": 7, "gpu_memory_ratio": 7}),
    "shares of several cards": (
        {"kubernetes.io/gpu": 100, "kubernetes.io/gpu.shared": 2},
        None,
        {"gpu": 100, "gpu_core": 100, "gpu_memory_ratio": 100},
    ),
    "bytes of unknown cards": (
        {"kubernetes.io/gpu-core": 200, "kubernetes.io/gpu-memory": "2Gi"},
        None,
        {"gpu": 200, "gpu_core": 200, "gpu_memory_ratio": 200, "gpu_memory": 2 * GIB},
    ),
    "bytes of known cards, rounded up": (
        {"kubernetes.io/gpu-memory": GIB + 1},
        100 * GIB,
        {"gpu": 2, "gpu_memory_ratio": 2, "gpu_memory": GIB + 1},
    ),
    "more bytes than any card has": (
        {"kubernetes.io/gpu-memory": "9Gi"},
        8 * GIB,
        {"gpu": 100, "gpu_memory_ratio": 100, "gpu_memory": 9 * GIB},
    ),
    "other types": ({"kubernetes.io/rdma": 50, "kubernetes.io/fpga": 200}, None, {"rdma": 50, "fpga": 200}),
    "units": ({"example.com/queue": 3}, None, {"queue": 3}),
    "whole devices": ({"example.com/slot": 3}, None, {"slot": 300}),
    "a type of several amounts": (
        {"example.com/dcu-compute": 20, "example.com/dcu-vram-ratio": 30},
        8 * GIB,  # of GPUs, which says nothing of others
        {"dcu": 30, "dcu_compute": 20, "dcu_vram_ratio": 30},
    ),
    "a template": (
        {"huawei.com/npu-vir01": 2},
        None,
        {"npu": 200, "npu_core": 2, "npu_cpu": 2, "npu_memory": 6 * GIB, "npu_memory_ratio": 200, "npu_dvpp": 24},
    ),
}


@pytest.mark.parametrize(("limits", "memory", "counted"), COUNTED.values(), ids=COUNTED)
def test_what_is_asked_for_is_counted_under_the_types_own_names(limits: Raw, memory: int | None, counted: Raw) -> None:
    assert one(limits, memory).amounts == named(counted)


def test_what_follows_from_the_memory_in_reach_is_marked() -> None:
    assert one({"nvidia.com/gpu": 1}).derived == set(named({"gpu-memory": 0}))
    assert one({"nvidia.com/gpu": 1}, GIB).derived == set(named({"gpu-memory": 0}))
    of_bytes = one({"kubernetes.io/gpu-memory": "1Gi"}, 2 * GIB)
    assert of_bytes.derived == set(named({"gpu": 0, "gpu-memory-ratio": 0}))
    assert one({"kubernetes.io/rdma": 50}, GIB).derived == set()


EXCLUSIVE: dict[str, tuple[Raw, Raw, Raw]] = {
    "one percent of a card": (
        {"kubernetes.io/gpu-memory-ratio": 1},
        {"gpu": 100, "gpu_core": 100, "gpu_memory_ratio": 100},
        {},
    ),
    "bytes of two cards": (
        {"kubernetes.io/gpu-memory": "2Gi", "kubernetes.io/gpu.shared": 2},
        {"gpu": 200, "gpu_core": 200, "gpu_memory_ratio": 200},
        {},
    ),
    "a percent of a NIC": ({"kubernetes.io/rdma": 1}, {"rdma": 100}, {}),
    "a unit of a queue": ({"example.com/queue": 1}, {}, {"queue": 0}),
    "a percent of a type of several amounts": (
        {"example.com/dcu-compute": 1, "example.com/dcu-vram-ratio": 1},
        {"dcu": 100, "dcu_compute": 100, "dcu_vram_ratio": 100},
        {},
    ),
}


@pytest.mark.parametrize(("limits", "counted", "more"), EXCLUSIVE.values(), ids=EXCLUSIVE)
def test_an_exclusive_device_is_counted_whole(limits: Raw, counted: Raw, more: Raw) -> None:
    charge = one(limits, exclusivePolicy="DeviceLevel")
    assert charge.amounts == named(counted)
    assert charge.more == set(named(more))


def test_an_exclusive_root_is_counted_as_its_device_and_known_to_withhold_more() -> None:
    charge = one({"kubernetes.io/gpu-memory-ratio": 1}, exclusivePolicy="PCIeLevel")
    assert charge.amounts == named({"gpu": 100, "gpu_core": 100, "gpu_memory_ratio": 100})
    assert charge.more == set(named({"gpu": 0, "gpu-core": 0, "gpu-memory": 0, "gpu-memory-ratio": 0}))


def test_an_ask_for_every_device_is_known_to_take_more() -> None:
    charge = one({"kubernetes.io/rdma": 20}, allocateStrategy="ApplyForAll")
    assert (charge.amounts, charge.more) == (named({"rdma": 20}), set(named({"rdma": 0})))
    counted = one({"kubernetes.io/rdma": 3}, allocateStrategy="RequestsAsCount")
    assert (counted.amounts, counted.more) == (named({"rdma": 3}), set())


def test_all_of_a_whole_device_is_more_than_is_known_of_its_units() -> None:
    charge = one({"huawei.com/npu": 2})
    assert charge.amounts == named({"npu": 200, "npu_memory_ratio": 200, "npu_dvpp": 200})
    assert charge.more == set(named({"npu-core": 0, "npu-cpu": 0}))


def test_each_container_is_charged_for_itself() -> None:
    obj = pod(
        container("a", limits={"kubernetes.io/gpu": 50}),
        container("b"),
        container("c", limits={"kubernetes.io/rdma": 10}),
        init=[container("i", limits={"kubernetes.io/gpu": 20})],
    )
    assert [sorted(charge.amounts.values()) for charge in charged(obj)] == [[20, 20, 20], [50, 50, 50], [], [10]]


# CPUs


def lsr(*containers: Raw, **about: Any) -> Raw:
    return pod(*containers, labels={QOS_LABEL: "LSR"}, **about)


def cpus(number: int | str) -> Raw:
    return {"requests": {"cpu": number}, "limits": {"cpu": number}}


OWN: dict[str, tuple[Raw, list[int]]] = {
    "apps": (lsr(container("a", **cpus(2)), container("b", **cpus(3))), [2, 3]),
    "a limit alone": (lsr(container("a", limits={"cpu": "2000m"})), [2]),
    "one of two states none": (lsr(container("a"), container("b", **cpus(3))), [0, 3]),
    "an init container that needs more": (lsr(container("a", **cpus(1)), init=[container("i", **cpus(4))]), [4, 1]),
    "the Pod as a whole": (lsr(container("a"), container("b"), resources=cpus(6)), [6, 0]),
    "the Pod beyond its containers": (
        lsr(container("a", **cpus(1)), container("b", **cpus(2)), resources=cpus(8)),
        [6, 2],
    ),
    "overhead": (lsr(container("a", **cpus(2)), overhead={"cpu": "1"}), [3]),
    "overhead above an init container": (
        lsr(container("a", **cpus(1)), init=[container("i", **cpus(4))], overhead={"cpu": "1"}),
        [4, 5],
    ),
    "overhead beside a sidecar": (
        lsr(container("a", **cpus(1)), init=[sidecar_container("s", **cpus(2))], overhead={"cpu": "1"}),
        [2, 2],
    ),
}


@pytest.mark.parametrize(("obj", "counted"), OWN.values(), ids=OWN)
def test_cpus_of_a_pods_own_are_counted_in_its_containers(obj: Raw, counted: list[int]) -> None:
    name = "quota.koordgate.io/cpus"
    made = charged(obj)
    assert [charge.amounts.get(name, 0) for charge in made] == counted
    asked = read_asks(obj, implied=False).cpu
    assert asked is not None
    assert pod_sum(obj, [charge.amounts.get(name, 0) for charge in made]) == asked.count


def pod_sum(obj: Raw, amounts: list[int]) -> int:
    """What Kubernetes counts of a resource of which the containers request these amounts."""
    specs = [*obj["spec"].get("initContainers", ()), *obj["spec"]["containers"]]
    stated = [{**spec, "resources": {"requests": {"x": n}}} for spec, n in zip(specs, amounts, strict=True)]
    first = len(obj["spec"].get("initContainers", ()))
    return pod_amounts({"initContainers": stated[:first], "containers": stated[first:]})["x"]


@pytest.mark.parametrize("qos", ["LS", "BE", "SYSTEM", ""])
def test_shared_cpus_are_not_counted(qos: str) -> None:
    (charge,) = charged(pod(container(**cpus(2)), labels={QOS_LABEL: qos}))
    assert charge.amounts == {}


WHOLE = st.integers(0, 5)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(WHOLE, min_size=1, max_size=3), st.lists(st.tuples(WHOLE, st.booleans()), max_size=3), WHOLE)
def test_what_is_counted_of_a_pod_is_the_number_of_its_own_cpus(
    apps: list[int], first: list[tuple[int, bool]], overhead: int
) -> None:
    made = [sidecar_container if sidecar else container for _, sidecar in first]
    init = [make(f"i{at}", **cpus(first[at][0])) for at, make in enumerate(made)]
    obj = lsr(*(container(f"a{at}", **cpus(n)) for at, n in enumerate(apps)), init=init, overhead={"cpu": overhead})
    reading = read_asks(obj, implied=False)
    if reading.problems or reading.cpu is None:
        return  # no CPU at all
    counted = [
        charge.amounts.get("quota.koordgate.io/cpus", 0) for charge in charges(reading, reading.request, obj["spec"])
    ]
    assert pod_sum(obj, counted) == reading.cpu.count


# Names


def test_no_two_types_are_counted_under_one_name() -> None:
    names = [name for kind in TYPES.types for name in kind.charged.values()]
    assert len(set(names)) == len(names)
    assert BUILT_IN.charged_bytes == set(named({"gpu-memory": 0}))


@pytest.mark.parametrize(
    ("name", "resource", "told"),
    [
        ("gpu-core", "example.com/core", "quotas count quota.koordgate.io/gpu-core, which is already that of gpu"),
        ("cpus", "example.com/cpus", "quotas count quota.koordgate.io/cpus, which is already that of CPUs"),
        ("x", "quota.koordgate.io/x", "the domain quota.koordgate.io is koordgate's own"),
    ],
)
def test_a_type_that_quotas_would_confuse_with_another_is_refused(name: str, resource: str, told: str) -> None:
    with pytest.raises(DeviceTypeError, match=told):
        BUILT_IN.with_types([own_type(name, resource, Unit.PERCENT)])


def test_two_types_that_quotas_would_confuse_are_refused_in_either_order() -> None:
    one = own_type("lpu-io", "example.com/lpu-io", Unit.PERCENT)
    other = composed_type(own_type("lpu", "example.com/lpu", Unit.PERCENT), [Part("io", "example.com/io")])
    for types, told in (([one, other], "of lpu-io; use another"), ([other, one], "of lpu; use another")):
        with pytest.raises(DeviceTypeError, match=f"quotas count quota.koordgate.io/lpu-io, .* already that {told}"):
            BUILT_IN.with_types(types)
