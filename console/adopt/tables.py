"""What `koordgate adopt` prints: tables of at most 100 columns, and no wider than the terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from console.adopt.findings import NO_WAY, ClusterFindings, NodeFinding
from console.adopt.report import NamespaceReport
from console.adopt.steps import AdoptStep
from console.terminal import counted, printable

_WIDTH: Final = 100
_MAX_REASON: Final = 160  # characters
_MAX_PLACED: Final = 20  # Pods of a namespace whose placement the table names
_REPORTER: Final = {"none": "no reporter", "not ready": "its reporter is not ready", "ready": ""}


def _table(columns: Sequence[tuple[str, int]], rows: Iterable[Sequence[str | Sequence[str]]]) -> Table:
    """A table whose columns have at most these widths, beside the space between; a cell is a line, or several."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for header, width in columns:
        table.add_column(header, overflow="fold", max_width=width)
    for row in rows:
        cells = ([cell] if isinstance(cell, str) else cell for cell in row)
        table.add_row(*(Text("\n".join(map(printable, filter(None, lines))) or "-") for lines in cells))
    return table


def check_tables(found: ClusterFindings, made: Iterable[AdoptStep]) -> Iterator[Table | str]:
    """Node by node what is ready and who holds what, the namespaces, the steps, and what would clash."""
    nodes = (("NODE", 19), ("READY", 23), ("HELD BY", 32), ("STILL OFFERS", 20))
    yield _table(nodes, map(_node, found.nodes))
    yield ""
    spaces = (("NAMESPACE", 29), ("MODE", 9), ("RUN", 6), ("WAIT", 6), ("PRODUCTS", 42))
    yield _table(spaces, (_namespace(found, namespace) for namespace in found.modes))
    yield ""
    steps = ((str(one.number), "done" if one.done else "needed", (one.title, *_needed(one))) for one in made)
    yield _table((("STEP", 5), ("STATE", 7), ("WHAT, AND WHAT IS STILL NEEDED", 84)), steps)
    if found.clashes:
        yield ""
        yield _table((("WHAT CLASHES", _WIDTH),), ([clash] for clash in found.clashes))


def _node(node: NodeFinding) -> Sequence[str | Sequence[str]]:
    number = counted(node.devices, "device")
    listed = [number] if node.listed else ["no Device object", f"{number} assumed" if node.devices else ""]
    way = f"cards by {node.delivery}" if node.delivery else ""
    way = "no way for cards" if node.delivery == NO_WAY else way
    sick = (f"{count} out of service: {why}" for why, count in node.sick.items())
    products = sorted({one.product for one in node.held})
    held = []
    for product in products:
        theirs = [one for one in node.held if one.product == product]
        devices, pods = len({one.device for one in theirs}), len({one.holder for one in theirs})
        held.append(f"{product}: {counted(devices, 'device')}, {counted(pods, 'Pod')}")
    ready = ("yes" if node.ready else "no", *listed, _REPORTER[node.reporter], way, *sick)
    return node.name, ready, held, [f"{name}: {amount}" for name, amount in node.offers.items()]


def _namespace(found: ClusterFindings, namespace: str) -> Sequence[str]:
    pods = [pod for pod in found.pods if pod.namespace == namespace]
    products = sorted(Counter(pod.product for pod in pods).items())
    bound = sum(bool(pod.node) for pod in pods)
    told = ", ".join(f"{name} {count}" for name, count in products)
    return namespace, found.modes[namespace], str(bound), str(len(pods) - bound), told


def _needed(step: AdoptStep) -> list[str]:
    return [*(f"- {one}" for one in step.needed), *([f"$ {step.command}"] if step.command else [])]


def report_table(reports: Iterable[NamespaceReport]) -> Table:
    """What would have become of the Pods of namespaces."""
    columns = (("NAMESPACE", 21), ("PODS", 19), ("CARDS", 10), ("WHY NOT, AND WHERE", 44))
    return _table(columns, map(_report, reports))


def _report(one: NamespaceReport) -> Sequence[str | Sequence[str]]:
    counts = (
        f"{one.pods} in mode {one.mode}",
        f"{one.translated} translated",
        f"{sum(one.refused.values())} refused",
        f"{sum(one.waiting.values())} would wait",
        f"{len(one.placed)} placed",
        f"{one.same_node} on their node",
    )
    why = [f"refused {count}: {_short(reason)}" for reason, count in one.refused.items()]
    why += [f"waits {count}: {_short(reason)}" for reason, count in one.waiting.items()]
    for name, pod in list(one.placed.items())[:_MAX_PLACED]:
        why.append(f"{name}: {pod.node} {' '.join(f'{on.type}:{on.minor}' for on in pod.devices)}")
    if len(one.placed) > _MAX_PLACED:
        why.append(f"and {len(one.placed) - _MAX_PLACED} more; -o json names all")
    return one.namespace, counts, (f"{one.cards_now} now", f"{one.cards_then} then"), why


def _short(reason: str) -> str:
    return reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}..."
