"""Choosing a Pod's CPUs and NUMA nodes on one node.

Seed document 4; Koordinator, pkg/scheduler/plugins/nodenumaresource.

Pods of class LSE and LSR get CPUs of their own. Others get thousandths of NUMA nodes, where they or the node ask for
alignment, or the shared pool of one NUMA node (ConstrainedBurst).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from allocator.cpu.accumulator import take
from allocator.cpu.cpuset import format_cpuset
from allocator.cpu.node import MILLI, CpuNode, CpuShare, CpuUse, NumaShare
from allocator.cpu.policy import BindPolicy, ExclusivePolicy, NumaPolicy, supported
from allocator.cpu.qos import CpuAsk, QosClass
from allocator.outcome import Refusal
from allocator.quantity import format_bytes

_PROMISED: Final = (NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE)  # the policies that may refuse a node


def choose_cpus(
    ask: CpuAsk, name: str, node: CpuNode | None, use: CpuUse, numa: frozenset[int] | None = None
) -> CpuShare | Refusal:
    """Choose what a Pod gets of a node's CPUs.

    Args:
        ask: what it asks.
        name: of the node, for messages.
        node: its CPUs; None where nothing is known of them.
        use: what is held of them.
        numa: NUMA nodes to stay inside; None for all.
    """
    if ask.qos is QosClass.BE:
        return CpuShare(ask.qos)  # it runs on what nobody else has to itself
    if node is None:
        return _on_unknown(ask, name)
    if ask.constrained_burst:
        return _burst(ask, name, node, use, numa)
    return _own(ask, name, node, use, numa) if ask.count else _aligned(ask, name, node, use, numa)


def _on_unknown(ask: CpuAsk, name: str) -> CpuShare | Refusal:
    """Nothing can be given, nor promised, where the CPUs are not known."""
    if not (ask.count or ask.constrained_burst or ask.numa_policy in _PROMISED):
        return CpuShare(ask.qos)  # the kubelet sees to it
    told = "its CPUs are not known (no NodeResourceTopology object, or none with a CPU topology)"
    return Refusal(f"{name}: {told}", permanent=True, short="no CPU topology known")


def bind_policy(ask: CpuAsk, node: CpuNode) -> tuple[BindPolicy, bool] | str:
    """Tell by which policy a Pod's CPUs are chosen on a node, and whether it must be kept, or why the two do not agree.

    The Pod's required policy and the node's must be one; then the node's; then the Pod's preferred one; then the
    configured default. A Pod that only prefers to spread is kept away from nodes of whole cores all the same (seed
    document 4, "Resource spec").
    """
    if node.bind is not None:
        wanted = ask.preferred  # which is the required one where there is one
        apart = (node.bind, wanted) == (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)
        if apart or ask.required not in {None, node.bind}:
            return f"the node's CPU bind policy is {node.bind}, the Pod's {wanted}"
        return node.bind, True
    return ask.preferred or node.default_bind, ask.required is not None


def _own(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse, numa: frozenset[int] | None) -> CpuShare | Refusal:
    """Give CPUs to a Pod for itself."""
    chosen = bind_policy(ask, node)
    if isinstance(chosen, str):
        return Refusal(f"{name}: {chosen}", permanent=True, short="the node's CPU bind policy is not the Pod's")
    topology = node.topology
    threads = topology.threads_per_core
    bind, required = chosen
    here = supported(node.architecture, bind, ask.exclusive or node.default_exclusive, required=required)
    if isinstance(here, str):
        return Refusal(f"{name}: {here}", permanent=True, short=here)
    bind, exclusive = here.bind, here.exclusive
    if (node.whole_cores or (required and bind is BindPolicy.FULL_PCPUS)) and ask.count % threads:
        told = f"{ask.count} CPUs are asked, and only whole cores of {threads} CPUs are given here"
        return Refusal(f"{name}: {told}", permanent=True, short=f"CPUs asked are no multiple of {threads} a core")
    inside = topology.all if numa is None else node.cpus_of(numa)
    free = inside & ~node.reserved & ~use.taken
    cpus = take(
        topology,
        free,
        ask.count,
        bind=bind,
        exclusive=exclusive,
        strategy=node.strategy,
        held_cores=use.lone_cores if exclusive is ExclusivePolicy.NUMA_NODE_LEVEL else use.exclusive_cores,
        held_nodes=use.exclusive_nodes,
        required=required,
    )
    if cpus is None:
        never = (inside & ~node.reserved).bit_count() < ask.count
        return _short_of_cpus(ask, name, free, permanent=never and numa is None, what=bind if required else "")
    stands: tuple[NumaShare, ...] = ()
    if numa is not None:
        memory = _split(ask.memory, _memory_free(node, use, numa))
        if memory is None:
            return _short_of_memory(ask, name, numa)
        stands = _stand(node, {at: MILLI * (node.topology.nodes[at] & cpus).bit_count() for at in numa}, memory)
    return CpuShare(ask.qos, cpus, bind, exclusive, stands)


def _short_of_cpus(ask: CpuAsk, name: str, free: int, *, permanent: bool, what: str) -> Refusal:
    how = f" ({what} required)" if what else ""
    told = f"{ask.count} CPUs{how} are asked, free are {free.bit_count()}"
    listed = f": {format_cpuset(free)}" if free else ""
    return Refusal(f"{name}: {told}{listed}", permanent=permanent, short=f"too few CPUs for {ask.count}{how}")


def _short_of_memory(ask: CpuAsk, name: str, numa: Iterable[int]) -> Refusal:
    where = ", ".join(map(str, sorted(numa)))
    told = f"memory {format_bytes(ask.memory)} is not free in NUMA nodes {where}"
    return Refusal(f"{name}: {told}", short="too little memory in the NUMA nodes")


def _aligned(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse, numa: frozenset[int] | None) -> CpuShare | Refusal:
    """Let a Pod without CPUs of its own stand in NUMA nodes, if it is to be aligned."""
    if numa is None:
        return CpuShare(ask.qos)
    milli = _split(ask.milli, [(at, shared_milli(node, use, at)) for at in numa])
    if milli is None:
        told = f"{ask.milli} thousandths of a CPU are not free in NUMA nodes {', '.join(map(str, sorted(numa)))}"
        return Refusal(f"{name}: {told}", short="too little CPU in the NUMA nodes")
    memory = _split(ask.memory, _memory_free(node, use, numa))
    if memory is None:
        return _short_of_memory(ask, name, numa)
    return CpuShare(ask.qos, numa=_stand(node, milli, memory))


def _burst(ask: CpuAsk, name: str, node: CpuNode, use: CpuUse, numa: frozenset[int] | None) -> CpuShare | Refusal:
    """Find the NUMA node whose shared pool is wide enough for a Pod's limit, the fullest first (ConstrainedBurst)."""
    here = supported(node.architecture, BindPolicy.CONSTRAINED_BURST, ExclusivePolicy.NONE, required=True)
    if isinstance(here, str):
        return Refusal(f"{name}: {here}", permanent=True, short=here)
    found = []
    widest = 0
    for at in sorted(node.topology.nodes if numa is None else numa):
        pool = MILLI * (node.topology.nodes[at] & (~node.reserved | node.pooled) & ~use.taken).bit_count()
        widest = max(widest, pool)
        left = shared_milli(node, use, at) - ask.milli
        memory = dict(_memory_free(node, use, [at])).get(at)
        if pool >= ask.limit_milli and left >= 0 and (memory is None or memory >= ask.memory):
            found.append((left, at))
    if not found:
        told = f"no NUMA node's shared pool is wide enough for the limit of {ask.limit_milli} thousandths of a CPU"
        return Refusal(f"{name}: {told}; the widest has {widest}", short="no shared pool wide enough for the CPU limit")
    at = min(found)[1]
    return CpuShare(ask.qos, bind=BindPolicy.CONSTRAINED_BURST, numa=_stand(node, {at: ask.milli}, {at: ask.memory}))


def shared_milli(node: CpuNode, use: CpuUse, at: int) -> int:
    """Thousandths of a CPU that are free in a NUMA node for Pods without CPUs of their own, at least 0."""
    cpus = node.topology.nodes[at]
    pool = MILLI * (cpus & ~node.reserved & ~use.taken).bit_count()
    zone = node.zones.get(at)
    if zone is not None and zone.milli is not None:
        pool = min(pool, zone.milli - MILLI * (cpus & use.taken & ~node.reserved).bit_count())
    return max(pool - use.numa.get(at, (0, 0))[0], 0)


def _memory_free(node: CpuNode, use: CpuUse, numa: Iterable[int]) -> list[tuple[int, int]]:
    """Bytes free in these NUMA nodes; only of those that say what they have."""
    free = []
    for at in numa:
        zone = node.zones.get(at)
        if zone is not None and zone.memory is not None:
            free.append((at, max(zone.memory - use.numa.get(at, (0, 0))[1], 0)))
    return free


def _split(amount: int, free: list[tuple[int, int]]) -> Mapping[int, int] | None:
    """Split an amount evenly over NUMA nodes, those with the least free first; None where it does not fit.

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


def _stand(node: CpuNode, milli: Mapping[int, int], memory: Mapping[int, int]) -> tuple[NumaShare, ...]:
    socket = node.topology.socket_of_node
    return tuple(
        NumaShare(at, milli.get(at, 0), memory.get(at, 0), socket.get(at, 0))
        for at in sorted({*milli, *memory})
        if milli.get(at) or memory.get(at)
    )
