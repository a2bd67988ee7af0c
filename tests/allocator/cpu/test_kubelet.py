"""What a kubelet would refuse after the bind: by whole cores, and by the NUMA nodes of each container."""

import pytest
from builders import asking
from hypothesis import given
from hypothesis import strategies as st
from machines_cpu import build, siblings_far, siblings_near, siblings_of_four

from allocator.cpu.kubelet import refused_by_kubelet
from allocator.vocabulary.cpuask import CpuAsk, QosClass
from allocator.vocabulary.cpunode import NO_USE, CpuNode, CpuShare, cpu_use
from allocator.vocabulary.cpupolicy import NumaPolicy
from allocator.vocabulary.cpuset import parse
from allocator.vocabulary.cputopology import Cpu, CpuTopology
from allocator.vocabulary.outcome import Refusal
from allocator.vocabulary.phase import Phase

TWO = build(2, 1, 8, 2, siblings_near)  # NUMA nodes 0-15 and 16-31; a core is two adjacent CPUs
POWER = build(2, 1, 4, 4, siblings_of_four)
# Four cores of two threads and four of one: the kubelet divides twelve CPUs by eight cores, which is one per core
HYBRID = CpuTopology.of([*(Cpu(at, at // 2, 0, 0) for at in range(8)), *(Cpu(at, at, 0, 0) for at in range(8, 12))])
APP, INIT, SIDECAR = Phase.APP, Phase.INIT, Phase.SIDECAR
RESTRICTED, SINGLE = NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE


def given_by_kubelet(*counts: int | tuple[Phase, int], qos: QosClass = QosClass.LSR) -> CpuAsk:
    """A Guaranteed Pod whose containers request these numbers of CPUs."""
    static = tuple((APP, one) if isinstance(one, int) else one for one in counts)
    total = sum(count for _, count in static)
    return CpuAsk(qos, total if qos is QosClass.LSR else 0, 1000 * total, 0, 1000 * total, static=static)


# Whole cores: the containers, the machine; the message

CORES: dict[str, tuple[CpuAsk, CpuTopology, str]] = {
    "a container of one core": (given_by_kubelet(2), TWO, ""),
    "a core in each container": (given_by_kubelet(2, 4), TWO, ""),
    "half a core in each container, though the Pod's sum is whole": (given_by_kubelet(1, 1), TWO, "1"),
    "half a core in an init container": (given_by_kubelet((INIT, 1), 4), TWO, "1"),
    "half a core in a sidecar": (given_by_kubelet((SIDECAR, 3), 4), TWO, "3"),
    "a Pod on the shared pool": (given_by_kubelet(3, qos=QosClass.LS), TWO, "3"),
    "a best-effort Pod that is Guaranteed": (given_by_kubelet(3, qos=QosClass.BE), TWO, "3"),
    "half a core of four threads": (given_by_kubelet(6), POWER, "6"),
    "unequal cores, by the kubelet's own count": (given_by_kubelet(3), HYBRID, ""),
    "a Pod that is not Guaranteed": (CpuAsk(QosClass.LS, 0, 3000, 0, 3000), TWO, ""),
}


@pytest.mark.parametrize(("ask", "topology", "count"), CORES.values(), ids=CORES)
def test_a_pod_is_refused_where_the_kubelet_would_answer_smt_alignment_error(
    ask: CpuAsk, topology: CpuTopology, count: str
) -> None:
    answer = refused_by_kubelet(ask, "node-1", CpuNode(topology, whole_cores=True), NO_USE)
    threads = topology.threads_per_core
    told = f"a container requests {count} CPUs, and the kubelet takes only multiples of {threads}, whole cores "
    assert answer == (Refusal(f"node-1: {told}(SMTAlignmentError)", permanent=True) if count else None)
    assert refused_by_kubelet(ask, "node-1", CpuNode(topology), NO_USE) is None


# Containers one by one: the policy, the containers, what others hold; how many CPUs are not free, and where

CONTAINERS: dict[str, tuple[NumaPolicy, CpuAsk, str, tuple[int, str] | None]] = {
    "each in one": (RESTRICTED, given_by_kubelet(10, 10), "", None),
    "one in one, and none is left for the other": (
        RESTRICTED,
        given_by_kubelet(10, 10),
        "0-3,16-22",
        (10, "one NUMA node"),
    ),
    "in that order the first takes the other's place": (
        RESTRICTED,
        given_by_kubelet(10, 12),
        "0-3,16-21",
        (12, "one NUMA node"),
    ),
    "in the other order both have one": (RESTRICTED, given_by_kubelet(12, 10), "0-3,16-21", None),
    "an init container's are given again": (RESTRICTED, given_by_kubelet((INIT, 16), 16, 16), "", None),
    "a sidecar's are not": (RESTRICTED, given_by_kubelet((SIDECAR, 16), 16, 2), "", (2, "one NUMA node")),
    "an init container beside a sidecar": (
        RESTRICTED,
        given_by_kubelet((SIDECAR, 10), (INIT, 10), 10),
        "16-22",
        (10, "one NUMA node"),
    ),
    "more than one has, in two": (RESTRICTED, given_by_kubelet(20), "", None),
    "more than one has, and two have not": (RESTRICTED, given_by_kubelet(20), "0-14", (20, "2 NUMA nodes")),
    "more than one has, where one must do": (SINGLE, given_by_kubelet(20), "", (20, "one NUMA node")),
    "each in one, where one must do": (SINGLE, given_by_kubelet(10, 10), "", None),
    "a Pod on the shared pool": (RESTRICTED, given_by_kubelet(8, qos=QosClass.LS), "0-9,16-25", (8, "one NUMA node")),
    "a kubelet that refuses none": (NumaPolicy.NONE, given_by_kubelet(10, 10), "0-3,16-22", None),
    "a Pod that is not Guaranteed": (RESTRICTED, CpuAsk(QosClass.LS, 0, 8000, 0), "0-9,16-25", None),
}


@pytest.mark.parametrize(("policy", "ask", "held", "short"), CONTAINERS.values(), ids=CONTAINERS)
def test_a_pod_is_refused_where_the_kubelet_would_answer_topology_affinity_error(
    policy: NumaPolicy, ask: CpuAsk, held: str, short: tuple[int, str] | None
) -> None:
    node = CpuNode(TWO, kubelet_policy=policy, kubelet_by_container=True)
    answer = refused_by_kubelet(ask, "node-1", node, cpu_use(node, [CpuShare("LSR", parse(held))]))
    if short is None:
        assert answer is None
        return
    assert answer is not None
    told = f"a container's {short[0]} CPUs are not free in {short[1]}, as the kubelet gives them to each container"
    assert answer.message == f"node-1: {told} (topology manager policy {policy}: TopologyAffinityError)"
    assert not answer.permanent


@pytest.mark.parametrize(
    "node",
    [
        CpuNode(TWO, kubelet_policy=SINGLE),
        CpuNode(build(1, 9, 1, 2, siblings_near), kubelet_policy=SINGLE, kubelet_by_container=True),
    ],
    ids=["scope pod", "more NUMA nodes than the topology manager takes"],
)
def test_containers_are_not_followed_where_the_kubelet_does_not_align_each(node: CpuNode) -> None:
    assert refused_by_kubelet(given_by_kubelet(20), "node-1", node, NO_USE) is None


def test_containers_are_followed_over_the_eight_numa_nodes_that_the_topology_manager_takes() -> None:
    node = CpuNode(build(1, 8, 1, 2, siblings_near), kubelet_policy=SINGLE, kubelet_by_container=True)
    answer = refused_by_kubelet(given_by_kubelet(2, 4), "node-1", node, NO_USE)
    assert answer is not None
    assert "4 CPUs are not free in one NUMA node" in answer.message


@pytest.mark.parametrize("counts", [(6, 4), (6, 2, 4), (6, 4, 1), (6, 4, 2)], ids=str)
def test_of_several_numa_nodes_those_come_first_whose_highest_is_the_lowest(counts: tuple[int, ...]) -> None:
    """Of 2, 3, 3 and 4 free CPUs, 6 are in the second and third as well as in the first and fourth NUMA node."""
    node = CpuNode(
        build(1, 4, 4, 1, siblings_far), parse("0-1,4,8"), kubelet_policy=RESTRICTED, kubelet_by_container=True
    )
    assert refused_by_kubelet(given_by_kubelet(*counts), "node-1", node, NO_USE) is None


def test_of_three_numa_nodes_those_come_first_whose_second_highest_is_the_lower() -> None:
    """Of 3, 5, 5, 6 and 8 free CPUs, 17 are in the second, third and fifth, and in the first and the last two."""
    held = "0-4,8-10,16-18,24-25"
    node = CpuNode(build(1, 5, 8, 1, siblings_far), parse(held), kubelet_policy=RESTRICTED, kubelet_by_container=True)
    assert refused_by_kubelet(given_by_kubelet(17, 6), "node-1", node, NO_USE) is None


def test_of_unequal_numa_nodes_the_larger_ones_say_how_many_are_needed() -> None:
    small, large = ([Cpu(cpu, cpu, 0, numa) for cpu in cpus] for numa, cpus in enumerate((range(2), range(2, 6))))
    topology = CpuTopology.of([*small, *large])
    node = CpuNode(topology, 1 << 5, kubelet_policy=RESTRICTED, kubelet_by_container=True)
    for count, where in ((3, ""), (4, "one NUMA node"), (6, "2 NUMA nodes"), (7, "2 NUMA nodes")):
        answer = refused_by_kubelet(given_by_kubelet(count), "node-1", node, NO_USE)
        assert (answer is None) is (not where)
        assert answer is None or f"{count} CPUs are not free in {where}," in answer.message


@pytest.mark.parametrize(("last", "refused"), [(1, False), (3, False), (4, True)])
def test_no_more_than_is_asked_is_taken_of_the_last_of_several_numa_nodes(last: int, *, refused: bool) -> None:
    node = CpuNode(build(1, 2, 4, 1, siblings_far), kubelet_policy=RESTRICTED, kubelet_by_container=True)
    assert (refused_by_kubelet(given_by_kubelet(5, last), "node-1", node, NO_USE) is not None) is refused


def test_what_the_kubelet_holds_is_not_free_and_counts_in_how_many_numa_nodes_it_wants() -> None:
    node = CpuNode(TWO, parse("0-11,16-27"), kubelet_policy=RESTRICTED, kubelet_by_container=True)
    answer = refused_by_kubelet(given_by_kubelet(8), "node-1", node, NO_USE)
    assert answer is not None
    assert "8 CPUs are not free in one NUMA node" in answer.message


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 2**8 - 1), st.sampled_from([RESTRICTED, SINGLE])
)
def test_containers_are_followed_as_the_kubelet_gives_cpus(counts: list[int], taken: int, policy: NumaPolicy) -> None:
    """Recounted CPU by CPU: each container takes the lowest NUMA nodes that have enough, and as few as possible."""
    node = CpuNode(build(1, 2, 4, 1, siblings_far), taken, kubelet_policy=policy, kubelet_by_container=True)
    halves = [{cpu for cpu in of if not taken >> cpu & 1} for of in (range(4), range(4, 8))]
    fits = True
    for count in counts:
        choices = [halves[0], halves[1]] if count <= 4 or policy is SINGLE else [halves[0] | halves[1]]
        found = next((of for of in choices if len(of) >= count), None)
        fits = fits and found is not None
        if found is not None:
            given_away = set(sorted(found)[:count])
            halves = [of - given_away for of in halves]
    assert (refused_by_kubelet(given_by_kubelet(*counts), "node-1", node, NO_USE) is None) == fits


def test_a_labelled_pod_is_held_against_the_kubelet_by_container_as_it_is_read() -> None:
    one = {"cpu": 1, "memory": "1Gi"}
    node = CpuNode(TWO, whole_cores=True)
    for qos in ("LSE", "LSR", "LS", "BE"):
        cpu = asking(one, one, qos=qos).cpu
        assert cpu is not None
        assert isinstance(refused_by_kubelet(cpu, "node-1", node, NO_USE), Refusal)
