"""Each file that the reporter reads, damaged in each way, at its first reading and at later ones: nothing is freed."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cpu_states
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.names import DEVICES_CHECKPOINTS
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodetopology import CpuBasicInfo, read_node_topology
from reporter.cgroup.layout import KubernetesQos
from reporter.files import FileReading
from reporter.host import Host
from reporter.inventory import CpuInventory
from reporter.kubelet import checkpoint, cpustate, devicecheckpoint
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.kubelet.devicecheckpoint import UNTOLD, PodDevices, read_annotation
from reporter.pods import NodeIdentity, NodePod
from reporter.proof.agree import Evidence
from reporter.reading import GpuView, HostReading
from reporter.round.decide import Decided, Rules, StandingObjects, decide

NODE = NodeIdentity("n1", "node-uid")
UID = "11111111-2222-3333-4444-555555555555"
NIC = "0000:3b:00.0"
POD = NodePod(UID, "ns", "plugin", UID, KubernetesQos.GUARANTEED)
CONFIGURATION = json.dumps(
    {
        "kind": "KubeletConfiguration",
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0-1",
        "topologyManagerPolicy": "restricted",
    }
)
Where = Callable[[Any], Path]
FILES: Mapping[str, Where] = {
    "the kubelet's device checkpoint": lambda site: site.checkpoint,
    "its CPU state": lambda site: site.folder / "kubelet" / cpustate.FILE,
    "its configuration": lambda site: site.folder / "kubelet" / "config.yaml",
    "its PodResources socket": lambda site: site.pod_resources,
    "the online CPUs": lambda site: site.machine.sysfs / "devices/system/cpu/online",
    "the siblings of a CPU": lambda site: site.machine.sysfs / "devices/system/cpu/cpu3/topology/core_cpus_list",
    "the CPUs of a NUMA node": lambda site: site.machine.sysfs / "devices/system/node/node1/cpulist",
    "the memory of a NUMA node": lambda site: site.machine.sysfs / "devices/system/node/node1/meminfo",
    "the PCI devices": lambda site: site.machine.sysfs / "class/infiniband/mlx5_0",
}


def _emptied(path: Path) -> None:
    path.write_text("")


def _truncated(path: Path) -> None:
    path.write_text('{"Data": {"PodDeviceEntr')


def _corrupt(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00{}")


DAMAGES = {
    "empty": _emptied,
    "truncated": _truncated,
    "corrupt": _corrupt,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path),
}


def damage(path: Path, how: Callable[[Path], object]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    how(path)


def write_files(site: Any) -> None:
    """A static kubelet that gave a NIC and CPUs 2-3 to a Pod."""
    entry = devicecheckpoint._Entry(UID, "main", "rdma/hca", {0: [NIC]}, None)
    checksum = checkpoint.checksum(devicecheckpoint._show([entry], {}))
    row = {"PodUID": UID, "ContainerName": "main", "ResourceName": "rdma/hca", "DeviceIDs": {"0": [NIC]}}
    data = {"PodDeviceEntries": [{**row, "AllocResp": None}], "RegisteredDevices": {}}
    site.checkpoint.write_text(json.dumps({"Data": data, "Checksum": checksum}))
    state = CpuState(StateLayout.V2, "static", 0xF3, {UID: {"main": 0b1100}})
    (site.folder / "kubelet" / cpustate.FILE).write_bytes(cpu_states.render(state))
    (site.folder / "kubelet" / "config.yaml").write_text(CONFIGURATION)


def decided(host: Host, standing: StandingObjects, pods: tuple[NodePod, ...] = (POD,)) -> Decided:
    return decide(NODE, host.read(pods), GpuView(), pods, Evidence(), Rules(BUILT_IN), standing, 0.0)


def stands(before: StandingObjects, found: Decided) -> StandingObjects:
    """The objects after a publication: a topology that is not written stays."""
    return StandingObjects(None, found.device.body, found.topology.body or before.topology)


def check_held(objects: StandingObjects) -> None:
    """What the Pod has is given to nobody, and what the kubelet demands is still known."""
    assert objects.device is not None
    assert objects.topology is not None
    device = read_device_object(objects.device, BUILT_IN)
    assert {one.id for one in device.devices} <= {NIC}
    assert NIC in device.kubelet_held or not device.devices
    topology = read_node_topology(objects.topology)
    assert [alloc.cpus for alloc in topology.by_kubelet] == [0b1100]
    assert not any(pool.cpus & 0b1100 for pool in topology.shared_pools)
    assert (topology.kubelet.policy, topology.kubelet.reserved, topology.numa_policy) == ("static", 0b11, "Restricted")
    assert topology.cpu is not None
    assert {cpu.core for cpu in topology.cpu.cpus if cpu.id in {2, 3}} == {2, 3}
    assert [zone.allocatable["memory"] for zone in topology.zones.values()] == [2**30, 2**30]


@pytest.mark.parametrize("how", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("where", FILES.values(), ids=FILES)
@pytest.mark.parametrize("when", ["first", "later"])
def test_a_file_that_cannot_be_read_frees_nothing(
    site: Any, where: Where, how: Callable[[Path], object], when: str
) -> None:
    write_files(site)
    host = Host(site.settings())
    first = decided(host, StandingObjects())
    objects = stands(StandingObjects(), first)
    check_held(objects)

    damage(where(site), how)
    if when == "first":
        host = Host(site.settings())
    for _ in range(3):
        objects = stands(objects, decided(host, objects))
        check_held(objects)


UNREAD = HostReading(CpuInventory(None, CpuBasicInfo(), "no CPUs"), checkpoint=FileReading(None, "corrupt"))


def told(standing: dict[str, Any] | None, *pods: NodePod) -> str | None:
    objects = StandingObjects(device=standing)
    found = decide(NODE, UNREAD, GpuView(), pods, Evidence(), Rules(BUILT_IN), objects, 0.0)
    stated = [found.device.body["metadata"]["annotations"].get(key) for key in DEVICES_CHECKPOINTS]
    assert stated[0] == stated[1]
    return None if stated[0] is None else str(stated[0])


def obj(text: str | None, **labels: str) -> dict[str, Any]:
    annotations = {} if text is None else {DEVICES_CHECKPOINTS[0]: text}
    return {"metadata": {"name": "n1", "labels": labels, "annotations": annotations}}


OURS = {"app.kubernetes.io/managed-by": "koordgate"}
HELD = devicecheckpoint.annotation([PodDevices(UID, "main", "nvidia.com/gpu", ("GPU-0",), b"x")])


@pytest.mark.parametrize(
    ("standing", "pods", "expected"),
    [
        (None, (POD,), UNTOLD),
        (obj(None), (POD,), UNTOLD),
        (obj(None, **OURS), (POD,), None),
        (obj(HELD), (POD,), HELD),
        (obj(HELD, **OURS), (), None),
        (obj("{", **OURS), (POD,), UNTOLD),
        (obj(UNTOLD, **OURS), (), UNTOLD),
        (obj('[{"deviceIDs":["GPU-0"]}]', **OURS), (), '[{"deviceIDs":["GPU-0"]}]'),
    ],
    ids=[
        "no object",
        "an object of others that says nothing",
        "ours says that nothing is held",
        "an object says who holds what",
        "the Pod is gone",
        "the object cannot be read",
        "the object says that nobody can tell",
        "the object names no Pods",
    ],
)
def test_of_a_checkpoint_that_was_never_readable_the_object_tells_or_all_is_held(
    standing: dict[str, Any] | None, pods: tuple[NodePod, ...], expected: str | None
) -> None:
    assert told(standing, *pods) == expected


TEXTS = st.text(st.characters(codec="utf-8"), max_size=9)
ROWS = st.builds(PodDevices, TEXTS, TEXTS, TEXTS, st.lists(TEXTS, max_size=3).map(tuple), st.binary(max_size=5))


@settings(max_examples=examples(100))
@given(st.lists(ROWS, max_size=4))
def test_what_is_written_of_held_devices_is_read_back(rows: list[PodDevices]) -> None:
    text = devicecheckpoint.annotation(rows)
    assert sorted(read_annotation(text), key=repr) == sorted(rows, key=repr)
