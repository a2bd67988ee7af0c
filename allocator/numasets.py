"""The sets of NUMA nodes in which a Pod may be placed, and their order.

The smallest sets come first. Sets of one size are ordered by one tuple:

1. the preferences for CPUs that the Pod must give up there;
2. what its devices open there (`opened`), by a plan made in the set;
3. the free part there of everything that the Pod requests, by the node's strategy: CPU, memory and devices together;
4. the numbers of the NUMA nodes.

CPU proposal, "NUMA topology alignment policy" and "NUMA allocate strategy".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import lcm
from typing import Final, NamedTuple

from allocator.cpu.choose import Own, memory_free, own_cpus, shared_milli, wishes_lost
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpuask import CpuAsk
from allocator.vocabulary.cpunode import MILLI, CpuNode
from allocator.vocabulary.cpupolicy import NumaExclusive, NumaPolicy, NumaStrategy
from allocator.vocabulary.cputopology import MAX_COMBINED, CpuTopology
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot, fullness
from allocator.vocabulary.outcome import Refusal
from allocator.vocabulary.preference import DeviceOrder

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
