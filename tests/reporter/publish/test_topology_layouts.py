"""What each layout of the kubelet's CPU state means for cpusets and pools; checkpoints too long for an annotation."""

import pytest

from allocator.vocabulary.cputopology import Cpu, CpuTopology
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.names import DEVICES_CHECKPOINTS
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodetopology import CpuBasicInfo
from allocator.wire.podallocated import ResourceStatus
from reporter.cgroup import plan
from reporter.cgroup.layout import KubernetesQos
from reporter.gpu.entries import DeviceReport
from reporter.inventory import CpuInventory
from reporter.kubelet import devicecheckpoint
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.kubelet.devicecheckpoint import ANNOTATION_BYTES, PodDevices
from reporter.pods import NodeIdentity, NodePod
from reporter.publish import device, nodetopology

NODE = NodeIdentity("n1", "node-uid")
STATIC = KubeletConfiguration(cpu_policy="static")
CPUS = CpuInventory(CpuTopology.of(Cpu(cpu, cpu // 2, 0, 0) for cpu in range(8)), CpuBasicInfo(model="x"))


def built(state: CpuState, *pods: NodePod) -> nodetopology.TopologyObject:
    return nodetopology.build(NODE, CPUS, {}, nodetopology.KubeletState(STATIC, state), pods)


def pod(cpus: int) -> NodePod:
    status = ResourceStatus(cpus) if cpus else None
    return NodePod("u", "ns", "u", "u", KubernetesQos.GUARANTEED, "LSR", status=status, asked={"a": 2, "b": 2})


@pytest.mark.parametrize("layout", [StateLayout.V2, StateLayout.V3])
def test_containers_that_have_sets_of_their_own_are_left_on_them(layout: StateLayout) -> None:
    sets = {"a": 0b1100, "b": 0b110000}
    one = pod(0b111100)
    made = built(CpuState(layout, "static", 0b11000011, {"u": sets}), one)

    (want,) = plan.wants([one.planned(mems=False)], made.pools, made.kubelet)
    assert made.kubelet.given == {"u": sets}
    assert (want.cpus, want.room & 0b111100) == (0, 0b111100)


@pytest.mark.parametrize(
    ("entries", "whole", "given"),
    [
        ({}, 0b111100, {"": 0b111100}),
        ({"a": 0b1100}, 0b111100, {"a": 0b1100, "": 0b110000}),
        ({"a": 0b1100, "b": 0b110000}, 0b111100, {"a": 0b1100, "b": 0b110000}),
    ],
    ids=["no container", "one of two", "both"],
)
def test_a_whole_pods_set_adds_what_no_container_has(
    entries: dict[str, int], whole: int, given: dict[str, int]
) -> None:
    made = built(CpuState(StateLayout.V3, "static", 0b11000011, {"u": entries} if entries else {}, pods={"u": whole}))

    assert made.kubelet.given == {"u": given}
    assert made.pools.shared & whole == 0


def cards(*ids: str) -> DeviceReport:
    resources = {f"koordinator.sh/gpu-{tail}": "100" for tail in ("core", "memory-ratio")}
    resources["koordinator.sh/gpu-memory"] = str(80 * 2**30)
    conditions = [{"type": "Healthy", "status": "True", "reason": "x", "message": ""}]
    entries = (
        {"type": "gpu", "id": one, "minor": minor, "health": True, "resources": resources, "conditions": conditions}
        for minor, one in enumerate(ids)
    )
    return DeviceReport(tuple(entries), {}, {}, ())


def given_away(count: int, answer: bytes = b"") -> list[PodDevices]:
    return [PodDevices(f"{n:036d}", "main", "nvidia.com/gpu", (f"GPU-{n:036d}",), answer) for n in range(count)]


@pytest.mark.parametrize(("count", "answer"), [(125, b"x" * 650), (1000, b"")], ids=["answers", "Pods"])
def test_checkpoints_under_both_names_leave_room_for_other_annotations(count: int, answer: bytes) -> None:
    held = given_away(count, answer)
    last = held[-1].device_ids[0]
    made = device.build(NODE, cards(last, "GPU-free"), [], BUILT_IN, facts=device.DeviceFacts(held=held))

    annotations = made.body["metadata"]["annotations"]
    assert sum(len(annotations[key]) for key in DEVICES_CHECKPOINTS) <= 2 * ANNOTATION_BYTES <= 128 * 1024
    assert read_device_object(made.body).kubelet_held & {last, "GPU-free"} == {last}
    assert made.problems == ()


def test_checkpoints_that_fit_in_no_form_hold_every_device() -> None:
    told = device.DeviceFacts(held=given_away(3000))
    made = device.build(NODE, cards("GPU-0", "GPU-1"), [], BUILT_IN, facts=told)

    annotations = made.body["metadata"]["annotations"]
    assert {annotations[key] for key in DEVICES_CHECKPOINTS} == {devicecheckpoint.UNTOLD}
    assert read_device_object(made.body).kubelet_held == {"GPU-0", "GPU-1"}
    assert made.problems[0].endswith("do not fit an annotation of 65536 bytes; all devices count as allocated")
