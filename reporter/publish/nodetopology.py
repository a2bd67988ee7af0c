"""The NodeResourceTopology (pure): CPUs, their holders, the shared pools, the kubelet's policies, and NUMA nodes.

CPU proposal, "NodeResourceTopology CRD"; Koordinator, pkg/koordlet/statesinformer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any, Final

from allocator.cpu.pools import CpuHolder, CpuPools, pools
from allocator.vocabulary.cputopology import CpuTopology, format_cpuset
from allocator.wire.nodetopology import (
    NODE_RESERVATION,
    SYSTEM_QOS_RESOURCE,
    CpuManagerPolicy,
    KubeletCpus,
    NodeReservation,
    NodeTopology,
    NumaZone,
    PodCpuAlloc,
    read_kept,
    read_node_topology,
    write_node_topology,
)
from reporter.cgroup import plan
from reporter.inventory import CpuInventory
from reporter.kubelet.configuration import STATIC, KubeletConfiguration, reserved_cpus, take_reserved
from reporter.kubelet.cpustate import CpuState, by_pod
from reporter.pods import NodeIdentity, NodePod

_MANAGED_BY: Final = "Koordinator"  # as koordlet writes it; others select by it
_HUGE: Final = "hugepages-"
_KEPT: Final = (NODE_RESERVATION, SYSTEM_QOS_RESOURCE)


@dataclass(frozen=True, slots=True)
class KubeletState:
    """The kubelet as read."""

    configuration: KubeletConfiguration | None  # its configuration; None if it was never readable
    cpus: CpuState | None  # its CPU manager's state; likewise
    in_force: bool = False  # whether the configuration is what the kubelet answered; a file lacks its flags

    @property
    def static(self) -> bool:
        """Whether its static policy is in force: a flag is not in its configuration file, but shows in its state."""
        configured = self.configuration is not None and self.configuration.cpu_policy == STATIC
        return configured or (self.cpus is not None and self.cpus.policy == STATIC)

    @property
    def gave_known(self) -> bool:
        """Whether it is known which CPUs it allocated: from its state, or because it says that it gives none."""
        return self.cpus is not None or (self.in_force and self.configuration is not None and not self.static)


@dataclass(frozen=True, slots=True)
class TopologyObject:
    """The object to apply, and what enforcement uses from the same facts."""

    # the object; None if the CPUs, or those that the kubelet allocated, are unknown: an old object is better than a
    # wrong one
    body: dict[str, Any] | None
    pools: plan.SharedCpus  # the shared CPUs, for the cpuset plan
    kubelet: plan.KubeletRules  # what the kubelet does with CPUs, likewise
    problems: tuple[str, ...]  # what could not be reported, a sentence each
    too_large: str = ""  # the problem that more CPUs are reserved than the machine has; "" if it is none of them


def build(
    node: NodeIdentity,
    cpus: CpuInventory,
    zones: Mapping[int, NumaZone],
    kubelet: KubeletState,
    pods: Iterable[NodePod],
    live: Mapping[str, Any] | None = None,
    cpusets: Mapping[str, int] | None = None,
) -> TopologyObject:
    """Write the object.

    `live`: the object in the cluster; entries of others for a NUMA node are kept, and what it says of a kubelet whose
    configuration was never readable. `cpusets`: UID of a Pod to the CPUs on which its containers run; needed of Pods
    whose resource-status cannot be read.
    """
    pods = tuple(pods)
    given = by_pod(kubelet.cpus) if kubelet.cpus is not None else {}
    problems = [cpus.problem] if cpus.problem else []
    planned = plan_kubelet(kubelet, given)
    if cpus.topology is None:
        return TopologyObject(None, plan.SharedCpus(0, 0), planned, tuple(problems))
    reservation, system, unread = read_kept(node.annotations)
    # An amount becomes CPUs in the kubelet's order, as in Koordinator (pkg/koordlet/statesinformer).
    kept = reservation.cpus or take_reserved(cpus.topology, -(-reservation.milli // 1000))
    configuration = kubelet.configuration or KubeletConfiguration()
    too_large = _too_large(reservation, cpus.topology)
    of_kubelet, unsure = reserved_cpus(configuration, cpus.topology)
    allocs = _allocs(pods, given, planned)
    problems += [*unread, *filter(None, (unsure, too_large)), *_given_twice(pods, allocs)]
    shared = pools(
        cpus.topology,
        _holders(pods, allocs, cpusets or {}, cpus.topology.all & ~kept),
        node_reserved=kept,
        system_exclusive=system.cpus if system.exclusive else 0,
    )
    policies = read_node_topology({"topologyPolicies": list(configuration.topology_policies)})
    told = _told_policy(kubelet, of_kubelet)
    if kubelet.configuration is None and live is not None:
        policies = read_node_topology(live)
        told = policies.kubelet
    topology = NodeTopology(
        node=node.name,
        cpu=cpus.topology,
        basic=cpus.basic,
        kubelet=told,
        numa_policy=policies.numa_policy,
        numa_scope=policies.numa_scope,
        pod_cpu_allocs=_with_own(pods, allocs),
        shared_pools=shared.shared,
        best_effort_pools=shared.best_effort,
        reservation=NodeReservation(kept),
        system=system,
        zones=_with_available(_with_foreign(zones, live), zones, pods, allocs, cpus.topology),
        managed_by=_MANAGED_BY,
    )
    body = _written(topology, node, readable=not unread) if kubelet.gave_known else None
    planned = replace(planned, reserved=of_kubelet)
    return TopologyObject(body, plan_pools(shared, system.cpus), planned, tuple(problems), too_large)


def _too_large(reservation: NodeReservation, machine: CpuTopology) -> str:
    """Report a reservation of more CPUs, or of other ones, than the machine has; "" if it has them all."""
    count = machine.all.bit_count()
    where = f"annotation {NODE_RESERVATION}"
    if absent := reservation.cpus & ~machine.all:
        left = (machine.all & ~reservation.cpus).bit_count()
        return (
            f"{where}: reserves CPUs {format_cpuset(absent)}, which the machine lacks; {left} of {count} CPUs are left"
        )
    wanted = -(-reservation.milli // 1000)
    if not reservation.cpus and wanted > count:
        return f"{where}: reserves {wanted} CPUs, but the machine has {count}; no CPU is left for Pods"
    return ""


def _written(topology: NodeTopology, node: NodeIdentity, *, readable: bool) -> dict[str, Any]:
    """Write the object; unreadable annotations of the Node are copied as they are, so that no reader assumes none."""
    body = write_node_topology(topology)
    body["metadata"]["ownerReferences"] = [node.owner]
    if not readable:
        annotations = {key: text for key, text in node.annotations.items() if key in _KEPT}
        body["metadata"]["annotations"].update(annotations)
    return body


def plan_pools(shared: CpuPools, system: int) -> plan.SharedCpus:
    """The pools for the cpuset plan: all CPUs of a NUMA node together, of any socket."""
    parts: list[dict[int, int]] = []
    for pool in (shared.shared, shared.best_effort):
        by_node: dict[int, int] = {}
        for one in pool:
            by_node[one.node] = by_node.get(one.node, 0) | one.cpus
        parts.append(by_node)
    sets = [reduce(or_, part.values(), 0) for part in parts]
    return plan.SharedCpus(sets[0], sets[1], parts[0], parts[1], system)


def plan_kubelet(kubelet: KubeletState, given: Mapping[str, int]) -> plan.KubeletRules:
    """The kubelet's rules for the cpuset plan: CPUs by container if its state has them, otherwise by Pod."""
    state, configuration = kubelet.cpus, kubelet.configuration
    return plan.KubeletRules(
        static=kubelet.static,
        given={uid: _by_container(state, uid, cpus) for uid, cpus in given.items()},
        default=state.default if state is not None else 0,
        static_memory=configuration is not None and configuration.memory_policy == "Static",
    )


def _by_container(state: CpuState | None, uid: str, cpus: int) -> dict[str, int]:
    """What each container of a Pod has; CPUs that only the Pod as a whole has are under the name ""."""
    containers = dict(state.entries.get(uid, {})) if state is not None else {}
    left = cpus & ~reduce(or_, containers.values(), 0)
    return {**containers, "": left} if left else containers


def _holders(
    pods: Sequence[NodePod], allocs: Iterable[PodCpuAlloc], cpusets: Mapping[str, int], machine: int
) -> list[CpuHolder]:
    """Who has CPUs of their own: if the kubelet gave a Pod other CPUs than were allocated, the Pod holds both.

    A Pod whose resource-status cannot be read holds the CPUs on which its containers run. A set that overlaps the CPUs
    of another Pod is none of its own: nobody has pinned it yet. Nor is one of a Pod without a class that leaves nothing
    to others: that is the shared pool.
    `cpusets`: UID of a Pod to the CPUs on which its containers run.
    """
    known = [
        *(CpuHolder(pod.cpus, pod.qos) for pod in pods if pod.cpus),
        *(CpuHolder(alloc.cpus, "", managed_by_kubelet=True) for alloc in allocs),
    ]
    taken = reduce(or_, (holder.cpus for holder in known), 0)
    unread = [(cpusets.get(pod.uid, 0), pod.qos) for pod in pods if pod.may_own_cpus]
    own = [
        CpuHolder(cpus, qos) for cpus, qos in unread if cpus and not cpus & taken and (qos or machine & ~taken & ~cpus)
    ]
    return [*known, *own]


def _allocs(pods: Iterable[NodePod], given: Mapping[str, int], kubelet: plan.KubeletRules) -> tuple[PodCpuAlloc, ...]:
    """The CPUs that the kubelet allocated and manages; only its static policy gives any.

    Koordinator leaves out Pods labelled LS or BE, since it moves them to the shared pools. We do not change what the
    kubelet manages.
    """
    if not kubelet.static:
        return ()
    pods = tuple(pods)
    names = {pod.cgroup: (pod.namespace, pod.name) for pod in pods}
    ours = {pod.cgroup for pod in pods if not plan.owned_by_kubelet(pod.planned(mems=False), kubelet)}
    return tuple(
        PodCpuAlloc(
            *names.get(uid, ("", "")), uid, cpus, managed_by_kubelet=True
        )  # one that was just deleted has no name
        for uid, cpus in given.items()
        if uid not in ours
    )


def _with_own(pods: Iterable[NodePod], allocs: Iterable[PodCpuAlloc]) -> tuple[PodCpuAlloc, ...]:
    """Add the Pods to which CPUs of their own were allocated, LSE and LSR ones (CPU proposal); by UID.

    A Pod that the kubelet gave CPUs is listed once, as managed by it.
    """
    listed = {alloc.uid for alloc in allocs}
    own = [
        PodCpuAlloc(pod.namespace, pod.name, pod.uid, pod.cpus)
        for pod in pods
        if pod.cpus and not listed & {pod.uid, pod.cgroup}
    ]
    return tuple(sorted([*allocs, *own], key=lambda one: (one.uid, one.cpus)))


def _given_twice(pods: Iterable[NodePod], allocs: Iterable[PodCpuAlloc]) -> Iterator[str]:
    """Report CPUs that were allocated to one Pod and that the kubelet, unaware of it, gave to another."""
    decided = [pod for pod in pods if pod.cpus]
    for alloc in allocs:
        for pod in decided:
            if pod.cgroup != alloc.uid and (twice := pod.cpus & alloc.cpus):
                other = f"{alloc.namespace}/{alloc.name}" if alloc.name else f"a Pod with UID {alloc.uid}"
                yield (
                    f"{pod}: CPUs {format_cpuset(twice)} were allocated to it, but the kubelet's static policy gave "
                    f"them to {other}; delete one of the two, and set cpuManagerPolicy none"
                )


def _told_policy(kubelet: KubeletState, reserved: int) -> KubeletCpus:
    configuration = kubelet.configuration
    if configuration is None:
        return KubeletCpus(CpuManagerPolicy.STATIC if kubelet.static else CpuManagerPolicy.UNKNOWN)
    policy = CpuManagerPolicy.STATIC if kubelet.static else CpuManagerPolicy.NONE
    return KubeletCpus(policy, dict(configuration.cpu_options or {}), reserved)


def _with_foreign(zones: Mapping[int, NumaZone], live: Mapping[str, Any] | None) -> dict[int, NumaZone]:
    """Keep the entries of NUMA nodes that still exist, where nothing newer was read.

    They are those of others, because the list of zones is one field with one owner, and memory that cannot be read.
    A size of huge pages without files is gone.
    """
    found = dict(zones)
    for number, zone in read_node_topology({"zones": (live or {}).get("zones")}).zones.items():
        if number in found:
            ours = found[number]
            foreign = [name for name in zone.allocatable if name not in ours.allocatable and not name.startswith(_HUGE)]
            found[number] = NumaZone(
                {**{name: zone.allocatable[name] for name in foreign}, **ours.allocatable},
                {**{name: zone.capacity[name] for name in foreign}, **ours.capacity},
                {name: zone.available[name] for name in foreign},
            )
    return found


def _with_available(
    zones: Mapping[int, NumaZone],
    ours: Mapping[int, NumaZone],
    pods: Sequence[NodePod],
    allocs: Iterable[PodCpuAlloc],
    topology: CpuTopology,
) -> dict[int, NumaZone]:
    """State what no Pod holds of what the reporter reads: allocatable less the CPUs and amounts that Pods were given.

    CPU proposal, "NodeResourceTopology CRD". A Pod that has CPUs of its own holds these, even if its amounts are less.
    """
    cpus = {pod.cgroup: pod.cpus for pod in pods}
    for alloc in allocs:
        cpus[alloc.uid] = cpus.get(alloc.uid, 0) | alloc.cpus
    stated = {(pod.cgroup, one.node): one.amounts for pod in pods if pod.status is not None for one in pod.status.numa}
    found = dict(zones)
    for number in ours.keys() & zones.keys():
        held = Counter[str]()
        for uid, own in cpus.items():
            amounts = stated.get((uid, number), {})
            whole = 1000 * (own & topology.nodes.get(number, 0)).bit_count()
            held.update({**amounts, "cpu": max(amounts.get("cpu", 0), whole)})
        free = {name: max(has - held[name], 0) for name, has in ours[number].allocatable.items()}
        found[number] = replace(zones[number], available={**zones[number].available, **free})
    return found
