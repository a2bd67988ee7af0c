"""`koordgate top`: every device of a cluster in a line, once or as it changes."""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from allocator.vocabulary.devicetype import DeviceTypes
from console import terminal
from console.devices.cards import are_there, document, summary
from console.devices.nodes import (
    BOUND,
    CommandError,
    Known,
    SeenNodes,
    claims_not_read,
    pods_not_read,
    read_nodes,
)
from console.devices.session import CommandEnd, add_listing, carry_out
from console.devicewords import share_of, told_holder, told_use, used_of, used_of_total
from console.plaintable import add_row, plain_table
from console.reading import add_cluster
from console.terminal import counted, printable
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden
from koordgate.kube.resource import DEVICES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from koordgate.kube.watch import Handler, Reflector, WatchPace
from webhook.ledger.kube import cluster_store
from webhook.ledger.store import Store, Watch
from webhook.view.nodereport import Availability, DeviceReport, NodeReport, told_tails

WIDTH: Final = 100
"""Columns of a line at most."""

_LEAST: Final = 40  # columns; a narrower terminal wraps
_ROOMY: Final = 92  # columns from which on the model has a column
_BAR: Final = 10
_MODEL: Final = 18
_AMOUNT: Final = 13  # 79.6/79.6 GiB, unless one that is shown is longer
_NAME: Final = 8  # of a device, unless one that is shown is longer
_MAX_NAME: Final = 32
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
    name: int = _NAME  # columns of a device's name, by which people cordon it
    amount: int = _AMOUNT  # columns of what is held, and of what total


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

    report: NodeReport
    devices: Sequence[DeviceReport]  # those that are shown


def lines(shown: Iterable[ShownNode], drawn: Look) -> Iterator[Text]:
    """A heading for each node, then a line for each of its devices."""
    shown = list(shown)
    devices = [device for one in shown for device in one.devices]
    name = max((cell_len(printable(one.name)) for one in devices), default=0)
    amount = max((len(_amount(one, _bars(one)[1])) for one in devices), default=0)
    drawn = drawn._replace(name=min(max(_NAME, name), _MAX_NAME), amount=max(_AMOUNT, amount))
    for one in shown:
        yield _heading(one, drawn)
        for device in one.devices:
            yield line(device, drawn)


def _heading(one: ShownNode, drawn: Look) -> Text:
    told = Text(printable(one.report.name), style="bold")
    told.append(f"  {counts(summary(one.report.devices))}", style="not bold dim")
    return _cut(told, drawn)


def line(card: DeviceReport, drawn: Look) -> Text:
    """A device in one line: its name, model, bars, and who holds some of it or why nobody may."""
    model = drawn.width >= _ROOMY
    text = Text(f"  {_column(card.name, drawn.name)} ")
    if model:
        text.append(f"{_column(_model(card), _MODEL)} ")
    first, second = _bars(card)
    text.append_text(_bar(card, first, drawn))
    text.append(f" {_percent(card, first):>4} ")
    text.append_text(_bar(card, second, drawn))
    text.append(f" {_amount(card, second):<{drawn.amount}} ")
    text.append_text(_rest(card, drawn.width - text.cell_len))
    return _cut(text, drawn)


def _bars(card: DeviceReport) -> tuple[str, str]:
    """The two resources that are drawn, the most important first; "" for none."""
    first, second = (*(tail for tail in told_tails(card.kind) if tail in card.total), "", "")[:2]
    return first, second


def _column(text: str, width: int) -> str:
    clean = printable(text)
    return set_cell_size(clean if cell_len(clean) <= width else f"{set_cell_size(clean, width - 1)}…", width)


def _model(card: DeviceReport) -> str:
    model = card.device.model if card.device is not None else ""
    return next((model.removeprefix(vendor) for vendor in _VENDORS if model.startswith(vendor)), model)


def _bar(card: DeviceReport, tail: str, drawn: Look) -> Text:
    total, used = card.total.get(tail, 0), card.used.get(tail, 0)
    if not total:
        return Text(" " * _BAR)
    filled = _BAR if used >= total else min(_BAR - 1, -(-used * _BAR // total))
    text = Text(drawn.full * filled, style=_STYLES[card.state])
    return text.append(drawn.empty * (_BAR - filled), style="dim")


def _percent(card: DeviceReport, tail: str) -> str:
    total, used = card.total.get(tail, 0), card.used.get(tail, 0)
    return f"{min(-(-used * 100 // total), 999)}%" if total else ""


def _amount(card: DeviceReport, tail: str) -> str:
    total, used = card.total.get(tail, 0), card.used.get(tail, 0)
    if not total:
        return ""
    return used_of_total(used, total, "/") if card.kind.in_bytes(tail) else f"{used}/{total}"


def _rest(card: DeviceReport, width: int) -> Text:
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


def counts(found: Mapping[Availability, int]) -> str:
    """Count devices by state, in words."""
    parts = [f"{number} {state}" for state, number in found.items() if number and state is not Availability.GONE]
    lost = found[Availability.GONE]
    gone = f"; {lost} held, not listed by the node" if lost else ""
    devices = are_there(found)
    return f"{counted(devices, 'device')}: {', '.join(parts)}{gone}" if parts else f"no devices{gone}"


def last_line(shown: Sequence[ShownNode], namespace: str) -> str:
    """The summary of all that is shown."""
    devices = [device for one in shown for device in one.devices]
    if namespace and not devices:
        return f"no Pod of namespace {namespace} holds a device"
    nodes = len(shown)
    where = counted(nodes, "node")
    whose = f" that Pods of namespace {namespace} use" if namespace else ""
    return f"{where}{whose}, {counts(summary(devices))}"


def wide_table(shown: Iterable[ShownNode]) -> Table:
    """A line for each device with all that is known of it, as wide as it is."""
    heads = ("NODE", "DEVICE", "ID", "MODEL", "NUMA", "PCIE ROOT", "PCI ADDRESS", "STATE", "USED", "PODS")
    table = plain_table(*heads)
    for card in (card for one in shown for card in one.devices):
        device = card.device
        numa = "" if device is None or device.numa_node is None else str(device.numa_node)
        about = (device.model, numa, device.pcie or "", device.bus) if device is not None else ("", "", "", "")
        state = f"{card.state}: {card.why}" if card.why else str(card.state)
        pods = [
            "; ".join([f"{told_holder(holder)}: {share_of(share, card.kind)}", *map(told_use, card.uses_of(holder))])
            for holder, share in card.held
        ]
        add_row(table, card.node, card.name, card.id, *about, state, used_of(card), pods)
    return table


Choose = Callable[[NodeReport], ShownNode | None]

_EACH_S: Final = 1.0  # between two drawings
_ASKED_S: Final = 0.1  # between two looks at watches that begin
_MAX_PROBLEMS: Final = 3  # lines about what cannot be read


class LiveNodes:
    """The nodes of a cluster, as their objects change.

    `nodes`: names of those that are wanted; empty for all.
    """

    def __init__(
        self, kube: KubeClient, store: Store, nodes: Iterable[str], known: Known, pace: WatchPace | None = None
    ) -> None:
        self._wanted = frozenset(nodes)
        self._seen = seen = SeenNodes(known)

        def watched(resource: Resource, feed: Handler, selectors: Mapping[str, str] | None = None) -> Reflector:
            return Reflector(kube, resource, feed, selectors=selectors, pace=pace or WatchPace())

        self._needed: list[Watch] = [watched(DEVICES, seen.devices), watched(NODES, seen.nodes)]
        self._needed.append(store.watch(seen.records))
        claims = ((RESOURCE_CLAIMS, seen.claims), (RESOURCE_SLICES, seen.slices))
        self._claims = [watched(*one) for one in claims] if known.drivers else []
        self._pods = watched(PODS, seen.pods, BOUND) if known.adoption.peers else None

    async def run(self) -> None:
        """Watch until cancelled."""
        pods = [self._pods] if self._pods is not None else []
        async with asyncio.TaskGroup() as tasks:
            for one in (*self._needed, *self._claims, *pods):
                tasks.create_task(one.run())

    async def synced(self) -> None:
        """Wait until the objects of all nodes have been listed, and Pods where they count, unless the user may not.

        Raises KubeError: the API server refuses, or cannot be reached.
        """
        while not all(one.synced.is_set() for one in self._waited()):
            failed = next((one.last_error for one in self._waited() if one.last_error is not None), None)
            if failed is not None:
                raise failed
            await asyncio.sleep(_ASKED_S)

    def _waited(self) -> list[Watch]:
        """The watches without which nothing is shown, or what is shown is outdated."""
        pods = self._pods
        if pods is None or (isinstance(pods.last_error, Forbidden) and not pods.synced.is_set()):
            return self._needed
        return [*self._needed, pods]

    @property
    def trouble(self) -> str:
        """Why what is shown may be outdated; "" if it is not."""
        failing = next((one for one in self._waited() if one.last_error is not None), None)
        return "" if failing is None else str(failing.last_error)

    def reports(self) -> list[NodeReport]:
        """The nodes as they are now, by name; those that did not change are the same objects as before."""
        refused = next((one.last_error for one in self._claims if isinstance(one.last_error, Forbidden)), None)
        self._seen.no_claims = "" if refused is None else claims_not_read(refused)
        pods = self._pods
        known = pods is None or pods.synced.is_set()
        self._seen.no_pods = "" if known else pods_not_read((pods and pods.last_error) or "Pods are being listed")
        return [one for one in self._seen.reports() if not self._wanted or one.name in self._wanted]

    def problems(self) -> list[str]:
        """What cannot be read, a sentence each."""
        reports = self.reports()
        notes = [*self._seen.known.notes, *self._seen.problems()]
        return [*notes, *(problem for report in reports for problem in report.problems)]


async def watch(
    kube: KubeClient, store: Store, nodes: Sequence[str], known: Known, choose: Choose, namespace: str
) -> None:
    """Draw devices on the terminal as they change, until cancelled.

    `nodes`: names of those that are shown; empty for all. `choose`: says what of a node is shown; None for nothing.
    `namespace`: whose Pods' devices are shown; "" for all. Raises CommandError: a named node has nothing to show, or a
    CRD is missing; KubeError: at the start, the API server refuses or cannot be reached.
    """
    await read_nodes(kube, store, nodes, known)  # an error at the start ends the command
    live = LiveNodes(kube, store, nodes, known)
    watching = asyncio.create_task(live.run())
    try:
        await live.synced()
        console = terminal.screen()
        encoding = sys.stdout.encoding  # rich puts another stream in its place while it draws
        since = ""
        with terminal.undisturbed(), Live(console=console, auto_refresh=False, screen=True) as drawn:
            while True:
                shown = [one for report in live.reports() if (one := choose(report)) is not None]
                trouble = live.trouble
                since = (since or time.strftime("%H:%M:%S")) if trouble else ""
                head = f"not up to date since {since}: {trouble}" if trouble else ""
                rows = page(shown, live.problems(), head, namespace, look(console.width, encoding), console.height)
                drawn.update(Group(*rows), refresh=True)
                await asyncio.sleep(_EACH_S)
    finally:
        watching.cancel()


def page(
    shown: Sequence[ShownNode], problems: Sequence[str], trouble: str, namespace: str, drawn: Look, height: int
) -> list[Text]:
    """What fits the terminal: as many nodes and devices as have room, what cannot be read, and the summary."""

    def cut(text: str, style: str = "") -> Text:
        told = Text(printable(text), style=style, no_wrap=True)
        told.truncate(drawn.width, overflow="ellipsis")
        return told

    notes = [cut(trouble, "red")] if trouble else []
    notes += [cut(problem, "yellow") for problem in problems[:_MAX_PROBLEMS]]
    room = max(1, height - len(notes) - 2)
    total = sum(1 + len(one.devices) for one in shown)
    rows = list(islice(lines(shown, drawn), room))
    if total > room:
        rows[-1] = cut(f"... {total - room + 1} more lines: name nodes, or make the terminal larger", "dim")
    return [*rows, Text(), *notes, cut(last_line(shown, namespace))]


def chosen(report: NodeReport, namespace: str) -> ShownNode | None:
    """What of a node is shown: all of it, or the devices of which Pods of a namespace hold some; None for nothing."""
    shown = [one for one in report.devices if one.is_of(namespace)]
    return ShownNode(report, shown) if shown or not namespace else None


def _show(shown: Sequence[ShownNode], types: DeviceTypes, output: str, namespace: str) -> None:
    if output in {"json", "yaml"}:
        listed = (replace(one.report, devices=tuple(one.devices)) for one in shown)
        terminal.write_data(document(listed, types), output)
    elif output == "wide":
        terminal.show(wide_table(shown), "", last_line(shown, namespace))
    else:
        width = terminal.screen().width if sys.stdout.isatty() else WIDTH
        drawn = look(width, sys.stdout.encoding)
        terminal.show(*lines(shown, drawn), "", last_line(shown, namespace), most=WIDTH)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.watch and arguments.output != "table":
        raise CommandError("--watch draws on a terminal: it cannot be used with --output")
    if arguments.watch and not sys.stdout.isatty():
        raise CommandError("--watch needs a terminal; without it the devices are shown once")


def _run(arguments: argparse.Namespace) -> int:
    async def work(kube: KubeClient, known: Known) -> CommandEnd:
        namespace = arguments.namespace or ""
        store = cluster_store(kube)
        if arguments.watch:
            with suppress(asyncio.CancelledError):  # Ctrl-C is the way in which a user ends it
                await watch(kube, store, arguments.nodes, known, lambda report: chosen(report, namespace), namespace)
            return CommandEnd()
        reports = await read_nodes(kube, store, arguments.nodes, known)
        found = (chosen(report, namespace) for report in reports)
        _show([one for one in found if one is not None], known.types, arguments.output, namespace)
        return CommandEnd([problem for report in reports for problem in report.problems])

    return carry_out(arguments, work, lambda: _check(arguments))


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="the nodes to show (default: all)")
    add_listing(
        parser,
        namespace="only devices of which Pods of this namespace hold some",
        everywhere="devices whoever holds them (default)",
        wide="all that is known of a device, and what each Pod holds of it",
    )
    parser.add_argument(*("-w", "--watch"), action="store_true", help="show them as they change, until Ctrl-C")
    add_cluster(parser)


COMMAND: Final = Command(
    description="Show every device of a cluster in a line: how much of its core and memory is held, and by whom.\n\n"
    "A line has at most 100 columns. The first bar is the compute (of other devices than GPUs: the whole device), the "
    "second the memory. The last line counts devices: free, in parts (some of each resource is free), held (nothing "
    "more can be given), and out of service. Objects that cannot be read are reported on standard error; devices of a "
    "node whose record cannot be read count as held.\n\n"
    "The user needs the rights to get and list nodes, devices.scheduling.koordinator.sh and "
    "nodeallocations.koordgate.io (with --watch also to watch them), and to get the installation's configmap. If it "
    "has adopt.peers, pods are listed or watched too. What ResourceClaims hold is shown to users who may also read "
    "resourceclaims and resourceslices of resource.k8s.io.",
    examples="examples:\n"
    "  koordgate top\n"
    "  koordgate top gpu-node-1 --watch\n"
    "  koordgate top -n team-a -o wide\n"
    "  koordgate top -o json | jq .summary",
    arguments=_arguments,
    run=_run,
)
