"""The one decision: `place(request, node)`.

Filter, score, bind, dry run and simulation all call it, so they can never disagree. Devices and CPUs are one plan:
under a NUMA policy it finds a set of NUMA nodes in which everything that the Pod requests fits, and chooses each
resource inside that set (CPU proposal, "NUMA topology alignment policy").
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from allocator.cpu.choose import Own, choose_cpus, own_cpus, shared_milli, wishes_lost
from allocator.devices.choose import choose_devices, choose_together
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import CpuNode, CpuShare
from allocator.vocabulary.cpupolicy import NumaExclusive, NumaPolicy, NumaStrategy
from allocator.vocabulary.cputopology import MOST_COMBINED, CpuTopology
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

_STRICTNESS: Final = tuple(NumaPolicy)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a Pod gets on a node.

    Attributes:
        node: the node's name.
        shares: one per device, by type in the order of the request, then by minor.
        cpus: CPUs and NUMA nodes; None if the Pod requests none.
    """

    node: str
    shares: tuple[Share, ...]
    cpus: CpuShare | None = None


def place(request: PodRequest, node: NodeSnapshot, only: Holding | None = None) -> Placement | Refusal:
    """Decide what a Pod would get on a node.

    Pure: the same arguments give the same answer.

    Args:
        request: the Pod's request.
        node: the node now; its holdings must not include the Pod's own.
        only: restricts the choice to the devices that it names, of each at most that amount, with the virtual
            functions that it names; and to its CPUs and NUMA nodes, if it names any. The NUMA policy, the width that
            it allows and exclusive Pods are judged on the whole node all the same.

    Returns:
        The placement, or why the node cannot hold the Pod.
    """
    policy = numa_policy(request, node.cpu)
    numas = () if policy is NumaPolicy.NONE else _numa_nodes(node)
    return _place_aligned(request, node, numas, policy, only) if numas else _plan(request, node, None, only)


def numa_policy(request: PodRequest, node: CpuNode | None) -> NumaPolicy:
    """Return how strictly a Pod is aligned: by its own policy, else by the node's.

    Never less strictly than the kubelet aligns a Pod to which it gives CPUs: the kubelet would reject the Pod
    (TopologyAffinityError).
    """
    cpu = request.cpu
    policy = cpu.numa_policy if cpu is not None else None
    if node is None:
        return policy or NumaPolicy.NONE
    policy = policy or node.policy
    if cpu is None or not cpu.static or node.kubelet_by_container:
        return policy
    return max(policy, node.kubelet_policy, key=_STRICTNESS.index)


def _numa_nodes(node: NodeSnapshot) -> tuple[int, ...]:
    """The NUMA nodes, ascending; if the CPUs are unknown, those that the devices report."""
    if node.cpu is not None:
        return tuple(sorted(node.cpu.topology.nodes))
    return tuple(sorted({device.numa_node for device in node.devices if device.numa_node is not None}))


def _place_aligned(
    request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], policy: NumaPolicy, only: Holding | None
) -> Placement | Refusal:
    """Place a Pod in the fewest of these NUMA nodes in which its whole request fits."""
    first: Refusal | None = None
    widest = _widest(request, node, numas, policy)
    for numa in _apart(request, node, _numa_sets(request, node, numas, widest, only), policy):
        placed = _plan(request, node, numa, only)
        if not isinstance(placed, Refusal):
            return placed
        first = first or placed
    anywhere = _plan(request, node, None, only)
    if policy is NumaPolicy.BEST_EFFORT or isinstance(anywhere, Refusal):
        return anywhere
    where = "one NUMA node" if policy is NumaPolicy.SINGLE_NUMA_NODE else "as few NUMA nodes as the Pod needs"
    short = f"the Pod fits, but not in {where} (NUMA policy {policy})"
    if _kept_apart(request, node, _numa_sets(request, node, numas, widest, only), only):
        why = "; its singleNUMANodeExclusive keeps it apart from Pods that run there"
    elif first is not None:
        why = f"; in the first tried: {first.message.removeprefix(f'{node.name}: ')}"
    else:
        why = "; nor would it fit there if the node were empty"
    return Refusal(f"{node.name}: {short}{why}", short=short)


def _widest(request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], policy: NumaPolicy) -> int:
    """How many NUMA nodes a Pod may take.

    Under Restricted, as many as the Pod would need on this node if it were empty and no CPU were reserved: the kubelet
    prefers that width. 0 if the Pod would not fit even then.
    """
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        return 1
    if policy is NumaPolicy.BEST_EFFORT:
        return len(numas)
    empty = node.holding_all({})
    if empty.cpu is not None:
        empty = replace(empty, cpu=replace(empty.cpu, reserved=0))
    sets = _numa_sets(request, empty, numas, len(numas))
    return len(next((numa for numa in sets if isinstance(_plan(request, empty, numa), Placement)), ()))


def _numa_sets(
    request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], widest: int, only: Holding | None = None
) -> Iterator[frozenset[int]]:
    """Sets of NUMA nodes, the smallest first.

    Sets of equal size come in this order: those in which the Pod gets its CPUs as it prefers, then as the node's
    strategy prefers.
    """
    cpu = node.cpu
    own = _own_cpus(request, node, only)
    free = _free_by_numa(request, node, numas, own)
    sign = -1 if cpu is not None and cpu.strategy is not NumaStrategy.MOST_ALLOCATED else 1

    def order(numa: Iterable[int]) -> tuple[int, int, list[int]]:
        lost = wishes_lost(request.cpu, own, cpu, numa) if request.cpu and own and cpu else 0
        return lost, sign * sum(free[at] for at in numa), sorted(numa)

    for width, sets in _by_width(cpu, numas):
        if width <= widest:
            yield from map(frozenset, sorted(sets, key=order))


def _by_width(cpu: CpuNode | None, numas: tuple[int, ...]) -> Iterator[tuple[int, Iterable[tuple[int, ...]]]]:
    """Sets of NUMA nodes of each size, ascending.

    The kubelet's Topology Manager supports at most eight NUMA nodes. With more, the sets are single NUMA nodes, whole
    sockets, and all: other combinations would be too many.
    """
    if len(numas) <= MOST_COMBINED:
        yield from ((width, combinations(numas, width)) for width in range(1, len(numas) + 1))
        return
    yield 1, combinations(numas, 1)
    sockets = _by_socket(cpu.topology) if cpu is not None else []
    for width in sorted({len(of) for of in sockets} - {1, len(numas)}):
        yield width, [of for of in sockets if len(of) == width]
    yield len(numas), [numas]


def _apart(
    request: PodRequest, node: NodeSnapshot, sets: Iterable[frozenset[int]], policy: NumaPolicy
) -> Iterator[frozenset[int]]:
    """Put last, or leave out, the sets that break singleNUMANodeExclusive (numa-topology-spec).

    A Pod that needs several NUMA nodes avoids one whose Pods are each inside it; a Pod of one NUMA node avoids one that
    a Pod of several uses. Only Pods with CPUs of their own are counted.
    """
    exclusive = request.cpu.single_numa_exclusive if request.cpu is not None else None
    if exclusive is None:
        yield from sets
        return
    single, shared = _used_by_width(node)
    late = []
    for numa in sets:
        if numa & (single if len(numa) > 1 else shared):
            late.append(numa)
        else:
            yield numa
    if exclusive is NumaExclusive.PREFERRED or policy is NumaPolicy.BEST_EFFORT:
        yield from late


def _kept_apart(request: PodRequest, node: NodeSnapshot, sets: Iterable[frozenset[int]], only: Holding | None) -> bool:
    """Whether a refused Pod would fit into a set that `_apart` left out."""
    if request.cpu is None or request.cpu.single_numa_exclusive is not NumaExclusive.REQUIRED:
        return False
    return any(isinstance(_plan(request, node, numa, only), Placement) for numa in sets)


def _used_by_width(node: NodeSnapshot) -> tuple[set[int], set[int]]:
    """The NUMA nodes whose Pods are each inside one NUMA node, and those that Pods of several NUMA nodes use."""
    single: set[int] = set()
    shared: set[int] = set()
    cpus_of = node.cpu.topology.nodes if node.cpu is not None else {}
    for holding in node.holdings.values():
        held = holding.cpus.cpus if holding.cpus is not None else 0
        at = {numa for numa, cpus in cpus_of.items() if cpus & held}
        (single if len(at) == 1 else shared).update(at)
    return single - shared, shared


def _by_socket(topology: CpuTopology) -> list[tuple[int, ...]]:
    """The NUMA nodes of each socket."""
    return [
        tuple(at for at, cpus in sorted(topology.nodes.items()) if cpus & socket)
        for _, socket in sorted(topology.sockets.items())
    ]


def _own_cpus(request: PodRequest, node: NodeSnapshot, only: Holding | None) -> Own | None:
    """The rules by which a Pod gets CPUs of its own; None if it gets none."""
    if request.cpu is None or not request.cpu.count or node.cpu is None:
        return None
    cpus = only.cpus.cpus if only is not None and only.cpus is not None else 0
    own = own_cpus(request.cpu, node.name, node.cpu, node.cpu_use, cpus)
    return None if isinstance(own, Refusal) else own


def _free_by_numa(request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], own: Own | None) -> dict[int, int]:
    """What is free in each NUMA node, for their order.

    CPUs if the Pod requests CPUs of its own, else thousandths of a CPU; for a Pod that requests only devices,
    thousandths of a device.
    """
    cpu = node.cpu
    if cpu is not None and request.cpu is not None and request.cpu.milli:
        if own is not None:
            return {at: (cpu.topology.nodes[at] & own.free).bit_count() for at in numas}
        return {at: shared_milli(cpu, node.cpu_use, at) for at in numas}
    kinds = {kind.name: kind for kind in request.types()}
    free = dict.fromkeys(numas, 0)
    for device in node.devices:
        if device.type in kinds and device.numa_node in free:
            free[device.numa_node] += node.free_share(device, kinds[device.type])
    return free


def _plan(
    request: PodRequest, node: NodeSnapshot, numa: frozenset[int] | None, only: Holding | None = None
) -> Placement | Refusal:
    """Choose everything that a Pod requests, inside these NUMA nodes."""
    cpus: CpuShare | None = None
    if request.cpu is not None:
        allowed = only.cpus if only is not None else None
        chosen = choose_cpus(request.cpu, node.name, node.cpu, node.cpu_use, numa, allowed)
        if isinstance(chosen, Refusal):
            return chosen
        cpus = chosen
    shares = _choose(request, node, numa, only)
    return shares if isinstance(shares, Refusal) else Placement(node.name, shares, cpus)


def _choose(
    request: PodRequest, node: NodeSnapshot, numa: frozenset[int] | None, only: Holding | None
) -> tuple[Share, ...] | Refusal:
    """Choose the devices: first the types of a joint allocation together, then each other type by itself."""
    kinds = request.types()
    joint = request.wishes.joint
    found: tuple[Share, ...] = ()
    if joint is not None:
        by_name = {kind.name: kind for kind in kinds}
        together = [by_name[name] for name in joint.types if name in by_name]
        if len(together) > 1:
            shares = choose_together(together, request, node, numa, only, same_root=joint.same_pcie)
            if isinstance(shares, Refusal):
                return shares
            found = shares
            kinds = tuple(kind for kind in kinds if kind not in together)
    for kind in kinds:
        shares = choose_devices(kind, request, node, numa, only)
        if isinstance(shares, Refusal):
            return shares
        found += shares
    return found
