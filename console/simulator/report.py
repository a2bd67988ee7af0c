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
from console.simulator.account import Account
from console.simulator.assumed import ASSUMED
from console.simulator.cluster import PodFate, Result
from console.simulator.podgroups import PodGroup, node_of
from console.terminal import WIDE, columns, counted, fits, show, some
from webhook.view.nodereport import Availability, CpuReport, DeviceReport, Holder, NodeReport

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
_SETTLED: Final = frozenset({PodFate.BOUND, PodFate.STANDING})
MAX_LISTED: Final = 500
"""Lines of the table of Pods."""

_MAX_NODES: Final = 4  # that are shown device by device; more by classes
_SHARED: Final = "shared pool: class LS, and all others without CPUs of their own"
_BEST_EFFORT: Final = "best-effort pool: class BE, and BestEffort"


def show_pods(groups: Sequence[PodGroup], most: int = WIDE) -> None:
    """Print the table of Pods; where it has more columns than a terminal, or than `most`, a few lines for each group.

    Of very many groups those whose Pods have no node come first, and the others are counted.
    """
    shown = list(groups)
    if len(shown) > MAX_LISTED:
        shown.sort(key=lambda one: one.results[0].state in _SETTLED)
    rest = [f"... and {counted(len(shown) - MAX_LISTED, 'more line')} (-o json has all)", ""]
    rest = rest if len(shown) > MAX_LISTED else []
    shown = shown[:MAX_LISTED]
    table = pods_table(shown)
    if fits(table, columns(most)):
        show(table, "", *rest, most=most)
    else:
        show(*(part for group in shown for part in (*block(group), "")), *rest, most=most)


def _cell(lines: Iterable[str], style: str = "") -> Text:
    return Text("\n".join(lines), style)


def pods_table(groups: Iterable[PodGroup]) -> Table:
    """Make the table of Pods, in the given order."""
    table = plain_table("POD", "ASKED", "STATE", "NODE", "WHAT IT GOT, OR WHY NOT")
    for one in groups:
        table.add_row(
            _cell(filter(None, (one.name, one.many))),
            _cell(one.asked),
            _cell([one.state], _STYLES.get(one.results[0].state, "")),
            _cell(one.nodes or ["-"]),
            _cell(one.told or ["-"]),
        )
    return table


def block(group: PodGroup) -> tuple[Text | Table, ...]:
    """Describe Pods in a few lines: their request, the translation, and the outcome."""
    nodes = ", ".join(group.nodes)
    state = group.results[0].state
    where = f" {'to' if state is PodFate.BOUND else 'on'} {nodes}" if nodes else ""
    heading = Text.assemble(
        (f"{', '.join(filter(None, (group.name, group.many)))}  ", "bold"),
        (f"{group.state}{where}", _STYLES.get(state, "")),
    )
    got = [("     ", line) for line in group.told]
    rows = [("  asked   ", line) for line in group.asked] + [("  became  ", line) for line in group.became]
    return (heading, indented(rows), *([indented(got)] if got else ()))


def indented(rows: Iterable[tuple[str, str]]) -> Table:
    """Lines with something before each; where one is wrapped, its rest is aligned with its beginning."""
    grid = Table.grid()
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for before, line in rows:
        grid.add_row(before, Text(line))
    return grid


def show_nodes(
    account: Account, results: Sequence[Result], only: str | None = None, *, rest: bool = False, most: int = WIDE
) -> None:
    """Print who holds which devices and CPUs of nodes, in at most this width.

    Of all nodes those are shown to which Pods were bound, or of which it is not certain who holds what; many of them by
    classes of equal ones. The others are counted, or with `rest` shown by classes too. `only`: this node alone.
    """
    if only is not None:
        show(*node_parts([account.report(only)], account, columns(most)), most=most)
        return
    bound = {node_of(one) for one in results if one.state is PodFate.BOUND and _holds(account, one.pod)}
    reports = [one for one in account.reports() if one.devices or one.cpus is not None]
    telling = [one for one in reports if one.name in bound or _says_something(one)]
    parts = node_parts(telling, account, columns(most))
    show(*(parts if len(telling) <= _MAX_NODES else (classes_table(telling), "")), most=most)
    others = [one for one in reports if one not in telling]
    if others and rest:
        show(classes_table(others), "", most=most)
    elif telling and others:
        told = ", ".join(filter(None, (_in_use(others, account), _out(others))))
        show(f"{counted(len(others), 'node')} without new Pods: {told} (--all-nodes shows them)", most=most)
    elif others:
        show("No node has new Pods with devices (--all-nodes shows the nodes).", most=most)


def _says_something(node: NodeReport) -> bool:
    """Whether it is not certain who holds what of a node."""
    gone = any(one.state is Availability.GONE for one in node.devices)
    doubtful = any(isinstance(one, ForeignHolding) and in_doubt(one) for one in node.holders)
    return bool(gone or doubtful or node.blocked or node.problems)


def _holds(account: Account, pod: Raw) -> bool:
    holding = account.holding(pod)
    return holding is not None and bool(holding.shares or holding.cpus)


def classes_table(reports: Iterable[NodeReport]) -> Table:
    """Make a table with a line for each class of nodes that have the same, of which as much is in use."""
    classes: dict[tuple[object, ...], list[NodeReport]] = {}
    for one in reports:
        uses = Counter((used.kind.name, devicewords.used_of(used), used.why) for used in one.devices)
        given = one.cpus.given.bit_count() if one.cpus is not None else 0
        classes.setdefault((has(one, models=True), frozenset(uses.items()), given), []).append(one)
    table = plain_table("NODES", "EACH HAS", "IN USE", "WHICH")
    for (each, *_), alike in classes.items():
        one = alike[0]
        every, used = (Counter(of.kind.name for of in one.devices if of.in_use or not busy) for busy in (False, True))
        texts = [f"{name} {used[name]}/{count}" for name, count in every.items()]
        given, cpus = _cpus([one])
        texts += [f"CPUs {given}/{cpus}"] if cpus else []
        texts += filter(None, [_out([one])])
        names = some([one.name for one in alike], _MAX_NODES)
        table.add_row(*map(Text, (str(len(alike)), str(each), ", ".join(texts) or "-", names)))
    return table


def node_parts(reports: Iterable[NodeReport], account: Account, width: int = WIDE) -> list[Table | Text | str]:
    """Make for each node a heading, a table of its devices, and one of its CPUs."""
    parts: list[Table | Text | str] = []
    for report in reports:
        if not report.devices and report.cpus is None:
            continue
        table = devices_table(report.devices)
        brief = not fits(table, width)
        parts.append(Text(f"{report.name}: {has(report, models=brief)}{_assumed(account, report.name)}", "bold"))
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
    return _in_use(account.reports() if only is None else [account.report(only)], account)


def _in_use(reports: Sequence[NodeReport], account: Account) -> str:
    devices = [one for report in reports for one in report.devices]
    has, used = Counter(one.kind for one in devices), Counter(one.kind for one in devices if one.in_use)
    texts = [f"{used[kind]} of {how_many(has[kind], kind)}" for kind in account.types.types if has[kind]]
    given, every = _cpus(reports)
    if every:
        texts.append(f"{given} of {counted(every, 'CPU')}")
    return f"{', '.join(texts)} in use" if texts else "no devices"


def _cpus(reports: Iterable[NodeReport]) -> tuple[int, int]:
    """How many CPUs belong to one Pod alone, and how many there are, as far as that is known."""
    known = [(one.cpus, one.cpus.topology) for one in reports if one.cpus is not None]
    counts = [(of.given.bit_count(), len(topology.cpus)) for of, topology in known if topology is not None]
    return sum(given for given, _ in counts), sum(every for _, every in counts)


def _out(reports: Iterable[NodeReport]) -> str:
    """Count devices that take nothing new."""
    out = sum(device.state is Availability.OUT for one in reports for device in one.devices)
    return f"{counted(out, 'device')} out of service" if out else ""


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
