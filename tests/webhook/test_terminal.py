"""What commands print: as it is, on a terminal and off one."""

import pytest
from rich.table import Table
from rich.text import Text

from webhook import terminal

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
