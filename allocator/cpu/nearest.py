"""Single CPUs near those already taken."""

from collections.abc import Iterator

from allocator.cpu.takerule import TakeRule
from allocator.vocabulary.cpupolicy import ExclusivePolicy


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
