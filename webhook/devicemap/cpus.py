"""The CPUs of a node for the device map (pure): cores by NUMA node, and whose each CPU is."""

from typing import Any

from allocator.vocabulary.cpuask import QosClass
from allocator.vocabulary.cpuset import format_cpuset
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.nodetopology import NodeTopology
from webhook.devicemap.holders import Holders
from webhook.view.cpupools import pools_on

Raw = dict[str, Any]


def cpus_entry(node: NodeSnapshot, reported: NodeTopology | None, holders: Holders) -> Raw | None:
    """Make the entry of a node's CPUs; None where they are not known.

    A CPU is in `own`, in `reserved` or in `shared`. `bestEffort` overlaps `own`: these Pods share their CPUs with
    best-effort ones. All sets are Linux CPU lists.
    """
    known = node.cpu
    if known is None or reported is None:
        return None
    own: list[Raw] = []
    for holding in sorted(node.holdings.values(), key=lambda one: (one.namespace, one.name, one.uid)):
        if holding.cpus is not None and holding.cpus.cpus:
            pool = "lse" if holding.cpus.qos == QosClass.LSE else "lsr"
            own.append(_own(holders.pod(holding), holding.cpus.cpus & known.topology.all, pool))
    by_kubelet = 0
    for alloc in reported.by_kubelet:
        by_kubelet |= alloc.cpus
        own.append(_own(holders.kubelet(alloc), alloc.cpus & known.topology.all, "kubelet"))
    pools = pools_on(known.topology, [one.cpus for one in node.holdings.values()], reported)
    shared = best_effort = 0
    for one in pools.shared:
        shared |= one.cpus
    for one in pools.best_effort:
        best_effort |= one.cpus
    return {
        "zones": [
            {
                "numa": cell.node,
                "socket": cell.socket,
                "cores": [format_cpuset(core & cell.cpus) for core in cell.cores],
            }
            for cell in known.topology.cells
        ],
        "own": [one for one in own if one["cpus"]],
        "reserved": format_cpuset(known.reserved & ~by_kubelet),
        "shared": format_cpuset(shared & ~known.reserved),
        "bestEffort": format_cpuset(best_effort),
        "unknown": known.holders_unknown,
    }


def _own(holder: int, cpus: int, pool: str) -> Raw:
    return {"holder": holder, "cpus": format_cpuset(cpus), "pool": pool}
