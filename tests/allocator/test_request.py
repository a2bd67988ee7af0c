"""What a Pod asks for, in every form, and every way in which a request can be wrong."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, app, ask, container, plain, pod_spec, sidecar_container
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import asks, pod_specs, resource_maps

from allocator.request.devices import Stated, names_devices, read_pod
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import BUILT_IN, GPU_TYPE
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, Phase

MAX_COUNT = 128

N, K, S = "nvidia.com/gpu", "kubernetes.io/gpu", "koordinator.sh/gpu"

ASKS: dict[str, tuple[Mapping[str, Any], DeviceAsk | None]] = {
    # the device proposal, "User apply device resources scenarios"
    "two devices of the plain plugin": ({N: "2"}, plain(2)),
    "one device of the plain plugin": ({N: 1}, plain()),
    "half a card": ({K: "50"}, ask(core=50, ratio=50)),
    "core and ratio": ({f"{K}-core": "50", f"{K}-memory-ratio": "60"}, ask(core=50, ratio=60)),
    "core and memory": ({f"{K}-core": "60", f"{K}-memory": "4Gi"}, ask(core=60, memory=4 * GIB)),
    # the other domain
    "half a card, today's domain": ({S: 50}, ask(core=50, ratio=50)),
    "core and ratio, today's domain": ({f"{S}-core": 50, f"{S}-memory-ratio": 60}, ask(core=50, ratio=60)),
    "core and memory, today's domain": ({f"{S}-core": 60, f"{S}-memory": "4Gi"}, ask(core=60, memory=4 * GIB)),
    # parts alone
    "memory alone": ({f"{K}-memory": "8Gi"}, ask(memory=8 * GIB)),
    "ratio alone": ({f"{K}-memory-ratio": 25}, ask(ratio=25)),
    "memory of one byte": ({f"{K}-memory": 1}, ask(memory=1)),
    "more memory than any card": ({f"{K}-memory": "1Ei"}, ask(memory=2**60)),
    # more than one card
    "one card in percent": ({K: 100}, ask(core=100, ratio=100)),
    "two cards in percent": ({K: 200}, ask(2, core=100, ratio=100)),
    "as many as any node has": ({K: 100 * MAX_COUNT}, ask(MAX_COUNT, core=100, ratio=100)),
    "as many plain devices as any node has": ({N: MAX_COUNT}, plain(MAX_COUNT)),
    "core and ratio agree on two": ({f"{K}-core": 200, f"{K}-memory-ratio": 200}, ask(2, core=100, ratio=100)),
    "ratio alone over two": ({f"{K}-memory-ratio": 200}, ask(2, ratio=100)),
    "memory follows the count of core": ({f"{K}-core": 200, f"{K}-memory": "64Gi"}, ask(2, core=100, memory=32 * GIB)),
    "core 50 and a whole card's memory": ({f"{K}-core": 50, f"{K}-memory-ratio": 100}, ask(core=50, ratio=100)),
    # gpu.shared
    "two half cards": ({S: 100, f"{S}.shared": 2}, ask(2, core=50, ratio=50)),
    "one card, said twice": ({S: 100, f"{S}.shared": 1}, ask(core=100, ratio=100)),
    "memory over four": ({f"{S}-memory": "8Gi", f"{S}.shared": 4}, ask(4, memory=2 * GIB)),
    "ratio over three": ({f"{S}-memory-ratio": 90, f"{S}.shared": 3}, ask(3, ratio=30)),
    "core and memory over two": (
        {f"{S}-core": 60, f"{S}-memory": "8Gi", f"{S}.shared": 2},
        ask(2, core=30, memory=4 * GIB),
    ),
    "core and ratio over two": (
        {f"{S}-core": 150, f"{S}-memory-ratio": 60, f"{S}.shared": 2},
        ask(2, core=75, ratio=30),
    ),
    "shared in the other domain": ({K: 100, f"{K}.shared": 2}, ask(2, core=50, ratio=50)),
    "as Koordinator's webhook leaves it": (
        {f"{S}-core": 200, f"{S}-memory-ratio": 200, f"{S}.shared": 2},
        ask(2, core=100, ratio=100),
    ),
    # spellings of a number
    "with an exponent": ({K: "5e1"}, ask(core=50, ratio=50)),
    "in thousandths that make a whole": ({K: "50000m"}, ask(core=50, ratio=50)),
    "kilo": ({f"{K}-core": "0.1k", f"{K}-memory-ratio": 100}, ask(core=100, ratio=100)),
    "half a gibi": ({f"{K}-memory": "0.5Gi"}, ask(memory=GIB // 2)),
    # zeros that mean nothing
    "no plain device": ({N: "0"}, None),
    "no plain device beside half a card": ({N: "0", K: 50}, ask(core=50, ratio=50)),
    "core 0 beside memory": ({f"{K}-core": 0, f"{K}-memory": "8Gi"}, ask(memory=8 * GIB)),
    "memory 0 beside ratio": ({f"{K}-memory": 0, f"{K}-memory-ratio": 50}, ask(ratio=50)),
    # no devices at all
    "nothing": ({}, None),
    "cpu and memory only": ({"cpu": "4", "memory": "8Gi"}, None),
    "somebody else's devices": ({"example.org/gpu": 5, "kubernetes.io/gpus": 1, "gpu": 1}, None),
}


def told(of: DeviceAsk | None) -> tuple[DeviceAsk, ...]:
    """The requests of all types of a container that requests this of one."""
    return (of,) if of else ()


@pytest.mark.parametrize("where", ["requests", "limits", "both"])
@pytest.mark.parametrize(("resources", "expected"), ASKS.values(), ids=ASKS)
def test_every_form_of_asking_is_read(resources: Mapping[str, Any], expected: DeviceAsk | None, where: str) -> None:
    maps: dict[str, Any] = {key: resources for key in ("requests", "limits") if where in {key, "both"}}
    reading = read_pod(pod_spec(container(**maps)))
    assert reading.problems == ()
    assert [(c.requests, c.limits) for c in reading.containers] == [(told(expected), told(expected))]
    assert bool(reading.request) == (expected is not None)
    assert all((one.name, one.phase, one.ask) == ("main", Phase.APP, expected) for one in reading.request.containers)


WRONG: dict[str, tuple[Mapping[str, Any], str]] = {
    # not a number of devices
    "negative": ({K: "-50"}, "[kubernetes.io/gpu]: '-50' is negative; ask 0 or more"),
    "half a device": (
        {N: "0.5"},
        "[nvidia.com/gpu]: 0.5 is no whole number of cards; write 1, or kubernetes.io/gpu: 50",
    ),
    "a device and a part": (
        {N: "1.5"},
        "[nvidia.com/gpu]: 1.5 is no whole number of cards; write 2 (kubernetes.io/gpu takes percent)",
    ),
    "half a percent": (
        {K: "500m"},
        "[kubernetes.io/gpu]: 0.5 is no whole number of percent; write 50 (a whole card is",
    ),
    "a part as percent with the sign": ({f"{K}-core": "50%"}, "50% is no whole number of percent; write 50 (a whole"),
    "a third, rounded up": ({f"{K}-core": "0.333"}, "0.333 is no whole number of percent; write 34 (a whole"),
    "one and a half": ({K: "1500m"}, "1.5 is no whole number of percent; write 2 (a whole card is 100, 2 are 200)"),
    "a part of a percent": ({K: "33.3"}, "33.3 is no whole number of percent; write 34 (a whole card is 100)"),
    "one and a half percent": ({K: "1.5%"}, "1.5% is no whole number of percent; write 2 (a whole card is 100)"),
    "half a byte": ({f"{K}-memory": "0.5"}, "[kubernetes.io/gpu-memory]: 0.5 is no whole number of bytes; write 1Mi"),
    "a part of a byte": ({f"{K}-memory": "1181116006400m"}, "1.1Gi is no whole number of bytes; write 1127Mi"),
    "bytes in percent": ({f"{K}-memory": "50%"}, "'50%' is not a Kubernetes quantity such as 1, 500m or 16Gi"),
    "a part of an RDMA device": ({"koordinator.sh/rdma": "0.25"}, "write 25 (a whole device is 100)"),
    "a split over half a card": ({K: 100, f"{K}.shared": "0.5"}, "0.5 is no whole number of cards; write 1"),
    "NaN": ({K: "NaN"}, "[kubernetes.io/gpu]: 'NaN' is not a Kubernetes quantity such as 1, 500m or 16Gi"),
    "a NaN of JSON": ({N: float("nan")}, "[nvidia.com/gpu]: 'nan' is not a Kubernetes quantity"),
    "infinite": ({f"{K}-memory": "Inf"}, "'Inf' is not a Kubernetes quantity"),
    "GB": ({f"{K}-memory": "32GB"}, "'32GB' is not a Kubernetes quantity"),
    "a list": ({N: []}, "a list is not a Kubernetes quantity"),
    "an object": ({K: {}}, "a dict is not a Kubernetes quantity"),
    "too large": ({f"{K}-memory": "8Ei"}, "'8Ei' is larger than any quantity can be (2^63-1)"),
    # nothing
    "zero percent": ({K: "0"}, "gpu must be greater than zero: 50 is half a card, 100 one card, 200 two; or remove it"),
    "zero of everything": ({f"{K}-core": 0, f"{K}-memory": 0}, "nothing above 0 is asked; add gpu-memory-ratio"),
    "core without memory": ({f"{K}-core": 50}, "gpu-core 50 is asked without memory; add gpu-memory-ratio"),
    "shared alone": ({f"{S}.shared": 2}, "nothing above 0 is asked; add gpu-memory-ratio"),
    # above 100
    "one and a half cards": (
        {K: 150},
        "gpu 150 is over 100, where only multiples of 100 are whole devices; ask 100 or 200",
    ),
    "core one and a half": ({f"{K}-core": 150, f"{K}-memory": 8}, "gpu-core 150 is over 100"),
    "ratio two and a half": ({f"{K}-memory-ratio": 250}, "gpu-memory-ratio 250 is over 100"),
    "101": ({K: 101}, "ask 100 or 200"),
    "more than any node has": (
        {K: 100 * MAX_COUNT + 100},
        "gpu 12900 is more than 128 devices, which no node has; ask 12800 at most",
    ),
    "more plain devices than any node has": (
        {N: MAX_COUNT + 1},
        "[nvidia.com/gpu]: 129 is more devices than any node has; ask 128 at most",
    ),
    "absurdly many": ({N: 2**62}, "ask 128 at most"),
    # parts that contradict
    "core one card, ratio two": (
        {f"{K}-core": 100, f"{K}-memory-ratio": 200},
        "gpu-core 100 is 1 device(s) but gpu-memory-ratio 200 is 2; above 100 both must be the same multiple of 100",
    ),
    "core half a card, ratio two": ({f"{K}-core": 50, f"{K}-memory-ratio": 200}, "gpu-core 50 is 1 device(s)"),
    "core two cards, ratio one": ({f"{K}-core": 200, f"{K}-memory-ratio": 100}, "gpu-core 200 is 2 device(s)"),
    "memory that two cards cannot share": (
        {f"{K}-core": 200, f"{K}-memory": 8193},
        "gpu-memory 8193 does not split evenly over 2 devices; ask 8192 or 8194 bytes",
    ),
    "ratio and memory": (
        {f"{K}-memory-ratio": 50, f"{K}-memory": "8Gi"},
        "gpu-memory and gpu-memory-ratio are both asked for; keep the one you mean",
    ),
    "gpu and core": (
        {K: 50, f"{K}-core": 50},
        "gpu already states core and memory, gpu-core beside it contradicts; keep gpu, or the others",
    ),
    "gpu and memory": ({K: 50, f"{K}-memory": "8Gi"}, "gpu-memory beside it contradicts"),
    # gpu.shared
    "over no card": ({S: 100, f"{S}.shared": 0}, "gpu.shared must be from 1 to 128"),
    "over too many cards": ({f"{S}-memory": "8Gi", f"{S}.shared": 129}, "gpu.shared must be from 1 to 128"),
    "uneven": ({S: 100, f"{S}.shared": 3}, "gpu 100 does not split evenly over gpu.shared 3; ask 99 or 102"),
    "uneven below one each": ({S: 1, f"{S}.shared": 2}, "gpu 1 does not split evenly over gpu.shared 2; ask 2"),
    "uneven memory": (
        {f"{S}-memory": 7, f"{S}.shared": 2},
        "gpu-memory 7 does not split evenly over 2 devices; ask 6 or 8 bytes",
    ),
    "more than a card of each": (
        {S: 300, f"{S}.shared": 2},
        "gpu 300 over gpu.shared 2 is more than 100 of each card; ask 200 at most",
    ),
    # dialects
    "plain and percent": (
        {N: 1, K: 50},
        (
            "spec: gpu devices are asked for in 2 dialects at once (spec.containers[0] asks for nvidia.com/gpu, "
            "spec.containers[0] asks for kubernetes.io/gpu); use one"
        ),
    ),
    "both domains": (
        {f"{K}-core": 50, f"{S}-memory-ratio": 50},
        "spec: gpu devices are asked for in 2 dialects at once",
    ),
    "one tail in both domains": ({K: 50, S: 50}, "gpu is asked for in two domains at once; keep one"),
    "all three": ({N: 1, K: 50, S: 50}, "spec: gpu devices are asked for in 3 dialects at once"),
    "plain and percent of zero": ({N: 1, K: 0}, "spec: gpu devices are asked for in 2 dialects at once"),
}


@pytest.mark.parametrize("where", ["requests", "limits", "both"])
@pytest.mark.parametrize(("resources", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_way_of_asking_is_reported_in_words(resources: Mapping[str, Any], message: str, where: str) -> None:
    maps: dict[str, Any] = {key: resources for key in ("requests", "limits") if where in {key, "both"}}
    problems = [str(problem) for problem in read_pod(pod_spec(container(**maps))).problems]
    assert any(message in problem for problem in problems), problems
    assert all(len(problem) < 400 for problem in problems)


def test_a_problem_names_the_map_and_the_resource() -> None:
    spec = pod_spec(container(limits={K: "x"}), container("b", requests={K: 150}), init=[container("i", limits={K: 0})])
    assert [problem.path for problem in read_pod(spec).problems] == [
        "spec.initContainers[0].resources.limits",
        "spec.containers[0].resources.limits[kubernetes.io/gpu]",
        "spec.containers[1].resources.requests",
    ]


# Several types: resources, the request of each type


WRONG_TYPES: dict[str, tuple[Mapping[str, Any], list[str]]] = {
    "one and a half NICs": (
        {"koordinator.sh/rdma": 150},
        ["rdma 150 is over 100, where only multiples of 100 are whole devices; ask 100 or 200"],
    ),
    "no NIC at all": ({"koordinator.sh/rdma": 0}, ["rdma must be greater than zero; or remove it"]),
    "more FPGAs than any node has": (
        {"kubernetes.io/fpga": 12900},
        ["fpga 12900 is more than 128 devices, which no node has; ask 12800 at most"],
    ),
    "NICs in both domains": (
        {"koordinator.sh/rdma": 1, "kubernetes.io/rdma": 1},
        ["rdma devices are asked for in 2 dialects at once", "rdma is asked for in two domains at once; keep one"],
    ),
    "wrong in two types, both reported": (
        {"koordinator.sh/rdma": 150, "koordinator.sh/gpu": 150},
        ["gpu 150 is over 100", "rdma 150 is over 100"],
    ),
}


@pytest.mark.parametrize(("resources", "messages"), WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_every_type_that_is_asked_wrongly_is_reported(resources: Mapping[str, Any], messages: list[str]) -> None:
    problems = [str(problem) for problem in read_pod(pod_spec(container(limits=resources))).problems]
    assert len(problems) == len(messages)
    assert all(message in problem for message, problem in zip(messages, problems, strict=True)), problems


def test_unequal_requests_and_limits_are_looked_at_by_type() -> None:
    spec = pod_spec(container(requests={S: 50, "koordinator.sh/rdma": 10}, limits={S: 50, "koordinator.sh/rdma": 20}))
    (problem,) = read_pod(spec).problems
    assert problem.path == "spec.containers[0].resources"
    assert problem.message == "koordinator.sh/rdma: the request must equal the limit; write the same amount in both"


# Requests beside limits: (requests, limits, the request, the limit) or (requests, limits, what is wrong)

BESIDE: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], DeviceAsk | None, DeviceAsk | None]] = {
    "the same in other words": ({S: "50"}, {S: 50}, ask(core=50, ratio=50), ask(core=50, ratio=50)),
    "the same in another unit": ({f"{S}-memory": "1Gi"}, {f"{S}-memory": "1024Mi"}, ask(memory=GIB), ask(memory=GIB)),
    "native, less than its limit": ({K: 30}, {K: 60}, ask(core=30, ratio=30), ask(core=60, ratio=60)),
    "native memory, less than its limit": (
        {f"{K}-memory": "4Gi"},
        {f"{K}-memory": "8Gi"},
        ask(memory=4 * GIB),
        ask(memory=8 * GIB),
    ),
    "native, core only is less": (
        {f"{K}-core": 20, f"{K}-memory-ratio": 50},
        {f"{K}-core": 80, f"{K}-memory-ratio": 50},
        ask(core=20, ratio=50),
        ask(core=80, ratio=50),
    ),
    "a request filled in from the limit": (
        {f"{K}-memory-ratio": 50},
        {f"{K}-core": 50},
        ask(core=50, ratio=50),
        ask(core=50, ratio=50),
    ),
    "cpu may differ": ({N: 1, "cpu": 1}, {N: 1, "cpu": 2}, plain(), plain()),
    "no plain device, native less than its limit": (
        {N: 0, K: 30},
        {N: 0, K: 60},
        ask(core=30, ratio=30),
        ask(core=60, ratio=60),
    ),
}


@pytest.mark.parametrize(("requests", "limits", "request_", "limit"), BESIDE.values(), ids=BESIDE)
def test_requests_and_limits_are_read_side_by_side(
    requests: Mapping[str, Any], limits: Mapping[str, Any], request_: DeviceAsk | None, limit: DeviceAsk | None
) -> None:
    reading = read_pod(pod_spec(container(requests=requests, limits=limits)))
    assert reading.problems == ()
    one = reading.containers[0]
    assert (one.requests, one.limits) == (told(request_), told(limit))


UNEQUAL: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "plain, less": ({N: 1}, {N: 2}, "nvidia.com/gpu: the request must equal the limit; write the same amount in both"),
    "plain, more": ({N: 2}, {N: 1}, "nvidia.com/gpu: the request must equal the limit"),
    "plain, none and one": ({N: 0}, {N: 1}, "nvidia.com/gpu: the request must equal the limit"),
    "plain, one and none": ({N: 1}, {N: 0}, "nvidia.com/gpu: the request must equal the limit"),
    "today's domain, less": ({S: 30}, {S: 60}, "koordinator.sh/gpu: the request must equal the limit"),
    "today's domain, the one that differs is named": (
        {f"{S}-core": 50, f"{S}-memory-ratio": 30},
        {f"{S}-core": 50, f"{S}-memory-ratio": 60},
        "koordinator.sh/gpu-memory-ratio: the request must equal the limit",
    ),
    "native, more": ({K: 60}, {K: 30}, "a request is greater than its limit; raise the limit or lower the request"),
    "native, more of one part": (
        {f"{K}-core": 60, f"{K}-memory-ratio": 50},
        {f"{K}-core": 30, f"{K}-memory-ratio": 80},
        "a request is greater than its limit",
    ),
    "native, another count": ({K: 100}, {K: 200}, "the same number of devices in the same form"),
    "native, fewer cards in the limit": ({K: 200}, {K: 100}, "the same number of devices in the same form"),
    "native, another form": (
        {f"{K}-core": 50, f"{K}-memory-ratio": 50},
        {f"{K}-core": 50, f"{K}-memory": "8Gi"},
        "gpu-memory and gpu-memory-ratio are both asked",
    ),
    "native, gpu and its parts": (
        {K: 50},
        {f"{K}-core": 50, f"{K}-memory-ratio": 50},
        "gpu already states core and memory",
    ),
    "a limit that is no quantity": ({K: 50}, {K: "x"}, "resources.limits[kubernetes.io/gpu]: 'x' is not"),
    "two dialects, one a map": ({N: 1}, {K: 50}, "spec: gpu devices are asked for in 2 dialects at once"),
}


@pytest.mark.parametrize(("requests", "limits", "message"), UNEQUAL.values(), ids=UNEQUAL)
def test_requests_and_limits_that_contradict_are_refused(
    requests: Mapping[str, Any], limits: Mapping[str, Any], message: str
) -> None:
    problems = [str(p) for p in read_pod(pod_spec(container(requests=requests, limits=limits))).problems]
    assert any(message in problem for problem in problems), problems


def test_a_request_is_read_though_its_limit_cannot_be_and_the_other_way_round() -> None:
    for requests, limits in (({K: 50}, {K: "x"}), ({K: "x"}, {K: 50})):
        (one,) = read_pod(pod_spec(container(requests=requests, limits=limits))).containers
        assert (one.requests, one.limits) == (told(ask(core=50, ratio=50) if requests == {K: 50} else None), ())


@settings(max_examples=300)
@given(st.sampled_from([N, S, f"{S}-memory", K, f"{K}-memory"]), st.integers(1, 100), st.integers(1, 100))
def test_unequal_amounts_of_one_resource_are_refused_exactly_where_kubernetes_would(
    name: str, low: int, high: int
) -> None:
    native = name.startswith("kubernetes.io/")  # k8s.io/component-helpers: IsOvercommitAllowed
    legal = low == high or (native and low < high)
    reading = read_pod(pod_spec(container(requests={name: low}, limits={name: high})))
    assert (not reading.problems) == legal


# Several containers


def test_an_init_container_with_another_restart_policy_is_no_sidecar() -> None:
    spec = pod_spec(container(), init=[container("i", limits={N: 1}, restartPolicy="Never")])
    assert [c.phase for c in read_pod(spec).request.containers] == [Phase.INIT]


def test_an_app_container_is_no_sidecar_whatever_its_restart_policy() -> None:
    assert read_pod(pod_spec(sidecar_container("main", limits={N: 1}))).request.containers[0].phase is Phase.APP


def test_two_containers_may_not_speak_two_dialects() -> None:
    spec = pod_spec(container("a", limits={K: 50}), init=[container("i", limits={N: 1})])
    assert [str(problem) for problem in read_pod(spec).problems] == [
        (
            "spec: gpu devices are asked for in 2 dialects at once (spec.initContainers[0] asks for nvidia.com/gpu, "
            "spec.containers[0] asks for kubernetes.io/gpu); use one"
        )
    ]


def test_every_wrong_container_is_reported_not_only_the_first() -> None:
    spec = pod_spec(*(container(f"c{index}", limits={K: 150}) for index in range(3)))
    assert len(read_pod(spec).problems) == 3


def test_devices_for_the_pod_as_a_whole_are_refused() -> None:
    spec = pod_spec(container(), resources={"limits": {N: 1}})
    assert [str(problem) for problem in read_pod(spec).problems] == [
        "spec.resources: devices cannot be asked for the Pod as a whole; ask for them in the containers that use them"
    ]
    assert read_pod(pod_spec(container(), resources={"limits": {"cpu": 1}})).problems == ()


ABSENT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "null": {"containers": None, "initContainers": None, "resources": None},
    "empty": {"containers": []},
    "null resources": {"containers": [{"name": "a", "resources": None}]},
    "null maps": {"containers": [{"name": "a", "resources": {"requests": None, "limits": None}}]},
    "only claims": {"containers": [{"name": "a", "resources": {"claims": [{"name": "gpu"}]}}]},
}


@pytest.mark.parametrize("spec", ABSENT.values(), ids=ABSENT)
def test_a_pod_without_resources_asks_for_nothing(spec: dict[str, Any]) -> None:
    reading = read_pod(spec)
    assert not reading.request
    assert reading.problems == ()
    assert not names_devices(spec)


def test_memory_that_our_translation_stated_is_no_ask() -> None:
    written = {f"{K}-core": 50, f"{K}-memory-ratio": 50, f"{K}-memory": "40Gi"}
    spec = pod_spec(container("a", limits=written))
    assert read_pod(spec).problems
    reading = read_pod(spec, {"a": Stated(derived=True)})
    assert reading.problems == ()
    assert reading.containers[0].stated.derived
    assert reading.request.containers == (app("a", ask(core=50, ratio=50)),)


# (resources of a translated container, the number of cards over which its author split them, what is read)

SPLIT: dict[str, tuple[dict[str, Any], int, DeviceAsk]] = {
    "half of each of two": ({f"{K}-core": 100, f"{K}-memory-ratio": 100}, 2, ask(2, core=50, ratio=50)),
    "bytes": ({f"{K}-memory": "9Gi"}, 3, ask(3, memory=3 * GIB)),
    "in the other domain": (
        {"koordinator.sh/gpu-core": 60, "koordinator.sh/gpu-memory-ratio": 30},
        3,
        ask(3, core=20, ratio=10),
    ),
    "one card": ({f"{K}-memory-ratio": 100}, 1, ask(1, ratio=100)),
    "whole cards": ({f"{K}-core": 200, f"{K}-memory-ratio": 200}, 2, ask(2, core=100, ratio=100)),
    "its resources say it themselves": (
        {f"{K}-core": 100, f"{K}-memory-ratio": 100, f"{K}.shared": 4},
        2,
        ask(4, core=25, ratio=25),
    ),
    "a form that no translation leaves": ({f"{K}": 100}, 2, ask(1, core=100, ratio=100)),
    "plain devices": ({N: 3}, 2, plain(3)),
}


@pytest.mark.parametrize("maps", [("requests",), ("limits",), ("requests", "limits")])
@pytest.mark.parametrize(("resources", "shared", "read"), SPLIT.values(), ids=SPLIT)
def test_a_count_that_was_taken_out_of_the_resources_splits_what_is_left(
    resources: dict[str, Any], shared: int, read: DeviceAsk, maps: tuple[str, ...]
) -> None:
    spec = pod_spec(container("a", **dict.fromkeys(maps, resources)), container("b", **dict.fromkeys(maps, resources)))
    reading = read_pod(spec, {"a": Stated(derived=True, shared=shared)})
    assert reading.problems == ()
    assert reading.containers[0].requests == reading.containers[0].limits == (read,)
    assert reading.containers[1].requests == read_pod(spec).containers[1].requests


@pytest.mark.parametrize(
    ("shared", "message"),
    [(0, "from 1 to 128"), (129, "from 1 to 128"), (3, "does not split evenly"), (2**70, "1 to 128")],
)
def test_a_count_that_was_taken_out_is_checked_as_if_it_were_still_there(shared: int, message: str) -> None:
    spec = pod_spec(container("a", limits={f"{K}-core": 100, f"{K}-memory-ratio": 100}))
    (problem,) = read_pod(spec, {"a": Stated(shared=shared)}).problems
    assert message in problem.message
    assert "annotation koordgate.io/original-request" in problem.message


# Properties


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(pod_specs())
def test_any_pod_is_read_and_what_is_accepted_is_sane(spec: dict[str, Any]) -> None:
    reading = read_pod(spec)
    everyone = [*spec.get("initContainers", ()), *spec["containers"]]
    assert len(reading.containers) == len(everyone)
    named = any(
        name in BUILT_IN.resources
        for one in everyone
        for amounts in one.get("resources", {}).values()
        for name in amounts
    )
    assert names_devices(spec) == named
    if reading.problems:
        assert all(problem.path and 0 < len(str(problem)) < 1000 for problem in reading.problems)
        return
    for one in reading.containers:
        assert [of.type for of in one.requests] == [of.type for of in one.limits]
        for of in (*one.requests, *one.limits):
            assert of.type in BUILT_IN.types
            assert 1 <= of.count <= MAX_COUNT
            assert len(of.amounts) == len(of.type.tails)
            if of.type != GPU_TYPE:
                assert 1 <= (of.amounts[0] or 0) <= 100
                continue
            core, memory, ratio = (of.amount(tail) for tail in (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO))
            assert core is not None
            assert 0 <= core <= 100
            assert (ratio is None) != (memory is None)
            assert ratio is None or 1 <= ratio <= 100
            assert memory is None or 1 <= memory < 2**63


def written(of: DeviceAsk, domain: str) -> dict[str, str]:
    """A request in its canonical form: each amount in total; for GPUs also the number of cards."""
    amounts = {tail: (amount or 0) * of.count for tail, amount in zip(of.type.tails, of.amounts, strict=True)}
    if of.type == GPU_TYPE:
        amounts[GPU_SHARED] = of.count
    return {f"{domain}/{tail}": str(amount) for tail, amount in amounts.items() if amount}


@settings(max_examples=200)
@given(asks(most_cards=8), st.sampled_from(["kubernetes.io", "koordinator.sh"]))
def test_every_ask_can_be_written_and_reads_back_equal(of: DeviceAsk, domain: str) -> None:
    reading = read_pod(pod_spec(container("a", limits=written(of, domain))))
    assert reading.problems == ()
    assert reading.request.containers == (app("a", of),)


@settings(max_examples=300)
@given(resource_maps(), st.sampled_from(["kubernetes.io", "koordinator.sh"]))
def test_whatever_is_accepted_reads_back_equal_after_being_written(resources: dict[str, Any], domain: str) -> None:
    first = read_pod(pod_spec(container("a", requests=resources)))
    if first.problems:
        return
    again: dict[str, str] = {}
    for of in first.containers[0].requests:
        again |= written(of, domain)
    second = read_pod(pod_spec(container("a", requests=again, limits=again)))
    assert second.problems == ()
    # The amounts alone say nothing of the vendor: the annotation original-request does.
    anybody = tuple(replace(of, vendor="") for of in first.containers[0].requests)
    assert second.containers[0].requests == second.containers[0].limits == anybody


def test_what_a_container_asks_in_two_dialects_is_not_read_and_the_others_are() -> None:
    first = container("a", limits={N: 1, f"{K}-core": 50, f"{K}-memory-ratio": 50})
    reading = read_pod(pod_spec(first, container("b", limits={N: 2})))
    assert len(reading.problems) == 1
    assert [(one.name, one.ask.count) for one in reading.request.containers] == [("b", 2)]
