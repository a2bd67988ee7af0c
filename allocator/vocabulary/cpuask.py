"""What a Pod asks of CPU orchestration."""

from dataclasses import dataclass
from enum import StrEnum

from allocator.vocabulary.cpupolicy import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy
from allocator.vocabulary.phase import Phase


class QosClass(StrEnum):
    """Koordinator's QoS classes, as the label spells them."""

    LSE = "LSE"
    LSR = "LSR"
    LS = "LS"
    BE = "BE"
    SYSTEM = "SYSTEM"


@dataclass(frozen=True, slots=True)
class CpuAsk:
    """What a Pod asks of CPU orchestration.

    Attributes:
        qos: its class, by label; without one BE where it requests nothing, else LS.
        count: whole CPUs to bind; 0 where none are.
        milli: thousandths of a CPU that it requests, by Kubernetes' rule for Pods, overhead included.
        memory: bytes that it requests, likewise.
        limit_milli: thousandths of a CPU that it may use at most; 0 where it is not limited.
        required: bind policy that must be kept; Default is the policy of the node, else the configured one.
        preferred: bind policy to try, `required` where there is one; None for the configured default.
        exclusive: whom to avoid; None for the configured default.
        numa_policy: how it is to be aligned; None where its author leaves that to the node.
        single_numa_exclusive: how strictly a NUMA node is kept for Pods in one NUMA node; Required where a policy is
            stated without it (Koordinator, pkg/scheduler/frameworkext/topologymanager).
        static: what the kubelet's static policy would give: of the containers of a Guaranteed Pod, in the order they
            start, those that request whole CPUs, each with how many. Empty where it would give none: of other Pods, and
            of those that state resources for the Pod as a whole (Kubernetes, pkg/kubelet/cm/cpumanager).
        others: amounts of resources other than CPU, memory, disk and devices of ours, by name, each in its unit. They
            count on nodes whose NUMA nodes report them.
        implied: whether the author states nothing about CPU orchestration. The Pod is held to a node's NUMA policy all
            the same, because it requests devices or is in scope by the settings. Without a policy it gets nothing.
    """

    qos: QosClass
    count: int
    milli: int
    memory: int
    limit_milli: int = 0
    required: BindPolicy | None = None
    preferred: BindPolicy | None = None
    exclusive: ExclusivePolicy | None = None
    numa_policy: NumaPolicy | None = None
    single_numa_exclusive: NumaExclusive | None = None
    static: tuple[tuple[Phase, int], ...] = ()
    others: tuple[tuple[str, int], ...] = ()
    implied: bool = False

    @property
    def constrained_burst(self) -> bool:
        """Whether it is to run in the shared pool of a NUMA node that has room for `limit_milli`."""
        return self.preferred is BindPolicy.CONSTRAINED_BURST
