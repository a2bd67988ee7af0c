"""Which CPUs each Pod's containers run on (pure): the CPU proposal, "Take over kubelet CPU management policies".

- LSE and LSR: the CPUs that were decided for the Pod, all containers and the sandbox alike ("Only supports the CPU
  allocation mechanism of the Pod dimension").
- LS, and Pods without a class that are not BestEffort: the shared pool, or those NUMA nodes' parts of it that the Pod
  was bound to (cpuSharedPools).
- BE, and Kubernetes' BestEffort: the BE pool, likewise.
- A Pod whose resource-status cannot be read keeps the cpusets that it has: it may have CPUs of its own.
- What the kubelet's static policy owns is left alone, and reported: two writers of one cpuset undo each other for ever
  (koordinator#1214).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final

from allocator.vocabulary.cpuset import format_cpuset
from reporter.cgroup.layout import KubernetesQos

BE: Final = "BE"
SYSTEM: Final = "SYSTEM"


@dataclass(frozen=True, slots=True)
class Pod:
    """What is known of a Pod on this node. Sets are integers, bit i standing for CPU, or NUMA node, i.

    Attributes:
        uid: that its cgroup is named by (`layout.cgroup_uid`).
        name: namespace/name, for messages.
        qos_class: as Kubernetes has it.
        qos: its label koordinator.sh/qosClass; empty if it has none.
        cpus: decided for it (resource-status, `cpuset`); 0 where it owns none.
        pools: NUMA nodes whose shared pools it is bound to; 0 where it is bound to none.
        mems: NUMA nodes that its memory is bound to; 0 where that was not asked.
        whole_cpus: whether one of its containers requests whole CPUs: if it is Guaranteed, the static policy gives it
            some.
        unreadable: whether its resource-status cannot be read: its CPUs are unknown.
    """

    uid: str
    name: str
    qos_class: KubernetesQos
    qos: str = ""
    cpus: int = 0
    pools: int = 0
    mems: int = 0
    whole_cpus: bool = False
    unreadable: bool = False


@dataclass(frozen=True, slots=True)
class SharedCpus:
    """The shared CPUs of the node.

    Attributes:
        shared: for LS.
        best_effort: for BE.
        shared_by_node: NUMA node to its part of `shared`.
        best_effort_by_node: NUMA node to its part of `best_effort`.
        system: for Pods of the class SYSTEM; 0 where none are set aside, and then they are left alone.
    """

    shared: int
    best_effort: int
    shared_by_node: Mapping[int, int] = field(default_factory=dict)
    best_effort_by_node: Mapping[int, int] = field(default_factory=dict)
    system: int = 0


@dataclass(frozen=True, slots=True)
class KubeletRules:
    """What the kubelet does with CPUs by itself.

    Attributes:
        static: whether its CPU manager has the static policy.
        given: Pod UID to container to CPUs, from its state.
        default: the CPUs that it puts all other containers on; 0 where it puts none.
        static_memory: whether its memory manager has the static policy, and so binds the memory of Guaranteed Pods.
    """

    static: bool = False
    given: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    default: int = 0
    static_memory: bool = False


@dataclass(frozen=True, slots=True)
class WantedCpusets:
    """What a Pod's cgroups should have.

    Attributes:
        pod: whose.
        cpus: of every container and of the sandbox; 0 where they are left as they are.
        mems: likewise NUMA nodes.
        room: CPUs that the Pod's own cgroup has at least; 0 where it has exactly `cpus`. Where the kubelet writes
            containers' cpusets as well it must be able to: v1 refuses what the Pod's cgroup has not.
        note: what there is to say about it; empty if nothing.
    """

    pod: Pod
    cpus: int
    mems: int
    room: int = 0
    note: str = ""


def wants(pods: Iterable[Pod], pools: SharedCpus, kubelet: KubeletRules) -> tuple[WantedCpusets, ...]:
    """Decide for all Pods of the node."""
    return tuple(_want(pod, pools, kubelet) for pod in pods)


def _want(pod: Pod, pools: SharedCpus, kubelet: KubeletRules) -> WantedCpusets:
    reason = owned_by_kubelet(pod, kubelet)
    if reason:
        given = reduce(or_, kubelet.given.get(pod.uid, {}).values(), 0)
        return WantedCpusets(pod, 0, 0, room=given | kubelet.default, note=reason)
    if pod.unreadable:
        return WantedCpusets(pod, 0, 0, note=f"{pod.name}: its resource-status cannot be read; its CPUs are left alone")
    cpus, note = _cpus(pod, pools)
    mems = pod.mems
    if mems and kubelet.static_memory and pod.qos_class is KubernetesQos.GUARANTEED:
        mems, note = 0, f"{pod.name}: the kubelet's static memory policy owns its NUMA nodes; cpuset.mems is left alone"
    return WantedCpusets(pod, cpus, mems, room=(cpus | kubelet.default) if cpus and kubelet.static else 0, note=note)


def owned_by_kubelet(pod: Pod, kubelet: KubeletRules) -> str:
    """Say why a Pod's CPUs are the kubelet's business; empty if they are ours.

    They are ours where we decided them and the kubelet has the same (after a take-over). Guaranteed Pods that ask whole
    CPUs count before the kubelet's state says so: it writes a container's cpuset once, and would not put it back.
    """
    given = kubelet.given.get(pod.uid, {})
    if not kubelet.static or not (given or (pod.qos_class is KubernetesQos.GUARANTEED and pod.whole_cpus)):
        return ""
    if pod.cpus and given and all(cpus == pod.cpus for cpus in given.values()):
        return ""
    has = f"gave it {format_cpuset(reduce(or_, given.values(), 0))}" if given else "gives it CPUs"
    if pod.cpus:
        return (
            f"{pod.name}: CPUs {format_cpuset(pod.cpus)} were decided, but the kubelet's static policy {has} and owns"
            " them; set cpuManagerPolicy none, or have the kubelet's state taken over"
        )
    return f"{pod.name}: the kubelet's static policy {has}; left alone"


def _cpus(pod: Pod, pools: SharedCpus) -> tuple[int, str]:
    """The CPUs of a Pod that is ours, and a note."""
    if pod.cpus:
        return pod.cpus, ""
    if pod.qos == SYSTEM:
        return pools.system, ""
    best_effort = pod.qos == BE or (not pod.qos and pod.qos_class is KubernetesQos.BEST_EFFORT)
    whole = pools.best_effort if best_effort else pools.shared
    parts = pools.best_effort_by_node if best_effort else pools.shared_by_node
    name = "BE pool" if best_effort else "shared pool"
    if not whole:
        return 0, f"{pod.name}: the {name} has no CPU left; its containers stay where they are"
    if not pod.pools:
        return whole, ""
    bound = reduce(or_, (cpus for node, cpus in parts.items() if pod.pools >> node & 1), 0)
    if not bound:
        shown = format_cpuset(pod.pools)
        return whole, f"{pod.name}: the {name} of NUMA node {shown} has no CPU left; it runs on the whole pool"
    return bound, ""
