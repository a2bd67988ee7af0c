"""Draws allocation and fragmentation of several runs as one SVG (pure)."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from webhook.offline.traceplay import Sample

_COLOURS: Final = ("#2c6fbb", "#c0392b", "#27804a", "#8e5ea2", "#d68910", "#16807a", "#7a5230", "#555555")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _BETWEEN, _LINE = 760, 300, 60, 24, 44, 44, 28, 18
_TICKS: Final = 5
_FULL: Final = 100.0


class Axis(NamedTuple):
    """What the samples' places are.

    Attributes:
        name: as it is written.
        unit: how much of a place is 1 of it.
    """

    name: str
    unit: int


ASKED: Final = Axis("asked by Pods that have arrived, % of all GPUs", 1)
TIMES: Final = Axis("days", 86_400)
PODS: Final = Axis("Pods that have arrived", 1)


def plot(runs: Mapping[str, Sequence[Sample]], axis: Axis = ASKED) -> str:
    """Draw runs, each with a name: allocation above, fragmentation below, both in percent of all GPUs.

    Args:
        runs: at most as many as there are colours are told apart.
        axis: what the samples' places are.
    """
    last = max((sample.at for samples in runs.values() for sample in samples), default=1.0) or 1.0
    legend = _LINE * len(runs) + 8
    height = 2 * _HEIGHT + _BETWEEN + legend
    box = f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13"'
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
    ]
    most = max((sample.fragmented for samples in runs.values() for sample in samples), default=1.0) or 1.0
    figures = {
        "allocated, % of all GPUs": (_FULL, {name: [one.allocated for one in of] for name, of in runs.items()}),
        "fragmented, % of all GPUs": (most * 1.1, {name: [one.fragmented for one in of] for name, of in runs.items()}),
    }
    places = {name: [one.at for one in of] for name, of in runs.items()}
    for number, (title, (top, lines)) in enumerate(figures.items()):
        drawn += _panel(number * (_HEIGHT + _BETWEEN), title, top, places, lines, last, axis)
    for number, name in enumerate(runs):
        y = 2 * _HEIGHT + _BETWEEN + _LINE * number
        drawn.append(f'<path d="M{_LEFT} {y}h28" stroke="{_colour(number)}" stroke-width="2.5"/>')
        drawn.append(_text(_LEFT + 36, y + 4, name, "start"))
    return "\n".join([*drawn, "</svg>", ""])


def _panel(
    offset: int,
    title: str,
    top: float,
    places: Mapping[str, Sequence[float]],
    lines: Mapping[str, Sequence[float]],
    last: float,
    axis: Axis,
) -> list[str]:
    bottom = offset + _HEIGHT - _BOTTOM

    def x(place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * place / last

    def y(value: float) -> float:
        return bottom - (_HEIGHT - _BOTTOM - _TOP) * min(value, top) / top

    by = last / axis.unit
    drawn = [_text(_LEFT, offset + _TOP - 14, title, "start"), _text((_LEFT + _WIDTH) / 2, bottom + 36, axis.name)]
    for tick in range(_TICKS + 1):
        value, place = top * tick / _TICKS, last * tick / _TICKS
        drawn.append(f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        drawn.append(_text(_LEFT - 8, y(value) + 4, f"{value:.0f}" if top >= _FULL else f"{value:.1f}", "end"))
        drawn.append(_text(x(place), bottom + 18, f"{by * tick / _TICKS:.0f}"))
    for number, (name, values) in enumerate(lines.items()):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in zip(places[name], values, strict=True))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{_colour(number)}" stroke-width="2"/>')
    return drawn


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _text(x: float, y: float, what: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333">{escape(what)}</text>'
