"""`koordgate pod`: what Pods hold, and of which node."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.table import Table

from allocator.quantity import in_gib
from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY
from console import terminal
from console.devices.nodes import CommandError, Known, read_nodes
from console.devices.session import CommandEnd, add_listing, carry_out
from console.devicewords import told_holder, told_share
from console.plaintable import add_row, plain_table
from console.reading import add_cluster
from console.terminal import printable
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import PODS
from webhook.devicemap.document import holder_entry
from webhook.ledger.kube import cluster_store
from webhook.view.nodereport import Holder, NodeReport

Raw = dict[str, Any]

VERSION: Final = 1
"""Of the document; a change that a reader would misread makes it greater."""

_MAX_DEVICES: Final = 8  # of a Pod in its line


class OnNode(NamedTuple):
    """A Pod or ResourceClaim, and its node."""

    node: str
    holding: Holder


def holders(reports: Iterable[NodeReport], namespace: str = "") -> list[OnNode]:
    """Who holds something, by namespace, name and node; of one namespace if it is given.

    Among them are Pods of other products that do not count, which hold nothing.
    """
    found = [
        OnNode(report.name, one)
        for report in reports
        for one in report.holders
        if not namespace or one.namespace == namespace
    ]
    return sorted(found, key=lambda one: (one.holding.namespace, one.holding.name, one.node, one.holding.uid))


def counting(found: Iterable[OnNode]) -> list[OnNode]:
    """Those that hold something."""
    return [one for one in found if isinstance(one.holding, Holding) or one.holding.shares]


def pods_table(found: Iterable[OnNode], *, wide: bool) -> Table:
    """A line for each holder."""
    table = plain_table("NAMESPACE", "POD", "NODE", "DEVICES", "CORE", "MEMORY", "CPUS", *(["IDS"] if wide else []))
    for node, holding in found:
        names = [f"{share.type}/{share.minor}" for share in holding.shares]
        more = f" +{len(names) - _MAX_DEVICES}" if len(names) > _MAX_DEVICES and not wide else ""
        devices = ", ".join(names if wide else names[:_MAX_DEVICES]) + more
        core, memory = (_sum(holding.shares, tail) for tail in (GPU_CORE, GPU_MEMORY))
        amounts = (f"{core}%" if core else "", in_gib(memory) if memory else "", _cpus(_cpus_of(holding)))
        name = told_holder(holding).replace(f"{holding.namespace}/", "", 1)  # it has a column of its own
        ids = [", ".join(share.id for share in holding.shares)] if wide else []
        add_row(table, holding.namespace, name, node, devices, *amounts, *ids)
    return table


def _sum(shares: Iterable[Share], tail: str) -> int:
    return sum(share.amounts.get(tail, 0) for share in shares)


def _cpus_of(holding: Holder) -> CpuShare | None:
    return holding.cpus if isinstance(holding, Holding) else None


def _cpus(cpus: CpuShare | None) -> str:
    if cpus is None:
        return ""
    numa = ", ".join(str(one.node) for one in cpus.numa)
    where = f"NUMA {numa}" if numa else ""
    own = format_cpuset(cpus.cpus) if cpus.cpus else ""
    return f"{own} ({where})" if own and where else own or where


def about_pod(
    name: str, pod: Mapping[str, Any] | None, found: Sequence[OnNode], types: DeviceTypes
) -> list[Table | str]:
    """Say where a Pod is and what it holds.

    `pod`: the object; None if it is gone. `found`: what it holds, by the ledger or by another product's statement.
    """
    lines: list[Table | str] = [printable(_headline(name, pod, found))]
    for node, holding in found:
        table = plain_table("DEVICE", "ID", "HOLDS", "CONTAINERS")
        for share in holding.shares:
            about = (f"{share.type}/{share.minor}", share.id, told_share(share, types), ", ".join(share.containers))
            add_row(table, *about)
        if isinstance(holding, ForeignHolding):
            lines.append(printable(f"{holding.peer.value} placed it, by {holding.evidence}"))
            lines += [printable(holding.why)] if holding.why else []
        elif holding.until:
            lines.append(printable(f"room held for it on {node}, as one of the gang {holding.gang}"))
        if holding.shares:
            lines.append(table)
        if cpus := _cpus(_cpus_of(holding)):
            lines.append(f"CPUs: {cpus}")
        if isinstance(holding, Holding) and holding.ending:
            lines.append("it was not bound in time: this is being given back")
    return lines


def _headline(name: str, pod: Mapping[str, Any] | None, found: Sequence[OnNode]) -> str:
    if pod is None:
        return f"Pod {name} is gone; what it held on {found[0].node} is being released"
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    phase, node = status.get("phase") or "Pending", spec.get("nodeName")
    if not node:
        space, _, short = name.partition("/")
        return f"Pod {name} is on no node ({phase}); `koordgate explain {short} -n {space}` says why"
    if not found:
        return f"Pod {name} is on {node} ({phase}); koordgate gave it nothing"
    return f"Pod {name} is on {node} ({phase})"


def _is_claim(one: Holder) -> bool:
    return isinstance(one, Holding) and bool(one.fence)


def pods_document(found: Iterable[OnNode]) -> Raw:
    """What Pods hold as data: amounts in percent, bytes and units (docs/reference/formats.md)."""
    return {
        "version": VERSION,
        "pods": [
            {
                **holder_entry(holding),
                "node": node,
                "devices": [
                    {
                        "type": share.type,
                        "minor": share.minor,
                        "id": share.id,
                        "amounts": dict(share.amounts),
                        "containers": list(share.containers),
                    }
                    for share in holding.shares
                ],
                "cpus": format_cpuset(cpus.cpus) if cpus is not None else None,
                "heldForGang": isinstance(holding, Holding) and bool(holding.until),
                "beingReleased": isinstance(holding, Holding) and bool(holding.ending),
            }
            for node, holding in found
            for cpus in (_cpus_of(holding),)
        ],
    }


async def _one(kube: KubeClient, namespace: str, name: str, known: Known, output: str) -> CommandEnd:
    """Show one Pod."""
    try:
        path = PODS.path(name, namespace)
    except ValueError as error:
        raise CommandError(f"no Pod can have that name: {error}") from error
    try:
        pod = await kube.get(path)
    except NotFound:
        pod = None
    node = str((pod or {}).get("spec", {}).get("nodeName") or "")
    try:
        reports = await read_nodes(kube, cluster_store(kube), [node] if node else [], known)
    except CommandError:
        reports = []  # its node has no devices, and the ledger nothing about it
    uid = pod["metadata"].get("uid") if pod is not None else None
    found = [
        one
        for one in holders(reports, namespace)
        if (one.holding.name, _is_claim(one.holding)) == (name, False) and uid in {None, one.holding.uid}
    ]
    if pod is None and not found:
        raise CommandError(f"there is no Pod {namespace}/{name}; name its namespace with -n")
    if output in {"json", "yaml"}:
        terminal.write_data(pods_document(found), output)
    else:
        terminal.show(*about_pod(f"{namespace}/{name}", pod, found, known.types))
    return CommandEnd(_problems(reports))


def _problems(reports: list[NodeReport]) -> list[str]:
    return [problem for report in reports for problem in report.problems]


def _run(arguments: argparse.Namespace) -> int:
    async def work(kube: KubeClient, known: Known) -> CommandEnd:
        stated, _, name = (arguments.pod or "").rpartition("/")
        namespace = stated or arguments.namespace or kube.namespace
        if name:
            return await _one(kube, namespace, name, known, arguments.output)
        reports = await read_nodes(kube, cluster_store(kube), [], known)
        found = counting(holders(reports, "" if arguments.all_namespaces else namespace))
        if arguments.output in {"json", "yaml"}:
            terminal.write_data(pods_document(found), arguments.output)
        elif found:
            terminal.show(pods_table(found, wide=arguments.output == "wide"))
        else:
            where = "in any namespace" if arguments.all_namespaces else f"of namespace {namespace}"
            terminal.show(f"no Pod {where} holds anything")
        return CommandEnd(_problems(reports))

    return carry_out(arguments, work, lambda: _check(arguments))


def _check(arguments: argparse.Namespace) -> None:
    name = arguments.pod or ""
    if name and arguments.all_namespaces:
        raise CommandError("-A lists Pods: leave out the name, or state its namespace with -n")
    stated = name.rpartition("/")[0]
    if stated and arguments.namespace not in {None, stated}:
        raise CommandError(f"{name} is of namespace {stated}, and -n says {arguments.namespace}: state one of them")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pod", nargs="?", metavar="POD", help="the Pod's name, or namespace/name (default: all that hold something)"
    )
    add_listing(
        parser,
        namespace="the namespace (default: that of the kubeconfig's context)",
        everywhere="Pods of all namespaces",
        wide="the ids of devices",
    )
    add_cluster(parser)


COMMAND: Final = Command(
    description="Show what Pods hold: devices, their memory, and CPUs, by koordgate's ledger, and by what other "
    "products state of their Pods where adopt.peers counts these.\n\n"
    "With a name, the Pod and each device that it holds with its containers; without, a line for each Pod that holds "
    "something. `koordgate explain` says why a Pod waits.\n\n"
    "The user needs the rights to get and list nodes, devices.scheduling.koordinator.sh and "
    "nodeallocations.koordgate.io, with a name to get pods, and to get the configmap with the settings. If adopt.peers "
    "is set, also to list pods.",
    examples="examples:\n"
    "  koordgate pod\n"
    "  koordgate pod -A\n"
    "  koordgate pod train-7 -n team-a\n"
    "  koordgate pod train-7 -n team-a -o json | jq '.pods[].devices[].id'",
    arguments=_arguments,
    run=_run,
)
