"""The findings, and what probes showed, as tables and as data."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from console.doctor.findings import Finding, Level
from console.doctor.probe.outcome import Outcome, Verdict
from console.plaintable import plain_table
from console.terminal import printable

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


def probe_table(outcomes: Sequence[Outcome]) -> Table:
    """Make the table of probes: a row for each node."""
    made = plain_table("NODE", "WAY", "GIVEN", "SEEN", "VERDICT")
    for one in outcomes:
        style = {Verdict.RIGHT: "green", None: "cyan"}.get(one.verdict if one.verdict.result else None, "bold red")
        way = one.found.way.delivery or "none"
        cells = (one.node, way, _given(one), _seen(one))
        made.add_row(*(Text(printable(cell)) for cell in cells), Text(one.verdict, style=style))
    return made


def _given(one: Outcome) -> str:
    return ", ".join(f"/dev/nvidia{share.minor} {share.id}" for share in one.given) or "-"


def _seen(one: Outcome) -> str:
    if one.seen is None:
        return "-"
    return " ".join((*(f"/dev/nvidia{minor}" for minor in one.seen.minors), *one.seen.uuids)) or "no card"


def data(findings: Sequence[Finding], status: int, outcomes: Sequence[Outcome] | None = None) -> dict[str, Any]:
    """The same as data; `exitStatus` is that of the command. `probe` is there if anything was probed."""
    listed = [{"level": str(one.level), "area": one.area, "what": one.what, "todo": one.todo} for one in findings]
    probed = {} if outcomes is None else {"probe": [_outcome(one) for one in outcomes]}
    return {"exitStatus": status, "findings": listed, **probed}


def _outcome(one: Outcome) -> dict[str, Any]:
    seen = None if one.seen is None else {"minors": list(one.seen.minors), "uuids": list(one.seen.uuids)}
    return {
        "node": one.node,
        "way": one.found.way.delivery and str(one.found.way.delivery),
        "runtimeClass": one.found.runtime_class,
        "given": [{"minor": share.minor, "uuid": share.id} for share in one.given],
        "seen": seen,
        "verdict": str(one.verdict),
        "why": one.why,
    }
