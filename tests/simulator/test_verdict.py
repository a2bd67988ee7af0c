"""The end of `koordgate demo`: its sums line by line, and how this program is called from where somebody stands."""

import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from console import terminal
from console.simulator import demo
from console.simulator.cluster import OfflineCluster, PodFate, Result

BOUND = {"metadata": {"name": "a"}, "spec": {"nodeName": "n"}}


def shown(*overgiven: str, guarded: bool = True) -> demo.DemoOutcome:
    results = [Result(BOUND, PodFate.BOUND), Result(BOUND, PodFate.DENIED)]
    account = OfflineCluster.in_process().account()
    return demo.DemoOutcome(results, account, overgiven, guarded, "refused", "the real webhook: 3 requests")


SUMS = """\
What was shown
  2 Pods           1 bound, 1 refused at admission
  in use           no devices
  it ran on        the real webhook: 3 requests
  given twice      no device and no CPU
  foreign Binding  refused

demo: passed

Where to look next
"""

NARROW = """\
What was shown
  2 Pods           1 bound, 1
                   refused at
                   admission
  in use           no devices
  it ran on        the real
                   webhook: 3
                   requests
  given twice      gpu 0; gpu
                   1
  foreign Binding  refused

demo: FAILED: see the red
lines above

Where to look next
"""


def test_the_sums_and_the_verdict_are_one_table_of_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show(*demo.parts(shown()), most=80)
    assert capsys.readouterr().out.startswith(SUMS)
    terminal.show(*demo.parts(shown("gpu 0", "gpu 1")), most=29)
    assert capsys.readouterr().out.startswith(NARROW)


@pytest.mark.parametrize(
    ("overgiven", "guarded", "styles", "right"),
    [
        ((), True, ["", "", "", "green", "green"], "bold green"),
        (("x",), True, ["", "", "", "red", "green"], "bold red"),
        ((), False, ["", "", "", "green", "red"], "bold red"),
    ],
)
def test_what_went_wrong_is_red_and_the_rest_is_not(
    overgiven: tuple[str, ...], styles: list[str], right: str, *, guarded: bool
) -> None:
    parts = demo.parts(shown(*overgiven, guarded=guarded))
    assert isinstance(parts[1], Table)
    assert isinstance(parts[3], Text)
    assert [cell.style for cell in parts[1].columns[1].cells if isinstance(cell, Text)] == styles
    assert parts[3].spans[-1].style == right


def programs(folder: Path, *names: str) -> Path:
    """A folder with programs of these names."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("beside", "path", "here", "called", "hint"),
    [
        (("python", "koordgate"), "bin", ".", "koordgate", False),
        (("python", "koordgate"), "other", ".", "bin/koordgate", True),
        (("python", "koordgate"), "none", ".", "bin/koordgate", True),
        (("python", "koordgate"), "none", "none", "@/bin/koordgate", True),
        (("python",), "other", ".", "bin/python -m koordgate", False),
        (("python",), "none", ".", "bin/python -m koordgate", False),
    ],
)
def test_the_program_is_called_by_its_name_where_that_is_this_one(
    beside: tuple[str, ...],
    path: str,
    here: str,
    called: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    hint: bool,
) -> None:
    mine = programs(tmp_path / "bin", *beside)
    programs(tmp_path / "other", "koordgate")
    (tmp_path / "none").mkdir()
    monkeypatch.setattr(sys, "executable", str(mine / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / path))
    monkeypatch.chdir(tmp_path / here)
    assert demo.called() == called.replace("@", str(tmp_path))
    told = [
        part.plain if isinstance(part, Text) else part for part in demo.parts(shown()) if not isinstance(part, Table)
    ]
    last = ["  To type `koordgate` alone:", f'    export PATH={mine}:"$PATH"']
    assert (told[-2:] == last) is hint
    assert told[-1] == (last[1] if hint else f"    {demo.called()} --help")


def test_each_step_has_a_title_and_lines_that_are_indented_beneath_it() -> None:
    told = [
        part.plain if isinstance(part, Text) else part
        for part in demo.parts(shown())[6:]
        if not isinstance(part, Table)
    ]
    expected = []
    for title, *lines in demo.steps():
        expected += [f"  {title}", *(f"    {line}" for line in lines)]
    assert told[: len(expected)] == expected
    assert [len(step) for step in demo.steps()] == [3, 2, 4, 2]
