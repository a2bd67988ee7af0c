"""CPUs: the machine, and shared pools."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines_cpu import MACHINES, machine

from allocator.cpu.pools import CpuHolder, pools
from allocator.vocabulary.cpunode import PoolCpus, QosClass
from allocator.vocabulary.cputopology import Cpu, CpuTopology, TopologyError, format_cpuset, members, parse
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


# Two sockets, a NUMA node and two cores of two threads each; siblings are four numbers apart.
MACHINE = CpuTopology.of(Cpu(id=cpu, core=cpu % 4, socket=cpu % 4 // 2, node=cpu % 4 // 2) for cpu in range(8))
SMALL = CpuTopology.of(Cpu(id=cpu, core=cpu, socket=0, node=0) for cpu in range(4))
NO_NUMA = CpuTopology.of(Cpu(id=cpu, core=cpu, socket=cpu // 2, node=0) for cpu in range(4))


@dataclass(frozen=True)
class Case:
    shared: str
    best_effort: str
    holders: tuple[CpuHolder, ...] = ()
    reserved: dict[str, int] = field(default_factory=dict)


def holder(cpus: str, qos: QosClass, *, kubelet: bool = False) -> CpuHolder:
    return CpuHolder(parse(cpus), qos, kubelet)


LSE, LSR, LS = QosClass.LSE, QosClass.LSR, QosClass.LS

CASES: dict[str, Case] = {
    "nobody holds CPUs, those the kubelet reserves included": Case("0-7", "0-7"),
    "an LSE Pod's are in neither": Case("2-7", "2-7", (holder("0-1", LSE),)),
    "an LSR Pod's are for best effort": Case("2-7", "0-7", (holder("0-1", LSR),)),
    "given by the kubelet's static policy, in neither": Case("2-7", "2-7", (holder("0-1", LS, kubelet=True),)),
    "bound by somebody else, whatever its class": Case("2-7", "0-7", (holder("0-1", LS),)),
    "an LSE and an LSR Pod": Case("4-7", "2-7", (holder("0-1", LSE), holder("2-3", LSR))),
    "an LSR Pod's of which the kubelet gave some": Case(
        "3-7", "0,3-7", (holder("0-1", LSR), holder("1-2", LS, kubelet=True))
    ),
    "kept by the administrator": Case("2-7", "2-7", reserved={"node_reserved": 0b11}),
    "of system Pods": Case("0-5", "0-5", reserved={"system_exclusive": 0b1100_0000}),
    "all at once": Case(
        "5",
        "1,5",
        (holder("0", LSE), holder("1", LSR), holder("2", LS, kubelet=True)),
        reserved={"node_reserved": 0b1000_1000, "system_exclusive": 0b0101_0000},
    ),
    "nothing left": Case("", "4-7", (holder("0-3", LSE), holder("4-7", LSR))),
    "CPUs that the machine lacks": Case("2-7", "2-7", (holder("0-1,64-127", LSE),)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_left_is_reported_for_each_numa_node(case: Case) -> None:
    told = pools(MACHINE, case.holders, **case.reserved)
    for pool, expected in ((told.shared, case.shared), (told.best_effort, case.best_effort)):
        assert [(one.socket, one.node) for one in pool] == [(0, 0), (1, 1)]
        assert format_cpuset(pool[0].cpus | pool[1].cpus) == expected
        assert all(one.cpus & ~MACHINE.nodes[one.node] == 0 for one in pool)


def test_an_empty_pool_is_reported_as_empty() -> None:
    assert pools(SMALL, [holder("0-3", LSE)]).shared == (PoolCpus(socket=0, node=0, cpus=0),)


def test_a_numa_node_in_two_sockets_has_a_pool_in_each() -> None:
    assert pools(NO_NUMA, [holder("0", LSR)]).shared == (PoolCpus(0, 0, 0b0010), PoolCpus(1, 0, 0b1100))


def test_a_machine_without_cpus_has_no_pools() -> None:
    told = pools(CpuTopology.of([]), [holder("0", LSR)])
    assert (told.shared, told.best_effort) == ((), ())


SETS = st.integers(0, 2**10 - 1)
HOLDERS = st.lists(st.builds(CpuHolder, SETS, st.sampled_from(QosClass), st.booleans()), max_size=5)


@given(holders=HOLDERS, node_reserved=SETS, system=SETS)
def test_a_cpu_is_in_a_pool_exactly_if_nobody_keeps_that_pool_out(
    holders: list[CpuHolder], node_reserved: int, system: int
) -> None:
    told = pools(MACHINE, holders, node_reserved=node_reserved, system_exclusive=system)
    in_shared = {cpu for pool in told.shared for cpu in members(pool.cpus)}
    in_best_effort = {cpu for pool in told.best_effort for cpu in members(pool.cpus)}
    for cpu in range(10):
        kept = any(cpu in members(cpus) for cpus in (node_reserved, system))
        of = [one for one in holders if cpu in members(one.cpus)]
        exclusive = any(one.managed_by_kubelet or one.qos is LSE for one in of)
        assert (cpu in in_shared) == (cpu < 8 and not kept and not of)
        assert (cpu in in_best_effort) == (cpu < 8 and not kept and not exclusive)
