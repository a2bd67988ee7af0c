"""The CPUs that the kubelet reserves if only their number is configured (pure).

The order is the kubelet's on a machine with all CPUs free (Kubernetes v1.37, pkg/kubelet/cm/cpumanager,
takeByTopologyNUMAPacked): whole NUMA nodes and sockets that fit, then whole cores, then single threads beside those
already taken. On two sockets with 12 CPUs in all, 2 reserved CPUs are 0,6 and 3 are 0,2,6.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from allocator.vocabulary.cpuset import members
from allocator.vocabulary.cputopology import CpuTopology


def take(topology: CpuTopology, count: int, *, spread: bool = False) -> int:
    """Take a number of CPUs.

    `spread`: as with the kubelet's option distribute-cpus-across-cores: no whole cores first. Returns the set; all CPUs
    if there are fewer.
    """
    # The larger of the two goes first: a NUMA node holds one socket or several, or a socket several NUMA nodes.
    numa_first = len(topology.sockets) >= len(topology.nodes)
    outer, inner = (topology.nodes, topology.sockets) if numa_first else (topology.sockets, topology.nodes)
    free = topology.all
    taken = _whole(_sorted(outer.items(), free), free, count)
    free &= ~taken
    taken |= _whole(_nested(outer, inner, free), free, count - taken.bit_count())
    free &= ~taken
    if spread:
        rest = _nested(outer, inner, free) if numa_first else iter(_sorted(topology.sockets.items(), free))
    else:
        taken |= _whole(_cores(topology, outer, inner, free), free, count - taken.bit_count())
        free &= ~taken
        rest = _cores(topology, outer, inner, free)
    threads = (cpu for group in rest for cpu in members(group & free))
    for cpu in islice(threads, count - taken.bit_count()):
        taken |= 1 << cpu
    return taken


def _whole(groups: Iterable[int], free: int, needed: int) -> int:
    """Take each group that is wholly free and no larger than what is still needed, in the given order."""
    taken = 0
    for group in groups:
        if not group & ~free and group.bit_count() <= needed:
            taken |= group
            needed -= group.bit_count()
    return taken


def _sorted(groups: Iterable[tuple[int, int]], free: int) -> list[int]:
    """Groups that have a free CPU: those with the fewest free CPUs first, then by number."""
    found = [(group & free, number, group) for number, group in groups if group & free]
    return [group for _, _, group in sorted(found, key=lambda item: (item[0].bit_count(), item[1]))]


def _nested(outer: Mapping[int, int], inner: Mapping[int, int], free: int) -> Iterator[int]:
    """The inner groups of each outer one, both in their order."""
    for whole in _sorted(outer.items(), free):
        yield from _sorted([(number, group) for number, group in inner.items() if group & whole & free], free)


def _cores(topology: CpuTopology, outer: Mapping[int, int], inner: Mapping[int, int], free: int) -> Iterator[int]:
    """The cores of each inner group; the kubelet numbers a core by its lowest CPU."""
    for group in _nested(outer, inner, free):
        yield from _sorted([(next(members(core)), core) for core in topology.cores if core & group & free], free)
