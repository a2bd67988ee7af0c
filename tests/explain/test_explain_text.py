"""`koordgate explain` as it is written, line by line, and what of a gang, a ledger and doubled objects it tells."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import gpu, holding, part
from commands import Answer
from explain.scenes import BORN, Raw, bound, gpu_pod, node, scheduled, waiting

from allocator.wire.nodeallocation import API_VERSION, write_spec
from console.cluster import read_files

Ask = Callable[..., Answer]
HALF = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}


def settings(text: str) -> Raw:
    about = {"name": "koordgate", "namespace": "koordgate-system"}
    return {"kind": "ConfigMap", "metadata": about, "data": {"config.yaml": text}}


# The whole text


WAITS = """\
Pod team/mine fits on none of 2 nodes; the nearest is near: only 1 of 2 whole GPUs is free.
To do, for example: main: ask for 1 x (core 100 %, memory 100 %) instead of 2 x (core 100 %, memory 100 %).

What it asks for
  main: nvidia.com/gpu=2

What its scheduler said last: 0/2 nodes

NODES  WHY NOT                                    SAYS            WHICH
1      only 1 of 2 whole GPUs is free             koordgate       near
1      the node is cordoned (spec.unschedulable)  kube-scheduler  far

Node near (the nearest)
  koordgate: container main asks 2 x (core 100 %, memory 100 %); 1 of 2 GPUs can hold it; the most free is gpu 1 with \
core 100 %, memory 80 GiB (100 %)
  gpu 0 GPU-near-0: core 50 %, memory 40 GiB (50 %) free, core 100 %, memory 80 GiB (100 %) asked; held by team/small
  gpu 1 GPU-near-1: room for the Pod

What would make it fit on near, one of these is enough
  - main: ask for 1 x (core 100 %, memory 100 %) instead of 2 x (core 100 %, memory 100 %)
  - wait until one Pod on it ends: team/small (priority 0); nobody is evicted for this Pod, whose priority is 0: give \
it one above 0 (priorityClassName)
"""
STANDS = """\
Pod team/mine is on n1: it holds gpu 0, and this is the best of 2 nodes that could hold it.

What it asks for
  main: nvidia.com/gpu=1

Why these devices (the same decision on the cluster as it is now without the Pod; the past is not recorded)
  gpu 0 GPU-n1-0: core 100 %, memory 80 GiB (100 %): idle before
  of 2 devices of type gpu, 1 of the 2 idle ones stay whole
  not gpu 1 GPU-n1-1: it has room as well, and comes later in the order of devices

PLACE  NODE            COMPARED BY (packing)
1      n1 (the Pod's)  opens a device of size 80, packing 65 of 100 (counts as 60)
2      n2              opens a device of size 80, packing 53 of 100 (counts as 50)

What was recorded when it was bound
  2026-01-01T00:00:00Z: on n1: gpu 0
"""
FITS = """\
Pod team/mine fits on 2 of 2 nodes now; koordgate would send it to n1.

What it asks for (as koordgate would translate it)
  main: nvidia.com/gpu=1

NODES  WHY NOT  SAYS  WHICH
2      it fits        n1, n2

Node n1: it fits
  gpu 0 GPU-n1-0: room for the Pod
"""


def test_a_pod_that_waits_is_explained_line_by_line(ask: Ask) -> None:
    near, far = node("near", 2), node("far", 1, unschedulable=True)
    held = asyncio.run(bound("small", "near", *near, limits=HALF))
    answer = ask(settings(""), *near, *far, held, asyncio.run(waiting(limits={"nvidia.com/gpu": "2"})))
    assert (answer.status, answer.out, answer.err) == (3, WAITS, "")


def test_a_pod_on_its_node_is_explained_line_by_line(ask: Ask) -> None:
    mine = asyncio.run(bound("mine", "n1", *node("n1", 2)))
    about = {"name": "mine.1", "namespace": "team"}
    event = {"kind": "Event", "metadata": about, "involvedObject": {"uid": "uid-mine"}, "reason": "DevicesAllocated"}
    event |= {"message": "on n1: gpu 0", "lastTimestamp": BORN}
    packs = settings("scheduler: {preference: packing}")
    answer = ask(packs, *node("n1", 2), *node("n2", 8), mine, event)
    assert (answer.status, answer.out, answer.err) == (0, STANDS, "")


def test_a_pod_that_fits_is_explained_line_by_line(ask: Ask) -> None:
    answer = ask(settings(""), *node("n1", 1), *node("n2", 1), gpu_pod())
    assert (answer.status, answer.out, answer.err) == (0, FITS, "")


# Gangs


TOGETHER = {
    "gang.scheduling.koordinator.sh/name": "g",
    "gang.scheduling.koordinator.sh/min-available": "3",
    "koordgate.io/gang-all-or-nothing": "true",
}
GATED = {"schedulingGates": [{"name": "koordgate.io/gang"}]}


def member(name: str = "mine", **about: Any) -> Raw:
    return gpu_pod(name, annotations=TOGETHER, **about)


@pytest.mark.parametrize(
    ("together", "about", "told"),
    [
        pytest.param("true", {}, True, id="it asks to be bound as a whole"),
        pytest.param("false", {}, False, id="the settings do not offer that"),
        pytest.param("false", GATED, True, id="it is gated already"),
    ],
)
def test_a_gang_that_lacks_pods_keeps_each_of_them(ask: Ask, together: str, about: Raw, *, told: bool) -> None:
    answer = ask(
        settings(f"gangs: {{allOrNothing: {together}}}"),
        *node("n1", 4),
        member(**about),
        member("other"),
        words=("mine", "-n", "team", "-o", "json"),
    )
    text = "its gang team/g is bound as a whole (Pods that exist: 2, that are bound: 0, that are needed: 3)"
    missing = {"why": "gang", "text": text, "toDo": "create the missing Pods", "stops": True}
    assert answer.data["hurdles"] == ([missing] if told else [])
    assert answer.status == (3 if told else 0)


def test_a_whole_gang_waits_for_room_and_counts_those_that_are_bound(ask: Ask) -> None:
    there = scheduled(member("third"), nodeName="n2", schedulerName="koord-scheduler")
    there["metadata"]["creationTimestamp"] = BORN
    answer = ask(
        settings("gangs: {allOrNothing: true}"),
        *node("n1", 4),
        member(),
        member("other"),
        there,
        words=("mine", "-n", "team", "-o", "json"),
    )
    text = "its gang team/g is bound as a whole (Pods that exist: 3, that are bound: 1, that are needed: 3)"
    todo = "room for all of them at once is needed: see the nodes"
    assert answer.data["hurdles"] == [{"why": "gang", "text": text, "toDo": todo, "stops": False}]


# The ledger


def record(name: str, *uids: str) -> Raw:
    held = [{"uid": uid, "namespace": "team", "name": uid.removeprefix("uid-"), "since": 1} for uid in uids]
    metadata = {"name": name, "resourceVersion": "1"}
    return {
        "apiVersion": "koordgate.io/v1alpha1",
        "kind": "NodeAllocation",
        "metadata": metadata,
        "spec": {"allocations": [{**one, "devices": []} for one in held]},
    }


@pytest.mark.parametrize(
    ("on", "says"),
    [
        (("n1",), []),
        (
            ("n2", "n1"),
            ["it was given room on n1 and n2 by binds that were not performed, and may go only there"],
        ),
    ],
)
def test_room_that_two_binds_gave_and_did_not_use_is_told(ask: Ask, on: tuple[str, ...], says: list[str]) -> None:
    records = [record(name, "uid-a", "uid-mine", "uid-z") for name in on] + [record("n3", "uid-a", "uid-z")]
    cluster = [part for name in ("n1", "n2", "n3") for part in node(name)]
    answer = ask(settings(""), *cluster, *records, asyncio.run(waiting()), words=("mine", "-n", "team", "-o", "json"))
    found = [one for one in answer.data["hurdles"] if one["why"] == "roomElsewhere"]
    assert [one["text"] for one in found] == says
    assert [one["toDo"] for one in found] == ["wait some minutes: what it is not bound to is given back"] * len(says)


# What is read


@pytest.mark.parametrize(
    ("doubled", "last"),
    [
        (3, "Pod p2 is given more than once: that of"),
        (4, "other objects that are given more than once: 1; the last of each counts"),
        (6, "other objects that are given more than once: 3; the last of each counts"),
    ],
)
def test_three_objects_that_are_given_twice_are_named_and_the_others_counted(
    tmp_path: Path, doubled: int, last: str
) -> None:
    pods = [gpu_pod(f"p{at}") for at in range(doubled)]
    others = [{**gpu_pod("p0"), "metadata": {"name": "p0", "namespace": space, "uid": space}} for space in ("a", "z")]
    file = tmp_path / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*pods, *others, *pods]}))
    read = read_files([str(file)], None)
    assert [note.partition(" is given")[0] for note in read.notes[:3]] == ["Pod p0", "Pod p1", "Pod p2"]
    assert read.notes[-1].startswith(last)
    assert len(read.notes) == min(doubled, 4)
    assert len([kind for _, _, kind in read.objects if kind == "Pod"]) == doubled + 2


def test_what_is_wrong_with_one_object_hides_no_other_that_is_given_twice(tmp_path: Path) -> None:
    wrong: list[Any] = [{}, {"name": 7}, []]
    nameless = [{"apiVersion": "v1", "kind": "Pod", "metadata": about} for about in wrong]
    file = tmp_path / "objects.json"
    items = [*nameless, gpu_pod("p"), gpu_pod("p")]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    read = read_files([str(file)], None)
    assert [note.partition(": ")[0] for note in read.notes] == ["Pod p is given more than once"]
    assert len(read.objects) == 4


@pytest.mark.parametrize(
    ("spaces", "there"),
    [(8, "s0, s1, s2, s3, s4, s5, s6, s7"), (9, "s0, s1, s2, s3, s4, s5, s6, s7")],
)
def test_eight_namespaces_with_a_pod_of_the_name_are_told(ask: Ask, spaces: int, there: str) -> None:
    pods = [{**gpu_pod(), "metadata": {"name": "mine", "namespace": f"s{at}", "uid": f"u{at}"}} for at in range(spaces)]
    answer = ask(settings(""), *pods)
    assert answer.status == 2
    assert answer.err == (
        f"koordgate explain: there is no Pod mine in namespace team; there is one in {there}: name it with -n\n"
    )


def test_eight_pods_of_a_like_name_are_told_of_the_namespace_that_was_asked(ask: Ask) -> None:
    pods = [gpu_pod(f"mine-{at}") for at in reversed(range(9))]
    pods += [{**gpu_pod(), "metadata": {"name": "mine-x", "namespace": space, "uid": space}} for space in ("a", "z")]
    pods += [gpu_pod("min"), gpu_pod("other")]
    answer = ask(settings(""), *pods)
    names = "min, mine-0, mine-1, mine-2, mine-3, mine-4, mine-5, mine-6"
    assert answer.err == f"koordgate explain: there is no Pod mine in namespace team; did you mean {names}?\n"


# Words


def test_an_amount_of_a_quota_that_is_no_whole_number_limits_nothing(ask: Ask) -> None:
    spec = {"hard": {"requests.kubernetes.io/gpu-core": "99m"}}
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "team"}, "spec": spec}
    assert ask(settings(""), *node("n1"), quota, gpu_pod(), words=("team/mine", "-o", "json")).data["hurdles"] == []


# Names beside the Pod's own


@pytest.mark.parametrize("other", ["aa", "zz"])
def test_events_nodes_and_pods_of_names_beside_the_pods_own_are_not_its_own(ask: Ask, other: str) -> None:
    mine = asyncio.run(bound("mine", "n1", *node("n1", 2)))
    about = {"name": "e", "namespace": "team"}
    event = {"kind": "Event", "metadata": about, "reason": "DevicesAllocated", "message": "x", "lastTimestamp": BORN}
    events = [{**event, "involvedObject": {"uid": f"uid-{other}"}}, {**event, "reason": other}]
    there = scheduled(gpu_pod(other), nodeName=other, schedulerName="koord-scheduler")
    there["metadata"]["creationTimestamp"] = BORN
    answer = ask(
        settings(""), *node("n1", 2), *node(other, 2), mine, there, *events, words=("mine", "-n", "team", "-o", "json")
    )
    standing = answer.data["standing"]
    assert (standing["node"], standing["recorded"], standing["left"][0]["total"]) == ("n1", [], 2)
    assert [one["node"] for one in standing["order"] if one["level"] == 0] == ["n1"] or other in answer.out
    text = ask(settings(""), *node("n1", 2), *node(other, 2), mine).out
    assert [line.split()[1:3] for line in text.splitlines() if "(the Pod's)" in line] == [["n1", "(the"]]


@pytest.mark.parametrize("kind", ["A", "PodScheduled", "Zone"])
@pytest.mark.parametrize("status", ["False", "True", "Unknown"])
def test_only_what_kube_scheduler_said_in_vain_is_told(ask: Ask, kind: str, status: str) -> None:
    made = asyncio.run(waiting())
    made["status"]["conditions"] = [{"type": kind, "status": status, "message": "words"}]
    data = ask(settings(""), *node("n1"), made, words=("mine", "-n", "team", "-o", "json")).data
    assert data["schedulerSaid"] == ("words" if kind == "PodScheduled" and status != "True" else "")
    assert ("noScheduler" in {one["why"] for one in data["hurdles"]}) is (kind != "PodScheduled")


@pytest.mark.parametrize("gate", ["a.io/x", "x.io/wait"])
def test_each_gate_but_the_gangs_is_named(ask: Ask, gate: str) -> None:
    gates = [{"name": "koordgate.io/gang"}, {"name": gate}]
    made = scheduled(asyncio.run(waiting(annotations=TOGETHER)), schedulingGates=gates)
    found = ask(settings(""), *node("n1"), made, words=("mine", "-n", "team", "-o", "json")).data["hurdles"]
    assert [one["text"] for one in found if one["why"] == "gate"] == [f"it waits for its schedulingGates: {gate}"]
    assert [one["why"] for one in found] == ["gate", "gang"]


@pytest.mark.parametrize("scheduler", ["a-scheduler", "volcano"])
def test_a_pod_of_another_scheduler_is_told_of_it(ask: Ask, scheduler: str) -> None:
    made = scheduled(asyncio.run(waiting()), schedulerName=scheduler)
    found = ask(settings(""), *node("n1"), made, words=("mine", "-n", "team", "-o", "json")).data["hurdles"]
    text = f"its spec.schedulerName is {scheduler}, and only koord-scheduler may bind it"
    assert [one["text"] for one in found if one["why"] == "otherScheduler"] == [text]


@pytest.mark.parametrize(("policy", "never"), [("A", False), ("Never", True), ("PreemptLowerPriority", False)])
def test_only_a_pod_that_never_preempts_is_told_so(ask: Ask, policy: str, *, never: bool) -> None:
    held = asyncio.run(bound("other", "n1", *node("n1", 1)))
    told = ask(settings(""), *node("n1", 1), held, gpu_pod(preemptionPolicy=policy, priority=5)).out
    assert ("nobody is evicted for it, because its preemptionPolicy is Never" in told) is never


def test_numa_nodes_are_told_one_by_one(ask: Ask) -> None:
    made, devices = node("n1", 4)
    for at, entry in enumerate(devices["spec"]["devices"]):
        entry["topology"] = {"nodeID": at // 2, "socketID": 0, "pcieID": str(at // 2), "busID": f"0000:0{at}:00.0"}
    spec = {"scheduling.koordinator.sh/numa-topology-spec": '{"numaTopologyPolicy":"SingleNUMANode"}'}
    answer = ask(settings(""), made, devices, gpu_pod(limits={"nvidia.com/gpu": "3"}, annotations=spec))
    why = "container main asks 3 x (core 100 %, memory 100 %); 2 of 4 GPUs can hold it; the most free is gpu"
    full = "with core 100 %, memory 80 GiB (100 %)"
    assert [line for line in answer.out.splitlines() if "NUMA node" in line and line.startswith("  NUMA")] == [
        f"  NUMA node 0: {why} 0 {full}",
        f"  NUMA node 1: {why} 2 {full}",
    ]


def test_a_bound_pod_that_asks_for_nothing_is_not_explained_by_what_it_states(ask: Ask) -> None:
    whole = {f"kubernetes.io/gpu-{tail}": "100" for tail in ("core", "memory-ratio")}
    held = json.dumps({"gpu": [{"minor": 0, "resources": whole, "id": "GPU-n1-0"}]})
    made = gpu_pod(limits={"cpu": "1"}, annotations={"scheduling.koordinator.sh/device-allocated": held})
    made["metadata"]["creationTimestamp"] = BORN
    data = ask(
        settings(""), *node("n1"), scheduled(made, nodeName="n1"), words=("mine", "-n", "team", "-o", "json")
    ).data
    assert (data["standing"], data["node"]) == (None, "n1")


@pytest.mark.parametrize(("cards", "named"), [(8, 8), (9, 8), (10, 8)])
def test_eight_devices_that_a_pod_holds_are_named_in_the_answer(ask: Ask, cards: int, named: int) -> None:
    mine = asyncio.run(bound("mine", "n1", *node("n1", 10), limits={"nvidia.com/gpu": str(cards)}))
    held = ", ".join(f"gpu {at}" for at in range(named))
    only = "this is the only node that could hold it"
    answer = ask(settings(""), *node("n1", 10), mine)
    assert answer.first == f"Pod team/mine is on n1: it holds {held}, and {only}."
    left = 10 - cards
    assert f"  of 10 devices of type gpu, {left} of the 10 idle ones stay whole" in answer.out.splitlines()


def test_what_nobody_who_was_read_holds_is_told_and_nobody_is_told_to_leave(ask: Ask) -> None:
    held = [holding(name, part(gpu(at, device_id=f"GPU-n1-{at}"), 100)) for at, name in enumerate(("gone", "lost"))]
    metadata = {"name": "n1", "resourceVersion": "1"}
    ledger = {"apiVersion": API_VERSION, "kind": "NodeAllocation", "metadata": metadata, "spec": write_spec(held)}
    answer = ask(settings(""), *node("n1", 2), ledger, gpu_pod(), words=("mine", "-n", "team", "-o", "json"))
    (detail,) = answer.data["details"]
    assert [one["holders"] for one in detail["devices"]] == [["default/pod-gone"], ["default/pod-lost"]]
    assert [one["pods"] for one in detail["remedies"]] == []


def test_a_bound_pod_whose_request_cannot_be_read_is_told_so_and_compared_with_no_node(ask: Ask) -> None:
    made = gpu_pod(limits={"nvidia.com/gpu": "1.5"})
    made["metadata"]["creationTimestamp"] = BORN
    objects = [settings(""), *node("n1"), scheduled(made, nodeName="n1")]
    data = ask(*objects, words=("mine", "-n", "team", "-o", "json")).data
    assert (data["standing"], data["node"], data["nodes"]) == (None, "n1", [])
    assert "COMPARED BY" not in ask(*objects).out
