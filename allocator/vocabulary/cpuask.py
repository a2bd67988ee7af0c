"""What a Pod asks of CPU orchestration."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from allocator.vocabulary.cpupolicy import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy
from allocator.vocabulary.phase import Phase


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
