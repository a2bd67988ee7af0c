"""The output: a table of Pods, tables of each node's devices and CPUs, and the Pods as objects."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import yaml
from rich.table import Table
from rich.text import Text

from allocator.adopted import in_doubt
from allocator.devices.words import how_many
from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.cpunode import PoolCpus
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.names import model_name
from console import devicewords
from console.plaintable import plain_table
from console.simulator import words
from console.simulator.account import Account
from console.simulator.assumed import ASSUMED
from console.simulator.cluster import PodFate, Result
from console.terminal import WIDE, columns, counted, fits, show
from webhook.view.nodereport import CpuReport, DeviceReport, Holder, NodeReport

Raw = dict[str, Any]
_REASONS: Final = {
    PodFate.DENIED: "Denied",
    PodFate.NOT_CREATED: "NotCreated",
    PodFate.UNSCHEDULABLE: "Unschedulable",
    PodFate.BIND_REFUSED: "BindRefused",
}
_STYLES: Final = {
    PodFate.BOUND: "green",
    PodFate.STANDING: "cyan",
    PodFate.DENIED: "red",
    PodFate.NOT_CREATED: "yellow",
    PodFate.UNSCHEDULABLE: "yellow",
    PodFate.BIND_REFUSED: "red",
}
_COUNTED: Final = {PodFate.STANDING: "there already", PodFate.UNSCHEDULABLE: "without a node"}
_ABSENT: Final = frozenset({PodFate.DENIED, PodFate.NOT_CREATED})  # such a Pod is not in the cluster
_SETTLED: Final = frozenset({PodFate.BOUND, PodFate.STANDING})
MAX_LISTED: Final = 500
"""Pods that are listed one by one, unless all are wanted."""

_NOTHING: Final = "no devices, no CPUs of its own"
_SHARED: Final = "shared pool: class LS, and all others without CPUs of their own"
_BEST_EFFORT: Final = "best-effort pool: class BE, and BestEffort"


def show_groups(results: Sequence[Result], most: int = WIDE) -> None:
    """Print a table of many Pods, in so many columns at most: those of one owner that fare alike are one line."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        pod = result.given or result.pod
        owner = next((one for one in pod["metadata"].get("ownerReferences") or () if one.get("controller")), None)
        who = words.name_of(pod)
        if owner is not None:
            who = f"{pod['metadata'].get('namespace') or 'default'}/{owner['name']} ({owner['kind']})"
        why = next(iter(result.reasons), "").partition(": ")[2] if result.reasons else ""
        groups.setdefault((who, _state(result), why), []).append(result)
    table = plain_table("OF", "PODS", "STATE", "NODES", "WHY NOT")
    lines = list(groups.items())
    if len(lines) > MAX_LISTED:  # those that have no node are what is looked for
        lines.sort(key=lambda line: line[1][0].state in _SETTLED)
    for (who, state, why), of in lines[:MAX_LISTED]:
        nodes = {node_of(one) for one in of} - {""}
        style = _STYLES.get(of[0].state, "")
        table.add_row(*map(Text, (who, str(len(of)))), _cell([state], style), Text(str(len(nodes))), Text(why or "-"))
    rest = [f"... and {counted(len(groups) - MAX_LISTED, 'more line')}"] if len(groups) > MAX_LISTED else []
    show(table, *rest, "", "--all lists each Pod and each node; --node NAME shows one node.", "", most=most)


def show_pods(results: Sequence[Result], account: Account, most: int = WIDE) -> None:
    """Print the table of Pods; where it has more columns than a terminal, or than `most`, a few lines for each Pod."""
    table = pods_table(results, account)
    if not fits(table, columns(most)):
        show(*(part for result in results for part in (*block(result, account), "")), most=most)
        return
    show(table, "", most=most)


def _cell(lines: Iterable[str], style: str = "") -> Text:
    return Text("\n".join(lines), style)


def pods_table(results: Sequence[Result], account: Account) -> Table:
    """Make the table of Pods, in the given order."""
    table = plain_table("POD", "ASKED", "STATE", "NODE", "WHAT IT GOT, OR WHY NOT")
    for result in results:
        given = result.given or result.pod
        table.add_row(
            _cell([words.name_of(given)]),
            _cell(words.asked(given, account.types, result.added) or [_NOTHING]),
            _cell([_state(result)], _STYLES.get(result.state, "")),
            _cell([node_of(result) or "-"]),
            _cell(outcome(result, account) or ["-"]),
        )
    return table


def block(result: Result, account: Account) -> tuple[Text | Table, ...]:
    """Describe one Pod in a few lines: its request, the translation, and the outcome."""
    given = result.given or result.pod
    node = node_of(result)
    where = f" {'to' if result.state is PodFate.BOUND else 'on'} {node}" if node else ""
    heading = Text.assemble(
        (f"{words.name_of(given)}  ", "bold"), (f"{_state(result)}{where}", _STYLES.get(result.state, ""))
    )
    asked = words.asked(given, account.types, result.added) or (_NOTHING,)
    became = () if result.state in _ABSENT else words.admitted(result.pod, account.types)
    rows = [("  asked   ", line) for line in asked]
    rows += [("  became  ", line) for line in became if line not in asked]
    got = [("     ", line) for line in outcome(result, account)]
    return (heading, indented(rows), *([indented(got)] if got else ()))


def indented(rows: Iterable[tuple[str, str]]) -> Table:
    """Lines with something before each; where one is wrapped, its rest is aligned with its beginning."""
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for before, line in rows:
        grid.add_row(before, Text(line))
    return grid


def node_of(result: Result) -> str:
    """The node that a Pod is bound to; "" for none."""
    return "" if result.state in _ABSENT else result.pod["spec"].get("nodeName") or ""


def _state(result: Result) -> str:
    phase = (result.pod.get("status") or {}).get("phase")
    finished = result.state is PodFate.STANDING and phase in {"Succeeded", "Failed"}
    return f"{result.state} ({phase})" if finished else str(result.state)


def outcome(result: Result, account: Account) -> list[str]:
    """What a Pod got, or why it got nothing, as lines; none for one that asked for nothing."""
    holding = None if result.state in _ABSENT else account.holding(result.pod)
    held = devicewords.held(holding, account.types) if holding is not None else []
    adopted = account.adopted(result.pod)
    held += devicewords.adopted(adopted, account.types) if adopted is not None else []
    held += [*devicewords.quotas(result.pod, account.types), *devicewords.limits(result.pod)] if held else []
    trouble = words.trouble(result.pod, account) if result.state is PodFate.STANDING else ""
    warnings = [f"warning: {warning}" for warning in result.warnings]
    return [*held, *([trouble] if trouble else ()), *result.reasons, *warnings]


def show_nodes(account: Account, only: str | None = None, most: int = WIDE) -> None:
    """Print for each node, or for one, who holds which of its devices and CPUs, in at most this width."""
    show(*node_parts(account, only, columns(most)), most=most)


def node_parts(account: Account, only: str | None = None, width: int = WIDE) -> list[Table | Text | str]:
    """Make for each node, or for one, a heading, a table of its devices, and one of its CPUs."""
    parts: list[Table | Text | str] = []
    for node in account.nodes if only is None else [only]:
        report = account.report(node)
        if not report.devices and report.cpus is None:
            continue
        table = devices_table(report.devices)
        brief = not fits(table, width)
        parts.append(Text(f"{node}: {has(report, models=brief)}{_assumed(account, node)}", "bold"))
        if report.devices:
            parts.append(devices_table(report.devices, brief=True) if brief else table)
        if report.cpus is not None:
            parts.append(cpus_table(report.cpus))
        parts.append("")
    return parts


def _assumed(account: Account, node: str) -> str:
    source = account.assumed(node)
    return f" (assumed from {source})" if source else ""


def has(node: NodeReport, *, models: bool = False) -> str:
    """Summarize in one line what a node has, with the devices' models or without."""
    numbers = Counter(one.kind for one in node.devices)
    texts = [how_many(count, kind) + _models(node.devices, kind) * models for kind, count in numbers.items()]
    topology = node.cpus.topology if node.cpus else None
    if topology is not None:
        sockets, nodes = counted(len(topology.sockets), "socket"), counted(len(topology.nodes), "NUMA node")
        threads = counted(topology.threads_per_core, "thread")
        texts.append(f"{counted(len(topology.cpus), 'CPU')} ({sockets}, {nodes}, {threads} a core)")
    return ", ".join(texts) or "CPUs that it does not report"


def _models(devices: Iterable[DeviceReport], kind: DeviceType) -> str:
    found = dict.fromkeys(_model(one) for one in devices if one.kind is kind)
    found.pop("", None)
    return f" ({', '.join(found)})" if found else ""


def _model(one: DeviceReport) -> str:
    return model_name(one.device.model) if one.device else ""


def devices_table(devices: Iterable[DeviceReport], *, brief: bool = False) -> Table:
    """Make the table of a node's devices; a brief one leaves out ids and models."""
    named = () if brief else ("ID", "MODEL")
    table = plain_table("DEVICE", *named, "NUMA", "USED", "WHO, OR WHY NOT", whole=True)
    for one in devices:
        numa = "-" if one.device is None or one.device.numa_node is None else str(one.device.numa_node)
        who = () if brief else (devicewords.shown_id(one.id, one.kind), _model(one) or "-")
        texts = (f"{one.kind.name} {one.minor}", *who, numa, devicewords.used_of(one))
        table.add_row(*map(Text, texts), _cell([*_holders(one)] or ["-"]))
    return table


def _holders(one: DeviceReport) -> Iterator[str]:
    if one.why:
        yield f"takes no new Pods: {one.why}"
    for holder, share in one.counted:
        doubt = " (in doubt)" if isinstance(holder, ForeignHolding) and in_doubt(holder) else ""
        yield f"{_name(holder)}: {devicewords.part_of(share, one.kind)}{doubt}"


def _name(holder: Holder) -> str:
    return devicewords.short_name(holder.holder)


def cpus_table(cpus: CpuReport) -> Table:
    """Make the table of a node's CPUs: for each NUMA node who has which, and what is left for all others."""
    table = plain_table("NUMA", "CPUS", "WHO")
    before = ""
    for row in cpu_rows(cpus):
        table.add_row(*map(Text, ("" if row.numa == before else row.numa, row.cpus, row.who)))
        before = row.numa
    return table


class CpuRow(NamedTuple):
    """Some CPUs of a NUMA node.

    Attributes:
        numa: the NUMA node; "-" if it is unknown.
        cpus: in list format; "" if the row is about some of the CPUs of the row before.
        who: who has them, in words.
        pod: the Pod (namespace/name) that has them; "" for pools and reserved CPUs.
    """

    numa: str
    cpus: str
    who: str
    pod: str = ""


def cpu_rows(cpus: CpuReport) -> Iterator[CpuRow]:
    """Make the rows of each NUMA node."""
    if cpus.topology is None:
        for pod, share in cpus.held:
            yield CpuRow("-", format_cpuset(share.cpus), f"{_name(pod)}: {devicewords.cpus_of(share)}", pod.holder)
        return
    for numa, inside in cpus.topology.nodes.items():
        at = str(numa)
        yield from _own_rows(cpus, at, inside)
        if cpus.reserved & inside:
            yield CpuRow(at, format_cpuset(cpus.reserved & inside), "reserved: given to no Pod")
        yield CpuRow(at, _pool(cpus.pools.shared if cpus.pools else (), numa), _SHARED)
        for pod, share in cpus.held:
            for one in share.numa:
                if one.node == numa and not share.cpus:
                    text = f"   in it {_name(pod)} ({share.qos}): {devicewords.numa_of(one)}"
                    yield CpuRow(at, "", text, pod.holder)
        yield CpuRow(at, _pool(cpus.pools.best_effort if cpus.pools else (), numa), _BEST_EFFORT)


def _own_rows(cpus: CpuReport, at: str, inside: int) -> Iterator[CpuRow]:
    """The rows of Pods that have CPUs of their own in a NUMA node."""
    for pod, share in cpus.held:
        if share.cpus & inside:
            yield CpuRow(at, format_cpuset(share.cpus & inside), f"{_name(pod)} ({share.qos})", pod.holder)
    for alloc in cpus.kubelet:
        if alloc.cpus & inside:
            name = f"{alloc.namespace}/{alloc.name}"
            text = f"{devicewords.short_name(name)} (by the kubelet's static policy)"
            yield CpuRow(at, format_cpuset(alloc.cpus & inside), text, name)


def _pool(pools: Iterable[PoolCpus], numa: int) -> str:
    cpus = 0
    for pool in pools:
        if pool.node == numa:
            cpus |= pool.cpus
    return format_cpuset(cpus) or "none"


def summary(results: Sequence[Result], account: Account, only: str | None = None) -> str:
    """Count Pods, and the devices and CPUs of all nodes or of one, in one line."""
    return f"{counted(len(results), 'Pod')}: {fates(results)}; {in_use(account, only)}"


def fates(results: Iterable[Result]) -> str:
    """Count what became of the Pods, in one line."""
    counted = Counter(result.state for result in results)
    return ", ".join(f"{counted[state]} {_COUNTED.get(state, state)}" for state in PodFate if counted[state]) or "none"


def in_use(account: Account, only: str | None = None) -> str:
    """Count the devices of each type that are in use, and the CPUs that belong to one Pod alone."""
    reports = account.reports() if only is None else [account.report(only)]
    devices = [one for report in reports for one in report.devices]
    has, used = Counter(one.kind for one in devices), Counter(one.kind for one in devices if one.in_use)
    texts = [f"{used[kind]} of {how_many(has[kind], kind)}" for kind in account.types.types if has[kind]]
    cpus = [(one.cpus, one.cpus.topology) for one in reports if one.cpus is not None]
    known = [(of, len(topology.cpus)) for of, topology in cpus if topology is not None]
    if known:
        every = sum(count for _, count in known)
        texts.append(f"{sum(of.given.bit_count() for of, _ in known)} of {counted(every, 'CPU')}")
    return f"{', '.join(texts)} in use" if texts else "no devices"


def as_list(results: Sequence[Result], account: Account) -> dict[str, Any]:
    """Make a v1 List of the Pods as they are in the cluster; the status of a refused one says why.

    A Pod that holds devices which are assumed has the annotation that says so.
    """
    items: list[Mapping[str, Any]] = []
    for result in results:
        reason = _REASONS.get(result.state)
        if reason is None:
            items.append(_marked(result.pod, account))
        else:
            status = {"phase": "Pending", "reason": reason, "message": result.message}
            items.append({**result.pod, "status": status})
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _marked(pod: Raw, account: Account) -> Raw:
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    if ASSUMED in annotations or not account.assumed(pod["spec"].get("nodeName") or ""):
        return pod
    holding = account.holding(pod)
    if holding is None or not holding.shares:
        return pod
    marked = {**annotations, ASSUMED: str(len(holding.shares))}
    return {**pod, "metadata": {**metadata, "annotations": marked}}


class _Plain(yaml.SafeDumper):
    """Writes no anchors, so that every object is complete."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 the base's
        """Write shared values in full each time."""
        return True


def write_yaml(results: Sequence[Result], account: Account) -> None:
    """Print the List as YAML."""
    yaml.dump(as_list(results, account), sys.stdout, _Plain, sort_keys=False, width=WIDE, allow_unicode=True)
