"""The NodeResourceTopology object (topology.node.k8s.io/v1alpha1): CPUs and NUMA nodes of one node, and who has them.

Koordinator's annotations on it (CPU proposal, "NodeResourceTopology CRD"; Koordinator, apis/extension and
pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go) are read in both spellings that are in use, and
written as koordlet writes them.
An administrator keeps CPUs from Pods by annotations of the object or of a Node: node.koordinator.sh/reservation and
node.koordinator.sh/system-qos-resource (Koordinator, apis/extension).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

from allocator.quantity import to_milli
from allocator.vocabulary.cpunode import NumaPolicy, PoolCpus
from allocator.vocabulary.cputopology import Cpu, CpuTopology, format_cpuset
from allocator.vocabulary.outcome import excerpt
from allocator.wire.values import (
    MAX_OF_NODE,
    UNREADABLE,
    Problems,
    as_cpus,
    as_flag,
    as_id,
    as_json,
    as_list,
    as_object,
    as_text,
    one_of,
    read_amount,
    stated,
    write_amount,
)

NODE_RESERVATION: Final = "node.koordinator.sh/reservation"
SYSTEM_QOS_RESOURCE: Final = "node.koordinator.sh/system-qos-resource"


@dataclass(frozen=True, slots=True)
class NodeReservation:
    """What the administrator keeps from all Pods: CPUs by number, or else an amount in thousandths of a CPU.

    The node's reporter turns an amount into CPUs (Koordinator, pkg/koordlet/statesinformer); only it knows which.
    """

    cpus: int = 0
    milli: int = 0


@dataclass(frozen=True, slots=True)
class SystemCpus:
    """The CPUs of Pods of class SYSTEM, and whether these have them for themselves."""

    cpus: int = 0
    exclusive: bool = True


def read_kept(annotations: Mapping[str, Any]) -> tuple[NodeReservation, SystemCpus, tuple[str, ...]]:
    """Read what an administrator keeps on a Node, by annotations of the same names; and what cannot be read of it."""
    problems = Problems()
    return *read_kept_into(problems, annotations), tuple(problems)


def read_kept_into(problems: Problems, annotations: Mapping[str, Any]) -> tuple[NodeReservation, SystemCpus]:
    """Read what an administrator keeps; what cannot be read is left out and named in `problems`."""
    reserved, system = (
        problems.read(f"annotation {key}", as_json, annotations.get(key), None)
        for key in (NODE_RESERVATION, SYSTEM_QOS_RESOURCE)
    )
    return _read_reservation(reserved, problems), _read_system(system, problems)


def _read_reservation(raw: object, problems: Problems) -> NodeReservation:
    where = f"annotation {NODE_RESERVATION}"
    entry = problems.object(where, raw)
    amounts = problems.object(f"{where}: resources", entry.get("resources"))
    return NodeReservation(
        problems.read(f"{where}: reservedCPUs", as_cpus, entry.get("reservedCPUs"), 0),
        problems.read(f"{where}: resources: cpu", _milli, amounts.get("cpu"), 0),
    )


def _milli(value: object) -> int:
    return 0 if value is None else to_milli(value)


def _read_system(raw: object, problems: Problems) -> SystemCpus:
    where = f"annotation {SYSTEM_QOS_RESOURCE}"
    entry = problems.object(where, raw)
    exclusive = entry.get("cpusetExclusive")
    return SystemCpus(
        problems.read(f"{where}: cpuset", as_cpus, entry.get("cpuset"), 0),
        exclusive is None or problems.read(f"{where}: cpusetExclusive", as_flag, exclusive, True),
    )


def write_reservation(reservation: NodeReservation) -> dict[str, Any]:
    """Write the value of the annotation `NODE_RESERVATION`."""
    return stated(
        resources={"cpu": write_amount("cpu", reservation.milli)} if reservation.milli else {},
        reservedCPUs=format_cpuset(reservation.cpus),
    )


def write_system(system: SystemCpus) -> dict[str, Any]:
    """Write the value of the annotation `SYSTEM_QOS_RESOURCE`."""
    exclusive = {} if system.exclusive else {"cpusetExclusive": False}
    return {"cpuset": format_cpuset(system.cpus), **exclusive}


_ZONE_TYPE: Final = "Node"
_ZONE_NAME: Final = re.compile(r"node-(0|[1-9][0-9]{0,8})", re.ASCII)


@dataclass(frozen=True, slots=True)
class NumaZone:
    """What one NUMA node has, by resource: cpu in thousandths, memory in bytes, others in their unit."""

    allocatable: Mapping[str, int]  # what Pods may have
    capacity: Mapping[str, int]
    # what no Pod holds yet, for other readers; what is not named is all available. Nobody here decides by it, so that
    # zones that differ in it alone are equal.
    available: Mapping[str, int] = field(default_factory=dict, compare=False)


def read_zones(value: object, problems: Problems) -> dict[int, NumaZone]:
    """Read the zones by NUMA node, ascending; a malformed zone is left out and named in `problems`."""
    zones: dict[int, NumaZone] = {}
    for index, entry in enumerate(problems.list("zones", value)):
        where = f"zones[{index}]"
        node = problems.read(where, _zone_node, entry, None)
        if node is None:
            continue
        if node in zones:
            problems.append(f"{where}: NUMA node {node} occurs twice; left out")
            continue
        zones[node] = _read_zone(f"{where}.resources", entry.get("resources"), problems)
    return dict(sorted(zones.items()))


def _zone_node(value: object) -> int | None:
    """The NUMA node of a zone; None for a zone that is something else."""
    entry = as_object(value)
    if entry.get("type") != _ZONE_TYPE:
        return None
    match = _ZONE_NAME.fullmatch(as_text(entry.get("name")))
    if match is None:
        raise ValueError("the name of a NUMA node is node- and its number")
    return int(match[1])


def _read_zone(where: str, value: object, problems: Problems) -> NumaZone:
    allocatable: dict[str, int] = {}
    capacity: dict[str, int] = {}
    available: dict[str, int] = {}
    for name, has, could, free in problems.each(where, _zone_resource, value):
        if name in allocatable:
            problems.append(f"{where}: {excerpt(name)!r} occurs twice; the first counts")
            continue
        allocatable[name] = has
        capacity[name] = could
        available[name] = free
    return NumaZone(allocatable, capacity, available)


def _zone_resource(value: object) -> tuple[str, int, int, int]:
    """Read a resource's name, what Pods may have of it, what there is, and what is free; the last two may be absent."""
    entry = as_object(value)
    name = as_text(entry.get("name"))
    if not name:
        raise ValueError("no name")
    has = read_amount(name, entry.get("allocatable"))
    could, free = (
        has if (one := entry.get(key)) is None else read_amount(name, one) for key in ("capacity", "available")
    )
    return name, has, could, free


def write_zones(zones: Mapping[int, NumaZone]) -> list[dict[str, Any]]:
    """Write the zones by NUMA node."""
    return [
        {"name": f"node-{node}", "type": _ZONE_TYPE, "resources": _write_zone(zone)}
        for node, zone in sorted(zones.items())
    ]


def _write_zone(zone: NumaZone) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "capacity": write_amount(name, zone.capacity[name]),
            "allocatable": write_amount(name, amount),
            "available": write_amount(name, zone.available.get(name, amount)),
        }
        for name, amount in sorted(zone.allocatable.items())
    ]


API_VERSION: Final = "topology.node.k8s.io/v1alpha1"
KIND: Final = "NodeResourceTopology"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"

CPU_MANAGER_POLICY: Final = "kubelet.koordinator.sh/cpu-manager-policy"
CPU_TOPOLOGY: Final = "node.koordinator.sh/cpu-topology"
CPU_BASIC_INFO: Final = "node.koordinator.sh/cpu-basic-info"
POD_CPU_ALLOCS: Final = "node.koordinator.sh/pod-cpu-allocs"
CPU_SHARED_POOLS: Final = "node.koordinator.sh/cpu-shared-pools"
BE_CPU_SHARED_POOLS: Final = "node.koordinator.sh/be-cpu-shared-pools"

FULL_PCPUS_ONLY: Final = "full-pcpus-only"
DISTRIBUTE_ACROSS_NUMA: Final = "distribute-cpus-across-numa"
ALIGN_BY_SOCKET: Final = "align-by-socket"

_TRUE: Final = ("1", "t", "T", "true", "TRUE", "True")  # the spellings of Go, and therefore of the kubelet


class CpuManagerPolicy(StrEnum):
    """The kubelet's CPU manager policy; the empty text if it is not known."""

    STATIC = "static"
    NONE = "none"
    UNKNOWN = ""


class NumaScope(StrEnum):
    """What the kubelet's topology manager aligns: each container, or the Pod."""

    CONTAINER = "ContainerLevel"
    POD = "PodLevel"


@dataclass(frozen=True, slots=True)
class KubeletCpus:
    """The kubelet's CPU manager: its policy, the policy's options as it spells them, and the CPUs it reserves."""

    policy: CpuManagerPolicy = CpuManagerPolicy.UNKNOWN
    options: Mapping[str, str] = field(default_factory=dict)
    reserved: int = 0

    @property
    def full_pcpus_only(self) -> bool:
        """Whether it takes whole cores only."""
        return self._has(FULL_PCPUS_ONLY)

    @property
    def distribute_across_numa(self) -> bool:
        """Whether it spreads CPUs evenly if it takes more than one NUMA node."""
        return self._has(DISTRIBUTE_ACROSS_NUMA)

    @property
    def align_by_socket(self) -> bool:
        """Whether it aligns CPUs to sockets instead of NUMA nodes."""
        return self._has(ALIGN_BY_SOCKET)

    def _has(self, option: str) -> bool:
        return self.policy is CpuManagerPolicy.STATIC and self.options.get(option) in _TRUE


@dataclass(frozen=True, slots=True)
class PodCpuAlloc:
    """The CPUs of one Pod, and whether the kubelet's static policy chose them."""

    namespace: str
    name: str
    uid: str
    cpus: int
    managed_by_kubelet: bool = False


@dataclass(frozen=True, slots=True)
class CpuBasicInfo:
    """What the machine's processors are; nothing is decided by it."""

    model: str = ""
    hyper_threading: bool = False
    turbo: bool = False
    cat_l3_mask: str = ""
    vendor: str = ""


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """A NodeResourceTopology object as read, or to be written. Sets of CPUs are integers, bit i for CPU i."""

    node: str
    cpu: CpuTopology | None = None  # its CPUs; None if they are not reported, or contradict one another
    basic: CpuBasicInfo = CpuBasicInfo()  # what its processors are
    kubelet: KubeletCpus = KubeletCpus()  # the kubelet's CPU manager
    numa_policy: NumaPolicy = NumaPolicy.NONE  # the policy of the kubelet's topology manager
    numa_scope: NumaScope = NumaScope.CONTAINER  # what that policy aligns
    pod_cpu_allocs: tuple[PodCpuAlloc, ...] = ()  # Pods that have CPUs, as the reporter lists them
    shared_pools: tuple[PoolCpus, ...] = ()  # the CPUs of LS and Burstable Pods, as the reporter lists them
    best_effort_pools: tuple[PoolCpus, ...] = ()  # those of BE and BestEffort Pods, likewise
    reservation: NodeReservation = field(default_factory=NodeReservation)  # what is kept from all Pods
    system: SystemCpus = field(default_factory=SystemCpus)  # the CPUs of system Pods
    zones: Mapping[int, NumaZone] = field(default_factory=dict)  # NUMA node to what it has
    managed_by: str = ""  # the label app.kubernetes.io/managed-by
    # whether the CPUs that no Pod may get, or the kubelet's rules, could not be read in full; no Pod then gets any
    holders_unknown: bool = False
    problems: tuple[str, ...] = ()  # what could not be read, a sentence each; the rest still counts

    @property
    def by_kubelet(self) -> tuple[PodCpuAlloc, ...]:
        """The Pods whose CPUs the kubelet chose.

        Under the policy none it binds nothing (CPU proposal, QoS principle 7): earlier entries are stale.
        """
        if self.kubelet.policy is CpuManagerPolicy.NONE:
            return ()
        return tuple(alloc for alloc in self.pod_cpu_allocs if alloc.managed_by_kubelet)

    @property
    def reserved(self) -> int:
        """The CPUs that no Pod may get (Koordinator, pkg/scheduler/plugins/nodenumaresource)."""
        reserved = self.kubelet.reserved | self.reservation.cpus
        if self.system.exclusive:
            reserved |= self.system.cpus
        for alloc in self.by_kubelet:
            reserved |= alloc.cpus
        return reserved


# Reading


def read_node_topology(obj: Mapping[str, Any]) -> NodeTopology:
    """Read a NodeResourceTopology object; what cannot be read is left out and named in `problems`.

    An annotation that is absent, empty or JSON's `null` states nothing. If one CPU of the topology cannot be read, or
    CPUs contradict one another, all are left out: a core that lacks a thread would look whole.
    """
    problems = Problems()
    metadata = problems.object("metadata", obj.get("metadata"))
    labels = problems.object("metadata.labels", metadata.get("labels"))
    annotations = problems.object("metadata.annotations", metadata.get("annotations"))

    read_json = partial(as_json, most=MAX_OF_NODE)

    def annotation(key: str) -> Any:
        return problems.read(f"annotation {key}", read_json, annotations.get(key), None)

    def pools(key: str) -> tuple[PoolCpus, ...]:
        return problems.each(f"annotation {key}", read_pool, annotation(key))

    before = len(problems)
    kubelet = _read_kubelet(annotation(CPU_MANAGER_POLICY), problems)
    allocs = problems.each(f"annotation {POD_CPU_ALLOCS}", _pod_cpu_alloc, annotation(POD_CPU_ALLOCS))
    reservation, system = read_kept_into(problems, annotations)
    if reservation.milli and not reservation.cpus:
        problems.append(f"annotation {NODE_RESERVATION}: an amount of CPUs, but no CPU numbers; state reservedCPUs")
    holders_unknown = len(problems) > before
    numa_policy, numa_scope = _read_topology_policies(obj.get("topologyPolicies"), problems)
    return NodeTopology(
        node=problems.read("metadata.name", as_text, metadata.get("name"), ""),
        cpu=_read_cpus(annotation(CPU_TOPOLOGY), problems),
        basic=problems.read(f"annotation {CPU_BASIC_INFO}", _basic_info, annotation(CPU_BASIC_INFO), CpuBasicInfo()),
        kubelet=kubelet,
        numa_policy=numa_policy,
        numa_scope=numa_scope,
        pod_cpu_allocs=allocs,
        shared_pools=pools(CPU_SHARED_POOLS),
        best_effort_pools=pools(BE_CPU_SHARED_POOLS),
        reservation=reservation,
        system=system,
        zones=read_zones(obj.get("zones"), problems),
        managed_by=problems.read(f"label {MANAGED_BY}", as_text, labels.get(MANAGED_BY), ""),
        holders_unknown=holders_unknown,
        problems=tuple(problems),
    )


def read_pool(value: object) -> PoolCpus:
    """Read one entry of a list of pools (CPU proposal, CPUSharedPool).

    Raises ValueError, TypeError: it is malformed.
    """
    entry = as_object(value)
    return PoolCpus(as_id(entry, "socket"), as_id(entry, "node"), as_cpus(entry.get("cpuset")))


def _read_cpus(raw: object, problems: Problems) -> CpuTopology | None:
    try:
        detail = as_list(as_object(raw).get("detail"))
        return CpuTopology.of(_cpu(entry) for entry in detail) if detail else None
    except UNREADABLE as error:
        problems.append(f"annotation {CPU_TOPOLOGY}: {error}; the CPU topology cannot be used")
        return None


def _cpu(value: object) -> Cpu:
    entry = as_object(value)
    return Cpu(as_id(entry, "id"), as_id(entry, "core"), as_id(entry, "socket"), as_id(entry, "node"))


def _basic_info(raw: object) -> CpuBasicInfo:
    entry = as_object(raw)
    return CpuBasicInfo(
        model=as_text(entry.get("cpuModel")),
        hyper_threading=as_flag(entry.get("hyperThreadEnabled")),
        turbo=as_flag(entry.get("turboEnabled")),
        cat_l3_mask=as_text(entry.get("catL3CbmMask")),
        vendor=as_text(entry.get("vendorID")),
    )


def _read_kubelet(raw: object, problems: Problems) -> KubeletCpus:
    where = f"annotation {CPU_MANAGER_POLICY}"
    entry = problems.object(where, raw)
    return KubeletCpus(
        problems.read(f"{where}: policy", one_of(CpuManagerPolicy), entry.get("policy"), CpuManagerPolicy.UNKNOWN),
        problems.read(f"{where}: options", _options, entry.get("options"), {}),
        problems.read(f"{where}: reservedCPUs", as_cpus, entry.get("reservedCPUs"), 0),
    )


def _options(value: object) -> dict[str, str]:
    return {as_text(key): as_text(option) for key, option in as_object(value).items()}


def _pod_cpu_alloc(value: object) -> PodCpuAlloc:
    entry = as_object(value)
    cpus = {as_cpus(entry[key]) for key in ("cpuset", "cpu") if key in entry}  # "cpu" in the CPU proposal's example
    if len(cpus) > 1:
        raise ValueError("cpuset and cpu differ")
    managed_by_kubelet = as_flag(entry.get("managedByKubelet"))
    if managed_by_kubelet and not any(cpus):
        raise ValueError("managed by the kubelet, but without a CPU in cpuset")
    return PodCpuAlloc(
        namespace=as_text(entry.get("namespace")),
        name=as_text(entry.get("name")),
        uid=as_text(entry.get("uid")),
        cpus=cpus.pop() if cpus else 0,
        managed_by_kubelet=managed_by_kubelet,
    )


def _read_topology_policies(value: object, problems: Problems) -> tuple[NumaPolicy, NumaScope]:
    """Read the topology manager's policy; the API has a list of them, the kubelet has one."""
    known = problems.each("topologyPolicies", _topology_policy, value)
    if len(set(known)) > 1:
        problems.append("topologyPolicies: more than one policy; the first counts")
    return known[0] if known else (NumaPolicy.NONE, NumaScope.CONTAINER)


def _topology_policy(value: object) -> tuple[NumaPolicy, NumaScope]:
    """Read one policy with its scope; both single-NUMA levels are SingleNUMANode (CPU proposal)."""
    text = as_text(value)
    for policy in NumaPolicy:
        if text == policy.value:  # the API has policies without a scope, too: of the kubelet's default, the container
            return policy, NumaScope.CONTAINER
        for scope in NumaScope:
            if policy is not NumaPolicy.NONE and text == policy.value + scope.value:
                return policy, scope
    raise ValueError(f"{excerpt(text)!r} is no policy of the kubelet's topology manager")


# Writing


def write_node_topology(topology: NodeTopology) -> dict[str, Any]:
    """Write the whole object, as koordlet does; of a zone's resources all that is allocatable is available.

    The annotation of system Pods' CPUs is left out if they have none, and cpu-topology if it is unknown.
    """
    labels = {MANAGED_BY: topology.managed_by} if topology.managed_by else {}
    policy = topology.numa_policy
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": topology.node,
            **({"labels": labels} if labels else {}),
            "annotations": _write_annotations(topology),
        },
        "topologyPolicies": [policy.value if policy is NumaPolicy.NONE else policy.value + topology.numa_scope.value],
        "zones": write_zones(topology.zones),
    }


def _write_annotations(topology: NodeTopology) -> dict[str, str]:
    basic, kubelet = topology.basic, topology.kubelet
    values: dict[str, Any] = {
        CPU_BASIC_INFO: stated(
            cpuModel=basic.model,
            hyperThreadEnabled=basic.hyper_threading,
            turboEnabled=basic.turbo,
            catL3CbmMask=basic.cat_l3_mask,
            vendorID=basic.vendor,
        ),
        CPU_MANAGER_POLICY: stated(
            policy=kubelet.policy.value,
            options=dict(sorted(kubelet.options.items())),
            reservedCPUs=format_cpuset(kubelet.reserved),
        ),
        CPU_SHARED_POOLS: [write_pool(pool) for pool in topology.shared_pools],
        BE_CPU_SHARED_POOLS: [write_pool(pool) for pool in topology.best_effort_pools],
        POD_CPU_ALLOCS: [_write_alloc(alloc) for alloc in topology.pod_cpu_allocs] or None,
        NODE_RESERVATION: write_reservation(topology.reservation),
    }
    if topology.cpu is not None:
        values[CPU_TOPOLOGY] = {"detail": [cpu._asdict() for cpu in topology.cpu.cpus]}
    if topology.system.cpus:
        values[SYSTEM_QOS_RESOURCE] = write_system(topology.system)
    return {key: json.dumps(value, separators=(",", ":")) for key, value in values.items()}


def _write_alloc(alloc: PodCpuAlloc) -> dict[str, Any]:
    return stated(
        namespace=alloc.namespace,
        name=alloc.name,
        uid=alloc.uid,
        cpuset=format_cpuset(alloc.cpus),
        managedByKubelet=alloc.managed_by_kubelet,
    )


def write_pool(pool: PoolCpus) -> dict[str, Any]:
    """Write one entry of a list of pools; an empty set is left out."""
    return {"socket": pool.socket, "node": pool.node, **stated(cpuset=format_cpuset(pool.cpus))}
