"""The choice of exact CPUs among the free ones of a machine.

The order of preference is Koordinator's (pkg/scheduler/plugins/nodenumaresource, the CPU accumulator), so that both
give a Pod the same CPUs, ties included: one NUMA node if it suffices, otherwise one socket, otherwise all of them. The
strategy decides which NUMA node or socket comes first. There, FullPCPUs takes whole free cores, and SpreadByPCPUs one
thread of every core before the second of any (CPU proposal, "Resource spec").

Five promises of the CPU proposal go beyond Koordinator: NUMANodeLevel falls back to PCPULevel ("Resource spec"), an
exclusive policy supplements SpreadByPCPUs (the same), DistributeEvenly distributes ("NUMA allocate strategy"), a
required policy is kept or refused ("CPU bind policy"), and a core is whole if all its own threads are free. If cores
have unequal numbers of threads, cores are taken that add up.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from allocator.vocabulary.cpunode import BindPolicy, ExclusivePolicy, NumaStrategy
from allocator.vocabulary.cputopology import Cell, CpuTopology


def level_shares(sizes: Sequence[int], count: int, unit: int) -> list[tuple[int, int]]:
    """Divide a number over all NUMA nodes, in units, as evenly as their sizes allow; the larger ones get the remainder.

    Returns pairs of index and share, without empty shares.
    """
    order = sorted(range(len(sizes)), key=lambda index: (sizes[index], -index))
    shares: dict[int, int] = {}
    left = count
    for rank, index in enumerate(order):
        fair = left // ((len(order) - rank) * unit) * unit
        shares[index] = min(fair, sizes[index] // unit * unit)
        left -= shares[index]
    for index in sorted(order, key=lambda index: (shares[index], -sizes[index], index)):  # no whole unit is over
        more = min(left, sizes[index] - shares[index])
        shares[index] += more
        left -= more
    return [(index, share) for index, share in shares.items() if share]


def even_shares(sizes: Sequence[int], count: int, unit: int) -> list[tuple[int, int]]:
    """Divide a number evenly over the fewest NUMA nodes that have enough, two or more; the largest are used first.

    Among all equal divisions this leaves the free CPUs most even, which the kubelet's distribute-cpus-across-numa
    compares. Each unit of the remainder goes to one of the largest.
    Returns pairs of index and share; empty if no such division exists.
    """
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    for nodes in range(2, len(order) + 1):
        share = count // (nodes * unit) * unit
        rest = count - share * nodes
        shares = []
        for index in order[:nodes]:
            more = min(unit, rest)
            rest -= more
            shares.append((index, share + more))
        if all(size <= sizes[index] for index, size in shares):
            return [(index, size) for index, size in shares if size]
    return []


class TakeRule(NamedTuple):
    """The inputs of one choice that its steps share."""

    topology: CpuTopology
    exclusive: ExclusivePolicy
    held_cores: int  # CPUs of cores held with PCPULevel
    held_nodes: int  # CPUs of NUMA nodes held with NUMANodeLevel
    full: bool  # whole cores first
    level: bool  # the same number of CPUs in every NUMA node, or all that it has
    even: bool  # the same number of CPUs in each NUMA node, if one does not suffice
    sign: int  # 1 if fewer free CPUs come first, -1 if more do


def spill(rule: TakeRule, free: int, taken: int, left: int) -> int:
    """Take the missing CPUs one at a time, near those already taken; returns all taken CPUs."""
    for usable in _spill_passes(rule, free & ~taken, taken):
        more = nearest(rule, usable & ~taken, taken, left)
        taken |= more
        left -= more.bit_count()
    return taken


def _spill_passes(rule: TakeRule, free: int, taken: int) -> Iterator[int]:
    """The sets of CPUs to try in turn; CPUs that this request took count as held."""
    if rule.exclusive is ExclusivePolicy.PCPU_LEVEL:
        yield free & ~(rule.held_cores | rule.topology.cores_of(taken))
    elif rule.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
        yield free & ~(rule.held_nodes | rule.topology.nodes_of(taken))
        yield free & ~rule.held_cores
    yield free


def nearest(rule: TakeRule, usable: int, taken: int, count: int, avoided: int = 0) -> int:
    """Take up to `count` CPUs, one thread of each core before the second of any, the cores in order of nearness.

    Of cores that would give the last threads, those with `avoided` CPUs come after the others.
    """
    chosen = 0
    cpus = usable
    while cpus and count:
        threads = rule.topology.leads(cpus)
        size = threads.bit_count()
        if size > count:
            if avoided and (others := threads & ~avoided):
                if others.bit_count() >= count:
                    return chosen | _nearest_cores(rule, usable, taken, others, count)
                chosen |= others
                taken |= chosen
                threads ^= others
                count -= others.bit_count()
            return chosen | _nearest_cores(rule, usable, taken, threads, count)
        chosen |= threads
        count -= size
        cpus ^= threads
    return chosen


def _nearest_cores(rule: TakeRule, usable: int, taken: int, threads: int, count: int) -> int:
    """Take `count` of these threads, each of another core.

    Cores come in the order: sockets that gave most so far; their free CPUs and then the NUMA node's, by the
    strategy; cores with fewer free threads; socket; core.
    """
    topology, sign = rule.topology, rule.sign
    near = {
        socket: (-(taken & cpus).bit_count(), sign * (usable & cpus).bit_count())
        for socket, cpus in topology.sockets.items()
    }
    alike: dict[tuple[int, int, int], int] = {}
    for cell in topology.cells:
        key = (*near[cell.socket], sign * (usable & cell.cpus).bit_count())
        alike[key] = alike.get(key, 0) | cell.cpus
    chosen = 0
    for key in sorted(alike):
        there = threads & alike[key]
        if there.bit_count() > count:
            cores = [core for core in topology.cores if core & there]
            cores.sort(key=lambda core: (core & usable).bit_count())
            for core in cores[:count]:
                chosen |= core & threads
            return chosen
        chosen |= there
        count -= there.bit_count()
    return chosen


_BINDS: Final = (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)


def take(  # noqa: PLR0913 - each is one input of the rule, and all but three are named at the call
    topology: CpuTopology,
    free: int,
    count: int,
    *,
    bind: BindPolicy,
    exclusive: ExclusivePolicy,
    strategy: NumaStrategy,
    held_cores: int,
    held_nodes: int,
    required: bool = False,
) -> int | None:
    """Choose CPUs.

    `free`: the CPUs to choose from; others than the machine's are left out. `exclusive`: what to avoid if possible;
    Default is resolved by the caller. `strategy`: which NUMA node or socket first. MostAllocated: the one with the
    fewest free CPUs. LeastAllocated: the one with the most. DistributeEvenly: every NUMA node gives the same number, or
    all that it has free. The kubelet's distribute-cpus-across-numa: as LeastAllocated where one NUMA node suffices,
    otherwise as few NUMA nodes as can give the same number each, the emptiest first. Both count in whole cores for
    FullPCPUs. `held_cores`: all CPUs of the cores on which a Pod holds a CPU with PCPULevel. `held_nodes`: all CPUs of
    the NUMA nodes in which a Pod holds a CPU with NUMANodeLevel. `required`: whether `bind` must be kept: FullPCPUs by
    whole cores, SpreadByPCPUs by one thread of each core. Returns the set; None if it cannot be: too few are free, or
    the required policy cannot be kept with them. Raises ValueError: if count is negative, or a policy names no way of
    choosing.
    """
    if count < 0 or bind not in _BINDS or exclusive is ExclusivePolicy.DEFAULT:
        raise ValueError(f"resolve what is asked before choosing: {count} CPUs, {bind}, exclusive {exclusive}")
    rule = TakeRule(
        topology,
        exclusive,
        held_cores,
        held_nodes,
        full=bind is BindPolicy.FULL_PCPUS,
        level=strategy is NumaStrategy.DISTRIBUTE_EVENLY,
        even=strategy is NumaStrategy.DISTRIBUTE_BEYOND_ONE,
        sign=1 if strategy is NumaStrategy.MOST_ALLOCATED else -1,
    )
    free &= topology.all
    if free.bit_count() < count:
        return None
    chosen = _pack(rule, free, count)
    unequal = rule.full and topology.core_step != topology.threads_per_core
    if not (required or unequal) or _kept(rule, chosen):
        return chosen
    kept = topology.whole(free) if rule.full else topology.leads(free)
    if unequal:
        return _add_up(rule, kept, count) or (None if required else chosen)
    if kept.bit_count() < count:
        return None
    chosen = _pack(rule, kept, count)
    return chosen if _kept(rule, chosen) else None


def wishes_given_up(
    topology: CpuTopology,
    free: int,
    count: int,
    *,
    bind: BindPolicy,
    exclusive: ExclusivePolicy,
    held_cores: int,
    held_nodes: int,
) -> int:
    """How many preferences must be given up to choose `count` of these CPUs; 0 for none.

    The steps are those of `take` within one NUMA node: among several NUMA nodes, a caller that chooses by this number
    chooses as `take` does. Arguments as there.
    """
    spread = bind is BindPolicy.SPREAD_BY_PCPUS and topology.threads_per_core > 1
    fitting = topology.leads if spread else topology.whole
    steps = [free]
    if exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
        steps = [free & ~held_nodes, free & ~held_cores, free] if spread else [free & ~held_nodes, free]
    elif exclusive is ExclusivePolicy.PCPU_LEVEL and spread:
        steps = [free & ~held_cores, free]
    if free.bit_count() < count:
        return len(steps) + 1  # nor can they be chosen at all
    for given_up, usable in enumerate(steps):
        if fitting(usable).bit_count() >= count:
            return given_up
    # Every core is used before a second thread, those that are avoided too.
    return len(steps) + (steps[0] != free if spread else steps[0].bit_count() < count)


def _kept(rule: TakeRule, chosen: int) -> bool:
    """Whether the set is of whole cores, or has one thread of each core."""
    return (rule.topology.whole(chosen) if rule.full else rule.topology.leads(chosen)) == chosen


def _pack(rule: TakeRule, free: int, count: int) -> int:
    """Choose `count` of the free CPUs; there are at least that many."""
    if not count:
        return 0
    if free.bit_count() == count:
        return free
    whole = rule.full or rule.topology.threads_per_core == 1
    taken = _whole_cores(rule, free, count) if whole else _apart(rule, free, count)
    left = count - taken.bit_count()
    return spill(rule, free, taken, left) if left else taken


def _whole_cores(rule: TakeRule, free: int, count: int) -> int:
    """Take whole free cores, and for a remainder a part of one core if all are in one place; as many as there are."""
    topology = rule.topology
    if rule.level and (taken := _level_cores(rule, free, count)):
        return taken
    whole = 0
    for usable in _outside_held_nodes(rule, free):
        whole = topology.whole(usable)
        cell = _best_cell(rule, whole, usable, whole, count)
        if cell is not None:
            return _first_cores(cell.cores, whole, count)
    if rule.even:
        parts = [(usable, topology.whole(usable)) for usable in _outside_held_nodes(rule, free)]
        if whole.bit_count() < count:
            parts.append((free, free))
        evenly = _evenly(rule, parts, count)
        if evenly:
            return evenly
    socket = _best_socket(rule, whole, count)
    if socket is not None:
        return _first_cores(topology.socket_cores[socket], whole, count)
    return _many_sockets(topology, whole, count)


def _outside_held_nodes(rule: TakeRule, free: int) -> tuple[int, ...]:
    """First the CPUs outside of NUMA nodes that are held with the same policy, then all."""
    if rule.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL and free & rule.held_nodes:
        return (free & ~rule.held_nodes, free)
    return (free,)


def _best_cell(rule: TakeRule, counted: int, usable: int, enough: int, count: int) -> Cell | None:
    """Find the NUMA node that comes first of those with enough CPUs.

    `counted`: CPUs by whose number NUMA nodes are ordered. `usable`: CPUs by whose number in the socket ties are
    ordered; then by NUMA node. `enough`: CPUs that count; a NUMA node must have at least `count` of them.
    """
    sockets = rule.topology.sockets
    found, best = None, (0, 0)
    for cell in rule.topology.cells:
        if (enough & cell.cpus).bit_count() >= count:
            key = (
                rule.sign * (counted & cell.cpus).bit_count(),
                rule.sign * (usable & sockets[cell.socket]).bit_count(),
            )
            if found is None or key < best:
                found, best = cell, key
    return found


def _best_socket(rule: TakeRule, counted: int, count: int) -> int | None:
    """Find the socket that comes first of those with at least `count` of these CPUs: by their number, then its own."""
    found, best = None, 0
    for socket, cpus in rule.topology.sockets.items():
        size = (counted & cpus).bit_count()
        if size >= count and (found is None or rule.sign * size < best):
            found, best = socket, rule.sign * size
    return found


def _first_cores(cores: Iterable[int], whole: int, count: int) -> int:
    """Take whole cores in their order while they fit, then the first threads of the first one that did not."""
    taken = split = 0
    for core in cores:
        if core & whole:
            size = core.bit_count()
            if size <= count:
                taken |= core
                count -= size
                if not count:
                    return taken
            elif not split:
                split = core
    return taken | _lowest(split, count)


def _add_up(rule: TakeRule, whole: int, count: int) -> int:
    """Take whole cores of unequal sizes that have exactly `count` CPUs together; 0 if no selection has.

    They are in one NUMA node if possible (the first in the order that has them), else in one socket, else anywhere.
    """
    topology = rule.topology
    avoided = rule.held_nodes if rule.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL else 0

    def order(cell: Cell) -> tuple[bool, int]:
        return bool(cell.cpus & avoided), rule.sign * (whole & cell.cpus).bit_count()

    cells = sorted(topology.cells, key=order)
    for cores in (*(cell.cores for cell in cells), *topology.socket_cores.values(), topology.cores):
        found = _cores_of_sum([core for core in cores if core & whole], count)
        if found:
            return found
    return 0


def _cores_of_sum(cores: Sequence[int], count: int) -> int:
    """The cores with exactly `count` CPUs together, the largest first; 0 if no selection of them has."""
    ordered = sorted(cores, key=lambda core: -core.bit_count())
    sums = [1]  # after each step: bit n is set if the last cores can have n CPUs together
    for core in reversed(ordered):
        sums.append(sums[-1] | sums[-1] << core.bit_count())
    if not sums[-1] >> count & 1:
        return 0
    taken = 0
    for core, others in zip(ordered, reversed(sums[:-1]), strict=True):
        left = count - core.bit_count()
        if left >= 0 and others >> left & 1:
            taken |= core
            count = left
    return taken


def _many_sockets(topology: CpuTopology, whole: int, count: int) -> int:
    """Take the whole cores of entire sockets, the largest first; then single cores, the smallest socket first.

    Never takes more than `count`; what is less than a core is left to `spill`.
    """
    sizes = sorted((-(whole & cpus).bit_count(), socket) for socket, cpus in topology.sockets.items())
    taken = 0
    left_over = []
    for size, socket in sizes:
        if -size <= count:
            taken |= whole & topology.sockets[socket]
            count += size
        else:
            left_over.append((-size, socket))
    for _, socket in sorted(left_over):
        for core in topology.socket_cores[socket]:
            if core & whole and core.bit_count() <= count:
                taken |= core
                count -= core.bit_count()
    return taken


def _level_cores(rule: TakeRule, free: int, count: int) -> int:
    """Take whole cores in equal numbers from every NUMA node; 0 if that leaves all of them in one."""
    topology = rule.topology
    parts = [(usable, topology.whole(usable)) for usable in _outside_held_nodes(rule, free)]
    return _level(rule, (*parts, (free, free)), count)


def _apart(rule: TakeRule, free: int, count: int) -> int:
    """Take as many cores as possible, then as few of them as possible that are to be avoided.

    It takes the smallest place in which every core gives one thread: a NUMA node, a socket, the machine. 0 if nothing
    is to be avoided and the machine has too few cores.
    """
    topology = rule.topology
    if rule.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL and not rule.level:
        usable = free & ~rule.held_nodes
        threads = topology.leads(usable)
        cell = _best_cell(rule, usable, usable, threads, count)
        if cell is not None:
            return _lowest(threads & cell.cpus, count)
    for usable in _passes(rule, free):
        threads = topology.leads(usable)
        if threads.bit_count() >= count:
            return _one_thread_each(rule, usable, threads, count)
    if rule.level:
        return _level(rule, [(free, free)], count)
    return 0 if rule.exclusive is ExclusivePolicy.NONE else nearest(rule, free, 0, count, rule.held_cores)


def _one_thread_each(rule: TakeRule, usable: int, threads: int, count: int) -> int:
    """Take `count` of these threads, each of another core; there are at least that many."""
    topology = rule.topology
    if rule.level and (taken := _level(rule, [(threads, threads)], count)):
        return taken
    cell = _best_cell(rule, usable, usable, threads, count)
    if cell is not None:
        return _lowest(threads & cell.cpus, count)
    if rule.even and (taken := _evenly(rule, [(usable, threads)], count)):
        return taken
    socket = _best_socket(rule, threads, count)
    if socket is not None:
        return _lowest(threads & topology.sockets[socket], count)
    return nearest(rule, usable, 0, count)


def _passes(rule: TakeRule, free: int) -> tuple[int, ...]:
    """The CPUs of which every one may be taken, in the order of attempts to take one thread of each core.

    If no NUMA node outside the held ones suffices, NUMANodeLevel continues as PCPULevel (CPU proposal, "Resource
    spec"). Koordinator continues without avoiding anything; the result is the same if no free CPU is on a held core.
    """
    outside = free & ~rule.held_cores
    everything = (free,) if rule.level or rule.exclusive is ExclusivePolicy.NONE else ()
    if rule.exclusive is ExclusivePolicy.PCPU_LEVEL:
        return outside, *everything
    if rule.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
        if rule.level:  # a single NUMA node was not tried before
            return outside & ~rule.held_nodes, free & ~rule.held_nodes, outside, free
        return outside & ~rule.held_nodes, outside
    return everything


def _evenly(rule: TakeRule, parts: Iterable[tuple[int, int]], count: int) -> int:
    """Take the same number of CPUs from each of as few NUMA nodes as possible; 0 if no number of NUMA nodes allows it.

    `parts`: what is tried in turn: the CPUs to choose from, and those of them by which NUMA nodes are measured.
    """
    topology = rule.topology
    inside = rule._replace(even=False)
    for usable, measured in parts:
        sizes = [(measured & cell.cpus).bit_count() for cell in topology.cells]
        shares = even_shares(sizes, count, topology.threads_per_core if rule.full else 1)
        if shares:
            taken = 0
            for index, share in shares:
                taken |= _pack(inside, usable & topology.cells[index].cpus, share)
            return taken
    return 0


def _level(rule: TakeRule, parts: Iterable[tuple[int, int]], count: int) -> int:
    """Take CPUs in equal numbers from every NUMA node, or all that it has; 0 if one node gives them all."""
    topology = rule.topology
    inside = rule._replace(level=False)
    for usable, measured in parts:
        sizes = [(measured & cell.cpus).bit_count() for cell in topology.cells]
        if sum(sizes) < count:
            continue
        shares = level_shares(sizes, count, topology.threads_per_core if rule.full else 1)
        if len(shares) > 1:
            taken = 0
            for index, share in shares:
                taken |= _pack(inside, usable & topology.cells[index].cpus, share)
            return taken
        return 0
    return 0


def _lowest(cpus: int, count: int) -> int:
    """The `count` lowest CPUs of a set; all if it has fewer."""
    low, high = 0, cpus.bit_length()
    while low < high:
        middle = (low + high) >> 1
        if (cpus & ((1 << middle) - 1)).bit_count() < count:
            low = middle + 1
        else:
            high = middle
    return cpus & ((1 << low) - 1)
