"""What the command line says of Pods and devices, in few words."""

import json
from typing import Any

import pytest
from builders import container, device_entry, device_object, gpu, pod
from simulator.clusters import node
from simulator.test_account import account

from allocator.vocabulary.adopted import ForeignHolding, Product
from allocator.vocabulary.asks import DeviceQuota
from allocator.vocabulary.cpunode import BindPolicy, CpuShare, NumaShare
from allocator.vocabulary.device import Device, VirtualFunction
from allocator.vocabulary.devicetype import BUILT_IN, FPGA_TYPE, GPU_TYPE, RDMA_TYPE, DeviceType, Unit, own_type
from allocator.vocabulary.holdings import Function, Holding, Share
from allocator.vocabulary.names import DEVICE_ORDER, ORIGINAL_REQUEST
from allocator.vocabulary.node import NodeSnapshot
from console import devicewords
from console.simulator import words
from webhook.settings import DialectSettings, WebhookSettings, types_of
from webhook.view.nodereport import DeviceReport, node_report

GIB = 2**30
QUEUE = own_type("queue", "example.com/queue", Unit.UNITS)
TYPES = BUILT_IN.with_types([QUEUE])


@pytest.mark.parametrize(
    ("kind", "text"),
    [(GPU_TYPE, "GPU-01234567"), (FPGA_TYPE, "GPU-01234567"), (QUEUE, "GPU-0123456789-and-so-on-and-so-o")],
)
def test_an_id_is_cut_where_it_is_unique_and_a_name_later(kind: DeviceType, text: str) -> None:
    assert devicewords.shown_id("GPU-0123456789-and-so-on-and-so-on-and-so-on", kind) == text[:32]


# --- shares


def card(**amounts: int) -> Share:
    return Share("gpu", "GPU-0", 0, {tail.replace("_", "-"): amount for tail, amount in amounts.items()})


FUNCTIONS = (Function(0, "0000:10:00.1"), Function(1, "0000:10:00.2"))

SHARES: dict[str, tuple[DeviceType, Share, str, str]] = {
    "a whole card": (
        GPU_TYPE,
        card(gpu_core=100, gpu_memory=80 * GIB, gpu_memory_ratio=100),
        "core 100 %, memory 80 GiB (100 %)",
        "whole",
    ),
    "equal parts": (
        GPU_TYPE,
        card(gpu_core=30, gpu_memory=24 * GIB, gpu_memory_ratio=30),
        "core 30 %, memory 24 GiB (30 %)",
        "30 %",
    ),
    "parts that differ": (
        GPU_TYPE,
        card(gpu_core=30, gpu_memory=8 * GIB, gpu_memory_ratio=10),
        "core 30 %, memory 8 GiB (10 %)",
        "core 30 %, memory 10 %",
    ),
    "all of the compute": (
        GPU_TYPE,
        card(gpu_core=100, gpu_memory=8 * GIB, gpu_memory_ratio=10),
        "core 100 %, memory 8 GiB (10 %)",
        "core 100 %, memory 10 %",
    ),
    "memory alone": (
        GPU_TYPE,
        card(gpu_core=0, gpu_memory=8 * GIB, gpu_memory_ratio=10),
        "core 0 %, memory 8 GiB (10 %)",
        "memory 10 %",
    ),
    "an amount of two is stated": (GPU_TYPE, card(gpu_core=30), "gpu-core 30 %", "30 %"),
    "more than it consists of": (
        GPU_TYPE,
        Share("gpu", "g", 0, {"gpu-core": 30, "gpu-memory": GIB, "gpu-memory-ratio": 10, "more": 1}),
        "core 30 %, memory 1 GiB (10 %)",
        "core 30 %, memory 10 %",
    ),
    "nothing is stated": (GPU_TYPE, card(), "an amount that is not stated", "an amount that is not stated"),
    "a NIC with functions": (
        RDMA_TYPE,
        Share("rdma", "n", 0, {"rdma": 25}, functions=FUNCTIONS),
        "rdma 25 %, virtual function 0000:10:00.1, 0000:10:00.2",
        "25 %, function 0000:10:00.1, 0000:10:00.2",
    ),
    "units of a queue": (QUEUE, Share("queue", "fast", 0, {"queue": 3}), "queue 3", "3"),
    "as many units as percent of a whole": (QUEUE, Share("queue", "fast", 0, {"queue": 100}), "queue 100", "100"),
}


@pytest.mark.parametrize("name", SHARES)
def test_a_share_is_said_in_full_and_in_brief(name: str) -> None:
    kind, share, full, brief = SHARES[name]
    assert (devicewords.share_of(share, kind), devicewords.part_of(share, kind)) == (full, brief)


def reported(kind: DeviceType, device: Device | None, *shares: Share) -> DeviceReport:
    """A device of which each of these shares is another Pod's."""
    held = {str(at): Holding(str(at), "ns", str(at), 0, (share,)) for at, share in enumerate(shares)}
    snapshot = NodeSnapshot("n", () if device is None else (device,), held)
    types = BUILT_IN if kind.name in BUILT_IN.by_name else BUILT_IN.with_types([kind])
    (one,) = node_report(snapshot, types).devices
    return one


USES = {
    "two Pods on a card": (
        reported(
            GPU_TYPE,
            gpu(0),
            card(gpu_core=30, gpu_memory=24 * GIB, gpu_memory_ratio=30),
            card(gpu_core=20, gpu_memory=GIB // 2, gpu_memory_ratio=1),
        ),
        "core 50 %, 24.5 of 80 GiB",
    ),
    "a card that is gone": (reported(GPU_TYPE, None, card(gpu_core=30, gpu_memory=24 * GIB)), "core 30 %, 24 GiB"),
    "units of a queue that is gone": (reported(QUEUE, None, Share("queue", "fast", 0, {"queue": 3})), "3"),
}


@pytest.mark.parametrize("name", USES)
def test_what_is_used_of_a_device_is_said_of_how_much(name: str) -> None:
    use, text = USES[name]
    assert devicewords.used_of(use) == text


def test_bytes_that_no_ratio_states_as_well_are_said_with_their_word() -> None:
    units = (Unit.PERCENT, Unit.BYTES)
    kind = DeviceType("npu", ("npu-core", "npu-memory"), units=units, words=("core", "memory"), plain="npu")
    device = Device("npu", "n", 0, True, {"npu-core": 100, "npu-memory": 8 * GIB})
    share = Share("npu", "n", 0, {"npu-core": 50, "npu-memory": GIB})
    assert devicewords.used_of(reported(kind, device, share)) == "core 50 %, memory 1 of 8 GiB"
    assert devicewords.share_of(share, kind) == "core 50 %, memory 1 GiB"


# --- what Pods ask for


def asks(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A Pod of an init container and two others, after admission."""
    containers = [
        container("main", requests={"koordinator.sh/gpu-core": 50, "cpu": 2}, limits={"koordinator.sh/gpu-core": 50}),
        container("side", limits={"koordinator.sh/rdma": 25}),
        container("plain", requests={"cpu": 1}),
    ]
    made = pod(*containers, annotations=annotations or {}, labels=labels or {})
    made["spec"]["initContainers"] = [container("first", requests={"koordinator.sh/fpga": 100})]
    return made


PLAIN = ("first: koordinator.sh/fpga=100", "main: koordinator.sh/gpu-core=50", "side: koordinator.sh/rdma=25")


def test_each_container_that_asks_has_a_line_and_init_containers_come_first() -> None:
    assert words.asked(asks(), TYPES) == words.admitted(asks(), TYPES) == PLAIN


def test_a_pod_that_asks_by_an_annotation_of_a_dialect_is_not_said_to_ask_for_nothing() -> None:
    kai = types_of(WebhookSettings(dialects={"kai": DialectSettings(enabled=True)}))
    made = pod(container("main"), annotations={"gpu-fraction": "0.5", "example.com/own": "x"})
    assert words.asked(made, kai) == ("gpu-fraction=0.5",)
    assert words.asked(made, BUILT_IN) == ()
    named = {"nvidia.com/container.main.gpu-memory.request": "4Gi", "gpu-memory-limit.koordgate.io/main": "8Gi"}
    made = pod(container("main"), annotations={"example.com/own": "x", **named})
    limit, request = "gpu-memory-limit.koordgate.io/main=8Gi", "nvidia.com/container.main.gpu-memory.request=4Gi"
    assert words.asked(made, kai) == (f"{limit} {request}",)
    assert words.asked(made, BUILT_IN) == (limit,)


def test_what_the_author_wrote_comes_before_what_admission_made_of_it() -> None:
    original = {"main": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "2"}}}
    made = asks({ORIGINAL_REQUEST: json.dumps(original)})
    assert words.asked(made, TYPES) == (PLAIN[0], "main: nvidia.com/gpu=1 (limit 2)", PLAIN[2])
    assert words.admitted(made, TYPES) == PLAIN


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "7",
        '{"main": 7}',
        '{"main": {"requests": 7}}',
        '{"main": {"requests": {"x": "\\ud800"}}}',
        "[" * 99999,
    ],
)
def test_an_original_request_that_cannot_be_read_is_none(text: str) -> None:
    assert words.asked(asks({ORIGINAL_REQUEST: text}), TYPES) == PLAIN


def test_wishes_and_the_classes_of_cpus_have_lines_and_long_ones_are_cut() -> None:
    labels = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
    made = asks({DEVICE_ORDER: "a\n  " + "b" * 300}, labels)
    *_, classes, wish = words.asked(made, TYPES)
    assert classes == "qosClass=LSR priority-class=koord-prod"
    assert wish == f"{DEVICE_ORDER.rpartition('/')[2]} a {'b' * 198}..."
    assert words.asked(made, TYPES)[1] == "main: cpu=2 koordinator.sh/gpu-core=50"
    exact = asks({DEVICE_ORDER: "b" * 200})
    assert words.asked(exact, TYPES)[-1].endswith(" " + "b" * 200)


def test_the_owner_of_a_deployments_pod_is_the_deployment() -> None:
    def owned(kind: str, name: str, labels: dict[str, str]) -> dict[str, Any]:
        references = [{"kind": "Node", "name": "n"}, {"kind": kind, "name": name, "controller": True}]
        return {"metadata": {"name": "p", "ownerReferences": references, "labels": labels}, "spec": {}}

    assert words.owner_of({"metadata": {"name": "p"}, "spec": {}}) is None
    hashed = {"pod-template-hash": "x7k2"}
    assert words.owner_of(owned("ReplicaSet", "web-x7k2", hashed)) == ("Deployment", "web")
    assert words.owner_of(owned("ReplicaSet", "web", hashed)) == ("ReplicaSet", "web")
    assert words.owner_of(owned("ReplicaSet", "web-x7k2", {})) == ("ReplicaSet", "web-x7k2")
    assert words.owner_of(owned("Job", "web-x7k2", hashed)) == ("Job", "web-x7k2")


# --- allocations, quotas and CPUs


ABOUT = "scheduling.koordinator.sh/device-allocated"
ASKS = {"kubernetes.io/gpu-core": "10", "kubernetes.io/gpu-memory-ratio": "10"}
HELD = json.dumps({"gpu": [{"minor": 0, "id": "GPU-0", "resources": {**ASKS, "kubernetes.io/gpu-memory": "8Gi"}}]})
NONE = "and carries no allocation, so it holds none; to place it, remove spec.nodeName"
PLUGIN = "holds devices that the kubelet's device plugin gave it"
TROUBLE: dict[str, tuple[dict[str, Any], str]] = {
    "it holds what it asks for": ({"annotations": {ABOUT: HELD}}, ""),
    "it holds nothing": ({}, f"asks for devices {NONE}"),
    "it waits": ({"nodeName": ""}, ""),
    "it asks for nothing": ({"asks": {"cpu": "1"}}, ""),
    "it asks for CPUs": (
        {"asks": {"cpu": "2"}, "labels": {"koordinator.sh/qosClass": "LSR"}},
        f"asks for CPUs {NONE}",
    ),
    "it asks for both": (
        {"asks": {"cpu": "2", **ASKS}, "labels": {"koordinator.sh/qosClass": "LSR"}},
        f"asks for devices {NONE}",
    ),
    "devices are assumed": (
        {"annotations": {"koordgate.io/assumed": "2"}},
        f"{PLUGIN}; which ones is unknown, so idle ones are assumed",
    ),
    "the plugin's are known": ({"annotations": {"koordgate.io/assumed": "0"}}, PLUGIN),
}


@pytest.mark.parametrize(("change", "told"), TROUBLE.values(), ids=TROUBLE)
def test_what_is_wrong_with_the_allocation_of_a_bound_pod_is_told(change: dict[str, Any], told: str) -> None:
    asked = change.get("asks", ASKS)
    made = pod(
        container("main", asked, asked),
        annotations=change.get("annotations"),
        labels=change.get("labels"),
        nodeName=change.get("nodeName", "node-1"),
        schedulerName="koord-scheduler",
    )
    counted = account(node(), device_object(device_entry(0)), made)
    assert words.trouble(made, counted) == told
    assert words.trouble({**made, "status": {"phase": "Failed"}}, counted) == ""


def test_an_allocation_that_cannot_be_read_is_told_with_the_reason() -> None:
    made = pod(container("main", ASKS, ASKS), annotations={ABOUT: "{"}, nodeName="node-1")
    told = words.trouble(made, account(node(), device_object(device_entry(0)), made))
    assert told.startswith("has an unreadable allocation, so what it may hold takes no new Pods: ")
    assert ABOUT in told


QUOTAS: dict[str, tuple[DeviceQuota, str]] = {
    "parts": (
        DeviceQuota(GPU_TYPE, "GPU-0", {"gpu-core": 30, "gpu-memory": 8 * GIB, "gpu-memory-ratio": 10}),
        "core 30 %, memory 8 GiB (10 %)",
    ),
    "a ratio that is not stated": (
        DeviceQuota(GPU_TYPE, "GPU-0", {"gpu-core": 30, "gpu-memory": 8 * GIB}),
        "core 30 %, memory 8 GiB (0 %)",
    ),
    "nothing and no limit": (
        DeviceQuota(GPU_TYPE, "GPU-0", {"gpu-core": 0, "gpu-memory": None, "gpu-memory-ratio": 0}),
        "core none, memory unlimited",
    ),
    "no limit of a ratio": (
        DeviceQuota(GPU_TYPE, "GPU-0", {"gpu-core": None, "gpu-memory": GIB, "gpu-memory-ratio": None}),
        "core unlimited, memory 1 GiB (0 %)",
    ),
    "places": (DeviceQuota(QUEUE, "fast", {"queue": 3}), "queue 3"),
    "percent": (DeviceQuota(RDMA_TYPE, "n", {"rdma": 25}), "rdma 25 %"),
}


@pytest.mark.parametrize(("quota", "told"), QUOTAS.values(), ids=QUOTAS)
def test_what_a_container_may_use_is_said_in_full(quota: DeviceQuota, told: str) -> None:
    assert devicewords.quota_of(quota) == told


def test_the_quotas_of_each_container_and_device_have_a_line() -> None:
    listed = [{"id": f"GPU-0123456789-{at}", "resources": {"kubernetes.io/gpu-core": str(10 + at)}} for at in range(2)]
    text = json.dumps(
        {"b": {"gpu": listed}, "a": {"rdma": [{"id": "0000:1a:00.0", "resources": {"koordinator.sh/rdma": "5"}}]}}
    )
    assert devicewords.quotas(pod(annotations={"koordgate.io/device-quotas": text}), TYPES) == [
        "b may use of gpu GPU-01234567: core 10 %",
        "b may use of gpu GPU-01234567: core 11 %",
        "a may use of rdma 0000:1a:00.0: rdma 5 %",
    ]
    assert devicewords.quotas(pod(), TYPES) == []


CPUS: dict[str, tuple[CpuShare, str]] = {
    "CPUs of its own": (CpuShare("LSR", 0b1011, BindPolicy.FULL_PCPUS), "CPUs 0-1,3 (LSR, FullPCPUs)"),
    "no policy": (CpuShare("LSE", 0b1), "CPUs 0 (LSE)"),
    "NUMA nodes": (
        CpuShare("LS", 0, numa=(NumaShare(0, 2000, 0), NumaShare(1, 1500, 3 * GIB // 2), NumaShare(2, 0, GIB))),
        "NUMA node 0: 2 CPU; NUMA node 1: 1500m CPU, 1.5 GiB; NUMA node 2: 1 GiB",
    ),
    "both": (CpuShare("LSR", 0b1, numa=(NumaShare(0, 1000, 0),)), "CPUs 0 (LSR), NUMA node 0: 1 CPU"),
    "a pool": (CpuShare("LS", numa=(NumaShare(3, 0, 0),)), "NUMA node 3: its shared pool"),
    "none": (CpuShare("LS"), ""),
}


@pytest.mark.parametrize(("share", "told"), CPUS.values(), ids=CPUS)
def test_cpus_and_numa_nodes_are_said_in_words(share: CpuShare, told: str) -> None:
    assert devicewords.cpus_of(share) == told
    holding = Holding("u", "d", "p", 0, (), share)
    assert devicewords.held(holding, TYPES) == ([told] if told else [])


def test_devices_are_listed_by_type_and_minor_and_those_of_another_product_with_what_says_so() -> None:
    shares = (
        Share("queue", "fast", 0, {"queue": 1}),
        Share("rdma", "n", 1, {"rdma": 5}),
        Share("gpu", "GPU-1", 1, {"gpu-core": 10}),
        Share("rdma", "m", 0, {"rdma": 5}),
        Share("gpu", "GPU-0", 10, {"gpu-core": 20}),
    )
    listed = [
        "gpu 1 GPU-1: gpu-core 10 %",
        "gpu 10 GPU-0: gpu-core 20 %",
        "rdma 0 m: rdma 5 %",
        "rdma 1 n: rdma 5 %",
        "queue 0 fast: queue 1",
    ]
    assert devicewords.held(Holding("u", "d", "p", 0, shares), TYPES) == listed
    theirs = ForeignHolding("u", "d", "p", Product.HAMI, "an annotation", shares)
    assert devicewords.adopted(theirs, TYPES) == [*listed, "by an annotation"]
    assert devicewords.adopted(ForeignHolding("u", "d", "p", Product.HAMI, "an annotation"), TYPES) == []


@pytest.mark.parametrize(
    ("functions", "told"),
    [
        ((Function(0, ""),), "rdma 5 %, virtual function without a bus id"),
        ((Function(0, ""), Function(1, "0000:1")), "rdma 5 %, virtual function without a bus id, 0000:1"),
    ],
)
def test_a_function_without_a_bus_id_is_said_to_have_none(functions: tuple[Function, ...], told: str) -> None:
    assert devicewords.share_of(Share("rdma", "n", 0, {"rdma": 5}, functions=functions), RDMA_TYPE) == told


@pytest.mark.parametrize(
    ("identity", "told"),
    [("assumed-1-a-b", "assumed-1"), ("assumed-12", "assumed-12"), ("0000:10:00.0-more", "0000:10:00.0")],
)
def test_an_id_is_shortened_to_what_tells_it_apart(identity: str, told: str) -> None:
    assert devicewords.short_id(identity) == told


def test_names_have_a_namespace_and_short_ones_have_not_the_default_one() -> None:
    assert words.name_of({"metadata": {"name": "a", "namespace": "team"}}) == "team/a"
    assert words.name_of({"metadata": {"name": "a"}}) == "default/a"
    assert [devicewords.short_name(name) for name in ("default/a", "team/default/a")] == ["a", "team/default/a"]


def test_classes_and_annotations_that_ask_are_one_line_each_and_long_ones_are_cut() -> None:
    made = pod(container("main"), labels={"koordinator.sh/qosClass": "BE", "koordinator.sh/priority-class": ""})
    assert words.asked(made, TYPES) == ("qosClass=BE",)
    kai = types_of(WebhookSettings(dialects={"kai": DialectSettings(enabled=True)}))
    asks_of = {"gpu-fraction": "5" * 201, "gpu-memory": "1\n  2"}
    assert words.asked(pod(container("main"), annotations=asks_of), kai) == (
        f"gpu-fraction={'5' * 200}... gpu-memory=1 2",
    )
    (exact,) = words.asked(pod(container("main"), annotations={"gpu-fraction": "5" * 200}), kai)
    assert exact == f"gpu-fraction={'5' * 200}"


def test_a_limit_that_differs_stands_behind_the_request() -> None:
    made = pod(
        container("same", {"koordinator.sh/rdma": 25}, {"koordinator.sh/rdma": "25"}),
        container("more", {"koordinator.sh/rdma": "25"}, {"koordinator.sh/rdma": "50", "koordinator.sh/fpga": "100"}),
        container("less", {"koordinator.sh/rdma": "5"}),
        container("odd", {"koordinator.sh/rdma": "25"}, {"koordinator.sh/rdma": "100"}),
    )
    assert words.asked(made, TYPES) == (
        "same: koordinator.sh/rdma=25",
        "more: koordinator.sh/rdma=25 (limit 50) koordinator.sh/fpga=100",
        "less: koordinator.sh/rdma=5",
        "odd: koordinator.sh/rdma=25 (limit 100)",
    )


def test_of_functions_those_that_are_held_are_counted() -> None:
    card = Device(
        "rdma",
        "n",
        0,
        True,
        {"rdma": 100},
        functions=(VirtualFunction(0, "a"), VirtualFunction(1, "b"), VirtualFunction(2, "c")),
    )
    shares = [Share("rdma", "n", 0, {"rdma": 25}, functions=of) for of in (FUNCTIONS, FUNCTIONS[:1])]
    assert devicewords.used_of(reported(RDMA_TYPE, card, *shares)) == "50 %, 3 of 3 functions"
    assert devicewords.used_of(reported(RDMA_TYPE, None, *shares)) == "50 %"
