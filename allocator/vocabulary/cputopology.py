"""The CPUs of one machine, and sets of them: which are threads of one core, and where each core is.

A set is a Python integer in which bit i is CPU i: union, intersection and size are single operations. It is read and
written in Linux' list format (`0-3,8,10-11`), which is that of `cpuset.cpus`, of the resource-status annotation and of
the kubelet's checkpoint (CPU proposal, "Resource status"; Linux, Documentation/admin-guide/cputopology.rst). Every
look-up that the choice of CPUs needs is computed once. CPU numbers carry no meaning: the siblings of a core may be
numbered in any way.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_CPU: Final = 4095  # the largest CPU number taken; Linux builds for at most 8192 CPUs, machines have far fewer
_MAX_TEXT: Final = 32768  # characters; a list of every single CPU to MAX_CPU is shorter
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)


class CpusetError(ValueError):
    """A text is not a list of CPUs; the message names the part that is wrong."""


def parse(text: str) -> int:
    """Read a Linux CPU list: numbers and ascending ranges, in any order, possibly overlapping; "" is the empty set.

    Surrounding white space is ignored, because the kernel ends its files with a line feed.
    `text`: as `0-3,8,10-11`. Raises CpusetError: the text is not such a list, or names a CPU above MAX_CPU.
    """
    if len(text) > _MAX_TEXT:
        raise CpusetError(f"a CPU list of {len(text)} characters; {_MAX_TEXT} are read")
    text = text.strip(" \t\r\n")
    if not text:
        return 0
    cpus = 0
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise CpusetError(f"not a CPU or a range of CPUs: {part[:40]!r}")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise CpusetError(f"a range of CPUs that descends: {part!r}")
        if last > MAX_CPU:
            raise CpusetError(f"CPU {last} is above the largest taken, {MAX_CPU}")
        cpus |= (1 << (last + 1)) - (1 << first)
    return cpus


def format_cpuset(cpus: int) -> str:
    """Write a set as the shortest ascending Linux CPU list; the empty set is "".

    Raises ValueError: the integer is negative, which is no set.
    """
    if cpus < 0:
        raise ValueError("a set of CPUs is not negative")
    parts = []
    while cpus:
        first = (cpus & -cpus).bit_length() - 1
        run = cpus >> first
        length = (~run & (run + 1)).bit_length() - 1  # how many ones it ends with
        last = first + length - 1
        parts.append(f"{first}-{last}" if length > 1 else f"{first}")
        cpus &= -1 << (last + 1)
    return ",".join(parts)


def highest(cpus: int, count: int) -> int:
    """Return the `count` highest CPUs of a set; all of them if it has fewer."""
    found = 0
    for _ in range(min(count, cpus.bit_count())):
        top = 1 << (cpus.bit_length() - 1)
        found |= top
        cpus ^= top
    return found


def members(cpus: int) -> Iterator[int]:
    """The CPUs of a set, ascending.

    Raises ValueError: the integer is negative, which is no set.
    """
    if cpus < 0:
        raise ValueError("a set of CPUs is not negative")
    while cpus:
        lowest = cpus & -cpus
        yield lowest.bit_length() - 1
        cpus ^= lowest


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
