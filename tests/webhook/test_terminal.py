"""What commands print: as it is, on a terminal and off one."""

import argparse
import subprocess
import sys

import pytest
from rich.table import Table
from rich.text import Text

from console import terminal

WRITTEN = "n1 42 [bold]GPU-1[/bold] :warning: 'text' True"


def test_what_people_wrote_is_never_taken_for_markup_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    console = terminal.screen()
    assert console.is_terminal
    with console.capture() as captured:
        console.print(WRITTEN)
    assert captured.get() == f"{WRITTEN}\n"


def test_off_a_terminal_all_is_plain_and_nothing_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, pad_edge=False)
    for _ in range(2):
        table.add_column("A", overflow="fold")
    table.add_row("x" * 4000, "y" * 4000)
    table.add_row("short", "")
    terminal.show(WRITTEN, Text("bold", style="bold"), table, "")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [WRITTEN, "bold"]
    assert lines[3].split() == ["x" * 4000, "y" * 4000]
    assert lines[4:] == ["short", ""]


def test_a_number_of_things_is_told_in_the_singular_of_one_alone() -> None:
    assert [terminal.counted(number, "Pod") for number in (0, 1, 2, 11)] == ["0 Pods", "1 Pod", "2 Pods", "11 Pods"]


def test_characters_that_a_terminal_would_interpret_are_replaced() -> None:
    assert terminal.printable("a\x1b[31m b\n\tü") == "a?[31m b??ü"


@pytest.mark.parametrize(("text", "read"), [("0", 0.0), ("0.5", 0.5), ("86400", 86400.0), ("1e3", 1000.0)])
def test_a_time_up_to_a_day_is_read(text: str, read: float) -> None:
    assert terminal.seconds(text) == read


@pytest.mark.parametrize("text", ["-0.1", "86400.1", "86401", "nan", "inf", "", "1 s", "one"])
def test_any_other_time_is_refused_with_the_bounds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        terminal.seconds(text)
    assert str(refused.value) == f"{text!r}: state seconds from 0 to 86400"


@pytest.mark.parametrize("text", ["a", "0", "a-b", "9-9", "a" * 63])
def test_the_name_of_a_namespace_is_read(text: str) -> None:
    assert terminal.namespace(text) == text


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a.b", "a_b", "a\n", "a" * 64])
def test_what_cannot_be_the_name_of_a_namespace_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        terminal.namespace(text)
    assert str(refused.value) == f"{text!r} cannot be the name of a namespace"


def table_of(width: int) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("A", overflow="fold")
    table.add_row("x" * width)
    return table


def test_a_table_fits_where_nothing_of_it_has_to_be_wrapped() -> None:
    assert [terminal.fits(table_of(20), width) for width in (19, 20, 21)] == [False, True, True]


def test_off_a_terminal_the_width_is_the_one_that_is_asked_for() -> None:
    assert (terminal.columns(), terminal.columns(33)) == (10_000, 33)


def test_what_is_wider_than_asked_for_is_wrapped_off_a_terminal_too(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show(table_of(25), most=10)
    assert capsys.readouterr().out.splitlines() == ["A", "x" * 10, "x" * 10, "x" * 5]


def test_a_document_is_written_as_json_or_yaml_in_its_own_order(capsys: pytest.CaptureFixture[str]) -> None:
    for output in ("json", "yaml"):
        terminal.write_data({"b": [1], "a": "ü"}, output)
    assert capsys.readouterr().out == '{\n  "b": [\n    1\n  ],\n  "a": "ü"\n}\nb:\n- 1\na: ü\n'


def test_a_command_whose_output_nobody_reads_ends_as_a_unix_tool_does() -> None:
    code = "import sys; from console import terminal; print('x'); sys.exit(terminal.unread())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_errors_are_shown_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.errors().print(WRITTEN)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{WRITTEN}\n")
