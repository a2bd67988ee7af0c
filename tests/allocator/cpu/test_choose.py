"""The CPUs that a Pod gets: CPUs of its own by a policy, thousandths of NUMA nodes, or a shared pool."""

from collections.abc import Mapping
from typing import Any

import pytest
from builders import GIB
from hypothesis import given
from hypothesis import strategies as st
from machines_cpu import build, siblings_far, siblings_near

from allocator.cpu.choose import bind_policy, choose_cpus, shared_milli
from allocator.cpu.words import cpu_amount
from allocator.vocabulary.cpunode import (
    NO_USE,
    BindPolicy,
    CpuAsk,
    CpuNode,
    CpuShare,
    CpuUse,
    ExclusivePolicy,
    KubeletAsk,
    NumaPolicy,
    NumaShare,
    NumaStrategy,
    QosClass,
    Zone,
    cpu_use,
)
from allocator.vocabulary.cputopology import CpuTopology, format_cpuset, parse
from allocator.vocabulary.names import Phase
from allocator.vocabulary.outcome import Refusal

FULL, SPREAD, BURST = BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS, BindPolicy.CONSTRAINED_BURST
MOST = NumaStrategy.MOST_ALLOCATED
PCPU, NUMA_LEVEL = ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NUMA_NODE_LEVEL
TWO = build(2, 1, 8, 2, siblings_near)  # NUMA nodes 0-15 and 16-31; a core is two adjacent CPUs
ARM = build(2, 1, 8, 1, siblings_far)  # NUMA nodes 0-7 and 8-15, one thread a core
ZONES = {at: Zone(16_000, 64 * GIB) for at in (0, 1)}


def lsr(count: int, **fields: Any) -> CpuAsk:
    return CpuAsk(QosClass.LSR, count, 1000 * count, fields.pop("memory", 0), 1000 * count, **fields)


def needs(policy: BindPolicy) -> dict[str, BindPolicy]:
    """A required policy as it is read: it is the preferred one too."""
    return {"required": policy, "preferred": policy}


def chosen(answer: CpuShare | Refusal) -> str:
    assert isinstance(answer, CpuShare), answer
    return format_cpuset(answer.cpus)


def used(node: CpuNode, *shares: CpuShare) -> CpuUse:
    return cpu_use(node, shares)


def own(cpus: str, **fields: Any) -> CpuShare:
    return CpuShare("LSR", parse(cpus), **fields)


# Which policy applies: the Pod's request, the node; the policy and whether it is required, or why the two conflict

BINDS: dict[str, tuple[CpuAsk, CpuNode, tuple[BindPolicy, bool] | str]] = {
    "the default": (lsr(4), CpuNode(TWO), (FULL, False)),
    "another default": (lsr(4), CpuNode(TWO, default_bind=SPREAD), (SPREAD, False)),
    "preferred": (lsr(4, preferred=SPREAD), CpuNode(TWO), (SPREAD, False)),
    "preferred before the default": (lsr(4, preferred=FULL), CpuNode(TWO, default_bind=SPREAD), (FULL, False)),
    "required": (lsr(4, **needs(SPREAD)), CpuNode(TWO), (SPREAD, True)),
    "Default required: the default must be kept": (
        lsr(4, required=BindPolicy.DEFAULT),
        CpuNode(TWO, default_bind=SPREAD),
        (SPREAD, True),
    ),
    "Default required, and the node has a policy": (
        lsr(4, required=BindPolicy.DEFAULT),
        CpuNode(TWO, bind=SPREAD),
        (SPREAD, True),
    ),
    "the node's": (lsr(4), CpuNode(TWO, bind=SPREAD), (SPREAD, True)),
    "the node's before the default": (lsr(4), CpuNode(TWO, bind=SPREAD, default_bind=FULL), (SPREAD, True)),
    "the node's and the Pod's agree": (lsr(4, **needs(FULL)), CpuNode(TWO, bind=FULL), (FULL, True)),
    "what is preferred must be kept where the node asks the same": (
        lsr(4, preferred=SPREAD),
        CpuNode(TWO, bind=SPREAD),
        (SPREAD, True),
    ),
    "spreading required, and the node gives whole cores": (
        lsr(4, **needs(SPREAD)),
        CpuNode(TWO, bind=FULL),
        "the node's CPU bind policy is FullPCPUs, the Pod's SpreadByPCPUs",
    ),
    "whole cores required, and the node spreads": (
        lsr(4, **needs(FULL)),
        CpuNode(TWO, bind=SPREAD),
        "the node's CPU bind policy is SpreadByPCPUs, the Pod's FullPCPUs",
    ),
    "whole cores preferred, and the node spreads": (lsr(4, preferred=FULL), CpuNode(TWO, bind=SPREAD), (SPREAD, True)),
    # the CPU proposal, "Resource spec": such nodes are avoided "if the Pod uses the CPUBindPolicySpreadByPCPUs policy"
    "spreading preferred, and the node gives whole cores": (
        lsr(4, preferred=SPREAD),
        CpuNode(TWO, bind=FULL),
        "the node's CPU bind policy is FullPCPUs, the Pod's SpreadByPCPUs",
    ),
}


@pytest.mark.parametrize(("ask", "node", "expected"), BINDS.values(), ids=BINDS)
def test_the_nodes_policy_comes_before_the_pods_and_the_pods_before_the_default(
    ask: CpuAsk, node: CpuNode, expected: tuple[BindPolicy, bool] | str
) -> None:
    assert bind_policy(ask, node) == expected
    answer = choose_cpus(ask, "node-1", node, NO_USE)
    if isinstance(expected, str):
        assert isinstance(answer, Refusal)
        assert (answer.message, answer.permanent) == (f"node-1: {expected}", True)
    else:
        assert isinstance(answer, CpuShare)
        assert answer.bind is expected[0]


# Which CPUs: the request, the node, what is held; the CPUs

OWN: dict[str, tuple[CpuAsk, CpuNode, list[CpuShare], str]] = {
    "whole cores": (lsr(4), CpuNode(TWO), [], "0-3"),
    "a thread of each core": (lsr(4, preferred=SPREAD), CpuNode(TWO), [], "0,2,4,6"),
    "reserved ones are never given": (lsr(4), CpuNode(TWO, parse("0-1,4")), [], "2-3,6-7"),
    "held ones are never given": (lsr(4), CpuNode(TWO), [own("0-1"), own("4-5")], "2-3,6-7"),
    "one node before two": (lsr(12), CpuNode(TWO), [own("0-7")], "16-27"),
    "one core to itself": (lsr(2, preferred=SPREAD, exclusive=PCPU), CpuNode(TWO), [own("0", exclusive=PCPU)], "2,4"),
    "exclusivity of another kind is nothing to it": (
        lsr(2, preferred=SPREAD, exclusive=PCPU),
        CpuNode(TWO),
        [own("0", exclusive=NUMA_LEVEL)],
        "1-2",
    ),
    "one NUMA node to itself": (
        lsr(2, exclusive=NUMA_LEVEL),
        CpuNode(TWO),
        [own("0-1", exclusive=NUMA_LEVEL)],
        "16-17",
    ),
    "no NUMA node to itself: at least cores": (
        lsr(2, preferred=SPREAD, exclusive=NUMA_LEVEL),
        CpuNode(TWO),
        [own("0", exclusive=NUMA_LEVEL), own("16", exclusive=NUMA_LEVEL)],
        "2,4",
    ),
    "the configured exclusivity": (
        lsr(2, preferred=SPREAD),
        CpuNode(TWO, default_exclusive=PCPU),
        [own("0", exclusive=PCPU)],
        "2,4",
    ),
}


@pytest.mark.parametrize(("ask", "node", "held", "expected"), OWN.values(), ids=OWN)
def test_a_pod_gets_cpus_of_its_own(ask: CpuAsk, node: CpuNode, held: list[CpuShare], expected: str) -> None:
    answer = choose_cpus(ask, "node-1", node, used(node, *held))
    assert chosen(answer) == expected
    assert isinstance(answer, CpuShare)
    assert (answer.qos, answer.numa) == (QosClass.LSR, ())


def test_what_is_preferred_gives_way_and_what_is_required_does_not() -> None:
    node = CpuNode(TWO)
    halves = own(",".join(str(cpu) for cpu in range(0, 32, 2)))
    assert chosen(choose_cpus(lsr(4, preferred=FULL), "node-1", node, used(node, halves))) == "1,3,5,7"
    answer = choose_cpus(lsr(4, **needs(FULL)), "node-1", node, used(node, halves))
    assert answer == Refusal(
        "node-1: 4 CPUs (FullPCPUs required) are requested, 16 are free: 1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31"
    )
    assert choose_cpus(lsr(4, required=BindPolicy.DEFAULT), "node-1", node, used(node, halves)) == answer
    strict = CpuNode(TWO, bind=FULL)
    assert isinstance(choose_cpus(lsr(4), "node-1", strict, used(strict, halves)), Refusal)


# The CPUs that Pods on shared pools need there stay free: the request, the node, what is held; the CPUs, or the message


def pooled(*milli: int) -> CpuShare:
    """A Pod in the shared pools of the first NUMA nodes, with these thousandths in each."""
    return CpuShare("LS", numa=tuple(NumaShare(at, much, 0, at) for at, much in enumerate(milli)))


KEPT: dict[str, tuple[CpuAsk, CpuNode, list[CpuShare], str]] = {
    "all of a NUMA node": (lsr(16), CpuNode(TWO), [pooled(16_000)], "16-31"),
    "a part of it": (lsr(8), CpuNode(TWO), [pooled(8000)], "0-7"),
    "no more than they need": (lsr(24), CpuNode(TWO), [pooled(8000)], "0-7,16-31"),
    "a thousandth is a CPU": (lsr(31), CpuNode(TWO), [pooled(500), pooled(501)], "refused: 31 CPUs"),
    "several Pods together": (lsr(31), CpuNode(TWO), [pooled(500), pooled(500)], "0-14,16-31"),
    "a Pod that requests nothing runs there, too": (lsr(16), CpuNode(TWO), [pooled(0)], "16-31"),
    "in each of several NUMA nodes": (lsr(16), CpuNode(TWO), [pooled(2000, 2000)], "0-13,16-17"),
    "those that whole cores can spare": (lsr(15), CpuNode(TWO), [own("4,9"), pooled(2000)], "16-30"),
    "broken cores before whole ones": (lsr(14, **needs(FULL)), CpuNode(TWO), [own("4"), pooled(1000)], "0-3,6-15"),
    "second threads before first ones": (lsr(8, **needs(SPREAD)), CpuNode(TWO), [pooled(8000)], "0,2,4,6,8,10,12,14"),
    "what a Pod has for itself is not counted twice": (
        lsr(12),
        CpuNode(TWO),
        [own("0-3", numa=(NumaShare(0, 4000, 0),))],
        "4-15",
    ),
    "a NUMA node that the machine has not": (
        lsr(32),
        CpuNode(TWO),
        [CpuShare("LS", numa=(NumaShare(7, 1, 0),))],
        "0-31",
    ),
}


# Only these CPUs may be taken; what Pods hold on the shared pool of NUMA node 0, and what an LSR Pod of 4 CPUs gets

ONLY: dict[str, tuple[str, int, str]] = {
    "these and no others": ("4-7", 0, "4-7"),
    "of more of them the best": ("1-8", 0, "2-5"),
    "fewer than it asks": ("4-6", 0, "refused: 4"),
    "the pool keeps those that cannot be taken anyway": ("0-3", 12_000, "0-3"),
    "the pool keeps what it must": ("0-3", 13_000, "refused: 4"),
}


@pytest.mark.parametrize(("only", "milli", "expected"), ONLY.values(), ids=ONLY)
def test_only_cpus_that_are_named_are_taken(only: str, milli: int, expected: str) -> None:
    node = CpuNode(TWO)
    answer = choose_cpus(lsr(4), "node-1", node, used(node, pooled(milli)), only=CpuShare("LSR", parse(only)))
    if expected.startswith("refused"):
        assert isinstance(answer, Refusal)
        assert answer.message.startswith(f"node-1: {expected.removeprefix('refused: ')}")
    else:
        assert chosen(answer) == expected


# NUMA nodes that are named, those that are allowed, and the place of a Pod of two CPUs on the shared pool

STANDS: dict[str, tuple[list[int], set[int] | None, list[int] | None]] = {
    "the one that is named": ([1], {0, 1}, [1]),
    "both, where both are named": ([0, 1], {0, 1}, [0, 1]),
    "none, where another is named": ([1], {0}, None),
    "none, where the machine has no such one": ([7], {0, 1}, None),
    "anywhere, where none is named": ([], {0}, [0]),
    "of no matter, where it is not aligned": ([1], None, []),
}


@pytest.mark.parametrize(("named", "inside", "stands"), STANDS.values(), ids=STANDS)
def test_only_numa_nodes_that_are_named_are_stood_in(
    named: list[int], inside: set[int] | None, stands: list[int] | None
) -> None:
    only = CpuShare("LS", numa=tuple(NumaShare(at, 1000, 0, at) for at in named))
    answer = choose_cpus(ls(2000), "node-1", CpuNode(TWO, zones=ZONES), NO_USE, inside, only)
    assert (None if isinstance(answer, Refusal) else [one.node for one in answer.numa]) == stands


def test_a_burst_goes_to_the_numa_node_that_is_named() -> None:
    ask = ls(1000, limit_milli=2000, preferred=BURST)
    for at in (0, 1):
        answer = choose_cpus(ask, "node-1", CpuNode(TWO), NO_USE, None, CpuShare("LS", numa=(NumaShare(at, 0, 0),)))
        assert isinstance(answer, CpuShare)
        assert [one.node for one in answer.numa] == [at]
    other = choose_cpus(ask, "node-1", CpuNode(TWO), NO_USE, None, CpuShare("LS", numa=(NumaShare(9, 0, 0),)))
    assert other == Refusal("node-1: its CPUs must be in NUMA node 9")


@pytest.mark.parametrize(("ask", "node", "held", "expected"), KEPT.values(), ids=KEPT)
def test_cpus_that_pods_on_a_shared_pool_need_there_are_not_allocated(
    ask: CpuAsk, node: CpuNode, held: list[CpuShare], expected: str
) -> None:
    answer = choose_cpus(ask, "node-1", node, used(node, *held))
    if expected.startswith("refused"):
        assert isinstance(answer, Refusal)
        assert answer.message.startswith(f"node-1: {expected.removeprefix('refused: ')}")
        assert " more are kept for the Pods on the shared pools of their NUMA nodes" in answer.message
        assert not answer.permanent
    else:
        assert chosen(answer) == expected


def test_the_refusal_says_how_many_cpus_stay_in_shared_pools() -> None:
    answer = choose_cpus(lsr(20), "node-1", CpuNode(TWO), used(CpuNode(TWO), pooled(15_500)))
    assert answer == Refusal(
        "node-1: 20 CPUs are requested, 16 are free: 16-31; 16 more are kept for the Pods on the shared pools "
        "of their NUMA nodes"
    )


# What is refused: the request, the node, what is held, NUMA nodes; the message, and whether it is permanent

REFUSED: dict[str, tuple[CpuAsk, CpuNode | None, list[CpuShare], frozenset[int] | None, str, bool]] = {
    "too many": (lsr(33), CpuNode(TWO), [], None, "33 CPUs are requested, 32 are free: 0-31", True),
    "too many beside reserved ones": (
        lsr(32),
        CpuNode(TWO, 1),
        [],
        None,
        "32 CPUs are requested, 31 are free: 1-31",
        True,
    ),
    "too many for now": (lsr(32), CpuNode(TWO), [own("0")], None, "32 CPUs are requested, 31 are free: 1-31", False),
    "none is free": (lsr(1), CpuNode(TWO), [own("0-31")], None, "1 CPUs are requested, 0 are free", False),
    "too many for these NUMA nodes": (
        lsr(17),
        CpuNode(TWO),
        [],
        frozenset({1}),
        "17 CPUs are requested, 16 are free: 16-31",
        False,
    ),
    "an odd number where whole cores are required": (
        lsr(3, **needs(FULL)),
        CpuNode(TWO),
        [],
        None,
        "3 CPUs are requested, but only whole cores of 2 CPUs are allocated here",
        True,
    ),
    "an odd number where the node gives whole cores": (
        lsr(3),
        CpuNode(TWO, bind=FULL),
        [],
        None,
        "3 CPUs are requested, but only whole cores of 2 CPUs are allocated here",
        True,
    ),
    "an odd number where the kubelet takes whole cores only": (
        lsr(3, preferred=SPREAD),
        CpuNode(TWO, bind=SPREAD, whole_cores=True),
        [],
        None,
        "3 CPUs are requested, but only whole cores of 2 CPUs are allocated here",
        True,
    ),
    "no topology": (
        lsr(2),
        None,
        [],
        None,
        "its CPUs are unknown (no NodeResourceTopology object, or one without a CPU topology)",
        True,
    ),
    "memory": (
        lsr(2, memory=65 * GIB),
        CpuNode(TWO, zones=ZONES),
        [],
        frozenset({0}),
        "memory 65 GiB is not free in NUMA node 0",
        False,
    ),
    "spreading on arm64": (
        lsr(2, **needs(SPREAD)),
        CpuNode(ARM, architecture="arm64"),
        [],
        None,
        "CPU bind policy SpreadByPCPUs is not supported on arm64; ask for FullPCPUs there",
        True,
    ),
    "a pool on arm64": (
        CpuAsk(QosClass.LS, 0, 1000, 0, 2000, preferred=BURST),
        CpuNode(ARM, architecture="arm64"),
        [],
        None,
        "CPU bind policy ConstrainedBurst is not supported on arm64; ask for FullPCPUs there",
        True,
    ),
}


@pytest.mark.parametrize(("ask", "node", "held", "numa", "message", "permanent"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_given_is_refused_with_the_reason(
    ask: CpuAsk,
    node: CpuNode | None,
    held: list[CpuShare],
    numa: frozenset[int] | None,
    message: str,
    permanent: bool,  # noqa: FBT001 - a column of the table
) -> None:
    use = NO_USE if node is None else used(node, *held)
    assert choose_cpus(ask, "node-1", node, use, numa) == Refusal(f"node-1: {message}", permanent=permanent)


UNEQUAL = CpuTopology.of([cpu for cpu in TWO.cpus if cpu.id not in {1, 4, 5, 31}])  # four threads are offline


@pytest.mark.parametrize("required", [True, False], ids=["required", "preferred"])
@pytest.mark.parametrize(("count", "cpus"), {1: "0", 2: "2-3", 3: "0,2-3", 4: "2-3,6-7", 28: "0,2-3,6-30"}.items())
def test_where_threads_are_offline_those_cores_are_taken_that_add_up(
    count: int,
    cpus: str,
    required: bool,  # noqa: FBT001 - a column of the table
) -> None:
    ask = lsr(count, **(needs(FULL) if required else {"preferred": FULL}))
    assert chosen(choose_cpus(ask, "node-1", CpuNode(UNEQUAL), NO_USE)) == cpus


@pytest.mark.parametrize("architecture", ["", "amd64", "ppc64le", "s390x"])
def test_on_other_architectures_the_nodes_policy_is_kept_as_it_is(architecture: str) -> None:
    node = CpuNode(TWO, bind=SPREAD, architecture=architecture)
    assert bind_policy(lsr(4), node) == (SPREAD, True)
    assert chosen(choose_cpus(lsr(4), "node-1", node, NO_USE)) == "0,2,4,6"


def test_on_arm64_a_wish_to_spread_is_the_same_as_whole_cores() -> None:
    node = CpuNode(ARM, architecture="arm64")
    answer = choose_cpus(lsr(3, preferred=SPREAD, exclusive=PCPU), "node-1", node, NO_USE)
    assert answer == CpuShare(QosClass.LSR, parse("0-2"), FULL, ExclusivePolicy.NONE)
    apart = choose_cpus(lsr(3, exclusive=NUMA_LEVEL), "node-1", node, used(node, own("0", exclusive=NUMA_LEVEL)))
    assert apart == CpuShare(QosClass.LSR, parse("8-10"), FULL, NUMA_LEVEL)


@pytest.mark.parametrize("bind", [FULL, SPREAD])
@pytest.mark.parametrize(
    "fields",
    [{}, {"preferred": SPREAD}, {"preferred": FULL}, needs(FULL), {"exclusive": PCPU}],
    ids=["nothing", "spread", "full", "full required", "exclusive cores"],
)
def test_on_arm64_any_policy_of_the_node_is_whole_cores(bind: BindPolicy, fields: dict[str, Any]) -> None:
    node = CpuNode(ARM, bind=bind, architecture="arm64")
    answer = choose_cpus(lsr(3, **fields), "node-1", node, NO_USE)
    assert answer == CpuShare(QosClass.LSR, parse("0-2"), FULL, ExclusivePolicy.NONE)


# The NUMA nodes of a Pod with CPUs of its own: its memory is split evenly, the least free node first

SPLITS: dict[str, tuple[int, int, list[tuple[int, int]], tuple[int, int] | None]] = {
    "evenly": (20, 40, [], (20, 20)),
    "all of one, the rest of the other": (20, 100, [(0, 44)], (20, 80)),
    "none asked": (20, 0, [], (0, 0)),
    "not enough": (20, 100, [(0, 30), (1, 30)], None),
}


@pytest.mark.parametrize(("cpus", "gib", "held", "parts"), SPLITS.values(), ids=SPLITS)
def test_memory_is_split_over_the_numa_nodes(
    cpus: int, gib: int, held: list[tuple[int, int]], parts: tuple[int, int] | None
) -> None:
    zones = ZONES if gib != 100 else {0: Zone(16_000, 64 * GIB), 1: Zone(16_000, 80 * GIB)}
    node = CpuNode(TWO, zones=zones)
    others = [CpuShare("LS", numa=(NumaShare(at, 0, much * GIB),)) for at, much in held]
    answer = choose_cpus(lsr(cpus, memory=gib * GIB), "node-1", node, used(node, *others), frozenset({0, 1}))
    if parts is None:
        assert isinstance(answer, Refusal)
        return
    assert isinstance(answer, CpuShare)
    assert [(one.node, one.socket) for one in answer.numa] == [(0, 0), (1, 1)]
    assert tuple(one.memory // GIB for one in answer.numa) == parts
    assert sum(one.milli for one in answer.numa) == 1000 * cpus
    assert [one.milli for one in answer.numa] == [
        1000 * (inside & answer.cpus).bit_count() for inside in TWO.nodes.values()
    ]


SILENT = {0: Zone(16_000, 64 * GIB), 1: Zone(16_000, None)}
TOLD: dict[str, tuple[Mapping[int, Zone], int, int, bool]] = {
    "in one that reports": (SILENT, 0, 64 * GIB, True),
    "more than it reports": (SILENT, 0, 64 * GIB + 1, False),
    "in one that is silent beside one that reports": (SILENT, 1, 1, False),
    "in one without a zone beside one that reports": ({0: Zone(None, 64 * GIB)}, 1, 1, False),
    "nothing, in one that is silent": (SILENT, 1, 0, True),
    "where none reports": ({0: Zone(16_000, None)}, 1, 500 * GIB, True),
    "where there are no zones": ({}, 1, 500 * GIB, True),
}


@pytest.mark.parametrize(("zones", "at", "memory", "fits"), TOLD.values(), ids=TOLD)
def test_a_numa_node_that_reports_no_memory_where_others_do_has_none(
    zones: Mapping[int, Zone],
    at: int,
    memory: int,
    fits: bool,  # noqa: FBT001 - a column of the table
) -> None:
    node = CpuNode(TWO, zones=zones)
    for ask in (lsr(2, memory=memory), ls(2000, memory), ls(2000, memory, limit_milli=2000, preferred=BURST)):
        assert isinstance(choose_cpus(ask, "node-1", node, NO_USE, frozenset({at})), CpuShare) == fits


def test_a_numa_node_of_which_more_is_held_than_it_has_gives_no_byte() -> None:
    node = CpuNode(TWO, zones=ZONES)
    held = used(node, CpuShare("LS", numa=(NumaShare(0, 0, 65 * GIB),)))
    answers = [choose_cpus(ls(1, memory), "node-1", node, held, frozenset({0})) for memory in (0, 1)]
    assert [isinstance(one, CpuShare) for one in answers] == [True, False]


NICS = {at: Zone(16_000, 64 * GIB, (("vendor/nic", 4),)) for at in (0, 1)}
ALIGNED: dict[str, tuple[int, int, tuple[NumaShare, ...]]] = {
    "its CPUs alone": (0, 0, (NumaShare(0, 2000, 0, 0),)),
    "a byte elsewhere": (2, 0, (NumaShare(0, 2000, 1, 0), NumaShare(1, 0, 1, 1))),
    "a NIC elsewhere": (
        0,
        2,
        (NumaShare(0, 2000, 0, 0, (("vendor/nic", 1),)), NumaShare(1, 0, 0, 1, (("vendor/nic", 1),))),
    ),
}


@pytest.mark.parametrize(("memory", "nics", "stands"), ALIGNED.values(), ids=ALIGNED)
def test_a_pod_stands_in_each_numa_node_of_which_it_has_anything(
    memory: int, nics: int, stands: tuple[NumaShare, ...]
) -> None:
    ask = lsr(2, memory=memory, others=(("vendor/nic", nics),))
    answer = choose_cpus(ask, "node-1", CpuNode(TWO, zones=NICS), NO_USE, frozenset({0, 1}))
    assert isinstance(answer, CpuShare)
    assert answer.numa == stands


# NICs of three kinds in NUMA node 0; what others hold of the second kind, what is asked, where, and whether it fits

REPORTED = {0: Zone(16_000, None, (("a/nic", 9), ("m/nic", 4), ("z/nic", 9))), 1: Zone(16_000, None)}
OF_A_KIND: dict[str, tuple[int, int, int, bool]] = {
    "all that there are": (0, 4, 0, True),
    "one more": (0, 5, 0, False),
    "all that others leave": (1, 3, 0, True),
    "one more than others leave": (1, 4, 0, False),
    "one where others hold more than there are": (5, 1, 0, False),
    "one where none is reported": (0, 1, 1, False),
}


@pytest.mark.parametrize(("held", "asked", "at", "fits"), OF_A_KIND.values(), ids=OF_A_KIND)
def test_other_resources_are_counted_by_name_and_numa_node(held: int, asked: int, at: int, *, fits: bool) -> None:
    node = CpuNode(TWO, zones=REPORTED)
    use = used(node, CpuShare("LS", numa=(NumaShare(0, 0, 0, 0, (("m/nic", held),)),)))
    answer = choose_cpus(ls(1, others=(("m/nic", asked),)), "node-1", node, use, frozenset({at}))
    assert isinstance(answer, CpuShare) is fits
    if not fits:
        assert answer == Refusal(f"node-1: m/nic {asked} is not free in NUMA node {at}")


def test_a_pod_has_no_cpu_where_only_another_resource_of_it_is() -> None:
    node = CpuNode(TWO, zones=NICS)
    ask = ls(500, 2, others=(("vendor/nic", 2),))
    answer = choose_cpus(ask, "node-1", node, used(node, own("0-15")), frozenset({0, 1}))
    nic = (("vendor/nic", 1),)
    assert answer == CpuShare(QosClass.LS, numa=(NumaShare(0, 0, 0, 0, nic), NumaShare(1, 500, 2, 1, nic)))


def test_in_no_numa_node_is_a_pool_wide_enough() -> None:
    answer = choose_cpus(ls(1, limit_milli=1, preferred=BURST), "node-1", CpuNode(TWO), NO_USE, frozenset())
    why = "no NUMA node's shared pool is wide enough for the limit of 0.001 CPUs; the widest has 0 CPUs"
    assert answer == Refusal(f"node-1: {why}")


# Without CPUs of its own


def ls(milli: int, memory: int = 0, **fields: Any) -> CpuAsk:
    return CpuAsk(QosClass.LS, 0, milli, memory, **fields)


@pytest.mark.parametrize("numa", [None, frozenset({0})])
@pytest.mark.parametrize("fields", [{}, {"numa_policy": NumaPolicy.SINGLE_NUMA_NODE}], ids=["leaves it open", "asks"])
def test_a_best_effort_pod_is_never_aligned(fields: dict[str, Any], numa: frozenset[int] | None) -> None:
    ask = CpuAsk(QosClass.BE, 0, 99_000, 999 * GIB, **fields)
    for node in (None, CpuNode(TWO, zones=ZONES)):
        assert choose_cpus(ask, "node-1", node, NO_USE, numa) == CpuShare(QosClass.BE)


def test_an_aligned_pod_stands_in_its_numa_nodes_by_thousandths_and_bytes() -> None:
    node = CpuNode(TWO, zones=ZONES)
    answer = choose_cpus(ls(1500, 3 * GIB), "node-1", node, NO_USE, frozenset({1}))
    assert answer == CpuShare(QosClass.LS, numa=(NumaShare(1, 1500, 3 * GIB, 1),))
    both = choose_cpus(ls(1501, 3), "node-1", node, NO_USE, frozenset({0, 1}))
    assert both == CpuShare(QosClass.LS, numa=(NumaShare(0, 750, 1, 0), NumaShare(1, 751, 2, 1)))
    full = used(node, own("16-31"))
    assert choose_cpus(ls(1), "node-1", node, full, frozenset({1})) == Refusal(
        "node-1: 0.001 CPUs are not free in NUMA node 1"
    )
    whole = used(node, CpuShare("LS", numa=(NumaShare(1, 0, 64 * GIB),)))
    assert choose_cpus(ls(1, 1), "node-1", node, whole, frozenset({1})) == Refusal(
        "node-1: memory 1 byte is not free in NUMA node 1"
    )


def test_an_aligned_pod_that_requests_nothing_still_gets_its_numa_nodes() -> None:
    for numa in ({1}, {0, 1}):
        answer = choose_cpus(ls(0), "node-1", CpuNode(TWO, zones=ZONES), NO_USE, frozenset(numa))
        assert answer == CpuShare(QosClass.LS, numa=tuple(NumaShare(at, 0, 0, at) for at in sorted(numa)))


def test_an_aligned_pod_gets_no_empty_pool() -> None:
    node = CpuNode(TWO, zones=ZONES)
    full = used(node, own("0-15"))
    for ask in (ls(0), ls(500), ls(500, GIB), ls(0, limit_milli=1, preferred=BURST)):
        answer = choose_cpus(ask, "node-1", node, full, frozenset({0, 1}))
        assert isinstance(answer, CpuShare)
        assert [(one.node, one.milli, one.memory) for one in answer.numa] == [(1, ask.milli, ask.memory)]
        assert isinstance(choose_cpus(ask, "node-1", node, full, frozenset({0})), Refusal)


def test_a_pod_of_the_system_gets_no_shared_pool() -> None:
    ask = CpuAsk(QosClass.SYSTEM, 0, 2000, GIB, numa_policy=NumaPolicy.SINGLE_NUMA_NODE)
    for numa in (None, frozenset({0})):
        assert choose_cpus(ask, "node-1", CpuNode(TWO, zones=ZONES), NO_USE, numa) == CpuShare(QosClass.SYSTEM)


@pytest.mark.parametrize("qos", QosClass)
def test_no_class_hides_a_pod_that_the_kubelet_would_refuse(qos: QosClass) -> None:
    ask = CpuAsk(qos, 0, 3000, 0, 3000, of_kubelet=(KubeletAsk(Phase.APP, 3),))
    answer = choose_cpus(ask, "node-1", CpuNode(TWO, whole_cores=True), NO_USE)
    assert isinstance(answer, Refusal)
    assert "SMTAlignmentError" in answer.message


def test_an_aligned_pod_that_needs_a_policy_is_refused_where_nothing_is_known() -> None:
    answer = choose_cpus(ls(500, numa_policy=NumaPolicy.SINGLE_NUMA_NODE), "node-1", None, NO_USE)
    assert isinstance(answer, Refusal)
    assert answer.permanent


# Thousandths that are free in NUMA node 0: the node, what is held

SHARED: dict[str, tuple[CpuNode, list[CpuShare], int]] = {
    "all of it": (CpuNode(TWO), [], 16_000),
    "less what is reserved": (CpuNode(TWO, parse("0-1,16")), [], 14_000),
    "less what is some Pod's own": (CpuNode(TWO), [own("0-3,16-31")], 12_000),
    "less what others stand there with": (CpuNode(TWO), [CpuShare("LS", numa=(NumaShare(0, 1500, 0),))], 14_500),
    "what stands elsewhere is nothing to it": (CpuNode(TWO), [CpuShare("LS", numa=(NumaShare(1, 1500, 0),))], 16_000),
    "what a Pod stands there with by CPUs of its own counts once": (
        CpuNode(TWO),
        [own("0-3", numa=(NumaShare(0, 4000, 0),))],
        12_000,
    ),
    "the node reports less": (CpuNode(TWO, zones={0: Zone(10_000, None)}), [own("0-3")], 6_000),
    "the node reports more": (CpuNode(TWO, zones={0: Zone(99_000, None)}), [own("0-3")], 12_000),
    "reserved and reported less is not counted twice": (CpuNode(TWO, 0b11, zones={0: Zone(14_000, None)}), [], 14_000),
    "never less than none": (CpuNode(TWO), [CpuShare("LS", numa=(NumaShare(0, 99_000, 0),))], 0),
}


@pytest.mark.parametrize(("node", "held", "free"), SHARED.values(), ids=SHARED)
def test_thousandths_are_counted_beside_cpus_that_are_pods_own(node: CpuNode, held: list[CpuShare], free: int) -> None:
    assert shared_milli(node, used(node, *held), 0) == free


# The shared pool of a NUMA node (ConstrainedBurst): the limit, the request, the node, what is held; which pool

BURSTS: dict[str, tuple[int, int, CpuNode, list[CpuShare], int | None]] = {
    "the first of equals": (4000, 1000, CpuNode(TWO), [], 0),
    "the fullest that is wide enough": (4000, 1000, CpuNode(TWO), [own("16-23")], 1),
    "not one that is too narrow for the limit": (10_000, 1000, CpuNode(TWO), [own("16-23")], 0),
    "none is wide enough": (10_000, 1000, CpuNode(TWO), [own("16-23"), own("0-7")], None),
    "as wide as a NUMA node": (16_000, 1000, CpuNode(TWO), [own("16")], 0),
    "wider than any NUMA node": (16_001, 1000, CpuNode(TWO), [], None),
    "wide enough, and no room for the request": (
        4000,
        1000,
        CpuNode(TWO),
        [CpuShare("LS", numa=(NumaShare(0, 15_500, 0),))],
        1,
    ),
    "CPUs that the kubelet reserves are in the pool": (16_000, 1000, CpuNode(TWO, 0b11, pooled=0b11), [own("16")], 0),
    "CPUs that are reserved otherwise are not": (16_000, 1000, CpuNode(TWO, 0b11), [own("16")], None),
    "memory": (
        4000,
        1000,
        CpuNode(TWO, zones=ZONES),
        [own("0-3"), CpuShare("LS", numa=(NumaShare(0, 0, 64 * GIB),))],
        1,
    ),
}


@pytest.mark.parametrize(("limit", "milli", "node", "held", "expected"), BURSTS.values(), ids=BURSTS)
def test_a_bursting_pod_runs_in_the_fullest_pool_that_is_wide_enough(
    limit: int, milli: int, node: CpuNode, held: list[CpuShare], expected: int | None
) -> None:
    ask = ls(milli, GIB if node.zones else 0, limit_milli=limit, preferred=BURST)
    answer = choose_cpus(ask, "node-1", node, used(node, *held))
    if expected is None:
        assert isinstance(answer, Refusal)
        assert f"wide enough for the limit of {cpu_amount(limit)}; the widest has " in answer.message
    else:
        assert isinstance(answer, CpuShare)
        assert (answer.cpus, answer.bind) == (0, BURST)
        assert [(one.node, one.milli, one.socket) for one in answer.numa] == [(expected, milli, expected)]


@pytest.mark.parametrize(
    ("strategy", "expected"), {MOST: 0, NumaStrategy.LEAST_ALLOCATED: 1, NumaStrategy.DISTRIBUTE_EVENLY: 1}.items()
)
def test_of_pools_that_are_wide_enough_the_nodes_strategy_says_which(strategy: NumaStrategy, expected: int) -> None:
    node = CpuNode(TWO, strategy=strategy)
    answer = choose_cpus(ls(1000, limit_milli=2000, preferred=BURST), "node-1", node, used(node, own("0-7")))
    assert isinstance(answer, CpuShare)
    assert [one.node for one in answer.numa] == [expected]


HUGE = "hugepages-2Mi"
PAGES = {at: Zone(16_000, 64 * GIB, ((HUGE, GIB), ("hugepages-1Gi", 8 * GIB))) for at in (0, 1)}


@pytest.mark.parametrize(
    ("held", "asked", "expected"),
    [
        pytest.param((), GIB, 0, id="the first of equals"),
        pytest.param(((0, 1),), GIB, 1, id="not where too little is free"),
        pytest.param(((0, 1),), GIB - 1, 0, id="where just enough is free"),
        pytest.param(((0, 1), (1, 1)), GIB, None, id="nowhere"),
    ],
)
def test_a_bursting_pod_gets_what_else_it_asks_for_beside_its_pool(
    held: tuple[tuple[int, int], ...], asked: int, expected: int | None
) -> None:
    node = CpuNode(TWO, zones=PAGES)
    shares = [CpuShare("LS", numa=(NumaShare(at, 0, 0, 0, ((HUGE, much),)),)) for at, much in held]
    ask = ls(1000, GIB, limit_milli=4000, preferred=BURST, others=((HUGE, asked),))
    answer = choose_cpus(ask, "node-1", node, used(node, *shares))
    if expected is None:
        told = f"node-1: {HUGE} 1Gi is not free in NUMA node 0"
        assert answer == Refusal(told, short=f"too little {HUGE} in the NUMA nodes")
    else:
        assert isinstance(answer, CpuShare)
        assert answer.numa == (NumaShare(expected, 1000, GIB, expected, ((HUGE, asked),)),)


NO_ROOM: dict[str, tuple[CpuNode, list[CpuShare], int, int, str]] = {
    "thousandths, in the one that is wide enough": (
        CpuNode(TWO),
        [pooled(15_500), own("16-27")],
        1000,
        0,
        "1 CPU is not free in NUMA node 0",
    ),
    "a thousandth, which a Pod without a request counts as": (
        CpuNode(TWO, parse("0-15"), parse("0-15")),
        [own("16-31")],
        0,
        0,
        "0.001 CPUs are not free in NUMA node 0",
    ),
    "thousandths, where only the kubelet's CPUs are left in the pool": (
        CpuNode(TWO, parse("0-15"), parse("0-15")),
        [own("16-31")],
        1000,
        0,
        "1 CPU is not free in NUMA node 0",
    ),
    "memory": (CpuNode(TWO, zones=ZONES), [own("16-27")], 1000, 65, "memory 65 GiB is not free in NUMA node 0"),
}


@pytest.mark.parametrize(("node", "held", "milli", "gib", "told"), NO_ROOM.values(), ids=NO_ROOM)
def test_where_a_pool_is_wide_enough_the_refusal_says_what_else_is_missing(
    node: CpuNode, held: list[CpuShare], milli: int, gib: int, told: str
) -> None:
    ask = ls(milli, gib * GIB, limit_milli=8000, preferred=BURST)
    assert choose_cpus(ask, "node-1", node, used(node, *held)) == Refusal(f"node-1: {told}")


# Properties

COUNTS: Mapping[str, st.SearchStrategy[Any]] = {
    "count": st.integers(1, 32),
    "reserved": st.integers(0, 2**32 - 1),
    "taken": st.integers(0, 2**32 - 1),
    "bind": st.sampled_from([FULL, SPREAD]),
    "exclusive": st.sampled_from([ExclusivePolicy.NONE, PCPU, NUMA_LEVEL]),
}


@given(st.fixed_dictionaries(dict(COUNTS)), st.booleans(), st.none() | st.sets(st.integers(0, 1), min_size=1))
def test_cpus_are_free_inside_and_as_many_as_asked(
    case: dict[str, Any],
    required: bool,  # noqa: FBT001 - drawn
    numa: set[int] | None,
) -> None:
    bind, count = case["bind"], case["count"]
    wishes = needs(bind) if required else {"preferred": bind}
    node = CpuNode(TWO, case["reserved"])
    held = CpuShare("LSR", case["taken"], bind, case["exclusive"])
    ask = lsr(count, exclusive=case["exclusive"], **wishes)
    answer = choose_cpus(ask, "node-1", node, used(node, held), None if numa is None else frozenset(numa))
    inside = TWO.all if numa is None else sum(TWO.nodes[at] for at in numa)
    free = inside & ~case["reserved"] & ~case["taken"]
    if isinstance(answer, Refusal):
        assert required or free.bit_count() < count
        return
    assert answer.cpus & ~free == 0
    assert answer.cpus.bit_count() == count
    cores = [TWO.cores_of(1 << cpu) & answer.cpus for cpu in range(32) if answer.cpus >> cpu & 1]
    if required:
        assert all(core.bit_count() == (2 if bind is FULL else 1) for core in cores)


@pytest.mark.parametrize(("milli", "free", "at"), [(1000, 1000, 0), (1001, 1000, 1), (0, 1, 0), (0, 0, 1)])
def test_a_bursting_pod_runs_where_just_its_request_is_free(milli: int, free: int, at: int) -> None:
    held = used(CpuNode(TWO), pooled(16_000 - free), own("16-23"))
    answer = choose_cpus(ls(milli, limit_milli=8000, preferred=BURST), "node-1", CpuNode(TWO), held)
    assert isinstance(answer, CpuShare)
    assert [one.node for one in answer.numa] == [at]


@pytest.mark.parametrize(("nodes", "shares"), [(8, [1000] * 4), (9, [2000] * 2)])
def test_of_more_than_eight_numa_nodes_as_few_as_can_give_the_same_number(nodes: int, shares: list[int]) -> None:
    topology = build(1, nodes, 2, 1, siblings_far)
    answer = choose_cpus(lsr(4), "node-1", CpuNode(topology), NO_USE, frozenset(topology.nodes))
    assert isinstance(answer, CpuShare)
    assert [one.milli for one in answer.numa] == shares
