"""The objects that report a node: read back by their readers, and by hand."""

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_near

from allocator.cpu.pools import CpuPools
from allocator.vocabulary.cpunode import PoolCpus
from allocator.vocabulary.cputopology import Cpu, CpuTopology, format_cpuset, parse
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import CORDONED, DEVICES_CHECKPOINTS, DOMAINS
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodetopology import CpuBasicInfo, NumaZone, PodCpuAlloc, read_node_topology
from allocator.wire.podallocated import NumaResources, ResourceStatus
from reporter.cgroup import plan
from reporter.cgroup.layout import KubernetesQos
from reporter.cgroup.plan import SharedCpus
from reporter.gpu.entries import DeviceReport
from reporter.inventory import CpuInventory, PciDevice
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.kubelet.devicecheckpoint import PodDevices
from reporter.pods import NodeIdentity, NodePod
from reporter.publish import device, nodestatus, nodetopology
from reporter.publish.keep import holds

NODE = NodeIdentity("n1", "node-uid")
GIB = 2**30
MIB = 2**20
TYPES = BUILT_IN.with_types(
    [own_type("dsp", "example.com/dsp", Unit.DEVICES), own_type("lane", "example.com/lane", Unit.UNITS)]
)
NO_CARDS = DeviceReport((), {}, {}, ())


def gpu(minor: int, *, health: bool = True, gib: int = 80) -> dict[str, Any]:
    return {
        "type": "gpu",
        "id": f"GPU-{minor}",
        "minor": minor,
        "health": health,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": str(gib * GIB),
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        "conditions": [{"type": "Healthy", "status": "True" if health else "False", "reason": "x", "message": ""}],
    }


def report(*cards: dict[str, Any]) -> DeviceReport:
    return DeviceReport(tuple(cards), {"node.koordinator.sh/gpu-model": "H100"}, {}, ())


def nic(minor: int = 0, problem: str = "", reason: str = "LinkDown") -> PciDevice:
    functions = (f"0000:1{minor}:00.2", f"0000:1{minor}:00.3")
    told: dict[str, Any] = {"problem": problem, "reason": reason if problem else ""}
    return PciDevice(
        "rdma", f"0000:1{minor}:00.0", minor, f"mlx5_{minor}", 0, "pci0000:10", functions=functions, **told
    )


def topology(cpus: int = 8) -> CpuInventory:
    rows = [Cpu(cpu, cpu // 2, cpu * 2 // cpus, cpu * 2 // cpus) for cpu in range(cpus)]
    return CpuInventory(CpuTopology.of(rows), CpuBasicInfo(model="x"))


def pod(uid: str, cpus: str = "", qos: str = "", **more: Any) -> NodePod:
    status = ResourceStatus(parse(cpus)) if cpus else None
    return NodePod(uid, "ns", uid, uid, KubernetesQos.GUARANTEED, qos, status=status, **more)


# Device


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_nic_is_told_as_koordinator_tells_one(domain: str) -> None:
    built = device.build(NODE, NO_CARDS, [nic(1)], TYPES, domain=domain, now=0)

    assert built.body["spec"]["devices"] == [
        {
            "type": "rdma",
            "id": "0000:11:00.0",
            "minor": 1,
            "health": True,
            "resources": {f"{domain}/rdma": "100"},
            "conditions": [
                {
                    "type": "Healthy",
                    "status": "True",
                    "reason": "Healthy",
                    "message": "",
                    "lastTransitionTime": "1970-01-01T00:00:00Z",
                }
            ],
            "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:10", "busID": "0000:11:00.0"},
            "vfGroups": [{"vfs": [{"minor": -1, "busID": "0000:11:00.2"}, {"minor": -1, "busID": "0000:11:00.3"}]}],
        }
    ]


def test_the_object_goes_with_its_node() -> None:
    metadata = device.build(NODE, report(gpu(0)), [], TYPES).body["metadata"]

    assert metadata["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid"}]


def test_the_webhook_reads_back_every_device_of_every_type() -> None:
    others = [nic(), PciDevice("dsp", "0000:20:00.0", 0), PciDevice("fpga", "0000:21:00.0", 0, problem="x", reason="Y")]

    read = read_device_object(device.build(NODE, report(gpu(0), gpu(1)), others, TYPES).body, TYPES)

    assert [(one.type, one.id, one.healthy) for one in read.devices] == [
        ("dsp", "0000:20:00.0", True),
        ("fpga", "0000:21:00.0", False),
        ("gpu", "GPU-0", True),
        ("gpu", "GPU-1", True),
        ("rdma", "0000:10:00.0", True),
    ]
    assert not read.problems


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    first = device.build(NODE, NO_CARDS, [nic()], TYPES, now=100).body
    same = device.build(NODE, NO_CARDS, [nic()], TYPES, live=first, now=200).body
    down = device.build(NODE, NO_CARDS, [nic(problem="port 1 is DOWN")], TYPES, live=same, now=300).body

    assert same == first
    (condition,) = down["spec"]["devices"][0]["conditions"]
    assert (condition["reason"], condition["message"]) == ("LinkDown", "port 1 is DOWN")
    assert condition["lastTransitionTime"] == "1970-01-01T00:05:00Z"


@pytest.mark.parametrize("reason", ["LinkDown", "LinkUnknown", "NoPort", "FallenOffBus"])
def test_what_keeps_a_device_from_being_used_is_reported_by_its_own_reason(reason: str) -> None:
    body = device.build(NODE, report(gpu(0, health=False)), [nic(0, "why", reason), nic(1)], TYPES).body

    assert device.others(body) == {
        "0000:10:00.0": device.StatedHealth("rdma", healthy=False, reason=reason, message="why"),
        "0000:11:00.0": device.StatedHealth("rdma", healthy=True, reason="Healthy"),
    }


@given(json_near(["id", "type", "health", "conditions", "reason", "message"], ["0000:10:00.0", "rdma", True, None, 1]))
def test_whatever_stands_there_its_health_is_read_as_unusable_unless_it_says_otherwise(entry: Any) -> None:
    for identity, stated in device.others({"spec": {"devices": [entry]}}).items():
        assert (stated.type, identity) == (entry["type"], entry["id"])
        assert stated.healthy is (entry.get("health") is True)
        assert isinstance(stated.reason, str)
        assert isinstance(stated.message, str)


KEYS = ["id", "conditions", "type", "status", "lastTransitionTime", "health"]


@given(json_near(KEYS, ["GPU-0", "Healthy", "True", "1970-01-01T00:00:00Z", None, 1]))
def test_whatever_stands_in_the_cluster_is_replaced_by_what_is_so(standing: Any) -> None:
    for live in (standing, {"spec": standing}, {"spec": {"devices": standing}}):
        built = device.build(NODE, report(gpu(0)), [], TYPES, live=live if isinstance(live, dict) else None)
        (only,) = built.body["spec"]["devices"][0]["conditions"]
        assert (only["status"], only["reason"]) == ("True", "x")
        assert isinstance(only["lastTransitionTime"], str)


def test_a_device_that_an_administrator_set_aside_takes_nothing_and_the_annotation_is_not_ours() -> None:
    live = {"metadata": {"annotations": {CORDONED: "0000:10:00.0, GPU-1"}}}

    built = device.build(NODE, report(gpu(0), gpu(1)), [nic()], TYPES, live=live)

    assert {one.id: one.healthy for one in built.devices} == {"GPU-0": True, "GPU-1": False, "0000:10:00.0": False}
    assert built.body["spec"]["devices"][2]["conditions"][0]["reason"] == "Cordoned"
    assert CORDONED not in built.body["metadata"]["annotations"]


@pytest.mark.parametrize(
    "live",
    [
        {"metadata": None, "spec": []},
        {"metadata": {"annotations": {CORDONED: 7}}, "spec": {"devices": "x"}},
        {"spec": {"devices": [None, {"id": 1, "conditions": 3}, {"id": "0000:10:00.0", "conditions": [None, {}]}]}},
    ],
    ids=["shapes", "types", "entries"],
)
def test_whatever_stands_in_the_cluster_the_object_is_written(live: dict[str, Any]) -> None:
    fresh = device.build(NODE, NO_CARDS, [nic()], TYPES)

    assert device.build(NODE, NO_CARDS, [nic()], TYPES, live=live) == fresh


def test_what_the_kubelet_allocated_is_reported_under_both_names() -> None:
    told = device.DeviceFacts(held=[PodDevices("u", "main", "nvidia.com/gpu", ("GPU-1",), b"answer")])

    built = device.build(NODE, report(gpu(0), gpu(1)), [], TYPES, facts=told)

    annotations = built.body["metadata"]["annotations"]
    assert len({annotations[key] for key in DEVICES_CHECKPOINTS}) == 1
    assert read_device_object(built.body).kubelet_held == {"GPU-1"}


# Node status


def test_the_nodes_status_has_sums_in_both_domains_and_leaves_native_names_alone() -> None:
    devices = device.build(NODE, report(gpu(0), gpu(1, health=False)), [nic(0), nic(1, "down")], TYPES).devices

    body = nodestatus.build(NODE, devices, {"node.koordinator.sh/gpu-model": "H100", "other": "x"}, TYPES)

    both = {f"{domain}/{tail}" for domain in ("kubernetes.io", "koordinator.sh") for tail in ("gpu-core", "rdma")}
    assert both < body["status"]["capacity"].keys()
    assert body["status"]["allocatable"] == body["status"]["capacity"]
    assert body["status"]["capacity"] == {
        "koordinator.sh/gpu": "100",
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": str(80 * GIB),
        "koordinator.sh/gpu-memory-ratio": "100",
        "koordinator.sh/rdma": "100",
        "kubernetes.io/gpu-core": "100",
        "kubernetes.io/gpu-memory": str(80 * GIB),
        "kubernetes.io/gpu-memory-ratio": "100",
        "kubernetes.io/rdma": "100",
    }
    assert body["metadata"] == {
        "name": "n1",
        "labels": {"node.koordinator.sh/gpu-model": "H100", "koordgate.io/gpu-memory-mib": "81920"},
    }


def kubelet_syncs(node: dict[str, Any]) -> dict[str, Any]:
    """A Node's amounts after the kubelet's update (setters.go): all capacity is allocatable."""
    capacity = {"cpu": "8"} | node["status"]["capacity"]
    return {**node, "status": {"capacity": capacity, "allocatable": dict(capacity)}}


@pytest.mark.parametrize("healthy", [True, False])
def test_a_sync_of_the_kubelet_leaves_nothing_to_write_again(healthy: bool) -> None:  # noqa: FBT001 a parameter
    problem = "" if healthy else "port 1 is DOWN"
    devices = device.build(NODE, report(gpu(0), gpu(1, health=healthy)), [nic(0, problem)], TYPES).devices
    body = nodestatus.build(NODE, devices, {}, TYPES)
    wanted = {key: body[key] for key in ("metadata", "status")}
    totals = wanted["status"] | {"capacity": wanted["status"]["capacity"] | {"kubernetes.io/gpu-core": "200"}}

    assert holds(kubelet_syncs(wanted), wanted)
    assert holds(kubelet_syncs({**wanted, "status": totals}), wanted) is healthy, "totals as capacity are fought over"
    assert wanted["status"]["capacity"]["kubernetes.io/rdma"] == ("100" if healthy else "0")


VOLCANO = ("volcano.sh/gpu-memory", "volcano.sh/gpu-number")


def volcano_node(amount: str | None, *managers: str) -> dict[str, Any]:
    """A Node with these amounts of Volcano's, or none, and who wrote them."""
    stated = {"cpu": "8"} | ({} if amount is None else dict.fromkeys(VOLCANO, amount))
    fields: dict[str, Any] = {f"f:{of}": {f"f:{name}": {} for name in VOLCANO} for of in ("capacity", "allocatable")}
    entries = [{"manager": manager, "fieldsV1": {"f:status": fields}} for manager in managers]
    return {"metadata": {"managedFields": entries}, "status": {"capacity": stated, "allocatable": stated}}


def test_volcanos_amounts_are_units_of_the_usable_cards_and_their_number() -> None:
    cards = device.build(NODE, report(gpu(0, gib=24), gpu(1, gib=24), gpu(2, health=False, gib=24)), [], TYPES).devices
    other = replace(cards[0], id="GPU-x", vendor="amd")
    for unit, units in ((GIB, 48), (MIB, 49_152), (10 * GIB, 4)):
        told = nodestatus.volcano_amounts([*cards, other], unit, volcano_node(None))
        assert told == dict(zip(VOLCANO, (str(units), "2"), strict=True))
    body = nodestatus.build(NODE, cards, {}, TYPES, told={VOLCANO[1]: "2"})["status"]
    assert body["capacity"][VOLCANO[1]] == body["allocatable"][VOLCANO[1]] == "2"


STATED = {
    "nobody": (volcano_node(None), True),
    "the reporter": (volcano_node("5", "koordgate-reporter"), True),
    "the kubelet, 0 after a reboot": (volcano_node("0", "kubelet", "koordgate-reporter"), True),
    "Volcano's device plugin": (volcano_node("5", "kubelet"), False),
    "the plugin after the reporter": (volcano_node("5", "koordgate-reporter", "kubelet"), False),
    "nobody knows": (volcano_node("5"), False),
}


@pytest.mark.parametrize(("live", "writes"), STATED.values(), ids=STATED)
def test_volcanos_amounts_are_written_where_no_device_plugin_states_them(live: dict[str, Any], *, writes: bool) -> None:
    cards = device.build(NODE, report(gpu(0)), [], TYPES).devices
    assert bool(nodestatus.volcano_amounts(cards, GIB, live)) is writes
    assert nodestatus.volcano_amounts(cards, 0, live) == {}
    assert nodestatus.volcano_amounts((), GIB, live) == {}
    assert nodestatus.volcano_amounts(cards, GIB, None) == {}


def test_cards_of_unlike_memory_have_no_label_of_it() -> None:
    devices = device.build(NODE, report(gpu(0), gpu(1, gib=40)), [], TYPES).devices

    assert nodestatus.build(NODE, devices, {}, TYPES)["metadata"]["labels"] == {}


def cards(count: int, *bad: int) -> list[Device]:
    capacity = {"gpu-core": 100, "gpu-memory": 80 * GIB, "gpu-memory-ratio": 100}
    return [Device("gpu", f"GPU-{at}", at, healthy=at not in bad, capacity=capacity) for at in range(count)]


def of_card(at: int, percent: int = 100, identity: str | None = None) -> Share:
    amounts = {"gpu-core": percent, "gpu-memory": 80 * GIB * percent // 100, "gpu-memory-ratio": percent}
    return Share("gpu", f"GPU-{at}" if identity is None else identity, at, amounts)


OFFERED: dict[str, tuple[list[Device], list[Share], int]] = {
    "all in service": (cards(8), [of_card(0), of_card(1)], 800),
    "four of eight with Pods go bad": (cards(8, 0, 1, 2, 3), [of_card(at) for at in range(4)], 800),
    "one of these Pods ended": (cards(8, 0, 1, 2, 3), [of_card(at) for at in range(3)], 700),
    "a bad card without a Pod": (cards(2, 0), [], 100),
    "a part of a bad card": (cards(2, 0), [of_card(0, 30), of_card(0, 20)], 150),
    "a card that is gone": (cards(1), [of_card(7, 40)], 140),
    "a card named by its minor": (cards(2, 1), [of_card(1, 40, ""), of_card(0, 40, "")], 140),
    "no amounts of a card that is gone": (cards(1), [Share("gpu", "GPU-7", 7, {})], 100),
    "no amounts": (cards(2, 1), [Share("gpu", "GPU-1", 1, {})], 200),
    "none in service": (cards(1, 0), [], 0),
}


@pytest.mark.parametrize(("devices", "shares", "core"), OFFERED.values(), ids=OFFERED)
def test_the_node_offers_devices_in_service_and_what_pods_hold_of_the_others(
    devices: list[Device], shares: list[Share], core: int
) -> None:
    offered = nodestatus.amounts(devices, TYPES, shares)
    assert offered["koordinator.sh/gpu-core"] == offered["kubernetes.io/gpu-core"] == str(core)
    assert offered["koordinator.sh/gpu"] == offered["kubernetes.io/gpu-memory-ratio"] == str(core)
    assert offered["kubernetes.io/gpu-memory"] == str(80 * GIB * core // 100)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 100), max_size=4)), min_size=1, max_size=8))
def test_the_requests_of_pods_leave_exactly_what_is_free_of_the_devices_in_service(
    machine: list[tuple[bool, list[int]]],
) -> None:
    devices = [replace(one, healthy=machine[at][0]) for at, one in enumerate(cards(len(machine)))]
    pods = [(at, parts[:end]) for at, (_, parts) in enumerate(machine) for end in range(1, len(parts) + 1)]
    shares = [of_card(at, upto[-1]) for at, upto in pods if sum(upto) <= 100]
    offered = nodestatus.amounts(devices, TYPES, shares)
    for tail in ("gpu-core", "gpu-memory", "gpu-memory-ratio"):
        requested = sum(share.amounts[tail] for share in shares)
        on_healthy = sum(share.amounts[tail] for share in shares if devices[share.minor].healthy)
        free = sum(one.capacity[tail] for one in devices if one.healthy) - on_healthy
        assert int(offered[f"koordinator.sh/{tail}"]) - requested == free


# NodeResourceTopology


def built(
    pods: list[NodePod],
    configuration: KubeletConfiguration | None = None,
    state: CpuState | None = None,
    annotations: dict[str, str] | None = None,
    live: dict[str, Any] | None = None,
    cpusets: dict[str, int] | None = None,
) -> nodetopology.TopologyObject:
    node = NodeIdentity("n1", "node-uid", annotations or {})
    zones = {number: NumaZone({"cpu": 4000, "memory": GIB}, {"cpu": 4000, "memory": GIB}) for number in (0, 1)}
    kubelet = nodetopology.KubeletState(configuration or KubeletConfiguration(), state, in_force=True)
    return nodetopology.build(node, topology(), zones, kubelet, pods, live, cpusets)


STATIC = KubeletConfiguration(
    cpu_policy="static", reserved_list=0b1, topology_policy="restricted", topology_scope="pod"
)


def test_pools_leave_out_what_lse_and_lsr_pods_hold_as_the_document_says() -> None:
    made = built([pod("e", "0-1", "LSE"), pod("r", "4-5", "LSR"), pod("s", "", "LS")])

    assert made.body is not None
    read = read_node_topology(made.body)
    assert [pool.cpus for pool in read.shared_pools] == [parse("2-3"), parse("6-7")]
    assert [pool.cpus for pool in read.best_effort_pools] == [parse("2-3"), parse("4-7")]
    assert (made.pools.shared, made.pools.best_effort) == (parse("2-3,6-7"), parse("2-7"))
    assert made.pools.shared_by_node == {0: parse("2-3"), 1: parse("6-7")}
    assert not read.problems


# A Pod whose resource-status cannot be read: its class, its Kubernetes class, the CPUs on which it runs, and both pools

GUARANTEED = KubernetesQos.GUARANTEED
UNREAD: dict[str, tuple[str, KubernetesQos, str, str, str]] = {
    "LSR": ("LSR", GUARANTEED, "4-5", "2-3,6-7", "0-7"),
    "LSE": ("LSE", GUARANTEED, "4-5", "2-3,6-7", "0-3,6-7"),
    "LSR with all that is left": ("LSR", GUARANTEED, "2-7", "", "0-7"),
    "LSR that nobody has pinned": ("LSR", GUARANTEED, "0-7", "2-7", "0-7"),
    "LSR that has not started": ("LSR", GUARANTEED, "", "2-7", "0-7"),
    "Guaranteed without a class": ("", GUARANTEED, "4-5", "2-3,6-7", "0-7"),
    "Guaranteed without a class, in the shared pool": ("", GUARANTEED, "2-7", "2-7", "0-7"),
    "Burstable without a class": ("", KubernetesQos.BURSTABLE, "4-5", "2-7", "0-7"),
    "LS in a NUMA node's pool": ("LS", KubernetesQos.BURSTABLE, "4-7", "2-7", "0-7"),
}


@pytest.mark.parametrize(("qos", "kind", "runs_on", "shared", "best_effort"), UNREAD.values(), ids=UNREAD)
def test_cpus_on_which_a_pod_with_an_unreadable_status_runs_are_given_to_nobody_else(
    qos: str, kind: KubernetesQos, runs_on: str, shared: str, best_effort: str
) -> None:
    unread = NodePod("u", "ns", "u", "u", kind, qos, status_unreadable=True)
    cpusets = {"r": parse("0-1"), "u": parse(runs_on), "gone": parse("7")}

    made = built([pod("s", "", "LS"), pod("r", "0-1", "LSR"), unread], cpusets=cpusets)

    assert made.body is not None
    read = read_node_topology(made.body)
    assert (format_cpuset(made.pools.shared), format_cpuset(made.pools.best_effort)) == (shared, best_effort)
    assert reduce(or_, (pool.cpus for pool in read.shared_pools)) == parse(shared)


def state(policy: str = "static", **given: str) -> CpuState:
    entries = {uid: {"main": parse(cpus)} for uid, cpus in given.items()}
    return CpuState(StateLayout.V2, policy, 0xFF & ~sum(cpus["main"] for cpus in entries.values()), entries)


def test_the_kubelets_policies_and_what_it_gave_are_reported() -> None:
    made = built([pod("k")], STATIC, state(k="1-2"))

    assert made.body is not None
    read = read_node_topology(made.body)
    assert read.pod_cpu_allocs == (PodCpuAlloc("ns", "k", "k", parse("1-2"), managed_by_kubelet=True),)
    assert (read.kubelet.policy, read.kubelet.reserved, made.kubelet.reserved) == ("static", 0b1, 0b1)
    assert made.body["topologyPolicies"] == ["RestrictedPodLevel"]
    assert made.kubelet.given["k"] == {"main": parse("1-2")}
    assert made.kubelet.default == parse("0,3-7")


# A Pod, what the kubelet gave it; what is reported about it, what is reserved besides CPU 0, and both pools

GIVEN: dict[str, tuple[NodePod | None, CpuState, str, str, str]] = {
    "without a class": (pod("p"), state(p="2-3"), "2-3", "0-1,4-7", "0-1,4-7"),
    "labelled LS": (pod("p", "", "LS"), state(p="2-3"), "2-3", "0-1,4-7", "0-1,4-7"),
    "labelled BE": (pod("p", "", "BE"), state(p="2-3"), "2-3", "0-1,4-7", "0-1,4-7"),
    "that nobody knows any more": (None, state(p="2-3"), "2-3", "0-1,4-7", "0-1,4-7"),
    "decided, and given the same": (pod("p", "2-3", "LSR"), state(p="2-3"), "", "0-1,4-7", "0-7"),
    "decided, and given others: both are held": (pod("p", "4-5", "LSR"), state(p="2-3"), "2-3", "0-1,6-7", "0-1,4-7"),
    "decided, and given more": (pod("p", "2-3", "LSR"), state(p="2-4"), "2-4", "0-1,5-7", "0-1,5-7"),
    "decided, and about to be given some": (pod("p", "2-3", "LSR", asked={"main": 2}), state(), "", "0-1,4-7", "0-7"),
    "about to be given some: nobody knows which": (pod("p", asked={"main": 2}), state(), "", "0-7", "0-7"),
}


@pytest.mark.parametrize(("one", "kubelet", "told", "shared", "best_effort"), GIVEN.values(), ids=GIVEN)
def test_cpus_of_a_pod_that_is_left_on_what_the_kubelet_gave_it_are_given_to_nobody_else(
    one: NodePod | None, kubelet: CpuState, told: str, shared: str, best_effort: str
) -> None:
    made = built([one] if one else [], STATIC, kubelet)

    assert made.body is not None
    read = read_node_topology(made.body)
    assert [(alloc.uid, format_cpuset(alloc.cpus)) for alloc in read.by_kubelet] == ([("p", told)] if told else [])
    assert read.reserved == parse(told) | 0b1
    assert (format_cpuset(made.pools.shared), format_cpuset(made.pools.best_effort)) == (shared, best_effort)
    planned = [one.planned(mems=False)] if one else []
    moved = {want.pod.uid: want.cpus for want in plan.wants(planned, made.pools, made.kubelet) if want.cpus}
    assert not (told and moved), (
        "a Pod is left alone exactly where what the kubelet gave it is reported as the kubelet's"
    )


CPUS = st.integers(0, 0xFF)
STATES = st.dictionaries(
    st.sampled_from("abcde"), st.dictionaries(st.sampled_from(["main", "side"]), CPUS, max_size=2), max_size=4
)
PODS = st.dictionaries(
    st.sampled_from("abc"),
    st.tuples(st.sampled_from(["", "LSE", "LSR", "LS", "BE"]), CPUS, st.sampled_from(KubernetesQos), st.integers(0, 2)),
)


@given(STATES, PODS)
def test_under_the_static_policy_no_cpu_that_the_kubelet_gave_is_free_or_shared_and_no_pod_is_moved_off_its_own(
    given_: dict[str, dict[str, int]], pods: dict[str, tuple[str, int, KubernetesQos, int]]
) -> None:
    every = [
        NodePod(uid, "ns", uid, uid, kind, qos, status=ResourceStatus(cpus) if cpus else None, asked={"main": whole})
        for uid, (qos, cpus, kind, whole) in pods.items()
    ]
    made = built(every, STATIC, CpuState(StateLayout.V2, "static", 0xFF, given_))

    assert made.body is not None
    read = read_node_topology(made.body)
    assert not read.problems
    away = reduce(or_, (cpus for containers in given_.values() for cpus in containers.values()), 0)
    decided = reduce(or_, (one.cpus for one in every), 0)
    assert not away & 0xFF & ~read.reserved & ~decided
    assert not away & made.pools.shared
    reported = {alloc.uid for alloc in read.by_kubelet}
    for want in plan.wants([one.planned(mems=False) for one in every], made.pools, made.kubelet):
        own = reduce(or_, given_.get(want.pod.uid, {}).values(), 0)
        assert not own or (want.pod.uid in reported) == (want.cpus == 0) == (want.cpus != own)


def test_containers_run_in_the_pools_of_their_class_by_numa_node() -> None:
    shared = (PoolCpus(0, 0, 0b0001), PoolCpus(1, 0, 0b0010), PoolCpus(1, 1, 0b0100))
    best_effort = (PoolCpus(0, 0, 0b0011), PoolCpus(1, 1, 0b1100))
    assert nodetopology.plan_pools(CpuPools(shared, best_effort), 0b10000) == SharedCpus(
        shared=0b0111,
        best_effort=0b1111,
        shared_by_node={0: 0b0011, 1: 0b0100},
        best_effort_by_node={0: 0b0011, 1: 0b1100},
        system=0b10000,
    )


def test_cpus_that_were_decided_and_that_the_kubelet_gave_to_another_pod_are_reported() -> None:
    pods = [pod("r", "2-3,5", "LSR"), pod("k"), pod("t", "6", "LSR"), pod("z")]
    made = built(pods, STATIC, state(k="3-4", gone="2", t="6", z="5"))

    assert made.problems == (
        (
            "ns/r: CPUs 2 were allocated to it, but the kubelet's static policy gave them to a Pod with UID gone; "
            "delete one of the two, and set cpuManagerPolicy none"
        ),
        (
            "ns/r: CPUs 3 were allocated to it, but the kubelet's static policy gave them to ns/k; delete one of the "
            "two, and set cpuManagerPolicy none"
        ),
        (
            "ns/r: CPUs 5 were allocated to it, but the kubelet's static policy gave them to ns/z; delete one of the "
            "two, and set cpuManagerPolicy none"
        ),
    )


@pytest.mark.parametrize(
    ("kubelet", "written"),
    [
        (nodetopology.KubeletState(STATIC, None), False),
        (nodetopology.KubeletState(None, None), False),
        (nodetopology.KubeletState(KubeletConfiguration(), None), False),
        (nodetopology.KubeletState(KubeletConfiguration(), None, in_force=True), True),
        (nodetopology.KubeletState(None, state()), True),
    ],
    ids=[
        "static, its state unread",
        "nothing read",
        "not static by its file, its state unread",
        "not static by its answer, its state unread",
        "its configuration unread",
    ],
)
def test_no_object_is_written_while_it_is_not_known_what_the_kubelet_allocated(
    kubelet: nodetopology.KubeletState, *, written: bool
) -> None:
    made = nodetopology.build(NODE, topology(), {}, kubelet, [])

    assert (made.body is not None) is written
    assert made.pools.shared == 0xFF


def test_what_a_whole_pod_has_counts_beside_what_its_containers_have() -> None:
    state = CpuState(StateLayout.V3, "static", 0, {"k": {"main": 1}}, pods={"k": 0b110})
    made = built([pod("k", containers={"abc": "main"})], STATIC, state)

    assert made.kubelet.given == {"k": {"main": 1, "": 0b110}}


def test_the_kubelets_state_shows_a_static_policy_that_its_file_does_not_know() -> None:
    made = built([], KubeletConfiguration(), CpuState(StateLayout.V2, "static", 0xFF))

    assert made.kubelet.static
    assert made.body is not None
    assert read_node_topology(made.body).kubelet.policy == "static"


def test_what_the_administrator_keeps_on_the_node_is_in_no_pool() -> None:
    annotations = {
        "node.koordinator.sh/reservation": '{"reservedCPUs":"0-1"}',
        "node.koordinator.sh/system-qos-resource": '{"cpuset":"7"}',
        "unrelated": "x",
    }
    made = built([], annotations=annotations)

    assert made.pools.shared == parse("2-6")
    assert made.pools.system == parse("7")
    assert made.body is not None
    assert read_node_topology(made.body).reservation.cpus == parse("0-1")


@pytest.mark.parametrize(
    ("reservation", "cpus"),
    [
        ('{"resources":{"cpu":"2"}}', "0-1"),
        ('{"resources":{"cpu":"1500m","memory":"1Gi"}}', "0-1"),
        ('{"resources":{"cpu":"3"}}', "0-2"),
        ('{"resources":{"cpu":"5"}}', "0-4"),
        ('{"resources":{"cpu":"99"}}', "0-7"),
        ('{"resources":{"cpu":"0","memory":"1Gi"}}', ""),
        ('{"resources":{"cpu":"2"},"reservedCPUs":"5"}', "5"),
    ],
    ids=["whole cores", "rounded up", "and a thread", "and another NUMA node", "too many", "none", "by number first"],
)
def test_an_amount_that_the_administrator_keeps_becomes_cpus_in_the_kubelets_order(reservation: str, cpus: str) -> None:
    made = built([], annotations={"node.koordinator.sh/reservation": reservation})

    assert made.body is not None
    read = read_node_topology(made.body)
    assert format_cpuset(read.reserved) == cpus
    assert not read.holders_unknown
    assert made.pools.shared == 0xFF & ~parse(cpus)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("node.koordinator.sh/reservation", '{"reservedCPUs":"0-x"}'),
        ("node.koordinator.sh/reservation", '{"resources":{"cpu":"-1"}}'),
        ("node.koordinator.sh/system-qos-resource", '{"cpuset":"7"'),
    ],
    ids=["CPUs", "an amount", "no JSON"],
)
def test_what_of_the_node_cannot_be_read_is_passed_on_so_that_no_cpu_is_given(key: str, text: str) -> None:
    made = built([], annotations={key: text, "unrelated": "x"})

    assert made.body is not None
    assert made.body["metadata"]["annotations"][key] == text
    assert "unrelated" not in made.body["metadata"]["annotations"]
    assert read_node_topology(made.body).holders_unknown
    assert len(made.problems) == 1


@pytest.mark.parametrize(("policy", "expected"), [("static", "static"), ("none", "")])
def test_without_a_configuration_only_a_static_policy_is_known(policy: str, expected: str) -> None:
    kubelet = nodetopology.KubeletState(None, CpuState(StateLayout.V2, policy, 0xFF))

    made = nodetopology.build(NODE, topology(), {}, kubelet, [], None, None)

    assert made.body is not None
    assert read_node_topology(made.body).kubelet.policy == expected


def test_available_of_a_zone_is_what_no_pod_holds_of_it() -> None:
    """CPU proposal, "NodeResourceTopology CRD": a zone's available is less than its allocatable."""
    aligned = ResourceStatus(0b11, (NumaResources(0, {"cpu": 2500, "memory": GIB // 4}),))
    shared = ResourceStatus(0, (NumaResources(1, {"cpu": 500, "memory": 2 * GIB, "example.com/nic": 1}),))
    pods = [
        replace(pod("own", "0-1", "LSR"), status=aligned),
        replace(pod("aligned", "", "LS"), status=shared),
        pod("alone", "6-7", "LSE"),
        pod("kubelets"),
    ]
    made = built(pods, STATIC, state(kubelets="2", gone="3"))

    assert made.body is not None
    zones = read_node_topology(made.body).zones
    assert zones[0].available == {"cpu": 0, "memory": GIB - GIB // 4}  # 2.5, and the kubelet's two CPUs
    assert zones[1].available == {"cpu": 1500, "memory": 0}
    assert zones[0].allocatable == zones[1].allocatable == {"cpu": 4000, "memory": GIB}


def test_what_others_report_about_a_zone_stays_and_zones_that_are_gone_go() -> None:
    live = {
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "resources": [
                    {"name": "example.com/x", "capacity": "2", "allocatable": "1", "available": "0"},
                    {"name": "memory", "capacity": "9Gi", "allocatable": "9Gi"},
                    {"name": "hugepages-2Mi", "capacity": "4Mi", "allocatable": "4Mi"},
                    {"name": "example.com/y", "capacity": "4", "allocatable": "3"},
                ],
            }
            for number in (0, 5)
        ]
    }
    made = built([], live=live)

    assert made.body is not None
    zones = read_node_topology(made.body).zones
    assert list(zones) == [0, 1]
    assert zones[0].allocatable == {"cpu": 4000, "memory": GIB, "example.com/x": 1, "example.com/y": 3}
    assert zones[0].capacity == {"cpu": 4000, "memory": GIB, "example.com/x": 2, "example.com/y": 4}
    assert zones[0].available == {"cpu": 4000, "memory": GIB, "example.com/x": 0, "example.com/y": 3}


def test_without_cpus_no_object_is_written_and_the_reason_is_reported() -> None:
    reading = CpuInventory(None, CpuBasicInfo(), "no CPUs")

    made = nodetopology.build(NODE, reading, {}, nodetopology.KubeletState(None, None), [])

    assert made.body is None
    assert made.problems == ("no CPUs",)


# Comparison


@pytest.mark.parametrize(
    ("live", "wanted", "same"),
    [
        ({"capacity": {"m": "80Gi"}}, {"capacity": {"m": str(80 * GIB)}}, True),
        ({"capacity": {"m": "0"}}, {"capacity": {"m": "100"}}, False),
        ({"capacity": {"m": "rubbish"}}, {"capacity": {"m": "100"}}, False),
        ({"ownerReferences": [{"uid": "b"}, {"uid": "a", "x": 1}]}, {"ownerReferences": [{"uid": "a"}]}, True),
        ({"list": [1, 2]}, {"list": [1]}, False),
        (None, {"a": 1}, False),
        ({"list": {"0": 1}}, {"list": [1]}, False),
        ({"list": "1"}, {"list": ["1"]}, False),
        ({"list": [2, 1]}, {"list": [1, 2]}, False),
        ({"ownerReferences": None}, {"ownerReferences": [{"uid": "a"}]}, False),
        ({"ownerReferences": [{"uid": "a"}]}, {"ownerReferences": [{"uid": "a"}, {"uid": "b"}]}, False),
    ],
    ids=[
        "another form",
        "zeroed by a kubelet",
        "no quantity",
        "another owner",
        "a longer list",
        "nothing there",
        "a map instead of a list",
        "a text instead of a list",
        "another order",
        "no list of owners",
        "one owner of two",
    ],
)
def test_comparison_by_case(live: Any, wanted: Any, same: Any) -> None:
    assert holds(live, wanted) is same


TOO_LARGE = {
    "an amount": ('{"resources":{"cpu":"9"}}', "reserves 9 CPUs, but the machine has 8; no CPU is left for Pods"),
    "a part of a CPU too much": ('{"resources":{"cpu":"8001m"}}', "reserves 9 CPUs, but the machine has 8"),
    "all of them": ('{"resources":{"cpu":"8"}}', ""),
    "CPUs that do not exist": ('{"reservedCPUs":"0-1,8-9"}', "reserves CPUs 8-9, which the machine lacks; 6 of 8"),
    "CPU numbers count before an amount": ('{"reservedCPUs":"0","resources":{"cpu":"99"}}', ""),
}


@pytest.mark.parametrize(("text", "expected"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_reservation_that_the_machine_cannot_meet_is_reported(text: str, expected: str) -> None:
    made = built([], annotations={"node.koordinator.sh/reservation": text})
    assert bool(made.too_large) == bool(expected)
    assert expected in made.too_large
    assert not expected or made.too_large in made.problems


@pytest.mark.parametrize(
    ("held", "offered"),
    [
        pytest.param([of_card(0)], 160 * GIB, id="a whole card from before its driver's memory was known"),
        pytest.param([], 160 * GIB, id="a Pod that states a whole card may wait"),
        pytest.param([of_card(2, 50)], 200 * GIB, id="half of a card out of service"),
    ],
)
def test_the_kubelet_and_the_scheduler_find_all_memory_of_cards_for_pods_that_state_it(held: Any, offered: int) -> None:
    now = [
        replace(card, capacity={**card.capacity, "gpu-memory": 80 * GIB - MIB}, reserved=MIB) for card in cards(3, 2)
    ]
    found = nodestatus.amounts(now, TYPES, held)
    assert found["koordinator.sh/gpu-memory"] == found["kubernetes.io/gpu-memory"] == str(offered)
