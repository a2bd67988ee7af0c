"""`koordgate replay`: the same Pods in several ways, their figures and tables."""

import re
from pathlib import Path
from typing import Any

import pytest
from simulator.clusters import asking, device, gpus, held, machine, node, saved

from console.simulator import compare
from console.simulator.compare import Variant
from console.simulator.objects import Objects
from console.simulator.workloads import WantedPod
from koordgate.cli import main
from webhook.settings import parse

Raw = dict[str, Any]


def objects() -> list[Raw]:
    """Two machines of two cards; on the second a quarter of one card is held. One Pod fits nowhere."""
    pods = [gpus("quarter", 25), gpus("whole", 100), gpus("three", 300), gpus("odd", 250)]
    return [*machine("node-1"), *machine("node-2"), held("there", "node-2", (0, 25)), *pods]


def compared(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert main(["replay", "-f", saved(folder, objects()), *arguments]) == 0
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


def test_nodes_of_equal_score_are_drawn_alike_with_the_same_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = ("--preference", "packing", "--preference", "leastRequested", "--seed", "7")
    assert compared(tmp_path, capsys, *ways) == compared(tmp_path, capsys, *ways)


WRONG: dict[str, tuple[list[str], str]] = {
    "no file": (["--compare", "name"], "write NAME=FILE"),
    "a name twice": (["--preference", "packing", "--compare", "packing=x"], "is another way's name already"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_compared_is_told(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = WRONG[name]
    assert main(["replay", "-f", saved(tmp_path, objects()), *arguments]) == 2
    assert said in capsys.readouterr().err


async def test_the_mix_that_the_settings_state_measures_in_place_of_that_of_the_pods() -> None:
    pods = [gpus("half", 50), asking("none"), gpus("whole", 100)]
    fragmented = []
    for mix in ("", "mix: [{requests: {nvidia.com/gpu: 1}}]"):
        variant = Variant(parse(f"scheduler: {{{mix}}}"))
        wanted = [WantedPod(one) for one in pods]
        found = await compare.run(Objects(nodes=[node()], devices=[device()]), wanted, variant, None, lambda _: None)
        fragmented.append(found.fragmented)
    assert fragmented == [12.5, 25.0]
