"""What `koordgate adopt` prints: tables of at most 100 columns, and the same as data."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from console.adopt.findings import NO_WAY, ClusterFindings, HeldBy, NodeFinding
from console.adopt.report import NamespaceReport
from console.adopt.steps import AdoptStep
from console.terminal import counted, printable

Raw = dict[str, Any]
WIDTH: Final = 100
_LONGEST: Final = 160  # characters of a reason
_MOST_PLACED: Final = 20  # Pods of a namespace whose placement the table names


def _table(*columns: tuple[str, int]) -> Table:
    """A table whose columns have these widths, beside the space between them; longer text goes on in the next line."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False, width=WIDTH)
    for header, width in columns:
        table.add_column(header, overflow="fold", width=width)
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(Text(printable_lines(cell) or "-") for cell in cells))


def printable_lines(text: str) -> str:
    """Replace characters that a terminal must not interpret, but for ends of lines."""
    return "\n".join(map(printable, text.split("\n")))


def nodes_table(found: ClusterFindings) -> Table:
    """Node by node: what is ready, and who holds what."""
    table = _table(("NODE", 19), ("READY", 23), ("HELD BY", 32), ("STILL OFFERS", 20))
    for node in found.nodes:
        _row(table, node.name, _readiness(node), _holders(node.held), "\n".join(_offers(node)))
    return table


def _readiness(node: NodeFinding) -> str:
    reporter = {None: "no reporter", False: "its reporter is not ready", True: ""}[node.reporter]
    devices = counted(node.devices, "device")
    listed = devices if node.listed else "no Device object" + f"\n{devices} assumed" * bool(node.devices)
    sick = [f"{count} out of service: {why}" for why, count in node.sick.items()]
    way = f"cards by {node.delivery}" if node.delivery else ""
    way = "no way for cards" if node.delivery == NO_WAY else way
    return "\n".join(filter(None, ("yes" if node.ready else "no", listed, reporter, way, *sick)))


def _offers(node: NodeFinding) -> list[str]:
    return [f"{name}: {amount}" for name, amount in node.offers.items()]


def _holders(held: Iterable[HeldBy]) -> str:
    """How many devices Pods of each product hold some of."""
    devices: dict[str, set[str]] = {}
    pods: dict[str, set[str]] = {}
    for one in held:
        devices.setdefault(one.product, set()).add(one.device)
        pods.setdefault(one.product, set()).add(one.holder)
    return "\n".join(
        f"{name}: {counted(len(devices[name]), 'device')}, {counted(len(pods[name]), 'Pod')}"
        for name in sorted(devices)
    )


def namespaces_table(found: ClusterFindings) -> Table:
    """The namespaces with Pods that ask for devices."""
    table = _table(("NAMESPACE", 29), ("MODE", 9), ("RUN", 6), ("WAIT", 6), ("PRODUCTS", 42))
    for namespace, mode in found.modes.items():
        pods = [pod for pod in found.pods if pod.namespace == namespace]
        products = Counter(pod.product for pod in pods)
        bound = sum(bool(pod.node) for pod in pods)
        told = ", ".join(f"{name} {count}" for name, count in sorted(products.items()))
        _row(table, namespace, mode, str(bound), str(len(pods) - bound), told)
    return table


def steps_table(made: Iterable[AdoptStep]) -> Table:
    """The seven steps."""
    table = _table(("STEP", 5), ("STATE", 7), ("WHAT, AND WHAT IS STILL NEEDED", 84))
    for step in made:
        lines = [step.title, *(f"- {one}" for one in step.needed), *([f"$ {step.command}"] if step.command else [])]
        _row(table, str(step.number), "done" if step.done else "needed", "\n".join(lines))
    return table


def clashes_table(found: ClusterFindings) -> Table:
    """What would clash, a row each."""
    table = _table(("WHAT CLASHES", WIDTH))
    for clash in found.clashes:
        _row(table, clash)
    return table


def report_table(reports: Iterable[NamespaceReport]) -> Table:
    """What would have become of the Pods of namespaces."""
    table = _table(("NAMESPACE", 21), ("PODS", 19), ("CARDS", 10), ("WHY NOT, AND WHERE", 44))
    for one in reports:
        placed = list(one.placed.items())
        counts = [
            f"{one.pods} in mode {one.mode}",
            f"{one.translated} translated",
            f"{sum(one.refused.values())} refused",
            f"{sum(one.waiting.values())} would wait",
            f"{len(placed)} placed",
            f"{one.same_node} on their node",
        ]
        why = [f"refused {count}: {_short(reason)}" for reason, count in one.refused.items()]
        why += [f"waits {count}: {_short(reason)}" for reason, count in one.waiting.items()]
        why += [
            f"{name}: {node} {' '.join(f'{on.type}:{on.minor}' for on in devices)}"
            for name, (node, devices) in placed[:_MOST_PLACED]
        ]
        if len(placed) > _MOST_PLACED:
            why.append(f"and {len(placed) - _MOST_PLACED} more; -o json names all")
        _row(table, one.namespace, "\n".join(counts), f"{one.cards_now} now\n{one.cards_then} then", "\n".join(why))
    return table


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."


def report_data(reports: Iterable[NamespaceReport]) -> list[Raw]:
    """The same as data."""
    return [
        {
            "namespace": one.namespace,
            "mode": str(one.mode),
            "pods": one.pods,
            "translated": one.translated,
            "refused": dict(one.refused),
            "waiting": dict(one.waiting),
            "placed": {
                name: {"node": node, "devices": [on._asdict() for on in devices]}
                for name, (node, devices) in one.placed.items()
            },
            "sameNode": one.same_node,
            "cardsNow": one.cards_now,
            "cardsThen": one.cards_then,
        }
        for one in reports
    ]


def check_data(found: ClusterFindings, made: Iterable[AdoptStep]) -> Raw:
    """All that was found, as data."""
    return {
        "nodes": [_node_data(node) for node in found.nodes],
        "namespaces": {namespace: str(mode) for namespace, mode in found.modes.items()},
        "pods": [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "node": pod.node,
                "product": pod.product,
                "readHere": pod.read,
            }
            for pod in found.pods
        ],
        "clashes": found.clashes,
        "steps": [
            {
                "number": step.number,
                "title": step.title,
                "done": step.done,
                "needed": list(step.needed),
                "command": step.command,
            }
            for step in made
        ],
        "notes": list(found.notes),
        "policies": list(found.policies),
    }


def _node_data(node: NodeFinding) -> Raw:
    reporter: Mapping[bool | None, str] = {None: "none", False: "not ready", True: "ready"}
    return {
        "node": node.name,
        "ready": node.ready,
        "deviceObject": node.listed,
        "reporter": reporter[node.reporter],
        "devices": node.devices,
        "outOfService": dict(node.sick),
        "held": [one._asdict() for one in node.held],
        "clashes": list(node.clashes),
        "problems": list(node.problems),
        "offers": dict(node.offers),
        "delivery": node.delivery,
    }
