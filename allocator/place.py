"""The one decision: `place(request, node)`.

Filter, score, bind, dry run and simulation all call it, so they can never disagree. Devices and CPUs are one plan:
under a NUMA policy it finds a set of NUMA nodes in which everything that the Pod requests fits, and chooses each
resource inside that set (CPU proposal, "NUMA topology alignment policy").

Of the sets of NUMA nodes in which a Pod may be placed, the smallest come first (CPU proposal, "NUMA allocate
strategy"). Sets of one size are ordered by one tuple:

1. the preferences for CPUs that the Pod must give up there;
2. what its devices open there (`opened`), by a plan made in the set;
3. the free part there of everything that the Pod requests, by the node's strategy: CPU, memory and devices together;
4. the numbers of the NUMA nodes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from math import lcm
from typing import Final, NamedTuple

from allocator.budget import Budget, BudgetSpentError
from allocator.cpu.choose import Own, choose_cpus, memory_free, own_cpus, shared_milli, wishes_lost
from allocator.cpu.kubelet import aligned_by_kubelet
from allocator.devices.choose import choose_devices, choose_together
from allocator.devices.delivery import not_delivered
from allocator.devices.isolation import not_isolated, without_limits
from allocator.vocabulary.asks import DeviceOrder, PodRequest
from allocator.vocabulary.cpunode import MILLI, CpuAsk, CpuNode, CpuShare, NumaExclusive, NumaPolicy, NumaStrategy
from allocator.vocabulary.cputopology import MAX_COMBINED, CpuTopology
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot, fullness
from allocator.vocabulary.outcome import Refusal

MAX_COMPARED: Final = 16
"""Sets of one width beyond which none is planned only to compare what it opens."""

NOTHING_OPENED: Final = (0, 0)
_Free = tuple[Mapping[int, int], int]  # what is free in each NUMA node, and what the whole node has


class NumaSet(NamedTuple):
    """A set of NUMA nodes, and how many CPU preferences the Pod gives up there."""

    lost: int
    numas: frozenset[int]


def numa_sets(
    request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], widest: int, only: Holding | None = None
) -> Iterator[Sequence[NumaSet]]:
    """Sets of up to `widest` of these NUMA nodes, grouped by size, in the order above without step 2."""
    cpu = node.cpu
    own = _own_cpus(request, node, only)
    free = _free_by_numa(request, node, numas, own)
    emptiest_first = cpu is not None and cpu.strategy is not NumaStrategy.MOST_ALLOCATED

    def order(numa: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        lost = wishes_lost(request.cpu, own, cpu, numa) if request.cpu and own and cpu else 0
        left = sum(free[at] for at in numa)
        return lost, -left if emptiest_first else left, numa

    for width, sets in _by_width(cpu, numas):
        if width <= widest:
            yield [NumaSet(lost, frozenset(numa)) for lost, _, numa in sorted(map(order, sets))]


def opened(shares: Iterable[Share], node: NodeSnapshot, order: str = "") -> tuple[int, int]:
    """How many idle devices, and how many PCIe roots without a device in use, these shares would take into use.

    Nothing counts if idle devices are to be used first, or the order of minors decides.
    `order`: the Pod's order of devices, "" for the node's.
    """
    if (order or node.order) in {DeviceOrder.LEAST_USED, DeviceOrder.MINOR}:
        return NOTHING_OPENED
    idle = {share.id for share in shares if share.id not in node.used}
    if not idle:
        return NOTHING_OPENED
    busy = {device.pcie for device in node.devices if device.id in node.used or device.id in node.kubelet_held}
    roots = {device.pcie for device in node.devices if device.id in idle and device.pcie is not None} - busy
    return len(idle), len(roots)


def kept_apart(
    request: PodRequest, node: NodeSnapshot, widths: Iterable[Sequence[NumaSet]], policy: NumaPolicy
) -> Iterator[Sequence[NumaSet]]:
    """Put last, or leave out, the sets that break singleNUMANodeExclusive (numa-topology-spec).

    A Pod that needs several NUMA nodes avoids one whose Pods are each inside it; a Pod of one NUMA node avoids one that
    a Pod of several uses. Only Pods with CPUs of their own are counted.
    """
    exclusive = request.cpu.single_numa_exclusive if request.cpu is not None else None
    if exclusive is None:
        yield from widths
        return
    single, shared = _used_by_width(node)
    late = []
    for sets in widths:
        avoided = [one for one in sets if one.numas & (single if len(one.numas) > 1 else shared)]
        if avoided:
            late.append(avoided)
        if kept := [one for one in sets if one not in avoided]:
            yield kept
    if exclusive is NumaExclusive.PREFERRED or policy is NumaPolicy.BEST_EFFORT:
        yield from late


def _by_width(cpu: CpuNode | None, numas: tuple[int, ...]) -> Iterator[tuple[int, Iterable[tuple[int, ...]]]]:
    """Sets of NUMA nodes of each size, ascending.

    The kubelet's Topology Manager supports at most eight NUMA nodes. With more, the sets are single NUMA nodes, whole
    sockets, and all: other combinations would be too many.
    """
    if len(numas) <= MAX_COMBINED:
        yield from ((width, combinations(numas, width)) for width, _ in enumerate(numas, 1))
        return
    yield 1, combinations(numas, 1)
    sockets = _by_socket(cpu.topology) if cpu is not None else []
    for width in sorted({len(of) for of in sockets} - {1, len(numas)}):
        yield width, [of for of in sockets if len(of) == width]
    yield len(numas), [numas]


def _by_socket(topology: CpuTopology) -> list[tuple[int, ...]]:
    """The NUMA nodes of each socket."""
    return [
        tuple(at for at, cpus in sorted(topology.nodes.items()) if cpus & socket)
        for _, socket in sorted(topology.sockets.items())
    ]


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


def _own_cpus(request: PodRequest, node: NodeSnapshot, only: Holding | None) -> Own | None:
    """The rules by which a Pod gets CPUs of its own; None if it gets none."""
    if request.cpu is None or not request.cpu.count or node.cpu is None:
        return None
    cpus = only.cpus.cpus if only is not None and only.cpus is not None else 0
    own = own_cpus(request.cpu, node.name, node.cpu, node.cpu_use, cpus)
    return None if isinstance(own, Refusal) else own


def _free_by_numa(request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], own: Own | None) -> dict[int, int]:
    """The exact free part, in each NUMA node, of everything that a Pod requests.

    The unit is a part of the whole node's amount of a resource; the parts are so small that each amount is a whole
    number of them. CPU, memory and each type of devices therefore have the same weight.
    """
    known: list[_Free] = []
    if request.cpu is not None and node.cpu is not None:
        known += _free_cpu(request.cpu, node.cpu, node, numas, own)
    for kind in request.types():
        known += _free_devices(kind, node, numas)
    known = [(free, total) for free, total in known if total]
    unit = lcm(*(total for _, total in known))
    return {at: sum(unit // total * free[at] for free, total in known) for at in numas}


def _free_cpu(
    ask: CpuAsk, cpu: CpuNode, node: NodeSnapshot, numas: tuple[int, ...], own: Own | None
) -> Iterator[_Free]:
    """CPU, memory and other resources, as far as requested and reported by NUMA nodes.

    The CPUs of a NUMA node that count are those that may become the Pod's own, or otherwise its shared pool.
    """
    use, nodes = node.cpu_use, cpu.topology.nodes
    if ask.milli:
        free = {
            at: shared_milli(cpu, use, at) if own is None else MILLI * (nodes[at] & own.free).bit_count()
            for at in numas
        }
        yield free, MILLI * cpu.topology.all.bit_count()
    if ask.memory and (memory := dict(memory_free(cpu, use, numas))):
        yield memory, sum(zone.memory for zone in cpu.zones.values() if zone.memory)
    for resource, _ in ask.others:
        has = {at: much for at, zone in cpu.zones.items() for of, much in zone.others if of == resource}
        yield {at: max(has.get(at, 0) - use.others.get((at, resource), 0), 0) for at in numas}, sum(has.values())


def _free_devices(kind: DeviceType, node: NodeSnapshot, numas: tuple[int, ...]) -> Iterator[_Free]:
    """One type's devices, by each of the resources that compare them; these together weigh as much as one."""
    tails = fullness(kind)
    devices = [device for device in node.devices if device.type == kind.name]
    stock = node.stock(devices, tails)
    for at_tail in range(len(tails)):
        free = dict.fromkeys(numas, 0)
        for device, (_, left) in zip(devices, stock, strict=True):
            if device.numa_node in free:
                free[device.numa_node] += left[at_tail]
        yield free, len(tails) * sum(has[at_tail] for has, _ in stock)


_STRICTNESS: Final = tuple(NumaPolicy)
MAX_STEPS: Final = 4000
"""Steps of one decision: some 10 ms. Ordinary Pods take fewer than a hundred."""
_PLAN_STEPS: Final = 2  # of one plan, beside what the search for devices takes
_ASIDE: Final = 3  # part of the budget that is kept for a plan that is not aligned


@dataclass(frozen=True, slots=True)
class Placement:
    """What a Pod gets on a node."""

    node: str
    shares: tuple[Share, ...]  # one per device, by type in the order of the request, then by minor
    cpus: CpuShare | None = None  # CPUs and NUMA nodes; None if the Pod requests none


def place(
    request: PodRequest, node: NodeSnapshot, only: Holding | None = None, budget: Budget | None = None
) -> Placement | Refusal:
    """Decide what a Pod would get on a node.

    Pure: the same arguments give the same answer. The search for many containers can take any time, so it ends with the
    budget. The Pod is refused then, and the refusal is marked as unfinished.
    `node`: the node now; its holdings must not include the Pod's own. `only`: restricts the choice to the devices that
    it names, at most that amount of each, with the virtual functions that it names; and to its CPUs and NUMA nodes, if
    it names any. The NUMA policy, the number of NUMA nodes that it allows and exclusive Pods are still judged on the
    whole node. `budget`: what several decisions may look at together; by default each may take `MAX_STEPS`. Returns
    the placement, or why the node cannot hold the Pod.
    """
    refused = not_isolated(request, node) or not_delivered(request, node) or without_limits(request, node)
    if refused is not None:
        return refused
    budget = budget or Budget(MAX_STEPS)
    policy = numa_policy(request, node.cpu)
    numas = () if policy is NumaPolicy.NONE else _numa_nodes(node)
    try:
        if numas:
            return _place_aligned(request, node, numas, policy, budget, only)
        return _plan(request, node, budget, None, only)
    except BudgetSpentError:
        return _unfinished(request, node, "")


def _unfinished(request: PodRequest, node: NodeSnapshot, where: str) -> Refusal:
    """Refuse a Pod because not everything was tried."""
    short = f"the search for devices{where} was ended: too many ways to serve the containers"
    what = f"{len(request.containers)} requests of containers for devices"
    remedy = "let fewer containers request devices, or let them request equal amounts"
    return Refusal(f"{node.name}: {short}; {what} were tried together; {remedy}", short=short, unfinished=True)


def numa_policy(request: PodRequest, node: CpuNode | None) -> NumaPolicy:
    """Return how strictly a Pod is aligned: by its own policy, else by the node's.

    Never less strictly than the kubelet aligns what it gives the Pod.
    """
    cpu = request.cpu
    policy = cpu.numa_policy if cpu is not None else None
    if node is None:
        return policy or NumaPolicy.NONE
    policy = policy or node.policy
    if cpu is None or node.kubelet_by_container or not aligned_by_kubelet(cpu, node):
        return policy
    return max(policy, node.kubelet_policy, key=_STRICTNESS.index)


def _numa_nodes(node: NodeSnapshot) -> tuple[int, ...]:
    """The NUMA nodes, ascending; if the CPUs are unknown, those that the devices report."""
    if node.cpu is not None:
        return tuple(sorted(node.cpu.topology.nodes))
    return tuple(sorted({device.numa_node for device in node.devices if device.numa_node is not None}))


def place_by_numa(request: PodRequest, node: NodeSnapshot) -> dict[int, Placement | Refusal]:
    """Decide for each NUMA node by itself what a Pod would get there: why an aligned Pod fits into none.

    The answer is by NUMA node, ascending; empty if no NUMA policy holds for the Pod there.
    """
    if numa_policy(request, node.cpu) is NumaPolicy.NONE:
        return {}
    found: dict[int, Placement | Refusal] = {}
    for numa in _numa_nodes(node):
        try:
            found[numa] = _plan(request, node, Budget(MAX_STEPS), frozenset({numa}))
        except BudgetSpentError:
            found[numa] = _unfinished(request, node, f" in NUMA node {numa}")
    return found


def _place_aligned(
    request: PodRequest,
    node: NodeSnapshot,
    numas: tuple[int, ...],
    policy: NumaPolicy,
    budget: Budget,
    only: Holding | None,
) -> Placement | Refusal:
    """Place a Pod in the fewest of these NUMA nodes in which its whole request fits."""
    aside = budget.set_aside(_ASIDE)
    first: Refusal | None = None
    apart = ended = False
    try:
        widest = _widest(request, node, numas, policy, budget)
        for sets in kept_apart(request, node, numa_sets(request, node, numas, widest, only), policy):
            placed = _best_of(sets, request, node, budget, only)
            if isinstance(placed, Placement):
                return placed
            first = first or placed
        if policy is not NumaPolicy.BEST_EFFORT:
            left_out = numa_sets(request, node, numas, widest, only)
            apart = _fits_apart(request, node, left_out, budget, only)
    except BudgetSpentError:
        ended = True
    budget.left += aside.left
    anywhere = _plan(request, node, budget, None, only)
    if policy is NumaPolicy.BEST_EFFORT or isinstance(anywhere, Refusal):
        return anywhere
    where = "one NUMA node" if policy is NumaPolicy.SINGLE_NUMA_NODE else "as few NUMA nodes as the Pod needs"
    if ended:
        return _unfinished(request, node, f" in {where} (NUMA policy {policy})")
    short = f"the Pod fits, but not in {where} (NUMA policy {policy})"
    if apart:
        why = "; its singleNUMANodeExclusive keeps it apart from Pods that run there"
    elif first is not None:
        why = f"; in the first tried: {first.message.removeprefix(f'{node.name}: ')}"
    else:
        why = "; nor would it fit there if the node were empty"
    return Refusal(f"{node.name}: {short}{why}", short=short)


def _best_of(
    sets: Sequence[NumaSet], request: PodRequest, node: NodeSnapshot, budget: Budget, only: Holding | None
) -> Placement | Refusal | None:
    """Place a Pod in the best of these sets of one size; the refusal by the first set if it fits into none.

    What a set opens is known only from a plan in it. A plan is made in each set that loses the fewest CPU wishes. If
    there are too many such sets, the first that fits is taken.
    Raises BudgetSpentError: before a set was found into which the Pod fits.
    """
    first: Refusal | None = None
    best: tuple[tuple[int, int], Placement] | None = None
    compared = bool(request.containers) and len(sets) <= MAX_COMPARED
    lost = 0
    for one in sets:
        if best is not None and one.lost > lost:
            break
        try:
            placed = _plan(request, node, budget, one.numas, only)
        except BudgetSpentError:
            if best is None:
                raise
            break
        if isinstance(placed, Refusal):
            first = first or placed
            continue
        cost = opened(placed.shares, node, request.wishes.order) if compared else NOTHING_OPENED
        if cost == NOTHING_OPENED:
            return placed
        if best is None or cost < best[0]:
            best, lost = (cost, placed), one.lost
    return first if best is None else best[1]


def _widest(request: PodRequest, node: NodeSnapshot, numas: tuple[int, ...], policy: NumaPolicy, budget: Budget) -> int:
    """How many NUMA nodes a Pod may take.

    Under Restricted, as many as the Pod would need on this node if it were empty and no CPU were reserved, which the
    kubelet prefers. 0 if the Pod would not fit even then.
    """
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        return 1
    if policy is NumaPolicy.BEST_EFFORT:
        return len(numas)
    empty = node.holding_all({})
    if empty.cpu is not None:
        empty = replace(empty, cpu=replace(empty.cpu, reserved=0))
    sets = chain.from_iterable(numa_sets(request, empty, numas, len(numas)))
    return len(next((one.numas for one in sets if isinstance(_plan(request, empty, budget, one.numas), Placement)), ()))


def _fits_apart(
    request: PodRequest, node: NodeSnapshot, sets: Iterable[Sequence[NumaSet]], budget: Budget, only: Holding | None
) -> bool:
    """Whether a refused Pod would fit into a set that `kept_apart` left out."""
    if request.cpu is None or request.cpu.single_numa_exclusive is not NumaExclusive.REQUIRED:
        return False
    every = chain.from_iterable(sets)
    return any(isinstance(_plan(request, node, budget, one.numas, only), Placement) for one in every)


def _plan(
    request: PodRequest, node: NodeSnapshot, budget: Budget, numa: frozenset[int] | None, only: Holding | None = None
) -> Placement | Refusal:
    """Choose everything that a Pod requests, inside these NUMA nodes.

    Raises BudgetSpentError: the search ended before it was found out whether the Pod fits.
    """
    budget.spend(_PLAN_STEPS)
    cpus: CpuShare | None = None
    if request.cpu is not None:
        allowed = only.cpus if only is not None else None
        chosen = choose_cpus(request.cpu, node.name, node.cpu, node.cpu_use, numa, allowed)
        if isinstance(chosen, Refusal):
            return chosen
        cpus = None if request.cpu.implied and not chosen.numa else chosen
    shares = _choose(request, node, budget, numa, only)
    return shares if isinstance(shares, Refusal) else Placement(node.name, shares, cpus)


def _choose(
    request: PodRequest, node: NodeSnapshot, budget: Budget, numa: frozenset[int] | None, only: Holding | None
) -> tuple[Share, ...] | Refusal:
    """Choose the devices: first the types of a joint allocation together, then each other type by itself."""
    kinds = request.types()
    joint = request.wishes.joint
    found: tuple[Share, ...] = ()
    if joint is not None and (together := request.joint_types()):
        shares = choose_together(together, request, node, budget, numa, only, same_root=joint.same_pcie)
        if isinstance(shares, Refusal):
            return shares
        found = shares
        kinds = tuple(kind for kind in kinds if kind not in together)
    for kind in kinds:
        shares = choose_devices(kind, request, node, budget, numa, only)
        if isinstance(shares, Refusal):
            return shares
        found += shares
    return found
