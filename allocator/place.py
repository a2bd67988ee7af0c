"""The one decision: `place(request, node)`.

Filter, score, bind, dry run and simulation all call it, so they can never disagree. Devices and CPUs are one plan:
where a NUMA policy holds, a set of NUMA nodes is found in which everything that the Pod asks fits, and each is chosen
inside it (seed document 4, "NUMA topology alignment policy").
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from typing import Final

from allocator.asks import PodRequest
from allocator.cpu.choose import choose_cpus, shared_milli
from allocator.cpu.node import NO_USE, CpuNode, CpuShare, CpuUse, cpu_use
from allocator.cpu.policy import NumaPolicy, NumaStrategy
from allocator.cpu.topology import CpuTopology
from allocator.devices import UNBOUND, Bounds, candidates_of, choose_devices, plural, roots_that_serve
from allocator.devicetype import DeviceType
from allocator.holdings import NodeSnapshot, Share
from allocator.outcome import Refusal
from allocator.wire.resourcespec import NumaExclusive

_MOST_COMBINED: Final = 8  # NUMA nodes of which every set is tried
_MOST_ROOTS: Final = 64  # sets of PCIe roots that are tried where the best of all roots will not do


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


def place(request: PodRequest, node: NodeSnapshot) -> Placement | Refusal:
    """Decide what a Pod would get on a node.

    Pure: the same request and node give the same answer. The node's holdings must not include the Pod's own.

    Returns:
        The placement, or why the node cannot hold the Pod.
    """
    policy = numa_policy(request, node.cpu)
    if policy is NumaPolicy.NONE or node.cpu is None:
        return _plan(request, node, None)
    return _place_aligned(request, node, node.cpu, policy)


def numa_policy(request: PodRequest, node: CpuNode | None) -> NumaPolicy:
    """Tell how strictly a Pod must stand in one NUMA node: its own policy, else the node's."""
    if request.cpu is not None and request.cpu.numa_policy is not None:
        return request.cpu.numa_policy
    return node.policy if node is not None else NumaPolicy.NONE


def _place_aligned(request: PodRequest, node: NodeSnapshot, cpu: CpuNode, policy: NumaPolicy) -> Placement | Refusal:
    """Find the fewest NUMA nodes in which all that a Pod asks fits, and take it from there."""
    first: Refusal | None = None
    widest = _widest(request, node, cpu, policy)
    for numa in _apart(request, node, cpu, _numa_sets(request, node, cpu, widest), policy):
        placed = _plan(request, node, numa)
        if not isinstance(placed, Refusal):
            return placed
        first = first or placed
    anywhere = _plan(request, node, None)
    if policy is NumaPolicy.BEST_EFFORT or isinstance(anywhere, Refusal):
        return anywhere
    where = "one NUMA node" if policy is NumaPolicy.SINGLE_NUMA_NODE else "as few NUMA nodes as the Pod needs"
    told = f"the Pod fits, but not in {where} (NUMA policy {policy})"
    if _kept_apart(request, node, cpu, widest):
        why = "; Pods stand there from which its singleNUMANodeExclusive keeps it apart"
    elif first is not None:
        why = f"; in the first tried: {first.message.removeprefix(f'{node.name}: ')}"
    else:
        why = "; nor would it if no other Pod were there"
    return Refusal(f"{node.name}: {told}{why}", short=told)


def _widest(request: PodRequest, node: NodeSnapshot, cpu: CpuNode, policy: NumaPolicy) -> int:
    """How many NUMA nodes a Pod may stand in.

    Under Restricted so many as it would need on this node if it were empty, which is what the kubelet prefers; 0 where
    not even that would do.
    """
    every = len(cpu.topology.nodes)
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        return 1
    if policy is NumaPolicy.BEST_EFFORT:
        return every
    empty = node.holding_all({})
    fits = (
        numa for numa in _numa_sets(request, empty, cpu, every) if isinstance(_plan(request, empty, numa), Placement)
    )
    return len(next(fits, ()))


def _numa_sets(request: PodRequest, node: NodeSnapshot, cpu: CpuNode, widest: int) -> Iterator[frozenset[int]]:
    """Sets of NUMA nodes, the smallest first; of equally many the one that the node's strategy prefers.

    With more than eight NUMA nodes (beyond what the kubelet's Topology Manager takes) between one and all only those
    of one socket are a set: there would be too many others.
    """
    topology = cpu.topology
    free = _free_by_numa(request, node, cpu)
    sign = 1 if cpu.strategy is NumaStrategy.MOST_ALLOCATED else -1

    def order(numa: Iterable[int]) -> tuple[int, list[int]]:
        return sign * sum(free[at] for at in numa), sorted(numa)

    nodes = sorted(topology.nodes)
    for width in range(1, widest + 1):
        if 1 < width < len(nodes) > _MOST_COMBINED:
            sets: Iterable[tuple[int, ...]] = [of for of in _by_socket(topology) if len(of) == width]
        else:
            sets = combinations(nodes, width)
        yield from map(frozenset, sorted(sets, key=order))


def _apart(
    request: PodRequest,
    node: NodeSnapshot,
    cpu: CpuNode,
    sets: Iterable[frozenset[int]],
    policy: NumaPolicy,
) -> Iterator[frozenset[int]]:
    """Put last, or leave out, the sets that break how Pods in one NUMA node are kept apart from those in several.

    A NUMA node in which a Pod stands whole is not for Pods that need several, and one in which a Pod of several stands
    is not for Pods of one (numa-topology-spec, singleNUMANodeExclusive; counted from CPUs that are Pods' own).
    """
    exclusive = request.cpu.single_numa_exclusive if request.cpu is not None else None
    if exclusive is None:
        yield from sets
        return
    single, shared = _stood_in(node, cpu)
    late = []
    for numa in sets:
        if numa & (single if len(numa) > 1 else shared):
            late.append(numa)
        else:
            yield numa
    if exclusive is NumaExclusive.PREFERRED or policy is NumaPolicy.BEST_EFFORT:
        yield from late


def _kept_apart(request: PodRequest, node: NodeSnapshot, cpu: CpuNode, widest: int) -> bool:
    """Tell of a Pod that is refused whether it would fit where `_apart` let it not."""
    if request.cpu is None or request.cpu.single_numa_exclusive is not NumaExclusive.REQUIRED:
        return False
    return any(isinstance(_plan(request, node, numa), Placement) for numa in _numa_sets(request, node, cpu, widest))


def _stood_in(node: NodeSnapshot, cpu: CpuNode) -> tuple[set[int], set[int]]:
    """The NUMA nodes in which Pods of one NUMA node stand, and those in which Pods of several do."""
    single: set[int] = set()
    shared: set[int] = set()
    for holding in node.holdings.values():
        held = holding.cpus.cpus if holding.cpus is not None else 0
        at = {numa for numa, cpus in cpu.topology.nodes.items() if cpus & held}
        (single if len(at) == 1 else shared).update(at)
    return single - shared, shared


def _by_socket(topology: CpuTopology) -> list[tuple[int, ...]]:
    """The NUMA nodes of each socket."""
    return [
        tuple(at for at, cpus in sorted(topology.nodes.items()) if cpus & socket)
        for _, socket in sorted(topology.sockets.items())
    ]


def _free_by_numa(request: PodRequest, node: NodeSnapshot, cpu: CpuNode) -> dict[int, int]:
    """What is free in each NUMA node, to put them in order: CPUs where the Pod asks for some, else its devices."""
    if request.cpu is not None and request.cpu.milli:
        use = _use(node, cpu)
        if not request.cpu.count:
            return {at: shared_milli(cpu, use, at) for at in cpu.topology.nodes}
        taken = cpu.reserved | use.taken
        return {at: (cpus & ~taken).bit_count() for at, cpus in cpu.topology.nodes.items()}
    kinds = {kind.name for kind in request.types()}
    free = dict.fromkeys(cpu.topology.nodes, 0)
    for device in node.devices:
        if device.type in kinds and device.healthy and device.numa_node in free:
            held = node.used.get(device.id, {})
            free[device.numa_node] += sum(device.capacity.values()) - sum(held.values())
    return free


def _use(node: NodeSnapshot, cpu: CpuNode) -> CpuUse:
    return cpu_use(cpu, (holding.cpus for holding in node.holdings.values() if holding.cpus is not None))


def _plan(request: PodRequest, node: NodeSnapshot, numa: frozenset[int] | None) -> Placement | Refusal:
    """Choose all that a Pod asks, inside these NUMA nodes."""
    cpus: CpuShare | None = None
    if request.cpu is not None:
        use = _use(node, node.cpu) if node.cpu is not None else NO_USE
        chosen = choose_cpus(request.cpu, node.name, node.cpu, use, numa)
        if isinstance(chosen, Refusal):
            return chosen
        cpus = chosen
    bounds = UNBOUND if numa is None else Bounds(numa)
    kinds = request.types()
    joint = request.wishes.joint
    if joint is not None and len(kinds) > 1:
        shares = _choose_joint(request, node, bounds)
    else:
        shares = _choose_each(kinds, request, node, bounds)
    return shares if isinstance(shares, Refusal) else Placement(node.name, shares, cpus)


def _choose_each(
    kinds: Iterable[DeviceType], request: PodRequest, node: NodeSnapshot, bounds: Bounds
) -> tuple[Share, ...] | Refusal:
    """Choose devices of these types, each on its own."""
    found: tuple[Share, ...] = ()
    for kind in kinds:
        shares = choose_devices(kind, request, node, bounds)
        if isinstance(shares, Refusal):
            return shares
        found += shares
    return found


def _choose_joint(request: PodRequest, node: NodeSnapshot, bounds: Bounds) -> tuple[Share, ...] | Refusal:
    """Choose types that belong together (Koordinator's joint allocation): the first one, then the others beside it."""
    joint = request.wishes.joint
    kinds = {kind.name: kind for kind in request.types()}
    together = [kinds[name] for name in (joint.types if joint else ()) if name in kinds]
    others = [kind for name, kind in kinds.items() if kind not in together]
    if len(together) < 2:  # noqa: PLR2004 - a pair
        return _choose_each(request.types(), request, node, bounds)
    roots = roots_that_serve(together[1:], request, node, bounds)
    if joint is not None and joint.same_pcie:
        found = _choose_on_roots(together, request, node, bounds, roots)
    else:
        found = _choose_beside(together, request, node, bounds, replace(bounds, best_roots=roots))
    rest = found if isinstance(found, Refusal) else _choose_each(others, request, node, bounds)
    return rest if isinstance(found, Refusal) or isinstance(rest, Refusal) else (*found, *rest)


def _choose_on_roots(
    together: Sequence[DeviceType], request: PodRequest, node: NodeSnapshot, bounds: Bounds, roots: frozenset[str]
) -> tuple[Share, ...] | Refusal:
    """Choose types that must be on the same PCIe roots; of all roots, else of the fewest on which it can be done."""
    if not roots:
        told = f"SamePCIe asked; no PCIe root has {' and '.join(map(plural, together[1:]))} that can serve it"
        return Refusal(f"{node.name}: {told}", short=told)
    same = replace(bounds, same_root=True)
    first = _choose_beside(together, request, node, same, replace(bounds, roots=roots))
    if not isinstance(first, Refusal):
        return first
    fewer = chain.from_iterable(combinations(sorted(roots), width) for width in range(1, len(roots)))
    for some in islice(fewer, _MOST_ROOTS):
        found = _choose_beside(together, request, node, same, replace(bounds, roots=frozenset(some)))
        if not isinstance(found, Refusal):
            return found
    return first


def _choose_beside(
    together: Sequence[DeviceType], request: PodRequest, node: NodeSnapshot, bounds: Bounds, first: Bounds
) -> tuple[Share, ...] | Refusal:
    """Choose the first of these types inside its own bounds, then the others beside what was chosen of it."""
    primary = choose_devices(together[0], request, node, first)
    if isinstance(primary, Refusal):
        return primary
    beside = replace(bounds, beside=candidates_of(primary, node))
    secondary = _choose_each(together[1:], request, node, beside)
    return secondary if isinstance(secondary, Refusal) else (*primary, *secondary)
