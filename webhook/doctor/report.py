"""The findings as a table and as data."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from webhook.doctor.findings import Finding, Level
from webhook.plaintable import plain_table
from webhook.terminal import printable

WIDTH: Final = 100
_STYLES: Final = {Level.OK: "green", Level.UNKNOWN: "cyan", Level.WARNING: "yellow", Level.FAILURE: "bold red"}


def table(findings: Sequence[Finding]) -> Table:
    """Make the table: a row for each finding, with what to do on a line of its own."""
    made = plain_table("", "AREA", "FOUND, AND WHAT TO DO")
    for one in findings:
        todo = f"\n-> {one.todo}" if one.todo else ""
        made.add_row(Text(one.level, style=_STYLES[one.level]), Text(one.area), Text(_lines(one.what) + _lines(todo)))
    return made


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def summary(findings: Sequence[Finding]) -> str:
    """Count the findings in one sentence."""
    counted = Counter(one.level for one in findings)
    failures, warnings = counted[Level.FAILURE], counted[Level.WARNING]
    texts = [
        f"{failures} failure{'s' * (failures != 1)}",
        f"{warnings} warning{'s' * (warnings != 1)}",
        f"{counted[Level.UNKNOWN]} not known",
        f"{counted[Level.OK]} ok",
    ]
    return ", ".join(texts)


def data(findings: Sequence[Finding], status: int) -> dict[str, Any]:
    """The same as data; `exitStatus` is that of the command."""
    listed = [{"level": str(one.level), "area": one.area, "what": one.what, "todo": one.todo} for one in findings]
    return {"exitStatus": status, "findings": listed}
