"""The CPUs of one machine: which are threads of one core, and in which NUMA node and socket each core is.

Every look-up that the choice of CPUs needs is computed once, as sets (see `allocator.vocabulary.cpuset`). CPU numbers
carry no meaning: the siblings of a core may be numbered in any way.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from allocator.vocabulary.cpuset import MAX_CPU, members

MAX_NODES: Final = 1024  # NUMA nodes; Linux numbers no more (MAX_NUMNODES)
MAX_COMBINED: Final = 8  # NUMA nodes up to which every set is tried; above, single nodes, sockets, and all nodes
MAX_ID: Final = 2**31 - 1  # core, socket and NUMA node numbers are reported as int32 (CPU proposal, CPUInfo)


class TopologyError(ValueError):
    """A description of CPUs that no machine can have; the message says what is wrong."""


class Cpu(NamedTuple):
    """One logical CPU (CPU proposal, "NodeResourceTopology CRD", CPUInfo)."""

    id: int  # its number, 0 to 4095
    core: int  # its physical core. Cores are identified by socket and core, as numbers may start again in each socket.
    socket: int
    node: int


class Cell(NamedTuple):
    """The CPUs of one NUMA node within one socket.

    A NUMA node lies within a socket. Only if the firmware reports no NUMA nodes does node 0 cover several sockets; it
    then says nothing about distance.
    """

    node: int
    socket: int
    cpus: int
    cores: tuple[int, ...]  # the sets of its cores, in the order of core numbers


class _Siblings(NamedTuple):
    """The cores whose thread numbers have the same distances."""

    first: int  # the lowest CPU of each of these cores, as a set
    offsets: tuple[int, ...]  # distance from a core's lowest CPU to each of its CPUs, ascending, starting with 0


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """The CPUs of one machine; equal and hashed by `cpus`, made by `of`."""

    cpus: tuple[Cpu, ...]  # every CPU, by number
    all: int = field(compare=False, repr=False)  # the set of all
    cores: tuple[int, ...] = field(compare=False, repr=False)  # the set of each core's CPUs, by socket and core number
    nodes: Mapping[int, int] = field(compare=False, repr=False)  # NUMA node to set, by number
    sockets: Mapping[int, int] = field(compare=False, repr=False)  # socket to set, by number
    # NUMA node to socket; the lowest socket if the node covers several
    socket_of_node: Mapping[int, int] = field(compare=False, repr=False)
    # socket to the sets of its cores, in the order of core numbers
    socket_cores: Mapping[int, tuple[int, ...]] = field(compare=False, repr=False)
    cells: tuple[Cell, ...] = field(compare=False, repr=False)  # NUMA nodes within sockets, by node and socket
    threads_per_core: int = field(compare=False, repr=False)  # of the core that has most; 0 without CPUs
    # greatest common divisor of the cores' sizes; `threads_per_core` if all cores have the same size
    core_step: int = field(compare=False, repr=False)
    _siblings: tuple[_Siblings, ...] = field(compare=False, repr=False)
    _hash: int = field(compare=False, repr=False)

    @classmethod
    def of(cls, cpus: Iterable[Cpu]) -> "CpuTopology":
        """Describe a machine by its CPUs, in any order.

        Raises TopologyError: a CPU is described twice, a number is negative or too large, a core is in two NUMA nodes,
        or there are more NUMA nodes than a machine can have.
        """
        ordered = _checked(cpus)
        in_core: dict[tuple[int, int], int] = defaultdict(int)
        in_node: dict[int, int] = defaultdict(int)
        in_socket: dict[int, int] = defaultdict(int)
        in_cell: dict[tuple[int, int], int] = defaultdict(int)
        for cpu in ordered:
            bit = 1 << cpu.id
            in_core[cpu.socket, cpu.core] |= bit
            in_node[cpu.node] |= bit
            in_socket[cpu.socket] |= bit
            in_cell[cpu.node, cpu.socket] |= bit
        cores = tuple(in_core[key] for key in sorted(in_core))
        sizes = {core.bit_count() for core in cores}
        return cls(
            cpus=ordered,
            all=sum(cores),
            cores=cores,
            nodes=_by_number(in_node),
            sockets=_by_number(in_socket),
            socket_of_node=_by_number(dict(sorted(in_cell, reverse=True))),
            socket_cores={s: _within(cores, in_socket[s]) for s in sorted(in_socket)},
            cells=tuple(Cell(n, s, inside, _within(cores, inside)) for (n, s), inside in sorted(in_cell.items())),
            threads_per_core=max(sizes, default=0),
            core_step=math.gcd(*sizes),
            _siblings=_siblings(cores),
            _hash=hash(ordered),
        )

    def __hash__(self) -> int:
        return self._hash

    @property
    def cpus_per_core(self) -> int:
        """CPUs divided by cores, rounded down, as the kubelet counts them (Kubernetes, pkg/kubelet/cm/cpumanager)."""
        return len(self.cpus) // max(len(self.cores), 1)

    def cores_of(self, cpus: int) -> int:
        """All CPUs of the cores that contain any of these."""
        found = 0
        for first, offsets in self._siblings:
            touched = 0
            for offset in offsets:
                touched |= first & (cpus >> offset)
            for offset in offsets:
                found |= touched << offset
        return found

    def nodes_of(self, cpus: int) -> int:
        """All CPUs of the NUMA nodes that contain any of these."""
        found = 0
        for node in self.nodes.values():
            if node & cpus:
                found |= node
        return found

    def whole(self, cpus: int) -> int:
        """The CPUs of the cores that have all their threads in the set."""
        found = 0
        for first, offsets in self._siblings:
            present = first
            for offset in offsets:
                present &= cpus >> offset
            for offset in offsets:
                found |= present << offset
        return found

    def leads(self, cpus: int) -> int:
        """The lowest CPU in the set of each core that has any CPU in it."""
        found = 0
        for first, offsets in self._siblings:
            left = first
            for offset in offsets:
                present = left & (cpus >> offset)
                found |= present << offset
                left ^= present
        return found


def _checked(cpus: Iterable[Cpu]) -> tuple[Cpu, ...]:
    """Check CPUs and order them by number; stops at the first CPU that cannot be.

    Raises TopologyError: as `CpuTopology.of`.
    """
    found: dict[int, Cpu] = {}
    node_of_core: dict[tuple[int, int], int] = {}
    for cpu in cpus:
        if not 0 <= cpu.id <= MAX_CPU:
            raise TopologyError(f"CPU {cpu.id} is not within 0 to {MAX_CPU}")
        for name, number in (("core", cpu.core), ("socket", cpu.socket), ("NUMA node", cpu.node)):
            if not 0 <= number <= MAX_ID:
                raise TopologyError(f"CPU {cpu.id}: {name} {number} is not within 0 to {MAX_ID}")
        if cpu.id in found:
            raise TopologyError(f"CPU {cpu.id} is described twice")
        found[cpu.id] = cpu
        node = node_of_core.setdefault((cpu.socket, cpu.core), cpu.node)
        if node != cpu.node:
            raise TopologyError(f"core {cpu.core} of socket {cpu.socket} is in the NUMA nodes {node} and {cpu.node}")
    nodes = len(set(node_of_core.values()))
    if nodes > MAX_NODES:
        raise TopologyError(f"{nodes} NUMA nodes; a machine has at most {MAX_NODES}")
    return tuple(found[number] for number in sorted(found))


def _by_number(sets: Mapping[int, int]) -> dict[int, int]:
    return dict(sorted(sets.items()))


def _within(cores: Iterable[int], cpus: int) -> tuple[int, ...]:
    return tuple(core for core in cores if core & cpus)


def _siblings(cores: Iterable[int]) -> tuple[_Siblings, ...]:
    """Group cores by the distances between their threads' numbers; most machines have one group."""
    groups: dict[tuple[int, ...], int] = defaultdict(int)
    for core in cores:
        lowest, *others = members(core)
        groups[0, *(other - lowest for other in others)] |= 1 << lowest
    return tuple(_Siblings(first, offsets) for offsets, first in sorted(groups.items()))
