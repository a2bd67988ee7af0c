"""The choice of a Pod's CPUs and NUMA nodes on one node.

CPU proposal; Koordinator, pkg/scheduler/plugins/nodenumaresource.

Pods of class LSE and LSR get CPUs of their own. Other Pods get thousandths of a CPU in NUMA nodes, if they or the node
require alignment, or the shared pool of one NUMA node (ConstrainedBurst).
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple

from allocator.cpu.accumulator import take, wishes_given_up
from allocator.cpu.kubelet import refused_by_kubelet
from allocator.cpu.words import cpu_amount, not_free, numa_nodes
from allocator.quantity import in_gib
from allocator.vocabulary.cpunode import (
    ARM,
    MILLI,
    REFUSING,
    BindPolicy,
    CpuAsk,
    CpuNode,
    CpuShare,
    CpuUse,
    ExclusivePolicy,
    NumaShare,
    NumaStrategy,
    QosClass,
    supported,
)
from allocator.vocabulary.cputopology import MAX_COMBINED, CpuTopology, format_cpuset, highest
from allocator.vocabulary.outcome import Refusal
from allocator.wire.values import write_amount

# BE Pods run on the best-effort pool and SYSTEM Pods on the system's CPUs, never on a NUMA node's shared pool.
_Others = tuple[tuple[str, int], ...]  # amounts of other resources, by name
_ELSEWHERE: Final = (QosClass.BE, QosClass.SYSTEM)


def choose_cpus(
    ask: CpuAsk,
    name: str,
    node: CpuNode | None,
    use: CpuUse,
    numa: AbstractSet[int] | None = None,
    only: CpuShare | None = None,
) -> CpuShare | Refusal:
    """Choose what a Pod gets of a node's CPUs.

    `node`: its CPUs; None if they are unknown. `numa`: the NUMA nodes to choose from; None for all. `only`: the only
    CPUs and NUMA nodes that may be chosen, if it names any.
    """
    if node is None or node.holders_unknown:
        return _on_unknown(ask, name, node)
    refused = refused_by_kubelet(ask, name, node, use)
    if refused is not None:
        return refused
    if ask.qos in _ELSEWHERE:
        return CpuShare(ask.qos)
    if ask.count:
        return _own(ask, name, node, use, numa, only.cpus if only is not None else 0)
    if only is not None and only.numa and (numa is not None or ask.constrained_burst):
        named = {one.node for one in only.numa}
        numa = named & (node.topology.nodes.keys() if numa is None else numa)
        if not numa:
            where = f"its CPUs must be in {numa_nodes(named)}"
            return Refusal(f"{name}: {where}", short=where)
    return _burst(ask, name, node, use, numa) if ask.constrained_burst else _aligned(ask, name, node, use, numa)


def _on_unknown(ask: CpuAsk, name: str, node: CpuNode | None) -> CpuShare | Refusal:
    """Refuse CPUs and alignment on a node whose CPUs, or their holders, are unknown."""
    if ask.qos in _ELSEWHERE or not (ask.count or ask.constrained_burst or ask.numa_policy in REFUSING):
        return CpuShare(ask.qos)  # the kubelet decides
    if node is not None:
        why = (
            "which of its CPUs are held or reserved cannot be read from its NodeResourceTopology object; koordgate's "
            "log names the problem"
        )
        return Refusal(f"{name}: {why}", permanent=True, short="unknown which CPUs are held or reserved")
    why = "its CPUs are unknown (no NodeResourceTopology object, or one without a CPU topology)"
    return Refusal(f"{name}: {why}", permanent=True, short="no CPU topology known")


def bind_policy(ask: CpuAsk, node: CpuNode) -> tuple[BindPolicy, bool] | str:
    """Return a Pod's CPU bind policy on a node and whether it is required, or why Pod and node contradict each other.

    The Pod's required policy must equal the node's, if both state one. Otherwise the node's policy applies, then the
    Pod's preferred one, then the configured default. Nodes of FullPCPUs refuse even a Pod that only prefers
    SpreadByPCPUs (CPU proposal, "Resource spec"). On arm64 a node's SpreadByPCPUs is FullPCPUs.
    """
    bind, wanted = node.bind, ask.preferred  # equals the required policy, if there is one
    if bind is None:
        return wanted or node.default_bind, ask.required is not None
    if node.architecture == ARM and ask.required is not BindPolicy.SPREAD_BY_PCPUS:
        return BindPolicy.FULL_PCPUS, True
    apart = (bind, wanted) == (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)
    if apart or ask.required not in {None, BindPolicy.DEFAULT, bind}:
        return f"the node's CPU bind policy is {bind}, the Pod's {wanted}"
    return bind, True


class Own(NamedTuple):
    """The rules by which a Pod gets CPUs of its own on a node."""

    bind: BindPolicy
    exclusive: ExclusivePolicy  # what to avoid, if possible
    required: bool  # whether `bind` must be kept
    free: int  # the CPUs to choose from
    kept: int  # how many more CPUs are free, but stay with the Pods on the shared pools of their NUMA nodes
    held_cores: int  # all CPUs of the cores to avoid
    held_nodes: int  # all CPUs of the NUMA nodes to avoid


def own_cpus(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse, only: int = 0) -> Own | Refusal:
    """Find the rules by which a Pod gets CPUs of its own, and the CPUs to choose from.

    `only`: the only CPUs that may be taken; 0 for all. Returns the rules; a permanent refusal if those of the Pod and
    the node exclude each other.
    """
    chosen = bind_policy(ask, node)
    if isinstance(chosen, str):
        return Refusal(f"{name}: {chosen}", permanent=True, short="the node's CPU bind policy is not the Pod's")
    bind, required = chosen
    here = supported(node.architecture, bind, ask.exclusive or node.default_exclusive, required=required)
    if isinstance(here, str):
        return Refusal(f"{name}: {here}", permanent=True, short=here)
    bind, exclusive = here
    step = node.topology.core_step
    if (node.whole_cores or (required and bind is BindPolicy.FULL_PCPUS)) and ask.count % step:
        why = f"{ask.count} CPUs are requested, but only whole cores of {step} CPUs are allocated here"
        return Refusal(f"{name}: {why}", permanent=True, short=f"CPUs requested are no multiple of {step} per core")
    free = node.topology.all & ~node.reserved & ~use.taken
    offered = only or node.topology.all
    kept = _pools(node, use, free, offered, bind) if use.numa else 0
    cores = use.lone_cores if exclusive is ExclusivePolicy.NUMA_NODE_LEVEL else use.exclusive_cores
    return Own(bind, exclusive, required, free & offered & ~kept, kept.bit_count(), cores, use.exclusive_nodes)


def _pools(node: CpuNode, use: CpuUse, free: int, offered: int, bind: BindPolicy) -> int:
    """The free CPUs that stay in the shared pools: in each NUMA node as many as the Pods on its pool need.

    CPUs that are not offered to the Pod come first.
    """
    topology = node.topology
    kept = 0
    for at, (milli, _) in use.numa.items():
        there = free & topology.nodes.get(at, 0)
        left = -(-milli // MILLI)
        for group in chain((there & ~offered,), _least_loss(topology, there & offered, bind)):
            part = highest(group, left)
            kept |= part
            left -= part.bit_count()
            if not left:
                break
    return kept


def _least_loss(topology: CpuTopology, cpus: int, bind: BindPolicy) -> Iterator[int]:
    """CPUs in the order in which a bind policy can spare them: first the threads that it would not choose."""
    if bind is BindPolicy.SPREAD_BY_PCPUS:
        leads = topology.leads(cpus)
        yield cpus & ~leads
        yield leads
        return
    whole = topology.whole(cpus)
    yield cpus & ~whole
    for core in reversed(topology.cores):
        if core & whole:
            yield core


def wishes_lost(ask: CpuAsk, own: Own, node: CpuNode, numa: Iterable[int]) -> int:
    """How many of its preferences a Pod must give up inside these NUMA nodes; 0 for none."""
    return wishes_given_up(
        node.topology,
        own.free & node.cpus_of(numa),
        ask.count,
        bind=own.bind,
        exclusive=own.exclusive,
        held_cores=own.held_cores,
        held_nodes=own.held_nodes,
    )


def _own(
    ask: CpuAsk, name: str, node: CpuNode, use: CpuUse, numa: AbstractSet[int] | None, only: int
) -> CpuShare | Refusal:
    """Choose CPUs of its own for a Pod."""
    own = own_cpus(ask, name, node, use, only)
    if isinstance(own, Refusal):
        return own
    topology = node.topology
    inside = topology.all if numa is None else node.cpus_of(numa)
    free = own.free & inside
    cpus = take(
        topology,
        free,
        ask.count,
        bind=own.bind,
        exclusive=own.exclusive,
        strategy=_strategy(node, numa),
        held_cores=own.held_cores,
        held_nodes=own.held_nodes,
        required=own.required,
    )
    if cpus is None:
        never = numa is None and (inside & ~node.reserved).bit_count() < ask.count
        return _short_of_cpus(ask, name, own, free, permanent=never)
    aligned: tuple[NumaShare, ...] = ()
    if numa is not None:
        memory = _split(ask.memory, memory_free(node, use, numa))
        if memory is None:
            return _short_of_memory(ask, name, numa)
        others = _others(ask, name, node, use, numa)
        if isinstance(others, Refusal):
            return others
        milli = {at: MILLI * (topology.nodes[at] & cpus).bit_count() for at in numa}
        shares = _numa_shares(node, milli, memory, others)
        aligned = tuple(one for one in shares if one.milli or one.memory or one.others)
    return CpuShare(ask.qos, cpus, own.bind, own.exclusive, aligned)


def _strategy(node: CpuNode, numa: AbstractSet[int] | None) -> NumaStrategy:
    """How the CPUs of a Pod are distributed over the NUMA nodes to which it is aligned: evenly, as other resources are.

    With more than eight NUMA nodes the Pod is aligned to a whole socket, which has more than it needs. As few of its
    NUMA nodes as possible then give the same number each. (Koordinator, pkg/scheduler/plugins/nodenumaresource, uses
    all.)
    """
    if numa is None or len(numa) == 1:
        return node.strategy
    wide = len(node.topology.nodes) > MAX_COMBINED
    return NumaStrategy.DISTRIBUTE_BEYOND_ONE if wide else NumaStrategy.DISTRIBUTE_EVENLY


def _short_of_cpus(ask: CpuAsk, name: str, own: Own, free: int, *, permanent: bool) -> Refusal:
    how = f" ({own.bind} required)" if own.required else ""
    why = f"{ask.count} CPUs{how} are requested, {free.bit_count()} are free"
    if free:
        why += f": {format_cpuset(free)}"
    if own.kept:
        why += f"; {own.kept} more are kept for the Pods on the shared pools of their NUMA nodes"
    return Refusal(f"{name}: {why}", permanent=permanent, short=f"too few CPUs for {ask.count}{how}")


def _short_of_memory(ask: CpuAsk, name: str, numa: Iterable[int]) -> Refusal:
    why = f"memory {in_gib(ask.memory, stated=True)} is not free in {numa_nodes(numa)}"
    return Refusal(f"{name}: {why}", short="too little memory in the NUMA nodes")


def _short_of_milli(ask: CpuAsk, name: str, numa: Iterable[int]) -> Refusal:
    return Refusal(f"{name}: {not_free(max(ask.milli, 1), numa)}", short="too little CPU in the NUMA nodes")


def _aligned(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse, numa: AbstractSet[int] | None) -> CpuShare | Refusal:
    """Align a Pod without CPUs of its own to NUMA nodes, if any are given."""
    if numa is None:
        return CpuShare(ask.qos)
    free = [(at, shared_milli(node, use, at)) for at in numa]
    pools = [one for one in free if one[1]]  # no Pod can run in an empty pool, however much memory its NUMA node has
    milli = _split(ask.milli, pools) if pools else None
    if milli is None:
        return _short_of_milli(ask, name, numa)
    memory = _split(ask.memory, memory_free(node, use, milli))
    if memory is None:
        return _short_of_memory(ask, name, milli)
    others = _others(ask, name, node, use, numa)
    if isinstance(others, Refusal):
        return others
    return CpuShare(ask.qos, numa=_numa_shares(node, milli, memory, others))


def _burst(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse, numa: AbstractSet[int] | None) -> CpuShare | Refusal:
    """Find the NUMA node whose shared pool is wide enough for a Pod's limit, in the node's order (ConstrainedBurst)."""
    here = supported(node.architecture, BindPolicy.CONSTRAINED_BURST, ExclusivePolicy.NONE, required=True)
    if isinstance(here, str):
        return Refusal(f"{name}: {here}", permanent=True, short=here)
    nodes = node.topology.nodes
    pools = {
        at: MILLI * (nodes[at] & (~node.reserved | node.pooled) & ~use.taken).bit_count()
        for at in sorted(nodes if numa is None else numa)
    }
    wide = [at for at, pool in pools.items() if pool >= ask.limit_milli]
    if not wide:
        why = f"no NUMA node's shared pool is wide enough for the limit of {cpu_amount(ask.limit_milli)}"
        widest = max(pools.values(), default=0)
        return Refusal(
            f"{name}: {why}; the widest has {cpu_amount(widest)}", short="no shared pool wide enough for the CPU limit"
        )
    free = {at: shared_milli(node, use, at) for at in wide}
    roomy = [at for at in wide if free[at] >= max(ask.milli, 1)]
    if not roomy:
        return _short_of_milli(ask, name, wide)
    memory = dict(memory_free(node, use, roomy))
    found = [at for at in roomy if memory.get(at, ask.memory) >= ask.memory]
    if not found:
        return _short_of_memory(ask, name, roomy)
    sign = 1 if node.strategy is NumaStrategy.MOST_ALLOCATED else -1
    short: Refusal | None = None
    for at in sorted(found, key=lambda one: (sign * free[one], one)):
        others = _others(ask, name, node, use, (at,))
        if isinstance(others, Refusal):
            short = short or others
            continue
        numa_shares = _numa_shares(node, {at: ask.milli}, {at: ask.memory} if at in memory else {}, others)
        return CpuShare(ask.qos, bind=BindPolicy.CONSTRAINED_BURST, numa=numa_shares)
    return short or _short_of_memory(ask, name, roomy)


def shared_milli(node: CpuNode, use: CpuUse, at: int) -> int:
    """Thousandths of a CPU that are free in a NUMA node for Pods without CPUs of their own; at least 0."""
    cpus = node.topology.nodes[at]
    pool = MILLI * (cpus & ~node.reserved & ~use.taken).bit_count()
    zone = node.zones.get(at)
    if zone is not None and zone.milli is not None:
        pool = min(pool, zone.milli - MILLI * (cpus & use.taken & ~node.reserved).bit_count())
    return max(pool - use.numa.get(at, (0, 0))[0], 0)


def memory_free(node: CpuNode, use: CpuUse, numa: Iterable[int]) -> list[tuple[int, int]]:
    """Bytes free in these NUMA nodes: 0 in one that reports no memory though others do; empty if none reports any."""
    if all(zone.memory is None for zone in node.zones.values()):
        return []
    has = {at: zone.memory or 0 for at, zone in node.zones.items()}
    return [(at, max(has.get(at, 0) - use.numa.get(at, (0, 0))[1], 0)) for at in numa]


def _split(amount: int, free: list[tuple[int, int]]) -> Mapping[int, int] | None:
    """Split an amount evenly over NUMA nodes, those with the least free first; None if it does not fit.

    A resource that no NUMA node reports is not counted (Koordinator, resource_manager.go).
    """
    if not free:
        return {}
    parts: dict[int, int] = {}
    order = sorted(free, key=lambda one: (one[1], one[0]))
    left = amount
    for index, (at, has) in enumerate(order):
        parts[at] = min(left // (len(order) - index), has)
        left -= parts[at]
    return parts if not left else None


def _others(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse, numa: Iterable[int]) -> Mapping[int, _Others] | Refusal:
    """Split every other resource that the NUMA nodes report over these; a refusal if one does not fit."""
    parts: dict[int, _Others] = {}
    for resource, amount in ask.others:
        has = {at: much for at, zone in node.zones.items() for of, much in zone.others if of == resource}
        free = [(at, max(has.get(at, 0) - use.others.get((at, resource), 0), 0)) for at in numa] if has else []
        split = _split(amount, free)
        if split is None:
            why = f"{resource} {write_amount(resource, amount)} is not free in {numa_nodes(numa)}"
            return Refusal(f"{name}: {why}", short=f"too little {resource} in the NUMA nodes")
        for at, much in split.items():
            if much:
                parts[at] = (*parts.get(at, ()), (resource, much))
    return parts


def _numa_shares(
    node: CpuNode, milli: Mapping[int, int], memory: Mapping[int, int], others: Mapping[int, _Others]
) -> tuple[NumaShare, ...]:
    socket = node.topology.socket_of_node
    return tuple(
        NumaShare(at, milli.get(at, 0), memory.get(at, 0), socket[at], others.get(at, ()))
        for at in sorted({*milli, *memory, *others})
    )
