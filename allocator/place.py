"""The one decision: `place(request, node)`.

Filter, score, bind, dry run and simulation all call it, so they can never disagree. Devices and CPUs are one plan:
under a NUMA policy it finds a set of NUMA nodes in which everything that the Pod requests fits, and chooses each
resource inside that set (CPU proposal, "NUMA topology alignment policy").
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from allocator.budget import Budget, BudgetSpentError
from allocator.cpu.choose import choose_cpus
from allocator.cpu.kubelet import aligned_by_kubelet
from allocator.devices.choose import choose_devices, choose_together
from allocator.devices.delivery import not_delivered
from allocator.devices.isolation import not_isolated, without_limits
from allocator.numasets import MAX_COMPARED, NOTHING_OPENED, NumaSet, kept_apart, numa_sets, opened
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import CpuNode, CpuShare
from allocator.vocabulary.cpupolicy import NumaExclusive, NumaPolicy
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

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
