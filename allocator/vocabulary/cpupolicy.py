"""The policies of CPU orchestration, named as in annotations and labels (CPU proposal, "CPU orchestration API")."""

from enum import StrEnum
from typing import Final, NamedTuple

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
