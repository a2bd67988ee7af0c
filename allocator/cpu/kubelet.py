"""Pods that a kubelet would refuse after the bind are refused before it.

Its CPU manager's static policy gives CPUs to each container of a Guaranteed Pod that requests whole ones, regardless of
the Pod's label. With the option full-pcpus-only it refuses a Pod (SMTAlignmentError) if a container's number is not a
multiple of the threads of a core (CPU proposal, "Resource spec"; Kubernetes, pkg/kubelet/cm/cpumanager). Its topology
manager refuses a Pod (TopologyAffinityError) by the policies Restricted and SingleNUMANode. If their scope is the Pod,
`allocator.place` keeps to them. If it is the container, this module follows the kubelet from container to container
(Kubernetes, pkg/kubelet/cm/topologymanager).
"""

from itertools import accumulate, combinations
from typing import Final

from allocator.vocabulary.cpuask import CpuAsk
from allocator.vocabulary.cpunode import CpuNode, CpuUse
from allocator.vocabulary.cpupolicy import NumaPolicy
from allocator.vocabulary.outcome import Refusal
from allocator.vocabulary.phase import Phase

_MOST_NODES: Final = 8  # NUMA nodes with which the topology manager starts


def refused_by_kubelet(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse) -> Refusal | None:
    """Return why a node's kubelet would reject a Pod, regardless of its CPUs; None if it would not.

    Args:
        ask: the Pod's CPU request.
        name: the node's name, for messages.
        node: its CPUs.
        use: what Pods hold of them.
    """
    if not ask.static:
        return None
    return _broken_core(ask, name, node) or _unaligned(ask, name, node, use)


def _broken_core(ask: CpuAsk, name: str, node: CpuNode) -> Refusal | None:
    threads = node.topology.cpus_per_core
    count = next((count for _, count in ask.static if node.whole_cores and count % threads), 0)
    if not count:
        return None
    why = (
        f"a container requests {count} CPUs, and the kubelet takes only multiples of {threads}, whole cores "
        "(SMTAlignmentError)"
    )
    short = f"a container's CPUs are no multiple of {threads} per core (SMTAlignmentError)"
    return Refusal(f"{name}: {why}", permanent=True, short=short)


def _unaligned(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse) -> Refusal | None:
    """Follow the kubelet as it gives CPUs to one container after the other.

    An init container's CPUs are given again to those after it.
    """
    nodes = node.topology.nodes
    if node.kubelet_policy is NumaPolicy.NONE or not node.kubelet_by_container or len(nodes) > _MOST_NODES:
        return None
    sizes = [cpus.bit_count() for cpus in nodes.values()]
    free = [(cpus & ~node.reserved & ~use.taken).bit_count() for cpus in nodes.values()]
    for phase, count in ask.static:
        widest = 1 if node.kubelet_policy is NumaPolicy.SINGLE_NUMA_NODE else _fewest(sizes, count)
        rest = _given(free, count, widest)
        if rest is None:
            where = "one NUMA node" if widest == 1 else f"{widest} NUMA nodes"
            why = f"a container's {count} CPUs are not free in {where}, as the kubelet gives them to each container"
            rule = f"topology manager policy {node.kubelet_policy}: TopologyAffinityError"
            return Refusal(f"{name}: {why} ({rule})", short=f"too few CPUs in {where} for a container ({rule})")
        if phase is not Phase.INIT:
            free = rest
    return None


def _fewest(sizes: list[int], count: int) -> int:
    """The fewest NUMA nodes with `count` CPUs, free or not; all if even these have fewer."""
    together = accumulate(sorted(sizes, reverse=True))
    return next((width for width, has in enumerate(together, 1) if has >= count), len(sizes))


def _given(free: list[int], count: int, width: int) -> list[int] | None:
    """What is left after `count` CPUs are taken from the lowest `width` NUMA nodes that have them; None if none do."""
    # Among sets of one size the topology manager takes the one whose highest NUMA node is the lowest.
    for some in sorted(combinations(range(len(free)), width), key=lambda one: one[::-1]):
        if sum(free[at] for at in some) >= count:
            rest = list(free)
            for at in some:
                rest[at] -= min(count, free[at])
                count -= free[at] - rest[at]
            return rest
    return None
