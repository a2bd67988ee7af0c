"""Findings on a node, as tables for people."""

import io
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from allocator.vocabulary.cpuset import format_cpuset
from reporter.cgroup.plan import WantedCpusets
from reporter.round.decide import Decided

_WIDTH = 160


def draw(decided: Decided, wants: Iterable[WantedCpusets], problems: Iterable[str]) -> str:
    """Draw devices, CPUs, Pods and problems."""
    target = io.StringIO()
    console = Console(file=target, width=_WIDTH, highlight=False, markup=False)
    console.print(_devices(decided))
    console.print(_pools(decided))
    console.print(_pods(decided, wants))
    for problem in problems:
        console.print(f"problem: {problem}")
    return target.getvalue()


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns:
        column.overflow = "fold"
    return table


def _devices(decided: Decided) -> Table:
    table = _table("Devices", "type", "minor", "id", "NUMA", "PCIe root", "healthy", "why")
    for entry in decided.device.body["spec"]["devices"]:
        place = entry.get("topology") or {}
        condition = (entry.get("conditions") or [{}])[0]
        table.add_row(
            entry["type"],
            str(entry["minor"]),
            entry["id"],
            str(place.get("nodeID", "?")),
            str(place.get("pcieID", "?")),
            "yes" if entry["health"] else "no",
            f"{condition.get('reason', '')} {condition.get('message', '')}".strip(),
        )
    return table


def _pools(decided: Decided) -> Table:
    table = _table("CPUs", "what", "CPUs")
    pools, kubelet = decided.topology.pools, decided.topology.kubelet
    table.add_row("shared pool", format_cpuset(pools.shared))
    table.add_row("best-effort pool", format_cpuset(pools.best_effort))
    table.add_row("system", format_cpuset(pools.system))
    table.add_row("kubelet's CPU manager", "static" if kubelet.static else "none")
    for uid, containers in sorted(kubelet.given.items()):
        for name, cpus in sorted(containers.items()):
            table.add_row(f"given by the kubelet to {uid} {name}".rstrip(), format_cpuset(cpus))
    return table


def _pods(decided: Decided, wants: Iterable[WantedCpusets]) -> Table:
    table = _table("Pods", "Pod", "class", "CPUs to have", "agrees", "note")
    found = {one.pod.cgroup: one for one in decided.agreements}
    for want in wants:
        compared = found.get(want.pod.uid)
        notes = [want.note, *(mismatch.message for mismatch in (compared.mismatches if compared else ()))]
        table.add_row(
            want.pod.name,
            want.pod.qos or want.pod.qos_class.value,
            format_cpuset(want.cpus) or "as they are",
            "" if compared is None else "no" if compared.mismatches else "yes",
            "; ".join(filter(None, notes)),
        )
    return table
