"""What follows from a reading: who holds what, which contradictions there are, and which Events."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import CORDONED
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodetopology import CpuBasicInfo
from allocator.wire.podallocated import ResourceStatus
from reporter.cgroup.cpusets import Hierarchy
from reporter.cgroup.layout import CgroupLayout, Driver, KubernetesQos, Version
from reporter.files import FileReading
from reporter.gpu.facts import GpuFacts, GpuProcess, Outage
from reporter.gpu.faults import STANDING
from reporter.gpu.health import CardRecord, CardState, GpuHealth, NodeRecord
from reporter.inventory import CpuInventory, PciDevice
from reporter.kubelet.devicecheckpoint import DeviceCheckpoint, PodDevices
from reporter.metrics import ReporterMetrics
from reporter.pods import NodeIdentity, NodePod, read_pod
from reporter.proof import agree, evidence
from reporter.proof.agree import Agreement, CardUse, ContainerSeen, Evidence, Mismatch
from reporter.reading import GpuView, HostReading
from reporter.round.decide import Decided, Rules, StandingObjects, decide, held
from reporter.round.occurrences import (
    EventMemory,
    claim_events,
    health_events,
    mismatch_events,
    occurrences,
    outage_event,
)

NODE = NodeIdentity("n1", "node-uid")
UID = "11111111-2222-3333-4444-555555555555"
BOX = "a" * 64
CARDS = {0: "GPU-0", 1: "GPU-1"}
MIB = 2**20


def pod(**over: Any) -> NodePod:
    plain = NodePod(UID, "ns", "p", UID, KubernetesQos.BURSTABLE, containers={BOX: "main"})
    return replace(plain, **over)


def sharing(memory: int = 100 * MIB) -> NodePod:
    share = Share("gpu", "GPU-0", 0, {"gpu-core": 50, "gpu-memory": memory}, ("main",))
    return pod(shares=(share,), visible={("main", "gpu"): frozenset({"GPU-0"})})


def host(*entries: PodDevices, **over: Any) -> HostReading:
    checkpoint = FileReading(DeviceCheckpoint(entries), None)
    return HostReading(CpuInventory(None, CpuBasicInfo(), "no CPUs"), checkpoint=checkpoint, **over)


def record(state: CardState = CardState.HEALTHY, count: int = 0, reason: str = "") -> NodeRecord:
    cause = STANDING[reason] if reason else None
    health = GpuHealth(state, 0.0, cause, count)
    return NodeRecord(
        "boot", {uuid: CardRecord(GpuFacts(uuid=uuid, minor=n), health, 0.0) for n, uuid in CARDS.items()}
    )


# Numbers of cards


# Agreement


@pytest.mark.parametrize(
    ("one", "seen", "uses", "kinds"),
    [
        (pod(status=ResourceStatus(0b11)), ContainerSeen(cpus=0b11), (), []),
        (pod(status=ResourceStatus(0b11)), ContainerSeen(cpus=0b111), (), ["cpuset"]),
        (pod(status=ResourceStatus(0b11)), ContainerSeen(visible=""), (), []),
        (sharing(), ContainerSeen(visible="GPU-0"), (), []),
        (sharing(), ContainerSeen(visible="all"), (), ["environment"]),
        (sharing(), ContainerSeen(visible=""), (), ["environment"]),
        (sharing(), ContainerSeen(cpus=0b11, visible=None), (), []),
        (sharing(), ContainerSeen(visible="runtime.nvidia.com/gpu=GPU-0"), (), []),
        (sharing(), ContainerSeen(visible="runtime.nvidia.com/gpu=GPU-1"), (), ["environment"]),
        (sharing(), ContainerSeen(visible="void"), (), []),
        (sharing(), ContainerSeen(visible="void", minors=frozenset({0, 7})), (), []),
        (sharing(), ContainerSeen(visible="void", minors=frozenset({1})), (), ["shown"]),
        (sharing(), ContainerSeen(visible="GPU-0", minors=frozenset()), (), ["shown"]),
        (sharing(), ContainerSeen(), (CardUse("GPU-0", UID, 1, 100 * MIB),), []),
        (
            sharing(),
            ContainerSeen(),
            (CardUse("GPU-0", UID, 1, 60 * MIB), CardUse("GPU-0", UID, 2, 60 * MIB)),
            ["memory"],
        ),
        (sharing(), ContainerSeen(), (CardUse("GPU-1", UID, 1, None),), ["process"]),
        (sharing(), ContainerSeen(cpus=1), (CardUse("GPU-1", "another", 1, None),), []),
    ],
    ids=[
        "its CPUs",
        "more CPUs",
        "CPUs unread",
        "its card",
        "all cards",
        "no card",
        "environment unread",
        "its card by its CDI name",
        "another card by its CDI name",
        "what NVIDIA's edits leave",
        "what NVIDIA's edits leave, and the card's file",
        "what NVIDIA's edits leave, and another card's file",
        "no file of its card",
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


@pytest.mark.parametrize(
    ("cpus", "left_alone", "told"),
    [
        (0b1000, frozenset(), ["container main has CPUs 3; 0-1 were allocated"]),
        (0b1000, frozenset({UID}), ["the kubelet's static policy gave its containers CPUs 3; 0-1 were allocated"]),
        (0b11, frozenset({UID}), []),
        (0b10, frozenset({UID}), []),
    ],
    ids=["ours", "the kubelet's", "the kubelet's, and the same", "the kubelet's, one container's part"],
)
def test_other_cpus_than_were_decided_are_reported_whoever_owns_them(
    cpus: int, left_alone: frozenset[str], told: list[str]
) -> None:
    seen = Evidence({BOX: ContainerSeen(cpus=cpus)})

    (found,) = agree.agreements([pod(status=ResourceStatus(0b11), asked={"main": 2})], seen, left_alone)

    assert [mismatch.message for mismatch in found.mismatches] == told


@pytest.mark.parametrize("left_alone", [frozenset[str](), frozenset({UID})], ids=["ours", "the kubelet's"])
def test_a_container_on_shared_cpus_contradicts_nothing(left_alone: frozenset[str]) -> None:
    seen = Evidence({BOX: ContainerSeen(cpus=0b11), "e" * 64: ContainerSeen(cpus=0b1100)})
    mixed = pod(
        status=ResourceStatus(0b11),
        containers={BOX: "main", "e" * 64: "istio-proxy"},
        asked={"main": 2, "istio-proxy": 1},
        shared=frozenset({"istio-proxy"}),
    )

    (found,) = agree.agreements([mixed], seen, left_alone)

    assert found.mismatches == ()


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (Evidence(), False),
        (Evidence({"b" * 64: ContainerSeen(cpus=1)}, (CardUse("GPU-0", "another", 1, None),), CARDS), False),
        (Evidence({BOX: ContainerSeen()}), False),
        (Evidence({BOX: ContainerSeen(cpus=1)}), True),
        (Evidence({BOX: ContainerSeen(visible="GPU-0")}), True),
        (Evidence({}, (CardUse("GPU-0", UID, 1, 5),), CARDS), True),
    ],
    ids=["nothing yet", "others", "unreadable", "its cgroup", "its environment", "a process"],
)
def test_a_pod_of_which_nothing_was_seen_is_not_said_to_agree(seen: Evidence, told: Any) -> None:
    text = agree.annotation(agree.agreements([sharing()], seen))

    assert (json.loads(text) if text else {}) == ({UID: {"pod": "ns/p", "agrees": True}} if told else {})


def test_an_annotation_that_is_too_long_lists_those_that_do_not_agree() -> None:
    wrong = Mismatch("memory", "x" * 900)
    found = [Agreement(pod(uid=f"{n}", name="y" * 200), (wrong,) if n < 80 else ()) for n in range(500)]

    text = agree.annotation(found)

    told = json.loads(text)
    assert len(text) <= 64 * 1024
    assert 50 < len(told) < 80
    assert not any(row["agrees"] for row in told.values())
    assert agree.annotation([]) == ""


def comparison(number: int, length: int, *, agrees: bool) -> Agreement:
    """A Pod's result whose text alone, as an object, has so many characters."""
    one = Agreement(pod(uid=f"{number}", name=""), () if agrees else (Mismatch("memory", ""),))
    message = "x" * (length - len(agree.annotation([one])))
    return (
        replace(one, pod=replace(one.pod, name=message))
        if agrees
        else replace(one, mismatches=(Mismatch("memory", message),))
    )


def test_64_kib_are_told_of_all_pods_and_of_those_that_do_not_agree() -> None:
    wrong = [comparison(number, 32_767, agrees=False) for number in (1, 2)]
    longer = comparison(2, 32_768, agrees=False)
    well = comparison(3, 32_770, agrees=True)

    assert list(json.loads(agree.annotation([wrong[0], well]))) == ["1", "3"]
    assert len(agree.annotation([wrong[0], well])) == 65_536
    assert list(json.loads(agree.annotation([longer, well]))) == ["2"]
    assert list(json.loads(agree.annotation([well, *wrong]))) == ["1", "2"]
    assert list(json.loads(agree.annotation([well, wrong[0], longer]))) == ["1"]


# Cards that were not allocated by koordgate


@pytest.mark.parametrize(
    ("seen", "uses", "held", "claimed"),
    [
        (ContainerSeen(visible="GPU-1"), (), set(), {"GPU-1"}),
        (ContainerSeen(visible="0,1"), (), set(), {"GPU-0", "GPU-1"}),
        (ContainerSeen(visible="0,1", minors=frozenset({1})), (), set(), {"GPU-1"}),
        (ContainerSeen(visible="0", minors=frozenset()), (), set(), set()),
        (ContainerSeen(visible="all", minors=frozenset({0, 1})), (), set(), set()),
        (ContainerSeen(visible="all"), (CardUse("GPU-1", UID, 7, 5),), {"GPU-1"}, set()),
        (ContainerSeen(visible="void"), (), set(), set()),
        (ContainerSeen(visible="void", minors=frozenset({0, 1})), (), set(), set()),
        (ContainerSeen(visible="nvidia.com/gpu=GPU-1,nvidia.com/gpu=0"), (), set(), {"GPU-0", "GPU-1"}),
        (ContainerSeen(), (CardUse("GPU-0", None, 7, 5),), set(), set()),
        (ContainerSeen(visible="GPU-1", minors=frozenset({0, 1})), (), set(), {"GPU-1"}),
        (ContainerSeen(visible="0,1"), (CardUse("GPU-1", UID, 7, 5),), {"GPU-1"}, {"GPU-0"}),
    ],
    ids=[
        "by UUID",
        "by number",
        "those it has",
        "none it has",
        "a monitor",
        "a process",
        "void",
        "void, with every card's file",
        "by CDI names",
        "no Pod's process",
        "by UUID of several",
        "a process on one of two",
    ],
)
def test_of_pods_without_our_annotation_processes_hold_cards_and_environments_only_claim_them(
    seen: ContainerSeen, uses: tuple[CardUse, ...], held: set[str], claimed: set[str]
) -> None:
    found = agree.unaccounted_cards([pod()], Evidence({BOX: seen}, uses, CARDS), frozenset())

    assert {card for one in found.holding for card in one.device_ids} == held
    assert {card for one in found.claims for card in one.cards} == claimed
    assert (
        agree.unaccounted_cards([sharing()], Evidence({BOX: seen}, uses, CARDS), frozenset())
        == agree.UnaccountedCards()
    )
    assert (
        agree.unaccounted_cards([pod()], Evidence({BOX: seen}, uses, CARDS), frozenset({UID}))
        == agree.UnaccountedCards()
    )


@pytest.mark.parametrize(
    ("seen", "indices", "cards"),
    [
        (ContainerSeen(visible="0"), {0: "GPU-1", 1: "GPU-0"}, {"GPU-1"}),
        (ContainerSeen(visible="0"), {}, {"GPU-0"}),
        (ContainerSeen(visible="0", minors=frozenset({1})), {}, {"GPU-1"}),
        (ContainerSeen(visible="0", minors=frozenset({1})), {0: "GPU-0", 1: "GPU-1"}, {"GPU-1"}),
        (ContainerSeen(visible="7", minors=frozenset({1, 9})), {}, {"GPU-1"}),
        (ContainerSeen(visible="7"), {}, set()),
        (ContainerSeen(visible="0,GPU-0"), {0: "GPU-1", 1: "GPU-0"}, {"GPU-0", "GPU-1"}),
    ],
    ids=[
        "NVML's index",
        "index unknown",
        "device files, index unknown",
        "device files against the index",
        "device files of an unknown number",
        "an unknown number",
        "number and UUID",
    ],
)
def test_a_number_is_nvmls_index_and_device_files_are_proof(
    seen: ContainerSeen, indices: dict[int, str], cards: set[str]
) -> None:
    found = agree.unaccounted_cards([pod()], Evidence({BOX: seen}, (), CARDS, indices), frozenset())

    assert {card for one in found.claims for card in one.cards} == cards


@pytest.mark.parametrize(
    ("resource", "ids", "known"),
    [
        ("nvidia.com/gpu", ("GPU-1",), True),
        ("nvidia.com/gpu.shared", ("GPU-1::3",), True),
        ("example.com/cards", ("GPU-1",), True),
        ("nvidia.com/gpu", ("1",), True),
        ("nvidia.com/gpu", ("7",), False),
        ("example.com/fuse", ("fuse-1",), False),
        ("example.com/fuse", ("1",), False),
        ("example.com/rdma", ("0000:1f:00.0",), False),
        ("nvidia.com/gpu", (), False),
    ],
    ids=["a card", "a slice", "renamed", "a number", "no card's number", "fuse", "a number of fuse", "RDMA", "nothing"],
)
def test_the_checkpoint_knows_a_pods_card_by_its_id_only(resource: str, ids: tuple[str, ...], known: Any) -> None:
    seen = Evidence({BOX: ContainerSeen(visible="GPU-1")}, (), CARDS)
    entries = [PodDevices(UID, "main", resource, ids)]

    holders = agree.card_holders(entries, seen)

    assert (UID in holders) is known
    assert bool(agree.unaccounted_cards([pod()], seen, holders).claims) is not known


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


CLAIMANT = pod(containers={BOX: "main", "b" * 64: "side"})


def claiming(*visible: str) -> Evidence:
    """A Pod without a GPU whose containers name cards and have files of all cards' names."""
    boxes = zip(CLAIMANT.containers, visible, strict=True)
    every = frozenset(range(8))
    return Evidence({box: ContainerSeen(visible=text, minors=every) for box, text in boxes}, (), CARDS)


def decided(evidence_: Evidence, *pods: NodePod) -> Decided:
    view = GpuView(record())
    return decide(NODE, host(), view, pods, evidence_, Rules(BUILT_IN), StandingObjects(), 0.0)


def test_a_pod_without_cards_takes_none_out_of_service_by_its_environment_and_files_of_their_names() -> None:
    attacked = decided(claiming("0,1,2,3,4,5,6,7", "GPU-0,GPU-1"), CLAIMANT)
    used = decided(Evidence({}, (CardUse("GPU-1", UID, 7, None),), CARDS), CLAIMANT)

    assert read_device_object(attacked.device.body).kubelet_held == frozenset()
    assert read_device_object(used.device.body).kubelet_held == {"GPU-1"}
    assert [(one.container, one.cards) for one in attacked.claims] == [
        ("main", ("GPU-0", "GPU-1")),
        ("side", ("GPU-0", "GPU-1")),
    ]


def test_a_claim_is_an_event_on_the_pod_once_and_counts_in_the_metrics() -> None:
    claims = decided(claiming("GPU-1", ""), CLAIMANT).claims
    events = claim_events(claims)
    metrics = ReporterMetrics()
    metrics.show_claims(claims)

    told, found = occurrences(NODE, EventMemory(), host(), GpuView(), {}, (), events)
    _, again = occurrences(NODE, told, host(), GpuView(), {}, (), events)

    assert [(one.reason, one.about["name"], one.type) for one in found] == [("CardsNotAllocated", "p", "Warning")]
    assert "container main names cards" in found[0].message
    assert "remove GPU-1 there" in found[0].message
    assert again == ()
    assert b"koordgate_reporter_card_claims 1.0" in metrics.exposition()


# Events and outages


NIC = "0000:3b:00.0"
UP, DOWN, SILENT = ("", ""), ("LinkDown", "port 1 is DOWN"), ("FallenOffBus", "it does not answer")


def told_of(*nics: tuple[str, str], live: dict[str, Any] | None = None) -> dict[str, Any]:
    """The Device object of a node with NICs, by their reasons and problems; written over an existing one."""
    found = tuple(
        PciDevice("rdma", f"0000:{0x3B + n:02x}:00.0", n, problem=problem, reason=reason)
        for n, (reason, problem) in enumerate(nics)
    )
    standing = StandingObjects(device=live)
    return decide(NODE, host(devices=found), GpuView(), [], Evidence(), Rules(BUILT_IN), standing, 0.0).device.body


def device_events(was: dict[str, Any] | None, now: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = health_events(NODE, NodeRecord("", {}), NodeRecord("", {}), was, now)
    return [(one.type, one.reason, one.message) for one in found]


WENT_DOWN = ("Warning", "LinkDown", f"device {NIC} (rdma) is unusable: port 1 is DOWN")
WENT_SILENT = ("Warning", "FallenOffBus", f"device {NIC} (rdma) is unusable: it does not answer")
WELL = ("Normal", "DeviceHealthy", f"device {NIC} (rdma) is healthy")
GONE = ("Warning", "DeviceGone", f"device {NIC} (rdma) is gone")
ASIDE = {"metadata": {"annotations": {CORDONED: NIC}}}


@pytest.mark.parametrize(
    ("was", "now", "told"),
    [
        (told_of(UP), told_of(DOWN), [WENT_DOWN]),
        (told_of(DOWN), told_of(("LinkDown", "port 1 is INIT")), []),
        (told_of(DOWN), told_of(SILENT), [WENT_SILENT]),
        (told_of(DOWN), told_of(UP), [WELL]),
        (told_of(UP), told_of(), [GONE]),
        (told_of(DOWN), told_of(), [GONE]),
        (told_of(), told_of(UP), [WELL]),
        (told_of(), told_of(DOWN), [WENT_DOWN]),
        ({}, told_of(UP), []),
        ({}, told_of(DOWN), [WENT_DOWN]),
        (None, told_of(DOWN), []),
        (told_of(UP), told_of(UP, live=ASIDE), []),
        (told_of(UP, live=ASIDE), told_of(UP), [WELL]),
        (told_of(UP, live=ASIDE), told_of(DOWN), [WENT_DOWN]),
        (told_of(UP, live=ASIDE), told_of(), [GONE]),
        (told_of(UP, DOWN), told_of(DOWN, DOWN), [WENT_DOWN]),
        ({"spec": {"devices": [{"type": "rdma", "id": NIC, "health": False}]}}, told_of(DOWN), [WENT_DOWN]),
    ],
    ids=[
        "turned unusable",
        "in other words",
        "for another reason",
        "usable again",
        "vanished",
        "vanished while unusable",
        "back",
        "back, unusable",
        "the first object",
        "the first object, unusable",
        "the cluster is not known yet",
        "set aside",
        "put back",
        "put back, unusable",
        "vanished while set aside",
        "one of two",
        "an object without reasons",
    ],
)
def test_each_change_of_a_device_that_is_no_card_is_reported_once(
    was: dict[str, Any] | None, now: dict[str, Any], told: list[tuple[str, str, str]]
) -> None:
    assert device_events(was, now) == told
    assert device_events(now, now) == [], "nor is it reported again by a reporter that starts where this stands"


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

    decided = decide(NODE, host(), view, [], Evidence(), Rules(BUILT_IN, outage_seconds=60.0), StandingObjects(), 100.0)

    assert {device.healthy for device in decided.device.devices} == {healthy}
    assert ("koordgate.io/device-outages" in decided.device.body["metadata"]["annotations"]) is not healthy


def test_of_a_pod_whose_allocation_cannot_be_read_the_files_count_where_nvidias_edits_replaced_the_environment() -> (
    None
):
    one = pod(unread=("gpu",))
    seen = Evidence({BOX: ContainerSeen(visible="void", minors=frozenset({1, 5}))}, (), CARDS)

    found = agree.unaccounted_cards([one], seen, frozenset())

    assert [(held.container, held.device_ids) for held in found.holding] == [("main", ("GPU-1",))]
    assert found.claims == ()


@pytest.mark.parametrize(
    ("given", "minors", "lacks"),
    [
        ({"GPU-0", "GPU-1"}, frozenset({0, 1}), ""),
        ({"GPU-0", "GPU-1"}, frozenset({1}), "GPU-0"),
        ({"GPU-0", "GPU-1"}, frozenset(), "GPU-0,GPU-1"),
        ({"MIG-5"}, frozenset({1}), ""),
        ({"MIG-5"}, frozenset({0}), "MIG-5"),
        ({"GPU-gone"}, frozenset(), ""),
        ({"GPU-0"}, None, ""),
        (set(), frozenset(), ""),
    ],
    ids=["all", "one is missing", "none", "MIG", "MIG without its card", "a card that is gone", "unread", "no card"],
)
def test_a_container_without_the_file_of_a_card_that_it_holds_is_an_event_on_its_pod(
    given: set[str], minors: frozenset[int] | None, lacks: str
) -> None:
    share = Share("gpu", "GPU-0", 0, {"gpu-core": 50}, ("main",))
    one = pod(shares=(share,), visible={("main", "gpu"): frozenset(given)})
    seen = Evidence({BOX: ContainerSeen(1, "void", minors)}, (), CARDS, slices={"MIG-5": 1})

    found = mismatch_events(agree.agreements([one], seen))

    assert [(event.reason, event.about["kind"], event.type) for event in found] == (
        [("CardsNotShown", "Pod", "Warning")] if lacks else []
    )
    assert all(event.message.startswith(f"container main holds {lacks} and has no device") for event in found)


# Pods and evidence


def test_a_pod_is_read_with_all_that_was_decided_for_it() -> None:
    annotations = {
        "kubernetes.io/config.hash": "f" * 32,
        "scheduling.koordinator.sh/resource-status": '{"cpuset":"2-3","numaNodeResources":[{"node":1}]}',
        "scheduling.koordinator.sh/device-allocated": '{"gpu":[{"minor":0,"id":"GPU-0"}]}',
        "visible-devices.koordgate.io/main": "runtime.nvidia.com/gpu=GPU-0",
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
def test_an_annotation_that_makes_no_sense_is_reported_and_the_pod_counts(key: str) -> None:
    about = {"name": "p", "uid": UID, "annotations": {f"scheduling.koordinator.sh/{key}": "{"}}

    read = read_pod({"metadata": about})

    assert (read.shares, read.status) == ((), None)
    assert key in read.problems[0]


def test_cards_of_a_pod_whose_gpus_cannot_be_read_are_held_and_contradict_nothing() -> None:
    stated = {"gpu": [{"minor": "first"}], "rdma": [{"minor": 2, "id": "0000:3b:00.0"}]}
    annotations = {"scheduling.koordinator.sh/device-allocated": json.dumps(stated)}
    containers = [{"name": "main", "containerID": f"containerd://{BOX}"}]
    obj = {
        "metadata": {"name": "p", "uid": UID, "annotations": annotations},
        "status": {"containerStatuses": containers},
    }
    one = read_pod(obj)
    seen = Evidence({BOX: ContainerSeen(cpus=1, visible="GPU-0")}, (CardUse("GPU-1", UID, 1, None),), CARDS)

    assert [found.mismatches for found in agree.agreements([one], seen)] == [()]
    found = agree.unaccounted_cards([one], seen, frozenset())
    assert [(held.container, held.device_ids) for held in found.holding] == [("", ("GPU-1",)), ("main", ("GPU-0",))]
    assert found.claims == ()


@pytest.mark.parametrize("version", Version)
def test_containers_are_looked_at_where_the_kubelet_puts_them(tmp_path: Path, version: Version) -> None:
    layout = CgroupLayout(Driver.SYSTEMD)
    folder = tmp_path / layout.pod(KubernetesQos.BURSTABLE, UID) / f"cri-containerd-{BOX}.scope"
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
    ("own", "below", "read"),
    [
        ("", {"container": "41\n"}, "GPU-1"),
        ("", {"a.slice": "", "init.scope": "41\n", "system.slice": "42\n"}, "GPU-1"),
        ("42\n", {"container": "41\n"}, "GPU-2"),
        ("", {"container": ""}, None),
        ("", {}, None),
    ],
    ids=["crun", "an init", "its own first", "none at all", "nothing below"],
)
def test_processes_one_level_below_the_containers_cgroup_are_seen(
    tmp_path: Path, own: str, below: dict[str, str], read: str | None
) -> None:
    layout = CgroupLayout(Driver.SYSTEMD)
    folder = tmp_path / layout.pod(KubernetesQos.BURSTABLE, UID) / f"crio-{BOX}.scope"
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text(own)
    (folder / "cpuset.cpus.effective").write_text("1-2\n")
    for name, pids in below.items():
        (folder / name).mkdir()
        (folder / name / "cgroup.procs").write_text(pids)
    for pid, card in (("41", 1), ("42", 2)):
        (tmp_path / "proc" / pid / "root" / "dev").mkdir(parents=True)
        (tmp_path / "proc" / pid / "root" / "dev" / f"nvidia{card}").touch()
        (tmp_path / "proc" / pid / "environ").write_bytes(f"NVIDIA_VISIBLE_DEVICES=GPU-{card}\0".encode())

    found = evidence.containers(Hierarchy(tmp_path, Version.V2), layout, [pod()], tmp_path / "proc", environment=True)

    assert found[BOX].cpus == 0b110
    assert found[BOX].visible == read
    assert found[BOX].minors == (None if read is None else frozenset({int(read[-1])}))


@pytest.mark.parametrize(
    ("files", "environment", "seen"),
    [
        (8191, b"NVIDIA_VISIBLE_DEVICES=0\0", ("0", frozenset())),
        (8192, b"NVIDIA_VISIBLE_DEVICES=0\0", ("0", None)),
        (0, b"NVIDIA_VISIBLE_DEVICES=0\0", ("0", None)),
        (1, b"A=" + b"x" * 2**20 + b"\0NVIDIA_VISIBLE_DEVICES=0\0", (None, frozenset())),
        (1, b"NVIDIA_VISIBLE_DEVICES=0\0A=" + b"x" * 2**20, ("0", frozenset())),
        (1, b"A=b\0", ("", frozenset())),
        (1, b"\0", ("", frozenset())),
        (1, b"", (None, frozenset())),
        (1, b"A=".ljust(256 * 1024 - 1, b"x"), ("", frozenset())),
        (1, b"A=".ljust(256 * 1024, b"x"), (None, frozenset())),
        (1, b"NVIDIA_VISIBLE_DEVICES=" + b"7" * 100_000 + b"\0", ("7" * 4096, frozenset())),
    ],
    ids=[
        "as many files as are listed",
        "a flood of files",
        "no file",
        "a flood before it",
        "a flood behind it",
        "not set",
        "one byte",
        "no environment",
        "as much as is read whole",
        "one byte more",
        "a flood of ids",
    ],
)
def test_what_a_container_makes_large_is_read_up_to_a_bound_and_is_unknown_beyond_it(
    tmp_path: Path, files: int, environment: bytes, seen: tuple[str | None, frozenset[int] | None]
) -> None:
    layout = CgroupLayout(Driver.CGROUPFS)
    folder = tmp_path / layout.pod(KubernetesQos.BURSTABLE, UID) / BOX
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("41\n")
    process = tmp_path / "proc" / "41"
    (process / "root" / "dev").mkdir(parents=True)
    for number in range(files):
        os.close(os.open(process / "root" / "dev" / f"file{number}", os.O_CREAT))
    (process / "environ").write_bytes(environment)

    found = evidence.containers(Hierarchy(tmp_path, Version.V1), layout, [pod()], tmp_path / "proc", environment=True)

    assert (found[BOX].visible, found[BOX].minors) == seen


def test_a_file_in_the_place_of_a_containers_cgroup_shows_nothing(tmp_path: Path) -> None:
    layout = CgroupLayout(Driver.CGROUPFS)
    folder = tmp_path / layout.pod(KubernetesQos.BURSTABLE, UID)
    folder.mkdir(parents=True)
    (folder / BOX).touch()

    found = evidence.containers(Hierarchy(tmp_path, Version.V2), layout, [pod()], tmp_path / "proc", environment=True)

    assert found == {BOX: ContainerSeen()}


def test_of_a_flood_of_cards_files_those_of_minors_that_cards_have_are_kept(tmp_path: Path) -> None:
    layout = CgroupLayout(Driver.CGROUPFS)
    folder = tmp_path / layout.pod(KubernetesQos.BURSTABLE, UID) / BOX
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("41\n")
    (tmp_path / "proc" / "41" / "root" / "dev").mkdir(parents=True)
    for number in range(1000):
        (tmp_path / "proc" / "41" / "root" / "dev" / f"nvidia{number}").touch()

    found = evidence.containers(Hierarchy(tmp_path, Version.V1), layout, [pod()], tmp_path / "proc", environment=True)

    assert found[BOX].minors == frozenset(range(128))


def test_of_a_flood_of_cgroups_64_containers_and_64_below_each_are_looked_at(tmp_path: Path) -> None:
    layout = CgroupLayout(Driver.CGROUPFS)
    boxes = [f"{number:064x}" for number in range(66)]
    for box in boxes:
        folder = tmp_path / layout.pod(KubernetesQos.BURSTABLE, UID) / box
        folder.mkdir(parents=True)
        (folder / "cpuset.cpus.effective").write_text("1\n")
    for number in range(66):
        (tmp_path / layout.pod(KubernetesQos.BURSTABLE, UID) / boxes[0] / f"{number:02}").mkdir()
    one = pod(containers={box: f"c{number}" for number, box in enumerate(boxes)})

    found = evidence.containers(Hierarchy(tmp_path, Version.V2), layout, [one], tmp_path / "proc", environment=True)

    assert list(found) == boxes[:64]
    assert len(evidence._cgroups_below(f"{tmp_path / layout.pod(KubernetesQos.BURSTABLE, UID)}/{boxes[0]}")) == 64


@pytest.mark.parametrize(
    ("text", "found", "box"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{BOX}", UID, BOX),
        (f"3:cpuset:/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{BOX}.scope", UID, BOX),
        (f"0::/../../kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{BOX}.scope/container", UID, BOX),
        (f"12:cpuset:/kubepods/burstable/pod{UID}/{BOX}\n0::/", UID, BOX),
        (f"0::/kubepods/burstable/pod{UID}/{BOX}/init.scope", UID, BOX),
        (f"0::/kubepods/burstable/pod{UID}/main", UID, ""),
        (f"1:name=systemd:/kubepods/pod{'f' * 32}/{BOX}", "f" * 32, BOX),
        ("0::/system.slice/sshd.service", None, ""),
        ("", None, ""),
    ],
    ids=["cgroupfs", "systemd", "crun", "v1", "systemd inside", "no id", "static", "no Pod", "unreadable"],
)
def test_a_process_belongs_to_the_pod_and_the_container_of_its_cgroup(
    tmp_path: Path, text: str, found: str | None, box: str
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"{text}\n")

    uses = evidence.card_uses({"GPU-0": (GpuProcess(7, 5), GpuProcess(8, None))}, tmp_path)

    assert uses == (CardUse("GPU-0", found, 7, 5, box), CardUse("GPU-0", None, 8, None))
