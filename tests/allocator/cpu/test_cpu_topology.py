"""The topology of a machine's CPUs."""

import pytest
from machines_cpu import MACHINES, machine

from allocator.vocabulary.cpuset import members
from allocator.vocabulary.cputopology import Cpu, CpuTopology, TopologyError
from allocator.wire.values import as_id

MAX_CPU = 4095
MAX_NODES = 1024

HYBRID = CpuTopology.of(
    [*(Cpu(cpu, cpu // 2, 0, 0) for cpu in range(8)), *(Cpu(cpu, cpu, 0, 0) for cpu in range(8, 12))]
)
"""Four cores of two threads, and four of one."""

NUMA_OFF = CpuTopology.of(Cpu(cpu, cpu % 8 % 4, cpu % 8 // 4, 0) for cpu in range(16))
"""Two sockets, and a firmware that reports one NUMA node for both."""


REFUSED = {
    "a CPU twice": ([Cpu(0, 0, 0, 0), Cpu(0, 1, 0, 0)], "CPU 0 is described twice"),
    "a negative CPU": ([Cpu(-1, 0, 0, 0)], "CPU -1"),
    "a negative core": ([Cpu(0, -1, 0, 0)], "core -1"),
    "a negative socket": ([Cpu(0, 0, -1, 0)], "socket -1"),
    "a negative NUMA node": ([Cpu(0, 0, 0, -1)], "NUMA node -1"),
    "a CPU too large": ([Cpu(MAX_CPU + 1, 0, 0, 0)], f"CPU {MAX_CPU + 1}"),
    "a core too large": ([Cpu(0, 2**31, 0, 0)], "core"),
    "more NUMA nodes than Linux has": ([Cpu(at, at, 0, at) for at in range(MAX_NODES + 1)], "1025 NUMA nodes"),
    "a core in a higher and a lower NUMA node": (
        [Cpu(0, 0, 0, 1), Cpu(1, 0, 0, 0)],
        "core 0 of socket 0 is in the NUMA nodes 1 and 0",
    ),
    "a core in two NUMA nodes": ([Cpu(0, 0, 0, 0), Cpu(1, 0, 0, 1)], "core 0 of socket 0 is in the NUMA nodes 0 and 1"),
}


@pytest.mark.parametrize("name", MACHINES)
def test_every_cpu_is_in_one_core_one_node_and_one_socket(name) -> None:
    topology = MACHINES[name]()
    for cpu in topology.cpus:
        bit = 1 << cpu.id
        same = [other for other in topology.cpus if (other.socket, other.core) == (cpu.socket, cpu.core)]
        assert topology.cores_of(bit) == sum(1 << other.id for other in same)
        assert [number for number, cpus in topology.nodes.items() if cpus & bit] == [cpu.node]
        assert [number for number, cpus in topology.sockets.items() if cpus & bit] == [cpu.socket]
        assert topology.socket_of_node[cpu.node] == cpu.socket
    for group in (topology.cores, topology.nodes.values(), topology.sockets.values()):
        assert sum(group) == topology.all
    assert [core for cores in topology.socket_cores.values() for core in cores] == list(topology.cores)
    assert sum(core for cell in topology.cells for core in cell.cores) == topology.all


@pytest.mark.parametrize("name", MACHINES)
def test_cores_are_in_the_order_of_their_numbers(name) -> None:
    topology = MACHINES[name]()
    place = {cpu.id: (cpu.socket, cpu.core) for cpu in topology.cpus}
    order = [place[next(members(core))] for core in topology.cores]
    assert order == sorted(set(place.values()))
    assert list(topology.nodes) == sorted(topology.nodes)
    assert list(topology.sockets) == sorted(topology.sockets)


def test_topologies_of_the_same_cpus_are_equal_in_any_order() -> None:
    topology = machine("one socket, 4 cores, SMT")
    other = CpuTopology.of(reversed(topology.cpus))
    assert other == topology
    assert hash(other) == hash(topology)
    assert topology != HYBRID


def test_cores_of_unequal_size_are_whole_by_their_own_threads() -> None:
    hybrid = CpuTopology.of(reversed(HYBRID.cpus))
    assert (hybrid.threads_per_core, hybrid.core_step, hybrid.cpus_per_core) == (2, 1, 1)
    assert HYBRID.whole(0b1111_0000_0110) == 0b1111_0000_0000
    assert HYBRID.leads(0b0001_0000_1110) == 0b0001_0000_0110


def test_core_numbers_may_begin_again_in_each_socket() -> None:
    assert len(NUMA_OFF.cores) == 8


@pytest.mark.parametrize(("cpus", "told"), REFUSED.values(), ids=REFUSED)
def test_what_no_machine_has_is_refused(cpus, told) -> None:
    with pytest.raises(TopologyError, match=told):
        CpuTopology.of(cpus)


def test_the_work_on_endless_cpus_is_bounded() -> None:
    endless = (Cpu(number, number, 0, 0) for number in iter(int, 1))
    with pytest.raises(TopologyError, match="twice"):
        CpuTopology.of(endless)


def test_numbers_are_int32() -> None:
    largest = 2**31 - 1
    topology = CpuTopology.of([Cpu(0, largest, 0, 0), Cpu(1, largest - 1, largest, 0)])
    assert topology.all == 0b11
    assert as_id({"id": largest}, "id") == largest
    for wrong in (2**31, -1, True, "1", None):
        with pytest.raises(ValueError, match="id is no whole number from 0 to"):
            as_id({"id": wrong}, "id")
