"""The rules of CPU orchestration on a node: by its labels, then its kubelet, then the configuration.

CPU proposal, "Node CPU orchestration API" and "Compatible kubelet CPU management policies". What the kubelet
would reject is kept apart: no label makes it accept a Pod (`allocator.cpu.kubelet`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Final

from allocator.vocabulary.cpunode import REFUSING, BindPolicy, CpuNode, ExclusivePolicy, NumaPolicy, NumaStrategy, Zone
from allocator.wire.nodetopology import CpuManagerPolicy, NodeTopology, NumaScope, NumaZone

CPU_BIND_POLICY: Final = "node.koordinator.sh/cpu-bind-policy"
NUMA_ALLOCATE_STRATEGY: Final = "node.koordinator.sh/numa-allocate-strategy"
# CPU proposal's name, then today's.
NUMA_TOPOLOGY_POLICIES: Final = (
    "node.koordinator.sh/numa-topology-alignment-policy",
    "node.koordinator.sh/numa-topology-policy",
)
# The values that the label may have; the kubelet's own strategy comes from its configuration alone.
_STRATEGIES: Final = (NumaStrategy.MOST_ALLOCATED, NumaStrategy.LEAST_ALLOCATED, NumaStrategy.DISTRIBUTE_EVENLY)
ARCHITECTURE: Final = "kubernetes.io/arch"
# "None or empty value does not perform any policy"; PCPUOnly is what "Resource spec" calls FullPCPUsOnly.
_BINDS: Final = {
    "": None,
    "None": None,
    "FullPCPUsOnly": BindPolicy.FULL_PCPUS,
    "PCPUOnly": BindPolicy.FULL_PCPUS,
    "SpreadByPCPUs": BindPolicy.SPREAD_BY_PCPUS,
}


@dataclass(frozen=True, slots=True)
class CpuDefaults:
    """The rules that apply if neither the Pod nor the node states any."""

    bind: BindPolicy = BindPolicy.FULL_PCPUS  # policy by which CPUs are chosen
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE  # what is not shared with Pods of the same policy
    strategy: NumaStrategy = NumaStrategy.MOST_ALLOCATED  # which NUMA node first
    numa_policy: NumaPolicy = NumaPolicy.NONE  # how strictly Pods are aligned to NUMA nodes


def resolve(topology: NodeTopology, labels: Mapping[str, str], defaults: CpuDefaults) -> CpuNode | None:
    """Gather what a decision needs of a node's CPUs; None if they are unknown."""
    if topology.cpu is None:
        return None
    kubelet = topology.kubelet
    pooled = kubelet.reserved & ~replace(topology, kubelet=replace(kubelet, reserved=0)).reserved
    known_to_kubelet = kubelet.reserved | reduce(or_, (alloc.cpus for alloc in topology.by_kubelet), 0)
    unknown = topology.holders_unknown
    return CpuNode(
        topology.cpu,
        topology.cpu.all if unknown else topology.reserved,
        0 if unknown else pooled,
        bind=_BINDS.get(
            labels.get(CPU_BIND_POLICY, "not labelled"), BindPolicy.FULL_PCPUS if kubelet.full_pcpus_only else None
        ),
        whole_cores=kubelet.full_pcpus_only,
        strategy=_strategy(topology, labels, defaults),
        policy=_numa_policy(topology, labels, defaults),
        default_bind=defaults.bind,
        default_exclusive=defaults.exclusive,
        zones={at: _zone(zone) for at, zone in topology.zones.items()},
        architecture=labels.get(ARCHITECTURE, ""),
        kubelet_policy=topology.numa_policy if topology.numa_policy in REFUSING else NumaPolicy.NONE,
        kubelet_by_container=topology.numa_scope is NumaScope.CONTAINER,
        kubelet_gives_cpus=kubelet.policy is CpuManagerPolicy.STATIC,
        kubelet_by_socket=kubelet.align_by_socket,
        kubelet_reserved=kubelet.reserved,
        not_kubelets=topology.reserved & ~known_to_kubelet,
        holders_unknown=unknown,
    )


def _zone(zone: NumaZone) -> Zone:
    has = zone.allocatable
    others = tuple(sorted((name, amount) for name, amount in has.items() if name not in {"cpu", "memory"}))
    return Zone(has.get("cpu"), has.get("memory"), others)


def _strategy(topology: NodeTopology, labels: Mapping[str, str], defaults: CpuDefaults) -> NumaStrategy:
    label = labels.get(NUMA_ALLOCATE_STRATEGY)
    if label in _STRATEGIES:
        return NumaStrategy(label)
    return NumaStrategy.DISTRIBUTE_BEYOND_ONE if topology.kubelet.distribute_across_numa else defaults.strategy


def _numa_policy(topology: NodeTopology, labels: Mapping[str, str], defaults: CpuDefaults) -> NumaPolicy:
    for key in NUMA_TOPOLOGY_POLICIES:
        if labels.get(key) in list(NumaPolicy):
            return NumaPolicy(labels[key])
    return topology.numa_policy if topology.numa_policy is not NumaPolicy.NONE else defaults.numa_policy
