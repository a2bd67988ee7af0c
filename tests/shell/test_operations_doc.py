"""The alerts of the chart and the Events that docs/operate/operations.md names have what to do about them."""

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


def test_each_alert_says_what_to_do_itself() -> None:
    assert len(ALERTS) > 10
    told = [part for part in RULES.split("- alert: ")[1:] if not re.search(r"^ +description: \S", part, re.MULTILINE)]
    assert told == []


def test_alerts_and_their_events_that_the_page_names_exist() -> None:
    assert set(re.findall(r"`(Koordgate\w+)`", PAGE)) <= set(ALERTS)
    in_descriptions = set(re.findall(r"description: the Event (\w+) names", RULES))
    assert in_descriptions
    assert in_descriptions <= entries("Events")


def test_events_that_the_page_names_elsewhere_have_an_entry() -> None:
    named = re.findall(r"Events? ((?:`\w+`(?:, | and )?)+)", PAGE)
    assert {name for some in named for name in re.findall(r"`(\w+)`", some)} <= entries("Events")
