"""Who holds what, counted from objects: every type of device, software classes, CPUs and their pools."""

import json
from typing import Any

import pytest
from builders import device_entry, device_object
from simulator.clusters import ALLOCATED, QOS, STATUS, asking, held, nic, node, topology

from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.wire.nodetopology import CpuManagerPolicy, KubeletCpus, NodeReservation, PodCpuAlloc, SystemCpus
from console import devicewords
from console.simulator import apiserver, report
from console.simulator.account import Account, ClusterObjects
from koordgate.settings import DevicePool
from webhook.view.nodereport import CpuReport, DeviceReport

Raw = dict[str, Any]
TYPES = BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)])
LISTS = {"Node": "nodes", "Device": "devices", "NodeResourceTopology": "topologies", "Pod": "pods"}


def account(*objects: Raw, pools: tuple[tuple[str, DevicePool], ...] = ()) -> Account:
    listed: dict[str, list[Raw]] = {name: [] for name in LISTS.values()}
    for obj in objects:
        listed[LISTS[obj["kind"]]].append(apiserver.with_defaults(obj))
    return Account(ClusterObjects(**listed), TYPES, pools)


def holds(name: str, *, on: str = "node-1", qos: str = "LSR", status: Raw | None = None, **shares: list[Raw]) -> Raw:
    """A Pod that runs on a node and states that it holds this."""
    annotations = {ALLOCATED: json.dumps(shares)} if shares else {}
    if status is not None:
        annotations[STATUS] = json.dumps(status)
    cpus = parse((status or {}).get("cpuset", "")).bit_count()
    made = asking(name, annotations=annotations, labels={QOS: qos}, nodeName=on)
    made["spec"]["containers"][0]["resources"] = {key: {"cpu": str(cpus or 1)} for key in ("requests", "limits")}
    return made


def rows(counted: Account) -> list[tuple[str, str, str]]:
    """The table of CPUs: NUMA node, CPUs, the first word of who has them."""
    return [(row.numa, row.cpus, row.who.split()[0]) for one in cpus_of(counted) for row in report.cpu_rows(one)]


def cpus_of(counted: Account) -> list[CpuReport]:
    return [one.cpus for one in counted.reports() if one.cpus is not None]


def devices_of(counted: Account) -> list[DeviceReport]:
    return [device for one in counted.reports() for device in one.devices]


NIC = {"minor": 0, "id": "0000:10:00.0", "resources": {"koordinator.sh/rdma": "25"}}
FUNCTION = {**NIC, "extension": {"vfs": [{"busID": "0000:10:00.1"}]}}

# Objects -> for each device: type and minor, its used part, its holders, and why it takes no new Pods.
DEVICES: dict[str, tuple[list[Raw], list[tuple[str, str, list[str], str]]]] = {
    "a card of which a part is held": (
        [device_object(device_entry(0, id="GPU-node-1-0")), held("a", "node-1", (0, 30))],
        [("gpu 0", "core 30 %, 24 of 80 GiB", ["default/a"], "")],
    ),
    "a NIC with its functions": (
        [device_object(nic(0)), holds("a", rdma=[FUNCTION])],
        [("rdma 0", "25 %, 1 of 2 functions", ["default/a"], "")],
    ),
    "queues by annotation": (
        [
            node(annotations={"koordgate.io/classes": '{"queue":{"slow":9,"fast":4}}'}),
            holds("a", queue=[{"minor": 0, "id": "fast", "resources": {"example.com/queue": "3"}}]),
        ],
        [("queue 0", "3 of 4", ["default/a"], ""), ("queue 1", "0 of 9", [], "")],
    ),
    "types in the order of their table": (
        [device_object(nic(0, functions=0), device_entry(1), device_entry(0))],
        [
            ("gpu 0", "core 0 %, 0 of 80 GiB", [], ""),
            ("gpu 1", "core 0 %, 0 of 80 GiB", [], ""),
            ("rdma 0", "0 %", [], ""),
        ],
    ),
    "ill, with its reason": (
        [
            device_object(
                device_entry(
                    0,
                    health=False,
                    conditions=[{"type": "Healthy", "status": "False", "reason": "XID48", "message": "ECC"}],
                )
            )
        ],
        [("gpu 0", "core 0 %, 0 of 80 GiB", [], "XID48: ECC")],
    ),
    "cordoned": (
        [device_object(device_entry(0), annotations={"koordgate.io/cordoned-devices": "GPU-0"})],
        [("gpu 0", "core 0 %, 0 of 80 GiB", [], "cordoned by an administrator")],
    ),
    "the kubelet's": (
        [
            device_object(
                device_entry(0),
                annotations={"node.koordinator.sh/devices-checkpoints": json.dumps([{"deviceIDs": ["GPU-0"]}])},
            )
        ],
        [("gpu 0", "core 0 %, 0 of 80 GiB", [], "allocated by the kubelet's device plugin")],
    ),
    "one that only an annotation names": (
        [node(), holds("a", rdma=[NIC])],
        [("rdma 0", "25 %", ["default/a"], "the node has no such device")],
    ),
    "of a Pod that finished": (
        [device_object(device_entry(0, id="GPU-node-1-0")), held("a", "node-1", (0, 30), phase="Failed")],
        [("gpu 0", "core 0 %, 0 of 80 GiB", [], "")],
    ),
}


@pytest.mark.parametrize("name", DEVICES)
def test_devices_of_every_type_are_counted(name: str) -> None:
    objects, expected = DEVICES[name]
    found = [
        (f"{one.kind.name} {one.minor}", devicewords.used_of(one), [pod.holder for pod, _ in one.held], one.why)
        for one in devices_of(account(*objects))
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("name", "used"), [("a card of which a part is held", 1), ("the kubelet's", 1), ("cordoned", 0)]
)
def test_a_device_that_anybody_holds_is_in_use(name: str, used: int) -> None:
    assert report.in_use(account(*DEVICES[name][0])) == f"{used} of 1 GPU in use"


def test_a_class_that_the_settings_give_to_nodes_is_counted() -> None:
    pools = (("queue", DevicePool({"zone": "a"}, {"shared": 5})),)
    counted = account(node("node-1", labels={"zone": "a"}), node("node-2", labels={"zone": "b"}), pools=pools)
    assert [(one.node, one.id) for one in devices_of(counted)] == [("node-1", "shared")]
    assert report.in_use(counted) == "0 of 1 queue device in use"


# The node's topology (two NUMA nodes of four cores; CPU k and k+8 are one core) and its Pods -> the table of CPUs.
CPUS: dict[str, tuple[Raw, list[Raw], list[tuple[str, str, str]]]] = {
    "nobody": (
        topology(),
        [],
        [
            ("0", "0-3,8-11", "shared"),
            ("0", "0-3,8-11", "best-effort"),
            ("1", "4-7,12-15", "shared"),
            ("1", "4-7,12-15", "best-effort"),
        ],
    ),
    "best-effort Pods share with LSR, and not with LSE": (
        topology(nodes=1),
        [holds("a", status={"cpuset": "0,4"}), holds("b", qos="LSE", status={"cpuset": "1,5"})],
        [("0", "0,4", "a"), ("0", "1,5", "b"), ("0", "2-3,6-7", "shared"), ("0", "0,2-4,6-7", "best-effort")],
    ),
    "a Pod over two NUMA nodes": (
        topology(),
        [holds("a", status={"cpuset": "3-4"})],
        [
            ("0", "3", "a"),
            ("0", "0-2,8-11", "shared"),
            ("0", "0-3,8-11", "best-effort"),
            ("1", "4", "a"),
            ("1", "5-7,12-15", "shared"),
            ("1", "4-7,12-15", "best-effort"),
        ],
    ),
    "an LS Pod in a pool": (
        topology(nodes=1),
        [holds("a", qos="LS", status={"cpuSharedPools": [{"socket": 0, "node": 0}]})],
        [("0", "0-7", "shared"), ("0", "", "in"), ("0", "0-7", "best-effort")],
    ),
    "what is reserved": (
        topology(nodes=1, reservation=NodeReservation(parse("0")), system=SystemCpus(parse("4"))),
        [],
        [("0", "0,4", "reserved:"), ("0", "1-3,5-7", "shared"), ("0", "1-3,5-7", "best-effort")],
    ),
    "what the kubelet's static policy gave": (
        topology(
            nodes=1,
            kubelet=KubeletCpus(CpuManagerPolicy.STATIC),
            pod_cpu_allocs=(PodCpuAlloc("default", "k", "uid-k", parse("2-3"), managed_by_kubelet=True),),
        ),
        [],
        [("0", "2-3", "k"), ("0", "0-1,4-7", "shared"), ("0", "0-1,4-7", "best-effort")],
    ),
    "what the kubelet gave before its policy was none": (
        topology(
            nodes=1,
            kubelet=KubeletCpus(CpuManagerPolicy.NONE),
            pod_cpu_allocs=(PodCpuAlloc("default", "k", "uid-k", parse("2-3"), managed_by_kubelet=True),),
        ),
        [],
        [("0", "0-7", "shared"), ("0", "0-7", "best-effort")],
    ),
    "what the kubelet gave where its policy is not reported": (
        topology(
            nodes=1,
            pod_cpu_allocs=(PodCpuAlloc("default", "k", "uid-k", parse("2-3"), managed_by_kubelet=True),),
        ),
        [],
        [("0", "2-3", "k"), ("0", "0-1,4-7", "shared"), ("0", "0-1,4-7", "best-effort")],
    ),
    "all of it": (
        topology(nodes=1, cores=1),
        [holds("a", qos="LSE", status={"cpuset": "0-1"})],
        [("0", "0-1", "a"), ("0", "none", "shared"), ("0", "none", "best-effort")],
    ),
    "CPUs that cannot be distinguished": (
        {**topology(), "metadata": {"name": "node-1"}},
        [holds("a", status={"cpuset": "0-1"})],
        [("-", "0-1", "a:")],
    ),
}


@pytest.mark.parametrize("name", CPUS)
def test_cpus_are_reported_by_numa_node_with_both_pools(name: str) -> None:
    obj, pods, expected = CPUS[name]
    assert rows(account(node(), obj, *pods)) == expected


def test_a_node_that_reports_no_cpus_has_no_table_of_them() -> None:
    assert cpus_of(account(node(), device_object(device_entry(0)))) == []


KUBELET = topology(pod_cpu_allocs=(PodCpuAlloc("default", "k", "uid-k", parse("0-1"), managed_by_kubelet=True),))
QUEUE = {"minor": 0, "id": "fast", "resources": {"example.com/queue": "3"}}

# Impossible objects -> the message about them.
OVERGIVEN: dict[str, tuple[list[Raw], list[str]]] = {
    "nothing": ([topology(), holds("a", status={"cpuset": "0"}), holds("b", status={"cpuset": "1"})], []),
    "CPUs twice": (
        [topology(), holds("a", status={"cpuset": "0-2"}), holds("b", status={"cpuset": "2-3"})],
        ["CPUs 2 given twice"],
    ),
    "CPUs twice where no topology has them": (
        [holds("a", status={"cpuset": "0-2"}), holds("b", status={"cpuset": "2-3"})],
        ["CPUs 2 given twice"],
    ),
    "a function twice": (
        [device_object(nic(0)), holds("a", rdma=[FUNCTION]), holds("b", rdma=[FUNCTION])],
        ["virtual function 0000:10:00.1 given twice"],
    ),
    "places in a queue": (
        [
            node(annotations={"koordgate.io/classes": '{"queue":{"fast":5}}'}),
            holds("a", queue=[QUEUE]),
            holds("b", queue=[QUEUE]),
        ],
        ["6 queue of fast given, it has 5"],
    ),
    "CPUs that are not there": (
        [topology(), holds("a", status={"cpuset": "14-17"})],
        ["node-1: Pod default/a holds CPUs 16-17, which the node does not have"],
    ),
    "CPUs that the kubelet gave away": (
        [KUBELET, holds("a", status={"cpuset": "1-2"})],
        ["node-1: CPUs 1 are held by Pod default/a, and the kubelet gave them to default/k"],
    ),
    "CPUs that the kubelet gave to the same Pod": (
        [
            topology(pod_cpu_allocs=(PodCpuAlloc("default", "a", "uid-a", parse("1-3"), managed_by_kubelet=True),)),
            holds("a", status={"cpuset": "1-2"}),
        ],
        [],
    ),
    "on two nodes": (
        [
            holds(name, on=on, status={"cpuset": "0"})
            for name, on in (("a", "n1"), ("b", "n1"), ("c", "n2"), ("d", "n2"))
        ],
        ["n1: CPUs 0 given twice", "n2: CPUs 0 given twice"],
    ),
}


@pytest.mark.parametrize("name", OVERGIVEN)
def test_what_is_given_more_than_once_over_is_found(name: str) -> None:
    objects, expected = OVERGIVEN[name]
    told = account(*objects).overgiven()
    assert len(told) == len(expected)
    for sentence, part in zip(told, expected, strict=True):
        assert part in sentence


def test_what_a_pod_holds_is_said_in_a_few_words() -> None:
    counted = account(node(), device_object(nic(0), device_entry(0, id="GPU-node-1-0")), topology())
    pod = holds(
        "a",
        status={"cpuset": "0-1", "numaNodeResources": [{"node": 0, "resources": {"cpu": "2", "memory": "4Gi"}}]},
        gpu=[{"minor": 0, "id": "GPU-node-1-0", "resources": {"koordinator.sh/gpu-core": "10"}}],
        rdma=[FUNCTION],
    )
    holding = counted.holding(apiserver.with_defaults(pod))
    assert holding is not None
    assert devicewords.held(holding, TYPES) == [
        "gpu 0 GPU-node-1-0: core 10 %, memory 80 GiB (100 %)",
        "rdma 0 0000:10:00.0: rdma 25 %, virtual function 0000:10:00.1",
        "CPUs 0-1 (LSR), NUMA node 0: 2 CPU, 4 GiB",
    ]


def test_only_a_bound_pod_that_has_not_ended_holds_what_it_states() -> None:
    pods = {
        "runs": held("runs", "node-1", (0, 30)),
        "ended": held("ended", "node-1", (0, 30), phase="Succeeded"),
        "waits": held("waits", "", (0, 30)),
        "elsewhere": held("elsewhere", "node-2", (0, 30)),
        "states nothing": asking("states-nothing", nodeName="node-1"),
    }
    del pods["waits"]["spec"]["nodeName"]
    pods = {name: apiserver.with_defaults(pod) for name, pod in pods.items()}
    counted = account(node(), device_object(device_entry(0, id="GPU-node-1-0")))
    found = {name: counted.holding(pod) for name, pod in pods.items()}
    assert {name for name, one in found.items() if one is not None} == {"runs", "elsewhere"}
    for one in found.values():
        assert one is None or (one.since, [share.id for share in one.shares]) == (0, [one.shares[0].id])


def test_devices_that_only_annotations_name_come_last_by_minor_and_id() -> None:
    def stating(name: str, *entries: tuple[int, str]) -> Raw:
        resources = {"resources": {"koordinator.sh/rdma": "10"}}
        return holds(name, rdma=[{"minor": minor, "id": identity, **resources} for minor, identity in entries])

    counted = account(
        node(),
        device_object(nic(0), device_entry(0, id="GPU-node-1-0")),
        stating("a", (7, "y"), (5, "z"), (0, "0000:10:00.0")),
        stating("b", (5, "x"), (9, "y")),
        held("c", "node-1", (3, 10), (0, 10)),
    )
    found = counted.report("node-1").devices
    assert [(one.kind.name, one.minor, one.id, [pod.holder for pod, _ in one.held]) for one in found] == [
        ("gpu", 0, "GPU-node-1-0", ["default/c"]),
        ("rdma", 0, "0000:10:00.0", ["default/a"]),
        ("gpu", 3, "GPU-node-1-3", ["default/c"]),
        ("rdma", 5, "x", ["default/b"]),
        ("rdma", 5, "z", ["default/a"]),
        ("rdma", 7, "y", ["default/a", "default/b"]),
    ]
    assert counted.assumed("node-1") == counted.assumed("node-2") == ""
    assert {one.since for one in counted.view.snapshot("node-1").holdings.values()} == {0}


def test_cpus_of_a_node_whose_topology_is_not_known_are_those_that_pods_hold() -> None:
    (one,) = cpus_of(account(node(), holds("a", status={"cpuset": "0-1"})))
    assert (one.topology, one.reserved, [pod.holder for pod, _ in one.held], one.given) == (
        None,
        0,
        ["default/a"],
        0b11,
    )
    assert (one.kubelet, one.pools) == ((), None)
