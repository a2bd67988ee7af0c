"""Nodes with several Pods, containers and cards: one that is skipped never hides those after it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from allocator.vocabulary.holdings import Share
from allocator.wire.podallocated import ResourceStatus
from reporter.cgroup.cpusets import Hierarchy
from reporter.cgroup.layout import CgroupLayout, Driver, KubernetesQos, Version
from reporter.host import Host
from reporter.kubelet.devicecheckpoint import PodDevices
from reporter.pods import NodePod
from reporter.proof import agree, evidence
from reporter.proof.agree import CardUse, ContainerSeen, Evidence
from reporter.settings import parse

CARDS = {number: f"GPU-{number}" for number in range(4)}
MIB = 2**20


def uid(number: int) -> str:
    return f"{number:08d}-2222-3333-4444-555555555555"


def box(number: int, part: int = 0) -> str:
    return f"{number:032x}{part:032x}"


def pod(number: int, *names: str, **over: Any) -> NodePod:
    plain = NodePod(uid(number), "ns", f"p{number}", uid(number), KubernetesQos.BURSTABLE)
    containers = {box(number, part): name for part, name in enumerate(names or ("main",))}
    return replace(plain, containers=containers, **over)


def owner(number: int, card: int, *names: str) -> NodePod:
    share = Share("gpu", CARDS[card], card, {"gpu-core": 50, "gpu-memory": 100 * MIB}, names or ("main",))
    visible = {(name, "gpu"): frozenset({CARDS[card]}) for name in names or ("main",)}
    return pod(number, *names, shares=(share,), visible=visible)


def test_each_pod_is_compared_whatever_those_before_it_are() -> None:
    pods = (
        owner(4, 2),
        pod(3, status=ResourceStatus(0b1100)),
        pod(1),  # nothing was allocated to it
        owner(2, 1),  # nothing was seen of it
        owner(5, 3),
    )
    containers = {
        box(1): ContainerSeen(cpus=1),
        box(3): ContainerSeen(cpus=0b11),
        box(4): ContainerSeen(visible="GPU-2"),
        box(5): ContainerSeen(visible="GPU-0"),
    }
    uses = (
        CardUse("GPU-2", uid(4), 7, 60 * MIB),
        CardUse("GPU-3", uid(5), 8, 60 * MIB),
        CardUse("GPU-2", uid(5), 9, 1),
    )

    found = agree.agreements(pods, Evidence(containers, uses, CARDS))

    assert [(one.pod.name, [mismatch.kind for mismatch in one.mismatches]) for one in found] == [
        ("p3", ["cpuset"]),
        ("p4", []),
        ("p5", ["environment", "process"]),
    ]


def test_memory_that_is_not_known_counts_as_none() -> None:
    pods = (owner(1, 0), owner(2, 1), owner(3, 2))
    uses = (
        CardUse("GPU-0", uid(1), 7, 100 * MIB),
        CardUse("GPU-0", uid(1), 8, None),
        CardUse("GPU-1", uid(2), 9, 100 * MIB + 1),
        CardUse("GPU-1", uid(2), 10, None),
        CardUse("GPU-2", uid(3), 11, None),
    )

    found = agree.agreements(pods, Evidence({}, uses, CARDS))

    assert {one.pod.name: [wrong.message for wrong in one.mismatches] for one in found if one.mismatches} == {
        "p2": ["it uses more memory of card GPU-1 than the 100 MiB that were allocated to it"]
    }


def test_each_entry_of_the_checkpoint_counts_for_its_own_pod() -> None:
    entries = [
        PodDevices(uid(1), "main", "example.com/fuse", ("fuse-1",)),
        PodDevices(uid(2), "main", "nvidia.com/gpu", ("none", "GPU-2::1")),
        PodDevices(uid(3), "main", "nvidia.com/gpu", ()),
        PodDevices(uid(4), "side", "example.com/card", ("GPU-0",)),
    ]

    assert agree.card_holders(entries, Evidence({}, (), CARDS)) == {uid(2), uid(4)}


def test_a_pod_whose_cgroup_cannot_be_named_hides_no_pod_after_it(tmp_path: Path) -> None:
    layout = CgroupLayout(Driver.CGROUPFS)
    pods = (replace(pod(1), cgroup="../x"), pod(2, "a", "b"), pod(3))
    for number, part in ((2, 0), (2, 1), (3, 0)):
        folder = tmp_path / layout.pod(KubernetesQos.BURSTABLE, uid(number)) / box(number, part)
        folder.mkdir(parents=True)
        (folder / "cpuset.cpus.effective").write_text(f"{number + part}\n")
    (tmp_path / layout.pod(KubernetesQos.BURSTABLE, uid(2)) / ("f" * 64)).mkdir()  # the sandbox: no container of it

    found = evidence.containers(Hierarchy(tmp_path, Version.V2), layout, pods, tmp_path / "proc", environment=False)

    assert {identity: seen.cpus for identity, seen in found.items()} == {box(2): 4, box(2, 1): 8, box(3): 8}


def test_cpusets_are_read_below_the_root_that_is_told_and_else_below_that_of_the_kubelets_file(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "config.yaml").write_text("cgroupRoot: /file")
    pods = (
        pod(1, status=ResourceStatus(0b1)),
        pod(2, "a", "istio-proxy", status=ResourceStatus(0b10), shared=frozenset({"istio-proxy"})),
    )
    cgroup = ""
    for root, first in (("file", 2), ("told", 4)):
        for number in (1, 2):
            cgroup = CgroupLayout(Driver.CGROUPFS, f"/{root}").pod(KubernetesQos.BURSTABLE, uid(number))
            (tmp_path / cgroup / box(number)).mkdir(parents=True)
            (tmp_path / cgroup / box(number) / "cpuset.cpus.effective").write_text(f"{first + number}\n")
        shared = tmp_path / cgroup / box(2, 1)  # of the second Pod: it runs in the pool
        shared.mkdir()
        (shared / "cpuset.cpus.effective").write_text("0-7\n")
    host = Host(
        parse(
            f"{{roots: {{cgroup: {tmp_path}, proc: {tmp_path}, sysfs: {tmp_path}, kubelet: {tmp_path}}},"
            f" kubelet: {{configuration: {tmp_path}/config.yaml}}}}"
        )
    )

    assert host.read(pods).cpusets == {uid(1): 1 << 3, uid(2): 1 << 4}
    assert host.read(pods, "/told").cpusets == {uid(1): 1 << 5, uid(2): 1 << 6}
