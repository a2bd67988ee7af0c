"""Microseconds to choose 2 to 64 CPUs on a half-full node of 128 CPUs, beside Koordinator's compiled Go.

The node has 2 sockets of 32 cores with 2 threads each (core k has the CPUs k and k + 64). 68 CPUs are free: 26 whole
cores, and one thread each of 16 others. They are drawn again for every call, so that no call profits from an earlier
one. Each of 2, 4, 8, 16, 32 and 64 CPUs is chosen by FullPCPUs and by SpreadByPCPUs; the value is the mean over all.
"""

import argparse
import random
import statistics
import sys
import time

from result import close

from allocator.cpu.accumulator import take
from allocator.vocabulary.cpunode import BindPolicy, ExclusivePolicy, NumaStrategy
from allocator.vocabulary.cputopology import Cpu, CpuTopology

CORES = 64
COUNTS = (2, 4, 8, 16, 32, 64)
BINDS = (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)
WHOLE, BROKEN = 26, 16
# Koordinator's accumulator, compiled Go on one core of a similar machine, took 29 to 46 us when the design was made.
# On exactly these requests (v1.7.0, Go 1.26) it took 21 to 24 us for 2 to 16 CPUs and 29 to 204 us for 32 and 64; the
# mean was 52 us. The reference is the lower end of the first range.
KOORDINATOR_MICROSECONDS = 29.0

Request = tuple[BindPolicy, int, int]
"""Policy, count, free CPUs."""


def node() -> CpuTopology:
    half = CORES // 2
    return CpuTopology.of(Cpu(cpu, cpu % CORES % half, cpu % CORES // half, cpu % CORES // half) for cpu in range(128))


def requests(number: int) -> list[Request]:
    """Make requests, each with free CPUs of its own; every policy and count equally often."""
    draw = random.Random(20260724)
    found = []
    for index in range(number):
        cores = draw.sample(range(CORES), WHOLE + BROKEN)
        free = sum(1 << core | 1 << core + CORES for core in cores[:WHOLE])
        free |= sum(1 << core + CORES * draw.getrandbits(1) for core in cores[WHOLE:])
        found.append((BINDS[index % 2], COUNTS[index // 2 % len(COUNTS)], free))
    return found


def choose(topology: CpuTopology, request: Request) -> int | None:
    bind, count, free = request
    return take(
        topology,
        free,
        count,
        bind=bind,
        exclusive=ExclusivePolicy.NONE,
        strategy=NumaStrategy.MOST_ALLOCATED,
        held_cores=0,
        held_nodes=0,
    )


def measure(topology: CpuTopology, asked: list[Request]) -> float:
    """Mean microseconds of one call."""
    began = time.perf_counter()
    for request in asked:
        choose(topology, request)
    return (time.perf_counter() - began) * 1e6 / len(asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=12000)
    arguments = parser.parse_args()
    topology, asked = node(), requests(arguments.requests)
    for bind in BINDS:
        for count in COUNTS:
            same = [request for request in asked if request[:2] == (bind, count)]
            print(f"{bind} {count}: {measure(topology, same):.1f} us", file=sys.stderr, flush=True)
    value = statistics.median(measure(topology, asked) for _ in range(arguments.rounds))
    close(
        name="choose_cpus",
        value=value,
        unit="us",
        reference=KOORDINATOR_MICROSECONDS,
        goal=1.0,
        higher_is_better=False,
    )


if __name__ == "__main__":
    main()
