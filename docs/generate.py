"""Writes the parts of documents that follow from the code (`make generate`); with --check it only compares them."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from prometheus_client import CollectorRegistry

from console import simulator
from console.simulator.cluster import OfflineCluster
from reporter.metrics import ReporterMetrics

DOCS: Final = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # with PYTHONSAFEPATH the script's own folder is not on the path
import chartvalues
import commandpage
import dashboard
import refusals

RULES: Final = DOCS.parent / "charts" / "koordgate" / "templates" / "prometheusrule.yaml"
DASHBOARD: Final = DOCS.parent / "charts" / "koordgate" / "files" / "dashboard.json"
PAGE: Final = DOCS / "operate" / "metrics.md"
CHART: Final = chartvalues.FOLDER / "README.md"
_BEGIN: Final = "<!-- generated: {} -->\n"
_END: Final = "<!-- end -->\n"
_METRIC: Final = re.compile(r"\bkoordgate_[a-z_]+")


class Described(NamedTuple):
    """One metric: its name as it is queried, its kind, its labels, and what it says."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def described(registry: CollectorRegistry) -> Iterator[Described]:
    """Describe the metrics of a registry, in the order of their declaration."""
    for collector in registry._collector_to_names:  # noqa: SLF001 the library has no other list
        labels = getattr(collector, "_labelnames", ())
        for metric in collector.collect():
            of = tuple(labels) or tuple(getattr(metric, "_labelnames", ()))
            yield Described(
                f"{metric.name}_total" * (metric.type == "counter") or metric.name,
                metric.type,
                of,
                metric.documentation,
            )


def everything() -> dict[str, list[Described]]:
    """The metrics of each process: `webhook` and `reporter`."""
    webhook = OfflineCluster.in_process().parts.metrics
    return {
        "webhook": list(described(webhook._registry)),  # noqa: SLF001 as above
        "reporter": list(described(ReporterMetrics()._registry)),  # noqa: SLF001 as above
    }


def alerts() -> list[dict[str, Any]]:
    """The rules of the chart's PrometheusRule."""
    text = "".join(line for line in RULES.read_text().splitlines(keepends=True) if "{{" not in line)
    found: list[dict[str, Any]] = yaml.safe_load(text)["spec"]["groups"][0]["rules"]
    return found


def _table(metrics: Iterable[Described]) -> str:
    rows = ["| metric | kind | labels | what it says |", "|---|---|---|---|"]
    for one in metrics:
        labels = ", ".join(f"`{label}`" for label in one.labels) or "-"
        rows.append(f"| `{one.name}` | {one.kind} | {labels} | {one.text} |")
    return "\n".join(rows) + "\n"


def _alerts() -> str:
    rows = ["| alert | severity | when |", "|---|---|---|"]
    for one in alerts():
        asked = ", ".join(f"`{name}`" for name in dict.fromkeys(_METRIC.findall(one["expr"])))
        told = one["annotations"]
        rows.append(f"| `{one['alert']}` | {one['labels']['severity']} | {told['summary']} ({asked}) |")
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """Write the generated parts of the page about metrics anew."""
    metrics = everything()
    return filled(PAGE, text, {**{name: _table(of) for name, of in metrics.items()}, "alerts": _alerts()})


def filled(path: Path, text: str, parts: dict[str, str]) -> str:
    """Write the generated parts of a page anew."""
    for name, part in parts.items():
        before, begin, rest = text.partition(_BEGIN.format(name))
        _, end, after = rest.partition(_END)
        if not (begin and end):
            raise SystemExit(f"{path}: no part {_BEGIN.format(name).strip()} ... {_END.strip()}; add it")
        text = f"{before}{begin}{part}{end}{after}"
    return text


def main() -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; the status is 1 if a page is not current")
    check = parser.parse_args().check
    code = Path(simulator.__file__).resolve().parents[2]
    if code != DOCS.resolve().parent:
        sys.stderr.write(f"this would write what {code} says: set PYTHONPATH to {DOCS.resolve().parent}\n")
        return 2
    files = {
        PAGE: page(PAGE.read_text()),
        DASHBOARD: dashboard.text(),
        CHART: chartvalues.readme(CHART.read_text()),
        commandpage.PAGE: commandpage.text(),
        refusals.PAGE: filled(refusals.PAGE, refusals.PAGE.read_text(), refusals.parts()),
    }
    stale = [path for path, made in files.items() if not path.exists() or path.read_text() != made]
    if check and stale:
        sys.stderr.write("".join(f"{path} is not current: run `make generate`\n" for path in stale))
        return 1
    for path in stale:
        path.write_text(files[path])
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
