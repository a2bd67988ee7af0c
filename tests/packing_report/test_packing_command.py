"""`koordgate packing` on files: what it counts, and what it says a Pod would need."""

import json
from dataclasses import replace
from pathlib import Path

import foreignpods
import pytest
import yaml
from builders import gpu, holding, part
from foreignpods import hami
from packing_report.clusters import Raw, Run, bound, node, usual

from allocator.wire.nodeallocation import API_VERSION, write_spec
from console.cluster import Reading
from console.packing.state import read_state


def test_the_report_counts_what_each_size_can_use(run: Run) -> None:
    answer = run(usual(), "-o", "json")
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
    wanted = answer.data["wanted"]
    assert (wanted["for"], wanted["fitsNow"], wanted["ifGone"]["node"]) == ("4", [], "b")
    assert [one["name"] for one in wanted["ifGone"]["pods"]] == ["one"]


def test_the_report_is_the_same_in_both_forms_of_data(run: Run) -> None:
    assert yaml.safe_load(run(usual(), "-o", "yaml").out) == run(usual(), "-o", "json").data


def test_the_report_tells_causes_apart(run: Run) -> None:
    cluster = [*node("a", cpu=6), *node("b", unschedulable=True), *node("c")]
    cluster[-1]["spec"]["devices"][0]["health"] = False
    answer = run(cluster, "--for", "1", "--cpu", "4", "-o", "json")
    row = next(one for one in answer.data["sizes"] if one["size"] == "1")
    (use,) = row["models"]
    assert row["milliCPU"] == 4000
    assert (use["fit"], use["usableMilli"]) == (4, 4000)
    assert use["lostMilli"] == {"cpu": 3000, "memory": 0, "remainder": 0, "out": 5000}


@pytest.mark.parametrize(
    ("theirs", "nearest"),
    [
        pytest.param(10, "n1", id="what another product leaves counts"),
        pytest.param(70, "b", id="it leaves less than koordgate's Pod"),
    ],
)
def test_the_nearest_node_has_the_most_left_whoever_holds_the_rest(run: Run, theirs: int, nearest: str) -> None:
    cluster = [*node("n1", cards=1), *node("b", cards=1)]
    cluster.append(bound("own", "b", cluster, "20"))
    entry = f"GPU-n1-0,NVIDIA,{theirs * 80 * 1024 // 100},{theirs}:;"
    cluster.append(hami(entry, limits={"nvidia.com/gpu": "1"}))
    answer = run(cluster, "--for", "1")
    assert f"The nearest node is {nearest}: no whole GPU is free." in answer.out


def test_a_pod_of_a_file_finds_the_nearest_node(run: Run, tmp_path: Path) -> None:
    asks = {"nvidia.com/gpu": "4"}
    file = tmp_path / "pod.yaml"
    made = {"metadata": {"name": "train"}, "spec": {"containers": [{"name": "main", "resources": {"limits": asks}}]}}
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", **made}))
    cluster = usual()
    answer = run(cluster, "--pod", str(file))
    assert answer.status == 3
    assert "Pod default/train fits on no node now.\n" in answer.out
    assert "The nearest node is b: only 3 of 4 whole GPUs are free." in answer.out
    assert "It would fit on b if this Pod were elsewhere:\n  team/one (gpu 0)\n" in answer.out


def test_each_model_that_a_refusal_names_is_one_that_can_be_given(run: Run) -> None:
    card = {"id": "GPU-1", "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA-NVIDIA A100", "health": True}
    theirs = node("h")[0]
    theirs["metadata"]["annotations"] = {"hami.io/node-nvidia-register": json.dumps([card])}
    cluster = [*node("unnamed"), theirs]
    refused = run(cluster, "--model", "H100").err
    assert "--model H100: no node has such a device of type gpu; there are A100\n" in refused
    for name in ("A100", "NVIDIA-A100", "NVIDIA-NVIDIA-A100"):
        assert run(cluster, "--model", name).out.startswith("Free: 1 of 1 card on 1 node; ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--type", "gpus"), "--type gpus: no such device type; there are gpu, rdma, fpga"),
        (("--for", "1", "--model", "H100"), "--model H100: no node has such a device of type gpu; there are "),
        (("--pod", "missing.yaml"), "missing.yaml"),
    ],
    ids=["type", "model", "no file"],
)
def test_wrong_arguments_are_told(run: Run, words: tuple[str, ...], says: str) -> None:
    answer = run(usual(), *words)
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.err


@pytest.mark.parametrize("size", ["0", "9999", "0%", "101%", "2:", ":50", "half", "-1", "2:50:3", "٣"])
def test_what_is_no_size_is_refused(run: Run, size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([], f"--for={size}")
    assert "is no size: " in capsys.readouterr().err


def test_a_report_that_ended_early_says_on_how_many_nodes(run: Run) -> None:
    answer = run([*node("a", cards=24), *node("b")], "--for", "1%", "--cpu", "0", "-o", "json")
    assert answer.status == 0
    (note,) = [one for one in answer.data["notes"] if "ended" in one]
    assert note.startswith(
        "the search ended before everything was tried: on 1 of the nodes more Pods of a size may fit"
    )
    assert note in answer.err


def test_cards_in_doubt_and_nodes_that_are_not_ready_are_told(run: Run) -> None:
    cluster = [*node("a"), *node("b"), foreignpods.kai("one", name="shared", node="b")]
    cluster[0]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    answer = run(cluster, "--for", "8")
    assert "Node a is not Ready, without the taint node.kubernetes.io/not-ready" in answer.err
    missing = "the reservation Pod of group one, which names its GPU of node b, was not read"
    assert f"what Pod team/shared holds on b is in doubt: {missing}" in answer.err
    sure = foreignpods.reservation("one", "GPU-b-1", node="b")
    answer = run([*node("b"), cluster[-1], sure], "--for", "8")
    assert "doubt" not in answer.out + answer.err
    assert "on 1 node; " in answer.out


def test_an_empty_cluster_is_told(run: Run) -> None:
    assert run([]).out == "No node has a device of type gpu.\n"
    answer = run([], "--for", "8", "-o", "json")
    assert (answer.status, answer.data["wanted"]["nearest"]) == (3, None)


def modelled(objects: list[Raw], model: str) -> list[Raw]:
    for obj in objects:
        for entry in obj["spec"].get("devices", ()):
            entry["labels"] = {"node.koordinator.sh/gpu-model": model}
    return objects


def test_each_model_has_its_rows_and_what_is_said_is_rounded_down(run: Run) -> None:
    cluster = [*modelled(node("a"), "A100"), *modelled(node("b", 2), "H100")]
    cluster += modelled(node("c", unschedulable=True), "A100")
    cluster += [bound("big", "a", cluster, "200")]
    cluster += [bound("half", "a", cluster, "50")]
    cluster += [bound("one", "b", cluster, "100")]
    answer = run(cluster, "--cpu", "1500m", "--memory", "6Gi", "--for", "4")
    lines = answer.out.splitlines()
    assert lines[0] == "Free: 2.5 of 10 cards on 3 nodes; 2 of them whole, and parts of 1 more."
    rows = {line.split()[0]: line.split() for line in lines[3:5]}
    assert rows == {"A100": ["A100", "2", "8", "1", "1", "1.5", "4"], "H100": ["H100", "1", "2", "1", "0", "1", "0"]}
    assert ["A100", "10%", "15", "1.5", "0", "0", "0", "4"] in [line.split() for line in lines]
    assert ["typical", "0.8", "0", "0", "0.6", "4"] in [line.split() for line in lines]
    assert "A Pod of one card requests 1.5 CPUs and 6 GiB of memory." in lines
    assert lines[-4] == "The nearest node is a: only 1 of 4 whole GPUs is free."
    assert lines[-3] == "It would fit on a if these 2 Pods were elsewhere:"
    assert max(map(len, lines)) <= 80


def test_without_typical_pods_a_size_requests_devices_alone(run: Run) -> None:
    told = "No typical Pods are known: a Pod of a size requests cards, no CPU and no memory (--cpu, --memory)."
    assert told in " ".join(run(node("a", 1)).out.split())


def test_a_note_about_many_nodes_is_told_once(run: Run) -> None:
    cluster = []
    for at in range(9):
        cluster += node(f"n{at:02}")
        cluster[-1]["spec"]["devices"][1]["id"] = ""
    _, told = run(cluster).err.splitlines()  # the settings that are assumed are told too
    assert told.startswith("koordgate packing: Devices n00, n01, n02 and 6 more: spec.devices[1]")


def test_pods_of_one_owner_that_would_have_to_leave_are_one_line(run: Run) -> None:
    cluster = node("a", 3)
    for name in ("web-x-1", "web-x-2"):
        made = bound(name, "a", cluster, "100")
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-x", "uid": "rs", "controller": True}
        made["metadata"] |= {"labels": {"pod-template-hash": "x"}, "ownerReferences": [owner]}
        cluster.append(made)
    cluster.append(bound("alone", "a", cluster, "100"))
    lines = run(cluster, "--for", "3").out.splitlines()
    assert lines[-3:] == [
        "It would fit on a if these 3 Pods were elsewhere:",
        "  team/alone (gpu 2)",
        "  2 Pods of Deployment team/web (gpu 0,1)",
    ]


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (1, "once: on a0."),
        (4, "4 times: on a0, a1, a2, a3."),
        (6, "6 times: on a0, a1, a2, a3 and 2 more."),
    ],
)
def test_four_nodes_on_which_a_pod_fits_are_named(run: Run, nodes: int, told: str) -> None:
    cluster = [obj for at in range(nodes) for obj in node(f"a{at}", 1)]
    answer = run(cluster, "--for", "1")
    assert answer.status == 0
    assert f"A Pod of 1 card fits now, {told}" in answer.out.splitlines()


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("1", "A Pod of 1 card"),
        ("2", "A Pod of 2 cards"),
        ("50%", "A Pod of 50 % of a card"),
        ("2:50%", "A Pod of 50 % of each of 2 cards"),
    ],
)
def test_a_size_is_told_in_words(run: Run, size: str, words: str) -> None:
    full = node("a", 2)
    for entry in full[1]["spec"]["devices"]:
        entry["health"] = False
    assert f"{words} fits on no node now." in run(full, "--for", size).out.splitlines()


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
    assert [one.closed for one in state.rooms] == [closed, False, True]


def test_how_much_the_nearest_node_lacks_counts_cpu_and_memory_too(run: Run) -> None:
    cluster = [*node("a", 1, cpu=8), *node("b", 1, cpu=4), *node("c", 1, unschedulable=True)]
    told = run(cluster, "--for", "1", "--cpu", "16", "--memory", "1Ti", "-o", "json").data["wanted"]
    assert (told["nearest"], told["ifGone"]) == ({"node": "a", "lack": 100, "why": "not enough cpu"}, None)
    exact = run(cluster, "--for", "1", "--cpu", "9", "-o", "json").data["wanted"]["nearest"]
    assert (exact["node"], exact["lack"]) == ("a", 12)
    fits = run(cluster, "--for", "1", "--cpu", "8", "-o", "json").data["wanted"]
    assert (fits["nearest"], fits["fitsNow"]) == (None, [{"node": "a", "count": 1}])


@pytest.mark.parametrize(("cards", "size"), [((3, 1), "2"), ((8,), "8"), ((7,), "4"), ((1,), "1")])
def test_without_a_size_the_largest_that_a_node_has_is_wanted(run: Run, cards: tuple[int, ...], size: str) -> None:
    cluster = [obj for at, count in enumerate(cards) for obj in node(f"n{at}", count)]
    cluster[1]["spec"]["devices"] += [
        {"type": "fpga", "id": f"f{at}", "minor": at, "health": True, "resources": {"koordinator.sh/fpga": "100"}}
        for at in range(9)
    ]
    assert run(cluster, "-o", "json").data["wanted"]["for"] == size
    assert run(cluster, "--type", "fpga", "-o", "json").data["wanted"]["for"] == "8"


# Which Pods would have to be elsewhere


def test_the_fewest_pods_of_the_lowest_priorities_are_named(run: Run) -> None:
    cluster = [*node("a", 2), *node("b", 2), *node("c", 2)]
    for name, on, gpus, priority in (
        ("a1", "a", "100", 0),
        ("a2", "a", "100", 0),
        ("b1", "b", "200", 9),
        ("c1", "c", "200", 5),
    ):
        cluster.append(bound(name, on, cluster, gpus))
        cluster[-1]["spec"]["priority"] = priority
    gone = run(cluster, "--for", "2", "-o", "json").data["wanted"]["ifGone"]
    assert (gone["node"], [(one["name"], one["priority"]) for one in gone["pods"]]) == ("c", [("c1", 5)])
    assert [one["minor"] for one in gone["pods"][0]["devices"]] == [0, 1]


def test_pods_are_named_only_if_the_nodes_cpus_suffice_without_them(run: Run) -> None:
    cluster = [*node("a", 2, cpu=16), *node("b", 2, cpu=8)]
    cluster.append(bound("a1", "a", cluster, "200"))
    cluster.append(bound("b1", "b", cluster, "100"))
    gone = run(cluster, "--for", "2", "--cpu", "9", "-o", "json").data["wanted"]["ifGone"]
    assert (gone["node"], [one["name"] for one in gone["pods"]]) == ("a", ["a1"])
    assert run(cluster, "--for", "2", "--cpu", "17", "-o", "json").data["wanted"]["ifGone"] is None


def test_a_pod_that_was_not_read_is_not_counted_upon(run: Run) -> None:
    cluster = node("a", 2)
    cluster.append(bound("known", "a", cluster, "100"))
    shares = [part(gpu(at, device_id=f"GPU-a-{at}"), 100) for at in range(2)]
    held = [
        replace(holding(f"u-{name}", shares[at]), namespace="team", name=name)
        for at, name in enumerate(("known", "unread"))
    ]
    metadata = {"name": "a", "resourceVersion": "1"}
    record = {"apiVersion": API_VERSION, "kind": "NodeAllocation", "metadata": metadata, "spec": write_spec(held)}
    answer = run([*cluster, record], "--for", "2")
    assert answer.status == 3
    assert "No node is known on which it would fit if Pods with devices were elsewhere." in answer.out
    gone = run([*cluster, record], "--for", "1", "-o", "json").data["wanted"]["ifGone"]
    assert [one["name"] for one in gone["pods"]] == ["known"]


# The command line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--cpu", "many"), "write a quantity such as 16 or 500m"),
        (("--memory", "much"), "write a quantity such as 64Gi"),
        (("--memory", "1.5"), "write a quantity such as 64Gi"),
    ],
)
def test_amounts_that_are_none_are_refused(
    run: Run, words: tuple[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run([], *words)
    assert capsys.readouterr().err.rstrip().endswith(told)


@pytest.mark.parametrize(
    ("pods", "limits", "told"),
    [
        (0, {}, "0 Pods; give a file with one Pod, as of a workload's template"),
        (2, {}, "2 Pods; give a file with one Pod, as of a workload's template"),
        (1, {"cpu": "1"}, "it asks for no devices"),
        (1, {"nvidia.com/gpu": "1.5"}, "admission refuses it: "),
    ],
)
def test_a_file_without_one_pod_that_can_be_placed_is_refused(
    run: Run, tmp_path: Path, pods: int, limits: Raw, told: str
) -> None:
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    made = [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{at}"}, "spec": spec} for at in range(pods)]
    others = [{"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}} for kind in ("Node", "Service")]
    file = tmp_path / "pods.yaml"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*others, *made]}))
    answer = run(node("a"), "--pod", str(file))
    assert (answer.status, answer.out) == (2, "")
    assert f"koordgate packing: --pod {file}: {told}" in answer.err


@pytest.mark.parametrize("models", [8, 9])
def test_eight_models_that_there_are_are_named(run: Run, models: int) -> None:
    cluster = [obj for at in range(models) for obj in modelled(node(f"n{at}", 1), f"M{at}")]
    there = ", ".join(f"M{at}" for at in range(8))
    told = f"--model H100: no node has such a device of type gpu; there are {there}"
    assert run(cluster, "--model", "H100").err.splitlines()[-1] == f"koordgate packing: {told}"
    bare = run(node("a"), "--model", "H100").err.splitlines()[-1]
    assert bare.endswith("there are none that state a model")
