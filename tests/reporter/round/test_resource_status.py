"""What the reporter does with a Pod's resource-status: the pools that it names, and one that cannot be read."""

import pytest

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.wire.nodetopology import CpuBasicInfo
from reporter.inventory import CpuInventory
from reporter.pods import NodeIdentity, read_pod
from reporter.proof.agree import Evidence
from reporter.reading import GpuView, HostReading
from reporter.round.decide import Rules, StandingObjects, decide
from reporter.round.occurrences import EventMemory, occurrences
from reporter.takeover import TakenOver

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

    told, found = occurrences(NODE, EventMemory(), HOST, GpuView(), {}, (), TakenOver(), decided.unread)
    again, nothing = occurrences(NODE, told, HOST, GpuView(), {}, (), TakenOver(), decided.unread)
    assert (found, nothing) == ((event,), ())
    mended, _ = occurrences(NODE, again, HOST, GpuView(), {}, (), TakenOver())
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
