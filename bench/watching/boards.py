"""The dashboard's panels, asked of Prometheus as Grafana asks."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import ClientSession
from prometheus_server import asked

DASHBOARD: Final = Path(__file__).parents[2] / "charts" / "koordgate" / "files" / "dashboard.json"
_ALL_MODELS: Final = ".*"


@dataclass(frozen=True)
class Series:
    """One line of a panel.

    Attributes:
        name: its legend.
        points: seconds since 1970 and value, in the order of time.
    """

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Board:
    """A panel with what it shows.

    Attributes:
        title: of the panel, or of the row.
        kind: row, timeseries, stat, bargauge or table.
        unit: Grafana's name of the unit.
        place: x, y, w and h on the dashboard's grid.
        series: what Prometheus answered.
    """

    title: str
    kind: str
    unit: str
    place: Mapping[str, int]
    series: tuple[Series, ...] = ()


async def boards(session: ClientSession, api: str, begin: float, end: float, step: float) -> list[Board]:
    """Ask each query of the dashboard over a time.

    Raises:
        ValueError: Prometheus refuses a query; the message is its own.
    """
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "")
        series: list[Series] = []
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$model", _ALL_MODELS)
            answer = await (
                _instant(session, api, query, end)
                if target["instant"]
                else _over(session, api, query, begin, end, step)
            )
            series += _series(answer, target["legendFormat"])
        found.append(Board(panel["title"], panel["type"], unit, panel["gridPos"], tuple(series)))
    return found


async def firing(session: ClientSession, api: str, begin: float, end: float) -> dict[str, float]:
    """The alerts that were firing in this time: name -> for how many seconds."""
    step = 5.0
    answer = await _over(session, api, 'max by (alertname) (ALERTS{alertstate="firing"})', begin, end, step)
    return {one["metric"]["alertname"]: len(one["values"]) * step for one in answer}


async def _instant(session: ClientSession, api: str, query: str, at: float) -> Iterable[Mapping[str, Any]]:
    return _result(query, await asked(session, f"{api}/query", query=query, time=str(at)))


async def _over(
    session: ClientSession, api: str, query: str, begin: float, end: float, step: float
) -> Iterable[Mapping[str, Any]]:
    span = {"start": str(begin), "end": str(end), "step": str(step)}
    return _result(query, await asked(session, f"{api}/query_range", query=query, **span))


def _result(query: str, answer: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    if answer.get("status") != "success":
        raise ValueError(f"{query}: {answer}")
    found: Iterable[Mapping[str, Any]] = answer["data"]["result"]
    return found


def _series(result: Iterable[Mapping[str, Any]], legend: str) -> Iterable[Series]:
    for one in result:
        name = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: one["metric"].get(match[1], ""), legend)  # noqa: B023 called at once
        points = one["values"] if "values" in one else [one["value"]]
        read = ((float(at), float(value)) for at, value in points)
        yield Series(name.strip(), tuple((at, value) for at, value in read if math.isfinite(value)))
