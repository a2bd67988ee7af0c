"""Draws allocation and fragmentation of several runs as one SVG (pure)."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from openb.play import Sample

_COLOURS: Final = ("#2c6fbb", "#c0392b", "#27804a", "#8e5ea2", "#d68910", "#16807a", "#7a5230", "#555555")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _BETWEEN, _LINE = 760, 300, 60, 24, 44, 44, 28, 18
_MAX_TICKS: Final = 8
_FULL: Final = 100.0
_DASHED: Final = "6 4"
_ASKED: Final = 'stroke="#bbb" stroke-width="4"'


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

    A grey line shows what was asked, if the samples state it, as far as there are GPUs for it. If there are more runs
    than colours, the others are dashed.

    Args:
        runs: the same Pods in several ways.
        axis: what the samples' places are.
    """
    last = max((sample.at for samples in runs.values() for sample in samples), default=None) or 1.0
    asked = [one.asked for one in next(iter(runs.values()), ())]
    asked = asked if any(asked) else []
    named = [(name, _stroke(number)) for number, name in enumerate(runs)] + [("asked", _ASKED)] * bool(asked)
    height = 2 * _HEIGHT + _BETWEEN + _LINE * len(named) + 8
    box = f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13"'
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
    ]
    most = max((sample.fragmented for samples in runs.values() for sample in samples), default=None) or 1.0
    figures = {
        "allocated, % of all GPUs": (_FULL, {name: [one.allocated for one in of] for name, of in runs.items()}),
        "fragmented, % of all GPUs": (most * 1.1, {name: [one.fragmented for one in of] for name, of in runs.items()}),
    }
    places = {name: [one.at for one in of] for name, of in runs.items()}
    for number, (title, (top, lines)) in enumerate(figures.items()):
        drawn += _panel(number * (_HEIGHT + _BETWEEN), title, top, places, lines, last, axis, () if number else asked)
    for number, (name, stroke) in enumerate(named):
        y = 2 * _HEIGHT + _BETWEEN + _LINE * number
        drawn.append(f'<path d="M{_LEFT} {y}h28" {stroke}/>')
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
    asked: Sequence[float],
) -> list[str]:
    bottom = offset + _HEIGHT - _BOTTOM

    def x(place: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * place / last

    def y(value: float) -> float:
        return bottom - (_HEIGHT - _BOTTOM - _TOP) * min(value, top) / top

    def points(at: Sequence[float], values: Sequence[float]) -> str:
        return " ".join(f"{x(place):.1f},{y(value):.1f}" for place, value in zip(at, values, strict=True))

    drawn = [_text(_LEFT, offset + _TOP - 14, title, "start"), _text((_LEFT + _WIDTH) / 2, bottom + 36, axis.name)]
    for value in _ticks(top):
        drawn.append(f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        drawn.append(_text(_LEFT - 8, y(value) + 4, f"{value:g}", "end"))
    drawn += [_text(x(place * axis.unit), bottom + 18, f"{place:g}") for place in _ticks(last / axis.unit)]
    if asked:
        drawn.append(f'<path d="M{points(next(iter(places.values())), asked)}" fill="none" {_ASKED}/>')
    for number, (name, values) in enumerate(lines.items()):
        drawn.append(f'<polyline points="{points(places[name], values)}" fill="none" {_stroke(number)}/>')
    return drawn


def _ticks(end: float) -> list[float]:
    """Round figures from 0 to the end, a few."""
    least = end / _MAX_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * by for by in (1, 2, 5, 10) if power * by >= least)
    return [step * number for number in range(int(end / step) + 1)]


def _stroke(number: int) -> str:
    rest, colour = divmod(number, len(_COLOURS))
    dashed = f' stroke-dasharray="{_DASHED}"' if rest else ""
    return f'stroke="{_COLOURS[colour]}" stroke-width="2"{dashed}'


def _text(x: float, y: float, what: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333">{escape(what)}</text>'
