"""`koordgate simulate --trace`: the table and the plot, and what is refused."""

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from offline.clusters import device, node, saved

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
