"""What the reporter reads of a Pod object, and what the cpuset plan takes of it."""

from typing import Any

import pytest

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.wire.nodetopology import CpuBasicInfo
from reporter.cgroup.layout import KubernetesQos
from reporter.inventory import CpuInventory
from reporter.pods import NodeIdentity, NodePod, read_pod
from reporter.proof.agree import Evidence
from reporter.reading import GpuView, HostReading
from reporter.round.decide import Rules, StandingObjects, decide
from reporter.round.occurrences import EventMemory, occurrences

UID = "11111111-2222-3333-4444-555555555555"


def pod(*cpus: Any) -> dict[str, Any]:
    """A Pod with a container for each amount of CPU; None requests nothing."""
    containers = [
        {"name": f"c{number}"} if cpu is None else {"name": f"c{number}", "resources": {"requests": {"cpu": cpu}}}
        for number, cpu in enumerate(cpus)
    ]
    return {"metadata": {"name": "p", "namespace": "ns", "uid": UID}, "spec": {"containers": containers}}


def test_of_a_pod_that_states_nothing_nothing_is_kept() -> None:
    stated = {"metadata": {"name": "p", "namespace": "ns", "uid": UID}}

    assert read_pod(stated) == NodePod(UID, "ns", "p", UID, KubernetesQos.BURSTABLE)
    assert read_pod({**stated, "spec": {}, "status": {"phase": "Pending"}}) == read_pod(stated)


@pytest.mark.parametrize(
    ("cpus", "whole"),
    [
        ((), []),
        ((None, "500m", "1500m"), [0, 0, 0]),
        ((None, "2", "500m", 3, "4000m"), [0, 2, 0, 3, 4]),
        (("0", "-2", "1"), [0, 0, 1]),
        (("no amount", "1"), [0, 1]),
        (("no amount",), [0]),
    ],
    ids=["no container", "parts", "some whole", "nothing and less", "unreadable and whole", "unreadable"],
)
def test_whole_cpus_are_counted_for_each_container(cpus: tuple[Any, ...], whole: list[int]) -> None:
    read = read_pod(pod(*cpus))

    assert read.asked == {f"c{number}": count for number, count in enumerate(whole)}
    assert read.whole_cpus is any(whole)


@pytest.mark.parametrize(
    ("requests", "needs"),
    [
        ([{}], 1),
        ([{"cpu": "200m"}, {"cpu": "300m"}], 1),
        ([{"cpu": "1500m"}, {"cpu": 1}], 3),
        ([{"kubernetes.io/batch-cpu": "4000"}, {}], 4),
        ([{"cpu": "no amount"}, {"cpu": "-3"}], 1),
    ],
)
def test_a_pod_needs_the_whole_cpus_that_its_containers_request_and_one_at_least(
    requests: list[dict[str, Any]], needs: int
) -> None:
    obj = pod(*[None] * len(requests))
    for container, one in zip(obj["spec"]["containers"], requests, strict=True):
        container["resources"] = {"requests": one}
    assert (read_pod(obj).needs, read_pod(obj).planned(mems=False).needs) == (needs, needs)


def test_a_pod_without_a_status_is_bound_to_no_pool_and_no_memory() -> None:
    planned = read_pod(pod("1")).planned(mems=True)

    assert (planned.pools, planned.mems, planned.cpus, planned.name) == (0, 0, 0, "ns/p")


MIXED = {
    "an injector's": ("LSR", {}, {"p"}),
    "stated": ("LSE", {"koordgate.io/own-cpus": "p"}, {"m", "d"}),
    "a class without CPUs of its own": ("LS", {}, set()),
}


@pytest.mark.parametrize(("qos", "annotations", "shared"), MIXED.values(), ids=MIXED)
def test_containers_on_shared_cpus_are_planned_by_the_ids_that_they_run_under(
    qos: str, annotations: dict[str, str], shared: set[str]
) -> None:
    names = {"m": "main", "p": "istio-proxy", "d": "debug"}
    stated = {key: ",".join(names[one] for one in text) for key, text in annotations.items()}
    metadata = {"name": "p", "uid": UID, "labels": {"koordinator.sh/qosClass": qos}, "annotations": stated}
    containers = [{"name": names[one], "resources": {"requests": {"cpu": 2}}} for one in "mp"]
    statuses = [{"name": names[one], "containerID": f"containerd://{one}"} for one in names]
    status = {"containerStatuses": statuses[:2], "ephemeralContainerStatuses": statuses[2:]}
    spec = {"containers": containers, "ephemeralContainers": [{"name": "debug"}]}
    read = read_pod({"metadata": metadata, "spec": spec, "status": status})
    assert read.planned(mems=False).shared == {one: names[one] for one in shared}


def test_what_only_containers_on_shared_cpus_ask_is_no_sign_of_cpus_that_are_unknown() -> None:
    annotations = {"scheduling.koordinator.sh/resource-status": "{}"}
    metadata = {"name": "p", "uid": UID, "labels": {"koordinator.sh/qosClass": "LSR"}, "annotations": annotations}
    containers = [{"name": "main"}, {"name": "istio-proxy", "resources": {"requests": {"cpu": 2}}}]
    assert not read_pod({"metadata": metadata, "spec": {"containers": containers}}).status_unreadable


NODE = NodeIdentity("n1", "node-uid")
UID = "11111111-2222-3333-4444-555555555555"
HOST = HostReading(CpuInventory(None, CpuBasicInfo(), "no CPUs"))

POOLS = {
    "Koordinator's: NUMA nodes alone": ('{"numaNodeResources":[{"node":1,"resources":{"cpu":"4"}}]}', 0b10),
    "two NUMA nodes": (
        '{"numaNodeResources":[{"node":0,"resources":{"cpu":"1"}},{"node":1,"resources":{"cpu":"500m"}}]}',
        0b11,
    ),
    "batch CPU": ('{"numaNodeResources":[{"node":1,"resources":{"kubernetes.io/batch-cpu":"4000"}}]}', 0b10),
    "memory alone binds no CPUs": ('{"numaNodeResources":[{"node":1,"resources":{"memory":"4Gi"}}]}', 0),
    "CPU on one, memory on both": (
        '{"numaNodeResources":[{"node":0,"resources":{"memory":"4Gi"}},{"node":1,"resources":{"cpu":"4"}}]}',
        0b10,
    ),
    "a NUMA node without resources": ('{"numaNodeResources":[{"node":1}]}', 0b10),
    "the pools that are named count": (
        '{"numaNodeResources":[{"node":1,"resources":{"cpu":"4"}}],"cpuSharedPools":[{"socket":0,"node":0}]}',
        0b01,
    ),
    "nothing": ("{}", 0),
}


@pytest.mark.parametrize(("status", "pools"), POOLS.values(), ids=POOLS)
def test_a_pod_runs_in_the_shared_pools_of_its_numa_nodes(status: str, pools: int) -> None:
    annotations = {"scheduling.koordinator.sh/resource-status": status}
    read = read_pod({"metadata": {"name": "p", "uid": UID, "annotations": annotations}})
    assert read.planned(mems=False).pools == pools


@pytest.mark.parametrize("text", ["{", "[]", '{"cpuset":"x"}', '{"cpuset":3}', '{"numaNodeResources":[{}]}', "null x"])
def test_an_unreadable_resource_status_leaves_the_pod_alone_and_is_one_event(text: str) -> None:
    annotations = {"scheduling.koordinator.sh/resource-status": text}
    labels = {"koordinator.sh/qosClass": "LSR"}
    read = read_pod({"metadata": {"name": "p", "uid": UID, "annotations": annotations, "labels": labels}})
    assert read.planned(mems=True).unreadable

    decided = decide(NODE, HOST, GpuView(), [read], Evidence(), Rules(BUILT_IN), StandingObjects(), 0.0)
    (event,) = decided.unread
    assert (event.reason, event.about["uid"]) == ("AnnotationUnreadable", UID)
    assert "resource-status" in event.message
    assert any("resource-status" in problem for problem in decided.problems)

    told, found = occurrences(NODE, EventMemory(), HOST, GpuView(), {}, (), decided.unread)
    again, nothing = occurrences(NODE, told, HOST, GpuView(), {}, (), decided.unread)
    assert (found, nothing) == ((event,), ())
    mended, _ = occurrences(NODE, again, HOST, GpuView(), {}, ())
    assert mended.standing == frozenset()


NAMELESS = {
    # class, CPUs that the container requests, resource-status, whether its CPUs are unknown
    "LSR": ("LSR", "2", "{}", True),
    "LSE": ("LSE", "2", '{"cpuset":""}', True),
    "a name in other letters": ("LSR", "2", '{"Cpuset":"0-3"}', True),
    "no annotation": ("LSR", "2", None, False),
    "CPUs are named": ("LSR", "2", '{"cpuset":"0-1"}', False),
    "a class without CPUs of its own": ("LS", "2", "{}", False),
    "no whole CPUs": ("LSR", "500m", "{}", False),
}


@pytest.mark.parametrize(("qos", "cpu", "status", "unknown"), NAMELESS.values(), ids=NAMELESS)
def test_a_pod_with_cpus_of_its_own_that_its_resource_status_does_not_name_keeps_them(
    qos: str, cpu: str, status: str | None, *, unknown: bool
) -> None:
    annotations = {} if status is None else {"scheduling.koordinator.sh/resource-status": status}
    metadata = {"name": "p", "uid": UID, "annotations": annotations, "labels": {"koordinator.sh/qosClass": qos}}
    sidecar = {"name": "s", "resources": {}}
    main = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    read = read_pod({"metadata": metadata, "spec": {"containers": [sidecar, main]}})
    assert (read.planned(mems=False).unreadable, read.may_own_cpus, bool(read.problems)) == (unknown,) * 3
