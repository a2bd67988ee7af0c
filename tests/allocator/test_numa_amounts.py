"""What a node's NUMA policy applies to: CPU, memory and every other resource that its NUMA nodes report.

The policy applies to Pods with a QoS class and to Pods that request devices, labelled or not. The server has two NUMA
nodes of 8 CPUs, 64 GiB and four GPUs each, and what the case adds.
"""

import json
from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, asking, container, holding, pod
from hypothesis import given
from hypothesis import strategies as st
from machines import server
from machines_cpu import build, siblings_near
from strategies import holdings

from allocator.cpu.resolve import CpuDefaults, resolve
from allocator.place import Placement, place
from allocator.request.cpus import read_cpu_ask
from allocator.request.original import read_asks
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import CpuNode, CpuShare, NumaPolicy, NumaShare, QosClass, Zone
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import RESOURCE_STATUS
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.nodeallocation import read_spec, write_spec
from allocator.wire.nodetopology import NodeTopology, NumaZone
from allocator.wire.podallocated import read_cpu_share, write_allocation

GPU, NIC, HUGE = "koordinator.sh/gpu", "vendor/nic1", "hugepages-2Mi"
SINGLE, RESTRICTED, BEST = NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED, NumaPolicy.BEST_EFFORT
CPUS = build(2, 1, 4, 2, siblings_near)
ONE = "the Pod fits, but not in one NUMA node (NUMA policy SingleNUMANode)"


def small(policy: NumaPolicy, held: list[Holding] | None = None, **fields: Any) -> NodeSnapshot:
    others = ((HUGE, 2 * GIB), (NIC, 3))
    zones = {at: Zone(8000, 64 * GIB, others) for at in (0, 1)}
    return server(held or [], cpu=CpuNode(CPUS, **{"zones": zones, "policy": policy, **fields}))


def shared(*milli: int, others: tuple[tuple[tuple[str, int], ...], ...] = ((), ())) -> Holding:
    stands = tuple(NumaShare(at, much, 0, at, others[at]) for at, much in enumerate(milli))
    return holding("shared", cpus=CpuShare("LS", numa=stands))


# The request; the node's policy; what is held; the NUMA nodes, or why it is refused

HELD: dict[str, tuple[PodRequest, NumaPolicy, list[Holding], tuple[int, ...] | str]] = {
    "a card and more CPU than one NUMA node has": (asking({GPU: 100, "cpu": 10}), SINGLE, [], ONE),
    "likewise where two will do": (asking({GPU: 100, "cpu": 10}), RESTRICTED, [], (0, 1)),
    "likewise, labelled": (asking({GPU: 100, "cpu": 10}, qos="LS"), SINGLE, [], ONE),
    "a card and CPU where enough is free": (asking({GPU: 100, "cpu": 6}), SINGLE, [shared(3000, 0)], (1,)),
    "a card and memory": (
        asking({GPU: 100, "cpu": 1, "memory": "40Gi"}),
        SINGLE,
        [holding("memory", cpus=CpuShare("LS", numa=(NumaShare(0, 0, 30 * GIB),)))],
        (1,),
    ),
    "a card alone": (asking({GPU: 100}), SINGLE, [shared(8000, 0)], ()),
    "best effort gives way": (asking({GPU: 100, "cpu": 10}), BEST, [], (0, 1)),
    "best effort where nothing fits": (asking({GPU: 100, "cpu": 10}), BEST, [shared(4000, 4000)], ()),
    "a vendor's NICs, too many for one": (asking({GPU: 50, NIC: 4}), SINGLE, [], ONE),
    "likewise without devices": (asking({"cpu": 1, NIC: 4}, qos="LS"), SINGLE, [], ONE),
    "likewise with CPUs of its own": (asking({"cpu": 2, NIC: 4}, qos="LSR"), SINGLE, [], ONE),
    "of two NUMA nodes under Restricted": (asking({"cpu": 2, NIC: 4}, qos="LSR"), RESTRICTED, [], (0, 1)),
    "a vendor's NICs where they are free": (
        asking({"cpu": 1, NIC: 2}, qos="LS"),
        SINGLE,
        [shared(1000, 0, others=(((NIC, 2),), ()))],
        (1,),
    ),
    "a vendor's NICs, of two NUMA nodes where more of them are in use": (
        asking({"cpu": 1, NIC: 1}, qos="LS"),
        SINGLE,
        [shared(0, 0, others=((), ((NIC, 1),)))],
        (1,),
    ),
    "huge pages": (asking({GPU: 50, "cpu": 1, HUGE: "3Gi"}), SINGLE, [], ONE),
    "huge pages that are free on one": (
        asking({GPU: 50, "cpu": 1, HUGE: "1Gi"}),
        SINGLE,
        [shared(1000, 0, others=(((HUGE, 3 * GIB // 2),), ()))],
        (1,),
    ),
    "a resource that no NUMA node reports": (asking({GPU: 50, "cpu": 1, "vendor/other": 9}), SINGLE, [], (0,)),
}


@pytest.mark.parametrize(("of", "policy", "held", "expected"), HELD.values(), ids=HELD)
def test_cpu_memory_and_other_resources_are_held_against_the_policy(
    of: PodRequest, policy: NumaPolicy, held: list[Holding], expected: tuple[int, ...] | str
) -> None:
    answer = place(of, small(policy, held))
    if isinstance(expected, str):
        assert isinstance(answer, Refusal)
        assert answer.message.startswith(f"node-1: {expected}")
    else:
        assert isinstance(answer, Placement), answer
        numa = answer.cpus.numa if answer.cpus is not None else ()
        assert tuple(one.node for one in numa) == expected


def test_the_refusal_names_the_resource() -> None:
    answer = place(asking({"cpu": 1, NIC: 4}, qos="LS"), small(SINGLE))
    assert isinstance(answer, Refusal)
    assert answer.message.endswith("in the first tried: vendor/nic1 4 is not free in NUMA node 0")


@pytest.mark.parametrize("of", [asking({GPU: 50, "cpu": 3, NIC: 1}), asking({"cpu": 3, NIC: 1}, qos="LS")])
def test_what_was_placed_is_no_longer_free(of: PodRequest) -> None:
    on, found = small(SINGLE), []
    while isinstance(answer := place(of, on), Placement):
        assert answer.cpus is not None
        found.append([one.node for one in answer.cpus.numa])
        on = on.with_holding(holding(f"pod-{len(found)}", *answer.shares, cpus=answer.cpus))
        on.check_invariants()
    assert sorted(found) == [[0], [0], [1], [1]]


def test_a_pod_without_a_label_is_written_the_shared_pool_of_its_numa_node() -> None:
    answer = place(asking({GPU: 100, "cpu": "1500m", "memory": "1Gi", NIC: 2}), small(SINGLE))
    assert isinstance(answer, Placement)
    made = holding("uid", *answer.shares, cpus=answer.cpus)
    annotations = write_allocation(made, "koordinator.sh")
    assert json.loads(annotations[RESOURCE_STATUS]) == {
        "numaNodeResources": [{"node": 0, "resources": {"cpu": "1500m", "memory": "1Gi", "vendor/nic1": "2"}}],
        "cpuSharedPools": [{"socket": 0, "node": 0}],
    }
    assert read_cpu_share(annotations, None) == answer.cpus
    again = read_spec({"metadata": {"name": "node-1"}, "spec": write_spec([made])})
    assert again == {"uid": made}


@pytest.mark.parametrize("cpu", [None, CpuNode(CPUS), CpuNode(CPUS, policy=SINGLE, holders_unknown=True)])
def test_without_a_policy_a_pod_without_a_label_is_given_nothing(cpu: CpuNode | None) -> None:
    answer = place(asking({GPU: 100, "cpu": 10}), replace(server(), cpu=cpu))
    assert isinstance(answer, Placement)
    assert answer.cpus is None


@given(holdings())
def test_a_ledger_entry_keeps_every_resource(one: Holding) -> None:
    if one.cpus is not None and one.cpus.numa:
        first, *rest = one.cpus.numa
        one = replace(one, cpus=replace(one.cpus, numa=(first._replace(others=(("a/b", 3), ("c/d", 1))), *rest)))
    assert read_spec({"metadata": {"name": "n"}, "spec": write_spec([one])}) == {one.uid: one}


# What is read of a Pod

READ: dict[str, tuple[dict[str, Any], bool, object]] = {
    "devices and nothing else": (pod(container(requests={GPU: 100})), True, None),
    "no devices, no label": (pod(container(requests={"cpu": 1})), False, None),
    "system": (pod(container(requests={"cpu": 1}), labels={"koordinator.sh/qosClass": "SYSTEM"}), True, None),
    "an amount that cannot be read": (pod(container(requests={"cpu": "x"})), True, None),
    "devices and a limit": (pod(container(limits={"cpu": 2, NIC: 3})), True, (QosClass.LS, 2000, ((NIC, 3),), True)),
    "an annotation that binds nothing": (
        pod(
            container(requests={"cpu": 1}),
            annotations={"scheduling.koordinator.sh/resource-spec": '{"preferredCPUBindPolicy":"FullPCPUs"}'},
        ),
        True,
        (QosClass.LS, 1000, (), True),
    ),
    "a label": (
        pod(container(requests={"cpu": 1, NIC: 2}), labels={"koordinator.sh/qosClass": "LS"}),
        False,
        (QosClass.LS, 1000, ((NIC, 2),), False),
    ),
    "devices and memory": (pod(container(requests={"memory": "1Gi"})), True, (QosClass.LS, 0, (), True)),
    "a resource of one container": (
        pod(container("a", requests={NIC: 3}), container("b"), init=[container("i")]),
        True,
        (QosClass.LS, 0, ((NIC, 3),), True),
    ),
    "none of a resource": (pod(container(requests={"cpu": 1, NIC: 0})), True, (QosClass.LS, 1000, (), True)),
    "an init container that is no sidecar": (
        pod(container(requests={"cpu": 1}), init=[container("i", requests={"cpu": 2}, restartPolicy="Never")]),
        True,
        (QosClass.LS, 2000, (), True),
    ),
    "the peak over init containers": (
        pod(
            container("a", requests={NIC: 1, "cpu": 1}),
            container("b", requests={NIC: 2}),
            init=[container("i", requests={NIC: 5})],
        ),
        True,
        (QosClass.LS, 1000, ((NIC, 5),), True),
    ),
}


@pytest.mark.parametrize(("made", "devices", "expected"), READ.values(), ids=READ)
def test_a_pods_other_resources_are_read(made: dict[str, Any], *, devices: bool, expected: object) -> None:
    reading = read_cpu_ask(made, devices=devices)
    assert reading.problems == ()
    ask = reading.ask
    assert (None if ask is None else (ask.qos, ask.milli, ask.others, ask.implied)) == expected


def test_cpus_of_which_a_pod_states_nothing_are_read_for_a_decision_about_its_devices_alone() -> None:
    devices, none = pod(container(requests={GPU: 50, "cpu": 1})), pod(container(requests={"cpu": 1}))
    cpu = read_asks(devices).cpu
    assert cpu is not None
    assert (cpu.milli, cpu.implied) == (1000, True)
    assert read_asks(devices, implied=False).cpu is None
    assert read_asks(none).cpu is None


def test_a_nodes_zones_are_read_with_every_resource() -> None:
    amounts = {"cpu": 8000, "memory": GIB, NIC: 3, HUGE: GIB}
    topology = NodeTopology("node-1", cpu=CPUS, zones={0: NumaZone(amounts, amounts)})
    found = resolve(topology, {}, CpuDefaults())
    assert found is not None
    assert found.zones == {0: Zone(8000, GIB, ((HUGE, GIB), (NIC, 3)))}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=12))
def test_no_numa_node_gives_more_of_a_resource_than_it_has(asks: list[tuple[int, int]]) -> None:
    on = small(RESTRICTED)
    for number, (nics, cpu) in enumerate(asks):
        answer = place(asking({"cpu": cpu, NIC: nics, GPU: 10}), on)
        if isinstance(answer, Placement):
            on = on.with_holding(holding(f"pod-{number}", *answer.shares, cpus=answer.cpus))
    given_away = {0: 0, 1: 0}
    for one in on.holdings.values():
        for share in one.cpus.numa if one.cpus is not None else ():
            given_away[share.node] += dict(share.others).get(NIC, 0)
    assert max(given_away.values()) <= 3
