"""Which CPUs each Pod's containers run on (pure): the CPU proposal, "Take over kubelet CPU management policies".

- LSE and LSR: the CPUs that were allocated to the Pod, for the sandbox and all containers ("Only supports the CPU
  allocation mechanism of the Pod dimension") but those that run in the shared pool (`allocator.request.cpuamounts`).
  These have the Pod's own CPUs as long as the shared pool has none.
- LS, and Pods without a class that are not BestEffort: the shared pool, or the parts of it on the NUMA nodes that the
  Pod was bound to (cpuSharedPools).
- BE, and Kubernetes' BestEffort: the BE pool, likewise. They use the CPUs that the kubelet reserves first, as long as
  there is one for each of these Pods, or as many as it requests; then all of the pool.
- A Pod whose resource-status cannot be read keeps the cpusets that it has: it may have CPUs of its own. If it is LSE or
  LSR, these CPUs are in no shared pool.
- CPUs that the kubelet's static policy manages are left alone, with a note: two writers of one cpuset would undo each
  other forever (koordinator#1214). Where the enforcer puts our CPUs in place of the kubelet's, only Pods without CPUs
  of ours are left alone.

Writes are in an order that the kernel allows. cgroup v1 refuses a cpuset that its parent does not contain (EACCES), and
one that does not contain its children's (EBUSY), at every moment (Linux, kernel/cgroup/cpuset-v1.c). Therefore every
parent is first widened to hold its children's targets, from the top; then every cgroup gets its target, from the
bottom. v2 allows any order; with this one, a container with a cpuset runs on its old or its new CPUs at every moment.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from operator import or_
from typing import Final

from allocator.vocabulary.cputopology import format_cpuset
from reporter.cgroup.layout import KubernetesQos, Version, container_id

BE: Final = "BE"
SYSTEM: Final = "SYSTEM"


@dataclass(frozen=True, slots=True)
class Pod:
    """A Pod on this node. Sets are integers in which bit i stands for CPU, or NUMA node, i."""

    uid: str  # the UID in the name of its cgroup (`layout.cgroup_uid`)
    name: str  # namespace/name, for messages
    qos_class: KubernetesQos  # its Kubernetes QoS class
    qos: str = ""  # its label koordinator.sh/qosClass; empty if it has none
    cpus: int = 0  # CPUs allocated to it (resource-status, `cpuset`); 0 if none
    pools: int = 0  # NUMA nodes whose shared pools it is bound to; 0 if none
    mems: int = 0  # NUMA nodes that its memory is bound to; 0 if none
    # whether one of its containers requests whole CPUs: if the Pod is Guaranteed, the static policy gives it exclusive
    # CPUs
    whole_cpus: bool = False
    unreadable: bool = False  # whether its resource-status cannot be read: its CPUs are unknown
    needs: int = 1  # whole CPUs that it requests, 1 at least
    # id of each container that runs in the shared pool, although the Pod has CPUs of its own, to its name
    shared: Mapping[str, str] = field(default_factory=dict)

    @property
    def best_effort(self) -> bool:
        """Whether it runs in the BE pool."""
        return self.qos == BE or (not self.qos and self.qos_class is KubernetesQos.BEST_EFFORT)


@dataclass(frozen=True, slots=True)
class SharedCpus:
    """The shared CPUs of the node."""

    shared: int  # CPUs for LS
    best_effort: int  # CPUs for BE
    shared_by_node: Mapping[int, int] = field(default_factory=dict)  # NUMA node to its part of `shared`
    best_effort_by_node: Mapping[int, int] = field(default_factory=dict)  # NUMA node to its part of `best_effort`
    system: int = 0  # CPUs for Pods of the class SYSTEM; 0 if none are set aside, and those Pods are then left alone


@dataclass(frozen=True, slots=True)
class KubeletRules:
    """What the kubelet itself does with CPUs."""

    static: bool = False  # whether its CPU manager has the static policy
    # Pod UID to container to exclusive CPUs, from its state file
    given: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    default: int = 0  # the CPUs of all other containers; 0 if it sets none
    # whether its memory manager has the static policy and therefore binds Guaranteed Pods' memory
    static_memory: bool = False
    reserved: int = 0  # CPUs that it reserves and gives to no container as its own
    # whether the enforcer puts the CPUs that we allocated in place of what the kubelet writes
    overruled: bool = False


@dataclass(frozen=True, slots=True)
class WantedCpusets:
    """What a Pod's cgroups should have."""

    pod: Pod
    cpus: int  # CPUs of the sandbox and of every container that is not in `others`; 0 if they are left as they are
    mems: int  # NUMA nodes of the sandbox and of all containers, likewise
    # CPUs that the Pod's own cgroup must at least hold; 0 if it holds exactly `cpus`, and what containers with other
    # CPUs have. The kubelet needs this room if it writes containers' cpusets too: v1 refuses CPUs that the Pod's cgroup
    # lacks.
    room: int = 0
    note: str = ""  # a remark for the administrator; empty if there is none
    others: Mapping[str, int] = field(default_factory=dict)  # id of each container with other CPUs to these, likewise


def wants(pods: Iterable[Pod], pools: SharedCpus, kubelet: KubeletRules) -> tuple[WantedCpusets, ...]:
    """Plan the cpusets of all Pods of the node."""
    pods = tuple(pods)
    first = used_first(pods, pools, kubelet)
    return tuple(_want(pod, pools, kubelet, first) for pod in pods)


def used_first(pods: Iterable[Pod], pools: SharedCpus, kubelet: KubeletRules) -> int:
    """The CPUs of the BE pool that its Pods use first; 0 if they use all of it."""
    first = pools.best_effort & kubelet.reserved
    return first if first.bit_count() >= sum(pod.needs for pod in pods if pod.best_effort) else 0


def _want(pod: Pod, pools: SharedCpus, kubelet: KubeletRules, first: int) -> WantedCpusets:
    reason = owned_by_kubelet(pod, kubelet)
    if reason:
        given = reduce(or_, kubelet.given.get(pod.uid, {}).values(), 0)
        return WantedCpusets(pod, 0, 0, room=given | kubelet.default, note=reason)
    if pod.unreadable:
        return WantedCpusets(pod, 0, 0, note=f"{pod.name}: its resource-status cannot be read; its CPUs are left alone")
    cpus, note = _cpus(pod, pools, first)
    mems = pod.mems
    if mems and kubelet.static_memory and pod.qos_class is KubernetesQos.GUARANTEED:
        mems, note = 0, f"{pod.name}: the kubelet's static memory policy owns its NUMA nodes; cpuset.mems is left alone"
    others: dict[str, int] = {}
    if pod.cpus:
        entered = {} if kubelet.overruled else kubelet.given.get(pod.uid, {})
        others = {one: 0 if name in entered else pools.shared or cpus for one, name in pod.shared.items()}
        if others and not pools.shared:
            note = note or f"{pod.name}: the shared pool has no CPU left; all of its containers run on its own CPUs"
    room = (cpus | kubelet.default) if cpus and kubelet.static else 0
    return WantedCpusets(pod, cpus, mems, room=room, note=note, others=others)


def owned_by_kubelet(pod: Pod, kubelet: KubeletRules) -> str:
    """Say why the kubelet manages a Pod's CPUs; empty if we do.

    We manage those that we allocated if the kubelet gave the same ones, or is overruled. A Guaranteed Pod that requests
    whole CPUs counts as the kubelet's even before the state shows it: the kubelet writes a container's cpuset only once
    and would not restore it.
    """
    given = kubelet.given.get(pod.uid, {})
    if not kubelet.static or not (given or (pod.qos_class is KubernetesQos.GUARANTEED and pod.whole_cpus)):
        return ""
    if pod.cpus and (kubelet.overruled or (given and all(cpus == pod.cpus for cpus in given.values()))):
        return ""
    has = f"gave it {format_cpuset(reduce(or_, given.values(), 0))}" if given else "gives it CPUs"
    if pod.cpus:
        return (
            f"{pod.name}: CPUs {format_cpuset(pod.cpus)} were allocated, but the kubelet's static policy {has} and owns"
            " them; set cpuManagerPolicy none, or run the enforcer (enforcement.enabled)"
        )
    return f"{pod.name}: the kubelet's static policy {has}; left alone"


def _cpus(pod: Pod, pools: SharedCpus, first: int) -> tuple[int, str]:
    """The CPUs of a Pod whose CPUs we manage, and a note.

    `first`: those that suffice for all Pods of the BE pool and that these use first; 0 if there are none.
    """
    if pod.cpus:
        return pod.cpus, ""
    if pod.qos == SYSTEM:
        return pools.system, ""
    whole = pools.best_effort if pod.best_effort else pools.shared
    parts = pools.best_effort_by_node if pod.best_effort else pools.shared_by_node
    name = "BE pool" if pod.best_effort else "shared pool"
    if not whole:
        return 0, f"{pod.name}: the {name} has no CPU left; its containers stay where they are"
    if not pod.pools:
        return (first if first and pod.best_effort else whole), ""
    bound = reduce(or_, (cpus for node, cpus in parts.items() if pod.pools >> node & 1), 0)
    if not bound:
        shown = format_cpuset(pod.pools)
        return whole, f"{pod.name}: the {name} of NUMA node {shown} has no CPU left; it runs on the whole pool"
    return bound, ""


class File(StrEnum):
    """The files of a cpuset that are written."""

    CPUS = "cpuset.cpus"
    MEMS = "cpuset.mems"


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup as read."""

    cpus: int  # CPU set; 0 if empty, which in v2 means the parent's
    mems: int  # set of NUMA nodes; 0 if empty, likewise

    def of(self, file: File) -> int:
        """The set in one file."""
        return self.cpus if file is File.CPUS else self.mems


@dataclass(frozen=True, slots=True)
class Write:
    """One file to write."""

    path: str  # path of the cgroup
    file: File  # which file
    value: int


Tree = Mapping[str, Group]  # `kubepods` and cgroups below it, by path, with all their parents up to `kubepods`


def targets(tree: Tree, paths: Iterable[tuple[str, WantedCpusets]], version: Version, file: File) -> dict[str, int]:
    """Compute each cgroup's target.

    Returns path to target, for each cgroup of the tree; 0 if it stays as it is.
    """
    below = _below(tree)
    found = dict.fromkeys(tree, 0)
    for path, want in paths:
        wanted, room, others = (want.cpus, want.room, want.others) if file is File.CPUS else (want.mems, 0, {})
        if path not in tree:
            continue
        has = tree[path].of(file)
        if room or not wanted:
            # It is never narrowed; in v2 an empty set already means everything that the parent has.
            found[path] = has | room | wanted if has or version is Version.V1 else 0
        else:
            found[path] = wanted
        if wanted:
            for child in below.get(path, ()):
                its = others.get(container_id(child.rpartition("/")[2]), wanted)
                if its:
                    _spread(tree, below, found, child, its, file)
    for path in sorted(tree, key=_depth, reverse=True):  # a parent holds at least what its children hold
        parent = _parent(path)
        if parent in tree:
            holds = found[parent] or tree[parent].of(file)
            if holds or version is Version.V1:
                found[parent] = holds | (found[path] or tree[path].of(file))
    return found


def _spread(
    tree: Tree, below: Mapping[str, list[str]], found: dict[str, int], path: str, wanted: int, file: File
) -> None:
    """Give a container's cgroup the target, and cgroups that the container made below it the part that they had."""
    found[path] = wanted
    pending = [(child, wanted) for child in below.get(path, ())]
    while pending:
        child, limit = pending.pop()
        has = tree[child].of(file)
        found[child] = (has & limit or limit) if has else 0
        pending.extend((grandchild, found[child] or limit) for grandchild in below.get(child, ()))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write."""

    writes: tuple[Write, ...]  # in order
    right: Mapping[tuple[str, File], int]  # path and file to the set, for each set that already is the target


def plan(tree: Tree, paths: Iterable[tuple[str, WantedCpusets]], version: Version) -> Plan:
    """Compute what to write, and what is already right."""
    paths = tuple(paths)
    found: list[Write] = []
    right: dict[tuple[str, File], int] = {}
    for file in File:
        wanted = targets(tree, paths, version, file)
        has = {path: group.of(file) for path, group in tree.items()}
        found.extend(Write(path, file, value) for path, value in ordered(has, wanted))
        right |= {(path, file): value for path, value in wanted.items() if value and has[path] == value}
    return Plan(tuple(found), right)


def ordered(has: Mapping[str, int], wanted: Mapping[str, int]) -> list[tuple[str, int]]:
    """Order the writes of one file.

    `has`: path to set as read; 0 if empty. `wanted`: path to target; 0 if it stays as it is. A parent's target holds
    its children's. Returns path and set of each write, in order; a set that is already right is not written.
    """
    now = dict(has)
    below = _below(has)
    steps: list[tuple[str, int]] = []

    def write(path: str, value: int) -> None:
        if value and now[path] != value:
            now[path] = value
            steps.append((path, value))

    for path in sorted(has, key=_depth):
        if below.get(path) and wanted[path] & ~has[path]:
            write(path, has[path] | wanted[path])
    for path in sorted(has, key=_depth, reverse=True):
        write(path, wanted[path])
    return steps


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _below(paths: Iterable[str]) -> dict[str, list[str]]:
    """The children of each path that has any."""
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        found.setdefault(_parent(path), []).append(path)
    return found
