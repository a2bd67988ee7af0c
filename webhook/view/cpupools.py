"""The shared pools of a node, from what Pods hold and from what the node reports (pure)."""

from collections.abc import Iterable

from allocator.cpu.pools import CpuHolder, CpuPools, pools
from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.cputopology import CpuTopology
from allocator.wire.nodetopology import NodeTopology


def pools_on(topology: CpuTopology, held: Iterable[CpuShare | None], reported: NodeTopology) -> CpuPools:
    """Derive both pools of a node.

    `reported`: the Pods that got CPUs from the kubelet, and what is kept from all Pods.
    """
    holders = [CpuHolder(share.cpus, share.qos) for share in held if share is not None]
    holders += [CpuHolder(alloc.cpus, "", managed_by_kubelet=True) for alloc in reported.by_kubelet]
    return pools(
        topology,
        holders,
        node_reserved=reported.reservation.cpus,
        system_exclusive=reported.system.cpus if reported.system.exclusive else 0,
    )
