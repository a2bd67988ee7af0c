"""What `koordgate adopt` prints: findings in, lines and data out."""

from collections.abc import Callable
from typing import Any

import pytest
from rich.table import Table

from allocator.vocabulary.mode import Mode
from console import terminal
from console.adopt.findings import ClusterFindings, DevicePod, HeldBy, NodeFinding
from console.adopt.report import NamespaceReport, PlacedOn
from console.adopt.steps import AdoptStep
from console.adopt.tables import (
    check_data,
    clashes_table,
    namespaces_table,
    nodes_table,
    report_data,
    report_table,
    steps_table,
)

HELD = (
    HeldBy("GPU-0", "team/a", "a", "koordgate", "ledger"),
    HeldBy("GPU-0", "team/b", "b", "koordgate", "ledger"),
    HeldBy("GPU-1", "team/b", "b", "koordgate", "ledger"),
    HeldBy("GPU-2", "lab/c", "c", "HAMi", "an annotation"),
)
NODES = (
    NodeFinding("n1", listed=True, reporter=True, devices=3, held=HELD, offers={"a.b/gpu": "2", "a.b/mem": "8"}),
    NodeFinding("n2", listed=False, reporter=None, clashes=("n2: a clash", "n2: another")),
    NodeFinding("n3", listed=True, reporter=False, devices=1, sick={"XID": 2, "cordoned": 1}),
    NodeFinding("n4", listed=True, reporter=True, devices=8, problems=("Device n4: no id",)),
)
PODS = tuple(
    DevicePod(space, name, name, node, product, True, Mode.SHADOW)
    for space, name, node, product in (
        ("lab", "c", "n1", "HAMi"),
        ("team", "a", "n1", "koordgate"),
        ("team", "b", "n1", "koordgate"),
        ("team", "d", "", "HAMi"),
    )
)
FOUND = ClusterFindings(NODES, PODS, {"lab": Mode.OFF, "team": Mode.SHADOW}, notes=("a note",))


def shown(table: Table, capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The lines of a table without its heading; words that stand close together are one cell."""
    terminal.show(table)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, (heading, *lines))) <= 100
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_a_node_is_shown_with_what_is_ready_who_holds_what_and_what_is_offered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert shown(nodes_table(FOUND), capsys) == [
        ["n1", "yes", "HAMi: 1 device, 1 Pod", "a.b/gpu: 2"],
        ["3 devices", "koordgate: 2 devices, 2 Pods", "a.b/mem: 8"],
        ["n2", "no", "-", "-"],
        ["no Device object"],
        ["no reporter"],
        ["n3", "no", "-", "-"],
        ["1 device"],
        ["its reporter is not"],
        ["ready"],
        ["2 out of service: XID"],
        ["1 out of service:"],
        ["cordoned"],
        ["n4", "no", "-", "-"],
        ["8 devices"],
    ]


def test_a_namespace_is_shown_with_its_pods_by_product(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(namespaces_table(FOUND), capsys) == [
        ["lab", "off", "1", "0", "HAMi 1"],
        ["team", "shadow", "2", "1", "HAMi 1, koordgate 2"],
    ]


def test_a_step_is_shown_with_what_it_needs_and_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    made = [AdoptStep(1, "first", True), AdoptStep(2, "second", False, ("this", "that"), "do it")]
    assert shown(steps_table(made), capsys) == [
        ["1", "done", "first"],
        ["2", "needed", "second"],
        ["- this"],
        ["- that"],
        ["$ do it"],
    ]


NODE = "NODE                 READY                    HELD BY                           STILL OFFERS"
HEADINGS: list[tuple[Callable[[], Table], str]] = [
    (lambda: nodes_table(FOUND), NODE),
    (lambda: namespaces_table(FOUND), "NAMESPACE                      MODE       RUN     WAIT    PRODUCTS"),
    (lambda: steps_table([]), "STEP   STATE    WHAT, AND WHAT IS STILL NEEDED"),
    (lambda: clashes_table(FOUND), "WHAT CLASHES"),
    (lambda: report_table([]), "NAMESPACE              PODS                 CARDS       WHY NOT, AND WHERE"),
]


@pytest.mark.parametrize(("table", "heading"), HEADINGS, ids=[heading.split()[0] for _, heading in HEADINGS])
def test_columns_have_their_widths(
    table: Callable[[], Table], heading: str, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.show(table())
    assert capsys.readouterr().out.splitlines()[0] == heading


def test_each_clash_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(clashes_table(FOUND), capsys) == [["n2: a clash"], ["n2: another"]]


def test_no_control_character_is_printed_but_ends_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    made = [AdoptStep(1, "a\x1b[2J", False, ("b\tc",))]
    assert shown(steps_table(made), capsys) == [["1", "needed", "a?[2J"], ["- b?c"]]


def report(**about: Any) -> NamespaceReport:
    gpus = (PlacedOn("gpu", 0, "GPU-0"), PlacedOn("gpu", 1, "GPU-1"))
    placed = {"team/a": ("n1", gpus), "team/b": ("n2", gpus[1:])}
    known: dict[str, Any] = {"refused": {"no": 2, "never": 1}, "waiting": {"full": 3, "busy": 1}, "placed": placed}
    sums = {"pods": 9, "translated": 6, "same_node": 1, "cards_now": 4, "cards_then": 2}
    return NamespaceReport("team", Mode.SHADOW, **{**known, **sums, **about})


def test_a_report_has_the_sums_and_why_and_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(report_table([report(), report(placed={}, refused={}, waiting={})]), capsys) == [
        ["team", "9 in mode shadow", "4 now", "refused 2: no"],
        ["6 translated", "2 then", "refused 1: never"],
        ["3 refused", "waits 3: full"],
        ["4 would wait", "waits 1: busy"],
        ["2 placed", "team/a: n1 gpu:0 gpu:1"],
        ["1 on their node", "team/b: n2 gpu:1"],
        ["team", "9 in mode shadow", "4 now", "-"],
        ["6 translated", "2 then"],
        ["0 refused"],
        ["0 would wait"],
        ["0 placed"],
        ["1 on their node"],
    ]


@pytest.mark.parametrize(
    ("pods", "more"), [(20, []), (21, ["and 1 more; -o json names all"]), (41, ["and 21 more; -o json names all"])]
)
def test_twenty_pods_are_named_and_the_others_counted(
    pods: int, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    placed = {f"team/{at}": ("n1", ()) for at in range(pods)}
    told = shown(report_table([report(placed=placed, refused={}, waiting={})]), capsys)
    assert [line[-1] for line in told if line[-1].startswith("team/")] == [f"team/{at}: n1" for at in range(20)]
    assert told[20:] == ([more] if more else [])


@pytest.mark.parametrize(("length", "told"), [(160, "x" * 160), (161, "x" * 160 + "...")])
def test_160_characters_of_a_reason_are_told(length: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(report_table([report(refused={}, waiting={"x" * length: 1}, placed={})]), capsys)
    assert "".join(line[-1] for line in lines if line[-1].strip("x.") in {"", "waits 1:"}) == f"waits 1:{told}"


# As data


def test_all_that_was_found_is_data_too() -> None:
    told = check_data(FOUND, [AdoptStep(2, "second", False, ("this", "that"), "do it")])
    assert [(node["node"], node["ready"], node["deviceObject"], node["reporter"]) for node in told["nodes"]] == [
        ("n1", True, True, "ready"),
        ("n2", False, False, "none"),
        ("n3", False, True, "not ready"),
        ("n4", False, True, "ready"),
    ]
    first, second, third, fourth = told["nodes"]
    assert (first["devices"], first["offers"], len(first["held"])) == (3, {"a.b/gpu": "2", "a.b/mem": "8"}, 4)
    assert first["held"][3] == {
        "device": "GPU-2",
        "holder": "lab/c",
        "uid": "c",
        "product": "HAMi",
        "evidence": "an annotation",
    }
    assert (second["clashes"], third["outOfService"]) == (["n2: a clash", "n2: another"], {"XID": 2, "cordoned": 1})
    assert fourth["problems"] == ["Device n4: no id"]
    assert told["namespaces"] == {"lab": "off", "team": "shadow"}
    assert told["pods"][3] == {"namespace": "team", "name": "d", "node": "", "product": "HAMi", "readHere": True}
    assert told["clashes"] == ["n2: a clash", "n2: another"]
    assert told["steps"] == [
        {"number": 2, "title": "second", "done": False, "needed": ["this", "that"], "command": "do it"}
    ]
    assert told["notes"] == ["a note"]


def test_a_report_is_data_too() -> None:
    (told,) = report_data([report()])
    assert told.pop("placed") == {
        "team/a": {
            "node": "n1",
            "devices": [{"type": "gpu", "minor": 0, "id": "GPU-0"}, {"type": "gpu", "minor": 1, "id": "GPU-1"}],
        },
        "team/b": {"node": "n2", "devices": [{"type": "gpu", "minor": 1, "id": "GPU-1"}]},
    }
    assert told == {
        "namespace": "team",
        "mode": "shadow",
        "pods": 9,
        "translated": 6,
        "refused": {"no": 2, "never": 1},
        "waiting": {"full": 3, "busy": 1},
        "sameNode": 1,
        "cardsNow": 4,
        "cardsThen": 2,
    }


FOLDED = """\
NODE                 READY                    HELD BY                           STILL OFFERS
xxxxxxxxxxxxxxxxxxx  no                       pppppppppppppppppppppppppppppppp  yyyyyyyyyyyyyyyyyyyy
xxxxxxxxxxxxxxxxxxx  no Device object         pppppppppppppppppppppppppppp: 1   yyyyyyyyyyyyyyyyyyyy
xx                   1 out of service:        device, 1 Pod                     : 1
                     rrrrrrrrrrrrrrrrrrrrrrr
                     rrrrrrrrrrrrrrrrrrrrrrr
                     rrrr
NAMESPACE              PODS                 CARDS       WHY NOT, AND WHERE
team                   1000000000000000000  1000000000  refused 1:
                       00 in mode shadow    000 now     wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww
                       6 translated         2 then      wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww
                       1 refused                        ww
                       0 would wait
                       0 placed
                       1 on their node
STEP   STATE    WHAT, AND WHAT IS STILL NEEDED
10000  needed   tttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt
000             tttttt
"""


def test_longer_text_goes_on_in_the_next_line_of_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    long = "n" * 63
    found = ClusterFindings((), (), {long: Mode.SHADOW})
    assert shown(namespaces_table(found), capsys) == [
        ["n" * 29, "shadow", "0", "0", "-"],
        ["n" * 29],
        ["n" * 5],
    ]
    held = (HeldBy("GPU-0", "team/a", "a", "p" * 60, "ledger"),)
    offers = {"y" * 40: "1"}
    node = NodeFinding("x" * 40, listed=False, reporter=True, held=held, sick={"r" * 50: 1}, offers=offers)
    why = report(placed={}, refused={"w" * 90: 1}, waiting={}, pods=10**20, cards_now=10**12)
    terminal.show(nodes_table(ClusterFindings((node,), (), {})))
    terminal.show(report_table([why]))
    terminal.show(steps_table([AdoptStep(10**7, "t" * 90, False, (), "")]))
    assert capsys.readouterr().out == FOLDED
