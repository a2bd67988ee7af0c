"""What quotas count of a Pod: for its containers, in sum with reuse, and as a limit of what it may hold."""

import json
from dataclasses import replace
from typing import Any

import pytest
from builders import (
    GIB,
    app,
    ask,
    container,
    gpu,
    gpus,
    init,
    nic,
    nics,
    node,
    part,
    pod,
    request,
    share,
    sidecar_container,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from npus import TYPES as NPU_TYPES
from trials import examples

from allocator.amounts import pod_amounts
from allocator.place import Placement, place
from allocator.request.cpus import QOS_LABEL
from allocator.request.original import read_asks
from allocator.request.quotaamounts import Charge, Take, beyond, charges, least_held
from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import (
    BUILT_IN,
    GPU_TYPE,
    RDMA_TYPE,
    DeviceType,
    DeviceTypeError,
    DeviceTypes,
    Part,
    Unit,
    composed_type,
    own_type,
)
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import Phase
from allocator.vocabulary.outcome import Refusal
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
    "a request of none without a limit": (lsr(container("a", requests={"cpu": 0}), container("b", **cpus(3))), [0, 3]),
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


def app_take(percent: int, devices: int = 1) -> Take:
    return Take(Phase.APP, devices, (percent,), (percent,))


def init_take(percent: int, devices: int = 1) -> Take:
    return app_take(percent, devices)._replace(phase=Phase.INIT)


def sidecar_take(percent: int, devices: int = 1) -> Take:
    return app_take(percent, devices)._replace(phase=Phase.SIDECAR)


# What containers take, in the Pod's order, and what the Pod holds in sum
HELD: dict[str, tuple[list[Take], int | None]] = {
    "one container": ([app_take(40, 2)], 80),
    "apps that fit on one device": ([app_take(60), app_take(30)], 90),
    "an init container on the device of an app": ([init_take(80), app_take(60)], 80),
    "an init container where two apps are together": ([init_take(80), app_take(50), app_take(50)], 100),
    "one where two apps cannot be together": ([init_take(80), app_take(51), app_take(50)], 130),
    "apps apart, so that each makes room for an init container": ([init_take(80, 2), app_take(50), app_take(50)], 160),
    "an init container where the peak grows least": ([init_take(80), app_take(20), app_take(90)], 110),
    "one where it grows least, though less is taken elsewhere": ([init_take(80), app_take(20, 2), app_take(30)], 100),
    "one on all devices and on more": ([init_take(80, 3), app_take(60)], 240),
    "two init containers, one after the other": ([init_take(80), init_take(70), app_take(60)], 80),
    "an init container before a sidecar": ([init_take(70), sidecar_take(30), app_take(60)], 90),
    "one beside a sidecar": ([sidecar_take(30), init_take(70), app_take(60)], 100),
    "one that does not fit beside a sidecar": ([sidecar_take(60), init_take(50), app_take(30)], 110),
    "one beside two sidecars": ([sidecar_take(30), sidecar_take(20), init_take(45), app_take(10)], 95),
    "as many devices as a node may have": ([app_take(100, 64), app_take(100, 64)], 12800),
    "one more": ([app_take(100, 64), app_take(100, 65)], None),
    "as many, of which an init container takes some alone": ([sidecar_take(60, 2), init_take(50, 126)], 6420),
    "one more than that": ([sidecar_take(60, 2), init_take(50, 127)], None),
}


@pytest.mark.parametrize(("parts", "held"), HELD.values(), ids=HELD)
def test_a_pod_holds_the_sum_of_the_peaks_on_its_devices(parts: list[Take], held: int | None) -> None:
    assert least_held(RDMA_TYPE, parts) == (None if held is None else (held,))


def cards(phase: Phase, core: int, ratio: int) -> Take:
    return Take(phase, 1, (core, 0, ratio), (core, ratio))


# What two apps and then an init container take of a card: the compute and memory that the Pod holds in all
OF_TWO: dict[str, tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]] = {
    "the greatest share grows least": ((50, 50), (60, 10), (80, 80), (130, 130)),
    "of equal ones, the sum of shares grows least": ((90, 10), (90, 80), (80, 70), (180, 90)),
    "the sum grows by a third less": ((60, 0), (60, 20), (60, 60), (120, 60)),
    "the sum grows by one less": ((60, 12), (60, 13), (60, 60), (120, 72)),
    "of equal growth, the first one": ((60, 20), (60, 20), (60, 30), (120, 50)),
}


@pytest.mark.parametrize(("one", "other", "first", "held"), OF_TWO.values(), ids=OF_TWO)
def test_an_init_container_takes_the_card_on_which_the_pod_grows_least(
    one: tuple[int, int], other: tuple[int, int], first: tuple[int, int], held: tuple[int, int]
) -> None:
    parts = [cards(Phase.INIT, *first), cards(Phase.APP, *one), cards(Phase.APP, *other)]
    found = least_held(GPU_TYPE, parts)
    assert found is not None
    assert found[1:] == (held[0], 0, held[1])


def test_an_init_container_takes_the_card_on_which_an_earlier_one_was() -> None:
    inits = [cards(Phase.INIT, 80, 60), cards(Phase.INIT, 75, 5)]
    apps = [cards(Phase.APP, 60, 10), cards(Phase.APP, 50, 60)]
    assert least_held(GPU_TYPE, [*inits, *apps]) == (140, 140, 0, 70)


def test_what_a_card_gives_is_counted_by_its_amounts_and_who_may_share_it_by_its_percentages() -> None:
    """Bytes of which the percentage is not known may be all of the card."""
    parts = [Take(phase, 1, (10, 2**30, 0), (10, 100)) for phase in (Phase.SIDECAR, Phase.INIT, Phase.APP)]
    assert least_held(GPU_TYPE, parts) == (20, 20, 2**31, 0)


def test_a_device_of_units_alone_is_counted_as_a_whole_one() -> None:
    of_units = DeviceType("x", tails=("a", "b"), unit=Unit.DEVICES, units=(Unit.UNITS, Unit.UNITS), plain="x")
    parts = [Take(Phase.INIT, 1, (1, 3), ()), Take(Phase.APP, 1, (2, 1), ())]
    assert least_held(of_units, parts) == (100, 2, 3)


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
