"""CPUs, memory, GPUs and RDMA in the same NUMA nodes: the Pod's policy and the node's, and what each promises.

The named server has two NUMA nodes of 16 CPUs, 64 GiB, four GPUs and two NICs each.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from builders import GIB, asking, gpu, holding, node, part
from machines import SERVER_CPUS, server, server_cpu, server_devices
from machines_cpu import build, siblings_near

from allocator.place import Placement, numa_policy, place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import (
    BindPolicy,
    CpuNode,
    CpuShare,
    ExclusivePolicy,
    NumaPolicy,
    NumaShare,
    NumaStrategy,
    Zone,
)
from allocator.vocabulary.cputopology import format_cpuset, parse
from allocator.vocabulary.holdings import Holding, InvariantError
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

MAX_NODES = 1024

GPU, NIC = "koordinator.sh/gpu", "koordinator.sh/rdma"
SINGLE, RESTRICTED, BEST = ({"numaTopologyPolicy": name} for name in ("SingleNUMANode", "Restricted", "BestEffort"))
CARDS = {device.minor: device for device in server_devices() if device.type == "gpu"}


class Stood(NamedTuple):
    """The NUMA nodes of each part of a placement."""

    cpus: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    nics: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()


def stood(answer: Placement | Refusal) -> Stood:
    assert isinstance(answer, Placement), answer
    where = {device.id: device.numa_node for device in server_devices()}
    by_type: dict[str, set[int]] = {"gpu": set(), "rdma": set()}
    for share in answer.shares:
        at = where[share.id]
        assert at is not None
        by_type[share.type].add(at)
    own = answer.cpus.cpus if answer.cpus is not None else 0
    cpus = tuple(at for at, inside in SERVER_CPUS.nodes.items() if inside & own)
    numa = answer.cpus.numa if answer.cpus is not None else ()
    if not own:
        cpus = tuple(one.node for one in numa if one.milli)
    memory = tuple(one.node for one in numa if one.memory)
    return Stood(cpus, tuple(sorted(by_type["gpu"])), tuple(sorted(by_type["rdma"])), memory)


def refused(answer: Placement | Refusal) -> str:
    assert isinstance(answer, Refusal), answer
    return answer.message


def cards(*minors: int) -> list[Holding]:
    """Others that hold half of each of these cards."""
    return [holding(f"card-{minor}", part(CARDS[minor], 50, "x")) for minor in minors]


def cpus(cpuset: str, uid: str = "cpus") -> Holding:
    """Another Pod with these CPUs of its own."""
    return holding(uid, cpus=CpuShare("LSR", parse(cpuset), BindPolicy.FULL_PCPUS))


def exclusive(cpuset: str, policy: ExclusivePolicy) -> Holding:
    """Another Pod with these CPUs of its own, which if possible it shares with no Pod of the same policy."""
    return holding("exclusive", cpus=CpuShare("LSR", parse(cpuset), BindPolicy.FULL_PCPUS, policy))


def memory(*amounts: int) -> Holding:
    """Another Pod that holds this many GiB in each NUMA node."""
    return holding(
        "memory", cpus=CpuShare("LS", numa=tuple(NumaShare(at, 0, much * GIB) for at, much in enumerate(amounts)))
    )


def lsr(cpu: int, gib: int = 1, **devices: int) -> dict[str, Any]:
    names = {"gpu": GPU, "nic": NIC}
    return {"cpu": cpu, "memory": f"{gib}Gi", **{names[name]: amount for name, amount in devices.items()}}


# A Pod's whole request, what is held; the NUMA nodes of each part

STANDS: dict[str, tuple[PodRequest, list[Holding], Stood]] = {
    "everything in one": (
        asking(lsr(8, 16, gpu=200, nic=10), qos="LSR", numa=SINGLE),
        [],
        Stood((0,), (0,), (0,), (0,)),
    ),
    "the cards decide": (
        asking(lsr(8, 16, gpu=200, nic=10), qos="LSR", numa=SINGLE),
        cards(0, 1, 2),
        Stood((1,), (1,), (1,), (1,)),
    ),
    "the CPUs decide": (
        asking(lsr(8, 16, gpu=200, nic=10), qos="LSR", numa=SINGLE),
        [cpus("0-9")],
        Stood((1,), (1,), (1,), (1,)),
    ),
    "the memory decides": (
        asking(lsr(8, 16, gpu=200, nic=10), qos="LSR", numa=SINGLE),
        [memory(60, 0)],
        Stood((1,), (1,), (1,), (1,)),
    ),
    "MostAllocated: where fewest CPUs are free": (
        asking(lsr(4), qos="LSR", numa=SINGLE),
        [cpus("16-19")],
        Stood((1,), memory=(1,)),
    ),
    "restricted to one, as one would do on an empty node": (
        asking(lsr(8, 16, gpu=400), qos="LSR", numa=RESTRICTED),
        cards(1),
        Stood((1,), (1,), (), (1,)),
    ),
    "restricted to two, as an empty node would need two": (
        asking(lsr(8, 16, gpu=600), qos="LSR", numa=RESTRICTED),
        cards(1),
        Stood((0, 1), (0, 1), (), (0, 1)),
    ),
    "best effort, in one where one does": (
        asking(lsr(8, 16, gpu=400), qos="LSR", numa=BEST),
        cards(1),
        Stood((1,), (1,), (), (1,)),
    ),
    "best effort, in two where no one does": (
        asking(lsr(8, 16, gpu=400), qos="LSR", numa=BEST),
        cards(1, 5),
        Stood((0, 1), (0, 1), (), (0, 1)),
    ),
    "no policy: anywhere": (
        asking(lsr(8, 16, gpu=200), qos="LSR"),
        [*cards(0, 1, 2), cpus("16-31")],
        Stood((0,), (1,)),
    ),
    "a Pod without CPUs of its own": (
        asking({"cpu": "1500m", "memory": "8Gi", GPU: 100}, numa=SINGLE),
        cards(0, 1, 2, 3),
        Stood((1,), (1,), (), (1,)),
    ),
    "one that asks devices alone": (asking({GPU: 200, NIC: 10}, numa=SINGLE), cards(0, 1, 2), Stood((), (1,), (1,))),
    "several containers, all in one": (
        asking(lsr(2, 1, gpu=100), lsr(2, 1, gpu=200), lsr(2, 1, nic=100), qos="LSR", numa=SINGLE),
        cards(0, 1),
        Stood((1,), (1,), (1,), (1,)),
    ),
}


@pytest.mark.parametrize(("of", "held", "expected"), STANDS.values(), ids=STANDS)
def test_all_that_a_pod_asks_stands_in_the_same_numa_nodes(
    of: PodRequest, held: list[Holding], expected: Stood
) -> None:
    on = server(held)
    answer = place(of, on)
    assert stood(answer) == expected
    assert isinstance(answer, Placement)
    on.with_holding(holding("uid", *answer.shares, cpus=answer.cpus)).check_invariants()


ONE = "the Pod fits, but not in one NUMA node (NUMA policy SingleNUMANode)"
FEW = "the Pod fits, but not in as few NUMA nodes as the Pod needs (NUMA policy Restricted)"
REFUSED: dict[str, tuple[PodRequest, list[Holding], str]] = {
    "cards on two sides": (
        asking(lsr(8, 16, gpu=400), qos="LSR", numa=SINGLE),
        cards(1, 5),
        (
            f"node-1: {ONE}; in the first tried: container a asks 4 x (core 100 %, memory 100 %); "
            "3 of 8 GPUs can hold it; the most free is gpu 0 with core 100 %, memory 80 GiB (100 %)"
        ),
    ),
    "cards on one side, CPUs on the other": (
        asking(lsr(8, 16, gpu=100), qos="LSR", numa=SINGLE),
        [*cards(0, 1, 2, 3), cpus("16-31")],
        f"node-1: {ONE}; in the first tried: container a asks 1 x (core 100 %, memory 100 %); 0 of 8 GPUs can hold it",
    ),
    "memory on neither": (
        asking(lsr(4, 40), qos="LSR", numa=SINGLE),
        [memory(30, 30)],
        f"node-1: {ONE}; in the first tried: memory 40 GiB is not free in NUMA node 0",
    ),
    "more cards than a NUMA node has": (asking({GPU: 500}, numa=SINGLE), [], f"node-1: {ONE}; in the first tried: "),
    "restricted, where two would do": (
        asking(lsr(8, 16, gpu=400), qos="LSR", numa=RESTRICTED),
        cards(1, 5),
        f"node-1: {FEW}; in the first tried: container a asks 4 x (core 100 %, memory 100 %); 3 of 8 GPUs",
    ),
    "nowhere at all: the plain reason": (
        asking(lsr(8, 16, gpu=400), qos="LSR", numa=SINGLE),
        cards(0, 1, 2, 4, 5),
        "node-1: container a asks 4 x (core 100 %, memory 100 %); 3 of 8 GPUs can hold it; ",
    ),
    "best effort, nowhere at all": (
        asking(lsr(8, 16, gpu=400), qos="LSR", numa=BEST),
        cards(0, 1, 2, 4, 5),
        "node-1: container a asks 4 x (core 100 %, memory 100 %); 3 of 8 GPUs can hold it; ",
    ),
    "too many thousandths for one": (
        asking({"cpu": "15500m"}, numa=SINGLE),
        [cpus("0-1"), cpus("16-17", "more")],
        f"node-1: {ONE}; in the first tried: 15.5 CPUs are not free in NUMA node 0",
    ),
}


@pytest.mark.parametrize(("of", "held", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_stand_together_is_refused_with_the_reason(
    of: PodRequest, held: list[Holding], message: str
) -> None:
    answer = place(of, server(held))
    assert refused(answer).startswith(message)
    assert isinstance(answer, Refusal)
    assert not answer.permanent


def test_what_would_not_stand_together_on_an_empty_node_either_is_reported_so() -> None:
    here = [gpu(0, numa_node=0), *(device for device in server_devices() if device.type == "rdma" and device.minor > 1)]
    answer = place(asking({GPU: 100, NIC: 10, "cpu": 1}, numa=RESTRICTED), server(devices=here))
    assert stood(answer) == Stood((0, 1), (0,), (1,))  # two, as an empty node would need two
    small = replace(server_cpu(), zones={0: Zone(16_000, 0), 1: Zone(16_000, 0)})
    answer = place(asking({GPU: 100, "cpu": 1, "memory": "1Gi"}, numa=RESTRICTED), server(cpu=small))
    assert refused(answer) == f"node-1: {FEW}; nor would it fit there if the node were empty"


# The Pod's policy and the node's: which one applies

POLICIES: dict[str, tuple[dict[str, str] | None, NumaPolicy, NumaPolicy]] = {
    "neither": (None, NumaPolicy.NONE, NumaPolicy.NONE),
    "the node's": (None, NumaPolicy.RESTRICTED, NumaPolicy.RESTRICTED),
    "the Pod's": (SINGLE, NumaPolicy.NONE, NumaPolicy.SINGLE_NUMA_NODE),
    "the Pod's before the node's": (BEST, NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.BEST_EFFORT),
    "a Pod that says None leaves it to the node": (
        {"numaTopologyPolicy": "None"},
        NumaPolicy.SINGLE_NUMA_NODE,
        NumaPolicy.SINGLE_NUMA_NODE,
    ),
}


@pytest.mark.parametrize(("own", "nodes", "expected"), POLICIES.values(), ids=POLICIES)
def test_the_pods_policy_comes_before_the_nodes(
    own: dict[str, str] | None, nodes: NumaPolicy, expected: NumaPolicy
) -> None:
    of = asking(lsr(4, 1, gpu=400), qos="LSR", numa=own)
    assert numa_policy(of, server_cpu(policy=nodes)) is expected
    answer = place(of, server(cards(1, 5), cpu=server_cpu(policy=nodes)))
    strict = expected in {NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED}
    assert isinstance(answer, Refusal) == strict


# What the kubelet would refuse: the policies of node, Pod and kubelet; which applies to a Pod with the kubelet's CPUs

FLOORS: dict[str, tuple[NumaPolicy, dict[str, str] | None, NumaPolicy, NumaPolicy]] = {
    "a Node labelled None": (NumaPolicy.NONE, None, NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.SINGLE_NUMA_NODE),
    "a Pod of BestEffort": (NumaPolicy.NONE, BEST, NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.SINGLE_NUMA_NODE),
    "a Pod of Restricted": (NumaPolicy.NONE, RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.SINGLE_NUMA_NODE),
    "a Pod of SingleNUMANode": (NumaPolicy.NONE, SINGLE, NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE),
    "a Node labelled BestEffort": (NumaPolicy.BEST_EFFORT, None, NumaPolicy.RESTRICTED, NumaPolicy.RESTRICTED),
    "a kubelet that refuses none": (NumaPolicy.BEST_EFFORT, None, NumaPolicy.NONE, NumaPolicy.BEST_EFFORT),
}


@pytest.mark.parametrize(("nodes", "own", "kubelets", "expected"), FLOORS.values(), ids=FLOORS)
def test_no_policy_lifts_that_by_which_the_kubelet_would_answer_topology_affinity_error(
    nodes: NumaPolicy, own: dict[str, str] | None, kubelets: NumaPolicy, expected: NumaPolicy
) -> None:
    on = server_cpu(policy=nodes, kubelet_policy=kubelets)
    said = NumaPolicy(own["numaTopologyPolicy"]) if own else nodes
    for qos in ("LSE", "LSR", "LS"):
        assert numa_policy(asking(lsr(4), qos=qos, numa=own), on) is expected
        assert numa_policy(asking({"cpu": 4}, qos=qos, numa=own), on) is said  # is not Guaranteed
        by_container = replace(on, kubelet_by_container=True)
        assert numa_policy(asking(lsr(4), qos=qos, numa=own), by_container) is said
    wide = place(asking(lsr(20), qos="LSR", numa=own), server(cpu=on))
    assert isinstance(wide, Refusal) == (expected is NumaPolicy.SINGLE_NUMA_NODE)


@pytest.mark.parametrize("fields", [{"reserved": parse("0-11,16-27")}, {}], ids=["the kubelet", "other Pods"])
def test_restricted_counts_what_the_kubelet_holds_as_it_does_itself(fields: dict[str, Any]) -> None:
    held = [] if fields else [cpus("0-11"), cpus("16-27", "more")]
    answer = place(asking(lsr(8), qos="LSR", numa=RESTRICTED), server(held, cpu=server_cpu(**fields)))
    assert refused(answer) == f"node-1: {FEW}; in the first tried: 8 CPUs are requested, 4 are free: 12-15"
    lenient = place(asking(lsr(8), qos="LSR", numa=BEST), server(held, cpu=server_cpu(**fields)))
    assert stood(lenient).cpus == (0, 1)


def test_a_pod_that_asks_devices_alone_keeps_the_nodes_policy() -> None:
    of = asking({GPU: 200, NIC: 10})
    assert stood(place(of, server(cards(0, 1, 2)))) == Stood((), (1,), (0,))
    strict = server(cards(0, 1, 2), cpu=server_cpu(policy=NumaPolicy.SINGLE_NUMA_NODE))
    assert stood(place(of, strict)) == Stood((), (1,), (1,))
    assert numa_policy(of, None) is NumaPolicy.NONE


# Which NUMA node first: the node's strategy, the request, what is held; the NUMA node

FIRST: dict[str, tuple[NumaStrategy, PodRequest, list[Holding], Stood]] = {
    "most allocated": (
        NumaStrategy.MOST_ALLOCATED,
        asking(lsr(4, 0), qos="LSR", numa=SINGLE),
        [cpus("16-17")],
        Stood((1,)),
    ),
    "least allocated": (
        NumaStrategy.LEAST_ALLOCATED,
        asking(lsr(4, 0), qos="LSR", numa=SINGLE),
        [cpus("0-1")],
        Stood((1,)),
    ),
    "evenly": (NumaStrategy.DISTRIBUTE_EVENLY, asking(lsr(4, 0), qos="LSR", numa=SINGLE), [cpus("0-1")], Stood((1,))),
    "most allocated, of shared CPUs": (
        NumaStrategy.MOST_ALLOCATED,
        asking({"cpu": "500m"}, numa=SINGLE),
        [cpus("16-17")],
        Stood((1,)),
    ),
    "least allocated, of shared CPUs": (
        NumaStrategy.LEAST_ALLOCATED,
        asking({"cpu": "500m"}, numa=SINGLE),
        [holding("ls", cpus=CpuShare("LS", numa=(NumaShare(0, 500, 0),)))],
        Stood((1,)),
    ),
    "most allocated, of devices": (
        NumaStrategy.MOST_ALLOCATED,
        asking({GPU: 100}, numa=SINGLE),
        cards(6),
        Stood((), (1,)),
    ),
    "least allocated, of devices": (
        NumaStrategy.LEAST_ALLOCATED,
        asking({GPU: 100}, numa=SINGLE),
        cards(0, 2, 4),
        Stood((), (1,)),
    ),
    "equals: the first": (NumaStrategy.LEAST_ALLOCATED, asking({GPU: 50}, numa=SINGLE), [], Stood((), (0,))),
}


@pytest.mark.parametrize(("strategy", "of", "held", "expected"), FIRST.values(), ids=FIRST)
def test_of_numa_nodes_that_will_do_the_strategys_comes_first(
    strategy: NumaStrategy, of: PodRequest, held: list[Holding], expected: Stood
) -> None:
    assert stood(place(of, server(held, cpu=server_cpu(strategy=strategy)))) == expected


# A Pod's CPU preferences, under every NUMA policy: the request, what is held; its CPUs

KEEPS: dict[str, tuple[dict[str, str], int, list[Holding], str]] = {
    "a NUMA node without Pods of NUMANodeLevel": (
        {"preferredCPUExclusivePolicy": "NUMANodeLevel"},
        4,
        [exclusive("0-3", ExclusivePolicy.NUMA_NODE_LEVEL)],
        "16-19",
    ),
    "cores without Pods of PCPULevel": (
        {"preferredCPUBindPolicy": "SpreadByPCPUs", "preferredCPUExclusivePolicy": "PCPULevel"},
        6,
        [exclusive("0,2,4,6", ExclusivePolicy.PCPU_LEVEL)],
        "16,18,20,22,24,26",
    ),
    "cores of which no thread is held": (
        {"preferredCPUBindPolicy": "FullPCPUs"},
        4,
        [cpus("0,2,4,6,8,10,12,14")],
        "16-19",
    ),
    "one thread of each core": ({"preferredCPUBindPolicy": "SpreadByPCPUs"}, 4, [cpus("0-9")], "16,18,20,22"),
    "the fuller NUMA node where both will do": ({"preferredCPUBindPolicy": "FullPCPUs"}, 4, [cpus("16-17")], "18-21"),
}


@pytest.mark.parametrize("policy", NumaPolicy)
@pytest.mark.parametrize(("spec", "count", "held", "expected"), KEEPS.values(), ids=KEEPS)
def test_a_numa_policy_takes_no_wish_away_that_another_numa_node_can_keep(
    spec: dict[str, str], count: int, held: list[Holding], expected: str, policy: NumaPolicy
) -> None:
    answer = place(asking({"cpu": count}, qos="LSR", cpus=spec), server(held, cpu=server_cpu(policy=policy)))
    assert isinstance(answer, Placement)
    assert answer.cpus is not None
    assert format_cpuset(answer.cpus.cpus) == expected


def test_a_wish_gives_way_to_the_devices() -> None:
    of = asking(lsr(4, 1, gpu=400), qos="LSR", cpus={"preferredCPUExclusivePolicy": "NUMANodeLevel"}, numa=SINGLE)
    held = [*cards(4), exclusive("0-3", ExclusivePolicy.NUMA_NODE_LEVEL)]
    assert stood(place(of, server(held))) == Stood((0,), (0,), (), (0,))


# Pods on shared pools, and Pods with CPUs of their own


@pytest.mark.parametrize("policy", NumaPolicy)
@pytest.mark.parametrize("spec", [None, {"preferredCPUBindPolicy": "ConstrainedBurst"}], ids=["LS", "ConstrainedBurst"])
def test_a_pod_gets_no_cpus_that_others_need_in_their_shared_pool(
    spec: dict[str, str] | None, policy: NumaPolicy
) -> None:
    on = server(cpu=server_cpu(policy=policy))
    first = place(asking({"cpu": 16}, qos="LS", cpus=spec, numa=SINGLE), on)
    assert stood(first).cpus == (0,)
    assert isinstance(first, Placement)
    on = on.with_holding(holding("first", cpus=first.cpus))
    second = place(asking({"cpu": 16}, qos="LSR"), on)
    assert stood(second).cpus == (1,)
    assert isinstance(second, Placement)
    on = on.with_holding(holding("second", cpus=second.cpus))
    on.check_invariants()
    told = "1 CPUs are requested, 0 are free; 16 more are kept for the Pods on the shared pools"
    assert told in refused(place(asking({"cpu": 1}, qos="LSR"), on))


def test_a_shared_pool_with_fewer_cpus_than_its_pods_were_given_is_found() -> None:
    standing = holding("ls", cpus=CpuShare("LS", numa=(NumaShare(0, 4001, 0), NumaShare(9, 1, 0))))
    server([standing, cpus("0-10")]).check_invariants()
    server([holding("ls", cpus=CpuShare("LS", numa=(NumaShare(0, 4000, 0),))), cpus("0-11")]).check_invariants()
    with pytest.raises(InvariantError) as found:
        server([standing, cpus("0-11")]).check_invariants()
    assert str(found.value) == (
        "node-1: Pods were given 4001 thousandths of a CPU in the shared pool of NUMA node 0, which has 4 CPUs left"
    )
    with pytest.raises(InvariantError, match="given 1 thousandths"):
        server([holding("idle", cpus=CpuShare("LS", numa=(NumaShare(1, 0, 0),))), cpus("16-31")]).check_invariants()


# Pods in one NUMA node kept apart from those in several


def spread_over_both(uid: str = "wide") -> Holding:
    return cpus("14-17", uid)


APART: dict[str, tuple[dict[str, str], list[Holding], Stood | str]] = {
    "where nobody of several stands": (SINGLE, [cpus("0-1")], Stood((0,))),
    "Pods without CPUs of their own": (SINGLE, cards(0, 4), Stood((0,))),
    "one of several everywhere": (
        SINGLE,
        [spread_over_both()],
        f"{ONE}; its singleNUMANodeExclusive keeps it apart from Pods that run there",
    ),
    "one of several everywhere, to be avoided if it can be": (
        {**SINGLE, "singleNUMANodeExclusive": "Preferred"},
        [spread_over_both()],
        Stood((0,)),
    ),
    "best effort is kept apart where that can be": (BEST, [spread_over_both()], Stood((0, 1))),
}


@pytest.mark.parametrize(("numa", "held", "expected"), APART.values(), ids=APART)
def test_a_pod_of_one_numa_node_keeps_apart_from_pods_of_several(
    numa: dict[str, str], held: list[Holding], expected: Stood | str
) -> None:
    answer = place(asking(lsr(4, 0), qos="LSR", numa=numa), server(held))
    if isinstance(expected, str):
        assert refused(answer) == f"node-1: {expected}"
        assert isinstance(answer, Refusal)
        assert not answer.permanent
    else:
        assert stood(answer) == expected


def test_a_pod_of_several_numa_nodes_keeps_apart_from_pods_of_one() -> None:
    wide = asking(lsr(20, 0), qos="LSR", numa=RESTRICTED)
    assert stood(place(wide, server([]))) == Stood((0, 1))
    assert "keeps it apart" in refused(place(wide, server([cpus("0-1")])))
    lenient = asking(lsr(20, 0), qos="LSR", numa={**RESTRICTED, "singleNUMANodeExclusive": "Preferred"})
    assert stood(place(lenient, server([cpus("0-1")]))) == Stood((0, 1))
    assert stood(place(wide, server([spread_over_both()]))) == Stood((0, 1))
    assert stood(place(wide, server(cards(0, 4)))) == Stood((0, 1)), "of whom CPUs of their own are not known"


# Nodes that do not report everything


def test_without_a_cpu_topology_a_pod_with_a_policy_of_its_own_is_refused_and_one_without_is_not() -> None:
    blind = node(*server_devices())
    answer = place(asking({GPU: 100, "cpu": 1}, numa=SINGLE), blind)
    assert refused(answer) == (
        "node-1: its CPUs are unknown (no NodeResourceTopology object, or one without a CPU topology)"
    )
    assert isinstance(answer, Refusal)
    assert answer.permanent
    assert stood(place(asking({GPU: 200}), blind)) == Stood((), (0,))


def test_devices_that_do_not_say_where_they_are_may_be_anywhere() -> None:
    unknown = [gpu(minor) for minor in range(4)]
    answer = place(asking(lsr(4, 0, gpu=400), qos="LSR", numa=SINGLE), server(devices=unknown))
    assert isinstance(answer, Placement)
    assert len(answer.shares) == 4
    assert answer.cpus is not None
    assert [one.node for one in answer.cpus.numa] == [0]


def test_of_more_than_eight_numa_nodes_one_or_a_socket_or_all_are_tried() -> None:
    many = CpuNode(build(2, 8, 2, 2, siblings_near))  # 16 NUMA nodes of four CPUs

    def nodes_of(cpu: int, numa: dict[str, str], *held: Holding) -> set[int]:
        answer = place(asking(lsr(cpu, 0), qos="LSR", numa=numa), node(holdings=held, cpu=many))
        assert isinstance(answer, Placement), answer
        assert answer.cpus is not None
        return {one.node for one in answer.cpus.numa}

    assert nodes_of(4, SINGLE) == {0}
    assert len(nodes_of(8, RESTRICTED)) == 2  # of the first socket
    assert nodes_of(32, RESTRICTED) == set(range(8))
    assert nodes_of(34, RESTRICTED) >= set(range(8))


def test_of_more_than_eight_numa_nodes_the_cards_of_one_socket_are_taken_together() -> None:
    many = CpuNode(build(5, 2, 2, 2, siblings_near), policy=NumaPolicy.RESTRICTED)  # sockets 0-1, 2-3, 4-5, 6-7, 8-9
    cards = [gpu(minor, numa_node=at) for minor, at in enumerate((0, 3, 4, 5))]
    answer = place(asking({GPU: 200}), node(*cards, cpu=many))
    assert isinstance(answer, Placement), answer
    assert [share.minor for share in answer.shares] == [2, 3]


def test_on_the_most_numa_nodes_that_a_machine_has_one_a_socket_and_all_are_tried() -> None:
    many = CpuNode(build(4, MAX_NODES // 4, 1, 2, siblings_near))

    def wide(cpu: int) -> int:
        answer = place(asking(lsr(cpu, 0), qos="LSR", numa=BEST), node(cpu=many))
        assert isinstance(answer, Placement), answer
        assert answer.cpus is not None
        return len(answer.cpus.numa)

    assert [wide(2), wide(512), wide(514)] == [1, 256, 257]
    answer = place(asking(lsr(2 * MAX_NODES + 1, 0), qos="LSR", numa=BEST), node(cpu=many))
    assert refused(answer).startswith("node-1: 2049 CPUs are requested, 2048 are free")


# The same question in another order


def test_holdings_reported_in_another_order_change_nothing() -> None:
    held = [*cards(0, 5), cpus("0-3"), spread_over_both(), memory(10, 20)]
    for of in (row[0] for row in STANDS.values()):
        assert place(of, server(held)) == place(of, server(held[::-1]))


def names(answers: Iterable[Placement | Refusal]) -> set[str]:
    return {type(answer).__name__ for answer in answers}


def test_no_container_of_a_pod_stands_outside_of_its_numa_nodes() -> None:
    of = asking(lsr(2, 1, gpu=100, nic=5), lsr(2, 1, gpu=100), qos="LSR", numa=SINGLE)
    snapshot: NodeSnapshot = server()
    answers = []
    for index in range(6):
        answer = place(of, snapshot)
        answers.append(answer)
        if isinstance(answer, Placement):
            told = stood(answer)
            assert len({*told.cpus, *told.gpus, *told.nics, *told.memory}) == 1
            snapshot = snapshot.with_holding(holding(f"uid-{index}", *answer.shares, cpus=answer.cpus))
            snapshot.check_invariants()
    assert names(answers) == {"Placement", "Refusal"}
