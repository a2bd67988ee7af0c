"""The CPUs and NUMA nodes of one node, as a decision sees them, and what one Pod holds of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from allocator.vocabulary.cpupolicy import BindPolicy, ExclusivePolicy, NumaPolicy, NumaStrategy
from allocator.vocabulary.cputopology import CpuTopology

MILLI: Final = 1000  # of one CPU
_NOTHING: Final[Mapping[tuple[int, str], int]] = {}


class NumaShare(NamedTuple):
    """What a Pod holds in one NUMA node.

    Attributes:
        node: the NUMA node.
        milli: thousandths of a CPU.
        memory: bytes; 0 if the NUMA nodes report no memory.
        socket: the NUMA node's socket.
        others: other resources that the NUMA nodes report, by name, each in its unit.
    """

    node: int
    milli: int
    memory: int
    socket: int = 0
    others: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CpuShare:
    """What one Pod holds of a node's CPUs.

    Attributes:
        qos: the Pod's QoS class, by which shared pools are made.
        cpus: those that are its own (bit i is CPU i); 0 where it runs on a shared pool.
        bind: the policy by which they were chosen; None where none are its own.
        exclusive: what it does not share with Pods of the same policy.
        numa: where it stands, if it was aligned: one for each NUMA node, ascending.
    """

    qos: str
    cpus: int = 0
    bind: BindPolicy | None = None
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    numa: tuple[NumaShare, ...] = ()


class Zone(NamedTuple):
    """What a NUMA node has for Pods.

    Attributes:
        milli: thousandths of a CPU; None if it reports none.
        memory: bytes; None if it reports none.
        others: every other resource that it reports, by name, each in its unit.
    """

    milli: int | None
    memory: int | None
    others: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CpuNode:
    """The CPUs of a node, and the rules that hold there (CPU proposal, "Node CPU orchestration API").

    Attributes:
        topology: which CPU is where.
        reserved: CPUs that are never given: the kubelet's own, and those of the Pods that it serves itself.
        pooled: of the reserved ones those that the shared pool has all the same: the kubelet's own (CPU proposal,
            "Basic CPU orchestration principles").
        bind: the policy that every Pod with CPUs of its own must follow here; None where Pods choose.
        whole_cores: the kubelet refuses Pods with CPUs of their own that are no whole cores, whatever `bind` says.
        strategy: which NUMA node comes first.
        policy: how strictly all that a Pod asks stands in one NUMA node, unless the Pod says so itself.
        default_bind: for Pods that leave it open.
        default_exclusive: likewise.
        zones: NUMA node -> what it has.
        architecture: as the label kubernetes.io/arch spells it; not every policy means something everywhere.
        kubelet_policy: by which the kubelet refuses Pods to which it gives CPUs, whatever `policy` says: Restricted or
            SingleNUMANode; None where it refuses none.
        kubelet_by_container: whether it looks at each container by itself, not at the Pod.
        holders_unknown: it is not known which CPUs nobody may be given: all are reserved.
    """

    topology: CpuTopology
    reserved: int = 0
    pooled: int = 0
    bind: BindPolicy | None = None
    whole_cores: bool = False
    strategy: NumaStrategy = NumaStrategy.MOST_ALLOCATED
    policy: NumaPolicy = NumaPolicy.NONE
    default_bind: BindPolicy = BindPolicy.FULL_PCPUS
    default_exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    zones: Mapping[int, Zone] = field(default_factory=dict)
    architecture: str = ""
    kubelet_policy: NumaPolicy = NumaPolicy.NONE
    kubelet_by_container: bool = False
    holders_unknown: bool = False

    def cpus_of(self, nodes: Iterable[int]) -> int:
        """All CPUs of these NUMA nodes."""
        cpus = 0
        for node in nodes:
            cpus |= self.topology.nodes.get(node, 0)
        return cpus


class CpuUse(NamedTuple):
    """What is held of a node's CPUs.

    Attributes:
        taken: CPUs that are some Pod's own.
        exclusive_cores: those of them that are held with PCPULevel, widened to whole cores.
        lone_cores: the cores of those that are held with NUMANodeLevel: where a Pod of that level can have no NUMA node
            to itself, it avoids at least these (CPU proposal, "Resource spec").
        exclusive_nodes: all CPUs of the NUMA nodes in which some are held with NUMANodeLevel.
        numa: NUMA node -> thousandths held there by Pods on its shared pool, and bytes held there. A Pod that requests
            no CPU counts one thousandth: it runs there all the same.
        others: NUMA node and resource -> amount held there.
    """

    taken: int
    exclusive_cores: int
    lone_cores: int
    exclusive_nodes: int
    numa: Mapping[int, tuple[int, int]]
    others: Mapping[tuple[int, str], int] = _NOTHING


NO_USE: Final = CpuUse(0, 0, 0, 0, {})


def cpu_use(node: CpuNode, shares: Iterable[CpuShare]) -> CpuUse:
    """Sum up what Pods hold."""
    topology = node.topology
    taken = cores = nodes = 0
    numa: dict[int, tuple[int, int]] = {}
    others: dict[tuple[int, str], int] = {}
    for share in shares:
        taken |= share.cpus
        if share.exclusive is ExclusivePolicy.PCPU_LEVEL:
            cores |= share.cpus
        elif share.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
            nodes |= share.cpus
        for at, milli, memory, _, more in share.numa:
            known = numa.get(at, (0, 0))
            numa[at] = (known[0] + (0 if share.cpus else max(milli, 1)), known[1] + memory)
            for name, amount in more:
                others[at, name] = others.get((at, name), 0) + amount
    return CpuUse(
        taken,
        topology.cores_of(cores) if cores else 0,
        topology.cores_of(nodes) if nodes else 0,
        topology.nodes_of(nodes) if nodes else 0,
        numa,
        others,
    )


@dataclass(frozen=True, slots=True)
class PoolCpus:
    """The CPUs of a pool in one NUMA node, as the annotations list them (CPU proposal, CPUSharedPool).

    Attributes:
        socket: the NUMA node's socket.
        node: the NUMA node.
        cpus: the set; it may be empty.
    """

    socket: int
    node: int
    cpus: int = 0
