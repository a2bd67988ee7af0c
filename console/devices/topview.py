"""Devices as lines with bars, no wider than a terminal (pure)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from allocator.vocabulary.names import GPU_MEMORY
from console.devices.amounts import held_of
from console.devices.cards import Availability, Card, Summary, summary
from console.devices.nodestate import NodeState
from console.devices.others import told_holder
from console.devices.tables import add_row, new_table, told_use
from console.terminal import printable

WIDTH: Final = 100
"""Columns of a line at most."""

_LEAST: Final = 40  # columns; a narrower terminal wraps
_ROOMY: Final = 92  # columns from which on the model has a column
_BAR: Final = 10
_MODEL: Final = 18
_AMOUNT: Final = 13  # 143.7/143.7Gi
_VENDORS: Final = ("NVIDIA-", "NVIDIA ")
_STYLES: Final = {
    Availability.FREE: "green",
    Availability.PARTS: "yellow",
    Availability.HELD: "",
    Availability.OUT: "red",
    Availability.GONE: "red",
}
_BAD: Final = (Availability.OUT, Availability.GONE)


class Look(NamedTuple):
    """How a line is drawn."""

    width: int = WIDTH
    full: str = "█"  # the character of what is held
    empty: str = "░"  # that of what is not


def look(width: int, encoding: str) -> Look:
    """How lines are drawn for a terminal of this width; in ASCII where its encoding has no blocks."""
    wide = max(_LEAST, min(width, WIDTH))
    try:
        "█░…".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return Look(wide, "#", ".")
    return Look(wide)


class ShownNode(NamedTuple):
    """What of a node is shown."""

    state: NodeState
    cards: Sequence[Card]  # its devices that are shown
    all: Sequence[Card]  # all its devices


def lines(shown: Iterable[ShownNode], drawn: Look) -> Iterator[Text]:
    """A heading for each node, then a line for each of its devices."""
    for one in shown:
        yield _heading(one, drawn)
        for card in one.cards:
            yield line(card, drawn)


def _heading(one: ShownNode, drawn: Look) -> Text:
    told = Text(printable(one.state.node), style="bold")
    told.append(f"  {counts(summary(one.all))}", style="not bold dim")
    return _cut(told, drawn)


def line(card: Card, drawn: Look) -> Text:
    """A device in one line: its name, model, bars, and who holds some of it or why nobody may."""
    model = drawn.width >= _ROOMY
    text = Text(f"  {_column(card.name, 8)} ")
    if model:
        text.append(f"{_column(_model(card), _MODEL)} ")
    first, second = (*card.bars, "", "")[:2]
    text.append_text(_bar(card, first, drawn))
    text.append(f" {_percent(card, first):>4} ")
    text.append_text(_bar(card, second, drawn))
    text.append(f" {_amount(card, second):<{_AMOUNT}} ")
    text.append_text(_rest(card, drawn.width - text.cell_len))
    return _cut(text, drawn)


def _column(text: str, width: int) -> str:
    clean = printable(text)
    return set_cell_size(clean if cell_len(clean) <= width else f"{set_cell_size(clean, width - 1)}…", width)


def _model(card: Card) -> str:
    model = card.device.model if card.device is not None else ""
    return next((model.removeprefix(vendor) for vendor in _VENDORS if model.startswith(vendor)), model)


def _bar(card: Card, tail: str, drawn: Look) -> Text:
    total, used = card.total.get(tail, 0), card.used.get(tail, 0)
    if not total:
        return Text(" " * _BAR)
    filled = _BAR if used >= total else min(_BAR - 1, -(-used * _BAR // total))
    text = Text(drawn.full * filled, style=_STYLES[card.state])
    return text.append(drawn.empty * (_BAR - filled), style="dim")


def _percent(card: Card, tail: str) -> str:
    total, used = card.total.get(tail, 0), card.used.get(tail, 0)
    return f"{min(-(-used * 100 // total), 999)}%" if total else ""


def _amount(card: Card, tail: str) -> str:
    total, used = card.total.get(tail, 0), card.used.get(tail, 0)
    if not total:
        return ""
    return "{}/{}Gi".format(*held_of(used, total)) if tail == GPU_MEMORY else f"{used}/{total}"


def _rest(card: Card, width: int) -> Text:
    """Why nothing lands on a device, then who holds some of it: as many as have room."""
    holders = [printable(told_holder(holding)) for holding, _ in card.held]
    text = Text()
    if card.why:
        why = "not listed" if card.state is Availability.GONE else card.why
        text.append(printable(why), style="red" if card.state in _BAD else "")
        if holders:
            text.append("; ")
    for at, holder in enumerate(holders):
        left = len(holders) - at
        more = f" +{left - 1}" if left > 1 else ""
        sep = ", " if at else ""
        if at and text.cell_len + cell_len(sep + holder + more) > width:
            return text.append(f" +{left}")
        room = width - text.cell_len - len(more)
        text.append(sep + (holder if cell_len(holder) <= room or at else _column(holder, max(room, 1)).rstrip()))
    return text


def _cut(text: Text, drawn: Look) -> Text:
    text.truncate(drawn.width, overflow="ellipsis")
    return text


def counts(found: Summary) -> str:
    """Count devices by state, in words."""
    parts = [
        f"{count} {word}"
        for count, word in (
            (found.free, "free"),
            (found.parts, "in parts"),
            (found.held, "held"),
            (found.out, "out of service"),
        )
        if count
    ]
    gone = f"; {found.gone} held, not listed by the node" if found.gone else ""
    noun = "device" if found.devices == 1 else "devices"
    return f"{found.devices} {noun}: {', '.join(parts)}{gone}" if parts else f"no devices{gone}"


def last_line(shown: Sequence[ShownNode], namespace: str) -> str:
    """The summary of all that is shown."""
    cards = [card for one in shown for card in one.cards]
    if namespace and not cards:
        return f"no Pod of namespace {namespace} holds a device"
    nodes = len(shown)
    where = f"{nodes} node{'s' if nodes != 1 else ''}"
    whose = f" that Pods of namespace {namespace} use" if namespace else ""
    return f"{where}{whose}, {counts(summary(cards))}"


def wide_table(shown: Iterable[ShownNode]) -> Table:
    """A line for each device with all that is known of it, as wide as it is."""
    table = new_table("NODE", "DEVICE", "ID", "MODEL", "NUMA", "PCI ADDRESS", "STATE", "CORE", "MEMORY", "PODS")
    for one in shown:
        for card in one.cards:
            device = card.device
            numa = "" if device is None or device.numa_node is None else str(device.numa_node)
            about = (device.model, numa, device.bus) if device is not None else ("", "", "")
            first, second = (*card.bars, "", "")[:2]
            state = f"{card.state}: {card.why}" if card.why else str(card.state)
            pods = ["; ".join([told_holder(one), *map(told_use, card.uses_of(one))]) for one, _ in card.held]
            amounts = (_percent(card, first), _amount(card, second))
            add_row(
                table, card.node, card.name, card.id, *about, state, *amounts, pods if card.uses else ", ".join(pods)
            )
    return table
