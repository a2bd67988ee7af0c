"""What a kubelet would refuse after the bind: by whole cores, and by the NUMA nodes of each container."""

from dataclasses import replace

import pytest
from builders import asking
from hypothesis import given
from hypothesis import strategies as st
from machines_cpu import build, siblings_far, siblings_near, siblings_of_four

from allocator.cpu.kubelet import aligned_by_kubelet, refused_by_kubelet
from allocator.vocabulary.cpunode import (
    NO_USE,
    CpuAsk,
    CpuNode,
    CpuShare,
    KubeletAsk,
    NumaPolicy,
    NumaShare,
    QosClass,
    Zone,
    cpu_use,
)
from allocator.vocabulary.cputopology import Cpu, CpuTopology, parse
from allocator.vocabulary.names import Phase
from allocator.vocabulary.outcome import Refusal

TWO = build(2, 1, 8, 2, siblings_near)  # NUMA nodes 0-15 and 16-31; a core is two adjacent CPUs
POWER = build(2, 1, 4, 4, siblings_of_four)
# Four cores of two threads and four of one: the kubelet divides twelve CPUs by eight cores, which is one per core
HYBRID = CpuTopology.of([*(Cpu(at, at // 2, 0, 0) for at in range(8)), *(Cpu(at, at, 0, 0) for at in range(8, 12))])
APP, INIT, SIDECAR = Phase.APP, Phase.INIT, Phase.SIDECAR
RESTRICTED, SINGLE = NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE


def given_by_kubelet(*counts: int | tuple[Phase, int], qos: QosClass = QosClass.LSR) -> CpuAsk:
    """A Guaranteed Pod whose containers request these numbers of CPUs."""
    asked = tuple(KubeletAsk(APP, one) if isinstance(one, int) else KubeletAsk(*one) for one in counts)
    total = sum(one.cpus for one in asked)
    return CpuAsk(qos, total if qos is QosClass.LSR else 0, 1000 * total, 0, 1000 * total, of_kubelet=asked)


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


# With whole cores, and CPUs of a core that the kubelet reserves a thread of: what is free, the containers; which fails

BESIDE: dict[str, tuple[CpuAsk, int | None]] = {
    "as many as are free on whole cores": (given_by_kubelet(6), None),
    "more than are free on whole cores": (given_by_kubelet(8), 8),
    "together as many as are free": (given_by_kubelet(4, 2), None),
    "together more than are free": (given_by_kubelet(4, 4), 4),
    "an init container's are not free for the next": (given_by_kubelet((INIT, 4), 4), 4),
    "an init container beside the next": (given_by_kubelet((INIT, 2), 4), None),
    "an init container's are the next one's, if that asks for as many": (given_by_kubelet((INIT, 2), 2, 4), None),
    "an init container's are the next init container's": (given_by_kubelet((INIT, 2), (INIT, 2), 4), None),
    "a sidecar's are not": (given_by_kubelet((SIDECAR, 2), 2, 4), 4),
}


@pytest.mark.parametrize(("ask", "count"), BESIDE.values(), ids=BESIDE)
def test_cpus_of_whole_cores_must_be_free_beside_those_of_the_containers_before(ask: CpuAsk, count: int | None) -> None:
    node = CpuNode(TWO, parse("0,8-31"), whole_cores=True, kubelet_reserved=parse("0"))
    answer = refused_by_kubelet(ask, "node-1", node, NO_USE)
    if count is None:
        assert answer is None
        return
    assert answer is not None
    assert answer.message.startswith(f"node-1: a container requests {count} CPUs, but ")
    assert answer.message.endswith("as the kubelet counts (SMTAlignmentError)")
    assert not answer.permanent


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
    "an init container's keep the next to their NUMA node": (
        RESTRICTED,
        given_by_kubelet((INIT, 2), 10),
        "0-7",
        (10, "one NUMA node"),
    ),
    "an init container's keep those after it until they are all given": (
        RESTRICTED,
        given_by_kubelet((INIT, 4), 4, 10),
        "0-7",
        None,
    ),
    "nobody knows which of an init container's are given again": (
        RESTRICTED,
        given_by_kubelet((INIT, 3), 4, 10),
        "0-7",
        (10, "one NUMA node"),
    ),
    "an init container before one that asks for as many": (
        RESTRICTED,
        given_by_kubelet((INIT, 2), (INIT, 2), 2, 10),
        "0-7",
        None,
    ),
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
    told = f"the kubelet would not find {short[0]} CPUs in {short[1]} for a container"
    never = "; not even if all were free" if answer.permanent else ""
    assert answer.message == f"node-1: {told} (topology manager policy {policy}: TopologyAffinityError){never}"
    assert answer.permanent == (policy is SINGLE and short[0] > 16)


# The Pod as a whole: the policy, the containers, what others hold; how many CPUs are not free, and where

WHOLE: dict[str, tuple[NumaPolicy, CpuAsk, str, tuple[int, str] | None]] = {
    "in one": (SINGLE, given_by_kubelet(6, 10), "", None),
    "each in one, and not together": (SINGLE, given_by_kubelet(10, 10), "", (20, "one NUMA node")),
    "more than one has, in two": (RESTRICTED, given_by_kubelet(10, 10), "", None),
    "what one would have, not free in one": (RESTRICTED, given_by_kubelet(5, 5), "0-7,16-23", (10, "one NUMA node")),
    "an init container's are given again": (SINGLE, given_by_kubelet((INIT, 16), 10, 6), "", None),
    "an init container beside a sidecar": (
        SINGLE,
        given_by_kubelet((SIDECAR, 2), (INIT, 16), 1),
        "",
        (18, "one NUMA node"),
    ),
}


@pytest.mark.parametrize(("policy", "ask", "held", "short"), WHOLE.values(), ids=WHOLE)
def test_a_pod_is_refused_as_a_whole_where_that_is_the_kubelets_scope(
    policy: NumaPolicy, ask: CpuAsk, held: str, short: tuple[int, str] | None
) -> None:
    node = CpuNode(TWO, kubelet_policy=policy)
    answer = refused_by_kubelet(ask, "node-1", node, cpu_use(node, [CpuShare("LSR", parse(held))]))
    assert (answer is None) == (short is None)
    if answer is not None and short is not None:
        told = f"node-1: the kubelet would not find {short[0]} CPUs in {short[1]} for the Pod as a whole"
        assert answer.message.startswith(told)


# Devices of plugins, three in each of two NUMA nodes, beside CPUs: the policy, the containers; whether they are refused

NIC = "example.com/nic"
NICS: dict[str, tuple[NumaPolicy, list[KubeletAsk], bool]] = {
    "as many as one NUMA node has": (SINGLE, [KubeletAsk(APP, 4, ((NIC, 3),))], False),
    "more than one NUMA node has": (SINGLE, [KubeletAsk(APP, 0, ((NIC, 4),))], True),
    "more than one has, beside as many CPUs": (RESTRICTED, [KubeletAsk(APP, 20, ((NIC, 4),))], False),
    "more than one has, beside CPUs that one has": (RESTRICTED, [KubeletAsk(APP, 4, ((NIC, 4),))], True),
    "of one NUMA node each": (SINGLE, [KubeletAsk(APP, 1, ((NIC, 2),))] * 2, False),
    "a third of two": (SINGLE, [KubeletAsk(APP, 1, ((NIC, 2),))] * 3, True),
    "an init container's are given again": (
        SINGLE,
        [KubeletAsk(INIT, 0, ((NIC, 3),)), *[KubeletAsk(APP, 0, ((NIC, 3),))] * 2],
        False,
    ),
    "an init container's keep the next to their NUMA node": (
        SINGLE,
        [KubeletAsk(APP, 0, ((NIC, 1),)), KubeletAsk(INIT, 0, ((NIC, 1),)), KubeletAsk(APP, 0, ((NIC, 3),))],
        True,
    ),
    "a plugin whose NUMA nodes nobody reports": (SINGLE, [KubeletAsk(APP, 1, (("example.com/fpga", 9),))], False),
}


@pytest.mark.parametrize(("policy", "asked", "refused"), NICS.values(), ids=NICS)
def test_devices_of_plugins_are_aligned_with_the_cpus(
    policy: NumaPolicy, asked: list[KubeletAsk], *, refused: bool
) -> None:
    zones = {at: Zone(None, None, ((NIC, 3),)) for at in range(2)}
    node = CpuNode(TWO, kubelet_policy=policy, kubelet_by_container=True, zones=zones)
    ask = CpuAsk(QosClass.LS, 0, 1000, 0, of_kubelet=tuple(asked))
    assert (refused_by_kubelet(ask, "node-1", node, NO_USE) is not None) == refused
    assert aligned_by_kubelet(ask, node) == (asked[0].cpus > 0 or asked[0].devices[0][0] == NIC)


def test_devices_that_pods_hold_are_not_free() -> None:
    zones = {at: Zone(None, None, ((NIC, 2),)) for at in range(2)}
    node = CpuNode(TWO, kubelet_policy=SINGLE, zones=zones)
    ask = CpuAsk(QosClass.LS, 0, 1000, 0, of_kubelet=(KubeletAsk(APP, 0, ((NIC, 2),)),))
    held = [CpuShare("LS", numa=(NumaShare(at, 0, 0, at, ((NIC, 1),)),)) for at in range(2)]
    assert refused_by_kubelet(ask, "node-1", node, cpu_use(node, held[:1])) is None
    answer = refused_by_kubelet(ask, "node-1", node, cpu_use(node, held))
    assert answer is not None
    assert answer.message.startswith(f"node-1: the kubelet would not find 2 {NIC} in one NUMA node for the Pod as a ")


def test_a_cpu_manager_that_gives_no_cpus_has_none_to_align() -> None:
    node = CpuNode(TWO, kubelet_policy=SINGLE, kubelet_by_container=True, kubelet_gives_cpus=False)
    assert refused_by_kubelet(given_by_kubelet(20), "node-1", node, NO_USE) is None
    assert not aligned_by_kubelet(given_by_kubelet(20), node)


def test_what_an_administrator_reserves_is_free_to_the_kubelet() -> None:
    """It gives the first container CPUs there, and the next must not leave them."""
    kept = CpuNode(TWO, parse("0-7"), kubelet_policy=RESTRICTED, kubelet_by_container=True)
    ask = given_by_kubelet((INIT, 12), 13)
    assert refused_by_kubelet(ask, "node-1", kept, NO_USE) is None
    held = cpu_use(kept, [CpuShare("LSR", parse("8-11"))])
    assert refused_by_kubelet(ask, "node-1", kept, held) is None
    unknown = replace(kept, not_kubelets=parse("0-7"))
    assert refused_by_kubelet(ask, "node-1", unknown, held) is not None


def test_what_a_pod_holds_here_may_be_free_to_the_kubelet() -> None:
    """It gives the init container CPUs there, and the next must not leave them."""
    node = CpuNode(TWO, parse("0-3"), kubelet_policy=RESTRICTED, kubelet_by_container=True)
    held = cpu_use(node, [CpuShare("LSR", parse("4-15"))])
    assert refused_by_kubelet(given_by_kubelet((INIT, 2), 12), "node-1", node, held) is None
    assert refused_by_kubelet(given_by_kubelet((INIT, 2), 13), "node-1", node, held) is not None


@pytest.mark.parametrize(("counts", "refused"), [((2, 2), False), ((2, 3), True), ((4, 2, 1, 1), False)])
def test_aligned_to_sockets_a_container_may_get_cpus_of_another_numa_node(
    counts: tuple[int, ...], *, refused: bool
) -> None:
    """Of 4 CPUs in each of two NUMA nodes 2 may go from each."""
    topology = build(1, 2, 4, 1, siblings_far)
    node = CpuNode(topology, parse("0,4"), kubelet_policy=RESTRICTED, kubelet_by_container=True)
    assert refused_by_kubelet(given_by_kubelet(*counts), "node-1", node, NO_USE) is None or counts[0] > 3
    by_socket = replace(node, reserved=0 if counts[0] > 3 else node.reserved, kubelet_by_socket=True)
    assert (refused_by_kubelet(given_by_kubelet(*counts), "node-1", by_socket, NO_USE) is not None) == refused


def test_containers_are_followed_over_the_eight_numa_nodes_that_the_topology_manager_takes() -> None:
    node = CpuNode(build(1, 8, 1, 2, siblings_near), kubelet_policy=SINGLE, kubelet_by_container=True)
    answer = refused_by_kubelet(given_by_kubelet(2, 4), "node-1", node, NO_USE)
    assert answer is not None
    assert "not find 4 CPUs in one NUMA node for a container" in answer.message


@pytest.mark.parametrize(("counts", "refused"), [((6, 2), False), ((6, 3), True), ((6, 5), True)])
def test_where_several_numa_nodes_gave_cpus_only_what_all_have_is_known(
    counts: tuple[int, ...], *, refused: bool
) -> None:
    """Of 12 free CPUs in four NUMA nodes 6 are left: at least 2 in one of them, at least 3 in two."""
    node = CpuNode(
        build(1, 4, 4, 1, siblings_far), parse("0-1,4,8"), kubelet_policy=RESTRICTED, kubelet_by_container=True
    )
    assert (refused_by_kubelet(given_by_kubelet(*counts), "node-1", node, NO_USE) is not None) is refused


def test_of_unequal_numa_nodes_the_larger_ones_say_how_many_are_needed() -> None:
    small, large = ([Cpu(cpu, cpu, 0, numa) for cpu in cpus] for numa, cpus in enumerate((range(2), range(2, 6))))
    topology = CpuTopology.of([*small, *large])
    node = CpuNode(topology, 1 << 5, kubelet_policy=RESTRICTED, kubelet_by_container=True)
    for count, where in ((3, ""), (4, "one NUMA node"), (6, "2 NUMA nodes"), (7, "2 NUMA nodes")):
        answer = refused_by_kubelet(given_by_kubelet(count), "node-1", node, NO_USE)
        assert (answer is None) is (not where)
        assert answer is None or f" not find {count} CPUs in {where} for a container" in answer.message


@pytest.mark.parametrize(("last", "refused"), [(1, False), (2, False), (3, True), (4, True)])
def test_of_two_numa_nodes_that_gave_cpus_one_has_at_least_half_of_the_rest(last: int, *, refused: bool) -> None:
    node = CpuNode(build(1, 2, 4, 1, siblings_far), kubelet_policy=RESTRICTED, kubelet_by_container=True)
    assert (refused_by_kubelet(given_by_kubelet(5, last), "node-1", node, NO_USE) is not None) is refused


def test_what_the_kubelet_holds_is_not_free_and_counts_in_how_many_numa_nodes_it_wants() -> None:
    node = CpuNode(TWO, parse("0-11,16-27"), kubelet_policy=RESTRICTED, kubelet_by_container=True)
    answer = refused_by_kubelet(given_by_kubelet(8), "node-1", node, NO_USE)
    assert answer is not None
    assert "not find 8 CPUs in one NUMA node" in answer.message


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 2**8 - 1), st.sampled_from([RESTRICTED, SINGLE])
)
def test_containers_are_followed_as_the_kubelet_gives_cpus(counts: list[int], taken: int, policy: NumaPolicy) -> None:
    """Recounted CPU by CPU: each container takes the lowest NUMA node that has enough."""
    node = CpuNode(build(1, 2, 4, 1, siblings_far), taken, kubelet_policy=policy, kubelet_by_container=True)
    halves = [{cpu for cpu in of if not taken >> cpu & 1} for of in (range(4), range(4, 8))]
    fits = True
    for count in counts:
        found = next((of for of in halves if len(of) >= count), None)
        fits = fits and found is not None
        if found is not None:
            found -= set(sorted(found)[:count])
    assert (refused_by_kubelet(given_by_kubelet(*counts), "node-1", node, NO_USE) is None) == fits


def test_a_labelled_pod_is_held_against_the_kubelet_by_container_as_it_is_read() -> None:
    one = {"cpu": 1, "memory": "1Gi"}
    node = CpuNode(TWO, whole_cores=True)
    for qos in ("LSE", "LSR", "LS", "BE"):
        cpu = asking(one, one, qos=qos).cpu
        assert cpu is not None
        assert isinstance(refused_by_kubelet(cpu, "node-1", node, NO_USE), Refusal)
