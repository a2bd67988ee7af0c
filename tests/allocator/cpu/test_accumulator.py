"""The choice of CPUs: compared with Koordinator's, by named cases, and with each promise recomputed from scratch."""

import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from machines_cpu import machine

from allocator.cpu.accumulator import take, wishes_given_up
from allocator.vocabulary.cpunode import BindPolicy, ExclusivePolicy, NumaStrategy, Supported, supported
from allocator.vocabulary.cputopology import Cpu, CpuTopology, format_cpuset, members, parse

FULL, SPREAD = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS
FREE_FOR_ALL, PCPU, NUMA = ExclusivePolicy.NONE, ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NUMA_NODE_LEVEL
MOST, LEAST, EVEN = NumaStrategy.MOST_ALLOCATED, NumaStrategy.LEAST_ALLOCATED, NumaStrategy.DISTRIBUTE_EVENLY
BEYOND_ONE = NumaStrategy.DISTRIBUTE_BEYOND_ONE

SMALL = "one socket, 4 cores, SMT"  # core k: CPUs k and k + 4
TWO = "two sockets, 2 nodes, SMT, siblings near"  # core k: CPUs 2k and 2k + 1; node 0: 0-15, node 1: 16-31
FOUR = "two sockets, 4 nodes, SMT, siblings far"  # core k: CPUs k and k + 16; node n: cores 4n to 4n + 3
SOCKETS = "four sockets, SMT"  # core k: CPUs k and k + 16; socket s: cores 4s to 4s + 3
POWER = "POWER, two sockets, four threads a core"  # core k: CPUs 4k to 4k + 3
ARM = "ARM, 128 cores, 4 nodes, no SMT"  # node n: CPUs 32n to 32n + 31


class Ask(NamedTuple):
    """One call of `take`, on a named machine."""

    machine: str
    free: int
    count: int  # type: ignore[assignment] # a tuple has a method of this name
    bind: BindPolicy
    exclusive: ExclusivePolicy = FREE_FOR_ALL
    strategy: NumaStrategy = MOST
    held_cores: int = 0
    held_nodes: int = 0
    required: bool = False

    @property
    def topology(self) -> CpuTopology:
        return machine(self.machine)


def chosen(ask: Ask) -> Any:
    return take(
        ask.topology,
        ask.free,
        ask.count,
        bind=ask.bind,
        exclusive=ask.exclusive,
        strategy=ask.strategy,
        held_cores=ask.held_cores,
        held_nodes=ask.held_nodes,
        required=ask.required,
    )


# Koordinator's own choices


def vectors(*kinds: str) -> dict[str, tuple[Ask, int | None]]:
    """The recorded choices with these kinds of difference from ours; "" means none."""
    recorded: dict[str, Any] = json.loads(Path(__file__).with_name("koordinator_vectors.json").read_text())
    found = {}
    for number, row in enumerate(recorded["vectors"]):
        v = dict(zip(recorded["columns"], row, strict=True))
        if v["differs"] in kinds:
            ask = Ask(
                v["machine"],
                int(v["free"], 16),
                v["count"],
                BindPolicy(v["bind"]),
                ExclusivePolicy(v["exclusive"]),
                NumaStrategy(v["strategy"]),
                int(v["held_cores"], 16),
                int(v["held_nodes"], 16),
            )
            name = f"{number}: {ask.count} of {ask.machine}, {ask.bind}, {ask.exclusive}, {ask.strategy}"
            found[name] = (ask, None if v["chosen"] is None else int(v["chosen"], 16))
    return found


AGREED = vectors("")
TOO_MANY, EVENLY, FALLEN_BACK, THREADS = (vectors(kind) for kind in ("count", "even", "fallback", "threads"))
APART, TIED = vectors("spread"), vectors("tie")


@pytest.mark.parametrize(("ask", "theirs"), AGREED.values(), ids=AGREED)
def test_koordinator_chooses_the_same(ask, theirs) -> None:
    assert chosen(ask) == theirs


@pytest.mark.parametrize(("ask", "theirs"), TOO_MANY.values(), ids=TOO_MANY)
def test_where_koordinator_gives_more_than_asked_the_count_is_exact(ask, theirs) -> None:
    assert theirs.bit_count() > ask.count
    assert chosen(ask).bit_count() == ask.count


@pytest.mark.parametrize(("ask", "theirs"), EVENLY.values(), ids=EVENLY)
def test_where_koordinator_does_not_distribute_we_do(ask, theirs) -> None:
    ours = chosen(ask)
    assert ours.bit_count() == ask.count == theirs.bit_count()
    if not (ask.held_cores or ask.held_nodes):
        assert unevenness(ask, ours) <= (ask.topology.threads_per_core if ask.bind is FULL else 1)


def unevenness(ask: Ask, cpus: int) -> int:
    """The largest difference between the shares of two NUMA nodes of which the smaller could have had more."""
    suited = ask.topology.whole(ask.free) if ask.bind is FULL else ask.topology.leads(ask.free)
    if suited.bit_count() < ask.count:
        suited = ask.free
    shares = [((cpus & node).bit_count(), (suited & node).bit_count()) for node in ask.topology.nodes.values()]
    most = max(share for share, _ in shares)
    return most - min((share for share, free in shares if free > share), default=most)


@pytest.mark.parametrize(("ask", "theirs"), FALLEN_BACK.values(), ids=FALLEN_BACK)
def test_where_koordinator_gives_up_numa_exclusivity_we_avoid_held_nodes_or_cores(ask, theirs) -> None:
    ours = chosen(ask)
    fewer = [(ours & held).bit_count() < (theirs & held).bit_count() for held in (ask.held_cores, ask.held_nodes)]
    assert any(fewer)


@pytest.mark.parametrize(("ask", "theirs"), APART.values(), ids=APART)
def test_where_koordinator_takes_siblings_beside_idle_cores_we_take_one_of_each_core(ask, theirs) -> None:
    cores = cores_in(ask.topology, chosen(ask))
    assert len(cores) == min(ask.count, len(cores_in(ask.topology, ask.free)))
    assert len(cores) > len(cores_in(ask.topology, theirs))


@pytest.mark.parametrize(("ask", "theirs"), TIED.values(), ids=TIED)
def test_where_koordinator_takes_another_of_equal_cores_it_keeps_no_more_preferences(ask, theirs) -> None:
    assert preferences(ask, chosen(ask)) == preferences(ask, theirs)


@pytest.mark.parametrize(("ask", "theirs"), THREADS.values(), ids=THREADS)
def test_where_koordinator_packs_four_threads_we_spread(ask, theirs) -> None:
    assert len(cores_in(ask.topology, chosen(ask))) > len(cores_in(ask.topology, theirs))


# Named cases

CASES: dict[str, tuple[Ask, str | None]] = {
    "nothing": (Ask(SMALL, 0xFF, 0, FULL), ""),
    "nothing of nothing": (Ask(SMALL, 0, 0, SPREAD), ""),
    "more than there is": (Ask(SMALL, 0xFF, 9, FULL), None),
    "CPUs that the machine has not": (Ask(SMALL, 0xF00, 1, FULL), None),
    "all": (Ask(SMALL, 0xFF, 8, SPREAD), "0-7"),
    "a core": (Ask(SMALL, 0xFF, 2, FULL), "0,4"),
    "two threads apart": (Ask(SMALL, 0xFF, 2, SPREAD), "0-1"),
    "a core though broken ones come first": (Ask(SMALL, parse("0-3,7"), 2, FULL), "3,7"),
    "a core and a thread of the next": (Ask(SMALL, 0xFF, 3, FULL), "0-1,4"),
    "more than the whole cores": (Ask(SMALL, parse("0-3,7"), 4, FULL), "0-1,3,7"),
    "second threads only when every core gave one": (Ask(SMALL, 0xFF, 5, SPREAD), "0-4"),
    "the second thread where the first is taken": (Ask(SMALL, parse("1-7"), 4, SPREAD), "1-4"),
    "eight of eight cores, one thread each": (Ask(TWO, parse("0-31"), 8, SPREAD), "0,2,4,6,8,10,12,14"),
    "one CPU more than cores are free takes each of them": (
        Ask(TWO, parse("0-13,16-31"), 16, SPREAD),
        "0-2,4,6,8,10,12,16,18,20,22,24,26,28,30",
    ),
    "the fuller node": (Ask(TWO, parse("0-15,20-31"), 4, FULL), "20-23"),
    "the emptier node": (Ask(TWO, parse("0-15,20-31"), 4, FULL, strategy=LEAST), "0-3"),
    "the fuller node that has enough": (Ask(TWO, parse("0-7,16-17"), 4, SPREAD), "0,2,4,6"),
    "the fuller socket where nodes are alike": (Ask(FOUR, machine(FOUR).all & ~(1 << 4), 4, SPREAD), "5-7,20"),
    "a whole socket": (Ask(FOUR, machine(FOUR).all, 16, FULL), "0-7,16-23"),
    "a socket and the rest near the next": (Ask(TWO, parse("0-31"), 18, FULL), "0-17"),
    "a core split over, not one too many": (Ask(SOCKETS, machine(SOCKETS).all, 11, FULL), "0-5,16-20"),
    "no core held with the same policy": (Ask(SMALL, parse("1-7"), 2, SPREAD, PCPU, held_cores=parse("0,4")), "1-2"),
    "a held core where there is no other": (
        Ask(SMALL, parse("4-5"), 1, SPREAD, PCPU, held_cores=parse("0-1,4-5")),
        "4",
    ),
    "a thread beside whole cores, of no core that is held or taken": (
        Ask(SMALL, parse("0-2,4"), 3, FULL, PCPU, held_cores=parse("1,5")),
        "0,2,4",
    ),
    "a thread beside whole cores, in no NUMA node that is held or taken": (
        Ask(FOUR, parse("0-1,5,9,16"), 3, FULL, NUMA, held_nodes=parse("4-7,20-23")),
        "0,9,16",
    ),
    "a thread beside whole cores, of no core that is held where every NUMA node is": (
        Ask(FOUR, parse("0-2,16"), 3, FULL, NUMA, held_cores=parse("1,17")),
        "0,2,16",
    ),
    "held cores do not matter to others": (Ask(SMALL, parse("4-7"), 2, SPREAD, held_cores=parse("0,4")), "4-5"),
    "no node held with the same policy": (Ask(TWO, parse("2-31"), 4, FULL, NUMA, held_nodes=parse("0-15")), "16-19"),
    "held nodes do not matter to others": (Ask(TWO, parse("2-31"), 4, FULL, held_nodes=parse("0-15")), "2-5"),
    "a held node where there is no other": (
        Ask(TWO, parse("2-15"), 4, SPREAD, NUMA, held_nodes=parse("0-15")),
        "2,4,6,8",
    ),
    "a held node without its held cores": (
        Ask(TWO, parse("1,4-15"), 4, SPREAD, NUMA, held_nodes=parse("0-31"), held_cores=parse("0-1")),
        "4,6,8,10",
    ),
    "half in each of two nodes, where one would do": (
        Ask(TWO, parse("0-15,20-31"), 8, FULL, strategy=EVEN),
        "0-3,20-23",
    ),
    "one thread of each core, half in each node": (Ask(TWO, parse("0-31"), 4, SPREAD, strategy=EVEN), "0,2,16,18"),
    "a core is not halved": (Ask(TWO, parse("0-31"), 2, FULL, strategy=EVEN), "0-1"),
    "as even as can be": (Ask(TWO, parse("0-15,16-19"), 10, FULL, strategy=EVEN), "0-5,16-19"),
    "one of each core before any sibling, over nodes": (Ask(TWO, parse("0-7,16-23"), 8, SPREAD), "0,2,4,6,16,18,20,22"),
    "siblings where there are no more cores": (Ask(TWO, parse("0-7,16-23"), 10, SPREAD), "0-4,6,16,18,20,22"),
    "one node where one is enough, as the kubelet": (
        Ask(TWO, parse("0-15,20-31"), 8, FULL, strategy=BEYOND_ONE),
        "0-7",
    ),
    "half in each of two nodes": (Ask(TWO, parse("0-31"), 20, FULL, strategy=EVEN), "0-9,16-25"),
    "half of the cores in each": (Ask(TWO, parse("0-5,16-21"), 8, SPREAD, strategy=EVEN), "0-2,4,16-18,20"),
    "whole cores where halves are odd": (Ask(TWO, parse("0-31"), 18, FULL, strategy=EVEN), "0-9,16-23"),
    "three of four nodes": (
        Ask(ARM, machine(ARM).all & ~parse("40-63"), 72, SPREAD, strategy=BEYOND_ONE),
        "0-23,64-87,96-119",
    ),
    "all nodes where fewer have not so much": (
        Ask(ARM, parse("0-9,32-41,64-73,96-105"), 36, SPREAD, strategy=EVEN),
        "0-8,32-40,64-72,96-104",
    ),
    "unevenly where it cannot be even, as the kubelet": (
        Ask(TWO, parse("0-15,16-19"), 18, FULL, strategy=BEYOND_ONE),
        "0-17",
    ),
    "required cores": (Ask(SMALL, 0xFF, 4, FULL, required=True), "0-1,4-5"),
    "required cores, an odd number": (Ask(SMALL, 0xFF, 3, FULL, required=True), None),
    "required cores, too few of them": (Ask(SMALL, parse("0-3,7"), 4, FULL, required=True), None),
    "required apart": (Ask(SMALL, 0xFF, 4, SPREAD, required=True), "0-3"),
    "required apart, more than cores": (Ask(SMALL, 0xFF, 5, SPREAD, required=True), None),
    "required apart, more than one node has": (
        Ask(TWO, parse("0-7,16-31"), 12, SPREAD, required=True),
        "0,2,4,6,16,18,20,22,24,26,28,30",
    ),
    "four threads of one core": (Ask(POWER, parse("2-3,8-11"), 4, FULL), "8-11"),
    "threads apart though few are free": (Ask(POWER, parse("0-1,4"), 2, SPREAD), "0,4"),
    "no SMT, cores of one node": (Ask(ARM, machine(ARM).all, 4, SPREAD), "0-3"),
}


@pytest.mark.parametrize(("ask", "cpus"), CASES.values(), ids=CASES)
def test_a_named_case_is_chosen(ask, cpus) -> None:
    got = chosen(ask)
    assert (got if got is None else format_cpuset(got)) == cpus


HYBRID = CpuTopology.of(
    [*(Cpu(cpu, cpu // 2, 0, 0) for cpu in range(8)), *(Cpu(cpu, cpu, 0, 0) for cpu in range(8, 12))]
)
"""Cores 0 to 3 of two threads (CPUs 0-7), and four of one (8-11)."""

NUMA_OFF = CpuTopology.of(Cpu(cpu, cpu % 8 % 4, cpu % 8 // 4, 0) for cpu in range(16))
"""Core k: CPUs k and k + 8; socket 0: cores 0 to 3; one NUMA node for both sockets."""

ODD_MACHINES = {
    "whole cores of a hybrid": (HYBRID, 4, FULL, "0-3"),
    "a small core rather than half a large one": (HYBRID, 3, FULL, "0-1,8"),
    "threads apart on a hybrid": (HYBRID, 6, SPREAD, "0,2,4,6,8-9"),
    "one socket of a NUMA node that has two": (NUMA_OFF, 8, FULL, "0-3,8-11"),
    "one thread of each core before any sibling, over sockets": (NUMA_OFF, 6, SPREAD, "0-5"),
    "one socket of a NUMA node that has two, apart": (NUMA_OFF, 3, SPREAD, "0-2"),
}


@pytest.mark.parametrize(("topology", "count", "bind", "cpus"), ODD_MACHINES.values(), ids=ODD_MACHINES)
def test_odd_machines_keep_the_promises(topology, count, bind, cpus) -> None:
    got = take(
        topology, topology.all, count, bind=bind, exclusive=FREE_FOR_ALL, strategy=MOST, held_cores=0, held_nodes=0
    )
    assert got is not None
    assert format_cpuset(got) == cpus


@st.composite
def unequal(draw: st.DrawFn) -> tuple[CpuTopology, int, int]:
    """A machine with some threads offline, its free CPUs, and the number requested."""
    whole = machine(draw(st.sampled_from((SMALL, TWO, POWER, "shuffled, two sockets, 4 nodes, SMT"))))
    offline = draw(st.integers(0, whole.all)) & draw(st.integers(0, whole.all))
    topology = CpuTopology.of(cpu for cpu in whole.cpus if not offline >> cpu.id & 1)
    free = sum(core for core in topology.cores if draw(st.booleans()))
    free |= topology.all & draw(st.integers(0, whole.all)) & draw(st.integers(0, whole.all))
    return topology, free, draw(st.integers(1, 12))


@given(unequal(), st.sampled_from((MOST, LEAST, EVEN)), st.sampled_from((FREE_FOR_ALL, PCPU, NUMA)))
def test_whole_cores_of_unequal_sizes_are_found_wherever_some_add_up(made, strategy, exclusive) -> None:
    topology, free, count = made
    sums = {0}
    for core in topology.cores:
        if core & free == core:
            sums |= {more + core.bit_count() for more in sums}
    held = topology.nodes_of(topology.all & ~free & 0xF)
    for required in (True, False):
        got = take(
            topology,
            free,
            count,
            bind=FULL,
            exclusive=exclusive,
            strategy=strategy,
            held_cores=held,
            held_nodes=held,
            required=required,
        )
        if got is None:
            assert count not in sums if required else count > free.bit_count()
            continue
        assert got & ~free == 0
        assert got.bit_count() == count
        equal = topology.core_step == topology.threads_per_core
        if required or (count in sums and not equal):
            assert whole_in(topology, got) == got


@pytest.mark.parametrize(
    ("exclusive", "strategy", "held_nodes", "cpus"),
    [
        pytest.param(FREE_FOR_ALL, MOST, 0, "0,2-3", id="the fuller NUMA node"),
        pytest.param(FREE_FOR_ALL, LEAST, 0, "16,18-19", id="the emptier one"),
        pytest.param(NUMA, MOST, 0xFFFF, "16,18-19", id="not the fuller one where it is held alone"),
        pytest.param(NUMA, LEAST, 0xFFFF0000, "0,2-3", id="not the emptier one where it is held alone"),
        pytest.param(NUMA, MOST, 0xFFFFFFFF, "0,2-3", id="the fuller one where both are"),
        pytest.param(PCPU, MOST, 0xFFFF, "0,2-3", id="the fuller one where no NUMA node is to be held alone"),
    ],
)
def test_cores_of_unequal_sizes_are_taken_of_the_numa_node_that_the_rules_prefer(
    exclusive, strategy, held_nodes, cpus
) -> None:
    topology = CpuTopology.of(cpu for cpu in machine(TWO).cpus if cpu.id not in {1, 17})
    got = take(
        topology,
        topology.all & ~parse("6-15"),
        3,
        bind=FULL,
        exclusive=exclusive,
        strategy=strategy,
        held_cores=0,
        held_nodes=held_nodes,
    )
    assert got is not None
    assert got is not None
    assert format_cpuset(got) == cpus


def test_of_cores_of_unequal_sizes_the_largest_are_taken_where_the_first_ones_do_not_add_up() -> None:
    there = parse("0,4-5,8-10,12-15")
    topology = CpuTopology.of(cpu for cpu in machine(POWER).cpus if there >> cpu.id & 1)
    got = take(
        topology, there, 7, bind=FULL, exclusive=FREE_FOR_ALL, strategy=MOST, held_cores=0, held_nodes=0, required=True
    )
    assert got == parse("8-10,12-15")


UNRESOLVED = {
    "a negative count": Ask(SMALL, 0xFF, -1, FULL),
    "the default bind policy": Ask(SMALL, 0xFF, 1, BindPolicy.DEFAULT),
    "a policy of shared pools": Ask(SMALL, 0xFF, 1, BindPolicy.CONSTRAINED_BURST),
    "the default exclusive policy": Ask(SMALL, 0xFF, 1, FULL, ExclusivePolicy.DEFAULT),
}


@pytest.mark.parametrize("ask", UNRESOLVED.values(), ids=UNRESOLVED)
def test_what_is_left_open_is_refused(ask) -> None:
    with pytest.raises(ValueError, match="resolve"):
        chosen(ask)


# Promises, recomputed from scratch

NAMES = (SMALL, TWO, FOUR, SOCKETS, POWER, "AMD, one socket, 8 nodes of one CCX", "shuffled, two sockets, 4 nodes, SMT")


@st.composite  # type: ignore[arg-type]
def asks(draw: st.DrawFn, **fixed: Any) -> Ask:
    """A call on a machine with free, partly free and taken cores, and possible holders."""
    name = fixed.pop("machine", None) or draw(st.sampled_from(NAMES))
    topology = machine(name)
    free = 0
    for core in topology.cores:
        free |= core if draw(st.booleans()) else core & draw(st.integers(0, topology.all))
    taken = topology.all & ~free
    ask = Ask(
        name,
        free,
        draw(st.integers(0, free.bit_count() + 2)),
        draw(st.sampled_from((FULL, SPREAD))),
        draw(st.sampled_from((FREE_FOR_ALL, PCPU, NUMA))),
        draw(st.sampled_from((MOST, LEAST, EVEN))),
        topology.cores_of(taken & draw(st.integers(0, topology.all))),
        topology.nodes_of(taken & draw(st.sampled_from((0, *topology.nodes.values())))),
    )
    return ask._replace(**fixed)


def cores_in(topology: CpuTopology, cpus: int) -> list[int]:
    """Which of these CPUs each core has, for the cores that have any."""
    return [core & cpus for core in topology.cores if core & cpus]


def whole_in(topology: CpuTopology, cpus: int) -> int:
    return sum(core for core in topology.cores if core & cpus == core)


@given(asks(), st.booleans())
def test_the_count_is_exact_and_of_free_cpus(ask, required) -> None:
    ask = ask._replace(required=required)
    got = chosen(ask)
    if got is None:
        assert required or ask.free.bit_count() < ask.count
    else:
        assert got & ~ask.free == 0
        assert got.bit_count() == ask.count


@given(asks(), st.integers(min_value=0))
def test_the_same_is_chosen_again_whatever_else_the_sets_name(ask, others) -> None:
    strange = others << len(ask.topology.cpus)
    again = ask._replace(free=ask.free | strange)
    assert chosen(again) == chosen(ask)


@given(asks(bind=FULL))
def test_full_cores_break_none_while_whole_ones_suffice(ask) -> None:
    got = chosen(ask)
    if got is not None and whole_in(ask.topology, ask.free).bit_count() >= ask.count:
        broken = [core for core in ask.topology.cores if core & got and core & got != core]
        threads = ask.topology.threads_per_core
        assert len(broken) <= (ask.count % threads > 0) * threads
        if ask.count % threads == 0:
            assert not broken


@given(asks(bind=FULL))
def test_full_cores_use_every_whole_one_before_many_broken_ones(ask) -> None:
    got = chosen(ask)
    whole = whole_in(ask.topology, ask.free)
    if got is not None and whole.bit_count() < ask.count and ask.strategy is not EVEN:
        assert got & whole == whole


@given(asks().filter(lambda ask: ask.strategy is not EVEN))
def test_one_numa_node_gives_all_where_one_can(ask) -> None:
    """With SpreadByPCPUs what others exclude is avoided first, in other NUMA nodes too; other properties state this."""
    assume(ask.bind is not SPREAD or ask.exclusive is FREE_FOR_ALL)
    topology = ask.topology
    usable = topology.leads(ask.free) if ask.bind is SPREAD else whole_in(topology, ask.free)
    if ask.count and any((usable & node).bit_count() >= ask.count for node in topology.nodes.values()):
        assert sum(1 for node in topology.nodes.values() if node & chosen(ask)) == 1


@given(asks(bind=SPREAD, exclusive=FREE_FOR_ALL))
def test_threads_are_apart_where_a_numa_node_has_so_many_cores(ask) -> None:
    topology = ask.topology
    if any(len(cores_in(topology, ask.free & node)) >= ask.count for node in topology.nodes.values()):
        assert len(cores_in(topology, chosen(ask))) == ask.count


@given(asks(bind=SPREAD, exclusive=FREE_FOR_ALL))
def test_no_core_gives_a_second_thread_while_another_there_gives_none(ask) -> None:
    topology = ask.topology
    got = chosen(ask)
    if got:
        used = sum(node for node in topology.nodes.values() if node & got)
        if any((got & node) == got for node in topology.nodes.values()):
            idle = [core for core in cores_in(topology, ask.free & used) if not core & got]
            assert not idle or all(core.bit_count() == 1 for core in cores_in(topology, got))


@given(asks(bind=SPREAD, exclusive=FREE_FOR_ALL).filter(lambda ask: ask.strategy is not EVEN))
def test_every_core_of_the_machine_gives_a_thread_before_any_gives_a_second(ask) -> None:
    cores = cores_in(ask.topology, ask.free)
    got = chosen(ask)
    if got is not None:
        assert len(cores_in(ask.topology, got)) == min(ask.count, len(cores))


def preferences(ask: Ask, cpus: int) -> tuple[list[int], bool, int]:
    """What SpreadByPCPUs with an exclusive policy wants little of, in this order.

    Cores without a first, a second, ... thread; under NUMANodeLevel a held NUMA node; CPUs of held cores.
    """
    threads = sorted(-core.bit_count() for core in cores_in(ask.topology, cpus))
    spread = [sum(1 for of in threads if of <= -at) for at in range(1, ask.topology.threads_per_core + 1)]
    node = ask.exclusive is NUMA and cpus & ask.held_nodes > 0
    return [-cores for cores in spread], node, (cpus & ask.held_cores).bit_count()


@given(
    st.sampled_from((SMALL, "two sockets of two cores, SMT", "two sockets of one core, four threads")).flatmap(
        lambda name: asks(machine=name, bind=SPREAD)
    )
)
@example(Ask("two sockets of two cores, SMT", parse("0-1,3-5"), 4, SPREAD, PCPU, held_cores=parse("2-3")))
def test_an_exclusive_policy_supplements_spread_by_pcpus(ask) -> None:
    """Compared with every choice of as many CPUs."""
    ask = ask._replace(held_nodes=ask.topology.nodes_of(ask.held_cores))
    free = list(members(ask.free))
    assume(ask.count <= len(free) and ask.strategy is not EVEN and ask.exclusive is not FREE_FOR_ALL)
    got = chosen(ask)
    every = itertools.combinations(free, ask.count)
    assert preferences(ask, got) == min(preferences(ask, sum(1 << cpu for cpu in some)) for some in every)


@given(asks(bind=SPREAD, exclusive=PCPU))
def test_held_cores_are_avoided_where_a_numa_node_can(ask) -> None:
    outside = ask.free & ~ask.held_cores
    if any(len(cores_in(ask.topology, outside & node)) >= ask.count for node in ask.topology.nodes.values()):
        assert chosen(ask) & ask.held_cores == 0


@given(asks(exclusive=NUMA))
@example(
    Ask(
        "POWER, two sockets, four threads a core",
        free=0xFFF100F0,
        count=4,
        bind=SPREAD,
        exclusive=NUMA,
        strategy=EVEN,
        held_cores=0xF0000,
        held_nodes=0xFFFF,
        required=False,
    )
).via("a free thread of a held core, in the NUMA node that is not held")
def test_held_nodes_are_avoided_where_another_can(ask) -> None:
    topology = ask.topology
    outside = ask.free & ~ask.held_nodes
    for node in topology.nodes.values():
        there = outside & node
        if ask.bind is FULL:
            can = whole_in(topology, there).bit_count() >= ask.count
        else:
            can = len(cores_in(topology, there)) >= ask.count
        if can:
            assert chosen(ask) & ask.held_nodes == 0


@given(asks(bind=SPREAD, exclusive=NUMA))
def test_without_another_node_held_cores_are_avoided_where_a_numa_node_can(ask) -> None:
    ask = ask._replace(held_nodes=ask.topology.all)
    outside = ask.free & ~ask.held_cores
    if any(len(cores_in(ask.topology, outside & node)) >= ask.count for node in ask.topology.nodes.values()):
        assert chosen(ask) & ask.held_cores == 0


@given(asks(required=True))
def test_a_required_policy_is_kept_wherever_it_can_be(ask) -> None:
    topology = ask.topology
    got = chosen(ask)
    if ask.bind is FULL:
        possible = ask.count % topology.threads_per_core == 0 and whole_in(topology, ask.free).bit_count() >= ask.count
        assert got is None or got == whole_in(topology, got)
    else:
        possible = len(cores_in(topology, ask.free)) >= ask.count
        assert got is None or len(cores_in(topology, got)) == ask.count
    assert (got is not None) == possible


def kept_wishes(ask: Ask, got: int) -> list[bool]:
    """The preferences that a choice keeps, the most important first."""
    topology = ask.topology
    cores = cores_in(topology, got)
    whole = len([core for core in cores if core not in topology.cores]) <= (ask.count % topology.threads_per_core > 0)
    off_nodes = not got & ask.held_nodes
    if ask.bind is FULL:
        return [whole and off_nodes, whole, off_nodes] if ask.exclusive is NUMA else [whole]
    apart = all(core.bit_count() == 1 for core in cores)
    off_cores = apart and not got & ask.held_cores
    if ask.exclusive is NUMA:
        return [apart and off_nodes, off_cores]
    return [off_cores] if ask.exclusive is PCPU else [apart]


@given(asks(strategy=MOST), st.sampled_from(range(8)))
def test_what_is_given_up_inside_a_numa_node_is_reported_before_it_is_chosen(ask, number) -> None:
    nodes = list(ask.topology.nodes.values())
    inside = ask._replace(free=ask.free & nodes[number % len(nodes)])
    got = chosen(inside)
    given_up = wishes_given_up(
        ask.topology,
        inside.free,
        ask.count,
        bind=ask.bind,
        exclusive=ask.exclusive,
        held_cores=ask.held_cores,
        held_nodes=ask.held_nodes,
    )
    if got:
        kept = kept_wishes(inside, got)
        assert all(kept[given_up : given_up + 1])


# On TWO: what is free, how many are asked, by which policies, what others hold, and how many preferences must go

GIVEN_UP: dict[str, tuple[str, int, BindPolicy, ExclusivePolicy, str, str, int]] = {
    "whole cores": ("0-7", 4, FULL, FREE_FOR_ALL, "", "", 0),
    "no whole core": ("0,2,4,6", 4, FULL, FREE_FOR_ALL, "", "", 1),
    "too few CPUs": ("0-2", 4, FULL, FREE_FOR_ALL, "", "", 2),
    "a thread of each core": ("0,2,4,6", 4, SPREAD, FREE_FOR_ALL, "", "", 0),
    "two cores for four threads": ("0-3", 4, SPREAD, FREE_FOR_ALL, "", "", 1),
    "a core to itself": ("0-7", 3, SPREAD, PCPU, "6", "", 0),
    "one core is held": ("0-7", 4, SPREAD, PCPU, "6-7", "", 1),
    "two threads must share, and the held core is taken before": ("0-5", 4, SPREAD, PCPU, "4-5", "", 3),
    "two threads must share, and no free core is held": ("0-3,6", 4, SPREAD, PCPU, "4-5", "", 2),
    "one core is held, and too few CPUs are free beside it": ("0-4", 4, SPREAD, PCPU, "2-4", "", 3),
    "whole cores share with all": ("0-7", 4, FULL, PCPU, "0-7", "", 0),
    "whole cores, the node is not held": ("0-3,16-19", 4, FULL, NUMA, "0-3", "0-15", 0),
    "whole cores, the node is held": ("0-3,16-17", 4, FULL, NUMA, "", "0-15", 1),
    "no whole core, the node is held": ("0,2,4,16", 4, FULL, NUMA, "", "0-15", 3),
    "apart, on the node that is not held": ("0-3,16-19", 2, SPREAD, NUMA, "0-3", "0-15", 0),
    "apart, on a held node beside held cores": ("0-3,16-17", 2, SPREAD, NUMA, "0-1", "0-15", 1),
    "apart, on held cores": ("0-3,16-17", 3, SPREAD, NUMA, "0-1", "0-15", 2),
    "apart, and threads must share": ("0-3,16-17", 4, SPREAD, NUMA, "0-1", "0-15", 4),
    "threads must share, and the held node is taken before": ("0-1,16-21", 5, SPREAD, NUMA, "", "0-1", 4),
    "threads must share on a node that is not held": ("16-21", 5, SPREAD, NUMA, "", "0-1", 3),
    "nothing is asked that is not there": ("0-1,16-17", 5, SPREAD, NUMA, "", "", 4),
}


@pytest.mark.parametrize("name", GIVEN_UP)
def test_as_few_preferences_are_given_up_as_can_be(name: str) -> None:
    free, count, bind, exclusive, held_cores, held_nodes, given_up = GIVEN_UP[name]
    cores, nodes = parse(held_cores), parse(held_nodes)
    found = wishes_given_up(
        machine(TWO), parse(free), count, bind=bind, exclusive=exclusive, held_cores=cores, held_nodes=nodes
    )
    assert found == given_up


@pytest.mark.parametrize(("count", "given_up"), [(4, 1), (16, 1), (17, 3)])
def test_where_a_core_has_one_thread_no_core_can_be_held_beside_its_numa_node(count: int, given_up: int) -> None:
    found = wishes_given_up(
        machine(ARM),
        parse("0-15"),
        count,
        bind=SPREAD,
        exclusive=NUMA,
        held_cores=parse("0-11"),
        held_nodes=parse("0-31"),
    )
    assert found == given_up


def fewest_even(sizes: list[int], count: int) -> int | None:
    """The fewest NUMA nodes, at least two, whose shares can differ by at most one CPU; found by trying all."""
    for nodes in range(2, len(sizes) + 1):
        for some in itertools.combinations(sizes, nodes):
            share, rest = divmod(count, nodes)
            if min(some) >= share and sum(1 for size in some if size > share) >= rest:
                return nodes
    return None


@given(st.lists(st.integers(0, 32), min_size=4, max_size=4), st.integers(1, 128), st.sampled_from((FULL, SPREAD)))
def test_cpus_are_distributed_evenly_over_as_few_numa_nodes_as_can(sizes, count, bind) -> None:
    topology = machine(ARM)
    free = sum(((1 << size) - 1) << 32 * node for node, size in enumerate(sizes))
    got = chosen(Ask(ARM, free, count, bind, strategy=BEYOND_ONE))
    if got is None or count <= max(sizes):
        return
    shares = [(got & node).bit_count() for node in topology.nodes.values() if got & node]
    fewest = fewest_even(sizes, count)
    if fewest is not None:
        assert len(shares) == fewest
        assert max(shares) - min(shares) <= 1


@given(st.lists(st.integers(0, 32), min_size=4, max_size=4), st.integers(1, 128), st.sampled_from((FULL, SPREAD)))
def test_every_numa_node_gives_the_same_number_as_far_as_it_has_so_many(sizes, count, bind) -> None:
    free = sum(((1 << size) - 1) << 32 * node for node, size in enumerate(sizes))
    ask = Ask(ARM, free, count, bind, strategy=EVEN)
    got = chosen(ask)
    assert (got is None) == (count > sum(sizes))
    assert got is None or unevenness(ask, got) <= 1


# ARM

ON_ARM: dict[str, tuple[BindPolicy, ExclusivePolicy, bool, tuple[BindPolicy, ExclusivePolicy] | None]] = {
    "what is supported": (FULL, NUMA, True, (FULL, NUMA)),
    "nothing exclusive": (FULL, FREE_FOR_ALL, False, (FULL, FREE_FOR_ALL)),
    "a wish to spread": (SPREAD, NUMA, False, (FULL, NUMA)),
    "the default": (BindPolicy.DEFAULT, ExclusivePolicy.DEFAULT, False, (FULL, ExclusivePolicy.DEFAULT)),
    "exclusive cores": (FULL, PCPU, False, (FULL, FREE_FOR_ALL)),
    "both": (SPREAD, PCPU, False, (FULL, FREE_FOR_ALL)),
    "spreading that must be kept": (SPREAD, NUMA, True, None),
    "a shared pool": (BindPolicy.CONSTRAINED_BURST, FREE_FOR_ALL, False, None),
}


@pytest.mark.parametrize(("bind", "exclusive", "required", "becomes"), ON_ARM.values(), ids=ON_ARM)
def test_arm_supports_full_cores_and_exclusive_nodes(bind, exclusive, required, becomes) -> None:
    got = supported("arm64", bind, exclusive, required=required)
    if becomes is None:
        assert got == f"CPU bind policy {bind} is not supported on arm64; ask for FullPCPUs there"
    else:
        assert got == becomes
    for other in ("amd64", "s390x", ""):
        assert supported(other, bind, exclusive, required=required) == Supported(bind, exclusive)
