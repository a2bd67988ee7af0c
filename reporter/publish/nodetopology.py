"""The NodeResourceTopology (pure): CPUs, who has them, the shared pools, the kubelet's policies, and NUMA nodes.

Seed document 4, "NodeResourceTopology CRD"; Koordinator, pkg/koordlet/statesinformer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final

from allocator.cpu.pools import CpuHolder, Pools, pools
from allocator.cpu.qos import QosClass
from allocator.wire.nodetopology import (
    CpuManagerPolicy,
    KubeletCpus,
    NodeTopology,
    NumaZone,
    PodCpuAlloc,
    read_node_topology,
    write_node_topology,
)
from reporter.cgroup import plan
from reporter.inventory.cpus import CpuReading
from reporter.kubelet.configuration import STATIC, KubeletConfiguration, reserved_cpus
from reporter.kubelet.cpustate import CpuState, Layout, by_pod, kubelet_allocs
from reporter.pods import NodePod
from reporter.publish.identity import NodeIdentity

_MANAGER_LABEL: Final = "koordgate"
_OURS: Final = ("cpu", "memory")
_HUGE: Final = "hugepages-"
_SHARING: Final = (QosClass.LS, QosClass.BE)


@dataclass(frozen=True, slots=True)
class KubeletState:
    """The kubelet as read.

    Attributes:
        configuration: its configuration; None where it was never readable.
        cpus: its CPU manager's state; None likewise.
    """

    configuration: KubeletConfiguration | None
    cpus: CpuState | None


@dataclass(frozen=True, slots=True)
class TopologyObject:
    """The object to apply, and what enforcement is told from the same facts.

    Attributes:
        body: of the object; None where the CPUs are not known: better an old object than a wrong one.
        pools: the shared CPUs, for the plan of cpusets.
        kubelet: what the kubelet does with CPUs, likewise.
        problems: what could not be told.
    """

    body: dict[str, Any] | None
    pools: plan.Pools
    kubelet: plan.Kubelet
    problems: tuple[str, ...]


def build(
    node: NodeIdentity,
    cpus: CpuReading,
    zones: Mapping[int, NumaZone],
    kubelet: KubeletState,
    pods: Iterable[NodePod],
    live: Mapping[str, Any] | None = None,
) -> TopologyObject:
    """Write the object.

    Args:
        node: whose.
        cpus: of the machine.
        zones: what its NUMA nodes have.
        kubelet: as read.
        pods: of the node, none of them finished.
        live: the object as it stands: what others tell of a NUMA node stays.
    """
    pods = tuple(pods)
    given, unknown = _given(kubelet.cpus, pods)
    problems = [cpus.problem] if cpus.problem else []
    problems += [f"cpu_manager_state: no Pod is known of container {one[:12]}" for one in unknown]
    static = _is_static(kubelet)
    told = plan_kubelet(kubelet, given, static=static)
    if cpus.topology is None:
        return TopologyObject(None, plan.Pools(0, 0), told, tuple(problems))
    kept = read_node_topology({"metadata": {"annotations": node.annotations}})
    configuration = kubelet.configuration or KubeletConfiguration()
    reserved, unsure = reserved_cpus(configuration, cpus.topology)
    problems += [*kept.problems, *([unsure] if unsure else [])]
    shared = pools(
        cpus.topology,
        _holders(pods, given),
        static=static,
        node_reserved=kept.reservation.cpus,
        system_exclusive=kept.system.cpus if kept.system.exclusive else 0,
    )
    policies = read_node_topology({"topologyPolicies": list(configuration.topology_policies)})
    topology = NodeTopology(
        node=node.name,
        cpu=cpus.topology,
        basic=cpus.basic,
        kubelet=_told_policy(kubelet, reserved),
        numa_policy=policies.numa_policy,
        numa_scope=policies.numa_scope,
        pod_cpu_allocs=_allocs(pods, given),
        shared_pools=shared.shared,
        best_effort_pools=shared.best_effort,
        reservation=kept.reservation,
        system=kept.system,
        zones=_with_foreign(zones, live),
        managed_by=_MANAGER_LABEL,
    )
    body = write_node_topology(topology)
    body["metadata"]["ownerReferences"] = [node.owner]
    return TopologyObject(body, plan_pools(shared, kept.system.cpus), told, tuple(problems))


def plan_pools(shared: Pools, system: int) -> plan.Pools:
    """The pools as the plan of cpusets takes them: a NUMA node's CPUs together, whatever its sockets."""
    parts: list[dict[int, int]] = []
    for pool in (shared.shared, shared.best_effort):
        by_node: dict[int, int] = {}
        for one in pool:
            by_node[one.node] = by_node.get(one.node, 0) | one.cpus
        parts.append(by_node)
    sets = [reduce(or_, part.values(), 0) for part in parts]
    return plan.Pools(sets[0], sets[1], parts[0], parts[1], system)


def plan_kubelet(kubelet: KubeletState, given: Mapping[str, int], *, static: bool) -> plan.Kubelet:
    """The kubelet as the plan of cpusets takes it: by container where its state tells that, else by Pod."""
    state, configuration = kubelet.cpus, kubelet.configuration
    by_container = state.entries if state is not None and state.layout is Layout.V2 else {}
    return plan.Kubelet(
        static=static,
        given={uid: by_container.get(uid) or {"": cpus} for uid, cpus in given.items()},
        default=state.default if state is not None else 0,
        static_memory=configuration is not None and configuration.memory_policy == "Static",
    )


def _is_static(kubelet: KubeletState) -> bool:
    """Whether the kubelet's static policy is in force: its file may not know of a flag, its state does."""
    configured = kubelet.configuration is not None and kubelet.configuration.cpu_policy == STATIC
    return configured or (kubelet.cpus is not None and kubelet.cpus.policy == STATIC)


def _given(state: CpuState | None, pods: Iterable[NodePod]) -> tuple[dict[str, int], tuple[str, ...]]:
    if state is None:
        return {}, ()
    return by_pod(state, {container: pod.cgroup for pod in pods for container in pod.containers})


def _holders(pods: Iterable[NodePod], given: Mapping[str, int]) -> list[CpuHolder]:
    """Who has CPUs of their own: what was decided counts, of the rest what the kubelet gave."""
    decided = {pod.cgroup: pod for pod in pods if pod.cpus}
    return [
        *(CpuHolder(pod.cpus, pod.qos) for pod in decided.values()),
        *(CpuHolder(cpus, "", managed_by_kubelet=True) for uid, cpus in given.items() if uid not in decided),
    ]


def _allocs(pods: Iterable[NodePod], given: Mapping[str, int]) -> tuple[PodCpuAlloc, ...]:
    """What the kubelet gave; as Koordinator has it, without Pods labelled LS or BE and those that we decided on."""
    pods = tuple(pods)
    names = {pod.cgroup: (pod.namespace, pod.name) for pod in pods}
    leave_out = {pod.cgroup for pod in pods if pod.cpus or pod.qos in _SHARING}
    allocs = kubelet_allocs(given, names, leave_out)
    return tuple(PodCpuAlloc(one.namespace, one.name, one.uid, one.cpus, one.by_kubelet) for one in allocs)


def _told_policy(kubelet: KubeletState, reserved: int) -> KubeletCpus:
    configuration = kubelet.configuration
    if configuration is None:
        return KubeletCpus(CpuManagerPolicy.STATIC if _is_static(kubelet) else CpuManagerPolicy.UNKNOWN)
    policy = CpuManagerPolicy.STATIC if _is_static(kubelet) else CpuManagerPolicy.NONE
    return KubeletCpus(policy, dict(configuration.cpu_options or {}), reserved)


def _with_foreign(zones: Mapping[int, NumaZone], live: Mapping[str, Any] | None) -> dict[int, NumaZone]:
    """Keep what others tell of a NUMA node that is still there: the list of zones is one field, with one owner."""
    found = dict(zones)
    for number, zone in read_node_topology({"zones": (live or {}).get("zones")}).zones.items():
        if number in found:
            foreign = [name for name in zone.allocatable if name not in _OURS and not name.startswith(_HUGE)]
            ours = found[number]
            found[number] = NumaZone(
                {**{name: zone.allocatable[name] for name in foreign}, **ours.allocatable},
                {**{name: zone.capacity[name] for name in foreign}, **ours.capacity},
            )
    return found
