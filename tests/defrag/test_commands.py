"""`koordgate packing` and `koordgate defrag` on files: what they say, and whom they leave alone."""

import json
from pathlib import Path
from typing import Any

import foreignpods
import pytest
import yaml
from defrag.clusters import PACKS, SET, Raw, Run, bound, budget, node, settings, usual
from foreignpods import hami

from allocator.vocabulary.names import DEVICE_ALLOCATED
from console.packing.command import COMMAND as PACKING
from console.packing.defrag import COMMAND as DEFRAG
from koordgate.cli import Command

JOB = {**SET, "apiVersion": "batch/v1", "kind": "Job"}
OF_ALL = {**SET, "kind": "DaemonSet"}


def test_the_plan_moves_the_one_pod_that_is_in_the_way(run: Run) -> None:
    answer = run(DEFRAG, usual(), "--plan", "--for", "4")
    assert answer.status == 0
    assert answer.out.startswith("1 Pod would move to make room for a Pod of 4 cards. It fits 0 times now, and\n")
    assert "1  team/one   ReplicaSet serve  b gpu 0  a gpu 2" in answer.out
    assert "Nothing was changed." in answer.out
    assert max(map(len, answer.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("mix", "status"),
    [("", 3), ("{requests: {kubernetes.io/gpu: 400}}, {requests: {kubernetes.io/gpu: 100}}", 0)],
    ids=["what runs is typical", "a Pod of the size is typical"],
)
def test_with_fragmentation_moves_make_room_for_a_size_that_is_typical(run: Run, mix: str, status: int) -> None:
    answer = run(DEFRAG, usual(settings(f"scheduler: {{mix: [{mix}]}}")), "--plan", "--for", "4")
    assert answer.status == status
    assert ("Room for: 1 more" in answer.out) == (status == 0)


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_plan_is_written_as_data(run: Run, output: str) -> None:
    answer = run(DEFRAG, usual(), "-o", output)
    found = yaml.safe_load(answer.out)
    assert (found["for"], found["fitBefore"], found["fitAfter"], found["ended"]) == ("4", 0, 1, "enough")
    (room,) = found["rooms"]
    (move,) = room["moves"]
    assert (move["name"], move["from"]["node"], move["to"]["node"]) == ("one", "b", "a")
    assert move["controller"] == {"kind": "ReplicaSet", "name": "serve", "uid": "uid-of-serve"}
    assert found["stays"] == []


def _with(change: dict[str, Any] | None = None, **about: Any) -> list[Raw]:
    """The usual cluster, in which neither Pod may be moved but "one", and that is changed."""
    cluster = [PACKS, *node("a"), *node("b")]
    cluster.append(bound("big", "a", cluster, "200", owner=None))
    one = bound("one", "b", cluster, **about)
    for key, value in (change or {}).items():
        part, _, field = key.partition(".")
        one[part] = (
            {**one[part], field: value}
            if field != "annotations"
            else {**one[part], "annotations": {**one[part]["annotations"], **value}}
        )
    return [*cluster, one]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"metadata.ownerReferences": []}, "it has no controller that would make it again"),
        ({"metadata.ownerReferences": [OF_ALL]}, "it belongs to a DaemonSet"),
        ({"metadata.ownerReferences": [JOB]}, "it belongs to a Job, whose work would be lost (--jobs)"),
        ({"metadata.ownerReferences": [{**SET, "kind": "Node"}]}, "it is a static Pod"),
        ({"metadata.annotations": {"koordgate.io/movable": "false"}}, "koordgate.io/movable: false"),
        (
            {"metadata.annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}},
            "cluster-autoscaler.kubernetes.io/safe-to-evict: false",
        ),
        ({"metadata.annotations": {"karpenter.sh/do-not-disrupt": "30m"}}, "karpenter.sh/do-not-disrupt: 30m"),
        ({"metadata.annotations": {"scheduling.koordinator.sh/eviction-cost": "2147483647"}}, "eviction-cost"),
        ({"metadata.annotations": {"gang.scheduling.koordinator.sh/name": "g"}}, "it belongs to the gang team/g"),
        ({"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"}, "it is ending"),
        ({"spec.priority": 2_000_001_000}, "is critical to the system"),
        ({"spec.schedulerName": "other"}, "it is not placed by koord-scheduler"),
        ({"spec.schedulerName": "another"}, "it is not placed by koord-scheduler"),
        ({"spec.resourceClaims": [{"name": "x"}]}, "it has ResourceClaims"),
        ({"spec.topologySpreadConstraints": [{"topologyKey": "zone"}]}, "topologySpreadConstraints"),
        ({"spec.affinity": {"podAntiAffinity": {"x": []}}}, "its Pod affinity also decides"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pod_is_left_alone(run: Run, change: dict[str, Any], says: str) -> None:
    answer = run(DEFRAG, _with(change), "--for", "4", "-o", "json")
    assert (answer.status, answer.data["rooms"]) == (3, [])
    (why,) = [one["why"] for one in answer.data["stays"] if one["pod"] == "team/one"]
    assert says in why


@pytest.mark.parametrize(
    ("budgets", "says"),
    [
        ([budget({"app": "one"}, 0)], "PodDisruptionBudget keep: it allows no disruption now"),
        ([budget({"app": "one"}, -1)], "PodDisruptionBudget keep: it allows no disruption now"),
        ([budget({"app": "one"}, None)], "PodDisruptionBudget keep: its state is not known"),
        ([budget({}, 1), budget({"app": "one"}, 1, "two")], "it has several PodDisruptionBudgets (keep, two)"),
        ([budget({"app": "one"}, 1), budget({"app": "other"}, 0, "two")], ""),
    ],
    ids=["none allowed", "fewer than none", "unknown", "several", "allowed"],
)
def test_a_budget_decides_whether_a_pod_is_moved(run: Run, budgets: list[Raw], says: str) -> None:
    answer = run(DEFRAG, [*_with(), *budgets], "--for", "4", "-o", "json")
    why = [one["why"] for one in answer.data["stays"] if one["pod"] == "team/one"]
    assert (answer.status, len(answer.data["rooms"])) == ((3, 0) if says else (0, 1))
    assert all(one.startswith(says) for one in why)
    assert bool(why) == bool(says)


def test_pods_of_jobs_are_moved_on_demand(run: Run) -> None:
    cluster = _with({"metadata.ownerReferences": [JOB]})
    assert run(DEFRAG, cluster, "--for", "4", "--jobs").status == 0


@pytest.mark.parametrize("kind", ["CloneSet", "Elf", "StatefulSet", "Zone"])
def test_pods_of_any_other_controller_are_moved(run: Run, kind: str) -> None:
    cluster = _with({"metadata.ownerReferences": [{**SET, "kind": kind}]})
    assert run(DEFRAG, cluster, "--for", "4").status == 0


def test_pods_of_exempt_namespaces_stay(run: Run) -> None:
    space = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "team", "labels": {"koordgate.io/mode": "off"}},
    }
    answer = run(DEFRAG, [*_with(), space], "--for", "4")
    assert answer.status == 3
    assert "koordgate does not place Pods of its namespace (mode off)" in answer.out


def test_the_report_counts_what_each_size_can_use(run: Run) -> None:
    answer = run(PACKING, usual(), "-o", "json")
    assert answer.status == 0
    (model,) = answer.data["models"]
    assert (model["devices"], model["idle"], model["partlyFree"], model["freeMilli"]) == (8, 5, 0, 5000)
    by_size = {one["size"]: one["models"][0] for one in answer.data["sizes"]}
    assert {size: one["fit"] for size, one in by_size.items()} == {
        "10%": 50,
        "25%": 20,
        "50%": 10,
        "1": 5,
        "2": 2,
        "4": 0,
        "8": 0,
    }
    for one in by_size.values():
        assert one["usableMilli"] + sum(one["lostMilli"].values()) == 5000
    assert by_size["2"]["lostMilli"] == {"cpu": 0, "memory": 0, "remainder": 1000, "out": 0}
    assert [one["for"] for one in answer.data["plans"]] == ["4"]


def test_the_report_is_the_same_in_both_forms_of_data(run: Run) -> None:
    assert yaml.safe_load(run(PACKING, usual(), "-o", "yaml").out) == run(PACKING, usual(), "-o", "json").data


def test_the_report_tells_causes_apart(run: Run) -> None:
    cluster = [*node("a", cpu=6), *node("b", unschedulable=True), *node("c")]
    cluster[-1]["spec"]["devices"][0]["health"] = False
    answer = run(PACKING, cluster, "--for", "1", "--cpu", "4", "-o", "json")
    row = next(one for one in answer.data["sizes"] if one["size"] == "1")
    (use,) = row["models"]
    assert row["milliCPU"] == 4000
    assert (use["fit"], use["usableMilli"]) == (4, 4000)
    assert use["lostMilli"] == {"cpu": 3000, "memory": 0, "remainder": 0, "out": 5000}


@pytest.mark.parametrize(
    ("theirs", "nearest"),
    [
        pytest.param(10, "n1 (lack 10 %)", id="what another product leaves counts"),
        pytest.param(70, "b (lack 20 %)", id="it leaves less than koordgate's Pod"),
    ],
)
def test_the_nearest_node_has_the_most_left_whoever_holds_the_rest(run: Run, theirs: int, nearest: str) -> None:
    cluster = [*node("n1", cards=1), *node("b", cards=1)]
    cluster.append(bound("own", "b", cluster, "20", owner=None))
    entry = f"GPU-n1-0,NVIDIA,{theirs * 80 * 1024 // 100},{theirs}:;"
    cluster.append(hami(entry, limits={"nvidia.com/gpu": "1"}))
    answer = run(DEFRAG, cluster, "--for", "1")
    assert f"The nearest node is {nearest}: 0 GPUs fit 1 x (core 100 %, memory 100 %)." in answer.out


def test_a_pod_of_a_file_finds_the_nearest_node(run: Run, tmp_path: Path) -> None:
    asks = {"nvidia.com/gpu": "4"}
    file = tmp_path / "pod.yaml"
    made = {"metadata": {"name": "train"}, "spec": {"containers": [{"name": "main", "resources": {"limits": asks}}]}}
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", **made}))
    cluster = _with({"metadata.ownerReferences": []})
    answer = run(PACKING, cluster, "--pod", str(file))
    assert answer.status == 3
    assert "Pod default/train fits on no node now.\n" in answer.out
    assert "The nearest node is b (lack 100 %): 3 GPUs fit 4 x (core 100 %, memory 100 %)." in answer.out
    assert "team/one on b stays: it has no controller that would make it again" in answer.out
    moved = run(PACKING, usual(), "--pod", str(file), "-o", "json").data["plans"]
    assert [len(one["rooms"]) for one in moved] == [1]


def test_each_model_that_a_refusal_names_is_one_that_can_be_given(run: Run) -> None:
    card = {"id": "GPU-1", "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA-NVIDIA A100", "health": True}
    theirs = node("h")[0]
    theirs["metadata"]["annotations"] = {"hami.io/node-nvidia-register": json.dumps([card])}
    cluster = [PACKS, *node("unnamed"), theirs]
    refused = run(PACKING, cluster, "--model", "H100").err
    assert "--model H100: no node has such a device of type gpu; there are A100\n" in refused
    for name in ("A100", "NVIDIA-A100", "NVIDIA-NVIDIA-A100"):
        assert run(PACKING, cluster, "--model", name).out.startswith("Free: 1 of 1 card on 1 node; ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--apply",), "--apply evicts Pods of a cluster, not of files: leave -f out"),
        (("--yes",), "--yes confirms --apply: add that, or leave --yes out"),
        (("--type", "gpus"), "--type gpus: no such device type; there are gpu, rdma, fpga"),
        (("--for", "1", "--model", "H100"), "--model H100: no node has such a device of type gpu; there are "),
        (("--pod", "missing.yaml"), "missing.yaml"),
    ],
    ids=["apply with files", "yes alone", "type", "model", "no file"],
)
def test_wrong_arguments_are_told(run: Run, words: tuple[str, ...], says: str) -> None:
    answer = run(DEFRAG, usual(), *words)
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.err


@pytest.mark.parametrize("size", ["0", "9999", "0%", "101%", "2:", ":50", "half", "-1", "2:50:3", "٣"])
def test_what_is_no_size_is_refused(run: Run, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(DEFRAG, [], f"--for={size}")
    assert "is no size: " in capsys.readouterr().err


def test_a_report_that_ended_early_says_on_how_many_nodes(run: Run) -> None:
    answer = run(PACKING, [*node("a", cards=24), *node("b")], "--for", "1%", "--cpu", "0", "-o", "json")
    assert answer.status == 0
    (note,) = [one for one in answer.data["notes"] if "ended" in one]
    assert note.startswith(
        "the search ended before everything was tried: on 1 of the nodes more Pods of a size may fit"
    )
    assert note in answer.err


def test_cards_in_doubt_and_nodes_that_are_not_ready_are_told(run: Run) -> None:
    cluster = [*node("a"), *node("b"), foreignpods.kai("one", name="shared", node="b")]
    cluster[0]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    answer = run(PACKING, cluster, "--for", "8")
    assert "Node a is not Ready, without the taint node.kubernetes.io/not-ready" in answer.err
    missing = "the reservation Pod of group one, which names its GPU of node b, was not read"
    assert f"what Pod team/shared holds on b is in doubt: {missing}" in answer.err
    stays = run(DEFRAG, cluster, "--for", "8", "-o", "json").data["stays"]
    assert [one["why"] for one in stays] == ["another product placed it; what it holds is in doubt"]
    sure = foreignpods.reservation("one", "GPU-b-1", node="b")
    answer = run(PACKING, [*node("b"), cluster[-1], sure], "--for", "8")
    assert "doubt" not in answer.out + answer.err
    assert "on 1 node; " in answer.out


def test_an_empty_cluster_is_told(run: Run) -> None:
    assert run(PACKING, []).out == "No node has a device of type gpu.\n"
    assert run(DEFRAG, []).status == 2
    assert json.loads(run(DEFRAG, [], "--for", "8", "-o", "json").out)["nearest"] is None


def halves(*others: Raw) -> list[Raw]:
    """A node of two cards, of each of which one Pod holds half."""
    cluster = [*node("a", cards=2), *others]
    first, filler = bound("first", "a", cluster, "50"), bound("filler", "a", cluster, "100")
    return [*cluster, first, bound("second", "a", [*cluster, filler], "50")]


def test_two_halves_on_two_cards_of_a_node_are_joined(run: Run) -> None:
    cluster = halves()
    assert len({one["metadata"]["annotations"][DEVICE_ALLOCATED] for one in cluster[2:]}) == 2
    answer = run(DEFRAG, cluster, "--for", "1")
    assert answer.status == 0
    (row,) = [line for line in answer.out.splitlines() if line.startswith("1  team/")]
    assert {row.split("  ")[-2].strip(), row.split("  ")[-1].strip()} == {"a gpu 0", "a gpu 1"}
    (room,) = run(PACKING, cluster, "--for", "1", "-o", "json").data["plans"][0]["rooms"]
    (move,) = room["moves"]
    assert [one["minor"] for one in move["to"]["devices"]] != [one["minor"] for one in move["from"]["devices"]]


def gone_first() -> list[Raw]:
    """While a Pod of node a is still there, the next one shares its card or takes the card beside it."""
    cluster = [PACKS, *node("a"), *node("b")]
    cluster.append(bound("big", "b", cluster, "100", owner=None))
    filler = bound("filler", "b", cluster, "100")
    cluster.append(bound("part", "b", [*cluster, filler], "50", owner=None))
    cluster.append(bound("one", "a", cluster, "100"))
    return [*cluster, bound("half", "a", cluster, "50")]


@pytest.mark.parametrize(("command", "status"), [(DEFRAG, 3), (PACKING, 3)], ids=["defrag", "packing"])
def test_moves_that_help_only_if_pods_are_gone_first_are_told(run: Run, command: Command, status: int) -> None:
    answer = run(command, gone_first(), "--for", "4")
    text = " ".join(answer.out.split())
    assert answer.status == status
    assert "no move helps for which it is certain where the Pod goes" in text
    assert "2 Pods could move, in this order, to make room on a:" in text
    assert (
        "But team/half must be gone before its controller makes the next Pod, which goes elsewhere otherwise." in text
    )
    assert "scale the controller to 0, and back once its Pods are gone" in text
    assert "strategy Recreate" in text
    data = run(command, gone_first(), "--for", "4", "-o", "json").data
    found = data["plans"][0] if command is PACKING else data
    assert found["rooms"] == []
    assert found["ifGoneFirst"]["pods"] == ["team/half"]
    assert [move["name"] for room in found["ifGoneFirst"]["rooms"] for move in room["moves"]] == ["half", "one"]


def test_where_pods_that_are_gone_first_do_not_help_either_nothing_is_told_of_it(run: Run) -> None:
    answer = run(DEFRAG, _with({"metadata.ownerReferences": []}), "--for", "4", "-o", "json")
    assert answer.data["ifGoneFirst"] is None
