"""Traces at their bounds: the picture line by line, the table, and each step of a run."""

import gzip
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.table import Table

from allocator.vocabulary.mix import NO_MIX, Mix
from console import terminal
from console.simulator import trace, tracerun
from console.simulator.cluster import OfflineCluster, PodFate
from console.simulator.trace import TraceAsk, TraceNode, TracePod
from console.simulator.traceobjects import mix_of_trace, node_objects
from console.simulator.traceplay import Played, Player, Sample
from console.simulator.traceplot import ASKED, PODS, TIMES, _ticks, plot
from koordgate.cli import main
from webhook.settings import HeadroomSettings, WebhookSettings
from webhook.upkeep.headroom import with_taint

DAY = 86_400

DRAWN = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 690" font-family="sans-serif" font-size="13">
<rect width="760" height="690" fill="#fff"/>
<text x="60.0" y="30.0" text-anchor="start" fill="#333">allocated, % of all GPUs</text>
<text x="410.0" y="292.0" text-anchor="middle" fill="#333">days</text>
<path d="M60 256.0H736" stroke="#ddd"/>
<text x="52.0" y="260.0" text-anchor="end" fill="#333">0</text>
<path d="M60 213.6H736" stroke="#ddd"/>
<text x="52.0" y="217.6" text-anchor="end" fill="#333">20</text>
<path d="M60 171.2H736" stroke="#ddd"/>
<text x="52.0" y="175.2" text-anchor="end" fill="#333">40</text>
<path d="M60 128.8H736" stroke="#ddd"/>
<text x="52.0" y="132.8" text-anchor="end" fill="#333">60</text>
<path d="M60 86.4H736" stroke="#ddd"/>
<text x="52.0" y="90.4" text-anchor="end" fill="#333">80</text>
<path d="M60 44.0H736" stroke="#ddd"/>
<text x="52.0" y="48.0" text-anchor="end" fill="#333">100</text>
<text x="60.0" y="274.0" text-anchor="middle" fill="#333">0</text>
<text x="172.7" y="274.0" text-anchor="middle" fill="#333">0.5</text>
<text x="285.3" y="274.0" text-anchor="middle" fill="#333">1</text>
<text x="398.0" y="274.0" text-anchor="middle" fill="#333">1.5</text>
<text x="510.7" y="274.0" text-anchor="middle" fill="#333">2</text>
<text x="623.3" y="274.0" text-anchor="middle" fill="#333">2.5</text>
<text x="736.0" y="274.0" text-anchor="middle" fill="#333">3</text>
<path d="M60.0,256.0 285.3,150.0 736.0,44.0" fill="none" stroke="#bbb" stroke-width="4"/>
<polyline points="60.0,256.0 285.3,171.2 736.0,44.0" fill="none" stroke="#2c6fbb" stroke-width="2"/>
<polyline points="60.0,256.0 510.7,139.4" fill="none" stroke="#c0392b" stroke-width="2"/>
<text x="60.0" y="358.0" text-anchor="start" fill="#333">fragmented, % of all GPUs</text>
<text x="410.0" y="620.0" text-anchor="middle" fill="#333">days</text>
<path d="M60 584.0H736" stroke="#ddd"/>
<text x="52.0" y="588.0" text-anchor="end" fill="#333">0</text>
<path d="M60 553.2H736" stroke="#ddd"/>
<text x="52.0" y="557.2" text-anchor="end" fill="#333">2</text>
<path d="M60 522.3H736" stroke="#ddd"/>
<text x="52.0" y="526.3" text-anchor="end" fill="#333">4</text>
<path d="M60 491.5H736" stroke="#ddd"/>
<text x="52.0" y="495.5" text-anchor="end" fill="#333">6</text>
<path d="M60 460.7H736" stroke="#ddd"/>
<text x="52.0" y="464.7" text-anchor="end" fill="#333">8</text>
<path d="M60 429.8H736" stroke="#ddd"/>
<text x="52.0" y="433.8" text-anchor="end" fill="#333">10</text>
<path d="M60 399.0H736" stroke="#ddd"/>
<text x="52.0" y="403.0" text-anchor="end" fill="#333">12</text>
<text x="60.0" y="602.0" text-anchor="middle" fill="#333">0</text>
<text x="172.7" y="602.0" text-anchor="middle" fill="#333">0.5</text>
<text x="285.3" y="602.0" text-anchor="middle" fill="#333">1</text>
<text x="398.0" y="602.0" text-anchor="middle" fill="#333">1.5</text>
<text x="510.7" y="602.0" text-anchor="middle" fill="#333">2</text>
<text x="623.3" y="602.0" text-anchor="middle" fill="#333">2.5</text>
<text x="736.0" y="602.0" text-anchor="middle" fill="#333">3</text>
<polyline points="60.0,537.7 285.3,476.1 736.0,391.3" fill="none" stroke="#2c6fbb" stroke-width="2"/>
<polyline points="60.0,568.6 510.7,553.2" fill="none" stroke="#c0392b" stroke-width="2"/>
<path d="M60 628h28" stroke="#2c6fbb" stroke-width="2"/>
<text x="96.0" y="632.0" text-anchor="start" fill="#333">a &amp; b</text>
<path d="M60 646h28" stroke="#c0392b" stroke-width="2"/>
<text x="96.0" y="650.0" text-anchor="start" fill="#333">c</text>
<path d="M60 664h28" stroke="#bbb" stroke-width="4"/>
<text x="96.0" y="668.0" text-anchor="start" fill="#333">asked</text>
</svg>
"""


def test_runs_are_drawn_line_by_line() -> None:
    runs = {
        "a & b": [Sample(0, 0, 0, 3), Sample(DAY, 50, 40, 7), Sample(3 * DAY, 130, 100, 12.5)],
        "c": [Sample(0, 0, 0, 1), Sample(2 * DAY, 60, 55, 2)],
    }
    assert plot(runs, TIMES).splitlines() == DRAWN.splitlines()


def test_the_ninth_run_is_dashed_and_nothing_is_asked_where_nothing_is_told() -> None:
    runs = {f"r{at}": [Sample(0, 0, 0, 0), Sample(8, 0, 1, 0)] for at in range(9)}
    lines = plot(runs, ASKED).splitlines()
    assert [("dasharray" in line) for line in lines if line.startswith("<polyline")] == ([False] * 8 + [True]) * 2
    assert not [line for line in lines if "#bbb" in line]
    assert 'viewBox="0 0 760 798"' in lines[0]


def texts(drawn: str, anchor: str) -> list[str]:
    """What is written beside or below an axis."""
    return [one.text or "" for one in ET.fromstring(drawn).iter() if one.get("text-anchor") == anchor]


def test_a_plot_of_nothing_has_axes_of_one() -> None:
    drawn = plot({})
    assert drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 636"')
    ones = ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert texts(drawn, "end") == ["0", "20", "40", "60", "80", "100", *ones]
    assert texts(drawn, "middle") == ["asked by Pods that have arrived, % of all GPUs", *ones] * 2
    assert plot({"a": [Sample(0, 0, 0, 0)]}).splitlines()[3:-3] == [
        *drawn.splitlines()[3:22],
        '<polyline points="60.0,256.0" fill="none" stroke="#2c6fbb" stroke-width="2"/>',
        *drawn.splitlines()[22:-1],
        '<polyline points="60.0,584.0" fill="none" stroke="#2c6fbb" stroke-width="2"/>',
    ]


def test_a_day_is_marked_once_it_is_over() -> None:
    days = [texts(plot({"a": [Sample(last, 0, 1, 1)]}, TIMES), "middle")[-1] for last in (5 * DAY - 1, 5 * DAY)]
    assert days == ["4", "5"]
    ends = [texts(plot({"a": [Sample(5, 0, 1, 1)]}, axis), "middle")[-1] for axis in (ASKED, PODS)]
    assert ends == ["5", "5"]


@pytest.mark.parametrize(
    ("end", "ticks"),
    [
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (8, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (9, [0, 2, 4, 6, 8]),
        (16, [0, 2, 4, 6, 8, 10, 12, 14, 16]),
        (17, [0, 5, 10, 15]),
        (41, [0, 10, 20, 30, 40]),
    ],
)
def test_an_axis_has_round_figures(end: float, ticks: list[float]) -> None:
    assert _ticks(end) == pytest.approx(ticks)


def columns(made: Table) -> dict[str, list[str]]:
    return {str(column.header): [str(cell) for cell in column.cells] for column in made.columns}


def played(*samples: Sample, failed: int = 0, plain: int = 0) -> Played:
    return Played(list(samples), failed=failed, failed_plain=plain)


def test_the_table_has_what_was_allocated_when_so_much_was_asked_and_the_means_of_runs() -> None:
    whole = played(*(Sample(at, at, min(at, 95), 10) for at in range(0, 140, 10)), failed=3, plain=1)
    short = played(Sample(0, 0, 0, 20), Sample(80, 80, 60, 30), failed=5, plain=1)
    assert columns(tracerun.table({"one": [whole], "both": [whole, short]}, load=120)) == {
        "allocated %, when Pods have asked for": ["one", "both"],
        "80 %": ["80.0", "70.0"],
        "90 %": ["90.0", "-"],
        "100 %": ["95.0", "-"],
        "120 %": ["95.0", "77.5"],
        "fragmented %": ["10.0", "20.0"],
        "Pods that failed": ["3", "4"],
        "of them without GPUs": ["1", "1"],
    }
    assert list(columns(tracerun.table({"one": [whole]}, load=80)))[1:3] == ["80 %", "fragmented %"]
    assert list(columns(tracerun.table({"one": [whole]})))[1:5] == ["80 %", "90 %", "100 %", "130 %"]


TABLE = """\
allocated %, when Pods have asked for  80 %  fragmented %  Pods that failed  of them without GPUs
a                                      60.0          30.0                 5                     1
bb                                     50.0          10.0                 0                     0
"""


def test_the_table_is_as_wide_as_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    runs = {"a": [played(Sample(80, 80, 60, 30), failed=5, plain=1)], "bb": [played(Sample(80, 80, 50, 10))]}
    terminal.show(tracerun.table(runs, load=80), most=len(TABLE.splitlines()[0]))
    assert capsys.readouterr().out == TABLE


def test_of_a_replay_the_means_over_time_and_the_highest_figures_are_told() -> None:
    run = played(Sample(0, 0, 0, 10), Sample(5, 30, 20, 20), Sample(9, 90, 10, 60))
    assert columns(tracerun.table({"one": [run]}, timed=True)) == {
        "allocated % of all GPUs": ["one"],
        "mean": ["10.0"],
        "highest": ["20.0"],
        "asked, mean": ["40.0"],
        "asked, highest": ["90.0"],
        "fragmented %": ["30.0"],
        "Pods that failed": ["0"],
        "of them without GPUs": ["0"],
    }


def test_the_first_sample_from_a_place_on_is_found() -> None:
    run = played(Sample(0, 0, 0, 0), Sample(80, 1, 0, 0), Sample(90, 2, 0, 0))
    assert [run.at(80), run.at(80.5), run.at(91)] == [run.samples[1], run.samples[2], None]


# A run


def pod(
    name: str, milli: int = 1000, gpus: int = 1, created: int | None = None, deleted: int | None = None
) -> TracePod:
    return TracePod(name, TraceAsk(1000, 1024, gpus, milli, ()), created, deleted)


async def player(
    nodes: int = 2, settings: WebhookSettings | None = None, mix: Mix = NO_MIX, gpus: int = 2, **more: object
) -> Player:
    cluster = OfflineCluster.in_process(settings or WebhookSettings(), stock=0)
    made = [node_objects(TraceNode(f"n{at}", 8000, 65536, gpus, "T4")) for at in range(nodes)]
    await cluster.load([obj for objects in made for obj in objects])
    return Player(cluster, mix, **more)  # type: ignore[arg-type]


async def test_pods_that_arrive_are_measured_in_percent_of_all_gpus() -> None:
    over: list[int] = []
    moved: list[tuple[str, int]] = []
    run = await player(tell=over.append, moved=lambda one, _node, _minors, sign: moved.append((one.name, sign)))
    assert run.all_milli == 4000
    done = await run.arrive([pod("a"), pod("b", 500), pod("c", 1000, 2), pod("d", 0, 0), pod("e", 1000, 3)])
    assert [(one.at, one.asked, one.allocated) for one in done.samples] == [
        (0.0, 0.0, 0.0),
        (25.0, 25.0, 25.0),
        (37.5, 37.5, 37.5),
        (87.5, 87.5, 87.5),
        (162.5, 162.5, 87.5),
    ]
    assert (done.bound, done.failed, done.failed_plain, done.refused) == (4, 1, 0, {})
    assert over == [1, 2, 3, 4, 5]
    assert moved == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]


async def test_pods_without_gpus_that_fit_nowhere_are_counted_apart() -> None:
    run = await player(1)
    large = TracePod("large", TraceAsk(9000, 1024, 0, 0, ()), None, None)
    done = await run.arrive([large, pod("a"), large])
    assert (done.bound, done.failed, done.failed_plain) == (1, 2, 2)


async def test_pods_end_before_others_arrive_and_none_ends_at_once() -> None:
    moved: list[tuple[str, int, tuple[int, ...]]] = []
    run = await player(1, moved=lambda one, _node, minors, sign: moved.append((one.name, sign, tuple(minors))))
    pods = [
        pod("a", 1000, 2, 10, 20),
        pod("b", 1000, 2, 20, 20),
        pod("c", 1000, 1, 21),
        pod("never"),
        pod("large", 1000, 3, 21, 25),
    ]
    done = await run.replay(pods)
    assert moved == [
        ("a", 1, (0, 1)),
        ("a", -1, (0, 1)),
        ("b", 1, (0, 1)),
        ("b", -1, (0, 1)),
        ("c", 1, (0,)),
    ]
    assert (done.bound, done.failed) == (3, 1)
    assert [tuple(one[:3]) for one in done.samples] == [
        *((float(at), 100.0, 100.0) for at in range(11)),
        *((float(at), 200.0, 50.0) for at in range(11, 15)),
        (15.0, 50.0, 50.0),
    ]
    assert (await (await player(1)).replay([pod("never")])).samples == []


async def test_pods_that_arrive_are_measured_for_each_percent_of_the_gpus_and_in_the_end() -> None:
    done = await (await player()).arrive([pod(f"p{at:02}", 10) for at in range(13)])
    assert [one.at for one in done.samples] == [0.0, 1.0, 2.0, 3.0, 3.25]
    done = await (await player()).arrive([pod(f"p{at:02}", 30) for at in range(7)])
    assert [one.at for one in done.samples] == [0.0, 1.5, 2.25, 3.0, 4.5, 5.25]
    done = await (await player(gpus=0)).arrive([pod(f"p{at}", 1) for at in range(3)])
    assert [one.at for one in done.samples] == [0.0, 100.0, 200.0, 300.0]


async def test_a_replay_is_measured_a_hundred_times_after_what_happens_then_and_in_the_end() -> None:
    run = await player(1)
    done = await run.replay([pod("a", 1000, 1, 10, 35), pod("b", 1000, 1, 40), pod("c", 1000, 1, 1010)])
    assert [(one.at, one.allocated) for one in done.samples] == [
        *((float(at), 50.0) for at in range(0, 1000, 10)),
        (1000.0, 100.0),
    ]


async def test_the_first_pod_of_each_kind_of_refusal_is_told_with_the_reason() -> None:
    run = await player(1)
    done = await run.arrive([pod("a"), pod("b"), pod("b"), pod("a"), pod("c"), pod("c")])
    assert done.refused == {PodFate.DENIED: "Pod b: Pod default/b exists already"}
    assert (done.bound, done.failed) == (2, 4), "a Pod that fitted nowhere is gone: another may have its name"


async def test_pods_without_gpus_go_where_they_are_said_to_go() -> None:
    moved: list[tuple[str, str, tuple[int, ...]]] = []
    nodes = {"x": "n1", "y": None}
    run = await player(
        plain=lambda one: nodes[one.name], moved=lambda one, node, minors, _sign: moved.append((one.name, node, minors))
    )
    done = await run.arrive([pod("x", 0, 0), pod("y", 0, 0), pod("a", 500), pod("x", 0, 0)])
    assert moved == [("x", "n1", ()), ("a", "n1", (0,))]
    assert (done.bound, done.failed, done.failed_plain) == (2, 2, 2)
    assert done.refused == {PodFate.DENIED: "Pod x: Pod default/x exists already"}


async def test_what_is_over_is_told_after_each_arrival_and_each_end() -> None:
    over: list[int] = []
    run = await player(1, tell=over.append)
    await run.replay([pod("a", 500, 1, 0, 9), pod("b", 500, 1, 0, 9), pod("large", 1000, 3, 5, 9), pod("never")])
    assert over == [1, 2, 3, 6]


def plain(name: str, cpu: int, created: int, deleted: int) -> TracePod:
    return TracePod(name, TraceAsk(cpu, 1, 0, 0, ()), created, deleted)


async def test_a_node_without_cpus_for_its_gpus_has_the_taint_until_it_has_had_them_for_long_enough() -> None:
    seen: list[tuple[float, int]] = []
    keeping = HeadroomSettings(
        mode="taint", taint_below_percent=100, untaint_from_percent=120, untaint_after_seconds=50
    )
    typical = mix_of_trace([TracePod("g", TraceAsk(3000, 1024, 1, 1000, ()))])
    run = await player(settings=WebhookSettings(headroom=keeping), mix=typical)
    run._tell = lambda _over: seen.append((run._now, run.played.taints))
    ticks = [plain(f"t{at}", 1, at, 1003) for at in (72, 73, 93)]
    done = await run.replay([plain("one", 5000, 3, 103), plain("two", 5000, 13, 23), *ticks])
    assert seen == [(0.0, 1), (10.0, 2), (20.0, 2), (69.0, 2), (70.0, 3), (90.0, 3), (100.0, 3), (1000.0, 4)]
    assert done.taints == 4
    never = await player(settings=WebhookSettings(), mix=typical)
    assert (await never.replay([plain("one", 5000, 0, 100)])).taints == 0


async def test_a_taint_that_is_there_from_the_beginning_is_timed_from_there() -> None:
    keeping = HeadroomSettings(
        mode="taint", taint_below_percent=100, untaint_from_percent=120, untaint_after_seconds=50
    )
    typical = mix_of_trace([TracePod("g", TraceAsk(3000, 1024, 1, 1000, ()))])
    cluster = OfflineCluster.in_process(WebhookSettings(headroom=keeping), stock=0)
    await cluster.load(node_objects(TraceNode("n", 8000, 65536, 2, "T4")))
    cluster.taint("n", with_taint((), wanted=True))
    run = Player(cluster, typical)
    seen: list[tuple[float, int]] = []
    run._tell = lambda _over: seen.append((run._now, run.played.taints))
    await run.replay([plain(f"t{at}", 1, at, 100) for at in (3, 52, 53)])
    assert seen == [(0.0, 0), (49.0, 0), (50.0, 1), (97.0, 1)]


# What is read


@pytest.mark.parametrize(("load", "status"), [("1", 0), ("1000", 0), ("1001", 2), ("0", 2), ("-1", 2)])
def test_a_load_is_from_1_to_1000_percent(
    load: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,1000\n")
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,16000,65536,2,T4\n")
    words = ["--trace", str(tmp_path / "pods.csv"), "--trace-nodes", str(tmp_path / "nodes.csv"), f"--load={load}"]
    assert main(["simulate", *words]) == status
    if status:
        assert f"--load {load}: give a percentage from 1 to 1000" in capsys.readouterr().err


def test_a_trace_has_a_bound_and_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracerun, "_LONGEST_TRACE", 2**20)
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xef\xbb\xbfa" + b" " * (2**20 - 4))
    assert tracerun.read_text(path)[0] == "a"
    path.write_bytes(b" " * (2**20 + 1))
    with pytest.raises(ValueError, match="has more than 1 MiB; take a part of the trace"):
        tracerun.read_text(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"x.csv: is not UTF-8 text \(invalid start byte\); give a CSV file"):
        tracerun.read_text(path)
    path.write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,0,0\n\nb,1,1,0,0\nc,1,1,0,0\n")
    assert trace.MOST_ROWS == 200_000
    monkeypatch.setattr(trace, "MOST_ROWS", 3)
    assert [one.name for one in trace.read_pods(path.read_text(), "x")] == ["a", "b", "c"]
    monkeypatch.setattr(trace, "MOST_ROWS", 2)
    with pytest.raises(ValueError, match="more than 2 lines; take a part of the trace"):
        trace.read_pods(path.read_text(), "x")


def test_a_trace_has_at_most_64_mib_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    with path.open("wb") as file:
        file.truncate(64 * 2**20)
    assert len(tracerun.read_text(path)) == 67_108_864
    with path.open("wb") as file:
        file.truncate(64 * 2**20 + 1)
    with pytest.raises(ValueError, match=r"x.txt: has more than 64 MiB; take a part of the trace"):
        tracerun.read_text(path)


def test_why_a_file_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none.csv: cannot be read \(No such file or directory\); give a CSV file"):
        tracerun.read_text(tmp_path / "none.csv")
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(b"name")[:-4])
    with pytest.raises(ValueError, match=r"cut.csv.gz: cannot be read \(Compressed file ended before"):
        tracerun.read_text(cut)


def test_a_replay_needs_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,1024,1,1000\n")
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,16000,65536,2,T4\n")
    words = ["--trace", str(tmp_path / "pods.csv"), "--trace-nodes", str(tmp_path / "nodes.csv"), "--replay"]
    assert main(["simulate", *words]) == 2
    assert "no Pod has a creation_time, which --replay needs; use --load instead" in capsys.readouterr().err
