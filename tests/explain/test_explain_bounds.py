"""`koordgate explain` with many nodes, cards, reasons and quotas: what is written, what is counted, and its data."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Answer, answer
from explain.scenes import BORN, GPU, Raw, bound, gpu_pod, node, scheduled, waiting

Ask = Callable[..., Answer]


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*objects: Raw, words: tuple[str, ...] = (), pod: str = "mine") -> Answer:
        return answer("explain", objects, (pod, "-n", "team", *words), tmp_path, capsys)

    return run


def lines_of(answer: Answer, start: str) -> list[str]:
    return [line for line in answer.out.splitlines() if line.startswith(start)]


def taint(value: str, effect: str = "NoSchedule") -> Raw:
    return {"key": "dedicated", "value": value, "effect": effect} if value else {"key": "dedicated", "effect": effect}


# Lists


@pytest.mark.parametrize(
    ("reasons", "more"),
    [(12, []), (13, ["1 more reason: --all"]), (14, ["2 more reasons: --all"]), (25, ["13 more reasons: --all"])],
)
def test_twelve_reasons_are_written_and_the_others_counted(ask: Ask, reasons: int, more: list[str]) -> None:
    nodes = [part for at in range(reasons) for part in node(f"n{at:02}", 1, taints=[taint(f"t{at:02}")])]
    answer = ask(*nodes, gpu_pod())
    told = [line for line in answer.out.splitlines() if "the Pod does not tolerate the taint dedicated=t" in line]
    assert len([line for line in told if line.startswith("1 ")]) == 12
    assert [line for line in answer.out.splitlines() if line.endswith("--all")] == more
    whole = ask(*nodes, gpu_pod(), words=("--all",))
    assert len([line for line in whole.out.splitlines() if line.startswith("1 ")]) == reasons
    assert "--all" not in whole.out


@pytest.mark.parametrize(("nodes", "last"), [(8, "n7"), (9, "n7 and 1 more"), (11, "n7 and 3 more")])
def test_eight_nodes_of_a_reason_are_named_and_the_others_counted(ask: Ask, nodes: int, last: str) -> None:
    cluster = [part for at in range(nodes) for part in node(f"n{at}" if at < 10 else f"nx{at}", 1, unschedulable=True)]
    (line,) = lines_of(ask(*cluster, gpu_pod()), f"{nodes} ")
    assert line.endswith(f"n0, n1, n2, n3, n4, n5, n6, {last}")
    (line,) = lines_of(ask(*cluster, gpu_pod(), words=("--all",)), f"{nodes} ")
    assert "more" not in line


def test_the_most_frequent_reason_comes_first_and_nodes_that_fit_come_last(ask: Ask) -> None:
    cluster = [
        *node("a", 1, taints=[taint("x")]),
        *node("b", 1, unschedulable=True),
        *node("c", 1, unschedulable=True),
        *node("d", 1, taints=[taint("x", "PreferNoSchedule")]),
        *node("e", 1),
    ]
    answer = ask(*cluster, gpu_pod())
    assert answer.status == 0
    table = [line.split("  ") for line in answer.out.splitlines() if line[:2] in {"1 ", "2 "}]
    told = [[cell.strip() for cell in line if cell.strip()] for line in table]
    assert told == [
        ["2", "the node is cordoned (spec.unschedulable)", "kube-scheduler", "b, c"],
        ["1", "the Pod does not tolerate the taint dedicated=x:NoSchedule", "kube-scheduler", "a"],
        ["2", "it fits", "d, e"],
    ]


@pytest.mark.parametrize(
    ("cards", "more"),
    [
        (32, []),
        (33, ["  1 more line about devices: --all"]),
        (34, ["  2 more lines about devices: --all"]),
    ],
)
def test_32_lines_about_cards_are_written_and_the_others_counted(ask: Ask, cards: int, more: list[str]) -> None:
    cluster = node("n1", cards, unschedulable=True)
    for at, entry in enumerate(cluster[1]["spec"]["devices"]):  # each is out of service for a reason of its own
        entry.update(health=False, conditions=[{"type": "Healthy", "status": "False", "reason": f"XID{at}"}])
    answer = ask(*cluster, gpu_pod())
    assert len(lines_of(answer, "  gpu ")) == 32
    assert [line for line in answer.out.splitlines() if line.endswith("--all")] == more
    assert len(lines_of(ask(*cluster, gpu_pod(), words=("--all",)), "  gpu ")) == cards


def test_five_nodes_in_order_are_written_and_the_pods_own_and_the_others_counted(ask: Ask) -> None:
    cluster = [part for at in range(13) for part in node(f"n{at}", 13 - at)]
    mine = asyncio.run(bound("mine", "n0", *node("n0", 13)))
    packs = {"kind": "ConfigMap", "metadata": {"name": "koordgate", "namespace": "koordgate-system"}}
    packs |= {"data": {"config.yaml": "scheduler: {preference: packing}"}}
    whole = ask(packs, *cluster, mine, words=("--all",))
    order = [line.split()[1] for line in whole.out.splitlines() if " (counts as " in line]
    assert len(order) == 13
    told = ask(packs, *cluster, mine)
    shown = [line.split()[1] for line in told.out.splitlines() if " (counts as " in line]
    assert shown == (order[:5] if "n0" in order[:5] else [*order[:5], "n0"])
    left = 13 - len(shown)
    assert [line for line in told.out.splitlines() if line.endswith("--all")] == [
        f"{left} more node{'s' if left > 1 else ''}: --all"
    ]
    assert "--all" not in whole.out


@pytest.mark.parametrize(("length", "end"), [(600, "x" * 600), (601, "x" * 600 + "...")])
def test_600_characters_of_what_others_said_are_written(ask: Ask, length: int, end: str) -> None:
    made = asyncio.run(waiting())
    made["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "message": "other"},
        {"type": "PodScheduled", "status": "False", "message": "x" * length},
    ]
    told = ask(*node("n1"), made).out.splitlines()
    assert f"What its scheduler said last: {end}" in told


# What would help


def test_what_is_needed_of_a_node_is_told_condition_by_condition(ask: Ask) -> None:
    taints = [taint("x"), taint("y", "PreferNoSchedule"), taint(""), taint("z", "NoExecute")]
    here = node("n1", 1, taints=taints, labels={"zone": "a", "disk": "hdd"})
    mine = gpu_pod(
        nodeSelector={"zone": "a", "disk": "ssd", "rack": "7"},
        tolerations=[{"key": "dedicated", "value": "x", "effect": "NoSchedule"}],
    )
    answer = ask(*here, mine, words=("-o", "json"))
    told = answer.data["details"][0]["remedies"]
    assert [(one["kind"], one["text"], one["needed"]) for one in told] == [
        ("taint", "add a toleration for dedicated:NoSchedule to the Pod, or remove the taint", True),
        ("taint", "add a toleration for dedicated=z:NoExecute to the Pod, or remove the taint", True),
        (
            "label",
            (
                "the Pod's nodeSelector asks the node for disk=ssd (it has hdd), rack=7 (it has no such label): "
                "change one of them"
            ),
            True,
        ),
    ]


def test_an_affinity_that_no_label_meets_is_told(ask: Ask) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    told = ask(*node("n1", 1), gpu_pod(affinity=affinity), words=("-o", "json")).data["details"][0]["remedies"]
    assert [(one["kind"], one["text"], one["needed"]) for one in told] == [
        ("label", "change the Pod's required node affinity, or the node's labels: no term of it matches them", True)
    ]


@pytest.mark.parametrize("pods", [8, 9, 17])
def test_eight_pods_that_must_end_are_named_and_the_others_counted(ask: Ask, pods: int) -> None:
    room = node("n1", pods)
    held, whole = [], {f"kubernetes.io/gpu-{tail}": "100" for tail in ("core", "memory-ratio")}
    for at in range(pods):
        share = {"gpu": [{"minor": at, "resources": whole, "id": f"GPU-n1-{at}"}]}
        other = gpu_pod(f"other-{at}", annotations={"scheduling.koordinator.sh/device-allocated": json.dumps(share)})
        other["metadata"]["creationTimestamp"] = BORN
        held.append(scheduled(other, nodeName="n1", schedulerName="koord-scheduler", priority=5))
    answer = ask(*room, *held, gpu_pod(limits={"nvidia.com/gpu": str(pods)}, priority=6), words=("-o", "json"))
    assert answer.status == 3
    told = [one for one in answer.data["details"][0]["remedies"] if one["kind"] == "Pods that leave"]
    assert [len(one["pods"]) for one in told] == [pods]
    assert told[0]["text"].count("(priority 5)") == 8
    more = told[0]["text"].rpartition("(priority 5)")[2].partition("; ")[0]
    assert more == ("" if pods == 8 else f" and {pods - 8} more")
    assert told[0]["text"].endswith("; kube-scheduler may evict them for this Pod, whose priority is 6")
    same = ask(*room, *held, gpu_pod(limits={"nvidia.com/gpu": str(pods)}, priority=5), words=("-o", "json"))
    (remedy,) = [one for one in same.data["details"][0]["remedies"] if one["kind"] == "Pods that leave"]
    assert remedy["text"].endswith(
        "; nobody is evicted for this Pod, whose priority is 5: give it one above 5 (priorityClassName)"
    )


def test_how_far_a_node_is_from_holding_a_pod_is_summed_up(ask: Ask) -> None:
    asks = {**GPU, "cpu": "10", "memory": "128Gi"}
    nodes = [*node("cordoned", 1, unschedulable=True), *node("none", 0), *node("small", 1)]
    told = {one["name"]: one for one in ask(*nodes, gpu_pod(limits=asks), words=("-o", "json")).data["nodes"]}
    assert {name: one["lack"] for name, one in told.items()} == {"small": 70, "cordoned": 170, "none": 170}
    assert {name: one["permanent"] for name, one in told.items()} == dict.fromkeys(("small", "cordoned", "none"), True)
    assert [one["text"] for one in told["small"]["reasons"]] == [
        "not enough cpu: 10 requested, 8 of 8 free; memory: 128 GiB requested, 64 GiB of 64 GiB free"
    ]
    assert told["small"]["reasons"][0]["short"] == "not enough cpu, memory"
    assert [one["by"] for one in told["none"]["reasons"]] == ["koordgate", "kube-scheduler"]


def test_nodes_may_be_named(ask: Ask) -> None:
    cluster = [part for name in "abcd" for part in node(name, 1, unschedulable=True)]
    answer = ask(*cluster, gpu_pod(), words=("--node", "c", "--node", "a", "b"))
    assert [line.split()[1] for line in lines_of(answer, "Node ")] == ["a", "b", "c"]
    assert [line.split()[1] for line in lines_of(ask(*cluster, gpu_pod()), "Node ")] == ["a"]
    many = [part for at in range(9) for part in node(f"m{at}", 1)]
    wrong = ask(*many, gpu_pod(), words=("--node", "x", "y", "m1"))
    assert wrong.err.endswith("--node x, y: no such Node; there are m0, m1, m2, m3, m4, m5, m6, m7\n")


# Hurdles


def quota(name: str, hard: Raw, used: Raw | None = None, space: str = "team", **spec: Any) -> Raw:
    status = {} if used is None else {"hard": hard, "used": used}
    metadata = {"name": name, "namespace": space}
    return {"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard, **spec}, "status": status}


CORE = "requests.kubernetes.io/gpu-core"
QUOTAS: dict[str, tuple[list[Raw], list[str]]] = {
    "just enough": ([quota("q", {CORE: "100"}, {CORE: "0"})], []),
    "too much": (
        [quota("q", {CORE: "100"}, {CORE: "1"})],
        [f"ResourceQuota q does not allow it: {CORE}: 100 allowed, 1 used, and it adds 100"],
    ),
    "a new quota": (
        [quota("q", {CORE: "99"})],
        [f"ResourceQuota q does not allow it: {CORE}: 99 allowed, 0 used, and it adds 100"],
    ),
    "CPU in thousandths": (
        [quota("q", {"cpu": "2500m", "requests.cpu": "2"}, {"cpu": "501m", "requests.cpu": "0"})],
        ["ResourceQuota q does not allow it: cpu: 2500m allowed, 501m used, and it adds 2000m"],
    ),
    "CPU in thousandths that is enough": ([quota("q", {"cpu": "2500m"}, {"cpu": "500m"})], []),
    "another's, one with scopes, and two of its own": (
        [
            quota("other", {CORE: "1"}, space="other"),
            quota("scoped", {CORE: "1"}, scopes=["BestEffort"]),
            quota("odd", {"x": "many", CORE: "10"}),
            quota("b", {"pods": "1", "requests.cpu": "1"}),
        ],
        [
            f"ResourceQuota odd does not allow it: {CORE}: 10 allowed, 0 used, and it adds 100",
            "ResourceQuota b does not allow it: requests.cpu: 1 allowed, 0 used, and it adds 2000m",
        ],
    ),
}


@pytest.mark.parametrize(("quotas", "told"), QUOTAS.values(), ids=QUOTAS)
def test_a_quota_is_compared_with_what_a_new_pod_adds(ask: Ask, quotas: list[Raw], told: list[str]) -> None:
    answer = ask(*node("n1"), *quotas, gpu_pod(limits={**GPU, "cpu": "2"}), words=("-o", "json"))
    assert [one["text"] for one in answer.data["hurdles"] if one["why"] == "quota"] == told
    assert answer.status == (3 if told else 0)
    there = asyncio.run(waiting(limits={**GPU, "cpu": "2"}))
    assert not list(ask(*node("n1"), *quotas, there, words=("-o", "json")).data["hurdles"])


def test_gates_are_named_before_a_scheduler_that_has_not_tried(ask: Ask) -> None:
    gates = [{"name": f"x.io/g{at}"} for at in range(9)]
    made = scheduled(asyncio.run(waiting()), schedulingGates=gates)
    made["status"] = {}
    answer = ask(*node("n1"), made, words=("-o", "json"))
    (hurdle,) = answer.data["hurdles"]
    assert hurdle["text"] == f"it waits for its schedulingGates: {', '.join(f'x.io/g{at}' for at in range(8))}"


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        ("koord-scheduler", "see that koord-scheduler runs and is the leader: koordgate doctor"),
        ("volcano", "see that volcano runs and is the leader"),
    ],
)
def test_a_scheduler_that_has_not_tried_is_named(ask: Ask, name: str, todo: str) -> None:
    made = scheduled(asyncio.run(waiting()), schedulerName=name)
    made["status"] = {"conditions": [{"type": "Ready", "status": "False"}]}
    found = ask(*node("n1"), made, words=("-o", "json")).data["hurdles"]
    (unseen,) = [one for one in found if one["why"] == "noScheduler"]
    assert unseen["text"] == f"no scheduler has tried it yet: nobody named {name} has written a condition PodScheduled"
    assert unseen["toDo"] == todo
    also = [line for line in ask(*node("n1"), made).out.splitlines() if line.startswith("Also: ")]
    assert also == ([] if name == "koord-scheduler" else [f"Also: {unseen['text']}. To do: {todo}."])


@pytest.mark.parametrize(
    ("phase", "reason", "says"), [("Failed", "Evicted", "Failed (Evicted)"), ("Succeeded", "", "Succeeded")]
)
def test_how_a_pod_ended_is_told(ask: Ask, phase: str, reason: str, says: str) -> None:
    made = {**asyncio.run(waiting()), "status": {"phase": phase, "reason": reason}}
    answer = ask(*node("n1"), made)
    assert answer.first == f"Pod team/mine: it has ended: {says}."
    assert "To do" not in answer.out


# Words


# Bound Pods


def test_how_a_pods_node_compares_is_told(ask: Ask) -> None:
    packs = {"kind": "ConfigMap", "metadata": {"name": "koordgate", "namespace": "koordgate-system"}}
    packs |= {"data": {"config.yaml": "scheduler: {preference: packing}"}}
    mine = asyncio.run(bound("mine", "n1", *node("n1", 2)))
    only = ask(*node("n1", 2), *node("n2", 1, unschedulable=True), mine, words=("-o", "json"))
    assert only.data["answer"].startswith("Pod team/mine is on n1: it holds gpu 0")
    alone = ask(*node("n1", 2), mine)
    assert alone.first == "Pod team/mine is on n1: it holds gpu 0, and this is the only node that could hold it."
    best = ask(packs, *node("n1", 2), *node("n2", 8), mine)
    assert best.first == ("Pod team/mine is on n1: it holds gpu 0, and this is the best of 2 nodes that could hold it.")
    worse = ask(packs, *node("n2", 1), *node("n1", 2), *node("n3", 1), mine)
    assert worse.first == ("Pod team/mine is on n1: it holds gpu 0; now 2 of 3 nodes would come before it, n2 first.")
    elsewhere = [*node("n2", 1, unschedulable=True), *node("n1", 2, unschedulable=True), *node("n3", 1)]
    fewer = ask(packs, *elsewhere, mine)
    assert fewer.first == ("Pod team/mine is on n1: it holds gpu 0; now 1 of 2 nodes would come before it, n3 first.")
    full = [{**one, "spec": {"devices": []}} if one["kind"] == "Device" else one for one in node("n1", 2)]
    told = ask(*full, *node("n2", 1), mine).first
    assert told.startswith("Pod team/mine is on n1: it holds gpu 0; the node could not give it that again now: ")


def test_events_of_the_bind_are_told_in_the_order_of_time_and_no_others(ask: Ask) -> None:
    mine = asyncio.run(bound("mine", "n1", *node("n1")))

    def event(name: str, at: str | None, reason: str = "DevicesAllocated", uid: str = "uid-mine") -> Raw:
        about = {"kind": "Event", "metadata": {"name": name, "namespace": "team"}, "involvedObject": {"uid": uid}}
        return {**about, "reason": reason, "message": f"says {name}"} | ({"lastTimestamp": at} if at else {})

    events = [
        event("late", "2026-01-03T00:00:00Z"),
        event("other", "2026-01-02T00:00:00Z", uid="uid-other"),
        event("another", "2026-01-02T00:00:00Z", uid="uid-another"),
        event("early", BORN),
        event("pulled", BORN, reason="Pulled"),
        event("never", None),
    ]
    found = ask(*node("n1"), mine, *events, words=("-o", "json")).data["standing"]
    assert found["recorded"] == [
        "time unknown: says never",
        f"{BORN}: says early",
        "2026-01-03T00:00:00Z: says late",
    ]


def test_whom_a_pod_shares_its_card_with_is_told(ask: Ask) -> None:
    half = {"kubernetes.io/gpu-core": "30", "kubernetes.io/gpu-memory-ratio": "30"}
    mine = asyncio.run(bound("mine", "n1", *node("n1", 2), limits=half))
    share = {"kubernetes.io/gpu-core": "10", "kubernetes.io/gpu-memory-ratio": "10"}
    held = json.dumps({"gpu": [{"minor": 0, "resources": share, "id": "GPU-n1-0"}]})
    others = []
    for at in range(5):
        other = gpu_pod(f"o{at}", share, annotations={"scheduling.koordinator.sh/device-allocated": held})
        other["metadata"]["creationTimestamp"] = BORN
        others.append(scheduled(other, nodeName="n1", schedulerName="koord-scheduler"))
    told = ask(*node("n1", 2), mine, *others).out
    assert "in use already, shared with team/o0, team/o1, team/o2, team/o3 and 1 more" in told
    assert "of 2 devices of type gpu, the one that was idle stays whole" in told
    few = ask(*node("n1", 2), mine, *others[:4]).out
    assert "shared with team/o0, team/o1, team/o2, team/o3\n" in few


# As data


def test_a_pod_that_waits_is_data(ask: Ask) -> None:
    held = asyncio.run(bound("other", "n1", *node("n1", 1)))
    found = ask(*node("n1", 1), *node("n2", 1, unschedulable=True), held, asyncio.run(waiting()), words=("-o", "json"))
    told = found.data
    assert (told["pod"], told["uid"], told["node"], told["mode"]) == ("team/mine", "uid-mine", "", "enforce")
    assert (told["schedulerName"], told["translatedHere"], told["schedulerSaid"]) == (
        "koord-scheduler",
        False,
        "0/2 nodes",
    )
    assert (told["hurdles"], told["fits"], told["standing"]) == ([], [], None)
    assert [one["name"] for one in told["nodes"]] == ["n1", "n2"]
    assert [one["name"] for one in told["details"]] == ["n1"]
    by_name = {one["name"]: one for one in told["nodes"]}
    assert (by_name["n1"]["fits"], by_name["n1"]["lack"], by_name["n1"]["permanent"]) == (False, 100, False)
    assert (by_name["n2"]["fits"], by_name["n2"]["lack"], by_name["n2"]["permanent"]) == (False, 100, False)
    assert by_name["n2"]["reasons"] == [
        {
            "by": "kube-scheduler",
            "short": "the node is cordoned (spec.unschedulable)",
            "text": "the node is cordoned (spec.unschedulable)",
        }
    ]
    closely = ask(*node("n1", 1), held, asyncio.run(waiting()), words=("-o", "json", "--node", "n1")).data["details"][0]
    (card,) = closely["devices"]
    assert (card["type"], card["minor"], card["id"], card["lack"]) == ("gpu", 0, "GPU-n1-0", 100)
    assert card["holders"] == ["team/other"]
    assert [one["kind"] for one in closely["remedies"]] == ["Pods that leave"]
    assert (closely["remedies"][0]["pods"], closely["remedies"][0]["needed"]) == (["team/other"], False)
    assert (closely["doubts"], closely["numaNodes"]) == ([], [])


def test_a_bound_pod_is_data(ask: Ask) -> None:
    mine = asyncio.run(bound("mine", "n1", *node("n1", 2)))
    told = ask(*node("n1", 2), *node("n2", 2), mine, words=("-o", "json")).data
    assert (told["node"], told["nodes"], told["details"], told["toDo"]) == ("n1", [], [], "")
    standing = told["standing"]
    order = standing.pop("order")
    assert standing == {
        "node": "n1",
        "holds": [
            {
                "type": "gpu",
                "minor": 0,
                "id": "GPU-n1-0",
                "amounts": {"gpu-core": 100, "gpu-memory": 80 * 2**30, "gpu-memory-ratio": 100},
            }
        ],
        "whyNotNow": "",
        "sameNow": True,
        "openedDevices": 1,
        "openedRoots": standing["openedRoots"],
        "left": [{"type": "gpu", "total": 2, "idleBefore": 2, "idleAfter": 1}],
        "recorded": [],
    }
    assert [(one["node"], one["level"]) for one in order] == [("n1", 0), ("n2", 0)]
    assert all(value is not None for one in order for value in one.values())


def test_notes_that_say_the_same_of_many_objects_are_one_unless_all_is_asked_for(ask: Ask) -> None:
    cluster = [part for at in range(9) for part in node(f"n{at}")]
    for obj in cluster:
        if obj["kind"] == "Device":
            obj["spec"]["devices"][1]["id"] = ""
    told = [len(ask(*cluster, gpu_pod(), words=words).err.splitlines()) for words in ((), ("--all",))]
    assert told == [2, 10]  # the settings that are assumed are told too
