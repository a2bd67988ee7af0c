"""docs/operations.md has an entry for each alert of the chart and for each reason of an Event in the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reporter import inventory
from reporter.gpu import nvml
from reporter.gpu.health import CardState
from reporter.round import occurrences
from webhook.upkeep.troubles import Wrong

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
RULES = (ROOT / "charts" / "koordgate" / "templates" / "prometheusrule.yaml").read_text(encoding="utf-8")
ALERTS = re.findall(r"- alert: (\w+)", RULES)
# What is called with the reason of an Event, or of what an Event is made of.
MAKERS = {"Occurrence", "_event", "_fault", "Fault", "TakenOver", "_failed", "_EndedError"}
REASON = re.compile(r"[A-Z][a-z]+(?:[A-Z][A-Za-z]*)+")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def entries(title: str) -> set[str]:
    """The names in the first column of the tables of a section."""
    rows = [line.split("|") for line in section(title).splitlines() if line.startswith("| `")]
    assert all(len(cells) == 5 and all(cell.strip() for cell in cells[1:4]) for cells in rows)
    return {name for cells in rows for name in re.findall(r"`(\w+)`", cells[1])}


def constants(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and REASON.fullmatch(node.value):
            yield node.value


def made() -> Iterator[str]:
    """The reasons in calls of what makes Events, and in assignments to a variable of that name."""
    for folder in ("reporter", "webhook"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                    if name in MAKERS:
                        for part in [*node.args, *(word.value for word in node.keywords)]:
                            yield from constants(part) if isinstance(part, ast.Constant) else ()
                elif isinstance(node, ast.Assign) and any(getattr(one, "id", "") == "reason" for one in node.targets):
                    yield from constants(node.value)


def reasons() -> set[str]:
    found = set(made())
    found |= {why for why, _ in nvml._WHY.values()}
    found |= {inventory.LINK_DOWN, inventory.LINK_UNKNOWN, inventory.NO_PORT, inventory.FALLEN_OFF_BUS}
    found |= set(Wrong)
    found |= {occurrences._MISSING, occurrences._EXCEEDED}
    found |= {f"Gpu{state.value.capitalize()}" for state in (CardState.HEALTHY, CardState.RECOVERING)}
    return found | {"Xid"}  # with the number of the error


def test_reasons_are_found_in_the_code() -> None:
    assert {"BoundWithoutDevices", "GpuLost", "NvmlHangs", "KubeletFileUnusable", "CpuStateTakenOver"} <= reasons()
    assert len(reasons()) > 30


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_has_an_entry(alert: str) -> None:
    assert alert in entries("Alerts")


def test_no_entry_is_of_an_alert_that_does_not_exist() -> None:
    assert len(ALERTS) > 10
    assert entries("Alerts") == set(ALERTS)


@pytest.mark.parametrize("reason", sorted(reasons()))
def test_each_reason_of_an_event_has_an_entry(reason: str) -> None:
    assert reason in entries("Events")


def test_no_entry_is_of_a_reason_that_does_not_exist() -> None:
    assert entries("Events") == reasons()


def test_events_that_the_page_names_elsewhere_have_an_entry() -> None:
    named = re.findall(r"Events? ((?:`\w+`(?:, | and )?)+)", PAGE)
    assert {name for some in named for name in re.findall(r"`(\w+)`", some)} <= entries("Events")
