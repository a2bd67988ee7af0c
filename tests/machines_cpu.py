"""CPU topologies worth naming: how a machine is built, and how its firmware and kernel number its threads."""

import random
from collections.abc import Callable
from functools import cache
from typing import Any

from allocator.vocabulary.cputopology import Cpu, CpuTopology

Numbering = Callable[[int, int, int], int]
"""From core, thread and number of cores to the CPU's number."""


def siblings_far(core: int, thread: int, cores: int) -> int:
    """Linux on most x86: all first threads, then all second ones: core k is CPU k and k + N/2."""
    return thread * cores + core


def siblings_near(core: int, thread: int, cores: int) -> int:
    """Linux on POWER and in many VMs: the threads of a core one after another."""
    return core * 2 + thread


def siblings_of_four(core: int, thread: int, cores: int) -> int:
    return core * 4 + thread


def sockets_in_turn(core: int, thread: int, cores: int) -> int:
    """Two sockets whose cores are numbered in turn, even CPUs on socket 0."""
    half = cores // 2
    return thread * cores + (2 * core if core < half else 2 * (core - half) + 1)


def shuffled(core: int, thread: int, cores: int) -> int:
    """No order at all."""
    order = list(range(cores * 2))
    random.Random(cores).shuffle(order)
    return order[core * 2 + thread]


def build(
    sockets: int, nodes: int, cores: int, threads: int, numbering: Numbering, *, own_cores: bool = True
) -> CpuTopology:
    """Make a machine.

    Args:
        sockets: number of sockets.
        nodes: NUMA nodes per socket.
        cores: cores per NUMA node.
        threads: threads per core.
        numbering: the order of CPU numbers.
        own_cores: whether core numbers start again in each socket, as the kernel's do.
    """
    total = sockets * nodes * cores
    cpus: list[Any] = []
    for core in range(total):
        node = core // cores
        socket = node // nodes
        number = core - socket * nodes * cores if own_cores else core
        cpus.extend(Cpu(numbering(core, thread, total), number, socket, node) for thread in range(threads))
    return CpuTopology.of(cpus)


MACHINES: dict[str, Callable[[], CpuTopology]] = {
    "one socket, 4 cores, SMT": lambda: build(1, 1, 4, 2, siblings_far),
    "one socket, 8 cores, no SMT": lambda: build(1, 1, 8, 1, siblings_far),
    "two sockets, 2 nodes, SMT, siblings near": lambda: build(2, 1, 8, 2, siblings_near),
    "two sockets, 4 nodes, SMT, siblings far": lambda: build(2, 2, 4, 2, siblings_far),
    "two sockets numbered in turn, SMT": lambda: build(2, 1, 10, 2, sockets_in_turn, own_cores=False),
    "two sockets, 128 CPUs, SMT": lambda: build(2, 1, 32, 2, siblings_far),
    "four sockets, SMT": lambda: build(4, 1, 4, 2, siblings_far),
    "four sockets of 72 threads": lambda: build(4, 1, 36, 2, siblings_far),
    "AMD, one socket, 8 nodes of one CCX": lambda: build(1, 8, 4, 2, siblings_far),
    "AMD, two sockets, 16 nodes of one CCX": lambda: build(2, 8, 4, 2, siblings_far),
    "ARM, 128 cores, 4 nodes, no SMT": lambda: build(2, 2, 32, 1, siblings_far),
    "POWER, two sockets, four threads a core": lambda: build(2, 1, 4, 4, siblings_of_four),
    "two sockets of two cores, SMT": lambda: build(2, 1, 2, 2, siblings_near),
    "two sockets of one core, four threads": lambda: build(2, 1, 1, 4, siblings_of_four),
    "shuffled, two sockets, 4 nodes, SMT": lambda: build(2, 2, 6, 2, shuffled),
}


@cache
def machine(name: str) -> CpuTopology:
    """The named machine."""
    return MACHINES[name]()
