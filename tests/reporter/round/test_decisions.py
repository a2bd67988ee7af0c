"""What follows from what was read: who holds what, what contradicts, and what is worth an Event."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocator.cpu.cpuset import parse
from allocator.devicetype import BUILT_IN
from allocator.holdings import Share
from allocator.wire.nodetopology import CpuBasicInfo
from allocator.wire.resourcestatus import ResourceStatus
from reporter import agree, evidence
from reporter.agree import Agreement, CardUse, ContainerSeen, Evidence, Mismatch
from reporter.cgroup.apply import Hierarchy
from reporter.cgroup.layout import Driver, Layout, QosClass, Version
from reporter.decide import GpuView, HostReading, Rules, Standing, decide, health_events, held, outage_event
from reporter.gpu.facts import GpuFacts, GpuProcess, Outage
from reporter.gpu.faults import STANDING
from reporter.gpu.health import CardRecord, GpuHealth, NodeRecord, State
from reporter.inventory.cpus import CpuReading
from reporter.kubelet.devicecheckpoint import DeviceCheckpoint, PodDevices
from reporter.kubelet.watched import Reading
from reporter.pods import NodePod, read_pod
from reporter.publish.identity import NodeIdentity

NODE = NodeIdentity("n1", "node-uid")
UID = "11111111-2222-3333-4444-555555555555"
BOX = "a" * 64
CARDS = {0: "GPU-0", 1: "GPU-1"}
MIB = 2**20


def pod(**over: Any) -> NodePod:
    plain = NodePod(UID, "ns", "p", UID, QosClass.BURSTABLE, containers={BOX: "main"})
    return replace(plain, **over)


def sharing(memory: int = 100 * MIB) -> NodePod:
    share = Share("gpu", "GPU-0", 0, {"gpu-core": 50, "gpu-memory": memory}, ("main",))
    return pod(shares=(share,), visible={("main", "gpu"): frozenset({"GPU-0"})})


def host(*entries: PodDevices, **over: Any) -> HostReading:
    checkpoint = Reading(DeviceCheckpoint(entries, {}), None)
    return HostReading(CpuReading(None, CpuBasicInfo(), "no CPUs"), checkpoint=checkpoint, **over)


def record(state: State = State.HEALTHY, count: int = 0, reason: str = "") -> NodeRecord:
    cause = STANDING[reason] if reason else None
    health = GpuHealth(state, 0.0, cause, count)
    return NodeRecord(
        "boot", {uuid: CardRecord(GpuFacts(uuid=uuid, minor=n), health, 0.0) for n, uuid in CARDS.items()}
    )


# Agreement


@pytest.mark.parametrize(
    ("one", "seen", "uses", "kinds"),
    [
        (pod(status=ResourceStatus(0b11)), ContainerSeen(cpus=0b11), (), []),
        (pod(status=ResourceStatus(0b11)), ContainerSeen(cpus=0b111), (), ["cpuset"]),
        (pod(status=ResourceStatus(0b11)), ContainerSeen(), (), []),
        (sharing(), ContainerSeen(visible="GPU-0"), (), []),
        (sharing(), ContainerSeen(visible="all"), (), ["environment"]),
        (sharing(), ContainerSeen(visible=""), (), ["environment"]),
        (sharing(), ContainerSeen(visible=None), (), []),
        (sharing(), ContainerSeen(), (CardUse("GPU-0", UID, 1, 100 * MIB),), []),
        (
            sharing(),
            ContainerSeen(),
            (CardUse("GPU-0", UID, 1, 60 * MIB), CardUse("GPU-0", UID, 2, 60 * MIB)),
            ["memory"],
        ),
        (sharing(), ContainerSeen(), (CardUse("GPU-1", UID, 1, None),), ["process"]),
        (sharing(), ContainerSeen(), (CardUse("GPU-1", "another", 1, None),), []),
    ],
    ids=[
        "its CPUs",
        "more CPUs",
        "CPUs unread",
        "its card",
        "all cards",
        "no card",
        "environment unread",
        "its memory",
        "more memory in two processes",
        "another card",
        "somebody else's process",
    ],
)
def test_what_is_contradicts_what_was_decided(
    one: NodePod, seen: ContainerSeen, uses: tuple[CardUse, ...], kinds: list[str]
) -> None:
    (found,) = agree.agreements([one], Evidence({BOX: seen}, uses, CARDS))

    assert [mismatch.kind for mismatch in found.mismatches] == kinds


def test_cpus_that_are_the_kubelets_business_are_not_compared() -> None:
    seen = Evidence({BOX: ContainerSeen(cpus=0b1000)})
    one = pod(status=ResourceStatus(0b11))

    assert agree.agreements([one], seen)[0].mismatches
    assert not agree.agreements([one], seen, frozenset({UID}))[0].mismatches


def test_a_pod_for_which_nothing_was_decided_is_not_told() -> None:
    assert agree.agreements([pod()], Evidence({BOX: ContainerSeen(cpus=1, visible="all")})) == []


def test_an_annotation_that_is_too_long_tells_of_those_that_do_not_agree() -> None:
    wrong = Mismatch("memory", "x" * 900)
    found = [Agreement(pod(uid=f"{n}", name="y" * 200), (wrong,) if n < 80 else ()) for n in range(500)]

    text = agree.annotation(found)

    told = json.loads(text)
    assert len(text) <= 64 * 1024
    assert 50 < len(told) < 80
    assert not any(row["agrees"] for row in told.values())
    assert agree.annotation([]) == ""


# Cards that nobody of ours gave away


@pytest.mark.parametrize(
    ("seen", "uses", "cards"),
    [
        (ContainerSeen(visible="GPU-1"), (), {"GPU-1"}),
        (ContainerSeen(visible="0,1"), (), {"GPU-0", "GPU-1"}),
        (ContainerSeen(visible="0,1", minors=frozenset({1})), (), {"GPU-1"}),
        (ContainerSeen(visible="0", minors=frozenset()), (), set()),
        (ContainerSeen(visible="all", minors=frozenset({0, 1})), (), set()),
        (ContainerSeen(visible="all"), (CardUse("GPU-1", UID, 7, 5),), {"GPU-1"}),
        (ContainerSeen(visible="void"), (), set()),
        (ContainerSeen(), (CardUse("GPU-0", None, 7, 5),), set()),
    ],
    ids=["by UUID", "by number", "those it has", "none it has", "a monitor", "a process", "void", "no Pod's process"],
)
def test_pods_with_cards_without_our_annotation_are_found(
    seen: ContainerSeen, uses: tuple[CardUse, ...], cards: set[str]
) -> None:
    found = agree.strangers([pod()], Evidence({BOX: seen}, uses, CARDS), frozenset())

    assert {card for one in found for card in one.device_ids} == cards
    assert agree.strangers([sharing()], Evidence({BOX: seen}, uses, CARDS), frozenset()) == ()
    assert agree.strangers([pod()], Evidence({BOX: seen}, uses, CARDS), frozenset({UID})) == ()


@pytest.mark.parametrize(
    ("ids", "pods", "cards"),
    [
        (("GPU-1",), [pod()], ("GPU-1",)),
        (("GPU-1::0", "GPU-1::3"), [pod()], ("GPU-1",)),
        (("1",), [pod()], ("GPU-1",)),
        (("GPU-1",), [sharing()], None),
        (("GPU-1",), [pod(finished=True)], None),
        (("GPU-1",), [], None),
        (("GPU-1",), [pod(uid="mirror")], ("GPU-1",)),
    ],
    ids=["a card", "slices of one", "by index", "ours", "finished", "gone", "a static Pod"],
)
def test_the_kubelets_checkpoint_counts_for_pods_that_live_and_are_not_ours(
    ids: tuple[str, ...], pods: list[NodePod], cards: tuple[str, ...] | None
) -> None:
    found = held(host(PodDevices(UID, "main", "nvidia.com/gpu", ids)), pods, record())

    assert [one.device_ids for one in found] == ([] if cards is None else [cards])


# Events and outages


def test_each_change_of_a_card_is_told_once_with_its_count() -> None:
    worn = record(State.UNHEALTHY, 3, "RowRemapFailed")

    first = health_events(NODE, NodeRecord("", {}), worn)
    again = health_events(NODE, worn, worn)
    more = health_events(NODE, worn, record(State.UNHEALTHY, 5, "RowRemapFailed"))
    well = health_events(NODE, worn, record())

    assert [(one.reason, one.count, one.type) for one in first] == [("RowRemapFailed", 3, "Warning")] * 2
    assert again == []
    assert [one.count for one in more] == [2, 2]
    assert [(one.reason, one.type) for one in well] == [("GpuHealthy", "Normal")] * 2
    assert health_events(NODE, NodeRecord("", {}), record()) == []


@pytest.mark.parametrize(
    ("view", "nvidia", "told"),
    [
        (GpuView(record(), None, Outage("NvmlHangs", "it hangs", 0)), False, True),
        (GpuView(outage=Outage("NvmlNotFound", "x", 0)), True, True),
        (GpuView(outage=Outage("NvmlNotFound", "x", 0)), False, False),
        (GpuView(record()), True, False),
    ],
    ids=["known cards", "a card by PCI", "no card", "no outage"],
)
def test_an_outage_matters_where_there_is_a_card(view: GpuView, nvidia: Any, told: Any) -> None:
    assert (outage_event(NODE, view, host(nvidia=nvidia)) is not None) is told


@pytest.mark.parametrize(("since", "healthy"), [(50.0, True), (30.0, False)], ids=["a moment", "too long"])
def test_cards_are_trusted_through_a_short_outage_only(since: float, healthy: Any) -> None:
    cards = record()
    named = {uuid: replace(card, facts=replace(card.facts, memory=MIB)) for uuid, card in cards.cards.items()}
    view = GpuView(NodeRecord("boot", named), None, Outage("NvmlHangs", "it hangs", since))

    decided = decide(NODE, host(), view, [], Evidence(), Rules(BUILT_IN, outage_seconds=60.0), Standing(), 100.0)

    assert {device.healthy for device in decided.device.devices} == {healthy}
    assert ("koordgate.io/device-outages" in decided.device.body["metadata"]["annotations"]) is not healthy


# Pods and evidence


def test_a_pod_is_read_with_all_that_was_decided_for_it() -> None:
    annotations = {
        "kubernetes.io/config.hash": "f" * 32,
        "scheduling.koordinator.sh/resource-status": '{"cpuset":"2-3","numaNodeResources":[{"node":1}]}',
        "scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0,"id":"GPU-0"}]}',
        "visible-devices.koordgate.io/main": "GPU-0",
    }
    obj = {
        "metadata": {"name": "p", "namespace": "ns", "uid": UID, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2000m"}}}]},
        "status": {
            "qosClass": "Guaranteed",
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{BOX}"}, {"name": "new"}],
        },
    }
    read = read_pod(obj)
    planned = read.planned(mems=True)

    assert (planned.uid, planned.cpus, planned.mems, planned.whole_cpus) == ("f" * 32, parse("2-3"), 0b10, True)
    assert read.planned(mems=False).mems == 0
    assert read.containers == {BOX: "main"}
    assert read.visible == {("main", "gpu"): frozenset({"GPU-0"})}
    assert not read.finished


@pytest.mark.parametrize("key", ["resource-status", "device-allocated"])
def test_an_annotation_that_makes_no_sense_is_told_and_the_pod_counts(key: str) -> None:
    about = {"name": "p", "uid": UID, "annotations": {f"scheduling.koordinator.sh/{key}": "{"}}

    read = read_pod({"metadata": about})

    assert (read.shares, read.status) == ((), None)
    assert key in read.problems[0]


@pytest.mark.parametrize("version", Version)
def test_containers_are_looked_at_where_the_kubelet_puts_them(tmp_path: Path, version: Version) -> None:
    layout = Layout(Driver.SYSTEMD)
    folder = tmp_path / layout.pod(QosClass.BURSTABLE, UID) / f"cri-containerd-{BOX}.scope"
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("41\n42\n")
    (folder / ("cpuset.cpus.effective" if version is Version.V2 else "cpuset.cpus")).write_text("1-2\n")
    process = tmp_path / "proc" / "41"
    (process / "root" / "dev").mkdir(parents=True)
    for name in ("nvidia1", "nvidiactl", "null"):
        (process / "root" / "dev" / name).touch()
    (process / "environ").write_bytes(b"PATH=/bin\0NVIDIA_VISIBLE_DEVICES=GPU-1\0")
    hierarchy = Hierarchy(tmp_path, version)

    found = evidence.containers(hierarchy, layout, [pod()], tmp_path / "proc", environment=True)
    without = evidence.containers(hierarchy, layout, [pod()], tmp_path / "proc", environment=False)

    assert found == {BOX: ContainerSeen(0b110, "GPU-1", frozenset({1}))}
    assert without == {BOX: ContainerSeen(0b110)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{BOX}", UID),
        (f"3:cpuset:/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{BOX}.scope", UID),
        (f"1:name=systemd:/kubepods/pod{'f' * 32}/{BOX}", "f" * 32),
        ("0::/system.slice/sshd.service", None),
        ("", None),
    ],
    ids=["cgroupfs", "systemd", "static", "no Pod", "unreadable"],
)
def test_a_process_belongs_to_the_pod_of_its_cgroup(tmp_path: Path, text: str, found: str | None) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"{text}\n")

    uses = evidence.card_uses({"GPU-0": (GpuProcess(7, 5), GpuProcess(8, None))}, tmp_path)

    assert uses == (CardUse("GPU-0", found, 7, 5), CardUse("GPU-0", None, 8, None))
