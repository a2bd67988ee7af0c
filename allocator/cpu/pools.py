"""The CPUs of Pods that hold none of their own: the shared pool, and the pool of best-effort Pods.

Sources: the CPU proposal, "Basic CPU orchestration principles" and "Koordinator QoS CPU orchestration principles";
Koordinator, pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go. Both pools are listed by NUMA node.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from allocator.vocabulary.cpunode import PoolCpus, QosClass
from allocator.vocabulary.cputopology import CpuTopology


@dataclass(frozen=True, slots=True)
class CpuHolder:
    """A Pod that has CPUs of its own."""

    cpus: int
    qos: str  # its class, as `QosClass` spells it
    managed_by_kubelet: bool = False  # the kubelet's static policy chose the CPUs, for a Guaranteed Pod


@dataclass(frozen=True, slots=True)
class CpuPools:
    """Both pools of a node, one entry per NUMA node (and per socket, if a NUMA node covers several), in their order."""

    shared: tuple[PoolCpus, ...]  # for Burstable and LS Pods, and Guaranteed ones that hold no CPUs
    best_effort: tuple[PoolCpus, ...]  # for BestEffort and BE Pods


def pools(
    topology: CpuTopology,
    holders: Iterable[CpuHolder],
    *,
    node_reserved: int = 0,
    system_exclusive: int = 0,
) -> CpuPools:
    """Derive both pools of a node.

    An LSE Pod's CPUs are in neither pool. Those of an LSR Pod, and of any other Pod whose CPUs were not bound by the
    kubelet, are shared with best-effort Pods only ("QoS CPU orchestration principles" 2 to 5). A Guaranteed Pod's CPUs
    are in neither pool under the kubelet's static policy ("User stories", story 2); under its none policy it holds none
    (principle 7). CPUs that the kubelet reserves stay in both pools (CPU proposal). What the administrator reserved on
    the node, and what system Pods have exclusively, is in neither, as in Koordinator.
    `system_exclusive`: the set of the annotation node.koordinator.sh/system-qos-resource, if it is exclusive.
    """
    shared = best_effort = topology.all & ~node_reserved & ~system_exclusive
    for holder in holders:
        shared &= ~holder.cpus
        if holder.managed_by_kubelet or holder.qos == QosClass.LSE:
            best_effort &= ~holder.cpus
    return CpuPools(_by_cell(topology, shared), _by_cell(topology, best_effort))


def _by_cell(topology: CpuTopology, cpus: int) -> tuple[PoolCpus, ...]:
    return tuple(PoolCpus(cell.socket, cell.node, cell.cpus & cpus) for cell in topology.cells)
