"""What `koordgate adopt` prints: findings in, lines out."""

import io
from typing import Any

import pytest
from rich.console import Console

from allocator.vocabulary.names import Mode
from console import terminal
from console.adopt.findings import ClusterFindings, HeldBy, NodeFinding
from console.adopt.report import NamespaceReport, PlacedOn, PlacedPod
from console.adopt.steps import AdoptStep
from console.adopt.tables import check_tables, report_table


def node(name: str, **about: Any) -> NodeFinding:
    known = {"ready": False, "listed": True, "reporter": "ready", "devices": 1}
    return NodeFinding(name, **{**known, **about})


HELD = (
    HeldBy("GPU-0", "team/a", "a", "koordgate", "ledger"),
    HeldBy("GPU-0", "team/b", "b", "koordgate", "ledger"),
    HeldBy("GPU-1", "team/b", "b", "koordgate", "ledger"),
    HeldBy("GPU-2", "lab/c", "c", "HAMi", "an annotation"),
)
ROWS: dict[str, tuple[NodeFinding, str]] = {
    "who holds what, and offers": (
        node("n1", ready=True, devices=3, held=HELD, offers={"a/gpu": "2", "b/gpu": "8"}),
        "n1 yes HAMi: 1 device, 1 Pod a/gpu: 2 3 devices koordgate: 2 devices, 2 Pods b/gpu: 8",
    ),
    "no Device object": (node("n1", listed=False, devices=0), "n1 no - - no Device object"),
    "assumed": (node("n1", listed=False, devices=2), "n1 no - - no Device object 2 devices assumed"),
    "no reporter": (node("n1", reporter="none"), "n1 no - - 1 device no reporter"),
    "its reporter": (node("n1", reporter="not ready"), "n1 no - - 1 device its reporter is not ready"),
    "sick": (
        node("n1", sick={"XID": 2, "cordoned": 1}),
        "n1 no - - 1 device 2 out of service: XID 1 out of service: cordoned",
    ),
}


@pytest.mark.parametrize(("found", "words"), ROWS.values(), ids=ROWS)
def test_a_node_is_shown(found: NodeFinding, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show(next(iter(check_tables(ClusterFindings((found,), (), {}), []))))
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NODE", "READY", "HELD", "BY", "STILL", "OFFERS"]
    assert " ".join(" ".join(lines).split()) == words


def test_no_control_character_is_printed_and_long_text_goes_on_in_its_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [AdoptStep(1, "a\x1b[2J", False, ("b\tc",)), AdoptStep(10**7, "t" * 90, True)]
    terminal.show(
        *check_tables(ClusterFindings((node("n" * 63, clashes=("x" * 120,)),), (), {"s" * 63: Mode.OFF}), steps)
    )
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 100
    assert [line.split() for line in told.splitlines() if "?" in line] == [["1", "needed", "a?[2J"], ["-", "b?c"]]
    assert told.count("n" * 19) == told.count("\n" + "s" * 29) + 1 == 3


def test_nothing_is_cut_off_where_the_terminal_is_narrow() -> None:
    step = AdoptStep(1, "title " * 15 + "titled", False, ("need " * 20 + "needed",), "koordgate " * 9 + "called")
    out = io.StringIO()
    console = Console(file=out, width=80)
    for table in check_tables(ClusterFindings((node("n" * 63),), (), {"s" * 63: Mode.OFF}), [step]):
        console.print(table)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    words = out.getvalue().split()
    assert [words.count(word) for word in ("titled", "needed", "called")] == [1, 2, 1]  # "needed" is a state as well
    assert words.count("title") == 15
    folded = ["".join(word for word in words if not word.strip(letter)) for letter in "ns"]
    assert folded == ["n" * 63, "s" * 63]


def report(**about: Any) -> NamespaceReport:
    gpus = (PlacedOn("gpu", 0, "GPU-0"), PlacedOn("gpu", 1, "GPU-1"))
    placed = {"team/a": PlacedPod("n1", gpus), "team/b": PlacedPod("n2", gpus[1:])}
    known: dict[str, Any] = {"refused": {"no": 2, "never": 1}, "waiting": {"full": 3, "busy": 1}, "placed": placed}
    sums = {"pods": 9, "translated": 6, "same_node": 1, "cards_now": 4, "cards_then": 2}
    return NamespaceReport("team", Mode.SHADOW, **{**known, **sums, **about})


def test_a_report_has_the_sums_and_why_and_where(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show(report_table([report()]))
    lines = [[cell.strip() for cell in line.split("  ") if cell] for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["team", "9 in mode shadow", "4 now", "refused 2: no"],
        ["6 translated", "2 then", "refused 1: never"],
        ["3 refused", "waits 3: full"],
        ["4 would wait", "waits 1: busy"],
        ["2 placed", "team/a: n1 gpu:0 gpu:1"],
        ["1 on their node", "team/b: n2 gpu:1"],
    ]


@pytest.mark.parametrize(("pods", "more"), [(20, ""), (21, "and 1 more; -o json names all")])
def test_twenty_pods_are_named_and_160_characters_of_a_reason(
    pods: int, more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = {f"team/{at}": PlacedPod("n1", ()) for at in range(pods)}
    terminal.show(report_table([report(placed=placed, refused={"x" * (140 + pods): 1}, waiting={})]))
    told = capsys.readouterr().out
    assert (told.count("team/"), more in told) == (20, True)
    assert (told.count("x"), "x..." in told) == (160, pods > 20)
