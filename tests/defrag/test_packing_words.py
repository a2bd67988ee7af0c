"""`koordgate packing` and `koordgate defrag` at their bounds: what is written, counted, named and left out."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from defrag.clusters import PACKS, SET, Raw, Run, bound, budget, node, usual
from defrag.fleets import room, wanted

from allocator.packing.defrag import Ended, MovePlan
from allocator.request.typical import MEMORY
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.holdings import Share
from console.explain.reading import Reading
from console.packing import defrag
from console.packing.apply import _age
from console.packing.command import COMMAND as PACKING
from console.packing.data import milli
from console.packing.defrag import COMMAND as DEFRAG
from console.packing.movable import Owner, budgets_by_namespace, budgets_of, owner_of
from console.packing.planning import RoomPlan, why_no_more
from console.packing.report import _cards, _times, stays_lines
from console.packing.shareswords import shares_words
from console.packing.state import Stay, read_state
from console.packing.wanted import WantedRoom

GIB = 2**30


def modelled(objects: list[Raw], model: str) -> list[Raw]:
    for obj in objects:
        for entry in obj["spec"].get("devices", ()):
            entry["labels"] = {"node.koordinator.sh/gpu-model": model}
    return objects


def several() -> list[Raw]:
    """Two nodes of one model, one of which is cordoned, and a node of another; Pods hold some."""
    cluster = [PACKS, *modelled(node("a"), "A100"), *modelled(node("b", 2), "H100")]
    cluster += modelled(node("c", unschedulable=True), "A100")
    cluster.append(bound("big", "a", cluster, "200"))
    cluster.append(bound("half", "a", cluster, "50"))
    return [*cluster, bound("one", "b", cluster, "100")]


def test_the_report_counts_each_model_and_says_what_sizes_can_use(run: Run) -> None:
    lines = run(PACKING, several(), "--cpu", "1500m", "--memory", "6Gi").out.splitlines()
    assert lines[0] == "Free: 2.5 of 10 cards on 3 nodes; 2 of them whole, and parts of 1 more."
    assert [line.split() for line in lines[2:5]] == [
        ["MODEL", "NODES", "CARDS", "WHOLE", "FREE", "PARTLY", "FREE", "FREE", "IN", "SUM", "OUT"],
        ["A100", "2", "8", "1", "1", "1.5", "4"],
        ["H100", "1", "2", "1", "0", "1", "0"],
    ]
    assert lines[6] == "How much of it Pods of a size can use, and why not the rest (in cards)"
    rows = [line.split() for line in lines[8:23]]
    assert rows[0] == ["A100", "10%", "15", "1.5", "0", "0", "0", "4"]
    assert rows[2] == ["50%", "3", "1.5", "0", "0", "0", "4"]
    assert rows[3] == ["1", "1", "1", "0", "0", "0.5", "4"]
    assert rows[4] == ["2", "0", "0", "0", "0", "1.5", "4"]
    sizes = [row[1] if row[0] in {"A100", "H100"} else row[0] for row in rows]
    each = ["10%", "25%", "50%", "1", "2", "4", "8"]
    assert [one for one in sizes if one != "typical"][:14] == each * 2
    assert "A Pod of one card requests 1.5 CPUs and 6.0 GiB of memory." in lines


def test_a_report_of_one_model_names_it_once(run: Run) -> None:
    lines = run(PACKING, [PACKS, *node("a", 1)]).out.splitlines()
    assert lines[0] == "Free: 1 of 1 card on 1 node; 1 of them whole, and parts of 0 more."
    assert [line.split()[0] for line in lines if line.startswith("(unknown)")] == ["(unknown)"]
    told = "No typical Pods are known: a Pod of a size requests cards, no CPU and no memory (--cpu, --memory)."
    assert told in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("nodes", "told"), [(4, "a0, a1, a2, a3."), (5, "a0, a1, a2, a3 and 1 more."), (9, "a0, a1, a2, a3 and 5 more.")]
)
def test_four_nodes_on_which_a_pod_fits_are_named(run: Run, nodes: int, told: str) -> None:
    cluster = [obj for at in range(nodes) for obj in node(f"a{at}", 1)]
    answer = run(PACKING, cluster, "--for", "1")
    assert answer.status == 0
    assert f"A Pod of 1 card fits now, {nodes} times: on {told}" in answer.out.splitlines()


def test_what_fits_once_is_told_so_and_how_to_make_room_for_more(run: Run) -> None:
    cluster = [*usual(), *node("c")]
    text = " ".join(run(PACKING, cluster, "--for", "4").out.split())
    assert "A Pod of 4 cards fits now, once: on c." in text
    assert "1 Pod would have to move to make room for one more on b:" in text
    assert "To do that: koordgate defrag --for 4 --apply" in text
    plan = " ".join(run(DEFRAG, cluster, "--for", "4").out.split())
    grows = "It fits once now, and 2 times after that."
    assert plan.startswith(f"1 Pod would move to make room for a Pod of 4 cards. {grows}")
    nothing = "Nothing was changed. Each move is an eviction; to do them one by one: --apply"
    assert plan.endswith(f"Room for: 1 more, on b. {nothing}")


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("1", "a Pod of 1 card"),
        ("2", "a Pod of 2 cards"),
        ("50%", "a Pod of 50 % of a card"),
        ("2:50%", "a Pod of 50 % of each of 2 cards"),
    ],
)
def test_a_size_is_told_in_words(run: Run, size: str, words: str) -> None:
    full = node("a", 2)
    for entry in full[1]["spec"]["devices"]:
        entry["health"] = False
    told = " ".join(run(DEFRAG, full, "--for", size).out.split())
    assert told.startswith(f"No moves make room for {words}: no further move helps. It fits nowhere now.")


@pytest.mark.parametrize(
    ("count", "last"),
    [
        (8, "  team/p7 on n7 stays: w7"),
        (9, "  and 1 more stay; -o json names all"),
        (17, "  and 9 more stay; -o json names all"),
    ],
)
def test_eight_pods_that_stay_are_named_and_the_others_counted(count: int, last: str) -> None:
    lines = list(stays_lines([Stay(f"team/p{at}", f"n{at}", f"w{at}") for at in range(count)]))
    assert lines[7] == "  team/p7 on n7 stays: w7"
    assert (lines[-1], len(lines)) == (last, min(count, 9))


@pytest.mark.parametrize(("count", "told"), [(0, "0 times"), (1, "once"), (2, "2 times")])
def test_how_often_a_pod_fits_is_told(count: int, told: str) -> None:
    assert _times(count) == told


def test_points_are_told_as_devices_rounded_down() -> None:
    assert [milli(points, GPU_TYPE) for points in (0, 1, 150, 200)] == [0, 5, 750, 1000]
    assert milli(600, GPU_TYPE, 3) == 1000
    assert [_cards(points, GPU_TYPE) for points in (0, 200, 300, 399)] == ["0", "1", "1.5", "1.9"]
    assert _cards(600, GPU_TYPE, 2) == "1.5"


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        (Ended.ENOUGH, ""),
        (Ended.MOVES, "more moves would be needed than --most allows"),
        (Ended.NOTHING, "no further move helps"),
        (Ended.WORK, "the search ended before everything was tried: name a model, or a smaller size"),
    ],
)
def test_why_there_is_no_more_room_is_told(ended: Ended, says: str) -> None:
    made = RoomPlan(WantedRoom(wanted("1"), "a Pod", "1", GPU_TYPE), MovePlan((), (), 0, ended), None)
    assert why_no_more(made) == says


def test_shares_are_told_by_type_and_minor() -> None:
    shares = [Share("gpu", "g3", 3, {}), Share("rdma", "r0", 0, {}), Share("gpu", "g1", 1, {})]
    assert shares_words(shares) == "gpu 3,1; rdma 0"


# The command line


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("--count", "1"), True),
        (("--count", "100"), True),
        (("--count", "101"), False),
        (("--count", "0"), False),
        (("--count", "-1"), False),
        (("--count", "٣"), False),
        (("--most", "1000"), True),
        (("--most", "1001"), False),
        (("--most", "1000000000"), False),
        (("--most", "x"), False),
    ],
)
def test_numbers_have_bounds(words: tuple[str, str], capsys: pytest.CaptureFixture[str], *, right: bool) -> None:
    parser = argparse.ArgumentParser()
    DEFRAG.arguments(parser)
    if right:
        assert vars(parser.parse_args(words))[words[0].removeprefix("--")] == int(words[1])
        return
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert f"write a number from 1 to {100 if words[0] == '--count' else 1000}" in capsys.readouterr().err


def test_by_default_ten_pods_move_for_one_and_five_minutes_are_waited() -> None:
    parser = argparse.ArgumentParser()
    DEFRAG.arguments(parser)
    read = parser.parse_args([])
    assert (read.count, read.most, read.timeout, read.output) == (1, 10, 300.0, "text")
    assert (read.apply, read.yes, read.jobs, read.type) == (False, False, False, "gpu")


def test_the_most_moves_bound_the_plan(run: Run) -> None:
    cluster = [PACKS, *node("a"), *node("b")]
    for name in ("one", "two"):
        cluster.append(bound(name, "b", cluster, "100"))
    cluster.append(bound("big", "a", cluster, "200", owner=None))
    few = run(DEFRAG, cluster, "--for", "4", "--most", "1")
    assert few.status == 3
    assert "more moves would be needed than --most allows" in " ".join(few.out.split())
    assert run(DEFRAG, cluster, "--for", "4", "--most", "2").status == 0


@pytest.mark.parametrize(("made", "count", "says"), [(1, 1, "The move is made."), (2, 2, "All 2 moves are made.")])
def test_moves_that_are_made_are_counted(made: int, count: int, says: str) -> None:
    class One:
        outcome = defrag.MoveOutcome.MOVED

    assert defrag._outcome([One()] * made, count) == says  # type: ignore[list-item]
    assert defrag._outcome([One()] * made, count + 1).startswith(  # type: ignore[list-item]
        f"Stopped: {made} of {count + 1} moves are made, and nothing else was evicted."
    )


# Which Pods may be moved


def test_a_pod_belongs_to_its_controller_alone() -> None:
    others = [{"kind": "Node", "name": "n", "uid": "u"}, {"kind": "Job", "name": "j", "uid": "v", "controller": False}]
    assert owner_of({"metadata": {"ownerReferences": [*others, SET]}}) == Owner("ReplicaSet", "serve", "uid-of-serve")
    assert owner_of({"metadata": {"ownerReferences": others}}) is None
    assert owner_of({"metadata": {"ownerReferences": [{"controller": True, "kind": "Job", "name": "j"}]}}) == Owner(
        "Job", "j", ""
    )
    assert [Owner(kind, "x", "u").late for kind in ("StatefulSet", "ReplicaSet")] == [True, False]


def test_budgets_are_those_of_the_pods_namespace_that_select_it() -> None:
    budgets = [budget({"app": "a"}, 1, "a"), budget({"app": "b"}, 1, "b"), budget({}, 1, "all")]
    other: Raw = {"metadata": {"name": "other", "namespace": "other"}}
    bare: Raw = {"metadata": {"name": "bare"}}
    found = budgets_by_namespace([*budgets, other, bare])
    assert {space: [one["metadata"]["name"] for one in of] for space, of in found.items()} == {
        "team": ["a", "b", "all"],
        "other": ["other"],
        "default": ["bare"],
    }
    labels: Mapping[str, Any] = {"metadata": {"labels": {"app": "b"}}}
    assert [one["metadata"]["name"] for one in budgets_of(labels, budgets)] == ["b", "all"]


def stays(run: Run, objects: list[Raw]) -> dict[str, str]:
    told = run(DEFRAG, objects, "--for", "4", "-o", "json").data["stays"]
    return {one["pod"]: one["why"] for one in told}


@pytest.mark.parametrize(("priority", "says"), [(1_000_000_000, ""), (1_000_000_001, "is critical to the system")])
def test_priorities_above_those_of_users_stay(run: Run, priority: int, says: str) -> None:
    cluster = usual()
    cluster[-1]["spec"]["priority"] = priority
    assert says in stays(run, cluster).get("team/one", "")
    assert ("team/one" in stays(run, cluster)) is bool(says)


@pytest.mark.parametrize(
    ("affinity", "says"),
    [
        ({"podAffinity": {"x": []}}, "its Pod affinity also decides where it goes"),
        ({"podAffinity": {}, "podAntiAffinity": {}}, ""),
        (
            {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}},
            "it prefers some nodes, which kube-scheduler weighs",
        ),
        ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, ""),
    ],
)
def test_affinities_decide_too(run: Run, affinity: Raw, says: str) -> None:
    cluster = usual()
    cluster[-1]["spec"]["affinity"] = affinity
    assert stays(run, cluster).get("team/one", "") == says


@pytest.mark.parametrize(
    ("taint", "closed"),
    [
        ({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}, True),
        ({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}, True),
        ({"key": "node.cloudprovider.kubernetes.io/shutdown", "effect": "NoSchedule"}, True),
        ({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}, True),
        ({"key": "ToBeDeletedByClusterAutoscaler", "effect": "PreferNoSchedule"}, False),
        ({"key": "dedicated", "effect": "NoSchedule"}, False),
    ],
)
def test_a_taint_that_takes_a_node_away_closes_it(taint: Raw, closed: bool) -> None:  # noqa: FBT001
    soft = {"key": "a", "effect": "PreferNoSchedule"}
    cluster = [*node("a", taints=[soft, taint]), *node("b"), *node("c", unschedulable=True)]
    state = read_state(Reading([("the test", one, one["kind"]) for one in cluster]), None)
    assert [bool(one.closed) for one in state.rooms] == [closed, False, True]
    assert state.rooms[0].closed == (f"taint {taint['key']}" if closed else "")
    assert state.rooms[2].closed == "cordoned"


def test_of_new_pods_the_oldest_counts() -> None:
    pods: list[Raw] = [
        {"metadata": {"name": name} | ({"creationTimestamp": at} if at else {})}
        for name, at in (("b", "2026-01-02"), ("c", "2026-01-01"), ("a", "2026-01-01"), ("z", None))
    ]
    assert [one["metadata"]["name"] for one in sorted(pods, key=_age)] == ["z", "a", "c", "b"]


def test_how_much_the_nearest_node_lacks_counts_cpu_and_memory_too(run: Run) -> None:
    cluster = [*node("a", 1, cpu=8), *node("b", 1, cpu=4), *node("c", 1, unschedulable=True)]
    told = run(DEFRAG, cluster, "--for", "1", "--cpu", "16", "--memory", "1Ti", "-o", "json").data["nearest"]
    assert (told["node"], told["lack"], told["movable"]) == ("a", 100, 0)
    exact = run(DEFRAG, cluster, "--for", "1", "--cpu", "9", "-o", "json").data["nearest"]
    assert (exact["node"], exact["lack"]) == ("a", 12)
    fits = run(DEFRAG, cluster, "--for", "1", "--cpu", "8", "-o", "json").data
    assert (fits["nearest"], fits["fitBefore"]) == (None, 1)


def test_without_a_size_the_largest_that_a_node_has_is_tried_first(run: Run) -> None:
    assert run(DEFRAG, [*node("a", 3), *node("b", 1)], "-o", "json").data["for"] == "2"
    assert run(DEFRAG, [*node("a", 8)], "-o", "json").data["for"] == "8"
    assert run(DEFRAG, [*node("a", 7)], "-o", "json").data["for"] == "4"


def test_a_room_has_what_its_pods_leave() -> None:
    made = room("a", ("x", "0"), ("y", "1:50"), cpu=16)
    assert (made.free("cpu"), made.free(MEMORY), made.free("other")) == (8000, 510 * GIB, None)


# Beside the one that is meant


@pytest.mark.parametrize("owner", [SET, None], ids=["may be moved", "stays"])
def test_the_nearest_node_is_told_with_its_own_pods(run: Run, owner: Raw | None) -> None:
    cluster = [PACKS, *node("a", 1), *node("b", 4), *node("c", 1)]
    for name, cards in (("a", "100"), ("b", "200"), ("c", "100")):
        cluster.append(bound(name, name, cluster, cards, owner=owner))
    near = run(DEFRAG, cluster, "--for", "8", "-o", "json").data["nearest"]
    assert (near["node"], near["movable"]) == ("b", 1 if owner else 0)
    assert [one["pod"] for one in near["stays"]] == ([] if owner else ["team/b"])


def test_only_devices_of_the_type_count_as_the_largest(run: Run) -> None:
    cluster = node("a", 1)
    for kind in ("fpga", "rdma"):
        for minor in range(8):
            resource = f"koordinator.sh/{kind}"
            entry = {"type": kind, "id": f"{kind}-{minor}", "minor": minor, "health": True}
            cluster[1]["spec"]["devices"].append({**entry, "resources": {resource: "100"}})
    assert run(DEFRAG, cluster, "-o", "json").data["for"] == "1"
    assert run(DEFRAG, cluster, "--type", "rdma", "-o", "json").data["for"] == "8"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cpu", "many"), "write a quantity such as 16 or 500m"),
        (("--memory", "much"), "write a quantity such as 64Gi"),
        (("--memory", "1.5"), "write a quantity such as 64Gi"),
    ],
)
def test_amounts_that_are_none_are_refused(
    words: tuple[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    DEFRAG.arguments(parser)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(words)
    assert capsys.readouterr().err.rstrip().endswith(told)


@pytest.mark.parametrize("pods", [0, 2, 3])
def test_a_file_of_none_or_several_pods_is_refused(run: Run, tmp_path: Path, pods: int) -> None:
    spec = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    made = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{at}"}, "spec": spec} for at in range(pods)]
    others = [{"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}} for kind in ("Node", "Service")]
    file = tmp_path / "pods.yaml"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*others, *made]}))
    answer = run(PACKING, node("a"), "--pod", str(file))
    told = f"--pod {file}: {pods} Pods; give a file with one Pod, as of a workload's template"
    assert (answer.status, answer.out, answer.err) == (2, "", f"koordgate packing: {told}\n")


@pytest.mark.parametrize(
    ("limits", "told"),
    [({"cpu": "1"}, "it asks for no devices"), ({"nvidia.com/gpu": "1.5"}, "admission refuses it: ")],
)
def test_a_pod_of_a_file_that_cannot_be_placed_is_refused(run: Run, tmp_path: Path, limits: Raw, told: str) -> None:
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    file = tmp_path / "pod.yaml"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}))
    answer = run(DEFRAG, node("a"), "--pod", str(file))
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(f"koordgate defrag: --pod {file}: {told}")


@pytest.mark.parametrize("models", [8, 9])
def test_eight_models_that_there_are_are_named(run: Run, models: int) -> None:
    cluster = [part for at in range(models) for part in modelled(node(f"n{at}", 1), f"M{at}")]
    answer = run(PACKING, cluster, "--model", "H100")
    there = ", ".join(f"M{at}" for at in range(8))
    told = f"--model H100: no node has such a device of type gpu; there are {there}"
    assert answer.err.splitlines()[-1] == f"koordgate packing: {told}"
    bare = run(PACKING, node("a"), "--model", "H100").err.splitlines()[-1]
    assert bare.endswith("there are none that state a model")


def test_a_type_that_has_no_parts_is_asked_for_whole(run: Run) -> None:
    cluster = node("a", 1)
    entry = {"type": "fpga", "id": "F0", "minor": 0, "health": True, "resources": {"koordinator.sh/fpga": "100"}}
    cluster[1]["spec"]["devices"].append(entry)
    sizes = [one["size"] for one in run(PACKING, cluster, "--type", "gpu", "-o", "json").data["sizes"]]
    assert sizes == ["10%", "25%", "50%", "1", "2", "4", "8"]
