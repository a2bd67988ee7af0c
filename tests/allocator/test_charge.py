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
from allocator.request.cpus import QOS_LABEL
from allocator.request.original import read_asks
from allocator.request.quotaamounts import Charge, charges
from allocator.vocabulary.devicetype import BUILT_IN, DeviceType, DeviceTypeError, DeviceTypes, Unit, own_type
from allocator.vocabulary.owntype import Part, composed_type
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT

QUEUE = own_type("queue", "example.com/queue", Unit.UNITS)
SLOT = own_type("slot", "example.com/slot", Unit.DEVICES)
APU = DeviceType(
    "apu",
    tails=("bytes", "percent", "slots"),
    unit=Unit.DEVICES,
    units=(Unit.BYTES, Unit.PERCENT, Unit.UNITS),
    plain="apu",
    memory=("bytes", "percent"),
    names={"apu": "example.com/apu"},
)
TYPES = NPU_TYPES.with_types([QUEUE, SLOT, APU])
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
    "bytes that are a whole percentage of known cards": (
        {"kubernetes.io/gpu-memory": 50 * GIB},
        100 * GIB,
        {"gpu": 50, "gpu_memory_ratio": 50, "gpu_memory": 50 * GIB},
    ),
    "bytes of several known cards": (
        {"kubernetes.io/gpu-memory": 30 * GIB, "kubernetes.io/gpu.shared": 3},
        100 * GIB,
        {"gpu": 30, "gpu_memory_ratio": 30, "gpu_memory": 30 * GIB},
    ),
    "a percentage of bytes, rounded down": (
        {"kubernetes.io/gpu-memory-ratio": 33},
        GIB + 1,
        {"gpu": 33, "gpu_memory_ratio": 33, "gpu_memory": 354334802},
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
    charge = one({"example.com/apu": 2})
    assert charge.amounts == named({"apu": 200, "apu_percent": 200})
    assert (charge.more, charge.derived) == (set(named({"apu-slots": 0})), set(named({"apu-bytes": 0})))


# What init containers (with a sign: sidecars) and apps ask of cards, each (percent, cards), and what is counted of each
KEPT: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]] = {
    "an init container on the card of the app": ([(60, 1)], [(100, 1)], [60, 100]),
    "one that takes as much as the app": ([(100, 1)], [(100, 1)], [100, 100]),
    "one on seven more cards": ([(96, 8)], [(100, 1)], [184, 100]),
    "the last of two on seven more cards": ([(96, 8), (50, 1)], [(100, 1)], [96, 184, 100]),
    "one beside a sidecar and on more cards": ([(-10, 1), (96, 8)], [(100, 1)], [10, 184, 100]),
    "one before a sidecar, on more cards": ([(96, 8), (-10, 1)], [(100, 1)], [184, 10, 100]),
    "one between two sidecars, on more cards": ([(-10, 1), (96, 8), (-20, 1)], [(100, 1)], [10, 192, 20, 100]),
    "no init container": ([(-10, 1)], [(100, 1), (50, 1)], [10, 100, 50]),
}


@pytest.mark.parametrize(("first", "apps", "counted"), KEPT.values(), ids=KEPT)
def test_what_an_init_container_makes_a_pod_hold_beyond_the_peak_is_counted_for_the_last_one(
    first: list[tuple[int, int]], apps: list[tuple[int, int]], counted: list[int]
) -> None:
    def limits(percent: int, cards: int) -> Raw:
        return {"kubernetes.io/gpu": abs(percent), **({"kubernetes.io/gpu.shared": cards} if cards > 1 else {})}

    early = [
        (sidecar_container if p < 0 else container)(f"i{at}", limits=limits(p, n)) for at, (p, n) in enumerate(first)
    ]
    obj = pod(*(container(f"a{at}", limits=limits(*one)) for at, one in enumerate(apps)), init=early)
    assert [one.amounts for one in charged(obj)] == [
        named({"gpu": n, "gpu-core": n, "gpu-memory-ratio": n}) for n in counted
    ]


def test_what_is_held_of_an_amount_that_nobody_asks_for_is_not_counted() -> None:
    ratio = {"kubernetes.io/gpu-memory-ratio": 96, "kubernetes.io/gpu.shared": 8}
    first, app = charged(
        pod(container(limits={"kubernetes.io/gpu-memory-ratio": 100}), init=[container("i", limits=ratio)])
    )
    assert first.amounts == named({"gpu": 184, "gpu-memory-ratio": 184})
    assert app.amounts == named({"gpu": 100, "gpu-memory-ratio": 100})


def test_a_pod_that_needs_more_cards_than_any_node_has_counts_what_it_asks_for() -> None:
    apps = [container("a", limits={"kubernetes.io/gpu": 12800}), container("b", limits={"kubernetes.io/gpu": 100})]
    made = charged(pod(*apps, init=[container("i", limits={"kubernetes.io/gpu": 100})]))
    assert [one.amounts["quota.koordgate.io/gpu"] for one in made] == [100, 12800, 100]


def test_a_sidecar_that_takes_none_of_an_amount_leaves_all_of_it_to_the_init_container() -> None:
    eight = {"kubernetes.io/gpu": 96, "kubernetes.io/gpu.shared": 8}
    init = [sidecar_container("s", limits={"kubernetes.io/gpu-memory-ratio": 10}), container("i", limits=eight)]
    _, first, _ = charged(pod(container(limits={"kubernetes.io/gpu": 100}), init=init))
    assert first.amounts == named({"gpu": 184, "gpu-core": 184, "gpu-memory-ratio": 184})


def test_what_is_held_beyond_the_peak_follows_from_memory_where_a_part_of_it_does() -> None:
    in_bytes = {"kubernetes.io/gpu-memory": 8 * GIB, "kubernetes.io/gpu.shared": 8}
    obj = pod(container(limits={"kubernetes.io/gpu-memory-ratio": 50}), init=[container("i", limits=in_bytes)])
    first, app = charged(obj, 2 * GIB)
    assert first.amounts == named({"gpu": 400, "gpu-memory-ratio": 400, "gpu-memory": 8 * GIB})
    assert first.derived == set(named({"gpu": 0, "gpu-memory-ratio": 0, "gpu-memory": 0}))
    assert app.derived == set(named({"gpu-memory": 0}))
    first, _ = charged(obj)
    assert first.amounts == named({"gpu": 800, "gpu-memory-ratio": 800, "gpu-memory": 8 * GIB})


def test_what_is_held_of_an_amount_that_is_not_known_of_all_is_not_counted() -> None:
    """Each init container would make its Pod hold 9 GiB, and 11 cores, if the others took none."""
    in_bytes = {"kubernetes.io/gpu-memory": 8 * GIB, "kubernetes.io/gpu.shared": 8}
    apps = [container("a", limits={"kubernetes.io/gpu-memory": 2 * GIB})]
    first, *_ = charged(pod(*apps, init=[container("i", limits=in_bytes)]))
    assert first.amounts["quota.koordgate.io/gpu-memory"] == 9 * GIB
    apps.append(container("b", limits={"kubernetes.io/gpu-memory-ratio": 50}))
    first, *_ = charged(pod(*apps, init=[container("i", limits=in_bytes)]))
    assert first.amounts["quota.koordgate.io/gpu-memory"] == 8 * GIB
    apps = [container("a", limits={"huawei.com/npu-vir04": 1})]
    first, *_ = charged(pod(*apps, init=[container("i", limits={"huawei.com/npu-vir01": 8})]))
    assert first.amounts["quota.koordgate.io/npu-core"] == 11
    apps.append(container("b", limits={"huawei.com/npu": 1}))
    first, *_ = charged(pod(*apps, init=[container("i", limits={"huawei.com/npu-vir01": 8})]))
    assert first.amounts["quota.koordgate.io/npu-core"] == 8


# What quotas count of a Pod that states it


def counted(*containers: Raw, **about: Any) -> Raw:
    """What is read of a Pod that states what quotas count."""
    reading = read_asks(pod(*containers, **about), TYPES)
    assert reading.problems == ()
    return dict(reading.request.most)


def states(name: str, asked: Raw, **amounts: Any) -> Raw:
    return container(name, requests={**asked, **named(amounts)}, limits={**asked, **named(amounts)})


GPU50 = {"kubernetes.io/gpu": 50}


def test_what_containers_state_for_quotas_is_read_as_the_peak_of_their_sums() -> None:
    apps = [states("a", GPU50, gpu=1, rdma=7), container("b", limits=GPU50), states("c", GPU50, gpu=3)]
    assert counted(*apps) == named({"gpu": 4})
    assert counted(*apps, init=[states("i", GPU50, gpu=9, gpu_core=2)]) == named({"gpu": 9, "gpu-core": 2})
    assert counted(container("a", limits=GPU50)) == {}


def test_what_a_container_may_take_beyond_what_it_states_is_not_read() -> None:
    apps = [states("a", GPU50, gpu=50, gpu_core=50), states("b", GPU50, gpu=50, gpu_memory=GIB)]
    assert counted(*apps) == named({"gpu": 100, "gpu-core": 50})
    npu = {"huawei.com/npu": 2}
    assert counted(states("a", npu, npu=200, npu_dvpp=200)) == named({"npu": 200, "npu-dvpp": 200})
    assert counted(states("a", npu, npu=200, npu_core=8)) == named({"npu": 200, "npu-core": 8})
    every = {DEVICE_ALLOCATE_HINT: '{"rdma":{"allocateStrategy":"ApplyForAll"}}'}
    both = {"kubernetes.io/rdma": 20, **GPU50}
    assert counted(states("a", both, rdma=20, gpu=50), annotations=every) == named({"gpu": 50})


def test_what_a_container_states_for_quotas_and_cannot_be_read_counts_as_not_stated() -> None:
    assert counted(states("a", GPU50, gpu="much", gpu_core=50)) == named({"gpu-core": 50})


# CPUs


def lsr(*containers: Raw, **about: Any) -> Raw:
    return pod(*containers, labels={QOS_LABEL: "LSR"}, **about)


def cpus(number: int | str) -> Raw:
    return {"requests": {"cpu": number}, "limits": {"cpu": number}}


OWN: dict[str, tuple[Raw, list[int]]] = {
    "apps": (lsr(container("a", **cpus(2)), container("b", **cpus(3))), [2, 3]),
    "a limit alone": (lsr(container("a", limits={"cpu": "2000m"})), [2]),
    "one of two states none": (lsr(container("a"), container("b", **cpus(3))), [0, 3]),
    "a request of none without a limit": (
        lsr(container("a", requests={"cpu": 0}), container("b", **cpus(3))),
        [0, 3],
    ),
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


WHOLE = st.integers(0, 5)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(WHOLE, min_size=1, max_size=3),
    st.lists(st.tuples(WHOLE, st.booleans()), max_size=3),
    WHOLE,
    st.lists(WHOLE, max_size=2),
)
def test_what_is_counted_of_a_pod_is_the_number_of_its_own_cpus(
    apps: list[int], first: list[tuple[int, bool]], overhead: int, injected: list[int]
) -> None:
    made = [sidecar_container if sidecar else container for _, sidecar in first]
    init = [make(f"i{at}", **cpus(first[at][0])) for at, make in enumerate(made)]
    shared = [container(name, **cpus(n)) for name, n in zip(("istio-proxy", "daprd"), injected, strict=False)]
    own = [container(f"a{at}", **cpus(n)) for at, n in enumerate(apps)]
    obj = lsr(*shared, *own, init=init, overhead={"cpu": overhead})
    reading = read_asks(obj, implied=False)
    if reading.problems or reading.cpu is None:
        return  # no CPU at all
    counted = [
        charge.amounts.get("quota.koordgate.io/cpus", 0) for charge in charges(reading, reading.request, obj["spec"])
    ]
    assert pod_sum(obj, counted) == reading.cpu.count
    assert not any(counted[len(init) : len(init) + len(shared)])


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
