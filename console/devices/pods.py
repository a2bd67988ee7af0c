"""What Pods hold, as lines and as data (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.table import Table

from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.cpuset import format_cpuset
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY
from console.devices.amounts import told_bytes
from console.devices.nodestate import NodeState
from console.devices.others import AnyHolding, holder_data, told_holder
from console.devices.tables import VERSION, add_row, new_table, told_share
from console.terminal import printable

Raw = dict[str, Any]

_MOST_DEVICES: Final = 8  # of a Pod in its line


class Holder(NamedTuple):
    """A Pod or ResourceClaim, and its node."""

    node: str
    holding: AnyHolding


def holders(states: Iterable[NodeState], namespace: str = "") -> list[Holder]:
    """Who holds something, by namespace, name and node; of one namespace if it is given.

    Among them are Pods of other products that do not count, which hold nothing.
    """
    found = [
        Holder(state.node, one)
        for state in states
        for one in state.holders
        if not namespace or one.namespace == namespace
    ]
    return sorted(found, key=lambda one: (one.holding.namespace, one.holding.name, one.node, one.holding.uid))


def counting(found: Iterable[Holder]) -> list[Holder]:
    """Those that hold something."""
    return [one for one in found if isinstance(one.holding, Holding) or one.holding.shares]


def pods_table(found: Iterable[Holder], *, wide: bool) -> Table:
    """A line for each holder."""
    table = new_table("NAMESPACE", "POD", "NODE", "DEVICES", "CORE", "MEMORY", "CPUS", *(["IDS"] if wide else []))
    for node, holding in found:
        names = [f"{share.type}/{share.minor}" for share in holding.shares]
        more = f" +{len(names) - _MOST_DEVICES}" if len(names) > _MOST_DEVICES and not wide else ""
        devices = ", ".join(names if wide else names[:_MOST_DEVICES]) + more
        core, memory = (_sum(holding.shares, tail) for tail in (GPU_CORE, GPU_MEMORY))
        amounts = (f"{core}%" if core else "", told_bytes(memory) if memory else "", _cpus(_cpus_of(holding)))
        name = told_holder(holding).replace(f"{holding.namespace}/", "", 1)  # it has a column of its own
        ids = [", ".join(share.id for share in holding.shares)] if wide else []
        add_row(table, holding.namespace, name, node, devices, *amounts, *ids)
    return table


def _sum(shares: Iterable[Share], tail: str) -> int:
    return sum(share.amounts.get(tail, 0) for share in shares)


def _cpus_of(holding: AnyHolding) -> CpuShare | None:
    return holding.cpus if isinstance(holding, Holding) else None


def _cpus(cpus: CpuShare | None) -> str:
    if cpus is None:
        return ""
    numa = ", ".join(str(one.node) for one in cpus.numa)
    where = f"NUMA {numa}" if numa else ""
    own = format_cpuset(cpus.cpus) if cpus.cpus else ""
    return f"{own} ({where})" if own and where else own or where


def about_pod(name: str, pod: Mapping[str, Any] | None, found: Sequence[Holder]) -> list[Table | str]:
    """Say where a Pod is and what it holds.

    `pod`: the object; None if it is gone. `found`: what it holds, by the ledger or by another product's statement.
    """
    lines: list[Table | str] = [printable(_headline(name, pod, found))]
    for node, holding in found:
        table = new_table("DEVICE", "ID", "HOLDS", "CONTAINERS")
        for share in holding.shares:
            about = (f"{share.type}/{share.minor}", share.id, told_share(share), ", ".join(share.containers))
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


def _headline(name: str, pod: Mapping[str, Any] | None, found: Sequence[Holder]) -> str:
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


def pods_document(found: Iterable[Holder]) -> Raw:
    """What Pods hold as data: amounts in percent, bytes and units (docs/kubectl.md)."""
    return {
        "version": VERSION,
        "pods": [
            {
                **holder_data(holding),
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
                "numaNodes": [one.node for one in cpus.numa] if cpus is not None else [],
                "heldForGang": isinstance(holding, Holding) and bool(holding.until),
                "beingReleased": isinstance(holding, Holding) and bool(holding.ending),
            }
            for node, holding in found
            for cpus in (_cpus_of(holding),)
        ],
    }
