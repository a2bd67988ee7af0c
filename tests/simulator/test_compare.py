"""`--compare` and `--preference`: the same Pods in several ways, their figures, tables and plots."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from simulator.clusters import asking, device, gpus, held, machine, node, saved

from console.simulator import compare
from console.simulator.cluster import PodFate, Result
from console.simulator.compare import Run, Variant
from console.simulator.objects import Objects
from console.simulator.workloads import WantedPod
from koordgate.cli import main
from webhook.settings import parse

Raw = dict[str, Any]
DRAWN = [
    "WAY    bound  waiting  refused  allocated %  fragmented %",
    "one        4        2        2         12.3          56.8",
    "other      2        1        0          3.0           4.0",
    "",
    "WAY    PODS  WHY NOT BOUND    ",
    "one    1     not enough cpu: 2",
    "one    1     is odd: very     ",
    "one    1     no               ",
    "one    1     for other reasons",
    "other  1     there is no Node ",
    "",
    "POD    one                   other",
    "a      n1                    n2   ",
    "b      n1                    -    ",
    "d      refused at admission  -    ",
    "own    refused at admission  -    ",
    "f      not created           -    ",
    "ended  ?                     -    ",
    "",
]
SVG = "{http://www.w3.org/2000/svg}"


def objects() -> list[Raw]:
    """Two machines of two cards; on the second a quarter of one card is held. One Pod fits nowhere."""
    pods = [gpus("quarter", 25), gpus("whole", 100), gpus("three", 300), gpus("odd", 250)]
    return [*machine("node-1"), *machine("node-2"), held("there", "node-2", (0, 25)), *pods]


def compared(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert main(["simulate", "-f", saved(folder, objects()), *arguments]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def rows(out: str, head: str) -> list[list[str]]:
    """The rows of the table whose first line begins with these words, split at two spaces or more."""
    lines = out.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith(head))
    below = lines[begin + 1 :]
    end = next((at for at, line in enumerate(below) if not line.strip()), len(below))
    return [re.split(r"\s{2,}", line.strip()) for line in below[:end]]


def test_each_way_has_a_row_of_exact_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = compared(tmp_path, capsys, "--preference", "packing", "--preference", "leastRequested")
    figures = rows(out, "WAY")
    # 25 there, 25 and 100 bound, of four cards: 150 of 400. Three cards fit on no node, 250 is refused.
    assert [row[:5] for row in figures] == [
        ["packing", "3", "1", "1", "37.5"],
        ["leastRequested", "3", "1", "1", "37.5"],
    ]
    assert all(0 <= float(row[5]) <= 100 for row in figures)


def test_pods_that_are_placed_otherwise_are_listed_with_their_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = compared(tmp_path, capsys, "--preference", "packing", "--preference", "leastRequested")
    placed = {row[0]: row[1:] for row in rows(out, "POD")}
    assert placed["quarter"] == ["node-2", "node-1"]
    assert "three" not in placed


def test_ways_that_agree_are_told_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = tmp_path / "same.yaml"
    same.write_text("scheduler: {preference: packing}\n")
    out, _ = compared(tmp_path, capsys, "--compare", f"the same={same}")
    assert "All Pods are placed alike." in out
    assert [row[0] for row in rows(out, "WAY")] == ["as given", "the same"]


def test_reasons_are_counted_without_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = compared(tmp_path, capsys, "--preference", "packing")
    text = " ".join(out.split())
    assert "packing 1 not enough" in text
    assert "ask 200 or 300" in text
    assert "default/odd" not in text


def test_other_nodes_stand_in_place_of_those_of_the_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = saved(tmp_path, machine("big", cards=4), "other.json")
    out, _ = compared(tmp_path, capsys, "--compare", f"one big node={other}")
    figures = {row[0]: row[1:5] for row in rows(out, "WAY")}
    # The Pod that runs on node-2 is gone with it: 25, 100 and 300 want four and a quarter cards of four.
    assert figures["as given"] == ["3", "1", "1", "37.5"]
    assert figures["one big node"] == ["2", "1", "1", "31.2"]
    placed = {row[0]: row[1:] for row in rows(out, "POD")}
    assert placed["there"] == ["node-2", "-"]


def test_tables_stay_within_80_columns_off_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ways = [part for name in ("packing", "leastRequested", "mostBalanced") for part in ("--preference", name)]
    out, _ = compared(tmp_path, capsys, *ways)
    assert max(map(len, out.splitlines())) <= 80


def test_all_tables_stay_within_a_width_that_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, [*objects(), asking("long-name-" + "x" * 40)])
    assert main(["simulate", "-f", path]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) > 80
    assert main(["simulate", "-f", path, "--width", "80"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "ask 200 or 300" in " ".join(out.split())


WRONG: dict[str, tuple[list[str], str]] = {
    "no file": (["--compare", "name"], "write NAME=FILE"),
    "a name twice": (["--preference", "packing", "--compare", "packing=x"], "is another way's name already"),
    "a node": (["--preference", "packing", "--node", "node-1"], "--node does not go with"),
    "a check": (["--preference", "packing", "--require-bound"], "--require-bound does not go with"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_compared_is_told(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = WRONG[name]
    assert main(["simulate", "-f", saved(tmp_path, objects()), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_settings_that_name_no_node_and_nodes_that_are_none_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = saved(tmp_path, [gpus("a", 10)], "pods.json")
    assert main(["simulate", "-f", saved(tmp_path, objects()), "--compare", f"x={pods}"]) == 2
    assert "has no Node; give Nodes, or settings of the webhook" in capsys.readouterr().err


def result(name: str, state: PodFate, *reasons: str, on: str = "", given: str = "") -> Result:
    pod = {"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": on} if on else {}}
    wrote = {"metadata": {"name": given, "namespace": "default"}, "spec": {}} if given else None
    return Result(pod, state, reasons, given=wrote)


def shown(runs: dict[str, Run]) -> list[str]:
    """The tables as they are drawn, with all that is drawn beside the words."""
    console = Console(file=io.StringIO(), width=100, color_system=None)
    for part in compare.tables(runs):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().split("\n")


def test_the_tables_say_all_of_each_way() -> None:
    first = [
        result("a", PodFate.BOUND, on="n1"),
        result("b", PodFate.STANDING, on="n1"),
        result("c", PodFate.UNSCHEDULABLE, "n1, n2: not enough cpu: 2", "n3: cordoned"),
        result("d", PodFate.DENIED, "Pod default/d: is odd: very"),
        result("e", PodFate.DENIED, "Pod default/own is forbidden: no", given="own"),
        result("f", PodFate.NOT_CREATED),
        result("ended", PodFate.STANDING),
        result("same", PodFate.BOUND, on="n1"),
    ]
    second = [
        result("a", PodFate.BOUND, on="n2"),
        result("c", PodFate.UNSCHEDULABLE, "there is no Node"),
        result("same", PodFate.BOUND, on="n1"),
    ]
    assert shown({"one": Run(first, 12.34, 56.78), "other": Run(second, 3.0, 4.0)}) == DRAWN


@pytest.mark.parametrize(
    ("third", "listed"), [("n1", ["a    n1   n1   n1"]), ("n2", ["a    n1   n1   n2"])], ids=["alike", "otherwise"]
)
def test_a_pod_that_one_of_three_ways_places_otherwise_is_listed(third: str, listed: list[str]) -> None:
    runs = {
        name: Run([result("a", PodFate.BOUND, on=on)], 0.0, 0.0)
        for name, on in (("one", "n1"), ("two", "n1"), ("three", third))
    }
    lines = [line.rstrip() for line in shown(runs)]
    if third == "n1":
        assert lines[-2:] == ["All Pods are placed alike.", ""]
    else:
        assert lines[-3:] == ["POD  one  two  three", "a    n1   n1   n2", ""]
    alone = [line.rstrip() for line in shown({"one": runs["one"]})]
    assert alone == [
        "WAY  bound  waiting  refused  allocated %  fragmented %",
        "one      1        0        0          0.0           0.0",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("pods", "more"),
    [
        (20, []),
        (21, ["... and 1 more Pods that fare differently"]),
        (41, ["... and 21 more Pods that fare differently"]),
    ],
)
def test_twenty_pods_that_fare_differently_are_listed_and_the_others_counted(pods: int, more: list[str]) -> None:
    runs = {on: Run([result(f"p{at}", PodFate.BOUND, on=on) for at in range(pods)], 0.0, 0.0) for on in ("n1", "n2")}
    lines = shown(runs)
    assert len([line for line in lines if line.startswith("p")]) == 20
    assert [line for line in lines if line.startswith("...")] == more


async def test_the_mix_that_the_settings_state_measures_in_place_of_that_of_the_pods() -> None:
    pods = [gpus("half", 50), asking("none"), gpus("whole", 100)]
    fragmented = []
    for mix in ("", "mix: [{requests: {nvidia.com/gpu: 1}}]"):
        variant = Variant(parse(f"scheduler: {{{mix}}}"))
        wanted = [WantedPod(one) for one in pods]
        found = await compare.run(Objects(nodes=[node()], devices=[device()]), wanted, variant, None, lambda _: None)
        fragmented.append(found.fragmented)
    assert fragmented == [12.5, 25.0]


async def test_what_is_placed_at_the_end_counts() -> None:
    about = {
        "labels": {"scheduling.x-k8s.io/pod-group": "train"},
        "annotations": {"koordgate.io/gang-all-or-nothing": "true"},
    }
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"minMember": 2},
    }
    objects_ = Objects(nodes=[node()], devices=[device()], groups=[group])
    wanted = [WantedPod(gpus(name, 100, **about)) for name in "ab"]
    settings = parse("gangs: {allOrNothing: true}")
    found = await compare.run(objects_, wanted, Variant(settings), None, lambda _: None)
    assert [one.state for one in found.results] == [PodFate.BOUND] * 2
    assert found.allocated == 100.0
