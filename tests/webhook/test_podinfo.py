"""The kept part of a Pod: its request, its holding by annotations, and when either is read again."""

import json
from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, container, gpu, pod
from world import BEGINNING, World, cpu_pod, gpu_pod, plain_pod

from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary.cpunode import BindPolicy, CpuShare, ExclusivePolicy, NumaPolicy, NumaShare, QosClass
from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import DEVICE_ALLOCATED, DEVICE_ORDER, GPU_CORE, ISOLATION_PROVIDER, RESOURCE_STATUS
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT, DEVICE_JOINT_ALLOCATE, GPU_PARTITION_SPEC
from allocator.wire.gang import GANG_ANNOTATION, GANG_LABELS
from allocator.wire.podallocated import write_allocation
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import PodFeed
from webhook.view.loads import BoundRequests
from webhook.view.podinfo import OtherPod, PodInfo, annotated_holding, on_node, read_pod_info

Raw = dict[str, Any]
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}


def info(obj: Raw, known: PodInfo | None = None) -> PodInfo:
    made = read_pod_info(obj, known)
    assert made
    return made


def annotated(obj: Raw, **texts: Any) -> Raw:
    """The Pod with further annotations: a value that is not text becomes JSON, None removes one."""
    kept = {**(obj["metadata"].get("annotations") or {}), **texts}
    made = {key: text if isinstance(text, str) else json.dumps(text) for key, text in kept.items() if text is not None}
    return {**obj, "metadata": {**obj["metadata"], "annotations": made}}


def labelled(obj: Raw, **labels: str) -> Raw:
    return {**obj, "metadata": {**obj["metadata"], "labels": {**(obj["metadata"].get("labels") or {}), **labels}}}


# --- resource-status


STATUSES: dict[str, tuple[Raw, CpuShare]] = {
    "CPUs of its own": ({"cpuset": "0-1,4"}, CpuShare(QosClass.LSR, parse("0-1,4"), BindPolicy.SPREAD_BY_PCPUS)),
    "CPUs of its own, aligned": (
        {"cpuset": "0-3", "numaNodeResources": [{"node": 1, "resources": {"cpu": "4", "memory": "1Gi"}}]},
        CpuShare(QosClass.LSR, 0b1111, BindPolicy.SPREAD_BY_PCPUS, numa=(NumaShare(1, 4000, GIB),)),
    ),
    "NUMA nodes in any order": (
        {"numaNodeResources": [{"node": 1, "resources": {"cpu": "500m"}}, {"node": 0}]},
        CpuShare(QosClass.LSR, numa=(NumaShare(0, 0, 0), NumaShare(1, 500, 0))),
    ),
    "pools": (
        {"cpuSharedPools": [{"socket": 1, "node": 2}, {"socket": 0, "node": 0}]},
        CpuShare(QosClass.LSR, numa=(NumaShare(0, 0, 0), NumaShare(2, 0, 0, 1))),
    ),
    "nothing": ({}, CpuShare(QosClass.LSR)),
}


@pytest.mark.parametrize(("status", "share"), STATUSES.values(), ids=STATUSES)
def test_resource_status_says_which_cpus_a_pod_holds(status: Raw, share: CpuShare) -> None:
    wishes = {RESOURCE_SPEC: {"preferredCPUBindPolicy": "SpreadByPCPUs"}}
    kept = info(annotated(cpu_pod("p", 3), **wishes, **{RESOURCE_STATUS: status}))
    assert kept.cpus == share
    assert kept.holds
    assert not kept.annotation_problem
    held = annotated_holding(kept, (), 7)
    assert held
    assert (held.cpus, held.shares, held.since) == (share, (), 7)


@pytest.mark.parametrize(("status", "qos"), [({"cpuset": "0-1"}, QosClass.LSR), ({}, QosClass.LS)])
def test_a_pod_that_asks_for_none_of_the_cpus_that_it_holds_is_of_the_class_that_holds_such(
    status: Raw, qos: QosClass
) -> None:
    kept = info(annotated(plain_pod("p", nodeName="n1"), **{RESOURCE_STATUS: status}))
    assert kept.cpus is not None
    assert kept.cpus.qos == qos
    assert not kept.asks


UNREADABLE = [
    "{",
    "7",
    "[]",
    '{"cpuset":5}',
    '{"cpuset":"9-1"}',
    '{"cpuset":"99999"}',
    '{"cpuSharedPools":{}}',
    '{"numaNodeResources":[{"node":-1}]}',
    '{"numaNodeResources":[{"node":0},{"node":0}]}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_resource_status_that_cannot_be_read_is_named_and_holds_all_cpus(text: str) -> None:
    kept = info(annotated(cpu_pod("p"), **{RESOURCE_STATUS: text}))
    assert RESOURCE_STATUS in kept.annotation_problem
    held = annotated_holding(kept, (gpu(0),), 0, 0b1110)
    assert held
    assert (held.shares, held.cpus) == ((), CpuShare(QosClass.LSE, 0b1110))


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_pod_whose_class_has_no_cpus_of_its_own_closes_none(text: str) -> None:
    kept = info(annotated(cpu_pod("p", qos="LS"), **{RESOURCE_STATUS: text}))
    assert kept.annotation_problem
    assert not kept.any_cpus


@pytest.mark.parametrize("text", UNREADABLE)
def test_devices_count_beside_a_resource_status_that_cannot_be_read(text: str) -> None:
    shares = {"gpu": [{"minor": 0, "resources": HALF}]}
    kept = info(annotated(gpu_pod("p"), **{DEVICE_ALLOCATED: shares, RESOURCE_STATUS: text}))
    assert [share.minor for share in kept.shares] == [0]


@pytest.mark.parametrize("text", ["", "null", "{}"])
def test_a_resource_status_that_says_nothing_names_no_cpus(text: str) -> None:
    kept = info(annotated(cpu_pod("p"), **{RESOURCE_STATUS: text}))
    assert not kept.annotation_problem
    assert kept.cpus == CpuShare(QosClass.LSR)


WITHOUT_CPUS = ["", "null", "{}", '{"cpuset":""}', '{"Cpuset":"0-3"}', '{"numaNodeResources":[{"node":0}]}']


@pytest.mark.parametrize("text", WITHOUT_CPUS)
@pytest.mark.parametrize("qos", ["LSR", "LSE"])
def test_a_bound_pod_with_cpus_of_its_own_whose_resource_status_names_none_holds_all(text: str, qos: str) -> None:
    kept = info(annotated(cpu_pod("p", 3, qos, nodeName="n1"), **{RESOURCE_STATUS: text}))
    assert "names no CPU" in kept.annotation_problem
    held = annotated_holding(kept, (), 0, 0b1110)
    assert held
    assert (held.cpus, held.unread) == (CpuShare(QosClass.LSE, 0b1110), ("cpu",))


@pytest.mark.parametrize("text", WITHOUT_CPUS)
def test_a_bound_pod_without_cpus_of_its_own_needs_none_in_its_resource_status(text: str) -> None:
    kept = info(annotated(cpu_pod("p", 3, "LS", nodeName="n1"), **{RESOURCE_STATUS: text}))
    assert (kept.annotation_problem, kept.any_cpus) == ("", False)


def test_a_pod_that_was_bound_without_koordgate_holds_no_cpus() -> None:
    kept = info(cpu_pod("p", 3, nodeName="n1"))
    assert (kept.annotation_problem, kept.any_cpus, kept.lacks) == ("", False, True)


CPUSETS = {"none of the node's": ("99", True), "some of the node's": ("1,99", False), "all": ("0-3", False)}


@pytest.mark.parametrize(("cpuset", "any_cpus"), CPUSETS.values(), ids=CPUSETS)
def test_cpus_that_the_node_lacks_are_unreadable(cpuset: str, *, any_cpus: bool) -> None:
    kept = info(annotated(cpu_pod("p", 3, nodeName="n1"), **{RESOURCE_STATUS: {"cpuset": cpuset}}))
    seen = on_node(kept, (), 0b1111)
    assert (seen.any_cpus, "names no CPU that the node has" in seen.annotation_problem) == (any_cpus, any_cpus)
    assert on_node(kept, (), 0) == kept  # the node's CPUs are not known


def test_what_is_written_is_read_back() -> None:
    wishes = {RESOURCE_SPEC: {"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"}}
    share = CpuShare(
        QosClass.LSE, 0b1111, BindPolicy.FULL_PCPUS, ExclusivePolicy.PCPU_LEVEL, (NumaShare(0, 4000, GIB),)
    )
    obj = annotated(cpu_pod("p", 4, "LSE"), **wishes)
    held = annotated_holding(info(annotated(obj, **{RESOURCE_STATUS: {}})), (), 0)
    assert held
    written = write_allocation(type(held)(held.uid, held.namespace, held.name, 0, (), share), "kubernetes.io")
    assert info(annotated(obj, **written)).cpus == share


# --- the owner of devices


def allocated(kind: str, minor: int, identity: str, resources: Raw) -> Raw:
    return {DEVICE_ALLOCATED: {kind: [{"minor": minor, "id": identity, "resources": resources}]}}


BY_MINOR: dict[str, tuple[Raw, tuple[str, ...]]] = {
    "a minor that the node lacks": ({"minor": 99}, ("gpu",)),
    "a minor that it has": ({"minor": 1}, ()),
    "an id that it lacks": ({"minor": 99, "id": "GPU-gone"}, ()),
}


@pytest.mark.parametrize(("entry", "unread"), BY_MINOR.values(), ids=BY_MINOR)
def test_a_minor_that_the_node_lacks_may_be_any_device_of_the_type(entry: Raw, unread: tuple[str, ...]) -> None:
    nic = Device("rdma", "0000:1f:00", 0, healthy=True, capacity={"rdma": 100})
    shares = {"gpu": [{"minor": 0, "resources": HALF}, {**entry, "resources": HALF}]}
    kept = info(annotated(gpu_pod("p", 200, nodeName="n1"), **{DEVICE_ALLOCATED: shares}))
    node = (gpu(0), gpu(1), gpu(2), nic)
    seen = on_node(kept, node, 0)
    assert (seen.unread, "which the node lacks" in seen.annotation_problem) == (unread, bool(unread))
    held = annotated_holding(seen, node, 0)
    assert held
    whole = {share.id for share in held.shares if share.amounts == gpu(0).capacity}
    assert whole == ({"GPU-0", "GPU-1", "GPU-2"} if unread else set())
    assert on_node(kept, (nic,), 0) == kept  # the node's GPUs are not known


def test_an_id_is_looked_for_among_the_devices_of_its_type() -> None:
    """An id of another type's device, from which no GPU's memory can be read."""
    nic = Device("rdma", "0000:1f:00", 0, healthy=True, capacity={"rdma": 100})
    kept = info(annotated(plain_pod("p", nodeName="n1"), **allocated("gpu", 0, nic.id, HALF)))
    held = annotated_holding(kept, (gpu(0), nic), 0)
    assert held
    (share,) = held.shares
    assert (share.type, share.id, share.amounts[GPU_CORE]) == ("gpu", nic.id, 50)


@pytest.mark.parametrize(
    ("shares", "cpus", "asks", "lacks"),
    [
        ((), None, "gpu", True),
        ((Share("gpu", "GPU-0", 0, {}),), None, "gpu", False),
        ((), CpuShare("LSR", 1), "gpu", True),
        ((), None, "cpu", True),
        ((), CpuShare("LSR", 1), "cpu", False),
        ((), CpuShare("LS"), "cpu", False),
        ((), None, "class", False),
        ((), None, "problem", True),
    ],
)
def test_a_pod_lacks_what_it_asks_for_and_does_not_hold(
    shares: tuple[Share, ...], cpus: CpuShare | None, asks: str, *, lacks: bool
) -> None:
    made = {"gpu": gpu_pod("p"), "cpu": cpu_pod("p"), "class": cpu_pod("p", 1, "LS")}
    made["problem"] = cpu_pod("p", "1500m", admit=False)
    assert replace(info(made[asks]), node="n1", shares=shares, cpus=cpus).lacks is lacks


# --- read again


HINT = {"gpu": {"exclusivePolicy": "DeviceLevel"}}
CHANGES: dict[str, tuple[Raw, Raw]] = {
    # a Pod before and after
    "a hint comes": (gpu_pod("p"), annotated(gpu_pod("p"), **{DEVICE_ALLOCATE_HINT: HINT})),
    "a hint goes": (annotated(gpu_pod("p"), **{DEVICE_ALLOCATE_HINT: HINT}), gpu_pod("p")),
    "a hint changes": (
        annotated(gpu_pod("p"), **{DEVICE_ALLOCATE_HINT: HINT}),
        annotated(gpu_pod("p"), **{DEVICE_ALLOCATE_HINT: {"gpu": {"exclusivePolicy": "PCIeLevel"}}}),
    ),
    "a hint is mended": (
        annotated(gpu_pod("p"), **{DEVICE_ALLOCATE_HINT: "{"}),
        annotated(gpu_pod("p"), **{DEVICE_ALLOCATE_HINT: HINT}),
    ),
    "a wrong hint goes": (annotated(gpu_pod("p"), **{DEVICE_ALLOCATE_HINT: "{"}), gpu_pod("p")),
    "a hint is spoilt": (
        annotated(gpu_pod("p"), **{DEVICE_ALLOCATE_HINT: HINT}),
        annotated(gpu_pod("p"), **{DEVICE_ALLOCATE_HINT: "{"}),
    ),
    "types come to belong together": (
        gpu_pod("p"),
        annotated(gpu_pod("p"), **{DEVICE_JOINT_ALLOCATE: {"deviceTypes": ["gpu", "rdma"]}}),
    ),
    "a partition is asked for": (gpu_pod("p", 200), annotated(gpu_pod("p", 200), **{GPU_PARTITION_SPEC: {}})),
    "an order of devices": (gpu_pod("p"), annotated(gpu_pod("p"), **{DEVICE_ORDER: "minor"})),
    "a gang's annotation": (gpu_pod("p"), annotated(gpu_pod("p"), **{GANG_ANNOTATION: "g"})),
    "an isolation that is demanded": (gpu_pod("p"), labelled(gpu_pod("p"), **{ISOLATION_PROVIDER: "HAMi-core"})),
    "an isolation that is demanded no more": (labelled(gpu_pod("p"), **{ISOLATION_PROVIDER: "x"}), gpu_pod("p")),
    "a gang's label": (gpu_pod("p"), labelled(gpu_pod("p"), **{GANG_LABELS[0]: "g"})),
    "another gang": (labelled(gpu_pod("p"), **{GANG_LABELS[1]: "g"}), labelled(gpu_pod("p"), **{GANG_LABELS[1]: "h"})),
    "a CPU policy comes": (
        cpu_pod("p"),
        annotated(cpu_pod("p"), **{RESOURCE_SPEC: {"requiredCPUBindPolicy": "FullPCPUs"}}),
    ),
    "a CPU policy goes": (
        annotated(cpu_pod("p"), **{RESOURCE_SPEC: {"requiredCPUBindPolicy": "FullPCPUs"}}),
        cpu_pod("p"),
    ),
    "a NUMA policy for a Pod with GPUs": (
        gpu_pod("p"),
        annotated(gpu_pod("p"), **{NUMA_TOPOLOGY_SPEC: {"numaTopologyPolicy": "SingleNUMANode"}}),
    ),
    "the NUMA policy of a Pod with GPUs goes": (
        annotated(gpu_pod("p"), **{NUMA_TOPOLOGY_SPEC: {"numaTopologyPolicy": "SingleNUMANode"}}),
        gpu_pod("p"),
    ),
    "the class, where nobody guards it": (cpu_pod("p"), labelled(cpu_pod("p"), **{QOS_LABEL: "LSE"})),
}


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_what_labels_and_annotations_say_is_read_again_while_the_pod_waits(before: Raw, after: Raw) -> None:
    known = info(before)
    again, anew = info(after, known), info(after)
    assert again == anew
    assert (again.request, again.problem) != (known.request, known.problem)


@pytest.mark.parametrize(("before", "after"), CHANGES.values(), ids=CHANGES)
def test_of_a_pod_that_is_bound_what_it_asked_for_until_then_counts(before: Raw, after: Raw) -> None:
    known = info({**before, "spec": {**before["spec"], "nodeName": "n1"}})
    again = info({**after, "spec": {**after["spec"], "nodeName": "n1"}}, known)
    assert (again.request, again.problem) == (known.request, known.problem)


def test_a_pod_of_plain_devices_is_read_once() -> None:
    """Parts that cannot change are not read again: such Pods cause thousands of updates."""
    known = info(gpu_pod("p"))
    other = annotated(gpu_pod("p", 80), any="thing")
    assert info(other, known).request is known.request
    assert info(gpu_pod("p", 80, uid="uid-2"), known).request == info(gpu_pod("p", 80)).request  # another Pod


def test_a_pod_that_gives_up_its_numa_policy_while_it_waits_is_no_longer_ours() -> None:
    aligned = annotated(cpu_pod("p", 1, ""), **{NUMA_TOPOLOGY_SPEC: {"numaTopologyPolicy": "BestEffort"}})
    known = info(aligned)
    assert known.request.cpu is not None
    assert known.request.cpu.numa_policy is NumaPolicy.BEST_EFFORT
    assert read_pod_info(cpu_pod("p", 1, ""), known) is None
    view = ClusterView(SeenObjects(lambda: BEGINNING))
    feed = PodFeed(view, lambda _pod: None, lambda _pod: None, BUILT_IN)
    feed.put(aligned)
    assert view.pods.get("default", "p")
    feed.put(cpu_pod("p", 1, ""))
    assert view.pods.other("default", "p", "uid-p")


def test_gangs_follow_what_is_read_again() -> None:
    view = ClusterView(SeenObjects(lambda: BEGINNING))
    feed = PodFeed(view, lambda _pod: None, lambda _pod: None, BUILT_IN)
    for gang in ("g", "h"):
        feed.put(labelled(gpu_pod("p"), **{GANG_LABELS[0]: gang}))
    assert (view.pods.gang("default/g"), view.pods.gang("default/h")) == ({}, {"uid-p": ""})
    feed.put(gpu_pod("p"))
    assert view.pods.gang("default/h") == {}


# --- kept once


async def test_cpus_are_kept_once_where_ledger_and_annotation_agree_and_as_reported_where_not(world: World) -> None:
    world.add_pod(cpu_pod("p", 2, nodeName="n1", annotations={RESOURCE_STATUS: '{"cpuset":"0-1"}'}))
    for cpuset, same in ((0b11, True), (0b1100, False)):
        share = CpuShare("LSR", cpuset, BindPolicy.FULL_PCPUS)
        await world.parts.ledger.change("n1", lambda old, share=share: ({**old, "uid-p": holding_of(share)}, None), 5)  # type: ignore[misc]
        world.see()
        kept = world.parts.cluster.pods.get("default", "p")
        assert kept
        assert kept.cpus is not None
        assert kept.cpus.cpus == 0b11
        assert (kept.cpus == share) is same


def holding_of(share: CpuShare) -> Any:
    held = annotated_holding(info(annotated(cpu_pod("p"), **{RESOURCE_STATUS: {}})), (), BEGINNING)
    assert held
    return type(held)(held.uid, held.namespace, held.name, BEGINNING, (), share)


# --- priority


@pytest.mark.parametrize(
    ("spec", "priority"), [({}, 0), ({"priority": 5}, 5), ({"priority": -3}, -3), ({"priority": None}, 0)]
)
def test_the_priority_is_that_of_the_spec(spec: Raw, priority: int) -> None:
    assert info(gpu_pod("p", **spec)).priority == priority


def test_containers_of_every_kind_are_read() -> None:
    obj = pod(container(limits={"koordinator.sh/rdma": "1"}), init=[container("i", limits={"nvidia.com/gpu": "1"})])
    assert [c.ask.type.name for c in info(obj).request.containers] == ["gpu", "rdma"]


def test_of_a_stranger_amounts_from_nothing_to_what_64_bits_hold_are_counted() -> None:
    asked = (("cpu", -5), ("memory", 2**70), ("pods", 1))
    counted = OtherPod.requesting("u", "n", asked).counted
    assert counted == BoundRequests("n", (("cpu", 0), ("memory", 2**63 - 1), ("pods", 1)))
    assert OtherPod.requesting("u", "", asked).counted is None
