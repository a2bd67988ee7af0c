"""Draws the dashboard's panels, each at its place, as one SVG (pure)."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, NamedTuple

from watching.boards import Board, Series

_COLOURS: Final = (
    "#2c6fbb",
    "#c0392b",
    "#27804a",
    "#8e5ea2",
    "#d68910",
    "#16807a",
    "#7a5230",
    "#555555",
    "#b03a76",
    "#5d7a12",
)
_COLUMN, _ROW, _GAP = 50, 26, 6
_TEXT: Final = 11.0
_LETTER: Final = 6.5  # the mean width of a letter
_MOST_LEGENDS: Final = 10
_MOST_ROWS: Final = 9
_TICKS: Final = 4
_UNITS: Final = {"s": (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)), "ops": (("/s", 1.0),)}


class _Box(NamedTuple):
    x: float
    y: float
    w: float
    h: float


def picture(boards: Sequence[Board], begin: float, end: float) -> str:
    """Draw panels.

    Args:
        boards: with what they show.
        begin: of the time, in seconds since 1970.
        end: likewise.
    """
    width = 24 * _COLUMN
    height = max(board.place["y"] + board.place["h"] for board in boards) * _ROW
    style = f'font-family="sans-serif" font-size="{_TEXT:.0f}" fill="#333"'
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>',
        f'<rect width="{width}" height="{height}" fill="#f4f5f5"/>',
    ]
    for board in boards:
        place = board.place
        box = _Box(place["x"] * _COLUMN, place["y"] * _ROW, place["w"] * _COLUMN, place["h"] * _ROW)
        if board.kind == "row":
            drawn.append(_text(box.x + _GAP, box.y + 18, board.title, size=14, bold=True))
            continue
        inner = _Box(box.x + _GAP / 2, box.y + _GAP / 2, box.w - _GAP, box.h - _GAP)
        drawn.append(
            f'<rect x="{inner.x:.0f}" y="{inner.y:.0f}" width="{inner.w:.0f}" height="{inner.h:.0f}" rx="3" '
            'fill="#fff" stroke="#ddd"/>'
        )
        drawn.append(_text(inner.x + 8, inner.y + 16, board.title, bold=True))
        inside = _Box(inner.x + 8, inner.y + 24, inner.w - 16, inner.h - 30)
        if not board.series:
            drawn.append(_text(inner.x + inner.w / 2, inner.y + inner.h / 2, "No data", anchor="middle"))
        elif board.kind == "timeseries":
            drawn += _lines(board, inside, begin, end)
        elif board.kind == "stat":
            value = board.series[0].points[-1][1]
            middle = inside.y + inside.h / 2 + 10
            drawn.append(_text(inside.x + inside.w / 2, middle, told(value, board.unit), size=32, anchor="middle"))
        else:
            drawn += _bars(board, inside) if board.kind == "bargauge" else _table(board, inside)
    return "\n".join([*drawn, "</svg>", ""])


def told(value: float, unit: str, top: float | None = None) -> str:
    """Write a value in its unit; `top` is the greatest value beside it."""
    if unit == "percentunit":
        return f"{100 * value:.0f} %"
    most = abs(value) if top is None else top
    units = _UNITS.get(unit, (("", 1.0),))
    name, factor = next((one for one in units if most < 1000 * one[1]), units[-1])  # three digits are read at once
    return f"{value / factor:.3g}{' ' * (unit == 's')}{name}"


def _lines(board: Board, box: _Box, begin: float, end: float) -> Iterable[str]:
    # Those that show most are named; all are drawn.
    named = sorted(board.series, key=lambda one: -max((value for _, value in one.points), default=0))[:_MOST_LEGENDS]
    legend = list(_legend(named, box, len(board.series) - len(named)))
    rows = 1 + max((row for row, *_ in legend), default=0)
    left, bottom = box.x + 48, box.y + box.h - 18 - 14 * rows
    most = max((value for one in board.series for _, value in one.points), default=0.0)
    top = _round_up(most) if most > 0 else 1.0

    def at(time: float, value: float) -> str:
        x = left + (box.x + box.w - left) * (time - begin) / (end - begin)
        return f"{x:.1f},{bottom - (bottom - box.y - 6) * value / top:.1f}"

    for tick in range(_TICKS + 1):
        value = top * tick / _TICKS
        x, y = at(begin, value).split(",")
        yield f'<path d="M{x} {y}H{box.x + box.w:.0f}" stroke="#eee"/>'
        yield _text(left - 6, float(y) + 4, told(value, board.unit, top), anchor="end")
    for minute in range(0, int((end - begin) / 60) + 1, max(1, round((end - begin) / 60 * 110 / box.w))):
        x = at(begin + 60 * minute, 0).split(",")[0]
        yield _text(float(x), bottom + 14, f"{minute} min", anchor="middle" if minute else "start")
    for number, one in enumerate([*named, *(other for other in board.series if other not in named)]):
        for part in _unbroken(one):
            points = " ".join(at(time, value) for time, value in part)
            yield f'<polyline points="{points}" fill="none" stroke="{_colour(number)}" stroke-width="1.3"/>'
    for row, x, colour, name in legend:
        y = bottom + 28 + 14 * row
        if colour:
            yield f'<path d="M{x:.0f} {y - 4}h12" stroke="{colour}" stroke-width="3"/>'
        yield _text(x + 16 * bool(colour), y, name)


def _unbroken(one: Series) -> Iterable[Sequence[tuple[float, float]]]:
    """Parts between which nothing was seen for more than two steps."""
    part: list[tuple[float, float]] = []
    step = min((b[0] - a[0] for a, b in zip(one.points, one.points[1:], strict=False)), default=0.0)
    for point in one.points:
        if part and point[0] - part[-1][0] > 2 * step:
            yield part
            part = []
        part.append(point)
    if part:
        yield part


def _legend(named: Sequence[Series], box: _Box, others: int) -> Iterable[tuple[int, float, str, str]]:
    x, row = box.x, 0
    entries = [(one.name, _colour(number)) for number, one in enumerate(named)]
    entries += [(f"and {others} more", "")] if others else []
    for name, colour in entries:
        wide = 26 + _LETTER * len(name)
        if x > box.x and x + wide > box.x + box.w:
            x, row = box.x, row + 1
        yield row, x, colour, name
        x += wide


def _bars(board: Board, box: _Box) -> Iterable[str]:
    top = max((one.points[-1][1] for one in board.series), default=0) or 1.0
    high = min(26.0, box.h / len(board.series))
    for number, one in enumerate(sorted(board.series, key=lambda one: one.name)):
        value, y = one.points[-1][1], box.y + high * number
        yield _text(box.x + 90, y + high / 2 + 4, one.name, anchor="end")
        wide = (box.w - 150) * value / top
        yield (
            f'<rect x="{box.x + 96:.0f}" y="{y + 3:.0f}" width="{wide:.1f}" height="{high - 6:.0f}" '
            f'fill="{_colour(number)}"/>'
        )
        yield _text(box.x + 102 + wide, y + high / 2 + 4, told(value, board.unit))


def _table(board: Board, box: _Box) -> Iterable[str]:
    rows = sorted(board.series, key=lambda one: one.name)
    shown = rows if len(rows) <= _MOST_ROWS else rows[: _MOST_ROWS - 1]
    for number, one in enumerate(shown):
        y = box.y + 16 + 18 * number
        yield _text(box.x, y, one.name)
        yield _text(box.x + box.w, y, told(one.points[-1][1], board.unit), anchor="end")
    if len(shown) < len(rows):
        yield _text(box.x, box.y + 16 + 18 * len(shown), f"and {len(rows) - len(shown)} more")


def _round_up(most: float) -> float:
    """The next of 1, 2, 4, 5 and 8 times a power of ten."""
    power = 10 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= most * 0.999)


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _text(x: float, y: float, what: str, *, size: int = 0, anchor: str = "start", bold: bool = False) -> str:
    style = f' font-size="{size}"' * bool(size) + ' font-weight="bold"' * bold
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{style}>{escape(what)}</text>'
