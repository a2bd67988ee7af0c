"""The CPUs and NUMA nodes of one node as a decision sees them, what one Pod asks of them, and what it holds.

Policies are named as in annotations and labels (CPU proposal, "CPU orchestration API").
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from allocator.vocabulary.cputopology import CpuTopology
from allocator.vocabulary.names import Phase

ARM: Final = "arm64"
"""As the label kubernetes.io/arch spells it."""


class BindPolicy(StrEnum):
    """Which threads of which cores (CPU proposal, "Resource spec")."""

    DEFAULT = "Default"
    FULL_PCPUS = "FullPCPUs"
    SPREAD_BY_PCPUS = "SpreadByPCPUs"
    CONSTRAINED_BURST = "ConstrainedBurst"


class ExclusivePolicy(StrEnum):
    """What is not shared with Pods of the same policy (CPU proposal, "Resource spec"; `None` is Koordinator's)."""

    NONE = "None"
    DEFAULT = "Default"
    PCPU_LEVEL = "PCPULevel"
    NUMA_NODE_LEVEL = "NUMANodeLevel"


class NumaStrategy(StrEnum):
    """Which NUMA node first (CPU proposal, "NUMA allocate strategy").

    DISTRIBUTE_BEYOND_ONE follows the kubelet's option of that name: it distributes only requests that no single NUMA
    node can satisfy.
    """

    MOST_ALLOCATED = "MostAllocated"
    LEAST_ALLOCATED = "LeastAllocated"
    DISTRIBUTE_EVENLY = "DistributeEvenly"
    DISTRIBUTE_BEYOND_ONE = "distribute-cpus-across-numa"


class NumaPolicy(StrEnum):
    """How strictly a Pod's resources are aligned to one NUMA node (CPU proposal, "NUMA topology alignment policy")."""

    NONE = "None"
    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"
    SINGLE_NUMA_NODE = "SingleNUMANode"


REFUSING: Final = (NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE)
"""The NUMA policies that may refuse a node."""


class Supported(NamedTuple):
    """The policies that apply on a node."""

    bind: BindPolicy
    exclusive: ExclusivePolicy


def supported(
    architecture: str, bind: BindPolicy, exclusive: ExclusivePolicy, *, required: bool = False
) -> Supported | str:
    """Translate policies to those that an architecture supports.

    arm64 supports only FullPCPUs and NUMANodeLevel (CPU proposal, "Resource spec"), because a core runs one thread.
    A preferred SpreadByPCPUs becomes FullPCPUs, which takes the same one thread of each core. PCPULevel becomes None,
    because no core is shared. A required SpreadByPCPUs and ConstrainedBurst are refused.
    `required`: whether the bind policy must be kept. Returns the policies to apply, or why a Pod with these policies is
    refused.
    """
    if architecture != ARM or (bind is BindPolicy.FULL_PCPUS and exclusive is not ExclusivePolicy.PCPU_LEVEL):
        return Supported(bind, exclusive)
    if bind is BindPolicy.CONSTRAINED_BURST or (required and bind is BindPolicy.SPREAD_BY_PCPUS):
        return f"CPU bind policy {bind} is not supported on {ARM}; ask for {BindPolicy.FULL_PCPUS} there"
    none = exclusive is ExclusivePolicy.PCPU_LEVEL
    return Supported(BindPolicy.FULL_PCPUS, ExclusivePolicy.NONE if none else exclusive)


class NumaExclusive(StrEnum):
    """Whether a NUMA node is kept for Pods in one NUMA node, or for Pods over several (Koordinator, numa_aware.go)."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


MILLI: Final = 1000  # of one CPU
_NOTHING: Final[Mapping[tuple[int, str], int]] = {}


class NumaShare(NamedTuple):
    """What a Pod holds in one NUMA node."""

    node: int
    milli: int  # thousandths of a CPU
    memory: int  # bytes; 0 if the NUMA nodes report no memory
    socket: int = 0  # the NUMA node's socket
    others: tuple[tuple[str, int], ...] = ()  # other resources that the NUMA nodes report, by name, each in its unit


@dataclass(frozen=True, slots=True)
class CpuShare:
    """What one Pod holds of a node's CPUs."""

    qos: str  # the Pod's QoS class, which decides its shared pool
    cpus: int = 0  # the CPUs of its own (bit i is CPU i); 0 if it runs on a shared pool
    bind: BindPolicy | None = None  # the policy by which they were chosen; None if it has no CPUs of its own
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE  # what it does not share with Pods of the same policy
    numa: tuple[NumaShare, ...] = ()  # the NUMA nodes that it was aligned to, ascending; empty if it was not aligned


class Zone(NamedTuple):
    """What a NUMA node has for Pods."""

    milli: int | None  # thousandths of a CPU; None if it reports none
    memory: int | None  # bytes; None if it reports none
    others: tuple[tuple[str, int], ...] = ()  # every other resource that it reports, by name, each in its unit


@dataclass(frozen=True, slots=True)
class CpuNode:
    """The CPUs of a node, and the rules that hold there (CPU proposal, "Node CPU orchestration API")."""

    topology: CpuTopology  # the core, NUMA node and socket of each CPU
    # CPUs that are never given to a Pod: the kubelet's own, and those of Pods that the kubelet serves
    reserved: int = 0
    # the reserved CPUs that are in the shared pool nevertheless: the kubelet's own (CPU proposal, "Basic CPU
    # orchestration principles")
    pooled: int = 0
    # the policy that every Pod with CPUs of its own must follow here; None if Pods choose
    bind: BindPolicy | None = None
    whole_cores: bool = False  # the kubelet refuses Pods whose own CPUs are not whole cores, regardless of `bind`
    strategy: NumaStrategy = NumaStrategy.MOST_ALLOCATED  # which NUMA node comes first
    policy: NumaPolicy = NumaPolicy.NONE  # NUMA alignment of Pods that state no policy themselves
    default_bind: BindPolicy = BindPolicy.FULL_PCPUS  # bind policy of Pods that state none
    default_exclusive: ExclusivePolicy = ExclusivePolicy.NONE  # exclusive policy of Pods that state none
    zones: Mapping[int, Zone] = field(default_factory=dict)  # NUMA node -> what it has
    architecture: str = ""  # as in the label kubernetes.io/arch; some policies are not supported on every architecture
    # the policy by which the kubelet refuses Pods to which it gives CPUs or devices, regardless of `policy`:
    # Restricted, SingleNUMANode, or NumaPolicy.NONE if it refuses none
    kubelet_policy: NumaPolicy = NumaPolicy.NONE
    kubelet_by_container: bool = False  # whether the kubelet aligns each container by itself instead of the whole Pod
    kubelet_gives_cpus: bool = True  # whether the kubelet's CPU manager gives CPUs to containers
    # whether it may give CPUs of any NUMA node of a socket in place of an aligned one's
    kubelet_by_socket: bool = False
    kubelet_reserved: int = 0  # the CPUs that the kubelet keeps for itself
    not_kubelets: int = 0  # reserved CPUs that the kubelet takes for free: an administrator's, or of the system
    holders_unknown: bool = False  # it is not known which CPUs are held, so all are reserved

    def cpus_of(self, nodes: Iterable[int]) -> int:
        """All CPUs of these NUMA nodes."""
        cpus = 0
        for node in nodes:
            cpus |= self.topology.nodes.get(node, 0)
        return cpus


class CpuUse(NamedTuple):
    """What is held of a node's CPUs."""

    taken: int  # CPUs that belong to one Pod alone
    exclusive_cores: int  # the CPUs held with PCPULevel, widened to whole cores
    # the CPUs held with NUMANodeLevel, widened to whole cores. If a Pod of that level cannot have a NUMA node to
    # itself, it avoids at least these (CPU proposal, "Resource spec").
    lone_cores: int
    exclusive_nodes: int  # all CPUs of the NUMA nodes in which some CPU is held with NUMANodeLevel
    # NUMA node -> thousandths held there by Pods on its shared pool, and bytes held there. A Pod that requests no CPU
    # counts as one thousandth, because it runs there nevertheless.
    numa: Mapping[int, tuple[int, int]]
    others: Mapping[tuple[int, str], int] = _NOTHING  # NUMA node and resource -> amount held there


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
    """The CPUs of a shared pool in one NUMA node, as the annotations list them (CPU proposal, CPUSharedPool)."""

    socket: int  # the NUMA node's socket
    node: int
    cpus: int = 0  # the set; it may be empty


class QosClass(StrEnum):
    """Koordinator's QoS classes, as the label spells them."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


class KubeletAsk(NamedTuple):
    """What the kubelet itself gives a container, and aligns to NUMA nodes (Kubernetes, pkg/kubelet/cm)."""

    phase: Phase  # when the container runs
    cpus: int  # the CPUs that the CPU manager's static policy gives it; 0 if none
    devices: tuple[tuple[str, int], ...] = ()  # amounts of resources of device plugins, by name


@dataclass(frozen=True, slots=True)
class CpuAsk:
    """What a Pod asks of CPU orchestration."""

    qos: QosClass  # its QoS class, by label. A Pod without the label is BE if it requests nothing, otherwise LS.
    count: int  # number of whole CPUs to bind; 0 if none are bound
    milli: int  # CPU request of all containers in thousandths, by Kubernetes' rule for Pods, overhead included
    memory: int  # memory request in bytes, by the same rule
    limit_milli: int = 0  # CPU limit in thousandths; 0 if there is none
    # bind policy that must be kept. Default means the node's policy, or the configured one.
    required: BindPolicy | None = None
    # bind policy to try; equal to `required` if that is set. None for the configured default.
    preferred: BindPolicy | None = None
    exclusive: ExclusivePolicy | None = None  # which Pods to keep apart from; None for the configured default
    numa_policy: NumaPolicy | None = None  # NUMA alignment policy; None if its author leaves that to the node
    # how strictly a NUMA node is kept for Pods in one NUMA node. Required if a policy is stated without it
    # (Koordinator, pkg/scheduler/frameworkext/topologymanager).
    single_numa_exclusive: NumaExclusive | None = None
    # what the kubelet would give each container, in starting order, without those to which it gives nothing. It gives
    # CPUs to the containers of a Guaranteed Pod that request whole CPUs, unless the Pod states resources for itself as
    # a whole (Kubernetes, pkg/kubelet/cm/cpumanager).
    of_kubelet: tuple[KubeletAsk, ...] = ()
    # amounts of resources other than CPU, memory, disk and devices of ours, by name, each in its unit. They count on
    # nodes whose NUMA nodes report them.
    others: tuple[tuple[str, int], ...] = ()
    # whether the author states nothing about CPU orchestration. A node's NUMA policy still applies to the Pod, because
    # it requests devices or is in scope by the settings. Without a policy it gets nothing.
    implied: bool = False

    @property
    def constrained_burst(self) -> bool:
        """Whether the Pod must run in the shared pool of a NUMA node that has `limit_milli` free."""
        return self.preferred is BindPolicy.CONSTRAINED_BURST

    @property
    def insists(self) -> bool:
        """Whether the Pod states what it needs of CPUs. Otherwise it is in scope by its class or by `numa.scope`."""
        return bool(self.count) or self.constrained_burst or self.numa_policy is not None
