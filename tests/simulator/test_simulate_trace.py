"""`koordgate simulate --trace`: the table and the plot, and what is refused."""

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from simulator.clusters import device, node, saved

from console.simulator import progress
from koordgate.cli import main

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,16000,65536,2,T4\nn2,16000,65536,2,T4\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    "a,2000,4096,1,500,,0,100\nb,4000,8192,1,1000,T4,10,50\nc,1000,1024,0,0,,20,60\nd,1000,1024,2,1000,A10,30,40\n"
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "nodes.csv").write_text(NODES)

    def run(*options: str | Path) -> tuple[int, str, str]:
        told = [str(option).replace("@", f"{tmp_path}/") for option in options]
        status = main(["simulate", *told])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def cells(out: str, row: str) -> list[str]:
    (line,) = (line for line in out.splitlines() if line.startswith(f"{row} "))
    return line.removeprefix(row).split()


def test_each_preference_has_a_row_and_a_line_of_the_plot(run: Run, tmp_path: Path) -> None:
    preferences = ("--preference", "packing", "--preference", "mostBalanced")
    status, out, _ = run(
        *("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", *preferences, "--plot", "@plot.svg", "--seed", "1")
    )
    assert status == 0
    assert len(cells(out, "packing")) == len(cells(out, "mostBalanced")) == 7
    drawn = ET.parse(tmp_path / "plot.svg")
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))) == 4


def test_the_same_seed_gives_the_same_table(run: Run) -> None:
    trace: Sequence[str] = ("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", "--seed", "4", "--load", "100")
    assert run(*trace) == run(*trace)


def test_pods_come_and_go_at_their_own_times(run: Run) -> None:
    status, out, _ = run("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", "--replay")
    mean, highest, _, asked, *_, failed, plain = cells(out, "fragmentation")
    assert status == 0
    # Of four GPUs, a and b have one and a half together; d, which no model satisfies, asks for two more.
    assert (highest, asked, failed, plain) == ("37.5", "87.5", "1", "0")
    assert 12.5 < float(mean) < 37.5


def test_a_trace_runs_on_the_objects_of_a_cluster(run: Run, tmp_path: Path) -> None:
    cluster = saved(tmp_path, [node("n1"), device("n1", cards=2)])
    status, out, _ = run("--trace", "@pods.csv", "-f", cluster, "--replay")
    assert status == 0
    assert cells(out, "fragmentation")[1] == "25.0"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param((), "give the cluster and the Pods with -f, or a trace with --trace", id="nothing"),
        pytest.param(("--load", "9", "-f", "x"), "--load is for traces: give --trace PODS.csv too", id="no trace"),
        pytest.param(("--trace", "@pods.csv"), "a trace needs nodes", id="no nodes"),
        pytest.param(("--trace", "@none.csv", "--trace-nodes", "@nodes.csv"), "none.csv: cannot be read", id="no file"),
        pytest.param(("--trace", "@pods.csv", "--trace-nodes", "@pods.csv"), "the first line lacks sn", id="mixed up"),
        pytest.param(
            ("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", "--load", "9", "--replay"),
            "--load and --replay exclude each other",
            id="both",
        ),
        pytest.param(
            ("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", "--load", "0"),
            "--load 0: give a percentage from 1 to 1000",
            id="no load",
        ),
        pytest.param(
            ("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", "--node", "n1"), "--node does not go", id="node"
        ),
        pytest.param(
            ("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", "-o", "json"), "a table only", id="output"
        ),
        pytest.param(
            ("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", "--plot", "@none/p.svg"),
            "cannot be written",
            id="plot",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused_with_a_remedy(
    run: Run, options: tuple[str, ...], told: str
) -> None:
    status, _, err = run(*options)
    assert status == 2
    assert told in err


def test_a_packed_file_that_is_cut_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pods.csv.gz").write_bytes(b"\x1f\x8b\x08\x00")
    status, _, err = run("--trace", "@pods.csv.gz", "--trace-nodes", "@nodes.csv")
    assert status == 2
    assert "pods.csv.gz: cannot be read" in err


def test_nodes_without_gpus_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bare.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,1,2,0,\n")
    status, _, err = run("--trace", "@pods.csv", "--trace-nodes", "@bare.csv")
    assert status == 2
    assert "the nodes have no usable GPU" in err


ARRIVED = """\
allocated %, when Pods have asked for  80 %  90 %  100 %  130 %  fragmented %  Pods that failed  of them without GPUs
fragmentation                          37.5  37.5   37.5   37.5          34.4                 2                     0
"""
REPLAYED = """\
allocated % of all GPUs  mean  highest  asked, mean  asked, highest  fragmented %  Pods that failed  of them without GPUs
fragmentation            22.3     37.5         27.2            87.5          42.0                 1                     0
"""  # noqa: E501 as it is printed


def test_what_is_asked_for_without_a_load_is_130_percent_and_by_the_seed_0(run: Run) -> None:
    given = ("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv")
    status, out, err = run(*given)
    assert (status, out, err) == (0, ARRIVED, "")
    assert run(*given, "--load", "130", "--seed", "0")[1] == out
    assert run(*given, "--seed", "1")[1] != out
    assert cells(run(*given, "--load", "50")[1], "fragmentation")[:1] != cells(out, "fragmentation")[:1]


@pytest.mark.parametrize(("load", "failed"), [("100", "0"), ("101", "1"), ("125", "1"), ("126", "2")])
def test_pods_arrive_until_they_ask_for_so_many_percent_of_all_gpus(
    run: Run, tmp_path: Path, load: str, failed: str
) -> None:
    (tmp_path / "whole.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,1000\n")
    out = run("--trace", "@whole.csv", "--trace-nodes", "@nodes.csv", "--load", load)[1]
    assert cells(out, "fragmentation")[-2] == failed


def test_a_replay_is_told_in_a_table(run: Run) -> None:
    assert run("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", "--replay") == (0, REPLAYED, "")


def test_ways_are_named_and_other_nodes_are_taken_in_place_of_those_of_the_trace(run: Run, tmp_path: Path) -> None:
    (tmp_path / "same.yaml").write_text("scheduler: {preference: packing}\n")
    other = saved(tmp_path, [node("n1"), device("n1", cards=8)])
    given = ("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv", "--replay")
    out = run(*given, "--compare", "same=@same.yaml", "--compare", f"big={other}")[1]
    assert [line.split("  ")[0] for line in out.splitlines()[1:]] == ["as given", "same", "big"]
    assert [cells(out, name)[1] for name in ("as given", "same", "big")] == ["37.5", "37.5", "6.2"]


def test_why_a_pod_is_refused_is_told_of_the_first_of_each_way(run: Run, tmp_path: Path) -> None:
    limits = {"limits": [{"type": "Container", "max": {"cpu": "3"}}]}
    about = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "l", "namespace": "default"},
        "spec": limits,
    }
    cluster = saved(tmp_path, [node("n1"), device("n1", cards=2), about])
    preferences = ("--preference", "packing", "--preference", "mostBalanced")
    status, _, err = run("--trace", "@pods.csv", "-f", cluster, "--replay", *preferences)
    assert status == 0
    assert [line.partition(": maximum")[0] for line in err.splitlines()] == [
        "koordgate simulate: packing: Pod b: Pod default/b is forbidden",
        "koordgate simulate: mostBalanced: Pod b: Pod default/b is forbidden",
    ]


def test_how_far_a_trace_has_come_is_told_for_the_pods_that_arrive_and_those_that_end(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EACH", 1)
    (tmp_path / "pods.csv").write_text(f"{PODS}e,1,1,1,1000,,,\nf,1,1,1,1000,,40,\n")
    given = ("--trace", "@pods.csv", "--trace-nodes", "@nodes.csv")
    assert run(*given, "--replay")[2].splitlines() == [f"fragmentation: {at} of 9" for at in range(1, 10)]
    arrived = run(*given, "--load", "10")[2].splitlines()
    assert arrived[-1] == f"fragmentation: {len(arrived)} of {len(arrived)}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--replay", "--load", "9"), "--load is for traces: give --trace PODS.csv too"),
        (("--replay", "-f", "x"), "--replay is for traces: give --trace PODS.csv too"),
        (("--load", "9", "--trace-nodes", "x"), "--trace-nodes is for traces: give --trace PODS.csv too"),
        (("--trace", "x", "--trace-nodes", "y", "-f", "z"), "a trace needs nodes: give either --trace-nodes NODES.csv"),
        (("--trace", "x", "--trace-nodes", "y", "-o", "yaml"), "a trace has a table only: leave out -o, and take"),
    ],
)
def test_the_first_option_that_does_not_go_with_the_others_is_told(
    run: Run, options: tuple[str, ...], told: str
) -> None:
    status, out, err = run(*options)
    assert (status, out) == (2, "")
    assert err.startswith(f"koordgate simulate: {told}")
