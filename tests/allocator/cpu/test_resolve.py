"""Which rules of CPU orchestration apply on a node: its labels, then its kubelet's, then the configuration's."""

from typing import Any

import pytest
from machines_cpu import build, siblings_near

from allocator.cpu.choose import choose_cpus
from allocator.cpu.resolve import (
    ARCHITECTURE,
    CPU_BIND_POLICY,
    NUMA_ALLOCATE_STRATEGY,
    NUMA_TOPOLOGY_POLICIES,
    CpuDefaults,
    resolve,
)
from allocator.vocabulary.cpunode import (
    NO_USE,
    BindPolicy,
    CpuAsk,
    CpuShare,
    ExclusivePolicy,
    KubeletAsk,
    NumaPolicy,
    NumaStrategy,
    QosClass,
    Zone,
)
from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.names import Phase
from allocator.vocabulary.outcome import Refusal
from allocator.wire.nodetopology import (
    CpuManagerPolicy,
    KubeletCpus,
    NodeReservation,
    NodeTopology,
    NumaScope,
    NumaZone,
    PodCpuAlloc,
    SystemCpus,
    read_node_topology,
    write_node_topology,
)

TWO = build(2, 1, 8, 2, siblings_near)
STATIC = CpuManagerPolicy.STATIC
WHOLE, EVEN = "full-pcpus-only", "distribute-cpus-across-numa"
OLD_POLICY, NEW_POLICY = NUMA_TOPOLOGY_POLICIES


def kubelet(*options: str, policy: CpuManagerPolicy = STATIC, value: str = "true", reserved: str = "") -> KubeletCpus:
    return KubeletCpus(policy, dict.fromkeys(options, value), parse(reserved))


def topology(**fields: Any) -> NodeTopology:
    return NodeTopology("node-1", TWO, **fields)


def bind(of: NodeTopology, labels: dict[str, str]) -> tuple[BindPolicy | None, bool]:
    node = resolve(of, labels, CpuDefaults())
    assert node is not None
    return node.bind, node.whole_cores


# CPU bind policy: the label, the kubelet; the node's policy, and whether the kubelet admits whole cores only

BINDS: dict[str, tuple[dict[str, str], KubeletCpus, BindPolicy | None, bool]] = {
    "nothing reported": ({}, KubeletCpus(), None, False),
    "the label FullPCPUsOnly": ({CPU_BIND_POLICY: "FullPCPUsOnly"}, KubeletCpus(), BindPolicy.FULL_PCPUS, False),
    "the label SpreadByPCPUs": ({CPU_BIND_POLICY: "SpreadByPCPUs"}, KubeletCpus(), BindPolicy.SPREAD_BY_PCPUS, False),
    "the label None": ({CPU_BIND_POLICY: "None"}, KubeletCpus(), None, False),
    "an empty label": ({CPU_BIND_POLICY: ""}, KubeletCpus(), None, False),
    "a label that nobody knows": ({CPU_BIND_POLICY: "Whatever"}, KubeletCpus(), None, False),
    "the kubelet's option": ({}, kubelet(WHOLE), BindPolicy.FULL_PCPUS, True),
    "the kubelet's option, and no static policy": ({}, kubelet(WHOLE, policy=CpuManagerPolicy.NONE), None, False),
    "the kubelet's option, off": ({}, kubelet(WHOLE, value="false"), None, False),
    "the label before the kubelet's option": (
        {CPU_BIND_POLICY: "SpreadByPCPUs"},
        kubelet(WHOLE),
        BindPolicy.SPREAD_BY_PCPUS,
        True,
    ),
    "the label PCPUOnly, as Resource spec has it": (
        {CPU_BIND_POLICY: "PCPUOnly"},
        KubeletCpus(),
        BindPolicy.FULL_PCPUS,
        False,
    ),
    "the label None before the kubelet's option, which refuses all the same": (
        {CPU_BIND_POLICY: "None"},
        kubelet(WHOLE),
        None,
        True,
    ),
    "an empty label is None": ({CPU_BIND_POLICY: ""}, kubelet(WHOLE), None, True),
    "a label that nobody knows, and the kubelet's option": (
        {CPU_BIND_POLICY: "Whatever"},
        kubelet(WHOLE),
        BindPolicy.FULL_PCPUS,
        True,
    ),
}


@pytest.mark.parametrize(("labels", "of", "policy", "whole"), BINDS.values(), ids=BINDS)
def test_the_bind_policy_is_the_labels_then_the_kubelets(
    labels: dict[str, str],
    of: KubeletCpus,
    policy: BindPolicy | None,
    whole: bool,  # noqa: FBT001 - a column of the table
) -> None:
    assert bind(topology(kubelet=of), labels) == (policy, whole)


# Which NUMA node first: the label, the kubelet, the configuration; the strategy

MOST, LEAST, EVENLY = NumaStrategy.MOST_ALLOCATED, NumaStrategy.LEAST_ALLOCATED, NumaStrategy.DISTRIBUTE_EVENLY
STRATEGIES: dict[str, tuple[str | None, KubeletCpus, NumaStrategy, NumaStrategy]] = {
    "the configured": (None, KubeletCpus(), LEAST, LEAST),
    "the kubelet's": (None, kubelet(EVEN), LEAST, NumaStrategy.DISTRIBUTE_BEYOND_ONE),
    "the kubelet's, and no static policy": (None, kubelet(EVEN, policy=CpuManagerPolicy.NONE), LEAST, LEAST),
    "the label": ("MostAllocated", KubeletCpus(), LEAST, MOST),
    "the label before the kubelet's": ("LeastAllocated", kubelet(EVEN), MOST, LEAST),
    "the label DistributeEvenly": ("DistributeEvenly", KubeletCpus(), MOST, EVENLY),
    "a label that nobody knows": ("Balanced", kubelet(EVEN), MOST, NumaStrategy.DISTRIBUTE_BEYOND_ONE),
    "an empty label": ("", KubeletCpus(), MOST, MOST),
}


@pytest.mark.parametrize(("label", "of", "configured", "strategy"), STRATEGIES.values(), ids=STRATEGIES)
def test_the_strategy_is_the_labels_then_the_kubelets_then_the_configured(
    label: str | None, of: KubeletCpus, configured: NumaStrategy, strategy: NumaStrategy
) -> None:
    labels = {} if label is None else {NUMA_ALLOCATE_STRATEGY: label}
    node = resolve(topology(kubelet=of), labels, CpuDefaults(strategy=configured))
    assert node is not None
    assert node.strategy is strategy


# NUMA policy: labels, the kubelet's topology manager, the configuration; the policy

NONE, BEST, STRICT, SINGLE = NumaPolicy
POLICIES: dict[str, tuple[dict[str, str], NumaPolicy, NumaPolicy, NumaPolicy]] = {
    "nothing reported": ({}, NONE, NONE, NONE),
    "the configured": ({}, NONE, BEST, BEST),
    "the kubelet's before the configured": ({}, STRICT, BEST, STRICT),
    "the label before the kubelet's": ({NEW_POLICY: "SingleNUMANode"}, STRICT, BEST, SINGLE),
    "the label None before the kubelet's": ({NEW_POLICY: "None"}, STRICT, BEST, NONE),
    "the CPU proposal's label": ({OLD_POLICY: "Restricted"}, NONE, NONE, STRICT),
    "both labels: the CPU proposal's": ({OLD_POLICY: "Restricted", NEW_POLICY: "BestEffort"}, NONE, NONE, STRICT),
    "an empty label": ({OLD_POLICY: "", NEW_POLICY: ""}, STRICT, NONE, STRICT),
    "a label that nobody knows, and one that is known": (
        {OLD_POLICY: "Tight", NEW_POLICY: "BestEffort"},
        NONE,
        NONE,
        BEST,
    ),
}


@pytest.mark.parametrize(("labels", "of", "configured", "policy"), POLICIES.values(), ids=POLICIES)
def test_the_numa_policy_is_the_labels_then_the_kubelets_then_the_configured(
    labels: dict[str, str], of: NumaPolicy, configured: NumaPolicy, policy: NumaPolicy
) -> None:
    node = resolve(topology(numa_policy=of), labels, CpuDefaults(numa_policy=configured))
    assert node is not None
    assert node.policy is policy


# What the kubelet's topology manager refuses: its policy, its CPU manager's; the policy by which Pods are refused, and
# whether for CPUs too

REFUSES: dict[str, tuple[NumaPolicy, CpuManagerPolicy, NumaPolicy, bool]] = {
    "SingleNUMANode": (SINGLE, STATIC, SINGLE, True),
    "Restricted": (STRICT, STATIC, STRICT, True),
    "BestEffort refuses none": (BEST, STATIC, NONE, True),
    "None": (NONE, STATIC, NONE, True),
    "a CPU manager that gives none": (SINGLE, CpuManagerPolicy.NONE, SINGLE, False),
    "a CPU manager that is not known": (SINGLE, CpuManagerPolicy.UNKNOWN, SINGLE, False),
}


@pytest.mark.parametrize("label", ["None", "BestEffort", None], ids=str)
@pytest.mark.parametrize("scope", NumaScope)
@pytest.mark.parametrize("row", REFUSES.values(), ids=REFUSES)
def test_no_label_hides_by_what_policy_the_kubelet_refuses_pods(
    row: tuple[NumaPolicy, CpuManagerPolicy, NumaPolicy, bool], scope: NumaScope, label: str | None
) -> None:
    policy, manager, refuses, gives = row
    told = topology(numa_policy=policy, numa_scope=scope, kubelet=kubelet(policy=manager))
    node = resolve(told, {} if label is None else {NEW_POLICY: label}, CpuDefaults())
    assert node is not None
    assert node.policy is (policy if label is None else NumaPolicy(label))
    assert (node.kubelet_policy, node.kubelet_by_container) == (refuses, scope is NumaScope.CONTAINER)
    assert node.kubelet_gives_cpus is gives


def test_the_kubelet_knows_its_own_reservation_and_pods_and_no_other_reservation() -> None:
    allocs = (
        PodCpuAlloc("default", "static", "uid-1", parse("4-5"), managed_by_kubelet=True),
        PodCpuAlloc("default", "lsr", "uid-2", parse("6-7")),
    )
    told = topology(
        kubelet=kubelet("align-by-socket", reserved="0-1"),
        pod_cpu_allocs=allocs,
        reservation=NodeReservation(parse("1-2,4,8")),
        system=SystemCpus(parse("9")),
    )
    node = resolve(told, {}, CpuDefaults())
    assert node is not None
    assert (node.kubelet_reserved, node.not_kubelets, node.kubelet_by_socket) == (parse("0-1"), parse("2,8-9"), True)


@pytest.mark.parametrize(
    "written", ["SingleNUMANode", "SingleNUMANodePodLevel", "SingleNUMANodeContainerLevel"], ids=str
)
def test_both_levels_of_the_kubelets_single_numa_node_are_one_policy(written: str) -> None:
    obj = write_node_topology(topology()) | {"topologyPolicies": [written]}
    node = resolve(read_node_topology(obj), {}, CpuDefaults())
    assert node is not None
    assert node.policy is SINGLE


def test_what_nobody_may_have_is_the_kubelets_the_administrators_and_the_systems() -> None:
    node = resolve(
        topology(
            kubelet=kubelet(reserved="0-3"),
            reservation=NodeReservation(parse("2-5")),
            system=SystemCpus(parse("7")),
            pod_cpu_allocs=(
                PodCpuAlloc("default", "static", "uid-1", parse("8-9"), managed_by_kubelet=True),
                PodCpuAlloc("default", "ours", "uid-2", parse("10-11")),
            ),
        ),
        {},
        CpuDefaults(),
    )
    assert node is not None
    assert node.reserved == parse("0-5,7-9")
    assert node.pooled == parse("0-1")  # the kubelet's, without those that others reserve


def test_defaults_zones_and_architecture_are_taken_over() -> None:
    defaults = CpuDefaults(BindPolicy.SPREAD_BY_PCPUS, ExclusivePolicy.PCPU_LEVEL)
    zones = {
        0: NumaZone({"cpu": 16_000, "memory": 2**36}, {"cpu": 16_000, "memory": 2**36}),
        1: NumaZone({"vendor/nic": 3}, {"vendor/nic": 3}),
    }
    node = resolve(topology(zones=zones), {ARCHITECTURE: "arm64"}, defaults)
    assert node is not None
    assert (node.default_bind, node.default_exclusive) == (BindPolicy.SPREAD_BY_PCPUS, ExclusivePolicy.PCPU_LEVEL)
    assert node.zones == {0: Zone(16_000, 2**36), 1: Zone(None, None, (("vendor/nic", 3),))}
    assert node.architecture == "arm64"
    assert node.topology == TWO


def test_a_node_whose_cpus_are_not_known_gives_none() -> None:
    assert resolve(NodeTopology("node-1"), {}, CpuDefaults()) is None


UNREADABLE = {
    "who has CPUs": ("node.koordinator.sh/pod-cpu-allocs", "["),
    "which the kubelet reserves": ("kubelet.koordinator.sh/cpu-manager-policy", '{"reservedCPUs":"0-x"}'),
    "whether the kubelet takes whole cores": (
        "kubelet.koordinator.sh/cpu-manager-policy",
        '{"policy":"static","options":{"full-pcpus-only":true}}',
    ),
    "which the administrator keeps": ("node.koordinator.sh/reservation", '{"reservedCPUs":"0-1,"}'),
    "which are the system's": ("node.koordinator.sh/system-qos-resource", '{"cpuset":"a"}'),
    "which the administrator's amount means": ("node.koordinator.sh/reservation", '{"resources":{"cpu":"4"}}'),
}


@pytest.mark.parametrize(("key", "text"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_node_of_which_it_cannot_be_read_what_is_held_gives_no_cpu_and_says_why(key: str, text: str) -> None:
    obj = write_node_topology(topology(kubelet=kubelet(reserved="0-1"), numa_policy=SINGLE))
    obj["metadata"]["annotations"][key] = text
    node = resolve(read_node_topology(obj), {}, CpuDefaults())
    assert node is not None
    assert (node.holders_unknown, node.reserved, node.pooled) == (True, TWO.all, 0)
    own = choose_cpus(
        CpuAsk(QosClass.LSR, 2, 2000, 0, 2000, of_kubelet=(KubeletAsk(Phase.APP, 2),)), "node-1", node, NO_USE
    )
    assert isinstance(own, Refusal)
    assert own.permanent
    assert own.message.startswith("node-1: which of its CPUs are held or reserved cannot be read from its NodeResource")
    for qos in (QosClass.LS, QosClass.BE, QosClass.SYSTEM):
        assert choose_cpus(CpuAsk(qos, 0, 2000, 0), "node-1", node, NO_USE, frozenset({0})) == CpuShare(qos)


def test_stale_cpus_of_a_kubelet_whose_policy_is_none_stay_in_its_pool_and_can_be_given() -> None:
    stale = (PodCpuAlloc("default", "static", "uid-1", parse("0-5"), managed_by_kubelet=True),)
    node = resolve(
        topology(kubelet=kubelet(policy=CpuManagerPolicy.NONE, reserved="0-1"), pod_cpu_allocs=stale), {}, CpuDefaults()
    )
    assert node is not None
    assert (node.reserved, node.pooled) == (parse("0-1"), parse("0-1"))
