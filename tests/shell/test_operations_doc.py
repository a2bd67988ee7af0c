"""docs/operate/operations.md has an entry for each alert of the chart."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate" / "operations.md").read_text(encoding="utf-8")
RULES = (ROOT / "charts" / "koordgate" / "templates" / "prometheusrule.yaml").read_text(encoding="utf-8")
ALERTS = re.findall(r"- alert: (\w+)", RULES)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def entries(title: str) -> set[str]:
    """The names in the first column of the tables of a section."""
    rows = [line.split("|") for line in section(title).splitlines() if line.startswith("| `")]
    assert all(len(cells) == 5 and all(cell.strip() for cell in cells[1:4]) for cells in rows)
    return {name for cells in rows for name in re.findall(r"`(\w+)`", cells[1])}


def test_no_entry_is_of_an_alert_that_does_not_exist() -> None:
    assert len(ALERTS) > 10
    assert entries("Alerts") == set(ALERTS)


def test_events_that_the_page_names_elsewhere_have_an_entry() -> None:
    named = re.findall(r"Events? ((?:`\w+`(?:, | and )?)+)", PAGE)
    assert {name for some in named for name in re.findall(r"`(\w+)`", some)} <= entries("Events")
