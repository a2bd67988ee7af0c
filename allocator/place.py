"""The one decision: `place(request, node)`.

Filter, score, bind, dry run and simulation all call it, so they can never disagree. Devices and CPUs are one plan:
where a NUMA policy holds, a set of NUMA nodes is found in which everything that the Pod asks fits, and each is chosen
inside it (CPU proposal, "NUMA topology alignment policy").
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from allocator.cpu.choose import Own, choose_cpus, own_cpus, shared_milli, wishes_lost
from allocator.devices.choose import choose_devices, choose_together
from allocator.devices.isolation import not_isolated
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
        node: its name.
        shares: one a device, by type in the order in which the Pod asks, and by minor.
        cpus: CPUs and NUMA nodes; None where it asks for none.
    """

    node: str
    shares: tuple[Share, ...]
    cpus: CpuShare | None = None


def place(request: PodRequest, node: NodeSnapshot, only: Holding | None = None) -> Placement | Refusal:
    """Decide what a Pod would get on a node.

    Pure: the same arguments give the same answer.

    Args:
        request: of the Pod.
        node: as it stands; its holdings must not include the Pod's own.
        only: restricts what may be chosen: of devices those that it names, of each at most as much, with the virtual
            functions that it names; CPUs and NUMA nodes that it names, where it names some. Everything else is judged
            on the node as it is: NUMA policy, the width that it allows, who is kept apart from whom.

    Returns:
        The placement, or why the node cannot hold the Pod.
    """
    refused = not_isolated(request, node)
    if refused is not None:
        return refused
    policy = numa_policy(request, node.cpu)
    numas = () if policy is NumaPolicy.NONE else _numa_nodes(node)
    return _place_aligned(request, node, numas, policy, only) if numas else _plan(request, node, None, only)


def numa_policy(request: PodRequest, node: CpuNode | None) -> NumaPolicy:
    """Tell how strictly a Pod must stand in one NUMA node: its own policy, else the node's.

    But never less than the kubelet demands of a Pod to which it gives CPUs: it would refuse what is bound otherwise
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
    """The NUMA nodes, ascending; where the CPUs are not known, those that devices say they are in."""
    if node.cpu is not None:
        return tuple(sorted(node.cpu.topology.nodes))
    return tuple(sorted({device.numa_node for device in node.devices if device.numa_node is not None}))


def _place_aligned(
    request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], policy: NumaPolicy, only: Holding | None
) -> Placement | Refusal:
    """Find the fewest of these NUMA nodes in which all that a Pod asks fits, and take it from there."""
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
    told = f"the Pod fits, but not in {where} (NUMA policy {policy})"
    if _kept_apart(request, node, _numa_sets(request, node, numas, widest, only), only):
        why = "; Pods stand there from which its singleNUMANodeExclusive keeps it apart"
    elif first is not None:
        why = f"; in the first tried: {first.message.removeprefix(f'{node.name}: ')}"
    else:
        why = "; nor would it if no other Pod were there"
    return Refusal(f"{node.name}: {told}{why}", short=told)


def _widest(request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], policy: NumaPolicy) -> int:
    """How many NUMA nodes a Pod may stand in.

    Under Restricted so many as it would need on this node if it were empty, with all CPUs that are kept from Pods or
    the kubelet's own to give: that is what the kubelet prefers. 0 where not even that would do.
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

    Of equally many first those in which the Pod gets its CPUs as it prefers; of these the one that the node's strategy
    prefers.
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
    """Sets of NUMA nodes of each size that there is, ascending.

    With more than eight NUMA nodes (beyond what the kubelet's Topology Manager takes) between one and all only those
    of one socket are a set: there would be too many others.
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
    """Put last, or leave out, the sets that break how Pods in one NUMA node are kept apart from those in several.

    A NUMA node in which a Pod stands whole is not for Pods that need several, and one in which a Pod of several stands
    is not for Pods of one (numa-topology-spec, singleNUMANodeExclusive; counted from CPUs that are Pods' own).
    """
    exclusive = request.cpu.single_numa_exclusive if request.cpu is not None else None
    if exclusive is None:
        yield from sets
        return
    single, shared = _stood_in(node)
    late = []
    for numa in sets:
        if numa & (single if len(numa) > 1 else shared):
            late.append(numa)
        else:
            yield numa
    if exclusive is NumaExclusive.PREFERRED or policy is NumaPolicy.BEST_EFFORT:
        yield from late


def _kept_apart(request: PodRequest, node: NodeSnapshot, sets: Iterable[frozenset[int]], only: Holding | None) -> bool:
    """Tell of a Pod that is refused whether it would fit into a set that `_apart` left out."""
    if request.cpu is None or request.cpu.single_numa_exclusive is not NumaExclusive.REQUIRED:
        return False
    return any(isinstance(_plan(request, node, numa, only), Placement) for numa in sets)


def _stood_in(node: NodeSnapshot) -> tuple[set[int], set[int]]:
    """The NUMA nodes in which Pods of one NUMA node stand, and those in which Pods of several do."""
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
    """How CPUs of its own are chosen for a Pod; None where it gets none."""
    if request.cpu is None or not request.cpu.count or node.cpu is None:
        return None
    cpus = only.cpus.cpus if only is not None and only.cpus is not None else 0
    own = own_cpus(request.cpu, node.name, node.cpu, node.cpu_use, cpus)
    return None if isinstance(own, Refusal) else own


def _free_by_numa(request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], own: Own | None) -> dict[int, int]:
    """What is free in each NUMA node, to put them in order.

    CPUs where the Pod asks for some of its own, else thousandths of a CPU; of a Pod that asks for devices alone
    thousandths of those.
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
    """Choose all that a Pod asks, inside these NUMA nodes."""
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
    """Choose the devices: first those of types that belong together, then of each other type on its own."""
    kinds = request.types()
    joint = request.wishes.joint
    found: tuple[Share, ...] = ()
    if joint is not None and (together := request.joint_types()):
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
