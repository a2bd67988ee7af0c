"""Which CPUs are left for Pods without CPUs of their own, for every kind of holder."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.cpu.pools import CpuHolder, pools
from allocator.vocabulary.cpuask import QosClass
from allocator.vocabulary.cpunode import PoolCpus
from allocator.vocabulary.cpuset import format_cpuset, members, parse
from allocator.vocabulary.cputopology import Cpu, CpuTopology

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
