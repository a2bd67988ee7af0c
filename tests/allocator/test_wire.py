"""Formats in the cluster: exactly as others write and read them, and safe against anything else."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from builders import GIB, device_entry, device_object, gpu, holding, nic, nic_entry, node, part, share
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import T4
from strategies import holdings, json_near, json_values
from trials import examples

from allocator.vocabulary.cpunode import BindPolicy, CpuAsk, CpuShare, ExclusivePolicy, NumaShare, QosClass
from allocator.vocabulary.device import NO_LINKS, Device, Partition, PartitionTable, VirtualFunction
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import WITHOUT_LIMIT, Function, Holding, Share
from allocator.vocabulary.names import (
    CORDONED,
    DEVICE_ALLOCATED,
    DOMAINS,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RESOURCE_STATUS,
    visible_devices,
)
from allocator.wire.deviceobject import (
    DEVICE_LINKS,
    GPU_MODEL,
    GPU_PARTITIONS,
    GPU_VENDOR,
    built_in,
    read_device_object,
    write_links,
)
from allocator.wire.nodeallocation import API_VERSION, RecordError, read_spec, write_spec
from allocator.wire.podallocated import (
    AnnotationError,
    read_allocation,
    read_cpu_share,
    write_allocation,
    write_annotations,
)

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
DEEP = "[" * 100_000


# device-allocated and visible devices

HALF = part(gpu(0, 32 * GIB, device_id="GPU-a"), 50, "main")

WRITTEN: dict[str, tuple[list[Share], str, dict[str, str]]] = {
    "half a card, the device proposal's domain": (
        [HALF],
        "kubernetes.io",
        {
            DEVICE_ALLOCATED: (
                '{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"50","kubernetes.io/gpu-memory":"16Gi",'
                '"kubernetes.io/gpu-memory-ratio":"50"},"id":"GPU-a"}]}'
            ),
            "visible-devices.koordgate.io/main": "GPU-a",
        },
    ),
    "two cards in the order of minors, three containers": (
        [part(gpu(10), 100, "a", "b"), part(gpu(2), 100, "b", "c")],
        "koordinator.sh",
        {
            DEVICE_ALLOCATED: (
                '{"gpu":[{"minor":2,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"80Gi",'
                '"koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-2"},'
                '{"minor":10,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"80Gi",'
                '"koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-10"}]}'
            ),
            "visible-devices.koordgate.io/a": "GPU-10",
            "visible-devices.koordgate.io/b": "GPU-2,GPU-10",
            "visible-devices.koordgate.io/c": "GPU-2",
        },
    ),
    "odd bytes stay exact": (
        [share(gpu(0), "main", memory=8_589_934_591, ratio=10)],
        "koordinator.sh",
        {
            DEVICE_ALLOCATED: (
                '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"0","koordinator.sh/gpu-memory":"8589934591",'
                '"koordinator.sh/gpu-memory-ratio":"10"},"id":"GPU-0"}]}'
            ),
            "visible-devices.koordgate.io/main": "GPU-0",
        },
    ),
    "a share without an id, as Koordinator once wrote it": (
        [Share("gpu", "", 3, {GPU_CORE: 100})],
        "kubernetes.io",
        {DEVICE_ALLOCATED: '{"gpu":[{"minor":3,"resources":{"kubernetes.io/gpu-core":"100"}}]}'},
    ),
    "nothing": ([], "koordinator.sh", {}),
    "a card and a virtual function of a NIC, each shown by its own annotation": (
        [
            Share("rdma", "0000:1f:00.0", 1, {"rdma": 1}, ("main",), (Function(1, "0000:1f:00.3"),)),
            part(gpu(0), 100, "main", "other"),
        ],
        "koordinator.sh",
        {
            DEVICE_ALLOCATED: (
                '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"80Gi",'
                '"koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-0"}],'
                '"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"1"},"id":"0000:1f:00.0",'
                '"extension":{"vfs":[{"minor":1,"busID":"0000:1f:00.3"}]}}]}'
            ),
            "visible-devices.koordgate.io/main": "GPU-0",
            "visible-devices.koordgate.io/other": "GPU-0",
            "rdma.visible-devices.koordgate.io/main": "0000:1f:00.0",
        },
    ),
    "a virtual function of minor 0, and one without a number": (
        [Share("rdma", "nic", 0, {"rdma": 2}, (), (Function(0, "vf-a"), Function(-1, "vf-b")))],
        "kubernetes.io",
        {
            DEVICE_ALLOCATED: (
                '{"rdma":[{"minor":0,"resources":{"kubernetes.io/rdma":"2"},"id":"nic",'
                '"extension":{"vfs":[{"busID":"vf-a"},{"minor":-1,"busID":"vf-b"}]}}]}'
            )
        },
    ),
}


@pytest.mark.parametrize(("shares", "domain", "annotations"), WRITTEN.values(), ids=WRITTEN)
def test_an_allocation_is_written_as_koordinator_writes_it(
    shares: list[Share], domain: str, annotations: dict[str, str]
) -> None:
    assert write_annotations(shares, domain) == annotations


READ: dict[str, tuple[dict[str, str], list[Share]]] = {
    "no annotation": ({}, []),
    "no devices": ({DEVICE_ALLOCATED: "{}"}, []),
    "Koordinator's documented example, RDMA and virtual functions beside": (
        {
            DEVICE_ALLOCATED: (
                '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"16Gi",'
                '"koordinator.sh/gpu-memory-ratio":"50"},"id":"GPU-a"}],"rdma":[{"minor":1,"resources":'
                '{"koordinator.sh/rdma":"1"},"id":"0000:1f:00.0","extension":{"vfs":[{"minor":1,"busID":"0000:1f:00.3"}]}}]}'
            )
        },
        [
            Share("gpu", "GPU-a", 0, {GPU_CORE: 50, GPU_MEMORY: 16 * GIB, GPU_MEMORY_RATIO: 50}),
            Share("rdma", "0000:1f:00.0", 1, {"rdma": 1}, (), (Function(1, "0000:1f:00.3"),)),
        ],
    ),
    "a container sees devices of two types": (
        {
            DEVICE_ALLOCATED: '{"gpu":[{"minor":0,"id":"x"}],"rdma":[{"minor":0,"id":"x"}]}',
            "visible-devices.koordgate.io/a": "x",
            "rdma.visible-devices.koordgate.io/b": "x",
        },
        [Share("gpu", "x", 0, {}, ("a",)), Share("rdma", "x", 0, {}, ("b",))],
    ),
    "a virtual function of minor 0": (
        {DEVICE_ALLOCATED: '{"rdma":[{"minor":0,"id":"x","extension":{"vfs":[{"busID":"vf"}]}}]}'},
        [Share("rdma", "x", 0, {}, (), (Function(0, "vf"),))],
    ),
    "another type's resources are not its own": (
        {DEVICE_ALLOCATED: '{"rdma":[{"minor":0,"id":"x","resources":{"koordinator.sh/gpu-core":"50"}}]}'},
        [Share("rdma", "x", 0, {})],
    ),
    "the device proposal's first draft, without ids": (
        {
            DEVICE_ALLOCATED: json.dumps(
                {
                    "gpu": [
                        {"minor": 0, "resources": {"kubernetes.io/gpu-core": 100, "kubernetes.io/gpu-memory": "16Gi"}},
                        {"minor": 1, "resources": {"kubernetes.io/gpu-core": 100, "kubernetes.io/gpu-memory": "16Gi"}},
                    ]
                }
            )
        },
        [Share("gpu", "", minor, {GPU_CORE: 100, GPU_MEMORY: 16 * GIB}) for minor in (0, 1)],
    ),
    "null resources": (
        {DEVICE_ALLOCATED: '{"gpu":[{"minor":0,"resources":null,"id":"GPU-a"}]}'},
        [Share("gpu", "GPU-a", 0, {})],
    ),
    "resources that we do not count": (
        {DEVICE_ALLOCATED: '{"gpu":[{"minor":0,"resources":{"huawei.com/npu-core":"4","cpu":"x"},"id":"GPU-a"}]}'},
        [Share("gpu", "GPU-a", 0, {})],
    ),
    "a type that we do not know": ({DEVICE_ALLOCATED: '{"xpu":[{"minor":"?"}],"gpu":[]}'}, []),
    "who sees it": (
        {
            DEVICE_ALLOCATED: '{"gpu":[{"minor":0,"id":"GPU-a"},{"minor":1,"id":"GPU-b"}]}',
            "visible-devices.koordgate.io/z": "GPU-b,GPU-a",
            "visible-devices.koordgate.io/a": "GPU-a",
            "visible-devices.koordgate.io/none": "void",
        },
        [Share("gpu", "GPU-a", 0, {}, ("a", "z")), Share("gpu", "GPU-b", 1, {}, ("z",))],
    ),
}


@pytest.mark.parametrize(("annotations", "shares"), READ.values(), ids=READ)
def test_an_allocation_of_others_is_read(annotations: dict[str, str], shares: list[Share]) -> None:
    assert read_allocation(annotations).shares == tuple(shares)


MALFORMED: dict[str, str] = {
    "empty": "",
    "a number": "1",
    "null": "null",
    "nested without end": DEEP,
    "a number that Python would not read": '{"gpu":[{"minor":' + "9" * 10_000 + "}]}",
    "entries that are text": '{"gpu":"GPU-a"}',
    "entries that are empty text": '{"gpu":""}',
    "entries that are an object": '{"gpu":{}}',
    "an entry that is text": '{"gpu":["GPU-a"]}',
    "no minor": '{"gpu":[{"id":"GPU-a"}]}',
    "a minor that is text": '{"gpu":[{"minor":"0","id":"GPU-a"}]}',
    "a minor that is true": '{"gpu":[{"minor":true,"id":"GPU-a"}]}',
    "a minor below 0": '{"gpu":[{"minor":-1,"id":"GPU-a"}]}',
    "a minor that is no int32": '{"gpu":[{"minor":2147483648,"id":"GPU-a"}]}',
    "an id that is no UTF-8": '{"gpu":[{"minor":0,"id":"GPU-\\ud800"}]}',
    "a minor that is not a number": '{"gpu":[{"minor":NaN,"id":"GPU-a"}]}',
    "resources that are a list": '{"gpu":[{"minor":0,"resources":["koordinator.sh/gpu-core"],"id":"GPU-a"}]}',
    "a negative amount": '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"-5"},"id":"GPU-a"}]}',
    "an amount that is no quantity": '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"x"},"id":"GPU-a"}]}',
    "an amount that is not a number": '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":NaN},"id":"GPU-a"}]}',
    "an amount that is a list": '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":[]},"id":"GPU-a"}]}',
    "one card twice": '{"gpu":[{"minor":0,"id":"GPU-a"},{"minor":1,"id":"GPU-a"}]}',
    "virtual functions that are an object": '{"rdma":[{"minor":0,"id":"x","extension":{"vfs":{"a":1}}}]}',
    "a virtual function that is text": '{"rdma":[{"minor":0,"id":"x","extension":{"vfs":["vf"]}}]}',
    "a virtual function whose minor is text": '{"rdma":[{"minor":0,"id":"x","extension":{"vfs":[{"minor":"1"}]}}]}',
    "an extension that is a list": '{"rdma":[{"minor":0,"id":"x","extension":[1]}]}',
    "one minor twice, without ids": '{"gpu":[{"minor":0},{"minor":0}]}',
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED)
def test_an_allocation_that_is_not_of_the_format_is_refused_by_name(text: str) -> None:
    read = read_allocation({DEVICE_ALLOCATED: text})
    assert read.problem.startswith("scheduling.koordinator.sh/device-allocated: ")
    assert len(read.problem) < 500
    assert read.unread
    assert not read.shares


ALLOCATION_KEYS = ["gpu", "rdma", "minor", "id", "resources", "koordinator.sh/gpu-core", "kubernetes.io/gpu-memory"]


@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
@given(
    (json_values() | json_near(ALLOCATION_KEYS, [0, 1, "50", "16Gi", "GPU-a", []])).map(json.dumps)
    | st.text(max_size=40),
    st.text(max_size=20),
)
def test_any_text_is_an_allocation_or_refused(text: str, seen: str) -> None:
    read = read_allocation({DEVICE_ALLOCATED: text, visible_devices("a"): seen})
    shares = read.shares
    assert bool(read.problem) == bool(read.unread)
    assert all(amount >= 0 for one in shares for amount in one.amounts.values())
    # What is read can be recorded and read again: an unreadable record would close the node.
    held = Holding("u", "default", "p", 0, shares)
    recorded = {"spec": orjson.loads(orjson.dumps(write_spec([held])))}
    assert read_spec(recorded) == {"u": held}


# Device objects

SEED = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "Device",
    "metadata": {
        "name": "node-1",
        "annotations": {
            "node.koordinator.sh/gpu-checkpoints": json.dumps(
                [
                    {
                        "podUID": "fa8983dc-bb76-4eeb-8dcc-556fbd44d7ce",
                        "containerName": "cuda-container",
                        "resourceName": "nvidia.com/gpu",
                        "deviceIDs": ["GPU-36b27e44-b086-46f7-f2dc-73c36dc65991"],
                    }
                ]
            )
        },
    },
    "spec": {
        "devices": [
            {
                "health": True,
                "id": f"GPU-{uuid}",
                "minor": minor,
                "resources": {
                    "kubernetes.io/gpu-core": "100",
                    "kubernetes.io/gpu-memory": "15472384Ki",
                    "kubernetes.io/gpu-memory-ratio": "100",
                },
                "type": "gpu",
            }
            for minor, uuid in enumerate(
                ("98583a5c-c155-9cf6-f955-03c189d3dbfb", "7f6410b9-bdf7-f9a5-de09-aa5ec31a7124")
            )
        ]
    },
    "status": {},
}


def test_the_device_object_of_seed_document_1_is_read() -> None:
    told = read_device_object(SEED)
    assert told.node == "node-1"
    assert told.problems == ()
    assert told.kubelet_held == {"GPU-36b27e44-b086-46f7-f2dc-73c36dc65991"}
    assert told.devices == (
        gpu(0, T4, device_id="GPU-98583a5c-c155-9cf6-f955-03c189d3dbfb"),
        gpu(1, T4, device_id="GPU-7f6410b9-bdf7-f9a5-de09-aa5ec31a7124"),
    )


def test_todays_device_object_is_read_with_topology_and_labels() -> None:
    entry = device_entry(
        3,
        "85899345920",
        labels={"node.koordinator.sh/gpu-model": "NVIDIA-H100", "rack": "r1"},
        topology={"socketID": 0, "nodeID": 1, "pcieID": "pci0000:3a", "busID": "0000:3b:00.0"},
        moduleID=3,
        vfGroups=[],
        conditions=[],
    )
    told = read_device_object(device_object(entry))
    assert told.problems == ()
    labels = {"node.koordinator.sh/gpu-model": "NVIDIA-H100", "rack": "r1"}
    assert told.devices == (
        gpu(3, numa_node=1, pcie="pci0000:3a", model="NVIDIA-H100", labels=labels, bus="0000:3b:00.0"),
    )


# (an entry, the device that it is)

ENTRIES: dict[str, tuple[dict[str, Any], Device]] = {
    "today's domain": (device_entry(0), gpu(0)),
    "the device proposal's domain": (device_entry(0, domain="kubernetes.io"), gpu(0)),
    "the draft's field names": (
        {
            "uuid": "GPU-1",
            "minor": 1,
            "deviceType": "gpu",
            "health": True,
            "resource": {"kubernetes.io/gpu-core": 100, "kubernetes.io/gpu-memory": 80 * GIB},
        },
        gpu(1),
    ),
    "minor 0 is left out by Go": (device_entry(0, drop=["minor"]), gpu(0)),
    "ill health is left out by Go": (device_entry(0, drop=["health"]), gpu(0, healthy=False, why_not="unhealthy")),
    "health must be true, no less": (device_entry(0, health="true"), gpu(0, healthy=False, why_not="unhealthy")),
    "why it is unhealthy": (
        device_entry(
            0,
            health=False,
            conditions=[
                {"type": "Ready", "status": "False", "reason": "Other"},
                {"type": "Healthy", "status": "False", "reason": "Xid79", "message": "GPU has fallen off the bus"},
            ],
        ),
        gpu(0, healthy=False, why_not="Xid79: GPU has fallen off the bus"),
    ),
    "a condition before that of health, which is in doubt": (
        device_entry(
            0,
            health=False,
            conditions=[
                {"type": "Fallen", "status": "False", "reason": "Other"},
                {"type": "Healthy", "status": "Unknown", "reason": "Xid79"},
            ],
        ),
        gpu(0, healthy=False, why_not="Xid79"),
    ),
    "a condition that says the contrary of health is left out": (
        device_entry(0, health=False, conditions=[{"type": "Healthy", "status": "True", "reason": "Fine"}]),
        gpu(0, healthy=False, why_not="unhealthy"),
    ),
    "conditions of another form": (
        device_entry(0, health=False, conditions=["Healthy", 7]),
        gpu(0, healthy=False, why_not="unhealthy"),
    ),
    "a NIC with its virtual functions, in the order of bus ids": (
        nic_entry(
            1,
            topology={"nodeID": 1, "pcieID": "pci0000:3a"},
            vfGroups=[
                {"labels": {"type": "slow"}, "vfs": [{"minor": 0, "busID": "0000:1f:00.9"}]},
                {"vfs": [{"busID": "0000:1f:00.2"}, {"minor": -1, "busID": "0000:1f:00.3"}]},
            ],
        ),
        nic(
            1,
            VirtualFunction(0, "0000:1f:00.2"),
            VirtualFunction(-1, "0000:1f:00.3"),
            VirtualFunction(0, "0000:1f:00.9", {"type": "slow"}),
            numa_node=1,
            pcie="pci0000:3a",
        ),
    ),
    "virtual functions of null": (nic_entry(0, vfGroups=[{"labels": None, "vfs": None}]), nic(0)),
    "an FPGA, a whole one where nothing is reported": (
        {"type": "fpga", "id": "0000:2f:00.0", "minor": 0, "health": True},
        Device("fpga", "0000:2f:00.0", 0, healthy=True, capacity={"fpga": 100}),
    ),
    "core and ratio are 100 where left out": (device_entry(0, resources={"koordinator.sh/gpu-memory": "80Gi"}), gpu(0)),
    "a NUMA node that is not known": (device_entry(0, topology={"nodeID": -1, "pcieID": ""}), gpu(0)),
    "NUMA node 0": (device_entry(0, topology={"nodeID": 0}), gpu(0, numa_node=0)),
    "a topology of null": (device_entry(0, topology=None, labels=None), gpu(0)),
    "a topology of other types": (device_entry(0, topology={"nodeID": True, "pcieID": [1]}), gpu(0)),
    "resources that we do not know": (
        device_entry(
            0,
            resources={
                "koordinator.sh/gpu-memory": "80Gi",
                "koordinator.sh/gpu": "some",
                "huawei.com/npu-core": "20",
                "koordinator.sh/rdma": "100",
            },
        ),
        gpu(0),
    ),
}


@pytest.mark.parametrize(("entry", "device"), ENTRIES.values(), ids=ENTRIES)
def test_an_entry_of_a_device_object_is_a_device(entry: dict[str, Any], device: Device) -> None:
    told = read_device_object(device_object(entry))
    assert (told.devices, told.problems) == ((device,), ())


SKIPPED: dict[str, tuple[Any, str]] = {
    "null": (None, "'NoneType' object has no attribute 'get'"),
    "no type": (device_entry(1, drop=["type"]), "no type"),
    "a type that is no text": (device_entry(1, type=[1]), "no type"),
    "no id": (device_entry(1, drop=["id"]), "no id; a GPU's id is its UUID"),
    "an empty id": (device_entry(1, id=""), "no id"),
    "an id that is no text": (device_entry(1, id=7), "no id"),
    "a negative minor": (device_entry(1, minor=-1), "minor -1 is not from 0 to 2^31-1"),
    "a minor that is true": (device_entry(1, minor=True), "minor True is not from 0 to 2^31-1"),
    "a minor that no annotation can state": (device_entry(1, minor=2**31), "minor 2147483648 is not from 0 to 2^31-1"),
    "no resources": (device_entry(1, drop=["resources"]), "no gpu-memory; a share of it cannot be counted"),
    "negative memory": (device_entry(1, "-1Gi"), "'-1Gi' is negative"),
    "memory in GB": (device_entry(1, "32GB"), "'32GB' is not a Kubernetes quantity"),
    "resources that are a list": (device_entry(1, resources=[1]), "'list' object has no attribute 'items'"),
    "more than a whole card": (
        device_entry(1, resources={"koordinator.sh/gpu-core": 200, "koordinator.sh/gpu-memory": 1}),
        "gpu-core above 100, which is a whole device",
    ),
    "a topology that is text": (device_entry(1, topology="x"), "'str' object has no attribute 'get'"),
    "labels that are a list": (device_entry(1, labels=["x"]), "'list' object has no attribute 'items'"),
    "a virtual function without a bus id": (nic_entry(1, vfGroups=[{"vfs": [{"minor": 1}]}]), "without busID"),
    "a virtual function with an empty bus id": (nic_entry(1, vfGroups=[{"vfs": [{"busID": ""}]}]), "without busID"),
    "a virtual function whose minor is text": (
        nic_entry(1, vfGroups=[{"vfs": [{"minor": "1", "busID": "a"}]}]),
        "a minor that is no number",
    ),
    "a virtual function that is text": (nic_entry(1, vfGroups=[{"vfs": ["a"]}]), "'str' object has no attribute"),
    "groups that are no list": (nic_entry(1, vfGroups={"vfs": []}), "vfGroups: not a list"),
    "an amount that stands twice and differs": (
        {**device_entry(1), "resources": {"kubernetes.io/gpu-memory": "8Gi", "koordinator.sh/gpu-memory": "16Gi"}},
        "gpu-memory is stated twice with different amounts",
    ),
    "an amount that stands twice, and the second is less": (
        {**device_entry(1), "resources": {"kubernetes.io/gpu-memory": "16Gi", "koordinator.sh/gpu-memory": "8Gi"}},
        f"gpu-memory is stated twice with different amounts, {16 * GIB} and {8 * GIB}",
    ),
    "groups that are text": (nic_entry(1, vfGroups=["a"]), "'str' object has no attribute 'get'"),
    "an id with a comma": (device_entry(1, id="GPU-1,GPU-2"), "has a comma, which separates ids in annotations"),
    "too many virtual functions": (
        nic_entry(1, vfGroups=[{"vfs": [{"busID": str(one)} for one in range(1025)]}]),
        "more than 1024 virtual functions",
    ),
    "the id of another": (device_entry(1, id="GPU-0"), "id GPU-0 or minor 1 occurs twice"),
    "the minor of another": (device_entry(0, id="GPU-1"), "id GPU-1 or minor 0 occurs twice"),
}


@pytest.mark.parametrize(("entry", "problem"), SKIPPED.values(), ids=SKIPPED)
def test_an_entry_that_makes_no_sense_is_left_out_and_named(entry: Any, problem: str) -> None:
    told = read_device_object(device_object(device_entry(0), entry, device_entry(2)))
    assert told.devices == (gpu(0), gpu(2))
    assert len(told.problems) == 1
    assert told.problems[0].startswith("spec.devices[1]: ")
    assert told.problems[0].endswith("; left out")
    assert problem in told.problems[0]


def test_a_type_that_nobody_configured_is_left_out_and_named() -> None:
    told = read_device_object(device_object(device_entry(0, type="xpu"), device_entry(0)))
    assert told.devices == (gpu(0),)
    assert told.problems == (
        "spec.devices[0]: type 'xpu' is none of gpu, rdma, fpga; settings may add types; left out",
    )


def test_a_slice_of_a_card_in_mig_mode_is_reported_for_people_and_no_problem() -> None:
    told = read_device_object(device_object(device_entry(0, type="mig"), device_entry(0)))
    assert (told.devices, told.problems) == ((gpu(0),), ())


def test_what_other_products_call_an_amount_is_no_capacity_and_no_holding_of_a_device() -> None:
    names = {"koordinator.sh/gpu-memory": "80Gi", "nvidia.com/gpumem": 5, "nvidia.com/gpu": 1}
    told = read_device_object(device_object(device_entry(0, resources=names)), BUILT_IN.known)
    assert (told.devices, told.problems) == ((gpu(0),), ())
    text = json.dumps({"gpu": [{"minor": 0, "id": "GPU-0", "resources": {**names, "koordinator.sh/gpu": "some"}}]})
    read = read_allocation({DEVICE_ALLOCATED: text}, BUILT_IN.known)
    assert (read.shares, read.problem) == ((Share("gpu", "GPU-0", 0, {GPU_MEMORY: 80 * GIB}),), "")


def test_a_type_whose_entries_cannot_be_read_hides_no_other() -> None:
    card, nic = {"minor": 0, "id": "GPU-a"}, {"minor": 1, "id": "x"}
    for wrong in ("GPU-a", [card, card]):
        read = read_allocation({DEVICE_ALLOCATED: json.dumps({"gpu": wrong, "rdma": [nic], "fpga": 7})})
        assert (read.shares, read.unread) == ((Share("rdma", "x", 1, {}),), ("gpu", "fpga"))
        assert read.problem.count(f"{DEVICE_ALLOCATED}: ") == 2


def test_devices_of_two_types_may_have_one_minor_and_never_one_id() -> None:
    told = read_device_object(device_object(nic_entry(0), device_entry(0), nic_entry(1, id="GPU-0")))
    assert told.devices == (gpu(0), nic(0))
    assert told.problems == ("spec.devices[2]: id GPU-0 or minor 1 occurs twice; left out",)


def test_a_virtual_function_that_two_nics_list_is_that_of_the_first() -> None:
    buses = ("0000:1f:00.3", "0000:1f:00.5")
    groups = [{"vfs": [{"busID": bus} for bus in (*buses, f"0000:{minor}f:00.4")]} for minor in (0, 1)]
    told = read_device_object(device_object(*(nic_entry(minor, vfGroups=[groups[minor]]) for minor in (0, 1))))
    assert [[one.bus_id for one in device.functions] for device in told.devices] == [
        ["0000:0f:00.4", *buses],
        ["0000:1f:00.4"],
    ]
    (problem,) = told.problems
    assert problem == "spec.devices[1]: virtual function 0000:1f:00.3 is another device's too; left out"


def test_a_cordoned_device_is_there_and_takes_nothing_new() -> None:
    told = read_device_object(
        device_object(device_entry(0), device_entry(1), annotations={CORDONED: " GPU-1, GPU-9,,"})
    )
    assert told.devices == (gpu(0), gpu(1, healthy=False, cordoned=True, why_not="cordoned by an administrator"))
    assert told.cordoned == {"GPU-1", "GPU-9"}
    assert told.problems == ()


def test_links_and_places_weigh_the_pairs_of_devices() -> None:
    entries = [
        device_entry(minor, topology={"socketID": minor // 2, "nodeID": minor // 2, "pcieID": f"pci{minor // 2}"})
        for minor in range(4)
    ]
    links = write_links({("GPU-0", "GPU-3"): 4})
    told = read_device_object(device_object(*entries, annotations={DEVICE_LINKS: links}))
    assert told.problems == ()
    near, far, lanes = (told.links.weight("GPU-0", f"GPU-{other}") for other in (1, 2, 3))
    assert lanes > near > far == 0
    plain = read_device_object(device_object(device_entry(0), device_entry(1)))
    assert plain.links is NO_LINKS


def test_links_that_cannot_be_read_are_named_and_nothing_is_linked_by_them() -> None:
    told = read_device_object(device_object(device_entry(0), device_entry(1), annotations={DEVICE_LINKS: "{"}))
    assert told.links is NO_LINKS
    assert len(told.problems) == 1
    assert told.problems[0].startswith(f"annotation {DEVICE_LINKS}: not JSON")


TABLE = '{"2":[{"minors":[0,1],"allocationScore":1}]}'
TWO_CARDS = PartitionTable((Partition((0, 1), 1),))
H100, HONOR = {"node.koordinator.sh/gpu-model": "H100"}, {"node.koordinator.sh/gpu-partition-policy": "Honor"}

# annotation of the Device object, its labels, the Node's labels; the table, whether it must be honoured

FPGA_ENTRY = {"type": "fpga", "id": "0000:2f:00.0", "health": True}
NAMED: dict[str, tuple[dict[str, str], list[str]]] = {
    "NVIDIA's discovery": ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}, ["H100-80GB-HBM3", "L4", ""]),
    "Koordinator's label comes first": (
        {"nvidia.com/gpu.product": "NVIDIA-T4", "node.koordinator.sh/gpu-model": "A10"},
        ["A10", "L4", ""],
    ),
    "no label": ({"nvidia.com/gpu.count": "2"}, ["", "L4", ""]),
    "an empty label": ({"nvidia.com/gpu.product": ""}, ["", "L4", ""]),
}


@pytest.mark.parametrize(("node_labels", "models"), NAMED.values(), ids=NAMED)
def test_a_card_without_a_model_has_that_of_the_nodes_label(node_labels: dict[str, str], models: list[str]) -> None:
    obj = device_object(
        device_entry(0), device_entry(1, labels={"node.koordinator.sh/gpu-model": "L4"}), nic_entry(0), FPGA_ENTRY
    )
    read = read_device_object(obj)
    assert [device.model for device in read.named(node_labels)] == ["", *models]
    assert [device.model for device in read.devices] == ["", "", "L4", ""]


VENDORS: dict[str, tuple[dict[str, str], dict[str, str], list[str]]] = {
    # labels of the Device object, labels of the Node; the vendors of two cards and a NIC
    "the Node's": ({}, {GPU_VENDOR: "Huawei"}, ["huawei", "amd", ""]),
    "the Device object's comes first": ({GPU_VENDOR: "nvidia"}, {GPU_VENDOR: "huawei"}, ["nvidia", "amd", ""]),
    "none": ({}, {"nvidia.com/gpu.product": "NVIDIA-T4"}, ["", "amd", ""]),
}


@pytest.mark.parametrize(("common", "node_labels", "vendors"), VENDORS.values(), ids=VENDORS)
def test_a_card_without_a_vendor_has_that_of_the_nodes_label(
    common: dict[str, str], node_labels: dict[str, str], vendors: list[str]
) -> None:
    obj = device_object(device_entry(0), device_entry(1, labels={GPU_VENDOR: "AMD"}), nic_entry(0), FPGA_ENTRY)
    obj["metadata"]["labels"] = common
    assert [device.vendor for device in read_device_object(obj).named(node_labels)] == ["", *vendors]


def test_a_card_has_of_the_nodes_labels_what_it_does_not_state_itself() -> None:
    stated: tuple[dict[str, str], ...] = ({GPU_VENDOR: "AMD"}, {GPU_MODEL: "L4"}, {GPU_MODEL: "L4", GPU_VENDOR: "AMD"})
    read = read_device_object(device_object(*(device_entry(at, labels=own) for at, own in enumerate(stated))))
    named = read.named({GPU_MODEL: "T4", GPU_VENDOR: "nvidia"})
    assert [(card.model, card.vendor) for card in named] == [("T4", "amd"), ("L4", "nvidia"), ("L4", "amd")]


WIRINGS: dict[str, tuple[str | None, dict[str, str], dict[str, str], PartitionTable | None, bool]] = {
    "nothing reported": (None, {}, {}, None, False),
    "a table": (TABLE, {}, {}, TWO_CARDS, False),
    "a table that must be honoured": (TABLE, HONOR, {}, TWO_CARDS, True),
    "where the object has a table, its label counts": (TABLE, {}, HONOR, TWO_CARDS, False),
    "where it has none, the Node's does": (None, {}, HONOR, None, True),
    "a board with a table of its own": (None, H100, {}, built_in("", "H100"), False),
    "NVIDIA's discovery states the model": (
        None,
        {},
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        built_in("", "H100"),
        False,
    ),
    "Koordinator's label comes before NVIDIA's": (
        None,
        {"node.koordinator.sh/gpu-model": "L4"},
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        None,
        False,
    ),
    "the Node states the model": (None, {}, H100, built_in("", "H100"), False),
    "a table of nothing is no built-in one": ("x", H100, {}, PartitionTable(), False),
}


@pytest.mark.parametrize(("table", "labels", "node_labels", "partitions", "honour"), WIRINGS.values(), ids=WIRINGS)
def test_partitions_are_the_objects_own_or_its_models(
    table: str | None,
    labels: dict[str, str],
    node_labels: dict[str, str],
    partitions: PartitionTable | None,
    honour: bool,  # noqa: FBT001 - a column of the table
) -> None:
    obj = device_object(device_entry(0), annotations={} if table is None else {GPU_PARTITIONS: table})
    obj["metadata"]["labels"] = labels
    wiring = read_device_object(obj).wiring(node_labels)
    assert (wiring.partitions, wiring.honour_partitions) == (partitions, honour)


def test_a_board_is_told_by_the_model_of_its_cards_and_of_no_other_device() -> None:
    other, card = ({**entry, "labels": H100} for entry in (FPGA_ENTRY, device_entry(0)))
    for entries, table in (((other, device_entry(0)), None), ((FPGA_ENTRY, card), built_in("", "H100"))):
        assert read_device_object(device_object(*entries)).wiring({}).partitions == table


def test_the_model_of_the_object_holds_for_devices_without_one() -> None:
    obj = device_object(device_entry(0), device_entry(1, labels={"node.koordinator.sh/gpu-model": "L4"}))
    obj["metadata"]["labels"] = {"node.koordinator.sh/gpu-model": "T4"}
    assert [device.model for device in read_device_object(obj).devices] == ["T4", "L4"]


NOTHING: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an empty object": ({}, []),
    "nulls": ({"metadata": None, "spec": None}, []),
    "no devices": ({"metadata": {"name": "n"}, "spec": {"devices": None}}, []),
    "a spec of text": ({"spec": "x"}, ["spec: not an object; left out"]),
    "devices that are an object": ({"spec": {"devices": {"0": {}}}}, ["spec.devices: not a list; no device is read"]),
    "labels of a list": ({"metadata": {"labels": [1]}}, ["metadata.labels: not an object; left out"]),
    "annotations of text": ({"metadata": {"annotations": "x"}}, ["metadata.annotations: not an object; left out"]),
}


@pytest.mark.parametrize(("obj", "problems"), NOTHING.values(), ids=NOTHING)
def test_an_object_without_devices_is_a_node_without_devices(obj: dict[str, Any], problems: list[str]) -> None:
    told = read_device_object(obj)
    assert (told.devices, told.kubelet_held, list(told.problems)) == ((), frozenset(), problems)


CHECKPOINTS: dict[str, tuple[dict[str, str], set[str], int]] = {
    "today's name": (
        {"node.koordinator.sh/devices-checkpoints": '[{"deviceIDs":["GPU-0","GPU-1"]}]'},
        {"GPU-0", "GPU-1"},
        0,
    ),
    "both names": (
        {
            "node.koordinator.sh/devices-checkpoints": '[{"deviceIDs":["GPU-0"]}]',
            "node.koordinator.sh/gpu-checkpoints": '[{"deviceIDs":["GPU-1"]},{"deviceIDs":["GPU-0"]}]',
        },
        {"GPU-0", "GPU-1"},
        0,
    ),
    "none": ({"node.koordinator.sh/devices-checkpoints": "[]"}, set(), 0),
    "null": ({"node.koordinator.sh/devices-checkpoints": "null"}, set(), 0),
    "null ids": ({"node.koordinator.sh/devices-checkpoints": '[{"deviceIDs":null},{}]'}, set(), 0),
    "empty": ({"node.koordinator.sh/devices-checkpoints": ""}, {"GPU-0"}, 1),
    "no JSON": ({"node.koordinator.sh/devices-checkpoints": "["}, {"GPU-0"}, 1),
    "nested without end": ({"node.koordinator.sh/devices-checkpoints": DEEP}, {"GPU-0"}, 1),
    "a number": ({"node.koordinator.sh/devices-checkpoints": "5"}, {"GPU-0"}, 1),
    "ids that are text": ({"node.koordinator.sh/devices-checkpoints": '[{"deviceIDs":"GPU-1"}]'}, {"GPU-0"}, 1),
    "what comes before the mistake counts as well": (
        {"node.koordinator.sh/devices-checkpoints": '[{"deviceIDs":["GPU-9"]},7]'},
        {"GPU-0", "GPU-9"},
        1,
    ),
    "one of two that can be read": (
        {
            "node.koordinator.sh/devices-checkpoints": "[",
            "node.koordinator.sh/gpu-checkpoints": '[{"deviceIDs":["GPU-1"]}]',
        },
        {"GPU-0", "GPU-1"},
        1,
    ),
}


@pytest.mark.parametrize(("annotations", "ids", "problems"), CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_what_the_kubelet_allocated_is_read(annotations: dict[str, str], ids: set[str], problems: int) -> None:
    told = read_device_object(device_object(device_entry(0), annotations=annotations))
    assert told.kubelet_held == ids
    assert len(told.problems) == problems
    assert told.devices == (gpu(0),)


ENTRY_KEYS = [
    *("type", "id", "minor", "health", "resources", "topology", "labels", "nodeID", "vfGroups", "vfs", "busID"),
    *("conditions", "koordinator.sh/gpu-memory"),
]
OBJECT_KEYS = [
    *("metadata", "spec", "devices", "annotations", "labels", "name", "node.koordinator.sh/gpu-checkpoints"),
    *(CORDONED, DEVICE_LINKS, GPU_PARTITIONS),
]
ENTRY_LEAVES: list[Any] = ["gpu", "rdma", [{"vfs": [{"busID": "a"}]}], "GPU-0", 0, 1, "8Gi", True, "[]", 10**400]
ENTRY_LEAVES += [{"koordinator.sh/gpu-memory": "8Gi"}]


@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
@given(
    st.dictionaries(
        st.sampled_from(OBJECT_KEYS), json_values() | json_near([*OBJECT_KEYS, *ENTRY_KEYS], ENTRY_LEAVES), max_size=3
    )
)
def test_any_object_is_read_as_a_device_object(obj: dict[str, Any]) -> None:
    told = read_device_object(obj)
    assert isinstance(told.node, str)
    assert all(isinstance(problem, str) for problem in told.problems)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(ENTRY_KEYS), st.sampled_from(ENTRY_LEAVES) | json_values(), max_size=6)
        | st.builds(
            lambda entry, key, value: {**entry, key: value},
            st.builds(device_entry, st.integers(0, 3)),
            st.sampled_from(ENTRY_KEYS),
            st.sampled_from(ENTRY_LEAVES) | json_values(),
        ),
        max_size=4,
    )
)
def test_every_device_that_is_read_can_be_allocated_on(entries: list[Any]) -> None:
    told = read_device_object(device_object(*entries))
    on = node(*told.devices)
    on.check_invariants()
    for device in told.devices:
        assert tuple(device.capacity) == BUILT_IN.by_name[device.type].tails
        assert device.capacity.get(GPU_MEMORY, 1) > 0
        assert all(0 <= amount <= 100 for tail, amount in device.capacity.items() if tail != GPU_MEMORY)
        assert [one.bus_id for one in device.functions] == sorted({one.bus_id for one in device.functions})
        assert isinstance(device.pcie, str | None)
        assert isinstance(device.numa_node, int | None)
        assert all(isinstance(text, str) for pair in device.labels.items() for text in pair)
        assert isinstance(hash((device.id, device.minor, device.model)), int)
    assert len(told.devices) + len(told.problems) <= len(entries) + 1


# NodeAllocation

TWO = [
    holding("uid-b", part(gpu(0), 50, "a", "b"), part(gpu(1), 50, "b"), since=1_700_000_000),
    holding("uid-a", share(gpu(2), "main", memory=1, ratio=1), since=1_800_000_000),
]


def test_a_node_allocation_is_written_sorted_by_uid() -> None:
    assert write_spec(TWO[:1]) == {
        "allocations": [
            {
                "uid": "uid-b",
                "namespace": "default",
                "name": "pod-uid-b",
                "since": "2023-11-14T22:13:20Z",
                "devices": [
                    {
                        "type": "gpu",
                        "id": f"GPU-{minor}",
                        "minor": minor,
                        "amounts": {"gpu-core": 50, "gpu-memory": 40 * GIB, "gpu-memory-ratio": 50},
                        "containers": containers,
                    }
                    for minor, containers in ((0, ["a", "b"]), (1, ["b"]))
                ],
            }
        ]
    }
    assert [entry["uid"] for entry in write_spec(TWO)["allocations"]] == ["uid-a", "uid-b"]
    assert write_spec([]) == {"allocations": []}


def test_a_record_of_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    """A replica of the version before reads it beside newer ones: docs/install/upgrade.md."""
    cpus: dict[str, Any] = {
        "qosClass": "LSR",
        "cpuset": "0-1",
        "numaNodes": [{"node": 0, "socket": 0, "milliCPU": 2000, "memory": 1}],
    }
    known = record(cpus=cpus)
    newer = {**known, "new": {"a": [1]}}
    newer["devices"] = [{**device, "new": 1} for device in known["devices"]]
    newer["cpus"] = {**cpus, "new": "x", "numaNodes": [{**cpus["numaNodes"][0], "new": None}]}
    spec = {"allocations": [newer], "new": []}
    of_node = {"apiVersion": API_VERSION, "kind": "NodeAllocation", "metadata": {"name": "n"}}
    assert read_spec({**of_node, "spec": spec, "status": {}}) == read_spec(
        {**of_node, "spec": {"allocations": [known]}}
    )
    assert API_VERSION == "koordgate.io/v1alpha1"


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "0999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"])
def test_a_time_of_any_year_is_written_as_it_is_read(time: str) -> None:
    entry = {"uid": "u", "namespace": "d", "name": "p", "since": time, "devices": [], "heldUntil": time}
    found = read_spec({"metadata": {"name": "node-1"}, "spec": {"allocations": [entry]}})
    assert write_spec(found.values()) == {"allocations": [entry]}


def test_what_is_held_without_limit_is_held_to_the_end_of_the_year_9999() -> None:
    [entry] = write_spec([replace(TWO[0], until=WITHOUT_LIMIT)])["allocations"]
    assert entry["heldUntil"] == "9999-12-31T23:59:59Z"


@pytest.mark.parametrize(
    "obj",
    [{}, {"spec": None}, {"spec": {}}, {"spec": {"allocations": None}}, {"spec": {"allocations": []}}],
    ids=["empty", "null spec", "empty spec", "null allocations", "no allocations"],
)
def test_a_node_allocation_without_allocations_holds_nothing(obj: dict[str, Any]) -> None:
    assert read_spec(obj) == {}


def record(**changed: Any) -> dict[str, Any]:
    [entry] = write_spec([holding("uid-1", part(gpu(0), 50, "a"))])["allocations"]
    return {**entry, **changed}


def record_device(**changed: Any) -> dict[str, Any]:
    return record(devices=[{**record()["devices"][0], **changed}])


RECORDS: dict[str, Any] = {
    "null": None,
    "an empty object": {},
    "no time": {key: value for key, value in record().items() if key != "since"},
    "no devices": {key: value for key, value in record().items() if key != "devices"},
    "a time that is a number": record(since=1_700_000_000),
    "a time in another form": record(since="2023-11-14 22:13:20"),
    "an end that is a number": record(heldUntil=1_700_000_000),
    "an end in another form": record(heldUntil="soon"),
    "devices that are null": record(devices=None),
    "devices that are text": record(devices="GPU-0"),
    "a device without amounts": record_device(amounts=None),
    "a minor that is text": record_device(minor="first"),
    "an amount that is a fraction": record_device(amounts={"gpu-core": 50.9}),
    "an amount that is true": record_device(amounts={"gpu-core": True}),
    "a negative amount": record_device(amounts={"gpu-core": -50}),
    "containers that are a number": record_device(containers=5),
    "functions that are text": record_device(functions="0000:1f:00.3"),
    "a function without a bus id": record_device(functions=[{"minor": 1}]),
    "a function whose minor is text": record_device(functions=[{"minor": "1", "busID": "a"}]),
    "a function whose minor is infinite": record_device(functions=[{"minor": float("inf"), "busID": "a"}]),
    "a function whose minor is true": record_device(functions=[{"minor": True, "busID": "a"}]),
    "a function whose minor is -2": record_device(functions=[{"minor": -2, "busID": "a"}]),
    "CPUs that are text": record(cpus="0-3"),
    "CPUs without a class": record(cpus={"cpuset": "0-3"}),
    "CPUs that are no list of CPUs": record(cpus={"qosClass": "LSR", "cpuset": "0-"}),
    "CPUs beyond any machine": record(cpus={"qosClass": "LSR", "cpuset": "0-99999"}),
    "CPUs of an unknown policy": record(cpus={"qosClass": "LSR", "bindPolicy": "Best"}),
    "CPUs of an unknown exclusive policy": record(cpus={"qosClass": "LSR", "exclusivePolicy": "All"}),
    "a NUMA node without a socket": record(
        cpus={"qosClass": "LS", "numaNodes": [{"node": 0, "milliCPU": 1, "memory": 0}]}
    ),
    "a negative amount of CPU": record(
        cpus={"qosClass": "LS", "numaNodes": [{"node": 0, "socket": 0, "milliCPU": -1, "memory": 0}]}
    ),
}


@pytest.mark.parametrize("entry", RECORDS.values(), ids=RECORDS)
def test_a_record_that_is_not_of_the_format_stops_the_node(entry: Any) -> None:
    obj = {"metadata": {"name": "node-1"}, "spec": {"allocations": [record(uid="uid-0"), entry]}}
    with pytest.raises(RecordError, match=r"^NodeAllocation node-1: .*an administrator must correct or delete it$"):
        read_spec(obj)


def test_the_containers_of_a_holding_are_listed_once_if_they_are_more_than_four() -> None:
    few, many = (tuple(f"c{number}" for number in range(count)) for count in (4, 5))
    cards = [gpu(0), gpu(1)]
    [entry] = write_spec([holding("uid-1", part(cards[0], 50, *few), part(cards[1], 50, "c0"))])["allocations"]
    assert "containers" not in entry
    assert [device["containers"] for device in entry["devices"]] == [["c0", "c1", "c2", "c3"], ["c0"]]
    owner = holding("uid-1", part(cards[0], 50, "c4"), part(cards[1], 50, *many))
    [entry] = write_spec([owner])["allocations"]
    assert entry["containers"] == ["c4", "c0", "c1", "c2", "c3"]
    assert [device["containers"] for device in entry["devices"]] == [[0], [1, 2, 3, 4, 0]]
    assert read_spec({"spec": {"allocations": [entry]}}) == {"uid-1": owner}


def test_a_record_that_names_many_containers_at_each_share_is_read() -> None:
    """The form of earlier versions."""
    many = [f"c{number}" for number in range(40)]
    [read] = read_spec({"spec": {"allocations": [record_device(containers=many)]}}).values()
    assert read.shares[0].containers == tuple(many)


@pytest.mark.parametrize("containers", [[1], [-1], [True], [None], [0.0]])
def test_a_container_that_is_not_in_the_list_stops_the_node(containers: list[Any]) -> None:
    entry = {**record_device(containers=containers), "containers": ["only"]}
    with pytest.raises(RecordError, match="node-1: wrong format"):
        read_spec({"metadata": {"name": "node-1"}, "spec": {"allocations": [entry]}})


def test_a_pod_that_stands_twice_stops_the_node() -> None:
    with pytest.raises(RecordError, match=r"^NodeAllocation node-1: a Pod occurs in it twice"):
        read_spec({"metadata": {"name": "node-1"}, "spec": {"allocations": [record(), record()]}})


def test_a_node_allocation_states_cpus_functions_exclusivity_and_gang() -> None:
    owner = Holding(
        "uid-1",
        "default",
        "pod",
        1_700_000_000,
        (Share("rdma", "nic", 0, {"rdma": 1}, ("a",), (Function(-1, "vf"),), alone=True, unshared=True),),
        CpuShare("LSR", 0b1011, BindPolicy.FULL_PCPUS, ExclusivePolicy.PCPU_LEVEL, (NumaShare(1, 3000, GIB, 1),)),
        "default/train",
        1_700_000_001,
        "f00d",
    )
    (entry,) = write_spec([owner])["allocations"]
    assert entry == {
        "uid": "uid-1",
        "namespace": "default",
        "name": "pod",
        "since": "2023-11-14T22:13:20Z",
        "devices": [
            {
                "type": "rdma",
                "id": "nic",
                "minor": 0,
                "amounts": {"rdma": 1},
                "containers": ["a"],
                "functions": [{"minor": -1, "busID": "vf"}],
                "alone": True,
                "unshared": True,
            }
        ],
        "cpus": {
            "qosClass": "LSR",
            "cpuset": "0-1,3",
            "bindPolicy": "FullPCPUs",
            "exclusivePolicy": "PCPULevel",
            "numaNodes": [{"node": 1, "socket": 1, "milliCPU": 3000, "memory": GIB}],
        },
        "gang": "default/train",
        "heldUntil": "2023-11-14T22:13:21Z",
        "ending": "f00d",
    }
    assert read_spec({"spec": {"allocations": [entry]}}) == {"uid-1": owner}


@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(st.lists(holdings(), max_size=4, unique_by=lambda owner: owner.uid))
def test_whatever_can_be_held_reads_back_from_a_node_allocation(owners: list[Holding]) -> None:
    spec = json.loads(json.dumps(write_spec(owners)))
    assert read_spec({"spec": spec}) == {owner.uid: owner for owner in owners}


@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
@given(holdings(), st.sampled_from(DOMAINS))
def test_whatever_can_be_held_reads_back_from_its_annotations(owner: Holding, domain: str) -> None:
    """Everything except what annotations do not state: the order of containers, exclusivity, and CPU policies."""
    annotations = write_allocation(owner, domain)
    told = sorted(owner.shares, key=lambda one: (one.type, one.minor, one.id))
    assert list(read_allocation(annotations).shares) == [
        one._replace(containers=tuple(sorted(one.containers)), alone=False, unshared=False) for one in told
    ]
    read = read_cpu_share(annotations, None)
    if owner.cpus is None:
        assert read is None
        return
    assert read is not None
    assert read.cpus == owner.cpus.cpus
    assert [one[:3] for one in read.numa] == [one[:3] for one in owner.cpus.numa]
    if not read.cpus:  # pools state sockets
        assert read.numa == owner.cpus.numa


def test_the_annotation_of_cpus_is_read_with_what_was_asked() -> None:
    ask = CpuAsk(QosClass.LSE, 2, 2000, 0, preferred=BindPolicy.SPREAD_BY_PCPUS, exclusive=ExclusivePolicy.PCPU_LEVEL)
    annotations = {RESOURCE_STATUS: '{"cpuset":"0,2"}'}
    assert read_cpu_share(annotations, ask) == CpuShare(
        QosClass.LSE, 0b101, BindPolicy.SPREAD_BY_PCPUS, ExclusivePolicy.PCPU_LEVEL
    )
    assert read_cpu_share(annotations, None) == CpuShare(QosClass.LSR, 0b101)
    assert read_cpu_share({}, ask) is None
    numa = {
        RESOURCE_STATUS: '{"numaNodeResources":[{"node":3},{"node":2,"resources":{"a":"1","memory":"1","cpu":"1"}}]}'
    }
    stands = (NumaShare(2, 1000, 1, 0, (("a", 1),)), NumaShare(3, 0, 0, 0))
    assert read_cpu_share(numa, None) == CpuShare(QosClass.LS, numa=stands)
    pools = {RESOURCE_STATUS: '{"cpuSharedPools":[{"socket":1,"node":3}]}'}
    assert read_cpu_share(pools, None) == CpuShare(QosClass.LS, numa=(NumaShare(3, 0, 0, 1),))
    with pytest.raises(AnnotationError):
        read_cpu_share({RESOURCE_STATUS: "["}, ask)


def test_a_bound_pod_that_asks_for_cpus_of_its_own_has_some() -> None:
    asks = {count: CpuAsk(QosClass.LSR, count, 1000, 0) for count in (0, 2)}
    pools = {RESOURCE_STATUS: '{"cpuSharedPools":[{"socket":1,"node":3}]}'}
    with pytest.raises(AnnotationError, match="names no CPU, although the Pod asks for CPUs of its own"):
        read_cpu_share(pools, asks[2], bound=True)
    others = (read_cpu_share(pools, asks[2]), *(read_cpu_share(pools, ask, bound=True) for ask in (asks[0], None)))
    assert [(one.cpus, one.numa) for one in others if one is not None] == [(0, (NumaShare(3, 0, 0, 1),))] * 3
    assert read_cpu_share({RESOURCE_STATUS: '{"cpuset":"0-1"}'}, asks[2], bound=True) == CpuShare(QosClass.LSR, 0b11)


RECORD_KEYS = [
    *("cpus", "gang", "functions", "qosClass", "cpuset", "numaNodes", "alone", "unshared", "allocations", "uid"),
    *("namespace", "name", "since", "heldUntil", "ending", "devices", "type", "id", "minor", "amounts"),
]
RECORD_LEAVES = ["uid-1", "2023-11-14T22:13:20Z", 0, 50, [], {"gpu-core": 50}, record(), record()["devices"]]


@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
@given(
    st.fixed_dictionaries(
        {"spec": json_values() | json_near(RECORD_KEYS, RECORD_LEAVES)}, optional={"metadata": json_values()}
    )
    | st.dictionaries(st.sampled_from(RECORD_KEYS), json_values(), max_size=6).map(
        lambda changed: {"spec": {"allocations": [record(**changed)]}}
    )
    | st.dictionaries(st.sampled_from(RECORD_KEYS), json_values(), max_size=6).map(
        lambda changed: {"spec": {"allocations": [record_device(**changed)]}}
    )
)
def test_any_object_is_a_node_allocation_or_refused(obj: dict[str, Any]) -> None:
    try:
        told = read_spec(obj)
    except RecordError:
        return
    assert all(uid == owner.uid for uid, owner in told.items())
    assert all(a >= 0 for owner in told.values() for one in owner.shares for a in one.amounts.values())
